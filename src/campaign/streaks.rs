//! Which candidates keep ending their workers, and are left out.
//!
//! Cases are counted in their order, whatever order they were run in, so that a
//! campaign leaves out the same trials with any number of workers, and when it is
//! continued.

use std::collections::BTreeMap;

use super::seat::{broken, left_out};
use crate::candidate::Repro;
use crate::judge::{SkipReason, Verdict};
use crate::problem::ConvProblem;
use crate::record::TrialRecord;

/// Cases in a row after which a candidate is left out for the rest of the run.
const PATIENCE: u32 = 3;

/// A candidate, a direction and a type configuration.
type Key = (String, String, String);

/// How often each candidate ended its worker, without a case in between that it
/// came through.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Streaks {
    running: BTreeMap<Key, u32>,
    /// With what is said of them.
    quarantined: BTreeMap<Key, String>,
}

impl Streaks {
    /// Counts the next case, which is of `problem`. Trials of candidates that are in
    /// quarantine by now were run because workers are ahead: their records say what
    /// they should.
    pub fn settle(&mut self, problem: &ConvProblem, records: &mut [TrialRecord]) {
        for record in records.iter_mut().filter(|r| was_offered(r)) {
            if let Some(why) = self.quarantined.get(&key(record)) {
                set_aside(problem, record, why);
            }
        }
        let mut ends: BTreeMap<Key, Option<&TrialRecord>> = BTreeMap::new();
        for record in records.iter().filter(|r| r.verdict != "skipped") {
            let death = ends.entry(key(record)).or_default();
            *death = death.or(Some(record).filter(|r| is_death(r)));
        }
        for (key, death) in ends {
            self.count(key, death);
        }
    }

    fn count(&mut self, key: Key, death: Option<&TrialRecord>) {
        let Some(death) = death else {
            self.running.remove(&key);
            return;
        };
        let deaths = self.running.entry(key.clone()).or_default();
        *deaths += 1;
        // A worker that died with no candidate at fault accuses none.
        if *deaths >= PATIENCE && !key.0.is_empty() {
            self.quarantined.insert(key, left_out(&reason(), death));
        }
    }

    /// Records of the candidates that are not to be run on `repro`.
    pub fn set_aside(&self, repro: &Repro) -> Vec<TrialRecord> {
        let problem = &repro.problem;
        let (direction, types) = (problem.direction.name(), problem.type_text());
        let here = self.quarantined.iter();
        let here = here.filter(|((_, d, t), _)| (&**d, t) == (direction, &types));
        let record = |((candidate, ..), why): (&Key, &String)| {
            let repro = Repro {
                via: Some(candidate.parse().ok()?),
                ..repro.clone()
            };
            Some(broken(&repro, QUARANTINED, why))
        };
        here.filter_map(record).collect()
    }

    /// What is in quarantine: candidate, direction, types.
    pub fn names(&self) -> Vec<String> {
        let name = |(candidate, direction, types): &Key| format!("{candidate} {direction} {types}");
        self.quarantined.keys().map(name).collect()
    }
}

const QUARANTINED: Verdict = Verdict::Skipped(SkipReason::Quarantined);

fn reason() -> String {
    format!("it ended its worker in {PATIENCE} cases running")
}

fn key(record: &TrialRecord) -> Key {
    let direction = record.direction.clone();
    (record.candidate.clone(), direction, record.types.clone())
}

fn is_death(record: &TrialRecord) -> bool {
    matches!(record.verdict.as_str(), "crashed" | "timed_out")
}

/// Whether the candidate was there to be run, as one that was declined is not.
fn was_offered(record: &TrialRecord) -> bool {
    let declined = record.reason.as_deref() == Some("not_supported");
    !declined || record.library_ms.is_some()
}

/// Makes of a record the one of a trial that was not run. A trial may have ended
/// its worker in another form of the case: the problem is the case's own.
fn set_aside(problem: &ConvProblem, record: &mut TrialRecord, why: &str) {
    if let Ok(repro) = record.repro.parse::<Repro>() {
        let problem = problem.clone();
        *record = broken(&Repro { problem, ..repro }, QUARANTINED, why);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = "fwd c=4 k=4 in=8 ker=3 fill=ints:1";

    fn problem() -> ConvProblem {
        LINE.parse::<Repro>().unwrap().problem
    }

    fn trial(candidate: &str, end: &str) -> TrialRecord {
        let repro = format!("{LINE} via={candidate}");
        let mut record = broken(&repro.parse().unwrap(), Verdict::Passed, "");
        let (verdict, reason) = end.split_once(':').unwrap_or((end, ""));
        record.verdict = verdict.to_owned();
        record.reason = (!reason.is_empty()).then(|| reason.to_owned());
        record
    }

    /// The ends of a candidate after cases that ended so.
    fn settled(ends: &[&str]) -> Vec<String> {
        let mut streaks = Streaks::default();
        let settle = |end: &&str| {
            let mut records = [trial("host:gemm", end), trial("host:direct", "passed")];
            streaks.settle(&problem(), &mut records);
            assert_eq!(records[1].verdict, "passed");
            let reason = records[0].reason.clone();
            reason.unwrap_or_else(|| records[0].verdict.clone())
        };
        ends.iter().map(settle).collect()
    }

    #[test]
    fn settle_third_case_running_is_the_last() {
        let ends = settled(&["crashed", "timed_out", "crashed", "passed", "crashed"]);
        let expected = [
            "crashed",
            "timed_out",
            "crashed",
            "quarantined",
            "quarantined",
        ];
        assert_eq!(ends, expected);
    }

    #[test]
    fn settle_case_that_it_survives_starts_the_count_anew() {
        let ends = [
            "crashed", "crashed", "passed", "crashed", "crashed", "passed",
        ];
        assert_eq!(settled(&ends), ends);
        // One that says nothing does not.
        let ends = settled(&[
            "crashed",
            "skipped:not_supported",
            "crashed",
            "crashed",
            "passed",
        ]);
        assert_eq!(ends[4], "quarantined");
    }

    #[test]
    fn settle_refusals_stay_what_they_are() {
        let ends = settled(&["crashed", "crashed", "crashed", "skipped:not_supported"]);
        assert_eq!(ends[3], "not_supported");
    }

    #[test]
    fn set_aside_gives_the_record_that_settling_makes() {
        let mut streaks = Streaks::default();
        for _ in 0..PATIENCE {
            streaks.settle(&problem(), &mut [trial("host:gemm", "crashed")]);
        }
        let known = streaks.set_aside(&LINE.parse().unwrap());
        // Passed, or crashed in another form of the case.
        let mut other_form = trial("host:gemm", "crashed");
        other_form.repro = other_form.repro.replace("c=4", "c=2");
        for ran in [trial("host:gemm", "passed"), other_form] {
            let mut ahead = [ran];
            streaks.settle(&problem(), &mut ahead);
            assert_eq!(known, ahead);
        }
        assert_eq!(known[0].reason.as_deref(), Some("quarantined"));
        let other = streaks.set_aside(&format!("{LINE} type=fp16").parse().unwrap());
        assert_eq!(other, []);
        assert_eq!(streaks.names(), ["host:gemm fwd fp32"]);
    }
}
