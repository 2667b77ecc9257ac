//! Exact values as double-doubles with a certified radius, and their rounding.

use crate::dtype::{DType, Format, exp2};

/// The value of one output before rounding to the output type:
/// alpha · Σ a·b + beta · prior, as an unevaluated sum of two doubles with a
/// certified radius: |exact − (hi + lo)| ≤ radius.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Value {
    /// Leading part.
    pub hi: f64,
    /// Correction.
    pub lo: f64,
    /// Certified radius; 0 when hi + lo is exact.
    pub radius: f64,
}

impl Value {
    /// An exactly known double.
    pub fn exact(value: f64) -> Self {
        Value {
            hi: value,
            lo: 0.0,
            radius: 0.0,
        }
    }

    /// The exact value correctly rounded to `dtype`, or `None` when the radius
    /// leaves it open (then ask the arbiter).
    pub fn rounded(&self, dtype: DType) -> Option<f64> {
        let format = dtype.format();
        let center = round_sum(format, self.hi, self.lo);
        if self.radius == 0.0 {
            return Some(center);
        }
        // Rounding is monotonic: if both ends round alike, so does all between.
        let below = round_sum(format, self.hi, (self.lo - self.radius).next_down());
        let above = round_sum(format, self.hi, (self.lo + self.radius).next_up());
        (below == center && above == center).then_some(center)
    }

    /// |actual − exact|, rounded up, radius included.
    pub fn error_above(&self, actual: f64) -> f64 {
        let (d, e) = two_sum(actual, -self.hi);
        let tail = e - self.lo;
        let error = (d + tail).abs();
        if error == 0.0 && tail == 0.0 {
            return self.radius;
        }
        // Three roundings: of tail and of the sum, relative to their sizes.
        (error + (error + tail.abs()) * exp2(-51) + self.radius).next_up()
    }

    /// |actual − exact|, rounded down, radius deducted.
    pub fn error_below(&self, actual: f64) -> f64 {
        let (d, e) = two_sum(actual, -self.hi);
        let tail = e - self.lo;
        let error = (d + tail).abs();
        (error - (error + tail.abs()) * exp2(-51) - self.radius)
            .next_down()
            .max(0.0)
    }

    /// alpha · self + beta · prior, with a radius that covers the arithmetic;
    /// `None` where doubles could overflow or lose bits below their range.
    pub fn scaled(&self, alpha: f64, beta: f64, prior: f64) -> Option<Self> {
        if alpha == 1.0 && beta == 0.0 {
            return Some(*self);
        }
        let (p, p_error) = two_product(alpha, self.hi)?;
        let (q, q_error) = two_product(beta, prior)?;
        let (hi, sum_error) = two_sum(p, q);
        let scaled_lo = alpha * self.lo;
        let lo = p_error + q_error + sum_error + scaled_lo;
        // Five roundings, each of at most 2^-53 of the sum of magnitudes.
        let magnitude = p_error.abs() + q_error.abs() + sum_error.abs() + scaled_lo.abs();
        let radius = (alpha.abs() * self.radius * (1.0 + exp2(-50))) + magnitude * exp2(-50);
        let exact = magnitude == 0.0 && self.radius == 0.0;
        Some(Value {
            hi,
            lo,
            radius: if exact { 0.0 } else { radius.next_up() },
        })
    }
}

/// hi + lo rounded to nearest even in `format`, where |lo| is small against hi.
fn round_sum(format: Format, hi: f64, lo: f64) -> f64 {
    let (hi, lo) = two_sum(hi, lo);
    if format.precision == 53 || lo == 0.0 || !hi.is_finite() {
        return format.round(hi);
    }
    let quantum = format.ulp(hi);
    let scaled = hi / quantum;
    if (scaled - scaled.floor()) != 0.5 {
        return format.round(hi);
    }
    // hi is a tie: what lies beyond it decides.
    let side = if lo > 0.0 {
        scaled.ceil()
    } else {
        scaled.floor()
    };
    format.round(side * quantum)
}

/// Knuth's TwoSum: a + b = s + e exactly (TAOCP vol. 2, 4.2.2).
pub fn two_sum(a: f64, b: f64) -> (f64, f64) {
    let s = a + b;
    let bb = s - a;
    (s, (a - (s - bb)) + (b - bb))
}

/// a · b = p + e exactly; `None` where e could leave the range of doubles.
fn two_product(a: f64, b: f64) -> Option<(f64, f64)> {
    let p = a * b;
    let safe = p == 0.0 && (a == 0.0 || b == 0.0) || (exp2(-900)..=exp2(1000)).contains(&p.abs());
    safe.then(|| (p, libm::fma(a, b, -p)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rug::Float;

    fn exact(value: &Value) -> Float {
        Float::with_val(4000, value.hi) + Float::with_val(4000, value.lo)
    }

    #[test]
    fn rounded_tie_is_decided_by_the_low_part() {
        let tie = 1.0 + exp2(-11);
        let with = |lo| Value {
            hi: tie,
            lo,
            radius: 0.0,
        };
        assert_eq!(with(0.0).rounded(DType::Fp16), Some(1.0));
        assert_eq!(with(exp2(-70)).rounded(DType::Fp16), Some(1.0 + exp2(-10)));
        assert_eq!(with(-exp2(-70)).rounded(DType::Fp16), Some(1.0));
    }

    #[test]
    fn error_above_of_the_exact_value_is_zero() {
        for value in [0.0, 1.0, exp2(-1074)] {
            assert_eq!(Value::exact(value).error_above(value), 0.0);
        }
        assert!(Value::exact(1.0).error_above(1.0 + exp2(-52)) > exp2(-52));
    }

    #[test]
    fn rounded_open_radius_is_none() {
        let value = Value {
            hi: 1.0 + exp2(-11),
            lo: 0.0,
            radius: exp2(-60),
        };
        assert_eq!(value.rounded(DType::Fp16), None);
        let value = Value {
            radius: exp2(-53),
            ..value
        };
        assert_eq!(value.rounded(DType::Fp64), None);
        let value = Value {
            hi: 1.0 + exp2(-12),
            lo: 0.0,
            radius: exp2(-60),
        };
        assert_eq!(value.rounded(DType::Fp16), Some(1.0));
    }

    #[test]
    fn rounded_overflow_threshold_is_a_tie() {
        let value = |lo| Value {
            hi: 65520.0,
            lo,
            radius: 0.0,
        };
        assert_eq!(value(0.0).rounded(DType::Fp16), Some(f64::INFINITY));
        assert_eq!(value(-exp2(-40)).rounded(DType::Fp16), Some(65504.0));
    }

    proptest! {
        #[test]
        fn rounded_agrees_with_mpfr(hi in -1e5f64..1e5, tiny in -1.0f64..1.0, tie in any::<bool>()) {
            let hi = if tie { (hi * 8.0).round() / 8.0 + exp2(-11) } else { hi };
            let value = Value { hi, lo: tiny * exp2(-54) * hi.abs(), radius: 0.0 };
            for dtype in [DType::Fp16, DType::Bf16, DType::Fp32] {
                // MPFR rounds once to the precision; range is far away here
                // except for fp16's subnormals and overflow.
                let format = dtype.format();
                prop_assume!(hi.abs() > format.min_normal() && hi.abs() < format.max_finite() * 0.99);
                let once = Float::with_val(format.precision as u32, &exact(&value)).to_f64();
                prop_assert_eq!(value.rounded(dtype), Some(once));
            }
            let once = exact(&value).to_f64();
            prop_assert_eq!(value.rounded(DType::Fp64), Some(once));
        }

        #[test]
        fn errors_enclose_the_true_distance(hi in -10.0f64..10.0, lo in -1e-16f64..1e-16, actual in -10.0f64..10.0) {
            let value = Value { hi, lo, radius: 0.0 };
            for actual in [actual, hi] {
                let distance = (Float::with_val(4000, actual) - exact(&value)).abs();
                prop_assert!(distance <= value.error_above(actual));
                prop_assert!(distance >= value.error_below(actual));
            }
        }

        #[test]
        fn scaled_radius_covers_the_arithmetic(
            hi in -1e3f64..1e3, lo in -1e-14f64..1e-14, radius in 0.0f64..1e-15,
            alpha in -4.0f64..4.0, beta in -4.0f64..4.0, prior in -1e3f64..1e3,
        ) {
            let value = Value { hi, lo, radius };
            let scaled = value.scaled(alpha, beta, prior).unwrap();
            for end in [-radius, radius] {
                let truth = (exact(&value) + end) * alpha + Float::with_val(4000, beta) * prior;
                let off = (truth - exact(&scaled)).abs();
                prop_assert!(off <= scaled.radius);
            }
        }
    }
}
