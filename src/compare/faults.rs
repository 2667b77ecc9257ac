//! Findings new and gone, by signature.

use std::collections::{BTreeMap, HashMap};

use crate::compare::difference::{Change, Configuration, Difference, Subject};
use crate::compare::run::Run;
use crate::compare::trials::{by_line, declared_notes, line};
use crate::finding::{Finding, Findings, Signature};
use crate::record::TrialRecord;

/// All findings that only one of the runs has.
pub fn differences(a: &Run, b: &Run) -> Vec<Difference> {
    let (ours, theirs) = (findings(a), findings(b));
    let mut found = absent(&theirs, &ours, a, Change::New);
    found.extend(absent(&ours, &theirs, b, Change::Gone));
    found
}

/// The findings of a run. Places in the heuristics' lists are no part of what a
/// fault is.
fn findings(run: &Run) -> BTreeMap<Signature, Finding> {
    let mut findings = Findings::default();
    for trial in &run.trials {
        if Signature::of(trial).is_some() {
            findings.add(&TrialRecord {
                notes: declared_notes(&trial.notes),
                ..trial.clone()
            });
        }
    }
    let all = findings.iter().cloned();
    all.map(|f| (f.signature.clone(), f)).collect()
}

/// Findings that `without`, the findings of the run `other`, lacks.
fn absent(
    with: &BTreeMap<Signature, Finding>,
    without: &BTreeMap<Signature, Finding>,
    other: &Run,
    change: Change,
) -> Vec<Difference> {
    let lines = by_line(&other.trials);
    with.values()
        .filter(|finding| !without.contains_key(&finding.signature))
        .filter(|finding| !fails_alike(finding, &lines))
        .map(|finding| difference(finding, change, &fate(&finding.repro, &lines)))
        .collect()
}

/// Whether the very trial fails in the same way in the other run: then only the
/// notes that the library declares are others.
fn fails_alike(finding: &Finding, lines: &HashMap<&str, &TrialRecord>) -> bool {
    let signature = &finding.signature;
    lines.get(line(&finding.repro)).is_some_and(|trial| {
        trial.verdict == signature.verdict
            && trial.reason.as_deref().unwrap_or_default() == signature.reason
    })
}

/// What the other run says of the very trial.
fn fate(repro: &str, lines: &HashMap<&str, &TrialRecord>) -> String {
    match lines.get(line(repro)) {
        None => "not run".to_owned(),
        Some(trial) => match &trial.reason {
            None => trial.verdict.clone(),
            Some(reason) => format!("{} ({reason})", trial.verdict),
        },
    }
}

fn difference(finding: &Finding, change: Change, other: &str) -> Difference {
    let signature = &finding.signature;
    let here = match finding.trials {
        1 => "1 trial".to_owned(),
        trials => format!("{trials} trials"),
    };
    let (a, b) = match change {
        Change::New => (other.to_owned(), here),
        _ => (here, other.to_owned()),
    };
    Difference {
        trials: Some(finding.trials),
        detail: finding.detail.clone().unwrap_or_default(),
        repro: finding.repro.clone(),
        ..Difference::new(Subject::Finding, change, &kind(signature), of(signature))
    }
    .values(a, b)
}

fn kind(signature: &Signature) -> String {
    match signature.reason.as_str() {
        "" => signature.verdict.clone(),
        reason => reason.to_owned(),
    }
}

fn of(signature: &Signature) -> Configuration {
    Configuration {
        candidate: signature.candidate.clone(),
        direction: signature.direction.clone(),
        rank: Some(signature.rank),
        types: signature.types.clone(),
        compute: signature.compute.clone(),
        layout: signature.layout.clone(),
    }
}
