//! One trial at a time in a worker process: for shrinking, replaying and
//! bundling, where the next trial depends on the last and any may end its
//! process.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::child::{Heard, Start, THIS_PROGRAM, Worker, failure};
use super::memory;
use super::protocol::{Observed, Reply, Request};
use super::seat::{broken, no_end_within, out_of_memory};
use crate::backend::Combination;
use crate::backend::open::{BackendKind, BackendSpec};
use crate::candidate::{Candidate, Repro};
use crate::error::{Error, Result};
use crate::judge::Verdict;
use crate::problem::ConvProblem;
use crate::record::TrialRecord;
use crate::shrink::data::DataPatch;
use crate::trial::TrialOptions;

/// How trials are run.
#[derive(Clone, Debug, PartialEq)]
pub struct Terms {
    /// The backend.
    pub backend: BackendSpec,
    /// Longest time for one trial.
    pub timeout: Duration,
    /// Further runs of each trial, compared bit for bit.
    pub repeats: u32,
    /// Most outputs judged per trial.
    pub outputs: usize,
    /// Most memory the worker may hold, bytes.
    pub memory: u64,
    /// The convfuzz that the worker runs; this program when absent.
    pub program: Option<PathBuf>,
    /// File for cuDNN's own log of what it was asked.
    pub log: Option<PathBuf>,
}

/// Classes of failure that only certain repeats show.
const OF_REPEATS: [&str; 3] = ["uninitialised_read", "nondeterministic", ODD_STRIDES];

/// The class that shows only where odd strides are asked for.
const ODD_STRIDES: &str = "odd_strides";

/// Repeats among which every kind is.
const ALL_REPEATS: u32 = 7;

impl Terms {
    /// The usual terms on a backend.
    pub fn of(backend: BackendSpec) -> Self {
        Terms {
            backend,
            timeout: Duration::from_secs(60),
            repeats: 1,
            outputs: TrialOptions::default().outputs,
            memory: memory::share(1),
            program: None,
            log: None,
        }
    }

    /// The terms under which a failure of this class can show: with every kind of
    /// repeat where it takes one.
    pub fn showing(&self, class: &str) -> Self {
        let mut terms = self.clone();
        if OF_REPEATS.contains(&class) {
            terms.repeats = terms.repeats.max(ALL_REPEATS);
        }
        terms.backend.odd_strides |= class == ODD_STRIDES;
        terms
    }

    /// Starts a worker for such trials.
    pub(super) fn start(&self) -> Result<Worker> {
        let program = self.program.as_deref().unwrap_or(Path::new(THIS_PROGRAM));
        let setup = Request::Setup {
            backend: self.backend.clone(),
            repeats: self.repeats,
            outputs: self.outputs,
        };
        let variables = self.log.as_deref().map(log_variables);
        Worker::start(&Start {
            program,
            setup: &setup,
            variables: &variables.unwrap_or_default(),
            memory: self.memory,
        })
    }
}

/// A backend with `auto` decided.
#[derive(Clone, Debug, PartialEq)]
pub struct Settled {
    /// The backend.
    pub backend: BackendSpec,
    /// What it runs on.
    pub combination: Combination,
    /// Memory that is free on the GPU, bytes; `None` without one.
    pub device_memory: Option<u64>,
}

impl Settled {
    /// Asks a worker what a backend is here: a library that does not survive being
    /// loaded takes that alone along.
    pub fn of(spec: BackendSpec) -> Result<Self> {
        let worker = Terms::of(spec.clone()).start()?;
        let kind = match worker.combination.backend.as_str() {
            "host" => BackendKind::Host,
            _ => BackendKind::Cudnn,
        };
        Ok(Settled {
            backend: BackendSpec { kind, ..spec },
            combination: worker.combination.clone(),
            device_memory: worker.device_memory,
        })
    }

    /// Workers that cores and the GPU's memory are enough for.
    pub fn jobs(&self) -> usize {
        memory::jobs(self.device_memory)
    }
}

/// A worker of one's own, replaced when a trial ends it.
pub struct Solo {
    terms: Terms,
    worker: Option<Worker>,
    combination: Combination,
    /// What a worker did not come back from, other than candidates, for a problem.
    barred: Vec<(ConvProblem, String)>,
}

/// How a request ended.
struct Ended {
    record: Option<TrialRecord>,
    observed: Option<Observed>,
    /// The step that ended the worker, where it was not the candidate's own.
    step: Option<String>,
}

impl Solo {
    /// Starts the worker and opens its backend.
    pub fn start(terms: Terms) -> Result<Self> {
        let mut solo = Solo {
            terms,
            worker: None,
            combination: Combination::default(),
            barred: Vec::new(),
        };
        solo.combination = solo.worker()?.combination.clone();
        Ok(solo)
    }

    /// Runs trials under other terms from now on, in a new worker.
    pub fn change_terms(&mut self, terms: Terms) {
        if terms != self.terms {
            self.terms = terms;
            self.worker = None;
        }
    }

    /// What trials run on.
    pub fn combination(&self) -> &Combination {
        &self.combination
    }

    /// Runs one trial, on `data` where that stands for the fill. A worker that
    /// dies or hangs is a verdict, not an error.
    pub fn trial(&mut self, repro: &Repro, data: Option<&DataPatch>) -> Result<TrialRecord> {
        loop {
            let request = Request::Trial {
                repro: repro.to_string(),
                data: data.cloned(),
                barred: self.barred(&repro.problem),
            };
            let ended = self.request(repro, &request)?;
            match ended.step {
                Some(step) => self.barred.push((repro.problem.clone(), step)),
                None => {
                    let none = || Error::internal("a worker gave no record of a trial");
                    return ended.record.ok_or_else(none);
                }
            }
        }
    }

    /// Steps that are not to be taken for a problem again.
    fn barred(&self, problem: &ConvProblem) -> Vec<String> {
        let of_problem = self.barred.iter().filter(|(of, _)| of == problem);
        of_problem.map(|(_, step)| step.clone()).collect()
    }

    /// Runs one trial for what comes out of it; `None` when it ends its worker.
    pub fn observe(&mut self, repro: &Repro, data: Option<&DataPatch>) -> Result<Option<Observed>> {
        let request = Request::Observe {
            repro: repro.to_string(),
            data: data.cloned(),
        };
        Ok(self.request(repro, &request)?.observed)
    }

    fn request(&mut self, repro: &Repro, request: &Request) -> Result<Ended> {
        if repro.via.is_none() {
            return Err(Error::usage(
                "one candidate is run alone: add via= to the line, as 'convfuzz list' names it",
            ));
        }
        let timeout = self.terms.timeout;
        let worker = self.worker()?;
        worker.ask(request);
        let mut ended = Ended {
            record: None,
            observed: None,
            step: None,
        };
        let mut step = None;
        let end = loop {
            match worker.hear(timeout) {
                Heard::Reply(Reply::Starting(_)) => {
                    step = None;
                    worker.ask(&Request::Go);
                }
                Heard::Reply(Reply::Planning(next)) => step = Some(next),
                Heard::Reply(Reply::Judged(_) | Reply::Means(_) | Reply::Planned(_)) => {}
                Heard::Reply(Reply::Record(record)) => ended.record = Some(*record),
                Heard::Reply(Reply::Observed(observed)) => ended.observed = Some(*observed),
                Heard::Reply(Reply::Done) => return Ok(ended),
                Heard::Reply(Reply::Failed { code: 3, message }) => {
                    break broken(repro, Verdict::Crashed, &message);
                }
                // It ends itself after these.
                Heard::Reply(Reply::Failed { code, message }) => {
                    self.worker = None;
                    return Err(failure(code, message));
                }
                Heard::Reply(Reply::Ready { .. }) => {
                    self.worker = None;
                    return Err(Error::internal("a worker spoke out of turn"));
                }
                Heard::Died(how) => break broken(repro, Verdict::Crashed, &how),
                Heard::Full(how) => break out_of_memory(repro, &how),
                Heard::Silent => {
                    break broken(repro, Verdict::TimedOut, &no_end_within(timeout));
                }
            }
        };
        self.worker = None;
        ended.record = Some(end);
        ended.step = step.filter(|step| step.parse::<Candidate>().is_err());
        Ok(ended)
    }

    fn worker(&mut self) -> Result<&mut Worker> {
        let worker = match self.worker.take() {
            Some(worker) => worker,
            None => self.terms.start()?,
        };
        Ok(self.worker.insert(worker))
    }
}

/// What makes cuDNN log every call to `file`: names of versions 8 and 9.
fn log_variables(file: &Path) -> Vec<(&'static str, PathBuf)> {
    vec![
        ("CUDNN_LOGLEVEL_DBG", PathBuf::from("3")),
        ("CUDNN_LOGINFO_DBG", PathBuf::from("1")),
        ("CUDNN_LOGDEST_DBG", file.to_owned()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn showing_failures_of_repeats_get_every_kind_of_repeat() {
        let terms = Terms {
            backend: BackendSpec::default(),
            timeout: Duration::from_secs(1),
            repeats: 1,
            outputs: 1,
            memory: u64::MAX,
            program: None,
            log: None,
        };
        assert_eq!(terms.showing("wrong_value"), terms);
        assert_eq!(terms.showing("uninitialised_read").repeats, ALL_REPEATS);
        let odd = terms.showing("odd_strides");
        assert!(odd.backend.odd_strides && odd.repeats == ALL_REPEATS);
    }
}
