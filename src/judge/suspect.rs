//! Suspects: trials inside their proven bound whose error is far from that of
//! other candidates of the same rung on the same case. Bounds are loose on
//! random data, so a lost term in a long sum can hide inside one; it cannot
//! hide from a peer. A suspect never changes a verdict or the exit code.

use super::{Judgement, Verdict};
use crate::bound::{Accumulator, Arithmetic, Family, OperandRounding};
use crate::dtype::DType;

/// A judged trial, with what it is compared by.
pub struct Rated<'a> {
    /// What the candidate declares.
    pub arithmetic: Arithmetic,
    /// Its judgement, amended in place.
    pub judgement: &'a mut Judgement,
}

/// How far beyond its peers' median an error must be. Chosen, not derived:
/// summation orders of the same rung differ by up to sqrt(K)-like factors.
const FACTOR: f64 = 16.0;

/// Errors below this many unit roundoffs of the result type, relative to S, are
/// what output rounding alone gives.
const FLOOR: f64 = 4.0;

/// Fewest peers that make a median.
const LEAST_PEERS: usize = 2;

#[derive(PartialEq)]
enum Kind {
    InnerProduct,
    Winograd,
    Fft,
}

/// Marks the suspects among the trials of one case, whose results have `dtype`.
pub fn mark_suspects(dtype: DType, trials: &mut [Rated<'_>]) {
    let spreads: Vec<Option<f64>> = trials.iter().map(passed_spread).collect();
    let rungs: Vec<_> = trials.iter().map(|t| rung(&t.arithmetic)).collect();
    for (i, trial) in trials.iter_mut().enumerate() {
        let Some(own) = spreads[i] else { continue };
        let mut peers: Vec<f64> = (0..spreads.len())
            .filter(|&j| j != i && rungs[j] == rungs[i])
            .filter_map(|j| spreads[j])
            .collect();
        if peers.len() < LEAST_PEERS {
            continue;
        }
        let middle = peers.len() / 2;
        let median = *peers.select_nth_unstable_by(middle, f64::total_cmp).1;
        let floor = FLOOR * dtype.format().unit_roundoff();
        trial.judgement.suspect = own > FACTOR * median && own > floor;
    }
}

fn passed_spread(trial: &Rated<'_>) -> Option<f64> {
    (trial.judgement.verdict == Verdict::Passed)
        .then_some(trial.judgement.spread)
        .flatten()
}

/// Candidates of one rung have errors of one size.
fn rung(arithmetic: &Arithmetic) -> (Kind, OperandRounding, Accumulator) {
    let kind = match arithmetic.family {
        Family::InnerProduct => Kind::InnerProduct,
        Family::Winograd { .. } => Kind::Winograd,
        Family::Fft { .. } => Kind::Fft,
    };
    (kind, arithmetic.operands, arithmetic.accumulator)
}
