//! How the values of a case are summed, and what a sum says of an output.

use super::operand::{Facts, Operand};
use super::{Class, Decided, Output, Value, two_sum};
use crate::dtype::{DType, exp2};
use crate::fill::Inputs;
use crate::geometry::Geometry;
use crate::lowering::Lowering;

/// Steps of the reduction that are summed in single precision before the sum
/// goes on in double.
pub const SINGLE_STEPS: usize = 256;

/// How the values of a case are computed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Method {
    /// The operands (patches, weights) in parts so narrow that no sum of
    /// products of parts rounds in f64.
    Exact([Cut; 2]),
    /// A plain f64 sum of exact products.
    Plain,
    /// Dot2.
    Twice,
}

impl Method {
    /// The method for operands of these types. Mixed types take the wider one's;
    /// fp16 sums too long to be exact take a radius.
    fn of(types: [DType; 2], facts: [&Facts; 2], depth: usize) -> Self {
        if types.contains(&DType::Fp64) {
            Method::Twice
        } else if types == [DType::Fp16; 2] {
            exact(facts, depth).map_or(Method::Plain, Method::Exact)
        } else {
            Method::Plain
        }
    }

    /// Parts of patches and weights.
    pub fn cuts(self) -> [Cut; 2] {
        match self {
            Method::Exact(cuts) => cuts,
            _ => [Cut::WHOLE; 2],
        }
    }
}

/// An operand cut into parts of as many bits each, which add up to it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cut {
    /// 1 to 3.
    pub parts: usize,
    /// The quantum of each part but the last; the first is the highest.
    pub quanta: [f64; 2],
}

impl Cut {
    /// In one piece.
    const WHOLE: Cut = Cut {
        parts: 1,
        quanta: [1.0; 2],
    };

    fn new(facts: &Facts, parts: usize) -> Self {
        let below = |part: usize| (parts.saturating_sub(1 + part)) as i32 * bits(facts, parts);
        let least = if facts.is_zero() {
            0
        } else {
            facts.least_exponent()
        };
        Cut {
            parts,
            quanta: [0, 1].map(|part| exp2(least + below(part))),
        }
    }
}

/// Bits of each of `parts` parts.
fn bits(facts: &Facts, parts: usize) -> i32 {
    (facts.width() as u32).div_ceil(parts as u32) as i32
}

/// Numbers of parts of patches and weights, the cheapest first.
const PARTS: [[usize; 2]; 9] = [
    [1, 1],
    [1, 2],
    [2, 1],
    [1, 3],
    [3, 1],
    [2, 2],
    [2, 3],
    [3, 2],
    [3, 3],
];

/// The fewest parts whose products, integers times the product of the least
/// bits, sum to less than 2^53 of these; `None` where three each do not do.
fn exact(facts: [&Facts; 2], depth: usize) -> Option<[Cut; 2]> {
    let carries = (usize::BITS - depth.saturating_sub(1).leading_zeros()) as i32;
    let fits =
        |parts: &&[usize; 2]| bits(facts[0], parts[0]) + bits(facts[1], parts[1]) + carries <= 53;
    let parts = PARTS.iter().find(fits)?;
    Some([0, 1].map(|side| Cut::new(facts[side], parts[side])))
}

/// One case, and how its values are computed.
pub struct Pass<'a> {
    pub inputs: &'a Inputs,
    pub lowering: Lowering,
    pub method: Method,
    pub patches: &'a Operand,
    pub weights: &'a Operand,
    /// Whether magnitudes can be summed in single precision.
    pub single: bool,
    /// Whether some products may be zero.
    pub count_zeros: bool,
    /// An f64 sum is exact in any order while S is below this.
    exact_below: f64,
    /// The same of a single-precision sum of magnitudes.
    single_exact_below: f64,
    /// What a computed sum of magnitudes is to be multiplied by to be no less
    /// than the true one, in double and in single precision.
    inflation: [f64; 2],
    /// Radius over S.
    relative_radius: f64,
}

/// What was summed of one output.
#[derive(Clone, Copy)]
pub struct Found {
    /// The sum, as one or two doubles.
    pub sum: [f64; 2],
    /// S, rounded up.
    pub s: f64,
    /// Nonzero products.
    pub nonzero: u64,
}

/// Calls `work` with all that is known of a case, or returns `None` where fp64
/// products could leave their range.
pub fn with_pass<T>(inputs: &Inputs, work: impl FnOnce(&Pass<'_>) -> Option<T>) -> Option<T> {
    let (first, second) = (Operand::new(&inputs.first), Operand::new(&inputs.second));
    let lowering = Lowering::new(&Geometry::new(&inputs.problem));
    let types = [inputs.first.dtype(), inputs.second.dtype()];
    let [patches, weights] = if lowering.patches_first {
        [&first, &second]
    } else {
        [&second, &first]
    };
    let facts = [&patches.facts, &weights.facts];
    let depth = lowering.depth();
    let method = Method::of(types, facts, depth);
    if method == Method::Twice && !products_in_range(facts, depth) {
        return None;
    }
    let k = depth as f64;
    let doubles = 1.0 + (k + 2.0) * exp2(-52);
    work(&Pass {
        inputs,
        lowering,
        method,
        patches,
        weights,
        single: method != Method::Twice && single_in_range(facts),
        count_zeros: facts.iter().any(|facts| facts.has_zeros),
        exact_below: exact_below(facts, 53),
        single_exact_below: exact_below(facts, 24),
        inflation: [doubles, doubles * single_inflation(depth)],
        relative_radius: relative_radius(method, k),
    })
}

/// Dot2 needs exact products' errors: no product may be below 2^-900 or a sum
/// above 2^1000.
fn products_in_range([a, b]: [&Facts; 2], depth: usize) -> bool {
    a.is_zero()
        || b.is_zero()
        || (a.least * b.least >= exp2(-900) && a.largest * b.largest * depth as f64 <= exp2(1000))
}

/// Whether magnitudes can be summed in single precision, each step one fused
/// multiply-add of non-negative numbers. That takes
/// - factors that single precision holds: of types of at most its precision, and
///   normal, since a library may have had the CPU take subnormals for zero;
/// - products that are normal: the sum of the first one is a rounded product, and
///   below 2^-126 its error is not relative. Later sums are at least as large;
/// - no overflow: sums of [`SINGLE_STEPS`] products are at most 2^126·(1 + 2^-15).
fn single_in_range([a, b]: [&Facts; 2]) -> bool {
    let normal = exp2(-126);
    a.is_zero()
        || b.is_zero()
        || (a.least.min(b.least) >= normal
            && a.least * b.least >= normal
            && a.largest * b.largest * SINGLE_STEPS as f64 <= exp2(126))
}

/// What a single-precision sum of `depth` non-negative products, in runs of at
/// most n = SINGLE_STEPS steps, is to be multiplied by. A run has one rounding per
/// step, each by a factor of at least 1 - u, u = 2^-24 (Higham, "Accuracy and
/// Stability of Numerical Algorithms", 2002, section 2.2), so it comes out at no
/// less than (1 - u)^n >= 1 - n·u of the true sum. And 1/(1 - x) <= 1 + x + 2x² up
/// to x = 1/2; the last factor covers the roundings here. At most 1 + 2^-16 and a
/// little.
fn single_inflation(depth: usize) -> f64 {
    let share = depth.min(SINGLE_STEPS) as f64 * exp2(-24);
    (1.0 + share + 2.0 * share * share) * (1.0 + exp2(-50))
}

/// A sum of products is exact in any order while S is below this: all partial
/// sums are multiples of one unit, the product of the operands' least bits, and
/// at most S, that is 2^precision of them. A *computed* sum of magnitudes will do
/// in place of S: rounding is monotonic and the limit itself is representable, so
/// a sum that ever reached the limit would not come out below it.
fn exact_below([a, b]: [&Facts; 2], precision: i32) -> f64 {
    if a.is_zero() || b.is_zero() {
        return f64::INFINITY;
    }
    libm::ldexp(1.0, a.least_exponent() + b.least_exponent() + precision)
}

/// Radius of a sum of `k` products over its absolute sum.
fn relative_radius(method: Method, k: f64) -> f64 {
    match method {
        Method::Exact(_) => 0.0,
        // numerics, section 8 (Jeannerod and Rump 2013 for the first order).
        Method::Plain => k * exp2(-53) * (1.0 + exp2(-40) * k) * (1.0 + exp2(-50)),
        // Ogita, Rump and Oishi 2005, Proposition 5.5: γ_K²·S for the pair's
        // distance, doubled and with K + 4 to cover the last additions.
        Method::Twice => 2.0 * (k + 4.0) * (k + 4.0) * exp2(-106),
    }
}

impl Pass<'_> {
    /// S, rounded up, from a sum of magnitudes in double precision.
    pub fn s_of_double(&self, magnitude: f64) -> f64 {
        magnitude * self.inflation[0]
    }

    /// S, rounded up, from sums of [`SINGLE_STEPS`] in single precision that were
    /// added in double. Below the limit none of it rounded.
    pub fn s_of_single(&self, magnitude: f64) -> f64 {
        if magnitude < self.single_exact_below {
            magnitude
        } else {
            magnitude * self.inflation[1]
        }
    }

    /// The exact sum of exact sums of parts, as two doubles.
    pub fn sum_of_parts(&self, parts: impl ExactSizeIterator<Item = f64>) -> [f64; 2] {
        if parts.len() <= 2 {
            return parts.fold([0.0; 2], |[hi, lo], part| {
                let (hi, error) = two_sum(hi, part);
                [hi, lo + error]
            });
        }
        // Integers below 2^106 times the least bit.
        let least = self.patches.facts.least_exponent() + self.weights.facts.least_exponent();
        let fixed: i128 = parts.map(|part| (part * exp2(-least)) as i128).sum();
        double_double(fixed, exp2(least))
    }

    /// The output at `index`, alpha and beta applied; `None` where these could
    /// leave the range of doubles.
    pub fn output(&self, index: usize, found: Found) -> Option<Output> {
        let inputs = self.inputs;
        let exact = self.method == Method::Plain && found.s < self.exact_below;
        let value = Value {
            hi: found.sum[0],
            lo: found.sum[1],
            radius: if exact {
                0.0
            } else {
                found.s * self.relative_radius
            },
        };
        let prior = inputs.prior.as_ref().map_or(0.0, |prior| prior.get(index));
        let class = Class::of(if prior.is_finite() { 0.0 } else { prior });
        let (alpha, beta) = (inputs.problem.alpha.0, inputs.problem.beta.0);
        let finite_prior = if class == Class::Finite { prior } else { 0.0 };
        let value = value.scaled(alpha, beta, finite_prior)?;
        Some(Output {
            index,
            value,
            s: found.s,
            nonzero: found.nonzero,
            class,
            decided: if value.radius > 0.0 {
                Decided::Certified
            } else {
                Decided::FixedPoint
            },
        })
    }
}

/// An integer below 2^106 times a power of two, exactly.
pub fn double_double(fixed: i128, unit: f64) -> [f64; 2] {
    let hi = fixed as f64;
    let lo = (fixed - hi as i128) as f64;
    [hi * unit, lo * unit]
}
