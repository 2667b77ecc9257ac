//! `convfuzz diff`: what changed between two results folders.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::cli::exit::Exit;
use crate::cli::terminal::Terminal;
use crate::compare::diff::Diff;
use crate::compare::difference::{Change, Difference, Subject};
use crate::compare::run::Run;
use crate::error::Result;
use crate::report::csv_file;
use crate::report::table::{Cell, Mood, Table, short};

/// Compare two results folders: another cuDNN, driver or GPU, or two nights
///
/// Lists support gained and lost, findings new and gone, worst errors that
/// changed beyond noise, and engine indices that changed meaning, as Markdown fit
/// for release notes. Runs with the same seed and options compare best: they make
/// the same trials. Ends with 1 when support was lost or a finding is new.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct DiffRuns {
    /// The results folder to compare with
    #[arg(value_name = "A")]
    before: PathBuf,
    /// The results folder to judge
    #[arg(value_name = "B")]
    after: PathBuf,
    /// Form of the output
    #[arg(long, value_enum, default_value_t, value_name = "FORM")]
    format: Format,
    /// Also write every difference to this CSV file
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  convfuzz diff results/cudnn9.14 results/cudnn9.19
  convfuzz diff yesterday today --csv changes.csv > changes.md";

/// Form of the output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Markdown
    #[default]
    Md,
    /// Tables for a terminal
    Table,
    /// CSV, one row per difference
    Csv,
}

impl DiffRuns {
    /// Compares, prints and writes.
    pub fn execute(self, terminal: &Terminal) -> Result<Exit> {
        let (a, b) = (Run::open(&self.before)?, Run::open(&self.after)?);
        let diff = Diff::between(&a, &b)?;
        let csv = csv_file::table(&diff.differences)?;
        if let Some(path) = &self.csv {
            csv_file::replace(path, &csv)?;
        }
        match self.format {
            Format::Csv => terminal.print(String::from_utf8_lossy(&csv).trim_end())?,
            Format::Md => terminal.print(document(&a, &b, &diff, &Table::markdown).trim_end())?,
            Format::Table => {
                let draw = |table: &Table| terminal.draw(table) + "\n";
                terminal.print(document(&a, &b, &diff, &draw).trim_end())?;
            }
        }
        Ok(match diff.is_alarm() {
            true => Exit::Failures,
            false => Exit::Clean,
        })
    }
}

/// Sections in the order of a reader's interest: what to act on comes first.
const SECTIONS: [(Subject, Change, &str); 10] = [
    (Subject::Support, Change::Lost, "Support lost"),
    (Subject::Finding, Change::New, "New findings"),
    (Subject::Finding, Change::Gone, "Findings gone"),
    (Subject::Error, Change::Worse, "Errors larger"),
    (Subject::Error, Change::Better, "Errors smaller"),
    (Subject::Support, Change::Gained, "Support gained"),
    (
        Subject::Engine,
        Change::Changed,
        "Engine indices with another meaning",
    ),
    (
        Subject::Engine,
        Change::Unsure,
        "Engine indices that may have another meaning",
    ),
    (Subject::Combination, Change::Changed, "Combination"),
    (Subject::Run, Change::Changed, "How the runs were made"),
];

type Draw<'a> = &'a dyn Fn(&Table) -> String;

fn document(a: &Run, b: &Run, diff: &Diff, draw: Draw) -> String {
    let mut text = format!("# Comparison\n\n{}{}\n", side("A", a), side("B", b));
    text.push_str(&summary(diff));
    for (subject, change, title) in SECTIONS {
        let rows: Vec<_> = diff.select(subject, change).collect();
        if !rows.is_empty() {
            let table = draw(&table(subject, &rows));
            text.push_str(&format!("\n## {title} ({})\n\n{table}", rows.len()));
        }
    }
    text
}

fn side(name: &str, run: &Run) -> String {
    let c = &run.environment.combination;
    let parts = [
        ("", &c.device),
        ("driver ", &c.driver),
        ("cuDNN ", &c.cudnn),
        ("CUDA ", &c.cuda),
        ("convfuzz ", &c.convfuzz),
    ];
    let known = parts.iter().filter(|(_, value)| !value.is_empty());
    let words: Vec<_> = known
        .map(|(word, value)| format!("{word}{value}"))
        .collect();
    format!(
        "- {name}: `{}`: {}; seed {}, {} trials, {}\n",
        run.name(),
        words.join(", "),
        run.environment.seed,
        run.trials.len(),
        if run.is_complete() {
            "completed"
        } else {
            "not completed"
        },
    )
}

fn summary(diff: &Diff) -> String {
    let count = |subject, change| diff.select(subject, change).count();
    format!(
        "Support: {} lost, {} gained. Findings: {} new, {} gone. Errors beyond noise: {} larger, {} smaller. Engine indices: {} changed, {} unsure.\n",
        count(Subject::Support, Change::Lost),
        count(Subject::Support, Change::Gained),
        count(Subject::Finding, Change::New),
        count(Subject::Finding, Change::Gone),
        count(Subject::Error, Change::Worse),
        count(Subject::Error, Change::Better),
        count(Subject::Engine, Change::Changed),
        count(Subject::Engine, Change::Unsure),
    )
}

fn table(subject: Subject, rows: &[&Difference]) -> Table {
    let headings: &[&str] = match subject {
        Subject::Combination | Subject::Run => &["what", "A", "B"],
        Subject::Support => &["candidate", "configuration", "A", "B", "why", "shown by"],
        Subject::Finding => &["candidate", "configuration", "kind", "A", "B", "shown by"],
        Subject::Error => &[
            "candidate",
            "configuration",
            "measure",
            ">A",
            ">B",
            ">B/A",
            "shown by",
        ],
        Subject::Engine => &["engine", "A", "B", "why"],
    };
    let mut table = Table::new(headings);
    for row in rows {
        table.row(cells(row));
    }
    table
}

fn cells(row: &Difference) -> Vec<Cell> {
    let mood = if row.is_alarm() {
        Mood::Bad
    } else {
        Mood::Plain
    };
    let candidate = Cell::new(&row.candidate, mood);
    let configuration = Cell::from(row.configuration());
    let (a, b) = (Cell::from(&*row.a), Cell::from(&*row.b));
    let what = Cell::from(&*row.what);
    let repro = Cell::from(&*row.repro);
    let why = Cell::from(&*row.detail);
    match row.subject {
        Subject::Combination | Subject::Run => vec![what, a, b],
        Subject::Support => vec![candidate, configuration, a, b, why, repro],
        Subject::Finding => vec![candidate, configuration, what, a, b, repro],
        Subject::Engine => vec![candidate, a, b, why],
        Subject::Error => {
            let factor = row.factor.map(short).unwrap_or_default();
            vec![candidate, configuration, what, a, b, factor.into(), repro]
        }
    }
}
