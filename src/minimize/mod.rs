//! From a failing trial to all that a bug report needs: the simplest trial that
//! fails the same way, the fewest data, and the condition under which it does.

use std::collections::HashMap;

use serde::Serialize;

use crate::candidate::Repro;
use crate::error::Result;
use crate::fill::{Fill, FillKind, Inputs};
use crate::finding::failure_class;
use crate::record::TrialRecord;
use crate::shrink::data::{DataPatch, reduce};
use crate::shrink::trigger::{Effort, Seen, Trigger, infer_among};
use crate::shrink::{self, Rate, shrink};
use crate::strategy::Limits;

mod evidence;
pub mod order;
mod subject;

pub use evidence::Evidence;
pub use subject::{InProcess, Subject};

/// How much is done.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// The search for the simplest trial.
    pub shrink: shrink::Options,
    /// Most trials of the reduction of its data; 0 leaves the data alone.
    pub data_trials: u32,
    /// The search for the condition; `None` leaves it out.
    pub trigger: Option<Effort>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            shrink: shrink::Options::default(),
            data_trials: 500,
            trigger: Some(Effort::default()),
        }
    }
}

impl Options {
    /// For many findings at once: as much as a fuzz run can spare.
    pub fn brief() -> Self {
        Options {
            shrink: shrink::Options {
                max_trials: 500,
                ..shrink::Options::default()
            },
            data_trials: 200,
            trigger: Some(Effort {
                max_trials: 400,
                check: 100,
                ..Effort::default()
            }),
        }
    }
}

/// What became of a failing trial.
#[derive(Clone, Debug)]
pub struct Minimized {
    /// The trial that was given.
    pub start: Repro,
    /// Failures among runs of it.
    pub start_rate: Rate,
    /// How it fails, as [`failure_class`] says it.
    pub class: String,
    /// The simplest trial found that fails the same way.
    pub repro: Repro,
    /// Data that stands for its fill, where less was found to do.
    pub data: Option<DataPatch>,
    /// Failures among the last runs of it.
    pub rate: Rate,
    /// Trials it took, the condition left out.
    pub trials: u32,
    /// Whether the budget ended the search before it was done.
    pub exhausted: bool,
    /// The condition under which it fails.
    pub trigger: Option<Trigger>,
    /// The record of the simplest trial, on its data.
    pub record: TrialRecord,
}

/// What a search is doing, for whoever watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// Looking for the simplest trial.
    Shrinking,
    /// Reducing its data.
    Data,
    /// Looking for the condition.
    Trigger,
}

/// Minimises `start`, which names its candidate; `None` when it does not fail.
pub fn minimize(
    subject: &mut dyn Subject,
    start: &Repro,
    options: &Options,
    on: &mut dyn FnMut(Step),
) -> Result<Option<Minimized>> {
    on(Step::Shrinking);
    let mut fails = |repro: &Repro| Ok(failure_class(&subject.trial(repro, None)?));
    let Some(shrunk) = shrink(start, &options.shrink, &mut fails)? else {
        return Ok(None);
    };
    let mut minimized = Minimized {
        start: start.clone(),
        start_rate: shrunk.start,
        class: shrunk.class,
        rate: shrunk.end,
        trials: shrunk.trials,
        exhausted: shrunk.exhausted,
        data: None,
        trigger: None,
        record: TrialRecord::default(),
        repro: shrunk.repro,
    };
    on(Step::Data);
    minimized.reduce_data(subject, options)?;
    minimized.record = minimized.last_record(subject)?;
    if let Some(effort) = &options.trigger {
        on(Step::Trigger);
        minimized.find_trigger(subject, effort)?;
    }
    Ok(Some(minimized))
}

/// Failures whose data can be to blame.
const OF_DATA: [&str; 5] = [
    "wrong_value",
    "wrong_nan",
    "wrong_infinity",
    "uninitialised_read",
    "nondeterministic",
];

/// Data with more elements than this is no easier to check by hand.
const MOST_ELEMENTS: usize = 256;

impl Minimized {
    fn reduce_data(&mut self, subject: &mut dyn Subject, options: &Options) -> Result<()> {
        if options.data_trials == 0 || !OF_DATA.contains(&self.class.as_str()) {
            return Ok(());
        }
        let start = Inputs::generate(&self.repro.problem, self.repro.fill);
        let repro = &self.repro;
        let limits = shrink::Options {
            max_trials: options.data_trials,
            ..options.shrink.clone()
        };
        let mut fails = |inputs: &Inputs| {
            let record = subject.trial(repro, Some(&DataPatch::of(inputs)))?;
            Ok(failure_class(&record).filter(|class| *class == self.class))
        };
        let Some(reduced) = reduce(&start, &limits, &mut fails)? else {
            return Ok(());
        };
        self.trials += reduced.trials;
        let patch = DataPatch::of(&reduced.inputs);
        let fewer = patch.len() < DataPatch::of(&start).len();
        if reduced.end.failed > 0 && fewer && patch.len() <= MOST_ELEMENTS {
            self.rate = reduced.end;
            self.data = Some(patch);
        }
        Ok(())
    }

    /// One that failed, if any of a few runs does.
    fn last_record(&self, subject: &mut dyn Subject) -> Result<TrialRecord> {
        const RUNS: u32 = 20;
        let mut record = subject.trial(&self.repro, self.data.as_ref())?;
        for _ in 1..RUNS {
            if failure_class(&record).as_ref() == Some(&self.class) {
                break;
            }
            record = subject.trial(&self.repro, self.data.as_ref())?;
        }
        Ok(record)
    }

    /// Looks for the condition under which it fails.
    pub fn find_trigger(&mut self, subject: &mut dyn Subject, effort: &Effort) -> Result<()> {
        self.trigger = self.infer(subject, effort)?;
        Ok(())
    }

    fn infer(&self, subject: &mut dyn Subject, effort: &Effort) -> Result<Option<Trigger>> {
        let effort = Effort {
            limits: limits(&self.repro, &effort.limits),
            ..effort.clone()
        };
        let fills = fills(self.repro.fill);
        let known = [self.start.clone()];
        let mut memory = HashMap::new();
        let mut seen = |repro: &Repro| {
            let mut total = Seen::Refused;
            for fill in &fills {
                let fill = fill.unwrap_or(repro.fill);
                let repro = Repro {
                    fill,
                    ..repro.clone()
                };
                let one = match memory.get(&repro) {
                    Some(known) => *known,
                    None => self.seen(&subject.trial(&repro, None)?),
                };
                // A flaky case is asked again, another is not.
                if !self.rate.flaky() {
                    memory.insert(repro, one);
                }
                match one {
                    Seen::Fails(()) => return Ok(one),
                    Seen::Passes => total = one,
                    Seen::Refused => {}
                }
            }
            Ok(total)
        };
        infer_among(&self.repro, &known, &effort, &mut seen)
    }

    /// A skip, too little data, and a failure of another class say nothing.
    fn seen(&self, record: &TrialRecord) -> Seen<()> {
        match failure_class(record) {
            Some(class) if class == self.class => Seen::Fails(()),
            Some(_) => Seen::Refused,
            None if record.verdict == "passed" => Seen::Passes,
            None => Seen::Refused,
        }
    }
}

/// The data each case is run with, `None` for its own. Whether a problem shows a
/// fault depends on the data; where plain data shows it, the condition is about
/// the problem and each is run with data of three kinds. Where it takes special
/// data, the data is part of the condition.
fn fills(minimal: Fill) -> Vec<Option<Fill>> {
    let plain = [
        FillKind::Constant,
        FillKind::Impulse,
        FillKind::Integers,
        FillKind::Sparse,
        FillKind::Normal,
        FillKind::UniformPositive,
    ];
    if !plain.contains(&minimal.kind) {
        return vec![None];
    }
    let kinds = [FillKind::Integers, FillKind::Normal, FillKind::Impulse];
    let shared = kinds.iter().zip(1..);
    let shared = shared.map(|(&kind, seed)| Some(Fill { kind, seed }));
    std::iter::once(Some(minimal)).chain(shared).collect()
}

/// Cases for the condition: small ones, but not smaller than the minimum's
/// neighbourhood.
fn limits(minimum: &Repro, limits: &Limits) -> Limits {
    const FEW_MACS: u64 = 20_000;
    let near = minimum.problem.macs().saturating_mul(4);
    Limits {
        max_macs: near.max(FEW_MACS).min(limits.max_macs.max(near)),
        ..limits.clone()
    }
}

#[cfg(test)]
mod tests;
