//! Trigger inference: the condition under which a case fails, in words and as
//! data, each clause backed by counted trials.
//!
//! The search learns a conjunction of [`Clause`]s from cases it chooses itself.
//! All failing cases satisfy every clause kept; every passing case violates at
//! least one; of such sets the one with the fewest and plainest clauses is the
//! hypothesis ([`clause::cover`]). Rounds of trials then try to break it: cases
//! that violate one clause alone (if they fail, the clause is wrong), and cases
//! that satisfy all (if they pass, one is missing). At last the condition is
//! checked on cases it has never seen.
//!
//! Alternatives ("or") are expressed only as sets of values of one feature and
//! by features that look over all dimensions, such as the largest stride. Where
//! that is not enough, the check says so.

use std::cell::Cell;
use std::fmt;

use serde::{Serialize, Serializer};

use super::trier::Trier;
use super::{Options, Predicate};
use crate::candidate::Repro;
use crate::error::Result;
use crate::strategy::Limits;

mod clause;
mod feature;
mod pool;
mod propose;
#[cfg(test)]
mod tests;

pub use clause::{Clause, Test};
pub use feature::{Feature, Value};
use pool::{Case, Pool};
use propose::Proposer;

/// How much is tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Effort {
    /// Most runs of the predicate while learning.
    pub max_trials: u32,
    /// Cases of the final check: half drawn afresh, half mixed with failing
    /// ones so that both sides occur.
    pub check: u32,
    /// Seeds the choice of cases.
    pub seed: u64,
    /// Where cases come from.
    pub limits: Limits,
}

impl Default for Effort {
    fn default() -> Self {
        Effort {
            max_trials: 1_000,
            check: 200,
            seed: 0,
            limits: Limits::default(),
        }
    }
}

/// The condition under which a fault shows.
#[derive(Clone, Debug, Serialize)]
pub struct Trigger {
    /// All must hold.
    pub clauses: Vec<Evidence>,
    /// Failing and passing cases it was learnt from.
    pub learnt_from: (u32, u32),
    /// How it did on cases it had not seen.
    pub check: Check,
    /// Whether the last rounds of learning found nothing against it.
    pub settled: bool,
    /// Runs of the predicate, check included.
    pub trials: u32,
}

/// A clause, and the trials that speak for it. Where `passing` is 0, no case
/// was found that violates this clause alone: it may be stricter than needed.
#[derive(Clone, Debug, Serialize)]
pub struct Evidence {
    /// The condition.
    pub clause: Clause,
    /// Failing cases, all of which satisfy it.
    pub failing: u32,
    /// Passing cases that violate it and no other clause.
    pub passing: u32,
    /// One of the latter.
    #[serde(serialize_with = "lines")]
    pub example: Option<Repro>,
}

/// Predictions of a finished condition on fresh cases.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Check {
    /// Predicted to fail, and did.
    pub true_fail: u32,
    /// Predicted to fail, but passed.
    pub false_fail: u32,
    /// Predicted to pass, but failed.
    pub false_pass: u32,
    /// Predicted to pass, and did.
    pub true_pass: u32,
    /// The cases that were predicted wrongly.
    #[serde(serialize_with = "lines")]
    pub counterexamples: Vec<Repro>,
}

impl Check {
    /// Share of predicted failures that failed; `None` without any.
    pub fn precision(&self) -> Option<f64> {
        ratio(self.true_fail, self.true_fail + self.false_fail)
    }

    /// Share of failures that were predicted; `None` without any.
    pub fn recall(&self) -> Option<f64> {
        ratio(self.true_fail, self.true_fail + self.false_pass)
    }
}

fn ratio(part: u32, whole: u32) -> Option<f64> {
    (whole > 0).then(|| f64::from(part) / f64::from(whole))
}

/// What a run of a case showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen<C> {
    /// It fails this way.
    Fails(C),
    /// It does not fail.
    Passes,
    /// It cannot be run, which says nothing of the fault.
    Refused,
}

impl<C> From<Option<C>> for Seen<C> {
    fn from(class: Option<C>) -> Self {
        class.map_or(Seen::Passes, Seen::Fails)
    }
}

/// Infers the condition under which cases like `minimum` fail; `None` when
/// `minimum` itself does not. `known` are further cases that failed the same
/// way, such as the start of the shrinking.
pub fn infer<C: PartialEq>(
    minimum: &Repro,
    known: &[Repro],
    effort: &Effort,
    predicate: &mut Predicate<'_, Repro, C>,
) -> Result<Option<Trigger>> {
    infer_among(minimum, known, effort, &mut |r| {
        predicate(r).map(Seen::from)
    })
}

/// As [`infer`], among the cases that can be run: the condition is not to tell
/// which cases a candidate refuses.
pub fn infer_among<C: PartialEq>(
    minimum: &Repro,
    known: &[Repro],
    effort: &Effort,
    predicate: &mut dyn FnMut(&Repro) -> Result<Seen<C>>,
) -> Result<Option<Trigger>> {
    let options = Options {
        max_trials: effort.max_trials,
        ..Options::default()
    };
    let refused = Cell::new(false);
    let mut classes = |repro: &Repro| {
        let seen = predicate(repro)?;
        refused.set(matches!(seen, Seen::Refused));
        Ok(match seen {
            Seen::Fails(class) => Some(class),
            Seen::Passes | Seen::Refused => None,
        })
    };
    let Some(trier) = Trier::start(minimum, &options, &mut classes)? else {
        return Ok(None);
    };
    let mut search = Search {
        trier,
        proposer: Proposer::new(&effort.limits, effort.seed),
        pool: Pool::new(minimum),
        minimum,
        hypothesis: Vec::new(),
        refused: &refused,
    };
    search.pool.add(minimum, true);
    for repro in known {
        search.run(repro)?;
    }
    search.teach(effort).map(Some)
}

/// Rounds without a surprise after which the hypothesis is settled.
const QUIET_ROUNDS: u32 = 6;
/// Cases per clause and round that violate it alone.
const CHALLENGES: usize = 3;
/// Cases per round that satisfy the hypothesis.
const CONFIRMATIONS: usize = 10;
/// Cases per round of no particular kind.
const STRAYS: usize = 4;
/// Proposals looked at to find one that is wanted, and wanted ones of which the
/// most novel is taken.
const PATIENCE: usize = 120;
/// See [`PATIENCE`].
const CHOICE: usize = 8;
/// Times that a check which found errors is followed by more learning.
const LESSONS: u32 = 3;

/// A clause that no more than one in so many passing cases speaks for is noise.
const NOISE_SHARE: usize = 100;

struct Search<'a, 'p, C> {
    trier: Trier<'a, 'p, Repro, C>,
    proposer: Proposer,
    pool: Pool,
    minimum: &'a Repro,
    hypothesis: Vec<Clause>,
    /// Whether the latest run was refused.
    refused: &'a Cell<bool>,
}

impl<C: PartialEq> Search<'_, '_, C> {
    /// Runs a case and remembers it: whether it fails, `None` when it is refused
    /// or the budget ends.
    fn run(&mut self, repro: &Repro) -> Result<Option<bool>> {
        let fails = self.decide(repro)?;
        if let Some(fails) = fails {
            self.pool.add(repro, fails);
        }
        Ok(fails)
    }

    fn decide(&mut self, repro: &Repro) -> Result<Option<bool>> {
        let fails = self.trier.fails(repro)?;
        if fails.is_some() && self.refused.get() {
            self.pool.void(repro);
            return Ok(None);
        }
        Ok(fails)
    }

    /// Learns until nothing surprises any more, or the budget ends; whether
    /// the former.
    fn learn(&mut self) -> Result<bool> {
        let mut quiet = 0;
        while quiet < QUIET_ROUNDS {
            self.hypothesis = clause::cover(&self.pool);
            let surprises = self.round()?;
            if self.trier.exhausted {
                self.hypothesis = clause::cover(&self.pool);
                self.drop_noise();
                return Ok(false);
            }
            quiet = if surprises == 0 { quiet + 1 } else { 0 };
        }
        self.drop_noise();
        Ok(true)
    }

    /// Drops clauses that rest on next to nothing: data that happens not to
    /// show a fault makes a few cases pass that should not.
    fn drop_noise(&mut self) {
        let passing = self.pool.passing().count();
        let least = (passing / NOISE_SHARE).max(1);
        loop {
            let support = |at: usize| {
                let alone = |c: &&Case| self.is(Wanted::Violating(at), &c.repro);
                self.pool.passing().filter(alone).count()
            };
            let weakest = (0..self.hypothesis.len()).map(|at| (support(at), at)).min();
            match weakest {
                Some((support, at)) if support <= least && passing > least => {
                    self.hypothesis.remove(at);
                }
                _ => return,
            }
        }
    }

    /// Tries to break the hypothesis; the number of wrong predictions.
    fn round(&mut self) -> Result<u32> {
        let mut surprises = 0;
        for at in 0..self.hypothesis.len() {
            for _ in 0..CHALLENGES {
                surprises += self.try_one(Wanted::Violating(at))?;
            }
        }
        for _ in 0..CONFIRMATIONS {
            surprises += self.try_one(Wanted::Satisfying)?;
        }
        for _ in 0..STRAYS {
            surprises += self.try_one(Wanted::Any)?;
        }
        Ok(surprises)
    }

    /// Runs a case of the wanted kind, if one is found; 1 when the hypothesis
    /// predicted it wrongly.
    fn try_one(&mut self, wanted: Wanted) -> Result<u32> {
        let Some(repro) = self.find(wanted)? else {
            return Ok(0);
        };
        let predicted = self.predict(&repro);
        let fails = self.run(&repro)?;
        Ok(u32::from(fails.is_some_and(|fails| fails != predicted)))
    }

    /// The most novel of a few new cases of the wanted kind.
    fn find(&mut self, wanted: Wanted) -> Result<Option<Repro>> {
        let mut best: Option<(usize, Repro)> = None;
        let mut found = 0;
        for _ in 0..PATIENCE {
            let base = self.base();
            let proposal = self.proposer.near(&base)?;
            let new = proposal.filter(|p| !self.pool.has(p) && self.is(wanted, p));
            let Some(repro) = new else {
                continue;
            };
            let novelty = self.novelty(wanted, &repro);
            if best.as_ref().is_none_or(|(most, _)| novelty > *most) {
                best = Some((novelty, repro));
            }
            found += 1;
            if found == CHOICE {
                break;
            }
        }
        Ok(best.map(|(_, repro)| repro))
    }

    /// How much a case would teach: a new value of the clause it violates, or
    /// values that no failing case has had.
    fn novelty(&self, wanted: Wanted, repro: &Repro) -> usize {
        match wanted {
            Wanted::Violating(at) => {
                usize::from(self.pool.is_new(self.hypothesis[at].feature, repro))
            }
            Wanted::Satisfying | Wanted::Any => self.pool.news(repro),
        }
    }

    /// A failing case to start from: the minimum, or any other.
    fn base(&mut self) -> Repro {
        let count = self.pool.failing().count();
        let at = self.proposer.below(2 * count);
        let found = self.pool.failing().nth(at);
        found.map_or_else(|| self.minimum.clone(), |case| case.repro.clone())
    }

    fn is(&self, wanted: Wanted, repro: &Repro) -> bool {
        let mut violated = (0..self.hypothesis.len()).filter(|i| !self.hypothesis[*i].holds(repro));
        match wanted {
            Wanted::Any => true,
            Wanted::Satisfying => violated.next().is_none(),
            Wanted::Violating(at) => violated.next() == Some(at) && violated.next().is_none(),
        }
    }

    fn predict(&self, repro: &Repro) -> bool {
        self.is(Wanted::Satisfying, repro)
    }

    /// Learns and checks, and again with what the check found wrong.
    fn teach(mut self, effort: &Effort) -> Result<Trigger> {
        let mut budget = effort.max_trials.saturating_sub(self.trier.trials);
        let mut lesson = 1;
        loop {
            let before = self.trier.trials;
            self.trier.allow(budget);
            let settled = self.learn()?;
            budget = budget.saturating_sub(self.trier.trials - before);
            self.trier.allow_cases(effort.check);
            let (check, cases) = self.check(effort.check)?;
            let done = check.counterexamples.is_empty() || !settled || lesson == LESSONS;
            if done {
                return Ok(self.conclude(settled, check));
            }
            cases
                .iter()
                .for_each(|(repro, fails)| self.pool.add(repro, *fails));
            lesson += 1;
        }
    }

    fn conclude(self, settled: bool, check: Check) -> Trigger {
        let clauses = (0..self.hypothesis.len()).map(|at| self.evidence(at));
        Trigger {
            clauses: clauses.collect(),
            learnt_from: (
                count(self.pool.failing().count()),
                count(self.pool.passing().count()),
            ),
            check,
            settled,
            trials: self.trier.trials,
        }
    }

    /// Predicts cases that have not been learnt from, then runs them.
    fn check(&mut self, cases: u32) -> Result<(Check, Vec<(Repro, bool)>)> {
        let mut check = Check::default();
        let mut seen = Vec::new();
        for number in 0..cases {
            let repro = self.unseen(number % 2 == 0)?;
            let Some(fails) = self.decide(&repro)? else {
                if self.trier.exhausted {
                    break;
                }
                continue;
            };
            let predicted = self.predict(&repro);
            *match (predicted, fails) {
                (true, true) => &mut check.true_fail,
                (true, false) => &mut check.false_fail,
                (false, true) => &mut check.false_pass,
                (false, false) => &mut check.true_pass,
            } += 1;
            if predicted != fails {
                check.counterexamples.push(repro.clone());
            }
            seen.push((repro, fails));
        }
        Ok((check, seen))
    }

    /// A case that has not been learnt from.
    fn unseen(&mut self, fresh: bool) -> Result<Repro> {
        loop {
            let base = self.base();
            let repro = if fresh {
                Some(self.proposer.fresh(&base)?)
            } else {
                self.proposer.mixed(&base)?
            };
            if let Some(repro) = repro.filter(|r| !self.pool.has(r)) {
                return Ok(repro);
            }
        }
    }

    fn evidence(&self, at: usize) -> Evidence {
        let outside = || {
            let alone = |r: &Repro| self.is(Wanted::Violating(at), r);
            self.pool.passing().filter(move |c| alone(&c.repro))
        };
        Evidence {
            clause: self.hypothesis[at].clone(),
            failing: count(self.pool.failing().count()),
            passing: count(outside().count()),
            example: outside().next().map(|c| c.repro.clone()),
        }
    }
}

fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

/// Which case is looked for.
#[derive(Clone, Copy)]
enum Wanted {
    Any,
    /// One that the hypothesis says fails.
    Satisfying,
    /// One that violates this clause alone.
    Violating(usize),
}

impl Trigger {
    /// Whether `repro` is predicted to fail.
    pub fn holds(&self, repro: &Repro) -> bool {
        self.clauses.iter().all(|e| e.clause.holds(repro))
    }

    /// Whether the check bears it out: at least four in five of what it predicts
    /// to fail did, and of what failed was predicted.
    pub fn is_credible(&self) -> bool {
        self.check.precision() >= Some(0.8) && self.check.recall() >= Some(0.8)
    }

    /// Number of cases of the final check.
    pub fn checked(&self) -> u32 {
        let check = &self.check;
        check.true_fail + check.false_fail + check.false_pass + check.true_pass
    }
}

impl fmt::Display for Trigger {
    /// `c % 8 == 0 and k % 8 == 0 and kernel == (3,1,1) and type == fp16`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<String> = self.clauses.iter().map(|e| e.clause.to_string()).collect();
        match words.is_empty() {
            true => f.write_str("always"),
            false => f.write_str(&words.join(" and ")),
        }
    }
}

impl fmt::Display for Evidence {
    /// `c % 8 == 0: 40 failing inside, 12 passing outside it alone, e.g. …`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (clause, failing, passing) = (&self.clause, self.failing, self.passing);
        write!(
            f,
            "{clause}: {failing} failing inside, {passing} passing outside it alone"
        )?;
        let mut examples = self.example.iter();
        examples.try_for_each(|repro| write!(f, ", e.g. {repro}"))
    }
}

/// Cases as their repro lines.
fn lines<'a, S: Serializer>(
    cases: impl IntoIterator<Item = &'a Repro>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(cases.into_iter().map(Repro::to_string))
}
