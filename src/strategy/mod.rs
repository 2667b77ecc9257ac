//! Where cases come from: proptest strategies for problems and their data,
//! valid by construction and aimed at the boundaries where kernels change.
//!
//! A draw is made in two steps. A [`recipe`] says what is wanted, one
//! independent choice per feature; building it cuts sizes, never features,
//! until the problem is within its [`Limits`]. Nothing is rejected, and the
//! choices shrink towards plain ones, so that proptest's own simplification
//! leads to small problems.

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::strategy::Union;

use crate::fill::{Fill, FillKind, Regime};
use crate::problem::ConvProblem;

mod choices;
mod limits;
mod recipe;
#[cfg(test)]
mod tests;

pub use limits::{Limits, Percentages, Types};

/// One problem and the data it is run with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Draw {
    /// The problem.
    pub problem: ConvProblem,
    /// One fill per regime in the order of [`Regime`]: exact integers, rounding
    /// sensitive, and in some draws a special one.
    pub fills: Vec<Fill>,
}

/// Draws within `limits`, which must be valid (see [`Limits::validate`]).
/// Fills come from every regime that `limits.fills` leaves a kind in.
pub fn draw(limits: &Limits) -> BoxedStrategy<Draw> {
    (problem(limits), fills(limits))
        .prop_map(|(problem, fills)| Draw { problem, fills })
        .boxed()
}

/// Problems within `limits`.
pub fn problem(limits: &Limits) -> BoxedStrategy<ConvProblem> {
    let limits = limits.clone();
    choices::recipes(&limits)
        // Building never fails; the check is for faults of the builder, which
        // must not reach a library.
        .prop_filter_map("a problem that does not validate", move |recipe| {
            let problem = recipe.build(&limits);
            problem.validate().is_ok().then_some(problem)
        })
        .boxed()
}

fn fills(limits: &Limits) -> BoxedStrategy<Vec<Fill>> {
    let exact = of_regime(&limits.fills, Regime::ExactInteger, 100);
    let rounding = of_regime(&limits.fills, Regime::RoundingSensitive, 100);
    let special = of_regime(
        &limits.fills,
        Regime::Special,
        limits.percent.special_fill.max(lone_special(limits)),
    );
    (exact, rounding, special)
        .prop_map(|(a, b, c)| [a, b, c].concat())
        .boxed()
}

/// Special fills are in every draw when nothing else is allowed.
fn lone_special(limits: &Limits) -> u32 {
    let on = |(kind, weight): (&FillKind, &u32)| *weight > 0 && kind.regime() != Regime::Special;
    if limits.fills.iter().any(on) { 0 } else { 100 }
}

/// At most one fill of `regime`, with a chance of `percent`.
fn of_regime(
    weights: &BTreeMap<FillKind, u32>,
    regime: Regime,
    percent: u32,
) -> BoxedStrategy<Vec<Fill>> {
    let kinds: Vec<_> = weights
        .iter()
        .filter(|(kind, weight)| kind.regime() == regime && **weight > 0)
        .map(|(kind, weight)| (*weight, Just(*kind)))
        .collect();
    if kinds.is_empty() || percent == 0 {
        return Just(Vec::new()).boxed();
    }
    // 32-bit seeds keep repro lines short.
    let fill = (Union::new_weighted(kinds), any::<u32>()).prop_map(|(kind, seed)| Fill {
        kind,
        seed: seed.into(),
    });
    match percent {
        100.. => vec(fill, 1).boxed(),
        _ => proptest::option::weighted(f64::from(percent) / 100.0, fill)
            .prop_map(|fill| fill.into_iter().collect())
            .boxed(),
    }
}
