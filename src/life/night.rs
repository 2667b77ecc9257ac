//! One night: replay what is known, generate what is not, bring every finding's
//! life up to date, look into the new ones, and say what it comes to.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use jiff::civil::Date;

use super::config::{Config, Part, REPLAY};
use super::corpus;
use super::history::{Outcome, Row};
use super::issues::{Issues, Standing};
use super::replay::{Replayer, Runs};
use super::state::{Life, Sighting, life};
use super::store::{self, BUNDLE, Entry, FINDINGS, Store};
use crate::backend::open::BackendKind;
use crate::campaign::past::Past;
use crate::campaign::shard::Shard;
use crate::campaign::solo::{Settled, Terms};
use crate::campaign::{self, Plan, Progress, Sink, memory};
use crate::candidate::Repro;
use crate::error::{Error, Result};
use crate::finding::{Finding, Findings, Signature, failure_class};
use crate::record::TrialRecord;
use crate::report::environment::{Ending, Environment};
use crate::report::folder::Folder;
use crate::report::tally::Tally;

/// Folder of the nights' results in a store.
pub const NIGHTS: &str = "nights";

/// How often a running campaign says how far it is.
const NOTE_INTERVAL: Duration = Duration::from_secs(600);

/// What is asked for.
pub struct Order<'a> {
    /// The configuration.
    pub config: &'a Config,
    /// The date, which the seed is made of.
    pub date: Date,
    /// A seed to use instead.
    pub seed: Option<u64>,
    /// Set to end the night early.
    pub stop: &'a AtomicBool,
}

/// What looking into a finding gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Minimal {
    /// The simplest trial that fails in the same way.
    pub repro: String,
    /// The condition under which it fails.
    pub trigger: Option<String>,
    /// What in the library it comes from.
    pub attribution: Option<String>,
}

/// Looks into a finding: its simplest trial, its bundle.
pub trait Minimizer {
    /// Brings `repro` down to its simplest trial and writes its bundle into
    /// `folder`, unless it is one of the trials `known`; `None` when it did not
    /// fail again.
    fn minimize(
        &mut self,
        terms: &Terms,
        repro: &Repro,
        folder: &Path,
        known: &BTreeSet<String>,
    ) -> Result<Option<Minimal>>;
}

/// What a night came to.
#[derive(Clone, Debug)]
pub struct Report {
    /// Its row in the history.
    pub row: Row,
    /// Its results.
    pub folder: PathBuf,
    /// The table of findings.
    pub table: PathBuf,
    /// Findings that are new, came back or were fixed, news first.
    pub changed: Vec<store::Row>,
    /// References of known issues that are worth nothing any more, and why.
    pub stale: Vec<(String, Standing)>,
}

/// Runs a night. An error is one of input, machine or convfuzz; where the store
/// can be written, the history has a row of it too.
pub fn run(
    order: &Order<'_>,
    minimizer: &mut dyn Minimizer,
    say: &mut dyn FnMut(&str),
) -> Result<Report> {
    let config = order.config;
    let issues = read(config.known_issues.as_deref(), Issues::read)?;
    let lines = read(config.corpus.as_deref(), corpus::read)?;
    let mut store = Store::open(&config.store)?;
    let mut row = Row::begin(store.next_night(), order.date, order.seed());
    order.tell_dates(&store, say);
    let started = Instant::now();
    let opened = order.terms(say).and_then(|(terms, jobs)| {
        let replayer = Replayer::start(terms.clone())?;
        store.check_device(replayer.combination())?;
        row.on(replayer.combination());
        Ok((terms, jobs, replayer))
    });
    let (terms, jobs, replayer) = match opened {
        Ok(opened) => opened,
        Err(error) => return Err(log_error(&mut store, row, started, error)),
    };
    let mut night = Night {
        order,
        started,
        combination: store::words(replayer.combination()),
        store,
        issues,
        terms,
        jobs,
        replayer,
        tally: Tally::default(),
        findings: Findings::default(),
        row,
        say,
    };
    match night.perform(&lines, minimizer) {
        Ok(()) => night.finish(),
        Err(error) => {
            night.row.count(&night.tally);
            Err(log_error(&mut night.store, night.row, started, error))
        }
    }
}

fn read<T: Default>(path: Option<&Path>, reader: fn(&Path) -> Result<T>) -> Result<T> {
    path.map_or_else(|| Ok(T::default()), reader)
}

/// Tells the history of a night that could not run; the error is the clearer
/// complaint where that fails too.
fn log_error(store: &mut Store, mut row: Row, started: Instant, error: Error) -> Error {
    row.outcome = Outcome::CouldNotRun;
    row.detail = error.to_string();
    row.seconds = started.elapsed().as_secs_f64();
    let _ = store.log(&row);
    error
}

impl Order<'_> {
    /// The seed given, or the date as eight digits.
    fn seed(&self) -> u64 {
        let digits = |date: Date| {
            let year = u64::from(date.year().unsigned_abs());
            let (month, day) = (date.month().unsigned_abs(), date.day().unsigned_abs());
            year * 10_000 + u64::from(month) * 100 + u64::from(day)
        };
        self.seed.unwrap_or_else(|| digits(self.date))
    }

    /// Nights are ordered by number, whatever the clock says; but it is said.
    fn tell_dates(&self, store: &Store, say: &mut dyn FnMut(&str)) {
        let latest = store.history.iter().max_by_key(|row| row.date);
        if let Some(row) = latest
            && self.date < row.date
        {
            say(&format!(
                "the clock says {}, but night {} was on {}: it was set back, or that night's was ahead; nights go by number, so nothing is lost",
                self.date, row.night, row.date
            ));
        }
        let same = |row: &&Row| row.cases > 0 && row.seed == self.seed();
        let twin = store.history.iter().find(same);
        if let Some(row) = twin {
            say(&format!(
                "night {} had the same seed: the same cases are drawn again; --seed draws others",
                row.night
            ));
        }
    }

    /// How trials are run, and in how many workers.
    fn terms(&self, say: &mut dyn FnMut(&str)) -> Result<(Terms, usize)> {
        let asked = self.config.backend().kind;
        let settled = Settled::of(self.config.backend())?;
        let jobs = self.config.jobs.unwrap_or_else(|| settled.jobs());
        let backend = settled.backend;
        if (asked, backend.kind) == (BackendKind::Auto, BackendKind::Host) {
            say(
                "no usable cuDNN here ('convfuzz doctor' says why): using the host backend, which tests software algorithms",
            );
        }
        let terms = Terms {
            timeout: self.config.timeout.0,
            repeats: self.config.repeats,
            memory: memory::share(jobs),
            ..Terms::of(backend)
        };
        Ok((terms, jobs))
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }
}

/// A running night.
struct Night<'a> {
    order: &'a Order<'a>,
    started: Instant,
    combination: String,
    store: Store,
    issues: Issues,
    terms: Terms,
    /// Workers of a campaign.
    jobs: usize,
    replayer: Replayer,
    tally: Tally,
    /// Of corpus and generated trials.
    findings: Findings,
    row: Row,
    say: &'a mut dyn FnMut(&str),
}

impl Night<'_> {
    fn perform(&mut self, corpus: &[Repro], minimizer: &mut dyn Minimizer) -> Result<()> {
        (self.say)(&format!(
            "night {}, {}, seed {}, on {}",
            self.row.night, self.row.date, self.row.seed, self.combination
        ));
        // What nights that were not told showed is told by this one.
        let carried: Vec<String> = self.store.carried.keys().cloned().collect();
        for id in &carried {
            self.sighting(id);
        }
        // What was seen before an error is kept.
        let gathered = self.gather(corpus);
        self.absorb();
        let confirmed = gathered.and_then(|()| self.confirm());
        self.save()?;
        confirmed?;
        self.minimize(minimizer);
        self.save()
    }

    fn gather(&mut self, corpus: &[Repro]) -> Result<()> {
        self.replay(corpus)?;
        self.keep()?;
        self.generate()
    }

    /// Writes what was seen so far: a night may be killed.
    fn keep(&mut self) -> Result<()> {
        self.absorb();
        self.save()
    }

    fn folder(&self) -> PathBuf {
        let name = format!("{:04}-{}", self.row.night, self.row.date);
        self.store.path().join(NIGHTS).join(name)
    }

    fn results(&self, part: &str, seed: u64, options: serde_json::Value) -> Result<Folder> {
        let on = self.replayer.combination().clone();
        let environment = Environment::starting(on, seed, options);
        Folder::create(&self.folder().join(part), environment)
    }

    fn ending(&self, failed: bool) -> Ending {
        match (failed, self.order.stopped()) {
            (true, _) => Ending::Error,
            (false, true) => Ending::Interrupted,
            (false, false) => Ending::Completed,
        }
    }

    /// The corpus, then every finding: open ones may be fixed, fixed ones back.
    fn replay(&mut self, corpus: &[Repro]) -> Result<()> {
        if corpus.is_empty() && self.store.entries.is_empty() {
            return Ok(());
        }
        let ids: Vec<String> = self.store.entries.keys().cloned().collect();
        let options = serde_json::json!({ "corpus": corpus.len(), "findings": ids });
        let mut replays = Replays {
            folder: self.results(REPLAY, self.row.seed, options)?,
            case: 0,
            trial: 0,
        };
        let ran = self.replay_corpus(corpus, &mut replays).and_then(|()| {
            ids.iter()
                .try_for_each(|id| self.replay_finding(id, &mut replays))
        });
        let written = replays.folder.finish(self.ending(ran.is_err()));
        ran?;
        written?;
        (self.say)(&format!(
            "replayed {} lines of the corpus and {} findings",
            self.row.corpus, self.row.replayed
        ));
        Ok(())
    }

    fn replay_corpus(&mut self, corpus: &[Repro], replays: &mut Replays) -> Result<()> {
        for repro in corpus {
            if self.order.stopped() {
                break;
            }
            replays.next_case();
            for repro in self.replayer.expand(repro)? {
                if let Some(record) = self.replayer.trial(&repro)? {
                    replays.take(&record, &mut self.tally)?;
                    self.findings.add(&record);
                }
            }
            self.row.corpus += 1;
        }
        Ok(())
    }

    fn replay_finding(&mut self, id: &str, replays: &mut Replays) -> Result<()> {
        if self.order.stopped() {
            return Ok(());
        }
        let Some(entry) = self.store.entries.get(id).cloned() else {
            return Ok(());
        };
        let mut all = Vec::new();
        for line in entry.lines() {
            replays.next_case();
            all.push(self.run_line(line, &entry.facts.signature, Some(replays))?);
        }
        self.row.replayed += 1;
        let runs = together(&all);
        self.set_runs(id, runs);
        Ok(())
    }

    /// Sets how this night's runs of a finding's line went.
    fn set_runs(&mut self, id: &str, runs: Runs) {
        let before = self.store.carried.get(id).cloned().unwrap_or_default();
        let sighting = self.sighting(id);
        sighting.failed = before.failed + runs.failed;
        sighting.passed = before.passed + runs.passed;
    }

    /// Runs a finding's line. What fails in another way is a finding of its own.
    fn run_line(
        &mut self,
        line: &str,
        signature: &Signature,
        mut replays: Option<&mut Replays>,
    ) -> Result<Runs> {
        let repro: Repro = line.parse()?;
        let class = class_of(signature);
        let (tally, findings) = (&mut self.tally, &mut self.findings);
        let times = self.order.config.replays;
        self.replayer.runs(&repro, &class, times, &mut |record| {
            let Some(replays) = &mut replays else {
                return Ok(());
            };
            if failure_class(record).is_some_and(|other| other != class) {
                findings.add(record);
            }
            replays.take(record, tally)
        })
    }

    /// What this night showed of a finding so far.
    fn sighting(&mut self, id: &str) -> &mut Sighting {
        let night = self.row.night;
        let carried = self.store.carried.get(id).cloned();
        let begun = Sighting {
            night,
            date: self.row.date,
            combination: self.combination.clone(),
            ..carried.unwrap_or_default()
        };
        let entry = self
            .store
            .entries
            .get_mut(id)
            .expect("a finding of this store");
        entry.nights.entry(night).or_insert(begun)
    }

    /// The campaigns, each with its share of the time that is left.
    fn generate(&mut self) -> Result<()> {
        let config = self.order.config;
        let end = self.started + config.time.0.mul_f64(1.0 - config.minimize_share);
        let parts = config.parts();
        let mut shares: u32 = parts.iter().map(|part| part.share).sum();
        let mut cases = config.cases;
        for (number, part) in (1..).zip(&parts) {
            let left = end.saturating_duration_since(Instant::now());
            let time = left.mul_f64(f64::from(part.share) / f64::from(shares));
            let few = cases.map(|n| (n * u64::from(part.share) / u64::from(shares)).max(1));
            shares -= part.share;
            cases = cases.zip(few).map(|(n, few)| n.saturating_sub(few));
            if self.order.stopped() {
                break;
            }
            if time.is_zero() {
                (self.say)(&format!("no time is left for '{}'", part.name));
                continue;
            }
            let plan = self.plan(part, number, time, few)?;
            self.campaign(part, &plan)?;
            self.keep()?;
        }
        Ok(())
    }

    fn plan(&self, part: &Part, number: u64, time: Duration, cases: Option<u64>) -> Result<Plan> {
        let config = self.order.config;
        Ok(Plan {
            backend: part.backend(&self.terms.backend),
            seed: self.row.seed.wrapping_mul(100).wrapping_add(number),
            cases,
            time: Some(time),
            limits: config.limits()?,
            jobs: self.jobs,
            timeout: self.terms.timeout,
            repeats: self.terms.repeats,
            outputs: self.terms.outputs,
            regressions: None,
            shard: Shard::default(),
            memory: Some(self.terms.memory),
            program: self.terms.program.clone(),
        })
    }

    fn campaign(&mut self, part: &Part, plan: &Plan) -> Result<()> {
        let options = serde_json::to_value(plan)
            .map_err(|e| Error::internal("the plan does not fit JSON").with_source(e))?;
        let folder = self.results(&part.name, plan.seed, options)?;
        (self.say)(&format!(
            "'{}': at most {:.0?}, seed {}, results in {}",
            part.name,
            plan.time.unwrap_or_default(),
            plan.seed,
            folder.path().display()
        ));
        let mut recorder = Recorder {
            folder,
            tally: &mut self.tally,
            findings: &mut self.findings,
            noted: Instant::now(),
            say: &mut *self.say,
        };
        let ran = campaign::run(plan, Past::none(None), &mut recorder, self.order.stop);
        let folder = recorder.folder;
        let written = folder.finish(self.ending(ran.is_err()));
        self.row.cases += ran.and_then(|summary| written.map(|_| summary))?.cases;
        Ok(())
    }

    /// Counts what corpus and campaigns found into the findings' night.
    fn absorb(&mut self) {
        let found: Vec<Finding> = self.findings.iter().cloned().collect();
        for finding in found {
            let id = finding.signature.id();
            let entries = &mut self.store.entries;
            let entry = entries
                .entry(id.clone())
                .or_insert_with(|| Entry::of(&finding));
            entry.widen(finding.max_ratio);
            let before = self.store.carried.get(&id).map_or(0, |s| s.found);
            self.sighting(&id).found = before + finding.trials;
        }
    }

    /// Runs the lines of new findings, to tell sporadic from certain; and those
    /// of findings whose old line passes now, though others do not.
    fn confirm(&mut self) -> Result<()> {
        let found: Vec<Finding> = self.findings.iter().cloned().collect();
        for finding in found {
            if self.order.stopped() {
                break;
            }
            let id = finding.signature.id();
            let sighting = self.sighting(&id).clone();
            let before = self.life_before(&id);
            let passes = sighting.failed == 0 && sighting.passed > 0;
            let certain = before.is_some_and(|life| life.rate() >= 1.0);
            if before.is_some() && !(passes && certain) {
                continue;
            }
            let runs = self.run_line(&finding.repro, &finding.signature, None)?;
            // A line that does not fail by itself is no better than the old one.
            if before.is_some() && runs.failed == 0 {
                continue;
            }
            if let Some(entry) = self.store.entries.get_mut(&id) {
                entry.show_by(&finding);
            }
            self.set_runs(&id, runs);
        }
        Ok(())
    }

    fn life_before(&self, id: &str) -> Option<Life> {
        let mut nights = self.store.entries.get(id)?.nights.clone();
        nights.remove(&self.row.night);
        life(&nights)
    }

    /// Looks into findings that were seen this night and have no simplest trial
    /// yet, news first, while there is time. A failure here is said, and leaves
    /// the findings as they are.
    fn minimize(&mut self, minimizer: &mut dyn Minimizer) {
        let config = self.order.config;
        if config.minimize_share == 0.0 {
            return;
        }
        let end = self.started + config.time.0;
        for id in self.unexplained() {
            if self.order.stopped() {
                return;
            }
            if Instant::now() >= end {
                (self.say)("no time is left to look into more findings; the next night goes on");
                return;
            }
            if let Err(error) = self.minimize_one(&id, minimizer) {
                (self.say)(&format!("could not look into finding {id}: {error}"));
            }
        }
    }

    fn unexplained(&self) -> Vec<String> {
        let night = self.row.night;
        let mut ids = Vec::new();
        for (id, entry) in &self.store.entries {
            let Some(life) = entry.life().filter(|life| life.last == night) else {
                continue;
            };
            let marked = self.mark(&entry.facts.signature);
            if entry.facts.minimal.is_none() {
                ids.push((!life.news(night) || marked, id.clone()));
            }
        }
        ids.sort();
        ids.into_iter().map(|(_, id)| id).collect()
    }

    fn minimize_one(&mut self, id: &str, minimizer: &mut dyn Minimizer) -> Result<()> {
        let entries = &mut self.store.entries;
        let known = entries.values().filter_map(|e| e.facts.minimal.clone());
        let known: BTreeSet<String> = known.collect();
        let folder = self.store.folder(id).join(BUNDLE);
        let Some(entry) = self.store.entries.get_mut(id) else {
            return Ok(());
        };
        let repro = entry.facts.repro.parse()?;
        if let Some(minimal) = minimizer.minimize(&self.terms, &repro, &folder, &known)? {
            entry.facts.minimal = Some(minimal.repro);
            entry.facts.trigger = minimal.trigger;
            entry.facts.attribution = minimal.attribution;
            self.row.minimized += 1;
        }
        Ok(())
    }

    fn mark(&self, signature: &Signature) -> bool {
        let on = self.replayer.combination();
        self.issues.mark(signature, on).is_some()
    }

    fn save(&self) -> Result<()> {
        self.store.save(&self.issues, self.replayer.combination())
    }

    /// Counts, decides, and adds the night to the history.
    fn finish(mut self) -> Result<Report> {
        self.count();
        self.row.outcome = self.outcome();
        self.row.seconds = self.started.elapsed().as_secs_f64();
        let stale = self.stale();
        self.row.stale_issues = stale.len() as u64;
        if self.row.outcome == Outcome::CouldNotRun {
            let error = nothing_proven(&self.row);
            return Err(log_error(&mut self.store, self.row, self.started, error));
        }
        self.store.log(&self.row)?;
        Ok(Report {
            folder: self.folder(),
            table: self.store.path().join(FINDINGS),
            changed: self.changed(),
            stale,
            row: self.row,
        })
    }

    fn count(&mut self) {
        let night = self.row.night;
        self.row.count(&self.tally);
        for entry in self.store.entries.values() {
            let Some(life) = entry.life() else { continue };
            let marked = self.mark(&entry.facts.signature);
            let row = &mut self.row;
            row.open += u64::from(life.open());
            row.flaky += u64::from(life.open() && life.rate() < 1.0);
            row.fixed += u64::from(life.fixed_in(night));
            if life.news(night) {
                row.new += u64::from(life.first == night);
                row.regressed += u64::from(life.first != night);
                row.marked += u64::from(marked);
            }
        }
    }

    fn outcome(&self) -> Outcome {
        let row = &self.row;
        if self.order.stopped() {
            Outcome::Interrupted
        } else if row.new + row.regressed > row.marked {
            Outcome::NewFinding
        } else if row.open > 0 {
            Outcome::KnownOnly
        } else if row.passed == 0 {
            Outcome::CouldNotRun
        } else {
            Outcome::Clean
        }
    }

    fn changed(&self) -> Vec<store::Row> {
        let night = self.row.night;
        let rows = self.store.rows(&self.issues, self.replayer.combination());
        let changed = |row: &store::Row| {
            let life = self.store.entries.get(&row.id).and_then(Entry::life);
            life.is_some_and(|life| life.news(night) || life.fixed_in(night))
        };
        rows.into_iter().filter(changed).collect()
    }

    fn stale(&self) -> Vec<(String, Standing)> {
        let findings = self.store.standing();
        let on = self.replayer.combination();
        let standings = self.issues.standings(on, &findings).into_iter();
        let stale = |s: &Standing| matches!(s, Standing::PassesNow | Standing::MatchesNothing);
        standings
            .filter(|(_, standing)| stale(standing))
            .map(|(issue, standing)| (issue.reference.clone(), standing))
            .collect()
    }
}

/// Several lines show a finding as long as one does; it passes when all do.
fn together(all: &[Runs]) -> Runs {
    let failing = all.iter().find(|runs| runs.failed > 0);
    failing.copied().unwrap_or_else(|| Runs {
        failed: 0,
        passed: all.iter().map(|runs| runs.passed).min().unwrap_or(0),
    })
}

/// How a signature fails, in the words of [`failure_class`].
fn class_of(signature: &Signature) -> String {
    let record = TrialRecord {
        verdict: signature.verdict.clone(),
        reason: Some(signature.reason.clone()).filter(|r| !r.is_empty()),
        ..TrialRecord::default()
    };
    failure_class(&record).unwrap_or_default()
}

fn nothing_proven(row: &Row) -> Error {
    Error::environment(format!(
        "nothing failed in {} trials, but nothing passed either, so the night proves nothing: give it more time, or limits and shares that the library serves",
        row.trials
    ))
}

/// The results folder of the replays.
struct Replays {
    folder: Folder,
    case: i64,
    trial: u32,
}

impl Replays {
    fn next_case(&mut self) {
        (self.case, self.trial) = (self.case - 1, 0);
    }

    fn take(&mut self, record: &TrialRecord, tally: &mut Tally) -> Result<()> {
        let mut record = record.clone();
        (record.case, record.trial) = (self.case, self.trial);
        self.trial += 1;
        tally.add(record.parsed_verdict()?, record.suspect);
        self.folder.record(&record)
    }
}

/// Takes the trials of a campaign.
struct Recorder<'a> {
    folder: Folder,
    tally: &'a mut Tally,
    findings: &'a mut Findings,
    noted: Instant,
    say: &'a mut dyn FnMut(&str),
}

impl Sink for Recorder<'_> {
    fn record(&mut self, record: &TrialRecord) -> Result<()> {
        self.folder.record(record)?;
        self.tally.add(record.parsed_verdict()?, record.suspect);
        self.findings.add(record);
        Ok(())
    }

    fn progress(&mut self, progress: &Progress) {
        if self.noted.elapsed() < NOTE_INTERVAL {
            return;
        }
        self.noted = Instant::now();
        (self.say)(&format!(
            "{} cases, {} trials, {} findings",
            progress.cases,
            self.tally.trials,
            self.findings.len()
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn together_one_failing_line_is_enough_and_all_must_pass() {
        let runs = |failed, passed| Runs { failed, passed };
        assert_eq!(together(&[runs(0, 3), runs(2, 1)]), runs(2, 1));
        assert_eq!(together(&[runs(0, 3), runs(0, 2)]), runs(0, 2));
        // A line that could not be run says nothing, and so do both.
        assert_eq!(together(&[runs(0, 3), runs(0, 0)]), runs(0, 0));
        assert_eq!(together(&[]), runs(0, 0));
    }

    #[test]
    fn seed_is_the_date_in_digits_unless_given() {
        let (config, stop) = (Config::default(), AtomicBool::new(false));
        let mut order = Order {
            config: &config,
            date: "2026-12-01".parse().unwrap(),
            seed: None,
            stop: &stop,
        };
        assert_eq!(order.seed(), 20_261_201);
        order.seed = Some(7);
        assert_eq!(order.seed(), 7);
    }
}
