//! `convfuzz examine`: is the harness able to fail, and quiet otherwise?

use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;

use crate::campaign::examine::{self, Budget, Row};
use crate::cli::exit::Exit;
use crate::cli::soundness;
use crate::cli::terminal::Terminal;
use crate::error::{Error, Result};
use crate::record::TrialRecord;
use crate::report::table::{Cell, Mood, Table};

/// Plant every fault in the host backend and see whether it is caught
///
/// Each fault is hunted under each seed until it is caught or the budget is
/// spent; then as many problems are run with no fault planted, where nothing may
/// be found. Ends with 1 when a fault was missed under more than one seed in 20,
/// or anything was found where nothing is. With --soundness, ends with 1 when
/// any output of an honest algorithm was outside its bound.
#[derive(Args, Debug)]
pub struct Examine {
    /// Seeds per fault
    #[arg(long, value_name = "N", default_value_t = 20)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
    /// Generated problems per seed, at most
    #[arg(long, value_name = "N", default_value_t = 300)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    cases: u64,
    /// Also write the table to this CSV file
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Instead, run the honest algorithms until N outputs of every fill were
    /// judged, and tell how near they come to their bounds
    #[arg(long, value_name = "N", conflicts_with_all = ["seeds", "cases"])]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    soundness: Option<u64>,
}

impl Examine {
    /// Runs both halves and prints the table.
    pub fn execute(self, terminal: &Terminal) -> Result<Exit> {
        if let Some(outputs) = self.soundness {
            return soundness::execute(terminal, outputs, self.csv.as_deref());
        }
        let budget = Budget {
            seeds: self.seeds,
            cases: self.cases,
        };
        let rows = examine::faults(budget)?;
        terminal.table(&table(&rows))?;
        if let Some(path) = &self.csv {
            write_csv(path, &rows)?;
        }
        let (trials, findings) = examine::honest(budget)?;
        for record in &findings {
            terminal.print(&finding(record))?;
        }
        let failed = findings.iter().filter(|r| r.verdict == "failed").count();
        let suspects = findings.len() - failed;
        let missed = rows.iter().filter(|row| missed(row)).count();
        terminal.print(&format!(
            "{} of {} faults caught under at least 19 of 20 seeds; without a fault {trials} trials: {failed} failed, {suspects} suspect",
            rows.len() - missed,
            rows.len(),
        ))?;
        Ok(if missed + failed == 0 {
            Exit::Clean
        } else {
            Exit::Failures
        })
    }
}

/// Whether more than one seed in 20 did not catch it.
fn missed(row: &Row) -> bool {
    (row.seeds - row.caught) * 20 > row.seeds
}

fn finding(record: &TrialRecord) -> String {
    let kind = if record.suspect { "suspect" } else { "FAILED" };
    format!("{kind} without a fault: {}", record.repro)
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new(&[
        "fault",
        ">caught",
        ">median cases",
        ">most cases",
        "caught as",
        "regimes",
    ]);
    let count = |n: Option<u64>| n.map(|n| n.to_string()).unwrap_or_default();
    for row in rows {
        let mood = if missed(row) { Mood::Bad } else { Mood::Good };
        table.row(vec![
            row.fault.as_str().into(),
            Cell::new(format!("{}/{}", row.caught, row.seeds), mood),
            count(row.median_cases).into(),
            count(row.most_cases).into(),
            row.kinds.as_str().into(),
            row.regimes.as_str().into(),
        ]);
    }
    table
}

/// Writes rows as a CSV file.
pub fn write_csv<T: Serialize>(path: &Path, rows: &[T]) -> Result<()> {
    let failed =
        |e: csv::Error| Error::output(format!("cannot write {}", path.display())).with_source(e);
    let mut writer = csv::Writer::from_path(path).map_err(failed)?;
    rows.iter()
        .try_for_each(|row| writer.serialize(row))
        .map_err(failed)?;
    writer.flush().map_err(|e| failed(e.into()))
}
