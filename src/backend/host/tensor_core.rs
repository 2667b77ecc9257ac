//! Tensor cores in software, bit for bit as published: Fasi, Higham, Mikaitis,
//! Pranesh, PeerJ CS 7:e330 (2021); Khattak and Mikaitis, arXiv:2512.07004;
//! MMA-Sim, arXiv:2511.10909.
//!
//! One step is d = c + Σ_{i<b} a_i·b_i: products are exact; all terms are
//! truncated toward zero to a multiple of 2^(E−F), E the largest exponent of a
//! nonzero term; their integer sum is exact; the result is truncated to 24 bits
//! (fp32) or rounded to nearest even (fp16).

use crate::bound::Generation;
use crate::dtype::{FP16, FP32, Format, exp2};

/// Shape and widths of one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Bits kept below the largest exponent, F.
    pub fraction: i32,
    /// Products per step, b.
    pub block: usize,
    /// Least exponent of the operand format: exponents are clamped here.
    pub operand_emin: i32,
    /// What becomes of the step's sum.
    pub stored: Stored,
}

/// Type and rounding of a step's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// fp32, truncated: as published.
    Truncated,
    /// fp32, to nearest: what no published model does.
    Nearest,
    /// fp16, to nearest.
    Half,
}

/// An operand with its clamped exponent.
#[derive(Clone, Copy, Debug)]
pub struct Operand {
    value: f64,
    exponent: i32,
}

impl Operand {
    /// The value itself.
    pub fn value(&self) -> f64 {
        self.value
    }
}

impl Step {
    /// The step of a generation for operands of `format`.
    pub fn new(generation: Generation, format: Format, tf32: bool, half_result: bool) -> Self {
        let model = generation.model();
        Step {
            fraction: model.fraction,
            block: if tf32 { model.block_tf32 } else { model.block } as usize,
            operand_emin: format.emin,
            stored: if half_result {
                Stored::Half
            } else {
                Stored::Truncated
            },
        }
    }

    /// Prepares a finite operand.
    pub fn operand(&self, value: f64) -> Operand {
        Operand {
            value,
            exponent: exponent(value).max(self.operand_emin),
        }
    }

    /// c + Σ a_i·b_i over at most `block` products.
    pub fn apply(&self, c: f64, a: &[Operand], b: &[Operand]) -> f64 {
        let mut largest = if c == 0.0 {
            i32::MIN
        } else {
            exponent(c).max(self.result_emin())
        };
        for (a, b) in a.iter().zip(b) {
            if a.value != 0.0 && b.value != 0.0 {
                largest = largest.max(a.exponent + b.exponent);
            }
        }
        if largest == i32::MIN {
            return 0.0;
        }
        let scale = exp2(self.fraction - largest);
        // `as` truncates toward zero; terms are below 2^(F+2).
        let mut sum = (c * scale) as i64;
        for (a, b) in a.iter().zip(b) {
            sum += (a.value * b.value * scale) as i64;
        }
        self.round(sum as f64 / scale)
    }

    /// The dot product of two rows, step by step from the left.
    pub fn dot(&self, a: &[Operand], b: &[Operand]) -> f64 {
        let blocks = a.chunks(self.block).zip(b.chunks(self.block));
        blocks.fold(0.0, |c, (a, b)| self.apply(c, a, b))
    }

    fn result_emin(&self) -> i32 {
        match self.stored {
            Stored::Half => FP16.emin,
            _ => FP32.emin,
        }
    }

    fn round(&self, value: f64) -> f64 {
        match self.stored {
            Stored::Half => return FP16.round(value),
            Stored::Nearest => return FP32.round(value),
            Stored::Truncated => {}
        }
        if value.abs() > FP32.max_finite() {
            return f64::INFINITY.copysign(value);
        }
        if value.abs() >= FP32.min_normal() {
            // Clearing the 29 bits that fp32 lacks truncates toward zero.
            return f64::from_bits(value.to_bits() >> 29 << 29);
        }
        FP32.truncate(value)
    }
}

/// Exponent of a finite value that is normal in f64; a floor for zero.
fn exponent(value: f64) -> i32 {
    (value.to_bits() >> 52 & 0x7ff) as i32 - 1023
}

#[cfg(test)]
mod tests {
    use super::*;
    use num_bigint::BigInt;
    use proptest::prelude::*;

    fn step(generation: Generation) -> Step {
        Step::new(generation, FP16, false, false)
    }

    fn apply(step: Step, c: f64, products: &[(f64, f64)]) -> f64 {
        let a: Vec<_> = products.iter().map(|p| step.operand(p.0)).collect();
        let b: Vec<_> = products.iter().map(|p| step.operand(p.1)).collect();
        step.apply(c, &a, &b)
    }

    /// By hand: E = 0, so terms are kept to 2^-F. 2^-24 survives from Ampere
    /// on, 2^-25 on Hopper alone; the fp32 result keeps neither next to 1, but
    /// two of 2^-24 make 2^-23, which it keeps.
    #[test]
    fn apply_truncates_each_term_at_its_generations_fraction() {
        let tiny = exp2(-12);
        let two_halves = [(1.0, 1.0), (tiny, tiny), (tiny, tiny)];
        let sum = 1.0 + exp2(-23);
        assert_eq!(apply(step(Generation::Volta), 0.0, &two_halves), 1.0);
        assert_eq!(apply(step(Generation::Ampere), 0.0, &two_halves), sum);
        assert_eq!(apply(step(Generation::Hopper), 0.0, &two_halves), sum);
        let quarter = (tiny, tiny * 0.5);
        let four_quarters = [(1.0, 1.0), quarter, quarter, quarter, quarter];
        assert_eq!(apply(step(Generation::Ampere), 0.0, &four_quarters), 1.0);
        assert_eq!(apply(step(Generation::Hopper), 0.0, &four_quarters), sum);
    }

    /// By hand: the sum 1 + 2^-23 + 2^-24 is truncated, not rounded.
    #[test]
    fn apply_truncates_the_result() {
        let c = 1.0 + exp2(-23);
        let half = [(exp2(-12), exp2(-12))];
        assert_eq!(apply(step(Generation::Hopper), c, &half), c);
        // -1 - 2^-23 + 2^-24 = -(1 + 2^-24): truncated to -1.
        assert_eq!(apply(step(Generation::Hopper), -c, &half), -1.0);
    }

    /// By hand: a subnormal operand's exponent is clamped at -14, so 2^-24 · 1
    /// has E = -14 and next to c = 2^-20 all is kept down to 2^-39.
    #[test]
    fn apply_clamps_the_exponents_of_subnormals() {
        let s = step(Generation::Hopper);
        assert_eq!(apply(s, exp2(-40), &[(exp2(-24), 1.0)]), exp2(-24));
        assert_eq!(
            apply(s, exp2(-39), &[(exp2(-24), 1.0)]),
            exp2(-24) + exp2(-39)
        );
    }

    /// By hand: fp16 results round to nearest even.
    #[test]
    fn apply_half_result_rounds_to_even() {
        let s = Step::new(Generation::Hopper, FP16, false, true);
        assert_eq!(apply(s, 1.0, &[(exp2(-11), 1.0)]), 1.0);
        assert_eq!(
            apply(s, 1.0 + exp2(-10), &[(exp2(-11), 1.0)]),
            1.0 + exp2(-9)
        );
        assert_eq!(apply(s, 60000.0, &[(6000.0, 1.0)]), f64::INFINITY);
    }

    /// The model again, in big integers, from its published description.
    fn slow(step: Step, c: f64, products: &[(f64, f64)]) -> f64 {
        let exponent = |v: f64, emin: i32| libm::ilogb(v).max(emin);
        let mut terms = Vec::new();
        if c != 0.0 {
            terms.push((c, exponent(c, -126)));
        }
        for &(a, b) in products {
            if a * b != 0.0 {
                let e = exponent(a, step.operand_emin) + exponent(b, step.operand_emin);
                terms.push((a * b, e));
            }
        }
        let Some(top) = terms.iter().map(|t| t.1).max() else {
            return 0.0;
        };
        let unit = top - step.fraction;
        let mut sum = BigInt::from(0);
        for (value, _) in terms {
            // value = m · 2^e with integer m; BigInt division truncates.
            let e = libm::ilogb(value) - 52;
            let m = BigInt::from(libm::ldexp(value, -e) as i64);
            sum += if e >= unit {
                m << (e - unit) as usize
            } else {
                m / (BigInt::from(1) << (unit - e) as usize)
            };
        }
        let bits = sum.magnitude().bits() as i32;
        let drop = (bits - 24).max(0);
        let kept = sum / (BigInt::from(1) << drop as usize);
        let kept: i64 = kept.try_into().unwrap();
        libm::ldexp(kept as f64, unit + drop)
    }

    fn half() -> impl Strategy<Value = f64> {
        any::<u16>().prop_map(|bits| {
            let value = half::f16::from_bits(bits).to_f64();
            if value.is_finite() { value } else { 1.5 }
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]
        #[test]
        fn apply_agrees_with_big_integers(
            c in prop_oneof![Just(0.0f32), -1e3f32..1e3, -1e-3f32..1e-3],
            products in prop::collection::vec((half(), half()), 1..16),
            generation in prop::sample::select(vec![Generation::Volta, Generation::Ampere, Generation::Hopper]),
        ) {
            let s = step(generation);
            prop_assert_eq!(apply(s, c.into(), &products), slow(s, c.into(), &products));
        }
    }
}
