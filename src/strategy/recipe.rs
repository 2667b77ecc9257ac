//! From what is wanted of a problem to a problem that has it, cut to size.

use super::limits::{Limits, Types};
use crate::problem::{ConvProblem, Direction, Layout, Role, Scale};

/// What is wanted: one independent choice per feature.
#[derive(Clone, Debug)]
pub(super) struct Recipe {
    pub(super) direction: Direction,
    pub(super) types: Types,
    pub(super) layout: Layout,
    pub(super) n: usize,
    pub(super) grouping: Grouping,
    pub(super) c: Channels,
    pub(super) k: Channels,
    /// One per spatial dimension.
    pub(super) axes: Vec<Axis>,
    pub(super) alpha: f64,
    pub(super) beta: f64,
    /// Whether sizes are cut from the image before the channels.
    pub(super) keep_channels: bool,
}

/// A channel count around a multiple of a power of two.
#[derive(Clone, Copy, Debug)]
pub(super) struct Channels {
    /// 1, or a size that kernels are tiled by: 4, 8, 16, 32, 64.
    pub(super) unit: usize,
    pub(super) count: usize,
    /// -1, 0 or 1: below, at or above.
    pub(super) delta: isize,
}

/// How channels are grouped.
#[derive(Clone, Copy, Debug)]
pub(super) enum Grouping {
    /// Not at all.
    One,
    /// So many groups, each with the recipe's channels.
    Groups(usize),
    /// One input channel per group, as many groups as the recipe's c, and so
    /// many output channels per group.
    Depthwise(usize),
}

/// One spatial dimension.
#[derive(Clone, Copy, Debug)]
pub(super) struct Axis {
    pub(super) kernel: usize,
    pub(super) dilation: usize,
    pub(super) stride: usize,
    pub(super) pad: Pad,
    pub(super) size: usize,
    /// An image smaller than the kernel gets padding; else it grows.
    pub(super) pad_to_fit: bool,
}

/// Padding of one dimension.
#[derive(Clone, Copy, Debug)]
pub(super) enum Pad {
    None,
    /// Half of the kernel's extent, as "same" convolutions have.
    Half,
    /// These, before and after.
    Sides(usize, usize),
    /// The whole extent of the kernel and this much more, on both sides.
    Beyond(usize),
}

impl Channels {
    fn value(self) -> usize {
        (self.unit * self.count)
            .saturating_add_signed(self.delta)
            .max(1)
    }

    /// Halves the count, then the unit, keeping the side of the boundary.
    fn cut(&mut self) {
        if self.count > 1 {
            self.count /= 2;
        } else if self.unit > 4 {
            self.unit /= 2;
        } else {
            *self = Channels {
                unit: 1,
                count: 1,
                delta: 0,
            };
        }
    }
}

impl Axis {
    fn extent(&self) -> usize {
        (self.kernel - 1) * self.dilation + 1
    }

    /// Size and padding (before, after) such that the kernel fits.
    fn fitted(&self) -> (usize, usize, usize) {
        let extent = self.extent();
        let (before, after) = match self.pad {
            Pad::None => (0, 0),
            Pad::Half => (extent / 2, extent / 2),
            Pad::Sides(before, after) => (before, after),
            Pad::Beyond(more) => (extent + more, extent + more),
        };
        let missing = extent.saturating_sub(self.size + before + after);
        if self.pad_to_fit {
            (
                self.size,
                before + missing.div_ceil(2),
                after + missing.div_ceil(2),
            )
        } else {
            (self.size + missing, before, after)
        }
    }
}

impl Recipe {
    /// The problem this recipe asks for, cut until it is within `limits`.
    pub(super) fn build(mut self, limits: &Limits) -> ConvProblem {
        loop {
            let problem = self.problem();
            if within(&problem, limits) || !self.cut() {
                return problem;
            }
        }
    }

    fn problem(&self) -> ConvProblem {
        let (c, k, groups) = self.channels();
        let fitted: Vec<_> = self.axes.iter().map(Axis::fitted).collect();
        let spatial: Vec<_> = fitted.iter().map(|f| f.0).collect();
        let kernel: Vec<_> = self.axes.iter().map(|a| a.kernel).collect();
        let mut problem = ConvProblem::new(c, k, &spatial, &kernel);
        problem.direction = self.direction;
        self.types.apply(&mut problem);
        problem.n = self.n;
        problem.groups = groups;
        problem.layout = self.layout;
        problem.stride = self.axes.iter().map(|a| a.stride).collect();
        problem.dilation = self.axes.iter().map(|a| a.dilation).collect();
        problem.pad_before = fitted.iter().map(|f| f.1).collect();
        problem.pad_after = fitted.iter().map(|f| f.2).collect();
        (problem.alpha, problem.beta) = (Scale(self.alpha), Scale(self.beta));
        problem
    }

    /// c, k and groups.
    fn channels(&self) -> (usize, usize, usize) {
        let (c, k) = (self.c.value(), self.k.value());
        match self.grouping {
            Grouping::One => (c, k, 1),
            Grouping::Groups(g) => (c * g, k * g, g),
            Grouping::Depthwise(per_group) => (c, c * per_group, c),
        }
    }

    /// Makes one thing smaller; `false` when everything is as small as can be.
    fn cut(&mut self) -> bool {
        let cuts: [fn(&mut Recipe) -> bool; 8] = if self.keep_channels {
            [
                |r| r.cut_image(3),
                Recipe::cut_batch,
                |r| r.cut_channels(9),
                |r| r.cut_image(1),
                |r| r.cut_channels(1),
                Recipe::cut_padding,
                Recipe::cut_groups,
                Recipe::cut_kernel,
            ]
        } else {
            [
                |r| r.cut_channels(9),
                |r| r.cut_image(5),
                Recipe::cut_batch,
                |r| r.cut_channels(1),
                |r| r.cut_image(1),
                Recipe::cut_padding,
                Recipe::cut_groups,
                Recipe::cut_kernel,
            ]
        };
        cuts.into_iter().any(|cut| cut(self))
    }

    /// Takes a third off the longest side, if it is above `least`.
    fn cut_image(&mut self, least: usize) -> bool {
        let longest = self.axes.iter_mut().max_by_key(|a| a.size);
        longest.filter(|a| a.size > least).is_some_and(|axis| {
            axis.size -= axis.size.div_ceil(3);
            true
        })
    }

    fn cut_batch(&mut self) -> bool {
        let cut = self.n > 1;
        self.n = self.n.div_ceil(2);
        cut
    }

    fn cut_channels(&mut self, least: usize) -> bool {
        let larger = if self.c.value() >= self.k.value() || self.depthwise() {
            &mut self.c
        } else {
            &mut self.k
        };
        let cut = larger.value() > least;
        if cut {
            larger.cut();
        }
        cut
    }

    fn depthwise(&self) -> bool {
        matches!(self.grouping, Grouping::Depthwise(_))
    }

    fn cut_padding(&mut self) -> bool {
        let padded = |a: &&mut Axis| !matches!(a.pad, Pad::None);
        self.axes.iter_mut().find(padded).is_some_and(|axis| {
            axis.pad = Pad::None;
            true
        })
    }

    fn cut_groups(&mut self) -> bool {
        let cut = !matches!(self.grouping, Grouping::One);
        self.grouping = Grouping::One;
        cut
    }

    fn cut_kernel(&mut self) -> bool {
        let longest = self.axes.iter_mut().max_by_key(|a| a.extent());
        longest.filter(|a| a.kernel > 1).is_some_and(|axis| {
            axis.kernel = axis.kernel.div_ceil(2);
            axis.dilation = 1;
            true
        })
    }
}

fn within(problem: &ConvProblem, limits: &Limits) -> bool {
    let small = |role| problem.elements(role) as u64 <= limits.max_elements;
    problem.macs() <= limits.max_macs && small(Role::X) && small(Role::W) && small(Role::Y)
}
