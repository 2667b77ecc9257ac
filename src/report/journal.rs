//! The journal of a run that has not ended: what it is, each trial before it is
//! launched and after it was judged, and each complete case. Everything else in a
//! results folder can be made from it, so a run that was killed is continued from
//! it; when a run has ended the journal goes.
//!
//! A line is the CRC-32 of an [`Entry`] in eight hexadecimal digits, a space, and the
//! entry as JSON. Lines are only ever appended, each by one write, so a process
//! that is killed loses no line that was written. The disk is told to keep them
//! at least once a second: a power cut loses the last second. A line that was
//! torn by either is the last, and is taken off before more are appended.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::campaign::INCIDENTAL;
use crate::campaign::past::{Cases, Complete, Left, Past, Place};
use crate::error::{Error, Result};
use crate::record::TrialRecord;
use crate::report::csv_file::{self, cannot_write};
use crate::report::environment::Environment;
use crate::report::read;

/// Name of the journal in a results folder.
pub const NAME: &str = "journal.txt";

/// Version of the entries.
pub const SCHEMA: u32 = 1;

/// How often the disk is told to keep what was written.
const SYNC_INTERVAL: Duration = Duration::from_secs(1);

/// One line. Records are rows of `trials.csv` without its header.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Entry {
    /// The first: which run this is.
    Begun(Box<Begun>),
    /// A trial is about to be launched.
    Starting {
        /// Place of its case in the order of cases.
        order: u64,
        /// Its repro line.
        repro: String,
    },
    /// A trial was judged, or ended its worker. Its record may still be amended.
    Judged {
        /// Number of its case.
        number: i64,
        /// Which of the case's fills.
        fill: usize,
        /// Its record.
        row: String,
    },
    /// A case is complete.
    Complete {
        /// Its place in the order of cases.
        order: u64,
        /// Its number.
        number: i64,
        /// How long the run had taken by then, interruptions left out.
        milliseconds: u64,
        /// Time that listing candidates took.
        planning_milliseconds: f64,
        /// Workers it cost.
        replaced: u64,
        /// The final records of its trials, not yet numbered.
        rows: Vec<String>,
    },
    /// The run did all it was asked for.
    Ended,
}

/// Which run a journal is of.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Begun {
    /// [`SCHEMA`].
    pub schema: u32,
    /// What the run is made on and with, as of its start.
    pub environment: Environment,
    /// Seeds of the cases that are replayed first, in hex.
    pub replayed: Vec<String>,
}

impl Begun {
    /// A run that begins now.
    pub fn now(environment: Environment, replayed: Vec<String>) -> Self {
        Begun {
            schema: SCHEMA,
            environment,
            replayed,
        }
    }

    /// Whether the run in `folder`, which this is, is the one that `now` asks for:
    /// only how fast it goes may differ. Which failing seeds are replayed is the
    /// earlier run's choice.
    pub fn check_same(&self, now: &Begun, folder: &Path) -> Result<()> {
        let (then, now) = (self.settings()?, now.settings()?);
        let mut keys = then.keys().chain(now.keys());
        let Some(key) = keys.find(|key| then.get(*key) != now.get(*key)) else {
            return Ok(());
        };
        let text = |value: Option<&Value>| value.unwrap_or(&Value::Null).to_string();
        Err(Error::usage(format!(
            "'{}' holds a run with other settings: {key} was {}, is {} now; give the same, or choose another folder with --out",
            folder.display(),
            text(then.get(key)),
            text(now.get(key)),
        )))
    }

    /// What decides which trials a run makes, by name.
    fn settings(&self) -> Result<BTreeMap<String, Value>> {
        let environment = &self.environment;
        let combination = serde_json::to_value(&environment.combination)
            .map_err(|e| Error::internal("a combination does not fit JSON").with_source(e))?;
        let mut all = BTreeMap::new();
        flatten("", &combination, &mut all);
        let mut options = environment.options.clone();
        if let Some(options) = options.as_object_mut() {
            options.retain(|key, _| key != "regressions" && !INCIDENTAL.contains(&&**key));
        }
        flatten("option ", &options, &mut all);
        all.insert("seed".to_owned(), environment.seed.into());
        Ok(all)
    }
}

/// The leaves of a JSON value by their paths.
fn flatten(prefix: &str, value: &Value, into: &mut BTreeMap<String, Value>) {
    let Some(object) = value.as_object() else {
        into.insert(prefix.trim_end_matches('.').to_owned(), value.clone());
        return;
    };
    for (key, value) in object {
        flatten(&format!("{prefix}{key}."), value, into);
    }
}

/// The journal of a running run.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: File,
    /// Bytes of complete lines.
    complete: u64,
    synced: Instant,
    dirty: bool,
}

impl Journal {
    /// Begins the journal of a new run in `folder`: it is there with its first
    /// line, or not at all.
    pub fn create(folder: &Path, begun: &Begun) -> Result<Self> {
        let path = folder.join(NAME);
        let first = line(&Entry::Begun(Box::new(begun.clone())))?;
        csv_file::replace(&path, &first)?;
        Self::append_to(path, first.len() as u64)
    }

    /// Goes on with the journal in `folder`, of which `complete` bytes are whole
    /// lines: what is behind them was torn, and goes.
    pub fn go_on(folder: &Path, complete: u64) -> Result<Self> {
        Self::append_to(folder.join(NAME), complete)
    }

    fn append_to(path: PathBuf, complete: u64) -> Result<Self> {
        let open = || {
            let mut file = OpenOptions::new().write(true).open(&path)?;
            file.set_len(complete)?;
            file.seek(SeekFrom::End(0))?;
            file.sync_all()?;
            Ok(file)
        };
        let file = open().map_err(|e| cannot_write(&path, &e))?;
        Ok(Journal {
            path,
            file,
            complete,
            synced: Instant::now(),
            dirty: false,
        })
    }

    /// Writes that a trial is about to be launched.
    pub fn starting(&mut self, place: Place, repro: &str) -> Result<()> {
        self.append(&Entry::Starting {
            order: place.order,
            repro: repro.to_owned(),
        })
    }

    /// Writes a trial's record.
    pub fn judged(&mut self, place: Place, record: &TrialRecord) -> Result<()> {
        self.append(&Entry::Judged {
            number: place.number,
            fill: place.fill,
            row: csv_file::row_text(record)?,
        })
    }

    /// Writes a complete case.
    pub fn complete(&mut self, case: &Complete) -> Result<()> {
        let rows: Result<Vec<_>> = case.records.iter().map(csv_file::row_text).collect();
        self.append(&Entry::Complete {
            order: case.order,
            number: case.number,
            milliseconds: case.elapsed.as_millis() as u64,
            planning_milliseconds: case.planning_ms,
            replaced: case.replaced,
            rows: rows?,
        })
    }

    /// Writes that the run did all it was asked for.
    pub fn ended(&mut self) -> Result<()> {
        self.append(&Entry::Ended)?;
        self.sync()
    }

    fn append(&mut self, entry: &Entry) -> Result<()> {
        let bytes = line(entry)?;
        if let Err(e) = self.file.write_all(&bytes) {
            // Best effort: a torn line is also recognised when it is read.
            let _ = self.file.set_len(self.complete);
            let _ = self.file.seek(SeekFrom::Start(self.complete));
            return Err(cannot_write(&self.path, &e));
        }
        self.complete += bytes.len() as u64;
        self.dirty = true;
        self.sync_if_due()
    }

    /// Has the disk keep what was written, if it was not asked for a second.
    pub fn sync_if_due(&mut self) -> Result<()> {
        match self.dirty && self.synced.elapsed() >= SYNC_INTERVAL {
            true => self.sync(),
            false => Ok(()),
        }
    }

    /// Has the disk keep what was written.
    pub fn sync(&mut self) -> Result<()> {
        self.synced = Instant::now();
        self.dirty = false;
        let synced = self.file.sync_data();
        synced.map_err(|e| cannot_write(&self.path, &e))
    }

    /// Removes the journal of a run of which everything else is written.
    pub fn remove(self) -> Result<()> {
        fs::remove_file(&self.path).map_err(|e| cannot_write(&self.path, &e))
    }
}

/// What a journal says, in so far as it fits into memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// Which run it is of.
    pub begun: Begun,
    /// Bytes of whole lines.
    pub complete: u64,
    /// Trials that were in flight when it was cut off: places of their cases in the
    /// order, and repro lines.
    pub in_flight: Vec<(u64, String)>,
    /// Whether the run did all it was asked for.
    pub ended: bool,
    left: Left,
}

/// Reads the journal in `folder` to its end, if there is one. A line that is not
/// whole is an error that names it, but for the last, which may be torn.
pub fn read(folder: &Path) -> Result<Option<Summary>> {
    let path = folder.join(NAME);
    if !path.exists() {
        return Ok(None);
    }
    let mut lines = Lines::open(&path)?;
    let Some(Entry::Begun(begun)) = lines.next().transpose()? else {
        return Err(lines.damaged("it does not say which run it is of"));
    };
    if begun.schema != SCHEMA {
        return Err(Error::usage(format!(
            "'{}' has schema {}, this convfuzz reads schema {SCHEMA}; use the version that wrote it",
            path.display(),
            begun.schema
        )));
    }
    let mut summary = Summary {
        begun: *begun,
        complete: 0,
        in_flight: Vec::new(),
        ended: false,
        left: Left::default(),
    };
    while let Some(entry) = lines.next().transpose()? {
        summary.take(entry)?;
    }
    summary.complete = lines.complete;
    Ok(Some(summary))
}

impl Summary {
    fn take(&mut self, entry: Entry) -> Result<()> {
        let left = &mut self.left;
        match entry {
            Entry::Begun(_) => return Err(Error::usage("a journal begins once")),
            Entry::Starting { order, repro } => {
                left.begun = left.begun.max(order + 1);
                self.in_flight.push((order, repro));
            }
            Entry::Judged { number, fill, row } => {
                let record = read::row(&row)?;
                self.in_flight.retain(|(_, line)| *line != record.repro);
                let judged = left.unfinished.entry(number).or_default();
                judged.push((fill, record));
            }
            Entry::Complete {
                order,
                number,
                milliseconds,
                ..
            } => {
                left.begun = left.begun.max(order + 1);
                left.elapsed = left.elapsed.max(Duration::from_millis(milliseconds));
                left.unfinished.remove(&number);
                self.in_flight.retain(|(case, _)| *case != order);
            }
            Entry::Ended => self.ended = true,
        }
        Ok(())
    }

    /// The past of the campaign, with the cases that the journal in `folder` holds.
    pub fn past(&self, folder: &Path) -> Result<Past<'static>> {
        Ok(Past {
            replayed: self.begun.replayed.clone(),
            complete: complete_cases(folder)?,
            left: self.left.clone(),
            ended: self.ended,
        })
    }
}

fn complete_cases(folder: &Path) -> Result<Cases<'static>> {
    let lines = Lines::open(&folder.join(NAME))?;
    let complete = lines.filter_map(|entry| match entry {
        Ok(Entry::Complete {
            order,
            number,
            milliseconds,
            planning_milliseconds,
            replaced,
            rows,
        }) => {
            let records: Result<Vec<_>> = rows.iter().map(|row| read::row(row)).collect();
            Some(records.map(|records| Complete {
                order,
                number,
                elapsed: Duration::from_millis(milliseconds),
                planning_ms: planning_milliseconds,
                replaced,
                records,
            }))
        }
        Ok(_) => None,
        Err(error) => Some(Err(error)),
    });
    Ok(Box::new(complete))
}

/// Reads entries one by one.
struct Lines {
    path: PathBuf,
    file: BufReader<File>,
    /// Lines read.
    number: u64,
    /// Bytes of whole lines read.
    complete: u64,
}

impl Lines {
    fn open(path: &Path) -> Result<Self> {
        let file = File::open(path)
            .map_err(|e| Error::output(format!("cannot read '{}': {e}", path.display())))?;
        Ok(Lines {
            path: path.to_owned(),
            file: BufReader::new(file),
            number: 0,
            complete: 0,
        })
    }

    fn damaged(&self, what: &str) -> Error {
        Error::usage(format!(
            "'{}' is damaged in line {}: {what}; copy the folder again, or start anew in another folder with --out (nothing was changed)",
            self.path.display(),
            self.number.max(1)
        ))
    }

    fn entry(&mut self) -> Result<Option<Entry>> {
        let mut bytes = Vec::new();
        let read = self.file.read_until(b'\n', &mut bytes);
        read.map_err(|e| Error::output(format!("cannot read '{}': {e}", self.path.display())))?;
        self.number += u64::from(!bytes.is_empty());
        if bytes.pop() != Some(b'\n') {
            // The end, or a line that was torn.
            return Ok(None);
        }
        self.complete += bytes.len() as u64 + 1;
        parse(&bytes).map(Some).map_err(|what| self.damaged(what))
    }
}

impl Iterator for Lines {
    type Item = Result<Entry>;

    fn next(&mut self) -> Option<Self::Item> {
        self.entry().transpose()
    }
}

fn line(entry: &Entry) -> Result<Vec<u8>> {
    let json = serde_json::to_string(entry)
        .map_err(|e| Error::internal("an entry does not fit JSON").with_source(e))?;
    Ok(format!("{}{json}\n", checksum(json.as_bytes())).into_bytes())
}

/// What stands before an entry.
fn checksum(json: &[u8]) -> String {
    format!("{:08x} ", crc32fast::hash(json))
}

fn parse(bytes: &[u8]) -> std::result::Result<Entry, &'static str> {
    let unlike = "it is not what was written";
    let (sum, json) = bytes.split_at_checked(9).ok_or(unlike)?;
    if sum != checksum(json).as_bytes() {
        return Err(unlike);
    }
    serde_json::from_slice(json).map_err(|_| "it is of another version of convfuzz")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Combination;
    use crate::error::ErrorKind;

    const REPRO: &str = "fwd c=1 k=1 in=1 ker=1 fill=normal:0 via=host:a";

    fn begun() -> Begun {
        let options = serde_json::json!({ "cases": 3, "jobs": 2, "limits": { "dims": [1] } });
        let environment = Environment::starting(Combination::default(), 7, options);
        Begun::now(environment, vec!["ab".repeat(32)])
    }

    fn record(repro: &str) -> TrialRecord {
        TrialRecord {
            schema: crate::record::SCHEMA,
            repro: repro.to_owned(),
            detail: Some("two\nlines, \"quoted\"".to_owned()),
            max_ratio: Some(f64::INFINITY),
            own_ms: Some(0.1),
            ..TrialRecord::default()
        }
    }

    fn case(order: u64) -> Complete {
        Complete {
            order,
            number: order as i64 - 1,
            elapsed: Duration::from_millis(1500),
            planning_ms: 0.25,
            replaced: 2,
            records: vec![record(REPRO), record("b")],
        }
    }

    /// A folder whose journal holds a complete case and one that was begun.
    fn written() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let mut journal = Journal::create(folder.path(), &begun()).unwrap();
        let place = |order, number| Place {
            order,
            number,
            fill: 1,
        };
        journal.starting(place(0, -1), REPRO).unwrap();
        journal.judged(place(0, -1), &record(REPRO)).unwrap();
        journal.complete(&case(0)).unwrap();
        journal.starting(place(1, 0), "c").unwrap();
        journal.judged(place(1, 0), &record("c")).unwrap();
        journal.starting(place(1, 0), "d").unwrap();
        folder
    }

    fn cases(folder: &Path) -> Vec<Complete> {
        complete_cases(folder)
            .unwrap()
            .map(Result::unwrap)
            .collect()
    }

    #[test]
    fn read_gives_back_what_was_written() {
        let folder = written();
        let summary = read(folder.path()).unwrap().unwrap();
        assert_eq!(summary.begun, begun_like(&summary));
        assert_eq!(summary.in_flight, [(1, "d".to_owned())]);
        assert_eq!((summary.ended, summary.left.begun), (false, 2));
        assert_eq!(summary.left.elapsed, Duration::from_millis(1500));
        assert_eq!(summary.left.unfinished.len(), 1);
        assert_eq!(summary.left.unfinished[&0], [(1, record("c"))]);
        assert_eq!(cases(folder.path()), [case(0)]);
        let size = fs::metadata(folder.path().join(NAME)).unwrap().len();
        assert_eq!(summary.complete, size);
        assert_eq!(read(&folder.path().join("none")).unwrap(), None);
    }

    /// The one that was written, with the time it was written at.
    fn begun_like(summary: &Summary) -> Begun {
        let mut begun = begun();
        begun.environment.started = summary.begun.environment.started;
        begun
    }

    #[test]
    fn check_same_names_what_differs_and_speed_may() {
        let refused = |change: &dyn Fn(&mut Environment)| {
            let mut now = begun();
            change(&mut now.environment);
            begun().check_same(&now, Path::new("here")).err()
        };
        assert!(refused(&|e| e.options["jobs"] = 9.into()).is_none());
        let error = refused(&|e| e.options["limits"]["dims"] = 3.into()).unwrap();
        assert_eq!(error.kind(), ErrorKind::Usage);
        let words = "'here' holds a run with other settings: option limits.dims was [1], is 3 now";
        assert!(error.to_string().starts_with(words), "{error}");
        let error = refused(&|e| e.combination.cudnn = "9.1".to_owned()).unwrap();
        assert!(error.to_string().contains("cudnn was"), "{error}");
        assert!(refused(&|e| e.seed = 8).is_some());
    }

    #[test]
    fn go_on_takes_off_a_torn_line_wherever_it_was_torn() {
        let whole = written();
        let path = whole.path().join(NAME);
        let bytes = fs::read(&path).unwrap();
        let last = bytes[..bytes.len() - 1]
            .iter()
            .rposition(|&b| b == b'\n')
            .unwrap()
            + 1;
        for end in last..bytes.len() {
            fs::write(&path, &bytes[..end]).unwrap();
            let summary = read(whole.path()).unwrap().unwrap();
            assert_eq!(summary.complete, last as u64, "cut at {end}");
            assert_eq!(summary.in_flight, []);
            let mut journal = Journal::go_on(whole.path(), summary.complete).unwrap();
            journal.complete(&case(1)).unwrap();
            assert_eq!(cases(whole.path()), [case(0), case(1)]);
        }
    }

    #[test]
    fn read_any_other_damage_names_file_and_line_and_changes_nothing() {
        let folder = written();
        let path = folder.path().join(NAME);
        let bytes = fs::read(&path).unwrap();
        for at in (0..bytes.len() - 1).step_by(7) {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            let line = 1 + bytes[..at].iter().filter(|&&b| b == b'\n').count();
            fs::write(&path, &damaged).unwrap();
            let error = read(folder.path()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Usage, "{error}");
            for words in [NAME, &format!("line {line}"), "nothing was changed"] {
                assert!(error.to_string().contains(words), "{words}: {error}");
            }
            assert_eq!(fs::read(&path).unwrap(), damaged);
        }
        fs::write(&path, "").unwrap();
        assert!(read(folder.path()).is_err());
    }

    #[test]
    fn append_full_disk_is_one_clear_error_and_tears_nothing() {
        let folder = written();
        let path = folder.path().join(NAME);
        let mut journal =
            Journal::go_on(folder.path(), fs::metadata(&path).unwrap().len()).unwrap();
        // /dev/full accepts an open and answers every write with ENOSPC.
        journal.file = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let error = journal.ended().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Output);
        assert!(error.to_string().contains("free some space"), "{error}");
        assert!(read(folder.path()).unwrap().is_some());
    }
}
