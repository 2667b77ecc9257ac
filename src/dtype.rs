//! Floating-point formats: precision, range, rounding, ulp.
//!
//! Every value of every format here is exactly representable in `f64`, so the
//! harness carries values as `f64` and rounds where a real machine would.

use std::fmt;
use std::str::FromStr;

use half::{bf16, f16};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// A binary floating-point format with IEEE 754 semantics, but for the top of its
/// range where it is `finite`.
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
    /// Whether there are no infinities, and the largest significand at `emax` is
    /// NaN. [`Format::round`] still overflows to infinity: what is stored is
    /// another matter ([`DType::to_bits`]).
    pub finite: bool,
}

/// FP8 E4M3 (Micikevicius et al., arXiv:2209.05433): no infinity, 448 at most.
pub const FP8_E4M3: Format = Format {
    finite: true,
    ..Format::new(4, -6, 8)
};
/// FP8 E5M2 (the same source): an IEEE format.
pub const FP8_E5M2: Format = Format::new(3, -14, 15);
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
            finite: false,
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
        let missing = if self.finite { 2.0 } else { 1.0 };
        (2.0 - missing * exp2(1 - self.precision)) * exp2(self.emax)
    }

    /// The midpoint past the largest finite value (65520 for fp16): larger
    /// magnitudes round to infinity, and so does this one but in formats that are
    /// `finite`, where the largest value is the even one (464 rounds to 448). For
    /// fp64 it is not representable and `f64::INFINITY` is returned.
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
    /// FP8 with 4 exponent and 3 fraction bits (CUDNN_DATA_FP8_E4M3).
    #[serde(rename = "fp8_e4m3")]
    Fp8E4m3,
    /// FP8 with 5 exponent and 2 fraction bits (CUDNN_DATA_FP8_E5M2).
    #[serde(rename = "fp8_e5m2")]
    Fp8E5m2,
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
    pub const ALL: [DType; 6] = [
        DType::Fp8E4m3,
        DType::Fp8E5m2,
        DType::Fp16,
        DType::Bf16,
        DType::Fp32,
        DType::Fp64,
    ];

    /// What is drawn unless another choice is made: what every API takes.
    pub const USUAL: [DType; 4] = [DType::Fp16, DType::Bf16, DType::Fp32, DType::Fp64];

    /// Precision and range.
    pub fn format(self) -> Format {
        match self {
            DType::Fp8E4m3 => FP8_E4M3,
            DType::Fp8E5m2 => FP8_E5M2,
            DType::Fp16 => FP16,
            DType::Bf16 => BF16,
            DType::Fp32 => FP32,
            DType::Fp64 => FP64,
        }
    }

    /// Bytes per element.
    pub fn size(self) -> usize {
        match self {
            DType::Fp8E4m3 | DType::Fp8E5m2 => 1,
            DType::Fp16 | DType::Bf16 => 2,
            DType::Fp32 => 4,
            DType::Fp64 => 8,
        }
    }

    /// The name used in repro lines and CSV columns.
    pub fn name(self) -> &'static str {
        match self {
            DType::Fp8E4m3 => "fp8_e4m3",
            DType::Fp8E5m2 => "fp8_e5m2",
            DType::Fp16 => "fp16",
            DType::Bf16 => "bf16",
            DType::Fp32 => "fp32",
            DType::Fp64 => "fp64",
        }
    }

    /// Whether this is one of the two FP8 types.
    pub fn is_fp8(self) -> bool {
        self.size() == 1
    }

    /// The bit pattern of `value` rounded to this type, in the low bits. Overflow
    /// is stored as NaN where there is no infinity.
    pub fn to_bits(self, value: f64) -> u64 {
        let value = self.format().round(value);
        match self {
            DType::Fp8E4m3 | DType::Fp8E5m2 => fp8_to_bits(self.format(), value).into(),
            DType::Fp16 => f16::from_f64(value).to_bits().into(),
            DType::Bf16 => bf16::from_f64(value).to_bits().into(),
            DType::Fp32 => (value as f32).to_bits().into(),
            DType::Fp64 => value.to_bits(),
        }
    }

    /// The value of a bit pattern (low bits of `bits`).
    pub fn from_bits(self, bits: u64) -> f64 {
        match self {
            DType::Fp8E4m3 | DType::Fp8E5m2 => fp8_from_bits(self.format(), bits as u8),
            DType::Fp16 => f16::from_bits(bits as u16).to_f64(),
            DType::Bf16 => bf16::from_bits(bits as u16).to_f64(),
            DType::Fp32 => f32::from_bits(bits as u32).into(),
            DType::Fp64 => f64::from_bits(bits),
        }
    }
}

/// The byte of a value that `format` holds.
fn fp8_to_bits(format: Format, value: f64) -> u8 {
    let fraction_bits = format.precision - 1;
    let sign = u8::from(value.is_sign_negative()) << 7;
    let top = 0x7F_u8 >> fraction_bits << fraction_bits;
    let magnitude = match value.abs() {
        v if v.is_nan() => 0x7F,
        v if v.is_infinite() && format.finite => 0x7F,
        v if v.is_infinite() => top,
        v if v < format.min_normal() => (v / format.min_subnormal()) as u8,
        v => {
            let e = exponent(v);
            let fraction = (v / exp2(e) - 1.0) * exp2(fraction_bits);
            ((e - format.emin + 1) << fraction_bits) as u8 | fraction as u8
        }
    };
    sign | magnitude
}

fn fp8_from_bits(format: Format, bits: u8) -> f64 {
    let fraction_bits = format.precision - 1;
    let (biased, fraction) = (
        i32::from(bits & 0x7F) >> fraction_bits,
        i32::from(bits) & ((1 << fraction_bits) - 1),
    );
    let top = 0x7F >> fraction_bits;
    let magnitude = match (biased, fraction) {
        (0, fraction) => f64::from(fraction) * format.min_subnormal(),
        _ if format.finite && bits & 0x7F == 0x7F => f64::NAN,
        (e, 0) if e == top && !format.finite => f64::INFINITY,
        (e, _) if e == top && !format.finite => f64::NAN,
        (e, fraction) => {
            (1.0 + f64::from(fraction) * exp2(-fraction_bits)) * exp2(e - 1 + format.emin)
        }
    };
    if bits >> 7 == 1 {
        -magnitude
    } else {
        magnitude
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
                let known = DType::ALL.map(DType::name).join(", ");
                Error::parse(0, format!("unknown type '{text}'; known: {known}"))
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

    /// Values of the tables in arXiv:2209.05433.
    #[test]
    fn fp8_has_the_published_values() {
        let e4m3 = |bits| DType::Fp8E4m3.from_bits(bits);
        assert_eq!(e4m3(0x7E), 448.0);
        assert!(e4m3(0x7F).is_nan() && e4m3(0xFF).is_nan());
        assert_eq!(
            (e4m3(0x08), e4m3(0x07), e4m3(0x01)),
            (exp2(-6), 0.875 * exp2(-6), exp2(-9))
        );
        let e5m2 = |bits| DType::Fp8E5m2.from_bits(bits);
        assert_eq!(
            (e5m2(0x7B), e5m2(0x7C), e5m2(0xFC)),
            (57344.0, f64::INFINITY, f64::NEG_INFINITY)
        );
        assert!((0x7D..=0x7F).all(|bits| e5m2(bits).is_nan()));
        assert_eq!(
            (e5m2(0x04), e5m2(0x03), e5m2(0x01)),
            (exp2(-14), 0.75 * exp2(-14), exp2(-16))
        );
    }

    #[test]
    fn fp8_rounds_to_nearest_even_and_overflows_to_nan_without_infinity() {
        assert_eq!(FP8_E4M3.max_finite(), 448.0);
        assert_eq!(DType::Fp8E4m3.to_bits(464.0), 0x7E);
        assert_eq!(DType::Fp8E4m3.to_bits(464.1), 0x7F);
        assert_eq!(DType::Fp8E4m3.to_bits(f64::NEG_INFINITY), 0xFF);
        assert_eq!(FP8_E4M3.round(17.0), 16.0);
        assert_eq!(FP8_E4M3.round(19.0), 20.0);
        assert_eq!(DType::Fp8E5m2.to_bits(61439.0), 0x7B);
        assert_eq!(DType::Fp8E5m2.to_bits(61440.0), 0x7C);
        assert_eq!(DType::Fp8E5m2.to_bits(-0.0), 0x80);
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
