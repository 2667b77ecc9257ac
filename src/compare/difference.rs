//! One row of a comparison.

use serde::{Deserialize, Serialize};

use crate::record::{TrialRecord, measured};

/// Version of the columns below; grows when one is added, renamed or changes its
/// meaning.
pub const SCHEMA: u32 = 1;

/// What a difference is about. The order is the order of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Subject {
    /// What the runs were made on: GPU, driver, cuDNN, CUDA, convfuzz.
    Combination,
    /// How the runs were made: seed, options, completeness.
    Run,
    /// What a candidate can run.
    Support,
    /// Failing trials with one signature.
    Finding,
    /// Worst errors of trials that passed.
    Error,
    /// What an engine index stands for.
    Engine,
}

/// In which way B differs from A.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// Ran in A, not in B.
    Lost,
    /// Did not run in A, does in B.
    Gained,
    /// In B only.
    New,
    /// In A only.
    Gone,
    /// Larger in B.
    Worse,
    /// Smaller in B.
    Better,
    /// Otherwise different.
    Changed,
    /// Perhaps different: the runs cannot tell.
    Unsure,
}

impl Change {
    /// The change seen from the other side.
    pub fn reversed(self) -> Self {
        match self {
            Change::Lost => Change::Gained,
            Change::Gained => Change::Lost,
            Change::New => Change::Gone,
            Change::Gone => Change::New,
            Change::Worse => Change::Better,
            Change::Better => Change::Worse,
            other => other,
        }
    }
}

/// A candidate (without knob choices and planted fault) and what it is asked to
/// compute; every word is empty where a difference is about no configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Configuration {
    /// `engine:42`, `legacy:1/fma`, `host:gemm`.
    pub candidate: String,
    /// `fwd`, `bwd_data`, `bwd_filter`.
    pub direction: String,
    /// Spatial dimensions, 1 to 3.
    pub rank: Option<u8>,
    /// Tensor types.
    pub types: String,
    /// Compute type.
    pub compute: String,
    /// Memory layout.
    pub layout: String,
}

impl Configuration {
    /// The configuration of a trial.
    pub fn of(record: &TrialRecord) -> Self {
        Configuration {
            candidate: family(&record.candidate).to_owned(),
            direction: record.direction.clone(),
            rank: Some(record.rank),
            types: record.types.clone(),
            compute: record.compute.clone(),
            layout: record.layout.clone(),
        }
    }
}

/// The candidate without the knob choices of an engine and without a planted
/// fault: both are ways of running the same thing.
pub fn family(candidate: &str) -> &str {
    let candidate = candidate.split('!').next().unwrap_or(candidate);
    match candidate.starts_with("engine:") {
        true => candidate.split('/').next().unwrap_or(candidate),
        false => candidate,
    }
}

/// One way in which B differs from A. Field order is column order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Difference {
    /// [`SCHEMA`].
    pub schema: u32,
    /// What it is about.
    pub subject: Subject,
    /// In which way B differs.
    pub change: Change,
    /// What differs: a key of the combination or an option, `support`, the
    /// finding's kind, `max_ulp` or `max_ratio`, `meaning`.
    pub what: String,
    /// As in [`Configuration`].
    pub candidate: String,
    /// As in [`Configuration`].
    pub direction: String,
    /// As in [`Configuration`].
    pub rank: Option<u8>,
    /// As in [`Configuration`].
    pub types: String,
    /// As in [`Configuration`].
    pub compute: String,
    /// As in [`Configuration`].
    pub layout: String,
    /// What the fills can prove; for errors only.
    pub regime: String,
    /// Trials it rests on.
    pub trials: Option<u64>,
    /// Value in A, in words.
    pub a: String,
    /// Value in B, in words.
    pub b: String,
    /// B over A, for errors.
    #[serde(with = "measured")]
    pub factor: Option<f64>,
    /// What else there is to say.
    pub detail: String,
    /// A trial that shows it, if any.
    pub repro: String,
}

impl Difference {
    /// A difference about `configuration`; the rest is empty.
    pub fn new(subject: Subject, change: Change, what: &str, configuration: Configuration) -> Self {
        Difference {
            schema: SCHEMA,
            subject,
            change,
            what: what.to_owned(),
            candidate: configuration.candidate,
            direction: configuration.direction,
            rank: configuration.rank,
            types: configuration.types,
            compute: configuration.compute,
            layout: configuration.layout,
            regime: String::new(),
            trials: None,
            a: String::new(),
            b: String::new(),
            factor: None,
            detail: String::new(),
            repro: String::new(),
        }
    }

    /// Sets both values.
    #[must_use]
    pub fn values(mut self, a: impl ToString, b: impl ToString) -> Self {
        self.a = a.to_string();
        self.b = b.to_string();
        self
    }

    /// Whether it is news that someone must act on: support that is lost, a
    /// finding that is new.
    pub fn is_alarm(&self) -> bool {
        matches!(
            (self.subject, self.change),
            (Subject::Support, Change::Lost) | (Subject::Finding, Change::New)
        )
    }

    /// The configuration in a few words; empty when it is about none.
    pub fn configuration(&self) -> String {
        let rank = self.rank.map(|rank| format!("{rank}d")).unwrap_or_default();
        let words = [
            &*self.direction,
            &rank,
            &self.types,
            &self.compute,
            &self.layout,
            &self.regime,
        ];
        let words: Vec<_> = words.into_iter().filter(|w| !w.is_empty()).collect();
        words.join(" ")
    }
}

/// The row of a default only serves to name the columns.
impl Default for Difference {
    fn default() -> Self {
        Difference::new(Subject::Run, Change::Changed, "", Configuration::default())
    }
}
