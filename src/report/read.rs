//! Reading results back, for every report that is made later.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use flate2::read::MultiGzDecoder;
use serde::de::DeserializeOwned;

use crate::error::{Error, Result};
use crate::record::{SCHEMA, TrialRecord};
use crate::report::csv_file;
use crate::report::environment::Environment;
use crate::report::matrix::Row;

/// The trials of a results folder's `trials.csv` or `failures.csv`. A last row
/// without its line end was torn when the run was killed, and is left out.
pub fn trials(path: &Path) -> Result<Vec<TrialRecord>> {
    rows(path, |record: &TrialRecord| record.schema)
}

/// The columns of `trials.csv`.
static COLUMNS: LazyLock<csv::StringRecord> = LazyLock::new(|| {
    csv_file::columns::<TrialRecord>()
        .unwrap_or_default()
        .into()
});

/// One row of `trials.csv`, as [`csv_file::row_text`] gives it.
pub fn row(text: &str) -> Result<TrialRecord> {
    let unlike = |e: csv::Error| Error::usage("a record is not of this version").with_source(e);
    let mut reader = csv::ReaderBuilder::new()
        .has_headers(false)
        .from_reader(text.as_bytes());
    let row = reader.records().next();
    let row = row.ok_or_else(|| Error::usage("a record is empty"))?;
    row.and_then(|row| row.deserialize(Some(&COLUMNS)))
        .map_err(unlike)
}

/// The rows of a `matrix.csv`.
pub fn matrix(path: &Path) -> Result<Vec<Row>> {
    rows(path, |row: &Row| row.schema)
}

/// An `environment.json`.
pub fn environment(path: &Path) -> Result<Environment> {
    let bytes = read(path)?;
    let environment: Environment = serde_json::from_slice(&bytes)
        .map_err(|e| Error::usage(format!("'{}' is not ours", path.display())).with_source(e))?;
    check_schema(path, environment.schema)?;
    Ok(environment)
}

fn rows<T: DeserializeOwned>(path: &Path, schema: impl Fn(&T) -> u32) -> Result<Vec<T>> {
    let bytes = read(path)?;
    check_schema(path, stated_schema(&bytes).unwrap_or(SCHEMA))?;
    let mut rows: Vec<_> = csv::Reader::from_reader(bytes.as_slice())
        .into_deserialize()
        .collect();
    if is_torn(&bytes, rows.last()) {
        rows.pop();
    }
    rows.into_iter()
        .map(|row| {
            let row: T = row.map_err(|e| unreadable(path, e))?;
            check_schema(path, schema(&row)).map(|()| row)
        })
        .collect()
}

/// Whether the last row is incomplete: the file ends inside a line, or inside a
/// quoted line end, which leaves too few columns.
fn is_torn<T>(bytes: &[u8], last: Option<&csv::Result<T>>) -> bool {
    let short = |e: &csv::Error| matches!(e.kind(), csv::ErrorKind::UnequalLengths { .. });
    bytes.last().is_some_and(|&b| b != b'\n') || matches!(last, Some(Err(e)) if short(e))
}

/// The first column of the first row: with another schema the rest need not
/// parse, and the version is the clearer complaint.
fn stated_schema(bytes: &[u8]) -> Option<u32> {
    let mut reader = csv::Reader::from_reader(bytes);
    let first = reader.records().next()?.ok()?;
    first.get(0)?.parse().ok()
}

fn check_schema(path: &Path, schema: u32) -> Result<()> {
    // Columns were only ever added, and those are optional.
    if (1..=SCHEMA).contains(&schema) {
        return Ok(());
    }
    Err(Error::usage(format!(
        "'{}' has schema {schema}, this convfuzz reads schemas 1 to {SCHEMA}; use the version that wrote it",
        path.display()
    )))
}

/// The file, or its form compressed with gzip, which has `.gz` behind its name.
fn read(path: &Path) -> Result<Vec<u8>> {
    let packed = packed_name(path);
    let bytes = match path.exists() || !packed.exists() {
        true => fs::read(path),
        false => fs::read(&packed).and_then(|bytes| unpacked(&bytes)),
    };
    bytes.map_err(|e| {
        Error::usage(format!(
            "cannot read '{}': {e}; is it a results folder of convfuzz?",
            path.display()
        ))
    })
}

fn packed_name(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".gz");
    name.into()
}

fn unpacked(bytes: &[u8]) -> io::Result<Vec<u8>> {
    let mut plain = Vec::new();
    MultiGzDecoder::new(bytes).read_to_end(&mut plain)?;
    Ok(plain)
}

fn unreadable(path: &Path, error: csv::Error) -> Error {
    Error::usage(format!("'{}' is not ours", path.display())).with_source(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(case: i64) -> TrialRecord {
        TrialRecord {
            schema: SCHEMA,
            case,
            repro: "fwd c=1 k=1 in=1 ker=1 fill=normal:0 via=host:a".to_owned(),
            detail: Some("two\nlines, \"quoted\"".to_owned()),
            actual: Some(f64::NAN),
            max_ratio: Some(f64::INFINITY),
            own_ms: Some(12.5),
            ..TrialRecord::default()
        }
    }

    fn written(bytes: &[u8]) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), bytes).unwrap();
        file
    }

    #[test]
    fn trials_round_trip_missing_stays_missing() {
        let bytes = csv_file::table(&[record(3)]).unwrap();
        let back = trials(written(&bytes).path()).unwrap().remove(0);
        assert!(back.actual.unwrap().is_nan());
        assert_eq!(back.max_ratio, Some(f64::INFINITY));
        assert_eq!(back.expected, None);
        assert_eq!(back.reason, None);
        assert_eq!(back.detail, record(3).detail);
        assert_eq!(back.own_ms, Some(12.5));
    }

    #[test]
    fn row_text_round_trips_by_itself() {
        let text = csv_file::row_text(&record(3)).unwrap();
        let back = row(&text).unwrap();
        assert_eq!(csv_file::row_text(&back).unwrap(), text);
        assert_eq!(back.detail, record(3).detail);
        for bad in ["", "1,2", "x"] {
            assert!(row(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn trials_every_torn_end_loses_the_last_row_only() {
        let whole = csv_file::table(&[record(1), record(2)]).unwrap();
        let second = csv_file::table(&[record(1)]).unwrap().len();
        for end in second..whole.len() {
            let rows = trials(written(&whole[..end]).path()).unwrap();
            let cases: Vec<_> = rows.iter().map(|r| r.case).collect();
            assert_eq!(cases, [1], "cut at {end} of {}", whole.len());
        }
    }

    #[test]
    fn trials_another_schema_is_refused_by_number() {
        let mut old = record(1);
        old.schema = SCHEMA + 1;
        let bytes = csv_file::table(&[old]).unwrap();
        let error = trials(written(&bytes).path()).unwrap_err().to_string();
        assert!(error.contains(&format!("schema {}", SCHEMA + 1)), "{error}");
    }

    #[test]
    fn trials_packed_file_reads_as_the_plain_one() {
        use std::io::Write;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trials.csv");
        let bytes = csv_file::table(&[record(1), record(2)]).unwrap();
        let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packer.write_all(&bytes).unwrap();
        let packed = packer.finish().unwrap();
        fs::write(packed_name(&path), &packed).unwrap();
        let cases: Vec<_> = trials(&path).unwrap().iter().map(|r| r.case).collect();
        assert_eq!(cases, [1, 2]);
        // Cut short, it is an error, not a shorter file.
        fs::write(packed_name(&path), &packed[..packed.len() / 2]).unwrap();
        assert!(trials(&path).is_err());
    }

    #[test]
    fn trials_foreign_file_is_refused() {
        assert!(trials(written(b"a,b\n1,2\n").path()).is_err());
    }
}
