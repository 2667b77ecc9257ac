//! What an earlier run of the same plan did, where one is continued.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use super::draws;
use crate::error::Result;
use crate::record::TrialRecord;

/// Where in a campaign something happens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Place of the case in the order of this campaign's cases, from 0.
    pub order: u64,
    /// Number of the case; below zero for replayed ones.
    pub number: i64,
    /// Which of the case's fills, from 0.
    pub fill: usize,
}

/// A case of which every trial has ended.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Complete {
    /// Its place in the order of this campaign's cases, from 0.
    pub order: u64,
    /// Its number.
    pub number: i64,
    /// How long the campaign had been running by then, interruptions left out.
    pub elapsed: Duration,
    /// Time that listing candidates took, milliseconds.
    pub planning_ms: f64,
    /// Workers it cost.
    pub replaced: u64,
    /// Its records, not yet numbered.
    pub records: Vec<TrialRecord>,
}

/// Trials of a case that was not completed: by number of the fill.
pub type Unfinished = Vec<(usize, TrialRecord)>;

/// Complete cases as they are read back, in the order they were completed in.
pub type Cases<'a> = Box<dyn Iterator<Item = Result<Complete>> + 'a>;

/// What has been done already. Nothing, for a new campaign.
pub struct Past<'a> {
    /// Seeds of the cases that are replayed first, in hex.
    pub replayed: Vec<String>,
    /// Complete cases; read once, so that they need not fit into memory.
    pub complete: Cases<'a>,
    /// What was left undone.
    pub left: Left,
    /// Whether it did all it was asked for.
    pub ended: bool,
}

/// Where a campaign was interrupted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Left {
    /// What was judged of cases that were begun, by number.
    pub unfinished: HashMap<i64, Unfinished>,
    /// Cases that were begun: those before this place in the order.
    pub begun: u64,
    /// How long it had been running.
    pub elapsed: Duration,
}

impl Past<'_> {
    /// The past of a new campaign that replays the failing seeds of a file in
    /// proptest's format; it need not exist.
    pub fn none(regressions: Option<&Path>) -> Self {
        Past {
            replayed: regressions.map(draws::load).unwrap_or_default(),
            complete: Box::new(std::iter::empty()),
            left: Left::default(),
            ended: false,
        }
    }
}

impl Left {
    /// What was judged of a fill, and what of that ended its worker: the latter is
    /// not run again.
    pub(super) fn of_fill(&self, place: Place) -> (Vec<TrialRecord>, Vec<TrialRecord>) {
        let judged = self.unfinished.get(&place.number);
        let of_fill = |(fill, _): &&(usize, TrialRecord)| *fill == place.fill;
        let records = judged.into_iter().flatten().filter(of_fill);
        let records = records.map(|(_, record)| record.clone());
        records.partition(|record| !matches!(record.verdict.as_str(), "crashed" | "timed_out"))
    }
}
