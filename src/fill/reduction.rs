//! Where an element stands along the reduction, for data whose structure
//! follows it: pairs that cancel, a product that leads.
//!
//! In every direction one operand is *steady* (x, y, x) and the other varies
//! (w, w, y). Both share a leading reduction axis: the channels of a group
//! (forward: of x; backward data: of y) or the batch (backward filter).

use crate::problem::{ConvProblem, Direction, Role};

/// The steady operand and the other, by direction.
pub(super) fn roles(direction: Direction) -> [Role; 2] {
    match direction {
        Direction::Fwd => [Role::X, Role::W],
        Direction::BwdData => [Role::Y, Role::W],
        Direction::BwdFilter => [Role::X, Role::Y],
    }
}

/// Length of the leading reduction axis.
pub(super) fn period(problem: &ConvProblem) -> usize {
    match problem.direction {
        Direction::Fwd => problem.c / problem.groups,
        Direction::BwdData => problem.k / problem.groups,
        Direction::BwdFilter => problem.n,
    }
}

/// One axis of a tensor, to take coordinates from logical offsets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Axis {
    step: usize,
    size: usize,
}

impl Axis {
    fn new(problem: &ConvProblem, role: Role, axis: usize) -> Self {
        let dims = problem.dims(role);
        Axis {
            step: dims[axis + 1..].iter().product(),
            size: dims[axis],
        }
    }

    pub(super) fn coordinate(self, index: usize) -> usize {
        index / self.step % self.size
    }
}

/// The leading reduction axis as it lies in the tensor of an operand.
fn leading_axis(problem: &ConvProblem, role: Role) -> Axis {
    let axis = match (problem.direction, role) {
        (Direction::BwdFilter, _) | (Direction::BwdData, Role::W) => 0,
        _ => 1,
    };
    Axis::new(problem, role, axis)
}

/// The result's channel axis in the operand that has one and is not steady
/// (forward: k in w; backward data: c in w; backward filter: k in y).
pub(super) fn result_channel(problem: &ConvProblem, role: Role) -> Option<Axis> {
    let [_, other] = roles(problem.direction);
    let axis = usize::from(problem.direction != Direction::Fwd);
    (role == other).then(|| Axis::new(problem, role, axis))
}

/// How an operand takes part in products that cancel in pairs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cancel {
    axis: Axis,
    /// Coordinates repeat in blocks of this many.
    period: usize,
    /// Distance, along the axis, of the two of a pair.
    distance: usize,
    /// The steady operand of a spatial pairing is level along the whole axis.
    level: bool,
    opposite: bool,
}

impl Cancel {
    /// `None` when there is nothing to pair, or `role` is the result.
    pub(super) fn new(problem: &ConvProblem, role: Role) -> Option<Self> {
        let [steady, other] = roles(problem.direction);
        if role != steady && role != other {
            return Cancel::new(problem, steady);
        }
        let opposite = role == other;
        let period = period(problem);
        if period > 1 {
            return Some(Cancel {
                axis: leading_axis(problem, role),
                period,
                distance: 1,
                level: false,
                opposite,
            });
        }
        let d = paired_dimension(problem)?;
        let axis = Axis::new(problem, role, 2 + d);
        Some(Cancel {
            axis,
            period: axis.size,
            distance: tap_distance(problem, d),
            level: !opposite,
            opposite,
        })
    }

    /// Whether this operand's values change sign within a pair; the other's
    /// are nearly equal.
    pub(super) fn opposite(self) -> bool {
        self.opposite
    }

    /// The offset whose draw this element shares, and whether it is the second
    /// of its pair.
    pub(super) fn pair(self, index: usize) -> (usize, bool) {
        let local = self.axis.coordinate(index) % self.period;
        if self.level {
            return (index - local * self.axis.step, false);
        }
        let second = local / self.distance % 2 == 1;
        let back = if second {
            self.distance * self.axis.step
        } else {
            0
        };
        (index - back, second)
    }
}

/// The innermost spatial dimension along which an output sums two products.
fn paired_dimension(problem: &ConvProblem) -> Option<usize> {
    let extents = match problem.direction {
        Direction::BwdFilter => problem.output_spatial(),
        _ => problem.kernel.clone(),
    };
    extents.iter().rposition(|&e| e > 1)
}

/// Distance of neighbouring taps that one output sums: every tap, but in
/// backward data only those that fall on the same phase of the stride.
fn tap_distance(problem: &ConvProblem, d: usize) -> usize {
    match problem.direction {
        Direction::BwdData => problem.stride[d] / gcd(problem.stride[d], problem.dilation[d]),
        _ => 1,
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Which elements make the first product of a sum.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lead {
    axis: Option<Axis>,
    period: usize,
    /// Elements per spatial block of which only the first leads; 1 in the
    /// steady operand, all of whose block leads.
    block: usize,
}

impl Lead {
    pub(super) fn new(problem: &ConvProblem, role: Role) -> Self {
        let [steady, other] = roles(problem.direction);
        let block = if role == other {
            problem.dims(role)[2..].iter().product()
        } else {
            1
        };
        Lead {
            axis: (role == steady || role == other).then(|| leading_axis(problem, role)),
            period: period(problem),
            block,
        }
    }

    pub(super) fn leads(self, index: usize) -> bool {
        self.axis
            .is_none_or(|axis| axis.coordinate(index).is_multiple_of(self.period))
            && index.is_multiple_of(self.block)
    }
}
