//! Engine indices that changed meaning: an index is specific to a cuDNN version.
//!
//! Rule. An index is known by what it declares (notes) in each configuration it
//! runs, and by the knob types it has. In configurations that both versions run,
//! other notes are another engine, and so are other knob types where both runs
//! chose knobs. Same notes and knobs count as the same engine. Where the two have
//! no configuration in common nothing can be said: the index is reported as unsure.
//! An engine of B with exactly the notes, knobs and configurations of A's is named
//! as its likely new index.

use std::collections::{BTreeMap, BTreeSet};

use crate::candidate::Candidate;
use crate::compare::difference::{Change, Configuration, Difference, Subject};
use crate::compare::run::Run;
use crate::compare::trials::{declared_notes, ran};
use crate::record::TrialRecord;

/// What is known of an engine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Profile {
    /// Notes by configuration (its candidate left empty).
    notes: BTreeMap<Configuration, BTreeSet<String>>,
    /// Knob types chosen.
    knobs: BTreeSet<u32>,
}

type Profiles = BTreeMap<i64, Profile>;

/// Indices that changed meaning, or may have.
pub fn differences(a: &Run, b: &Run) -> Vec<Difference> {
    let (ours, theirs) = (profiles(&a.trials), profiles(&b.trials));
    let compare = |(&index, before): (&i64, &Profile)| {
        let after = theirs.get(&index)?;
        let (change, why) = before.against(after)?;
        let moved = twins(before, &theirs);
        Some(difference(index, change, (before, after), &why, &moved))
    };
    ours.iter().filter_map(compare).collect()
}

fn profiles(trials: &[TrialRecord]) -> Profiles {
    let mut profiles = Profiles::new();
    for trial in trials.iter().filter(|t| t.api == "engine" && ran(t)) {
        if let Ok(Candidate::Engine { index, knobs }) = trial.candidate.parse() {
            let profile = profiles.entry(index).or_default();
            profile.add(trial, knobs.iter().map(|(knob, _)| *knob));
        }
    }
    profiles
}

impl Profile {
    fn add(&mut self, trial: &TrialRecord, knobs: impl Iterator<Item = u32>) {
        let configuration = Configuration {
            candidate: String::new(),
            ..Configuration::of(trial)
        };
        let notes = self.notes.entry(configuration).or_default();
        notes.insert(declared_notes(&trial.notes));
        self.knobs.extend(knobs);
    }

    /// Whether and why `other` is another engine.
    fn against(&self, other: &Profile) -> Option<(Change, String)> {
        let common = self.common(other);
        if !self.knobs.is_empty() && !other.knobs.is_empty() && self.knobs != other.knobs {
            let why = "other knob types".to_owned();
            return Some((Change::Changed, why));
        }
        if common.is_empty() {
            return Some((Change::Unsure, "no configuration in common".to_owned()));
        }
        let differs = common.iter().filter(|(ours, theirs)| ours != theirs);
        let count = differs.count();
        (count > 0).then(|| {
            let why = format!("other notes in {count} of {} configurations", common.len());
            (Change::Changed, why)
        })
    }

    fn common<'a>(
        &'a self,
        other: &'a Profile,
    ) -> Vec<(&'a BTreeSet<String>, &'a BTreeSet<String>)> {
        self.notes
            .iter()
            .filter_map(|(key, notes)| Some((notes, other.notes.get(key)?)))
            .collect()
    }

    /// All notes and knob types, in words.
    fn words(&self) -> String {
        let notes: BTreeSet<_> = self.notes.values().flatten().collect();
        let notes: Vec<_> = notes.into_iter().filter(|n| !n.is_empty()).collect();
        let mut words: Vec<String> = notes.into_iter().cloned().collect();
        if words.is_empty() {
            words.push("no notes".to_owned());
        }
        if !self.knobs.is_empty() {
            let knobs: Vec<_> = self.knobs.iter().map(u32::to_string).collect();
            words.push(format!("knobs {}", knobs.join(" ")));
        }
        words.join(", ")
    }
}

/// Engines that look exactly like `profile`.
fn twins(profile: &Profile, among: &Profiles) -> Vec<i64> {
    let same = among.iter().filter(|(_, other)| *other == profile);
    same.map(|(&index, _)| index).collect()
}

fn difference(
    index: i64,
    change: Change,
    (before, after): (&Profile, &Profile),
    why: &str,
    moved: &[i64],
) -> Difference {
    let configuration = Configuration {
        candidate: format!("engine:{index}"),
        ..Configuration::default()
    };
    let place = match moved {
        [] => "no engine of B looks like it".to_owned(),
        [one] => format!("in B engine:{one} looks like it"),
        several => {
            let names: Vec<_> = several.iter().map(|i| format!("engine:{i}")).collect();
            format!("unsure which of B it is: {}", names.join(", "))
        }
    };
    Difference {
        detail: format!("{why}; {place}"),
        ..Difference::new(Subject::Engine, change, "meaning", configuration)
    }
    .values(before.words(), after.words())
}
