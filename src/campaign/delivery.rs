//! Puts cases back in order and hands their records on.

use std::collections::BTreeMap;

use super::crew::Crew;
use super::draws::Draws;
use super::past::Complete;
use super::shard::Shard;
use super::{Progress, Sink, Summary};
use crate::error::Result;
use crate::record::TrialRecord;

/// Cases on their way to the sink.
pub(super) struct Delivery<'a> {
    draws: &'a Draws,
    shard: Shard,
    /// Complete cases that wait for one before them.
    waiting: BTreeMap<u64, Complete>,
    summary: Summary,
}

impl<'a> Delivery<'a> {
    pub(super) fn new(draws: &'a Draws, shard: Shard) -> Self {
        let replayed = -(draws.replayed() as i64);
        Delivery {
            draws,
            shard,
            waiting: BTreeMap::new(),
            summary: Summary {
                replayed: shard.share(replayed, 0),
                ..Summary::default()
            },
        }
    }

    /// Number of cases that were handed on.
    pub(super) fn delivered(&self) -> u64 {
        self.summary.cases
    }

    /// Places of complete cases that wait for others.
    pub(super) fn ahead(&self) -> impl Iterator<Item = u64> {
        self.waiting.keys().copied()
    }

    /// Takes a complete case, and hands on all that are next in order.
    pub(super) fn take(
        &mut self,
        case: Complete,
        crew: &Crew<'_>,
        sink: &mut dyn Sink,
    ) -> Result<()> {
        self.waiting.insert(case.order, case);
        while let Some(case) = self.waiting.remove(&self.summary.cases) {
            self.summary.replaced += case.replaced;
            self.summary.planning_ms += case.planning_ms;
            self.hand_on(case, crew, sink)?;
            self.summary.cases += 1;
            crew.delivered(self.summary.cases);
            sink.progress(&Progress {
                cases: self.summary.cases,
            });
        }
        Ok(())
    }

    fn hand_on(&self, case: Complete, crew: &Crew<'_>, sink: &mut dyn Sink) -> Result<()> {
        let (number, mut records) = (case.number, case.records);
        let draw = self.draws.case(number)?;
        crew.streaks().settle(&draw.problem, &mut records);
        if self.shard == Shard::WHOLE && records.iter().any(is_bad) {
            self.draws.persist(number, &draw);
        }
        for (trial, mut record) in records.into_iter().enumerate() {
            record.case = number;
            record.trial = trial as u32;
            sink.record(&record)?;
        }
        Ok(())
    }

    /// What it came to.
    pub(super) fn finish(&self, crew: &Crew<'_>) -> Summary {
        Summary {
            quarantined: crew.streaks().names(),
            ..self.summary.clone()
        }
    }
}

fn is_bad(record: &TrialRecord) -> bool {
    matches!(record.verdict.as_str(), "failed" | "crashed" | "timed_out")
}
