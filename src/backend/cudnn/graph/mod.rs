//! The graph API: every engine of a problem, with its own and other knobs.
//!
//! [`Planner`] asks the library which engines there are, on a GPU or, from
//! cuDNN 9.8, for one that is known by its properties only; [`Graph`] runs
//! their plans.

use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;
use std::time::Instant;

use serde::Serialize;

use super::Api;
use super::CudnnOptions;
use super::driver::Called;
use super::observe::{Bench, Launch, Setup, repeats};
use super::session::Session;
use super::status::{Failure, Meaning};
use crate::backend::{Combination, Listing, RunOptions, Steps, Support, barred};
use crate::candidate::Candidate;
use crate::error::{Error, Result};
use crate::fill::Inputs;
use crate::outcome::{Outcome, Repeat};
use crate::problem::ConvProblem;

mod calls;
mod coverage;
mod descriptor;
mod engine;
mod heuristics;
mod knobs;
mod names;
mod notes;
#[cfg(test)]
mod offline_tests;
mod operation;
mod plan;
mod planner;
mod survey;
#[cfg(test)]
mod sweep_tests;
mod words;

pub use coverage::{Coverage, Row};
pub use knobs::KnobBudget;
pub use planner::{DeviceProperties, Planner};

use coverage::Event;
use engine::{Engine, Knob};
use plan::Plan;
use planner::Prepared;
use survey::{Scope, survey};

/// The graph API of an opened library.
pub struct Graph {
    planner: Planner,
    budget: KnobBudget,
    seed: u64,
    odd_strides: bool,
    coverage: Coverage,
    /// The latest problems, newest first: their plans are built once for all
    /// fills, repeats and other forms of a case.
    prepared: Vec<Prepared>,
}

/// Problems whose plans are kept: one, and the forms that its cases are
/// compared in.
const KEPT_PROBLEMS: usize = 3;

impl Graph {
    /// The graph API of `session`, which must outlive it.
    pub fn new(session: &Session, options: &CudnnOptions) -> Result<Graph> {
        Ok(Graph {
            planner: Planner::on(session)?,
            budget: options.knobs,
            seed: options.seed,
            odd_strides: options.odd_strides,
            coverage: Coverage::default(),
            prepared: Vec::new(),
        })
    }

    /// Takes the prepared problem out, or prepares `problem` anew.
    fn prepared(&mut self, problem: &ConvProblem) -> Called<Prepared> {
        match self.prepared.iter().position(|p| p.problem == *problem) {
            Some(at) => Ok(self.prepared.remove(at)),
            None => self.planner.prepare(problem),
        }
    }

    fn keep(&mut self, prepared: Prepared) {
        self.prepared.insert(0, prepared);
        self.prepared.truncate(KEPT_PROBLEMS);
    }

    /// The plan of a choice. An `Err` is the user's mistake.
    fn plan(
        &mut self,
        problem: &ConvProblem,
        index: i64,
        knobs: &[(u32, i64)],
    ) -> Result<Called<Rc<Plan>>> {
        let mut prepared = match self.prepared(problem) {
            Ok(prepared) => prepared,
            Err(failure) => return Ok(Err(failure)),
        };
        check_index(index, &prepared, &self.planner)?;
        let plan = self.planner.plan(&mut prepared, index, knobs);
        self.keep(prepared);
        Ok(plan)
    }

    /// The plan rebuilt as a repeat asks for it; `None` where the library has
    /// no such plan that fits into the workspace, and the plan itself is run.
    fn rebuilt(
        &mut self,
        case: &Inputs,
        candidate: (i64, &[(u32, i64)]),
        plan: &Plan,
        repeat: Repeat,
    ) -> Option<Plan> {
        let again = match repeat {
            Repeat::PlanFromJson => self.planner.reread(plan),
            Repeat::OddStrides => {
                let prepared = self.prepared(&case.problem).ok()?;
                let (engine, choice) = candidate;
                let again = self.planner.restrided(&prepared, engine, choice);
                self.keep(prepared);
                again
            }
            _ => None,
        };
        again.filter(|again| again.workspace <= plan.workspace)
    }

    /// What `ask` says of one engine with its knobs, once both are known to exist.
    fn one(
        &mut self,
        problem: &ConvProblem,
        candidate: &Candidate,
        ask: impl FnOnce(&Planner, &mut Prepared, (i64, &[(u32, i64)])) -> Support,
    ) -> Result<Support> {
        let (index, knobs) = parts(candidate)?;
        let mut prepared = match self.prepared(problem) {
            Ok(prepared) => prepared,
            Err(failure) => return Ok(Support::Refused(failure.to_string())),
        };
        check_index(index, &prepared, &self.planner)?;
        self.planner.check_knobs(&prepared, index, knobs)?;
        let support = ask(&self.planner, &mut prepared, (index, knobs));
        self.keep(prepared);
        Ok(support)
    }

    fn observe(
        &mut self,
        (session, bench): (&Session, &mut Bench),
        inputs: &Inputs,
        candidate: (i64, &[(u32, i64)]),
        plan: &Plan,
        setup: &Setup<'_>,
    ) -> Result<Outcome> {
        let rebuilt: Vec<(Repeat, Plan)> = setup
            .repeats
            .iter()
            .filter_map(|&r| Some((r, self.rebuilt(inputs, candidate, plan, r)?)))
            .collect();
        bench.observe(session, inputs, setup, &mut |launch: &Launch| {
            let again = rebuilt.iter().find(|(r, _)| Some(*r) == launch.repeat);
            again
                .map_or(plan, |(_, again)| again)
                .execute(self.planner.calls(), session, launch)
                .map_err(contract)
        })
    }
}

/// A plan that was built must execute: the library's refusal to is a failure,
/// whatever its status. Memory that ran out stays what it is.
fn contract(failure: Failure) -> Failure {
    match failure.meaning {
        Meaning::OutOfMemory => failure,
        _ => Failure {
            meaning: Meaning::Failed,
            ..failure
        },
    }
}

impl Api for Graph {
    fn owns(&self, candidate: &Candidate) -> bool {
        matches!(candidate, Candidate::Engine { .. })
    }

    fn coverage(&self) -> Vec<Row> {
        self.coverage.rows()
    }

    fn list(
        &mut self,
        _: &Session,
        problem: &ConvProblem,
        steps: &mut Steps<'_>,
    ) -> Result<Vec<Listing>> {
        let mut prepared = match self.prepared(problem) {
            Ok(prepared) => prepared,
            Err(failure) => return Ok(vec![none(&failure)]),
        };
        let listings = survey(
            &self.planner,
            &mut prepared,
            Scope {
                budget: self.budget,
                seed: self.seed,
            },
            &mut self.coverage,
            steps,
        );
        self.keep(prepared);
        Ok(listings)
    }

    fn support(
        &mut self,
        _: &Session,
        problem: &ConvProblem,
        candidate: &Candidate,
    ) -> Result<Support> {
        self.one(problem, candidate, |planner, prepared, choice| {
            planner.support(prepared, choice)
        })
    }

    fn list_one(
        &mut self,
        _: &Session,
        problem: &ConvProblem,
        candidate: &Candidate,
        steps: &mut Steps<'_>,
    ) -> Result<Support> {
        if !steps.may(&candidate.to_string()) {
            return Ok(barred(candidate.clone()).support);
        }
        self.one(problem, candidate, |planner, prepared, choice| {
            planner.ranked_support(prepared, choice, steps)
        })
    }

    fn run(
        &mut self,
        session: &Session,
        bench: &mut Bench,
        inputs: &Inputs,
        candidate: &Candidate,
        options: &RunOptions,
    ) -> Result<Outcome> {
        let (index, knobs) = parts(candidate)?;
        let start = Instant::now();
        let plan = match self.plan(&inputs.problem, index, knobs)? {
            Ok(plan) => plan,
            Err(failure) => {
                session.survived(&failure);
                return Ok(failure.into_outcome(true));
            }
        };
        let beta = inputs.problem.beta.0;
        let odd = self.odd_strides && operation::has_ones(&inputs.problem);
        let extra: &[Repeat] = match odd {
            true => &[Repeat::PlanFromJson, Repeat::OddStrides],
            false => &[Repeat::PlanFromJson],
        };
        let setup = Setup {
            workspace: plan.workspace,
            planning: start.elapsed(),
            repeats: &repeats(
                options.repeats,
                inputs.fill.seed,
                plan.workspace,
                beta,
                extra,
            ),
        };
        let outcome = self.observe((session, bench), inputs, (index, knobs), &plan, &setup)?;
        let event = match outcome {
            Outcome::Ran(_) => Event::Executed,
            _ => Event::Failed,
        };
        let direction = inputs.problem.direction.name();
        self.coverage.note(direction, index, knobs, event);
        Ok(outcome)
    }
}

fn parts(candidate: &Candidate) -> Result<(i64, &[(u32, i64)])> {
    match candidate {
        Candidate::Engine { index, knobs } => Ok((*index, knobs)),
        _ => Err(Error::usage(format!("'{candidate}' is not an engine"))),
    }
}

/// An index that no engine of this library can have is the user's mistake.
fn check_index(index: i64, prepared: &Prepared, planner: &Planner) -> Result<()> {
    let count = prepared.count();
    if (0..count as i64).contains(&index) {
        return Ok(());
    }
    Err(Error::usage(format!(
        "engine:{index} does not exist: cuDNN {} has engines 0 to {} for {}. Indices are specific \
         to a version of cuDNN; check which one the line was written with",
        planner.version(),
        count.saturating_sub(1),
        prepared.problem.direction.name()
    )))
}

/// What stands for all engines when the problem cannot even be described.
fn none(failure: &Failure) -> Listing {
    Listing {
        candidate: Candidate::Engine {
            index: 0,
            knobs: Vec::new(),
        },
        support: Support::Refused(format!("no engine at all: {failure}")),
    }
}

/// The engines of a problem for a GPU that is known by its properties only.
#[derive(Clone, Debug, PartialEq)]
pub struct Offline {
    /// What was asked.
    pub combination: Combination,
    /// As [`crate::backend::Backend::candidates`].
    pub listings: Vec<Listing>,
    /// Knobs of the engines that take the problem, by engine index.
    pub knobs: BTreeMap<i64, Vec<KnobRange>>,
}

/// A knob with its values: `minimum`, `minimum + stride`, … `maximum`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KnobRange {
    /// cudnnBackendKnobType_t, as in repro lines.
    pub knob: u32,
    /// Its name.
    pub name: String,
    /// Smallest value.
    pub minimum: i64,
    /// Largest value.
    pub maximum: i64,
    /// Step between values.
    pub stride: i64,
}

impl From<&Knob> for KnobRange {
    fn from(knob: &Knob) -> Self {
        KnobRange {
            knob: knob.kind,
            name: names::knob(knob.kind as i32).into_owned(),
            minimum: knob.minimum,
            maximum: knob.maximum,
            stride: knob.stride,
        }
    }
}

/// Asks `library` (found by itself when absent) for the engines of `problem` on
/// the GPU of `properties`. Nothing is run, and no GPU is needed.
///
/// # Errors
/// As [`Planner::offline`].
pub fn offline(
    library: Option<&Path>,
    properties: &DeviceProperties,
    problem: &ConvProblem,
    budget: KnobBudget,
    seed: u64,
) -> Result<Offline> {
    let planner = Planner::offline(library, properties)?;
    let knobs = planner.prepare(problem).map(|prepared| {
        let ranges = |e: &Engine| (e.index, e.knobs.iter().map(KnobRange::from).collect());
        planner.engines(&prepared).map(ranges).collect()
    });
    let (major, minor) = properties.capability;
    Ok(Offline {
        combination: Combination {
            backend: "cudnn".to_owned(),
            device: properties.name.clone(),
            sm: format!("{major}.{minor}"),
            cudnn: planner.version().to_string(),
            convfuzz: env!("CARGO_PKG_VERSION").to_owned(),
            ..Combination::default()
        },
        listings: list_offline(&planner, problem, budget, seed),
        knobs: knobs.unwrap_or_default(),
    })
}

/// The listings of `problem` for a GPU that is known by its properties only.
fn list_offline(
    planner: &Planner,
    problem: &ConvProblem,
    budget: KnobBudget,
    seed: u64,
) -> Vec<Listing> {
    match planner.prepare(problem) {
        Ok(mut prepared) => survey(
            planner,
            &mut prepared,
            Scope { budget, seed },
            &mut Coverage::default(),
            &mut Steps::unwatched(),
        ),
        Err(failure) => vec![none(&failure)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contract_refusing_to_execute_is_a_failure_and_shortage_is_not() {
        for (status, failed) in [(3000, true), (2000, true), (5000, true), (4004, false)] {
            let failure = contract(Failure::cudnn("cudnnBackendExecute", status, String::new()));
            let outcome = failure.into_outcome(false);
            assert_eq!(
                matches!(outcome, Outcome::ExecutionFailed { .. }),
                failed,
                "{status}"
            );
        }
    }
}
