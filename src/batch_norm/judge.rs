//! From what was seen to a verdict, element by element, as for convolutions: a
//! result Y is right when it lies in [round(y − E), round(y + E)].

use super::bound::{Algorithm, Bounds};
use super::inputs::Inputs;
use super::oracle::Reference;
use super::outcome::{Observation, Outcome, Outputs};
use super::problem::{Mode, Output, Pass};
use crate::bound::upper::Upper;
use crate::dtype::Format;
use crate::judge::{FailureKind, SkipReason, UntrustedReason, Verdict};
use crate::oracle::Value;
use crate::outcome::{MemoryFault, MemoryFaultKind, Repeat};
use crate::tensor::{Tensor, index_text};

/// Share of elements below which a trial proves nothing.
const LEAST_POWER: f64 = 0.1;

/// A bound of half the largest value lets anything short of garbage pass.
const WIDEST_BOUND: f64 = 0.5;

/// A verdict with the figures behind it.
#[derive(Clone, Debug, PartialEq)]
pub struct Judgement {
    /// The verdict.
    pub verdict: Verdict,
    /// What is wrong, in words; or why it was skipped.
    pub detail: Option<String>,
    /// Figures per output, in their order.
    pub outputs: Vec<Figures>,
    /// Largest error of the computed statistics as a share of what each
    /// algorithm of [`Algorithm::ALL`] may be off: above 1, it is not that one.
    pub algorithms: [Option<f64>; 3],
}

/// What was measured of one output tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct Figures {
    /// Which.
    pub output: Output,
    /// Elements judged: all.
    judged: usize,
    /// Elements that are wrong.
    pub wrong: usize,
    /// Largest distance from the exact value, over finite elements.
    pub max_error: f64,
    /// The same in ulp of the exact value.
    pub max_ulp: f64,
    /// Largest error as a share of what is allowed; infinite where a number is
    /// wrong by being none.
    pub max_ratio: f64,
    /// The element that has it.
    pub worst: Option<Worst>,
    fault: Option<FailureKind>,
    /// Elements that could have failed.
    informative: usize,
}

/// One element.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Worst {
    /// Logical offset.
    pub index: usize,
    /// Exact value, rounded to a double.
    pub exact: f64,
    /// What came out.
    pub actual: f64,
    /// Largest distance that is right.
    pub allowed: f64,
}

impl Judgement {
    fn unjudged(verdict: Verdict, detail: &str) -> Self {
        Judgement {
            verdict,
            detail: Some(detail.to_owned()),
            outputs: Vec::new(),
            algorithms: [None; 3],
        }
    }

    /// The figures of an output.
    pub fn figures(&self, output: Output) -> Option<&Figures> {
        self.outputs.iter().find(|figures| figures.output == output)
    }

    /// Largest error of all outputs as a share of what is allowed.
    pub fn max_ratio(&self) -> Option<f64> {
        let ratios = self.outputs.iter().map(|figures| figures.max_ratio);
        ratios.max_by(f64::total_cmp)
    }

    /// Elements that are wrong.
    pub fn wrong(&self) -> usize {
        self.outputs.iter().map(|figures| figures.wrong).sum()
    }
}

/// Judges one outcome.
pub fn judge(inputs: &Inputs, reference: &Reference, outcome: &Outcome) -> Judgement {
    match outcome {
        Outcome::NotSupported(why) => {
            Judgement::unjudged(Verdict::Skipped(SkipReason::NotSupported), why)
        }
        Outcome::OutOfMemory(why) => {
            Judgement::unjudged(Verdict::Skipped(SkipReason::OutOfMemory), why)
        }
        Outcome::ExecutionFailed { status, message } => Judgement::unjudged(
            Verdict::Failed(FailureKind::ExecutionFailed),
            &format!("{status}: {message}"),
        ),
        Outcome::Ran(seen) if !seen.outputs.fit(&inputs.problem) => Judgement::unjudged(
            Verdict::Failed(FailureKind::Unwritten),
            "the backend gave back too few outputs",
        ),
        Outcome::Ran(seen) => observation(inputs, reference, seen),
    }
}

fn observation(inputs: &Inputs, reference: &Reference, seen: &Observation) -> Judgement {
    let bounds = Bounds::new(inputs, reference, None);
    let bench = Bench {
        inputs,
        reference,
        bounds: &bounds,
        overflow: seen.overflow_reported && inputs.problem.mode == Mode::Persistent,
    };
    let outputs = bench.judge(&seen.outputs);
    let mut faults: Vec<(FailureKind, String)> = seen.memory.iter().map(memory).collect();
    faults.extend(
        seen.unwritten
            .iter()
            .filter_map(|(output, left)| bench.unwritten(*output, left)),
    );
    faults.extend(outputs.iter().filter_map(|figures| bench.fault(figures)));
    for deviation in &seen.deviations {
        let again = bench.judge(&deviation.outputs);
        faults.extend(again.iter().filter_map(|figures| bench.fault(figures)));
        let plain = seen.deviations.iter().any(|d| d.under == Repeat::Same);
        faults.push(different(seen, &deviation.outputs, deviation.under, plain));
    }
    let worst = faults.into_iter().min_by_key(|(kind, _)| *kind);
    Judgement {
        verdict: match &worst {
            Some((kind, _)) => Verdict::Failed(*kind),
            None => distrust(&bench, &outputs).map_or(Verdict::Passed, Verdict::Untrusted),
        },
        detail: worst.map(|(_, words)| words),
        algorithms: algorithms(inputs, reference, &seen.outputs),
        outputs,
    }
}

/// What one trial is judged by.
struct Bench<'a> {
    inputs: &'a Inputs,
    reference: &'a Reference,
    bounds: &'a Bounds<'a>,
    /// The library said that a sum overflowed: nothing finite is promised.
    overflow: bool,
}

/// What may be right of one element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Finite,
    /// Also NaN or infinity.
    Either,
    /// Only NaN or infinity.
    NotFinite,
    /// Anything: a variance that is NaN may be clamped to zero, as a negative one
    /// is. The mean is NaN all the same, and so is y.
    Anything,
}

impl Bench<'_> {
    fn judge(&self, outputs: &Outputs) -> Vec<Figures> {
        let each = outputs.iter();
        each.filter_map(|(output, tensor)| {
            let values = self.reference.get(output)?;
            Some(self.tensor(output, tensor, values))
        })
        .collect()
    }

    fn tensor(&self, output: Output, tensor: &Tensor, values: &[Value]) -> Figures {
        let mut figures = Figures::new(output);
        let largest = values.iter().fold(0.0, |most: f64, v| most.max(v.hi.abs()));
        for (i, value) in values.iter().enumerate() {
            let bound = self.bounds.at(output, i);
            let element = Element {
                kind: self.kind(output, i, bound),
                format: tensor.dtype().format(),
                value,
                bound: bound.get(),
            };
            figures.add(i, &element, tensor.get(i), largest);
        }
        figures
    }

    fn kind(&self, output: Output, i: usize, bound: Upper) -> Kind {
        let problem = &self.inputs.problem;
        let finite = match (problem.pass, output) {
            (_, Output::Dbias) => true,
            (Pass::Infer, _) => self.inputs.x.get(i).is_finite(),
            (_, output) if output.is_image() => self.reference.statistics[problem.group(i)].finite,
            _ => self.reference.statistics[i].finite,
        };
        // The sample variance of one value is 0/0.
        let undefined = output == Output::RunningVariance && problem.count() == 1;
        let clamped = matches!(output, Output::RunningVariance | Output::SavedInverse);
        if !finite && clamped {
            Kind::Anything
        } else if !finite {
            Kind::NotFinite
        } else if undefined || self.overflow || self.bounds.may_overflow(output, i, bound) {
            Kind::Either
        } else {
            Kind::Finite
        }
    }

    fn own_kind(&self, output: Output, i: usize) -> Kind {
        self.kind(output, i, self.bounds.at(output, i))
    }

    fn unwritten(&self, output: Output, left: &[usize]) -> Option<(FailureKind, String)> {
        let wrong = |i: &&usize| self.own_kind(output, **i) != Kind::NotFinite;
        let left: Vec<&usize> = left.iter().filter(wrong).collect();
        let first = self.place(output, **left.first()?);
        let words = format!(
            "{}: {} elements were never written, the first at {first}",
            output.name(),
            left.len()
        );
        Some((FailureKind::Unwritten, words))
    }

    fn fault(&self, figures: &Figures) -> Option<(FailureKind, String)> {
        let (kind, worst) = (figures.fault?, figures.worst?);
        let words = format!(
            "{}: {} of {} elements wrong; at {} expected {}, got {}, off by {:.3e}, allowed {:.3e}",
            figures.output.name(),
            figures.wrong,
            figures.judged,
            self.place(figures.output, worst.index),
            worst.exact,
            worst.actual,
            (worst.actual - worst.exact).abs(),
            worst.allowed,
        );
        Some((kind, words))
    }

    fn place(&self, output: Output, index: usize) -> String {
        index_text(&self.inputs.problem.output_dims(output), index)
    }
}

/// One element, and what is right of it.
struct Element<'a> {
    kind: Kind,
    format: Format,
    value: &'a Value,
    bound: f64,
}

impl Element<'_> {
    /// The ends of what is right, rounded to the type.
    fn ends(&self) -> (f64, f64) {
        let width = self.bound + self.value.radius;
        let (hi, lo) = (self.value.hi, self.value.lo);
        (
            self.format
                .round((hi + (lo - width).next_down()).next_down()),
            self.format.round((hi + (lo + width).next_up()).next_up()),
        )
    }

    /// Largest distance that is right.
    fn allowed(&self) -> f64 {
        let (low, high) = self.ends();
        let far = self
            .value
            .error_above(low)
            .max(self.value.error_above(high));
        match far.is_finite() {
            true => far,
            false => self.bound + self.format.ulp(self.value.hi) / 2.0,
        }
    }

    fn fault(&self, actual: f64) -> Option<FailureKind> {
        let (low, high) = self.ends();
        match self.kind {
            Kind::NotFinite => actual.is_finite().then_some(FailureKind::WrongNan),
            Kind::Anything => None,
            Kind::Either if !actual.is_finite() => None,
            _ if actual.is_nan() => Some(FailureKind::WrongNan),
            _ if low <= actual && actual <= high => None,
            _ if actual.is_infinite() || low.is_infinite() || high.is_infinite() => {
                Some(FailureKind::WrongInfinity)
            }
            _ => Some(FailureKind::OutOfBound),
        }
    }
}

impl Figures {
    /// Elements judged.
    pub fn judged(&self) -> usize {
        self.judged
    }

    fn new(output: Output) -> Self {
        Figures {
            output,
            judged: 0,
            wrong: 0,
            max_error: 0.0,
            max_ulp: 0.0,
            max_ratio: 0.0,
            worst: None,
            fault: None,
            informative: 0,
        }
    }

    fn add(&mut self, index: usize, element: &Element<'_>, actual: f64, largest: f64) {
        self.judged += 1;
        let fault = element.fault(actual);
        self.wrong += usize::from(fault.is_some());
        self.fault = [self.fault, fault].into_iter().flatten().min();
        let sharp = element.bound < WIDEST_BOUND * largest || element.bound == 0.0;
        let informative = match element.kind {
            Kind::Finite => sharp,
            Kind::Either | Kind::Anything => false,
            Kind::NotFinite => true,
        };
        self.informative += usize::from(informative);
        let ratio = self.measure(element, actual, fault.is_some());
        if self.worst.is_none() || ratio > self.max_ratio {
            self.max_ratio = ratio;
            self.worst = Some(Worst {
                index,
                exact: element.value.hi,
                actual,
                allowed: element.allowed(),
            });
        }
    }

    /// The error of an element as a share of what is allowed.
    fn measure(&mut self, element: &Element<'_>, actual: f64, wrong: bool) -> f64 {
        let value = matches!(element.kind, Kind::Finite | Kind::Either);
        if !value || !actual.is_finite() {
            return if wrong { f64::INFINITY } else { 0.0 };
        }
        let error = element.value.error_below(actual);
        self.max_error = self.max_error.max(error);
        self.max_ulp = self
            .max_ulp
            .max(error / element.format.ulp(element.value.hi));
        match (error, element.allowed()) {
            (0.0, _) => 0.0,
            (error, allowed) => error / allowed,
        }
    }
}

fn distrust(bench: &Bench<'_>, outputs: &[Figures]) -> Option<UntrustedReason> {
    let powerless =
        |figures: &&Figures| (figures.informative as f64) < LEAST_POWER * figures.judged as f64;
    let mut main = outputs.iter().filter(|figures| figures.output.is_image());
    let dull = main.find(powerless)?;
    let open = (0..dull.judged).filter(|&i| bench.own_kind(dull.output, i) == Kind::Either);
    Some(match open.count() * 2 > dull.judged {
        true => UntrustedReason::NonFinite,
        false => UntrustedReason::BoundTooWide,
    })
}

/// Errors of computed statistics against what each algorithm may be off. Only
/// training shows them.
fn algorithms(inputs: &Inputs, reference: &Reference, outputs: &Outputs) -> [Option<f64>; 3] {
    Algorithm::ALL.map(|algorithm| {
        let bounds = Bounds::new(inputs, reference, Some(algorithm));
        let shown = [
            Output::SavedMean,
            Output::SavedInverse,
            Output::RunningVariance,
        ];
        let worst = |output: Output| {
            let (tensor, values) = (outputs.get(output)?, reference.get(output)?);
            let ratio = |(i, value): (usize, &Value)| {
                let bound = bounds.at(output, i).get() + tensor.dtype().format().ulp(value.hi);
                let error = value.error_below(tensor.get(i));
                (error / bound).is_finite().then(|| error / bound)
            };
            let ratios = values.iter().enumerate().filter_map(ratio);
            ratios.max_by(f64::total_cmp)
        };
        shown.into_iter().filter_map(worst).max_by(f64::total_cmp)
    })
}

fn memory(fault: &MemoryFault) -> (FailureKind, String) {
    let (kind, what) = match fault.kind {
        MemoryFaultKind::InputChanged => (FailureKind::InputChanged, "changed"),
        MemoryFaultKind::Before => (FailureKind::OutOfBoundsWrite, "written before its start"),
        MemoryFaultKind::Behind => (FailureKind::OutOfBoundsWrite, "written behind its end"),
    };
    let words = format!(
        "{} was {what}: {} bytes from offset {}",
        fault.buffer, fault.bytes, fault.offset
    );
    (kind, words)
}

fn different(
    seen: &Observation,
    again: &Outputs,
    under: Repeat,
    plain: bool,
) -> (FailureKind, String) {
    let differing = |(output, tensor): (Output, &Tensor)| {
        let first = seen.outputs.get(output)?;
        let count = (0..tensor.len())
            .filter(|&i| tensor.bits(i) != first.bits(i))
            .count();
        (count > 0).then(|| format!("{} elements of {}", count, output.name()))
    };
    let words: Vec<String> = again.iter().filter_map(differing).collect();
    let kind = match under {
        Repeat::Same => FailureKind::Nondeterministic,
        _ if plain => FailureKind::Nondeterministic,
        _ => FailureKind::UninitialisedRead,
    };
    (
        kind,
        format!("a repeat ({under:?}) differs: {}", words.join(", ")),
    )
}
