//! Data whose every partial sum is exact in the accumulator, whatever the
//! order: integers with S = Σ|a·b| below 2^p of the compute type.

use super::random::Stream;
use super::values::{Place, Source, Values, reached};
use crate::dtype::{DType, exp2, exponent};
use crate::problem::ConvProblem;

/// Largest magnitude in the previous contents of the result.
const PRIOR: u64 = 8;

/// Integers to this magnitude survive rounding to bf16, TF32 and fp16, so a
/// down-converting engine is exact too.
const CONVERTIBLE: u64 = 1 << 8;

/// Largest magnitude in fp64 tensors, for which there is no down-conversion.
const DOUBLE: u64 = 1 << 24;

/// How large and how dense the operands may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Budget {
    /// Largest magnitude in the first operand.
    pub(super) first: u64,
    /// Largest magnitude in the second operand.
    pub(super) second: u64,
    /// One in this many elements of the first operand is not zero.
    pub(super) one_in: u64,
}

impl Budget {
    /// The largest amplitudes that keep S within [`room`]. One in `one_in`
    /// elements of the first operand is kept, or fewer where K is too long even
    /// for ±1.
    pub(super) fn new(problem: &ConvProblem, mut one_in: u64) -> Self {
        let room = room(problem);
        let terms = problem.reduction_length() as f64;
        while most_kept(terms, one_in) > room {
            one_in *= 2;
        }
        let [first, second] = problem.direction.operands();
        let product = (room / most_kept(terms, one_in)).floor() as u64;
        let first = product.isqrt().min(largest(problem.dtype(first)));
        Budget {
            first,
            second: (product / first).min(largest(problem.dtype(second))),
            one_in,
        }
    }
}

/// The most products that are not zero, when one in `one_in` of `terms` is kept
/// at random: mean m + t with t = 10·sqrt(m) + 50, exceeded with probability
/// below exp(-t²/(2m + t)) < 2^-70 (Chernoff; Mitzenmacher and Upfal,
/// *Probability and Computing*, section 4.2).
fn most_kept(terms: f64, one_in: u64) -> f64 {
    if one_in == 1 {
        return terms;
    }
    let mean = terms / one_in as f64;
    terms.min(mean + 10.0 * mean.sqrt() + 50.0)
}

/// Bound on S such that alpha·Σ + beta·prior is exact in the accumulator and
/// finite in the result. Factors with many significant bits cannot be exact;
/// for them the bound covers Σ alone.
pub(super) fn room(problem: &ConvProblem) -> f64 {
    /// Less room than this means that the factors have too many bits.
    const LEAST: f64 = 64.0;
    let capacity = exp2(problem.compute.dtype().format().precision) - 1.0;
    let largest = problem.result_type().format().max_finite();
    let (alpha, beta) = (problem.alpha.0.abs(), problem.beta.0.abs());
    let prior = beta * PRIOR as f64;
    let scaled = |limit: f64| ((limit - prior) / alpha).floor().min(capacity);
    let exact = scaled((capacity * grain(alpha).min(grain(beta))).min(largest));
    if exact >= LEAST {
        exact
    } else {
        scaled(largest).max(LEAST)
    }
}

/// The lowest set bit of a factor: products with integers are multiples of it.
/// Whole factors, and zero, count as 1.
fn grain(factor: f64) -> f64 {
    if factor == 0.0 {
        return 1.0;
    }
    let bits = factor.to_bits() | 1 << 52;
    exp2(exponent(factor) - 52 + bits.trailing_zeros().min(52) as i32).min(1.0)
}

/// The largest integer drawn for a tensor of this type.
fn largest(dtype: DType) -> u64 {
    match dtype {
        DType::Fp64 => DOUBLE,
        DType::Fp16 | DType::Bf16 | DType::Fp32 => CONVERTIBLE,
    }
}

/// Ones; thinned out only where K ones would not be exact.
pub(super) fn constant<'a>(source: &Source<'a>) -> Values<'a> {
    let one_in = match source.place {
        Place::First => Budget::new(source.problem, 1).one_in,
        Place::Second | Place::Prior => 1,
    };
    let marks = source.marks;
    Box::new(move |i| f64::from(u8::from(kept(marks, i, one_in))))
}

/// Integers of both signs, none of them zero unless K is too long.
pub(super) fn integers<'a>(source: &Source<'a>) -> Values<'a> {
    budgeted(source, 1)
}

/// Three of four elements of the first operand are zero; the others are larger
/// than those of [`integers`].
pub(super) fn sparse<'a>(source: &Source<'a>) -> Values<'a> {
    budgeted(source, 4)
}

fn budgeted<'a>(source: &Source<'a>, one_in: u64) -> Values<'a> {
    let budget = Budget::new(source.problem, one_in);
    let (draws, marks) = (source.draws, source.marks);
    match source.place {
        Place::First => Box::new(move |i| match kept(marks, i, budget.one_in) {
            true => integer(draws, i, budget.first),
            false => 0.0,
        }),
        Place::Second => Box::new(move |i| integer(draws, i, budget.second)),
        Place::Prior => Box::new(move |i| integer(draws, i, PRIOR)),
    }
}

fn kept(marks: Stream, i: usize, one_in: u64) -> bool {
    one_in == 1 || marks.below(i as u64, one_in) == 0
}

/// Uniform on the integers from -amplitude to amplitude without zero.
fn integer(draws: Stream, i: usize, amplitude: u64) -> f64 {
    let draw = draws.below(i as u64, 2 * amplitude) as f64 - amplitude as f64;
    if draw >= 0.0 { draw + 1.0 } else { draw }
}

/// A single one in the first operand; in the second 1, 2, 3, … along the
/// logical order, from a seed-dependent start, over and over. The period is a
/// prime, out of step with channel counts and rows.
pub(super) fn impulse<'a>(source: &Source<'a>) -> Values<'a> {
    match source.place {
        Place::First => {
            let place = reached(source, 0);
            Box::new(move |i| f64::from(u8::from(i == place)))
        }
        Place::Second => {
            let cycle = cycle(source.problem, source.dtype());
            let start = source.shared.below(0, cycle);
            Box::new(move |i| ((i as u64 + start) % cycle + 1) as f64)
        }
        Place::Prior => {
            let draws = source.draws;
            Box::new(move |i| integer(draws, i, PRIOR))
        }
    }
}

/// The largest listed prime such that every integer up to it is exact in the
/// operand, the accumulator, the result, TF32 and fp16.
fn cycle(problem: &ConvProblem, operand: DType) -> u64 {
    /// The largest prime below each power of two from 2^11 down.
    const PRIMES: [u64; 8] = [2039, 1021, 509, 251, 127, 61, 31, 13];
    let types = [operand, problem.result_type(), problem.compute.dtype()];
    let exact = types
        .map(|t| exp2(t.format().precision))
        .into_iter()
        .fold(room(problem), f64::min);
    let fits = PRIMES.into_iter().find(|&p| p as f64 <= exact);
    fits.unwrap_or(PRIMES[PRIMES.len() - 1])
}
