//! `convfuzz nightly`: a run against the findings of the nights before.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use clap::Args;
use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;

use crate::campaign::solo::{Solo, Terms};
use crate::candidate::Repro;
use crate::cli::dossier::Dossier;
use crate::cli::exit::Exit;
use crate::cli::interrupt;
use crate::cli::terminal::Terminal;
use crate::error::Result;
use crate::life::config::{Config, DEFAULT};
use crate::life::history::Outcome;
use crate::life::issues::Standing;
use crate::life::night::{self, Minimal, Minimizer, Order, Report};
use crate::life::store::Row;
use crate::minimize::{Options, minimize};

/// Run for a night, and say what is new since the nights before
///
/// Replays the corpus and all findings of the store, generates new problems until
/// its time is over, and brings new findings down to their simplest trial. Exit
/// code 0: clean. 1: a finding is new or has come back. 5: known findings only.
/// 2, 3, 70: could not run; the history says why.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Nightly {
    /// Configuration in TOML
    #[arg(long, value_name = "FILE", required_unless_present = "print_config")]
    config: Option<PathBuf>,
    /// Print the default configuration, each key explained, and end
    #[arg(long)]
    print_config: bool,
    /// Date of the night, which the seed is made of [default: today, UTC]
    #[arg(long, value_name = "YYYY-MM-DD")]
    date: Option<Date>,
    /// Seed of the night, instead of one made of the date
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// Folder of the store, instead of the configuration's
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  convfuzz nightly --print-config > nightly.toml
  convfuzz nightly --config nightly.toml
  convfuzz nightly --config nightly.toml --date 2026-12-01   the cases of that night again";

impl Nightly {
    /// Runs the night and prints what it came to.
    pub fn execute(self, terminal: &Terminal) -> Result<Exit> {
        let Some(path) = self.config.as_ref().filter(|_| !self.print_config) else {
            terminal.print(DEFAULT.trim_end())?;
            return Ok(Exit::Clean);
        };
        let mut config = Config::read(path)?;
        if let Some(out) = &self.out {
            config.store.clone_from(out);
        }
        let stop = interrupt::flag()?;
        let order = Order {
            config: &config,
            date: self.date.unwrap_or_else(today),
            seed: self.seed,
            stop: &stop,
        };
        let report = night::run(&order, &mut Bundler::default(), &mut |text| {
            terminal.note(text);
        })?;
        terminal.print(&text(&report))?;
        Ok(exit(report.row.outcome))
    }
}

fn today() -> Date {
    TimeZone::UTC.to_datetime(Timestamp::now()).date()
}

fn exit(outcome: Outcome) -> Exit {
    match outcome {
        Outcome::NewFinding => Exit::Failures,
        Outcome::KnownOnly => Exit::KnownOnly,
        Outcome::Clean => Exit::Clean,
        Outcome::CouldNotRun => Exit::Environment,
        Outcome::Interrupted => Exit::Interrupted,
    }
}

/// Brings findings down to their simplest trial, and bundles them.
#[derive(Default)]
struct Bundler;

impl Minimizer for Bundler {
    fn minimize(
        &mut self,
        terms: &Terms,
        repro: &Repro,
        folder: &Path,
        known: &BTreeSet<String>,
    ) -> Result<Option<Minimal>> {
        let mut solo = Solo::start(terms.clone())?;
        let options = Options::brief();
        let simplest = Options {
            trigger: None,
            ..options.clone()
        };
        let Some(mut found) = minimize(&mut solo, repro, &simplest, &mut |_| {})? else {
            return Ok(None);
        };
        let line = found.repro.to_string();
        // Another finding came down to the same trial: its bundle shows both.
        if !known.contains(&line) {
            if let Some(effort) = &options.trigger {
                found.find_trigger(&mut solo, effort)?;
            }
            Dossier::of_finding(&found, terms, Some(folder))?.write(folder)?;
        }
        Ok(Some(Minimal {
            repro: line,
            trigger: found.trigger.as_ref().map(ToString::to_string),
            attribution: None,
        }))
    }
}

/// What the user reads in the morning.
fn text(report: &Report) -> String {
    let row = &report.row;
    let mut lines = vec![format!(
        "Night {}, {}, seed {}: {}.",
        row.night,
        row.date,
        row.seed,
        row.outcome.words()
    )];
    lines.extend(report.changed.iter().map(finding));
    lines.extend(
        report
            .stale
            .iter()
            .map(|(reference, standing)| stale(reference, *standing)),
    );
    lines.push(format!(
        "Findings: {} new, {} regressed, {} fixed; {} open ({} flaky); {} marked as known issues.",
        row.new, row.regressed, row.fixed, row.open, row.flaky, row.marked
    ));
    lines.push(format!(
        "{} trials of {} cases, {} lines of the corpus and {} findings: {} passed, {} failed, {} crashed, {} timed out.",
        row.trials, row.cases, row.corpus, row.replayed, row.passed, row.failed, row.crashed, row.timed_out
    ));
    lines.push(format!(
        "All findings: {}. Results: {}",
        report.table.display(),
        report.folder.display()
    ));
    lines.join("\n")
}

fn finding(row: &Row) -> String {
    let line = match row.minimal.as_str() {
        "" => &row.repro,
        minimal => minimal,
    };
    let mut lines = vec![format!(
        "{:<9} {} {} {}d {} {} {} [{}]",
        row.state,
        row.verdict,
        row.direction,
        row.rank,
        row.types,
        row.layout,
        row.candidate,
        row.id
    )];
    if row.rate < 1.0 {
        lines.push(format!("  fails in {:.0}% of its runs", row.rate * 100.0));
    }
    if !row.issue.is_empty() {
        lines.push(format!("  known issue: {}", row.issue));
    }
    lines.push(format!("  {line}"));
    if !row.trigger.is_empty() {
        lines.push(format!("  fails when {}", row.trigger));
    }
    lines.join("\n")
}

fn stale(reference: &str, standing: Standing) -> String {
    let why = match standing {
        Standing::PassesNow => "what it matches passes now",
        _ => "it matches no finding",
    };
    format!("known issue '{reference}': {why}; take it out of the file, or correct it")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_outcomes_have_codes_of_their_own() {
        let codes = [
            (Outcome::Clean, 0),
            (Outcome::NewFinding, 1),
            (Outcome::CouldNotRun, 3),
            (Outcome::KnownOnly, 5),
            (Outcome::Interrupted, 130),
        ];
        for (outcome, code) in codes {
            assert_eq!(exit(outcome).code(), code);
        }
    }

    #[test]
    fn finding_says_rate_issue_and_simplest_line() {
        let mut row = Row {
            state: "new".to_owned(),
            rate: 1.0,
            repro: "long line".to_owned(),
            ..Row::default()
        };
        assert!(finding(&row).ends_with("\n  long line"));
        row.rate = 0.25;
        row.issue = "bug 7".to_owned();
        row.minimal = "short".to_owned();
        let text = finding(&row);
        for part in ["25%", "bug 7", "\n  short"] {
            assert!(text.contains(part), "{part} not in {text}");
        }
        assert!(!text.contains("long line"));
    }
}
