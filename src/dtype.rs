//! Floating-point formats: precision, range, rounding, ulp.
//!
//! Every value of every format here is exactly representable in `f64`, so the
//! harness carries values as `f64` and rounds where a real machine would.

use std::fmt;
use std::str::FromStr;

use half::{bf16, f16};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// A binary floating-point format with IEEE 754 semantics.
///
/// `precision` counts the hidden bit; a normal value has exponent in
/// `emin..=emax` and significand in [1, 2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Format {
    /// Significand bits, hidden bit included.
    pub precision: i32,
    /// Exponent of the smallest normal value.
    pub emin: i32,
    /// Exponent of the largest finite values.
    pub emax: i32,
}

/// IEEE 754 binary16.
pub const FP16: Format = Format::new(11, -14, 15);
/// bfloat16: fp32's range, 8 bits of precision.
pub const BF16: Format = Format::new(8, -126, 127);
/// TF32 as tensor cores read it: fp32's range, 11 bits of precision.
pub const TF32: Format = Format::new(11, -126, 127);
/// IEEE 754 binary32.
pub const FP32: Format = Format::new(24, -126, 127);
/// IEEE 754 binary64.
pub const FP64: Format = Format::new(53, -1022, 1023);

impl Format {
    const fn new(precision: i32, emin: i32, emax: i32) -> Self {
        Format {
            precision,
            emin,
            emax,
        }
    }

    /// Unit roundoff u = 2^-precision: the largest relative error of rounding
    /// to nearest in the normal range.
    pub fn unit_roundoff(self) -> f64 {
        exp2(-self.precision)
    }

    /// The smallest positive (subnormal) value, η.
    pub fn min_subnormal(self) -> f64 {
        exp2(self.emin - self.precision + 1)
    }

    /// The smallest positive normal value.
    pub fn min_normal(self) -> f64 {
        exp2(self.emin)
    }

    /// The largest finite value.
    pub fn max_finite(self) -> f64 {
        (2.0 - exp2(1 - self.precision)) * exp2(self.emax)
    }

    /// The least magnitude that rounds to infinity under round-to-nearest:
    /// the midpoint past the largest finite value (65520 for fp16). For fp64 it
    /// is not representable and `f64::INFINITY` is returned.
    pub fn overflow_threshold(self) -> f64 {
        self.max_finite() + exp2(self.emax - self.precision)
    }

    /// Goldberg's ulp at `value` in this format: 2^(max(e, emin) − p + 1),
    /// where e is the exponent of `value`.
    pub fn ulp(self, value: f64) -> f64 {
        exp2(exponent(value).max(self.emin) - self.precision + 1)
    }

    /// Rounds to nearest, ties to even, with subnormals and overflow to infinity.
    pub fn round(self, value: f64) -> f64 {
        self.quantize(value, f64::round_ties_even)
    }

    /// Rounds toward zero; finite values stay finite.
    pub fn truncate(self, value: f64) -> f64 {
        let truncated = self.quantize(value, f64::trunc);
        if truncated.is_infinite() && value.is_finite() {
            self.max_finite().copysign(value)
        } else {
            truncated
        }
    }

    /// Whether `value` is exactly representable.
    pub fn holds(self, value: f64) -> bool {
        value.is_nan() || self.round(value) == value
    }

    fn quantize(self, value: f64, integer: fn(f64) -> f64) -> f64 {
        if self.precision == FP64.precision || value == 0.0 || !value.is_finite() {
            return value;
        }
        // Scaling by a power of two is exact: quantum >= 2^-149 here, so
        // neither the quotient nor the product leaves f64's normal range.
        let quantum = self.ulp(value);
        let rounded = integer(value / quantum) * quantum;
        if rounded.abs() > self.max_finite() {
            f64::INFINITY.copysign(value)
        } else {
            rounded.copysign(value)
        }
    }
}

/// The exponent e of a finite nonzero `value`, 2^e <= |value| < 2^(e+1);
/// `i32::MIN` for zero.
pub fn exponent(value: f64) -> i32 {
    if value == 0.0 {
        i32::MIN
    } else {
        libm::ilogb(value)
    }
}

/// 2^e in f64, exact from -1074 to 1023.
pub fn exp2(e: i32) -> f64 {
    libm::ldexp(1.0, e)
}

/// The type of a tensor in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DType {
    /// IEEE 754 binary16 (CUDNN_DATA_HALF).
    Fp16,
    /// bfloat16 (CUDNN_DATA_BFLOAT16).
    Bf16,
    /// IEEE 754 binary32 (CUDNN_DATA_FLOAT).
    Fp32,
    /// IEEE 754 binary64 (CUDNN_DATA_DOUBLE).
    Fp64,
}

impl DType {
    /// All types, plainest for a reader last.
    pub const ALL: [DType; 4] = [DType::Fp16, DType::Bf16, DType::Fp32, DType::Fp64];

    /// Precision and range.
    pub fn format(self) -> Format {
        match self {
            DType::Fp16 => FP16,
            DType::Bf16 => BF16,
            DType::Fp32 => FP32,
            DType::Fp64 => FP64,
        }
    }

    /// Bytes per element.
    pub fn size(self) -> usize {
        match self {
            DType::Fp16 | DType::Bf16 => 2,
            DType::Fp32 => 4,
            DType::Fp64 => 8,
        }
    }

    /// The name used in repro lines and CSV columns.
    pub fn name(self) -> &'static str {
        match self {
            DType::Fp16 => "fp16",
            DType::Bf16 => "bf16",
            DType::Fp32 => "fp32",
            DType::Fp64 => "fp64",
        }
    }

    /// The bit pattern of `value` rounded to this type, in the low bits.
    pub fn to_bits(self, value: f64) -> u64 {
        let value = self.format().round(value);
        match self {
            DType::Fp16 => f16::from_f64(value).to_bits().into(),
            DType::Bf16 => bf16::from_f64(value).to_bits().into(),
            DType::Fp32 => (value as f32).to_bits().into(),
            DType::Fp64 => value.to_bits(),
        }
    }

    /// The value of a bit pattern (low bits of `bits`).
    pub fn from_bits(self, bits: u64) -> f64 {
        match self {
            DType::Fp16 => f16::from_bits(bits as u16).to_f64(),
            DType::Bf16 => bf16::from_bits(bits as u16).to_f64(),
            DType::Fp32 => f32::from_bits(bits as u32).into(),
            DType::Fp64 => f64::from_bits(bits),
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for DType {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        DType::ALL
            .into_iter()
            .find(|t| t.name() == text)
            .ok_or_else(|| {
                Error::parse(
                    0,
                    format!("unknown type '{text}'; known: fp16, bf16, fp32, fp64"),
                )
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn round_fp16_overflow_threshold_is_65520() {
        assert_eq!(FP16.overflow_threshold(), 65520.0);
        assert_eq!(FP16.round(65519.999), 65504.0);
        assert_eq!(FP16.round(65520.0), f64::INFINITY);
        assert_eq!(FP16.truncate(70000.0), 65504.0);
    }

    #[test]
    fn round_subnormal_ties_go_to_even() {
        let eta = FP16.min_subnormal();
        assert_eq!(eta, exp2(-24));
        assert_eq!(FP16.round(eta * 0.5), 0.0);
        assert_eq!(FP16.round(eta * 1.5), eta * 2.0);
        assert_eq!(FP16.round(-eta * 2.5), -eta * 2.0);
    }

    #[test]
    fn ulp_follows_goldberg() {
        assert_eq!(FP16.ulp(1.0), exp2(-10));
        assert_eq!(FP16.ulp(0.0), FP16.min_subnormal());
        assert_eq!(FP32.ulp(1.999), exp2(-23));
        assert_eq!(BF16.ulp(2.0), exp2(-6));
    }

    proptest! {
        #[test]
        fn round_fp32_equals_the_cpu(bits: u64) {
            let value = f64::from_bits(bits);
            prop_assume!(!value.is_nan());
            prop_assert_eq!(FP32.round(value).to_bits(), f64::from(value as f32).to_bits());
        }

        #[test]
        fn round_fp16_equals_half(bits: u32) {
            // half rounds f32 with the CPU's or its own exact conversion.
            let value = f32::from_bits(bits);
            prop_assume!(!value.is_nan());
            prop_assert_eq!(FP16.round(value.into()), f16::from_f32(value).to_f64());
            prop_assert_eq!(BF16.round(value.into()), bf16::from_f32(value).to_f64());
        }

        #[test]
        fn bits_round_trip(bits: u64) {
            for dtype in DType::ALL {
                let mask = u64::MAX >> (64 - 8 * dtype.size());
                let value = dtype.from_bits(bits & mask);
                if !value.is_nan() {
                    prop_assert_eq!(dtype.to_bits(value), bits & mask);
                }
            }
        }
    }
}
