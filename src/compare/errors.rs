//! Worst errors, better or worse beyond noise.
//!
//! Rule. Trials that passed are compared; what failed is a finding. Where the
//! runs have repro lines in common, only lines that passed in both count: the
//! data are the same, so the library's own order of summation is the only noise.
//! The worst over a configuration must change by [`FACTOR`]. Where they have none
//! in common, both sides need [`ENOUGH`] measured trials and the worst must change
//! by [`FACTOR_APART`]. Errors below [`FLOOR_ULP`] and [`FLOOR_RATIO`] on both
//! sides are as good as none.

use std::collections::BTreeMap;

use crate::compare::difference::{Change, Configuration, Difference, Subject};
use crate::compare::run::Run;
use crate::compare::trials::by_line;
use crate::record::TrialRecord;
use crate::report::table::short;

/// Change of the worst error that counts, on the same trials. Chosen.
pub const FACTOR: f64 = 2.0;
/// Change that counts when the trials differ. Chosen.
pub const FACTOR_APART: f64 = 4.0;
/// Measured trials each side needs when they differ. Chosen.
pub const ENOUGH: u64 = 30;
/// A result within one ulp cannot be told from a correctly rounded one by its
/// user; and half an ulp is rounding itself.
pub const FLOOR_ULP: f64 = 1.0;
/// Share of the bound below which an error is as good as none. Chosen.
pub const FLOOR_RATIO: f64 = 0.05;

/// Configuration and regime.
type Key = (Configuration, String);

/// The worst trial of one side, by one measure.
#[derive(Clone, Copy, Default)]
struct Worst<'a> {
    trials: u64,
    value: f64,
    repro: &'a str,
}

impl<'a> Worst<'a> {
    fn add(&mut self, value: f64, repro: &'a str) {
        self.trials += 1;
        if self.repro.is_empty() || value > self.value || value.is_nan() {
            (self.value, self.repro) = (value, repro);
        }
    }
}

/// A measure of error: its column, its floor, and where it is in a record.
struct Measure {
    name: &'static str,
    floor: f64,
    of: fn(&TrialRecord) -> Option<f64>,
}

const MEASURES: [Measure; 2] = [
    Measure {
        name: "max_ulp",
        floor: FLOOR_ULP,
        of: |t| t.max_ulp,
    },
    Measure {
        name: "max_ratio",
        floor: FLOOR_RATIO,
        of: |t| t.max_ratio,
    },
];

/// All configurations whose worst error changed beyond noise.
pub fn differences(a: &Run, b: &Run) -> Vec<Difference> {
    let (ours, theirs) = (by_line(&a.trials), by_line(&b.trials));
    let mut pairs: Vec<_> = ours
        .iter()
        .filter_map(|(line, t)| Some((*t, *theirs.get(line)?)))
        .collect();
    if pairs.is_empty() {
        return apart(&a.trials, &b.trials);
    }
    pairs.retain(|(a, b)| passed(a) && passed(b));
    // The map's order is random; the report's must not be.
    pairs.sort_by_key(|(a, _)| (a.case, a.trial));
    let same = |m: &Measure| together(m, &pairs);
    MEASURES.iter().flat_map(same).collect()
}

fn together(measure: &Measure, pairs: &[(&TrialRecord, &TrialRecord)]) -> Vec<Difference> {
    let mut worst: BTreeMap<Key, (Worst, Worst)> = BTreeMap::new();
    for (a, b) in pairs {
        if let (Some(ours), Some(theirs)) = ((measure.of)(a), (measure.of)(b)) {
            let sides = worst.entry(key(a)).or_default();
            sides.0.add(ours, &a.repro);
            sides.1.add(theirs, &b.repro);
        }
    }
    let compare = |(key, (a, b))| measure.difference(key, a, b, FACTOR);
    worst.into_iter().filter_map(compare).collect()
}

fn apart(a: &[TrialRecord], b: &[TrialRecord]) -> Vec<Difference> {
    let compare = |measure: &Measure| {
        let mut theirs = measure.worst(b);
        let found: Vec<_> = measure
            .worst(a)
            .into_iter()
            .filter_map(|(key, ours)| {
                let theirs = theirs.remove(&key)?;
                let enough = ours.trials.min(theirs.trials) >= ENOUGH;
                let found = || measure.difference(key, ours, theirs, FACTOR_APART);
                enough.then(found).flatten()
            })
            .collect();
        found
    };
    MEASURES.iter().flat_map(compare).collect()
}

impl Measure {
    fn worst<'a>(&self, trials: &'a [TrialRecord]) -> BTreeMap<Key, Worst<'a>> {
        let mut worst: BTreeMap<Key, Worst> = BTreeMap::new();
        for trial in trials.iter().filter(|t| passed(t)) {
            if let Some(value) = (self.of)(trial) {
                let side = worst.entry(key(trial)).or_default();
                side.add(value, &trial.repro);
            }
        }
        worst
    }

    fn difference(&self, key: Key, a: Worst, b: Worst, factor: f64) -> Option<Difference> {
        let change = self.change(a.value, b.value, factor)?;
        let worse = if change == Change::Worse { &b } else { &a };
        let ratio = b.value / a.value;
        Some(
            Difference {
                regime: key.1,
                trials: Some(a.trials + b.trials),
                factor: Some(ratio),
                repro: worse.repro.to_owned(),
                ..Difference::new(Subject::Error, change, self.name, key.0)
            }
            .values(short(a.value), short(b.value)),
        )
    }

    /// How the worst error changed, if beyond noise.
    fn change(&self, a: f64, b: f64, factor: f64) -> Option<Change> {
        let (a_counts, b_counts) = (a.max(self.floor), b.max(self.floor));
        // Two infinities are a factor of two apart, and are the same.
        if a_counts == b_counts {
            None
        } else if b_counts >= a_counts * factor {
            Some(Change::Worse)
        } else if a_counts >= b_counts * factor {
            Some(Change::Better)
        } else {
            None
        }
    }
}

fn passed(trial: &TrialRecord) -> bool {
    trial.verdict == "passed"
}

fn key(trial: &TrialRecord) -> Key {
    (Configuration::of(trial), trial.regime.clone())
}
