//! The trials of a run, arranged for comparing.

use std::collections::{BTreeMap, HashMap};

use crate::compare::difference::family;
use crate::compare::run::Run;
use crate::record::TrialRecord;

/// Trials by case, then by candidate without knobs and planted fault.
#[derive(Clone, Debug, Default)]
pub struct Cases<'a> {
    map: BTreeMap<&'a str, BTreeMap<&'a str, Vec<&'a TrialRecord>>>,
}

impl<'a> Cases<'a> {
    /// Arranges the trials of a run. The last case of a run that did not complete
    /// may lack candidates, and is left out.
    pub fn new(run: &'a Run) -> Self {
        let last = run.trials.last().filter(|_| !run.is_complete());
        let torn = last.map(|trial| trial.case);
        let mut map: BTreeMap<_, BTreeMap<_, Vec<_>>> = BTreeMap::new();
        for trial in run.trials.iter().filter(|t| Some(t.case) != torn) {
            let candidates = map.entry(case(&trial.repro)).or_default();
            let same = candidates.entry(family(&trial.candidate)).or_default();
            same.push(trial);
        }
        Cases { map }
    }

    /// Every case and candidate, with its trials and those of the same case and
    /// candidate in `other` (none, if it was not offered there). Left out is what
    /// `other` did not ask for: cases it has not, and cases that it ran with
    /// candidates of other APIs only.
    pub fn shared<'b>(
        &'b self,
        other: &'b Cases<'b>,
    ) -> impl Iterator<Item = (&'b [&'a TrialRecord], &'b [&'b TrialRecord])> {
        self.map.iter().flat_map(|(case, candidates)| {
            let theirs = other.map.get(case);
            candidates.iter().filter_map(move |(candidate, trials)| {
                let asked = theirs?.keys().any(|c| api(c) == api(candidate));
                let same = theirs?.get(candidate).map_or(&[][..], Vec::as_slice);
                asked.then_some((trials.as_slice(), same))
            })
        })
    }

    /// Whether there is a case that `other` has too.
    pub fn overlap(&self, other: &Cases) -> bool {
        self.map.keys().any(|case| other.map.contains_key(case))
    }
}

/// The first word of a candidate.
fn api(candidate: &str) -> &str {
    candidate.split(':').next().unwrap_or(candidate)
}

/// Problem and fill of a repro line, without the candidate.
fn case(repro: &str) -> &str {
    repro.split(" via=").next().unwrap_or(repro)
}

/// Trials by their whole repro line without planted fault; a line that was run
/// twice counts as its last run.
pub fn by_line(trials: &[TrialRecord]) -> HashMap<&str, &TrialRecord> {
    trials.iter().map(|t| (line(&t.repro), t)).collect()
}

/// A repro line without planted fault.
pub fn line(repro: &str) -> &str {
    let end = repro
        .find(" via=")
        .and_then(|via| repro[via..].find('!').map(|fault| via + fault));
    &repro[..end.unwrap_or(repro.len())]
}

/// Whether the candidate ran, however that ended.
pub fn ran(trial: &TrialRecord) -> bool {
    trial.verdict != "skipped"
}

/// Whether the library declined: a skip for want of memory or by quarantine says
/// nothing about support.
pub fn declined(trial: &TrialRecord) -> bool {
    trial.verdict == "skipped" && trial.reason.as_deref() == Some("not_supported")
}

/// The notes a candidate declares, without its places in the heuristics' lists,
/// which differ from problem to problem.
pub fn declared_notes(notes: &str) -> String {
    let notes = notes.split('+').filter(|note| !note.starts_with("heur_"));
    notes.collect::<Vec<_>>().join("+")
}
