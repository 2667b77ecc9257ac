//! Where candidates for batch normalisation come from and run.

use std::fmt;
use std::str::FromStr;

use crate::backend::cudnn::batch_norm::CudnnBatchNorm;
use crate::backend::host::batch_norm::{HostBatchNorm, HostCandidate};
use crate::backend::open::{BackendKind, BackendSpec, cudnn_options, resolve};
use crate::backend::{Combination, RunOptions};
use crate::batch_norm::{Fill, Inputs, Outcome, Problem};
use crate::error::{Error, Result};
use crate::line::Line;

/// One way to compute a pass. Text forms `cudnn:plain`, `cudnn:ex`,
/// `host:welford/tree`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Candidate {
    /// `cudnnBatchNormalizationForwardTraining`, `…ForwardInference`, `…Backward`.
    Plain,
    /// The calls with workspace, `…Ex`, without activation.
    Extended,
    /// An algorithm of the host backend.
    Host(HostCandidate),
}

/// Runs batch normalisations.
pub trait BatchNorm {
    /// What it runs on.
    fn combination(&self) -> &Combination;

    /// The ways to compute the pass of `problem`; some may decline when run.
    fn candidates(&self, problem: &Problem) -> Vec<Candidate>;

    /// Runs one. An `Err` is a fault of the harness or the machine; whatever the
    /// library does is an [`Outcome`].
    fn run(
        &mut self,
        inputs: &Inputs,
        candidate: Candidate,
        options: &RunOptions,
    ) -> Result<Outcome>;
}

/// Opens the backend that `spec` names, as [`crate::backend::open::open`] does.
pub fn open(spec: &BackendSpec) -> Result<Box<dyn BatchNorm>> {
    match resolve(spec) {
        BackendKind::Host => Ok(Box::new(HostBatchNorm::new(spec.fault.as_deref())?)),
        _ => Ok(Box::new(CudnnBatchNorm::open(&cudnn_options(spec))?)),
    }
}

/// A line of a trial or of a case: problem, `fill=` and, where one is meant,
/// `via=`.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    /// The problem.
    pub problem: Problem,
    /// Its data.
    pub fill: Fill,
    /// The candidate; all of them when absent.
    pub candidate: Option<Candidate>,
}

impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Candidate::Plain => f.write_str("cudnn:plain"),
            Candidate::Extended => f.write_str("cudnn:ex"),
            Candidate::Host(host) => write!(f, "host:{host}"),
        }
    }
}

impl FromStr for Candidate {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "cudnn:plain" => Ok(Candidate::Plain),
            "cudnn:ex" => Ok(Candidate::Extended),
            _ => match text.strip_prefix("host:") {
                Some(host) => host
                    .parse()
                    .map(Candidate::Host)
                    .map_err(|e: Error| e.offset(5)),
                None => Err(Error::parse(
                    0,
                    format!(
                        "unknown candidate '{text}'; known: cudnn:plain, cudnn:ex, host:<algorithm>"
                    ),
                )),
            },
        }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} fill={}", self.problem, self.fill)?;
        match &self.candidate {
            Some(candidate) => write!(f, " via={candidate}"),
            None => Ok(()),
        }
    }
}

impl FromStr for Case {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut line = Line::parse(text)?;
        let problem = Problem::from_line(&mut line)?;
        let fill = line.take_parsed("fill")?;
        let candidate = line.take_parsed("via")?;
        line.finish(&format!("{} fill via", crate::batch_norm::problem::KEYS))?;
        Ok(Case {
            problem,
            fill: fill.unwrap_or_else(Fill::plain),
            candidate,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn case_lines_round_trip() {
        for text in [
            "bn_train n=4 c=8 in=3x5 type=fp16 fill=offset:3 via=cudnn:ex",
            "bn_bwd c=8 in=3x5 saved=off fill=ints:0 via=host:squares/tree/fp64",
            "bn_infer c=8 in=3x5 fill=normal:1",
        ] {
            assert_eq!(text.parse::<Case>().unwrap().to_string(), text);
        }
        let bare: Case = "bn_train c=1 in=1x1".parse().unwrap();
        assert_eq!(bare.to_string(), "bn_train c=1 in=1x1 fill=normal:0");
    }

    #[test]
    fn case_errors_name_the_place() {
        let position = |text: &str| text.parse::<Case>().unwrap_err().position();
        assert_eq!(position("bn_train c=1 in=1x1 via=cudnn:9"), Some(24));
        assert_eq!(position("bn_train c=1 in=1x1 via=host:nothing"), Some(29));
        assert_eq!(position("bn_train c=1 in=1x1 fill=hat:1"), Some(25));
    }
}
