//! The table at the end of a run: candidate families and types against
//! verdicts.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::error::Result;
use crate::record::{TrialRecord, measured};
use crate::report::table::{Cell, Mood, Table};
use crate::report::tally::{Tally, larger};

/// Trials of a run by candidate family and type configuration, and where the
/// time went.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Summary {
    /// All trials.
    pub tally: Tally,
    /// How outputs were decided.
    pub decided: DecidedOutputs,
    /// One line per family and type configuration, in a fixed order.
    pub lines: Vec<SummaryLine>,
    /// Time in the library, milliseconds.
    pub library_ms: f64,
    /// Time in fills, oracle and judging, milliseconds.
    pub own_ms: f64,
    /// How often candidates that may differ from run to run did.
    pub variations: Variations,
    #[serde(skip)]
    places: BTreeMap<(String, String), usize>,
}

/// By candidate family and direction, how many repeats gave other bits, of how many.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Variations(Vec<Variation>);

/// Repeats of one family in one direction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Variation {
    family: String,
    direction: String,
    /// Further runs that were to give the same bits.
    repeats: u64,
    /// Of these, with other bits, in trials that did not fail by it.
    varied: u64,
}

impl Variations {
    fn add(&mut self, record: &TrialRecord) {
        let (Some(repeats), Some(varied)) = (record.repeats, record.varied) else {
            return;
        };
        let allowed = record.verdict != "failed";
        let (family, direction) = (family(&record.candidate), &record.direction);
        let same = |v: &&mut Variation| v.family == family && v.direction == *direction;
        let place = match self.0.iter_mut().find(same) {
            Some(place) => place,
            None => {
                self.0.push(Variation {
                    family: family.to_owned(),
                    direction: direction.clone(),
                    repeats: 0,
                    varied: 0,
                });
                self.0.last_mut().expect("just pushed")
            }
        };
        place.repeats += u64::from(repeats);
        place.varied += if allowed { u64::from(varied) } else { 0 };
    }

    /// What differed and may, if anything did.
    fn text(&self) -> Option<String> {
        let differed = self.0.iter().filter(|v| v.varied > 0);
        let words: Vec<_> = differed
            .map(|v| {
                let Variation {
                    family, direction, ..
                } = v;
                format!("{family} {direction} {} of {}", v.varied, v.repeats)
            })
            .collect();
        let words = words.join(", ");
        (!words.is_empty())
            .then(|| format!("Gave other bits in a repeat, as they are known to: {words} repeats"))
    }
}

/// How many outputs were decided by which path of the oracle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DecidedOutputs {
    /// Judged outputs of all trials.
    pub judged: u64,
    /// Elements of all results that were judged, wholly or in part.
    pub outputs: u64,
    /// Decided in exact arithmetic.
    pub exact: u64,
    /// Decided by double arithmetic with a certified radius.
    pub certified: u64,
    /// Decided by the arbiter.
    pub arbiter: u64,
    /// Compared with the arbiter besides.
    pub audited: u64,
}

impl DecidedOutputs {
    fn add(&mut self, record: &TrialRecord) {
        let Some(judged) = record.judged else { return };
        self.judged += judged;
        self.outputs += record.outputs;
        self.exact += record.exact.unwrap_or(0);
        self.certified += record.certified.unwrap_or(0);
        self.arbiter += record.arbitrated.unwrap_or(0);
        self.audited += record.audited.unwrap_or(0);
    }

    fn text(&self) -> String {
        format!(
            "{} of {} outputs judged: {} exactly, {} with a certified radius, {} by the arbiter, which also confirmed {}",
            self.judged, self.outputs, self.exact, self.certified, self.arbiter, self.audited
        )
    }
}

/// One line of the table.
#[derive(Clone, Debug, Serialize)]
pub struct SummaryLine {
    /// `legacy:1`, `engine:42`, `host:gemm`: the candidate without its options.
    pub family: String,
    /// Tensor types and compute type.
    pub types: String,
    /// Trials by verdict.
    pub tally: Tally,
    /// Largest error in ulps of the result type.
    #[serde(with = "measured")]
    pub max_ulp: Option<f64>,
    /// Largest error as a share of its bound.
    #[serde(with = "measured")]
    pub max_ratio: Option<f64>,
}

impl Summary {
    /// Counts one trial.
    pub fn add(&mut self, record: &TrialRecord) -> Result<()> {
        let verdict = record.parsed_verdict()?;
        self.tally.add(verdict, record.suspect);
        self.decided.add(record);
        self.variations.add(record);
        self.library_ms += record.library_ms.unwrap_or(0.0);
        self.own_ms += record.own_ms.unwrap_or(0.0);
        let line = self.line(record);
        line.tally.add(verdict, record.suspect);
        line.max_ulp = larger(line.max_ulp, record.max_ulp);
        line.max_ratio = larger(line.max_ratio, record.max_ratio);
        Ok(())
    }

    fn line(&mut self, record: &TrialRecord) -> &mut SummaryLine {
        let types = format!("{}/{}", record.types, record.compute);
        let key = (family(&record.candidate).to_owned(), types);
        let place = *self.places.entry(key.clone()).or_insert(self.lines.len());
        if place == self.lines.len() {
            self.lines.push(SummaryLine {
                family: key.0,
                types: key.1,
                tally: Tally::default(),
                max_ulp: None,
                max_ratio: None,
            });
        }
        &mut self.lines[place]
    }

    /// The largest ratio of all.
    pub fn max_ratio(&self) -> Option<f64> {
        self.lines
            .iter()
            .fold(None, |worst, line| larger(worst, line.max_ratio))
    }

    /// The table, families in alphabetic order.
    pub fn table(&self) -> Table {
        let mut table = Table::new(&[
            "candidate",
            "types/compute",
            ">trials",
            ">passed",
            ">failed",
            ">crashed",
            ">timed out",
            ">untrusted",
            ">skipped",
            ">suspect",
            ">max ulp",
            ">max error/bound",
        ]);
        for &place in self.places.values() {
            table.row(self.lines[place].cells());
        }
        table.note(self.decided.text());
        if let Some(variations) = self.variations.text() {
            table.note(variations);
        }
        table
    }
}

impl SummaryLine {
    fn cells(&self) -> Vec<Cell> {
        let tally = &self.tally;
        let passed = match tally.passed {
            0 => Cell::new(0, Mood::Plain),
            passed => Cell::new(passed, Mood::Good),
        };
        vec![
            self.family.as_str().into(),
            self.types.as_str().into(),
            Cell::new(tally.trials, Mood::Plain),
            passed,
            Cell::count(tally.failed, Mood::Bad),
            Cell::count(tally.crashed, Mood::Bad),
            Cell::count(tally.timed_out, Mood::Bad),
            Cell::count(tally.untrusted, Mood::Warn),
            Cell::new(tally.skipped, Mood::Plain),
            Cell::count(tally.suspects, Mood::Warn),
            Cell::measured(self.max_ulp),
            Cell::measured(self.max_ratio),
        ]
    }
}

/// The candidate without math type, knobs and planted fault.
fn family(candidate: &str) -> &str {
    candidate.split(['/', '!']).next().unwrap_or(candidate)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::{FailureKind, Verdict};

    fn record(candidate: &str, types: &str, verdict: Verdict) -> TrialRecord {
        let mut record = TrialRecord {
            candidate: candidate.to_owned(),
            types: types.to_owned(),
            compute: "fp32".to_owned(),
            library_ms: Some(2.0),
            max_ratio: Some(0.5),
            outputs: 12,
            judged: Some(10),
            exact: Some(3),
            certified: Some(6),
            arbitrated: Some(1),
            audited: Some(2),
            ..TrialRecord::default()
        };
        record.set_verdict(verdict);
        record
    }

    #[test]
    fn add_bits_that_may_differ_are_told_with_their_rate_and_failures_are_not() {
        let mut summary = Summary::default();
        for (candidate, verdict, varied) in [
            ("legacy:0", Verdict::Passed, 3),
            ("legacy:0", Verdict::Passed, 0),
            ("legacy:1", Verdict::Passed, 0),
            (
                "engine:7/2=1",
                Verdict::Failed(FailureKind::Nondeterministic),
                2,
            ),
        ] {
            let repeated = TrialRecord {
                direction: "bwd_filter".to_owned(),
                repeats: Some(4),
                varied: Some(varied),
                ..record(candidate, "fp32", verdict)
            };
            summary.add(&repeated).unwrap();
        }
        let expected = "Gave other bits in a repeat, as they are known to: \
                        legacy:0 bwd_filter 3 of 8 repeats";
        assert_eq!(summary.variations.text().as_deref(), Some(expected));
        assert_eq!(Summary::default().variations.text(), None);
    }

    #[test]
    fn add_lines_are_per_family_and_type() {
        let mut summary = Summary::default();
        for (candidate, types) in [
            ("legacy:1/fma", "fp16"),
            ("legacy:1/tensor_op", "fp16"),
            ("legacy:1/fma", "fp32"),
            ("engine:3/2=1", "fp16"),
        ] {
            let verdict = Verdict::Failed(FailureKind::Mismatch);
            summary.add(&record(candidate, types, verdict)).unwrap();
        }
        let lines: Vec<_> = summary
            .lines
            .iter()
            .map(|l| (&*l.family, &*l.types, l.tally.failed))
            .collect();
        let expected = [
            ("legacy:1", "fp16/fp32", 2),
            ("legacy:1", "fp32/fp32", 1),
            ("engine:3", "fp16/fp32", 1),
        ];
        assert_eq!(lines, expected);
        assert_eq!((summary.tally.trials, summary.library_ms), (4, 8.0));
        let drawn = summary.table().render(false);
        let decided = "40 of 48 outputs judged: 12 exactly, 24 with a certified radius, 4 by the arbiter, which also confirmed 8";
        assert!(drawn.contains(decided), "{drawn}");
        assert!(drawn.find("engine:3") < drawn.find("legacy:1"), "{drawn}");
    }
}
