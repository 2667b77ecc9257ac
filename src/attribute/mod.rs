//! From a wrong result to its cause: every hypothesis is computed from the
//! exact oracle and compared with the output.
//!
//! A hypothesis is a changed problem ([`frame::Hypothesis`]) whose exact result
//! is rounded, or bounded, as the right one would be. One that explains every
//! output, with more evidence than chance would give among as many hypotheses,
//! is named; when hypotheses of different kinds do, none is.

use std::fmt;

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::bound::Arithmetic;
use crate::fill::Inputs;
use crate::oracle::Sample;
use crate::outcome::{Observation, Outcome};
use crate::tensor::Tensor;

mod border;
mod cause;
mod frame;
mod observed;
mod place;
mod reading;
mod taps;
#[cfg(test)]
mod tests;
pub mod tree;
mod values;

pub use cause::{Cause, Confidence, Kind};
pub use place::Marginal;

use frame::{Fit, Frame, Hypothesis, Prediction};

/// What is known of a trial.
#[derive(Clone, Copy, Debug)]
pub struct Evidence<'a> {
    /// The data.
    pub inputs: &'a Inputs,
    /// What the candidate declares it does.
    pub arithmetic: &'a Arithmetic,
    /// What was seen of the run.
    pub seen: &'a Observation,
    /// Repeats that were made, those bitwise equal included.
    pub repeats: u32,
}

/// A hypothesis with the share of wrong outputs it reproduces.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Alternative {
    /// The cause it stands for.
    pub cause: Cause,
    /// Share of the wrong outputs looked at that it reproduces bit for bit.
    pub bits: f64,
    /// Share that it reproduces within its bound.
    pub within: f64,
}

/// What explains a wrong output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Attribution {
    /// The cause, when one kind alone explains everything.
    pub cause: Option<Cause>,
    /// How well it does.
    pub confidence: Option<Confidence>,
    /// Causes of different kinds that explain this data equally well.
    pub indistinguishable: Vec<Cause>,
    /// Share of wrong outputs that the cause reproduces.
    pub explained: f64,
    /// Wrong outputs.
    pub wrong: usize,
    /// Outputs looked at.
    pub judged: usize,
    /// The best of the hypotheses that were computed, best first.
    pub alternatives: Vec<Alternative>,
    /// How many were computed.
    pub tried: usize,
    /// Where errors sit, by dimension of the result.
    pub marginals: Vec<Marginal>,
}

/// Most outputs that are looked at.
const MOST_OUTPUTS: usize = 1 << 14;
/// Wrong and right outputs every hypothesis is computed for; the rest only for
/// those that explain these.
const PROBES: usize = 32;
/// Bits of evidence beyond the choice among hypotheses: chance explains an
/// output in one of 2^8 cases. Chosen.
const LEAST_BITS: f64 = 8.0;
/// Alternatives kept.
const SHOWN: usize = 6;

/// The outputs of a run against the exact values.
pub struct Findings<'a> {
    frame: &'a Frame<'a>,
    truth: Vec<(usize, Prediction)>,
    /// Positions in `truth` of the wrong ones.
    wrong: Vec<usize>,
    result: &'a Tensor,
}

impl<'a> Findings<'a> {
    fn new(frame: &'a Frame<'a>, result: &'a Tensor) -> Self {
        let problem = &frame.inputs.problem;
        let offsets = match Sample::choose(problem, MOST_OUTPUTS, frame.inputs.fill.seed) {
            Sample::All => (0..result.len()).collect(),
            Sample::Some(list) => list,
        };
        let plain = Hypothesis::new(Cause::new(Kind::OneUlp, ""));
        let predict = |i: usize| (i, frame.predict(&plain, i));
        let truth: Vec<_> = offsets.into_par_iter().map(predict).collect();
        let mut findings = Findings {
            frame,
            truth,
            wrong: Vec::new(),
            result,
        };
        findings.wrong = findings.wrong_in(result);
        findings
    }

    fn wrong_in(&self, result: &Tensor) -> Vec<usize> {
        let spoiled = spoils(self.frame);
        let is_wrong = |&at: &usize| {
            let (index, truth) = &self.truth[at];
            let actual = result.get(*index);
            truth.fit(actual) == Fit::No && !(spoiled && actual.is_nan())
        };
        (0..self.truth.len()).filter(is_wrong).collect()
    }

    /// Number of wrong outputs of another result.
    fn wrong_of(&self, result: &Tensor) -> usize {
        self.wrong_in(result).len()
    }

    /// Logical offsets of the wrong outputs.
    fn wrong_offsets(&self) -> Vec<usize> {
        self.wrong.iter().map(|&at| self.truth[at].0).collect()
    }

    /// Positions of up to [`PROBES`] wrong and as many right outputs, spread.
    fn probes(&self) -> (Vec<usize>, Vec<usize>) {
        let right = (0..self.truth.len()).filter(|at| self.wrong.binary_search(at).is_err());
        (spread(&self.wrong), spread(&right.collect::<Vec<_>>()))
    }

    fn fit(&self, hypothesis: &Hypothesis<'_>, at: usize) -> (Fit, f64) {
        let (index, truth) = &self.truth[at];
        let predicted = self.frame.predict(hypothesis, *index);
        (
            predicted.fit(self.result.get(*index)),
            surprise(&predicted, truth),
        )
    }

    /// Share of wrong outputs a hypothesis reproduces, in bits and within
    /// bounds, and the evidence in bits, when it fits every output looked at.
    fn weigh(&self, hypothesis: &Hypothesis<'_>) -> Weighed {
        let (wrong, right) = self.probes();
        let fits: Vec<_> = wrong.iter().map(|&at| self.fit(hypothesis, at)).collect();
        let share = |count: usize, of: usize| count as f64 / of.max(1) as f64;
        let bits = fits.iter().filter(|(f, _)| *f == Fit::Bits).count();
        let within = fits.iter().filter(|(f, _)| *f != Fit::No).count();
        let mut weighed = Weighed {
            bits: share(bits, fits.len()),
            within: share(within, fits.len()),
            evidence: None,
        };
        let fits_right = |at: &usize| self.fit(hypothesis, *at).0 != Fit::No;
        if within == fits.len() && right.iter().all(fits_right) {
            self.weigh_all(hypothesis, &mut weighed);
        }
        weighed
    }

    fn weigh_all(&self, hypothesis: &Hypothesis<'_>, weighed: &mut Weighed) {
        let all: Vec<(Fit, f64)> = (0..self.truth.len())
            .into_par_iter()
            .map(|at| self.fit(hypothesis, at))
            .collect();
        if all.iter().any(|(fit, _)| *fit == Fit::No) {
            return;
        }
        let wrong = self.wrong.iter().map(|&at| all[at]);
        let bits = wrong.clone().filter(|(f, _)| *f == Fit::Bits).count();
        weighed.bits = bits as f64 / self.wrong.len().max(1) as f64;
        // Which outputs are wrong is evidence too.
        let rarity = (self.truth.len() as f64 / self.wrong.len().max(1) as f64).log2();
        let told: f64 = wrong.map(|(_, surprise)| surprise + rarity).sum();
        weighed.evidence = Some(told - hypothesis.choices.log2());
    }
}

struct Weighed {
    bits: f64,
    within: f64,
    evidence: Option<f64>,
}

/// Bits of evidence in an output that a hypothesis reproduces: how far its
/// prediction is from the truth, in units of what cannot be told apart.
fn surprise(predicted: &Prediction, truth: &Prediction) -> f64 {
    if frame::same(predicted.stored, truth.stored) {
        return 0.0;
    }
    if !predicted.stored.is_finite() || !truth.stored.is_finite() {
        return 4.0;
    }
    let distance = (predicted.stored - truth.stored).abs();
    (1.0 + distance / predicted.blur.max(truth.blur))
        .log2()
        .min(24.0)
}

/// Whether kernels that multiply padding zeros rightly make NaN of them.
fn spoils(frame: &Frame<'_>) -> bool {
    frame.weights.iter().any(|w| !w.is_finite())
}

fn spread(list: &[usize]) -> Vec<usize> {
    let step = list.len().div_ceil(PROBES).max(1);
    list.iter().copied().step_by(step).collect()
}

/// The cause of a failed trial; `None` when it did not run to its end and
/// nothing failed either, or there is nothing to compare.
pub fn attribute_outcome(
    inputs: &Inputs,
    arithmetic: &Arithmetic,
    outcome: &Outcome,
    repeats: u32,
) -> Option<Attribution> {
    match outcome {
        Outcome::Ran(seen) => attribute(&Evidence {
            inputs,
            arithmetic,
            seen,
            repeats,
        }),
        Outcome::ExecutionFailed { status, .. } => Some(Attribution {
            explained: 1.0,
            ..named(
                Cause::new(Kind::ExecutionFailed, status.clone()),
                Confidence::BitExact,
            )
        }),
        Outcome::NotSupported(_) | Outcome::OutOfMemory(_) => None,
    }
}

/// The cause of what was seen; `None` when nothing bounds the candidate.
pub fn attribute(evidence: &Evidence<'_>) -> Option<Attribution> {
    let frame = Frame::new(evidence.inputs, evidence.arithmetic)?;
    let findings = Findings::new(&frame, &evidence.seen.result);
    let offsets = findings.wrong_offsets();
    let marginals = place::marginals(&evidence.inputs.problem, &offsets);
    let mut attribution = match observed::cause(evidence, &findings) {
        Some(causes) => settled(causes),
        None if offsets.is_empty() => unexplained(),
        None => computed(&findings, &marginals),
    };
    attribution.wrong = offsets.len();
    attribution.judged = findings.truth.len();
    attribution.marginals = marginals;
    Some(attribution)
}

fn unexplained() -> Attribution {
    Attribution {
        cause: None,
        confidence: None,
        indistinguishable: Vec::new(),
        explained: 0.0,
        wrong: 0,
        judged: 0,
        alternatives: Vec::new(),
        tried: 0,
        marginals: Vec::new(),
    }
}

fn named(cause: Cause, confidence: Confidence) -> Attribution {
    Attribution {
        cause: Some(cause),
        confidence: Some(confidence),
        explained: 1.0,
        ..unexplained()
    }
}

/// One cause is named; several are listed.
fn settled(mut causes: Vec<Cause>) -> Attribution {
    if causes.len() == 1 {
        return named(causes.remove(0), Confidence::BitExact);
    }
    Attribution {
        indistinguishable: causes,
        ..unexplained()
    }
}

fn computed(findings: &Findings<'_>, marginals: &[Marginal]) -> Attribution {
    let frame = findings.frame;
    let mut hypotheses = taps::hypotheses(frame);
    hypotheses.extend(border::hypotheses(frame));
    hypotheses.extend(reading::hypotheses(frame));
    hypotheses.extend(values::hypotheses(frame));
    hypotheses.extend(lost(findings));
    let mut weighed: Vec<(&Hypothesis<'_>, Weighed)> = hypotheses
        .par_iter()
        .map(|h| (h, findings.weigh(h)))
        .collect();
    let rank = |w: &Weighed| (w.evidence.is_some(), w.bits, w.within);
    weighed.sort_by(|(_, a), (_, b)| rank(b).partial_cmp(&rank(a)).expect("shares are numbers"));
    let mut attribution = chosen(findings, marginals, &weighed);
    attribution.tried = hypotheses.len();
    attribution.alternatives = weighed.iter().take(SHOWN).map(alternative).collect();
    attribution
}

fn alternative((hypothesis, weighed): &(&Hypothesis<'_>, Weighed)) -> Alternative {
    Alternative {
        cause: hypothesis.cause.clone(),
        bits: weighed.bits,
        within: weighed.within,
    }
}

/// The one kind of cause that explains everything, if there is one.
fn chosen(
    findings: &Findings<'_>,
    marginals: &[Marginal],
    weighed: &[(&Hypothesis<'_>, Weighed)],
) -> Attribution {
    let mut fitting: Vec<(Cause, f64, f64)> = weighed
        .iter()
        .filter_map(|(h, w)| Some((h.cause.clone(), w.evidence?, w.bits)))
        .collect();
    fitting.extend(zeroed(findings, marginals).map(|cause| (cause, f64::INFINITY, 1.0)));
    let strongest = fitting
        .iter()
        .map(|(_, e, _)| *e)
        .fold(f64::NEG_INFINITY, f64::max);
    let mut kinds: Vec<&Cause> = Vec::new();
    for (cause, ..) in &fitting {
        // Operand formats that round alike are as different as kinds are.
        let alike = |k: &&Cause| k.kind == cause.kind && k.kind != Kind::OperandsRounded;
        if !kinds.iter().any(alike) {
            kinds.push(cause);
        }
    }
    match (fitting.first(), kinds.len()) {
        (Some((cause, _, bits)), 1) if strongest >= LEAST_BITS => {
            let confidence = match *bits == 1.0 {
                true => Confidence::BitExact,
                false => Confidence::WithinRung,
            };
            named(cause.clone(), confidence)
        }
        (None, _) => one_ulp(findings, marginals).unwrap_or_else(unexplained),
        _ => Attribution {
            indistinguishable: kinds.into_iter().cloned().collect(),
            ..unexplained()
        },
    }
}

/// Ranges of lost products that explain the probes.
fn lost(findings: &Findings<'_>) -> Vec<Hypothesis<'static>> {
    let (wrong, right) = findings.probes();
    let seen = |at: usize| {
        (
            findings.truth[at].0,
            findings.result.get(findings.truth[at].0),
        )
    };
    let probes: Vec<_> = wrong.into_iter().chain(right).map(seen).collect();
    if probes.iter().any(|(_, actual)| !actual.is_finite()) {
        return Vec::new();
    }
    reading::lost_ranges(findings.frame, &probes)
        .into_iter()
        .take(4)
        .map(|(from, to)| reading::lost(findings.frame, from, to))
        .collect()
}

/// Zeros in whole rows, columns, channels…, and nowhere else.
fn zeroed(findings: &Findings<'_>, marginals: &[Marginal]) -> Option<Cause> {
    let zero = |i: usize| findings.result.get(i) == 0.0;
    let offsets = findings.wrong_offsets();
    if offsets.len() < 2 || !offsets.iter().all(|&i| zero(i)) {
        return None;
    }
    // Outputs that are rightly zero may stand among them.
    let zeros = findings.truth.iter().map(|(i, _)| *i).filter(|&i| zero(i));
    let problem = &findings.frame.inputs.problem;
    let inside = |i: &usize| contained(problem, &offsets, *i);
    let within: Vec<usize> = zeros.filter(inside).collect();
    place::is_box(marginals, &within)
        .then(|| Cause::new(Kind::Zeroed, place::summary(marginals, &offsets)))
}

/// Whether every index of `i` is that of some of `offsets`.
fn contained(problem: &crate::problem::ConvProblem, offsets: &[usize], i: usize) -> bool {
    let dims = problem.dims(problem.direction.result());
    let mut step = dims.iter().product::<usize>();
    dims.iter().all(|size| {
        step /= size;
        offsets.iter().any(|o| o / step % size == i / step % size)
    })
}

/// A few outputs, evenly spaced, each one ulp away.
fn one_ulp(findings: &Findings<'_>, marginals: &[Marginal]) -> Option<Attribution> {
    let offsets = findings.wrong_offsets();
    let few = offsets.len() * 20 <= findings.truth.len();
    let spaced = offsets.len() < 3 || place::period(&offsets).is_some();
    let format = findings.result.dtype().format();
    let by_one = |&at: &usize| {
        let (index, truth) = &findings.truth[at];
        (findings.result.get(*index) - truth.stored).abs() == format.ulp(truth.stored)
    };
    let fits = few && spaced && findings.wrong.iter().all(by_one);
    let which = place::summary(marginals, &offsets);
    fits.then(|| named(Cause::new(Kind::OneUlp, which), Confidence::BitExact))
}

impl fmt::Display for Attribution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.cause, self.confidence) {
            (Some(cause), Some(Confidence::BitExact)) => write!(f, "{cause}; bit for bit")?,
            (Some(cause), _) => write!(f, "{cause}; within rounding")?,
            (None, _) if !self.indistinguishable.is_empty() => {
                let list: Vec<_> = self
                    .indistinguishable
                    .iter()
                    .map(Cause::to_string)
                    .collect();
                write!(f, "not decided by this data: {}", list.join(", or "))?;
            }
            (None, _) if self.wrong == 0 => write!(f, "nothing to explain")?,
            (None, _) => write!(f, "unexplained by {} hypotheses", self.tried)?,
        }
        write!(f, "\n{} of {} outputs wrong", self.wrong, self.judged)?;
        let restricted = self
            .marginals
            .iter()
            .filter(|m| m.words != "all" && self.wrong > 0);
        restricted
            .into_iter()
            .try_for_each(|m| write!(f, "; {} of {}: {}", m.axis, m.size, m.words))
    }
}
