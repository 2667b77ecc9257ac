//! All outputs of a problem at once, blocked so that arithmetic and not memory
//! sets the pace.
//!
//! Operands are split into *planes* whose products sum exactly or with a known
//! error, and every output is a few plain dot products of planes:
//!
//! | data | planes | value | radius |
//! |---|---|---|---|
//! | fp16 | parts of the values, as few as make all sums exact | exact | 0 |
//! | bf16, fp32 | the values | f64 sum | K·2^-53·S·(1 + 2^-40·K), 0 when the sum is exact |
//! | fp64 | the values | Dot2 | 2·(K+4)²·2^-106·S |
//!
//! plus one more for S = Σ|a·b|, rounded up, in single precision where its range
//! allows, and one that counts nonzero products when the data has zeros.
//!
//! Memory: the packed weights of one group, per thread a panel of 256 × 128
//! elements, both per plane; 8 bytes per output and sum.

use std::ops::Range;

use rayon::prelude::*;

use super::kernel::{
    CHANNELS, LANES, Sums, Used, WithSimd, add_products, add_products_twice, dispatch,
};
use super::operand::Operand;
use super::panel::{Planes, Sources};
use super::pass::{Found, Method, Pass, SINGLE_STEPS, with_pass};
use super::{Class, Decided, Output, Value};
use crate::fill::Inputs;

/// Panels of LANES positions per task.
const PANELS: usize = 4;

/// Steps of the reduction per pass: the weights of a block of channels (24 KiB)
/// stay in the first-level cache while all panels use them.
pub const DEPTH_BLOCK: usize = SINGLE_STEPS;

/// Outputs that are put together in one go.
const TOGETHER: usize = 4096;

/// Computes every output, or `None` when the data is outside what doubles can
/// certify: non-finite values, or fp64 products that could leave their range.
pub fn outputs(inputs: &Inputs) -> Option<Vec<Output>> {
    with_pass(inputs, run)
}

fn run(pass: &Pass<'_>) -> Option<Vec<Output>> {
    let finite = |operand: &Operand| operand.facts.finite;
    if !finite(pass.patches) || !finite(pass.weights) {
        return None;
    }
    let groups = (0..pass.lowering.groups).into_par_iter();
    let sums: Vec<Vec<TaskSums>> = groups.map(|group| sum_group(pass, group)).collect();
    assemble(pass, &sums)
}

fn sum_group(pass: &Pass<'_>, group: usize) -> Vec<TaskSums> {
    let blocks = (0..pass.lowering.channels.div_ceil(CHANNELS)).into_par_iter();
    let weights: Vec<Planes<CHANNELS>> = blocks
        .map(|block| Planes::of_weights(pass, group, block))
        .collect();
    let width = LANES * PANELS;
    let tasks = (0..pass.lowering.positions.div_ceil(width)).into_par_iter();
    let sums = tasks.map(|task| {
        let from = task * width;
        dispatch(Task {
            pass,
            weights: &weights,
            group,
            from,
            to: (from + width).min(pass.lowering.positions),
        })
    });
    sums.collect()
}

/// Sums of a run of positions, all channels of a group.
struct TaskSums {
    /// Block of channels → panel → sum.
    tiles: Vec<Sums<f64>>,
    panels: usize,
    /// Per position: products that are not with padding.
    valid: Vec<u64>,
}

/// Which sums an output has, in order.
struct Layout {
    /// Of the value: parts, or sum and correction.
    values: usize,
    /// Those, that of magnitudes, and that of nonzero products.
    all: usize,
}

impl Layout {
    fn of(pass: &Pass<'_>) -> Self {
        let values = match pass.method {
            Method::Exact([a, b]) => a.parts * b.parts,
            Method::Plain => 1,
            Method::Twice => 2,
        };
        Layout {
            values,
            all: values + 1 + usize::from(pass.count_zeros),
        }
    }
}

/// A run of positions, all channels of a group.
struct Task<'a> {
    pass: &'a Pass<'a>,
    weights: &'a [Planes<CHANNELS>],
    group: usize,
    from: usize,
    to: usize,
}

impl WithSimd for Task<'_> {
    type Output = TaskSums;

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, simd: S) -> TaskSums {
        let depth = self.pass.lowering.depth();
        let panels = (self.to - self.from).div_ceil(LANES);
        let layout = Layout::of(self.pass);
        let sources = Sources::new(self.pass, self.group, self.from..self.to);
        let mut patches: Vec<Planes<LANES>> = (0..panels)
            .map(|_| Planes::of_patches(self.pass, depth.min(DEPTH_BLOCK)))
            .collect();
        let mut tiles = vec![[[0.0; LANES]; CHANNELS]; self.weights.len() * panels * layout.all];
        for start in (0..depth).step_by(DEPTH_BLOCK) {
            let steps = start..(start + DEPTH_BLOCK).min(depth);
            for (panel, planes) in patches.iter_mut().enumerate() {
                planes.gather(self.pass, &sources, panel, steps.clone());
            }
            for (at, sums) in tiles.chunks_mut(layout.all).enumerate() {
                let (block, panel) = (at / panels, at % panels);
                let pair = Pair {
                    patches: &patches[panel],
                    weights: &self.weights[block],
                    steps: steps.clone(),
                    used: self.used(block, panel),
                };
                pair.accumulate(simd, self.pass, &layout, sums);
            }
        }
        TaskSums {
            tiles,
            panels,
            valid: sources.valid,
        }
    }
}

impl Task<'_> {
    fn used(&self, block: usize, panel: usize) -> Used {
        Used {
            channels: (self.pass.lowering.channels - block * CHANNELS).min(CHANNELS),
            lanes: (self.to - self.from - panel * LANES).min(LANES),
        }
    }
}

/// A panel of patches and a block of weights, some steps of the reduction.
struct Pair<'a> {
    patches: &'a Planes<LANES>,
    weights: &'a Planes<CHANNELS>,
    steps: Range<usize>,
    used: Used,
}

impl Pair<'_> {
    #[inline(always)]
    fn accumulate<S: pulp::Simd>(
        &self,
        simd: S,
        pass: &Pass<'_>,
        layout: &Layout,
        sums: &mut [Sums<f64>],
    ) {
        let (values, others) = sums.split_at_mut(layout.values);
        if let (Method::Twice, [sum, correction]) = (pass.method, &mut *values) {
            let (patches, weights) = self.double(0, 0);
            add_products_twice(simd, patches, weights, self.used, [sum, correction]);
        } else {
            let [a, b] = pass.method.cuts().map(|cut| cut.parts);
            for (at, sum) in values.iter_mut().enumerate() {
                debug_assert!(at < a * b);
                self.add_double(simd, at / b, at % b, sum);
            }
        }
        let mut plane = 0;
        if pass.single {
            self.add_single(simd, plane, &mut others[0]);
            plane += 1;
        } else {
            let [a, b] = pass.method.cuts().map(|cut| cut.parts);
            self.add_double(simd, a, b, &mut others[0]);
        }
        if pass.count_zeros {
            self.add_single(simd, plane, &mut others[1]);
        }
    }

    #[inline(always)]
    fn double(&self, patch: usize, weight: usize) -> (&[[f64; LANES]], &[[f64; CHANNELS]]) {
        (
            &self.patches.double[patch][..self.steps.len()],
            &self.weights.double[weight][self.steps.clone()],
        )
    }

    #[inline(always)]
    fn add_double<S: pulp::Simd>(&self, simd: S, patch: usize, weight: usize, sum: &mut Sums<f64>) {
        let (patches, weights) = self.double(patch, weight);
        add_products(simd, patches, weights, self.used, sum);
    }

    /// In single precision, and added in double.
    #[inline(always)]
    fn add_single<S: pulp::Simd>(&self, simd: S, plane: usize, sum: &mut Sums<f64>) {
        let patches = &self.patches.single[plane][..self.steps.len()];
        let weights = &self.weights.single[plane][self.steps.clone()];
        let mut part = [[0.0f32; LANES]; CHANNELS];
        add_products(simd, patches, weights, self.used, &mut part);
        for (sum, &part) in sum.as_flattened_mut().iter_mut().zip(part.as_flattened()) {
            *sum += f64::from(part);
        }
    }
}

/// Outputs in the order of their offsets, from sums per group and task.
fn assemble(pass: &Pass<'_>, sums: &[Vec<TaskSums>]) -> Option<Vec<Output>> {
    let lowering = &pass.lowering;
    let row = lowering.row();
    let total = lowering.groups * lowering.channels * lowering.positions;
    let mut outputs = vec![UNKNOWN; total];
    let layout = Layout::of(pass);
    outputs
        .par_chunks_mut(row)
        .with_min_len(TOGETHER.div_ceil(row))
        .enumerate()
        .try_for_each(|(at, outputs)| {
            let first = at * row;
            let (group, channel, mut position) = lowering.locate(first);
            let mut done = 0;
            while done < outputs.len() {
                let at = position % (LANES * PANELS);
                let task = &sums[group][position / (LANES * PANELS)];
                let run = (LANES - at % LANES).min(outputs.len() - done);
                let cells = task.cells(&layout, channel, at..at + run);
                for i in 0..run {
                    let found = cells.found(pass, i);
                    outputs[done + i] = pass.output(first + done + i, found)?;
                }
                (done, position) = (done + run, position + run);
            }
            Some(())
        })?;
    Some(outputs)
}

/// Most sums that an output has: nine products of parts, S, nonzero products.
const MOST: usize = 11;

/// The sums of neighbours in one panel and channel.
struct Cells<'a> {
    sums: [&'a [f64]; MOST],
    values: usize,
    count_zeros: bool,
    valid: &'a [u64],
}

impl TaskSums {
    /// The sums of a channel at some positions, all of one panel.
    fn cells(&self, layout: &Layout, channel: usize, at: Range<usize>) -> Cells<'_> {
        let tile = channel / CHANNELS * self.panels + at.start / LANES;
        let tiles = &self.tiles[tile * layout.all..(tile + 1) * layout.all];
        let lanes = at.start % LANES..at.start % LANES + at.len();
        let mut sums: [&[f64]; MOST] = [&[]; MOST];
        for (sum, tile) in sums.iter_mut().zip(tiles) {
            *sum = &tile[channel % CHANNELS][lanes.clone()];
        }
        Cells {
            sums,
            values: layout.values,
            count_zeros: layout.all > layout.values + 1,
            valid: &self.valid[at],
        }
    }
}

impl Cells<'_> {
    #[inline]
    fn found(&self, pass: &Pass<'_>, i: usize) -> Found {
        let (values, others) = self.sums.split_at(self.values);
        let magnitude = others[0][i];
        Found {
            sum: match (pass.method, values) {
                (Method::Twice, [sum, correction]) => [sum[i], correction[i]],
                (_, [sum]) => [sum[i], 0.0],
                _ => pass.sum_of_parts(values.iter().map(|part| part[i])),
            },
            s: if pass.single {
                pass.s_of_single(magnitude)
            } else {
                pass.s_of_double(magnitude)
            },
            nonzero: if self.count_zeros {
                others[1][i] as u64
            } else {
                self.valid[i]
            },
        }
    }
}

/// What stands for an output until it is computed.
const UNKNOWN: Output = Output {
    index: 0,
    value: Value {
        hi: 0.0,
        lo: 0.0,
        radius: 0.0,
    },
    s: 0.0,
    nonzero: 0,
    class: Class::Finite,
    decided: Decided::Certified,
};
