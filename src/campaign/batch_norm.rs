//! Many batch normalisations: drawing, running, judging, one record per trial.

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use serde::Serialize;

use crate::backend::RunOptions;
use crate::backend::batch_norm::{BatchNorm, Case};
use crate::batch_norm::judge::Figures;
use crate::batch_norm::strategy::{self, Limits};
use crate::batch_norm::{Inputs, Judgement, Output, Reference, judge};
use crate::error::{Error, Result};

/// Version of the columns of [`Row`].
pub const SCHEMA: u32 = 1;

/// Identical runs beside the first.
const REPEATS: u32 = 3;

/// Cases to draw and run.
#[derive(Clone, Copy, Debug)]
pub struct Campaign {
    /// How many.
    pub cases: u64,
    /// Seeds all of them.
    pub seed: u64,
}

/// One trial, a row of `batch_norm.csv`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Row {
    /// Version of the columns.
    pub schema: u32,
    /// Number of the case.
    pub case: u64,
    /// What ran.
    pub candidate: String,
    /// bn_train, bn_infer, bn_bwd.
    pub pass: String,
    /// per_activation, spatial, persistent.
    pub mode: String,
    /// Memory order.
    pub layout: String,
    /// Type of x.
    pub dtype: String,
    /// Values per group.
    pub count: usize,
    /// passed, failed, skipped, untrusted.
    pub verdict: String,
    /// Why.
    pub reason: Option<String>,
    /// What is wrong, or why it was skipped, in words.
    pub detail: Option<String>,
    /// Elements judged, of all outputs.
    pub judged: usize,
    /// Of these, wrong.
    pub wrong: usize,
    /// Largest error as a share of what is allowed, of all outputs.
    pub max_ratio: Option<f64>,
    /// The same of y.
    pub y: Option<f64>,
    /// Of the running mean.
    pub running_mean: Option<f64>,
    /// Of the running variance.
    pub running_variance: Option<f64>,
    /// Of the saved mean.
    pub saved_mean: Option<f64>,
    /// Of the saved inverse deviation.
    pub saved_inverse: Option<f64>,
    /// Of dx.
    pub dx: Option<f64>,
    /// Of dscale.
    pub dscale: Option<f64>,
    /// Of dbias.
    pub dbias: Option<f64>,
    /// Statistics: largest error as a share of what two passes may be off.
    pub two_pass: Option<f64>,
    /// The same of Welford's algorithm.
    pub welford: Option<f64>,
    /// The same of E[x²] − E[x]².
    pub squares: Option<f64>,
    /// The line that runs it again.
    pub repro: String,
}

impl Campaign {
    /// The case of a number: the same whatever ran before it.
    pub fn case(&self, number: u64) -> Result<Case> {
        let mut seed = [0; 32];
        seed[..8].copy_from_slice(&self.seed.to_le_bytes());
        seed[8..16].copy_from_slice(&number.to_le_bytes());
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
        let mut runner = TestRunner::new_with_rng(Config::default(), rng);
        let tree = strategy::case(&Limits::default()).new_tree(&mut runner);
        let tree = tree.map_err(|e| Error::internal(format!("no case can be drawn: {e}")))?;
        let (problem, fill) = tree.current();
        Ok(Case {
            problem,
            fill,
            candidate: None,
        })
    }

    /// Runs all cases; `keep` is given each record as it is made.
    pub fn run(
        &self,
        backend: &mut dyn BatchNorm,
        keep: &mut dyn FnMut(Row) -> Result<()>,
    ) -> Result<()> {
        for number in 0..self.cases {
            let rows = rows_of(backend, number, &self.case(number)?)?;
            rows.into_iter().try_for_each(&mut *keep)?;
        }
        Ok(())
    }
}

/// Runs the candidates that `case` means.
pub fn rows_of(backend: &mut dyn BatchNorm, number: u64, case: &Case) -> Result<Vec<Row>> {
    let inputs = Inputs::generate(&case.problem, case.fill);
    let reference = Reference::of(&inputs);
    let candidates = match case.candidate {
        Some(candidate) => vec![candidate],
        None => backend.candidates(&case.problem),
    };
    let options = RunOptions { repeats: REPEATS };
    let run = |candidate| {
        let outcome = backend.run(&inputs, candidate, &options)?;
        let trial = Case {
            candidate: Some(candidate),
            ..case.clone()
        };
        Ok(Row::new(
            number,
            &trial,
            &judge(&inputs, &reference, &outcome),
        ))
    };
    candidates.into_iter().map(run).collect()
}

impl Row {
    fn new(number: u64, trial: &Case, judgement: &Judgement) -> Self {
        let problem = &trial.problem;
        let (verdict, reason) = judgement.verdict.columns();
        let ratio = |output: Output| judgement.figures(output).map(|figures| figures.max_ratio);
        let [two_pass, welford, squares] = judgement.algorithms;
        Row {
            schema: SCHEMA,
            case: number,
            candidate: trial.candidate.map_or_else(String::new, |c| c.to_string()),
            pass: problem.pass.name().to_owned(),
            mode: problem.mode.name().to_owned(),
            layout: problem.layout.name().to_owned(),
            dtype: problem.dtype.to_string(),
            count: problem.count(),
            verdict: verdict.to_owned(),
            reason,
            detail: judgement.detail.clone(),
            judged: judgement.outputs.iter().map(Figures::judged).sum(),
            wrong: judgement.wrong(),
            max_ratio: judgement.max_ratio(),
            y: ratio(Output::Y),
            running_mean: ratio(Output::RunningMean),
            running_variance: ratio(Output::RunningVariance),
            saved_mean: ratio(Output::SavedMean),
            saved_inverse: ratio(Output::SavedInverse),
            dx: ratio(Output::Dx),
            dscale: ratio(Output::Dscale),
            dbias: ratio(Output::Dbias),
            two_pass,
            welford,
            squares,
            repro: trial.to_string(),
        }
    }

    /// Whether the trial failed.
    pub fn is_failure(&self) -> bool {
        self.verdict == "failed"
    }

    /// What is wrong.
    pub fn words(&self) -> &str {
        self.detail.as_deref().unwrap_or("failed")
    }

    /// What trials are counted by: candidate and pass.
    pub fn group(&self) -> [&str; 2] {
        [&self.candidate, &self.pass]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::host::batch_norm::HostBatchNorm;

    #[test]
    fn case_depends_on_seed_and_number_alone() {
        let case = |seed, number| Campaign { cases: 9, seed }.case(number).unwrap();
        assert_eq!(case(1, 5), case(1, 5));
        assert_ne!(case(1, 5), case(1, 6));
        assert_ne!(case(1, 5), case(2, 5));
    }

    #[test]
    fn rows_of_a_line_are_its_candidate_and_run_again() {
        let mut backend = HostBatchNorm::new(None).unwrap();
        let line = "bn_train n=2 c=3 in=4x4 fill=normal:1";
        let all = rows_of(&mut backend, 7, &line.parse().unwrap()).unwrap();
        assert_eq!(all.len(), 12);
        let again = rows_of(&mut backend, 7, &all[3].repro.parse().unwrap()).unwrap();
        assert_eq!(again, all[3..4]);
        assert_eq!((all[3].judged, all[3].wrong), (96 + 4 * 3, 0));
    }
}
