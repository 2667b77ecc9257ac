//! The worker's side: opens a backend and runs cases until its input ends.

use std::io::{BufRead, Write};
use std::time::Instant;

use super::means::{Baseline, Measured};
use super::protocol::{Observed, Reply, Request, receive, send};
use crate::backend::{Backend, Listing, RunOptions, Steps, Support, open};
use crate::candidate::Repro;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::fill::Inputs;
use crate::problem::ConvProblem;
use crate::shrink::data::DataPatch;
use crate::trial::{self, Event, TrialOptions, run_listed};

/// Serves one campaign. Errors are told to the other side, then returned.
pub fn serve(input: impl BufRead, output: impl Write) -> Result<()> {
    let mut campaign = Campaign {
        input,
        output,
        lost: None,
    };
    let served = Server::open(&mut campaign)
        .and_then(|server| server.map_or(Ok(()), |mut s| s.serve(&mut campaign)));
    if let Err(error) = &served {
        // The other side may be gone already.
        let _ = campaign.tell(&Reply::Failed {
            code: error.exit_code(),
            message: error.to_string(),
        });
    }
    served
}

/// The other side.
struct Campaign<I, O> {
    input: I,
    output: O,
    /// Why events cannot be told any more.
    lost: Option<Error>,
}

impl<I: BufRead, O: Write> Campaign<I, O> {
    fn hear(&mut self) -> Result<Option<Request>> {
        receive(&mut self.input)
    }

    fn tell(&mut self, reply: &Reply) -> Result<()> {
        send(&mut self.output, reply)
            .map_err(|e| Error::environment("the campaign has hung up").with_source(e))
    }

    /// Tells an event; what goes wrong is kept for [`Campaign::heard_out`].
    fn pass_on(&mut self, event: Event) {
        if self.lost.is_none() {
            self.lost = self.try_pass_on(event).err();
        }
    }

    /// Tells a step of listing; what goes wrong is kept as well.
    fn pass_on_step(&mut self, step: &str) {
        if self.lost.is_none() {
            self.lost = self.tell(&Reply::Planning(step.to_owned())).err();
        }
    }

    fn try_pass_on(&mut self, event: Event) -> Result<()> {
        match event {
            Event::Starting(repro) => {
                self.tell(&Reply::Starting(repro.to_string()))?;
                match self.hear()? {
                    Some(Request::Go) => Ok(()),
                    Some(_) => Err(Error::internal("an announced trial waits for its go")),
                    None => Err(Error::environment("the campaign has hung up")),
                }
            }
            Event::Judged(record) => self.tell(&Reply::Judged(Box::new(record))),
            Event::Done(record) => self.tell(&Reply::Record(Box::new(record))),
        }
    }

    /// Whether all events were told.
    fn heard_out(&mut self) -> Result<()> {
        self.lost.take().map_or(Ok(()), Err)
    }
}

struct Server {
    backend: Box<dyn Backend>,
    options: TrialOptions,
    /// Candidates of the latest problem: its other fills come next.
    listed: Option<(ConvProblem, Vec<Listing>)>,
}

impl Server {
    fn open(campaign: &mut Campaign<impl BufRead, impl Write>) -> Result<Option<Self>> {
        let (spec, options) = match campaign.hear()? {
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
        campaign.tell(&Reply::Ready {
            combination: backend.combination().clone(),
            device_memory: backend.device_memory()?,
        })?;
        Ok(Some(Server {
            backend,
            options,
            listed: None,
        }))
    }

    fn serve(&mut self, campaign: &mut Campaign<impl BufRead, impl Write>) -> Result<()> {
        while let Some(request) = campaign.hear()? {
            match request {
                Request::Case {
                    repro,
                    known,
                    barred,
                    against,
                } => {
                    self.options.known = known;
                    self.case(&repro.parse()?, &barred, &against, campaign)?;
                }
                Request::Trial {
                    repro,
                    data,
                    barred,
                } => {
                    self.trial(&repro.parse()?, data.as_ref(), &barred, campaign)?;
                }
                Request::Observe { repro, data } => {
                    let observed = self.observe(&repro.parse()?, data.as_ref())?;
                    campaign.tell(&Reply::Observed(Box::new(observed)))?;
                }
                Request::Setup { .. } => return Err(Error::internal("a worker is set up once")),
                Request::Go => return Err(Error::internal("no trial waits for its go")),
            }
            campaign.tell(&Reply::Done)?;
        }
        Ok(())
    }

    fn case(
        &mut self,
        repro: &Repro,
        barred: &[String],
        against: &[Option<DType>],
        campaign: &mut Campaign<impl BufRead, impl Write>,
    ) -> Result<()> {
        let planning = Instant::now();
        let on = &mut |step: &str| campaign.pass_on_step(step);
        let listings = self.listings(repro, &mut Steps::new(barred, on))?;
        campaign.tell(&Reply::Planned(planning.elapsed().as_secs_f64() * 1e3))?;
        let references = against.iter();
        let references = references
            .map(|&dtype| Baseline::exact(&repro.problem, repro.fill, dtype))
            .collect();
        let mut measured = Measured::new(&mut *self.backend, references);
        let on = &mut |event| campaign.pass_on(event);
        run_listed(&mut measured, repro, &listings, &self.options, on)?;
        let means = measured.means;
        campaign.heard_out()?;
        let mut means = means.into_iter().map(Reply::Means);
        means.try_for_each(|reply| campaign.tell(&reply))
    }

    fn trial(
        &mut self,
        repro: &Repro,
        data: Option<&DataPatch>,
        barred: &[String],
        campaign: &mut Campaign<impl BufRead, impl Write>,
    ) -> Result<()> {
        let on = &mut |step: &str| campaign.pass_on_step(step);
        let listing = trial::listing(&mut *self.backend, repro, &mut Steps::new(barred, on))?;
        let inputs = inputs(repro, data)?;
        self.options.known.clear();
        let on = &mut |event| campaign.pass_on(event);
        let backend = &mut *self.backend;
        trial::run_inputs(backend, repro, &listing, inputs, &self.options, on)?;
        campaign.heard_out()
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

    /// The candidates of a case. Those of a problem are listed once, unless some are
    /// barred: then each case needs the record that stands for them.
    fn listings(&mut self, repro: &Repro, steps: &mut Steps<'_>) -> Result<Vec<Listing>> {
        let listed = self.listed.as_ref();
        match listed.filter(|(problem, _)| *problem == repro.problem && repro.via.is_none()) {
            Some((_, listings)) => Ok(listings.clone()),
            None => {
                let listings = trial::replayed(&mut *self.backend, repro, steps)?;
                if repro.via.is_none() && !steps.bars_any() {
                    self.listed = Some((repro.problem.clone(), listings.clone()));
                }
                Ok(listings)
            }
        }
    }
}

/// The data of a case: what is given, else what its fill makes.
fn inputs(repro: &Repro, data: Option<&DataPatch>) -> Result<Inputs> {
    match data {
        Some(patch) => patch.apply(&repro.problem, repro.fill),
        None => Ok(Inputs::generate(&repro.problem, repro.fill)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::open::{BackendKind, BackendSpec};
    use crate::record::TrialRecord;

    fn replies(requests: &[Request]) -> Vec<Reply> {
        let mut input = Vec::new();
        for request in requests {
            send(&mut input, request).unwrap();
        }
        // More than there are trials: what is left over is told as an error.
        for _ in 0..100 {
            send(&mut input, &Request::Go).unwrap();
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
        let known = TrialRecord {
            candidate: "host:direct".to_owned(),
            verdict: "crashed".to_owned(),
            ..TrialRecord::default()
        };
        let case = Request::Case {
            repro: "fwd c=2 k=2 in=4x4 ker=3x3 fill=ints:1".to_owned(),
            known: vec![known.clone()],
            barred: vec![],
            against: vec![],
        };
        let replies = replies(&[setup(), case]);
        assert!(matches!(replies[0], Reply::Ready { .. }));
        assert!(replies.iter().any(|r| matches!(r, Reply::Done)));
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
        assert!(records.iter().any(|r| ***r == known));
        let ran = records.iter().filter(|r| r.verdict != "skipped").count();
        assert_eq!(started, ran - 1);
        assert!(records.iter().all(|r| r.verdict != "failed"), "{records:?}");
    }

    #[test]
    fn serve_trial_without_its_go_is_never_judged() {
        let case = Request::Case {
            repro: "fwd c=2 k=2 in=4x4 ker=3x3 fill=ints:1".to_owned(),
            known: vec![],
            barred: vec![],
            against: vec![],
        };
        let mut input = Vec::new();
        send(&mut input, &setup()).unwrap();
        send(&mut input, &case).unwrap();
        let mut output = Vec::new();
        assert!(serve(input.as_slice(), &mut output).is_err());
        let mut from = output.as_slice();
        let replies: Vec<Reply> = std::iter::from_fn(|| receive(&mut from).unwrap()).collect();
        let count = |wanted: fn(&Reply) -> bool| replies.iter().filter(|r| wanted(r)).count();
        assert_eq!(count(|r| matches!(r, Reply::Starting(_))), 1);
        assert_eq!(count(|r| matches!(r, Reply::Judged(_))), 0);
        assert_eq!(count(|r| matches!(r, Reply::Failed { code: 3, .. })), 1);
    }

    #[test]
    fn serve_measures_means_where_they_are_asked_for() {
        let case = Request::Case {
            repro: "fwd c=2 k=2 in=4x4 ker=3x3 type=fp16 fill=normal:1".to_owned(),
            known: vec![],
            barred: vec![],
            against: vec![None, Some(DType::Fp32)],
        };
        let replies = replies(&[setup(), case]);
        let means: Vec<_> = replies
            .iter()
            .filter_map(|r| match r {
                Reply::Means(means) => Some(means),
                _ => None,
            })
            .collect();
        assert!(!means.is_empty());
        for means in means {
            assert_eq!(means.values.len(), 2);
            assert!(means.values[0].0 < means.values[1].0, "{means:?}");
            assert_eq!(means.basis, "all 8 outputs");
        }
    }

    #[test]
    fn serve_bad_lines_are_told() {
        let case = Request::Case {
            repro: "sideways".to_owned(),
            known: vec![],
            barred: vec![],
            against: vec![],
        };
        let replies = replies(&[setup(), case]);
        assert!(matches!(&replies[1], Reply::Failed { code: 2, .. }));
    }
}
