//! The harness examines itself: every fault of the host backend is planted and
//! must be caught, and nothing may be found where none is.

use rayon::prelude::*;
use serde::Serialize;

use super::draws::Draws;
use crate::backend::host::faults::FAULTS;
use crate::backend::host::{HostBackend, HostOptions, carrier};
use crate::candidate::Repro;
use crate::error::Result;
use crate::record::TrialRecord;
use crate::strategy::Limits;
use crate::trial::{Event, TrialOptions, run_case};

/// How much is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Seeds per fault, from 0.
    pub seeds: u64,
    /// Generated problems per seed, at most.
    pub cases: u64,
}

/// What became of one fault under one seed.
#[derive(Clone, Debug, PartialEq)]
struct Caught {
    cases: u64,
    reason: String,
    regime: String,
}

/// One row of the examination.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The planted fault; empty for the run without one.
    pub fault: String,
    /// Seeds run.
    pub seeds: u64,
    /// Seeds under which it was caught within the budget.
    pub caught: u64,
    /// Median and largest number of problems until it was caught.
    pub median_cases: Option<u64>,
    /// The largest.
    pub most_cases: Option<u64>,
    /// Failure kinds that caught it, most frequent first, joined by `+`.
    pub kinds: String,
    /// Regimes that caught it, likewise.
    pub regimes: String,
}

/// Plants each fault that does not kill the process, under each seed.
pub fn faults(budget: Budget) -> Result<Vec<Row>> {
    FAULTS
        .par_iter()
        .filter(|fault| !fault.kills())
        .map(|fault| {
            let caught: Result<Vec<Option<Caught>>> = (0..budget.seeds)
                .into_par_iter()
                .map(|seed| hunt(fault.name, seed, budget.cases))
                .collect();
            Ok(row(fault.name, &caught?))
        })
        .collect()
}

/// Trials that were found at fault with none planted: `(trials, findings)`.
pub fn honest(budget: Budget) -> Result<(u64, Vec<TrialRecord>)> {
    let runs: Result<Vec<_>> = (0..budget.seeds)
        .into_par_iter()
        .map(|seed| {
            let mut backend = HostBackend::new(&HostOptions::default())?;
            let (mut trials, mut findings) = (0, Vec::new());
            each_case(seed, budget.cases, |repro| {
                run_case(
                    &mut backend,
                    repro,
                    &TrialOptions::default(),
                    &mut |event| {
                        if let Event::Done(record) = event {
                            trials += u64::from(record.verdict != "skipped");
                            if record.verdict == "failed" || record.suspect {
                                findings.push(record);
                            }
                        }
                    },
                )
                .map(|()| true)
            })?;
            Ok((trials, findings))
        })
        .collect();
    Ok(runs?
        .into_iter()
        .fold((0, Vec::new()), |(trials, mut all), (t, findings)| {
            all.extend(findings);
            (trials + t, all)
        }))
}

/// Fuzzes the carrier until it fails.
fn hunt(fault: &str, seed: u64, cases: u64) -> Result<Option<Caught>> {
    let mut backend = HostBackend::new(&HostOptions::default())?;
    let mut caught = None;
    let mut count = 0;
    each_case(seed, cases, |repro| {
        let repro = Repro {
            via: Some(carrier(Some(fault))),
            ..repro.clone()
        };
        count += 1;
        run_case(
            &mut backend,
            &repro,
            &TrialOptions::default(),
            &mut |event| {
                if let Event::Done(record) = event
                    && record.verdict == "failed"
                {
                    caught = Some((record.reason.unwrap_or_default(), record.regime));
                }
            },
        )?;
        Ok(caught.is_none())
    })?;
    // Fills of one problem count as one case.
    Ok(caught.map(|(reason, regime)| Caught {
        cases: problems(seed, cases, count),
        reason,
        regime,
    }))
}

/// Calls `visit` with every case of a seed, fill by fill, while it wants more.
fn each_case(seed: u64, cases: u64, mut visit: impl FnMut(&Repro) -> Result<bool>) -> Result<()> {
    let draws = Draws::new(&Limits::default(), seed, &[], None);
    for number in 0..cases {
        let draw = draws.case(number as i64)?;
        for fill in draw.fills {
            let repro = Repro {
                problem: draw.problem.clone(),
                fill,
                via: None,
            };
            if !visit(&repro)? {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// In which problem the `count`-th fill is.
fn problems(seed: u64, cases: u64, count: u64) -> u64 {
    let draws = Draws::new(&Limits::default(), seed, &[], None);
    let mut seen = 0;
    for number in 0..cases {
        seen += draws
            .case(number as i64)
            .map_or(0, |draw| draw.fills.len() as u64);
        if seen >= count {
            return number + 1;
        }
    }
    cases
}

fn row(fault: &str, seeds: &[Option<Caught>]) -> Row {
    let mut cases: Vec<u64> = seeds.iter().flatten().map(|c| c.cases).collect();
    cases.sort_unstable();
    let words = |word: fn(&Caught) -> &str| frequent(seeds.iter().flatten().map(word));
    Row {
        fault: fault.to_owned(),
        seeds: seeds.len() as u64,
        caught: cases.len() as u64,
        median_cases: cases.get(cases.len() / 2).copied(),
        most_cases: cases.last().copied(),
        kinds: words(|c| &c.reason),
        regimes: words(|c| &c.regime),
    }
}

/// Distinct words, most frequent first, joined by `+`.
fn frequent<'a>(words: impl Iterator<Item = &'a str>) -> String {
    let mut counts = std::collections::BTreeMap::<&str, usize>::new();
    words.for_each(|word| *counts.entry(word).or_default() += 1);
    let mut list: Vec<_> = counts.into_iter().collect();
    list.sort_by_key(|&(_, count)| std::cmp::Reverse(count));
    list.iter()
        .map(|(word, _)| *word)
        .collect::<Vec<_>>()
        .join("+")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A short examination; `convfuzz examine` runs the long one.
    #[test]
    fn faults_are_caught_and_honest_algorithms_are_not() {
        let missed: Vec<_> = faults(Budget {
            seeds: 2,
            cases: 300,
        })
        .unwrap()
        .into_iter()
        .filter(|row| row.caught < row.seeds)
        .collect();
        assert!(missed.is_empty(), "{missed:#?}");
        let (trials, findings) = honest(Budget {
            seeds: 2,
            cases: 40,
        })
        .unwrap();
        assert!(trials > 500, "{trials}");
        assert!(findings.is_empty(), "{findings:#?}");
    }
}
