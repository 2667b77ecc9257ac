//! The worker's side: opens a backend and runs cases until its input ends.

use std::io::{BufRead, Write};

use super::protocol::{Observed, Reply, Request, receive, send};
use crate::backend::{Backend, Listing, RunOptions, Support, open};
use crate::candidate::Repro;
use crate::error::{Error, Result};
use crate::fill::Inputs;
use crate::problem::ConvProblem;
use crate::shrink::data::DataPatch;
use crate::trial::{self, Event, TrialOptions, run_listed};

/// Serves one campaign. Errors are told to the other side, then returned.
pub fn serve(mut input: impl BufRead, mut output: impl Write) -> Result<()> {
    let served = Server::open(&mut input, &mut output)
        .and_then(|server| server.map_or(Ok(()), |mut s| s.serve(&mut input, &mut output)));
    if let Err(error) = &served {
        // The other side may be gone already.
        let _ = send(
            &mut output,
            &Reply::Failed {
                code: error.exit_code(),
                message: error.to_string(),
            },
        );
    }
    served
}

struct Server {
    backend: Box<dyn Backend>,
    options: TrialOptions,
    /// Candidates of the latest problem: its other fills come next.
    listed: Option<(ConvProblem, Vec<Listing>)>,
}

impl Server {
    fn open(input: &mut dyn BufRead, output: &mut dyn Write) -> Result<Option<Self>> {
        let (spec, options) = match receive(input)? {
            None => return Ok(None),
            Some(Request::Setup {
                backend,
                repeats,
                outputs,
            }) => {
                let options = TrialOptions {
                    repeats,
                    outputs,
                    ..TrialOptions::default()
                };
                (backend, options)
            }
            Some(_) => return Err(Error::internal("a worker needs its setup first")),
        };
        let backend = open::open(&spec)?;
        tell(output, &Reply::Ready(backend.combination().clone()))?;
        Ok(Some(Server {
            backend,
            options,
            listed: None,
        }))
    }

    fn serve(&mut self, input: &mut dyn BufRead, output: &mut dyn Write) -> Result<()> {
        while let Some(request) = receive(input)? {
            match request {
                Request::Case { repro, skip } => self.case(&repro.parse()?, skip, output)?,
                Request::Trial { repro, data } => {
                    self.trial(&repro.parse()?, data.as_ref(), output)?;
                }
                Request::Observe { repro, data } => {
                    let observed = self.observe(&repro.parse()?, data.as_ref())?;
                    tell(output, &Reply::Observed(Box::new(observed)))?;
                }
                Request::Setup { .. } => return Err(Error::internal("a worker is set up once")),
            }
            tell(output, &Reply::Done)?;
        }
        Ok(())
    }

    fn case(&mut self, repro: &Repro, skip: Vec<String>, output: &mut dyn Write) -> Result<()> {
        let listings = match repro.via {
            Some(_) => trial::replayed(&mut *self.backend, repro)?,
            None => self.listings(&repro.problem)?,
        };
        self.options.skip = skip;
        let mut told = Ok(());
        let backend = &mut *self.backend;
        run_listed(backend, repro, &listings, &self.options, &mut |event| {
            pass_on(event, output, &mut told);
        })?;
        told
    }

    fn trial(
        &mut self,
        repro: &Repro,
        data: Option<&DataPatch>,
        output: &mut dyn Write,
    ) -> Result<()> {
        let inputs = inputs(repro, data)?;
        self.options.skip.clear();
        let mut told = Ok(());
        let backend = &mut *self.backend;
        trial::run_inputs(backend, repro, inputs, &self.options, &mut |event| {
            pass_on(event, output, &mut told);
        })?;
        told
    }

    fn observe(&mut self, repro: &Repro, data: Option<&DataPatch>) -> Result<Observed> {
        let candidate = repro
            .via
            .as_ref()
            .ok_or_else(|| Error::usage("one candidate is observed: add via= to the line"))?;
        let (arithmetic, nondeterministic) =
            match self.backend.support(&repro.problem, candidate)? {
                Support::Offered {
                    arithmetic,
                    nondeterministic,
                    ..
                } => (arithmetic, nondeterministic),
                Support::Refused(why) => {
                    return Err(Error::environment(format!(
                        "{candidate} is refused here: {why}"
                    )));
                }
            };
        let run = RunOptions {
            repeats: self.options.repeats,
        };
        let outcome = self.backend.run(&inputs(repro, data)?, candidate, &run)?;
        Ok(Observed {
            arithmetic,
            nondeterministic,
            repeats: run.repeats,
            outcome,
        })
    }

    fn listings(&mut self, problem: &ConvProblem) -> Result<Vec<Listing>> {
        if let Some((known, listings)) = &self.listed
            && known == problem
        {
            return Ok(listings.clone());
        }
        let listings = self.backend.candidates(problem)?;
        self.listed = Some((problem.clone(), listings.clone()));
        Ok(listings)
    }
}

fn pass_on(event: Event, output: &mut dyn Write, told: &mut Result<()>) {
    let reply = match event {
        Event::Starting(repro) => Reply::Starting(repro.to_string()),
        Event::Judged(record) => Reply::Judged(Box::new(record)),
        Event::Done(record) => Reply::Record(Box::new(record)),
    };
    if told.is_ok() {
        *told = tell(output, &reply);
    }
}

/// The data of a case: what is given, else what its fill makes.
fn inputs(repro: &Repro, data: Option<&DataPatch>) -> Result<Inputs> {
    match data {
        Some(patch) => patch.apply(&repro.problem, repro.fill),
        None => Ok(Inputs::generate(&repro.problem, repro.fill)),
    }
}

fn tell(output: &mut dyn Write, reply: &Reply) -> Result<()> {
    send(output, reply).map_err(|e| Error::environment("the campaign has hung up").with_source(e))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::open::{BackendKind, BackendSpec};

    fn replies(requests: &[Request]) -> Vec<Reply> {
        let mut input = Vec::new();
        for request in requests {
            send(&mut input, request).unwrap();
        }
        let mut output = Vec::new();
        let _ = serve(input.as_slice(), &mut output);
        let mut from = output.as_slice();
        std::iter::from_fn(|| receive(&mut from).unwrap()).collect()
    }

    fn setup() -> Request {
        Request::Setup {
            backend: BackendSpec {
                kind: BackendKind::Host,
                ..BackendSpec::default()
            },
            repeats: 1,
            outputs: 1000,
        }
    }

    #[test]
    fn serve_announces_each_trial_before_its_record() {
        let case = Request::Case {
            repro: "fwd c=2 k=2 in=4x4 ker=3x3 fill=ints:1".to_owned(),
            skip: vec!["host:direct".to_owned()],
        };
        let replies = replies(&[setup(), case]);
        assert!(matches!(replies[0], Reply::Ready(_)));
        assert!(matches!(replies.last(), Some(Reply::Done)));
        let started = replies
            .iter()
            .filter(|r| matches!(r, Reply::Starting(_)))
            .count();
        let records: Vec<_> = replies
            .iter()
            .filter_map(|r| match r {
                Reply::Record(record) => Some(record),
                _ => None,
            })
            .collect();
        assert!(records.iter().all(|r| r.candidate != "host:direct"));
        let ran = records.iter().filter(|r| r.verdict != "skipped").count();
        assert_eq!(started, ran);
        assert!(records.iter().all(|r| r.verdict != "failed"), "{records:?}");
    }

    #[test]
    fn serve_bad_lines_are_told() {
        let case = Request::Case {
            repro: "sideways".to_owned(),
            skip: vec![],
        };
        let replies = replies(&[setup(), case]);
        assert!(matches!(&replies[1], Reply::Failed { code: 2, .. }));
    }
}
