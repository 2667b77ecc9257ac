//! Support gained and lost.
//!
//! Rule. Where the runs have cases in common, only those count: a candidate that
//! ran a case in A and was declined, or not offered at all, for the very same
//! case in B has lost it. Where they have none, a configuration is lost when it
//! ran in A and was declined by all of at least [`ENOUGH`] trials in B.
//! Gained is lost with A and B exchanged.

use std::collections::BTreeMap;

use crate::compare::difference::{Change, Configuration, Difference, Subject};
use crate::compare::run::Run;
use crate::compare::trials::{Cases, declined, ran};
use crate::record::TrialRecord;

/// Declined trials that make a configuration count as unsupported when the runs
/// have no case in common. Chosen, not derived.
pub const ENOUGH: u64 = 30;

/// All support lost and gained.
pub fn differences(a: &Run, b: &Run) -> Vec<Difference> {
    let (ours, theirs) = (Cases::new(a), Cases::new(b));
    let shared = ours.overlap(&theirs);
    let lost = |of: &Run, to: &Run, from: &Cases, into: &Cases| match shared {
        true => lost_cases(from, into),
        false => lost_configurations(&of.trials, &to.trials),
    };
    let mut found = lost(a, b, &ours, &theirs);
    found.extend(lost(b, a, &theirs, &ours).into_iter().map(reversed));
    found
}

fn reversed(mut difference: Difference) -> Difference {
    difference.change = difference.change.reversed();
    std::mem::swap(&mut difference.a, &mut difference.b);
    difference
}

/// Cases that a configuration ran in one run, and what became of them in the other.
#[derive(Default)]
struct Fate<'a> {
    /// Cases that ran in the first and have an answer in the second.
    cases: u64,
    /// Of these, declined in the second.
    declined: u64,
    /// Of these, not even offered in the second.
    missing: u64,
    /// The first trial that was lost, and the library's words.
    example: Option<(&'a str, &'a str)>,
}

fn lost_cases(from: &Cases, into: &Cases) -> Vec<Difference> {
    let mut fates: BTreeMap<Configuration, Fate> = BTreeMap::new();
    for (before, after) in from.shared(into) {
        if let Some(first) = before.iter().find(|t| ran(t)) {
            let fate = fates.entry(Configuration::of(first)).or_default();
            fate.count(first, after);
        }
    }
    let lost = fates.into_iter().filter(|(_, fate)| fate.lost() > 0);
    lost.map(|(configuration, fate)| fate.difference(configuration))
        .collect()
}

impl<'a> Fate<'a> {
    fn count(&mut self, before: &'a TrialRecord, after: &[&'a TrialRecord]) {
        let refused = after.iter().find(|t| declined(t));
        if after.iter().any(|t| ran(t)) {
            self.cases += 1;
            return;
        }
        if after.is_empty() {
            self.missing += 1;
        } else if refused.is_some() {
            self.declined += 1;
        } else {
            // Out of memory or quarantined: no answer.
            return;
        }
        self.cases += 1;
        let words = refused.and_then(|t| t.detail.as_deref());
        self.example
            .get_or_insert((&before.repro, words.unwrap_or_default()));
    }

    fn lost(&self) -> u64 {
        self.declined + self.missing
    }

    fn difference(self, configuration: Configuration) -> Difference {
        let (repro, words) = self.example.unwrap_or_default();
        let still = self.cases - self.lost();
        let why = match (self.declined, self.missing) {
            (_, 0) => words.to_owned(),
            (0, _) => "not offered".to_owned(),
            (declined, missing) => format!("{declined} declined, {missing} not offered; {words}"),
        };
        Difference {
            trials: Some(self.cases),
            detail: why,
            repro: repro.to_owned(),
            ..Difference::new(Subject::Support, Change::Lost, "support", configuration)
        }
        .values(format!("{} ran", self.cases), format!("{still} ran"))
    }
}

/// What a run says about a configuration.
#[derive(Default)]
struct Answers<'a> {
    ran: u64,
    declined: u64,
    example: &'a str,
}

fn answers(trials: &[TrialRecord]) -> BTreeMap<Configuration, Answers<'_>> {
    let mut map: BTreeMap<Configuration, Answers> = BTreeMap::new();
    for trial in trials {
        let answers = map.entry(Configuration::of(trial)).or_default();
        answers.declined += u64::from(declined(trial));
        if ran(trial) {
            answers.ran += 1;
            answers.example = &trial.repro;
        }
    }
    map
}

fn lost_configurations(from: &[TrialRecord], into: &[TrialRecord]) -> Vec<Difference> {
    let after = answers(into);
    let lost = |(configuration, before): (Configuration, Answers)| {
        let now = after.get(&configuration)?;
        let gone = before.ran > 0 && now.ran == 0 && now.declined >= ENOUGH;
        gone.then(|| {
            Difference {
                trials: Some(before.ran + now.declined),
                detail: "no case in common".to_owned(),
                repro: before.example.to_owned(),
                ..Difference::new(Subject::Support, Change::Lost, "support", configuration)
            }
            .values(
                format!("{} ran", before.ran),
                format!("{} declined", now.declined),
            )
        })
    };
    answers(from).into_iter().filter_map(lost).collect()
}
