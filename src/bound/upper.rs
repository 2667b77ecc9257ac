//! Nonnegative numbers that are never below the truth: every operation rounds
//! outward, as FLINT's `mag_t` does.

use std::iter::Sum;
use std::ops::{Add, Mul};

/// An upper bound of a nonnegative real number.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Upper(f64);

impl Upper {
    /// Zero, exactly.
    pub const ZERO: Upper = Upper(0.0);

    /// No bound at all.
    pub const INFINITE: Upper = Upper(f64::INFINITY);

    /// Bounds |value|, exactly; NaN gives no bound.
    pub fn of(value: f64) -> Self {
        if value.is_nan() {
            Self::INFINITE
        } else {
            Upper(value.abs())
        }
    }

    /// The bound as a number.
    pub fn get(self) -> f64 {
        self.0
    }

    /// The quotient by a positive lower bound `divisor`.
    #[must_use]
    pub fn over(self, divisor: f64) -> Self {
        debug_assert!(divisor >= 0.0);
        if self.0 == 0.0 {
            return self;
        }
        Self::of((self.0 / divisor).next_up())
    }

    /// The square root.
    #[must_use]
    pub fn sqrt(self) -> Self {
        if self.0 == 0.0 {
            self
        } else {
            Upper(self.0.sqrt().next_up())
        }
    }

    /// The larger bound.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        Upper(self.0.max(other.0))
    }
}

impl Add for Upper {
    type Output = Upper;

    fn add(self, other: Upper) -> Upper {
        // x + 0 is exact, and must stay so: exact regimes have zero bounds.
        if self.0 == 0.0 || other.0 == 0.0 {
            return Upper(self.0 + other.0);
        }
        Upper((self.0 + other.0).next_up())
    }
}

impl Mul for Upper {
    type Output = Upper;

    fn mul(self, other: Upper) -> Upper {
        // Zero times no bound is still zero: the zero is exact.
        if self.0 == 0.0 || other.0 == 0.0 {
            return Upper::ZERO;
        }
        Upper((self.0 * other.0).next_up())
    }
}

impl Sum for Upper {
    fn sum<I: Iterator<Item = Upper>>(iter: I) -> Upper {
        iter.fold(Upper::ZERO, Add::add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rug::Float;

    fn magnitude() -> impl Strategy<Value = f64> {
        (-1060i32..1000, 1.0f64..2.0).prop_map(|(e, m)| libm::ldexp(m, e))
    }

    /// Never below the truth, and within two ulps above it.
    fn encloses(upper: Upper, truth: &Float) -> bool {
        let least = truth.to_f64_round(rug::float::Round::Up);
        let value = upper.get();
        value >= *truth && (value <= least.next_up().next_up())
    }

    proptest! {
        #[test]
        fn add_is_sound_and_tight(a in magnitude(), b in magnitude()) {
            let truth = Float::with_val(3000, a) + b;
            prop_assert!(encloses(Upper::of(a) + Upper::of(b), &truth));
        }

        #[test]
        fn mul_is_sound_and_tight(a in magnitude(), b in magnitude()) {
            let truth = Float::with_val(200, a) * b;
            prop_assert!(encloses(Upper::of(a) * Upper::of(b), &truth));
        }

        #[test]
        fn over_and_sqrt_are_sound_and_tight(a in magnitude(), b in magnitude()) {
            let a_exact = Float::with_val(300, a);
            prop_assert!(encloses(Upper::of(a).over(b), &Float::with_val(300, &a_exact / b)));
            prop_assert!(encloses(Upper::of(a).sqrt(), &a_exact.sqrt()));
        }
    }

    #[test]
    fn zero_stays_exact() {
        let one = Upper::of(1.0);
        assert_eq!((Upper::ZERO + one).get(), 1.0);
        assert_eq!(Upper::ZERO * Upper::INFINITE, Upper::ZERO);
        assert_eq!(Upper::of(f64::NAN), Upper::INFINITE);
    }
}
