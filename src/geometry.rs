//! Which products a convolution sums: the one definition of it that the oracle,
//! the direct algorithm and attribution share, for all three directions.
//!
//! Index arithmetic here is on *logical* element offsets: row-major over the
//! dimensions of [`ConvProblem::dims`], whatever the memory layout.

use crate::problem::{ConvProblem, Direction, Role};

/// Precomputed index arithmetic of one problem. Spatial arrays are padded to
/// three dimensions with leading ones, so 1D and 2D problems are 3D ones.
#[derive(Clone, Debug)]
pub struct Geometry {
    pub(crate) direction: Direction,
    pub(crate) n: usize,
    pub(crate) c: usize,
    pub(crate) k: usize,
    pub(crate) groups: usize,
    pub(crate) input: [usize; 3],
    pub(crate) output: [usize; 3],
    pub(crate) kernel: [usize; 3],
    pub(crate) stride: [usize; 3],
    pub(crate) pad: [usize; 3],
    pub(crate) dilation: [usize; 3],
}

impl Geometry {
    /// The geometry of a valid problem.
    pub fn new(problem: &ConvProblem) -> Self {
        Geometry {
            direction: problem.direction,
            n: problem.n,
            c: problem.c,
            k: problem.k,
            groups: problem.groups,
            input: to_3d(&problem.spatial, 1),
            output: to_3d(&problem.output_spatial(), 1),
            kernel: to_3d(&problem.kernel, 1),
            stride: to_3d(&problem.stride, 1),
            pad: to_3d(&problem.pad_before, 0),
            dilation: to_3d(&problem.dilation, 1),
        }
    }

    /// Number of elements of the computed tensor.
    pub fn outputs(&self) -> usize {
        let volume = |s: [usize; 3]| s.iter().product::<usize>();
        match self.direction.result() {
            Role::X => self.n * self.c * volume(self.input),
            Role::W => self.k * self.c / self.groups * volume(self.kernel),
            Role::Y => self.n * self.k * volume(self.output),
        }
    }

    /// Calls `visit(first, second)` with the logical offsets, in the operands
    /// of [`Direction::operands`], of every product summed into the output at
    /// logical offset `index`. Products with padding are left out.
    pub fn for_each_product(&self, index: usize, visit: impl FnMut(usize, usize)) {
        match self.direction {
            Direction::Fwd => self.forward(index, visit),
            Direction::BwdData => self.backward_data(index, visit),
            Direction::BwdFilter => self.backward_filter(index, visit),
        }
    }

    fn forward(&self, index: usize, mut visit: impl FnMut(usize, usize)) {
        let (outer, at) = split(index, self.output);
        let (n, k) = (outer / self.k, outer % self.k);
        let (cg, first_c) = self.group_channels(k);
        for c in 0..cg {
            let image = n * self.c + first_c + c;
            let filter = k * cg + c;
            each(self.kernel, |tap| {
                if let Some(from) = self.input_position(at, tap) {
                    visit(
                        join(image, from, self.input),
                        join(filter, tap, self.kernel),
                    );
                }
            });
        }
    }

    fn backward_data(&self, index: usize, mut visit: impl FnMut(usize, usize)) {
        let (outer, at) = split(index, self.input);
        let (n, c) = (outer / self.c, outer % self.c);
        let (cg, kg) = (self.c / self.groups, self.k / self.groups);
        let first_k = c / cg * kg;
        for k in first_k..first_k + kg {
            let image = n * self.k + k;
            let filter = k * cg + c % cg;
            each(self.kernel, |tap| {
                if let Some(from) = self.output_position(at, tap) {
                    visit(
                        join(filter, tap, self.kernel),
                        join(image, from, self.output),
                    );
                }
            });
        }
    }

    fn backward_filter(&self, index: usize, mut visit: impl FnMut(usize, usize)) {
        let (outer, tap) = split(index, self.kernel);
        let cg = self.c / self.groups;
        let k = outer / cg;
        let c = self.group_channels(k).1 + outer % cg;
        for n in 0..self.n {
            each(self.output, |at| {
                if let Some(from) = self.input_position(at, tap) {
                    visit(
                        join(n * self.c + c, from, self.input),
                        join(n * self.k + k, at, self.output),
                    );
                }
            });
        }
    }

    /// Channels per group, and the first input channel of `k`'s group.
    fn group_channels(&self, k: usize) -> (usize, usize) {
        let cg = self.c / self.groups;
        (cg, k / (self.k / self.groups) * cg)
    }

    /// Where output position `at` and kernel tap `tap` meet the image.
    pub fn input_position(&self, at: [usize; 3], tap: [usize; 3]) -> Option<[usize; 3]> {
        let mut from = [0; 3];
        for d in 0..3 {
            let padded = at[d] * self.stride[d] + tap[d] * self.dilation[d];
            from[d] = padded.checked_sub(self.pad[d])?;
            if from[d] >= self.input[d] {
                return None;
            }
        }
        Some(from)
    }

    /// Which output position uses image position `from` under tap `tap`.
    pub fn output_position(&self, from: [usize; 3], tap: [usize; 3]) -> Option<[usize; 3]> {
        let mut at = [0; 3];
        for d in 0..3 {
            let padded = (from[d] + self.pad[d]).checked_sub(tap[d] * self.dilation[d])?;
            if padded % self.stride[d] != 0 {
                return None;
            }
            at[d] = padded / self.stride[d];
            if at[d] >= self.output[d] {
                return None;
            }
        }
        Some(at)
    }
}

/// Pads a spatial list to three dimensions on the left.
pub fn to_3d(list: &[usize], filler: usize) -> [usize; 3] {
    let mut padded = [filler; 3];
    padded[3 - list.len()..].copy_from_slice(list);
    padded
}

pub(crate) fn split(index: usize, size: [usize; 3]) -> (usize, [usize; 3]) {
    let (rest, w) = (index / size[2], index % size[2]);
    let (rest, h) = (rest / size[1], rest % size[1]);
    (rest / size[0], [rest % size[0], h, w])
}

fn join(outer: usize, at: [usize; 3], size: [usize; 3]) -> usize {
    ((outer * size[0] + at[0]) * size[1] + at[1]) * size[2] + at[2]
}

/// All indices below `size`, in row-major order.
pub(crate) fn each(size: [usize; 3], mut visit: impl FnMut([usize; 3])) {
    for d in 0..size[0] {
        for h in 0..size[1] {
            for w in 0..size[2] {
                visit([d, h, w]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn products(text: &str, index: usize) -> Vec<(usize, usize)> {
        let mut list = Vec::new();
        let problem: ConvProblem = text.parse().unwrap();
        Geometry::new(&problem).for_each_product(index, |a, b| list.push((a, b)));
        list
    }

    #[test]
    fn forward_border_leaves_padding_out() {
        let text = "fwd c=1 k=1 in=4 ker=3 pad=1";
        assert_eq!(products(text, 0), [(0, 1), (1, 2)]);
        assert_eq!(products(text, 1), [(0, 0), (1, 1), (2, 2)]);
        assert_eq!(products(text, 3), [(2, 0), (3, 1)]);
    }

    #[test]
    fn forward_groups_use_their_own_channels() {
        assert_eq!(products("fwd c=4 k=2 in=1 ker=1 g=2", 1), [(2, 2), (3, 3)]);
    }

    /// The three directions are one trilinear form: every triple (x, w, y) of
    /// one must appear in the others.
    #[test]
    fn directions_sum_the_same_triples() {
        let base = "c=4 k=6 in=5x4 ker=3x2 n=2 stride=2x1 pad=1+2x0+1 dil=1x2 g=2";
        let triples = |head: &str| {
            let problem: ConvProblem = format!("{head} {base}").parse().unwrap();
            let geometry = Geometry::new(&problem);
            let mut list = Vec::new();
            for index in 0..geometry.outputs() {
                geometry.for_each_product(index, |a, b| {
                    list.push(match problem.direction {
                        Direction::Fwd => (a, b, index),
                        Direction::BwdData => (index, a, b),
                        Direction::BwdFilter => (a, index, b),
                    });
                });
            }
            list.sort_unstable();
            list
        };
        let forward = triples("fwd");
        assert!(!forward.is_empty());
        assert_eq!(forward, triples("bwd_data"));
        assert_eq!(forward, triples("bwd_filter"));
    }
}
