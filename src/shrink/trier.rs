//! Runs of a predicate, counted, repeated where failures are flaky, and within
//! a budget.

use super::{Options, Predicate, Rate};
use crate::error::Result;

/// Runs of one predicate on cases of type `T`.
pub(super) struct Trier<'a, 'p, T, C> {
    predicate: &'a mut Predicate<'p, T, C>,
    pub(super) class: C,
    /// Failures among runs of the start case.
    pub(super) start: Rate,
    pub(super) trials: u32,
    pub(super) exhausted: bool,
    repeats: u32,
    probes: u32,
    most: u32,
}

impl<'a, 'p, T, C: PartialEq> Trier<'a, 'p, T, C> {
    /// Runs `start` until its failure rate is known well enough: a few times
    /// when it always fails, up to `max_repeats` times when it does not.
    /// `None` when it never fails.
    pub(super) fn start(
        start: &T,
        options: &Options,
        predicate: &'a mut Predicate<'p, T, C>,
    ) -> Result<Option<Self>> {
        let mut class = None;
        let mut rate = Rate { failed: 0, of: 0 };
        while rate.of < options.probes || (rate.failed < rate.of && rate.of < options.max_repeats) {
            rate.of += 1;
            let seen = predicate(start)?;
            if seen.is_some() && (class.is_none() || class == seen) {
                class = seen;
                rate.failed += 1;
            }
        }
        Ok(class.map(|class| Trier {
            predicate,
            class,
            start: rate,
            trials: rate.of,
            exhausted: false,
            repeats: rate.repeats(options.max_repeats),
            probes: options.probes,
            most: options.max_trials,
        }))
    }

    /// Whether `case` fails the same way in one of as many runs as it takes;
    /// `None` when the budget ends before that is known.
    pub(super) fn fails(&mut self, case: &T) -> Result<Option<bool>> {
        for _ in 0..self.repeats {
            if self.trials >= self.most {
                self.exhausted = true;
                return Ok(None);
            }
            if self.once(case)? {
                return Ok(Some(true));
            }
        }
        Ok(Some(false))
    }

    /// Sets the budget to so many more runs.
    pub(super) fn allow(&mut self, runs: u32) {
        self.exhausted = false;
        self.most = self.trials.saturating_add(runs);
    }

    /// Sets the budget so that `cases` more can be decided.
    pub(super) fn allow_cases(&mut self, cases: u32) {
        self.allow(cases.saturating_mul(self.repeats));
    }

    /// Runs the last case again, to say how often it fails.
    pub(super) fn confirm(&mut self, case: &T) -> Result<Rate> {
        let of = if self.start.flaky() {
            self.repeats.max(self.probes)
        } else {
            self.probes
        };
        let mut failed = 0;
        for _ in 0..of {
            failed += u32::from(self.once(case)?);
        }
        Ok(Rate { failed, of })
    }

    fn once(&mut self, case: &T) -> Result<bool> {
        self.trials += 1;
        Ok((self.predicate)(case)?.as_ref() == Some(&self.class))
    }
}
