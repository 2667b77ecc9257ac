//! `convfuzz batch-norm`: batch normalisations under the oracle.

use std::path::{Path, PathBuf};

use clap::Args;

use crate::backend::batch_norm::{BatchNorm, Case, open};
use crate::campaign::batch_norm::{Campaign, Row, rows_of};
use crate::cli::backend::BackendArgs;
use crate::cli::exit::Exit;
use crate::cli::terminal::Terminal;
use crate::error::{Error, Result};
use crate::report::csv_file::{self, CsvFile};
use crate::report::table::{Cell, Mood, Table};

/// The file of the records.
const FILE: &str = "batch_norm.csv";

/// Judge batch normalisations against an exact oracle: one line, or drawn cases
///
/// Forward training, inference and backward; per activation, spatial and
/// spatial-persistent. Every element of every output is judged: y, dx, dscale,
/// dbias, running and saved statistics. Runs in this process: a kernel that hangs
/// or kills it ends the command, and the records so far are kept.
#[derive(Args, Debug)]
pub struct BatchNormalise {
    /// A line such as 'bn_train n=4 c=8 in=16x16 type=fp16 fill=offset:7'
    #[arg(value_name = "LINE", conflicts_with_all = ["cases", "seed"])]
    line: Option<String>,
    /// Drawn cases
    #[arg(long, value_name = "N", default_value_t = 100)]
    cases: u64,
    /// Seed of the drawn cases
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Write the records to DIR/batch_norm.csv, which must not exist
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    #[command(flatten)]
    backend: BackendArgs,
}

impl BatchNormalise {
    /// Runs, records, prints.
    pub fn execute(self, terminal: &Terminal) -> Result<Exit> {
        let case = self.line.as_deref().map(str::parse::<Case>).transpose()?;
        let mut file = self.out.as_deref().map(create).transpose()?;
        let mut backend = open(&self.backend.chosen(terminal)?)?;
        let mut rows = Vec::new();
        let mut keep = |row: Row| {
            if let Some(file) = &mut file {
                file.append(&row)?;
            }
            if row.is_failure() {
                terminal.print(&format!("{}: {}", row.repro, row.words()))?;
            }
            rows.push(row);
            Ok(())
        };
        run(&mut *backend, case.as_ref(), &self, &mut keep)?;
        terminal.table(&table(&rows))?;
        Ok(match rows.iter().any(Row::is_failure) {
            true => Exit::Failures,
            false => Exit::Clean,
        })
    }
}

fn run(
    backend: &mut dyn BatchNorm,
    case: Option<&Case>,
    options: &BatchNormalise,
    keep: &mut dyn FnMut(Row) -> Result<()>,
) -> Result<()> {
    match case {
        Some(case) => rows_of(backend, 0, case)?.into_iter().try_for_each(keep),
        None => Campaign {
            cases: options.cases,
            seed: options.seed,
        }
        .run(backend, keep),
    }
}

fn create(folder: &Path) -> Result<CsvFile> {
    std::fs::create_dir_all(folder).map_err(|e| csv_file::cannot_write(folder, &e))?;
    let path = folder.join(FILE);
    if path.exists() {
        let words = format!("{} is there already: name another --out", path.display());
        return Err(Error::usage(words));
    }
    CsvFile::create::<Row>(&path)
}

/// One line per candidate and pass.
fn table(rows: &[Row]) -> Table {
    let mut table = Table::new(&[
        "candidate",
        "pass",
        ">trials",
        ">passed",
        ">failed",
        ">skipped",
        ">untrusted",
        ">largest error/bound",
    ]);
    let mut groups: Vec<_> = rows.iter().map(Row::group).collect();
    groups.sort_unstable();
    groups.dedup();
    for group in groups {
        let own: Vec<&Row> = rows.iter().filter(|row| row.group() == group).collect();
        let count = |verdict: &str| own.iter().filter(|row| row.verdict == verdict).count();
        let ratios = own.iter().filter_map(|row| row.max_ratio);
        let mut cells: Vec<Cell> = group.into_iter().map(Cell::from).collect();
        cells.push(Cell::new(own.len(), Mood::Plain));
        cells.push(Cell::new(count("passed"), Mood::Plain));
        cells.push(Cell::count(count("failed") as u64, Mood::Bad));
        cells.push(Cell::new(count("skipped"), Mood::Plain));
        cells.push(Cell::new(count("untrusted"), Mood::Plain));
        cells.push(Cell::measured(ratios.max_by(f64::total_cmp)));
        table.row(cells);
    }
    table
}
