//! `history.csv`: one row per night.

use std::path::Path;

use jiff::Timestamp;
use jiff::civil::Date;
use serde::{Deserialize, Serialize};

use super::{SCHEMA, table};
use crate::backend::Combination;
use crate::error::Result;
use crate::report::csv_file;
use crate::report::tally::Tally;

/// File name in a store.
pub const HISTORY: &str = "history.csv";

/// What a night came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Something is new or has come back, and no known issue speaks of it.
    NewFinding,
    /// Findings are open, and all of them were known before.
    KnownOnly,
    /// Nothing is open.
    Clean,
    /// An error ended it, or nothing passed and nothing failed.
    #[default]
    CouldNotRun,
    /// The user stopped it.
    Interrupted,
}

impl Outcome {
    /// In words.
    pub fn words(self) -> &'static str {
        match self {
            Outcome::NewFinding => "new finding",
            Outcome::KnownOnly => "known findings only",
            Outcome::Clean => "clean",
            Outcome::CouldNotRun => "could not run",
            Outcome::Interrupted => "interrupted",
        }
    }
}

/// One night. Field order is column order.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Number of the night, from 1.
    pub night: u32,
    /// Its date, as the clock or `--date` had it.
    pub date: Date,
    /// What it came to.
    pub outcome: Outcome,
    /// Start, UTC.
    pub started: Timestamp,
    /// How long it took, seconds.
    pub seconds: f64,
    /// As in `environment.json`.
    pub backend: String,
    /// As in `environment.json`.
    pub device: String,
    /// As in `environment.json`.
    pub sm: String,
    /// As in `environment.json`.
    pub driver: String,
    /// As in `environment.json`.
    pub cudnn: String,
    /// As in `environment.json`.
    pub cuda: String,
    /// As in `environment.json`.
    pub convfuzz: String,
    /// Seed of the night.
    pub seed: u64,
    /// Generated problems.
    pub cases: u64,
    /// Trials, replays included.
    pub trials: u64,
    /// Of these, passed.
    pub passed: u64,
    /// Failed.
    pub failed: u64,
    /// Skipped.
    pub skipped: u64,
    /// Untrusted.
    pub untrusted: u64,
    /// Crashed.
    pub crashed: u64,
    /// Timed out.
    pub timed_out: u64,
    /// Lines of the corpus that were run.
    pub corpus: u64,
    /// Findings whose lines were replayed.
    pub replayed: u64,
    /// Findings first seen this night.
    pub new: u64,
    /// Findings that came back this night.
    pub regressed: u64,
    /// Of these two, marked by a known issue.
    pub marked: u64,
    /// Findings fixed this night.
    pub fixed: u64,
    /// Findings that are open after it.
    pub open: u64,
    /// Of these, flaky.
    pub flaky: u64,
    /// Findings brought to their simplest trial.
    pub minimized: u64,
    /// Known issues that match nothing, or what passes now.
    pub stale_issues: u64,
    /// Why it could not run.
    pub detail: String,
}

impl Row {
    /// The row of a night that starts now.
    pub fn begin(night: u32, date: Date, seed: u64) -> Self {
        Row {
            schema: SCHEMA,
            night,
            date,
            seed,
            started: Timestamp::now(),
            ..Row::default()
        }
    }

    /// Takes over what it runs on.
    pub fn on(&mut self, combination: &Combination) {
        self.backend.clone_from(&combination.backend);
        self.device.clone_from(&combination.device);
        self.sm.clone_from(&combination.sm);
        self.driver.clone_from(&combination.driver);
        self.cudnn.clone_from(&combination.cudnn);
        self.cuda.clone_from(&combination.cuda);
        self.convfuzz.clone_from(&combination.convfuzz);
    }

    /// Takes over the counts of trials.
    pub fn count(&mut self, tally: &Tally) {
        self.trials = tally.trials;
        self.passed = tally.passed;
        self.failed = tally.failed;
        self.skipped = tally.skipped;
        self.untrusted = tally.untrusted;
        self.crashed = tally.crashed;
        self.timed_out = tally.timed_out;
    }
}

/// The nights of a store.
pub fn read(store: &Path) -> Result<Vec<Row>> {
    table::rows(&store.join(HISTORY))
}

/// Writes them.
pub fn write(store: &Path, rows: &[Row]) -> Result<()> {
    csv_file::replace(&store.join(HISTORY), &csv_file::table(rows)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn write_rows_read_back_and_damage_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let mut row = Row::begin(1, "2026-12-01".parse().unwrap(), 7);
        row.detail = "no GPU, \"really\"".to_owned();
        assert_eq!(read(folder.path()).unwrap(), []);
        write(folder.path(), &[row.clone()]).unwrap();
        assert_eq!(read(folder.path()).unwrap(), [row]);
        let path = folder.path().join(HISTORY);
        let whole = std::fs::read_to_string(&path).unwrap();
        for (damage, word) in [("1,1,\n", "damaged"), ("9,1\n", "line"), ("x", "line")] {
            std::fs::write(&path, format!("{whole}{damage}")).unwrap();
            let error = read(folder.path()).unwrap_err();
            assert_eq!(error.exit_code(), 2);
            assert!(error.to_string().contains(word), "{error}");
        }
        std::fs::write(&path, whole.replacen("\n1,", "\n9,", 1)).unwrap();
        let error = read(folder.path()).unwrap_err().to_string();
        assert!(error.contains("schema 9"), "{error}");
    }
}
