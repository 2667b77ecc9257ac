//! Where candidates come from and run.

use serde::{Deserialize, Serialize};

use crate::bound::Arithmetic;
use crate::candidate::Candidate;
use crate::error::{Error, Result};
use crate::fill::Inputs;
use crate::outcome::Outcome;
use crate::problem::ConvProblem;

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

    /// Every candidate this backend knows for `problem`, refused ones included.
    fn candidates(&mut self, problem: &ConvProblem) -> Result<Vec<Listing>>;

    /// Whether one candidate can be run on `problem`. There may be more that can
    /// than [`Backend::candidates`] lists: a choice of an engine's knobs that it
    /// did not sample.
    fn support(&mut self, problem: &ConvProblem, candidate: &Candidate) -> Result<Support> {
        find(self.candidates(problem)?, candidate)
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
