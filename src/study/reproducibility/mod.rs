//! Two mixed-precision trainings with every seed fixed give other losses: which
//! tensor differs first, is that expected, and what helps?
//!
//! A small training is run twice from the same seed, in one process and in two,
//! in fp32 and in mixed precision, with algorithms that may be nondeterministic
//! and with deterministic ones alone, and compared bit for bit.

use crate::backend::batch_norm::{self, BatchNorm};
use crate::backend::{Backend, open};
use crate::error::Result;
use crate::study::{Answer, Request, SCHEMA};

mod answer;
mod data;
mod network;
mod plan;
pub mod process;
mod rates;
mod reported;
mod trace;

use data::{Corrected, Data, Pair};
use network::{Lab, Plan, Precision, Size, train};
use plan::Policy;
use process::{Job, elsewhere, scatter, without_fault};
use rates::Runs;
use trace::{Trace, identical};

/// Its name on the command line.
pub const NAME: &str = "reproducibility";

/// What a GPU trains in a moment, and large enough for several blocks to add to
/// one gradient.
const LARGE: Size = Size {
    batch: 32,
    channels: [8, 16, 16],
    side: 16,
    classes: 10,
    steps: reported::STEPS,
    half_sums: false,
};

/// The same for software. Its sums are short, so that another order would next to
/// never show in fp16 if they were added in fp32.
const SMALL: Size = Size {
    batch: 8,
    channels: [2, 4, 8],
    side: 4,
    classes: 8,
    steps: reported::STEPS,
    half_sums: true,
};

/// Names of the choices of two benchmarks.
const BENCHMARKED: [&str; 2] = ["benchmarked, run 1", "benchmarked, run 2"];

/// What a pair of runs is called whose algorithms a benchmark chose.
const BENCHMARK: &str = "benchmarked";

/// Most runs that are compared with a first one to see a difference, in one
/// process: bits that may differ need not.
const HERE: u32 = 10;

/// The same in processes of their own.
const ELSEWHERE: u32 = 3;

/// Most runs of an algorithm whose bits must not differ.
const STEADY_RUNS: u32 = 10;

/// Runs the study; `repeats` trainings are compared on the corrective path.
pub fn run(request: &Request, repeats: u32) -> Result<Answer> {
    let mut convolutions = open::open(&request.backend)?;
    let mut norm = batch_norm::open(&without_fault(&request.backend))?;
    let mut study = Study {
        request,
        size: if request.is_host() { SMALL } else { LARGE },
        repeats,
        convolutions: &mut *convolutions,
        norm: &mut *norm,
        data: Data::default(),
    };
    for precision in Precision::ALL {
        study.policies(precision)?;
        study.benchmark(precision)?;
        study.rates(precision)?;
        tracing::info!("{} measured", precision.name());
    }
    let (data, size) = (study.data, study.size);
    data.answer(request, repeats, &size, convolutions.combination())
}

struct Study<'a> {
    request: &'a Request,
    size: Size,
    repeats: u32,
    convolutions: &'a mut dyn Backend,
    norm: &'a mut dyn BatchNorm,
    data: Data,
}

impl Study<'_> {
    /// Every policy, in one process and in two; then many deterministic runs.
    fn policies(&mut self, precision: Precision) -> Result<()> {
        for policy in Policy::ALL {
            let plan = plan::plan(self.convolutions, &self.size, precision, policy)?;
            let Some(plan) = plan else { continue };
            self.data.add_plan(precision, policy.name(), &plan);
            let first = self.train(precision, &plan, 0)?;
            self.compare(precision, policy, &plan, &first)?;
            if policy == Policy::Deterministic {
                self.correct(precision, &plan, &first)?;
            }
        }
        Ok(())
    }

    fn compare(
        &mut self,
        precision: Precision,
        policy: Policy,
        plan: &Plan,
        first: &Trace,
    ) -> Result<()> {
        let here = until_other(first, HERE, |run| self.train(precision, plan, run))?;
        let there = |run| elsewhere(&self.job(precision, plan, run));
        let there = until_other(first, ELSEWHERE, there)?;
        for (processes, (runs, other)) in [(1, here), (2, there)] {
            self.data.add(&Pair {
                precision,
                choice: policy.name(),
                processes,
                runs,
                first,
                other: &other,
            });
        }
        Ok(())
    }

    fn correct(&mut self, precision: Precision, plan: &Plan, first: &Trace) -> Result<()> {
        let mut same = 0;
        for run in 1..=self.repeats {
            let again = self.train(precision, plan, u64::from(run))?;
            same += u32::from(identical(first, &again));
        }
        self.data.corrected.push(Corrected {
            schema: SCHEMA,
            precision: precision.name().to_owned(),
            runs: self.repeats,
            identical: same,
            tensors: first.len(),
        });
        Ok(())
    }

    /// Two runs that each choose the fastest deterministic algorithm.
    fn benchmark(&mut self, precision: Precision) -> Result<()> {
        let first = plan::benchmarked(self.convolutions, &self.size, precision, 0)?;
        let mut second = plan::benchmarked(self.convolutions, &self.size, precision, 1)?;
        if first == second {
            second = plan::rotated(self.convolutions, &self.size, precision, &first)?;
            self.data.rotated = true;
        }
        for (name, plan) in BENCHMARKED.into_iter().zip([&first, &second]) {
            self.data.add_plan(precision, name, plan);
        }
        let first = self.train(precision, &first, 0)?;
        let other = self.train(precision, &second, 0)?;
        self.data.add(&Pair {
            precision,
            choice: BENCHMARK,
            processes: 1,
            runs: 1,
            first: &first,
            other: &other,
        });
        Ok(())
    }

    fn rates(&mut self, precision: Precision) -> Result<()> {
        let runs = Runs {
            nondeterministic: self.repeats,
            deterministic: self.repeats.min(STEADY_RUNS),
        };
        let seed = self.request.seed;
        let rates = rates::measure(self.convolutions, &self.size, precision, runs, seed)?;
        self.data.rates.extend(rates);
        Ok(())
    }

    fn train(&mut self, precision: Precision, plan: &Plan, run: u64) -> Result<Trace> {
        scatter(self.convolutions, u64::from(run > 0))?;
        let mut lab = Lab {
            convolutions: self.convolutions,
            norm: self.norm,
        };
        train(&mut lab, &self.size, precision, plan, self.request.seed)
    }

    fn job(&self, precision: Precision, plan: &Plan, run: u64) -> Job {
        Job {
            backend: self.request.backend.clone(),
            size: self.size,
            precision,
            plan: plan.clone(),
            seed: self.request.seed,
            run,
        }
    }
}

/// Runs again until bits differ from `first`, at most `most` times: how often,
/// and the last run.
fn until_other(
    first: &Trace,
    most: u32,
    mut again: impl FnMut(u64) -> Result<Trace>,
) -> Result<(u32, Trace)> {
    let mut runs = 1;
    loop {
        let trace = again(u64::from(runs))?;
        if runs == most || !identical(first, &trace) {
            return Ok((runs, trace));
        }
        runs += 1;
    }
}

#[cfg(test)]
mod tests;
