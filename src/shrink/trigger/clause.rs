//! Conditions on one feature, and the choice of the fewest that tell failing
//! from passing cases.

use std::collections::BTreeSet;
use std::fmt;

use serde::Serialize;

use super::feature::{Feature, Value};
use super::pool::{Case, Pool};
use crate::candidate::Repro;

/// A condition on one feature.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct Clause {
    /// What it speaks of.
    pub feature: Feature,
    /// What is required of it.
    pub test: Test,
}

/// What is required of a feature.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Test {
    /// Exactly this.
    Is(Value),
    /// Anything but this.
    IsNot(Value),
    /// This or more.
    AtLeast(i64),
    /// This or less.
    AtMost(i64),
    /// A multiple of this.
    Multiple(i64),
    /// Not a multiple of this.
    NotMultiple(i64),
    /// One of these.
    OneOf(BTreeSet<Value>),
}

impl Clause {
    /// Whether `repro` satisfies the condition.
    pub fn holds(&self, repro: &Repro) -> bool {
        self.test.holds(&self.feature.of(repro))
    }

    /// How hard the condition is to read: the fewest and plainest clauses are
    /// chosen. Only the order of these figures matters.
    fn weight(&self) -> u32 {
        let test = match &self.test {
            Test::Is(Value::Word(_)) => 10,
            Test::IsNot(_) => 11,
            Test::Is(Value::Number(_)) => 11,
            Test::Multiple(_) | Test::AtLeast(_) => 12,
            Test::AtMost(_) | Test::NotMultiple(_) => 13,
            Test::OneOf(set) if set.iter().all(|v| number(v).is_none()) => 12 + set.len() as u32,
            Test::OneOf(set) => 24 + 2 * set.len() as u32,
        };
        test + if self.feature.derived() { 3 } else { 0 }
    }
}

impl Test {
    pub(super) fn holds(&self, value: &Value) -> bool {
        match (self, value) {
            (Test::Is(wanted), value) => wanted == value,
            (Test::IsNot(other), value) => other != value,
            (Test::OneOf(set), value) => set.contains(value),
            (Test::AtLeast(least), Value::Number(v)) => v >= least,
            (Test::AtMost(most), Value::Number(v)) => v <= most,
            (Test::Multiple(of), Value::Number(v)) => v % of == 0,
            (Test::NotMultiple(of), Value::Number(v)) => v % of != 0,
            (_, Value::Word(_)) => false,
        }
    }
}

/// Every clause that all failing cases of the pool satisfy.
pub(super) fn candidates(pool: &Pool) -> Vec<Clause> {
    let features = pool.features().iter().enumerate();
    features
        .flat_map(|(column, &feature)| {
            let failing: BTreeSet<&Value> = pool.failing().map(|c| &c.values[column]).collect();
            let passing: BTreeSet<&Value> = pool.passing().map(|c| &c.values[column]).collect();
            let mut tests = tests(&failing);
            if feature.enumerated() {
                let never = passing.difference(&failing);
                tests.extend(never.map(|v| Test::IsNot((*v).clone())));
            }
            tests.into_iter().map(move |test| Clause { feature, test })
        })
        .collect()
}

/// Tests that hold for all failing values.
fn tests(failing: &BTreeSet<&Value>) -> Vec<Test> {
    /// Longer lists of values explain nothing.
    const LONGEST: usize = 4;
    let mut list = Vec::new();
    if let (1, Some(only)) = (failing.len(), failing.first()) {
        list.push(Test::Is((*only).clone()));
    } else if failing.len() <= LONGEST {
        list.push(Test::OneOf(failing.iter().map(|v| (*v).clone()).collect()));
    }
    let numbers: Option<Vec<i64>> = failing.iter().map(|v| number(v)).collect();
    list.extend(numbers.map(|n| number_tests(&n)).unwrap_or_default());
    list
}

fn number(value: &Value) -> Option<i64> {
    match value {
        Value::Number(number) => Some(*number),
        Value::Word(_) => None,
    }
}

/// Tests that hold for all of `numbers`, which ascend.
fn number_tests(numbers: &[i64]) -> Vec<Test> {
    /// Moduli that kernels care about.
    const MODULI: [i64; 10] = [2, 3, 4, 5, 6, 7, 8, 16, 32, 64];
    let (Some(least), Some(most)) = (numbers.first(), numbers.last()) else {
        return Vec::new();
    };
    let mut list = vec![Test::AtLeast(*least), Test::AtMost(*most)];
    let all = |is: &dyn Fn(i64) -> bool| numbers.iter().all(|v| is(*v));
    for of in MODULI {
        if all(&|v| v % of == 0) {
            list.push(Test::Multiple(of));
        } else if all(&|v| v % of != 0) {
            list.push(Test::NotMultiple(of));
        }
    }
    list
}

/// The fewest, plainest clauses that all failing cases satisfy and every
/// passing case violates, as far as there are any: greedy set cover (Chvátal,
/// Math. Oper. Res. 4, 1979), of which then superfluous clauses are dropped and
/// pairs replaced by a plainer single one.
pub(super) fn cover(pool: &Pool) -> Vec<Clause> {
    let mut cover = Cover::new(pool);
    cover.greedy();
    cover.prune();
    cover.join_pairs();
    cover.prune();
    cover.clauses()
}

/// A choice of clauses under way.
struct Cover {
    all: Vec<Clause>,
    /// By clause, by passing case: whether it is excluded.
    excludes: Vec<Vec<bool>>,
    /// Number of passing cases.
    cases: usize,
    chosen: Vec<usize>,
}

impl Cover {
    fn new(pool: &Pool) -> Self {
        let all = candidates(pool);
        let excludes = all.iter().map(|clause| {
            let column = pool.column(clause.feature);
            let outside = |case: &Case| !clause.test.holds(&case.values[column]);
            pool.passing().map(outside).collect()
        });
        Cover {
            excludes: excludes.collect(),
            cases: pool.passing().count(),
            all,
            chosen: Vec::new(),
        }
    }

    fn greedy(&mut self) {
        let mut open: Vec<usize> = (0..self.cases).collect();
        while let Some(best) = self.best(&open) {
            open.retain(|case| !self.excludes[best][*case]);
            self.chosen.push(best);
        }
    }

    /// The clause that excludes most of `open` for its weight, if any does.
    fn best(&self, open: &[usize]) -> Option<usize> {
        let gain = |i: usize| open.iter().filter(|case| self.excludes[i][**case]).count();
        let value = |i: usize| gain(i) as f64 / f64::from(self.all[i].weight());
        let best = (0..self.all.len()).max_by(|&a, &b| {
            let by_value = value(a).total_cmp(&value(b));
            by_value.then_with(|| self.all[b].cmp(&self.all[a]))
        });
        best.filter(|i| gain(*i) > 0)
    }

    /// How many passing cases the clauses in `list` exclude together.
    fn excluded(&self, list: &[usize]) -> usize {
        let hit = |case: &usize| list.iter().any(|i| self.excludes[*i][*case]);
        (0..self.cases).filter(hit).count()
    }

    fn without(&self, dropped: &[usize]) -> Vec<usize> {
        let kept = self.chosen.iter().filter(|i| !dropped.contains(*i));
        kept.copied().collect()
    }

    /// Drops clauses that the others make superfluous, hardest to read first.
    fn prune(&mut self) {
        let all = self.excluded(&self.chosen);
        let mut order = self.chosen.clone();
        order.sort_by_key(|i| std::cmp::Reverse(self.all[*i].weight()));
        for i in order {
            let rest = self.without(&[i]);
            if self.excluded(&rest) == all {
                self.chosen = rest;
            }
        }
    }

    fn join_pairs(&mut self) {
        while let Some(joined) = self.joined() {
            self.chosen = joined;
        }
    }

    /// The choice with two clauses replaced by the plainest one that does as
    /// much and is plainer than both together.
    fn joined(&self) -> Option<Vec<usize>> {
        let all = self.excluded(&self.chosen);
        let pairs = self.chosen.iter().enumerate();
        let pairs = pairs.flat_map(|(n, a)| self.chosen[n + 1..].iter().map(move |b| (*a, *b)));
        let mut order: Vec<usize> = (0..self.all.len()).collect();
        order.sort_by_key(|i| self.all[*i].weight());
        pairs.into_iter().find_map(|(a, b)| {
            let weight = self.all[a].weight() + self.all[b].weight();
            let plainer = order.iter().filter(|i| self.all[**i].weight() < weight);
            let mut lists = plainer.map(|i| [self.without(&[a, b]), vec![*i]].concat());
            lists.find(|list| self.excluded(list) == all)
        })
    }

    fn clauses(&self) -> Vec<Clause> {
        let mut list: Vec<_> = self.chosen.iter().map(|i| self.all[*i].clone()).collect();
        list.sort();
        list
    }
}

impl fmt::Display for Clause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let feature = self.feature;
        match &self.test {
            Test::Is(Value::Word(yes)) if yes == "true" => write!(f, "{feature}"),
            Test::Is(Value::Word(no)) if no == "false" => write!(f, "not {feature}"),
            Test::Is(value) => write!(f, "{feature} == {value}"),
            Test::IsNot(value) => write!(f, "{feature} != {value}"),
            Test::AtLeast(least) => write!(f, "{feature} >= {least}"),
            Test::AtMost(most) => write!(f, "{feature} <= {most}"),
            Test::Multiple(of) => write!(f, "{feature} % {of} == 0"),
            Test::NotMultiple(of) => write!(f, "{feature} % {of} != 0"),
            Test::OneOf(set) => {
                let words: Vec<_> = set.iter().map(Value::to_string).collect();
                write!(f, "{feature} in {{{}}}", words.join(", "))
            }
        }
    }
}
