//! How a row of weights and a patch become one sum.

use super::tensor_core::{Operand, Step};
use crate::bound::{Accumulator, Generation};
use crate::dtype::{FP16, Format};

/// Order and arithmetic of a sum.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Sum {
    /// One accumulator, in order.
    Sequential(Accumulator),
    /// Eight interleaved accumulators, added at the end.
    Interleaved(Accumulator),
    /// Slices of at least `slice` products; partial sums stored in `partials`.
    Split {
        /// Products per slice.
        slice: usize,
        /// Accumulator within a slice.
        accumulator: Accumulator,
        /// Type of the stored partial sums.
        partials: Accumulator,
    },
    /// Emulated tensor cores.
    TensorCore(Step),
}

/// A patch prepared once for all channels.
pub enum Prepared {
    /// Values as they are.
    Values(Vec<f64>),
    /// Decoded for the tensor-core model.
    Operands(Vec<Operand>),
}

impl Sum {
    /// Tensor cores of `generation` on operands of `format`.
    pub fn tensor_core(generation: Generation, format: Format, tf32: bool, half: bool) -> Self {
        Sum::TensorCore(Step::new(generation, format, tf32, half))
    }

    /// Prepares a row.
    pub fn prepare(&self, values: &[f64]) -> Prepared {
        match self {
            Sum::TensorCore(step) if values.iter().all(|v| v.is_finite()) => {
                Prepared::Operands(values.iter().map(|&v| step.operand(v)).collect())
            }
            _ => Prepared::Values(values.to_vec()),
        }
    }

    /// The sum of products of two prepared rows.
    pub fn of(&self, a: &Prepared, b: &Prepared) -> f64 {
        match (self, a, b) {
            (Sum::TensorCore(step), Prepared::Operands(a), Prepared::Operands(b)) => step.dot(a, b),
            // Non-finite data: the models say only that IEEE rules hold.
            (Sum::TensorCore(_), a, b) => sequential(Accumulator::Fp32, &a.values(), &b.values()),
            (Sum::Sequential(accumulator), a, b) => {
                sequential(*accumulator, &a.values(), &b.values())
            }
            (Sum::Interleaved(accumulator), a, b) => {
                interleaved(*accumulator, &a.values(), &b.values())
            }
            (
                Sum::Split {
                    slice,
                    accumulator,
                    partials,
                },
                a,
                b,
            ) => {
                let (a, b) = (a.values(), b.values());
                let mut total = 0.0;
                for (a, b) in a.chunks(*slice).zip(b.chunks(*slice)) {
                    let partial = round(*partials, sequential(*accumulator, a, b));
                    total = round(*partials, total + partial);
                }
                total
            }
        }
    }
}

impl Prepared {
    /// The values.
    pub fn values(&self) -> std::borrow::Cow<'_, [f64]> {
        match self {
            Prepared::Values(values) => values.into(),
            Prepared::Operands(operands) => operands.iter().map(Operand::value).collect(),
        }
    }
}

/// Rounds to the accumulator's type.
pub fn round(accumulator: Accumulator, value: f64) -> f64 {
    match accumulator {
        Accumulator::Fp64 => value,
        Accumulator::Fp32 => f64::from(value as f32),
        _ => accumulator.format().round(value),
    }
}

fn sequential(accumulator: Accumulator, a: &[f64], b: &[f64]) -> f64 {
    let pairs = a.iter().zip(b);
    match accumulator {
        Accumulator::Fp64 => pairs.fold(0.0, |sum, (a, b)| sum + a * b),
        Accumulator::Fp32 => {
            f64::from(pairs.fold(0.0f32, |sum, (&a, &b)| sum + a as f32 * b as f32))
        }
        // Fused: the product enters unrounded, as in scalar half instructions.
        _ => pairs.fold(0.0, |sum, (a, b)| FP16.round(sum + a * b)),
    }
}

const INTERLEAVE: usize = 8;

fn interleaved(accumulator: Accumulator, a: &[f64], b: &[f64]) -> f64 {
    if !matches!(accumulator, Accumulator::Fp32) {
        let lanes = (0..INTERLEAVE).map(|lane| {
            let pick = |v: &[f64]| {
                v.iter()
                    .skip(lane)
                    .step_by(INTERLEAVE)
                    .copied()
                    .collect::<Vec<_>>()
            };
            sequential(accumulator, &pick(a), &pick(b))
        });
        return lanes.fold(0.0, |sum, lane| round(accumulator, sum + lane));
    }
    let mut lanes = [0.0f32; INTERLEAVE];
    let (a_rows, b_rows) = (a.chunks(INTERLEAVE), b.chunks(INTERLEAVE));
    for (a, b) in a_rows.zip(b_rows) {
        for (lane, (&a, &b)) in lanes.iter_mut().zip(a.iter().zip(b)) {
            *lane += a as f32 * b as f32;
        }
    }
    f64::from(lanes.iter().sum::<f32>())
}
