//! Data of a case: distributions, and values as a pure function of
//! (problem, fill, role, logical index).

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::problem::ConvProblem;

use crate::tensor::Tensor;

mod generate;
pub mod stream;

use generate::tensor;

/// A distribution and the seed of its streams. Text form `normal:7`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fill {
    /// The distribution.
    pub kind: FillKind,
    /// Seeds every stream; x, w and y have streams of their own.
    pub seed: u64,
}

/// The distributions, plainest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FillKind {
    /// All ones.
    Constant,
    /// A single one in x, distinct small integers in w.
    Impulse,
    /// Small integers such that every partial sum is exact in the accumulator.
    Integers,
    /// [`FillKind::Integers`] with most elements zero.
    Sparse,
    /// Standard normal.
    Normal,
    /// Uniform on (0, 1]: rounding toward zero drifts.
    UniformPositive,
    /// Magnitudes log-uniform over many binades, random signs.
    LogUniform,
    /// Pairs of products that nearly cancel.
    Cancelling,
    /// One product far larger than the others, first in the sum.
    LargeThenSmall,
    /// Sums near the overflow threshold of the output type.
    NearOverflow,
    /// Operands and results at and below the smallest normal values.
    Subnormal,
    /// A few NaNs among normal data.
    NanPlaced,
    /// A few infinities of both signs among normal data.
    InfPlaced,
}

/// What a fill can prove.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Regime {
    /// Every partial sum is exact: the result must be right bit for bit.
    ExactInteger,
    /// The result must be inside a bound that rounding errors need.
    RoundingSensitive,
    /// NaN, infinity or overflow: rules of propagation.
    Special,
}

impl FillKind {
    /// All kinds, plainest first.
    pub const ALL: [FillKind; 13] = [
        FillKind::Constant,
        FillKind::Impulse,
        FillKind::Integers,
        FillKind::Sparse,
        FillKind::Normal,
        FillKind::UniformPositive,
        FillKind::LogUniform,
        FillKind::Cancelling,
        FillKind::LargeThenSmall,
        FillKind::NearOverflow,
        FillKind::Subnormal,
        FillKind::NanPlaced,
        FillKind::InfPlaced,
    ];

    /// The name in repro lines.
    pub fn name(self) -> &'static str {
        match self {
            FillKind::Constant => "const",
            FillKind::Impulse => "impulse",
            FillKind::Integers => "ints",
            FillKind::Sparse => "sparse",
            FillKind::Normal => "normal",
            FillKind::UniformPositive => "positive",
            FillKind::LogUniform => "loguniform",
            FillKind::Cancelling => "cancel",
            FillKind::LargeThenSmall => "largefirst",
            FillKind::NearOverflow => "overflow",
            FillKind::Subnormal => "subnormal",
            FillKind::NanPlaced => "nan",
            FillKind::InfPlaced => "inf",
        }
    }

    /// What this kind can prove.
    pub fn regime(self) -> Regime {
        match self {
            FillKind::Constant | FillKind::Impulse | FillKind::Integers | FillKind::Sparse => {
                Regime::ExactInteger
            }
            FillKind::NearOverflow | FillKind::NanPlaced | FillKind::InfPlaced => Regime::Special,
            _ => Regime::RoundingSensitive,
        }
    }
}

impl Regime {
    /// The name in CSV columns.
    pub fn name(self) -> &'static str {
        match self {
            Regime::ExactInteger => "exact_integer",
            Regime::RoundingSensitive => "rounding_sensitive",
            Regime::Special => "special",
        }
    }
}

/// The data of one case: both operands, and the previous contents of the
/// result tensor when beta is not zero. Exactly the bits the library is given.
#[derive(Clone, Debug)]
pub struct Inputs {
    /// The problem the data belongs to.
    pub problem: ConvProblem,
    /// How it was filled.
    pub fill: Fill,
    /// First operand of [`crate::problem::Direction::operands`].
    pub first: Tensor,
    /// Second operand.
    pub second: Tensor,
    /// Previous contents of the result tensor, when beta ≠ 0.
    pub prior: Option<Tensor>,
}

impl Inputs {
    /// Generates the data of a case; the same bits for any number of threads.
    pub fn generate(problem: &ConvProblem, fill: Fill) -> Self {
        let [first, second] = problem.direction.operands();
        let result = problem.direction.result();
        Inputs {
            problem: problem.clone(),
            fill,
            first: tensor(problem, fill, first),
            second: tensor(problem, fill, second),
            prior: (problem.beta.0 != 0.0).then(|| tensor(problem, fill, result)),
        }
    }
}

impl fmt::Display for Fill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.kind.name(), self.seed)
    }
}

impl FromStr for Fill {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (kind, seed) = text.split_once(':').unwrap_or((text, "0"));
        let seed = seed
            .parse()
            .map_err(|_| Error::parse(kind.len() + 1, format!("'{seed}' is not a 64-bit seed")))?;
        Ok(Fill {
            kind: kind.parse()?,
            seed,
        })
    }
}

impl FromStr for FillKind {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        FillKind::ALL
            .into_iter()
            .find(|k| k.name() == text)
            .ok_or_else(|| {
                let known: Vec<_> = FillKind::ALL.iter().map(|k| k.name()).collect();
                Error::parse(
                    0,
                    format!("unknown fill '{text}'; known: {}", known.join(", ")),
                )
            })
    }
}
