//! All candidates of a problem: every engine, and the knob choices that the
//! budget allows.

use std::collections::BTreeMap;

use super::coverage::{Coverage, Event};
use super::engine::{Engine, Knob};
use super::heuristics::Ranked;
use super::knobs::{FEW, KnobBudget, SAMPLED, Sampler, SplitMix, combinations, every_combination};
use super::plan::{self, Choice};
use super::planner::{Planner, Prepared};
use crate::backend::{Listing, Steps, Support, barred};
use crate::candidate::Candidate;

/// How many refused choices in a row end the sampling of an engine.
const PATIENCE: u32 = 256;

/// How many knob choices are wanted, and which.
#[derive(Clone, Copy, Debug)]
pub struct Scope {
    /// How many.
    pub budget: KnobBudget,
    /// Seeds the choice.
    pub seed: u64,
}

/// Every engine with its own knobs, the heuristics' first choices, and more
/// knob choices as the budget allows: the same ones for the same problem, seed,
/// library and barred steps.
pub fn survey(
    planner: &Planner,
    prepared: &mut Prepared,
    scope: Scope,
    coverage: &mut Coverage,
    steps: &mut Steps<'_>,
) -> Vec<Listing> {
    let mut survey = Survey {
        planner,
        ranked: planner.heuristics(prepared, steps),
        seed: mix(scope.seed, &prepared.problem.to_string()),
        prepared,
        coverage,
        steps,
        barred: 0,
        listings: Vec::new(),
    };
    survey.defaults();
    survey.first_choices();
    match scope.budget {
        KnobBudget::Default => {}
        KnobBudget::Count(count) => survey.sample(count as usize),
        KnobBudget::All => survey.everything(),
    }
    survey.listings
}

/// One pass over a problem's engines.
struct Survey<'a, 's> {
    planner: &'a Planner,
    prepared: &'a mut Prepared,
    ranked: Vec<Ranked>,
    seed: u64,
    coverage: &'a mut Coverage,
    steps: &'a mut Steps<'s>,
    /// Listings that are barred.
    barred: usize,
    listings: Vec<Listing>,
}

impl Survey<'_, '_> {
    /// Every engine as the library would run it; refused ones with its words.
    fn defaults(&mut self) {
        for index in 0..self.prepared.count() as i64 {
            self.list(index, &Choice::new());
        }
    }

    /// What each heuristic mode would run.
    fn first_choices(&mut self) {
        let first: Vec<Ranked> = self
            .ranked
            .iter()
            .filter(|r| r.rank == 0)
            .cloned()
            .collect();
        for ranked in first {
            self.list(ranked.engine, &ranked.choice);
        }
    }

    /// `count` more choices: heuristics' and sampled ones in turn.
    fn sample(&mut self, count: usize) {
        let mut random = SplitMix(self.seed);
        let mut samplers = self.samplers();
        random.shuffle(&mut samplers);
        let mut rest: Vec<Ranked> = self.ranked.iter().filter(|r| r.rank > 0).cloned().collect();
        random.shuffle(&mut rest);
        let end = self.offered() + count;
        for turn in 0.. {
            if self.offered() >= end || (samplers.is_empty() && rest.is_empty()) {
                break;
            }
            if turn % 2 == 0 {
                if let Some(ranked) = rest.pop() {
                    self.list(ranked.engine, &ranked.choice);
                }
            } else if !samplers.is_empty() {
                let at = turn / 2 % samplers.len();
                let (engine, sampler) = &mut samplers[at];
                if !self.draw(*engine, sampler, random.below(2) == 0) {
                    drop(samplers.remove(at));
                }
            }
        }
    }

    /// Lists one more accepted choice of a sampler; false when it has no more.
    fn draw(&mut self, engine: i64, sampler: &mut Sampler, combine: bool) -> bool {
        for _ in 0..PATIENCE {
            let choice = if combine {
                sampler.combination().or_else(|| sampler.single())
            } else {
                sampler.single().or_else(|| sampler.combination())
            };
            match choice {
                None => return false,
                Some(choice) if self.attempt(engine, sampler, &choice) => return true,
                Some(_) => {}
            }
        }
        false
    }

    /// Everything the budget `all` stands for.
    fn everything(&mut self) {
        for ranked in &self.ranked.clone() {
            self.list(ranked.engine, &ranked.choice);
        }
        for (engine, mut sampler) in self.samplers() {
            let knobs = self.knobs(engine);
            if combinations(&knobs) <= FEW {
                for choice in every_combination(&knobs) {
                    self.attempt(engine, &mut sampler, &choice);
                }
                continue;
            }
            while let Some(choice) = sampler.single() {
                self.attempt(engine, &mut sampler, &choice);
            }
            for _ in 0..SAMPLED {
                if !self.draw(engine, &mut sampler, true) {
                    break;
                }
            }
        }
    }

    /// Tries a choice and tells the sampler; whether it is offered.
    fn attempt(&mut self, engine: i64, sampler: &mut Sampler, choice: &Choice) -> bool {
        let candidate = candidate(engine, choice);
        let asked = !self.steps.may(&candidate.to_string()) || self.accepts(engine, choice);
        let accepted = asked && self.list(engine, choice);
        sampler.learn(choice, accepted);
        accepted
    }

    /// A sampler for every engine that has knobs to choose.
    ///
    /// None for an engine that is barred.
    fn samplers(&self) -> Vec<(i64, Sampler)> {
        let mut bases: BTreeMap<i64, Vec<Choice>> = BTreeMap::new();
        for ranked in self.ranked.iter() {
            bases
                .entry(ranked.engine)
                .or_default()
                .push(ranked.choice.clone());
        }
        self.usable()
            .filter(|engine| combinations(&engine.knobs) > 1)
            .map(|engine| {
                let seed = self.seed ^ SplitMix(engine.index as u64).word();
                let bases = bases.remove(&engine.index).unwrap_or_default();
                (engine.index, Sampler::new(&engine.knobs, &bases, seed))
            })
            .collect()
    }

    fn knobs(&self, engine: i64) -> Vec<Knob> {
        self.planner
            .engine(self.prepared, engine)
            .map(|engine| engine.knobs.clone())
            .unwrap_or_default()
    }

    fn usable(&self) -> impl Iterator<Item = &Engine> {
        (0..self.prepared.count() as i64)
            .filter(|&engine| !self.bars(engine))
            .filter_map(|engine| self.planner.engine(self.prepared, engine).ok())
    }

    /// Whether an engine is barred with whatever knobs.
    fn bars(&self, engine: i64) -> bool {
        self.steps.bars(&candidate(engine, &[]).to_string())
    }

    fn offered(&self) -> usize {
        let offered = |l: &&Listing| matches!(l.support, Support::Offered { .. });
        self.barred + self.listings.iter().filter(offered).count()
    }

    /// Whether the library accepts a choice; cheap, and refusals are only
    /// counted, since most of the sampled choices are.
    fn accepts(&mut self, engine: i64, choice: &Choice) -> bool {
        let accepted = self
            .planner
            .engine(self.prepared, engine)
            .and_then(|engine| plan::configuration(self.planner.calls(), engine, choice))
            .is_ok();
        if !accepted {
            let direction = self.prepared.problem.direction.name();
            self.coverage
                .note(direction, engine, choice, Event::Refused);
        }
        accepted
    }

    /// Builds the plan of a choice and lists it unless it is listed; whether it
    /// is offered.
    fn list(&mut self, engine: i64, choice: &Choice) -> bool {
        let candidate = candidate(engine, choice);
        if self.listings.iter().any(|l| l.candidate == candidate) {
            return false;
        }
        if self.bars(engine) || !self.steps.may(&candidate.to_string()) {
            self.barred += 1;
            self.listings.push(barred(candidate));
            return true;
        }
        let support = self.planner.support(self.prepared, (engine, choice));
        let offered = matches!(support, Support::Offered { .. });
        let event = if offered {
            Event::Accepted
        } else {
            Event::Refused
        };
        let direction = self.prepared.problem.direction.name();
        self.coverage.note(direction, engine, choice, event);
        self.listings.push(Listing { candidate, support });
        offered
    }
}

fn candidate(engine: i64, choice: &[(u32, i64)]) -> Candidate {
    Candidate::Engine {
        index: engine,
        knobs: choice.to_vec(),
    }
}

/// A seed for one problem from the user's.
fn mix(seed: u64, text: &str) -> u64 {
    text.bytes().fold(SplitMix(seed).word(), |state, byte| {
        SplitMix(state ^ u64::from(byte)).word()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mix_differs_by_seed_and_text() {
        assert_ne!(mix(1, "a"), mix(2, "a"));
        assert_ne!(mix(1, "a"), mix(1, "b"));
        assert_eq!(mix(1, "a"), mix(1, "a"));
    }
}
