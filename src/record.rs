//! The record of one trial: a row of `trials.csv`, and all that reports are
//! made from. Missing values are `None`, never zero.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::judge::Verdict;

/// Version of the columns below; grows when one is added, renamed or changes
/// its meaning.
pub const SCHEMA: u32 = 3;

/// The serde form of measured values. JSON has neither NaN nor infinity and
/// would make them null, which means "not measured"; here they are the texts
/// `NaN`, `inf` and `-inf`, as in CSV.
pub mod measured {
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

    /// Writes a number, or the text of one that JSON lacks.
    pub fn serialize<S: Serializer>(value: &Option<f64>, to: S) -> Result<S::Ok, S::Error> {
        match value {
            Some(v) if !v.is_finite() => to.collect_str(v),
            other => other.serialize(to),
        }
    }

    /// Reads either form.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<f64>, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Form {
            Number(f64),
            Text(String),
        }
        match Option::<Form>::deserialize(from)? {
            None => Ok(None),
            Some(Form::Number(v)) => Ok(Some(v)),
            Some(Form::Text(text)) => text.parse().map(Some).map_err(de::Error::custom),
        }
    }
}

/// One trial. Field order is column order.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TrialRecord {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Number of the generated problem in the campaign; regressions and corpus
    /// entries that are replayed first have numbers of their own, below zero.
    pub case: i64,
    /// Number of the trial within the case, from 0.
    pub trial: u32,
    /// The repro line, candidate included.
    pub repro: String,
    /// `fwd`, `bwd_data`, `bwd_filter`.
    pub direction: String,
    /// Spatial dimensions, 1 to 3.
    pub rank: u8,
    /// Tensor types as in the repro line.
    pub types: String,
    /// Compute type.
    pub compute: String,
    /// Memory layout.
    pub layout: String,
    /// What the fill can prove.
    pub regime: String,
    /// Name of the distribution.
    pub fill: String,
    /// `legacy`, `engine` or `host`.
    pub api: String,
    /// Text form of the candidate.
    pub candidate: String,
    /// Notes and properties the candidate declares, joined by `+`.
    pub notes: String,
    /// `passed`, `failed`, `skipped`, `untrusted`, `crashed`, `timed_out`.
    pub verdict: String,
    /// Failure kind, or reason of a skip or lack of trust.
    pub reason: Option<String>,
    /// Free text: the library's words, the mismatch in words.
    pub detail: Option<String>,
    /// Far outside what is usual, though inside the proven bound.
    pub suspect: bool,
    /// Elements of the result tensor.
    pub outputs: u64,
    /// Of these, judged (all, unless sampled).
    pub judged: Option<u64>,
    /// Share of nonzero products among the judged outputs, 0 to 1.
    pub nonzero_share: Option<f64>,
    /// Share of judged outputs with S above zero, 0 to 1.
    pub power_share: Option<f64>,
    /// Smallest relative change of an output that would have been seen
    /// (median over judged outputs).
    #[serde(with = "measured")]
    pub detectable: Option<f64>,
    /// Judged outputs outside their bound, or not the right bits.
    pub wrong: Option<u64>,
    /// Largest error in ulps of the result type.
    #[serde(with = "measured")]
    pub max_ulp: Option<f64>,
    /// Largest error as a share of its bound; above 1 fails.
    #[serde(with = "measured")]
    pub max_ratio: Option<f64>,
    /// Logical offset of the worst output.
    pub worst_index: Option<u64>,
    /// Correctly rounded value there.
    #[serde(with = "measured")]
    pub expected: Option<f64>,
    /// What the library returned there.
    #[serde(with = "measured")]
    pub actual: Option<f64>,
    /// Bound there, absolute.
    #[serde(with = "measured")]
    pub bound: Option<f64>,
    /// Judged outputs that were decided in exact arithmetic. With the next two
    /// it makes up `judged`.
    #[serde(default)]
    pub exact: Option<u64>,
    /// Decided by double arithmetic with a certified radius.
    #[serde(default)]
    pub certified: Option<u64>,
    /// Decided by the arbiter, in arbitrary precision.
    pub arbitrated: Option<u64>,
    /// Outputs compared with the arbiter besides: the worst of the trial, and
    /// random ones of its case (charged to the case's first trial).
    #[serde(default)]
    pub audited: Option<u64>,
    /// Further runs that were to give the same bits.
    #[serde(default)]
    pub repeats: Option<u32>,
    /// Of these, with other bits than the first run.
    #[serde(default)]
    pub varied: Option<u32>,
    /// Workspace, bytes.
    pub workspace: Option<u64>,
    /// Time in the library, milliseconds.
    pub library_ms: Option<f64>,
    /// Time in fill, oracle and judging charged to this trial, milliseconds.
    pub own_ms: Option<f64>,
}

impl TrialRecord {
    /// Sets the verdict columns.
    pub fn set_verdict(&mut self, verdict: Verdict) {
        let (name, reason) = verdict.columns();
        self.verdict = name.to_owned();
        self.reason = reason;
    }

    /// The verdict that the verdict columns spell.
    pub fn parsed_verdict(&self) -> Result<Verdict> {
        let spelled = match &self.reason {
            Some(reason) => serde_json::json!({ &self.verdict: reason }),
            None => serde_json::json!(self.verdict),
        };
        serde_json::from_value(spelled).map_err(|e| {
            Error::usage(format!(
                "'{}' with reason '{}' is no verdict of this version",
                self.verdict,
                self.reason.as_deref().unwrap_or_default()
            ))
            .with_source(e)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::{FailureKind, SkipReason};

    #[test]
    fn parsed_verdict_columns_round_trip() {
        for verdict in [
            Verdict::Passed,
            Verdict::Failed(FailureKind::OutOfBound),
            Verdict::Skipped(SkipReason::NotSupported),
            Verdict::TimedOut,
        ] {
            let mut record = TrialRecord::default();
            record.set_verdict(verdict);
            assert_eq!(record.parsed_verdict().unwrap(), verdict);
        }
    }

    #[test]
    fn measured_values_survive_json_bit_for_bit() {
        for value in [
            0.0,
            -0.0,
            1.0 / 3.0,
            5e-324,
            1e300,
            f64::INFINITY,
            -f64::INFINITY,
        ] {
            let record = TrialRecord {
                actual: Some(value),
                ..TrialRecord::default()
            };
            let text = serde_json::to_string(&record).unwrap();
            let back: TrialRecord = serde_json::from_str(&text).unwrap();
            assert_eq!(
                back.actual.map(f64::to_bits),
                Some(value.to_bits()),
                "{text}"
            );
            assert_eq!(back.expected, None);
        }
        let nan = TrialRecord {
            max_ratio: Some(f64::NAN),
            ..TrialRecord::default()
        };
        let text = serde_json::to_string(&nan).unwrap();
        let back: TrialRecord = serde_json::from_str(&text).unwrap();
        assert!(back.max_ratio.is_some_and(f64::is_nan), "{text}");
    }

    #[test]
    fn parsed_verdict_unknown_words_are_refused() {
        let mut record = TrialRecord {
            verdict: "failed".to_owned(),
            reason: Some("tired".to_owned()),
            ..TrialRecord::default()
        };
        assert!(record.parsed_verdict().is_err());
        record.reason = None;
        assert!(record.parsed_verdict().is_err());
    }
}
