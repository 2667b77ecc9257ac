//! `convfuzz repro`: does a bundle still fail?

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;

use crate::backend::Combination;
use crate::campaign::solo::Solo;
use crate::cli::backend::BackendArgs;
use crate::cli::dossier::TrialArgs;
use crate::cli::exit::Exit;
use crate::cli::given::Given;
use crate::cli::terminal::Terminal;
use crate::error::{Error, Result};
use crate::finding::failure_class;
use crate::record::TrialRecord;
use crate::report::bundle::CaseFile;
use crate::shrink::Rate;

/// Run the case of a bundle again
///
/// Exit code 1 when it still fails, 0 when it is fixed, 4 when only some runs
/// fail, 3 when it cannot be run here. The operands beside case.toml must be the
/// ones it describes.
#[derive(Args, Debug)]
pub struct Again {
    /// The bundle's folder, or its case.toml
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Runs
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    #[command(flatten)]
    trials: TrialArgs,
    #[command(flatten)]
    backend: BackendArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Report<'a> {
    repro: &'a str,
    seen_on: &'a Combination,
    run_on: &'a Combination,
    expected_class: &'a str,
    /// How it failed now, the last time it did.
    class: Option<&'a str>,
    detail: Option<&'a str>,
    rate: Rate,
    /// `fails`, `fixed` or `flaky`.
    state: &'a str,
}

impl Again {
    /// Runs it a few times and says how it went.
    pub fn execute(self, terminal: &Terminal) -> Result<Exit> {
        let case = CaseFile::read(&self.file)?;
        let repro = case.trial()?;
        case.check_tensors(&self.file)?;
        let terms = self.trials.terms(self.backend.chosen(terminal)?);
        let terms = terms.showing(&case.class);
        let mut solo = Solo::start(terms)?;
        Given::of_case(&case)?.warn(terminal, solo.combination());
        let mut failure: Option<TrialRecord> = None;
        let mut rate = Rate { failed: 0, of: 0 };
        for _ in 0..self.runs {
            let record = solo.trial(&repro, case.data.as_ref())?;
            runnable(&record)?;
            rate.of += 1;
            if failure_class(&record).is_some() {
                rate.failed += 1;
                failure = Some(record);
            }
        }
        let class = failure.as_ref().and_then(failure_class);
        let report = Report {
            repro: &case.repro,
            seen_on: &case.combination,
            run_on: solo.combination(),
            expected_class: &case.class,
            class: class.as_deref(),
            detail: failure.as_ref().and_then(|r| r.detail.as_deref()),
            rate,
            state: state(rate),
        };
        match self.json {
            true => terminal.json(&report)?,
            false => terminal.print(&report.text())?,
        }
        Ok(match (rate.flaky(), rate.failed) {
            (true, _) => Exit::Flaky,
            (false, 0) => Exit::Clean,
            (false, _) => Exit::Failures,
        })
    }
}

fn state(rate: Rate) -> &'static str {
    match (rate.flaky(), rate.failed) {
        (true, _) => "flaky",
        (false, 0) => "fixed",
        (false, _) => "fails",
    }
}

/// A skip is no proof that the fault is gone, nor is a result that could not be
/// judged. Reduced data is mostly zero by design: what is not was judged.
fn runnable(record: &TrialRecord) -> Result<()> {
    let proves_nothing = match (record.verdict.as_str(), record.reason.as_deref()) {
        ("skipped", _) => true,
        ("untrusted", reason) => reason != Some("mostly_zero"),
        _ => false,
    };
    if proves_nothing {
        let why = record.detail.as_deref().unwrap_or(&record.verdict);
        return Err(Error::environment(format!(
            "the case cannot be run here: {}: {why}",
            record.candidate
        )));
    }
    Ok(())
}

impl Report<'_> {
    fn text(&self) -> String {
        let Rate { failed, of } = self.rate;
        let how = match (self.class, self.detail) {
            (Some(class), Some(detail))
                if class != self.expected_class && !self.expected_class.is_empty() =>
            {
                format!(
                    "\nit fails another way now ({class}, was {}): {detail}",
                    self.expected_class
                )
            }
            (_, Some(detail)) => format!("\n{detail}"),
            _ => String::new(),
        };
        format!(
            "{}\n{}: {failed} of {of} runs failed{how}",
            self.repro, self.state
        )
    }
}
