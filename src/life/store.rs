//! The folder that outlives the runs.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use jiff::civil::Date;
use serde::{Deserialize, Serialize};

use super::history::{self, Row as Night};
use super::issues::Issues;
use super::state::{Life, Sighting, State, life};
use super::{SCHEMA, table};
use crate::backend::Combination;
use crate::error::{Error, Result};
use crate::finding::{Finding, Signature};
use crate::record::measured;
use crate::report::csv_file;
use crate::report::lock::Lock;

/// The table of all findings.
pub const FINDINGS: &str = "findings.csv";
/// The folder of their folders.
pub const FOLDERS: &str = "findings";
/// What is known of one finding.
pub const FACTS: &str = "finding.toml";
/// What its nights showed.
pub const NIGHTS: &str = "nights.csv";
/// Its repro bundle.
pub const BUNDLE: &str = "bundle";

/// `finding.toml`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Facts {
    /// [`SCHEMA`].
    pub schema: u32,
    /// A line that shows it, as a campaign found it.
    pub repro: String,
    /// What was wrong there, in words.
    pub detail: Option<String>,
    /// Largest error seen, as a share of its bound.
    pub max_ratio: Option<f64>,
    /// The simplest trial that fails in the same way.
    pub minimal: Option<String>,
    /// The condition under which it fails.
    pub trigger: Option<String>,
    /// What in the library it comes from.
    pub attribution: Option<String>,
    /// What its trials have in common.
    pub signature: Signature,
}

/// A finding and its nights.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// What is known of it.
    pub facts: Facts,
    /// What each night showed, by number.
    pub nights: BTreeMap<u32, Sighting>,
}

/// Everything in the folder, which is locked meanwhile.
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
    /// Findings by the id of their signature.
    pub entries: BTreeMap<String, Entry>,
    /// All nights so far.
    pub history: Vec<Night>,
    _lock: Lock,
}

/// A row of `findings.csv`. Field order is column order.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Its folder in `findings/`.
    pub id: String,
    /// Where it stands: `new`, `regressed`, `known`, `flaky`, `fixed`.
    pub state: String,
    /// Failures among the runs of its line since it was last new or regressed.
    pub rate: f64,
    /// Reference of the known issue that marks it; empty without one.
    pub issue: String,
    /// As in `trials.csv`.
    pub verdict: String,
    /// As in `trials.csv`.
    pub reason: String,
    /// As in `trials.csv`.
    pub direction: String,
    /// As in `matrix.csv`.
    pub candidate: String,
    /// As in `trials.csv`.
    pub notes: String,
    /// As in `trials.csv`.
    pub rank: u8,
    /// As in `trials.csv`.
    pub types: String,
    /// As in `trials.csv`.
    pub compute: String,
    /// As in `trials.csv`.
    pub layout: String,
    /// Nights it was seen.
    pub nights: u64,
    /// Generated and corpus trials that showed it.
    pub trials: u64,
    /// First night it was seen.
    pub first_night: u32,
    /// Date of that night.
    pub first_date: Date,
    /// What that night ran on.
    pub first_on: String,
    /// Latest night it was seen.
    pub last_night: u32,
    /// Date of that night.
    pub last_date: Date,
    /// What that night ran on.
    pub last_on: String,
    /// Latest night that said anything about it.
    pub checked_night: u32,
    /// A line that shows it.
    pub repro: String,
    /// The simplest trial that fails in the same way; empty until it is found.
    pub minimal: String,
    /// The condition under which it fails; empty until it is found.
    pub trigger: String,
    /// What in the library it comes from; empty while unknown.
    pub attribution: String,
    /// What was wrong, in words.
    pub detail: Option<String>,
    /// Largest error seen, as a share of its bound.
    #[serde(with = "measured")]
    pub max_ratio: Option<f64>,
}

/// A combination on one line.
pub fn words(on: &Combination) -> String {
    match on.backend.as_str() {
        "host" => format!("host, {}", on.device),
        _ => format!(
            "{}, driver {}, cuDNN {}, CUDA {}",
            on.device, on.driver, on.cudnn, on.cuda
        ),
    }
}

impl Entry {
    /// A finding that no night has shown yet.
    pub fn of(finding: &Finding) -> Self {
        Entry {
            facts: Facts {
                schema: SCHEMA,
                repro: finding.repro.clone(),
                detail: finding.detail.clone(),
                max_ratio: finding.max_ratio,
                minimal: None,
                trigger: None,
                attribution: None,
                signature: finding.signature.clone(),
            },
            nights: BTreeMap::new(),
        }
    }

    /// Its life so far.
    pub fn life(&self) -> Option<Life> {
        life(&self.nights)
    }

    /// Lines that show it, the simplest first.
    pub fn lines(&self) -> Vec<&str> {
        let Facts { minimal, repro, .. } = &self.facts;
        let minimal = minimal.as_deref().filter(|line| line != repro);
        minimal.into_iter().chain([repro.as_str()]).collect()
    }

    /// Takes another line for its own: the old one no longer shows it.
    pub fn show_by(&mut self, finding: &Finding) {
        self.facts.repro.clone_from(&finding.repro);
        self.facts.detail.clone_from(&finding.detail);
        self.facts.minimal = None;
        self.facts.trigger = None;
    }

    /// Keeps the larger ratio.
    pub fn widen(&mut self, ratio: Option<f64>) {
        self.facts.max_ratio = match (self.facts.max_ratio, ratio) {
            (Some(a), Some(b)) => Some(a.max(b)),
            (a, b) => a.or(b),
        };
    }

    fn row(&self, id: &str, issue: Option<&str>) -> Option<Row> {
        let life = self.life()?;
        let (first, last) = (self.nights.get(&life.first)?, self.nights.get(&life.last)?);
        let (facts, text) = (self.facts.clone(), Option::unwrap_or_default);
        let signature = facts.signature;
        Some(Row {
            schema: SCHEMA,
            id: id.to_owned(),
            state: shown(&life, issue.is_some()).name().to_owned(),
            rate: life.rate(),
            issue: issue.unwrap_or_default().to_owned(),
            verdict: signature.verdict,
            reason: signature.reason,
            direction: signature.direction,
            candidate: signature.candidate,
            notes: signature.notes,
            rank: signature.rank,
            types: signature.types,
            compute: signature.compute,
            layout: signature.layout,
            nights: self.nights.values().filter(|s| s.fails()).count() as u64,
            trials: self.nights.values().map(|s| s.found).sum(),
            first_night: life.first,
            first_date: first.date,
            first_on: first.combination.clone(),
            last_night: life.last,
            last_date: last.date,
            last_on: last.combination.clone(),
            checked_night: life.checked,
            repro: facts.repro,
            minimal: text(facts.minimal),
            trigger: text(facts.trigger),
            attribution: text(facts.attribution),
            detail: facts.detail,
            max_ratio: facts.max_ratio,
        })
    }
}

/// What a user knows of is never new.
fn shown(life: &Life, marked: bool) -> State {
    match life.state {
        State::New if marked => State::Known,
        state => state,
    }
}

impl Store {
    /// Opens or starts a store, and keeps others out.
    pub fn open(path: &Path) -> Result<Self> {
        if path.exists() && !path.is_dir() {
            return Err(Error::output(format!(
                "'{}' is a file, not a folder; choose another folder with store = in the configuration or --out",
                path.display()
            )));
        }
        fs::create_dir_all(path.join(FOLDERS)).map_err(|e| {
            Error::output(format!(
                "cannot write '{}': {e}; check its permissions or choose another folder with store = in the configuration or --out",
                path.display()
            ))
        })?;
        let lock = Lock::take(path)?;
        Ok(Store {
            entries: read_entries(&path.join(FOLDERS))?,
            history: history::read(path)?,
            path: path.to_owned(),
            _lock: lock,
        })
    }

    /// Its folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where the files of a finding are.
    pub fn folder(&self, id: &str) -> PathBuf {
        self.path.join(FOLDERS).join(id)
    }

    /// The number of the next night: above all that left anything behind, also a
    /// night that was killed.
    pub fn next_night(&self) -> u32 {
        let told = self.history.iter().map(|row| row.night);
        let seen = self.entries.values().flat_map(|e| e.nights.keys().copied());
        told.chain(seen).max().unwrap_or(0) + 1
    }

    /// Refuses another device: what passes there says nothing about here. Drivers
    /// and versions of cuDNN may change, that is what a nightly run is for. The
    /// host backend computes the same on every processor.
    pub fn check_device(&self, on: &Combination) -> Result<()> {
        let ran = self
            .history
            .iter()
            .rev()
            .find(|row| !row.backend.is_empty());
        let Some(before) = ran else {
            return Ok(());
        };
        let same =
            before.backend == on.backend && (on.backend == "host" || before.device == on.device);
        if same {
            return Ok(());
        }
        Err(Error::usage(format!(
            "'{}' holds the findings of {} ({}), and this is {} ({}); give each device a folder of its own with store = in the configuration or --out",
            self.path.display(),
            before.device,
            before.backend,
            on.device,
            on.backend
        )))
    }

    /// Signatures, and whether they are open.
    pub fn standing(&self) -> Vec<(&Signature, bool)> {
        let open = |e: &Entry| e.life().is_some_and(|life| life.open());
        self.entries
            .values()
            .map(|e| (&e.facts.signature, open(e)))
            .collect()
    }

    /// The rows of `findings.csv`, the most urgent first.
    pub fn rows(&self, issues: &Issues, on: &Combination) -> Vec<Row> {
        let row = |(id, entry): (&String, &Entry)| {
            let issue = issues.mark(&entry.facts.signature, on);
            entry.row(id, issue.map(|i| i.reference.as_str()))
        };
        let mut rows: Vec<_> = self.entries.iter().filter_map(row).collect();
        let urgency = |row: &Row| State::ALL.iter().position(|s| s.name() == row.state);
        rows.sort_by_key(urgency);
        rows
    }

    /// Writes every finding, then the table of them.
    pub fn save(&self, issues: &Issues, on: &Combination) -> Result<()> {
        for (id, entry) in &self.entries {
            write_entry(&self.folder(id), entry)?;
        }
        let table = csv_file::table(&self.rows(issues, on))?;
        csv_file::replace(&self.path.join(FINDINGS), &table)
    }

    /// Adds a night to the history.
    pub fn log(&mut self, row: &Night) -> Result<()> {
        self.history.push(row.clone());
        history::write(&self.path, &self.history)
    }
}

/// The nights come first: a folder without facts is one whose writing was cut
/// short, and is left out when it is read.
fn write_entry(folder: &Path, entry: &Entry) -> Result<()> {
    let cannot = |e| Error::output(format!("cannot write '{}'", folder.display())).with_source(e);
    fs::create_dir_all(folder).map_err(cannot)?;
    let nights = csv_file::table(entry.nights.values())?;
    csv_file::replace(&folder.join(NIGHTS), &nights)?;
    let facts = toml::to_string(&entry.facts)
        .map_err(|e| Error::internal("a finding does not fit TOML").with_source(e))?;
    csv_file::replace(&folder.join(FACTS), facts.as_bytes())
}

fn read_entries(folder: &Path) -> Result<BTreeMap<String, Entry>> {
    let cannot = |e| Error::output(format!("cannot read '{}'", folder.display())).with_source(e);
    let mut entries = BTreeMap::new();
    for item in fs::read_dir(folder).map_err(cannot)? {
        let path = item.map_err(cannot)?.path();
        if path.join(FACTS).exists() {
            let entry = read_entry(&path)?;
            entries.insert(entry.facts.signature.id(), entry);
        }
    }
    Ok(entries)
}

/// The mend of a finding that cannot be read.
const MEND: &str = "repair it, or move its folder away to forget the finding";

fn read_entry(folder: &Path) -> Result<Entry> {
    let path = folder.join(FACTS);
    let text = table::text(&path)?;
    let facts: Facts =
        toml::from_str(&text).map_err(|e| table::bad_toml(&path, &text, &e, MEND))?;
    table::check_schema(&path, Some(facts.schema))?;
    let nights: Vec<Sighting> = table::rows(&folder.join(NIGHTS))?;
    Ok(Entry {
        facts,
        nights: nights.into_iter().map(|s| (s.night, s)).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    fn finding(candidate: &str) -> Finding {
        Finding {
            signature: Signature {
                verdict: "failed".to_owned(),
                reason: "wrong_nan".to_owned(),
                direction: "fwd".to_owned(),
                candidate: candidate.to_owned(),
                notes: String::new(),
                rank: 2,
                types: "fp16".to_owned(),
                compute: "fp32".to_owned(),
                layout: "nchw".to_owned(),
            },
            trials: 2,
            repro: format!("fwd c=4 k=3 in=6x5 ker=3x3 via={candidate}"),
            detail: Some("two\nlines".to_owned()),
            max_ratio: Some(f64::INFINITY),
        }
    }

    fn seen(night: u32, failed: u64, passed: u64) -> Sighting {
        Sighting {
            night,
            date: "2026-12-01".parse().unwrap(),
            failed,
            passed,
            ..Sighting::default()
        }
    }

    fn with_entry(store: &mut Store, candidate: &str, sightings: &[Sighting]) -> String {
        let finding = finding(candidate);
        let mut entry = Entry::of(&finding);
        entry.nights = sightings.iter().map(|s| (s.night, s.clone())).collect();
        let id = finding.signature.id();
        store.entries.insert(id.clone(), entry);
        id
    }

    fn saved(folder: &Path) -> Store {
        let mut store = Store::open(folder).unwrap();
        with_entry(&mut store, "engine:1", &[seen(1, 3, 0), seen(2, 0, 3)]);
        with_entry(&mut store, "engine:2", &[seen(2, 3, 0)]);
        store
            .save(&Issues::default(), &Combination::default())
            .unwrap();
        store
    }

    #[test]
    fn save_open_round_trip_with_rows_by_urgency() {
        let folder = tempfile::tempdir().unwrap();
        let entries = saved(folder.path()).entries;
        let again = Store::open(folder.path()).unwrap();
        assert_eq!(again.entries, entries);
        assert_eq!(again.next_night(), 3);
        let rows: Vec<Row> = table::rows(&folder.path().join(FINDINGS)).unwrap();
        assert_eq!(
            rows,
            again.rows(&Issues::default(), &Combination::default())
        );
        let states: Vec<_> = rows.iter().map(|r| r.state.as_str()).collect();
        assert_eq!(states, ["new", "fixed"]);
        assert_eq!(rows[0].max_ratio, Some(f64::INFINITY));
        assert_eq!((rows[1].first_night, rows[1].checked_night), (1, 2));
    }

    #[test]
    fn open_folder_cut_short_is_left_out_and_damage_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let id = saved(folder.path()).entries.keys().next().cloned().unwrap();
        let facts = folder.path().join(FOLDERS).join(&id).join(FACTS);
        let text = fs::read_to_string(&facts).unwrap();
        fs::write(&facts, format!("colour = 1\n{text}")).unwrap();
        let error = Store::open(folder.path()).unwrap_err().to_string();
        assert!(
            error.contains("line 1") && error.contains("colour"),
            "{error}"
        );
        fs::remove_file(&facts).unwrap();
        assert_eq!(Store::open(folder.path()).unwrap().entries.len(), 1);
    }

    #[test]
    fn open_impossible_places_are_output_errors() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for path in [file.path(), &file.path().join("a"), Path::new("/proc/a")] {
            let error = Store::open(path).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Output, "{error}");
            assert!(error.to_string().contains("store ="), "{error}");
        }
    }

    #[test]
    fn check_device_versions_may_change_and_gpus_not() {
        let folder = tempfile::tempdir().unwrap();
        let mut store = Store::open(folder.path()).unwrap();
        let on = |backend: &str, device: &str, cudnn: &str| Combination {
            backend: backend.to_owned(),
            device: device.to_owned(),
            cudnn: cudnn.to_owned(),
            ..Combination::default()
        };
        assert!(store.check_device(&on("cudnn", "A", "9.14")).is_ok());
        let mut row = Night::begin(1, Date::default(), 0);
        row.on(&on("cudnn", "A", "9.14"));
        store.log(&row).unwrap();
        // A night that found no GPU says nothing about the device.
        store.log(&Night::begin(2, Date::default(), 0)).unwrap();
        assert!(store.check_device(&on("cudnn", "A", "9.19")).is_ok());
        for other in [on("cudnn", "B", "9.14"), on("host", "A", "")] {
            assert_eq!(store.check_device(&other).unwrap_err().exit_code(), 2);
        }
    }
}
