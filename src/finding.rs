//! Findings: failing trials that are the same fault, counted as one.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::candidate::{Candidate, Repro};
use crate::record::TrialRecord;

/// What makes two failing trials the same fault. The engine index or algorithm
/// counts, its knobs do not; the shape does not, the shape's class does.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Signature {
    /// `failed`, `crashed` or `timed_out`.
    pub verdict: String,
    /// Failure kind; empty for crashes and timeouts.
    pub reason: String,
    /// `fwd`, `bwd_data`, `bwd_filter`.
    pub direction: String,
    /// The candidate without knobs: `engine:42`, `legacy:1/tensor_op`.
    pub candidate: String,
    /// Notes the candidate declares; the heuristics' ranks are left out.
    pub notes: String,
    /// Spatial dimensions.
    pub rank: u8,
    /// Tensor types.
    pub types: String,
    /// Compute type.
    pub compute: String,
    /// Memory layout.
    pub layout: String,
}

/// One fault, with the trials that showed it.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// What the trials have in common.
    pub signature: Signature,
    /// Trials that showed it.
    pub trials: u64,
    /// Repro line of the cheapest of them (fewest multiply-adds, then the
    /// shortest line).
    pub repro: String,
    /// What was wrong there, in words.
    pub detail: Option<String>,
    /// Largest error as a share of its bound.
    pub max_ratio: Option<f64>,
}

/// The findings of a run, by signature.
#[derive(Clone, Debug, Default)]
pub struct Findings {
    map: BTreeMap<Signature, Finding>,
}

impl Signature {
    /// The signature of a trial that is a finding; `None` when it is none.
    pub fn of(record: &TrialRecord) -> Option<Self> {
        matches!(record.verdict.as_str(), "failed" | "crashed" | "timed_out").then(|| Signature {
            verdict: record.verdict.clone(),
            reason: record.reason.clone().unwrap_or_default(),
            direction: record.direction.clone(),
            candidate: without_knobs(&record.candidate),
            notes: without_ranks(&record.notes),
            rank: record.rank,
            types: record.types.clone(),
            compute: record.compute.clone(),
            layout: record.layout.clone(),
        })
    }

    /// A short name that is the same for the same signature in every run: 64-bit
    /// FNV-1a (Fowler, Noll, Vo) of its text, in hex.
    pub fn id(&self) -> String {
        let hash = self
            .to_string()
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
            });
        format!("{hash:016x}")
    }
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.verdict)?;
        if !self.reason.is_empty() {
            write!(f, "({})", self.reason)?;
        }
        write!(
            f,
            " {} {}d {} {} compute={} {}",
            self.direction, self.rank, self.types, self.layout, self.compute, self.candidate
        )?;
        if !self.notes.is_empty() {
            write!(f, " [{}]", self.notes)?;
        }
        Ok(())
    }
}

impl Findings {
    /// Counts a trial in, if it is a finding.
    pub fn add(&mut self, record: &TrialRecord) {
        let Some(signature) = Signature::of(record) else {
            return;
        };
        let finding = self
            .map
            .entry(signature)
            .or_insert_with_key(|signature| Finding {
                signature: signature.clone(),
                trials: 0,
                repro: record.repro.clone(),
                detail: record.detail.clone(),
                max_ratio: None,
            });
        finding.trials += 1;
        finding.max_ratio = match (finding.max_ratio, record.max_ratio) {
            (Some(a), Some(b)) => Some(a.max(b)),
            (a, b) => a.or(b),
        };
        if cost(&record.repro) < cost(&finding.repro) {
            finding.repro.clone_from(&record.repro);
            finding.detail.clone_from(&record.detail);
        }
    }

    /// The findings in the order of their signatures.
    pub fn iter(&self) -> impl Iterator<Item = &Finding> {
        self.map.values()
    }

    /// Number of findings.
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }
}

/// How a trial fails, for telling whether another fails the same way; `None`
/// when it does not. Wrong values are one class, whether it is exactness or a
/// bound that shows them.
pub fn failure_class(record: &TrialRecord) -> Option<String> {
    match (record.verdict.as_str(), record.reason.as_deref()) {
        ("failed", Some("mismatch" | "out_of_bound")) => Some("wrong_value".to_owned()),
        ("failed", reason) => Some(reason.unwrap_or("failed").to_owned()),
        ("crashed" | "timed_out", _) => Some(record.verdict.clone()),
        _ => None,
    }
}

/// Notes without the heuristics' ranks, which differ from problem to problem.
fn without_ranks(notes: &str) -> String {
    let kept: Vec<_> = notes
        .split('+')
        .filter(|n| !n.starts_with("heur_"))
        .collect();
    kept.join("+")
}

/// The candidate's text without knob choices.
fn without_knobs(candidate: &str) -> String {
    match candidate.parse() {
        Ok(Candidate::Engine { index, .. }) => format!("engine:{index}"),
        _ => candidate.to_owned(),
    }
}

/// Cheaper repro lines first.
fn cost(repro: &str) -> (u64, usize) {
    let macs = repro
        .parse::<Repro>()
        .map_or(u64::MAX, |repro| repro.problem.macs());
    (macs, repro.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(repro: &str, verdict: &str) -> TrialRecord {
        let parsed: Repro = repro.parse().unwrap();
        TrialRecord {
            repro: repro.to_owned(),
            candidate: parsed.via.unwrap().to_string(),
            verdict: verdict.to_owned(),
            max_ratio: Some(parsed.problem.c as f64),
            ..TrialRecord::default()
        }
    }

    #[test]
    fn add_same_engine_other_knobs_is_one_finding_with_the_cheapest_line() {
        let mut findings = Findings::default();
        let big = "fwd c=64 k=8 in=9 ker=3 fill=normal:1 via=engine:3/2=1";
        let small = "fwd c=8 k=8 in=9 ker=3 fill=normal:1 via=engine:3/2=5";
        for line in [big, small, big] {
            findings.add(&record(line, "failed"));
        }
        findings.add(&record(small, "passed"));
        findings.add(&record(small, "skipped"));
        assert_eq!(findings.len(), 1);
        let finding = findings.iter().next().unwrap();
        assert_eq!((finding.trials, finding.repro.as_str()), (3, small));
        assert_eq!(finding.max_ratio, Some(64.0));
    }

    #[test]
    fn of_ranks_of_the_heuristics_do_not_split_a_finding() {
        let with = |notes: &str| TrialRecord {
            notes: notes.to_owned(),
            ..record("fwd c=8 k=8 in=9 ker=3 via=engine:3", "failed")
        };
        let of = |notes| Signature::of(&with(notes)).unwrap();
        assert_eq!(of("TENSOR_CORE+heur_a:0+heur_b:3"), of("TENSOR_CORE"));
        assert_ne!(of("TENSOR_CORE"), of("FFT"));
    }

    #[test]
    fn failure_class_bound_and_exactness_are_one() {
        let class = |verdict: &str, reason: &str| {
            failure_class(&TrialRecord {
                verdict: verdict.to_owned(),
                reason: Some(reason.to_owned()),
                ..TrialRecord::default()
            })
        };
        assert_eq!(class("failed", "mismatch"), class("failed", "out_of_bound"));
        assert_eq!(class("failed", "wrong_nan").as_deref(), Some("wrong_nan"));
        assert_eq!(class("crashed", "").as_deref(), Some("crashed"));
        assert_eq!(class("passed", ""), None);
        assert_eq!(class("skipped", "not_supported"), None);
    }

    #[test]
    fn id_is_stable_and_tells_engines_apart() {
        let line = |e| record(&format!("fwd c=8 k=8 in=9 ker=3 via=engine:{e}"), "crashed");
        let id = |e| Signature::of(&line(e)).unwrap().id();
        assert_eq!(id(3), id(3));
        assert_ne!(id(3), id(4));
    }
}
