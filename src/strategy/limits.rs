//! What a user may ask of the generator.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::fill::FillKind;
use crate::problem::{Compute, ConvProblem, Direction, Layout, MAX_ELEMENTS, Role};

/// Bounds on what is drawn, and how often. Every field has a default; unknown
/// fields are refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Most multiply-adds of one problem ([`ConvProblem::macs`]).
    pub max_macs: u64,
    /// Most elements of one tensor.
    pub max_elements: u64,
    /// Numbers of spatial dimensions, each 1 to 3.
    pub ranks: Vec<usize>,
    /// Directions.
    pub directions: Vec<Direction>,
    /// Type configurations.
    pub types: Vec<Types>,
    /// Memory layouts.
    pub layouts: Vec<Layout>,
    /// Relative weights of the distributions, within their regime; 0 or absent
    /// = never drawn.
    pub fills: BTreeMap<FillKind, u32>,
    /// How often features beyond the plain convolution are drawn.
    pub percent: Percentages,
}

/// Chances in percent, 0 = never.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Percentages {
    /// More than one group, depthwise not included.
    pub groups: u32,
    /// One input channel per group.
    pub depthwise: u32,
    /// A stride above 1, per spatial dimension.
    pub stride: u32,
    /// A dilation above 1, per spatial dimension.
    pub dilation: u32,
    /// Any padding, per spatial dimension.
    pub padding: u32,
    /// Of the padded dimensions, those with different padding on the two sides.
    pub asymmetric: u32,
    /// Of the padded dimensions, those padded by more than the kernel covers.
    pub beyond: u32,
    /// A factor alpha other than 1.
    pub alpha: u32,
    /// A factor beta other than 0.
    pub beta: u32,
    /// A special fill (overflow, NaN, infinities) beside the two regular ones.
    pub special_fill: u32,
}

/// A configuration of tensor types and compute type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Types {
    /// fp32 throughout.
    Fp32,
    /// fp16 data, fp32 compute ("pseudo half").
    Fp16,
    /// fp16 data and compute ("true half").
    TrueHalf,
    /// bf16 data, fp32 compute.
    Bf16,
    /// fp64 throughout.
    Fp64,
    /// fp16 operands, fp32 result: few engines take it.
    Fp16ToFp32,
    /// bf16 operands, fp32 result: few engines take it.
    Bf16ToFp32,
}

impl Types {
    /// All configurations, plainest first.
    pub const ALL: [Types; 7] = [
        Types::Fp32,
        Types::Fp16,
        Types::TrueHalf,
        Types::Bf16,
        Types::Fp64,
        Types::Fp16ToFp32,
        Types::Bf16ToFp32,
    ];

    /// The name in options and files.
    pub fn name(self) -> &'static str {
        match self {
            Types::Fp32 => "fp32",
            Types::Fp16 => "fp16",
            Types::TrueHalf => "true_half",
            Types::Bf16 => "bf16",
            Types::Fp64 => "fp64",
            Types::Fp16ToFp32 => "fp16_to_fp32",
            Types::Bf16ToFp32 => "bf16_to_fp32",
        }
    }

    /// Types of the operands and of the result, and the compute type.
    pub fn parts(self) -> (DType, DType, Compute) {
        match self {
            Types::Fp32 => (DType::Fp32, DType::Fp32, Compute::Fp32),
            Types::Fp16 => (DType::Fp16, DType::Fp16, Compute::Fp32),
            Types::TrueHalf => (DType::Fp16, DType::Fp16, Compute::Fp16),
            Types::Bf16 => (DType::Bf16, DType::Bf16, Compute::Fp32),
            Types::Fp64 => (DType::Fp64, DType::Fp64, Compute::Fp64),
            Types::Fp16ToFp32 => (DType::Fp16, DType::Fp32, Compute::Fp32),
            Types::Bf16ToFp32 => (DType::Bf16, DType::Fp32, Compute::Fp32),
        }
    }

    /// Sets the types of `problem`; its direction says which tensor is the result.
    pub fn apply(self, problem: &mut ConvProblem) {
        let (operand, result, compute) = self.parts();
        let of = |role| match role == problem.direction.result() {
            true => result,
            false => operand,
        };
        let [x, w, y] = [of(Role::X), of(Role::W), of(Role::Y)];
        (problem.x_type, problem.w_type, problem.y_type) = (x, w, y);
        problem.compute = compute;
    }

    /// The configuration `problem` has, if it is one of these.
    pub fn of(problem: &ConvProblem) -> Option<Types> {
        Types::ALL.into_iter().find(|types| {
            let mut same = problem.clone();
            types.apply(&mut same);
            same == *problem
        })
    }

    /// Relative frequency: the pseudo half that networks train in most, what
    /// few engines take least.
    pub(super) fn weight(self) -> u32 {
        match self {
            Types::Fp16 => 8,
            Types::Fp32 | Types::Bf16 => 6,
            Types::TrueHalf => 4,
            Types::Fp64 => 3,
            Types::Fp16ToFp32 | Types::Bf16ToFp32 => 1,
        }
    }
}

impl fmt::Display for Types {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Types {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Types::ALL
            .into_iter()
            .find(|t| t.name() == text)
            .ok_or_else(|| {
                let known: Vec<_> = Types::ALL.iter().map(|t| t.name()).collect();
                let known = known.join(", ");
                Error::parse(
                    0,
                    format!("unknown type configuration '{text}'; known: {known}"),
                )
            })
    }
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            max_macs: 4_000_000,
            max_elements: 1 << 20,
            ranks: vec![1, 2, 3],
            directions: vec![Direction::Fwd],
            types: Types::ALL.to_vec(),
            layouts: vec![Layout::Nchw, Layout::Nhwc],
            fills: FillKind::ALL.map(|kind| (kind, weight(kind))).into(),
            percent: Percentages::default(),
        }
    }
}

impl Default for Percentages {
    fn default() -> Self {
        Percentages {
            groups: 15,
            depthwise: 10,
            stride: 25,
            dilation: 20,
            padding: 55,
            asymmetric: 20,
            beyond: 12,
            alpha: 10,
            beta: 10,
            special_fill: 25,
        }
    }
}

/// Weight of a kind among those of its regime.
fn weight(kind: FillKind) -> u32 {
    match kind {
        FillKind::Integers => 8,
        FillKind::Normal => 5,
        FillKind::UniformPositive => 4,
        FillKind::Cancelling | FillKind::LargeThenSmall | FillKind::LogUniform => 3,
        FillKind::Sparse | FillKind::NearOverflow => 2,
        FillKind::Constant
        | FillKind::Impulse
        | FillKind::Subnormal
        | FillKind::NanPlaced
        | FillKind::InfPlaced => 1,
    }
}

impl Limits {
    /// Checks that something can be drawn; the error names the field.
    pub fn validate(&self) -> Result<()> {
        let fault = |field: &str, message: &str| Err(Error::usage(format!("{field}: {message}")));
        if self.max_macs == 0 {
            return fault("max_macs", "must be at least 1");
        }
        if self.max_elements == 0 || self.max_elements > MAX_ELEMENTS as u64 {
            return fault("max_elements", "must be 1 to 2^40");
        }
        for (field, empty) in [
            ("ranks", self.ranks.is_empty()),
            ("directions", self.directions.is_empty()),
            ("types", self.types.is_empty()),
            ("layouts", self.layouts.is_empty()),
            ("fills", self.fills.values().all(|w| *w == 0)),
        ] {
            if empty {
                return fault(field, "must name at least one");
            }
        }
        if self.ranks.iter().any(|r| !(1..=3).contains(r)) {
            return fault("ranks", "each must be 1, 2 or 3");
        }
        if self.fills.values().any(|w| *w > 1_000_000) {
            return fault("fills", "a weight must be at most 1000000");
        }
        self.percent.validate()
    }
}

impl Percentages {
    fn validate(&self) -> Result<()> {
        let all = [
            ("groups", self.groups),
            ("depthwise", self.depthwise),
            (
                "groups + depthwise",
                self.groups.saturating_add(self.depthwise),
            ),
            ("stride", self.stride),
            ("dilation", self.dilation),
            ("padding", self.padding),
            ("asymmetric", self.asymmetric),
            ("beyond", self.beyond),
            (
                "asymmetric + beyond",
                self.asymmetric.saturating_add(self.beyond),
            ),
            ("alpha", self.alpha),
            ("beta", self.beta),
            ("special_fill", self.special_fill),
        ];
        match all.into_iter().find(|(_, percent)| *percent > 100) {
            None => Ok(()),
            Some((field, percent)) => Err(Error::usage(format!(
                "percent.{field}: {percent} is more than 100"
            ))),
        }
    }
}
