//! Many cases, in worker processes that may die.
//!
//! The parent holds at most a window of unfinished cases (a few per worker) and
//! streams records in case order, so its memory does not grow with a run. A
//! worker holds one case: operands, result and exact values, bounded by the
//! limits on elements (see [`crate::oracle::footprint`]) and, on a GPU, the
//! same again there; one that takes more than its share is killed ([`memory`]).

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::backend::open::BackendSpec;
use crate::candidate::Repro;
use crate::error::Result;
use crate::record::TrialRecord;
use crate::strategy::Limits;

pub mod batch_norm;
mod child;
mod crew;
mod delivery;
mod draws;
pub mod examine;
pub mod means;
pub mod memory;
pub mod past;
pub mod probe;
pub mod protocol;
pub mod seat;
pub mod shard;
pub mod solo;
pub mod soundness;
mod streaks;
pub mod worker;

pub use child::THIS_PROGRAM;
use crew::{Crew, Message};
use delivery::Delivery;
use draws::Draws;
use past::{Complete, Past, Place};
use shard::Shard;
use solo::Terms;

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
    /// File of failing seeds in proptest's format, which are replayed first. They
    /// are added to unless this is one shard of several, which must all replay the
    /// same.
    pub regressions: Option<PathBuf>,
    /// Which of the cases are run.
    #[serde(default)]
    pub shard: Shard,
    /// Most memory a worker may hold, bytes; its part of the machine's when absent.
    #[serde(default)]
    pub memory: Option<u64>,
    /// The convfuzz that workers run; this program when absent.
    pub program: Option<PathBuf>,
}

/// Options that say where and how fast a campaign runs, not which trials it makes.
pub const INCIDENTAL: [&str; 3] = ["jobs", "memory", "program"];

impl Plan {
    /// The terms of each of its trials.
    pub fn terms(&self) -> Terms {
        Terms {
            backend: self.backend.clone(),
            timeout: self.timeout,
            repeats: self.repeats,
            outputs: self.outputs,
            memory: self.memory.unwrap_or_else(|| memory::share(self.jobs)),
            program: self.program.clone(),
            log: None,
        }
    }
}

/// How far a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Complete cases.
    pub cases: u64,
}

/// Takes what a campaign gives: records in case order, and everything else as it
/// happens.
pub trait Sink {
    /// The record of a trial.
    fn record(&mut self, record: &TrialRecord) -> Result<()>;

    /// All records of the next case were given.
    fn progress(&mut self, progress: &Progress);

    /// A trial is about to be launched, which waits until this returns.
    fn starting(&mut self, _place: Place, _repro: &Repro) -> Result<()> {
        Ok(())
    }

    /// A trial was judged, or ended its worker. Its record may still be amended,
    /// and comes again when the case is complete.
    fn judged(&mut self, _place: Place, _record: &TrialRecord) -> Result<()> {
        Ok(())
    }

    /// A case is complete; cases before it may not be.
    fn complete(&mut self, _case: &Complete) -> Result<()> {
        Ok(())
    }

    /// Comes at least once a second.
    fn idle(&mut self) -> Result<()> {
        Ok(())
    }
}

/// What a run came to, beyond its records.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Summary {
    /// Complete cases, replayed ones included.
    pub cases: u64,
    /// Cases replayed from the regressions file.
    pub replayed: u64,
    /// Candidates that kept killing their worker and were left out.
    pub quarantined: Vec<String>,
    /// Workers that were replaced.
    pub replaced: u64,
    /// Time that listing candidates took, milliseconds.
    pub planning_ms: f64,
}

/// How often a sink is told that nothing happens.
const IDLE_INTERVAL: Duration = Duration::from_millis(500);

/// Runs a plan until its end, an error, or until `interrupt` is set. What the
/// `past` did is not done again; its records are given as if it were.
pub fn run(
    plan: &Plan,
    past: Past<'_>,
    sink: &mut dyn Sink,
    interrupt: &AtomicBool,
) -> Result<Summary> {
    plan.limits.validate()?;
    let file = plan.regressions.clone();
    let draws = Draws::new(&plan.limits, plan.seed, &past.replayed, file);
    let mut crew = Crew::new(plan, &draws, interrupt);
    let mut delivery = Delivery::new(&draws, plan.shard);
    for case in past.complete {
        delivery.take(case?, &crew, sink)?;
    }
    if past.ended {
        return Ok(delivery.finish(&crew));
    }
    crew.go_on(past.left, &delivery);
    let (sender, receiver) = sync_channel(plan.jobs * 2);
    std::thread::scope(|scope| {
        for _ in 0..plan.jobs.max(1) {
            let (sender, crew) = (sender.clone(), &crew);
            scope.spawn(move || crew.work(&sender));
        }
        drop(sender);
        let delivered = receive(&receiver, &crew, &mut delivery, sink);
        // On an error workers must not wait for a reader.
        crew.halt();
        drop(receiver);
        delivered.map(|()| delivery.finish(&crew))
    })
}

/// Hands on what workers say until all have ended.
fn receive(
    receiver: &Receiver<Message>,
    crew: &Crew<'_>,
    delivery: &mut Delivery<'_>,
    sink: &mut dyn Sink,
) -> Result<()> {
    loop {
        match receiver.recv_timeout(IDLE_INTERVAL) {
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
            Err(RecvTimeoutError::Timeout) => sink.idle()?,
            Ok(Message::Starting { place, repro, go }) => {
                sink.starting(place, &repro)?;
                // Its worker may be gone already.
                let _ = go.send(());
            }
            Ok(Message::Judged { place, record }) => sink.judged(place, &record)?,
            Ok(Message::Case(case)) => {
                sink.complete(&case)?;
                delivery.take(case, crew, sink)?;
            }
            Ok(Message::Error(error)) => return Err(error),
        }
    }
}
