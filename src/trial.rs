//! One case, end to end: list, fill, compute the exact values, run every
//! candidate, judge, record.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::backend::{Backend, Listing, RunOptions, Steps, Support};
use crate::bound::{Arithmetic, Bounds};
use crate::candidate::{Candidate, Repro};
use crate::error::{Error, ErrorKind, Result};
use crate::fill::Inputs;
use crate::judge::{Case, Judgement, Ladder, Rated, SkipReason, Verdict, judge, mark_suspects};
use crate::oracle::{self, Decided, Reference, Sample};
use crate::outcome::Outcome;
use crate::record::{SCHEMA, TrialRecord};
use crate::tensor::Tensor;

pub mod metamorphic;

use metamorphic::{Rerun, Transformed};

/// How a case is run.
#[derive(Clone, Debug, PartialEq)]
pub struct TrialOptions {
    /// Further runs of each candidate, compared bit for bit.
    pub repeats: u32,
    /// Most outputs judged per trial; a larger result is sampled.
    pub outputs: usize,
    /// Outputs of every case compared with the arbiter.
    pub audit: usize,
    /// One case in so many is run once more in another form that must give the
    /// same numbers: one sample alone, padding written out, the other layout,
    /// one group alone. 0 means none; 1 means every case, in every form it has.
    pub metamorphic: u32,
    /// Records of trials that are not to be run: each stands in the place of its
    /// candidate, if that is offered.
    pub known: Vec<TrialRecord>,
}

impl Default for TrialOptions {
    fn default() -> Self {
        TrialOptions {
            repeats: 1,
            outputs: 1 << 18,
            audit: 2,
            metamorphic: 8,
            known: Vec::new(),
        }
    }
}

/// What happens during a case.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A candidate is about to be launched.
    Starting(Repro),
    /// It was judged; suspects are not marked yet. The same record comes again
    /// as [`Event::Done`] unless the process dies before.
    Judged(TrialRecord),
    /// The final record of a trial.
    Done(TrialRecord),
}

/// Runs one case on all its candidates, or the one it names. An `Err` is a
/// fault of the machine, of the input, or of convfuzz.
pub fn run_case(
    backend: &mut dyn Backend,
    repro: &Repro,
    options: &TrialOptions,
    on: &mut dyn FnMut(Event),
) -> Result<()> {
    let listings = listings(backend, repro, &mut Steps::unwatched())?;
    run_listed(backend, repro, &listings, options, on)
}

/// The same with candidates that were listed before.
pub fn run_listed(
    backend: &mut dyn Backend,
    repro: &Repro,
    listings: &[Listing],
    options: &TrialOptions,
    on: &mut dyn FnMut(Event),
) -> Result<()> {
    let forms = metamorphic::chosen(repro, options);
    let mut done = Vec::new();
    let mut data = None;
    for listing in listings {
        match (&listing.support, known(listing, options)) {
            (support, Some(record)) if support.is_barred() => {
                done.push(unrated(via(repro, listing), record));
            }
            (Support::Refused(why), _) => done.push(refused(repro, listing, why)),
            (_, Some(record)) => done.push(unrated(via(repro, listing), record)),
            (Support::Offered { .. }, None) => {
                if data.is_none() {
                    let make = || Inputs::generate(&repro.problem, repro.fill);
                    data = Some(Data::new(make, options)?);
                }
                let data = data.as_mut().expect("just made");
                done.push(data.trial(backend, repro, listing, options, on)?);
                if forms.is_empty() {
                    done.iter_mut().for_each(|done| done.result = None);
                }
            }
        }
    }
    if let Some(data) = &data {
        for form in &forms {
            data.compare(backend, form, &mut done, on)?;
        }
    }
    finish(repro, done, on);
    Ok(())
}

/// Runs the candidate of `listing` on `inputs`, which stand for the fill of `repro`.
pub fn run_inputs(
    backend: &mut dyn Backend,
    repro: &Repro,
    listing: &Listing,
    inputs: Inputs,
    options: &TrialOptions,
    on: &mut dyn FnMut(Event),
) -> Result<()> {
    let done = match &listing.support {
        Support::Refused(why) => refused(repro, listing, why),
        Support::Offered { .. } => {
            let mut data = Data::new(|| inputs, options)?;
            data.trial(backend, repro, listing, options, on)?
        }
    };
    finish(repro, vec![done], on);
    Ok(())
}

/// The candidates of a case: all of the problem's, or the one it names.
pub fn listings(
    backend: &mut dyn Backend,
    repro: &Repro,
    steps: &mut Steps<'_>,
) -> Result<Vec<Listing>> {
    match &repro.via {
        None => backend.list(&repro.problem, steps),
        Some(_) => Ok(vec![listing(backend, repro, steps)?]),
    }
}

/// The one candidate that a line names.
///
/// # Errors
/// Usage, where it names none.
pub fn listing(backend: &mut dyn Backend, repro: &Repro, steps: &mut Steps<'_>) -> Result<Listing> {
    let candidate = repro.via.clone().ok_or_else(|| {
        Error::usage(
            "one candidate is run alone: add via= to the line, as 'convfuzz list' names it",
        )
    })?;
    Ok(Listing {
        support: backend.list_one(&repro.problem, &candidate, steps)?,
        candidate,
    })
}

/// [`listings`] for a line from a file, which another version of the library may
/// have written: a candidate that does not exist here is one that is refused.
pub fn replayed(
    backend: &mut dyn Backend,
    repro: &Repro,
    steps: &mut Steps<'_>,
) -> Result<Vec<Listing>> {
    match (listings(backend, repro, steps), &repro.via) {
        (Err(error), Some(candidate)) if error.kind() == ErrorKind::Usage => Ok(vec![Listing {
            candidate: candidate.clone(),
            support: Support::Refused(error.to_string()),
        }]),
        (listed, _) => listed,
    }
}

/// A trial's record, with what suspects are marked by.
struct Done {
    /// The trial.
    repro: Repro,
    record: TrialRecord,
    rated: Option<(Arithmetic, Judgement)>,
    /// What it gave, while it is to be compared with other forms of the case.
    result: Option<Tensor>,
}

/// What all candidates of a case share.
struct Data {
    inputs: Inputs,
    reference: Reference,
    bounds: HashMap<Arithmetic, Option<Bounds>>,
    ladder: Ladder,
    passed: Passed,
    /// Time spent on it, charged to the first trial.
    spent: Duration,
    /// Outputs compared with the arbiter and not yet charged to a trial.
    audited: u64,
}

impl Data {
    fn new(make: impl FnOnce() -> Inputs, options: &TrialOptions) -> Result<Self> {
        let started = Instant::now();
        let inputs = make();
        let seed = inputs.fill.seed;
        let sample = Sample::choose(&inputs.problem, options.outputs, seed);
        let reference = oracle::reference(&inputs, &sample);
        let audited = oracle::audit(&inputs, &reference, options.audit, seed)?;
        Ok(Data {
            inputs,
            reference,
            bounds: HashMap::new(),
            ladder: Ladder::default(),
            passed: Passed::default(),
            spent: started.elapsed(),
            audited,
        })
    }

    fn trial(
        &mut self,
        backend: &mut dyn Backend,
        repro: &Repro,
        listing: &Listing,
        options: &TrialOptions,
        on: &mut dyn FnMut(Event),
    ) -> Result<Done> {
        let Support::Offered { arithmetic, .. } = &listing.support else {
            return Err(Error::internal("a refused candidate was to be run"));
        };
        on(Event::Starting(via(repro, listing)));
        let launched = Instant::now();
        let run = RunOptions {
            repeats: options.repeats,
        };
        let outcome = backend.run(&self.inputs, &listing.candidate, &run)?;
        let in_library = launched.elapsed();
        let judging = Instant::now();
        let inputs = &self.inputs;
        let bounds = self
            .bounds
            .entry(*arithmetic)
            .or_insert_with(|| Bounds::new(inputs, arithmetic));
        let case = Case {
            inputs,
            reference: &self.reference,
        };
        let promises = listing.support.promises();
        let key = (*arithmetic, promises.strict_nan);
        let judgement = self.passed.find(key, &outcome).unwrap_or_else(|| {
            let mut judgement = judge(case, bounds.as_ref(), promises, &outcome);
            if let (Outcome::Ran(seen), Some(_)) = (&outcome, bounds) {
                let ladder = &mut self.ladder;
                ladder.attribute(case, arithmetic, &seen.result, &mut judgement);
            }
            self.passed.keep(key, &outcome, &judgement);
            judgement
        });
        let mut record = blank(repro, listing);
        fill_in(&mut record, &judgement, &outcome);
        record.audited = Some(std::mem::take(&mut self.audited) + self.confirm(&judgement)?);
        let own = std::mem::take(&mut self.spent) + judging.elapsed();
        record.library_ms = Some(milliseconds(in_library));
        record.own_ms = Some(milliseconds(own));
        on(Event::Judged(record.clone()));
        Ok(Done {
            repro: via(repro, listing),
            record,
            rated: Some((*arithmetic, judgement)),
            result: match outcome {
                Outcome::Ran(observation) => Some(observation.result),
                _ => None,
            },
        })
    }

    /// Runs the candidates that did not fail on another form of the case, and
    /// fails those that then give other numbers.
    fn compare(
        &self,
        backend: &mut dyn Backend,
        form: &Transformed,
        done: &mut [Done],
        on: &mut dyn FnMut(Event),
    ) -> Result<()> {
        let mut rerun = Rerun::new(backend, form, &self.inputs);
        for done in done {
            let Some((arithmetic, _)) = &done.rated else {
                continue;
            };
            if let Some(Some(bounds)) = self.bounds.get(arithmetic) {
                rerun.check(bounds, done, on)?;
            }
        }
        Ok(())
    }
}

impl Data {
    /// Asks the arbiter about the worst output of a trial, unless it was asked
    /// before; says how many outputs it was asked about.
    fn confirm(&self, judgement: &Judgement) -> Result<u64> {
        let outputs = &self.reference.outputs;
        let Some(worst) = judgement.worst else {
            return Ok(0);
        };
        match outputs.binary_search_by_key(&worst.index, |o| o.index) {
            Ok(at) if outputs[at].decided != Decided::Arbiter => {
                oracle::confirm(&self.inputs, &outputs[at]).map(|()| 1)
            }
            _ => Ok(0),
        }
    }
}

/// What a judgement of clean results depends on beside the result.
type Key = (Arithmetic, bool);

/// A result that passed, per arithmetic: where sums are exact, and among engines
/// that sum in the same order, the next candidates give the very same bits.
#[derive(Default)]
struct Passed {
    known: HashMap<Key, (Tensor, Judgement)>,
}

impl Passed {
    /// The judgement of an outcome that has the bits of a known one.
    fn find(&self, key: Key, outcome: &Outcome) -> Option<Judgement> {
        let (result, judgement) = self.known.get(&key)?;
        (clean(outcome)? == result).then(|| judgement.clone())
    }

    fn keep(&mut self, key: Key, outcome: &Outcome, judgement: &Judgement) {
        if let (Some(result), Verdict::Passed) = (clean(outcome), judgement.verdict) {
            let known = self.known.entry(key);
            known.or_insert_with(|| (result.clone(), judgement.clone()));
        }
    }
}

/// The result of a run of which nothing else is to be judged.
fn clean(outcome: &Outcome) -> Option<&Tensor> {
    match outcome {
        Outcome::Ran(seen)
            if seen.memory.is_empty()
                && seen.unwritten.is_empty()
                && seen.deviations.is_empty() =>
        {
            Some(&seen.result)
        }
        _ => None,
    }
}

/// Marks suspects and hands out the final records.
fn finish(repro: &Repro, mut done: Vec<Done>, on: &mut dyn FnMut(Event)) {
    let mut rated: Vec<Rated<'_>> = done
        .iter_mut()
        .filter_map(|d| d.rated.as_mut())
        .map(|(arithmetic, judgement)| Rated {
            arithmetic: *arithmetic,
            judgement,
        })
        .collect();
    mark_suspects(repro.problem.result_type(), &mut rated);
    for mut done in done {
        done.record.suspect = done.rated.is_some_and(|(_, judgement)| judgement.suspect);
        on(Event::Done(done.record));
    }
}

fn refused(repro: &Repro, listing: &Listing, why: &str) -> Done {
    let mut record = blank(repro, listing);
    record.set_verdict(Verdict::Skipped(SkipReason::NotSupported));
    record.detail = Some(why.to_owned());
    unrated(via(repro, listing), record)
}

/// The record that stands for a candidate's trial, where there is one.
fn known(listing: &Listing, options: &TrialOptions) -> Option<TrialRecord> {
    let candidate = listing.candidate.to_string();
    let mut known = options.known.iter();
    known.find(|record| record.candidate == candidate).cloned()
}

/// What was not run here: no peer of what was.
fn unrated(repro: Repro, record: TrialRecord) -> Done {
    Done {
        repro,
        record,
        rated: None,
        result: None,
    }
}

fn via(repro: &Repro, listing: &Listing) -> Repro {
    Repro {
        via: Some(listing.candidate.clone()),
        ..repro.clone()
    }
}

/// The columns that are known before a trial.
fn blank(repro: &Repro, listing: &Listing) -> TrialRecord {
    let notes = match &listing.support {
        Support::Offered { notes, .. } => notes.join("+"),
        Support::Refused(_) => String::new(),
    };
    TrialRecord {
        notes,
        ..described(&via(repro, listing))
    }
}

/// A record with the columns that the repro line alone gives.
pub fn described(repro: &Repro) -> TrialRecord {
    let problem = &repro.problem;
    TrialRecord {
        schema: SCHEMA,
        repro: repro.to_string(),
        direction: problem.direction.name().to_owned(),
        rank: problem.rank() as u8,
        types: problem.type_text(),
        compute: problem.compute.name().to_owned(),
        layout: problem.layout.name().to_owned(),
        regime: repro.fill.kind.regime().name().to_owned(),
        fill: repro.fill.kind.name().to_owned(),
        api: repro.via.as_ref().map_or("", Candidate::api).to_owned(),
        candidate: repro
            .via
            .as_ref()
            .map(ToString::to_string)
            .unwrap_or_default(),
        outputs: problem.elements(problem.direction.result()) as u64,
        ..TrialRecord::default()
    }
}

fn fill_in(record: &mut TrialRecord, judgement: &Judgement, outcome: &Outcome) {
    record.set_verdict(judgement.verdict);
    record.detail.clone_from(&judgement.detail);
    let Outcome::Ran(observation) = outcome else {
        return;
    };
    record.workspace = Some(observation.workspace);
    record.repeats = Some(observation.repeated);
    record.varied = Some(observation.varied());
    if judgement.judged == 0 {
        return;
    }
    record.judged = Some(judgement.judged);
    record.nonzero_share = Some(judgement.nonzero_share);
    record.power_share = Some(judgement.power_share);
    record.detectable = judgement.detectable;
    record.wrong = Some(judgement.wrong);
    record.max_ulp = judgement.max_ulp;
    record.max_ratio = judgement.max_ratio;
    record.exact = Some(judgement.decided.fixed_point);
    record.certified = Some(judgement.decided.certified);
    record.arbitrated = Some(judgement.decided.arbiter);
    if let Some(worst) = judgement.worst {
        record.worst_index = Some(worst.index as u64);
        record.expected = Some(worst.expected);
        record.actual = Some(worst.actual);
        record.bound = Some(worst.bound);
    }
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests;
