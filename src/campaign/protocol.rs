//! What a campaign and its workers say to each other: one JSON value a line.

use std::io::{BufRead, Write};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::means::Means;
use crate::backend::Combination;
use crate::backend::open::BackendSpec;
use crate::bound::Arithmetic;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::outcome::Outcome;
use crate::record::TrialRecord;
use crate::shrink::data::DataPatch;

/// To the worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// The first line: what to open, and how cases are run.
    Setup {
        /// The backend.
        backend: BackendSpec,
        /// Further runs of each candidate.
        repeats: u32,
        /// Most outputs judged per trial.
        outputs: usize,
    },
    /// Run a case.
    Case {
        /// Its repro line.
        repro: String,
        /// Records of trials that are not to be run.
        known: Vec<TrialRecord>,
        /// Steps of listing candidates that are not to be taken.
        barred: Vec<String>,
        /// Measure mean errors against the exact result of the same draws in
        /// these types, the case's own if `None`; nothing is measured when empty.
        against: Vec<Option<DType>>,
    },
    /// The trial that was announced may be launched.
    Go,
    /// Run one trial on explicit data, or that of its fill.
    Trial {
        /// Its repro line, with the candidate.
        repro: String,
        /// Data that stands for the fill.
        data: Option<DataPatch>,
        /// Steps of listing the candidate that are not to be taken.
        barred: Vec<String>,
    },
    /// Run one trial and give back what came out of it.
    Observe {
        /// Its repro line, with the candidate.
        repro: String,
        /// Data that stands for the fill.
        data: Option<DataPatch>,
    },
}

/// From the worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// The backend is open.
    Ready {
        /// What it runs on.
        combination: Combination,
        /// Memory that is free on the GPU, bytes.
        device_memory: Option<u64>,
    },
    /// A trial is about to be launched: its repro line. It waits for
    /// [`Request::Go`], so that it can be written down first.
    Starting(String),
    /// The next step of listing the candidates: one of them, or another.
    Planning(String),
    /// Milliseconds that listing the candidates took.
    Planned(f64),
    /// Mean errors of a candidate, where they were asked for.
    Means(Means),
    /// A trial was judged; its record may still be amended.
    Judged(Box<TrialRecord>),
    /// The final record of a trial.
    Record(Box<TrialRecord>),
    /// The case is complete.
    Done,
    /// What came out of an observed trial.
    Observed(Box<Observed>),
    /// The worker cannot go on.
    Failed {
        /// Exit code of the error.
        code: u8,
        /// Its words.
        message: String,
    },
}

/// What came out of one trial, element by element.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Observed {
    /// What the candidate declares it does to the numbers.
    pub arithmetic: Arithmetic,
    /// Whether it says that two runs may differ.
    pub nondeterministic: bool,
    /// Repeats that were made.
    pub repeats: u32,
    /// How it ended.
    pub outcome: Outcome,
}

/// Writes one line and flushes it.
pub fn send(to: &mut dyn Write, value: &impl Serialize) -> std::io::Result<()> {
    serde_json::to_writer(&mut *to, value)?;
    to.write_all(b"\n")?;
    to.flush()
}

/// Reads one line; `None` at the end.
pub fn receive<T: DeserializeOwned>(from: &mut dyn BufRead) -> Result<Option<T>> {
    let mut line = String::new();
    let read = from
        .read_line(&mut line)
        .map_err(|e| Error::internal("cannot read from the other process").with_source(e))?;
    if read == 0 {
        return Ok(None);
    }
    serde_json::from_str(&line).map(Some).map_err(|e| {
        Error::internal("the other process does not speak the protocol").with_source(e)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_round_trip_with_non_finite_measures() {
        let record = TrialRecord {
            max_ulp: Some(f64::INFINITY),
            expected: Some(0.1),
            ..TrialRecord::default()
        };
        let mut text = Vec::new();
        send(&mut text, &Reply::Record(Box::new(record.clone()))).unwrap();
        send(&mut text, &Reply::Done).unwrap();
        let mut from = text.as_slice();
        let first: Option<Reply> = receive(&mut from).unwrap();
        assert!(matches!(first, Some(Reply::Record(read)) if *read == record));
        let mut next = || receive::<Reply>(&mut from).unwrap();
        assert!(matches!(next(), Some(Reply::Done)));
        assert!(next().is_none());
        assert!(receive::<Reply>(&mut b"garbage\n".as_slice()).is_err());
    }
}
