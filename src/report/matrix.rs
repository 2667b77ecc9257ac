//! `matrix.csv`: support and worst errors per candidate and configuration, the
//! table that release notes quote.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::judge::{FailureKind, Verdict};
use crate::record::{SCHEMA, TrialRecord, measured};
use crate::report::tally::{is_bad, larger};

/// One row of the matrix. Field order is column order.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Text form of the candidate, knob choices left out.
    pub candidate: String,
    /// `fwd`, `bwd_data`, `bwd_filter`.
    pub direction: String,
    /// Tensor types as in the repro line.
    pub types: String,
    /// Compute type.
    pub compute: String,
    /// Memory layout.
    pub layout: String,
    /// Spatial dimensions, 1 to 3.
    pub rank: u8,
    /// What the fills can prove.
    pub regime: String,
    /// Trials, however they ended.
    pub trials: u64,
    /// Every judged output right.
    pub passed: u64,
    /// Something wrong, proven; the sum of the failure columns that follow.
    pub failed: u64,
    /// [`FailureKind::ExecutionFailed`].
    pub execution_failed: u64,
    /// [`FailureKind::OutOfBoundsWrite`].
    pub out_of_bounds_write: u64,
    /// [`FailureKind::InputChanged`].
    pub input_changed: u64,
    /// [`FailureKind::Unwritten`].
    pub unwritten: u64,
    /// [`FailureKind::WrongNan`].
    pub wrong_nan: u64,
    /// [`FailureKind::WrongInfinity`].
    pub wrong_infinity: u64,
    /// [`FailureKind::Mismatch`].
    pub mismatch: u64,
    /// [`FailureKind::OutOfBound`], [`FailureKind::Metamorphic`] and
    /// [`FailureKind::OddStrides`].
    pub out_of_bound: u64,
    /// [`FailureKind::UninitialisedRead`].
    pub uninitialised_read: u64,
    /// [`FailureKind::Nondeterministic`].
    pub nondeterministic: u64,
    /// [`FailureKind::Undeclared`].
    pub undeclared: u64,
    /// Did not run, for a good reason.
    pub skipped: u64,
    /// Ran, but proves nothing.
    pub untrusted: u64,
    /// Took the worker process down.
    pub crashed: u64,
    /// Did not end in time.
    pub timed_out: u64,
    /// Of all trials, marked suspect.
    pub suspects: u64,
    /// Further runs in all trials that were to give the same bits.
    pub repeats: u64,
    /// Of these, with other bits than the first run of the trial. Failures, unless
    /// the candidate is declared nondeterministic.
    pub varied: u64,
    /// Largest error in ulps of the result type; empty when none was measured.
    #[serde(with = "measured")]
    pub max_ulp: Option<f64>,
    /// Largest error as a share of its bound; empty when none was measured.
    #[serde(with = "measured")]
    pub max_ratio: Option<f64>,
    /// The trial with the worst end: one that failed, crashed or hung if there
    /// is any, else the one with the largest ratio; empty when none ran.
    pub worst_repro: Option<String>,
}

impl Row {
    fn new(record: &TrialRecord) -> Self {
        Row {
            schema: SCHEMA,
            candidate: without_knobs(&record.candidate).to_owned(),
            direction: record.direction.clone(),
            types: record.types.clone(),
            compute: record.compute.clone(),
            layout: record.layout.clone(),
            rank: record.rank,
            regime: record.regime.clone(),
            ..Row::default()
        }
    }

    fn count(&mut self, verdict: Verdict) {
        self.trials += 1;
        match verdict {
            Verdict::Passed => self.passed += 1,
            Verdict::Failed(kind) => {
                self.failed += 1;
                *self.failure(kind) += 1;
            }
            Verdict::Skipped(_) => self.skipped += 1,
            Verdict::Untrusted(_) => self.untrusted += 1,
            Verdict::Crashed => self.crashed += 1,
            Verdict::TimedOut => self.timed_out += 1,
        }
    }

    fn failure(&mut self, kind: FailureKind) -> &mut u64 {
        match kind {
            FailureKind::ExecutionFailed => &mut self.execution_failed,
            FailureKind::OutOfBoundsWrite => &mut self.out_of_bounds_write,
            FailureKind::InputChanged => &mut self.input_changed,
            FailureKind::Unwritten => &mut self.unwritten,
            FailureKind::WrongNan => &mut self.wrong_nan,
            FailureKind::WrongInfinity => &mut self.wrong_infinity,
            FailureKind::Mismatch => &mut self.mismatch,
            FailureKind::OutOfBound | FailureKind::Metamorphic | FailureKind::OddStrides => {
                &mut self.out_of_bound
            }
            FailureKind::UninitialisedRead => &mut self.uninitialised_read,
            FailureKind::Nondeterministic => &mut self.nondeterministic,
            FailureKind::Undeclared => &mut self.undeclared,
        }
    }

    fn worsen(&mut self, record: &TrialRecord) {
        self.suspects += u64::from(record.suspect);
        self.repeats += u64::from(record.repeats.unwrap_or(0));
        self.varied += u64::from(record.varied.unwrap_or(0));
        self.max_ulp = larger(self.max_ulp, record.max_ulp);
        self.max_ratio = larger(self.max_ratio, record.max_ratio);
    }
}

/// The matrix of any number of trials, in a fixed order of rows.
#[derive(Clone, Debug, Default)]
pub struct Matrix {
    cells: BTreeMap<Key, Cell>,
}

/// The key columns of a row.
type Key = ([String; 6], u8);

#[derive(Clone, Debug)]
struct Cell {
    row: Row,
    /// How bad the trial in `worst_repro` is.
    worst: Badness,
}

/// Whether a trial went wrong, then its ratio.
type Badness = (bool, f64);

impl Matrix {
    /// Counts one trial.
    pub fn add(&mut self, record: &TrialRecord) -> Result<()> {
        let verdict = record.parsed_verdict()?;
        let cell = self.cells.entry(key(record)).or_insert_with(|| Cell {
            row: Row::new(record),
            worst: (false, f64::NEG_INFINITY),
        });
        cell.row.count(verdict);
        cell.row.worsen(record);
        cell.keep_worst(record, verdict);
        Ok(())
    }

    /// All rows, ordered by their key columns.
    pub fn rows(&self) -> impl Iterator<Item = &Row> {
        self.cells.values().map(|cell| &cell.row)
    }
}

impl Cell {
    fn keep_worst(&mut self, record: &TrialRecord, verdict: Verdict) {
        if !is_bad(verdict) && record.max_ratio.is_none() {
            return;
        }
        let badness = (is_bad(verdict), record.max_ratio.unwrap_or(0.0));
        if self.row.worst_repro.is_none() || badness > self.worst {
            self.worst = badness;
            self.row.worst_repro = Some(record.repro.clone());
        }
    }
}

fn key(record: &TrialRecord) -> Key {
    let words = [
        without_knobs(&record.candidate),
        &record.direction,
        &record.types,
        &record.compute,
        &record.layout,
        &record.regime,
    ];
    (words.map(str::to_owned), record.rank)
}

/// Engines have up to 10^11 knob choices; a matrix speaks of the engine.
fn without_knobs(candidate: &str) -> &str {
    match candidate.strip_prefix("engine:") {
        Some(_) => candidate.split('/').next().unwrap_or(candidate),
        None => candidate,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::SkipReason;
    use proptest::prelude::*;

    fn record(candidate: &str, verdict: Verdict, ratio: Option<f64>) -> TrialRecord {
        let mut record = TrialRecord {
            candidate: candidate.to_owned(),
            repro: format!("{ratio:?} {verdict:?}"),
            max_ratio: ratio,
            ..TrialRecord::default()
        };
        record.set_verdict(verdict);
        record
    }

    fn matrix(records: &[TrialRecord]) -> Vec<Row> {
        let mut matrix = Matrix::default();
        records.iter().for_each(|r| matrix.add(r).unwrap());
        matrix.rows().cloned().collect()
    }

    #[test]
    fn add_engines_with_knobs_share_a_row() {
        let rows = matrix(&[
            record("engine:4/2=1", Verdict::Passed, Some(0.1)),
            record("engine:4", Verdict::Passed, Some(0.2)),
            record("legacy:1/fma", Verdict::Passed, Some(0.3)),
            record("legacy:1/default", Verdict::Passed, Some(0.3)),
        ]);
        let names: Vec<_> = rows.iter().map(|r| (&*r.candidate, r.trials)).collect();
        let expected = [
            ("engine:4", 2),
            ("legacy:1/default", 1),
            ("legacy:1/fma", 1),
        ];
        assert_eq!(names, expected);
    }

    #[test]
    fn add_a_crash_is_worse_than_any_ratio() {
        let rows = matrix(&[
            record("a", Verdict::Passed, Some(0.9)),
            record("a", Verdict::Crashed, None),
            record("a", Verdict::Passed, Some(0.95)),
        ]);
        assert_eq!(rows[0].worst_repro.as_deref(), Some("None Crashed"));
        assert_eq!(rows[0].max_ratio, Some(0.95));
    }

    #[test]
    fn add_skips_alone_leave_errors_empty() {
        let skip = Verdict::Skipped(SkipReason::NotSupported);
        let rows = matrix(&[record("a", skip, None)]);
        assert_eq!((rows[0].trials, rows[0].skipped), (1, 1));
        assert_eq!((rows[0].max_ulp, rows[0].max_ratio), (None, None));
        assert_eq!(rows[0].worst_repro, None);
    }

    /// Every verdict there is, built from its columns.
    fn any_verdict() -> impl Strategy<Value = Verdict> {
        use crate::judge::UntrustedReason as U;
        prop::sample::select(vec![
            Verdict::Passed,
            Verdict::Failed(FailureKind::ExecutionFailed),
            Verdict::Failed(FailureKind::OutOfBoundsWrite),
            Verdict::Failed(FailureKind::InputChanged),
            Verdict::Failed(FailureKind::Unwritten),
            Verdict::Failed(FailureKind::WrongNan),
            Verdict::Failed(FailureKind::WrongInfinity),
            Verdict::Failed(FailureKind::Mismatch),
            Verdict::Failed(FailureKind::OutOfBound),
            Verdict::Failed(FailureKind::Metamorphic),
            Verdict::Failed(FailureKind::UninitialisedRead),
            Verdict::Failed(FailureKind::Nondeterministic),
            Verdict::Failed(FailureKind::Undeclared),
            Verdict::Skipped(SkipReason::OutOfMemory),
            Verdict::Untrusted(U::BoundTooWide),
            Verdict::Crashed,
            Verdict::TimedOut,
        ])
    }

    proptest! {
        #[test]
        fn add_any_trials_counts_add_up(verdicts in prop::collection::vec((0..3u8, any_verdict()), 1..60)) {
            let records: Vec<_> = verdicts
                .iter()
                .map(|(name, verdict)| record(&format!("host:{name}"), *verdict, None))
                .collect();
            let rows = matrix(&records);
            prop_assert_eq!(rows.iter().map(|r| r.trials).sum::<u64>(), records.len() as u64);
            for row in rows {
                let ends = row.passed + row.failed + row.skipped + row.untrusted + row.crashed + row.timed_out;
                prop_assert_eq!(row.trials, ends);
                let kinds = row.execution_failed + row.out_of_bounds_write + row.input_changed
                    + row.unwritten + row.wrong_nan + row.wrong_infinity + row.mismatch
                    + row.out_of_bound + row.uninitialised_read + row.nondeterministic + row.undeclared;
                prop_assert_eq!(row.failed, kinds);
            }
        }
    }
}
