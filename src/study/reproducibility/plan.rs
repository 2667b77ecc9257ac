//! Which algorithm computes what: the choices a framework may make.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::network::{Chosen, Operation, Plan, Precision, Size};
use crate::backend::host::carrier;
use crate::backend::{Backend, Listing, RunOptions, Support};
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
    /// What the library's heuristic lists first: only where there is one.
    Default,
    /// In the backward pass, one that is documented to be nondeterministic,
    /// where there is one: nothing keeps a library from choosing it by default.
    Unrestricted,
    /// Always the same deterministic one.
    Deterministic,
}

impl Policy {
    /// All.
    pub const ALL: [Policy; 3] = [Policy::Default, Policy::Unrestricted, Policy::Deterministic];

    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Policy::Default => "default",
            Policy::Unrestricted => "unrestricted",
            Policy::Deterministic => "deterministic",
        }
    }
}

/// A candidate that is offered.
#[derive(Clone, Debug)]
pub struct Choice {
    /// The candidate.
    pub candidate: Candidate,
    /// Whether its bits may differ from run to run, by its own word or because a
    /// fault is planted that stands for such a candidate.
    pub nondeterministic: bool,
    /// Its place in the list of the library's first heuristic.
    rank: Option<usize>,
}

impl Choice {
    fn chosen(&self) -> Chosen {
        Chosen {
            candidate: self.candidate.to_string(),
            nondeterministic: self.nondeterministic,
        }
    }
}

/// The candidates of an operation that are offered. On the host the backward
/// filter has the planted one besides, unless a fault was asked for: then the
/// candidate with that fault, which promises the same bits, comes first.
pub fn choices(backend: &mut dyn Backend, problem: &ConvProblem) -> Result<Vec<Choice>> {
    let listings = backend.candidates(problem)?;
    let mut choices: Vec<Choice> = listings.into_iter().filter_map(offered).collect();
    if backend.combination().backend != "host" {
        return Ok(choices);
    }
    choices.sort_by_key(|c| !has_fault(&c.candidate));
    let asked_for = choices.first().is_some_and(|c| has_fault(&c.candidate));
    if problem.direction == Direction::BwdFilter && !asked_for {
        choices.push(Choice {
            candidate: carrier(Some(FAULT)),
            nondeterministic: true,
            rank: None,
        });
    }
    Ok(choices)
}

fn offered(listing: Listing) -> Option<Choice> {
    match listing.support {
        Support::Offered {
            nondeterministic,
            notes,
            ..
        } => Some(Choice {
            candidate: listing.candidate,
            nondeterministic,
            rank: notes.iter().find_map(|note| rank(note)),
        }),
        Support::Refused(_) => None,
    }
}

/// The place that a note such as `heur_a:3` tells.
fn rank(note: &str) -> Option<usize> {
    note.strip_prefix("heur_a:")?.parse().ok()
}

fn has_fault(candidate: &Candidate) -> bool {
    matches!(candidate, Candidate::Host { fault: Some(_), .. })
}

/// The plan of a policy; `None` for [`Policy::Default`] on a backend that has no
/// heuristic.
pub fn plan(
    backend: &mut dyn Backend,
    size: &Size,
    precision: Precision,
    policy: Policy,
) -> Result<Option<Plan>> {
    let mut plan = Plan::new();
    for operation in Operation::all() {
        let problem = operation.problem(size, precision);
        let choices = choices(backend, &problem)?;
        let preferred = preferred(&choices, policy, operation.direction);
        if preferred.is_empty() && policy == Policy::Default {
            return Ok(None);
        }
        let found = first_that_runs(backend, &problem, &preferred)?;
        let chosen = found.ok_or_else(|| none(operation))?.chosen();
        plan.insert(operation.to_string(), chosen);
    }
    Ok(Some(plan))
}

/// The choices that a policy may take, in its order.
fn preferred(choices: &[Choice], policy: Policy, direction: Direction) -> Vec<&Choice> {
    let mut found: Vec<&Choice> = choices.iter().collect();
    match policy {
        Policy::Default => {
            found.retain(|c| c.rank.is_some());
            found.sort_by_key(|c| c.rank);
        }
        Policy::Unrestricted if direction != Direction::Fwd => {
            found.sort_by_key(|c| !c.nondeterministic);
        }
        Policy::Unrestricted | Policy::Deterministic => found.retain(|c| !c.nondeterministic),
    }
    found
}

fn first_that_runs<'a>(
    backend: &mut dyn Backend,
    problem: &ConvProblem,
    choices: &[&'a Choice],
) -> Result<Option<&'a Choice>> {
    for choice in choices {
        if elapsed(backend, problem, &choice.candidate)?.is_some() {
            return Ok(Some(choice));
        }
    }
    Ok(None)
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
    let mut plan = Plan::new();
    for operation in Operation::all() {
        let problem = operation.problem(size, precision);
        let mut fastest: Option<(Duration, Choice)> = None;
        for choice in choices(backend, &problem)? {
            let time = match choice.nondeterministic {
                true => None,
                false => time(backend, operation, &problem, &choice.candidate, run)?,
            };
            let better = |t: &Duration| fastest.as_ref().is_none_or(|(least, _)| t < least);
            if let Some(time) = time.filter(better) {
                fastest = Some((time, choice));
            }
        }
        let (_, choice) = fastest.ok_or_else(|| none(operation))?;
        plan.insert(operation.to_string(), choice.chosen());
    }
    Ok(plan)
}

/// The time of a candidate that runs.
fn time(
    backend: &mut dyn Backend,
    operation: Operation,
    problem: &ConvProblem,
    candidate: &Candidate,
    run: u64,
) -> Result<Option<Duration>> {
    let warm = elapsed(backend, problem, candidate)?;
    match (warm, backend.combination().backend.as_str()) {
        (None, _) => Ok(None),
        (Some(_), "host") => Ok(Some(made_up(candidate, operation, run))),
        (Some(_), _) => elapsed(backend, problem, candidate),
    }
}

/// A time near a millisecond, with noise from the texts and the run: FNV-1a
/// (Fowler, Noll, Vo).
fn made_up(candidate: &Candidate, operation: Operation, run: u64) -> Duration {
    let text = format!("{run} {candidate} {operation}");
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
        let choices = choices(backend, &problem)?;
        let other = |c: &&Choice| !c.nondeterministic && plan.get(&name) != Some(&c.chosen());
        let others: Vec<&Choice> = choices.iter().filter(other).collect();
        if let Some(choice) = first_that_runs(backend, &problem, &others)? {
            let mut plan = plan.clone();
            plan.insert(name, choice.chosen());
            return Ok(plan);
        }
    }
    Ok(plan.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::host::{HostBackend, HostOptions};
    use crate::study::reproducibility::network::tests::SMALL;

    fn host(fault: Option<&str>) -> HostBackend {
        let fault = fault.map(str::to_owned);
        HostBackend::new(&HostOptions { fault }).unwrap()
    }

    fn planned(fault: Option<&str>, policy: Policy) -> Plan {
        let plan = plan(&mut host(fault), &SMALL, Precision::Mixed, policy);
        plan.unwrap().unwrap()
    }

    #[test]
    fn plan_nondeterministic_where_it_may_be_and_nowhere_else() {
        let may = planned(None, Policy::Unrestricted);
        for (operation, chosen) in &may {
            let backward = operation.ends_with("bwd_filter");
            assert_eq!(chosen.nondeterministic, backward, "{operation}");
        }
        let must_not = planned(None, Policy::Deterministic);
        assert_eq!((may.len(), must_not.len()), (8, 8));
        assert!(must_not.values().all(|c| !c.nondeterministic));
    }

    #[test]
    fn plan_a_fault_that_was_asked_for_is_used_and_promises_the_same_bits() {
        for policy in [Policy::Unrestricted, Policy::Deterministic] {
            let plan = planned(Some(FAULT), policy);
            let carrier = carrier(Some(FAULT)).to_string();
            assert!(plan.values().all(|c| *c == Chosen::steady(&carrier)));
        }
    }

    #[test]
    fn plan_default_is_the_first_of_the_heuristic_where_there_is_one() {
        let none = plan(&mut host(None), &SMALL, Precision::Mixed, Policy::Default);
        assert_eq!(none.unwrap(), None);
        let ranked = |rank| Choice {
            candidate: carrier(None),
            nondeterministic: false,
            rank,
        };
        let choices = [
            ranked(None),
            ranked(rank("heur_a:2")),
            ranked(rank("heur_a:0")),
        ];
        let order = preferred(&choices, Policy::Default, Direction::Fwd);
        let order: Vec<_> = order.iter().map(|c| c.rank).collect();
        assert_eq!(order, [Some(0), Some(2)]);
        assert_eq!(rank("heur_b:0"), None);
    }

    #[test]
    fn benchmarked_and_rotated_choose_otherwise_and_deterministic_alone() {
        let choose = |run| benchmarked(&mut host(None), &SMALL, Precision::Mixed, run).unwrap();
        let first = choose(0);
        assert_eq!(first, choose(0));
        let turned = rotated(&mut host(None), &SMALL, Precision::Mixed, &first).unwrap();
        for other in [choose(1), turned] {
            assert_ne!(first, other);
            assert!(other.values().all(|c| !c.nondeterministic));
        }
    }
}
