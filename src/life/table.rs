//! Reading and writing the small files of a store, whole at every moment.

use std::fs;
use std::path::Path;

use serde::de::DeserializeOwned;

use super::SCHEMA;
use crate::error::{Error, Result};

/// A text file the user named or keeps.
pub fn text(path: &Path) -> Result<String> {
    fs::read_to_string(path).map_err(|e| {
        Error::usage(format!(
            "cannot read '{}': {e}; make it or correct the path",
            path.display()
        ))
    })
}

/// The rows of one of our CSV files; none when it does not exist.
pub fn rows<T: DeserializeOwned>(path: &Path) -> Result<Vec<T>> {
    if !path.exists() {
        return Ok(Vec::new());
    }
    let text = text(path)?;
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    for record in reader.records() {
        let record = record.map_err(|e| broken(path, &e))?;
        check_schema(path, record.get(0).and_then(|s| s.parse().ok()))?;
    }
    let rows: csv::Result<Vec<T>> = csv::Reader::from_reader(text.as_bytes())
        .into_deserialize()
        .collect();
    rows.map_err(|e| broken(path, &e))
}

fn broken(path: &Path, why: &csv::Error) -> Error {
    Error::usage(format!(
        "'{}' is damaged: {why}; repair that line or move the file away",
        path.display()
    ))
}

/// Refuses files of another version by number.
pub fn check_schema(path: &Path, schema: Option<u32>) -> Result<()> {
    match schema {
        Some(SCHEMA) => Ok(()),
        Some(other) => Err(Error::usage(format!(
            "'{}' has schema {other}, this convfuzz reads schema {SCHEMA}; use the version that wrote it",
            path.display()
        ))),
        None => Err(Error::usage(format!(
            "'{}' does not begin with a schema: it is not ours, or damaged; move it away",
            path.display()
        ))),
    }
}

/// One clear line about a TOML text that does not parse; `mend` says what would.
pub fn bad_toml(path: &Path, text: &str, error: &toml::de::Error, mend: &str) -> Error {
    let at = error.span().map_or(0, |span| span.start);
    let message = error.message().replace('\n', " ");
    Error::usage(format!(
        "'{}', line {}: {message}; {mend}",
        path.display(),
        line(text, at)
    ))
}

/// The line, from 1, of a byte offset.
pub fn line(text: &str, at: usize) -> usize {
    text.bytes().take(at).filter(|&b| b == b'\n').count() + 1
}
