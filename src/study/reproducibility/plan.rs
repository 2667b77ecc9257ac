//! Which algorithm computes what: the choices a framework may make.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::network::{Operation, Plan, Precision, Size};
use crate::backend::host::carrier;
use crate::backend::{Backend, RunOptions, Support};
use crate::candidate::Candidate;
use crate::error::{Error, Result};
use crate::fill::{Fill, FillKind, Inputs};
use crate::outcome::Outcome;
use crate::problem::{ConvProblem, Direction};

/// The planted form of a nondeterministic algorithm: every other run of the
/// backend sums backwards.
pub const FAULT: &str = "order_nondeterministic";

/// How algorithms are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    /// In the backward pass, one that is documented to be nondeterministic,
    /// where there is one: nothing keeps a library from choosing it by default.
    Unrestricted,
    /// Always the same deterministic one.
    Deterministic,
}

impl Policy {
    /// Both.
    pub const ALL: [Policy; 2] = [Policy::Unrestricted, Policy::Deterministic];

    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Policy::Unrestricted => "unrestricted",
            Policy::Deterministic => "deterministic",
        }
    }
}

/// A candidate that ran, and whether its bits may differ from run to run by its
/// own word, or because the fault is planted in it.
#[derive(Clone, Debug)]
pub struct Choice {
    /// The candidate.
    pub candidate: Candidate,
    /// Whether its bits may differ.
    pub nondeterministic: bool,
}

/// The candidates of an operation that are offered, the host's planted one last.
pub fn choices(backend: &mut dyn Backend, problem: &ConvProblem) -> Result<Vec<Choice>> {
    let listings = backend.candidates(problem)?;
    let offered = listings.into_iter().filter_map(|l| match l.support {
        Support::Offered {
            nondeterministic, ..
        } => Some(Choice {
            candidate: l.candidate,
            nondeterministic,
        }),
        Support::Refused(_) => None,
    });
    let mut choices: Vec<Choice> = offered.collect();
    if backend.combination().backend == "host" && problem.direction == Direction::BwdFilter {
        choices.push(Choice {
            candidate: carrier(Some(FAULT)),
            nondeterministic: true,
        });
    }
    Ok(choices)
}

/// The plan of a policy.
pub fn plan(
    backend: &mut dyn Backend,
    size: &Size,
    precision: Precision,
    policy: Policy,
) -> Result<Plan> {
    let mut plan = Plan::new();
    for operation in Operation::all() {
        let problem = operation.problem(size, precision);
        let choices = choices(backend, &problem)?;
        let wanted = policy == Policy::Unrestricted && operation.direction != Direction::Fwd;
        let preferred = choices.iter().filter(|c| c.nondeterministic == wanted);
        let others = choices.iter().filter(|c| !c.nondeterministic);
        let mut found = None;
        for choice in preferred.chain(others) {
            if elapsed(backend, &problem, &choice.candidate)?.is_some() {
                found = Some(choice.candidate.to_string());
                break;
            }
        }
        plan.insert(operation.to_string(), found.ok_or_else(|| none(operation))?);
    }
    Ok(plan)
}

fn none(operation: Operation) -> Error {
    Error::environment(format!(
        "no algorithm of this backend runs {operation} of the training step"
    ))
}

/// Time in the library; `None` when it does not run.
fn elapsed(
    backend: &mut dyn Backend,
    problem: &ConvProblem,
    candidate: &Candidate,
) -> Result<Option<Duration>> {
    let kind = FillKind::Normal;
    let inputs = Inputs::generate(problem, Fill { kind, seed: 0 });
    Ok(
        match backend.run(&inputs, candidate, &RunOptions { repeats: 0 })? {
            Outcome::Ran(seen) => Some(seen.elapsed),
            _ => None,
        },
    )
}

/// What a benchmark of all deterministic algorithms chooses in its `run`-th run.
/// On cuDNN times are measured, once each after one run to warm up; software has
/// times made up, all alike but for noise that depends on `run`.
pub fn benchmarked(
    backend: &mut dyn Backend,
    size: &Size,
    precision: Precision,
    run: u64,
) -> Result<Plan> {
    let host = backend.combination().backend == "host";
    let mut plan = Plan::new();
    for operation in Operation::all() {
        let problem = operation.problem(size, precision);
        let mut times = Vec::new();
        for choice in choices(backend, &problem)? {
            let candidate = choice.candidate;
            if choice.nondeterministic || elapsed(backend, &problem, &candidate)?.is_none() {
                continue;
            }
            let time = match host {
                true => made_up(&candidate, operation, run),
                false => elapsed(backend, &problem, &candidate)?.unwrap_or(Duration::MAX),
            };
            times.push((time, candidate));
        }
        let fastest = times.into_iter().min().ok_or_else(|| none(operation))?;
        plan.insert(operation.to_string(), fastest.1.to_string());
    }
    Ok(plan)
}

/// A time near a millisecond, with noise from the texts and the run: FNV-1a
/// (Fowler, Noll, Vo).
fn made_up(candidate: &Candidate, operation: Operation, run: u64) -> Duration {
    let text = format!("{candidate} {operation} {run}");
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| {
        (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3)
    });
    Duration::from_nanos(1_000_000 + (hash >> 32) % 100_000)
}

/// The same plan with one backward algorithm replaced by another deterministic
/// one, where there is another that runs.
pub fn rotated(
    backend: &mut dyn Backend,
    size: &Size,
    precision: Precision,
    plan: &Plan,
) -> Result<Plan> {
    for operation in Operation::all() {
        let name = operation.to_string();
        if operation.direction != Direction::BwdFilter {
            continue;
        }
        let problem = operation.problem(size, precision);
        for choice in choices(backend, &problem)? {
            let text = choice.candidate.to_string();
            let other = !choice.nondeterministic && plan.get(&name) != Some(&text);
            if other && elapsed(backend, &problem, &choice.candidate)?.is_some() {
                let mut plan = plan.clone();
                plan.insert(name, text);
                return Ok(plan);
            }
        }
    }
    Ok(plan.clone())
}
