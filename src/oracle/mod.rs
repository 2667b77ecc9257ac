//! Exact values: what the right answer is, before and after rounding.

use crate::dtype::DType;

pub mod arbiter;

/// The value of one output before rounding to the output type:
/// alpha · Σ a·b + beta · prior, as an unevaluated sum of two doubles with a
/// certified radius: |exact − (hi + lo)| ≤ radius.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Value {
    /// Leading part, the exact value rounded to f64.
    pub hi: f64,
    /// Correction, |lo| ≤ ulp(hi)/2.
    pub lo: f64,
    /// Certified radius; 0 when hi + lo is exact.
    pub radius: f64,
}

/// What IEEE 754 arithmetic makes of one output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// All products are finite.
    Finite,
    /// A product is NaN, or infinities of both signs meet: NaN is the only
    /// right answer.
    Nan,
    /// Infinite products of one sign only.
    Infinite {
        /// Whether the infinity is negative.
        negative: bool,
    },
}

/// What is known of one output.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Output {
    /// Logical offset in the result tensor.
    pub index: usize,
    /// Exact value, meaningful when `class` is finite.
    pub value: Value,
    /// The absolute convolution S = Σ |a·b|, rounded up; excludes alpha, beta.
    pub s: f64,
    /// Number of products that are not zero.
    pub nonzero: u64,
    /// Finite, NaN or infinite.
    pub class: Class,
    /// How the value was decided.
    pub decided: Decided,
}

/// How the value of an output was decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decided {
    /// MPFR, exact.
    Arbiter,
    /// Fixed point, exact.
    FixedPoint,
    /// Double arithmetic with a certified radius.
    Certified,
}

/// Which outputs of a problem are judged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sample {
    /// Every one.
    All,
    /// These logical offsets, ascending.
    Some(Vec<usize>),
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
    /// leaves it open (ask the arbiter).
    pub fn rounded(&self, dtype: DType) -> Option<f64> {
        let _ = dtype;
        todo!("oracle")
    }
}
