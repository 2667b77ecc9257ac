//! A place where cases run: it has a worker whenever it needs one, and a case
//! gets its records whatever becomes of the workers.

use std::time::Duration;

use super::child::{Heard, Worker, failure};
use super::means::Means;
use super::protocol::{Reply, Request};
use super::solo::Terms;
use crate::candidate::Repro;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::judge::{SkipReason, Verdict};
use crate::record::TrialRecord;
use crate::trial::described;

/// Is told of trials as they happen.
pub trait Watch {
    /// A trial is about to be launched, which waits until this returns.
    fn starting(&mut self, repro: &Repro) -> Result<()>;
    /// A trial was judged, or ended its worker; the record may still be amended.
    fn judged(&mut self, record: &TrialRecord) -> Result<()>;
}

/// Is told, and does nothing.
pub struct Unwatched;

impl Watch for Unwatched {
    fn starting(&mut self, _repro: &Repro) -> Result<()> {
        Ok(())
    }

    fn judged(&mut self, _record: &TrialRecord) -> Result<()> {
        Ok(())
    }
}

/// What a case gave.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ran {
    /// Its records, in the order of candidates.
    pub records: Vec<TrialRecord>,
    /// Mean errors of those that ran, where they were asked for.
    pub means: Vec<Means>,
}

/// A place with a worker.
pub struct Seat {
    terms: Terms,
    worker: Option<Worker>,
    /// Workers that were lost here.
    pub replaced: u64,
    /// Time that listing candidates took, milliseconds.
    pub planning_ms: f64,
}

/// How one request for a case ended.
enum Ended {
    Complete(Ran),
    /// The worker is gone: what was judged before, and what was at fault.
    Broken {
        judged: Vec<TrialRecord>,
        at: At,
        end: End,
    },
}

/// What a worker was at.
enum At {
    /// A trial.
    Trial(Box<Repro>),
    /// A step of listing the candidates.
    Planning(String),
    /// Neither.
    Elsewhere,
}

/// How a worker was lost.
enum End {
    Crashed(String),
    TimedOut(String),
    OutOfMemory(String),
}

impl Seat {
    /// A place where trials run under `terms`.
    pub fn new(terms: Terms) -> Self {
        Seat {
            terms,
            worker: None,
            replaced: 0,
            planning_ms: 0.0,
        }
    }

    /// All trials of a case. Those that are `known` are not run again; a trial that
    /// ends its worker becomes one of them, and the rest is run again from the
    /// start: records must not depend on what another trial did.
    pub fn case(
        &mut self,
        repro: &Repro,
        known: &[TrialRecord],
        against: &[Option<DType>],
        watch: &mut dyn Watch,
    ) -> Result<Ran> {
        let (mut known, mut seen) = (known.to_vec(), Vec::new());
        let mut barred = not_planned(&known);
        loop {
            let request = Request::Case {
                repro: repro.to_string(),
                known: known.clone(),
                barred: barred.clone(),
                against: against.to_vec(),
            };
            let (judged, at, end) = match self.request(&request, watch)? {
                Ended::Complete(mut ran) => {
                    keep_failures(&seen, &mut ran.records);
                    let between = known.iter().filter(|record| record.candidate.is_empty());
                    ran.records.extend(between.cloned());
                    return Ok(ran);
                }
                Ended::Broken { judged, at, end } => (judged, at, end),
            };
            seen.extend(judged);
            let again = matches!(&at, At::Planning(step) if barred.contains(step));
            let record = match &at {
                At::Trial(at) => self.verdict_on(at, end, &barred, watch)?,
                At::Planning(step) => self.verdict_on_step(repro, step, end, &barred, watch)?,
                At::Elsewhere => end.record(repro, "between trials"),
            };
            add(record, &mut known, watch)?;
            match at {
                At::Planning(step) if !again => barred.push(step),
                At::Trial(_) => {}
                // Nothing to leave out: it would end the same way again.
                _ => return Ok(remains(seen, known)),
            }
        }
    }

    /// The record of a step of listing the candidates that ended its worker.
    fn verdict_on_step(
        &mut self,
        repro: &Repro,
        step: &str,
        end: End,
        barred: &[String],
        watch: &mut dyn Watch,
    ) -> Result<TrialRecord> {
        let Ok(candidate) = step.parse() else {
            return Ok(end.record(repro, &format!("when {step} was asked")));
        };
        let at = Repro {
            via: Some(candidate),
            ..repro.clone()
        };
        let mut record = self.verdict_on(&at, end, barred, watch)?;
        let detail = record.detail.unwrap_or_default();
        record.detail = Some(format!("{detail}; {PLANNING}"));
        Ok(record)
    }

    /// Sends one request and hears it to its end.
    fn request(&mut self, request: &Request, watch: &mut dyn Watch) -> Result<Ended> {
        let timeout = self.terms.timeout;
        let mut worker = match self.worker.take() {
            Some(worker) => worker,
            None => self.terms.start()?,
        };
        worker.ask(request);
        let (mut judged, mut at, mut ran) = (Vec::new(), At::Elsewhere, Ran::default());
        let end = loop {
            match worker.hear(timeout) {
                Heard::Reply(Reply::Starting(line)) => {
                    let repro: Repro = line.parse()?;
                    watch.starting(&repro)?;
                    worker.ask(&Request::Go);
                    at = At::Trial(Box::new(repro));
                }
                Heard::Reply(Reply::Judged(record)) => {
                    at = At::Elsewhere;
                    watch.judged(&record)?;
                    judged.push(*record);
                }
                Heard::Reply(Reply::Planning(step)) => at = At::Planning(step),
                Heard::Reply(Reply::Planned(ms)) => {
                    at = At::Elsewhere;
                    self.planning_ms += ms;
                }
                Heard::Reply(Reply::Means(means)) => ran.means.push(means),
                Heard::Reply(Reply::Record(record)) => ran.records.push(*record),
                Heard::Reply(Reply::Done) => {
                    self.worker = Some(worker);
                    return Ok(Ended::Complete(ran));
                }
                // The machine under the worker broke, as after a fatal GPU
                // error: a new worker may do better.
                Heard::Reply(Reply::Failed { code: 3, message }) => break End::Crashed(message),
                Heard::Reply(Reply::Failed { code, message }) => {
                    return Err(failure(code, message));
                }
                Heard::Reply(Reply::Ready { .. } | Reply::Observed(_)) => {
                    return Err(Error::internal("a worker spoke out of turn"));
                }
                Heard::Died(how) => break End::Crashed(how),
                Heard::Full(how) => break End::OutOfMemory(how),
                Heard::Silent => break End::TimedOut(no_end_within(timeout)),
            }
        };
        self.replaced += 1;
        Ok(Ended::Broken { judged, at, end })
    }

    /// The record of a trial that ended its worker. It is run once more, alone in
    /// a fresh worker, to tell sporadic from certain; one that took all memory is
    /// not let at it again.
    fn verdict_on(
        &mut self,
        at: &Repro,
        end: End,
        barred: &[String],
        watch: &mut dyn Watch,
    ) -> Result<TrialRecord> {
        if let End::OutOfMemory(how) = &end {
            return Ok(out_of_memory(at, how));
        }
        let request = Request::Case {
            repro: at.to_string(),
            known: Vec::new(),
            barred: barred.to_vec(),
            against: Vec::new(),
        };
        let again = match self.request(&request, watch)? {
            Ended::Complete(ran) => {
                let verdict = ran.records.first().map_or("skipped", |r| &*r.verdict);
                format!("sporadic: {verdict} when retried alone")
            }
            Ended::Broken { .. } => "the same when retried alone".to_owned(),
        };
        Ok(end.record(at, &again))
    }
}

impl End {
    fn record(&self, at: &Repro, more: &str) -> TrialRecord {
        match self {
            End::Crashed(how) => broken(at, Verdict::Crashed, &format!("{how}; {more}")),
            End::TimedOut(how) => broken(at, Verdict::TimedOut, &format!("{how}; {more}")),
            End::OutOfMemory(how) => out_of_memory(at, &format!("{how}; {more}")),
        }
    }
}

/// What is said of a candidate that ended its worker before it could be run.
const PLANNING: &str = "while it was planned";

/// What is said of the same when it is left out.
pub(super) fn left_out(reason: &str, record: &TrialRecord) -> String {
    match ended_planning(record) {
        true => format!("{reason}, {PLANNING}"),
        false => reason.to_owned(),
    }
}

fn ended_planning(record: &TrialRecord) -> bool {
    let detail = record.detail.as_deref();
    detail.is_some_and(|detail| detail.ends_with(PLANNING))
}

/// The candidates among these that are not even to be planned.
fn not_planned(known: &[TrialRecord]) -> Vec<String> {
    let planned = known.iter().filter(|record| ended_planning(record));
    planned.map(|record| record.candidate.clone()).collect()
}

/// Adds the record of what ended a worker, unless it is known from before.
fn add(record: TrialRecord, known: &mut Vec<TrialRecord>, watch: &mut dyn Watch) -> Result<()> {
    let same = |k: &TrialRecord| (&k.repro, &k.candidate) == (&record.repro, &record.candidate);
    if !known.iter().any(same) {
        watch.judged(&record)?;
        known.push(record);
    }
    Ok(())
}

/// The record of a trial that ended its worker.
pub(super) fn broken(at: &Repro, verdict: Verdict, detail: &str) -> TrialRecord {
    let mut record = described(at);
    record.set_verdict(verdict);
    record.detail = Some(detail.to_owned());
    record
}

/// The record of a trial that took more memory than there is: a clean skip.
pub(super) fn out_of_memory(at: &Repro, detail: &str) -> TrialRecord {
    broken(at, Verdict::Skipped(SkipReason::OutOfMemory), detail)
}

/// What is said of a trial that was killed for taking too long.
pub(super) fn no_end_within(timeout: Duration) -> String {
    format!("no end within {} s; killed", timeout.as_secs_f64())
}

/// Trials that failed before and did not when they were run again: the failure
/// stands, and is said to be sporadic.
pub(super) fn keep_failures(before: &[TrialRecord], records: &mut [TrialRecord]) {
    for earlier in before.iter().filter(|r| r.verdict == "failed") {
        let same = |r: &&mut TrialRecord| r.repro == earlier.repro && is_judged(r);
        if let Some(record) = records.iter_mut().find(same) {
            let detail = earlier.detail.as_deref().unwrap_or_default();
            let detail = format!("{detail}; sporadic: {} when run again", record.verdict);
            *record = TrialRecord {
                detail: Some(detail),
                ..earlier.clone()
            };
        }
    }
}

/// Whether a trial ran, and nothing was wrong.
fn is_judged(record: &TrialRecord) -> bool {
    matches!(record.verdict.as_str(), "passed" | "untrusted")
}

/// What there is of a case that cannot be completed.
fn remains(seen: Vec<TrialRecord>, known: Vec<TrialRecord>) -> Ran {
    let ended = |r: &TrialRecord| known.iter().any(|k| k.candidate == r.candidate);
    let mut records: Vec<_> = seen.into_iter().filter(|r| !ended(r)).collect();
    records.sort_by(|a, b| a.candidate.cmp(&b.candidate));
    records.dedup_by(|a, b| a.candidate == b.candidate);
    records.extend(known);
    Ran {
        records,
        means: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(repro: &str, verdict: &str) -> TrialRecord {
        TrialRecord {
            repro: repro.to_owned(),
            candidate: repro.to_owned(),
            verdict: verdict.to_owned(),
            detail: Some("off by 1".to_owned()),
            ..TrialRecord::default()
        }
    }

    #[test]
    fn keep_failures_what_failed_once_stays_failed_and_is_sporadic() {
        let before = [record("a", "failed"), record("b", "passed")];
        let mut again = [record("a", "passed"), record("b", "failed")];
        keep_failures(&before, &mut again);
        assert_eq!(again[0].verdict, "failed");
        let detail = again[0].detail.as_deref().unwrap();
        assert_eq!(detail, "off by 1; sporadic: passed when run again");
        assert_eq!(again[1], record("b", "failed"));
        let certain = [record("a", "failed")];
        let mut again = certain.clone();
        keep_failures(&certain, &mut again);
        assert_eq!(again, certain);
    }

    #[test]
    fn remains_hold_every_candidate_once() {
        let seen = vec![
            record("a", "passed"),
            record("b", "passed"),
            record("a", "passed"),
        ];
        let ran = remains(seen, vec![record("b", "crashed"), record("", "crashed")]);
        let ends: Vec<_> = ran
            .records
            .iter()
            .map(|r| (&*r.repro, &*r.verdict))
            .collect();
        assert_eq!(ends, [("a", "passed"), ("b", "crashed"), ("", "crashed")]);
    }
}
