//! How far honest arithmetic may be from the exact values.
//!
//! u is the unit roundoff of the accumulator (fp32; fp64 for fp64 data), m the
//! number of values of a group, a = Σ|x|/m, q = Σx²/m, δ the error of the mean.
//! γ(n) = n·u·(1 + 2n·u) covers n roundings while n·u ≤ 1/4 (Higham, *Accuracy and
//! Stability of Numerical Algorithms*, 2nd ed., lemma 3.1; sums of n terms in
//! any order stay within it: Jeannerod, Rump 2013). Three ways to a variance are
//! allowed for (Chan, Golub, LeVeque, *The American Statistician* 37(3), 1983),
//! with the constants derived below; sums may be in any order:
//!
//! | algorithm | mean | variance |
//! |---|---|---|
//! | two passes | γ(m+2)·a | 2δ² + γ(m+6)·(σ² + δ²) |
//! | Welford, Chan | γ(m + 7·log2 m + 9)·a | 2√2·σ·w + w² + γ(m+8)·(σ² + …) |
//! | E[x²] − E[x]² | γ(m+2)·a | γ(m+3)·q + 2\|μ\|δ + δ² + 2u(\|μ\|+δ)² + uσ² |
//!
//! *Welford.* The mean after j values is off by
//! e_k ≤ (1/k)·Σ_j u·(j·|mean_j| + 3·(|x_j| + |mean_(j−1)|)) ≤ u·m·a·c(k),
//! c(k) = 1 + (6 + 3·ln k)/k. Blocks merged two by two (Chan), neither more than
//! twice as large as the other, add 7·u·a per level. By Cauchy and Schwarz the
//! sum of squares is off by 2√2·sqrt(m·σ²·Σe²) + Σe², with
//! Σe²/m ≤ w² = (u·m·a)²·(C + 400/m), C the mean of c(k)²: the 400 covers the
//! levels of a tree. *Two passes*: the sum of (x − μ̂)² is m·(σ² + δ²) exactly;
//! a second δ² is for the corrected form. A negative variance may be clamped.
//!
//! Then r = 1/sqrt(σ² + ε) moves with the variance (its derivative is monotonic)
//! and has 8u of roundings: ε in fp32, the sum, and 2 ulp of the approximate
//! reciprocal root of GPUs. y may be computed as (x − μ)·r·γ + β or from a fused
//! scale γ·r and shift β − μ·γ·r, whose roundings are relative to |x| + |μ|; dx
//! likewise, as γ·r·(dy − dβ/m − x̂·dγ/m) or as a·dy + b·x + c with a = γ·r,
//! b = −a·r·dγ/m and c = −b·μ − a·dβ/m (ONNX Runtime and Caffe2 write it so).
//! dγ is bounded for Σ dy·(x − μ), not for Σ dy·x − μ·Σ dy.

use rug::Float;
use rug::float::Round;

use super::inputs::Inputs;
use super::oracle::{Gradient, Reference, Statistics};
use super::problem::{Output, Pass, Problem};
use crate::bound::upper::Upper;
use crate::dtype::Format;

/// A way to the variance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Algorithm {
    /// Mean first, then the sum of (x − mean)².
    TwoPass,
    /// One value at a time, or Chan's merging of blocks.
    Welford,
    /// E[x²] − E[x]².
    Squares,
}

impl Algorithm {
    /// All of them.
    pub const ALL: [Algorithm; 3] = [Algorithm::TwoPass, Algorithm::Welford, Algorithm::Squares];

    /// The name in lines and columns.
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::TwoPass => "two_pass",
            Algorithm::Welford => "welford",
            Algorithm::Squares => "squares",
        }
    }
}

/// Errors of what a group is normalised by.
#[derive(Clone, Copy, Debug)]
pub struct Errors {
    /// Of the mean.
    pub mean: Upper,
    /// Of the biased variance.
    pub variance: Upper,
    /// Of the inverse deviation.
    pub inverse: Upper,
}

/// Bounds of one case.
#[derive(Clone, Debug)]
pub struct Bounds<'a> {
    inputs: &'a Inputs,
    reference: &'a Reference,
    format: Format,
    errors: Vec<Errors>,
    sizes: Vec<Sizes>,
    sums: Vec<GradientErrors>,
}

/// Exact statistics of a group as doubles: bounds of every element need them.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    /// The mean, rounded, and what it is off by.
    mean: (f64, Upper),
    inverse: Upper,
}

impl Sizes {
    fn of(own: &Statistics) -> Self {
        let rounded = own.mean.to_f64();
        let rest = Float::with_val(own.precision(), &own.mean - rounded);
        Sizes {
            mean: (rounded, upper(&rest)),
            inverse: upper(&own.inverse),
        }
    }

    /// |mean|.
    fn mean(&self) -> Upper {
        Upper::of(self.mean.0) + self.mean.1
    }

    /// |x − mean|.
    fn distance(&self, x: f64) -> Upper {
        let distance = (x - self.mean.0).abs();
        // Equal doubles have no distance; others are off by a rounding.
        let distance = if distance == 0.0 {
            0.0
        } else {
            distance.next_up()
        };
        Upper::of(distance) + self.mean.1
    }
}

/// Errors of the sums of a backward pass.
#[derive(Clone, Copy, Debug)]
struct GradientErrors {
    bias: Upper,
    scale: Upper,
}

/// The rounding of accumulators.
#[derive(Clone, Copy, Debug)]
struct Unit {
    u: Upper,
    /// What one flush to zero loses.
    floor: Upper,
}

impl Unit {
    fn of(format: Format) -> Self {
        Unit {
            u: Upper::of(format.unit_roundoff()),
            floor: Upper::of(format.min_normal()),
        }
    }

    /// γ(n): the relative error of n roundings.
    fn gamma(self, n: f64) -> Upper {
        let first = Upper::of(n) * self.u;
        first * (Upper::of(1.0) + first + first)
    }

    fn times(self, n: f64) -> Upper {
        Upper::of(n) * self.u
    }
}

fn upper(value: &Float) -> Upper {
    Upper::of(value.clone().abs().to_f64_round(Round::Up))
}

/// log2 m, rounded up.
fn levels(count: usize) -> f64 {
    f64::from(usize::BITS - (count - 1).leading_zeros())
}

/// Error of the mean of `count` values.
fn mean_error(own: &Statistics, algorithm: Algorithm, unit: Unit, count: usize) -> Upper {
    let m = count as f64;
    let roundings = match algorithm {
        Algorithm::Welford => m + 7.0 * levels(count) + 9.0,
        _ => m + 2.0,
    };
    unit.gamma(roundings) * own.mean_magnitude + unit.floor + unit.floor
}

/// The mean of c(k)² of the module's text, from sums over k in closed form:
/// Σ(6+3 ln k)/k ≤ 6 + 6 ln m + 1.5 ln² m, Σ((6+3 ln k)/k)² ≤ 112.
fn welford_constant(count: usize) -> Upper {
    let m = count as f64;
    let log = m.ln();
    let sum = 2.0 * (6.0 + 6.0 * log + 1.5 * log * log) + 112.0 + 400.0;
    Upper::of(1.0 + sum / m * 1.0001)
}

fn variance_error(
    own: &Statistics,
    algorithm: Algorithm,
    (unit, count): (Unit, usize),
    mean: Upper,
) -> Upper {
    let m = count as f64;
    let variance = upper(&own.variance);
    let floor = Upper::of(4.0) * unit.floor;
    floor
        + match algorithm {
            Algorithm::TwoPass => {
                let shift = mean * mean;
                shift + shift + unit.gamma(m + 6.0) * (variance + shift)
            }
            Algorithm::Welford => {
                let drift = unit.gamma(m) * own.mean_magnitude * welford_constant(count).sqrt();
                let cross = Upper::of(2.829) * variance.sqrt() * drift + drift * drift;
                cross + unit.gamma(m + 8.0) * (variance + cross)
            }
            Algorithm::Squares => {
                let size = upper(&own.mean);
                let square = (size + size + mean) * mean;
                let reach = size + mean;
                let sums = unit.gamma(m + 3.0) * own.mean_square + square;
                sums + unit.times(2.0) * reach * reach + unit.u * (variance + sums)
            }
        }
}

/// Error of r = 1/sqrt(σ² + ε) when σ² is off by `variance`. With t its share of
/// σ² + ε, (1 − t)^(−1/2) − 1 ≤ t/(2·(1 − t)^(3/2)).
fn inverse_error(own: &Statistics, epsilon: f64, unit: Unit, variance: Upper) -> Upper {
    let sum = Float::with_val(own.precision(), &own.variance + epsilon);
    let share = variance.over(sum.to_f64_round(Round::Down));
    let left = (1.0 - share.get()).next_down();
    if left.is_nan() || left <= 0.0 {
        return Upper::INFINITE;
    }
    let power = (left * left.sqrt().next_down()).next_down();
    let moved = share.over(2.0).over(power);
    let one = Upper::of(1.0);
    upper(&own.inverse) * (moved + unit.times(8.0) * (one + moved))
}

impl Errors {
    /// Errors of computed statistics; the largest of all algorithms when none
    /// is named.
    pub fn of(own: &Statistics, problem: &Problem, algorithm: Option<Algorithm>) -> Errors {
        let one;
        let algorithms: &[Algorithm] = match algorithm {
            None => &Algorithm::ALL,
            Some(algorithm) => {
                one = [algorithm];
                &one
            }
        };
        let unit = Unit::of(problem.parameter_type().format());
        let each = algorithms.iter().map(|&algorithm| {
            let mean = mean_error(own, algorithm, unit, problem.count());
            let variance = variance_error(own, algorithm, (unit, problem.count()), mean);
            (mean, variance)
        });
        let (mean, variance) = each.fold((Upper::ZERO, Upper::ZERO), |most, this| {
            (most.0.max(this.0), most.1.max(this.1))
        });
        Errors {
            mean,
            variance,
            inverse: inverse_error(own, problem.epsilon.0, unit, variance),
        }
    }

    /// Errors where the statistics are given: of the root alone.
    fn running(own: &Statistics, problem: &Problem) -> Errors {
        let unit = Unit::of(problem.parameter_type().format());
        Errors {
            mean: Upper::ZERO,
            variance: Upper::ZERO,
            inverse: inverse_error(own, problem.epsilon.0, unit, Upper::ZERO),
        }
    }

    /// Errors where mean and inverse deviation are given: their distance from
    /// the exact ones.
    fn saved(own: &Statistics, mean: f64, inverse: f64) -> Errors {
        let off =
            |exact: &Float, given: f64| upper(&Float::with_val(own.precision(), exact - given));
        Errors {
            mean: off(&own.mean, mean),
            variance: Upper::ZERO,
            inverse: off(&own.inverse, inverse),
        }
    }
}

impl<'a> Bounds<'a> {
    /// Bounds of a case: for one algorithm of the statistics, or for whichever.
    pub fn new(inputs: &'a Inputs, reference: &'a Reference, algorithm: Option<Algorithm>) -> Self {
        let problem = &inputs.problem;
        let errors = |(group, own): (usize, &Statistics)| match (problem.pass, &inputs.saved) {
            _ if !own.finite => Errors {
                mean: Upper::INFINITE,
                variance: Upper::INFINITE,
                inverse: Upper::INFINITE,
            },
            (Pass::Infer, _) => Errors::running(own, problem),
            (Pass::Backward, Some([mean, inverse])) => {
                Errors::saved(own, mean.get(group), inverse.get(group))
            }
            _ => Errors::of(own, problem, algorithm),
        };
        let mut bounds = Bounds {
            inputs,
            reference,
            format: problem.parameter_type().format(),
            errors: reference
                .statistics
                .iter()
                .enumerate()
                .map(errors)
                .collect(),
            sizes: reference.statistics.iter().map(Sizes::of).collect(),
            sums: Vec::new(),
        };
        bounds.sums = (0..reference.gradients.len())
            .map(|group| bounds.gradient(group))
            .collect();
        bounds
    }

    /// Bound on the distance between the exact value of element `i` of `output`
    /// and what is rounded to the output's type.
    pub fn at(&self, output: Output, i: usize) -> Upper {
        let group = self.group(output, i);
        match output {
            Output::Y => self.y(group, i),
            Output::SavedMean => self.errors[group].mean,
            Output::SavedInverse => self.errors[group].inverse,
            Output::RunningMean => self.running_mean(group),
            Output::RunningVariance => self.running_variance(group),
            Output::Dbias => self.sums[group].bias,
            Output::Dscale => self.sums[group].scale,
            Output::Dx => self.dx(group, i),
        }
    }

    /// Errors of what a group is normalised by.
    pub fn errors(&self, group: usize) -> &Errors {
        &self.errors[group]
    }

    /// Whether infinity or NaN may rightly come out where the exact value is
    /// finite: an intermediate result may leave the accumulator's range, or the
    /// variance may come out so far below zero that it has no root.
    pub fn may_overflow(&self, output: Output, i: usize, bound: Upper) -> bool {
        let group = self.group(output, i);
        let own = &self.reference.statistics[group];
        let most = Upper::of(self.format.max_finite() / 4.0);
        let m = Upper::of(self.inputs.problem.count() as f64);
        let squares = m * own.mean_square;
        if output == Output::Dbias {
            return bound > most;
        }
        let statistics = self.inputs.problem.pass != Pass::Infer && squares > most;
        statistics
            || self.errors[group].inverse == Upper::INFINITE && output != Output::SavedMean
            || bound > most
            || match output {
                Output::Y => self.gain(group).max(self.fused(group, i)) > most,
                Output::Dx => {
                    let gain = self.gain(group);
                    gain.max(gain * self.fused_gradient(group, i)) > most
                }
                _ => false,
            }
    }

    /// γ·r as computed is no larger. A form that scales by it overflows where it
    /// does, though x̂ be zero.
    fn gain(&self, group: usize) -> Upper {
        Upper::of(self.inputs.scale.get(group)) * self.inverse(group)
    }

    fn group(&self, output: Output, i: usize) -> usize {
        match output.is_image() {
            true => self.inputs.problem.group(i),
            false => i,
        }
    }

    fn unit(&self) -> Unit {
        Unit::of(self.format)
    }

    fn own(&self, group: usize) -> (&Statistics, &Errors) {
        (&self.reference.statistics[group], &self.errors[group])
    }

    /// The computed inverse deviation is no larger.
    fn inverse(&self, group: usize) -> Upper {
        self.sizes[group].inverse + self.errors[group].inverse
    }

    /// Error of x̂ before roundings.
    fn normalised_error(&self, group: usize, x: f64) -> Upper {
        let errors = &self.errors[group];
        let distance = self.sizes[group].distance(x);
        distance * errors.inverse + self.inverse(group) * errors.mean
    }

    /// The terms that a fused scale and shift adds up.
    fn fused(&self, group: usize, i: usize) -> Upper {
        let mean = self.sizes[group].mean() + self.errors[group].mean;
        let x = Upper::of(self.inputs.x.get(i)) + mean;
        let scale = Upper::of(self.inputs.scale.get(group));
        scale * self.inverse(group) * x + Upper::of(self.inputs.bias.get(group))
    }

    fn y(&self, group: usize, i: usize) -> Upper {
        let scale = Upper::of(self.inputs.scale.get(group));
        let unit = self.unit();
        let moved = scale * self.normalised_error(group, self.inputs.x.get(i));
        moved + unit.times(8.0) * self.fused(group, i) + self.flushes(group)
    }

    /// What flushes to zero lose, at the scale of the result.
    fn flushes(&self, group: usize) -> Upper {
        let scale = Upper::of(self.inputs.scale.get(group));
        let gain = (Upper::of(1.0) + scale) * (Upper::of(1.0) + self.inverse(group));
        Upper::of(4.0) * self.unit().floor * gain
    }

    fn running_mean(&self, group: usize) -> Upper {
        let (own, errors) = self.own(group);
        let size = upper(&own.mean) + errors.mean;
        self.average(self.inputs.running_mean.get(group), size, errors.mean)
    }

    fn running_variance(&self, group: usize) -> Upper {
        let (own, errors) = self.own(group);
        let count = self.inputs.problem.count() as f64;
        // Of one value alone the exact variance is 0, and so is what it is off by.
        let unbiased = Upper::of(count).over((count - 1.0).max(1.0));
        let error = unbiased * errors.variance;
        let size = unbiased * upper(&own.variance) + error;
        self.average(self.inputs.running_variance.get(group), size, error)
    }

    /// (1 − f)·old + f·new or old + f·(new − old), f and 1 − f rounded.
    fn average(&self, old: f64, new: Upper, error: Upper) -> Upper {
        let unit = self.unit();
        let factor = Upper::of(self.inputs.problem.factor.0);
        let roundings = Upper::of(old) + factor * (new + Upper::of(old));
        factor * error + unit.times(6.0) * roundings + Upper::of(4.0) * unit.floor
    }

    fn gradient(&self, group: usize) -> GradientErrors {
        let sums = &self.reference.gradients[group];
        let (own, errors) = self.own(group);
        let (unit, m) = (self.unit(), self.inputs.problem.count() as f64);
        let floor = Upper::of(2.0 * m) * unit.floor;
        let bias = unit.gamma(m + 1.0) * sums.bias_magnitude + floor;
        if !own.finite {
            let scale = Upper::INFINITE;
            return GradientErrors { bias, scale };
        }
        // x̂ has a relative error from r and a constant one from the mean, which
        // a sum of dy weighs.
        let relative = errors.inverse.over(own.inverse.to_f64_round(Round::Down));
        let shift = self.inverse(group) * errors.mean;
        let sum = sums.scale_magnitude * (Upper::of(1.0) + relative) + shift * sums.bias_magnitude;
        GradientErrors {
            bias,
            scale: upper(&sums.scale) * relative
                + shift * upper(&sums.bias)
                + unit.gamma(m + 8.0) * sum
                + floor * (Upper::of(1.0) + self.inverse(group)),
        }
    }

    /// The terms that dx adds up in its fused form, without the factor γ·r.
    fn fused_gradient(&self, group: usize, i: usize) -> Upper {
        let m = self.inputs.problem.count() as f64;
        let Gradient { bias, scale, .. } = &self.reference.gradients[group];
        let errors = &self.sums[group];
        let dy = self.inputs.dy.as_ref().map_or(0.0, |dy| dy.get(i));
        let mean = self.sizes[group].mean() + self.errors[group].mean;
        let slope = (upper(scale) + errors.scale).over(m);
        Upper::of(dy)
            + (upper(bias) + errors.bias).over(m)
            + slope * self.inverse(group) * (Upper::of(self.inputs.x.get(i)) + mean)
    }

    /// dx = γ·r·(dy − dβ/m − x̂·dγ/m). The second share of the mean's error is for
    /// the form that sums x − μ, whose exact sum is zero; the roundings are those
    /// of the fused form, whose terms are the larger.
    fn dx(&self, group: usize, i: usize) -> Upper {
        let errors = &self.errors[group];
        let (unit, m) = (self.unit(), self.inputs.problem.count() as f64);
        let Gradient { bias, scale, .. } = &self.reference.gradients[group];
        let GradientErrors {
            bias: bias_error,
            scale: scale_error,
        } = self.sums[group];
        let x = self.inputs.x.get(i);
        let dy = self.inputs.dy.as_ref().map_or(0.0, |dy| dy.get(i));
        let sizes = &self.sizes[group];
        let normalised = sizes.distance(x) * sizes.inverse;
        let error = self.normalised_error(group, x);
        let shift = self.inverse(group) * errors.mean;
        let (slope, slope_error) = (upper(scale).over(m), scale_error.over(m));
        let terms = Upper::of(dy)
            + (upper(bias) + bias_error).over(m)
            + (normalised + error) * (slope + slope_error);
        let inner = bias_error.over(m)
            + (normalised + error) * slope_error
            + slope * (error + shift)
            + unit.times(8.0) * self.fused_gradient(group, i);
        let gain = Upper::of(self.inputs.scale.get(group));
        let outer = errors.inverse + unit.times(4.0) * self.inverse(group);
        gain * (self.inverse(group) * inner + outer * terms) + self.flushes(group)
    }
}
