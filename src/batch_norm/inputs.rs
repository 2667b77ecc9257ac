//! Data of a case: every value is a pure function of (problem, fill, tensor,
//! logical index), each tensor with a stream of its own.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::oracle::Statistics;
use super::problem::{Pass, Problem};
use crate::dtype::{DType, exp2};
use crate::error::{Error, Result};
use crate::fill::stream::Stream;
use crate::tensor::Tensor;

/// A distribution and the seed of its streams. Text form `offset:7`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fill {
    /// The distribution.
    pub kind: FillKind,
    /// Seeds every stream.
    pub seed: u64,
}

/// The distributions of x, plainest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FillKind {
    /// Integers of at most 8: sums are exact in any order.
    Integers,
    /// Standard normal.
    Normal,
    /// A mean of 10 to 30,000 standard deviations.
    Offset,
    /// A variance far below epsilon.
    Tiny,
    /// One value per group: no variance.
    Constant,
    /// Small values, the last of each group a thousand times as large.
    Spike,
    /// Magnitudes over many binades.
    LogUniform,
    /// Normal; the scale takes y to the top of its range, and of fp16 beyond.
    Overflow,
    /// Normal, one value NaN.
    Nan,
    /// Normal, one value infinite.
    Inf,
}

impl Fill {
    /// What a line without a fill means.
    pub fn plain() -> Self {
        Fill {
            kind: FillKind::Normal,
            seed: 0,
        }
    }
}

/// The tensors a pass reads; those it does not are absent.
#[derive(Clone, Debug)]
pub struct Inputs {
    /// The problem.
    pub problem: Problem,
    /// What is normalised, or was.
    pub x: Tensor,
    /// Scale γ, one per group.
    pub scale: Tensor,
    /// Bias β, one per group.
    pub bias: Tensor,
    /// Running mean before the pass.
    pub running_mean: Tensor,
    /// Running variance before the pass.
    pub running_variance: Tensor,
    /// Backward: gradient of y.
    pub dy: Option<Tensor>,
    /// Backward with saved statistics: mean and inverse deviation.
    pub saved: Option<[Tensor; 2]>,
}

impl FillKind {
    /// All kinds, plainest first.
    pub const ALL: [FillKind; 10] = [
        FillKind::Integers,
        FillKind::Normal,
        FillKind::Offset,
        FillKind::Tiny,
        FillKind::Constant,
        FillKind::Spike,
        FillKind::LogUniform,
        FillKind::Overflow,
        FillKind::Nan,
        FillKind::Inf,
    ];

    /// The name in lines.
    pub fn name(self) -> &'static str {
        match self {
            FillKind::Integers => "ints",
            FillKind::Normal => "normal",
            FillKind::Offset => "offset",
            FillKind::Tiny => "tiny",
            FillKind::Constant => "const",
            FillKind::Spike => "spike",
            FillKind::LogUniform => "loguniform",
            FillKind::Overflow => "overflow",
            FillKind::Nan => "nan",
            FillKind::Inf => "inf",
        }
    }
}

/// Streams of the tensors.
#[derive(Clone, Copy)]
enum Stem {
    X = 11,
    Scale,
    Bias,
    RunningMean,
    RunningVariance,
    Dy,
}

/// Means in standard deviations of [`FillKind::Offset`]; a fill has one.
const OFFSETS: [f64; 5] = [10.0, 100.0, 1000.0, 5000.0, 30_000.0];

/// Largest magnitude of [`FillKind::Integers`].
const LARGEST_INTEGER: u64 = 8;

struct Generator<'a> {
    problem: &'a Problem,
    fill: Fill,
}

impl Generator<'_> {
    fn stream(&self, stem: Stem) -> Stream {
        Stream::new(self.fill.seed, stem as u64)
    }

    fn x(&self, i: usize) -> f64 {
        let stream = self.stream(Stem::X);
        match self.fill.kind {
            FillKind::Integers => integer(stream, i),
            FillKind::Offset => self.offset() + stream.normal(i),
            FillKind::Tiny => exp2(-13) * stream.normal(i),
            FillKind::Constant => stream.normal(self.problem.group(i)),
            FillKind::Spike => self.spike(stream, i),
            FillKind::LogUniform => self.log_uniform(stream, i),
            FillKind::Nan if self.is_special(i) => f64::NAN,
            FillKind::Inf if self.is_special(i) => f64::INFINITY * stream.sign(i, 5),
            _ => stream.normal(i),
        }
    }

    fn offset(&self) -> f64 {
        let at = self.stream(Stem::X).word(0, 8) % OFFSETS.len() as u64;
        OFFSETS[at as usize]
    }

    fn spike(&self, stream: Stream, i: usize) -> f64 {
        let group = self.problem.group(i);
        let last = self.problem.member(group, self.problem.count() - 1);
        let size = if i == last { 64.0 } else { exp2(-4) };
        size * (1.0 + stream.unit(i, 0)) * stream.sign(i, 4)
    }

    fn log_uniform(&self, stream: Stream, i: usize) -> f64 {
        let span = if self.problem.dtype == DType::Fp16 {
            10.0
        } else {
            24.0
        };
        stream.sign(i, 4) * libm::exp2(span * (stream.unit(i, 0) - 0.5))
    }

    fn is_special(&self, i: usize) -> bool {
        let chosen = self.stream(Stem::X).word(0, 6) % self.problem.elements() as u64;
        chosen == i as u64
    }

    /// Scales are of size one and of either sign.
    fn scale(&self, i: usize) -> f64 {
        let stream = self.stream(Stem::Scale);
        let plain = (0.5 + stream.unit(i, 0)) * stream.sign(i, 4);
        plain * self.gain()
    }

    fn bias(&self, i: usize) -> f64 {
        self.stream(Stem::Bias).normal(i) * self.gain() / 4.0
    }

    /// How far y goes up: of fp16, some of it overflows; of wider types, it stays
    /// a few binades below, where no intermediate result in fp32 overflows.
    fn gain(&self) -> f64 {
        let top = self.problem.dtype.format().max_finite();
        match (self.fill.kind, self.problem.dtype) {
            (FillKind::Overflow, DType::Fp16) => top / 2.0,
            (FillKind::Overflow, _) => top / 256.0,
            _ => 1.0,
        }
    }

    fn running_mean(&self, i: usize) -> f64 {
        let own = self.stream(Stem::RunningMean).normal(i);
        match self.fill.kind {
            FillKind::Offset => self.offset() + own,
            _ => own,
        }
    }

    fn running_variance(&self, i: usize) -> f64 {
        let size = match self.fill.kind {
            FillKind::Tiny => exp2(-26),
            _ => 1.0,
        };
        size * (0.5 + self.stream(Stem::RunningVariance).unit(i, 0))
    }

    fn dy(&self, i: usize) -> f64 {
        let stream = self.stream(Stem::Dy);
        match self.fill.kind {
            FillKind::Integers => integer(stream, i),
            FillKind::LogUniform => self.log_uniform(stream, i),
            _ => stream.normal(i),
        }
    }
}

fn integer(stream: Stream, i: usize) -> f64 {
    (stream.word(i, 3) % (LARGEST_INTEGER + 1)) as f64 * stream.sign(i, 4)
}

impl Inputs {
    /// Generates the data of a case; the same bits for any number of threads.
    pub fn generate(problem: &Problem, fill: Fill) -> Self {
        let generator = Generator { problem, fill };
        Self::from_x(problem, fill, |i| generator.x(i))
    }

    /// Data whose x is `value` of the logical index, all else as `fill` has it.
    pub fn from_x(problem: &Problem, fill: Fill, value: impl Fn(usize) -> f64 + Sync) -> Self {
        let generator = Generator { problem, fill };
        let image = |value: &(dyn Fn(usize) -> f64 + Sync)| {
            Tensor::from_fn(problem.dtype, &problem.dims(), value)
        };
        let parameter = |value: &(dyn Fn(usize) -> f64 + Sync)| {
            Tensor::from_fn(problem.parameter_type(), &problem.parameter_dims(), value)
        };
        let backward = problem.pass == Pass::Backward;
        let x = image(&value);
        let saved = (backward && problem.saved).then(|| saved(problem, &x));
        Inputs {
            problem: problem.clone(),
            x,
            scale: parameter(&|i| generator.scale(i)),
            bias: parameter(&|i| generator.bias(i)),
            running_mean: parameter(&|i| generator.running_mean(i)),
            running_variance: parameter(&|i| generator.running_variance(i)),
            dy: backward.then(|| image(&|i| generator.dy(i))),
            saved,
        }
    }

    /// The data of a backward pass over the same x, scale and bias, with `dy`
    /// and the statistics a training pass saved.
    #[must_use]
    pub fn backward(&self, dy: Tensor, saved: Option<[Tensor; 2]>) -> Self {
        Inputs {
            problem: Problem {
                pass: Pass::Backward,
                running: true,
                saved: saved.is_some(),
                ..self.problem.clone()
            },
            dy: Some(dy),
            saved,
            ..self.clone()
        }
    }
}

/// What an exact training pass would have saved, rounded to the parameters' type.
fn saved(problem: &Problem, x: &Tensor) -> [Tensor; 2] {
    let statistics = Statistics::of(problem, x);
    let tensor = |value: fn(&Statistics) -> f64| {
        let values: Vec<f64> = statistics.iter().map(value).collect();
        Tensor::from_values(problem.parameter_type(), &problem.parameter_dims(), &values)
    };
    [
        tensor(|group| group.mean.to_f64()),
        tensor(|group| group.inverse.to_f64()),
    ]
}

impl fmt::Display for Fill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.kind.name(), self.seed)
    }
}

impl FromStr for Fill {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (name, seed) = text.split_once(':').unwrap_or((text, "0"));
        let kind = FillKind::ALL.into_iter().find(|kind| kind.name() == name);
        let kind = kind.ok_or_else(|| {
            let known: Vec<_> = FillKind::ALL.iter().map(|kind| kind.name()).collect();
            let words = format!("unknown fill '{name}'; known: {}", known.join(", "));
            Error::parse(0, words)
        })?;
        let seed = seed
            .parse()
            .map_err(|_| Error::parse(name.len() + 1, format!("'{seed}' is not a 64-bit seed")))?;
        Ok(Fill { kind, seed })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inputs(line: &str, fill: &str) -> Inputs {
        Inputs::generate(&line.parse().unwrap(), fill.parse().unwrap())
    }

    #[test]
    fn generate_golden_values_never_change() {
        let data = inputs("bn_train c=2 in=2x2", "normal:7");
        let bits: Vec<u64> = (0..2).map(|i| data.x.bits(i)).collect();
        assert_eq!(bits, GOLDEN);
    }

    const GOLDEN: [u64; 2] = [1_043_155_160, 3_198_588_462];

    #[test]
    fn offset_has_a_large_mean_and_a_deviation_of_one() {
        let data = inputs("bn_train n=8 c=1 in=32x32 type=fp32", "offset:1")
            .x
            .to_f64();
        let mean = data.iter().sum::<f64>() / data.len() as f64;
        let square = |v: &f64| (v - mean) * (v - mean);
        let variance = data.iter().map(square).sum::<f64>() / data.len() as f64;
        assert!(mean > 9.0, "{mean}");
        assert!((variance - 1.0).abs() < 0.1, "{variance}");
    }

    #[test]
    fn special_values_are_in_one_place_of_x_alone() {
        for fill in ["nan:1", "inf:1"] {
            let data = inputs("bn_bwd n=2 c=3 in=4x4 type=fp16 saved=off", fill);
            let special =
                |tensor: &Tensor| tensor.to_f64().iter().filter(|v| !v.is_finite()).count();
            assert_eq!(special(&data.x), 1);
            assert_eq!(special(data.dy.as_ref().unwrap()), 0);
        }
    }

    #[test]
    fn fill_text_round_trips_and_errors_have_a_place() {
        for kind in FillKind::ALL {
            let fill = Fill { kind, seed: 3 };
            assert_eq!(fill.to_string().parse::<Fill>().unwrap(), fill);
        }
        assert_eq!("normal:x".parse::<Fill>().unwrap_err().position(), Some(7));
    }

    #[test]
    fn saved_statistics_come_with_the_backward_pass_alone() {
        let data = inputs("bn_bwd n=2 c=3 in=4x4", "normal:1");
        assert_eq!(data.saved.as_ref().unwrap()[0].len(), 3);
        assert!(
            inputs("bn_bwd n=2 c=3 in=4x4 saved=off", "normal:1")
                .saved
                .is_none()
        );
        let train = inputs("bn_train n=2 c=3 in=4x4", "normal:1");
        assert!(train.saved.is_none() && train.dy.is_none());
        let next = train.backward(data.dy.clone().unwrap(), data.saved.clone());
        assert_eq!(next.problem, data.problem);
    }
}
