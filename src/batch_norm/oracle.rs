//! Exact values with MPFR. The sums Σx and Σx² are exact, so that the variance
//! (m·Σx² − (Σx)²)/m² has a relative error of one rounding, however large the
//! mean is; all that follows is computed with [`Statistics::precision`] bits.

use rayon::prelude::*;
use rug::Float;

use super::inputs::Inputs;
use super::problem::{Output, Pass, Problem};
use crate::bound::upper::Upper;
use crate::dtype::exponent;
use crate::oracle::Value;
use crate::oracle::arbiter::to_value;
use crate::tensor::Tensor;

/// Bits that every computation has at least: results are doubles pairs of 106.
const LEAST_PRECISION: u32 = 256;

/// Relative error of a value from its terms, an upper bound: ten roundings of
/// [`LEAST_PRECISION`] bits and more.
const RELATIVE: f64 = 1.0 / (1u128 << 100) as f64 / (1u128 << 100) as f64;

/// What the values of one group are normalised by.
#[derive(Clone, Debug)]
pub struct Statistics {
    /// Mean.
    pub mean: Float,
    /// Biased variance.
    pub variance: Float,
    /// 1/sqrt(variance + epsilon).
    pub inverse: Float,
    /// Whether all values are finite; the above mean nothing otherwise.
    pub finite: bool,
    /// Σ|x|/m.
    pub mean_magnitude: Upper,
    /// Σx²/m.
    pub mean_square: Upper,
    /// Largest |x|.
    pub largest: f64,
}

/// Sums of a backward pass over one group.
#[derive(Clone, Debug)]
pub struct Gradient {
    /// Σ dy.
    pub bias: Float,
    /// Σ dy·x̂.
    pub scale: Float,
    /// Σ |dy|.
    pub bias_magnitude: Upper,
    /// Σ |dy·x̂|.
    pub scale_magnitude: Upper,
}

/// Exact values of everything a pass computes.
#[derive(Clone, Debug)]
pub struct Reference {
    /// Per group: statistics of x, or for inference the running ones.
    pub statistics: Vec<Statistics>,
    /// Per group, of a backward pass.
    pub gradients: Vec<Gradient>,
    /// Values of the outputs, in logical order; meaningless in groups that are
    /// not finite.
    pub values: Vec<(Output, Vec<Value>)>,
}

impl Statistics {
    /// Statistics of every group of x.
    pub fn of(problem: &Problem, x: &Tensor) -> Vec<Statistics> {
        let values = x.to_f64();
        (0..problem.groups())
            .into_par_iter()
            .map(|group| {
                let members = (0..problem.count()).map(|at| values[problem.member(group, at)]);
                Statistics::of_values(&members.collect::<Vec<_>>(), problem.epsilon.0)
            })
            .collect()
    }

    /// Statistics of one group of doubles.
    pub fn of_values(values: &[f64], epsilon: f64) -> Statistics {
        if values.iter().any(|value| !value.is_finite()) {
            return Self::not_finite();
        }
        let precision = precision(values);
        let count = values.len();
        let mut sum = Float::new(precision);
        let mut squares = Float::new(precision);
        for &value in values {
            sum += value;
            squares += Float::with_val(106, value) * value;
        }
        let spread = Float::with_val(precision, &squares * count as u64) - sum.clone().square();
        let variance = spread / count as u64 / count as u64;
        let magnitudes = values.iter().map(|&value| Upper::of(value));
        let total: Upper = magnitudes.clone().sum();
        Statistics {
            mean: sum / count as u64,
            inverse: inverse(&variance, epsilon),
            variance,
            finite: true,
            mean_magnitude: total.over(count as f64),
            mean_square: magnitudes.map(|m| m * m).sum::<Upper>().over(count as f64),
            largest: values.iter().fold(0.0, |most, value| most.max(value.abs())),
        }
    }

    /// Statistics that are given.
    fn given(mean: f64, variance: f64, epsilon: f64) -> Statistics {
        let variance = Float::with_val(LEAST_PRECISION, variance);
        Statistics {
            mean: Float::with_val(LEAST_PRECISION, mean),
            inverse: inverse(&variance, epsilon),
            variance,
            finite: true,
            mean_magnitude: Upper::of(mean),
            mean_square: Upper::of(mean) * Upper::of(mean),
            largest: mean.abs(),
        }
    }

    fn not_finite() -> Statistics {
        let nan = Float::with_val(LEAST_PRECISION, f64::NAN);
        Statistics {
            mean: nan.clone(),
            variance: nan.clone(),
            inverse: nan,
            finite: false,
            mean_magnitude: Upper::INFINITE,
            mean_square: Upper::INFINITE,
            largest: f64::INFINITY,
        }
    }

    /// Bits that all computations with these statistics have.
    pub fn precision(&self) -> u32 {
        self.mean.prec().max(LEAST_PRECISION)
    }

    /// (x − mean)·inverse.
    pub fn normalised(&self, x: f64) -> Float {
        Float::with_val(self.precision(), x - &self.mean) * &self.inverse
    }
}

/// Bits in which sums of values and of their squares, and the difference of the
/// two, are exact.
fn precision(values: &[f64]) -> u32 {
    let exponents = values.iter().filter(|v| **v != 0.0).map(|&v| exponent(v));
    let (low, high) = exponents.fold((0, 0), |(low, high), e| (e.min(low), e.max(high)));
    let carries = usize::BITS - values.len().leading_zeros() + 1;
    // Every value is a multiple of 2^(low − 52) below 2^(high + 1).
    let one = (high - low) as u32 + 53 + carries;
    (2 * one + 2).max(LEAST_PRECISION)
}

fn inverse(variance: &Float, epsilon: f64) -> Float {
    let precision = variance.prec().max(LEAST_PRECISION);
    Float::with_val(precision, variance + epsilon).recip_sqrt()
}

/// A computed number as a value, with what its computation may be off: the
/// magnitude of its largest term in a few hundred bits.
fn value(computed: &Float, terms: f64) -> Value {
    let value = to_value(computed);
    Value {
        radius: (value.radius + terms * RELATIVE).next_up(),
        ..value
    }
}

impl Reference {
    /// Computes everything.
    pub fn of(inputs: &Inputs) -> Reference {
        let problem = &inputs.problem;
        let statistics = match problem.pass {
            Pass::Infer => running(inputs),
            _ => Statistics::of(problem, &inputs.x),
        };
        let mut exact = Reference {
            gradients: inputs
                .dy
                .as_ref()
                .map_or(Vec::new(), |dy| gradients(inputs, dy, &statistics)),
            statistics,
            values: Vec::new(),
        };
        let values = |output| (output, exact.output(inputs, output));
        exact.values = problem.outputs().into_iter().map(values).collect();
        exact
    }

    /// The values of an output that was computed.
    pub fn get(&self, output: Output) -> Option<&[Value]> {
        let found = self.values.iter().find(|(this, _)| *this == output);
        found.map(|(_, values)| values.as_slice())
    }

    fn output(&self, inputs: &Inputs, output: Output) -> Vec<Value> {
        let problem = &inputs.problem;
        let elements = match output.is_image() {
            true => problem.elements(),
            false => problem.groups(),
        };
        (0..elements)
            .into_par_iter()
            .with_min_len(256)
            .map(|i| self.element(inputs, output, i))
            .collect()
    }

    fn element(&self, inputs: &Inputs, output: Output, i: usize) -> Value {
        let problem = &inputs.problem;
        let group = match output.is_image() {
            true => problem.group(i),
            false => i,
        };
        let own = &self.statistics[group];
        // Σ dy does not depend on x.
        if !own.finite && output != Output::Dbias {
            return Value::exact(f64::NAN);
        }
        let count = problem.count();
        let factor = problem.factor.0;
        match output {
            Output::Y => y(own, inputs, group, i),
            Output::SavedMean => value(&own.mean, own.mean.to_f64().abs()),
            Output::SavedInverse => value(&own.inverse, own.inverse.to_f64()),
            Output::RunningMean => average(inputs.running_mean.get(i), &own.mean, factor),
            Output::RunningVariance => {
                let unbiased = sample_variance(own, count);
                average(inputs.running_variance.get(i), &unbiased, factor)
            }
            Output::Dbias => {
                let gradient = &self.gradients[group];
                value(&gradient.bias, gradient.bias_magnitude.get())
            }
            Output::Dscale => {
                let gradient = &self.gradients[group];
                value(&gradient.scale, gradient.scale_magnitude.get())
            }
            Output::Dx => dx(own, &self.gradients[group], inputs, group, i),
        }
    }
}

/// σ²·m/(m − 1); of one value alone nothing is known, and 0 stands for it.
fn sample_variance(own: &Statistics, count: usize) -> Float {
    match count {
        1 => Float::new(own.precision()),
        _ => own.variance.clone() * count as u64 / (count - 1) as u64,
    }
}

fn running(inputs: &Inputs) -> Vec<Statistics> {
    let given = |i| {
        let mean = inputs.running_mean.get(i);
        let variance = inputs.running_variance.get(i);
        Statistics::given(mean, variance, inputs.problem.epsilon.0)
    };
    (0..inputs.problem.groups()).map(given).collect()
}

fn y(own: &Statistics, inputs: &Inputs, group: usize, i: usize) -> Value {
    let (x, bias) = (inputs.x.get(i), inputs.bias.get(group));
    if !x.is_finite() {
        return Value::exact(f64::NAN);
    }
    let scaled = own.normalised(x) * inputs.scale.get(group);
    let terms = scaled.to_f64().abs() + bias.abs();
    value(&(scaled + bias), terms)
}

fn average(old: f64, new: &Float, factor: f64) -> Value {
    let precision = new.prec().max(LEAST_PRECISION);
    let kept = Float::with_val(precision, 1.0 - Float::with_val(precision, factor)) * old;
    let added = Float::with_val(precision, new * factor);
    let terms = kept.to_f64().abs() + added.to_f64().abs();
    value(&(kept + added), terms)
}

fn gradients(inputs: &Inputs, dy: &Tensor, statistics: &[Statistics]) -> Vec<Gradient> {
    let problem = &inputs.problem;
    (0..problem.groups())
        .into_par_iter()
        .map(|group| {
            let members = (0..problem.count()).map(|at| problem.member(group, at));
            let pairs = members.map(|i| (inputs.x.get(i), dy.get(i)));
            gradient(&statistics[group], pairs)
        })
        .collect()
}

fn gradient(own: &Statistics, pairs: impl Iterator<Item = (f64, f64)>) -> Gradient {
    let precision = own.precision();
    let mut sums = Gradient {
        bias: Float::new(precision),
        scale: Float::new(precision),
        bias_magnitude: Upper::ZERO,
        scale_magnitude: Upper::ZERO,
    };
    for (x, dy) in pairs {
        sums.bias += dy;
        sums.bias_magnitude = sums.bias_magnitude + Upper::of(dy);
        if !own.finite {
            continue;
        }
        let product = own.normalised(x) * dy;
        let size = Upper::of(product.to_f64().abs().next_up());
        sums.scale_magnitude = sums.scale_magnitude + size;
        sums.scale += product;
    }
    sums
}

fn dx(own: &Statistics, sums: &Gradient, inputs: &Inputs, group: usize, i: usize) -> Value {
    let count = inputs.problem.count() as u64;
    let dy = inputs.dy.as_ref().map_or(0.0, |dy| dy.get(i));
    let normalised = own.normalised(inputs.x.get(i));
    let factor = Float::with_val(own.precision(), &own.inverse * inputs.scale.get(group));
    let mean = Float::with_val(own.precision(), &sums.bias / count);
    let slope = Float::with_val(own.precision(), &sums.scale / count) * normalised;
    let terms = dy.abs() + mean.to_f64().abs() + slope.to_f64().abs();
    let terms = terms * factor.to_f64().abs();
    value(&((dy - mean - slope) * factor), terms)
}

#[cfg(test)]
mod tests {
    use super::super::inputs::Fill;
    use super::*;
    use crate::dtype::exp2;
    use proptest::prelude::*;
    use rug::Rational;

    fn rational(value: f64) -> Rational {
        Rational::from_f64(value).unwrap()
    }

    /// Mean and biased variance by definition, in rational numbers.
    fn by_definition(values: &[f64]) -> (Rational, Rational) {
        let count = Rational::from(values.len());
        let sum: Rational = values.iter().map(|&v| rational(v)).sum();
        let mean = sum / &count;
        let squares = values.iter().map(|&v| (rational(v) - &mean).square());
        let squares: Rational = squares.sum();
        (mean, squares / count)
    }

    fn close(computed: &Float, exact: &Rational) -> bool {
        let exact = Float::with_val(2000, exact);
        let off = Float::with_val(2000, computed - &exact).abs();
        off <= exact.abs() * RELATIVE
    }

    proptest! {
        #[test]
        fn statistics_are_those_of_rational_numbers(
            values in prop::collection::vec(-1e4f64..1e4, 1..20), offset in -1e8f64..1e8,
        ) {
            let values: Vec<f64> = values.iter().map(|v| v + offset).collect();
            let found = Statistics::of_values(&values, 1e-5);
            let (mean, variance) = by_definition(&values);
            prop_assert!(close(&found.mean, &mean));
            prop_assert!(close(&found.variance, &variance));
        }
    }

    fn reference(line: &str, fill: &str) -> (Inputs, Reference) {
        let fill: Fill = fill.parse().unwrap();
        let inputs = Inputs::generate(&line.parse().unwrap(), fill);
        let reference = Reference::of(&inputs);
        (inputs, reference)
    }

    fn values(reference: &Reference, output: Output) -> Vec<f64> {
        let values = reference.get(output).unwrap();
        values.iter().map(|value| value.hi).collect()
    }

    #[test]
    fn y_has_mean_bias_and_deviation_scale() {
        let (inputs, reference) = reference("bn_train n=4 c=3 in=5x5 type=fp64", "offset:2");
        let y = values(&reference, Output::Y);
        let problem = &inputs.problem;
        for group in 0..3 {
            let members: Vec<f64> = (0..problem.count())
                .map(|at| y[problem.member(group, at)])
                .collect();
            let own = Statistics::of_values(&members, 0.0);
            let (bias, scale) = (inputs.bias.get(group), inputs.scale.get(group));
            assert!((own.mean.to_f64() - bias).abs() < 1e-12);
            assert!((own.variance.to_f64().sqrt() - scale.abs()).abs() < 1e-4);
        }
    }

    /// dx, dscale and dbias are the derivatives of Σ dy·y: central differences of
    /// exact values agree.
    #[test]
    fn gradients_are_the_derivatives_of_training() {
        for mode in ["spatial", "per_activation"] {
            let line = format!("bn_bwd n=3 c=2 in=2x2 type=fp64 mode={mode}");
            let (inputs, reference) = reference(&line, "normal:4");
            let step = exp2(-20);
            let loss = |change: &dyn Fn(&mut Inputs, f64), by: f64| {
                let mut moved = inputs.clone();
                change(&mut moved, by);
                moved.problem.pass = Pass::Train;
                let y = values(&Reference::of(&moved), Output::Y);
                let dy = inputs.dy.as_ref().unwrap();
                y.iter()
                    .enumerate()
                    .map(|(i, y)| y * dy.get(i))
                    .sum::<f64>()
            };
            let slope = |change: &dyn Fn(&mut Inputs, f64)| {
                (loss(change, step) - loss(change, -step)) / (2.0 * step)
            };
            for (output, exact) in &reference.values {
                for (i, exact) in exact.iter().enumerate() {
                    let measured = slope(&|inputs, by| {
                        let tensor = match output {
                            Output::Dx => &mut inputs.x,
                            Output::Dscale => &mut inputs.scale,
                            _ => &mut inputs.bias,
                        };
                        tensor.set(i, tensor.get(i) + by);
                    });
                    assert!(
                        (measured - exact.hi).abs() < 1e-7,
                        "{output:?} {i}: {measured} {exact:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn running_statistics_are_averages_with_the_sample_variance() {
        let (inputs, reference) =
            reference("bn_train n=4 c=1 in=1x1 type=fp64 factor=0.25", "ints:1");
        let x = inputs.x.to_f64();
        let mean = x.iter().sum::<f64>() / 4.0;
        let sample = x.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / 3.0;
        let expected = 0.75 * inputs.running_variance.get(0) + 0.25 * sample;
        assert!((values(&reference, Output::RunningVariance)[0] - expected).abs() < 1e-14);
        let expected = 0.75 * inputs.running_mean.get(0) + 0.25 * mean;
        assert!((values(&reference, Output::RunningMean)[0] - expected).abs() < 1e-14);
    }

    #[test]
    fn a_group_with_nan_spoils_no_other() {
        let (inputs, reference) = reference("bn_train n=2 c=3 in=4x4", "nan:5");
        let spoilt = reference.statistics.iter().filter(|group| !group.finite);
        assert_eq!(spoilt.count(), 1);
        let y = values(&reference, Output::Y);
        let nan = y.iter().filter(|v| v.is_nan()).count();
        assert_eq!(nan, inputs.problem.count());
    }
}
