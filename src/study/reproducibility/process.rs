//! A training in a process of its own.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};

use super::network::{Lab, Plan, Precision, Size, train};
use super::plan::FAULT;
use super::trace::{self, Trace};
use crate::backend::host::carrier;
use crate::backend::open::{self, BackendSpec};
use crate::backend::{Backend, batch_norm};
use crate::campaign::THIS_PROGRAM;
use crate::error::{Error, Result};
use crate::fill::{Fill, FillKind, Inputs};
use crate::problem::ConvProblem;

/// The hidden command that serves one [`Job`].
pub const COMMAND: &str = "training";

/// One training.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Job {
    /// Where.
    pub backend: BackendSpec,
    /// What.
    pub size: Size,
    /// In which types.
    pub precision: Precision,
    /// By which algorithms.
    pub plan: Plan,
    /// Seed of data and weights.
    pub seed: u64,
    /// Number of the run; see [`scatter`].
    pub run: u64,
}

/// Does one job here: for the other process.
pub fn serve(from: impl std::io::Read, to: &mut impl Write) -> Result<()> {
    let job: Job = serde_json::from_reader(from)
        .map_err(|e| Error::usage("this command serves 'convfuzz study'").with_source(e))?;
    let mut convolutions = open::open(&job.backend)?;
    let mut norm = batch_norm::open(&without_fault(&job.backend))?;
    scatter(&mut *convolutions, job.run)?;
    let mut lab = Lab {
        convolutions: &mut *convolutions,
        norm: &mut *norm,
    };
    let trace = train(&mut lab, &job.size, job.precision, &job.plan, job.seed)?;
    trace::write(&trace, to)
}

/// Does one job in another process.
pub fn elsewhere(job: &Job) -> Result<Trace> {
    let environment = |e| Error::environment("cannot start a training process").with_source(e);
    let mut child = Command::new(THIS_PROGRAM)
        .arg0("convfuzz")
        .args(["study", COMMAND])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(environment)?;
    let text = serde_json::to_vec(job)
        .map_err(|e| Error::internal("a job does not fit JSON").with_source(e))?;
    if let Some(mut stdin) = child.stdin.take() {
        // A process that is gone is noticed by its missing trace.
        let _ = stdin.write_all(&text);
    }
    let stdout = child.stdout.take();
    let stdout = stdout.ok_or_else(|| Error::internal("a training process has no output"))?;
    let trace = trace::read(stdout);
    let status = child.wait().map_err(environment)?;
    match status.success() {
        true => trace,
        false => Err(Error::environment(format!(
            "a training process ended with {status}"
        ))),
    }
}

/// Batch norm has faults of its own: those of convolutions are not for it.
pub fn without_fault(spec: &BackendSpec) -> BackendSpec {
    BackendSpec {
        fault: None,
        ..spec.clone()
    }
}

/// What a GPU's scheduler does by itself, software must be made to do: the
/// planted algorithm alternates between two orders from run to run of the
/// backend, and a training is an even number of runs, so that it begins with the
/// other order after an odd number of runs more.
pub fn scatter(backend: &mut dyn Backend, run: u64) -> Result<()> {
    if backend.combination().backend != "host" {
        return Ok(());
    }
    let problem = ConvProblem::new(1, 1, &[1], &[1]);
    let kind = FillKind::Constant;
    let inputs = Inputs::generate(&problem, Fill { kind, seed: 0 });
    for _ in 0..run % 2 {
        super::network::convolution(backend, &inputs, &carrier(Some(FAULT)))?;
    }
    Ok(())
}
