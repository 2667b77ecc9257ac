//! From what was seen to a verdict, element by element: no aggregate error can
//! hide one wrong output.
//!
//! A result Y is right when some value within the bound E of the exact y rounds
//! to it: rounding is monotonic, so that is Y in [round(y − E), round(y + E)].
//! Overflow to infinity, subnormals and ties need no rules of their own. Where
//! all sums are exact E is zero, and only the correctly rounded y will do.

use crate::bound::Bounds;
use crate::fill::{Inputs, Regime};
use crate::oracle::{Reference, Tally};
use crate::outcome::{Observation, Outcome, Repeat};
use crate::tensor::Tensor;

mod describe;
mod element;
mod ladder;
mod suspect;
mod verdict;

pub use describe::place;
pub use ladder::Ladder;
pub use suspect::{Rated, mark_suspects};
pub use verdict::{FailureKind, SkipReason, UntrustedReason, Verdict};

use element::{Elements, Summary};

/// The worst output of a trial.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Worst {
    /// Logical offset.
    pub index: usize,
    /// Correctly rounded value.
    pub expected: f64,
    /// What the library returned.
    pub actual: f64,
    /// Absolute bound on |actual − exact|; 0 where only the right bits pass.
    pub bound: f64,
}

/// A verdict with the figures behind it.
#[derive(Clone, Debug, PartialEq)]
pub struct Judgement {
    /// The verdict.
    pub verdict: Verdict,
    /// What is wrong, in words: repro line excluded.
    pub detail: Option<String>,
    /// Far outside what is usual, though inside the proven bound.
    pub suspect: bool,
    /// Judged outputs.
    pub judged: u64,
    /// Judged outputs outside their bound, or not the right bits.
    pub wrong: u64,
    /// Share of nonzero products, 0 to 1.
    pub nonzero_share: f64,
    /// Share of judged outputs with S above zero, 0 to 1.
    pub power_share: f64,
    /// Median smallest relative change that would have been seen.
    pub detectable: Option<f64>,
    /// Largest error in ulps of the result type, over finite outputs.
    pub max_ulp: Option<f64>,
    /// Largest error as a share of its bound.
    pub max_ratio: Option<f64>,
    /// The output with the largest ratio, wrong ones first.
    pub worst: Option<Worst>,
    /// How the judged outputs were decided.
    pub decided: Tally,
    /// Root mean square error against root mean square S: what peers are
    /// compared by.
    pub spread: Option<f64>,
    /// Mean |actual − exact| over finite outputs.
    pub mean_error: Option<f64>,
}

/// Shares below which data proves too little: fewer than one output in ten with
/// a nonzero product, or that may not rightly be anything.
const LEAST_POWER: f64 = 0.1;

/// A bound of half the sum of magnitudes lets anything short of garbage pass.
const WIDEST_BOUND: f64 = 0.5;

/// What a case is judged by; shared by all its candidates.
#[derive(Clone, Copy, Debug)]
pub struct Case<'a> {
    /// The data.
    pub inputs: &'a Inputs,
    /// The exact values.
    pub reference: &'a Reference,
}

/// What a candidate says of itself beside its arithmetic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Promises {
    /// Two runs may differ in bits.
    pub nondeterministic: bool,
    /// NaN is always handed on, through transforms too.
    pub strict_nan: bool,
}

/// Judges one outcome. `bounds` are those of the candidate's declared
/// arithmetic, `None` where its family has none; `promises` are its own word.
pub fn judge(
    case: Case<'_>,
    bounds: Option<&Bounds>,
    promises: Promises,
    outcome: &Outcome,
) -> Judgement {
    match outcome {
        Outcome::NotSupported(why) => unjudged(Verdict::Skipped(SkipReason::NotSupported), why),
        Outcome::OutOfMemory(why) => unjudged(Verdict::Skipped(SkipReason::OutOfMemory), why),
        Outcome::ExecutionFailed { status, message } => unjudged(
            Verdict::Failed(FailureKind::ExecutionFailed),
            &format!("{status}: {message}"),
        ),
        Outcome::Ran(observation) => match bounds {
            Some(bounds) => judge_observation(case, bounds, promises, observation),
            None => unjudged(
                Verdict::Untrusted(UntrustedReason::NoBound),
                "no bound for this family on this problem",
            ),
        },
    }
}

/// What is accepted of every referenced output: a value and the largest distance
/// from it that is right.
pub fn accepted(case: Case<'_>, bounds: &Bounds) -> Vec<(f64, f64)> {
    Elements::new(case, bounds).accepted()
}

fn unjudged(verdict: Verdict, detail: &str) -> Judgement {
    Judgement {
        verdict,
        detail: Some(detail.to_owned()),
        suspect: false,
        judged: 0,
        wrong: 0,
        nonzero_share: 0.0,
        power_share: 0.0,
        detectable: None,
        max_ulp: None,
        max_ratio: None,
        worst: None,
        decided: Tally::default(),
        spread: None,
        mean_error: None,
    }
}

fn judge_observation(
    case: Case<'_>,
    bounds: &Bounds,
    promises: Promises,
    seen: &Observation,
) -> Judgement {
    let elements = Elements::new(case, bounds).strict(promises.strict_nan);
    let summary = elements.judge(&seen.result);
    let mut faults = vec![];
    faults.extend(memory_faults(seen));
    faults.extend(unwritten(&elements, case, seen));
    faults.extend(
        summary
            .fault
            .map(|kind| (kind, elements.message(&summary, &seen.result))),
    );
    faults.extend(deviations(&elements, promises.nondeterministic, seen));
    let worst_fault = faults.into_iter().min_by_key(|(kind, _)| *kind);
    let verdict = match &worst_fault {
        Some((kind, _)) => Verdict::Failed(*kind),
        None => distrust(case, &summary).map_or(Verdict::Passed, Verdict::Untrusted),
    };
    let depth = case.inputs.problem.reduction_length() as f64;
    Judgement {
        verdict,
        detail: worst_fault.map(|(_, words)| words),
        suspect: false,
        judged: summary.judged,
        wrong: summary.wrong,
        nonzero_share: summary.nonzero as f64 / (summary.judged as f64 * depth),
        power_share: summary.with_products as f64 / summary.judged as f64,
        detectable: summary.detectable,
        max_ulp: summary.max_ulp,
        max_ratio: summary.max_ratio,
        worst: summary.worst,
        decided: summary.decided,
        spread: summary.spread(),
        mean_error: summary.mean_error(),
    }
}

/// Why a result without faults proves nothing, if so.
fn distrust(case: Case<'_>, summary: &Summary) -> Option<UntrustedReason> {
    let judged = summary.judged as f64;
    if (summary.informative as f64) < LEAST_POWER * judged {
        return Some(UntrustedReason::NonFinite);
    }
    let special = case.inputs.fill.kind.regime() == Regime::Special;
    if !special && (summary.with_products as f64) < LEAST_POWER * judged {
        return Some(UntrustedReason::MostlyZero);
    }
    let wide = summary.width.is_some_and(|w| w >= WIDEST_BOUND);
    (wide && !special).then_some(UntrustedReason::BoundTooWide)
}

fn memory_faults(seen: &Observation) -> impl Iterator<Item = (FailureKind, String)> + '_ {
    seen.memory
        .iter()
        .map(|fault| (describe::memory_kind(fault), describe::memory(fault)))
}

/// Poison left in the result, where NaN is not the right answer anyway.
fn unwritten(
    elements: &Elements<'_>,
    case: Case<'_>,
    seen: &Observation,
) -> Option<(FailureKind, String)> {
    let left: Vec<usize> = seen
        .unwritten
        .iter()
        .copied()
        .filter(|&index| !elements.nan_is_right(index))
        .collect();
    let first = *left.first()?;
    let place = describe::place(&case.inputs.problem, first);
    Some((
        FailureKind::Unwritten,
        format!(
            "{} outputs were never written, the first at {place}",
            left.len()
        ),
    ))
}

/// Repeats that differ: wrong by value, or by differing at all.
fn deviations(
    elements: &Elements<'_>,
    nondeterministic: bool,
    seen: &Observation,
) -> Vec<(FailureKind, String)> {
    let mut faults = Vec::new();
    let plain = seen.deviations.iter().any(|d| d.under == Repeat::Same);
    for deviation in &seen.deviations {
        let under = describe::repeat(deviation.under);
        let summary = elements.judge(&deviation.result);
        if let Some(kind) = summary.fault {
            let message = elements.message(&summary, &deviation.result);
            let kind = match deviation.under {
                Repeat::OddStrides => FailureKind::OddStrides,
                _ => kind,
            };
            faults.push((kind, format!("{under}: {message}")));
        }
        if nondeterministic || !deviation.under.keeps_bits() {
            continue;
        }
        let kind = if plain {
            FailureKind::Nondeterministic
        } else {
            kind_of(deviation.under)
        };
        let count = differing(&seen.result, &deviation.result);
        faults.push((
            kind,
            format!("{under}: {count} outputs differ from the first run"),
        ));
    }
    faults
}

fn kind_of(under: Repeat) -> FailureKind {
    match under {
        Repeat::Same | Repeat::PlanFromJson | Repeat::Moved | Repeat::OddStrides => {
            FailureKind::Nondeterministic
        }
        Repeat::WorkspaceZero | Repeat::WorkspaceLeftover | Repeat::OutputPoison => {
            FailureKind::UninitialisedRead
        }
    }
}

fn differing(a: &Tensor, b: &Tensor) -> usize {
    (0..a.len()).filter(|&i| a.bits(i) != b.bits(i)).count()
}

#[cfg(test)]
mod tests;
