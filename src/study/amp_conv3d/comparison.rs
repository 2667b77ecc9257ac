//! One comparison of the report, measured: every candidate judged in both
//! precisions, the reported figure over many seeds.

use serde::Serialize;

use super::reported::{HALF_DIGIT, Reported, Scale};
use crate::backend::{Backend, Listing, RunOptions, Support};
use crate::bound::{Family, OperandRounding};
use crate::campaign::means::{Baseline, Measured};
use crate::candidate::{Candidate, Repro};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::fill::{Fill, FillKind, Inputs};
use crate::outcome::Outcome;
use crate::record::TrialRecord;
use crate::study::SCHEMA;
use crate::study::statistics::Spread;
use crate::tensor::Tensor;
use crate::trial::{self, Event, TrialOptions};

/// One candidate in one precision: a row of `trials.csv`.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Trial {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The comparison, as the report names it.
    pub comparison: String,
    /// `O0` (fp32 data) or `O2` (fp16 data, which O1's convolution has too).
    pub level: &'static str,
    /// Text form.
    pub candidate: String,
    /// What it declares.
    pub notes: String,
    /// The oracle's verdict.
    pub verdict: String,
    /// Kind of failure, or why it was skipped or not trusted.
    pub reason: Option<String>,
    /// Outputs outside their bound.
    pub wrong: Option<u64>,
    /// Largest error in ulps of the result type.
    pub max_ulp: Option<f64>,
    /// Largest error as a share of its bound.
    pub max_ratio: Option<f64>,
    /// Mean |y − exact value of the same operands|.
    pub mean_error: Option<f64>,
    /// Mean |y − exact value of the unrounded fp32 operands|.
    pub mean_error_fp32: Option<f64>,
    /// Mean |y − y of O0 in full single precision|: the reported figure.
    pub against_fp32: Option<f64>,
    /// Mean |y − y of O0 with TF32 inputs|.
    pub against_tf32: Option<f64>,
    /// The repro line.
    pub repro: String,
}

/// The reported figure of one sample: a row of `seeds.csv`.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Figure {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The comparison, as the report names it.
    pub comparison: String,
    /// Seed of data and weights.
    pub seed: u64,
    /// Sample within the batch; samples of a seed share their weights.
    pub sample: usize,
    /// Mean |fp32 − fp16|.
    pub mean_difference: f64,
}

/// A comparison, measured.
#[derive(Debug)]
pub struct Comparison {
    /// What was reported.
    pub reported: Reported,
    /// All candidates on the first seed.
    pub trials: Vec<Trial>,
    /// The figure of every sample of every seed.
    pub figures: Vec<Figure>,
    /// Their mean and spread.
    pub spread: Spread,
    /// O0's and O2's candidates that the figures are from.
    pub pair: [String; 2],
    /// O0 against O1, if it runs what O1 is documented to run.
    pub o1: O1,
}

/// What a comparison of O0 with O1 can give.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct O1 {
    /// Share of O1's operands, the fp32 ones cast, that have other bits than O2's,
    /// 0 to 1: draws beside the middle of two fp16 values, rounded twice.
    pub other_operands: f64,
    /// Mean |O2 − O1| of one candidate.
    pub from_o2: f64,
    /// Smallest mean |O0 − O1| over all of O1's candidates.
    pub least_from_o0: Option<f64>,
    /// Share of O0's outputs that are fp16 values, 0 to 1.
    pub half_values: f64,
}

/// How a reported figure compares with what is measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Agreement {
    /// Measured mean over reported figure, minus 1.
    pub relative: f64,
    /// Whether it lies in the interval of single figures, as far as its digits
    /// tell.
    pub in_interval: bool,
}

/// Agreement within this share counts as the same figure; chosen.
pub const SAME: f64 = 0.05;

impl Agreement {
    /// Whether the measured precision effect explains the reported figure.
    pub fn explained(&self) -> bool {
        self.relative.abs() <= SAME || self.in_interval
    }
}

impl Comparison {
    /// Measures one comparison over some seeds, the first of which every
    /// candidate is judged on.
    pub fn measure(
        backend: &mut dyn Backend,
        reported: &Reported,
        scale: Scale,
        seeds: std::ops::Range<u64>,
    ) -> Result<Self> {
        let bench = Bench {
            reported,
            scale,
            seed: seeds.start,
        };
        let single = bench.judge(backend, DType::Fp32, Vec::new())?;
        let full = bench.first(backend, &single, |rounding| {
            rounding == OperandRounding::None
        })?;
        let tf32 = bench.first(backend, &single, |r| r == OperandRounding::Tf32)?;
        let full = full.ok_or_else(|| nothing_ran(reported, "fp32"))?;
        let o0 = bench.run(backend, DType::Fp32, &full)?;
        let mut against = vec![Baseline::result(&o0)];
        if let Some(tf32) = &tf32 {
            against.push(Baseline::result(&bench.run(backend, DType::Fp32, tf32)?));
        }
        let half = bench.judge(backend, DType::Fp16, against)?;
        let o2 = bench.first(backend, &half, |_| true)?;
        let o2 = o2.ok_or_else(|| nothing_ran(reported, "fp16"))?;
        let o1 = bench.o1(backend, &o0, &o2, &half)?;
        let figures = bench.figures(backend, [&full, &o2], seeds)?;
        let all: Vec<f64> = figures.iter().map(|f| f.mean_difference).collect();
        Ok(Comparison {
            reported: *reported,
            trials: single.into_iter().chain(half).collect(),
            figures,
            spread: Spread::of(&all),
            pair: [full.to_string(), o2.to_string()],
            o1,
        })
    }

    /// Trials that ran.
    pub fn ran(&self) -> usize {
        self.trials
            .iter()
            .filter(|t| t.verdict != "skipped")
            .count()
    }

    /// Trials that were found wrong.
    pub fn wrong(&self) -> Vec<&Trial> {
        let bad = |t: &&Trial| matches!(t.verdict.as_str(), "failed" | "crashed" | "timed_out");
        self.trials.iter().filter(bad).collect()
    }

    /// Smallest and largest figure over O2's candidates on the first seed.
    pub fn over_candidates(&self) -> Option<(f64, f64)> {
        let figures = self.trials.iter().filter_map(|t| t.against_fp32);
        figures.fold(None, |range, v| match range {
            None => Some((v, v)),
            Some((low, high)) => Some((v.min(low), v.max(high))),
        })
    }

    /// How a figure of the report compares.
    pub fn agreement(&self, figure: f64) -> Agreement {
        let (low, high) = self.spread.interval();
        Agreement {
            relative: self.spread.mean / figure - 1.0,
            in_interval: figure + HALF_DIGIT >= low && figure - HALF_DIGIT <= high,
        }
    }
}

fn nothing_ran(reported: &Reported, precision: &str) -> Error {
    Error::environment(format!(
        "no candidate of this backend gives a right {precision} result for {}, so there is nothing to compare",
        reported.name()
    ))
}

/// Where a comparison is measured.
struct Bench<'a> {
    reported: &'a Reported,
    scale: Scale,
    seed: u64,
}

impl Bench<'_> {
    fn repro(&self, dtype: DType, seed: u64) -> Repro {
        let kind = FillKind::Normal;
        Repro {
            problem: self.reported.problem(self.scale, dtype),
            fill: Fill { kind, seed },
            via: None,
        }
    }

    /// Judges every candidate in one precision and measures its distances to the
    /// exact values of both precisions and to `against`.
    fn judge(
        &self,
        backend: &mut dyn Backend,
        dtype: DType,
        against: Vec<Baseline>,
    ) -> Result<Vec<Trial>> {
        let repro = self.repro(dtype, self.seed);
        let exact = |dtype| Baseline::exact(&repro.problem, repro.fill, dtype);
        let mut baselines = vec![exact(None), exact(Some(DType::Fp32))];
        baselines.extend(against);
        let mut measured = Measured::new(backend, baselines);
        let options = TrialOptions {
            repeats: 0,
            outputs: usize::MAX,
            metamorphic: 0,
            ..TrialOptions::default()
        };
        let mut records = Vec::new();
        trial::run_case(&mut measured, &repro, &options, &mut |event| {
            if let Event::Done(record) = event {
                records.push(record);
            }
        })?;
        let trial = |record: TrialRecord| {
            let means = measured.of(&record.candidate);
            self.trial(dtype, record, &means)
        };
        Ok(records.into_iter().map(trial).collect())
    }

    fn trial(&self, dtype: DType, record: TrialRecord, means: &[Option<f64>]) -> Trial {
        let mean = |i: usize| means.get(i).copied().flatten();
        Trial {
            schema: SCHEMA,
            comparison: self.reported.name(),
            level: if dtype == DType::Fp32 { "O0" } else { "O2" },
            candidate: record.candidate,
            notes: record.notes,
            verdict: record.verdict,
            reason: record.reason,
            wrong: record.wrong,
            max_ulp: record.max_ulp,
            max_ratio: record.max_ratio,
            mean_error: mean(0),
            mean_error_fp32: mean(1),
            against_fp32: mean(2),
            against_tf32: mean(3),
            repro: record.repro,
        }
    }

    /// The first of the candidates that passed which sums products and treats
    /// its operands as wanted.
    fn first(
        &self,
        backend: &mut dyn Backend,
        trials: &[Trial],
        wanted: impl Fn(OperandRounding) -> bool,
    ) -> Result<Option<Candidate>> {
        let dtype = match trials.first() {
            Some(trial) if trial.level == "O0" => DType::Fp32,
            _ => DType::Fp16,
        };
        let listings = backend.candidates(&self.repro(dtype, self.seed).problem)?;
        let passed = |c: &Candidate| {
            let text = c.to_string();
            let named = trials.iter().find(|t| t.candidate == text);
            named.is_some_and(|t| t.verdict == "passed")
        };
        let fits = |listing: &Listing| match &listing.support {
            Support::Offered { arithmetic, .. } => {
                arithmetic.family == Family::InnerProduct && wanted(arithmetic.operands)
            }
            Support::Refused(_) => false,
        };
        let mut fitting = listings.into_iter().filter(fits).map(|l| l.candidate);
        Ok(fitting.find(passed))
    }

    fn run(
        &self,
        backend: &mut dyn Backend,
        dtype: DType,
        candidate: &Candidate,
    ) -> Result<Tensor> {
        result(backend, &self.repro(dtype, self.seed), candidate)
    }

    /// Runs what O1 is documented to run: the fp32 operands cast to fp16.
    fn o1(
        &self,
        backend: &mut dyn Backend,
        o0: &Tensor,
        o2: &Candidate,
        half: &[Trial],
    ) -> Result<O1> {
        let [single, cast] = [DType::Fp32, DType::Fp16].map(|dtype| {
            let repro = self.repro(dtype, self.seed);
            Inputs::generate(&repro.problem, repro.fill)
        });
        let pairs = [(&single.first, &cast.first), (&single.second, &cast.second)];
        let [others, all] = pairs
            .map(|(single, cast)| [recast(single, cast), cast.len()])
            .into_iter()
            .fold([0, 0], |[n, m], [a, b]| [n + a, m + b]);
        let first = self.run(backend, DType::Fp16, o2)?;
        let again = self.run(backend, DType::Fp16, o2)?;
        let figures = half.iter().filter_map(|t| t.against_fp32);
        let is_half = |v: f64| DType::Fp16.format().round(v) == v;
        let values = o0.to_f64();
        let halves = values.iter().filter(|&&v| is_half(v)).count();
        Ok(O1 {
            other_operands: others as f64 / all as f64,
            from_o2: Baseline::result(&first).mean_error(&again).unwrap_or(0.0),
            least_from_o0: figures.min_by(f64::total_cmp),
            half_values: halves as f64 / values.len() as f64,
        })
    }

    /// The reported figure of every sample, over seeds.
    fn figures(
        &self,
        backend: &mut dyn Backend,
        pair: [&Candidate; 2],
        seeds: std::ops::Range<u64>,
    ) -> Result<Vec<Figure>> {
        let mut figures = Vec::new();
        for seed in seeds {
            let o0 = result(backend, &self.repro(DType::Fp32, seed), pair[0])?;
            let o2 = result(backend, &self.repro(DType::Fp16, seed), pair[1])?;
            let differences = by_sample(&o0, &o2).into_iter().enumerate();
            figures.extend(differences.map(|(sample, mean_difference)| Figure {
                schema: SCHEMA,
                comparison: self.reported.name(),
                seed,
                sample,
                mean_difference,
            }));
        }
        Ok(figures)
    }
}

/// The result of one run; anything else is an error, for the candidate ran before.
fn result(backend: &mut dyn Backend, repro: &Repro, candidate: &Candidate) -> Result<Tensor> {
    let inputs = Inputs::generate(&repro.problem, repro.fill);
    match backend.run(&inputs, candidate, &RunOptions { repeats: 0 })? {
        Outcome::Ran(seen) => Ok(seen.result),
        other => Err(Error::environment(format!(
            "{candidate} ran before and does not for '{repro}': {other:?}"
        ))),
    }
}

/// Mean |a − b| of every sample.
fn by_sample(a: &Tensor, b: &Tensor) -> Vec<f64> {
    let size = a.len() / a.dims()[0];
    let (a, b) = (a.to_f64(), b.to_f64());
    let samples = a.chunks(size).zip(b.chunks(size));
    samples
        .map(|(a, b)| {
            let differences = a.iter().zip(b).map(|(a, b)| (a - b).abs());
            differences.sum::<f64>() / size as f64
        })
        .collect()
}

/// Elements of `single` that have other bits than `cast` when cast to its type.
fn recast(single: &Tensor, cast: &Tensor) -> usize {
    let bits = |i: usize| cast.dtype().to_bits(single.get(i));
    (0..cast.len()).filter(|&i| bits(i) != cast.bits(i)).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::host::{HostBackend, HostOptions};
    use crate::study::amp_conv3d::reported::COMPARISONS;

    fn measured(at: usize, fault: Option<&str>) -> Comparison {
        let fault = fault.map(str::to_owned);
        let mut backend = HostBackend::new(&HostOptions { fault }).unwrap();
        Comparison::measure(&mut backend, &COMPARISONS[at], Scale::Software, 0..24).unwrap()
    }

    #[test]
    fn measure_small_comparison_gives_the_reports_figure() {
        let comparison = measured(0, None);
        assert!(comparison.wrong().is_empty() && comparison.ran() > 5);
        assert_eq!(comparison.figures.len(), 24);
        let agreement = comparison.agreement(comparison.reported.p40);
        assert!(
            agreement.explained(),
            "{agreement:?} {:?}",
            comparison.spread
        );
        assert!(!comparison.agreement(34.65).explained());
        let o1 = comparison.o1;
        assert!(o1.other_operands < 1e-3 && o1.from_o2 == 0.0, "{o1:?}");
        assert!(o1.half_values < 0.05, "{o1:?}");
        assert!(o1.least_from_o0.unwrap() > 1e-4);
    }

    #[test]
    fn measure_a_fault_is_found_wrong_and_not_taken_for_the_pair() {
        let comparison = measured(0, Some("conv3d_8x8"));
        // k = 4 is no multiple of 8: the fault does not show.
        assert!(comparison.wrong().is_empty());
        let comparison = measured(0, Some("taps_flipped"));
        let wrong = comparison.wrong();
        assert!(
            wrong
                .iter()
                .all(|t| t.candidate == "host:gemm!taps_flipped")
        );
        assert_eq!(wrong.len(), 2);
        assert_eq!(comparison.pair, ["host:direct", "host:direct"]);
    }

    #[test]
    fn by_sample_means_are_of_each_sample_alone() {
        let tensor = |values: &[f64]| Tensor::from_values(DType::Fp32, &[2, 2], values);
        let means = by_sample(
            &tensor(&[1.0, 2.0, 3.0, 4.0]),
            &tensor(&[1.0, 3.0, 0.0, 4.0]),
        );
        assert_eq!(means, [0.5, 1.5]);
    }
}
