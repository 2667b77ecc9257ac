//! The total order that shrinking descends: what counts as simpler.
//!
//! Cases are compared by the first of these that differs, the smaller wins:
//!
//! 1. knob choices of the engine, fewest;
//! 2. spatial dimensions, fewest;
//! 3. features away from their default, fewest: groups, each strided, dilated
//!    or padded dimension (twice when padded unevenly), alpha, beta;
//! 4. sizes: kernel volume, c + k, groups, n, image volume;
//! 5. values of strides, dilations and paddings, summed;
//! 6. types: fp32, fp16, bf16, fp64, fp16 with fp16 compute, fp16 or bf16
//!    operands with an fp32 result, any other; then layout;
//! 7. factors: 1 before -1 before others for alpha, 0 before 1 for beta;
//! 8. distribution in the order of [`FillKind::ALL`], then seed;
//! 9. each size by itself, then the repro line, so that two different cases
//!    are never equal.
//!
//! [`FillKind::ALL`]: crate::fill::FillKind::ALL

use super::types::Types;
use crate::candidate::{Candidate, Repro};
use crate::problem::{ConvProblem, Layout};

/// The place of a case in the order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cost {
    knobs: usize,
    rank: usize,
    features: usize,
    sizes: [usize; 5],
    window: usize,
    types: usize,
    layout: Layout,
    factors: [u64; 2],
    fill: (crate::fill::FillKind, u64),
    each: Vec<usize>,
    text: String,
}

impl Cost {
    /// The place of `repro`.
    pub fn of(repro: &Repro) -> Self {
        let p = &repro.problem;
        Cost {
            knobs: knobs(repro),
            rank: p.rank(),
            features: features(p),
            sizes: [
                p.kernel.iter().product(),
                p.c + p.k,
                p.groups,
                p.n,
                p.spatial.iter().product(),
            ],
            window: window(p).sum(),
            types: Types::place(p),
            layout: p.layout,
            factors: [factor(p.alpha.0, 1.0), factor(p.beta.0, 0.0)],
            fill: (repro.fill.kind, repro.fill.seed),
            each: [&p.spatial[..], &p.kernel, &[p.c]].concat(),
            text: repro.to_string(),
        }
    }
}

fn knobs(repro: &Repro) -> usize {
    match &repro.via {
        Some(Candidate::Engine { knobs, .. }) => knobs.len(),
        _ => 0,
    }
}

fn features(p: &ConvProblem) -> usize {
    let ones = |list: &[usize]| list.iter().filter(|v| **v != 1).count();
    let sides = p.pad_before.iter().zip(&p.pad_after);
    let padding: usize = sides
        .map(|(a, b)| usize::from(a + b > 0) + usize::from(a != b))
        .sum();
    let flags = [p.groups != 1, p.alpha.0 != 1.0, p.beta.0 != 0.0];
    let flags = flags.into_iter().filter(|f| *f).count();
    ones(&p.stride) + ones(&p.dilation) + padding + flags
}

fn window(p: &ConvProblem) -> impl Iterator<Item = usize> {
    let lists = [&p.stride, &p.dilation, &p.pad_before, &p.pad_after];
    lists.into_iter().flatten().copied()
}

/// Plainness of a factor: its default, then 1, -1, and anything else.
fn factor(value: f64, default: f64) -> u64 {
    match value {
        v if v == default => 0,
        1.0 => 1,
        -1.0 => 2,
        v => v.to_bits(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each line is simpler than the next.
    #[test]
    fn cost_orders_cases_as_documented() {
        let ladder = [
            "fwd c=1 k=1 in=1 ker=1 fill=const:0",
            "fwd c=1 k=1 in=1 ker=1 fill=const:1",
            "fwd c=1 k=1 in=1 ker=1 fill=ints:0",
            "fwd c=1 k=1 in=1 ker=1 layout=nhwc fill=const:0",
            "fwd c=1 k=1 in=1 ker=1 type=fp16 fill=const:0",
            "fwd c=1 k=1 in=9 ker=1 fill=const:0",
            "fwd n=2 c=1 k=1 in=1 ker=1 fill=const:0",
            "fwd c=1 k=2 in=1 ker=1 fill=const:0",
            "fwd c=2 k=1 in=1 ker=1 fill=const:0",
            "fwd c=1 k=1 in=3 ker=3 fill=const:0",
            "fwd c=1 k=1 in=3 ker=3 pad=1 fill=const:0",
            "fwd c=1 k=1 in=3 ker=3 pad=1+0 fill=const:0",
            "fwd c=1 k=1 in=1x1 ker=1x1 fill=const:0",
            "fwd c=1 k=1 in=1 ker=1 fill=const:0 via=engine:1/2=3",
        ];
        let costs: Vec<Cost> = ladder
            .iter()
            .map(|l| Cost::of(&l.parse().unwrap()))
            .collect();
        for (i, pair) in costs.windows(2).enumerate() {
            assert!(
                pair[0] < pair[1],
                "{} is not before {}",
                ladder[i],
                ladder[i + 1]
            );
        }
    }
}
