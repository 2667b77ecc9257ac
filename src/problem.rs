//! One convolution: what is computed, on which shapes and types.
//!
//! The text form is the problem part of a repro line, defaults left out:
//! `fwd n=4 c=512 k=128 in=8x16x16 ker=3x1x1 pad=1x0x0 type=fp16`.
//! It parses back to the same value, forever.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::line::{Line, Value};

/// Keys a problem line may have, in the order they are printed.
pub const KEYS: &str = "n c k in ker stride pad dil g layout type compute alpha beta";

/// The most elements a tensor may have: what 40-bit indices reach. Enough for
/// every known fault at the 2^31 and 2^32 edges.
pub const MAX_ELEMENTS: usize = 1 << 40;

/// Which of the three tensors of a convolution is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// y from x and w.
    Fwd,
    /// dx from dy and w.
    BwdData,
    /// dw from x and dy.
    BwdFilter,
}

/// A tensor's place in the convolution, whatever the direction: x is the image
/// side (x or dx), w the filter (w or dw), y the output side (y or dy).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Image, n × c × spatial.
    X,
    /// Filter, k × c/groups × kernel.
    W,
    /// Output, n × k × output spatial.
    Y,
}

/// The order of elements in memory; the 1D and 3D forms follow the name.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Layout {
    /// NCL, NCHW, NCDHW: channels outside the image.
    #[default]
    Nchw,
    /// NLC, NHWC, NDHWC: channels innermost.
    Nhwc,
}

/// The compute type set in the convolution descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Compute {
    /// Half compute ("true half").
    Fp16,
    /// Single compute: the default for all but fp64 data.
    Fp32,
    /// Double compute.
    Fp64,
}

/// One convolution problem. Fields carry cuDNN's names; spatial fields have
/// one entry per spatial dimension, outermost first (depth, height, width).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ConvProblem {
    /// What is computed.
    pub direction: Direction,
    /// Batch size.
    pub n: usize,
    /// Channels of x.
    pub c: usize,
    /// Channels of y.
    pub k: usize,
    /// Spatial sizes of x; 1 to 3 entries.
    pub spatial: Vec<usize>,
    /// Kernel extents.
    pub kernel: Vec<usize>,
    /// Strides.
    pub stride: Vec<usize>,
    /// Zeros before the first element of each spatial dimension.
    pub pad_before: Vec<usize>,
    /// Zeros after the last element of each spatial dimension.
    pub pad_after: Vec<usize>,
    /// Dilations; 1 is dense, as in cuDNN.
    pub dilation: Vec<usize>,
    /// Groups; c and k are multiples of it.
    pub groups: usize,
    /// Memory order of all three tensors.
    pub layout: Layout,
    /// Type of x (or dx).
    pub x_type: DType,
    /// Type of w (or dw).
    pub w_type: DType,
    /// Type of y (or dy).
    pub y_type: DType,
    /// Compute type.
    pub compute: Compute,
    /// Factor of the convolution.
    pub alpha: Scale,
    /// Factor of the result tensor's previous contents; 0 means they are not read.
    pub beta: Scale,
}

/// A finite scaling factor, compared by bits so that problems can be hashed.
#[derive(Clone, Copy, Debug)]
pub struct Scale(pub f64);

impl PartialEq for Scale {
    fn eq(&self, other: &Self) -> bool {
        self.0.to_bits() == other.0.to_bits()
    }
}

impl Eq for Scale {}

impl std::hash::Hash for Scale {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.0.to_bits().hash(state);
    }
}

impl Direction {
    /// All directions, plainest first.
    pub const ALL: [Direction; 3] = [Direction::Fwd, Direction::BwdData, Direction::BwdFilter];

    /// The head of the repro line.
    pub fn name(self) -> &'static str {
        match self {
            Direction::Fwd => "fwd",
            Direction::BwdData => "bwd_data",
            Direction::BwdFilter => "bwd_filter",
        }
    }

    /// The two tensors that are read, in cuDNN's argument order.
    pub fn operands(self) -> [Role; 2] {
        match self {
            Direction::Fwd => [Role::X, Role::W],
            Direction::BwdData => [Role::W, Role::Y],
            Direction::BwdFilter => [Role::X, Role::Y],
        }
    }

    /// The tensor that is computed.
    pub fn result(self) -> Role {
        match self {
            Direction::Fwd => Role::Y,
            Direction::BwdData => Role::X,
            Direction::BwdFilter => Role::W,
        }
    }
}

impl Role {
    /// Lower-case letter.
    pub fn name(self) -> &'static str {
        match self {
            Role::X => "x",
            Role::W => "w",
            Role::Y => "y",
        }
    }
}

impl Layout {
    /// The name in repro lines, whatever the rank.
    pub fn name(self) -> &'static str {
        match self {
            Layout::Nchw => "nchw",
            Layout::Nhwc => "nhwc",
        }
    }

    /// Strides, in elements, of a packed tensor with logical dimensions `dims`
    /// (n, c, spatial…).
    pub fn strides(self, dims: &[usize]) -> Vec<usize> {
        let order: Vec<usize> = match self {
            Layout::Nchw => (0..dims.len()).collect(),
            Layout::Nhwc => std::iter::once(0).chain(2..dims.len()).chain([1]).collect(),
        };
        let mut strides = vec![0; dims.len()];
        let mut step = 1;
        for &axis in order.iter().rev() {
            strides[axis] = step;
            step *= dims[axis];
        }
        strides
    }
}

impl Compute {
    /// The name in repro lines.
    pub fn name(self) -> &'static str {
        self.dtype().name()
    }

    /// The type of the accumulator this asks for.
    pub fn dtype(self) -> DType {
        match self {
            Compute::Fp16 => DType::Fp16,
            Compute::Fp32 => DType::Fp32,
            Compute::Fp64 => DType::Fp64,
        }
    }
}

impl ConvProblem {
    /// A forward problem with every default: n = 1, stride 1, no padding,
    /// dense, one group, NCHW, fp32.
    pub fn new(c: usize, k: usize, spatial: &[usize], kernel: &[usize]) -> Self {
        let rank = spatial.len();
        ConvProblem {
            direction: Direction::Fwd,
            n: 1,
            c,
            k,
            spatial: spatial.to_vec(),
            kernel: kernel.to_vec(),
            stride: vec![1; rank],
            pad_before: vec![0; rank],
            pad_after: vec![0; rank],
            dilation: vec![1; rank],
            groups: 1,
            layout: Layout::Nchw,
            x_type: DType::Fp32,
            w_type: DType::Fp32,
            y_type: DType::Fp32,
            compute: Compute::Fp32,
            alpha: Scale(1.0),
            beta: Scale(0.0),
        }
    }

    /// Sets all three tensor types and the default compute type for them.
    #[must_use]
    pub fn with_type(mut self, dtype: DType) -> Self {
        self.x_type = dtype;
        self.w_type = dtype;
        self.y_type = dtype;
        self.compute = default_compute([dtype; 3]);
        self
    }

    /// Number of spatial dimensions, 1 to 3.
    pub fn rank(&self) -> usize {
        self.spatial.len()
    }

    /// The type of the tensor in `role`.
    pub fn dtype(&self, role: Role) -> DType {
        match role {
            Role::X => self.x_type,
            Role::W => self.w_type,
            Role::Y => self.y_type,
        }
    }

    /// The type of the computed tensor.
    pub fn result_type(&self) -> DType {
        self.dtype(self.direction.result())
    }

    /// Spatial sizes of y. Call on valid problems only.
    pub fn output_spatial(&self) -> Vec<usize> {
        (0..self.rank())
            .map(|d| (self.padded_extent(d) - self.kernel_extent(d)) / self.stride[d] + 1)
            .collect()
    }

    /// Extent of the dilated kernel in spatial dimension `d`.
    pub fn kernel_extent(&self, d: usize) -> usize {
        (self.kernel[d] - 1) * self.dilation[d] + 1
    }

    /// Extent of x with its padding in spatial dimension `d`.
    pub fn padded_extent(&self, d: usize) -> usize {
        self.spatial[d] + self.pad_before[d] + self.pad_after[d]
    }

    /// Logical dimensions of a tensor: (n, c, spatial…), (k, c/groups, kernel…)
    /// or (n, k, output spatial…).
    pub fn dims(&self, role: Role) -> Vec<usize> {
        let (outer, inner, spatial) = match role {
            Role::X => (self.n, self.c, self.spatial.clone()),
            Role::W => (self.k, self.c / self.groups, self.kernel.clone()),
            Role::Y => (self.n, self.k, self.output_spatial()),
        };
        [outer, inner].into_iter().chain(spatial).collect()
    }

    /// Number of elements of a tensor.
    pub fn elements(&self, role: Role) -> usize {
        self.dims(role).iter().product()
    }

    /// Products summed per output, K of the numerics notes, padding included:
    /// an upper bound where taps fall outside.
    pub fn reduction_length(&self) -> usize {
        let kernel: usize = self.kernel.iter().product();
        match self.direction {
            Direction::Fwd => self.c / self.groups * kernel,
            Direction::BwdData => self.k / self.groups * kernel,
            Direction::BwdFilter => self.n * self.output_spatial().iter().product::<usize>(),
        }
    }

    /// Multiply-adds of the whole problem, padding included; saturates.
    pub fn macs(&self) -> u64 {
        let kernel: usize = self.kernel.iter().product();
        [self.elements(Role::Y), self.c / self.groups, kernel]
            .iter()
            .fold(1u64, |product, &f| product.saturating_mul(f as u64))
    }

    /// Checks that such a convolution exists; the error names the field.
    pub fn validate(&self) -> Result<()> {
        self.validate_ranks()?;
        self.validate_sizes()?;
        self.validate_groups()?;
        for d in 0..self.rank() {
            if self.kernel_extent(d) > self.padded_extent(d) {
                return Err(Error::problem(
                    "ker",
                    format!(
                        "the dilated kernel covers {} in spatial dimension {d}, the padded image only {}: no output",
                        self.kernel_extent(d),
                        self.padded_extent(d)
                    ),
                ));
            }
        }
        self.validate_elements()?;
        for (name, scale) in [("alpha", self.alpha), ("beta", self.beta)] {
            if !scale.0.is_finite() {
                return Err(Error::problem(name, "must be finite"));
            }
        }
        Ok(())
    }

    fn validate_ranks(&self) -> Result<()> {
        if !(1..=3).contains(&self.rank()) {
            return Err(Error::problem("in", "needs 1 to 3 spatial sizes"));
        }
        for (name, list) in [
            ("ker", &self.kernel),
            ("stride", &self.stride),
            ("pad", &self.pad_before),
            ("pad", &self.pad_after),
            ("dil", &self.dilation),
        ] {
            if list.len() != self.rank() {
                return Err(Error::problem(
                    name,
                    format!("has {} entries, in has {}", list.len(), self.rank()),
                ));
            }
        }
        Ok(())
    }

    fn validate_sizes(&self) -> Result<()> {
        let scalars = [
            ("n", self.n),
            ("c", self.c),
            ("k", self.k),
            ("g", self.groups),
        ];
        let lists = [
            ("in", &self.spatial),
            ("ker", &self.kernel),
            ("stride", &self.stride),
            ("dil", &self.dilation),
        ];
        let positive = scalars.into_iter().chain(
            lists
                .iter()
                .flat_map(|(n, l)| l.iter().map(move |&v| (*n, v))),
        );
        let padding = self
            .pad_before
            .iter()
            .chain(&self.pad_after)
            .map(|&v| ("pad", v));
        for (name, value) in positive.clone() {
            if value == 0 {
                return Err(Error::problem(name, "must be at least 1"));
            }
        }
        for (name, value) in positive.chain(padding) {
            // cuDNN's sizes, strides and paddings are C ints.
            if i32::try_from(value).is_err() {
                return Err(Error::problem(name, format!("{value} exceeds 2147483647")));
            }
        }
        Ok(())
    }

    fn validate_groups(&self) -> Result<()> {
        for (name, channels) in [("c", self.c), ("k", self.k)] {
            if channels % self.groups != 0 {
                return Err(Error::problem(
                    name,
                    format!("{channels} is not a multiple of g={}", self.groups),
                ));
            }
        }
        Ok(())
    }

    fn validate_elements(&self) -> Result<()> {
        for (field, role) in [("in", Role::X), ("ker", Role::W), ("in", Role::Y)] {
            self.dims(role)
                .iter()
                .try_fold(1usize, |product, &d| product.checked_mul(d))
                .filter(|&elements| elements <= MAX_ELEMENTS)
                .ok_or_else(|| {
                    Error::problem(
                        field,
                        format!("tensor {} has more than 2^40 elements", role.name()),
                    )
                })?;
        }
        Ok(())
    }

    /// Takes the problem's keys out of `line`, leaving others for the caller,
    /// and validates.
    pub fn from_line(line: &mut Line<'_>) -> Result<Self> {
        let (head, position) = line.head();
        let direction = Direction::ALL
            .into_iter()
            .find(|d| d.name() == head)
            .ok_or_else(|| {
                Error::parse(
                    position,
                    format!("unknown direction '{head}'; known: fwd, bwd_data, bwd_filter"),
                )
            })?;
        let c = required(line, "c")?.usize("c")?;
        let k = required(line, "k")?.usize("k")?;
        let spatial = sizes(required(line, "in")?, "in")?;
        let kernel = sizes(required(line, "ker")?, "ker")?;
        let mut problem = ConvProblem::new(c, k, &spatial, &kernel);
        problem.direction = direction;
        problem.take_options(line)?;
        problem.validate()?;
        Ok(problem)
    }

    fn take_options(&mut self, line: &mut Line<'_>) -> Result<()> {
        if let Some(value) = line.take("n") {
            self.n = value.usize("n")?;
        }
        if let Some(value) = line.take("g") {
            self.groups = value.usize("g")?;
        }
        if let Some(value) = line.take("stride") {
            self.stride = sizes(value, "stride")?;
        }
        if let Some(value) = line.take("dil") {
            self.dilation = sizes(value, "dil")?;
        }
        if let Some(value) = line.take("pad") {
            (self.pad_before, self.pad_after) = paddings(value)?;
        }
        if let Some(layout) = line.take_parsed("layout")? {
            self.layout = layout;
        }
        if let Some(value) = line.take("type") {
            [self.x_type, self.w_type, self.y_type] = types(value)?;
        }
        self.compute = line.take_parsed("compute")?.unwrap_or(default_compute([
            self.x_type,
            self.w_type,
            self.y_type,
        ]));
        if let Some(value) = line.take("alpha") {
            self.alpha = Scale(value.f64("alpha")?);
        }
        if let Some(value) = line.take("beta") {
            self.beta = Scale(value.f64("beta")?);
        }
        Ok(())
    }

    /// The tensor types as printed: one name when all agree, else `x,w,y`.
    pub fn type_text(&self) -> String {
        if self.x_type == self.w_type && self.w_type == self.y_type {
            self.x_type.to_string()
        } else {
            format!("{},{},{}", self.x_type, self.w_type, self.y_type)
        }
    }
}

fn default_compute(types: [DType; 3]) -> Compute {
    if types.contains(&DType::Fp64) {
        Compute::Fp64
    } else {
        Compute::Fp32
    }
}

fn required<'a>(line: &mut Line<'a>, key: &str) -> Result<Value<'a>> {
    line.take(key)
        .ok_or_else(|| Error::parse(0, format!("'{key}=' is missing")))
}

fn sizes(value: Value<'_>, key: &str) -> Result<Vec<usize>> {
    value.split('x').map(|v| v.usize(key)).collect()
}

/// `1x0` is symmetric; `1+2x0` has 1 before and 2 after.
fn paddings(value: Value<'_>) -> Result<(Vec<usize>, Vec<usize>)> {
    value
        .split('x')
        .map(|v| {
            let sides: Vec<usize> = v
                .split('+')
                .map(|s| s.usize("pad"))
                .collect::<Result<_>>()?;
            match sides[..] {
                [both] => Ok((both, both)),
                [before, after] => Ok((before, after)),
                _ => Err(v.error("pad: expected 'before+after' or one number")),
            }
        })
        .collect()
}

fn types(value: Value<'_>) -> Result<[DType; 3]> {
    let list: Vec<DType> = value
        .split(',')
        .map(|v| {
            v.text
                .parse()
                .map_err(|e: Error| e.offset(v.position).context("type"))
        })
        .collect::<Result<_>>()?;
    match list[..] {
        [all] => Ok([all; 3]),
        [x, w, y] => Ok([x, w, y]),
        _ => Err(value.error("type: expected one type, or three as x,w,y")),
    }
}

fn join(list: &[usize]) -> String {
    let words: Vec<String> = list.iter().map(usize::to_string).collect();
    words.join("x")
}

fn join_padding(before: &[usize], after: &[usize]) -> String {
    let words: Vec<String> = before
        .iter()
        .zip(after)
        .map(|(b, a)| {
            if a == b {
                b.to_string()
            } else {
                format!("{b}+{a}")
            }
        })
        .collect();
    words.join("x")
}

impl fmt::Display for ConvProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.direction.name())?;
        if self.n != 1 {
            write!(f, " n={}", self.n)?;
        }
        write!(f, " c={} k={}", self.c, self.k)?;
        write!(f, " in={} ker={}", join(&self.spatial), join(&self.kernel))?;
        if self.stride.iter().any(|&s| s != 1) {
            write!(f, " stride={}", join(&self.stride))?;
        }
        if self
            .pad_before
            .iter()
            .chain(&self.pad_after)
            .any(|&p| p != 0)
        {
            write!(
                f,
                " pad={}",
                join_padding(&self.pad_before, &self.pad_after)
            )?;
        }
        if self.dilation.iter().any(|&d| d != 1) {
            write!(f, " dil={}", join(&self.dilation))?;
        }
        if self.groups != 1 {
            write!(f, " g={}", self.groups)?;
        }
        if self.layout != Layout::default() {
            write!(f, " layout={}", self.layout.name())?;
        }
        let types = [self.x_type, self.w_type, self.y_type];
        if types != [DType::Fp32; 3] {
            write!(f, " type={}", self.type_text())?;
        }
        if self.compute != default_compute(types) {
            write!(f, " compute={}", self.compute.name())?;
        }
        if self.alpha != Scale(1.0) {
            write!(f, " alpha={}", self.alpha.0)?;
        }
        if self.beta != Scale(0.0) {
            write!(f, " beta={}", self.beta.0)?;
        }
        Ok(())
    }
}

impl FromStr for ConvProblem {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut line = Line::parse(text)?;
        let problem = Self::from_line(&mut line)?;
        line.finish(KEYS)?;
        Ok(problem)
    }
}

impl FromStr for Layout {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "nchw" | "ncl" | "ncdhw" => Ok(Layout::Nchw),
            "nhwc" | "nlc" | "ndhwc" => Ok(Layout::Nhwc),
            _ => Err(Error::parse(
                0,
                format!("unknown layout '{text}'; known: nchw, nhwc"),
            )),
        }
    }
}

impl FromStr for Compute {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        [Compute::Fp16, Compute::Fp32, Compute::Fp64]
            .into_iter()
            .find(|c| c.name() == text)
            .ok_or_else(|| {
                Error::parse(
                    0,
                    format!("unknown compute type '{text}'; known: fp16, fp32, fp64"),
                )
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> ConvProblem {
        text.parse().unwrap()
    }

    #[test]
    fn display_seed_report_round_trips() {
        let text = "fwd n=4 c=512 k=128 in=8x16x16 ker=3x1x1 pad=1x0x0 type=fp16";
        let problem = parse(text);
        assert_eq!(problem.to_string(), text);
        assert_eq!(problem.output_spatial(), [8, 16, 16]);
        assert_eq!(problem.reduction_length(), 1536);
        assert_eq!(problem.macs(), 4 * 128 * 2048 * 1536);
    }

    #[test]
    fn display_every_option_round_trips() {
        let text = "bwd_filter n=2 c=4 k=6 in=9 ker=3 stride=2 pad=1+2 dil=2 g=2 layout=nhwc \
                    type=fp16,fp16,fp32 compute=fp16 alpha=0.5 beta=-2";
        assert_eq!(parse(text).to_string(), text);
    }

    #[test]
    fn parse_errors_name_the_place() {
        let position = |text: &str| text.parse::<ConvProblem>().unwrap_err().position();
        assert_eq!(position("fwd c=4 k=4 in=8xA ker=1x1"), Some(17));
        assert_eq!(position("sideways c=4"), Some(0));
        assert_eq!(position("fwd c=4 k=4 in=8 ker=1 type=fp12"), Some(28));
        assert_eq!(position("fwd c=4 k=4 in=8 ker=1 q=1"), Some(23));
    }

    #[test]
    fn validate_errors_name_the_field() {
        let message = |text: &str| text.parse::<ConvProblem>().unwrap_err().to_string();
        assert!(message("fwd c=3 k=4 in=8 ker=1 g=2").starts_with("c: "));
        assert!(message("fwd c=4 k=4 in=2 ker=5").starts_with("ker: "));
        assert!(message("fwd c=4 k=4 in=0 ker=1").starts_with("in: "));
        assert!(message("fwd c=4 k=4 in=8 ker=1x1").starts_with("ker: "));
        assert!(message("fwd c=1000000 k=1 in=1000000x1000000 ker=1x1").contains("2^40"));
        assert!(message("fwd c=99999999999 k=1 in=1 ker=1").starts_with("c: "));
    }

    #[test]
    fn strides_nhwc_has_channels_innermost() {
        assert_eq!(Layout::Nhwc.strides(&[2, 3, 4, 5]), [60, 1, 15, 3]);
        assert_eq!(Layout::Nchw.strides(&[2, 3, 4, 5]), [60, 20, 5, 1]);
    }
}
