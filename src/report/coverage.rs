//! `coverage.csv`: which knob values of which engines have been tried, and how
//! that went.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::candidate::Candidate;
use crate::error::Result;
use crate::judge::Verdict;
use crate::record::{SCHEMA, TrialRecord};
use crate::report::tally::is_bad;

/// One row. Field order is column order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    /// [`SCHEMA`].
    pub schema: u32,
    /// `fwd`, `bwd_data`, `bwd_filter`.
    pub direction: String,
    /// Text form of the candidate, knob choices left out.
    pub candidate: String,
    /// Knob type number; empty for the engine's own choices, and for what is no
    /// engine.
    pub knob: Option<u32>,
    /// Value of the knob.
    pub value: Option<i64>,
    /// Trials with it.
    pub trials: u64,
    /// Ran to a verdict.
    pub ran: u64,
    /// Of these, every judged output right.
    pub passed: u64,
    /// Failed, crashed or timed out.
    pub bad: u64,
    /// Did not run, for a good reason.
    pub skipped: u64,
}

/// Direction, candidate without knobs, and a knob with its value.
type Key = (String, String, Option<(u32, i64)>);

/// Counts of a run.
#[derive(Clone, Debug, Default)]
pub struct Coverage {
    rows: BTreeMap<Key, Row>,
}

impl Coverage {
    /// Counts a trial for every knob it sets.
    pub fn add(&mut self, record: &TrialRecord) -> Result<()> {
        let verdict = record.parsed_verdict()?;
        let (candidate, knobs) = match record.candidate.parse() {
            Ok(Candidate::Engine { index, knobs }) => (format!("engine:{index}"), knobs),
            _ => (record.candidate.clone(), Vec::new()),
        };
        let set = knobs.into_iter().map(Some);
        let set: Vec<_> = match set.len() {
            0 => vec![None],
            _ => set.collect(),
        };
        for knob in set {
            let key = (record.direction.clone(), candidate.clone(), knob);
            self.rows.entry(key).or_default().count(verdict);
        }
        Ok(())
    }

    /// The rows in order.
    pub fn rows(&self) -> impl Iterator<Item = Row> {
        self.rows
            .iter()
            .map(|((direction, candidate, knob), row)| Row {
                schema: SCHEMA,
                direction: direction.clone(),
                candidate: candidate.clone(),
                knob: knob.map(|k| k.0),
                value: knob.map(|k| k.1),
                ..row.clone()
            })
    }
}

impl Row {
    fn count(&mut self, verdict: Verdict) {
        self.trials += 1;
        match verdict {
            Verdict::Skipped(_) => self.skipped += 1,
            _ => self.ran += 1,
        }
        self.passed += u64::from(verdict == Verdict::Passed);
        self.bad += u64::from(is_bad(verdict));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::{FailureKind, SkipReason};

    fn record(candidate: &str, verdict: Verdict) -> TrialRecord {
        let mut record = TrialRecord {
            candidate: candidate.to_owned(),
            direction: "fwd".to_owned(),
            ..TrialRecord::default()
        };
        record.set_verdict(verdict);
        record
    }

    #[test]
    fn add_counts_every_knob_value_by_verdict() {
        let mut coverage = Coverage::default();
        let failed = Verdict::Failed(FailureKind::Mismatch);
        let declined = Verdict::Skipped(SkipReason::NotSupported);
        for (candidate, verdict) in [
            ("engine:3", Verdict::Passed),
            ("engine:3/2=4/5=1", Verdict::Passed),
            ("engine:3/2=4", failed),
            ("engine:3/2=5", declined),
            ("legacy:1/fma", Verdict::Passed),
        ] {
            coverage.add(&record(candidate, verdict)).unwrap();
        }
        let rows: Vec<_> = coverage
            .rows()
            .map(|r| {
                (
                    r.candidate,
                    r.knob,
                    r.value,
                    r.trials,
                    r.passed,
                    r.bad,
                    r.skipped,
                )
            })
            .collect();
        let engine = |knob, value, counts: [u64; 4]| {
            let [trials, passed, bad, skipped] = counts;
            (
                "engine:3".to_owned(),
                knob,
                value,
                trials,
                passed,
                bad,
                skipped,
            )
        };
        assert_eq!(rows[0], engine(None, None, [1, 1, 0, 0]));
        assert_eq!(rows[1], engine(Some(2), Some(4), [2, 1, 1, 0]));
        assert_eq!(rows[2], engine(Some(2), Some(5), [1, 0, 0, 1]));
        assert_eq!(rows[3], engine(Some(5), Some(1), [1, 1, 0, 0]));
        assert_eq!(rows[4].0, "legacy:1/fma");
    }
}
