//! The arbiter: exact sums with MPFR, for any data and direction. Slow; it
//! settles what the fast paths leave open and checks them.

use rug::Float;
use rug::float::Round;

use super::{Class, Decided, Output, Value};
use crate::dtype::{DType, exponent};
use crate::fill::Inputs;
use crate::geometry::Geometry;

/// Bits of a product of two doubles, and of two such factors more.
const PRODUCT_BITS: i32 = 106;

/// What one output is made of, exactly.
pub struct Exact {
    /// alpha · Σ a·b + beta · prior; meaningful when `class` is finite.
    pub value: Float,
    /// Finite, NaN or infinite.
    pub class: Class,
    /// Σ |a·b|, rounded up.
    pub s: f64,
    /// Number of nonzero products.
    pub nonzero: u64,
}

/// The exact value of the output at logical offset `index`, as the certified
/// double-double that judging works with.
pub fn output(inputs: &Inputs, index: usize) -> Output {
    let exact = exact(inputs, &Geometry::new(&inputs.problem), index);
    Output {
        index,
        value: to_value(&exact.value),
        s: exact.s,
        nonzero: exact.nonzero,
        class: exact.class,
        decided: Decided::Arbiter,
    }
}

/// The exact value of the output at `index`, correctly rounded to `dtype`.
pub fn rounded(inputs: &Inputs, index: usize, dtype: DType) -> f64 {
    let exact = exact(inputs, &Geometry::new(&inputs.problem), index);
    round(&exact.value, dtype)
}

/// Sums all products of one output without rounding.
pub fn exact(inputs: &Inputs, geometry: &Geometry, index: usize) -> Exact {
    let mut products = Vec::new();
    geometry.for_each_product(index, |a, b| {
        products.push((inputs.first.get(a), inputs.second.get(b)));
    });
    let prior = inputs.prior.as_ref().map_or(0.0, |prior| prior.get(index));
    let (alpha, beta) = (inputs.problem.alpha.0, inputs.problem.beta.0);
    let class = classify(&products, alpha, beta, prior);
    let mut exact = Exact {
        value: Float::new(PRODUCT_BITS as u32),
        class,
        s: 0.0,
        nonzero: 0,
    };
    if class == Class::Finite {
        sum(&mut exact, &products, alpha, (beta, prior));
    }
    exact
}

fn sum(exact: &mut Exact, products: &[(f64, f64)], alpha: f64, prior: (f64, f64)) {
    let precision = precision(products, alpha, prior);
    let mut value = Float::new(precision);
    let mut s = Float::new(64);
    for &(a, b) in products {
        let product = Float::with_val(PRODUCT_BITS as u32, a) * b;
        if product.is_zero() {
            continue;
        }
        exact.nonzero += 1;
        value += &product;
        rug::ops::AddAssignRound::add_assign_round(&mut s, product.abs(), Round::Up);
    }
    value *= alpha;
    value += Float::with_val(PRODUCT_BITS as u32, prior.0) * prior.1;
    exact.value = value;
    exact.s = s.to_f64_round(Round::Up);
}

/// Bits from the lowest bit of any term to the carries out of the sum, so that
/// no addition rounds.
fn precision(products: &[(f64, f64)], alpha: f64, (beta, prior): (f64, f64)) -> u32 {
    let mut low = i32::MAX;
    let mut high = i32::MIN;
    let mut widen = |factors: [f64; 3]| {
        if factors.contains(&0.0) {
            return;
        }
        let top: i32 = factors.iter().map(|&f| exponent(f)).sum();
        // Three factors of 53 bits each; each adds at most one carry.
        low = low.min(top - 3 * 53);
        high = high.max(top + 3);
    };
    let scale = if alpha == 0.0 { 1.0 } else { alpha };
    for &(a, b) in products {
        widen([a, b, scale]);
        widen([a, b, 1.0]);
    }
    widen([beta, prior, 1.0]);
    let carries = usize::BITS - products.len().leading_zeros() + 1;
    if low > high {
        return PRODUCT_BITS as u32;
    }
    (high - low) as u32 + carries
}

/// IEEE 754 rules for sums and products; products with padding are none.
/// beta = 0 means that the prior is not read, alpha = 0 that it scales.
fn classify(products: &[(f64, f64)], alpha: f64, beta: f64, prior: f64) -> Class {
    let mut sum = 0.0_f64;
    for &(a, b) in products {
        let finite = a.is_finite() && b.is_finite();
        // Finite products may overflow a double: only their finiteness counts.
        sum += if finite { 0.0 } else { a * b };
    }
    sum *= alpha;
    if beta != 0.0 && !prior.is_finite() {
        sum += beta * prior;
    }
    Class::of(sum)
}

/// An exact number as a certified double-double.
pub fn to_value(exact: &Float) -> Value {
    let hi = exact.to_f64();
    let rest = Float::with_val(exact.prec().max(1100), exact - &Float::with_val(53, hi));
    let lo = rest.to_f64();
    let radius = (rest - lo).abs().to_f64_round(Round::Up);
    Value { hi, lo, radius }
}

impl Exact {
    /// Whether a certified value holds the exact one.
    pub fn is_within(&self, value: &Value) -> bool {
        // No sum of doubles needs more bits than their range has.
        let off = Float::with_val(self.value.prec().max(2200), &self.value - value.hi);
        let off = Float::with_val(off.prec(), off - value.lo);
        off.abs() <= value.radius
    }
}

/// Rounds an exact value to a format, subnormals and overflow included.
pub fn round(exact: &Float, dtype: DType) -> f64 {
    let format = dtype.format();
    let Some(top) = exact.get_exp() else {
        return 0.0;
    };
    // MPFR's exponent is for significands in [1/2, 1).
    let lost = (format.emin - (top - 1)).max(0);
    let precision = format.precision - lost;
    if precision >= 1 {
        let rounded = Float::with_val(precision as u32, exact).to_f64();
        // A double holds every rounded value; overflow is decided by its size.
        return if rounded.abs() > format.max_finite() {
            f64::INFINITY.copysign(rounded)
        } else {
            rounded
        };
    }
    // Below half the smallest subnormal, at it (a tie to even zero), or above.
    let half = Float::with_val(53, 0.5) * format.min_subnormal();
    let magnitude = exact.clone().abs();
    if precision == 0 && magnitude > half {
        format.min_subnormal().copysign(exact.to_f64())
    } else {
        0.0_f64.copysign(exact.to_f64())
    }
}
