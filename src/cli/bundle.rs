//! `convfuzz bundle`: a failing trial as a folder that shows it without
//! convfuzz.

use std::path::PathBuf;

use clap::Args;

use crate::backend::{Backend, RunOptions, Support};
use crate::bound::Bounds;
use crate::candidate::Repro;
use crate::cli::backend::BackendArgs;
use crate::cli::exit::Exit;
use crate::cli::terminal::Terminal;
use crate::error::{Error, Result};
use crate::fill::Inputs;
use crate::judge::{Case, accepted, judge};
use crate::oracle::{self, Sample};
use crate::outcome::Outcome;
use crate::report::bundle::Bundle;

/// Write a trial as a standalone reproducer
///
/// Runs the trial, judges it, and writes a folder with the operands, the exact
/// values, what is allowed, what came back, and a C++ program that needs cuDNN
/// alone and ends with 1 where the fault shows.
#[derive(Args, Debug)]
pub struct MakeBundle {
    /// The trial as a repro line with via=
    #[arg(required = true, value_name = "TRIAL")]
    words: Vec<String>,
    #[command(flatten)]
    backend: BackendArgs,
    /// Folder to write, which is made
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

impl MakeBundle {
    /// Runs, judges, writes.
    pub fn execute(self, terminal: &Terminal) -> Result<Exit> {
        let repro: Repro = self.words.join(" ").parse()?;
        let mut backend = self.backend.open(terminal)?;
        let trial = Trial::run(&mut *backend, &repro)?;
        let bundle = Bundle {
            repro: &repro,
            combination: backend.combination(),
            detail: &trial.detail,
            inputs: &trial.inputs,
            expected: &trial.expected,
            bound: &trial.bound,
            actual: &trial.actual,
        };
        bundle.write(&self.out)?;
        terminal.print(&format!("{}: {}", self.out.display(), trial.detail))?;
        Ok(if trial.failed {
            Exit::Failures
        } else {
            Exit::Clean
        })
    }
}

/// A trial that ran, with all that a bundle needs.
struct Trial {
    inputs: Inputs,
    expected: Vec<f64>,
    bound: Vec<f64>,
    actual: crate::tensor::Tensor,
    detail: String,
    failed: bool,
}

impl Trial {
    fn run(backend: &mut dyn Backend, repro: &Repro) -> Result<Self> {
        let candidate = repro
            .via
            .as_ref()
            .ok_or_else(|| Error::usage("a bundle is of one candidate: add via= to the line"))?;
        let support = backend.support(&repro.problem, candidate)?;
        let promises = support.promises();
        let arithmetic = match support {
            Support::Offered { arithmetic, .. } => arithmetic,
            Support::Refused(why) => {
                return Err(Error::environment(format!(
                    "{candidate} is refused here: {why}"
                )));
            }
        };
        let inputs = Inputs::generate(&repro.problem, repro.fill);
        let outcome = backend.run(&inputs, candidate, &RunOptions { repeats: 1 })?;
        let reference = oracle::reference(&inputs, &Sample::All);
        let bounds = Bounds::new(&inputs, &arithmetic)
            .ok_or_else(|| Error::usage("there is no bound for this family on this problem"))?;
        let case = Case {
            inputs: &inputs,
            reference: &reference,
        };
        let judgement = judge(case, Some(&bounds), promises, &outcome);
        let (expected, bound) = accepted(case, &bounds).into_iter().unzip();
        let verdict = judgement.verdict.columns().0;
        Ok(Trial {
            actual: returned(outcome, &inputs),
            detail: judgement.detail.unwrap_or_else(|| verdict.to_owned()),
            failed: verdict == "failed",
            expected,
            bound,
            inputs,
        })
    }
}

/// The result, or NaN throughout where the run did not end.
fn returned(outcome: Outcome, inputs: &Inputs) -> crate::tensor::Tensor {
    match outcome {
        Outcome::Ran(observation) => observation.result,
        _ => {
            let role = inputs.problem.direction.result();
            let dims = inputs.problem.dims(role);
            crate::tensor::Tensor::from_fn(inputs.problem.dtype(role), &dims, |_| f64::NAN)
        }
    }
}
