//! Causes that what was seen beside the result already tells.

use super::cause::{Cause, Kind};
use super::place;
use super::{Evidence, Findings};
use crate::outcome::{Deviation, MemoryFaultKind, Repeat};
use crate::tensor::Tensor;

/// The cause that memory, poison or repeats tell, if any; with `false` when it
/// is a guess among several.
pub fn cause(evidence: &Evidence<'_>, findings: &Findings<'_>) -> Option<Vec<Cause>> {
    memory(evidence)
        .or_else(|| read_back(evidence, findings))
        .or_else(|| unwritten(evidence, findings))
        .map(|cause| vec![cause])
        .or_else(|| repeats(evidence, findings))
}

fn memory(evidence: &Evidence<'_>) -> Option<Cause> {
    let fault = evidence.seen.memory.iter().min_by_key(|f| f.kind)?;
    let kind = match fault.kind {
        MemoryFaultKind::InputChanged => Kind::InputChanged,
        MemoryFaultKind::Before | MemoryFaultKind::Behind => Kind::OutOfBoundsWrite,
    };
    let which = format!(
        "{}, {} bytes from byte {}",
        fault.buffer, fault.bytes, fault.offset
    );
    Some(Cause::new(kind, which))
}

/// What the result held before went into it: it was full of NaN, but with other
/// poison, the same everywhere, it is not the same everywhere.
fn read_back(evidence: &Evidence<'_>, findings: &Findings<'_>) -> Option<Cause> {
    let mut deviations = evidence.seen.deviations.iter();
    let other = deviations.find(|d| d.under == Repeat::OutputPoison)?;
    let wrong = findings.wrong_offsets();
    let first = wrong.first()?;
    let was_poison = wrong.iter().all(|i| evidence.seen.unwritten.contains(i));
    let varies = wrong
        .iter()
        .any(|&i| other.result.bits(i) != other.result.bits(*first));
    (was_poison && varies).then(|| Cause::new(Kind::Uninitialised, "the result"))
}

/// Poison, or what the result held before, left where something else is due.
fn unwritten(evidence: &Evidence<'_>, findings: &Findings<'_>) -> Option<Cause> {
    let wrong = findings.wrong_offsets();
    let result = &evidence.seen.result;
    let kept = |i: &usize| match &evidence.inputs.prior {
        Some(prior) => prior.bits(*i) == result.bits(*i),
        None => evidence.seen.unwritten.contains(i),
    };
    if wrong.is_empty() || !wrong.iter().all(kept) {
        return None;
    }
    // One output that keeps its value may be chance; poison never is.
    if evidence.inputs.prior.is_some() && wrong.len() < 3 {
        return None;
    }
    let marginals = place::marginals(&evidence.inputs.problem, &wrong);
    Some(Cause::new(
        Kind::Unwritten,
        place::summary(&marginals, &wrong),
    ))
}

/// Kinds of repeat that backends make in turn, at most.
const TURNS: u32 = 7;

fn repeats(evidence: &Evidence<'_>, findings: &Findings<'_>) -> Option<Vec<Cause>> {
    let deviations = &evidence.seen.deviations;
    let first = deviations.first()?;
    let race = || match all_right(findings, evidence) {
        true => Cause::new(Kind::NondeterministicOrder, ""),
        false => Cause::new(Kind::Race, describe(first, &evidence.seen.result)),
    };
    if deviations.iter().any(|d| d.under == Repeat::Same) {
        return Some(vec![race()]);
    }
    let buffer = match first.under {
        Repeat::OutputPoison => "the result",
        _ => "the workspace",
    };
    let memory = Cause::new(Kind::Uninitialised, buffer);
    let of = |kind| deviations.iter().filter(|d| d.under == kind).count() as u32;
    // Each kind of repeat was made at least so often.
    let made = evidence.repeats / TURNS;
    if made >= 2 && of(first.under) < made {
        return Some(vec![race()]);
    }
    Some(match made >= 2 {
        true => vec![memory],
        false => vec![memory, race()],
    })
}

fn all_right(findings: &Findings<'_>, evidence: &Evidence<'_>) -> bool {
    let right = |d: &Deviation| findings.wrong_of(&d.result) == 0;
    findings.wrong.is_empty() && evidence.seen.deviations.iter().all(right)
}

fn describe(deviation: &Deviation, result: &Tensor) -> String {
    let differing = (0..result.len()).filter(|&i| result.bits(i) != deviation.result.bits(i));
    format!("{} outputs differ", differing.count())
}
