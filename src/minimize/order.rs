//! The order in which a candidate adds up the products of an output.

use crate::attribute::tree::{Tree, tree};
use crate::campaign::solo::Solo;
use crate::candidate::Repro;
use crate::error::{Error, Result};
use crate::geometry::Geometry;
use crate::outcome::Outcome;
use crate::shrink::data::DataPatch;

/// Most products whose order is looked for: it takes up to half the square of
/// their number of runs.
pub const MOST_PRODUCTS: usize = 160;

/// 2^15 a factor: M = 2^30 is exact in every type.
const HUGE: f64 = 32_768.0;
/// 2^-7 a factor: units of 2^-14, lost beside M in any accumulator up to fp32.
const UNIT: f64 = 0.007_812_5;

/// The order of the sum of one output, the one with the most products.
#[derive(Clone, Debug, PartialEq)]
pub struct Order {
    /// Logical offset of the output.
    pub output: usize,
    /// Its products.
    pub products: usize,
    /// How they are added up; `None` when no tree fits what came back, as where
    /// the order varies, sums are kept in double precision, or the candidate
    /// does not add products.
    pub tree: Option<Tree>,
}

/// Finds the order by runs on data made for it.
pub fn order(solo: &mut Solo, repro: &Repro) -> Result<Order> {
    let geometry = Geometry::new(&repro.problem);
    let products = |output: usize| {
        let mut list = Vec::new();
        geometry.for_each_product(output, |a, b| list.push((a, b)));
        list
    };
    const LOOKED_AT: usize = 1 << 12;
    let outputs = 0..geometry.outputs().min(LOOKED_AT);
    let output = outputs.max_by_key(|&i| products(i).len()).unwrap_or(0);
    let list = products(output);
    if list.len() > MOST_PRODUCTS {
        return Err(Error::usage(format!(
            "an output sums {} products; the order is looked for among {MOST_PRODUCTS} at most: give a smaller problem",
            list.len()
        )));
    }
    let mut failure = None;
    let found = tree(list.len(), &mut |i, j| {
        survivors(solo, repro, &list, output, [i, j]).unwrap_or_else(|e| {
            failure = Some(e);
            None
        })
    });
    match failure {
        Some(error) => Err(error),
        None => Ok(Order {
            output,
            products: list.len(),
            tree: found,
        }),
    }
}

/// Units left with +M at the first and −M at the second of `at`.
fn survivors(
    solo: &mut Solo,
    repro: &Repro,
    products: &[(usize, usize)],
    output: usize,
    at: [usize; 2],
) -> Result<Option<usize>> {
    let factor = |i: usize| if at.contains(&i) { HUGE } else { UNIT };
    let sign = |i: usize| if i == at[1] { -1.0 } else { 1.0 };
    let numbered = || products.iter().enumerate();
    let mut data = DataPatch {
        first: numbered()
            .map(|(i, p)| (p.0, sign(i) * factor(i)))
            .collect(),
        second: numbered().map(|(i, p)| (p.1, factor(i))).collect(),
        prior: Vec::new(),
    };
    data.first.sort_by_key(|e| e.0);
    data.second.sort_by_key(|e| e.0);
    let observed = solo.observe(repro, Some(&data))?;
    let Some(Outcome::Ran(seen)) = observed.map(|o| o.outcome) else {
        return Ok(None);
    };
    let units = seen.result.get(output) / (UNIT * UNIT * repro.problem.alpha.0);
    let whole = units >= 0.0 && units <= products.len() as f64 && units.fract() == 0.0;
    Ok(whole.then_some(units as usize))
}
