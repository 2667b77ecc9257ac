//! One function per distribution: from the place of an element to its value,
//! before rounding to the type of its tensor.
//!
//! Every function takes a [`Source`] and returns the values of that tensor.
//! The previous contents of the result (beta ≠ 0) get the magnitude the
//! convolution itself has, so that neither term of the sum hides the other.

use super::integers;
use super::random::Stream;
use super::reduction::{self, Cancel};
use super::{Fill, FillKind};
use crate::dtype::{DType, exp2};
use crate::geometry::Geometry;
use crate::problem::{ConvProblem, Role};

/// The value at each logical offset of one tensor.
pub(super) type Values<'a> = Box<dyn Fn(usize) -> f64 + Send + Sync + 'a>;

/// What a tensor is to the computation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    First,
    Second,
    Prior,
}

/// One tensor to be filled.
pub(super) struct Source<'a> {
    pub(super) problem: &'a ConvProblem,
    pub(super) role: Role,
    pub(super) place: Place,
    /// The stream most elements are drawn from.
    pub(super) draws: Stream,
    /// A second stream of the same tensor: signs, noise, which to keep.
    pub(super) marks: Stream,
    /// A stream all three tensors share: choices that concern the whole case.
    pub(super) shared: Stream,
}

impl<'a> Source<'a> {
    fn new(problem: &'a ConvProblem, seed: u64, role: Role) -> Self {
        let number = role as u64;
        let [first, second] = problem.direction.operands();
        let place = match role {
            r if r == first => Place::First,
            r if r == second => Place::Second,
            _ => Place::Prior,
        };
        Source {
            problem,
            role,
            place,
            draws: Stream::new(seed, number),
            marks: Stream::new(seed, 3 + number),
            shared: Stream::new(seed, 6),
        }
    }

    pub(super) fn dtype(&self) -> DType {
        self.problem.dtype(self.role)
    }

    /// Products per output, as a real number.
    fn terms(&self) -> f64 {
        self.problem.reduction_length() as f64
    }
}

/// The values of the tensor in `role`.
pub(super) fn values(problem: &ConvProblem, fill: Fill, role: Role) -> Values<'_> {
    let source = Source::new(problem, fill.seed, role);
    match fill.kind {
        FillKind::Constant => integers::constant(&source),
        FillKind::Impulse => integers::impulse(&source),
        FillKind::Integers => integers::integers(&source),
        FillKind::Sparse => integers::sparse(&source),
        FillKind::Normal => normal(&source, 1.0),
        FillKind::UniformPositive => uniform_positive(&source),
        FillKind::LogUniform => log_uniform(&source),
        FillKind::Cancelling => cancelling(&source),
        FillKind::LargeThenSmall => large_then_small(&source),
        FillKind::NearOverflow => near_overflow(&source),
        FillKind::Subnormal => subnormal(&source),
        FillKind::NanPlaced => placed(&source, |_| f64::NAN),
        FillKind::InfPlaced => placed(&source, |negative| {
            if negative {
                f64::NEG_INFINITY
            } else {
                f64::INFINITY
            }
        }),
    }
}

/// N(0, 1); the prior N(0, K), times `remainder`, the share of the sum that is
/// left of it.
fn normal<'a>(source: &Source<'a>, remainder: f64) -> Values<'a> {
    let draws = source.draws;
    let scale = match source.place {
        Place::Prior => source.terms().sqrt() * remainder,
        _ => 1.0,
    };
    Box::new(move |i| scale * draws.normal(i as u64))
}

/// Uniform on (0, 1]. The second operand is scaled by a power of two where K
/// is so long that sums would pass a quarter of the result's range.
fn uniform_positive<'a>(source: &Source<'a>) -> Values<'a> {
    let draws = source.draws;
    let excess = libm::log2(source.terms() / (sum_limit(source.problem) / 4.0));
    let down = exp2(-(libm::ceil(excess).max(0.0) as i32));
    let scale = match source.place {
        Place::First => 1.0,
        Place::Second => down,
        Place::Prior => source.terms() * down / 4.0,
    };
    Box::new(move |i| scale * draws.unit(i as u64))
}

/// ±2^e with e uniform on an interval that [`binades`] chooses.
fn log_uniform<'a>(source: &Source<'a>) -> Values<'a> {
    let (draws, marks) = (source.draws, source.marks);
    let (low, high) = binades(source.problem, source.role, source.place);
    Box::new(move |i| {
        let magnitude = libm::exp2(low + (high - low) * draws.unit(i as u64));
        signed(magnitude, marks.coin(i as u64))
    })
}

/// Exponents from which log-uniform data is drawn: as many binades as the
/// accumulator has bits, centred on 1, cut so that operands are normal and K
/// products of the largest stay below the overflow threshold.
fn binades(problem: &ConvProblem, role: Role, place: Place) -> (f64, f64) {
    let half = f64::from(problem.compute.dtype().format().precision / 2);
    let lengths = libm::log2(problem.reduction_length() as f64);
    let top = (libm::log2(sum_limit(problem)) - 1.0 - lengths) / 2.0;
    let bottom = f64::from(problem.dtype(role).format().emin);
    let high = half.min(top);
    let low = (-half).max(bottom).min(high - 1.0);
    match place {
        Place::Prior => (low, high * 2.0),
        _ => (low, high),
    }
}

/// Products in pairs of opposite sign that agree to a few units in the last
/// place; N(0, 1) where the reduction has nothing to pair.
fn cancelling<'a>(source: &Source<'a>) -> Values<'a> {
    let (draws, marks) = (source.draws, source.marks);
    let format = source.dtype().format();
    match (Cancel::new(source.problem, source.role), source.place) {
        (Some(_), Place::Prior) | (None, _) => normal(source, 8.0 * format.unit_roundoff()),
        (Some(cancel), _) if cancel.opposite() => Box::new(move |i| {
            let (key, negative) = cancel.pair(i);
            let value = draws.normal(key as u64);
            if negative { -value } else { value }
        }),
        (Some(cancel), _) => Box::new(move |i| {
            let value = format.round(draws.normal(cancel.pair(i).0 as u64));
            let steps = marks.below(i as u64, 9) as f64 - 4.0;
            value + steps * format.ulp(value)
        }),
    }
}

/// Positive data in which the first product of each sum is about 2^T times
/// the others, T around the accumulator's precision: what comes after the
/// first product is at, or just below, its last place.
fn large_then_small<'a>(source: &Source<'a>) -> Values<'a> {
    let draws = source.draws;
    let lead = reduction::Lead::new(source.problem, source.role);
    let shift = small_shift(source);
    Box::new(move |i| {
        let value = 0.5 + 0.5 * draws.unit(i as u64);
        if lead.leads(i) { value } else { value * shift }
    })
}

/// The factor of the small elements of one operand; the two operands share
/// the shift so that neither leaves the normal range of its type.
fn small_shift(source: &Source<'_>) -> f64 {
    let problem = source.problem;
    let total = problem.compute.dtype().format().precision - 2 + source.shared.below(0, 4) as i32;
    let [steady, other] = reduction::roles(problem.direction);
    let reach = |role: Role| -problem.dtype(role).format().emin - 1;
    let steady_shift = if reduction::period(problem) == 1 {
        0
    } else {
        (total / 2).min(reach(steady))
    };
    let shift = match source.role {
        r if r == steady => steady_shift,
        r if r == other => (total - steady_shift).min(reach(other)),
        _ => 0,
    };
    exp2(-shift)
}

/// Sums of one sign whose expected size is 0.9 to 1.1 of the overflow
/// threshold, a factor per result channel, on both sides of zero. Where the
/// operands cannot reach it (fp16 operands, fp32 result) they are as large as
/// a quarter of their own range.
fn near_overflow<'a>(source: &Source<'a>) -> Values<'a> {
    let problem = source.problem;
    let (draws, shared) = (source.draws, source.shared);
    let alpha = problem.alpha.0.abs();
    let target = sum_limit(problem) / if alpha > 0.0 { alpha } else { 1.0 };
    let reach = source.dtype().format().max_finite() / 4.0;
    let scale = match source.place {
        Place::Prior => sum_limit(problem) / 64.0,
        _ => (target / source.terms()).sqrt(),
    };
    let scale = scale.min(reach);
    let channel = (source.place != Place::Prior)
        .then(|| reduction::result_channel(problem, source.role))
        .flatten();
    Box::new(move |i| {
        let value = scale * (0.75 + 0.5 * draws.unit(i as u64));
        match &channel {
            None => value,
            Some(channel) => {
                let at = channel.coordinate(i) as u64;
                signed(
                    value * (0.9 + 0.2 * shared.unit(2 * at + 1)),
                    shared.coin(2 * at + 2),
                )
            }
        }
    })
}

/// One operand around and below its smallest normal value, the other N(0, 1/K),
/// so that products and sums stay there too. The seed says which.
fn subnormal<'a>(source: &Source<'a>) -> Values<'a> {
    let draws = source.draws;
    let format = source.dtype().format();
    let tiny = if source.shared.coin(0) {
        Place::First
    } else {
        Place::Second
    };
    if source.place == tiny || source.place == Place::Prior {
        let marks = source.marks;
        let top = exp2(format.emin + 2);
        // The exponent is spread as well, so that about four in five values
        // are below the smallest normal.
        return Box::new(move |i| {
            let down = exp2(-(marks.below(2 * i as u64, 6) as i32));
            let magnitude = top * down * draws.unit(i as u64);
            let negative = marks.coin(2 * i as u64 + 1);
            signed(magnitude.max(format.min_subnormal()), negative)
        });
    }
    let scale = 1.0 / source.terms().sqrt();
    Box::new(move |i| scale * draws.normal(i as u64))
}

/// N(0, 1) with one to three `special` values at places that results use,
/// most of them in the first operand.
fn placed<'a>(source: &Source<'a>, special: fn(bool) -> f64) -> Values<'a> {
    let shared = source.shared;
    let count = 1 + shared.below(0, 3);
    let places: Vec<(usize, bool)> = (1..=count)
        .filter(|&p| holder(shared, p) == source.place)
        .map(|p| (reached(source, p), shared.coin(16 + p)))
        .collect();
    let rest = normal(source, 1.0);
    Box::new(
        move |i| match places.iter().find(|(place, _)| *place == i) {
            Some(&(_, negative)) => special(negative),
            None => rest(i),
        },
    )
}

/// Which operand holds special value `p`: the first in three of four.
fn holder(shared: Stream, p: u64) -> Place {
    if shared.below(8 + p, 4) == 0 {
        Place::Second
    } else {
        Place::First
    }
}

/// A seed-dependent place of an operand that some result sums; place number
/// `p` of the case.
pub(super) fn reached(source: &Source<'_>, p: u64) -> usize {
    /// Outputs tried before giving up: one alone may see only padding.
    const TRIES: u64 = 32;
    let geometry = Geometry::new(source.problem);
    let pick = source.shared;
    (0..TRIES)
        .map(|attempt| 1_000 * (p + 1) + 2 * attempt)
        .find_map(|draw| {
            let output = pick.below(draw, geometry.outputs() as u64) as usize;
            let mut places = Vec::new();
            geometry.for_each_product(output, |first, second| {
                places.push(if source.place == Place::First {
                    first
                } else {
                    second
                });
            });
            let count = places.len() as u64;
            (count > 0).then(|| places[pick.below(draw + 1, count) as usize])
        })
        .unwrap_or(0)
}

/// The magnitude below which a sum is finite in the accumulator and in the
/// result type.
pub(super) fn sum_limit(problem: &ConvProblem) -> f64 {
    [problem.compute.dtype(), problem.result_type()]
        .map(|t| t.format().overflow_threshold().min(f64::MAX))
        .into_iter()
        .fold(f64::INFINITY, f64::min)
}

fn signed(magnitude: f64, negative: bool) -> f64 {
    if negative { -magnitude } else { magnitude }
}
