//! What the measurements of the study share: data, runs, errors.

use rug::Float;

use crate::backend::RunOptions;
use crate::backend::batch_norm::{self, BatchNorm, Candidate};
use crate::backend::open::BackendSpec;
use crate::batch_norm::oracle::Statistics;
use crate::batch_norm::{
    Fill, FillKind, Inputs, Judgement, Mode, Outcome, Output, Outputs, Pass, Problem, Reference,
    judge,
};
use crate::dtype::{DType, FP16, FP32};
use crate::error::Result;
use crate::judge::Verdict;
use crate::problem::{Layout, Scale};
use crate::tensor::Tensor;

/// Means of x in standard deviations; far above the last, fp16 has one value for
/// all of x.
pub const OFFSETS: [f64; 6] = [0.0, 1.0, 10.0, 100.0, 1000.0, 4000.0];

/// The opened backend, and what is remembered of its trials.
pub struct Bench {
    backend: Box<dyn BatchNorm>,
    fill: Fill,
    /// Trials that ran.
    pub trials: usize,
    /// Trials that failed, in words.
    pub failures: Vec<String>,
}

/// One run and what was found of it.
pub struct Trial {
    /// What ran.
    pub candidate: Candidate,
    /// What came out.
    pub outputs: Outputs,
    /// The verdict.
    pub judgement: Judgement,
}

/// A case with its exact values.
pub struct Case {
    /// The data.
    pub inputs: Inputs,
    /// The exact values.
    pub reference: Reference,
}

impl Case {
    /// A case of given data.
    pub fn new(inputs: Inputs) -> Self {
        let reference = Reference::of(&inputs);
        Case { inputs, reference }
    }

    /// Exact value of an element.
    pub fn exact(&self, output: Output, i: usize) -> f64 {
        self.reference.get(output).map_or(f64::NAN, |v| v[i].hi)
    }
}

impl Bench {
    /// Opens the backend.
    pub fn open(spec: &BackendSpec, seed: u64) -> Result<Self> {
        Ok(Bench {
            backend: batch_norm::open(spec)?,
            fill: Fill {
                kind: FillKind::Normal,
                seed,
            },
            trials: 0,
            failures: Vec::new(),
        })
    }

    /// The backend.
    pub fn backend(&self) -> &dyn BatchNorm {
        &*self.backend
    }

    /// A training problem of 16 images of 4 channels whose running statistics
    /// become those of the batch.
    pub fn problem(&self, dtype: DType) -> Problem {
        Problem {
            factor: Scale(1.0),
            ..Problem::new(Pass::Train, 16, 4, &[14, 14]).with_type(dtype)
        }
    }

    /// Standard normal draws as doubles would have them, in fp32.
    pub fn draws(&self, problem: &Problem) -> Vec<f64> {
        let plain = problem.clone().with_type(DType::Fp32);
        Inputs::generate(&plain, self.fill).x.to_f64()
    }

    /// A case whose x is `values`, rounded to the problem's type.
    pub fn case(&self, problem: &Problem, values: &[f64]) -> Case {
        Case::new(Inputs::from_x(problem, self.fill, |i| values[i]))
    }

    /// Ways to compute a problem: those whose sums are in fp32, where it is the
    /// backend's to choose.
    pub fn candidates(&self, problem: &Problem) -> Vec<Candidate> {
        let wide = |candidate: &Candidate| matches!(candidate, Candidate::Host(h) if h.wide);
        let mut all = self.backend.candidates(problem);
        all.retain(|candidate| !wide(candidate));
        all
    }

    /// The candidate that a question about no algorithm in particular is put to.
    pub fn plainest(&self, problem: &Problem) -> Candidate {
        self.candidates(problem)[0]
    }

    /// Runs and judges one; `None` where it is declined.
    pub fn run(&mut self, case: &Case, candidate: Candidate) -> Result<Option<Trial>> {
        let options = RunOptions { repeats: 2 };
        let outcome = self.backend.run(&case.inputs, candidate, &options)?;
        let judgement = judge(&case.inputs, &case.reference, &outcome);
        if let Verdict::Failed(_) = judgement.verdict {
            let why = judgement.detail.as_deref().unwrap_or_default();
            self.failures
                .push(format!("{} via={candidate}: {why}", case.inputs.problem));
        }
        Ok(match outcome {
            Outcome::Ran(seen) => {
                self.trials += 1;
                Some(Trial {
                    candidate,
                    outputs: seen.outputs,
                    judgement,
                })
            }
            _ => None,
        })
    }
}

/// All modes and layouts that have an algorithm of their own on a GPU.
pub fn variants(problem: &Problem, host: bool) -> Vec<Problem> {
    let modes: &[(Mode, Layout)] = match host {
        true => &[(Mode::Spatial, Layout::Nchw)],
        false => &[
            (Mode::Spatial, Layout::Nchw),
            (Mode::Persistent, Layout::Nchw),
            (Mode::Persistent, Layout::Nhwc),
        ],
    };
    let variant = |&(mode, layout): &(Mode, Layout)| Problem {
        mode,
        layout,
        ..problem.clone()
    };
    modes.iter().map(variant).collect()
}

/// Errors of computed statistics, the largest over the groups.
#[derive(Clone, Copy, Debug, Default)]
pub struct StatisticErrors {
    /// |mean − exact|, in standard deviations of x.
    pub mean: f64,
    /// The same as multiples of 2^-24 times the mean magnitude of x.
    pub mean_units: f64,
    /// Relative, of the variance; of the running one after an update by factor 1.
    pub variance: f64,
}

/// Measures statistics that `mean` and `variance` (unbiased) give per group.
pub fn statistic_errors(
    case: &Case,
    mean: impl Fn(usize) -> f64,
    variance: impl Fn(usize) -> f64,
) -> StatisticErrors {
    let count = case.inputs.problem.count() as f64;
    let unbiased = count / (count - 1.0).max(1.0);
    let each = case.reference.statistics.iter().enumerate();
    each.fold(StatisticErrors::default(), |most, (group, own)| {
        let off = distance(&own.mean, mean(group));
        let deviation = own.variance.to_f64().sqrt();
        let unit = FP32.unit_roundoff() * own.mean_magnitude.get();
        let relative = distance(&own.variance, variance(group) / unbiased) / own.variance.to_f64();
        StatisticErrors {
            mean: most.mean.max(off / deviation),
            mean_units: most.mean_units.max(off / unit),
            variance: most.variance.max(relative),
        }
    })
}

/// |exact − given|.
fn distance(exact: &Float, given: f64) -> f64 {
    Float::with_val(exact.prec(), exact - given).to_f64().abs()
}

/// The errors of what a training pass put out; `None` where it shows none.
pub fn measured_errors(case: &Case, outputs: &Outputs) -> Option<StatisticErrors> {
    let mean = outputs.get(Output::SavedMean)?;
    let variance = outputs.get(Output::RunningVariance)?;
    Some(statistic_errors(case, |g| mean.get(g), |g| variance.get(g)))
}

/// The errors that exact statistics would have if they were kept in fp16.
pub fn half_errors(case: &Case) -> StatisticErrors {
    let count = case.inputs.problem.count() as f64;
    let unbiased = count / (count - 1.0).max(1.0);
    let own = |group: usize| -> &Statistics { &case.reference.statistics[group] };
    let mean = |group: usize| FP16.round(own(group).mean.to_f64());
    let variance = |group: usize| FP16.round(own(group).variance.to_f64()) * unbiased;
    statistic_errors(case, mean, variance)
}

/// Share of `tensor`'s values that fp16 does not hold.
pub fn beyond_half(tensor: &Tensor) -> f64 {
    let beyond = (0..tensor.len()).filter(|&i| !FP16.holds(tensor.get(i)));
    beyond.count() as f64 / tensor.len() as f64
}
