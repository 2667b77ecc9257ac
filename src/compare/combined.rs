//! Any number of results folders in one matrix.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::Serialize;

use crate::backend::Combination;
use crate::compare::run::Run;
use crate::error::{Error, Result};
use crate::record::SCHEMA;
use crate::report::csv_file::columns;
use crate::report::matrix::{self, Matrix};
use crate::report::table::{Cell, Mood, Table};

/// Matrices by combination: folders made on the same one are counted together.
#[derive(Clone, Debug, Default)]
pub struct Combined {
    parts: BTreeMap<Key, Matrix>,
}

/// The combination's values, in the order of its columns.
type Key = Vec<String>;

impl Combined {
    /// Reads `folders` and counts their trials.
    pub fn read<P: AsRef<Path>>(folders: &[P]) -> Result<Self> {
        check_distinct(folders)?;
        let mut combined = Combined::default();
        for folder in folders {
            combined.add(&Run::open(folder.as_ref())?)?;
        }
        Ok(combined)
    }

    /// Counts the trials of one run.
    pub fn add(&mut self, run: &Run) -> Result<()> {
        let key = cells(&run.environment.combination)?;
        let matrix = self.parts.entry(key).or_default();
        run.trials.iter().try_for_each(|trial| matrix.add(trial))
    }

    /// Column names: `schema`, those of the combination, those of `matrix.csv`.
    pub fn columns() -> Result<Vec<String>> {
        let mut names = vec!["schema".to_owned()];
        names.extend(columns::<Combination>()?);
        names.extend(columns::<matrix::Row>()?.into_iter().skip(1));
        Ok(names)
    }

    /// The CSV file, ordered by combination, then as `matrix.csv`.
    pub fn csv(&self) -> Result<Vec<u8>> {
        let mut writer = csv::Writer::from_writer(Vec::new());
        writer.write_record(Self::columns()?).map_err(internal)?;
        for (combination, row) in self.rows() {
            let schema = [SCHEMA.to_string()];
            let values = cells(row)?;
            let record = schema.iter().chain(combination).chain(&values[1..]);
            writer.write_record(record).map_err(internal)?;
        }
        writer
            .into_inner()
            .map_err(|e| Error::internal(format!("a matrix does not fit CSV: {e}")))
    }

    fn rows(&self) -> impl Iterator<Item = (&Key, &matrix::Row)> {
        self.parts
            .iter()
            .flat_map(|(key, matrix)| matrix.rows().map(move |row| (key, row)))
    }

    /// A Markdown document with a table per combination; rows where nothing ran
    /// are counted, not shown.
    pub fn markdown(&self) -> Result<String> {
        let names = columns::<Combination>()?;
        let part = |(key, matrix): (&Key, &Matrix)| {
            let known = names.iter().zip(key).filter(|(_, value)| !value.is_empty());
            let words: Vec<_> = known
                .map(|(name, value)| format!("{name} {value}"))
                .collect();
            format!("## {}\n\n{}", words.join(", "), section(matrix))
        };
        Ok(self.parts.iter().map(part).collect::<Vec<_>>().join("\n"))
    }
}

/// Adding a folder twice would count its trials twice.
fn check_distinct<P: AsRef<Path>>(folders: &[P]) -> Result<()> {
    let mut seen = BTreeMap::new();
    for folder in folders {
        let name = folder.as_ref();
        let real = fs::canonicalize(name).unwrap_or_else(|_| name.to_owned());
        if let Some(first) = seen.insert(real, name) {
            return Err(Error::usage(format!(
                "'{}' and '{}' are the same folder; name it once",
                first.display(),
                name.display()
            )));
        }
    }
    Ok(())
}

fn section(matrix: &Matrix) -> String {
    let mut table = Table::new(&[
        "candidate",
        "direction",
        "types",
        "compute",
        "layout",
        ">rank",
        "regime",
        ">trials",
        ">passed",
        ">failed",
        ">crashed",
        ">timed out",
        ">untrusted",
        ">skipped",
        ">max ulp",
        ">max error/bound",
    ]);
    let (ran, idle): (Vec<_>, Vec<_>) = matrix.rows().partition(|row| row.skipped < row.trials);
    for row in ran {
        table.row(shown(row));
    }
    let left_out = match idle.len() {
        0 => String::new(),
        idle => format!("\n{idle} further rows, in which every trial was skipped, are left out.\n"),
    };
    format!("{}{left_out}", table.markdown())
}

fn shown(row: &matrix::Row) -> Vec<Cell> {
    let words = [
        &row.candidate,
        &row.direction,
        &row.types,
        &row.compute,
        &row.layout,
    ];
    let counts = [
        row.trials,
        row.passed,
        row.failed,
        row.crashed,
        row.timed_out,
        row.untrusted,
        row.skipped,
    ];
    let mut cells: Vec<_> = words.into_iter().map(|w| Cell::from(w.as_str())).collect();
    cells.push(Cell::new(row.rank, Mood::Plain));
    cells.push(row.regime.as_str().into());
    cells.extend(counts.map(|count| Cell::new(count, Mood::Plain)));
    cells.extend([row.max_ulp, row.max_ratio].map(Cell::measured));
    cells
}

/// The values of a row as they stand in its CSV form.
fn cells(row: &impl Serialize) -> Result<Vec<String>> {
    let mut writer = csv::WriterBuilder::new()
        .has_headers(false)
        .from_writer(Vec::new());
    writer.serialize(row).map_err(internal)?;
    let line = writer
        .into_inner()
        .map_err(|e| Error::internal(format!("a row does not fit CSV: {e}")))?;
    let mut reader = csv::ReaderBuilder::new()
        .has_headers(false)
        .from_reader(line.as_slice());
    let record = reader.records().next().transpose().map_err(internal)?;
    Ok(record.iter().flatten().map(str::to_owned).collect())
}

fn internal(error: csv::Error) -> Error {
    Error::internal("a row does not fit CSV").with_source(error)
}
