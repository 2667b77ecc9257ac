//! Everything in which two runs differ.

use crate::compare::difference::{Change, Difference, Subject};
use crate::compare::run::Run;
use crate::compare::{engines, errors, faults, origin, support};
use crate::error::Result;

/// The differences of B from A.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Diff {
    /// Ordered by subject, then change, then configuration.
    pub differences: Vec<Difference>,
}

impl Diff {
    /// Compares two runs.
    pub fn between(a: &Run, b: &Run) -> Result<Self> {
        let mut differences = origin::differences(a, b)?;
        differences.extend(support::differences(a, b));
        differences.extend(faults::differences(a, b));
        differences.extend(errors::differences(a, b));
        differences.extend(engines::differences(a, b));
        differences.sort_by_cached_key(order);
        Ok(Diff { differences })
    }

    /// Whether support was lost or a finding is new.
    pub fn is_alarm(&self) -> bool {
        self.differences.iter().any(Difference::is_alarm)
    }

    /// Differences of one subject and change.
    pub fn select(&self, subject: Subject, change: Change) -> impl Iterator<Item = &Difference> {
        let wanted = move |d: &&Difference| d.subject == subject && d.change == change;
        self.differences.iter().filter(wanted)
    }
}

/// Numbers in names in their own order: `engine:9` before `engine:10`.
fn order(difference: &Difference) -> (Subject, Change, String, String, String) {
    let digits = difference
        .candidate
        .find(|c: char| c.is_ascii_digit())
        .map_or("", |at| &difference.candidate[at..]);
    let number: String = digits.chars().take_while(char::is_ascii_digit).collect();
    let candidate = match number.is_empty() {
        true => difference.candidate.clone(),
        false => difference
            .candidate
            .replacen(&number, &format!("{number:0>20}"), 1),
    };
    (
        difference.subject,
        difference.change,
        difference.what.clone(),
        candidate,
        difference.configuration(),
    )
}
