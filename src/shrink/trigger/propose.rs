//! New cases to run: failing ones with a few parts replaced by those of a
//! freshly drawn case, or moved a step.

use proptest::strategy::{BoxedStrategy, Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use crate::candidate::{Candidate, Repro};
use crate::error::{Error, Result};
use crate::problem::ConvProblem;
use crate::strategy::{Draw, Limits, draw};

/// A source of cases, the same for the same seed.
pub(super) struct Proposer {
    runner: TestRunner,
    strategy: BoxedStrategy<Draw>,
    max_macs: u64,
}

/// One part taken from the second case.
type Graft = fn(&mut Repro, &Repro);

/// Parts that can be taken one by one.
const GRAFTS: [Graft; 15] = [
    |r, d| r.problem.n = d.problem.n,
    |r, d| r.problem.c = d.problem.c,
    |r, d| r.problem.k = d.problem.k,
    |r, d| {
        let (p, q) = (&mut r.problem, &d.problem);
        (p.c, p.k, p.groups) = (q.c, q.k, q.groups);
    },
    |r, d| r.problem.groups = d.problem.groups,
    |r, d| graft_window(r, d, |p| &mut p.kernel),
    |r, d| graft_window(r, d, |p| &mut p.spatial),
    |r, d| graft_window(r, d, |p| &mut p.stride),
    |r, d| graft_window(r, d, |p| &mut p.dilation),
    |r, d| {
        graft_window(r, d, |p| &mut p.pad_before);
        graft_window(r, d, |p| &mut p.pad_after);
    },
    |r, d| graft_space(&mut r.problem, &d.problem),
    |r, d| r.problem.layout = d.problem.layout,
    |r, d| {
        let (p, q) = (&mut r.problem, &d.problem);
        (p.x_type, p.w_type, p.y_type) = (q.x_type, q.w_type, q.y_type);
        p.compute = q.compute;
    },
    |r, d| {
        (r.problem.alpha, r.problem.beta) = (d.problem.alpha, d.problem.beta);
    },
    |r, d| r.fill = d.fill,
];

/// Copies one list of the window where both have as many dimensions; else one
/// entry.
fn graft_window(r: &mut Repro, d: &Repro, list: fn(&mut ConvProblem) -> &mut Vec<usize>) {
    let donor = list(&mut d.problem.clone()).clone();
    let own = list(&mut r.problem);
    if own.len() == donor.len() {
        *own = donor;
    } else if let (Some(own), Some(donor)) = (own.last_mut(), donor.last()) {
        *own = *donor;
    }
}

fn graft_space(p: &mut ConvProblem, donor: &ConvProblem) {
    p.spatial.clone_from(&donor.spatial);
    p.kernel.clone_from(&donor.kernel);
    p.stride.clone_from(&donor.stride);
    p.dilation.clone_from(&donor.dilation);
    p.pad_before.clone_from(&donor.pad_before);
    p.pad_after.clone_from(&donor.pad_after);
}

impl Proposer {
    pub(super) fn new(limits: &Limits, seed: u64) -> Self {
        let bytes: Vec<u8> = seed.to_le_bytes().repeat(4);
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
        Proposer {
            runner: TestRunner::new_with_rng(Config::default(), rng),
            strategy: draw(limits),
            max_macs: limits.max_macs,
        }
    }

    /// A case drawn afresh, in the direction and by the candidate of `like`.
    pub(super) fn fresh(&mut self, like: &Repro) -> Result<Repro> {
        let tree = self.strategy.new_tree(&mut self.runner);
        let drawn = tree.map_err(|reason| Error::internal(format!("no case drawn: {reason}")))?;
        let Draw { mut problem, fills } = drawn.current();
        problem.direction = like.problem.direction;
        let fill = fills[self.below(fills.len())];
        Ok(Repro {
            problem,
            fill,
            via: like.via.clone(),
        })
    }

    /// `base` with one to three changes; `None` when no such problem exists or
    /// it is too large.
    pub(super) fn near(&mut self, base: &Repro) -> Result<Option<Repro>> {
        let mut repro = base.clone();
        for _ in 0..=self.below(3) {
            match self.below(8) {
                0..4 => {
                    let donor = self.fresh(base)?;
                    GRAFTS[self.below(GRAFTS.len())](&mut repro, &donor);
                }
                4 => self.turn(&mut repro.problem),
                _ => self.nudge(&mut repro),
            }
        }
        Ok(self.mended(repro))
    }

    /// A fresh case with most parts taken from `base`: the mix on which a
    /// finished condition is checked, so that both sides occur.
    pub(super) fn mixed(&mut self, base: &Repro) -> Result<Option<Repro>> {
        let donor = self.fresh(base)?;
        let mut repro = base.clone();
        for graft in GRAFTS {
            if self.below(4) == 0 {
                graft(&mut repro, &donor);
            }
        }
        Ok(self.mended(repro))
    }

    /// A number from 0 up to, not including, `n`.
    pub(super) fn below(&mut self, n: usize) -> usize {
        let tree = (0..n.max(1)).new_tree(&mut self.runner);
        tree.map_or(0, |tree| tree.current())
    }

    /// Exchanges two spatial dimensions, or adds or drops one of size 1.
    fn turn(&mut self, p: &mut ConvProblem) {
        let (a, b) = (self.below(p.rank()), self.below(p.rank()));
        let change = self.below(4);
        for (list, plain) in [
            (&mut p.kernel, 1),
            (&mut p.spatial, 1),
            (&mut p.stride, 1),
            (&mut p.dilation, 1),
            (&mut p.pad_before, 0),
            (&mut p.pad_after, 0),
        ] {
            match change {
                0 if list.len() < 3 => list.insert(a, plain),
                1 if list.len() > 1 => drop(list.remove(a)),
                _ => list.swap(a, b),
            }
        }
    }

    /// Moves one number a step, or a knob.
    fn nudge(&mut self, repro: &mut Repro) {
        let d = self.below(repro.problem.rank());
        let step = self.below(STEPS.len());
        let p = &mut repro.problem;
        let number = match self.below(11) {
            0 => &mut p.n,
            1 | 2 => &mut p.c,
            3 | 4 => &mut p.k,
            5 => &mut p.spatial[d],
            6 => &mut p.kernel[d],
            7 => &mut p.stride[d],
            8 => &mut p.dilation[d],
            9 if p.pad_before[d] == p.pad_after[d] => {
                p.pad_before[d] = STEPS[step](p.pad_before[d]);
                p.pad_after[d] = p.pad_before[d];
                return;
            }
            9 => &mut p.pad_after[d],
            _ => return self.nudge_knob(repro),
        };
        *number = STEPS[step](*number).max(1);
    }

    /// Drops a knob or moves its value.
    fn nudge_knob(&mut self, repro: &mut Repro) {
        let Some(Candidate::Engine { knobs, .. }) = &mut repro.via else {
            return;
        };
        if knobs.is_empty() {
            return;
        }
        let at = self.below(knobs.len());
        match self.below(4) {
            0 => drop(knobs.remove(at)),
            1 => knobs[at].1 += 1,
            2 => knobs[at].1 -= 1,
            _ => knobs[at].1 = 0,
        }
    }

    /// Grows an image that the kernel no longer fits, and drops groups that no
    /// longer divide.
    fn mended(&self, mut repro: Repro) -> Option<Repro> {
        let p = &mut repro.problem;
        if !p.c.is_multiple_of(p.groups) || !p.k.is_multiple_of(p.groups) {
            p.groups = 1;
        }
        for d in 0..p.rank() {
            p.spatial[d] += p.kernel_extent(d).saturating_sub(p.padded_extent(d));
        }
        let fine = p.validate().is_ok() && p.macs() <= self.max_macs;
        fine.then_some(repro)
    }
}

const STEPS: [fn(usize) -> usize; 8] = [
    |v| v + 1,
    |v| v.saturating_sub(1),
    |v| v + 2,
    |v| v + 4,
    |v| v + 8,
    |v| v.saturating_sub(8),
    |v| v * 2,
    |v| v / 2,
];
