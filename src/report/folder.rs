//! The results folder of one run: written as the run goes, whole at every
//! moment, never over an earlier run.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use jiff::Timestamp;

use crate::backend::Combination;
use crate::error::{Error, Result};
use crate::record::TrialRecord;
use crate::report::coverage::Coverage;
use crate::report::csv_file::{self, CsvFile};
use crate::report::environment::{Ending, Environment};
use crate::report::journal;
use crate::report::lock::Lock;
use crate::report::matrix::Matrix;
use crate::report::tally::{Tally, is_bad};

/// What the run was made on and with.
pub const ENVIRONMENT: &str = "environment.json";
/// One row per trial.
pub const TRIALS: &str = "trials.csv";
/// The rows of [`TRIALS`] that speak against the library.
pub const FAILURES: &str = "failures.csv";
/// One row per candidate and configuration.
pub const MATRIX: &str = "matrix.csv";

/// One row per knob value of an engine.
pub const COVERAGE: &str = "coverage.csv";

/// All files of a run.
pub const FILES: [&str; 5] = [ENVIRONMENT, TRIALS, FAILURES, MATRIX, COVERAGE];

/// How often the matrix of a running run is rewritten: often enough to look
/// at, seldom enough to cost nothing.
const MATRIX_INTERVAL: Duration = Duration::from_secs(10);

/// The files of a running run, and the lock that keeps others out.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    environment: Environment,
    trials: CsvFile,
    failures: CsvFile,
    matrix: Matrix,
    coverage: Coverage,
    matrix_written: Instant,
    tally: Tally,
    // Keep others out until the run has ended.
    _locks: Vec<Lock>,
}

/// A run that has ended: others are kept out while this lives.
#[derive(Debug)]
pub struct Finished {
    _locks: Vec<Lock>,
}

/// A place for a run, locked.
#[derive(Debug)]
pub struct Reserved {
    path: PathBuf,
    locks: Vec<Lock>,
}

impl Reserved {
    /// `path`, or the first free place in it when a run is there. Everything above
    /// is created.
    pub fn free(path: &Path) -> Result<Self> {
        let mut reserved = Self::exactly(path)?;
        let place = free_place(path)?;
        if place != path {
            reserved.locks.push(Lock::take(&place)?);
        }
        reserved.path = place;
        Ok(reserved)
    }

    /// `path`, whatever is there.
    pub fn exactly(path: &Path) -> Result<Self> {
        create_folder(path)?;
        Ok(Reserved {
            path: path.to_owned(),
            locks: vec![Lock::take(path)?],
        })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// `<gpu>-<driver>-cudnn<version>` or `host-<cpu>`, in characters that are safe
/// in any file system.
pub fn default_name(combination: &Combination) -> String {
    let device = slug(&combination.device);
    if combination.backend == "host" {
        return format!("host-{device}");
    }
    let (driver, cudnn) = (slug(&combination.driver), slug(&combination.cudnn));
    format!("{device}-{driver}-cudnn{cudnn}")
}

fn slug(text: &str) -> String {
    let keep = |c: char| c.is_ascii_alphanumeric() || c == '.';
    let words: Vec<_> = text.split(|c| !keep(c)).filter(|w| !w.is_empty()).collect();
    words.join("-").to_lowercase()
}

impl Folder {
    /// Starts a run in `path`, or in `path/run-2`, `path/run-3`, … when earlier
    /// runs are there. Everything above is created; `path` is locked.
    pub fn create(path: &Path, environment: Environment) -> Result<Self> {
        Self::start(Reserved::free(path)?, environment)
    }

    /// Starts a run in a place that was found for it.
    pub fn start(place: Reserved, environment: Environment) -> Result<Self> {
        let Reserved { path, locks } = place;
        csv_file::replace(&path.join(ENVIRONMENT), &json(&environment)?)?;
        let mut folder = Folder {
            // What is there is of the same run, and is made again.
            trials: CsvFile::create_anew::<TrialRecord>(&path.join(TRIALS))?,
            failures: CsvFile::create_anew::<TrialRecord>(&path.join(FAILURES))?,
            matrix: Matrix::default(),
            coverage: Coverage::default(),
            matrix_written: Instant::now(),
            tally: Tally::default(),
            path,
            environment,
            _locks: locks,
        };
        folder.write_matrix()?;
        Ok(folder)
    }

    /// Where the files are.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Trials by verdict so far.
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Writes one trial to every file it belongs to.
    pub fn record(&mut self, record: &TrialRecord) -> Result<()> {
        let verdict = record.parsed_verdict()?;
        self.trials.append(record)?;
        if is_bad(verdict) {
            self.failures.append(record)?;
        }
        self.matrix.add(record)?;
        self.coverage.add(record)?;
        self.tally.add(verdict, record.suspect);
        if self.matrix_written.elapsed() >= MATRIX_INTERVAL {
            self.write_matrix()?;
        }
        Ok(())
    }

    /// Ends the run: the last matrix, and the end in the environment. All of it is
    /// on the disk then.
    pub fn finish(mut self, ending: Ending) -> Result<Finished> {
        self.write_matrix()?;
        self.trials.sync()?;
        self.failures.sync()?;
        self.environment.finished = Some(Timestamp::now());
        self.environment.ending = Some(ending);
        self.environment.tally = Some(self.tally);
        csv_file::replace(&self.path.join(ENVIRONMENT), &json(&self.environment)?)?;
        csv_file::sync_folder(&self.path)?;
        Ok(Finished {
            _locks: self._locks,
        })
    }

    fn write_matrix(&mut self) -> Result<()> {
        self.matrix_written = Instant::now();
        let bytes = csv_file::table(self.matrix.rows())?;
        csv_file::replace(&self.path.join(MATRIX), &bytes)?;
        let rows: Vec<_> = self.coverage.rows().collect();
        let bytes = csv_file::table(&rows)?;
        csv_file::replace(&self.path.join(COVERAGE), &bytes)
    }
}

fn create_folder(path: &Path) -> Result<()> {
    if path.exists() && !path.is_dir() {
        return Err(Error::output(format!(
            "'{}' is a file, not a folder; choose another folder with --out",
            path.display()
        )));
    }
    fs::create_dir_all(path).map_err(|e| csv_file::cannot_write(path, &e))
}

/// `path` itself when no run was there, else the first free numbered folder in it.
fn free_place(path: &Path) -> Result<PathBuf> {
    if !holds_run(path) {
        return Ok(path.to_owned());
    }
    let free = (2..)
        .map(|number: u32| path.join(format!("run-{number}")))
        .find(|p| !p.exists())
        .ok_or_else(|| Error::output(format!("'{}' is full of runs", path.display())))?;
    create_folder(&free)?;
    Ok(free)
}

/// Whether anything of a run is in `path`.
pub fn holds_run(path: &Path) -> bool {
    let mut names = FILES.iter().chain([&journal::NAME]);
    names.any(|name| path.join(name).exists())
}

fn json(environment: &Environment) -> Result<Vec<u8>> {
    let mut bytes = serde_json::to_vec_pretty(environment)
        .map_err(|e| Error::internal("the environment does not fit JSON").with_source(e))?;
    bytes.push(b'\n');
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use crate::judge::{FailureKind, Verdict};
    use crate::record::SCHEMA;
    use crate::report::read;

    fn environment() -> Environment {
        Environment::starting(Combination::default(), 7, serde_json::json!({"cases": 3}))
    }

    fn record(verdict: Verdict) -> TrialRecord {
        let mut record = TrialRecord {
            schema: SCHEMA,
            repro: format!("{verdict:?}"),
            ..TrialRecord::default()
        };
        record.set_verdict(verdict);
        record
    }

    #[test]
    fn default_name_combinations_make_plain_folders() {
        let mut combination = Combination {
            backend: "cudnn".to_owned(),
            device: "NVIDIA H200".to_owned(),
            driver: "580.159.04".to_owned(),
            cudnn: "9.19.0".to_owned(),
            ..Combination::default()
        };
        assert_eq!(
            default_name(&combination),
            "nvidia-h200-580.159.04-cudnn9.19.0"
        );
        combination.backend = "host".to_owned();
        combination.device = "Intel(R) Xeon(R) @ 2.1GHz /../".to_owned();
        assert_eq!(default_name(&combination), "host-intel-r-xeon-r-2.1ghz-..");
    }

    #[test]
    fn record_trials_land_in_every_file_they_belong_to() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("a/b");
        let mut folder = Folder::create(&path, environment()).unwrap();
        let running = read::environment(&path.join(ENVIRONMENT)).unwrap();
        assert_eq!((running.seed, running.ending), (7, None));
        folder.record(&record(Verdict::Passed)).unwrap();
        let failed = record(Verdict::Failed(FailureKind::Mismatch));
        folder.record(&failed).unwrap();
        // Before the end, as after a kill: both trials are there.
        assert_eq!(read::trials(&path.join(TRIALS)).unwrap().len(), 2);
        folder.finish(Ending::Completed).unwrap();
        assert_eq!(read::trials(&path.join(FAILURES)).unwrap(), [failed]);
        let matrix = read::matrix(&path.join(MATRIX)).unwrap();
        assert_eq!((matrix[0].trials, matrix[0].mismatch), (2, 1));
        let ended = read::environment(&path.join(ENVIRONMENT)).unwrap();
        assert_eq!(ended.ending, Some(Ending::Completed));
        assert_eq!(ended.tally.map(|t| (t.trials, t.failed)), Some((2, 1)));
        assert_eq!(fs::read_dir(&path).unwrap().count(), FILES.len());
    }

    #[test]
    fn create_second_run_leaves_the_first_alone() {
        let parent = tempfile::tempdir().unwrap();
        let first = Folder::create(parent.path(), environment()).unwrap();
        first.finish(Ending::Completed).unwrap();
        let before = fs::read(parent.path().join(ENVIRONMENT)).unwrap();
        for number in 2..4 {
            let mut again = Folder::create(parent.path(), environment()).unwrap();
            assert!(again.path().ends_with(format!("run-{number}")));
            again.record(&record(Verdict::Passed)).unwrap();
            again.finish(Ending::Completed).unwrap();
        }
        assert_eq!(fs::read(parent.path().join(ENVIRONMENT)).unwrap(), before);
        let trials = read::trials(&parent.path().join(TRIALS)).unwrap();
        assert_eq!(trials, []);
    }

    #[test]
    fn create_impossible_places_are_output_errors() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for path in [
            file.path(),
            &file.path().join("below"),
            Path::new("/proc/a"),
        ] {
            let error = Folder::create(path, environment()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Output, "{error}");
            assert!(error.to_string().contains("--out"), "{error}");
        }
    }

    #[test]
    fn create_folder_in_use_is_refused() {
        let parent = tempfile::tempdir().unwrap();
        let first = Folder::create(parent.path(), environment()).unwrap();
        let error = Folder::create(parent.path(), environment()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Output);
        assert!(error.to_string().contains("in use"), "{error}");
        drop(first);
        Folder::create(parent.path(), environment()).unwrap();
    }
}
