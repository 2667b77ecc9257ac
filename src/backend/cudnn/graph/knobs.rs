//! Which knob choices of an engine to try, and in what order.
//!
//! A [`Sampler`] gives each choice once. It starts with single values (the ends
//! of every range, then the rest), with all other knobs left to the engine, and
//! goes on to combinations: the engine's own or a heuristic's choice with some
//! knobs changed, mostly to values that were accepted before. What it gives is
//! a function of its seed and of what it was told, nothing else.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::engine::Knob;
use super::plan::Choice;
use crate::error::{Error, Result};

/// Every value of a knob with at most this many is tried on its own; of a
/// larger one (split counts up to 2,048) the ends and some tens between.
pub const SMALL: u64 = 512;

/// An engine with at most this many combinations has all of them tried under
/// [`KnobBudget::All`].
pub const FEW: u64 = 4096;

/// How many combinations of an engine with more are tried under
/// [`KnobBudget::All`].
pub const SAMPLED: usize = 1024;

/// How many knob choices of a problem are run beyond the engines' own and the
/// heuristics' first. Text forms `default`, `100`, `all`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum KnobBudget {
    /// None.
    #[default]
    Default,
    /// This many a problem, over all its engines: heuristics' further choices
    /// and sampled ones in turn.
    Count(u32),
    /// Every heuristic's choice, every single value of every knob, and all
    /// combinations of engines that have few.
    All,
}

impl fmt::Display for KnobBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KnobBudget::Default => f.write_str("default"),
            KnobBudget::Count(count) => write!(f, "{count}"),
            KnobBudget::All => f.write_str("all"),
        }
    }
}

impl FromStr for KnobBudget {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "default" => Ok(KnobBudget::Default),
            "all" => Ok(KnobBudget::All),
            _ => text.parse().map(KnobBudget::Count).map_err(|_| {
                Error::parse(
                    0,
                    format!("'{text}' is not a knob budget: expected default, a number or all"),
                )
            }),
        }
    }
}

impl TryFrom<String> for KnobBudget {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<KnobBudget> for String {
    fn from(budget: KnobBudget) -> Self {
        budget.to_string()
    }
}

/// What is known of one value of a knob.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Standing {
    accepted: u32,
    refused: u32,
}

impl Standing {
    fn hopeless(self) -> bool {
        self.accepted == 0 && self.refused >= 3
    }
}

/// Gives the knob choices of one engine for one problem.
pub struct Sampler {
    knobs: Vec<Knob>,
    bases: Vec<Choice>,
    singles: VecDeque<(u32, i64)>,
    standings: BTreeMap<(u32, i64), Standing>,
    given: HashSet<Choice>,
    random: SplitMix,
}

impl Sampler {
    /// A sampler of the combinations of `knobs`; `bases` are choices known to
    /// be plausible, which are never given themselves.
    pub fn new(knobs: &[Knob], bases: &[Choice], seed: u64) -> Sampler {
        let mut random = SplitMix(seed);
        let singles = singles(knobs, &mut random);
        let given = bases.iter().cloned().chain([Choice::new()]).collect();
        Sampler {
            knobs: knobs.to_vec(),
            bases: bases.iter().cloned().chain([Choice::new()]).collect(),
            singles: singles.into(),
            standings: BTreeMap::new(),
            given,
            random,
        }
    }

    /// The next value to be tried on its own; `None` when all were.
    pub fn single(&mut self) -> Option<Choice> {
        while let Some(value) = self.singles.pop_front() {
            let choice = vec![value];
            if self.given.insert(choice.clone()) {
                return Some(choice);
            }
        }
        None
    }

    /// A combination not given before; `None` when none was found.
    pub fn combination(&mut self) -> Option<Choice> {
        if self.knobs.is_empty() {
            return None;
        }
        for _ in 0..32 {
            let choice = self.mutated();
            if self.given.insert(choice.clone()) {
                return Some(choice);
            }
        }
        None
    }

    /// What the library said to a choice.
    pub fn learn(&mut self, choice: &[(u32, i64)], accepted: bool) {
        for &value in choice {
            let standing = self.standings.entry(value).or_default();
            match accepted {
                true => standing.accepted += 1,
                false => standing.refused += 1,
            }
        }
    }

    /// A base with two to four knobs changed, or all of them one time in four.
    fn mutated(&mut self) -> Choice {
        let base = self.random.below(self.bases.len() as u64) as usize;
        let mut choice: BTreeMap<u32, i64> = self.bases[base].iter().copied().collect();
        let changes = match self.random.below(4) {
            0 => self.knobs.len(),
            _ => 2 + self.random.below(3) as usize,
        };
        let mut knobs = self.knobs.clone();
        self.random.shuffle(&mut knobs);
        for knob in knobs.into_iter().take(changes) {
            choice.insert(knob.kind, self.draw(knob));
        }
        choice.into_iter().collect()
    }

    /// A value of a knob: three in four that was accepted, else any without a
    /// record of refusals.
    fn draw(&mut self, knob: Knob) -> i64 {
        let accepted: Vec<i64> = self
            .standings
            .range((knob.kind, i64::MIN)..=(knob.kind, i64::MAX))
            .filter(|(_, standing)| standing.accepted > 0)
            .map(|((_, value), _)| *value)
            .collect();
        if !accepted.is_empty() && self.random.below(4) < 3 {
            return accepted[self.random.below(accepted.len() as u64) as usize];
        }
        let draws: Vec<i64> = (0..8)
            .map(|_| knob.value(self.random.below(knob.count())))
            .collect();
        draws
            .iter()
            .copied()
            .find(|&value| {
                !self
                    .standings
                    .get(&(knob.kind, value))
                    .is_some_and(|s| s.hopeless())
            })
            .unwrap_or(draws[0])
    }
}

/// The values to be tried on their own: the ends of all ranges in any order,
/// then the others in any order.
fn singles(knobs: &[Knob], random: &mut SplitMix) -> Vec<(u32, i64)> {
    let mut ends = Vec::new();
    let mut others = Vec::new();
    for knob in knobs {
        let range = [knob.value(0), knob.value(knob.count() - 1)];
        for value in interesting(*knob) {
            let list = if range.contains(&value) {
                &mut ends
            } else {
                &mut others
            };
            list.push((knob.kind, value));
        }
    }
    random.shuffle(&mut ends);
    random.shuffle(&mut others);
    ends.extend(others);
    ends
}

/// The values of a knob that are tried on their own: all of a small one; of a
/// larger one the ends, powers of two, and numbers that divide little.
fn interesting(knob: Knob) -> Vec<i64> {
    if knob.count() <= SMALL {
        return (0..knob.count()).map(|index| knob.value(index)).collect();
    }
    let powers = (0..62).map(|e| 1i64 << e);
    let mut values: Vec<i64> = powers
        .flat_map(|p| [p, p - 1, p + p / 2])
        .chain([knob.value(0), knob.value(knob.count() - 1)])
        .filter(|&value| knob.holds(value))
        .collect();
    values.sort_unstable();
    values.dedup();
    values
}

/// How many combinations there are, saturating.
pub fn combinations(knobs: &[Knob]) -> u64 {
    knobs
        .iter()
        .fold(1u64, |product, knob| product.saturating_mul(knob.count()))
}

/// Every combination, all knobs set; of at most [`FEW`].
pub fn every_combination(knobs: &[Knob]) -> Vec<Choice> {
    let mut list = vec![Choice::new()];
    for knob in knobs {
        list = list
            .iter()
            .flat_map(|choice| {
                (0..knob.count()).map(move |index| {
                    let mut longer = choice.clone();
                    longer.push((knob.kind, knob.value(index)));
                    longer
                })
            })
            .collect();
    }
    list
}

/// Steele, Lea and Flood's SplitMix64 (OOPSLA 2014): small, seedable with
/// anything.
pub struct SplitMix(pub u64);

impl SplitMix {
    /// The next 64 bits.
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `bound`, which is above 0; the bias of at most
    /// bound / 2^64 does not matter here.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.word()) * u128::from(bound)) >> 64) as u64
    }

    /// Puts a list in any order.
    pub fn shuffle<T>(&mut self, list: &mut [T]) {
        for i in (1..list.len()).rev() {
            list.swap(i, self.below(i as u64 + 1) as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn knob(kind: u32, minimum: i64, maximum: i64) -> Knob {
        Knob {
            kind,
            minimum,
            maximum,
            stride: 1,
        }
    }

    fn some_knobs() -> impl Strategy<Value = Vec<Knob>> {
        proptest::collection::vec((0i64..3, 0i64..2100, 1i64..3), 1..6).prop_map(|list| {
            list.into_iter()
                .enumerate()
                .map(|(kind, (minimum, span, stride))| Knob {
                    kind: kind as u32,
                    minimum,
                    maximum: minimum + span,
                    stride,
                })
                .collect()
        })
    }

    /// Runs a sampler against a library that accepts what `accepts` says.
    fn sample(
        knobs: &[Knob],
        seed: u64,
        count: usize,
        accepts: impl Fn(&Choice) -> bool,
    ) -> Vec<(Choice, bool)> {
        let mut sampler = Sampler::new(knobs, &[], seed);
        let mut list = Vec::new();
        while list.len() < count {
            let Some(choice) = sampler.single().or_else(|| sampler.combination()) else {
                break;
            };
            let accepted = accepts(&choice);
            sampler.learn(&choice, accepted);
            list.push((choice, accepted));
        }
        list
    }

    proptest! {
        #[test]
        fn sampler_same_seed_gives_the_same_choices(knobs in some_knobs(), seed: u64) {
            let accepts = |c: &Choice| c.iter().all(|(_, v)| v % 3 != 0);
            prop_assert_eq!(sample(&knobs, seed, 300, accepts), sample(&knobs, seed, 300, accepts));
        }

        #[test]
        fn sampler_never_repeats_and_never_leaves_a_range(knobs in some_knobs(), seed: u64) {
            let list = sample(&knobs, seed, 500, |c| c.len() % 2 == 1);
            let distinct: HashSet<&Choice> = list.iter().map(|(c, _)| c).collect();
            prop_assert_eq!(distinct.len(), list.len());
            for (kind, value) in list.iter().flat_map(|(c, _)| c) {
                prop_assert!(knobs.iter().any(|k| k.kind == *kind && k.holds(*value)));
            }
        }

        #[test]
        fn sampler_ends_come_first_and_small_knobs_before_combinations(
            knobs in some_knobs(), seed: u64
        ) {
            let list = sample(&knobs, seed, 100_000.min(600 * knobs.len()), |_| true);
            let first = list.iter().position(|(c, _)| c.len() > 1).unwrap_or(list.len());
            let at = |value: (u32, i64)| list.iter().position(|(c, _)| *c == vec![value]);
            for knob in &knobs {
                for end in [0, knob.count() - 1] {
                    prop_assert!(at((knob.kind, knob.value(end))).unwrap() < 2 * knobs.len());
                }
                for value in interesting(*knob) {
                    prop_assert!(at((knob.kind, value)).unwrap() < first);
                }
            }
        }
    }

    #[test]
    fn sampler_favours_values_that_were_accepted() {
        let knobs = [knob(2, 0, 23), knob(17, 1, 2048)];
        // A third of the tiles, as on an H200.
        let accepts = |c: &Choice| c.iter().all(|&(k, v)| k != 2 || v % 3 == 1);
        let list = sample(&knobs, 7, 800, accepts);
        let combinations: Vec<_> = list.iter().filter(|(c, _)| c.len() > 1).collect();
        let accepted = combinations.iter().filter(|(_, yes)| *yes).count();
        assert!(combinations.len() > 500, "{}", combinations.len());
        assert!(accepted * 10 > combinations.len() * 7, "{accepted}");
    }

    #[test]
    fn sampler_bases_are_changed_and_never_given() {
        let knobs = [knob(1, 0, 9), knob(2, 0, 9), knob(3, 0, 9)];
        let base = vec![(1, 4), (2, 5), (3, 6)];
        let mut sampler = Sampler::new(&knobs, std::slice::from_ref(&base), 1);
        let list: Vec<Choice> = (0..200).filter_map(|_| sampler.combination()).collect();
        assert!(!list.contains(&base));
        let near = |c: &&Choice| c.len() == 3 && c.iter().any(|v| base.contains(v));
        assert!(list.iter().filter(near).count() > 20);
    }

    #[test]
    fn sampler_without_knobs_gives_nothing() {
        let mut sampler = Sampler::new(&[], &[], 1);
        assert_eq!((sampler.single(), sampler.combination()), (None, None));
    }

    #[test]
    fn every_combination_is_the_whole_product() {
        let knobs = [knob(1, 0, 2), knob(2, 5, 6)];
        let list = every_combination(&knobs);
        assert_eq!(list.len() as u64, combinations(&knobs));
        assert_eq!(list[0], [(1, 0), (2, 5)]);
        assert_eq!(list[5], [(1, 2), (2, 6)]);
    }

    #[test]
    fn combinations_of_huge_spaces_saturate() {
        let wide = knob(1, 0, i64::MAX - 1);
        assert_eq!(combinations(&[wide, wide, wide]), u64::MAX);
    }

    #[test]
    fn budget_text_forms_round_trip() {
        for text in ["default", "0", "100", "all"] {
            assert_eq!(text.parse::<KnobBudget>().unwrap().to_string(), text);
            let json = serde_json::to_string(&text.parse::<KnobBudget>().unwrap()).unwrap();
            let back: KnobBudget = serde_json::from_str(&json).unwrap();
            assert_eq!(back.to_string(), text);
        }
        assert_eq!(
            "some".parse::<KnobBudget>().unwrap_err().position(),
            Some(0)
        );
    }

    #[test]
    fn interesting_values_of_a_large_knob_are_ends_and_powers() {
        assert_eq!(interesting(knob(1, 4, 6)), [4, 5, 6]);
        let large = interesting(knob(17, 1, 2048));
        assert_eq!((large[0], large[large.len() - 1]), (1, 2048));
        assert!([2, 3, 7, 1024].iter().all(|v| large.contains(v)));
        assert!(large.len() < 40);
    }
}
