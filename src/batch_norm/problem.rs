//! One batch normalisation: what is computed, on which shape and types.
//!
//! The text form leaves defaults out and parses back to the same value:
//! `bn_train n=4 c=8 in=16x16 type=fp16 mode=persistent`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::line::{Line, Value};
use crate::problem::{Layout, Scale};

/// Keys a problem line may have, in the order they are printed.
pub const KEYS: &str = "n c in layout type mode eps factor running saved";

/// The most elements x may have: what the exact oracle sums in seconds.
pub const MAX_ELEMENTS: usize = 1 << 24;

/// The most values of a group: with more, sums in fp32 have no useful bound.
pub const MAX_COUNT: usize = 1 << 21;

/// What is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pass {
    /// y and new statistics, from the statistics of x.
    Train,
    /// y, from running statistics.
    Infer,
    /// dx, dscale and dbias.
    Backward,
}

/// Which elements are normalised together, and by which kernels.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Over the batch, for every activation (CUDNN_BATCHNORM_PER_ACTIVATION).
    PerActivation,
    /// Over batch and space, for every channel (CUDNN_BATCHNORM_SPATIAL).
    #[default]
    Spatial,
    /// The same by faster kernels that reduce in integers and may overflow
    /// (CUDNN_BATCHNORM_SPATIAL_PERSISTENT).
    Persistent,
}

/// A tensor that a pass computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Output {
    /// The normalised x; of its type.
    Y,
    /// Running mean after the update.
    RunningMean,
    /// Running variance after the update: unbiased.
    RunningVariance,
    /// Mean of the batch.
    SavedMean,
    /// 1/sqrt(biased variance of the batch + epsilon).
    SavedInverse,
    /// Gradient of x; of its type.
    Dx,
    /// Gradient of the scale.
    Dscale,
    /// Gradient of the bias.
    Dbias,
}

/// One batch normalisation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Problem {
    /// What is computed.
    pub pass: Pass,
    /// Which elements belong together.
    pub mode: Mode,
    /// Batch size.
    pub n: usize,
    /// Channels.
    pub c: usize,
    /// Spatial sizes, outermost first: 2 or 3 of them.
    pub spatial: Vec<usize>,
    /// Memory order of x, y, dx, dy.
    pub layout: Layout,
    /// Type of x, y, dx, dy.
    pub dtype: DType,
    /// Added to the variance before the root.
    pub epsilon: Scale,
    /// Weight of the new statistics in the running ones.
    pub factor: Scale,
    /// Training: whether running statistics are updated.
    pub running: bool,
    /// Training: whether mean and inverse deviation are saved; backward: whether
    /// they are given, instead of computed again from x.
    pub saved: bool,
}

impl Pass {
    /// All passes, plainest first.
    pub const ALL: [Pass; 3] = [Pass::Train, Pass::Infer, Pass::Backward];

    /// The head of the line.
    pub fn name(self) -> &'static str {
        match self {
            Pass::Train => "bn_train",
            Pass::Infer => "bn_infer",
            Pass::Backward => "bn_bwd",
        }
    }
}

impl Mode {
    /// All modes.
    pub const ALL: [Mode; 3] = [Mode::PerActivation, Mode::Spatial, Mode::Persistent];

    /// The name in lines.
    pub fn name(self) -> &'static str {
        match self {
            Mode::PerActivation => "per_activation",
            Mode::Spatial => "spatial",
            Mode::Persistent => "persistent",
        }
    }
}

impl Output {
    /// All outputs of all passes.
    pub const ALL: [Output; 8] = [
        Output::Y,
        Output::RunningMean,
        Output::RunningVariance,
        Output::SavedMean,
        Output::SavedInverse,
        Output::Dx,
        Output::Dscale,
        Output::Dbias,
    ];

    /// The name in messages and CSV columns.
    pub fn name(self) -> &'static str {
        match self {
            Output::Y => "y",
            Output::RunningMean => "running_mean",
            Output::RunningVariance => "running_variance",
            Output::SavedMean => "saved_mean",
            Output::SavedInverse => "saved_inverse",
            Output::Dx => "dx",
            Output::Dscale => "dscale",
            Output::Dbias => "dbias",
        }
    }

    /// Whether it has the shape of x, not of a parameter.
    pub fn is_image(self) -> bool {
        matches!(self, Output::Y | Output::Dx)
    }
}

impl Problem {
    /// A problem with every default: spatial, NCHW, fp32, epsilon 1e-5, factor
    /// 0.1, all statistics on.
    pub fn new(pass: Pass, n: usize, c: usize, spatial: &[usize]) -> Self {
        Problem {
            pass,
            mode: Mode::Spatial,
            n,
            c,
            spatial: spatial.to_vec(),
            layout: Layout::Nchw,
            dtype: DType::Fp32,
            epsilon: Scale(1e-5),
            factor: Scale(0.1),
            running: true,
            saved: true,
        }
    }

    /// Sets the type of x.
    #[must_use]
    pub fn with_type(mut self, dtype: DType) -> Self {
        self.dtype = dtype;
        self
    }

    /// Dimensions of x: (n, c, spatial…).
    pub fn dims(&self) -> Vec<usize> {
        let outer = [self.n, self.c].into_iter();
        outer.chain(self.spatial.iter().copied()).collect()
    }

    /// Dimensions of a parameter: (1, c, 1…), or (1, c, spatial…) per activation.
    pub fn parameter_dims(&self) -> Vec<usize> {
        let inner = self.spatial.iter().map(|&size| match self.mode {
            Mode::PerActivation => size,
            _ => 1,
        });
        [1, self.c].into_iter().chain(inner).collect()
    }

    /// Elements of x.
    pub fn elements(&self) -> usize {
        self.dims().iter().product()
    }

    /// Spatial elements of one channel of one image.
    pub fn plane(&self) -> usize {
        self.spatial.iter().product()
    }

    /// Groups that are normalised together; elements of a parameter.
    pub fn groups(&self) -> usize {
        self.parameter_dims().iter().product()
    }

    /// Values per group, m.
    pub fn count(&self) -> usize {
        self.elements() / self.groups()
    }

    /// The group of the element of x at logical offset `index`.
    pub fn group(&self, index: usize) -> usize {
        match self.mode {
            Mode::PerActivation => index % (self.c * self.plane()),
            _ => index / self.plane() % self.c,
        }
    }

    /// Logical offset in x of value `at` (below [`Problem::count`]) of `group`.
    pub fn member(&self, group: usize, at: usize) -> usize {
        let plane = self.plane();
        match self.mode {
            Mode::PerActivation => at * self.c * plane + group,
            _ => (at / plane * self.c + group) * plane + at % plane,
        }
    }

    /// Type of scale, bias and every statistic: fp64 for fp64 data, else fp32,
    /// as `cudnnDeriveBNTensorDescriptor` has it.
    pub fn parameter_type(&self) -> DType {
        match self.dtype {
            DType::Fp64 => DType::Fp64,
            _ => DType::Fp32,
        }
    }

    /// The tensors this pass computes.
    pub fn outputs(&self) -> Vec<Output> {
        let training = |output: &Output| match output {
            Output::RunningMean | Output::RunningVariance => self.running,
            Output::SavedMean | Output::SavedInverse => self.saved,
            _ => *output == Output::Y,
        };
        Output::ALL
            .into_iter()
            .filter(|output| match self.pass {
                Pass::Train => training(output),
                Pass::Infer => *output == Output::Y,
                Pass::Backward => *output >= Output::Dx,
            })
            .collect()
    }

    /// Dimensions of an output.
    pub fn output_dims(&self, output: Output) -> Vec<usize> {
        match output.is_image() {
            true => self.dims(),
            false => self.parameter_dims(),
        }
    }

    /// Type of an output.
    pub fn output_type(&self, output: Output) -> DType {
        match output.is_image() {
            true => self.dtype,
            false => self.parameter_type(),
        }
    }

    /// Checks that it can be computed; the error names the field.
    pub fn validate(&self) -> Result<()> {
        if !(2..=3).contains(&self.spatial.len()) {
            return Err(Error::problem("in", "needs 2 or 3 spatial sizes"));
        }
        let sizes = self.spatial.iter().map(|&size| ("in", size));
        for (name, size) in [("n", self.n), ("c", self.c)].into_iter().chain(sizes) {
            if size == 0 {
                return Err(Error::problem(name, "must be at least 1"));
            }
        }
        self.validate_size()?;
        self.validate_numbers()?;
        self.validate_switches()
    }

    fn validate_size(&self) -> Result<()> {
        let elements = self.dims().iter().try_fold(1usize, |product, &size| {
            product.checked_mul(size).filter(|&p| p <= MAX_ELEMENTS)
        });
        if elements.is_none() {
            return Err(Error::problem("in", "x has more than 2^24 elements"));
        }
        if self.count() > MAX_COUNT {
            let words = format!("{} values per group are more than 2^21", self.count());
            return Err(Error::problem("in", words));
        }
        Ok(())
    }

    fn validate_numbers(&self) -> Result<()> {
        if self.dtype.is_fp8() {
            return Err(Error::problem(
                "type",
                "batch normalization has no FP8 form",
            ));
        }
        if !(0.0..=1.0).contains(&self.epsilon.0) || self.epsilon.0 == 0.0 {
            return Err(Error::problem("eps", "must be above 0 and at most 1"));
        }
        if !(0.0..=1.0).contains(&self.factor.0) {
            return Err(Error::problem("factor", "must be from 0 to 1"));
        }
        Ok(())
    }

    /// A switch that the pass does not have must stay at its default, so that a
    /// problem has one line only.
    fn validate_switches(&self) -> Result<()> {
        let idle = |pass: Pass, name: &str| {
            let words = format!("off means nothing in {}", pass.name());
            Err(Error::problem(name, words))
        };
        match self.pass {
            Pass::Train => Ok(()),
            pass if !self.running => idle(pass, "running"),
            Pass::Infer if !self.saved => idle(Pass::Infer, "saved"),
            _ => Ok(()),
        }
    }

    /// Takes the problem's keys out of `line`, leaving others for the caller,
    /// and validates.
    pub fn from_line(line: &mut Line<'_>) -> Result<Self> {
        let (head, position) = line.head();
        let pass = Pass::ALL.into_iter().find(|pass| pass.name() == head);
        let pass = pass.ok_or_else(|| {
            let words = format!("unknown pass '{head}'; known: bn_train, bn_infer, bn_bwd");
            Error::parse(position, words)
        })?;
        let c = required(line, "c")?.usize("c")?;
        let spatial: Vec<usize> = required(line, "in")?
            .split('x')
            .map(|size| size.usize("in"))
            .collect::<Result<_>>()?;
        let mut problem = Problem::new(pass, 1, c, &spatial);
        problem.take_options(line)?;
        problem.validate()?;
        Ok(problem)
    }

    fn take_options(&mut self, line: &mut Line<'_>) -> Result<()> {
        if let Some(value) = line.take("n") {
            self.n = value.usize("n")?;
        }
        self.layout = line.take_parsed("layout")?.unwrap_or(self.layout);
        self.dtype = line.take_parsed("type")?.unwrap_or(self.dtype);
        self.mode = line.take_parsed("mode")?.unwrap_or(self.mode);
        if let Some(value) = line.take("eps") {
            self.epsilon = Scale(value.f64("eps")?);
        }
        if let Some(value) = line.take("factor") {
            self.factor = Scale(value.f64("factor")?);
        }
        self.running = switch(line, "running")?;
        self.saved = switch(line, "saved")?;
        Ok(())
    }
}

fn required<'a>(line: &mut Line<'a>, key: &str) -> Result<Value<'a>> {
    line.take(key)
        .ok_or_else(|| Error::parse(0, format!("'{key}=' is missing")))
}

fn switch(line: &mut Line<'_>, key: &str) -> Result<bool> {
    match line.take(key) {
        None => Ok(true),
        Some(value) => match value.text {
            "on" => Ok(true),
            "off" => Ok(false),
            other => Err(value.error(format!("{key}: '{other}' is neither on nor off"))),
        },
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plain = Problem::new(self.pass, 1, self.c, &self.spatial);
        f.write_str(self.pass.name())?;
        if self.n != plain.n {
            write!(f, " n={}", self.n)?;
        }
        let sizes: Vec<String> = self.spatial.iter().map(usize::to_string).collect();
        write!(f, " c={} in={}", self.c, sizes.join("x"))?;
        if self.layout != plain.layout {
            write!(f, " layout={}", self.layout.name())?;
        }
        if self.dtype != plain.dtype {
            write!(f, " type={}", self.dtype)?;
        }
        if self.mode != plain.mode {
            write!(f, " mode={}", self.mode.name())?;
        }
        if self.epsilon != plain.epsilon {
            write!(f, " eps={}", self.epsilon.0)?;
        }
        if self.factor != plain.factor {
            write!(f, " factor={}", self.factor.0)?;
        }
        for (key, on) in [("running", self.running), ("saved", self.saved)] {
            if !on {
                write!(f, " {key}=off")?;
            }
        }
        Ok(())
    }
}

impl FromStr for Problem {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut line = Line::parse(text)?;
        let problem = Self::from_line(&mut line)?;
        line.finish(KEYS)?;
        Ok(problem)
    }
}

impl FromStr for Mode {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let found = Mode::ALL.into_iter().find(|mode| mode.name() == text);
        found.ok_or_else(|| {
            let known = "per_activation, spatial, persistent";
            Error::parse(0, format!("unknown mode '{text}'; known: {known}"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_every_option_round_trips() {
        for text in [
            "bn_train c=1 in=1x1",
            "bn_train n=4 c=8 in=3x16x16 layout=nhwc type=fp16 mode=persistent eps=0.001 \
             factor=1 running=off saved=off",
            "bn_infer n=2 c=3 in=5x7 type=fp64 mode=per_activation",
            "bn_bwd n=2 c=3 in=5x7 type=bf16 saved=off",
        ] {
            assert_eq!(text.parse::<Problem>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn parse_errors_name_the_place() {
        let error = |text: &str| text.parse::<Problem>().unwrap_err();
        assert_eq!(error("fwd c=4 in=8x8").position(), Some(0));
        assert_eq!(error("bn_train c=4 in=8xA").position(), Some(18));
        assert_eq!(error("bn_train c=4 in=8x8 mode=all").position(), Some(25));
        assert_eq!(error("bn_train c=4 in=8x8 saved=no").position(), Some(26));
        assert_eq!(error("bn_train c=4 in=8x8 k=1").position(), Some(20));
        assert!(error("bn_train in=8x8").to_string().contains("'c='"));
    }

    #[test]
    fn validate_errors_name_the_field() {
        for (text, field) in [
            ("bn_train c=4 in=8", "in: "),
            ("bn_train c=0 in=8x8", "c: "),
            ("bn_train c=4 in=8x8 eps=0", "eps: "),
            ("bn_train c=4 in=8x8 eps=nan", "eps: "),
            ("bn_train c=4 in=8x8 factor=1.5", "factor: "),
            ("bn_infer c=4 in=8x8 saved=off", "saved: "),
            ("bn_bwd c=4 in=8x8 running=off", "running: "),
            ("bn_train c=1 in=4096x4096 n=2", "in: "),
            ("bn_train c=1 in=4096x4096", "in: 16777216"),
        ] {
            let words = text.parse::<Problem>().unwrap_err().to_string();
            assert!(words.starts_with(field), "{text}: {words}");
        }
    }

    #[test]
    fn members_of_all_groups_are_all_elements_once() {
        for mode in ["spatial", "per_activation"] {
            let line = format!("bn_train n=3 c=4 in=2x5 mode={mode}");
            let problem: Problem = line.parse().unwrap();
            let mut seen = vec![0; problem.elements()];
            for group in 0..problem.groups() {
                for at in 0..problem.count() {
                    let index = problem.member(group, at);
                    assert_eq!(problem.group(index), group);
                    seen[index] += 1;
                }
            }
            assert!(seen.iter().all(|&times| times == 1), "{mode}");
        }
    }

    #[test]
    fn outputs_follow_pass_and_switches() {
        let outputs = |text: &str| text.parse::<Problem>().unwrap().outputs();
        assert_eq!(outputs("bn_train c=1 in=1x1").len(), 5);
        let bare = outputs("bn_train c=1 in=1x1 running=off saved=off");
        assert_eq!(bare, [Output::Y]);
        assert_eq!(outputs("bn_infer c=1 in=1x1"), [Output::Y]);
        let gradients = [Output::Dx, Output::Dscale, Output::Dbias];
        assert_eq!(outputs("bn_bwd c=1 in=1x1"), gradients);
    }

    #[test]
    fn validate_has_no_fp8() {
        let parsed = "bn_train n=2 c=2 in=2x2 type=fp8_e4m3".parse::<Problem>();
        assert!(parsed.unwrap_err().to_string().contains("FP8"));
    }
}
