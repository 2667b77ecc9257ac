//! The closed set of verdicts, with separate reasons.

use serde::{Deserialize, Serialize};

/// The end of a trial. A skip is not a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Every judged output is right.
    Passed,
    /// Something is wrong, proven.
    Failed(FailureKind),
    /// It did not run, for a good reason.
    Skipped(SkipReason),
    /// It ran, but the data could not have shown a fault.
    Untrusted(UntrustedReason),
    /// It took its process down.
    Crashed,
    /// It did not end in time.
    TimedOut,
}

/// What is wrong, gravest first: a trial that fails in several ways carries
/// the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// Accepted by the library, then failed to execute.
    ExecutionFailed,
    /// Memory outside the result and workspace was written.
    OutOfBoundsWrite,
    /// An input was changed.
    InputChanged,
    /// Outputs were never written.
    Unwritten,
    /// NaN where a number is right, or a number where only NaN is.
    WrongNan,
    /// Infinity where a finite value is right, or the reverse, or the sign.
    WrongInfinity,
    /// Not bit for bit the right value though all sums are exact.
    Mismatch,
    /// Outside the bound that the declared arithmetic allows.
    OutOfBound,
    /// Another form of the same case gives numbers that differ by more than
    /// both bounds together allow.
    Metamorphic,
    /// Right, but not with other strides of dimensions of size 1, where a stride
    /// means nothing.
    OddStrides,
    /// The result depends on what the workspace or output held before.
    UninitialisedRead,
    /// Two identical runs differ in bits without being declared to.
    Nondeterministic,
    /// Right, but not by the arithmetic it declares.
    Undeclared,
}

/// Why a trial did not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SkipReason {
    /// The library answered NOT_SUPPORTED.
    NotSupported,
    /// It needs more memory than there is, or than the limit allows.
    OutOfMemory,
    /// The candidate is quarantined for this run.
    Quarantined,
}

/// Why a result proves nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UntrustedReason {
    /// Too few products are nonzero.
    MostlyZero,
    /// The bound is as large as the values: nothing short of NaN would fail.
    BoundTooWide,
    /// Nearly every output may rightly be non-finite: intermediate results may
    /// overflow, or the family spreads non-finite data.
    NonFinite,
    /// There is no bound for this family on this problem.
    NoBound,
}

impl Verdict {
    /// The `verdict` and `reason` columns of a record.
    pub fn columns(self) -> (&'static str, Option<String>) {
        match self {
            Verdict::Passed => ("passed", None),
            Verdict::Failed(kind) => ("failed", Some(word(&kind))),
            Verdict::Skipped(reason) => ("skipped", Some(word(&reason))),
            Verdict::Untrusted(reason) => ("untrusted", Some(word(&reason))),
            Verdict::Crashed => ("crashed", None),
            Verdict::TimedOut => ("timed_out", None),
        }
    }
}

/// The snake_case name of a unit variant, as serde writes it.
fn word(variant: &impl Serialize) -> String {
    match serde_json::to_value(variant) {
        Ok(serde_json::Value::String(name)) => name,
        other => unreachable!("unit variants serialise to strings, not {other:?}"),
    }
}
