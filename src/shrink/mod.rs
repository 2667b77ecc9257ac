//! From a failing case to the simplest one that fails the same way.
//!
//! Shrinking knows no backend: it is given a predicate that runs a case and
//! says how it fails. It descends the total [`order`] on cases by deterministic
//! [passes](`shrink`), each trial of which is remembered; the budget is in
//! trials, so that the result does not depend on the speed of the machine.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;

use proptest::strategy::ValueTree;
use serde::{Deserialize, Serialize};

use crate::candidate::Repro;
use crate::error::{Error, Result};
use crate::fill::{Fill, FillKind};

pub mod data;
mod number;
pub mod order;
mod passes;
#[cfg(test)]
mod tests;
mod trier;
pub mod trigger;
mod types;

use order::Cost;
use trier::Trier;

/// Runs a case (a [`Repro`], or its data): `Some(class)` when it fails, `None`
/// when it does not. Two failures are the same if their classes are equal. An
/// error ends the search.
pub type Predicate<'a, T, C> = dyn FnMut(&T) -> Result<Option<C>> + 'a;

/// How far shrinking may go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Options {
    /// Most runs of the predicate.
    pub max_trials: u32,
    /// Most of these spent on proptest's own simplification.
    pub tree_trials: u32,
    /// Runs of the start case from which its failure rate is estimated.
    pub probes: u32,
    /// Most runs of one case that fails only sometimes.
    pub max_repeats: u32,
    /// Parts of the case that stay as they are.
    pub keep: Vec<Field>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            max_trials: 1_000,
            tree_trials: 50,
            probes: 5,
            max_repeats: 40,
            keep: Vec::new(),
        }
    }
}

/// A part of a case, named as in the repro line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Field {
    /// Batch.
    N,
    /// Channels of x.
    C,
    /// Channels of y.
    K,
    /// Image sizes, and with them the number of dimensions.
    In,
    /// Kernel extents, and with them the number of dimensions.
    Ker,
    /// Strides.
    Stride,
    /// Paddings.
    Pad,
    /// Dilations.
    Dil,
    /// Groups.
    G,
    /// Memory layout.
    Layout,
    /// Tensor and compute types.
    Type,
    /// The factor alpha.
    Alpha,
    /// The factor beta.
    Beta,
    /// The distribution.
    Fill,
    /// The seed of the data.
    Seed,
    /// Knob choices of an engine.
    Knobs,
}

impl Field {
    /// All fields.
    pub const ALL: [Field; 16] = [
        Field::N,
        Field::C,
        Field::K,
        Field::In,
        Field::Ker,
        Field::Stride,
        Field::Pad,
        Field::Dil,
        Field::G,
        Field::Layout,
        Field::Type,
        Field::Alpha,
        Field::Beta,
        Field::Fill,
        Field::Seed,
        Field::Knobs,
    ];

    /// The name in options.
    pub fn name(self) -> &'static str {
        match self {
            Field::N => "n",
            Field::C => "c",
            Field::K => "k",
            Field::In => "in",
            Field::Ker => "ker",
            Field::Stride => "stride",
            Field::Pad => "pad",
            Field::Dil => "dil",
            Field::G => "g",
            Field::Layout => "layout",
            Field::Type => "type",
            Field::Alpha => "alpha",
            Field::Beta => "beta",
            Field::Fill => "fill",
            Field::Seed => "seed",
            Field::Knobs => "knobs",
        }
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Field {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let found = Field::ALL.into_iter().find(|f| f.name() == text);
        found.ok_or_else(|| {
            let known: Vec<_> = Field::ALL.iter().map(|f| f.name()).collect();
            Error::parse(
                0,
                format!("unknown field '{text}'; known: {}", known.join(", ")),
            )
        })
    }
}

/// Failures among runs of one and the same case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rate {
    /// Runs that failed the same way.
    pub failed: u32,
    /// Runs.
    pub of: u32,
}

impl Rate {
    /// Whether some runs failed and some did not.
    pub fn flaky(self) -> bool {
        0 < self.failed && self.failed < self.of
    }

    /// Runs after which a case of this rate that has not failed is taken not
    /// to: missing a failure then has a chance below 1 in 100.
    fn repeats(self, most: u32) -> u32 {
        if self.failed == self.of {
            return 1;
        }
        let p = f64::from(self.failed) / f64::from(self.of);
        let runs = (0.01f64.ln() / (1.0 - p).ln()).ceil();
        (runs as u32).clamp(1, most.max(1))
    }
}

/// The end of a search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shrunk<C> {
    /// The simplest case found.
    pub repro: Repro,
    /// How it fails.
    pub class: C,
    /// Runs of the predicate, probes and confirmation included.
    pub trials: u32,
    /// Whether the budget ended the search before it was done.
    pub exhausted: bool,
    /// Failures among runs of the start case.
    pub start: Rate,
    /// Failures among the final runs of the simplest case.
    pub end: Rate,
}

/// Shrinks `start`; `None` when it does not fail in any of the probes.
///
/// The passes, repeated until none finds anything: drop a spatial dimension,
/// batch, groups, stride, dilation and padding to their defaults, kernel
/// extents to 1, channels by halving, by divisors and by steps (so that a
/// threshold such as "a multiple of 8" is found and kept), image sizes to the
/// least, types, layout, factors, knobs and data to plainer ones; then all of
/// it again with a few other kinds of data, since a structure may show only
/// with data that reveals it.
pub fn shrink<C: PartialEq>(
    start: &Repro,
    options: &Options,
    predicate: &mut Predicate<'_, Repro, C>,
) -> Result<Option<Shrunk<C>>> {
    let Some(mut shrinker) = Shrinker::start(start, options, predicate)? else {
        return Ok(None);
    };
    shrinker.run()?;
    shrinker.finish().map(Some)
}

/// As [`shrink`], but first simplifies the proptest value that the case was
/// drawn from; `repro` makes a case of it.
pub fn shrink_tree<C: PartialEq, T: ValueTree>(
    tree: &mut T,
    repro: impl Fn(T::Value) -> Repro,
    options: &Options,
    predicate: &mut Predicate<'_, Repro, C>,
) -> Result<Option<Shrunk<C>>> {
    let start = repro(tree.current());
    let Some(mut shrinker) = Shrinker::start(&start, options, predicate)? else {
        return Ok(None);
    };
    shrinker.simplify(tree, repro)?;
    shrinker.run()?;
    shrinker.finish().map(Some)
}

/// A search under way: the best case so far, and what has been tried.
struct Shrinker<'a, 'p, C> {
    trier: Trier<'a, 'p, Repro, C>,
    options: &'a Options,
    best: Repro,
    tried: HashMap<Repro, bool>,
    /// Cases with more multiply-adds than this are not tried.
    ceiling: u64,
}

impl<'a, 'p, C: PartialEq> Shrinker<'a, 'p, C> {
    /// `None` when `start` never fails.
    fn start(
        start: &Repro,
        options: &'a Options,
        predicate: &'a mut Predicate<'p, Repro, C>,
    ) -> Result<Option<Self>> {
        /// Dropping a stride makes the output larger: this much is allowed.
        const GROWTH: u64 = 8;
        let trier = Trier::start(start, options, predicate)?;
        Ok(trier.map(|trier| Shrinker {
            trier,
            options,
            best: start.clone(),
            tried: HashMap::from([(start.clone(), true)]),
            ceiling: start.problem.macs().max(1 << 20).saturating_mul(GROWTH),
        }))
    }

    /// Proptest's own search: simplify while it fails, else go back a step.
    fn simplify<T: ValueTree>(
        &mut self,
        tree: &mut T,
        repro: impl Fn(T::Value) -> Repro,
    ) -> Result<()> {
        let mut moved = tree.simplify();
        while moved && self.trier.trials < self.options.tree_trials {
            let candidate = repro(tree.current());
            if self.fails(&candidate)? {
                if Cost::of(&candidate) < Cost::of(&self.best) {
                    self.best = candidate;
                }
                moved = tree.simplify();
            } else {
                moved = tree.complicate();
            }
        }
        Ok(())
    }

    /// Descends, then from the same case with other data: a structure may need
    /// data that shows it, and the order counts data least.
    fn run(&mut self) -> Result<()> {
        self.descend()?;
        for kind in [FillKind::Impulse, FillKind::Integers, FillKind::Normal] {
            self.detour(kind)?;
        }
        Ok(())
    }

    /// Runs all passes until none finds anything.
    fn descend(&mut self) -> Result<()> {
        loop {
            let before = self.best.clone();
            for pass in Self::PASSES {
                pass(self)?;
            }
            if self.best == before || self.trier.exhausted {
                return Ok(());
            }
        }
    }

    /// Descends with data of another kind, and keeps what is simpler.
    fn detour(&mut self, kind: FillKind) -> Result<()> {
        if self.keeps(Field::Fill) || self.keeps(Field::Seed) || self.best.fill.kind == kind {
            return Ok(());
        }
        let saved = self.best.clone();
        for seed in 0..3 {
            let mut other = saved.clone();
            other.fill = Fill { kind, seed };
            if self.fails(&other)? {
                self.best = other;
                self.descend()?;
                break;
            }
        }
        if Cost::of(&saved) < Cost::of(&self.best) {
            self.best = saved;
        }
        Ok(())
    }

    /// Takes `candidate` if it is valid, simpler, and fails the same way.
    fn attempt(&mut self, candidate: Repro) -> Result<bool> {
        let problem = &candidate.problem;
        let possible = problem.validate().is_ok()
            && problem.macs() <= self.ceiling
            && Cost::of(&candidate) < Cost::of(&self.best);
        if !possible || !self.fails(&candidate)? {
            return Ok(false);
        }
        self.best = candidate;
        Ok(true)
    }

    /// Tries the best case with a change.
    fn edit(&mut self, change: impl FnOnce(&mut Repro)) -> Result<bool> {
        let mut candidate = self.best.clone();
        change(&mut candidate);
        self.attempt(candidate)
    }

    fn keeps(&self, field: Field) -> bool {
        self.options.keep.contains(&field)
    }

    /// Whether a case fails the same way, from memory where it was tried.
    fn fails(&mut self, repro: &Repro) -> Result<bool> {
        if let Some(known) = self.tried.get(repro) {
            return Ok(*known);
        }
        let Some(fails) = self.trier.fails(repro)? else {
            return Ok(false);
        };
        self.tried.insert(repro.clone(), fails);
        Ok(fails)
    }

    fn finish(mut self) -> Result<Shrunk<C>> {
        let end = self.trier.confirm(&self.best)?;
        Ok(Shrunk {
            repro: self.best,
            class: self.trier.class,
            trials: self.trier.trials,
            exhausted: self.trier.exhausted,
            start: self.trier.start,
            end,
        })
    }
}
