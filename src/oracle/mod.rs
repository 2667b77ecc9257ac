//! Exact values: what the right answer is, before and after rounding.
//!
//! [`reference`] computes all outputs, or a sample, by the fastest path that is
//! exact or certified for the data ([`blocked`], or [`sampled`] one by one);
//! [`arbiter`] settles the rest.

use rayon::prelude::*;

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::fill::Inputs;
use crate::geometry::Geometry;
use crate::problem::Role;

pub mod arbiter;
mod blocked;
mod kernel;
mod operand;
mod panel;
mod pass;
mod sample;
mod sampled;
mod value;

pub use sample::Sample;
pub use value::{Value, two_sum};

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

impl Class {
    /// The class of a sum whose finite terms do not count.
    fn of(sum: f64) -> Self {
        if sum.is_nan() {
            Class::Nan
        } else if sum.is_infinite() {
            Class::Infinite {
                negative: sum < 0.0,
            }
        } else {
            Class::Finite
        }
    }
}

/// How the value of an output was decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decided {
    /// MPFR, exact.
    Arbiter,
    /// Exact in fixed point, or in doubles without rounding.
    FixedPoint,
    /// Double arithmetic with a certified radius.
    Certified,
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

/// How many outputs were decided in which way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// By exact fixed-point or exact double arithmetic.
    pub fixed_point: u64,
    /// By double arithmetic with a radius.
    pub certified: u64,
    /// By the arbiter.
    pub arbiter: u64,
}

/// The exact values of a case.
#[derive(Clone, Debug, PartialEq)]
pub struct Reference {
    /// Judged outputs, ascending by index.
    pub outputs: Vec<Output>,
    /// Elements of the result tensor.
    pub total: usize,
    /// How they were decided.
    pub tally: Tally,
}

impl Reference {
    /// Judged share of all outputs, 0 to 1.
    pub fn coverage(&self) -> f64 {
        self.outputs.len() as f64 / self.total as f64
    }
}

/// The exact values of the sampled outputs of a case.
pub fn reference(inputs: &Inputs, sample: &Sample) -> Reference {
    let total = inputs.problem.elements(inputs.problem.direction.result());
    let outputs = match sample {
        Sample::All => blocked::outputs(inputs).or_else(|| {
            let all: Vec<usize> = (0..total).collect();
            sampled::outputs(inputs, &all)
        }),
        Sample::Some(list) => sampled::outputs(inputs, list),
    };
    let outputs = outputs.unwrap_or_else(|| {
        let indices = (0..sample.len(total)).into_par_iter();
        by_arbiter(inputs, indices.map(|i| sample.index(i)))
    });
    Reference {
        total,
        tally: tally(&outputs),
        outputs,
    }
}

/// The same by the arbiter alone: the slow path that the fast one is checked
/// and measured against.
pub fn reference_by_arbiter(inputs: &Inputs) -> Reference {
    let total = inputs.problem.elements(inputs.problem.direction.result());
    let outputs = by_arbiter(inputs, (0..total).into_par_iter());
    Reference {
        total,
        tally: tally(&outputs),
        outputs,
    }
}

fn by_arbiter(inputs: &Inputs, indices: impl IndexedParallelIterator<Item = usize>) -> Vec<Output> {
    indices.map(|i| arbiter::output(inputs, i)).collect()
}

impl Tally {
    /// Counts one output.
    pub fn count(&mut self, decided: Decided) {
        match decided {
            Decided::FixedPoint => self.fixed_point += 1,
            Decided::Certified => self.certified += 1,
            Decided::Arbiter => self.arbiter += 1,
        }
    }
}

fn tally(outputs: &[Output]) -> Tally {
    let mut tally = Tally::default();
    outputs.iter().for_each(|o| tally.count(o.decided));
    tally
}

/// Compares `count` outputs, chosen by `seed`, with the arbiter, and says how
/// many there were; a disagreement is a bug of convfuzz.
pub fn audit(inputs: &Inputs, reference: &Reference, count: usize, seed: u64) -> Result<u64> {
    let len = reference.outputs.len();
    for step in 0..count.min(len) {
        let pick = (seed as usize).wrapping_add(step.wrapping_mul(0x9e37_79b9)) % len;
        confirm(inputs, &reference.outputs[pick])?;
    }
    Ok(count.min(len) as u64)
}

/// Compares one output with the arbiter; a disagreement is a bug of convfuzz.
pub fn confirm(inputs: &Inputs, output: &Output) -> Result<()> {
    let exact = arbiter::exact(inputs, &Geometry::new(&inputs.problem), output.index);
    let right = exact.class == output.class
        && (exact.class != Class::Finite || holds(output, &exact, inputs.problem.result_type()));
    if right {
        return Ok(());
    }
    Err(Error::internal(format!(
        "the fast oracle and the arbiter disagree at output {} of '{} fill={}': please report this line",
        output.index, inputs.problem, inputs.fill
    )))
}

/// Whether the exact value is within the radius and rounds alike, and the other
/// figures are what they should be.
fn holds(output: &Output, exact: &arbiter::Exact, dtype: DType) -> bool {
    let same = |rounded: f64| rounded == arbiter::round(&exact.value, dtype);
    exact.is_within(&output.value)
        && output.value.rounded(dtype).is_none_or(same)
        && exact.s <= output.s
        && exact.nonzero == output.nonzero
}

/// Elements of the operands and result together: what a case keeps in memory,
/// times their sizes, plus 8 bytes each per operand for the oracle.
pub fn footprint(inputs: &Inputs) -> u64 {
    let problem = &inputs.problem;
    [Role::X, Role::W, Role::Y]
        .iter()
        .map(|&role| problem.elements(role) as u64 * (8 + problem.dtype(role).size() as u64))
        .sum()
}

#[cfg(test)]
mod tests;
