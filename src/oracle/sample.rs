//! Which outputs are judged when there are too many to judge all.

use crate::problem::ConvProblem;

/// Which outputs of a problem are judged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sample {
    /// Every one.
    All,
    /// These logical offsets, ascending and distinct.
    Some(Vec<usize>),
}

/// Tile sizes whose edges are sampled: those of common GEMM tilings.
const TILES: [usize; 4] = [16, 32, 64, 128];

impl Sample {
    /// All outputs when there are at most `budget`; else corners, borders, tile
    /// edges and last elements of every dimension, filled up with outputs drawn
    /// from `seed`. At most about `budget` offsets of 8 bytes are kept.
    pub fn choose(problem: &ConvProblem, budget: usize, seed: u64) -> Self {
        let dims = problem.dims(problem.direction.result());
        let total: usize = dims.iter().product();
        if total <= budget {
            return Sample::All;
        }
        let marks: Vec<Vec<usize>> = dims.iter().map(|&d| landmarks(d)).collect();
        let mut random = Counter(seed);
        let mut chosen = corners(&dims);
        // Half at landmarks in every dimension, half anywhere.
        while chosen.len() < budget / 2 {
            let at = marks.iter().map(|m| m[random.below(m.len())]);
            chosen.push(offset(&dims, at));
        }
        while chosen.len() < budget {
            chosen.push(random.below(total));
        }
        chosen.sort_unstable();
        chosen.dedup();
        Sample::Some(chosen)
    }

    /// Logical offset of the `i`-th judged output.
    pub fn index(&self, i: usize) -> usize {
        match self {
            Sample::All => i,
            Sample::Some(list) => list[i],
        }
    }

    /// Number of judged outputs out of `total`.
    pub fn len(&self, total: usize) -> usize {
        match self {
            Sample::All => total,
            Sample::Some(list) => list.len(),
        }
    }
}

/// First and last indices of a dimension, and both sides of every tile edge.
fn landmarks(size: usize) -> Vec<usize> {
    let mut marks = vec![0, 1, size / 2, size - 1, size.saturating_sub(2)];
    for tile in TILES {
        let last = size / tile * tile;
        for edge in [tile, last] {
            marks.extend([edge.saturating_sub(1), edge]);
        }
    }
    marks.retain(|&m| m < size);
    marks.sort_unstable();
    marks.dedup();
    marks
}

fn corners(dims: &[usize]) -> Vec<usize> {
    (0..1usize << dims.len())
        .map(|mask| {
            let at = dims
                .iter()
                .enumerate()
                .map(|(d, &size)| (size - 1) * (mask >> d & 1));
            offset(dims, at)
        })
        .collect()
}

fn offset(dims: &[usize], at: impl Iterator<Item = usize>) -> usize {
    dims.iter()
        .zip(at)
        .fold(0, |offset, (&size, i)| offset * size + i)
}

/// SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
struct Counter(u64);

impl Counter {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % bound as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choose_small_problem_is_all() {
        let problem: ConvProblem = "fwd c=2 k=4 in=5 ker=3".parse().unwrap();
        assert_eq!(Sample::choose(&problem, 12, 0), Sample::All);
    }

    #[test]
    fn choose_large_problem_holds_corners_and_tile_edges() {
        let problem: ConvProblem = "fwd n=2 c=1 k=65 in=300x200 ker=1x1".parse().unwrap();
        let Sample::Some(list) = Sample::choose(&problem, 2000, 7) else {
            panic!("sampled")
        };
        let total = 2 * 65 * 300 * 200;
        assert!(list.len() > 1500 && list.len() <= 2000);
        assert!(list.contains(&0) && list.contains(&(total - 1)));
        let columns: Vec<usize> = list.iter().map(|i| i % 200).collect();
        for edge in [127, 128, 191, 192, 199] {
            assert!(columns.contains(&edge), "column {edge}");
        }
        assert!(list.is_sorted());
    }
}
