//! Where candidates come from and run.

use serde::{Deserialize, Serialize};

use crate::bound::Arithmetic;
use crate::candidate::Candidate;
use crate::error::{Error, Result};
use crate::fill::Inputs;
use crate::judge::Promises;
use crate::outcome::Outcome;
use crate::problem::ConvProblem;

pub mod batch_norm;
pub mod cudnn;
pub mod host;
pub mod open;

/// What every record of a run was made on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Combination {
    /// `cudnn` or `host`.
    pub backend: String,
    /// GPU name as the driver gives it, or the CPU's.
    pub device: String,
    /// Compute capability, such as `9.0`; empty on the host.
    pub sm: String,
    /// Driver version; empty on the host.
    pub driver: String,
    /// cuDNN version such as `9.19.0`; empty on the host.
    pub cudnn: String,
    /// CUDA version the driver supports, such as `13.0`; empty on the host.
    pub cuda: String,
    /// Version of convfuzz.
    pub convfuzz: String,
}

/// One candidate of a problem, offered or refused.
#[derive(Clone, Debug, PartialEq)]
pub struct Listing {
    /// The candidate.
    pub candidate: Candidate,
    /// Whether it can be run.
    pub support: Support,
}

/// Whether a candidate can be run, as far as is known before running it.
#[derive(Clone, Debug, PartialEq)]
pub enum Support {
    /// It can.
    Offered {
        /// What it declares it does to the numbers.
        arithmetic: Arithmetic,
        /// Workspace it asks for, bytes.
        workspace: u64,
        /// Whether two runs may differ in bits, by the library's own word.
        nondeterministic: bool,
        /// Names of the notes and properties it declares, for records.
        notes: Vec<String>,
    },
    /// It cannot, in the library's words.
    Refused(String),
}

/// The note by which an engine of cuDNN promises to hand on every NaN.
const STRICT_NAN_PROP: &str = "STRICT_NAN_PROP";

impl Support {
    /// Whether it is refused because its planning ended a worker.
    pub fn is_barred(&self) -> bool {
        matches!(self, Support::Refused(why) if why == BARRED)
    }

    /// What a candidate that is offered says of itself beside its arithmetic.
    pub fn promises(&self) -> Promises {
        match self {
            Support::Offered {
                nondeterministic,
                notes,
                ..
            } => Promises {
                nondeterministic: *nondeterministic,
                strict_nan: notes.iter().any(|note| note == STRICT_NAN_PROP),
            },
            Support::Refused(_) => Promises::default(),
        }
    }
}

impl Combination {
    /// What to say before a line that was recorded on `self` is run `here`;
    /// `None` where its candidate means the same.
    pub fn warning(&self, here: &Combination, candidate: &Candidate) -> Option<String> {
        let (then, now) = (&self.cudnn, &here.cudnn);
        let engine = matches!(candidate, Candidate::Engine { .. });
        if self.backend != here.backend {
            return Some(format!(
                "the line was recorded on the {} backend, this is {}",
                self.backend, here.backend
            ));
        }
        if engine && then != now {
            return Some(format!(
                "the line was recorded with cuDNN {then}, this is {now}: the indices and knobs of \
                 engines are specific to a version, so {candidate} may be another engine here"
            ));
        }
        None
    }
}

/// Is told what a library is about to be asked while candidates are listed, since
/// it may not come back from it; and knows what it did not come back from before.
pub struct Steps<'a> {
    barred: &'a [String],
    on: Option<&'a mut dyn FnMut(&str)>,
    latest: String,
}

impl<'a> Steps<'a> {
    /// Tells `on` of every step but those that are `barred`.
    pub fn new(barred: &'a [String], on: &'a mut dyn FnMut(&str)) -> Self {
        Steps {
            barred,
            on: Some(on),
            latest: String::new(),
        }
    }

    /// Every step may be taken, and nobody is told.
    pub fn unwatched() -> Self {
        Steps {
            barred: &[],
            on: None,
            latest: String::new(),
        }
    }

    /// Whether a step may be taken, which is a candidate as in repro lines, or
    /// another that a backend names, such as `heur_a`.
    pub fn may(&mut self, step: &str) -> bool {
        if self.bars(step) {
            return false;
        }
        if self.latest != step {
            step.clone_into(&mut self.latest);
            if let Some(on) = &mut self.on {
                on(step);
            }
        }
        true
    }

    /// Whether there is a step that must not be taken.
    pub fn bars_any(&self) -> bool {
        !self.barred.is_empty()
    }

    /// Whether a step must not be taken.
    pub fn bars(&self, step: &str) -> bool {
        self.barred.iter().any(|barred| barred == step)
    }
}

/// Why a candidate is refused that is not planned again.
const BARRED: &str = "not asked again: the library did not come back from it";

/// A candidate that is not planned again.
pub(crate) fn barred(candidate: Candidate) -> Listing {
    Listing {
        candidate,
        support: Support::Refused(BARRED.to_owned()),
    }
}

/// How a run is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunOptions {
    /// Further runs with the same inputs, to be compared bit for bit.
    pub repeats: u32,
}

/// A source of candidates that can run them.
pub trait Backend {
    /// What this backend runs on.
    fn combination(&self) -> &Combination;

    /// Memory that is free on the device, bytes; `None` where trials run in that of
    /// the process.
    fn device_memory(&self) -> Result<Option<u64>> {
        Ok(None)
    }

    /// Every candidate this backend knows for `problem`, refused ones included.
    fn candidates(&mut self, problem: &ConvProblem) -> Result<Vec<Listing>> {
        self.list(problem, &mut Steps::unwatched())
    }

    /// As [`Backend::candidates`], step by step. A candidate that is barred is
    /// listed as refused.
    fn list(&mut self, problem: &ConvProblem, steps: &mut Steps<'_>) -> Result<Vec<Listing>>;

    /// Whether one candidate can be run on `problem`; the library is asked for
    /// nothing else, not even where its heuristics have it. There may be more that
    /// can than [`Backend::candidates`] lists: a choice of an engine's knobs that it
    /// did not sample.
    fn support(&mut self, problem: &ConvProblem, candidate: &Candidate) -> Result<Support>;

    /// As [`Backend::support`], step by step, with all that [`Backend::list`] says
    /// of a candidate.
    fn list_one(
        &mut self,
        problem: &ConvProblem,
        candidate: &Candidate,
        steps: &mut Steps<'_>,
    ) -> Result<Support> {
        find(self.list(problem, steps)?, candidate)
    }

    /// Runs one candidate on one case. An `Err` is a fault of the harness or
    /// the machine; whatever the library does is an [`Outcome`].
    fn run(
        &mut self,
        inputs: &Inputs,
        candidate: &Candidate,
        options: &RunOptions,
    ) -> Result<Outcome>;
}

/// The support of a candidate among `listings`.
pub(crate) fn find(listings: Vec<Listing>, candidate: &Candidate) -> Result<Support> {
    listings
        .into_iter()
        .find(|listing| listing.candidate == *candidate)
        .map(|listing| listing.support)
        .ok_or_else(|| Error::usage(format!("this backend has no candidate '{candidate}'")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warning_is_given_where_an_engine_may_be_another() {
        let on = |backend: &str, cudnn: &str| Combination {
            backend: backend.to_owned(),
            cudnn: cudnn.to_owned(),
            ..Combination::default()
        };
        let recorded = on("cudnn", "9.19.0");
        let engine: Candidate = "engine:3/2=1".parse().unwrap();
        let legacy: Candidate = "legacy:1".parse().unwrap();
        assert_eq!(recorded.warning(&recorded, &engine), None);
        assert_eq!(recorded.warning(&on("cudnn", "9.14.0"), &legacy), None);
        let words = recorded.warning(&on("cudnn", "9.14.0"), &engine).unwrap();
        for part in ["9.19.0", "9.14.0", "engine:3/2=1"] {
            assert!(words.contains(part), "{words}");
        }
        let words = recorded.warning(&on("host", ""), &legacy).unwrap();
        assert!(words.contains("host"), "{words}");
    }

    #[test]
    fn steps_are_told_once_and_barred_ones_never() {
        let (barred, mut told) = (["b".to_owned()], Vec::new());
        let mut on = |step: &str| told.push(step.to_owned());
        let mut steps = Steps::new(&barred, &mut on);
        let may: Vec<_> = ["a", "a", "b", "c", "a"].map(|s| steps.may(s)).into();
        assert_eq!(may, [true, true, false, true, true]);
        assert_eq!(told, ["a", "c", "a"]);
    }

    #[test]
    fn promises_are_read_from_what_is_declared() {
        let offered = |nondeterministic, note: &str| Support::Offered {
            arithmetic: Arithmetic::simt(crate::bound::Accumulator::Fp32),
            workspace: 0,
            nondeterministic,
            notes: vec![note.to_owned()],
        };
        assert_eq!(offered(false, "WINOGRAD").promises(), Promises::default());
        assert!(offered(true, "").promises().nondeterministic);
        assert!(offered(false, "STRICT_NAN_PROP").promises().strict_nan);
    }
}
