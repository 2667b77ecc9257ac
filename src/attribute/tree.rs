//! The order of a sum, by the method of FPRev (Xie et al., USENIX ATC 2025,
//! arXiv:2411.00442): with +M at summand i, −M at j and units elsewhere, what is
//! left of the units is those added after i and j met.

use std::fmt;

/// How summands are added up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tree {
    /// A summand.
    Leaf(usize),
    /// Sums that are added together, at once or in an order that is the same.
    Node(Vec<Tree>),
}

/// The tree of a sum of `summands`; `left(i, j)` is the number of units that
/// survive with +M at i and −M at j. `None` when the answers fit no tree.
pub fn tree(summands: usize, left: &mut dyn FnMut(usize, usize) -> Option<usize>) -> Option<Tree> {
    let all: Vec<usize> = (0..summands).collect();
    grow(&all, summands, left)
}

/// The subtree over `leaves`: sizes of the sums in which the first meets each
/// other one, smallest first.
fn grow(
    leaves: &[usize],
    summands: usize,
    left: &mut dyn FnMut(usize, usize) -> Option<usize>,
) -> Option<Tree> {
    let (&first, rest) = leaves.split_first()?;
    let mut met = Vec::new();
    for &other in rest {
        met.push((summands.checked_sub(left(first, other)?)?, other));
    }
    met.sort_unstable();
    let mut tree = Tree::Leaf(first);
    let mut size = 1;
    for group in met.chunk_by(|a, b| a.0 == b.0) {
        let others: Vec<usize> = group.iter().map(|(_, leaf)| *leaf).collect();
        size += others.len();
        if group[0].0 != size {
            return None;
        }
        tree = join(tree, grow(&others, summands, left)?);
    }
    Some(tree)
}

fn join(a: Tree, b: Tree) -> Tree {
    let mut parts = [a, b];
    parts.sort_by_key(Tree::first);
    Tree::Node(parts.into())
}

impl Tree {
    /// The least summand.
    pub fn first(&self) -> usize {
        match self {
            Tree::Leaf(leaf) => *leaf,
            Tree::Node(parts) => parts.iter().map(Tree::first).min().unwrap_or(0),
        }
    }

    /// Number of summands.
    pub fn len(&self) -> usize {
        match self {
            Tree::Leaf(_) => 1,
            Tree::Node(parts) => parts.iter().map(Tree::len).sum(),
        }
    }

    /// Whether there are none: never.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The shape in a word, where it has one.
    pub fn shape(&self) -> Option<&'static str> {
        if *self == sequential(self.len()) {
            return Some("sequential");
        }
        (*self == pairwise(0, self.len())).then_some("pairwise")
    }
}

fn sequential(len: usize) -> Tree {
    (1..len).fold(Tree::Leaf(0), |tree, leaf| join(tree, Tree::Leaf(leaf)))
}

fn pairwise(from: usize, len: usize) -> Tree {
    match len {
        0 | 1 => Tree::Leaf(from),
        _ => join(
            pairwise(from, len.div_ceil(2)),
            pairwise(from + len.div_ceil(2), len / 2),
        ),
    }
}

impl fmt::Display for Tree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Tree::Leaf(leaf) => write!(f, "{leaf}"),
            Tree::Node(parts) => {
                let parts: Vec<_> = parts.iter().map(ToString::to_string).collect();
                write!(f, "({})", parts.join(" "))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Sums in fp32 in the order of a tree.
    fn sum(tree: &Tree, values: &[f32]) -> f32 {
        match tree {
            Tree::Leaf(leaf) => values[*leaf],
            Tree::Node(parts) => parts
                .iter()
                .map(|p| sum(p, values))
                .reduce(|a, b| a + b)
                .unwrap(),
        }
    }

    fn found(truth: &Tree) -> Option<Tree> {
        let len = truth.len();
        tree(len, &mut |i, j| {
            let mut values = vec![1.0; len];
            (values[i], values[j]) = (f32::MAX / 2.0, -f32::MAX / 2.0);
            Some(sum(truth, &values) as usize)
        })
    }

    #[test]
    fn tree_known_orders_are_named() {
        let pairs = found(&pairwise(0, 4)).unwrap();
        assert_eq!(
            (pairs.to_string(), pairs.shape()),
            ("((0 1) (2 3))".into(), Some("pairwise"))
        );
        let row = found(&sequential(5)).unwrap();
        assert_eq!(row.to_string(), "((((0 1) 2) 3) 4)");
        assert_eq!(row.shape(), Some("sequential"));
    }

    #[test]
    fn tree_contradictory_answers_are_refused() {
        assert_eq!(tree(3, &mut |_, _| Some(2)), None);
        assert_eq!(tree(3, &mut |_, _| None), None);
    }

    fn any_tree(leaves: Vec<usize>, seed: u64) -> Tree {
        if leaves.len() == 1 {
            return Tree::Leaf(leaves[0]);
        }
        let cut = 1 + seed as usize % (leaves.len() - 1);
        let next = seed.rotate_left(13).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let (a, b) = leaves.split_at(cut);
        join(
            any_tree(a.to_vec(), next),
            any_tree(b.to_vec(), next ^ 0x55),
        )
    }

    proptest! {
        #[test]
        fn tree_any_order_is_found(len in 1usize..24, seed: u64) {
            let truth = any_tree((0..len).collect(), seed);
            prop_assert_eq!(found(&truth), Some(truth));
        }
    }
}
