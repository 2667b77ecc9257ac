//! Where the trials of a search are run.

use crate::backend::{Backend, Steps};
use crate::campaign::solo::Solo;
use crate::candidate::Repro;
use crate::error::{Error, Result};
use crate::fill::Inputs;
use crate::record::TrialRecord;
use crate::shrink::data::DataPatch;
use crate::trial::{Event, TrialOptions, listing, run_inputs};

/// Runs one trial at a time.
pub trait Subject {
    /// The record of a trial on `data`, or on the data of its fill.
    fn trial(&mut self, repro: &Repro, data: Option<&DataPatch>) -> Result<TrialRecord>;
}

impl Subject for Solo {
    fn trial(&mut self, repro: &Repro, data: Option<&DataPatch>) -> Result<TrialRecord> {
        Solo::trial(self, repro, data)
    }
}

/// Trials in this process, for candidates that are known not to end it.
pub struct InProcess<'a>(pub &'a mut dyn Backend);

impl Subject for InProcess<'_> {
    fn trial(&mut self, repro: &Repro, data: Option<&DataPatch>) -> Result<TrialRecord> {
        let inputs = match data {
            Some(patch) => patch.apply(&repro.problem, repro.fill)?,
            None => Inputs::generate(&repro.problem, repro.fill),
        };
        let mut last = None;
        let options = TrialOptions::default();
        let listing = listing(self.0, repro, &mut Steps::unwatched())?;
        run_inputs(self.0, repro, &listing, inputs, &options, &mut |event| {
            if let Event::Done(record) = event {
                last = Some(record);
            }
        })?;
        last.ok_or_else(|| Error::internal("a trial gave no record"))
    }
}
