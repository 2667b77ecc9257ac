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
use super::driver::Called;
use super::observe::{Bench, Launch, Setup, repeats};
use super::session::Session;
use super::status::{Failure, Meaning};
use crate::backend::{Combination, Listing, RunOptions, Support};
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
use survey::survey;

/// The graph API of an opened library.
pub struct Graph {
    planner: Planner,
    budget: KnobBudget,
    seed: u64,
    coverage: Coverage,
    /// The last problem: its plans are built once for all fills and repeats.
    prepared: Option<Prepared>,
}

impl Graph {
    /// The graph API of `session`, which must outlive it.
    pub fn new(session: &Session, budget: KnobBudget, seed: u64) -> Result<Graph> {
        Ok(Graph {
            planner: Planner::on(session)?,
            budget,
            seed,
            coverage: Coverage::default(),
            prepared: None,
        })
    }

    /// Takes the prepared problem out, or prepares `problem` anew.
    fn prepared(&mut self, problem: &ConvProblem) -> Called<Prepared> {
        match self.prepared.take() {
            Some(same) if same.problem == *problem => Ok(same),
            _ => self.planner.prepare(problem),
        }
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
        self.prepared = Some(prepared);
        Ok(plan)
    }

    fn observe(
        &self,
        session: &Session,
        bench: &mut Bench,
        inputs: &Inputs,
        plan: &Plan,
        setup: &Setup<'_>,
    ) -> Result<Outcome> {
        let reread = setup
            .repeats
            .contains(&Repeat::PlanFromJson)
            .then(|| self.planner.reread(plan))
            .flatten();
        // Without its JSON the plan itself is repeated.
        bench.observe(session, inputs, setup, &mut |launch: &Launch| {
            let again = reread.as_ref().filter(|_| from_json(launch));
            again
                .unwrap_or(plan)
                .execute(self.planner.calls(), session, launch)
                .map_err(contract)
        })
    }
}

fn from_json(launch: &Launch) -> bool {
    launch.repeat == Some(Repeat::PlanFromJson)
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

    fn candidates(&mut self, _: &Session, problem: &ConvProblem) -> Result<Vec<Listing>> {
        let mut prepared = match self.prepared(problem) {
            Ok(prepared) => prepared,
            Err(failure) => return Ok(vec![none(&failure)]),
        };
        let listings = survey(
            &self.planner,
            &mut prepared,
            self.budget,
            self.seed,
            &mut self.coverage,
        );
        self.prepared = Some(prepared);
        Ok(listings)
    }

    fn support(
        &mut self,
        _: &Session,
        problem: &ConvProblem,
        candidate: &Candidate,
    ) -> Result<Support> {
        let (index, knobs) = parts(candidate)?;
        let mut prepared = match self.prepared(problem) {
            Ok(prepared) => prepared,
            Err(failure) => return Ok(Support::Refused(failure.to_string())),
        };
        check_index(index, &prepared, &self.planner)?;
        let support = self.planner.support(&mut prepared, index, knobs);
        self.prepared = Some(prepared);
        Ok(support)
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
        let extra = [Repeat::PlanFromJson];
        let setup = Setup {
            workspace: plan.workspace,
            planning: start.elapsed(),
            repeats: &repeats(options.repeats, plan.workspace, beta, &extra),
        };
        let outcome = self.observe(session, bench, inputs, &plan, &setup)?;
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
        prepared.engines().map(ranges).collect()
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
            budget,
            seed,
            &mut Coverage::default(),
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
