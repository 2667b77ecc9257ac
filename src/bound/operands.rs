//! Operands that are rounded before they are multiplied.

use super::upper::Upper;
use super::{Arithmetic, OperandRounding};
use crate::dtype::{BF16, FP16, Format, TF32, exp2};

/// Magnitudes of the nonzero finite values of a tensor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Magnitudes {
    /// Smallest; infinity when all are zero.
    pub least: f64,
    /// Largest; zero when all are zero.
    pub largest: f64,
}

impl Magnitudes {
    /// Of a list of values.
    pub fn of(values: &[f64]) -> Self {
        let mut magnitudes = Magnitudes {
            least: f64::INFINITY,
            largest: 0.0,
        };
        for value in values
            .iter()
            .map(|v| v.abs())
            .filter(|v| *v > 0.0 && v.is_finite())
        {
            magnitudes.least = magnitudes.least.min(value);
            magnitudes.largest = magnitudes.largest.max(value);
        }
        magnitudes
    }
}

impl OperandRounding {
    /// The format operands are rounded to.
    pub fn format(self) -> Option<Format> {
        match self {
            OperandRounding::None => None,
            OperandRounding::Tf32 => Some(TF32),
            OperandRounding::Fp16 => Some(FP16),
            OperandRounding::Bf16 => Some(BF16),
        }
    }
}

/// Error of the products through rounding both operands, relative to S.
/// Hardware truncates what it reads and libraries often round first; both are
/// right, so truncation is allowed: 2·2^(1−p) + 2^(2−2p).
pub fn relative(rounding: OperandRounding) -> Upper {
    let Some(format) = rounding.format() else {
        return Upper::ZERO;
    };
    let one = Upper::of(exp2(1 - format.precision));
    one + one + one * one
}

/// Error of one product through operands below the format's normal range,
/// absolute: a quantum of one operand times the largest of the other.
pub fn absolute(rounding: OperandRounding, a: Magnitudes, b: Magnitudes) -> Upper {
    let Some(format) = rounding.format() else {
        return Upper::ZERO;
    };
    let side = |below: Magnitudes, other: Magnitudes| {
        if below.least < format.min_normal() {
            // Some engines flush such operands to zero.
            Upper::of(format.min_normal()) * Upper::of(other.largest)
        } else {
            Upper::ZERO
        }
    };
    side(a, b) + side(b, a)
}

/// Error of one product through subnormal operands that are flushed to zero,
/// absolute.
pub fn flushed(arithmetic: &Arithmetic, a: Magnitudes, b: Magnitudes) -> Upper {
    let least = arithmetic.accumulator.format().min_normal();
    let side = |below: Magnitudes, other: Magnitudes| {
        if arithmetic.flush_to_zero && below.least < least {
            Upper::of(least) * Upper::of(other.largest)
        } else {
            Upper::ZERO
        }
    };
    side(a, b) + side(b, a)
}

/// Whether rounding can take a finite operand to infinity.
pub fn may_overflow(rounding: OperandRounding, a: Magnitudes, b: Magnitudes) -> bool {
    rounding
        .format()
        .is_some_and(|f| a.largest.max(b.largest) > f.max_finite())
}
