//! Counts of trials by verdict.

use serde::{Deserialize, Serialize};

use crate::judge::Verdict;

/// How many trials ended how. They add up:
/// trials = passed + failed + skipped + untrusted + crashed + timed_out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// All trials.
    pub trials: u64,
    /// Every judged output right.
    pub passed: u64,
    /// Something wrong, proven.
    pub failed: u64,
    /// Did not run, for a good reason.
    pub skipped: u64,
    /// Ran, but proves nothing.
    pub untrusted: u64,
    /// Took the worker process down.
    pub crashed: u64,
    /// Did not end in time.
    pub timed_out: u64,
    /// Of all of these, marked suspect.
    pub suspects: u64,
}

impl Tally {
    /// Counts one trial.
    pub fn add(&mut self, verdict: Verdict, suspect: bool) {
        self.trials += 1;
        self.suspects += u64::from(suspect);
        *self.slot(verdict) += 1;
    }

    fn slot(&mut self, verdict: Verdict) -> &mut u64 {
        match verdict {
            Verdict::Passed => &mut self.passed,
            Verdict::Failed(_) => &mut self.failed,
            Verdict::Skipped(_) => &mut self.skipped,
            Verdict::Untrusted(_) => &mut self.untrusted,
            Verdict::Crashed => &mut self.crashed,
            Verdict::TimedOut => &mut self.timed_out,
        }
    }

    /// Trials that speak against the library: failed, crashed or timed out.
    pub fn bad(&self) -> u64 {
        self.failed + self.crashed + self.timed_out
    }
}

/// Whether a verdict speaks against the library; the rows of `failures.csv`.
pub fn is_bad(verdict: Verdict) -> bool {
    matches!(
        verdict,
        Verdict::Failed(_) | Verdict::Crashed | Verdict::TimedOut
    )
}

/// The larger of two measured values; NaN counts as the largest, a missing one
/// as the least.
pub fn larger(a: Option<f64>, b: Option<f64>) -> Option<f64> {
    match (a, b) {
        (Some(a), Some(b)) if a.is_nan() || a >= b => Some(a),
        (Some(a), None) => Some(a),
        (_, b) => b,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::{FailureKind, SkipReason, UntrustedReason};

    #[test]
    fn add_every_verdict_counts_add_up() {
        let verdicts = [
            Verdict::Passed,
            Verdict::Failed(FailureKind::Mismatch),
            Verdict::Skipped(SkipReason::NotSupported),
            Verdict::Untrusted(UntrustedReason::MostlyZero),
            Verdict::Crashed,
            Verdict::TimedOut,
        ];
        let mut tally = Tally::default();
        for verdict in verdicts {
            tally.add(verdict, verdict == Verdict::Passed);
        }
        let parts = [
            tally.passed,
            tally.failed,
            tally.skipped,
            tally.untrusted,
            tally.crashed,
            tally.timed_out,
        ];
        assert_eq!(parts, [1; 6]);
        assert_eq!((tally.trials, tally.suspects), (6, 1));
        let bad = verdicts.into_iter().filter(|&v| is_bad(v)).count();
        assert_eq!(tally.bad(), bad as u64);
    }

    #[test]
    fn larger_nan_wins_and_missing_loses() {
        assert_eq!(larger(None, None), None);
        assert_eq!(larger(Some(1.0), None), Some(1.0));
        assert_eq!(larger(None, Some(1.0)), Some(1.0));
        assert_eq!(larger(Some(1.0), Some(2.0)), Some(2.0));
        assert!(larger(Some(f64::NAN), Some(2.0)).unwrap().is_nan());
        assert!(larger(Some(2.0), Some(f64::NAN)).unwrap().is_nan());
    }
}
