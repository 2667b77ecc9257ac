//! Many cases, in worker processes that may die.
//!
//! The parent holds at most a window of unfinished cases (a few per worker) and
//! streams records in case order, so its memory does not grow with a run. A
//! worker holds one case: operands, result and exact values, bounded by the
//! limits on elements (see [`crate::oracle::footprint`]) and, on a GPU, the
//! same again there.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::backend::open::BackendSpec;
use crate::candidate::{Candidate, Repro};
use crate::error::{Error, Result};
use crate::judge::{SkipReason, Verdict};
use crate::record::TrialRecord;
use crate::strategy::{Draw, Limits};
use crate::trial::described;

pub mod batch_norm;
mod child;
mod draws;
pub mod examine;
pub mod probe;
pub mod protocol;
pub mod shard;
pub mod solo;
pub mod soundness;
pub mod worker;

use child::{Heard, Worker, failure};
use draws::Draws;
use protocol::{Reply, Request};
use shard::Shard;

/// What to run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// The backend.
    pub backend: BackendSpec,
    /// Seed of the run.
    pub seed: u64,
    /// Stop after so many generated problems, each with all its fills; those of
    /// all shards together.
    pub cases: Option<u64>,
    /// Stop drawing cases after this long.
    pub time: Option<Duration>,
    /// What may be drawn.
    pub limits: Limits,
    /// Worker processes.
    pub jobs: usize,
    /// Longest time for one trial.
    pub timeout: Duration,
    /// Further runs of each candidate, compared bit for bit.
    pub repeats: u32,
    /// Most outputs judged per trial.
    pub outputs: usize,
    /// File of failing seeds in proptest's format: replayed first, and added to
    /// unless this is one shard of several, which must all replay the same.
    pub regressions: Option<PathBuf>,
    /// Which of the cases are run.
    #[serde(default)]
    pub shard: Shard,
    /// The convfuzz that workers run; this program when absent.
    pub program: Option<PathBuf>,
}

/// How far a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Complete cases.
    pub cases: u64,
}

/// Takes what a campaign gives, in case order.
pub trait Sink {
    /// A trial that is about to be launched, in no particular order.
    fn starting(&mut self, repro: &Repro) -> Result<()>;
    /// The record of a trial.
    fn record(&mut self, record: &TrialRecord) -> Result<()>;
    /// A case is complete.
    fn progress(&mut self, progress: &Progress);
}

/// What a run came to, beyond its records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Complete cases, replayed ones included.
    pub cases: u64,
    /// Cases replayed from the regressions file.
    pub replayed: u64,
    /// Candidates that kept killing their worker and were left out.
    pub quarantined: Vec<String>,
    /// Workers that were replaced.
    pub replaced: u64,
}

/// Cases a worker may be ahead of the oldest unfinished one.
const WINDOW: u64 = 8;

/// Deaths after which a candidate is left out for the rest of the run.
const QUARANTINE_AFTER: u32 = 3;

/// Runs a plan until its end, an error, or until `interrupt` is set.
pub fn run(plan: &Plan, sink: &mut dyn Sink, interrupt: &AtomicBool) -> Result<Summary> {
    plan.limits.validate()?;
    let draws = Draws::new(&plan.limits, plan.seed, plan.regressions.clone());
    let shared = Shared::new(plan, &draws, interrupt);
    let (sender, receiver) = sync_channel(plan.jobs * 2);
    std::thread::scope(|scope| {
        for _ in 0..plan.jobs.max(1) {
            let (sender, shared) = (sender.clone(), &shared);
            scope.spawn(move || shared.work(&sender));
        }
        drop(sender);
        let delivered = deliver(&receiver, &shared, sink);
        // On an error workers must not wait for a reader.
        shared.halt();
        drop(receiver);
        delivered
    })
}

/// What the worker threads share.
struct Shared<'a> {
    plan: &'a Plan,
    draws: &'a Draws,
    interrupt: &'a AtomicBool,
    halted: AtomicBool,
    started: Instant,
    queue: Mutex<Queue>,
    moved: Condvar,
    deaths: Mutex<HashMap<String, u32>>,
}

/// Which cases are out.
struct Queue {
    next: i64,
    /// Complete and delivered cases.
    delivered: u64,
    taken: u64,
    replaced: u64,
}

/// From a worker thread to the delivering one.
enum Message {
    Starting(Repro),
    Case {
        order: u64,
        number: i64,
        draw: Draw,
        records: Vec<TrialRecord>,
    },
    Error(Error),
}

impl<'a> Shared<'a> {
    fn new(plan: &'a Plan, draws: &'a Draws, interrupt: &'a AtomicBool) -> Self {
        Shared {
            plan,
            draws,
            interrupt,
            halted: AtomicBool::new(false),
            started: Instant::now(),
            queue: Mutex::new(Queue {
                next: plan.shard.at_or_after(-(draws.replayed() as i64)),
                delivered: 0,
                taken: 0,
                replaced: 0,
            }),
            moved: Condvar::new(),
            deaths: Mutex::new(HashMap::new()),
        }
    }

    fn halt(&self) {
        self.halted.store(true, Ordering::SeqCst);
        self.moved.notify_all();
    }

    fn stopped(&self, next: i64) -> bool {
        let enough = self.plan.cases.is_some_and(|cases| next >= cases as i64);
        let late = self
            .plan
            .time
            .is_some_and(|time| self.started.elapsed() >= time);
        enough
            || late
            || self.interrupt.load(Ordering::SeqCst)
            || self.halted.load(Ordering::SeqCst)
    }

    /// The next case's place in the order and number; waits while the window is
    /// full, `None` at the end of the run.
    fn take(&self) -> Option<(u64, i64)> {
        let window = WINDOW * self.plan.jobs.max(1) as u64;
        let mut queue = self.queue.lock().ok()?;
        loop {
            if self.stopped(queue.next) {
                return None;
            }
            if queue.taken < queue.delivered + window {
                let taken = (queue.taken, queue.next);
                queue.taken += 1;
                queue.next += i64::from(self.plan.shard.count());
                return Some(taken);
            }
            let wait = Duration::from_millis(100);
            queue = self.moved.wait_timeout(queue, wait).ok()?.0;
        }
    }

    fn work(&self, sender: &SyncSender<Message>) {
        let mut seat = Seat {
            shared: self,
            sender,
            worker: None,
        };
        while let Some((order, number)) = self.take() {
            let message = match seat.case(number) {
                Ok((draw, records)) => Message::Case {
                    order,
                    number,
                    draw,
                    records,
                },
                Err(error) => Message::Error(error),
            };
            let failed = matches!(message, Message::Error(_));
            if sender.send(message).is_err() || failed {
                return;
            }
        }
    }
}

/// Puts cases back in order and hands them on.
fn deliver(
    receiver: &Receiver<Message>,
    shared: &Shared<'_>,
    sink: &mut dyn Sink,
) -> Result<Summary> {
    let mut waiting = BTreeMap::new();
    let replayed = -(shared.draws.replayed() as i64);
    let mut summary = Summary {
        replayed: shared.plan.shard.share(replayed, 0),
        ..Summary::default()
    };
    for message in receiver {
        match message {
            Message::Starting(repro) => sink.starting(&repro)?,
            Message::Error(error) => return Err(error),
            Message::Case {
                order,
                number,
                draw,
                records,
            } => {
                waiting.insert(order, (number, draw, records));
            }
        }
        while let Some((number, draw, records)) = waiting.remove(&summary.cases) {
            hand_on(shared, sink, number, &draw, records)?;
            summary.cases += 1;
            if let Ok(mut queue) = shared.queue.lock() {
                queue.delivered += 1;
            }
            shared.moved.notify_all();
            sink.progress(&Progress {
                cases: summary.cases,
            });
        }
    }
    if let (Ok(queue), Ok(deaths)) = (shared.queue.lock(), shared.deaths.lock()) {
        summary.replaced = queue.replaced;
        let mut names: Vec<_> = deaths
            .iter()
            .filter(|d| *d.1 >= QUARANTINE_AFTER)
            .map(|d| d.0.clone())
            .collect();
        names.sort_unstable();
        summary.quarantined = names;
    }
    Ok(summary)
}

fn hand_on(
    shared: &Shared<'_>,
    sink: &mut dyn Sink,
    number: i64,
    draw: &Draw,
    records: Vec<TrialRecord>,
) -> Result<()> {
    let bad = |r: &TrialRecord| matches!(r.verdict.as_str(), "failed" | "crashed" | "timed_out");
    if shared.plan.shard == Shard::WHOLE && records.iter().any(bad) {
        shared.draws.persist(number, draw);
    }
    for (trial, mut record) in records.into_iter().enumerate() {
        record.case = number;
        record.trial = trial as u32;
        sink.record(&record)?;
    }
    Ok(())
}

/// A worker thread's place: it always has a worker when it needs one.
struct Seat<'a> {
    shared: &'a Shared<'a>,
    sender: &'a SyncSender<Message>,
    worker: Option<Worker>,
}

/// How one request for a case ended.
enum Ended {
    Complete(Vec<TrialRecord>),
    /// The worker is gone: what was judged before, and the trial at fault.
    Broken {
        judged: Vec<TrialRecord>,
        at: Option<Box<Repro>>,
        verdict: Verdict,
        how: String,
    },
}

impl Seat<'_> {
    fn case(&mut self, number: i64) -> Result<(Draw, Vec<TrialRecord>)> {
        let draw = self.shared.draws.case(number)?;
        let mut records = Vec::new();
        for &fill in &draw.fills {
            let repro = Repro {
                problem: draw.problem.clone(),
                fill,
                via: None,
            };
            records.extend(self.fill(&repro)?);
        }
        Ok((draw, records))
    }

    /// All trials of one fill, whatever becomes of the workers.
    fn fill(&mut self, repro: &Repro) -> Result<Vec<TrialRecord>> {
        let mut records: Vec<TrialRecord> = Vec::new();
        loop {
            let mut skip: Vec<String> = records.iter().map(|r| r.candidate.clone()).collect();
            skip.extend(self.quarantined(repro, &records).into_iter().map(|record| {
                let candidate = record.candidate.clone();
                records.push(record);
                candidate
            }));
            match self.request(repro, skip)? {
                Ended::Complete(rest) => {
                    records.extend(rest);
                    return Ok(records);
                }
                Ended::Broken {
                    judged,
                    at,
                    verdict,
                    how,
                } => {
                    records.extend(judged);
                    let Some(at) = at else {
                        // It died while listing: no candidate to leave out.
                        records.push(broken(
                            repro,
                            verdict,
                            &format!("{how}, while candidates were listed"),
                        ));
                        return Ok(records);
                    };
                    let again = self.retry(&at)?;
                    records.push(broken(&at, verdict, &format!("{how}; {again}")));
                    self.count_death(&at);
                }
            }
        }
    }

    /// Sends one request and hears it to its end.
    fn request(&mut self, repro: &Repro, skip: Vec<String>) -> Result<Ended> {
        self.ensure_worker()?;
        let worker = self.worker.as_mut().expect("just made sure");
        worker.ask(&Request::Case {
            repro: repro.to_string(),
            skip,
        });
        let (mut judged, mut complete, mut at) = (Vec::new(), Vec::new(), None);
        let (verdict, how) = loop {
            match worker.hear(self.shared.plan.timeout) {
                Heard::Reply(Reply::Starting(line)) => {
                    let repro: Repro = line.parse()?;
                    let _ = self.sender.send(Message::Starting(repro.clone()));
                    at = Some(repro);
                }
                Heard::Reply(Reply::Judged(record)) => {
                    at = None;
                    judged.push(*record);
                }
                Heard::Reply(Reply::Record(record)) => complete.push(*record),
                Heard::Reply(Reply::Done) => return Ok(Ended::Complete(complete)),
                Heard::Reply(Reply::Failed { code: 3, message }) => {
                    // The machine under the worker broke, as after a fatal GPU
                    // error: a new worker may do better.
                    break (Verdict::Crashed, message);
                }
                Heard::Reply(Reply::Failed { code, message }) => {
                    return Err(failure(code, message));
                }
                Heard::Reply(Reply::Ready(_) | Reply::Observed(_)) => {
                    return Err(Error::internal("a worker spoke out of turn"));
                }
                Heard::Died(how) => break (Verdict::Crashed, how),
                Heard::Silent => {
                    let limit = self.shared.plan.timeout.as_secs_f64();
                    break (
                        Verdict::TimedOut,
                        format!("no end within {limit} s; killed"),
                    );
                }
            }
        };
        self.replace();
        Ok(Ended::Broken {
            judged,
            at: at.map(Box::new),
            verdict,
            how,
        })
    }

    /// Runs the trial once more, alone in a fresh worker, to tell sporadic from
    /// certain.
    fn retry(&mut self, at: &Repro) -> Result<String> {
        Ok(match self.request(at, Vec::new())? {
            Ended::Complete(records) => {
                let verdict = records.first().map_or("skipped", |r| r.verdict.as_str());
                format!("sporadic: {verdict} when retried alone")
            }
            Ended::Broken { .. } => "the same when retried alone".to_owned(),
        })
    }

    fn ensure_worker(&mut self) -> Result<()> {
        if self.worker.is_some() {
            return Ok(());
        }
        let plan = self.shared.plan;
        let program = own_program(plan.program.as_deref())?;
        let setup = Request::Setup {
            backend: plan.backend.clone(),
            repeats: plan.repeats,
            outputs: plan.outputs,
        };
        self.worker = Some(Worker::start(&program, &setup)?);
        Ok(())
    }

    fn replace(&mut self) {
        self.worker = None;
        if let Ok(mut queue) = self.shared.queue.lock() {
            queue.replaced += 1;
        }
    }

    /// Records of quarantined candidates that are not there yet.
    fn quarantined(&self, repro: &Repro, present: &[TrialRecord]) -> Vec<TrialRecord> {
        let Ok(deaths) = self.shared.deaths.lock() else {
            return Vec::new();
        };
        let mut records = Vec::new();
        for (key, &count) in deaths.iter() {
            let Some(candidate) = candidate_of(key, repro) else {
                continue;
            };
            let known = present.iter().any(|r| r.candidate == candidate.to_string());
            if count < QUARANTINE_AFTER || known {
                continue;
            }
            let repro = Repro {
                via: Some(candidate),
                ..repro.clone()
            };
            let mut record = described(&repro);
            record.set_verdict(Verdict::Skipped(SkipReason::Quarantined));
            record.detail = Some(format!("it ended its worker {count} times in this run"));
            records.push(record);
        }
        records.sort_by(|a, b| a.candidate.cmp(&b.candidate));
        records
    }

    fn count_death(&self, at: &Repro) {
        if let Ok(mut deaths) = self.shared.deaths.lock() {
            *deaths.entry(quarantine_key(at)).or_default() += 1;
        }
    }
}

/// The program that workers run: the one given, else this one.
fn own_program(given: Option<&Path>) -> Result<PathBuf> {
    match given {
        Some(program) => Ok(program.to_owned()),
        None => std::env::current_exe().map_err(|e| {
            Error::environment("cannot find this program to start workers").with_source(e)
        }),
    }
}

/// A candidate under a type configuration.
fn quarantine_key(at: &Repro) -> String {
    let via = at.via.as_ref().map(ToString::to_string).unwrap_or_default();
    format!(
        "{via} {} {}",
        at.problem.direction.name(),
        at.problem.type_text()
    )
}

/// The candidate of a key that applies to `repro`.
fn candidate_of(key: &str, repro: &Repro) -> Option<Candidate> {
    let (via, rest) = key.split_once(' ')?;
    let same = rest
        == format!(
            "{} {}",
            repro.problem.direction.name(),
            repro.problem.type_text()
        );
    same.then(|| via.parse().ok()).flatten()
}

fn broken(at: &Repro, verdict: Verdict, detail: &str) -> TrialRecord {
    let mut record = described(at);
    record.set_verdict(verdict);
    record.detail = Some(detail.to_owned());
    record
}
