//! The threads that run cases, and what they share: which case is next, and
//! which candidates are left out.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::Plan;
use super::delivery::Delivery;
use super::draws::Draws;
use super::past::{Complete, Left, Place};
use super::seat::{Seat, Watch, keep_failures};
use super::streaks::Streaks;
use crate::candidate::Repro;
use crate::error::{Error, Result};
use crate::record::TrialRecord;

/// Cases a worker may be ahead of the oldest unfinished one.
const WINDOW: u64 = 8;

/// From a worker's thread to the delivering one.
pub(super) enum Message {
    /// A trial waits for its go.
    Starting {
        place: Place,
        repro: Box<Repro>,
        go: SyncSender<()>,
    },
    Judged {
        place: Place,
        record: Box<TrialRecord>,
    },
    Case(Complete),
    Error(Error),
}

/// What the threads share.
pub(super) struct Crew<'a> {
    plan: &'a Plan,
    draws: &'a Draws,
    interrupt: &'a AtomicBool,
    halted: AtomicBool,
    started: Instant,
    past: Left,
    queue: Mutex<Queue>,
    moved: Condvar,
    streaks: Mutex<Streaks>,
}

/// Which cases are out, by place in the order.
#[derive(Default)]
struct Queue {
    next: u64,
    /// Complete and delivered cases.
    delivered: u64,
    /// Cases ahead of the delivered ones that are complete already.
    done: BTreeSet<u64>,
}

impl<'a> Crew<'a> {
    pub(super) fn new(plan: &'a Plan, draws: &'a Draws, interrupt: &'a AtomicBool) -> Self {
        Crew {
            plan,
            draws,
            interrupt,
            halted: AtomicBool::new(false),
            started: Instant::now(),
            past: Left::default(),
            queue: Mutex::default(),
            moved: Condvar::new(),
            streaks: Mutex::default(),
        }
    }

    /// Goes on after what is delivered, and leaves out what is complete.
    pub(super) fn go_on(&mut self, past: Left, delivery: &Delivery<'_>) {
        self.queue = Mutex::new(Queue {
            next: delivery.delivered(),
            delivered: delivery.delivered(),
            done: delivery.ahead().collect(),
        });
        self.past = past;
    }

    pub(super) fn halt(&self) {
        self.halted.store(true, Ordering::SeqCst);
        self.moved.notify_all();
    }

    /// So many cases are delivered.
    pub(super) fn delivered(&self, cases: u64) {
        lock(&self.queue).delivered = cases;
        self.moved.notify_all();
    }

    pub(super) fn streaks(&self) -> MutexGuard<'_, Streaks> {
        lock(&self.streaks)
    }

    /// How long the campaign has been running, interruptions left out.
    fn elapsed(&self) -> Duration {
        self.past.elapsed + self.started.elapsed()
    }

    /// The number of the case at a place in the order.
    fn number(&self, order: u64) -> i64 {
        let shard = self.plan.shard;
        let first = shard.at_or_after(-(self.draws.replayed() as i64));
        first + order as i64 * i64::from(shard.count())
    }

    /// Whether the case at this place is not to be begun. One that was begun
    /// before an interruption is completed, however late it is.
    fn stopped(&self, order: u64) -> bool {
        let number = self.number(order);
        let enough = self.plan.cases.is_some_and(|cases| number >= cases as i64);
        let late = self.plan.time.is_some_and(|time| self.elapsed() >= time);
        enough
            || (late && order >= self.past.begun)
            || self.interrupt.load(Ordering::SeqCst)
            || self.halted.load(Ordering::SeqCst)
    }

    /// The next case's place in the order; waits while the window is full, `None`
    /// at the end of the run.
    fn take(&self) -> Option<u64> {
        let window = WINDOW * self.plan.jobs.max(1) as u64;
        let mut queue = lock(&self.queue);
        loop {
            while queue.done.contains(&queue.next) {
                queue.next += 1;
            }
            if self.stopped(queue.next) {
                return None;
            }
            if queue.next < queue.delivered + window {
                queue.next += 1;
                return Some(queue.next - 1);
            }
            let wait = Duration::from_millis(100);
            queue = self.moved.wait_timeout(queue, wait).ok()?.0;
        }
    }

    /// Runs cases until there are no more.
    pub(super) fn work(&self, sender: &SyncSender<Message>) {
        let mut seat = Seat::new(self.plan.terms());
        while let Some(order) = self.take() {
            let message = match self.case(order, &mut seat, sender) {
                Ok(case) => Message::Case(case),
                Err(error) => Message::Error(error),
            };
            let failed = matches!(message, Message::Error(_));
            if sender.send(message).is_err() || failed {
                return;
            }
        }
    }

    fn case(&self, order: u64, seat: &mut Seat, sender: &SyncSender<Message>) -> Result<Complete> {
        let number = self.number(order);
        let draw = self.draws.case(number)?;
        let (replaced, planning_ms) = (seat.replaced, seat.planning_ms);
        let mut records = Vec::new();
        for (number_of_fill, &fill) in draw.fills.iter().enumerate() {
            let repro = Repro {
                problem: draw.problem.clone(),
                fill,
                via: None,
            };
            let place = Place {
                order,
                number,
                fill: number_of_fill,
            };
            records.extend(self.fill(place, &repro, seat, sender)?);
        }
        Ok(Complete {
            order,
            number,
            elapsed: self.elapsed(),
            planning_ms: seat.planning_ms - planning_ms,
            replaced: seat.replaced - replaced,
            records,
        })
    }

    /// All trials of one fill.
    fn fill(
        &self,
        place: Place,
        repro: &Repro,
        seat: &mut Seat,
        sender: &SyncSender<Message>,
    ) -> Result<Vec<TrialRecord>> {
        let (judged, mut known) = self.past.of_fill(place);
        known.extend(self.streaks().set_aside(repro));
        let mut ran = seat.case(repro, &known, &[], &mut Reporter { place, sender })?;
        keep_failures(&judged, &mut ran.records);
        Ok(ran.records)
    }
}

/// Tells the delivering thread of trials.
struct Reporter<'a> {
    place: Place,
    sender: &'a SyncSender<Message>,
}

impl Reporter<'_> {
    fn tell(&self, message: Message) -> Result<()> {
        self.sender.send(message).map_err(|_| over())
    }
}

/// Nobody hears this: the campaign ended with another error.
fn over() -> Error {
    Error::internal("the campaign has ended")
}

impl Watch for Reporter<'_> {
    fn starting(&mut self, repro: &Repro) -> Result<()> {
        let (go, wait) = sync_channel(1);
        let (place, repro) = (self.place, Box::new(repro.clone()));
        self.tell(Message::Starting { place, repro, go })?;
        wait.recv().map_err(|_| over())
    }

    fn judged(&mut self, record: &TrialRecord) -> Result<()> {
        let (place, record) = (self.place, Box::new(record.clone()));
        self.tell(Message::Judged { place, record })
    }
}

/// What a thread that panicked held is as good as ever: nothing here is left
/// half changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}
