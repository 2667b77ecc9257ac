//! Takes the trials of a running campaign: the results folder, its journal, and
//! the summary that is printed at the end.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::campaign::past::{Complete, Past, Place};
use crate::campaign::{self, Sink};
use crate::candidate::Repro;
use crate::cli::progress::Progress;
use crate::cli::terminal::Terminal;
use crate::error::{Error, Result};
use crate::finding::Findings;
use crate::record::TrialRecord;
use crate::report::environment::{Ending, Environment};
use crate::report::folder::{self, Finished, Folder, Reserved};
use crate::report::journal::{self, Begun, Journal};
use crate::report::summary::Summary;
use crate::report::{csv_file, read};

/// Where a campaign's results go.
pub struct Recorder {
    /// The results.
    pub folder: Folder,
    journal: Journal,
    summary: Summary,
    findings: Findings,
    progress: Progress,
}

/// What a campaign came to.
pub struct Ended {
    /// Where its results are.
    pub folder: PathBuf,
    /// What it says of itself.
    pub campaign: campaign::Summary,
    /// Trials by verdict.
    pub summary: Summary,
    /// Its findings.
    pub findings: Findings,
    /// The journal and the lock, until nothing more is to be done.
    open: Option<(Journal, Finished)>,
}

/// What there is where a campaign is to go on.
pub enum Resumed {
    /// Something to do.
    Run(Box<Recorder>, Past<'static>),
    /// All was done before.
    Complete(Box<Ended>),
}

/// The seed of the run in `folder`, if there is one.
pub fn earlier_seed(folder: &Path) -> Result<Option<u64>> {
    if let Some(earlier) = journal::read(folder)? {
        return Ok(Some(earlier.begun.environment.seed));
    }
    let path = folder.join(folder::ENVIRONMENT);
    let environment = path.exists().then(|| read::environment(&path));
    Ok(environment.transpose()?.map(|e| e.seed))
}

impl Recorder {
    /// Begins a run in `path`, or beside one that is there.
    pub fn begin(
        path: &Path,
        begun: Begun,
        progress: Progress,
    ) -> Result<(Box<Self>, Past<'static>)> {
        Self::begin_in(Reserved::free(path)?, begun, progress)
    }

    fn begin_in(
        place: Reserved,
        begun: Begun,
        progress: Progress,
    ) -> Result<(Box<Self>, Past<'static>)> {
        // First of all: where there is a journal, a run can go on.
        let journal = Journal::create(place.path(), &begun)?;
        let past = Past {
            replayed: begun.replayed,
            ..Past::none(None)
        };
        let folder = Folder::start(place, begun.environment)?;
        Ok((Self::new(folder, journal, progress), past))
    }

    fn new(folder: Folder, journal: Journal, progress: Progress) -> Box<Self> {
        Box::new(Recorder {
            folder,
            journal,
            summary: Summary::default(),
            findings: Findings::default(),
            progress,
        })
    }

    /// Goes on with the run in `path`, or begins it where nothing is there.
    pub fn resume(
        path: &Path,
        begun: Begun,
        progress: Progress,
        terminal: &Terminal,
    ) -> Result<Resumed> {
        let place = Reserved::exactly(path)?;
        let Some(earlier) = journal::read(path)? else {
            if folder::holds_run(path) {
                return complete(path, &begun).map(|ended| Resumed::Complete(Box::new(ended)));
            }
            let (recorder, past) = Self::begin_in(place, begun, progress)?;
            return Ok(Resumed::Run(recorder, past));
        };
        earlier.begun.check_same(&begun, path)?;
        csv_file::clean_up(path)?;
        tell_of(&earlier, terminal);
        let past = earlier.past(path)?;
        let journal = Journal::go_on(path, earlier.complete)?;
        let folder = Folder::start(place, earlier.begun.environment)?;
        Ok(Resumed::Run(Self::new(folder, journal, progress), past))
    }

    /// Writes the end of the run, also after an error, which it then returns.
    pub fn finish(mut self, ran: Result<campaign::Summary>, interrupted: bool) -> Result<Ended> {
        self.progress.finish();
        let folder = self.folder.path().to_owned();
        let ending = match (&ran, interrupted) {
            (Err(_), _) => Ending::Error,
            (Ok(_), true) => Ending::Interrupted,
            (Ok(_), false) => Ending::Completed,
        };
        let noted = match ending {
            Ending::Completed => self.journal.ended(),
            _ => self.journal.sync(),
        };
        let written = self.folder.finish(ending);
        let campaign = ran?;
        noted?;
        Ok(Ended {
            folder,
            campaign,
            summary: self.summary,
            findings: self.findings,
            open: Some((self.journal, written?)),
        })
    }
}

/// Says what is gone on with.
fn tell_of(earlier: &journal::Summary, terminal: &Terminal) {
    let begun = &earlier.begun.environment.started;
    terminal.note(&format!("going on with the run that began at {begun:.0}"));
    for (_, line) in &earlier.in_flight {
        terminal.note(&format!("in flight when it was cut off: {line}"));
    }
}

impl Sink for Recorder {
    fn record(&mut self, record: &TrialRecord) -> Result<()> {
        self.folder.record(record)?;
        self.summary.add(record)?;
        self.findings.add(record);
        Ok(())
    }

    fn progress(&mut self, progress: &campaign::Progress) {
        self.progress.update(progress.cases, &self.summary);
    }

    fn starting(&mut self, place: Place, repro: &Repro) -> Result<()> {
        self.journal.starting(place, &repro.to_string())
    }

    fn judged(&mut self, place: Place, record: &TrialRecord) -> Result<()> {
        self.journal.judged(place, record)
    }

    fn complete(&mut self, case: &Complete) -> Result<()> {
        self.journal.complete(case)
    }

    fn idle(&mut self) -> Result<()> {
        self.journal.sync_if_due()
    }
}

impl Ended {
    /// Nothing more is to be done: the journal goes.
    pub fn close(&mut self) -> Result<()> {
        match self.open.take() {
            Some((journal, _finished)) => journal.remove(),
            None => Ok(()),
        }
    }
}

/// A run that is complete, read back.
fn complete(path: &Path, now: &Begun) -> Result<Ended> {
    let environment = read::environment(&path.join(folder::ENVIRONMENT))?;
    check_ending(path, &environment)?;
    Begun::now(environment, Vec::new()).check_same(now, path)?;
    let (mut summary, mut findings) = (Summary::default(), Findings::default());
    let (mut cases, mut quarantined) = (BTreeSet::new(), BTreeSet::new());
    for record in read::trials(&path.join(folder::TRIALS))? {
        summary.add(&record)?;
        findings.add(&record);
        cases.insert(record.case);
        if record.reason.as_deref() == Some("quarantined") {
            let key = [&*record.candidate, &record.direction, &record.types];
            quarantined.insert(key.join(" "));
        }
    }
    Ok(Ended {
        folder: path.to_owned(),
        campaign: campaign::Summary {
            cases: cases.len() as u64,
            replayed: cases.range(..0).count() as u64,
            quarantined: quarantined.into_iter().collect(),
            ..campaign::Summary::default()
        },
        summary,
        findings,
        open: None,
    })
}

fn check_ending(path: &Path, environment: &Environment) -> Result<()> {
    match environment.ending {
        Some(Ending::Completed) => Ok(()),
        _ => Err(Error::usage(format!(
            "'{}' holds a run that did not end and has no {}, so it cannot be continued; start anew in another folder with --out",
            path.display(),
            journal::NAME
        ))),
    }
}
