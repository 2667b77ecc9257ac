//! The domain passes: each knows one way to make a convolution simpler.
//!
//! A change that alone would be impossible takes what it needs along: removing
//! padding grows an image that would become smaller than the kernel.

use super::types::Types;
use super::{Field, Shrinker};
use crate::candidate::{Candidate, Repro};
use crate::error::Result;
use crate::fill::{Fill, FillKind};
use crate::problem::{ConvProblem, Layout, Scale};

/// A way to make a case simpler.
pub(super) type Pass<'a, 'p, C> = fn(&mut Shrinker<'a, 'p, C>) -> Result<()>;

impl<'a, 'p, C: PartialEq> Shrinker<'a, 'p, C> {
    /// All passes, those that save most first.
    pub(super) const PASSES: [Pass<'a, 'p, C>; 14] = [
        Self::everything,
        Self::rank,
        Self::batch,
        Self::groups,
        Self::channels,
        Self::window,
        Self::kernel,
        Self::image,
        Self::exchange,
        Self::types,
        Self::layout,
        Self::factors,
        Self::knobs,
        Self::fill,
    ];

    /// All features to their defaults at once, then all sizes of the image.
    fn everything(&mut self) -> Result<()> {
        let keep = self.options.keep.clone();
        self.edit(|r| default_window(&mut r.problem, &keep))?;
        self.edit(|r| {
            let p = &mut r.problem;
            if !keep.contains(&Field::Alpha) {
                p.alpha = Scale(1.0);
            }
            if !keep.contains(&Field::Beta) {
                p.beta = Scale(0.0);
            }
        })?;
        self.edit(|r| {
            let p = &mut r.problem;
            if !keep.contains(&Field::N) {
                p.n = 1;
            }
            if !keep.contains(&Field::In) {
                (0..p.rank()).for_each(|d| p.spatial[d] = least_image(p, d));
            }
        })?;
        Ok(())
    }

    /// Drops spatial dimensions, with or without their share of the outputs.
    fn rank(&mut self) -> Result<()> {
        let fixed = [Field::In, Field::Ker, Field::Stride, Field::Pad, Field::Dil];
        if fixed.into_iter().any(|f| self.keeps(f)) {
            return Ok(());
        }
        let mut d = 0;
        while d < self.best.problem.rank() && self.best.problem.rank() > 1 {
            let dropped = self.edit(|r| drop_dimension(&mut r.problem, d))?
                || self.edit(|r| fold_dimension(&mut r.problem, d))?;
            if !dropped {
                d += 1;
            }
        }
        Ok(())
    }

    fn batch(&mut self) -> Result<()> {
        if self.keeps(Field::N) {
            return Ok(());
        }
        self.minimise(|r| r.problem.n, |r, n| r.problem.n = n, 1)
    }

    /// No groups with the same channels; else fewer groups of the same size.
    fn groups(&mut self) -> Result<()> {
        if self.keeps(Field::G) || self.edit(|r| r.problem.groups = 1)? {
            return Ok(());
        }
        if self.keeps(Field::C) || self.keeps(Field::K) {
            return Ok(());
        }
        self.minimise(|r| r.problem.groups, |r, g| regroup(&mut r.problem, g), 1)
    }

    /// Channels per group: both together, then each.
    fn channels(&mut self) -> Result<()> {
        let (keep_c, keep_k) = (self.keeps(Field::C), self.keeps(Field::K));
        if !keep_c && !keep_k {
            self.both_channels()?;
        }
        if !keep_c {
            self.minimise(
                |r| r.problem.c / r.problem.groups,
                |r, v| r.problem.c = v * r.problem.groups,
                1,
            )?;
        }
        if !keep_k {
            self.minimise(
                |r| r.problem.k / r.problem.groups,
                |r, v| r.problem.k = v * r.problem.groups,
                1,
            )?;
        }
        Ok(())
    }

    /// Divides both by a common factor; lowers both together when equal.
    fn both_channels(&mut self) -> Result<()> {
        let p = &self.best.problem;
        let (c, k) = (p.c / p.groups, p.k / p.groups);
        let common = (2..=c.min(k)).rev();
        for factor in common.filter(|f| c.is_multiple_of(*f) && k.is_multiple_of(*f)) {
            let divided = self.edit(|r| {
                (r.problem.c, r.problem.k) = (r.problem.c / factor, r.problem.k / factor);
            })?;
            if divided {
                break;
            }
        }
        if self.best.problem.c != self.best.problem.k {
            return Ok(());
        }
        self.minimise(
            |r| r.problem.c / r.problem.groups,
            |r, v| {
                r.problem.c = v * r.problem.groups;
                r.problem.k = r.problem.c;
            },
            1,
        )
    }

    /// Padding, stride and dilation of each dimension.
    fn window(&mut self) -> Result<()> {
        for d in 0..self.best.problem.rank() {
            if !self.keeps(Field::Pad) {
                self.padding(d)?;
            }
            if !self.keeps(Field::Stride) {
                self.spread(d, |p| &mut p.stride)?;
            }
            if !self.keeps(Field::Dil) {
                self.spread(d, |p| &mut p.dilation)?;
            }
        }
        Ok(())
    }

    /// No padding (image grown to fit, or to the same output), one side less,
    /// even sides, less on each side.
    fn padding(&mut self, d: usize) -> Result<()> {
        let p = &self.best.problem;
        let (before, after) = (p.pad_before[d], p.pad_after[d]);
        for sides in [(0, 0), (0, after), (before, 0)] {
            for same_output in [false, true] {
                self.edit(|r| repad(&mut r.problem, d, sides, same_output))?;
            }
        }
        let p = &self.best.problem;
        let least = p.pad_before[d].min(p.pad_after[d]);
        let most = p.pad_before[d].max(p.pad_after[d]);
        for both in [least, most] {
            self.edit(|r| repad(&mut r.problem, d, (both, both), false))?;
        }
        self.minimise_padding(d)?;
        let p = &self.best.problem;
        let swapped = (p.pad_after[d], p.pad_before[d]);
        self.edit(|r| repad(&mut r.problem, d, swapped, false))?;
        Ok(())
    }

    fn minimise_padding(&mut self, d: usize) -> Result<()> {
        let sides = |r: &Repro| (r.problem.pad_before[d], r.problem.pad_after[d]);
        if sides(&self.best).0 == sides(&self.best).1 {
            let set = |r: &mut Repro, v| repad(&mut r.problem, d, (v, v), false);
            return self.minimise(|r| sides(r).0, set, 0);
        }
        let set = |r: &mut Repro, v| {
            let after = sides(r).1;
            repad(&mut r.problem, d, (v, after), false);
        };
        self.minimise(|r| sides(r).0, set, 0)?;
        let set = |r: &mut Repro, v| {
            let before = sides(r).0;
            repad(&mut r.problem, d, (before, v), false);
        };
        self.minimise(|r| sides(r).1, set, 0)
    }

    /// Lowers a stride or dilation to 1, with the image as it is or with the
    /// same output; else to the least value.
    fn spread(&mut self, d: usize, list: fn(&mut ConvProblem) -> &mut Vec<usize>) -> Result<()> {
        for same_output in [true, false] {
            self.edit(|r| {
                let output = r.problem.output_spatial()[d];
                list(&mut r.problem)[d] = 1;
                if same_output {
                    resize_for_output(&mut r.problem, d, output);
                }
            })?;
        }
        let get = move |r: &Repro| list(&mut r.problem.clone())[d];
        self.minimise(get, |r, v| list(&mut r.problem)[d] = v, 1)
    }

    fn kernel(&mut self) -> Result<()> {
        if self.keeps(Field::Ker) {
            return Ok(());
        }
        for d in 0..self.best.problem.rank() {
            self.minimise(|r| r.problem.kernel[d], |r, v| r.problem.kernel[d] = v, 1)?;
        }
        Ok(())
    }

    fn image(&mut self) -> Result<()> {
        if self.keeps(Field::In) {
            return Ok(());
        }
        for d in 0..self.best.problem.rank() {
            let least = least_image(&self.best.problem, d);
            self.minimise(
                |r| r.problem.spatial[d],
                |r, v| r.problem.spatial[d] = v,
                least,
            )?;
        }
        Ok(())
    }

    /// Trades what the order counts more for what it counts less, with the
    /// same number of products: kernel taps for channels, channels and batch for
    /// positions.
    fn exchange(&mut self) -> Result<()> {
        if !self.keeps(Field::Ker) && !self.keeps(Field::C) {
            self.edit(|r| {
                let p = &mut r.problem;
                p.c *= p.kernel.iter().product::<usize>();
                p.kernel.fill(1);
            })?;
        }
        if self.keeps(Field::In) {
            return Ok(());
        }
        for (field, flatten) in FLATTEN {
            if !self.keeps(field) {
                self.edit(|r| {
                    let factor = flatten(&mut r.problem);
                    let last = r.problem.rank() - 1;
                    stretch(&mut r.problem, last, factor);
                })?;
            }
        }
        Ok(())
    }

    fn types(&mut self) -> Result<()> {
        if self.keeps(Field::Type) {
            return Ok(());
        }
        for types in Types::ALL {
            if self.edit(|r| types.apply(&mut r.problem))? {
                break;
            }
        }
        Ok(())
    }

    fn layout(&mut self) -> Result<()> {
        if !self.keeps(Field::Layout) {
            self.edit(|r| r.problem.layout = Layout::Nchw)?;
        }
        Ok(())
    }

    fn factors(&mut self) -> Result<()> {
        for value in [1.0, -1.0] {
            if !self.keeps(Field::Alpha) {
                self.edit(|r| r.problem.alpha = Scale(value))?;
            }
        }
        for value in [0.0, 1.0, -1.0] {
            if !self.keeps(Field::Beta) {
                self.edit(|r| r.problem.beta = Scale(value))?;
            }
        }
        Ok(())
    }

    /// All knobs to their defaults, else one by one.
    fn knobs(&mut self) -> Result<()> {
        if self.keeps(Field::Knobs) {
            return Ok(());
        }
        self.edit(|r| edit_knobs(r, Vec::clear))?;
        let mut at = 0;
        while at < knobs(&self.best) {
            let dropped = self.edit(|r| {
                edit_knobs(r, |list| {
                    list.remove(at);
                });
            })?;
            if !dropped {
                at += 1;
            }
        }
        Ok(())
    }

    /// A plainer distribution, then a small seed.
    fn fill(&mut self) -> Result<()> {
        for kind in FillKind::ALL {
            if self.plainer_fill(kind)? {
                break;
            }
        }
        for seed in 0..5 {
            if !self.keeps(Field::Seed) && self.edit(|r| r.fill.seed = seed)? {
                break;
            }
        }
        Ok(())
    }

    /// Data of `kind` with the same seed, or else with seed 0.
    fn plainer_fill(&mut self, kind: FillKind) -> Result<bool> {
        if self.keeps(Field::Fill) {
            return Ok(false);
        }
        if self.edit(|r| r.fill.kind = kind)? {
            return Ok(true);
        }
        if self.keeps(Field::Seed) {
            return Ok(false);
        }
        self.edit(|r| r.fill = Fill { kind, seed: 0 })
    }
}

/// Sets one size to its least and returns the factor that was lost.
type Flatten = fn(&mut ConvProblem) -> usize;

/// Sizes that positions can make up for.
const FLATTEN: [(Field, Flatten); 3] = [
    (Field::K, |p| {
        std::mem::replace(&mut p.k, p.groups) / p.groups
    }),
    (Field::C, |p| {
        std::mem::replace(&mut p.c, p.groups) / p.groups
    }),
    (Field::N, |p| std::mem::replace(&mut p.n, 1)),
];

/// Stride, dilation and padding of every dimension to their defaults, with an
/// image that the kernel fits.
fn default_window(p: &mut ConvProblem, keep: &[Field]) {
    let free = |field| !keep.contains(&field);
    for d in 0..p.rank() {
        if free(Field::Stride) {
            p.stride[d] = 1;
        }
        if free(Field::Dil) {
            p.dilation[d] = 1;
        }
        if free(Field::Pad) {
            (p.pad_before[d], p.pad_after[d]) = (0, 0);
        }
        if free(Field::In) {
            p.spatial[d] = p.spatial[d].max(least_image(p, d));
        }
    }
}

/// The least image size in dimension `d` at which the kernel fits.
fn least_image(p: &ConvProblem, d: usize) -> usize {
    let padding = p.pad_before[d] + p.pad_after[d];
    p.kernel_extent(d).saturating_sub(padding).max(1)
}

fn drop_dimension(p: &mut ConvProblem, d: usize) {
    for list in [
        &mut p.spatial,
        &mut p.kernel,
        &mut p.stride,
        &mut p.pad_before,
        &mut p.pad_after,
        &mut p.dilation,
    ] {
        list.remove(d);
    }
}

/// Drops dimension `d` and gives its output positions to a neighbour.
fn fold_dimension(p: &mut ConvProblem, d: usize) {
    let positions = p.output_spatial()[d];
    drop_dimension(p, d);
    stretch(p, d.saturating_sub(1), positions);
}

/// Makes the output `factor` times as long in dimension `d`.
fn stretch(p: &mut ConvProblem, d: usize, factor: usize) {
    let output = p.output_spatial()[d];
    resize_for_output(p, d, output.saturating_mul(factor));
}

/// `groups` groups of as many channels each as before.
fn regroup(p: &mut ConvProblem, groups: usize) {
    p.c = p.c / p.groups * groups;
    p.k = p.k / p.groups * groups;
    p.groups = groups;
}

/// Sets the padding; the image grows so that the kernel fits, or so that the
/// output keeps its size.
fn repad(p: &mut ConvProblem, d: usize, sides: (usize, usize), same_output: bool) {
    let lost = (p.pad_before[d] + p.pad_after[d]).saturating_sub(sides.0 + sides.1);
    (p.pad_before[d], p.pad_after[d]) = sides;
    if same_output {
        p.spatial[d] += lost;
    } else {
        p.spatial[d] = p.spatial[d].max(least_image(p, d));
    }
}

/// The image size in dimension `d` that gives `output` positions.
fn resize_for_output(p: &mut ConvProblem, d: usize, output: usize) {
    let steps = (output - 1).saturating_mul(p.stride[d]);
    let padded = steps.saturating_add(p.kernel_extent(d));
    let padding = p.pad_before[d] + p.pad_after[d];
    p.spatial[d] = padded.saturating_sub(padding).max(1);
}

fn knobs(repro: &Repro) -> usize {
    match &repro.via {
        Some(Candidate::Engine { knobs, .. }) => knobs.len(),
        _ => 0,
    }
}

fn edit_knobs(repro: &mut Repro, change: impl FnOnce(&mut Vec<(u32, i64)>)) {
    if let Some(Candidate::Engine { knobs, .. }) = &mut repro.via {
        change(knobs);
    }
}
