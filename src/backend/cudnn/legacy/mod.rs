//! The legacy API: numbered algorithms × math types, in all three directions.

use std::rc::Rc;
use std::time::Instant;

use super::Api;
use super::observe::{Bench, Setup, repeats};
use super::session::Session;
use super::status::{Failure, Meaning};
use crate::backend::{Listing, RunOptions, Steps, Support, barred};
use crate::candidate::{Candidate, MathType};
use crate::error::{Error, Result};
use crate::fill::Inputs;
use crate::outcome::Outcome;
use crate::problem::ConvProblem;

pub mod algorithm;
pub mod calls;

use algorithm::{Algorithm, Machine, algorithms, arithmetic, same_as};
use calls::{Described, Functions, refusal};

/// The legacy API of an opened library.
pub struct Legacy {
    functions: Functions,
    machine: Machine,
    described: Option<Rc<Described>>,
}

/// What keeps a candidate from being asked for.
enum Obstacle {
    /// Known before any call.
    Refused(String),
    /// The library's answer.
    Failed(Failure),
}

impl Legacy {
    /// Looks up the functions.
    pub fn new(session: &Session) -> Result<Legacy> {
        Ok(Legacy {
            functions: Functions::look_up(&session.cudnn().library)?,
            machine: Machine {
                capability: session.gpu().capability,
                tf32_forbidden: session.tf32_forbidden(),
            },
            described: None,
        })
    }

    /// The descriptors of `problem`, kept from the last call if it was the same.
    fn describe(
        &mut self,
        session: &Session,
        problem: &ConvProblem,
    ) -> std::result::Result<Rc<Described>, Obstacle> {
        if let Some(why) = refusal(problem) {
            return Err(Obstacle::Refused(why));
        }
        if let Some(same) = self.described.as_ref().filter(|d| d.problem() == problem) {
            return Ok(Rc::clone(same));
        }
        let described =
            Described::new(session, &self.functions, problem).map_err(Obstacle::Failed)?;
        Ok(Rc::clone(self.described.insert(Rc::new(described))))
    }

    fn support(
        &mut self,
        session: &Session,
        problem: &ConvProblem,
        algorithm: Algorithm,
        math: MathType,
    ) -> Support {
        if let Some((twin, why)) = same_as(problem, algorithm, self.machine, math) {
            return Support::Refused(format!("same as {}: {why}", twin.name()));
        }
        match self.plan(session, problem, algorithm.number, math) {
            Ok((_, workspace)) => self.offered(problem, algorithm, math, workspace),
            Err(Obstacle::Refused(why)) => Support::Refused(why),
            Err(Obstacle::Failed(failure)) => match failure.meaning {
                Meaning::NotSupported | Meaning::BadParam => Support::Refused(failure.to_string()),
                // Not a refusal: offered, so that running it records the failure.
                _ => self.offered(problem, algorithm, math, 0),
            },
        }
    }

    fn offered(
        &self,
        problem: &ConvProblem,
        algorithm: Algorithm,
        math: MathType,
        workspace: usize,
    ) -> Support {
        Support::Offered {
            arithmetic: arithmetic(problem, algorithm, math, self.machine),
            workspace: workspace as u64,
            nondeterministic: algorithm.atomics,
            notes: vec![algorithm.name.to_owned()],
        }
    }

    /// The described problem, and the workspace a candidate asks for.
    fn plan(
        &mut self,
        session: &Session,
        problem: &ConvProblem,
        algorithm: u8,
        math: MathType,
    ) -> std::result::Result<(Rc<Described>, usize), Obstacle> {
        let described = self.describe(session, problem)?;
        let workspace = described
            .workspace(session, &self.functions, algorithm, math)
            .map_err(Obstacle::Failed)?;
        Ok((described, workspace))
    }
}

impl Api for Legacy {
    fn owns(&self, candidate: &Candidate) -> bool {
        matches!(candidate, Candidate::Legacy { .. })
    }

    fn list(
        &mut self,
        session: &Session,
        problem: &ConvProblem,
        steps: &mut Steps<'_>,
    ) -> Result<Vec<Listing>> {
        let mut listings = Vec::new();
        for &algorithm in algorithms(problem.direction) {
            for math in MathType::ALL {
                let candidate = Candidate::Legacy {
                    algorithm: algorithm.number,
                    math,
                };
                if !steps.may(&candidate.to_string()) {
                    listings.push(barred(candidate));
                    continue;
                }
                listings.push(Listing {
                    candidate,
                    support: self.support(session, problem, algorithm, math),
                });
            }
        }
        Ok(listings)
    }

    fn run(
        &mut self,
        session: &Session,
        bench: &mut Bench,
        inputs: &Inputs,
        candidate: &Candidate,
        options: &RunOptions,
    ) -> Result<Outcome> {
        let (algorithm, math) = known(&inputs.problem, candidate)?;
        let start = Instant::now();
        let (described, workspace) = match self.plan(session, &inputs.problem, algorithm, math) {
            Ok(plan) => plan,
            Err(Obstacle::Refused(why)) => return Ok(Outcome::NotSupported(why)),
            Err(Obstacle::Failed(failure)) => {
                session.survived(&failure);
                return Ok(failure.into_outcome(true));
            }
        };
        let planning = start.elapsed();
        let beta = inputs.problem.beta.0;
        let setup = Setup {
            workspace,
            planning,
            repeats: &repeats(options.repeats, inputs.fill.seed, workspace, beta, &[]),
        };
        bench.observe(session, inputs, &setup, &mut |launch| {
            described.convolve(session, &self.functions, algorithm, math, launch)
        })
    }
}

/// Number and math type of a legacy candidate that the direction has.
fn known(problem: &ConvProblem, candidate: &Candidate) -> Result<(u8, MathType)> {
    match candidate {
        Candidate::Legacy { algorithm, math }
            if usize::from(*algorithm) < algorithms(problem.direction).len() =>
        {
            Ok((*algorithm, *math))
        }
        _ => Err(Error::usage(format!(
            "'{candidate}' is not a legacy algorithm of {}: they are numbered 0 to {}",
            problem.direction.name(),
            algorithms(problem.direction).len() - 1
        ))),
    }
}

#[cfg(test)]
pub(super) mod tests_support {
    use super::super::driver::Called;
    use super::super::observe::{Launch, Pointers};
    use super::*;

    /// A launch of IMPLICIT_GEMM whose result goes to an address nobody owns.
    pub fn wild_launch<'a>(
        session: &'a Session,
        problem: &ConvProblem,
    ) -> impl Fn(&Launch) -> Called + use<'a> {
        let functions = Functions::look_up(&session.cudnn().library).unwrap();
        let described = Described::new(session, &functions, problem).unwrap();
        move |launch| {
            let wild = Launch {
                pointers: Pointers {
                    y: 0x10_0000,
                    ..launch.pointers
                },
                ..*launch
            };
            described.convolve(session, &functions, 0, MathType::Fma, &wild)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn known_algorithm_numbers_depend_on_the_direction() {
        let candidate: Candidate = "legacy:7/fma".parse().unwrap();
        let forward: ConvProblem = "fwd c=4 k=4 in=5x5 ker=3x3".parse().unwrap();
        assert_eq!(known(&forward, &candidate).unwrap(), (7, MathType::Fma));
        let backward: ConvProblem = "bwd_data c=4 k=4 in=5x5 ker=3x3".parse().unwrap();
        let error = known(&backward, &candidate).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Usage);
        assert!(error.to_string().contains("numbered 0 to 5"));
    }
}
