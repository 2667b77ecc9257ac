//! One operand as doubles, and what is known of its values as a whole.

use super::kernel::{Dispatched, dispatch};
use crate::dtype::exponent;
use crate::tensor::Tensor;

/// One operand's values, and what is known of them as a whole.
pub struct Operand {
    /// As doubles, in logical order.
    pub values: Vec<f64>,
    /// What holds of all of them.
    pub facts: Facts,
}

/// What holds of all values of an operand.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Facts {
    /// Whether there is a zero.
    pub has_zeros: bool,
    /// Whether there is neither NaN nor infinity.
    pub finite: bool,
    /// The lowest bit set in any finite nonzero value; infinite where there is none.
    low_bit: f64,
    /// The least and largest magnitude of finite nonzero values.
    pub least: f64,
    /// 0 where there is none.
    pub largest: f64,
}

impl Operand {
    /// Decodes a tensor.
    pub fn new(tensor: &Tensor) -> Self {
        let values = tensor.to_f64();
        Operand {
            facts: dispatch(Survey(&values)),
            values,
        }
    }
}

impl Facts {
    /// Whether no value is finite and nonzero.
    pub fn is_zero(&self) -> bool {
        self.largest == 0.0
    }

    /// Exponent of the lowest bit set in any finite nonzero value.
    pub fn least_exponent(&self) -> i32 {
        exponent(self.low_bit)
    }

    /// Bits from that one to the highest of all.
    pub fn width(&self) -> i32 {
        if self.is_zero() {
            return 0;
        }
        exponent(self.largest) + 1 - self.least_exponent()
    }
}

/// The fraction field of a double.
const FRACTION: u64 = (1 << 52) - 1;

/// Values surveyed side by side.
const SIDE: usize = 16;

/// Facts of every SIDE-th value, one array per fact: that is what compiles to
/// vectors.
struct Lanes {
    low_bit: [f64; SIDE],
    least: [f64; SIDE],
    largest: [f64; SIDE],
    zeros: [bool; SIDE],
    others: [bool; SIDE],
}

impl Lanes {
    const NONE: Lanes = Lanes {
        low_bit: [f64::INFINITY; SIDE],
        least: [f64::INFINITY; SIDE],
        largest: [0.0; SIDE],
        zeros: [false; SIDE],
        others: [false; SIDE],
    };

    /// Without branches.
    #[inline(always)]
    fn add(&mut self, row: &[f64; SIDE]) {
        for (i, value) in row.iter().enumerate() {
            let magnitude = value.abs();
            let finite = magnitude < f64::INFINITY;
            self.zeros[i] |= magnitude == 0.0;
            self.others[i] |= !finite;
            let counts = finite & (magnitude != 0.0);
            let small = if counts { magnitude } else { f64::INFINITY };
            let large = if finite { magnitude } else { 0.0 };
            let bits = magnitude.to_bits();
            // The lowest bit of the fraction, or the leading one.
            let rest = f64::from_bits(bits & bits.wrapping_sub(1));
            let power = bits & FRACTION == 0;
            let low = if power { small } else { small - rest };
            self.low_bit[i] = least(self.low_bit[i], low);
            self.least[i] = least(self.least[i], small);
            self.largest[i] = if large > self.largest[i] {
                large
            } else {
                self.largest[i]
            };
        }
    }

    fn facts(&self) -> Facts {
        let least_of = |values: &[f64]| values.iter().copied().fold(f64::INFINITY, least);
        Facts {
            has_zeros: self.zeros.contains(&true),
            finite: !self.others.contains(&true),
            low_bit: least_of(&self.low_bit),
            least: least_of(&self.least),
            largest: self.largest.iter().copied().fold(0.0, f64::max),
        }
    }
}

/// The lesser; the first where the second is NaN.
#[inline(always)]
fn least(a: f64, b: f64) -> f64 {
    if b < a { b } else { a }
}

struct Survey<'a>(&'a [f64]);

impl Dispatched for Survey<'_> {
    type Output = Facts;

    #[inline(always)]
    fn call(self) -> Facts {
        let (rows, rest) = self.0.as_chunks::<SIDE>();
        let mut lanes = Lanes::NONE;
        for row in rows {
            lanes.add(row);
        }
        if let Some(&filler) = rest.first() {
            let mut row = [filler; SIDE];
            row[..rest.len()].copy_from_slice(rest);
            lanes.add(&row);
        }
        lanes.facts()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Exponent of the lowest set bit of a finite nonzero value, by integers.
    fn last_bit(value: f64) -> i32 {
        let bits = value.to_bits();
        let field = (bits >> 52 & 0x7ff) as i32;
        let (significand, exponent) = match field {
            0 => (bits & FRACTION, -1074),
            _ => (bits & FRACTION | 1 << 52, field - 1075),
        };
        exponent + significand.trailing_zeros() as i32
    }

    proptest! {
        #[test]
        fn survey_finds_what_a_plain_search_finds(
            values in prop::collection::vec(prop_oneof![any::<f64>(), Just(0.0), Just(f64::NAN), (-8i32..8).prop_map(f64::from), any::<f32>().prop_map(f64::from)], 0..70),
        ) {
            let facts = dispatch(Survey(&values));
            let finite: Vec<f64> = values.iter().copied().filter(|v| v.is_finite() && *v != 0.0).collect();
            prop_assert_eq!(facts.finite, values.iter().all(|v| v.is_finite()));
            prop_assert_eq!(facts.has_zeros, values.contains(&0.0));
            prop_assert_eq!(facts.largest, finite.iter().fold(0.0, |a: f64, v| a.max(v.abs())));
            prop_assert_eq!(facts.least, finite.iter().fold(f64::INFINITY, |a, v| a.min(v.abs())));
            if let Some(low) = finite.iter().map(|&v| last_bit(v)).min() {
                prop_assert_eq!(facts.least_exponent(), low);
            }
        }
    }
}
