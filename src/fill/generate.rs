//! Counter-based generation: every element is a pure function of
//! (problem, fill, role, logical index), so any number of threads and any order
//! give the same bits.

use super::stream::Stream;
use super::{Fill, FillKind};
use crate::dtype::{DType, exp2};
use crate::problem::{ConvProblem, Direction, Role};
use crate::tensor::Tensor;

/// The stream of a tensor.
fn tag(role: Role) -> u64 {
    match role {
        Role::X => 1,
        Role::W => 2,
        Role::Y => 3,
    }
}

/// Where a tensor stands in the sum.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    First,
    Second,
    /// Previous contents of the result tensor.
    Prior,
}

/// Generates the tensor in `role`.
pub fn tensor(problem: &ConvProblem, fill: Fill, role: Role) -> Tensor {
    let generator = Generator::new(problem, fill, role);
    Tensor::from_fn(problem.dtype(role), &problem.dims(role), |i| {
        generator.value(i)
    })
}

struct Generator<'a> {
    problem: &'a ConvProblem,
    kind: FillKind,
    stream: Stream,
    part: Part,
    role: Role,
    len: usize,
    /// Elements per step of the axis that the sum runs over, and its length.
    axis: (usize, usize),
    /// Products per output.
    terms: f64,
    /// Largest magnitude of the integer kinds, and the share left nonzero.
    amplitude: u64,
    density: f64,
}

impl<'a> Generator<'a> {
    fn new(problem: &'a ConvProblem, fill: Fill, role: Role) -> Self {
        let [first, _] = problem.direction.operands();
        let part = match role {
            _ if role == problem.direction.result() => Part::Prior,
            _ if role == first => Part::First,
            _ => Part::Second,
        };
        let (amplitude, density) = integer_range(problem, role);
        Generator {
            problem,
            kind: fill.kind,
            stream: Stream::new(fill.seed, tag(role)),
            part,
            role,
            len: problem.elements(role),
            axis: reduction_axis(problem, role),
            terms: problem.reduction_length() as f64,
            amplitude,
            density,
        }
    }

    fn value(&self, i: usize) -> f64 {
        if self.part == Part::Prior {
            return self.prior(i);
        }
        match self.kind {
            FillKind::Constant => 1.0,
            FillKind::Impulse => self.impulse(i),
            FillKind::Integers => self.integer(i, self.density),
            FillKind::Sparse => self.integer(i, self.density.min(SPARSE_DENSITY)),
            FillKind::Normal => self.stream.normal(i),
            FillKind::UniformPositive => self.positive(i),
            FillKind::LogUniform => self.log_uniform(i),
            FillKind::Cancelling => self.cancelling(i),
            FillKind::LargeThenSmall => self.large_then_small(i),
            FillKind::NearOverflow => self.near_overflow(i),
            FillKind::Subnormal => self.subnormal(i),
            FillKind::NanPlaced => self.placed(i, f64::NAN),
            FillKind::InfPlaced => self.placed(i, f64::INFINITY * self.stream.sign(i, 5)),
        }
    }

    /// Previous contents: integers where sums are exact, else of the size that
    /// the sum of the products typically has.
    fn prior(&self, i: usize) -> f64 {
        match self.kind.regime() {
            super::Regime::ExactInteger => self.integer(i, 1.0),
            _ if self.kind == FillKind::Subnormal => {
                self.stream.normal(i) * self.problem.result_type().format().min_normal()
            }
            _ => self.stream.normal(i) * self.terms.sqrt(),
        }
    }

    fn impulse(&self, i: usize) -> f64 {
        if self.part == Part::First {
            let at = self.stream.word(0, 2) % self.len as u64;
            return if i as u64 == at { 1.0 } else { 0.0 };
        }
        (1 + i as u64 % DISTINCT_INTEGERS) as f64
    }

    fn integer(&self, i: usize, density: f64) -> f64 {
        if self.stream.unit(i, 2) >= density {
            return 0.0;
        }
        let magnitude = 1 + self.stream.word(i, 3) % self.amplitude;
        magnitude as f64 * self.stream.sign(i, 4)
    }

    /// Uniform on (0, 1].
    fn positive(&self, i: usize) -> f64 {
        1.0 - self.stream.unit(i, 0)
    }

    /// Exponents uniform over a span that neither overflows nor vanishes in the
    /// sum: the top is set by range and number of terms, the span by the type.
    fn log_uniform(&self, i: usize) -> f64 {
        let span = if self.narrow_range() { 12.0 } else { 40.0 };
        let top = (self.headroom() / 2.0).min(span / 2.0);
        let exponent = top - span * self.stream.unit(i, 0);
        self.stream.sign(i, 4) * libm::exp2(exponent)
    }

    /// Adjacent steps of the reduction cancel up to 2^-6 of their product.
    fn cancelling(&self, i: usize) -> f64 {
        let (stride, len) = self.axis;
        let at = i / stride % len;
        let twin = i - at % 2 * stride;
        let value = self.stream.normal(twin);
        let paired = at % 2 == 1;
        match self.part {
            Part::Second if paired => -value * (1.0 + exp2(-6) * self.stream.unit(i, 2)),
            _ => value,
        }
    }

    /// The first step of the reduction holds products near one; all others are
    /// positive and near the last place of the accumulator at one.
    fn large_then_small(&self, i: usize) -> f64 {
        let (stride, len) = self.axis;
        let jitter = 0.5 + 0.5 * self.stream.unit(i, 0);
        if (i / stride).is_multiple_of(len) {
            jitter
        } else {
            jitter * exp2(-12)
        }
    }

    /// Normal data scaled so that sums straddle the overflow threshold of the
    /// result type.
    fn near_overflow(&self, i: usize) -> f64 {
        let product = self
            .problem
            .result_type()
            .format()
            .max_finite()
            .min(exp2(127));
        // Eight standard deviations must fit an operand.
        let largest = self.own_type().format().max_finite() / 8.0;
        self.stream.normal(i) * (product / self.terms.sqrt()).sqrt().min(largest)
    }

    /// First operand around its smallest normal value, second of size one, so
    /// that operands and sums are at and below the subnormal range.
    fn subnormal(&self, i: usize) -> f64 {
        match self.part {
            Part::First => {
                let role = self.problem.direction.operands()[0];
                let smallest = self.problem.dtype(role).format().min_normal();
                2.0 * smallest * (2.0 * self.stream.unit(i, 0) - 1.0)
            }
            _ => self.stream.normal(i) / self.terms.sqrt(),
        }
    }

    /// Normal data with at least one, and about one in a thousand, elements of
    /// the first operand replaced.
    fn placed(&self, i: usize, special: f64) -> f64 {
        let certain = self.stream.word(0, 6) % self.len as u64 == i as u64;
        let chosen = certain || self.stream.word(i, 7).is_multiple_of(1024);
        if self.part == Part::First && chosen {
            special
        } else {
            self.stream.normal(i)
        }
    }

    fn own_type(&self) -> DType {
        self.problem.dtype(self.role)
    }

    fn narrow_range(&self) -> bool {
        [Role::X, Role::W, Role::Y]
            .iter()
            .any(|&r| self.problem.dtype(r).format().emax < 100)
    }

    /// log2 of how large a product may be for `terms` of them to stay finite.
    fn headroom(&self) -> f64 {
        let emax = [Role::X, Role::W, Role::Y]
            .iter()
            .map(|&r| self.problem.dtype(r).format().emax)
            .min()
            .unwrap_or(0);
        f64::from(emax - 2) - self.terms.log2()
    }
}

/// Share of nonzero elements of the first operand in [`FillKind::Sparse`].
const SPARSE_DENSITY: f64 = 0.2;

/// Distinct integers used by [`FillKind::Impulse`]: what 8 bits hold exactly.
const DISTINCT_INTEGERS: u64 = 255;

/// Largest magnitude, and share of nonzero elements, of integer data in `role`
/// such that sums of products stay below 2^precision of the accumulator
/// (numerics: the exact-integer regime). Where the sum is too long even for
/// ones, elements of the first operand are zeroed; the judge checks the
/// condition per output, so this need only hold on average.
fn integer_range(problem: &ConvProblem, role: Role) -> (u64, f64) {
    let limit = exp2(problem.compute.dtype().format().precision);
    let per_term = limit / problem.reduction_length() as f64;
    let exact = problem.dtype(role).format().precision.min(8);
    let mut amplitude = per_term.sqrt().clamp(1.0, exp2(exact) - 1.0);
    if problem.result_type().format().emax < 100 {
        // Sums are to round in a half-precision result, not to overflow it: their
        // deviation is about amplitude²·sqrt(K)/3.
        let quarter = problem.result_type().format().max_finite() / 4.0;
        let fitting = (3.0 * quarter / (problem.reduction_length() as f64).sqrt()).sqrt();
        amplitude = amplitude.min(fitting).max(1.0);
    }
    let first = problem.direction.operands()[0] == role;
    let density = if first {
        (0.5 * per_term).min(1.0)
    } else {
        1.0
    };
    (amplitude as u64, density)
}

/// Stride (in elements) and length of the outermost axis a sum runs over.
fn reduction_axis(problem: &ConvProblem, role: Role) -> (usize, usize) {
    let dims = problem.dims(role);
    let axis = match (problem.direction, role) {
        (Direction::BwdFilter, _) | (Direction::BwdData, Role::W) => 0,
        _ => 1,
    };
    (dims[axis + 1..].iter().product(), dims[axis])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fill::{Inputs, Regime};
    use crate::geometry::Geometry;
    use proptest::prelude::*;

    fn inputs(line: &str, fill: &str) -> Inputs {
        Inputs::generate(&line.parse().unwrap(), fill.parse().unwrap())
    }

    #[test]
    fn generate_one_and_many_threads_agree() {
        let line = "fwd n=2 c=64 k=16 in=17x19 ker=3x3 type=bf16 beta=1";
        for kind in FillKind::ALL {
            let fill = format!("{}:3", kind.name());
            let on = |threads| {
                let pool = rayon::ThreadPoolBuilder::new()
                    .num_threads(threads)
                    .build()
                    .unwrap();
                pool.install(|| inputs(line, &fill))
            };
            let (one, many) = (on(1), on(5));
            assert_eq!(one.first, many.first);
            assert_eq!(one.second, many.second);
            assert_eq!(one.prior, many.prior);
        }
    }

    #[test]
    fn generate_golden_values_never_change() {
        let data = inputs("fwd c=2 k=2 in=3 ker=2 type=fp32", "normal:7");
        let bits: Vec<u64> = (0..3).map(|i| data.first.bits(i)).collect();
        assert_eq!(bits, GOLDEN_NORMAL);
        let data = inputs("fwd c=2 k=2 in=3 ker=2 type=fp32", "ints:7");
        let values: Vec<f64> = (0..3).map(|i| data.second.get(i)).collect();
        assert_eq!(values, GOLDEN_INTEGERS);
    }

    const GOLDEN_NORMAL: [u64; 3] = [1071894239, 1066716371, 3211447888];
    const GOLDEN_INTEGERS: [f64; 3] = [24.0, -242.0, 226.0];

    #[test]
    fn generate_roles_and_seeds_have_their_own_streams() {
        let line = "fwd c=16 k=16 in=1 ker=1";
        let (a, b) = (inputs(line, "normal:1"), inputs(line, "normal:2"));
        assert_ne!(a.first, b.first);
        assert_ne!(a.first.get(0), a.second.get(0));
    }

    #[test]
    fn normal_has_mean_zero_and_variance_one() {
        let data = inputs("fwd n=8 c=64 k=1 in=64 ker=1", "normal:1")
            .first
            .to_f64();
        let n = data.len() as f64;
        let mean = data.iter().sum::<f64>() / n;
        let variance = data.iter().map(|v| v * v).sum::<f64>() / n;
        // Six standard errors.
        assert!(mean.abs() < 6.0 / n.sqrt(), "{mean}");
        assert!(
            (variance - 1.0).abs() < 6.0 * (2.0 / n).sqrt(),
            "{variance}"
        );
    }

    #[test]
    fn placed_specials_are_there_in_the_first_operand_alone() {
        for (fill, test) in [
            ("nan:1", f64::is_nan as fn(f64) -> bool),
            ("inf:1", f64::is_infinite),
        ] {
            let data = inputs("fwd c=3 k=2 in=4 ker=2 type=fp16", fill);
            assert!(data.first.to_f64().into_iter().any(test));
            assert!(data.second.to_f64().into_iter().all(f64::is_finite));
        }
    }

    #[test]
    fn subnormal_has_subnormal_operands_in_every_type() {
        for dtype in ["fp16", "bf16", "fp32", "fp64"] {
            let data = inputs(
                &format!("fwd c=16 k=2 in=4 ker=2 type={dtype}"),
                "subnormal:1",
            );
            let least = data.first.dtype().format().min_normal();
            let tiny = data
                .first
                .to_f64()
                .iter()
                .filter(|v| v.abs() < least && **v != 0.0)
                .count();
            assert!(tiny > data.first.len() / 4);
        }
    }

    #[test]
    fn overflow_straddles_the_threshold() {
        let data = inputs("fwd c=64 k=8 in=16 ker=1 type=fp16", "overflow:1");
        let geometry = Geometry::new(&data.problem);
        let threshold = data.problem.y_type.format().overflow_threshold();
        let over = (0..geometry.outputs())
            .filter(|&i| {
                let mut sum = 0.0;
                geometry.for_each_product(i, |a, b| sum += data.first.get(a) * data.second.get(b));
                sum.abs() >= threshold
            })
            .count();
        assert!(over > 0 && over < geometry.outputs(), "{over}");
    }

    proptest! {
        /// The exact-integer condition: sums of magnitudes below 2^precision.
        #[test]
        fn integers_sum_exactly(
            c in 1usize..80, k in 1usize..5, size in 1usize..5, ker in 1usize..4,
            dtype in prop::sample::select(vec!["fp16", "bf16", "fp32", "fp64"]),
            half in any::<bool>(), seed in any::<u64>(),
            direction in prop::sample::select(vec!["fwd", "bwd_data", "bwd_filter"]),
        ) {
            let compute = if half { " compute=fp16" } else { "" };
            let line = format!("{direction} c={c} k={k} in={} ker={ker} pad=1 type={dtype}{compute}", size + ker);
            let data = inputs(&line, &format!("ints:{seed}"));
            prop_assert_eq!(data.fill.kind.regime(), Regime::ExactInteger);
            let limit = exp2(data.problem.compute.dtype().format().precision);
            let geometry = Geometry::new(&data.problem);
            for i in 0..geometry.outputs() {
                let mut s = 0.0;
                geometry.for_each_product(i, |a, b| s += (data.first.get(a) * data.second.get(b)).abs());
                prop_assert!(s <= limit);
            }
        }
    }
}
