//! Where in the result the errors sit.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::problem::{ConvProblem, Role};

/// Which indices of one dimension of the result are wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Marginal {
    /// The dimension: n, c, k, d, h or w.
    pub axis: String,
    /// Its size.
    pub size: usize,
    /// Number of indices with an error.
    pub wrong: usize,
    /// They in words: `all`, `only the last`, `only k >= 32`, `period 8 from 3`…
    pub words: String,
}

/// The wrong indices of every dimension; `wrong` are logical offsets.
pub fn marginals(problem: &ConvProblem, wrong: &[usize]) -> Vec<Marginal> {
    let role = problem.direction.result();
    let dims = problem.dims(role);
    let mut step = dims.iter().product::<usize>();
    let names = axis_names(role, dims.len());
    dims.iter()
        .zip(names)
        .map(|(&size, axis)| {
            step /= size;
            let indices: BTreeSet<usize> = wrong.iter().map(|i| i / step % size).collect();
            Marginal {
                words: words(&axis, size, &indices),
                wrong: indices.len(),
                axis,
                size,
            }
        })
        .collect()
}

fn axis_names(role: Role, rank: usize) -> Vec<String> {
    let first = match role {
        Role::X => ["n", "c"],
        Role::W => ["k", "c"],
        Role::Y => ["n", "k"],
    };
    let spatial = &["d", "h", "w"][5 - rank..];
    first
        .iter()
        .chain(spatial)
        .map(|s| (*s).to_owned())
        .collect()
}

/// A set of indices below `size` in words.
fn words(axis: &str, size: usize, set: &BTreeSet<usize>) -> String {
    let (Some(&first), Some(&last)) = (set.first(), set.last()) else {
        return "none".to_owned();
    };
    if set.len() == size {
        return "all".to_owned();
    }
    if set.len() == 1 {
        return match first {
            i if i + 1 == size => "only the last".to_owned(),
            i => format!("only {axis} = {i}"),
        };
    }
    if last - first + 1 == set.len() {
        return match (first, last + 1) {
            (0, _) => format!("only {axis} <= {last}"),
            (_, end) if end == size => format!("only {axis} >= {first}"),
            _ => format!("only {axis} from {first} to {last}"),
        };
    }
    let indices: Vec<usize> = set.iter().copied().collect();
    if let Some(period) = period(&indices) {
        return format!("period {period} from {first}");
    }
    let shown: Vec<String> = set.iter().take(8).map(ToString::to_string).collect();
    let more = if set.len() > 8 { ", …" } else { "" };
    format!("{axis} in {{{}{more}}}", shown.join(", "))
}

/// The step of evenly spaced offsets, of which there must be three.
pub fn period(offsets: &[usize]) -> Option<usize> {
    let step = offsets.get(1)? - offsets[0];
    let even = offsets.windows(2).all(|pair| pair[1] - pair[0] == step);
    (even && offsets.len() > 2 && step > 1).then_some(step)
}

/// The errors' place in one line: restricted dimensions, or a period.
pub fn summary(marginals: &[Marginal], wrong: &[usize]) -> String {
    if let Some(period) = period(wrong) {
        return format!("every {period}th output from {}", wrong[0]);
    }
    let restricted = marginals.iter().filter(|m| m.words != "all");
    let parts: Vec<String> = restricted
        .map(|m| format!("{}: {}", m.axis, m.words))
        .collect();
    match parts.is_empty() {
        true => "everywhere".to_owned(),
        false => parts.join("; "),
    }
}

/// Whether `wrong` are all outputs of the indices that `marginals` name.
pub fn is_box(marginals: &[Marginal], wrong: &[usize]) -> bool {
    marginals.iter().map(|m| m.wrong).product::<usize>() == wrong.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marginals_name_the_place() {
        let problem: ConvProblem = "fwd n=2 c=1 k=4 in=6 ker=1".parse().unwrap();
        // n = 1, k >= 2, w = 1, 3, 5.
        let wrong: Vec<usize> = [2, 3]
            .iter()
            .flat_map(|k| [1, 3, 5].map(|w| 24 + k * 6 + w))
            .collect();
        let found = marginals(&problem, &wrong);
        let words: Vec<_> = found.iter().map(|m| m.words.as_str()).collect();
        assert_eq!(words, ["only the last", "only k >= 2", "period 2 from 1"]);
        assert!(is_box(&found, &wrong) && !is_box(&found, &wrong[1..]));
    }

    #[test]
    fn period_needs_three() {
        assert_eq!(period(&[5, 18, 31]), Some(13));
        assert_eq!(period(&[5, 18]), None);
        assert_eq!(period(&[5, 18, 32]), None);
    }
}
