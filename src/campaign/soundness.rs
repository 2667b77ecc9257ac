//! Are the bounds sound? The host's honest algorithms, which do the arithmetic
//! they declare, on every fill until enough outputs were judged: none may be
//! outside its bound, and the largest error tells how near they come.

use std::collections::BTreeMap;

use rayon::prelude::*;
use serde::Serialize;

use super::draws::Draws;
use crate::backend::host::{HostBackend, HostOptions};
use crate::candidate::Repro;
use crate::error::Result;
use crate::fill::{Fill, FillKind};
use crate::problem::Direction;
use crate::record::{TrialRecord, measured};
use crate::strategy::Limits;
use crate::trial::{Event, TrialOptions, run_case};

/// Problems that run side by side before outputs are counted.
const BATCH: i64 = 64;

/// How much is run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Soundness {
    /// Outputs to judge of every fill, at least.
    pub outputs: u64,
    /// Where the problems are drawn from.
    pub seed: u64,
    /// A fault to plant, to see this run able to fail.
    pub fault: Option<String>,
}

/// One fill under one algorithm.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Row {
    /// The distribution.
    pub fill: String,
    /// The host's algorithm.
    pub candidate: String,
    /// Trials run.
    pub trials: u64,
    /// Outputs judged.
    pub outputs: u64,
    /// Outputs outside their bound, or not the right bits where all is exact.
    pub exceeding: u64,
    /// Largest error as a share of its bound.
    #[serde(with = "measured")]
    pub largest_ratio: Option<f64>,
    /// The first trial with an output outside its bound.
    pub repro: Option<String>,
}

type Rows = BTreeMap<(FillKind, String), Row>;

impl Soundness {
    /// Runs it; rows are in the order of fills and names. `progress` is told
    /// the number of judged outputs after every batch.
    pub fn run(&self, progress: &mut dyn FnMut(u64)) -> Result<Vec<Row>> {
        let limits = Limits {
            directions: Direction::ALL.to_vec(),
            ..Limits::default()
        };
        let draws = Draws::new(&limits, self.seed, &[], None);
        let mut rows = Rows::new();
        let mut first = 0;
        loop {
            let fills = self.unfinished(&rows);
            if fills.is_empty() {
                return Ok(rows.into_values().collect());
            }
            let parts: Result<Vec<Rows>> = (first..first + BATCH)
                .into_par_iter()
                .map(|number| self.problem(&draws, number, &fills))
                .collect();
            parts?.into_iter().for_each(|part| merge(&mut rows, part));
            progress(rows.values().map(|row| row.outputs).sum());
            first += BATCH;
        }
    }

    /// Fills of which too few outputs were judged.
    fn unfinished(&self, rows: &Rows) -> Vec<FillKind> {
        let judged = |kind: FillKind| -> u64 {
            let of_kind = rows.iter().filter(|((fill, _), _)| *fill == kind);
            of_kind.map(|(_, row)| row.outputs).sum()
        };
        let kinds = FillKind::ALL.into_iter();
        kinds.filter(|&kind| judged(kind) < self.outputs).collect()
    }

    /// One problem with each of `fills`, all algorithms.
    fn problem(&self, draws: &Draws, number: i64, fills: &[FillKind]) -> Result<Rows> {
        let mut backend = HostBackend::new(&HostOptions {
            fault: self.fault.clone(),
        })?;
        let options = TrialOptions {
            repeats: 0,
            audit: 0,
            ..TrialOptions::default()
        };
        let problem = draws.case(number)?.problem;
        let mut rows = Rows::new();
        for &kind in fills {
            let repro = Repro {
                problem: problem.clone(),
                fill: Fill {
                    kind,
                    seed: number as u64,
                },
                via: None,
            };
            run_case(&mut backend, &repro, &options, &mut |event| {
                if let Event::Done(record) = event {
                    add(&mut rows, kind, &record);
                }
            })?;
        }
        Ok(rows)
    }
}

fn add(rows: &mut Rows, kind: FillKind, record: &TrialRecord) {
    let (Some(judged), Some(wrong)) = (record.judged, record.wrong) else {
        return;
    };
    let part = Row {
        fill: kind.name().to_owned(),
        candidate: record.candidate.clone(),
        trials: 1,
        outputs: judged,
        exceeding: wrong,
        largest_ratio: record.max_ratio,
        repro: (wrong > 0).then(|| record.repro.clone()),
    };
    merge(rows, [((kind, part.candidate.clone()), part)].into());
}

fn merge(rows: &mut Rows, parts: Rows) {
    for (key, part) in parts {
        let row = rows.entry(key).or_insert_with(|| Row {
            fill: part.fill.clone(),
            candidate: part.candidate.clone(),
            ..Row::default()
        });
        row.trials += part.trials;
        row.outputs += part.outputs;
        row.exceeding += part.exceeding;
        row.largest_ratio = match (row.largest_ratio, part.largest_ratio) {
            (Some(a), Some(b)) => Some(a.max(b)),
            (a, b) => a.or(b),
        };
        row.repro = row.repro.take().or(part.repro);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(fault: Option<&str>) -> Vec<Row> {
        let soundness = Soundness {
            outputs: 20_000,
            seed: 1,
            fault: fault.map(str::to_owned),
        };
        soundness.run(&mut |_| ()).unwrap()
    }

    #[test]
    fn run_a_planted_fault_exceeds() {
        let rows = run(Some("tap_dropped"));
        let (faulty, honest): (Vec<_>, Vec<_>) = rows
            .into_iter()
            .partition(|row| row.candidate.ends_with("!tap_dropped"));
        assert!(
            faulty
                .iter()
                .any(|row| row.exceeding > 0 && row.repro.is_some())
        );
        let wrong: Vec<_> = honest.iter().filter(|row| row.exceeding > 0).collect();
        assert!(wrong.is_empty(), "{wrong:#?}");
    }
}
