//! What was measured, as rows of tables.

use serde::Serialize;

use super::network::{Plan, Precision};
use super::plan::Policy;
use super::rates::Rate;
use super::trace::{
    Cause, Difference, Trace, difference, first_difference, identical, losses, weight_differences,
};
use super::{BENCHMARKED, reported};
use crate::study::SCHEMA;

/// Two runs compared: a row of `runs.csv`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Run {
    /// [`SCHEMA`].
    pub schema: u32,
    /// `fp32` or `mixed`.
    pub precision: String,
    /// How algorithms were chosen.
    pub choice: String,
    /// Whether both ran in one process, or in two.
    pub processes: u32,
    /// Runs compared with the first, until one differed.
    pub runs: u32,
    /// Whether no bit of any of them differed.
    pub identical: bool,
    /// Tensors compared in each.
    pub tensors: usize,
    /// Training step of the first difference.
    pub step: Option<usize>,
    /// What computed the tensor that differs first.
    pub operation: Option<String>,
    /// That tensor.
    pub tensor: Option<String>,
    /// The algorithm or engine.
    pub via: Option<String>,
    /// The other run's.
    pub other_via: Option<String>,
    /// Why its bits differ.
    pub cause: Option<Cause>,
    /// Elements with other bits.
    pub elements: Option<usize>,
    /// Of so many.
    pub of: Option<usize>,
    /// The first of them.
    pub index: Option<String>,
    /// Its value in the first run.
    pub first: Option<f64>,
    /// Its value in the second run.
    pub second: Option<f64>,
    /// Largest |difference| over the tensor.
    pub largest: Option<f64>,
    /// Largest difference in ulps of the larger value.
    pub largest_ulps: Option<f64>,
}

/// One step of two runs: a row of `steps.csv`.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Step {
    schema: u32,
    /// `fp32` or `mixed`.
    pub precision: String,
    /// How algorithms were chosen.
    pub choice: String,
    /// In one process, or in two.
    pub processes: u32,
    /// From 1.
    pub step: usize,
    /// Loss of the first run.
    pub loss_first: f64,
    /// Loss of the second run.
    pub loss_second: f64,
    /// |difference| as a share of the first.
    pub loss_relative: f64,
    /// Largest |difference| of a weight after the step.
    pub largest_weight_difference: f64,
    /// The report's total loss: |difference| as a share of the first.
    pub reported_relative: Option<f64>,
}

/// One tensor of two runs in one process that differ: a row of `tensors.csv`.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Compared {
    schema: u32,
    /// `fp32` or `mixed`.
    pub precision: String,
    /// How algorithms were chosen.
    pub choice: String,
    /// Training step.
    pub step: usize,
    /// What computed it.
    pub operation: String,
    /// The tensor.
    pub tensor: String,
    /// The algorithm or engine of the first run.
    pub via: String,
    /// Whether that may give other bits, by its own word.
    pub nondeterministic: bool,
    /// Elements with other bits.
    pub elements: usize,
    /// Of so many.
    pub of: usize,
    /// Largest |difference|.
    pub largest: f64,
    /// Largest difference in ulps of the larger value.
    pub largest_ulps: f64,
}

/// Which algorithm computed what: a row of `plans.csv`.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Planned {
    schema: u32,
    /// `fp32` or `mixed`.
    pub precision: String,
    /// How it was chosen.
    pub choice: String,
    /// The operation.
    pub operation: String,
    /// The algorithm or engine.
    pub candidate: String,
    /// Whether it may give other bits, by its own word.
    pub nondeterministic: bool,
}

/// Many runs on the corrective path: a row of `corrected.csv`.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Corrected {
    /// [`SCHEMA`].
    pub schema: u32,
    /// `fp32` or `mixed`.
    pub precision: String,
    /// Trainings compared with the first.
    pub runs: u32,
    /// Of these, with the very bits of the first in every tensor.
    pub identical: u32,
    /// Tensors compared in each.
    pub tensors: usize,
}

/// All that was measured.
#[derive(Default)]
pub struct Data {
    /// Pairs of runs.
    pub runs: Vec<Run>,
    /// Their steps.
    pub steps: Vec<Step>,
    /// Their tensors, where they differ.
    pub tensors: Vec<Compared>,
    /// Algorithms of each choice.
    pub plans: Vec<Planned>,
    /// How often algorithms gave other bits.
    pub rates: Vec<Rate>,
    /// The corrective path.
    pub corrected: Vec<Corrected>,
    /// Whether two benchmarks chose alike, so that the choice was changed by hand.
    pub rotated: bool,
}

/// What is compared, and how often it was.
#[derive(Clone, Copy, Debug)]
pub struct Pair<'a> {
    /// Types of the training.
    pub precision: Precision,
    /// How algorithms were chosen.
    pub choice: &'static str,
    /// In one process, or in two.
    pub processes: u32,
    /// Runs compared with the first, of which `other` is the last.
    pub runs: u32,
    /// The first run.
    pub first: &'a Trace,
    /// The run that differs, or the last one.
    pub other: &'a Trace,
}

impl Data {
    /// Adds the algorithms of a plan.
    pub fn add_plan(&mut self, precision: Precision, choice: &str, plan: &Plan) {
        self.plans
            .extend(plan.iter().map(|(operation, chosen)| Planned {
                schema: SCHEMA,
                precision: precision.name().to_owned(),
                choice: choice.to_owned(),
                operation: operation.clone(),
                candidate: chosen.candidate.clone(),
                nondeterministic: chosen.nondeterministic,
            }));
    }

    /// Adds a comparison.
    pub fn add(&mut self, pair: &Pair<'_>) {
        let run = Run::new(pair);
        if !run.identical && pair.processes == 1 {
            let tensors = pair.first.iter().zip(pair.other);
            let tensors = tensors.map(|(a, b)| Compared::new(pair, a, difference(a, b)));
            self.tensors.extend(tensors);
        }
        self.runs.push(run);
        let [first, second] = [pair.first, pair.other].map(losses);
        let weights = weight_differences(pair.first, pair.other);
        let losses = first.into_iter().zip(second).zip(weights).enumerate();
        let step = |(i, ((a, b), weight))| Step::new(pair, i, [a, b], weight);
        self.steps.extend(losses.map(step));
    }

    /// Comparisons whose first difference breaks a promise.
    pub fn unexpected(&self) -> Vec<&Run> {
        let broken = |r: &&Run| r.cause == Some(Cause::BrokenPromise);
        self.runs.iter().filter(broken).collect()
    }

    /// Algorithms that gave other bits and promise not to.
    pub fn findings(&self) -> Vec<&Rate> {
        self.rates.iter().filter(|r| r.is_finding()).collect()
    }

    /// Whether every training on the corrective path had the bits of the first,
    /// in this process and in others.
    pub fn is_corrected(&self) -> bool {
        let fixed = |r: &&Run| r.choice == Policy::Deterministic.name();
        self.corrected.iter().all(|c| c.identical == c.runs)
            && self.runs.iter().filter(fixed).all(|r| r.identical)
    }

    /// The pair that the answer is about: two runs in mixed precision, else in
    /// fp32, that differ; with the library's default, else with any algorithms.
    pub fn difference(&self) -> Option<&Run> {
        let of = |precision: Precision, policy: Policy| {
            let named = (precision.name(), policy.name());
            let mut runs = self.runs.iter();
            runs.find(|r| (r.precision.as_str(), r.choice.as_str()) == named && !r.identical)
        };
        let precisions = [Precision::Mixed, Precision::Single].into_iter();
        let mut pairs = precisions.flat_map(|p| Policy::ALL.map(|policy| (p, policy)));
        pairs.find_map(|(precision, policy)| of(precision, policy))
    }

    /// Operations for which the two benchmarks chose differently, both choices.
    pub fn changed(&self) -> Vec<(&Planned, &Planned)> {
        let of = |run| {
            self.plans
                .iter()
                .filter(move |p| p.choice == BENCHMARKED[run])
        };
        let pairs = of(0).zip(of(1));
        pairs.filter(|(a, b)| a.candidate != b.candidate).collect()
    }
}

impl Run {
    fn new(pair: &Pair<'_>) -> Self {
        let run = Run {
            schema: SCHEMA,
            precision: pair.precision.name().to_owned(),
            choice: pair.choice.to_owned(),
            processes: pair.processes,
            runs: pair.runs,
            identical: identical(pair.first, pair.other),
            tensors: pair.first.len(),
            ..Run::default()
        };
        match first_difference(pair.first, pair.other) {
            Some(difference) => run.with(difference),
            None => run,
        }
    }

    fn with(self, difference: Difference) -> Self {
        Run {
            cause: Some(difference.cause()),
            step: Some(difference.label.step),
            operation: Some(difference.label.operation),
            tensor: Some(difference.label.tensor),
            via: Some(difference.label.via),
            other_via: Some(difference.other_via),
            elements: Some(difference.elements),
            of: Some(difference.of),
            index: Some(difference.index),
            first: Some(difference.first),
            second: Some(difference.second),
            largest: Some(difference.largest),
            largest_ulps: Some(difference.largest_ulps),
            ..self
        }
    }
}

impl Compared {
    fn new(pair: &Pair<'_>, first: &super::trace::Entry, found: Option<Difference>) -> Self {
        let label = first.label.clone();
        let (elements, largest, ulps) =
            found.map_or((0, 0.0, 0.0), |d| (d.elements, d.largest, d.largest_ulps));
        Compared {
            schema: SCHEMA,
            precision: pair.precision.name().to_owned(),
            choice: pair.choice.to_owned(),
            step: label.step,
            operation: label.operation,
            tensor: label.tensor,
            via: label.via,
            nondeterministic: label.nondeterministic,
            elements,
            of: first.value.len(),
            largest,
            largest_ulps: ulps,
        }
    }
}

impl Step {
    fn new(pair: &Pair<'_>, index: usize, losses: [f64; 2], weight: f64) -> Self {
        let [first, second] = losses;
        Step {
            schema: SCHEMA,
            precision: pair.precision.name().to_owned(),
            choice: pair.choice.to_owned(),
            processes: pair.processes,
            step: index + 1,
            loss_first: first,
            loss_second: second,
            loss_relative: reported::relative(first, second),
            largest_weight_difference: weight,
            reported_relative: reported::total(index),
        }
    }
}
