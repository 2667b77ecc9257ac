//! `convfuzz run`: one case, judged, with every figure shown.

use std::time::Duration;

use clap::Args;
use serde::Serialize;

use crate::backend::Combination;
use crate::backend::open::BackendSpec;
use crate::campaign::means::{Mean, Means};
use crate::campaign::seat::{Ran, Seat, Unwatched};
use crate::campaign::solo::{Settled, Terms};
use crate::candidate::Repro;
use crate::cli::backend::BackendArgs;
use crate::cli::exit::Exit;
use crate::cli::fuzz::duration;
use crate::cli::given::Given;
use crate::cli::terminal::Terminal;
use crate::dtype::DType;
use crate::error::Result;
use crate::record::{TrialRecord, measured};
use crate::report::summary::Summary;
use crate::report::table::{Cell, Mood, Table};

/// Run one case on all candidates, or on the one in via=
///
/// Beside each verdict stands the mean |y - exact|: the mean over the outputs
/// of the distance to the exact value of the same data. --against TYPE adds the
/// mean distance to the exact result of the same random draws rounded to TYPE
/// instead: with fp16 data, '--against fp32' is the mean |y16 - y32| that users
/// report when they compare mixed precision with single precision. Trials run in
/// a process of their own: one that crashes or hangs is recorded as such.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Run {
    /// The repro line, such as 'fwd c=64 k=32 in=14x14 ker=3x3 type=fp16 fill=normal:7', or a bundle
    #[arg(required = true, value_name = "REPRO LINE")]
    words: Vec<String>,
    /// Also compare with the exact result of the same draws in these types
    #[arg(long, value_name = "TYPE", value_delimiter = ',')]
    against: Vec<DType>,
    /// Further runs of each candidate, compared bit for bit
    #[arg(long, value_name = "N", default_value_t = 0)]
    repeats: u32,
    /// Longest time for one trial, its judging included
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "10m")]
    timeout: Duration,
    #[command(flatten)]
    backend: BackendArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What means are over where nothing ran.
const NOTHING: &str = "no outputs: nothing ran";

/// Most outputs judged: one case may take longer than one of many, and all
/// outputs at once are judged faster than a large sample.
const JUDGED: usize = 1 << 22;

const EXAMPLES: &str = "\
Examples:
  convfuzz run 'fwd c=64 k=32 in=14x14 ker=3x3 type=fp16 fill=normal:7'
  convfuzz run 'fwd c=8 k=8 in=9 ker=3 fill=ints:1 via=legacy:1/fma' --repeats 5
  convfuzz run --against fp32 'fwd n=4 c=512 k=128 in=8x16x16 ker=3x1x1 pad=1x0x0 type=fp16'";

/// What `--json` prints.
#[derive(Serialize)]
struct Report<'a> {
    repro: String,
    combination: &'a Combination,
    means_over: String,
    trials: Vec<Trial>,
}

/// One trial with its means.
#[derive(Serialize)]
struct Trial {
    #[serde(flatten)]
    record: TrialRecord,
    /// Mean |y − exact|.
    #[serde(with = "measured")]
    mean_error: Option<f64>,
    /// The same against other types, as asked for.
    against: Vec<Against>,
}

/// Mean |y − exact result of the same draws in another type|.
#[derive(Serialize)]
struct Against {
    #[serde(rename = "type")]
    dtype: DType,
    #[serde(with = "measured")]
    mean_error: Option<f64>,
}

impl Run {
    /// Runs, judges and prints.
    pub fn execute(self, terminal: &Terminal) -> Result<Exit> {
        let given = Given::read(&self.words)?;
        let repro = given.filled()?;
        let Settled {
            backend,
            combination,
            ..
        } = self.backend.settled(terminal)?;
        given.warn(terminal, &combination);
        let ran = self.trials(repro, backend)?;
        let basis = ran.means.first().map_or(NOTHING, |m| &m.basis).to_owned();
        let trials = self.with_means(ran);
        let mut summary = Summary::default();
        trials.iter().try_for_each(|t| summary.add(&t.record))?;
        if self.json {
            terminal.json(&Report {
                repro: repro.to_string(),
                combination: &combination,
                means_over: basis,
                trials,
            })?;
        } else {
            self.print(terminal, repro, &basis, &trials)?;
        }
        if summary.tally.trials == summary.tally.skipped {
            terminal.note("nothing ran: a skip is not a pass");
        }
        Ok(match summary.tally.bad() {
            0 => Exit::Clean,
            _ => Exit::Failures,
        })
    }

    fn trials(&self, repro: &Repro, backend: BackendSpec) -> Result<Ran> {
        let mut seat = Seat::new(Terms {
            timeout: self.timeout,
            repeats: self.repeats,
            outputs: JUDGED,
            ..Terms::of(backend)
        });
        let types = self.against.iter().copied().map(Some);
        let against: Vec<_> = std::iter::once(None).chain(types).collect();
        seat.case(repro, &[], &against, &mut Unwatched)
    }

    fn with_means(&self, ran: Ran) -> Vec<Trial> {
        let means = ran.means;
        let records = ran.records.into_iter();
        records.map(|record| self.trial(record, &means)).collect()
    }

    fn trial(&self, record: TrialRecord, means: &[Means]) -> Trial {
        let own = means.iter().find(|m| m.candidate == record.candidate);
        let mean = |i: usize| own.and_then(|m| m.values.get(i)).and_then(|&Mean(v)| v);
        let against = self.against.iter().enumerate();
        Trial {
            mean_error: mean(0),
            against: against
                .map(|(i, &dtype)| Against {
                    dtype,
                    mean_error: mean(i + 1),
                })
                .collect(),
            record,
        }
    }

    fn print(
        &self,
        terminal: &Terminal,
        repro: &Repro,
        basis: &str,
        trials: &[Trial],
    ) -> Result<()> {
        terminal.print(&repro.to_string())?;
        terminal.table(&self.table(trials))?;
        terminal.print(&format!("Means are over {basis}."))?;
        for trial in trials {
            let record = &trial.record;
            let bad = matches!(record.verdict.as_str(), "failed" | "crashed" | "timed_out");
            if let (Some(detail), true) = (&record.detail, bad) {
                terminal.print(&format!("\n{}\n{detail}", record.repro))?;
            }
        }
        Ok(())
    }

    fn table(&self, trials: &[Trial]) -> Table {
        let against = self.against.iter();
        let against: Vec<_> = against.map(|t| format!(">mean |y - {t} exact|")).collect();
        let mut headings = vec![
            "candidate",
            "verdict",
            ">wrong",
            ">judged",
            ">max ulp",
            ">max error/bound",
            ">mean |y - exact|",
        ];
        headings.extend(against.iter().map(String::as_str));
        headings.extend([">library ms", "notes"]);
        let mut table = Table::new(&headings);
        for trial in trials {
            table.row(row(trial));
        }
        table
    }
}

fn row(trial: &Trial) -> Vec<Cell> {
    let record = &trial.record;
    let count = |n: Option<u64>| n.map(|n| n.to_string()).unwrap_or_default();
    let mut cells = vec![
        record.candidate.as_str().into(),
        verdict(record),
        count(record.wrong).into(),
        count(record.judged).into(),
        Cell::measured(record.max_ulp),
        Cell::measured(record.max_ratio),
        Cell::measured(trial.mean_error),
    ];
    cells.extend(trial.against.iter().map(|a| Cell::measured(a.mean_error)));
    cells.push(Cell::measured(record.library_ms));
    cells.push(note(record).into());
    cells
}

fn verdict(record: &TrialRecord) -> Cell {
    let mood = match record.verdict.as_str() {
        "passed" if record.suspect => Mood::Warn,
        "passed" => Mood::Good,
        "skipped" => Mood::Plain,
        "untrusted" => Mood::Warn,
        _ => Mood::Bad,
    };
    let suspect = if record.suspect { ", suspect" } else { "" };
    let reason = record.reason.as_ref().map(|r| format!(": {r}"));
    let text = format!("{}{}{suspect}", record.verdict, reason.unwrap_or_default());
    Cell::new(text, mood)
}

/// Why it was skipped, else what it declares.
fn note(record: &TrialRecord) -> &str {
    match (&record.detail, record.verdict.as_str()) {
        (Some(detail), "skipped") => detail,
        _ => &record.notes,
    }
}
