//! All outputs of a problem at once, blocked so that arithmetic and not memory
//! sets the pace.
//!
//! Operands are split into *planes* whose products sum exactly or with a known
//! error in f64, and every output is a few plain dot products of planes:
//!
//! | data | planes | value | radius |
//! |---|---|---|---|
//! | fp16 | high and low 20-bit limbs of the fixed-point value | exact integer | 0 |
//! | bf16, fp32 | the values | f64 sum | K·2^-53·S·(1 + 2^-40·K), 0 when the sum is exact |
//! | fp64 | the values | Dot2 | 2·(K+4)²·2^-106·S |
//!
//! plus one more for S = Σ|a·b|, rounded up, and one that counts nonzero
//! products when the data has zeros.
//!
//! Memory: the packed weights of one group (8 bytes per element and plane), and
//! per thread a panel of 256 × 32 elements per plane with the sums of 32
//! positions × all channels.

use rayon::prelude::*;

use super::kernel::{
    CHANNELS, Dispatched, LANES, PatchRow, Sums, WeightRow, add_products, add_products_twice,
    dispatch,
};
use super::{Class, Decided, Output, Value};
use crate::dtype::{DType, exp2};
use crate::fill::Inputs;
use crate::geometry::Geometry;
use crate::lowering::{Base, Lowering};
use crate::tensor::Tensor;

/// Panels of LANES positions per task.
const PANELS: usize = 4;

/// Steps of the reduction per pass: a plane's panel (16 KiB) stays in the
/// first-level cache while all channels use it.
const DEPTH_BLOCK: usize = 256;

/// Steps after which limb sums are moved to 128-bit integers: limbs are below
/// 2^20, the middle sum holds two products per step, and 2·2^40·2^12 = 2^53.
const LIMB_FLUSH: usize = 4096;

/// fp16 values are integers times 2^-24.
pub const FP16_QUANTUM: i32 = 24;

/// How the values of a problem are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Limbs of fixed-point values.
    FixedPoint,
    /// A plain f64 sum of exact products.
    Plain,
    /// Dot2.
    Twice,
}

impl Method {
    /// The method for operands of these types. Mixed types take the wider one's.
    fn of(types: [DType; 2]) -> Self {
        if types.contains(&DType::Fp64) {
            Method::Twice
        } else if types == [DType::Fp16; 2] {
            Method::FixedPoint
        } else {
            Method::Plain
        }
    }

    /// Planes an operand is split into, that of magnitudes included.
    fn planes(self) -> usize {
        match self {
            Method::FixedPoint => 3,
            _ => 2,
        }
    }

    /// Splits a finite value into its planes; the last is the magnitude.
    fn split(self, value: f64) -> [f64; 3] {
        match self {
            Method::FixedPoint => {
                let fixed = value * exp2(FP16_QUANTUM);
                let high = (fixed * exp2(-20)).floor();
                [high, fixed - high * exp2(20), value.abs()]
            }
            _ => [value, value.abs(), 0.0],
        }
    }
}

/// Sums of one block of channels × LANES positions.
#[derive(Clone, Default)]
struct Block {
    /// Per method: (high, middle, low), (sum), or (sum, correction).
    value: [Sums; 3],
    magnitude: Sums,
    nonzero: Sums,
    /// Flushed limbs.
    fixed: Vec<i128>,
}

/// One operand's values, and what is known of them as a whole.
pub struct Operand {
    /// As doubles, in logical order.
    pub values: Vec<f64>,
    has_zeros: bool,
    finite: bool,
    /// Least exponent of a unit in the last place of any nonzero value.
    least_bit: i32,
    /// Range of nonzero magnitudes.
    least: f64,
    largest: f64,
}

impl Operand {
    fn new(tensor: &Tensor) -> Self {
        let values = tensor.to_f64();
        let mut operand = Operand {
            has_zeros: false,
            finite: true,
            least_bit: i32::MAX,
            least: f64::INFINITY,
            largest: 0.0,
            values: Vec::new(),
        };
        for &value in &values {
            operand.has_zeros |= value == 0.0;
            operand.finite &= value.is_finite();
            if value != 0.0 && value.is_finite() {
                operand.least_bit = operand.least_bit.min(last_bit(value));
                operand.least = operand.least.min(value.abs());
                operand.largest = operand.largest.max(value.abs());
            }
        }
        operand.values = values;
        operand
    }
}

/// Exponent of the lowest set bit of a finite nonzero value.
fn last_bit(value: f64) -> i32 {
    let bits = value.to_bits();
    let field = (bits >> 52 & 0x7ff) as i32;
    let fraction = bits & ((1 << 52) - 1);
    let (significand, exponent) = match field {
        0 => (fraction, -1074),
        _ => (fraction | 1 << 52, field - 1075),
    };
    exponent + significand.trailing_zeros() as i32
}

/// Computes every output, or `None` when the data is outside what doubles can
/// certify: non-finite values, or fp64 products that could leave their range.
pub fn outputs(inputs: &Inputs) -> Option<Vec<Output>> {
    with_pass(inputs, |pass| pass.run())
}

/// Calls `work` with all that is known of a case, or returns `None` where fp64
/// products could leave their range.
pub fn with_pass<T>(inputs: &Inputs, work: impl FnOnce(&Pass<'_>) -> Option<T>) -> Option<T> {
    let method = Method::of([inputs.first.dtype(), inputs.second.dtype()]);
    let (first, second) = (Operand::new(&inputs.first), Operand::new(&inputs.second));
    let geometry = Geometry::new(&inputs.problem);
    let lowering = Lowering::new(&geometry);
    if method == Method::Twice && !products_in_range(&first, &second, lowering.depth()) {
        return None;
    }
    let pass = Pass {
        inputs,
        method,
        exact_below: exact_below(&first, &second),
        count_zeros: first.has_zeros || second.has_zeros,
        patches: if lowering.patches_first {
            &first
        } else {
            &second
        },
        weights: if lowering.patches_first {
            &second
        } else {
            &first
        },
        lowering,
    };
    work(&pass)
}

/// Dot2 needs exact products' errors: no product may be below 2^-900 or a sum
/// above 2^1000.
fn products_in_range(a: &Operand, b: &Operand, depth: usize) -> bool {
    a.largest == 0.0
        || b.largest == 0.0
        || (a.least * b.least >= exp2(-900) && a.largest * b.largest * depth as f64 <= exp2(1000))
}

/// An f64 sum of products is exact in any order while S is below this: all
/// partial sums are multiples of the least bit below 2^53 of them.
fn exact_below(a: &Operand, b: &Operand) -> f64 {
    if a.least_bit == i32::MAX || b.least_bit == i32::MAX {
        return f64::INFINITY;
    }
    libm::ldexp(1.0, a.least_bit + b.least_bit + 53)
}

/// One case, and how its values are computed.
pub struct Pass<'a> {
    pub inputs: &'a Inputs,
    pub lowering: Lowering,
    pub method: Method,
    pub patches: &'a Operand,
    pub weights: &'a Operand,
    exact_below: f64,
    count_zeros: bool,
}

/// What was summed of one output.
#[derive(Clone, Copy, Default)]
pub struct Found {
    /// The sum, in doubles.
    pub sum: f64,
    /// Dot2's correction.
    pub correction: f64,
    /// The sum in fixed point, units of 2^-48.
    pub fixed: i128,
    /// Sum of magnitudes, rounded to nearest at every step.
    pub magnitude: f64,
    /// Nonzero products.
    pub nonzero: u64,
}

/// The weights of one group: plane → channel block → rows of r.
struct PackedWeights {
    planes: Vec<Vec<WeightRow>>,
    depth: usize,
}

impl PackedWeights {
    fn rows(&self, plane: usize, block: usize, from: usize, to: usize) -> &[WeightRow] {
        &self.planes[plane][block * self.depth + from..block * self.depth + to]
    }
}

impl Pass<'_> {
    fn run(&self) -> Option<Vec<Output>> {
        if !self.patches.finite || !self.weights.finite {
            return None;
        }
        let mut outputs: Vec<Output> = Vec::new();
        let width = LANES * PANELS;
        for group in 0..self.lowering.groups {
            let weights = self.pack_weights(group);
            let tasks = self.lowering.positions.div_ceil(width);
            let done: Option<Vec<Vec<Output>>> = (0..tasks)
                .into_par_iter()
                .map(|task| {
                    let from = task * width;
                    let to = (from + width).min(self.lowering.positions);
                    dispatch(Task {
                        pass: self,
                        weights: &weights,
                        group,
                        from,
                        to,
                    })
                })
                .collect();
            outputs.extend(done?.into_iter().flatten());
        }
        outputs.sort_unstable_by_key(|o| o.index);
        Some(outputs)
    }

    /// Planes an operand is packed into: the method's, and one that is 1 where
    /// the value is not zero.
    fn planes(&self) -> usize {
        self.method.planes() + usize::from(self.count_zeros)
    }

    fn plane_values(&self, value: f64) -> [f64; 4] {
        let [a, b, c] = self.method.split(value);
        let present = if value == 0.0 { 0.0 } else { 1.0 };
        match self.method {
            Method::FixedPoint => [a, b, c, present],
            _ => [a, b, present, 0.0],
        }
    }

    fn pack_weights(&self, group: usize) -> PackedWeights {
        let depth = self.lowering.depth();
        let blocks = self.lowering.channels.div_ceil(CHANNELS);
        let mut planes = vec![vec![[0.0; CHANNELS]; blocks * depth]; self.planes()];
        for channel in 0..self.lowering.channels {
            let (block, column) = (channel / CHANNELS, channel % CHANNELS);
            for r in 0..depth {
                let value = self.weights.values[self.lowering.weight(group, channel, r)];
                let split = self.plane_values(value);
                for (plane, &part) in planes.iter_mut().zip(&split) {
                    plane[block * depth + r][column] = part;
                }
            }
        }
        PackedWeights { planes, depth }
    }

    /// Radius of a sum of `depth` products with absolute sum `s` (rounded up).
    fn radius(&self, s: f64) -> f64 {
        let k = self.lowering.depth() as f64;
        match self.method {
            Method::FixedPoint => 0.0,
            Method::Plain if s < self.exact_below => 0.0,
            // numerics, section 8 (Jeannerod and Rump 2013 for the first order).
            Method::Plain => k * exp2(-53) * s * (1.0 + exp2(-40) * k) * (1.0 + exp2(-50)),
            // Ogita, Rump and Oishi 2005, Proposition 5.5: γ_K²·S for the pair's
            // distance, doubled and with K + 4 to cover the last additions.
            Method::Twice => 2.0 * (k + 4.0) * (k + 4.0) * exp2(-106) * s,
        }
    }
}

/// A run of positions, all channels of a group.
struct Task<'a> {
    pass: &'a Pass<'a>,
    weights: &'a PackedWeights,
    group: usize,
    from: usize,
    to: usize,
}

impl Dispatched for Task<'_> {
    type Output = Option<Vec<Output>>;

    #[inline(always)]
    fn call(self) -> Self::Output {
        let lowering = &self.pass.lowering;
        let depth = lowering.depth();
        let channel_blocks = lowering.channels.div_ceil(CHANNELS);
        let panels = (self.to - self.from).div_ceil(LANES);
        let mut blocks = vec![Block::default(); channel_blocks * panels];
        let mut patches = Patches::new(&self, panels);
        for start in (0..depth).step_by(DEPTH_BLOCK) {
            let end = (start + DEPTH_BLOCK).min(depth);
            patches.pack(self.pass, start, end);
            for channel_block in 0..channel_blocks {
                for panel in 0..panels {
                    let block = &mut blocks[channel_block * panels + panel];
                    self.accumulate(block, &patches, (channel_block, panel), (start, end));
                    if self.pass.method == Method::FixedPoint
                        && (end == depth || end.is_multiple_of(LIMB_FLUSH))
                    {
                        block.flush();
                    }
                }
            }
        }
        self.finish(&blocks, &patches, panels)
    }
}

impl Task<'_> {
    #[inline(always)]
    fn accumulate(
        &self,
        block: &mut Block,
        patches: &Patches,
        (channel_block, panel): (usize, usize),
        (start, end): (usize, usize),
    ) {
        let patch = |plane: usize| patches.rows(plane, panel, end - start);
        let weight = |plane: usize| self.weights.rows(plane, channel_block, start, end);
        let [first, middle, last] = &mut block.value;
        match self.pass.method {
            Method::FixedPoint => {
                add_products(patch(0), weight(0), first);
                add_products(patch(0), weight(1), middle);
                add_products(patch(1), weight(0), middle);
                add_products(patch(1), weight(1), last);
            }
            Method::Plain => add_products(patch(0), weight(0), first),
            Method::Twice => add_products_twice(patch(0), weight(0), first, middle),
        }
        let magnitude = self.pass.method.planes() - 1;
        add_products(patch(magnitude), weight(magnitude), &mut block.magnitude);
        if self.pass.count_zeros {
            add_products(
                patch(magnitude + 1),
                weight(magnitude + 1),
                &mut block.nonzero,
            );
        }
    }

    fn finish(&self, blocks: &[Block], patches: &Patches, panels: usize) -> Option<Vec<Output>> {
        let lowering = &self.pass.lowering;
        let mut outputs = Vec::with_capacity(lowering.channels * (self.to - self.from));
        for channel in 0..lowering.channels {
            for position in self.from..self.to {
                let at = position - self.from;
                let block = &blocks[channel / CHANNELS * panels + at / LANES];
                let cell = (channel % CHANNELS, at % LANES);
                let index = lowering.output(self.group, channel, position);
                outputs.push(self.output(block, cell, index, patches.valid[at])?);
            }
        }
        Some(outputs)
    }

    fn output(
        &self,
        block: &Block,
        (channel, lane): (usize, usize),
        index: usize,
        valid: u64,
    ) -> Option<Output> {
        let nonzero = if self.pass.count_zeros {
            block.nonzero[channel][lane] as u64
        } else {
            valid
        };
        let found = Found {
            sum: block.value[0][channel][lane],
            correction: block.value[1][channel][lane],
            fixed: block
                .fixed
                .get(channel * LANES + lane)
                .copied()
                .unwrap_or(0),
            magnitude: block.magnitude[channel][lane],
            nonzero,
        };
        self.pass.output(index, found)
    }
}

impl Pass<'_> {
    /// The output at `index`, alpha and beta applied; `None` where these could
    /// leave the range of doubles.
    pub fn output(&self, index: usize, found: Found) -> Option<Output> {
        let inputs = self.inputs;
        let depth = self.lowering.depth() as f64;
        // K additions of non-negative terms, each rounded once.
        let s = found.magnitude * (1.0 + (depth + 2.0) * exp2(-52));
        let radius = self.radius(s);
        let value = match self.method {
            Method::FixedPoint => fixed_value(found.fixed),
            Method::Plain => Value {
                hi: found.sum,
                lo: 0.0,
                radius,
            },
            Method::Twice => Value {
                hi: found.sum,
                lo: found.correction,
                radius,
            },
        };
        let prior = inputs.prior.as_ref().map_or(0.0, |prior| prior.get(index));
        let class = Class::of(if prior.is_finite() { 0.0 } else { prior });
        let (alpha, beta) = (inputs.problem.alpha.0, inputs.problem.beta.0);
        let finite_prior = if class == Class::Finite { prior } else { 0.0 };
        let value = value.scaled(alpha, beta, finite_prior)?;
        Some(Output {
            index,
            value,
            s,
            nonzero: found.nonzero,
            class,
            decided: if value.radius > 0.0 {
                Decided::Certified
            } else {
                Decided::FixedPoint
            },
        })
    }
}

impl Block {
    /// Moves limb sums, exact integers below 2^53, to 128-bit integers.
    fn flush(&mut self) {
        self.fixed.resize(CHANNELS * LANES, 0);
        for channel in 0..CHANNELS {
            for lane in 0..LANES {
                let [high, middle, low] = &mut self.value;
                let take = |sums: &mut Sums| std::mem::take(&mut sums[channel][lane]) as i64;
                let (high, middle, low) = (take(high), take(middle), take(low));
                self.fixed[channel * LANES + lane] +=
                    (i128::from(high) << 40) + (i128::from(middle) << 20) + i128::from(low);
            }
        }
    }
}

/// A fixed-point sum, in units of 2^-48, as an exact double-double.
fn fixed_value(fixed: i128) -> Value {
    let hi = fixed as f64;
    let lo = (fixed - hi as i128) as f64;
    let scale = exp2(-2 * FP16_QUANTUM);
    Value {
        hi: hi * scale,
        lo: lo * scale,
        radius: 0.0,
    }
}

/// Packed patches of a task, for one block of depth at a time.
struct Patches {
    /// plane → panel → rows of r.
    planes: Vec<Vec<PatchRow>>,
    panels: usize,
    /// Per position: offsets per inner index, and the base.
    offsets: Vec<Vec<Option<usize>>>,
    bases: Vec<Base>,
    /// Per position: products that are not with padding.
    valid: Vec<u64>,
}

impl Patches {
    fn new(task: &Task<'_>, panels: usize) -> Self {
        let lowering = &task.pass.lowering;
        let mut patches = Patches {
            planes: vec![vec![[0.0; LANES]; panels * DEPTH_BLOCK]; task.pass.planes()],
            panels,
            offsets: Vec::new(),
            bases: Vec::new(),
            valid: Vec::new(),
        };
        for position in task.from..task.to {
            let mut offsets = Vec::new();
            let base = lowering.patch(task.group, position, &mut offsets);
            let inside = offsets.iter().flatten().count();
            let outer = lowering.depth() / offsets.len();
            patches.valid.push((inside * outer) as u64);
            patches.offsets.push(offsets);
            patches.bases.push(base);
        }
        patches
    }

    fn rows(&self, plane: usize, panel: usize, rows: usize) -> &[PatchRow] {
        &self.planes[plane][panel * DEPTH_BLOCK..panel * DEPTH_BLOCK + rows]
    }

    /// Fills the panels with r in start..end; padding is zero in every plane.
    fn pack(&mut self, pass: &Pass<'_>, start: usize, end: usize) {
        debug_assert!(self.panels * LANES >= self.offsets.len());
        for (at, (offsets, base)) in self.offsets.iter().zip(&self.bases).enumerate() {
            let (panel, lane) = (at / LANES, at % LANES);
            let inner = offsets.len();
            let (mut outer, mut t) = (start / inner, start % inner);
            for row in 0..end - start {
                let value = offsets[t].map_or(0.0, |offset| {
                    pass.patches.values[base.start + outer * base.step + offset]
                });
                let split = pass.plane_values(value);
                for (plane, &part) in self.planes.iter_mut().zip(&split) {
                    plane[panel * DEPTH_BLOCK + row][lane] = part;
                }
                t += 1;
                if t == inner {
                    (outer, t) = (outer + 1, 0);
                }
            }
        }
    }
}
