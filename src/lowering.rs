//! A convolution in any direction as a matrix product per group:
//! out[channel, position] = Σ_r weight[channel, r] · patch[position, r].

use crate::geometry::{Geometry, each, split};
use crate::problem::Direction;

/// Index arithmetic of the matrix product. The reduction index r is
/// (outer, inner); inner runs over taps, or over output positions for
/// bwd_filter.
#[derive(Clone, Debug)]
pub struct Lowering {
    geometry: Geometry,
    /// Independent products.
    pub groups: usize,
    /// Rows of weights per group.
    pub channels: usize,
    /// Patches per group.
    pub positions: usize,
    outer: usize,
    inner: usize,
    /// Whether the patches come from the first operand.
    pub patches_first: bool,
}

impl Lowering {
    /// The lowering of a problem.
    pub fn new(geometry: &Geometry) -> Self {
        let g = geometry;
        let volume = |s: [usize; 3]| s.iter().product::<usize>();
        let (taps, image, out) = (volume(g.kernel), volume(g.input), volume(g.output));
        let (cg, kg) = (g.c / g.groups, g.k / g.groups);
        let (channels, positions, outer, inner) = match g.direction {
            Direction::Fwd => (kg, g.n * out, cg, taps),
            Direction::BwdData => (cg, g.n * image, kg, taps),
            Direction::BwdFilter => (kg, cg * taps, g.n, out),
        };
        Lowering {
            groups: g.groups,
            channels,
            positions,
            outer,
            inner,
            patches_first: g.direction != Direction::BwdData,
            geometry: geometry.clone(),
        }
    }

    /// Length of the sum, padding included.
    pub fn depth(&self) -> usize {
        self.outer * self.inner
    }

    /// Length of the inner index of the sum.
    pub fn inner(&self) -> usize {
        self.inner
    }

    /// Outputs that are neighbours in the result, and whose positions are too:
    /// those of one image and channel.
    pub fn row(&self) -> usize {
        match self.geometry.direction {
            Direction::BwdFilter => self.positions,
            _ => self.positions / self.geometry.n,
        }
    }

    /// Where the weights of a channel lie, for each outer index: `inner` in a row.
    pub fn weight_rows(&self, group: usize, channel: usize) -> impl Iterator<Item = usize> {
        let start = self.weight(group, channel, 0);
        let step = match self.outer {
            1 => 0,
            _ => self.weight(group, channel, self.inner) - start,
        };
        (0..self.outer).map(move |outer| start + outer * step)
    }

    /// Logical offset in the weights' operand of weight[channel, r].
    pub fn weight(&self, group: usize, channel: usize, r: usize) -> usize {
        let g = &self.geometry;
        let (outer, inner) = (r / self.inner, r % self.inner);
        let (cg, kg) = (g.c / g.groups, g.k / g.groups);
        let row = match g.direction {
            Direction::Fwd => (group * kg + channel) * cg + outer,
            Direction::BwdData => (group * kg + outer) * cg + channel,
            Direction::BwdFilter => outer * g.k + group * kg + channel,
        };
        row * self.inner + inner
    }

    /// Logical offset of the result at (channel, position).
    pub fn output(&self, group: usize, channel: usize, position: usize) -> usize {
        let g = &self.geometry;
        let (cg, kg) = (g.c / g.groups, g.k / g.groups);
        let volume = |s: [usize; 3]| s.iter().product::<usize>();
        match g.direction {
            Direction::Fwd => {
                let out = volume(g.output);
                let (n, at) = (position / out, position % out);
                (n * g.k + group * kg + channel) * out + at
            }
            Direction::BwdData => {
                let image = volume(g.input);
                let (n, at) = (position / image, position % image);
                (n * g.c + group * cg + channel) * image + at
            }
            Direction::BwdFilter => (group * kg + channel) * self.positions + position,
        }
    }

    /// Group, channel and position of the result's logical offset `index`: the
    /// inverse of [`Lowering::output`].
    pub fn locate(&self, index: usize) -> (usize, usize, usize) {
        let (plane, at) = match self.geometry.direction {
            Direction::BwdFilter => (index / self.positions, index % self.positions),
            _ => {
                let area = self.positions / self.geometry.n;
                (index / area, index % area)
            }
        };
        let planes = self.groups * self.channels;
        let (image, row) = (plane / planes, plane % planes);
        let position = match self.geometry.direction {
            Direction::BwdFilter => at,
            _ => image * (self.positions / self.geometry.n) + at,
        };
        (row / self.channels, row % self.channels, position)
    }

    /// The patch at `position`: offsets within one image plane for each inner
    /// index (`None` in the padding), the base offset at outer index 0 and the
    /// step per outer index.
    pub fn patch(&self, group: usize, position: usize, offsets: &mut Vec<Option<usize>>) -> Base {
        let g = &self.geometry;
        let volume = |s: [usize; 3]| s.iter().product::<usize>();
        let (image, out) = (volume(g.input), volume(g.output));
        let (cg, kg) = (g.c / g.groups, g.k / g.groups);
        let flat = |at: [usize; 3], size: [usize; 3]| (at[0] * size[1] + at[1]) * size[2] + at[2];
        offsets.clear();
        match g.direction {
            Direction::Fwd => {
                let (n, at) = split(position, g.output);
                each(g.kernel, |tap| {
                    offsets.push(g.input_position(at, tap).map(|from| flat(from, g.input)));
                });
                Base {
                    start: (n * g.c + group * cg) * image,
                    step: image,
                }
            }
            Direction::BwdData => {
                let (n, from) = split(position, g.input);
                each(g.kernel, |tap| {
                    offsets.push(g.output_position(from, tap).map(|at| flat(at, g.output)));
                });
                Base {
                    start: (n * g.k + group * kg) * out,
                    step: out,
                }
            }
            Direction::BwdFilter => {
                let (c, tap) = split(position, g.kernel);
                each(g.output, |at| {
                    offsets.push(g.input_position(at, tap).map(|from| flat(from, g.input)));
                });
                Base {
                    start: (group * cg + c) * image,
                    step: g.c * image,
                }
            }
        }
    }
}

/// Where the outer indices of a patch lie in the operand.
#[derive(Clone, Copy, Debug)]
pub struct Base {
    /// Offset at outer index 0.
    pub start: usize,
    /// Offset per outer index.
    pub step: usize,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::ConvProblem;

    /// The lowering sums exactly the products of the definition.
    #[test]
    fn lowering_sums_the_products_of_the_geometry() {
        for head in ["fwd", "bwd_data", "bwd_filter"] {
            let line =
                format!("{head} n=2 c=4 k=6 in=5x4 ker=3x2 stride=2x1 pad=1+2x0+1 dil=1x2 g=2");
            let problem: ConvProblem = line.parse().unwrap();
            let geometry = Geometry::new(&problem);
            let lowering = Lowering::new(&geometry);
            let mut seen = 0;
            let mut offsets = Vec::new();
            for group in 0..lowering.groups {
                for position in 0..lowering.positions {
                    let base = lowering.patch(group, position, &mut offsets);
                    for channel in 0..lowering.channels {
                        let mut mine: Vec<_> = (0..lowering.depth())
                            .filter_map(|r| {
                                let offset = offsets[r % offsets.len()]?;
                                let patch = base.start + r / offsets.len() * base.step + offset;
                                let weight = lowering.weight(group, channel, r);
                                Some(if lowering.patches_first {
                                    (patch, weight)
                                } else {
                                    (weight, patch)
                                })
                            })
                            .collect();
                        let mut truth = Vec::new();
                        let index = lowering.output(group, channel, position);
                        geometry.for_each_product(index, |a, b| truth.push((a, b)));
                        mine.sort_unstable();
                        truth.sort_unstable();
                        assert_eq!(mine, truth, "{line} output {index}");
                        assert_eq!(lowering.locate(index), (group, channel, position));
                        seen += 1;
                    }
                }
            }
            assert_eq!(seen, geometry.outputs());
        }
    }
}
