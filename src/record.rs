//! The record of one trial: a row of `trials.csv`, and all that reports are
//! made from. Missing values are `None`, never zero.

use serde::{Deserialize, Serialize};

use crate::judge::Verdict;

/// Version of the columns below; grows when one is added, renamed or changes
/// its meaning.
pub const SCHEMA: u32 = 1;

/// One trial. Field order is column order.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TrialRecord {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Number of the generated problem in the campaign; regressions and corpus
    /// entries that are replayed first have numbers of their own, below zero.
    pub case: i64,
    /// Number of the trial within the case, from 0.
    pub trial: u32,
    /// The repro line, candidate included.
    pub repro: String,
    /// `fwd`, `bwd_data`, `bwd_filter`.
    pub direction: String,
    /// Spatial dimensions, 1 to 3.
    pub rank: u8,
    /// Tensor types as in the repro line.
    pub types: String,
    /// Compute type.
    pub compute: String,
    /// Memory layout.
    pub layout: String,
    /// What the fill can prove.
    pub regime: String,
    /// Name of the distribution.
    pub fill: String,
    /// `legacy`, `engine` or `host`.
    pub api: String,
    /// Text form of the candidate.
    pub candidate: String,
    /// Notes and properties the candidate declares, joined by `+`.
    pub notes: String,
    /// `passed`, `failed`, `skipped`, `untrusted`, `crashed`, `timed_out`.
    pub verdict: String,
    /// Failure kind, or reason of a skip or lack of trust.
    pub reason: Option<String>,
    /// Free text: the library's words, the mismatch in words.
    pub detail: Option<String>,
    /// Far outside what is usual, though inside the proven bound.
    pub suspect: bool,
    /// Elements of the result tensor.
    pub outputs: u64,
    /// Of these, judged (all, unless sampled).
    pub judged: Option<u64>,
    /// Share of nonzero products among the judged outputs, 0 to 1.
    pub nonzero_share: Option<f64>,
    /// Share of judged outputs with S above zero, 0 to 1.
    pub power_share: Option<f64>,
    /// Smallest relative change of an output that would have been seen
    /// (median over judged outputs).
    pub detectable: Option<f64>,
    /// Judged outputs outside their bound, or not the right bits.
    pub wrong: Option<u64>,
    /// Largest error in ulps of the result type.
    pub max_ulp: Option<f64>,
    /// Largest error as a share of its bound; above 1 fails.
    pub max_ratio: Option<f64>,
    /// Logical offset of the worst output.
    pub worst_index: Option<u64>,
    /// Correctly rounded value there.
    pub expected: Option<f64>,
    /// What the library returned there.
    pub actual: Option<f64>,
    /// Bound there, absolute.
    pub bound: Option<f64>,
    /// Outputs whose verdict needed the arbiter.
    pub arbitrated: Option<u64>,
    /// Workspace, bytes.
    pub workspace: Option<u64>,
    /// Time in the library, milliseconds.
    pub library_ms: Option<f64>,
    /// Time in fill, oracle and judging charged to this trial, milliseconds.
    pub own_ms: Option<f64>,
}

impl TrialRecord {
    /// Sets the verdict columns.
    pub fn set_verdict(&mut self, verdict: Verdict) {
        let (name, reason) = verdict.columns();
        self.verdict = name.to_owned();
        self.reason = reason;
    }
}
