//! Inner products: how far a sum of n products with absolute sum S may be off,
//! per accumulator and adding unit.

use super::upper::Upper;
use super::{Accumulator, Arithmetic, Generation, Units};
use crate::dtype::{BF16, FP16, FP32, FP64, Format, exp2};

/// What a bound needs to know of one sum.
#[derive(Clone, Copy, Debug)]
pub struct SumShape {
    /// Nonzero products.
    pub nonzero: u64,
    /// Most tensor-core steps that hold a nonzero product, for blocks of one.
    pub runs: u64,
    /// Longest run of products that one step may take from.
    pub run_length: u64,
}

impl SumShape {
    /// Steps of tensor-core block `b` with a nonzero product: every run (one
    /// tap, one image row) may be padded to whole blocks.
    fn steps(self, b: u64) -> f64 {
        let blocks = self.runs.saturating_mul(self.run_length.div_ceil(b));
        self.nonzero.min(blocks) as f64
    }
}

/// Error relative to S, and absolute, of a sum.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SumError {
    /// Multiplies S.
    pub relative: Upper,
    /// Added as it is: underflow.
    pub absolute: Upper,
}

impl Accumulator {
    /// Precision and range.
    pub fn format(self) -> Format {
        match self {
            Accumulator::Bf16 => BF16,
            Accumulator::Fp16 => FP16,
            Accumulator::Fp32 => FP32,
            Accumulator::Fp64 => FP64,
        }
    }
}

/// Parameters of the published tensor-core models.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorCoreModel {
    /// Fraction bits kept below the largest exponent of a step.
    pub fraction: i32,
    /// Products per step in the hardware, fp16 and bf16.
    pub block: u64,
    /// Products per step, tf32.
    pub block_tf32: u64,
    /// Fraction bits kept of a step's result.
    pub result: i32,
}

impl Generation {
    /// Fasi, Higham, Mikaitis, Pranesh, PeerJ CS 7:e330 (2021); Khattak and
    /// Mikaitis, arXiv:2512.07004; MMA-Sim, arXiv:2511.10909.
    pub fn model(self) -> TensorCoreModel {
        let (fraction, block, block_tf32, result) = match self {
            // No model: the smallest values of all.
            Generation::Volta | Generation::Unknown => (23, 4, 4, 23),
            Generation::Ampere => (24, 8, 4, 23),
            Generation::Hopper => (25, 16, 8, 23),
            // MMA-Sim; sums of FP8 products are kept in 13 fraction bits.
            Generation::Fp8 => (13, 32, 32, 13),
        };
        TensorCoreModel {
            fraction,
            block,
            block_tf32,
            result,
        }
    }
}

/// The error of a sum under `arithmetic`. `tf32` tells that operands are TF32.
pub fn sum_error(arithmetic: &Arithmetic, shape: SumShape, tf32: bool) -> SumError {
    let n = shape.nonzero as f64;
    let format = arithmetic.accumulator.format();
    let u = format.unit_roundoff();
    let mut error = match arithmetic.units {
        // |Y − y| ≤ n·u·S in any order: Jeannerod and Rump, SIAM J. Matrix
        // Anal. Appl. 34(2), 2013; products fused or rounded.
        Units::Simt => SumError {
            relative: Upper::of(n) * Upper::of(u),
            // A product adds at most half the smallest subnormal.
            absolute: Upper::of(n) * Upper::of(format.min_subnormal()),
        },
        Units::TensorCore(generation) => tensor_core(arithmetic, generation, shape, tf32),
    };
    error = error.plus(partial_sums(arithmetic, shape));
    if arithmetic.flush_to_zero {
        // Every product and every partial sum may be flushed.
        let flushed = Upper::of(2.0 * n + 1.0) * Upper::of(format.min_normal());
        error.absolute = error.absolute + flushed;
    }
    error
}

/// One step truncates each of its t terms but the largest to 2^(E−F), and its
/// sum to 24 bits (14 with FP8): at most t·2^−F·S + 2^−23·S over nonzero steps. A kernel may
/// use half the hardware's block, and may add its partial results in fp32.
fn tensor_core(
    arithmetic: &Arithmetic,
    generation: Generation,
    shape: SumShape,
    tf32: bool,
) -> SumError {
    let model = generation.model();
    let hardware = if tf32 { model.block_tf32 } else { model.block };
    let steps = shape.steps((hardware / 2).max(4));
    let terms = Upper::of(shape.nonzero as f64) * Upper::of(exp2(-model.fraction));
    let rounding = match arithmetic.accumulator {
        // fp16 results are rounded to nearest, 2^-11; a kernel may instead use
        // scalar half instructions, one rounding per product.
        Accumulator::Fp16 => Upper::of(shape.nonzero as f64) * Upper::of(exp2(-11)),
        // Truncated, 2^-23, and once more per step in fp32 to nearest.
        _ => Upper::of(steps) * Upper::of(exp2(-model.result) + exp2(-24)),
    };
    let first_order = terms + rounding;
    let smallest = arithmetic.accumulator.format().min_subnormal();
    SumError {
        relative: second_order(first_order),
        absolute: Upper::of(shape.nonzero as f64) * Upper::of(smallest),
    }
}

/// r → r/(1−r): partial sums are themselves off by the bound.
pub fn second_order(r: Upper) -> Upper {
    if r.get() >= 0.5 {
        return Upper::INFINITE;
    }
    r.over((1.0 - r.get()).next_down())
}

/// Split reductions: q partial sums kept in a narrower type add (q−1)·u·S; q is
/// at most the number of runs.
fn partial_sums(arithmetic: &Arithmetic, shape: SumShape) -> SumError {
    if arithmetic.partials >= arithmetic.accumulator {
        return SumError {
            relative: Upper::ZERO,
            absolute: Upper::ZERO,
        };
    }
    let format = arithmetic.partials.format();
    let q = Upper::of(shape.steps(MIN_SLICE).min(MAX_SLICES));
    SumError {
        relative: q * Upper::of(format.unit_roundoff()),
        absolute: q * Upper::of(format.min_subnormal()),
    }
}

/// A slice of a split reduction is at least one tensor-core step long.
const MIN_SLICE: u64 = 8;

/// More slices than any kernel splits into: the ranges of
/// CUDNN_KNOB_TYPE_SPLIT_K and SPLIT_K_SLC in cuDNN 9.19 end at 2048.
const MAX_SLICES: f64 = 2048.0;

impl SumError {
    fn plus(self, other: SumError) -> SumError {
        SumError {
            relative: self.relative + other.relative,
            absolute: self.absolute + other.absolute,
        }
    }
}
