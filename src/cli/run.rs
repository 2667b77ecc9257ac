//! `convfuzz run`: one case, judged, with every figure shown.

use clap::Args;
use serde::Serialize;

use crate::backend::Combination;
use crate::candidate::Repro;
use crate::cli::backend::BackendArgs;
use crate::cli::exit::Exit;
use crate::cli::terminal::Terminal;
use crate::dtype::DType;
use crate::error::Result;
use crate::record::{TrialRecord, measured};
use crate::report::summary::Summary;
use crate::report::table::{Cell, Mood, Table};
use crate::study::means::{Baseline, Measured};
use crate::trial::{self, Event, TrialOptions};

/// Run one case on all candidates, or on the one in via=
///
/// Beside each verdict stands the mean |y - exact|: the mean over the outputs
/// of the distance to the exact value of the same data. --against TYPE adds the
/// mean distance to the exact result of the same random draws rounded to TYPE
/// instead: with fp16 data, '--against fp32' is the mean |y16 - y32| that users
/// report when they compare mixed precision with single precision.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Run {
    /// The repro line, such as 'fwd c=64 k=32 in=14x14 ker=3x3 type=fp16 fill=normal:7'
    #[arg(required = true, value_name = "REPRO LINE")]
    words: Vec<String>,
    /// Also compare with the exact result of the same draws in these types
    #[arg(long, value_name = "TYPE", value_delimiter = ',')]
    against: Vec<DType>,
    /// Further runs of each candidate, compared bit for bit
    #[arg(long, value_name = "N", default_value_t = 0)]
    repeats: u32,
    #[command(flatten)]
    backend: BackendArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

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
        let repro: Repro = self.words.join(" ").parse()?;
        let mut backend = self.backend.open(terminal)?;
        let references = self.references(&repro);
        let basis = references[0].basis();
        let mut measured = Measured::new(&mut *backend, references);
        let trials = self.trials(&repro, &mut measured)?;
        let mut summary = Summary::default();
        trials.iter().try_for_each(|t| summary.add(&t.record))?;
        if self.json {
            terminal.json(&Report {
                repro: repro.to_string(),
                combination: backend.combination(),
                means_over: basis,
                trials,
            })?;
        } else {
            self.print(terminal, &repro, &basis, &trials)?;
        }
        if summary.tally.trials == summary.tally.skipped {
            terminal.note("nothing ran: a skip is not a pass");
        }
        Ok(match summary.tally.bad() {
            0 => Exit::Clean,
            _ => Exit::Failures,
        })
    }

    fn references(&self, repro: &Repro) -> Vec<Baseline> {
        let types = self.against.iter().copied().map(Some);
        std::iter::once(None)
            .chain(types)
            .map(|dtype| Baseline::exact(&repro.problem, repro.fill, dtype))
            .collect()
    }

    fn trials(&self, repro: &Repro, backend: &mut Measured<'_>) -> Result<Vec<Trial>> {
        let options = TrialOptions {
            repeats: self.repeats,
            outputs: JUDGED,
            ..TrialOptions::default()
        };
        let mut records = Vec::new();
        trial::run_case(backend, repro, &options, &mut |event| {
            if let Event::Done(record) = event {
                records.push(record);
            }
        })?;
        let with_means = |record| self.trial(record, backend);
        Ok(records.into_iter().map(with_means).collect())
    }

    fn trial(&self, record: TrialRecord, backend: &Measured<'_>) -> Trial {
        let means = backend.means(&record.candidate);
        let mean = |i: usize| means.get(i).copied().flatten();
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
            if let (Some(detail), "failed") = (&record.detail, record.verdict.as_str()) {
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
