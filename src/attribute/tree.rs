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

/// Number of units that survive with +M at the one and −M at the other summand.
type Left<'a> = dyn FnMut(usize, usize) -> Option<usize> + 'a;

/// The tree of a sum of `summands`; `left(i, j)` is the number of units that
/// survive with +M at i and −M at j. `None` when the answers fit no tree.
pub fn tree(summands: usize, left: &mut Left<'_>) -> Option<Tree> {
    let all: Vec<usize> = (0..summands).collect();
    grow(&all, summands, left)
}

/// The subtree over `leaves`: sizes of the sums in which the first meets each
/// other one, smallest first.
fn grow(leaves: &[usize], summands: usize, left: &mut Left<'_>) -> Option<Tree> {
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
        let mut parts = vec![tree];
        parts.extend(split(others, size, summands, left)?);
        parts.sort_by_key(Tree::first);
        tree = Tree::Node(parts);
    }
    Some(tree)
}

/// The subtrees that `leaves` make in a sum of `size`: those that meet in all of
/// it are added at once, in one fused operation.
fn split(
    mut leaves: Vec<usize>,
    size: usize,
    summands: usize,
    left: &mut Left<'_>,
) -> Option<Vec<Tree>> {
    let mut parts = Vec::new();
    while let Some(&first) = leaves.first() {
        let (mut own, mut rest) = (vec![first], Vec::new());
        for &other in &leaves[1..] {
            let apart = summands.checked_sub(left(first, other)?)? == size;
            if apart { &mut rest } else { &mut own }.push(other);
        }
        parts.push(grow(&own, summands, left)?);
        leaves = rest;
    }
    Some(parts)
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

    /// The shape in words, where it has one.
    pub fn shape(&self) -> Option<String> {
        if *self == sequential(self.len()) {
            return Some("sequential".to_owned());
        }
        if *self == pairwise(0, self.len()) {
            return Some("pairwise".to_owned());
        }
        let block = (2..self.len()).find(|&block| *self == fused(self.len(), block));
        block.map(|block| format!("blocks of {block} added at once to what came before"))
    }
}

/// Each block is added to the sum so far in one fused operation.
fn fused(len: usize, block: usize) -> Tree {
    let leaves: Vec<Tree> = (0..len).map(Tree::Leaf).collect();
    let mut blocks = leaves.chunks(block);
    let first = Tree::Node(blocks.next().unwrap_or_default().to_vec());
    blocks.fold(first, |sum, block| {
        Tree::Node(std::iter::once(sum).chain(block.iter().cloned()).collect())
    })
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
            Tree::Node(parts) => write!(f, "({})", runs(parts).join(" ")),
        }
    }
}

/// The parts of a node; four or more summands in a row as `0-15`.
fn runs(parts: &[Tree]) -> Vec<String> {
    const SHORTEST: usize = 4;
    let follows = |a: &Tree, b: &Tree| match (a, b) {
        (Tree::Leaf(a), Tree::Leaf(b)) => a + 1 == *b,
        _ => false,
    };
    let words = parts.chunk_by(follows).flat_map(|run| match run {
        [first, .., last] if run.len() >= SHORTEST => vec![format!("{first}-{last}")],
        _ => run.iter().map(ToString::to_string).collect(),
    });
    words.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HUGE: f32 = f32::MAX / 2.0;

    /// Sums in fp32 in the order of a tree; more than two at once lose what is
    /// small beside the largest, as a tensor core does.
    fn sum(tree: &Tree, values: &[f32]) -> f32 {
        let Tree::Node(parts) = tree else {
            return values[tree.first()];
        };
        let parts: Vec<f32> = parts.iter().map(|p| sum(p, values)).collect();
        let huge = |v: &&f32| v.abs() > HUGE / 2.0;
        match parts.len() > 2 && parts.iter().any(|v| huge(&v)) {
            true => parts.iter().filter(huge).sum(),
            false => parts.iter().sum(),
        }
    }

    fn found(truth: &Tree) -> Option<Tree> {
        let len = truth.len();
        tree(len, &mut |i, j| {
            let mut values = vec![1.0; len];
            (values[i], values[j]) = (HUGE, -HUGE);
            Some(sum(truth, &values) as usize)
        })
    }

    #[test]
    fn tree_known_orders_are_named() {
        let pairs = found(&pairwise(0, 4)).unwrap();
        assert_eq!(
            (pairs.to_string(), pairs.shape()),
            ("((0 1) (2 3))".into(), Some("pairwise".to_owned()))
        );
        let row = found(&sequential(5)).unwrap();
        assert_eq!(row.to_string(), "((((0 1) 2) 3) 4)");
        assert_eq!(row.shape(), Some("sequential".to_owned()));
    }

    #[test]
    fn tree_fused_blocks_are_found_and_named() {
        let blocks = found(&fused(24, 8)).unwrap();
        assert_eq!(blocks, fused(24, 8));
        assert_eq!(blocks.to_string(), "(((0-7) 8-15) 16-23)");
        let words = "blocks of 8 added at once to what came before";
        assert_eq!(blocks.shape().as_deref(), Some(words));
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

    /// Three subtrees at once, of any shape.
    fn any_fused(len: usize, seed: u64) -> Tree {
        let all: Vec<usize> = (0..len).collect();
        let third = len / 3;
        let parts = [&all[..third], &all[third..2 * third], &all[2 * third..]];
        Tree::Node(parts.map(|p| any_tree(p.to_vec(), seed)).into())
    }

    proptest! {
        #[test]
        fn tree_any_order_is_found(len in 1usize..24, seed: u64) {
            let truth = any_tree((0..len).collect(), seed);
            prop_assert_eq!(found(&truth), Some(truth));
        }

        #[test]
        fn tree_any_fused_order_is_found(len in 3usize..24, seed: u64) {
            let truth = any_fused(len, seed);
            prop_assert_eq!(found(&truth), Some(truth));
        }
    }
}
