//! One way to compute a problem, and its place in a repro line.
//!
//! Text forms: `legacy:1/tensor_op` (algorithm number / math type),
//! `engine:42` (default knobs), `engine:42/2=4/3=1` (knob type number = value),
//! `host:gemm_fp32`, `host:gemm_fp32!dropped_tap` (with a planted fault).

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};
use crate::fill::Fill;
use crate::line::Line;
use crate::problem::{self, ConvProblem};

/// One way to compute a problem.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Candidate {
    /// An algorithm of cuDNN's legacy API.
    Legacy {
        /// cuDNN's number of the algorithm, in the enum of the direction.
        algorithm: u8,
        /// The math type set in the convolution descriptor.
        math: MathType,
    },
    /// An engine of cuDNN's graph API.
    Engine {
        /// Global index; its meaning is specific to a cuDNN version.
        index: i64,
        /// Knob choices as (knob type, value), sorted by type; empty = defaults.
        knobs: Vec<(u32, i64)>,
    },
    /// A software algorithm of the host backend.
    Host {
        /// Name in [`crate::backend::host`].
        algorithm: String,
        /// Name of a planted fault.
        fault: Option<String>,
    },
}

/// cudnnMathType_t.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MathType {
    /// CUDNN_DEFAULT_MATH (on Ampere and later: tensor cores in TF32 allowed).
    Default,
    /// CUDNN_TENSOR_OP_MATH.
    TensorOp,
    /// CUDNN_TENSOR_OP_MATH_ALLOW_CONVERSION: fp32 may be down-converted.
    TensorOpAllowConversion,
    /// CUDNN_FMA_MATH: no tensor cores, no TF32.
    Fma,
}

impl MathType {
    /// All math types, in cuDNN's order.
    pub const ALL: [MathType; 4] = [
        MathType::Default,
        MathType::TensorOp,
        MathType::TensorOpAllowConversion,
        MathType::Fma,
    ];

    /// The name in repro lines.
    pub fn name(self) -> &'static str {
        match self {
            MathType::Default => "default",
            MathType::TensorOp => "tensor_op",
            MathType::TensorOpAllowConversion => "allow_conversion",
            MathType::Fma => "fma",
        }
    }
}

impl Candidate {
    /// `legacy`, `engine` or `host`: the first word of the text form.
    pub fn api(&self) -> &'static str {
        match self {
            Candidate::Legacy { .. } => "legacy",
            Candidate::Engine { .. } => "engine",
            Candidate::Host { .. } => "host",
        }
    }
}

impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Candidate::Legacy { algorithm, math } => {
                write!(f, "legacy:{algorithm}/{}", math.name())
            }
            Candidate::Engine { index, knobs } => {
                write!(f, "engine:{index}")?;
                knobs.iter().try_for_each(|(k, v)| write!(f, "/{k}={v}"))
            }
            Candidate::Host { algorithm, fault } => {
                write!(f, "host:{algorithm}")?;
                fault.iter().try_for_each(|name| write!(f, "!{name}"))
            }
        }
    }
}

impl FromStr for Candidate {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (kind, rest) = text.split_once(':').ok_or_else(|| {
            Error::parse(
                0,
                format!("'{text}' is not a candidate: expected legacy:, engine: or host:"),
            )
        })?;
        let parsed = match kind {
            "legacy" => parse_legacy(rest),
            "engine" => parse_engine(rest),
            "host" => parse_host(rest),
            _ => {
                return Err(Error::parse(
                    0,
                    format!("unknown candidate kind '{kind}'; known: legacy, engine, host"),
                ));
            }
        };
        parsed.map_err(|e| e.offset(kind.len() + 1))
    }
}

fn parse_legacy(text: &str) -> Result<Candidate> {
    let (number, math) = text.split_once('/').unwrap_or((text, "default"));
    let algorithm = number
        .parse()
        .map_err(|_| Error::parse(0, format!("'{number}' is not an algorithm number")))?;
    let math = MathType::ALL
        .into_iter()
        .find(|m| m.name() == math)
        .ok_or_else(|| {
            Error::parse(
                number.len() + 1,
                format!(
                    "unknown math type '{math}'; known: default, tensor_op, allow_conversion, fma"
                ),
            )
        })?;
    Ok(Candidate::Legacy { algorithm, math })
}

fn parse_engine(text: &str) -> Result<Candidate> {
    let mut parts = text.split('/');
    let number = parts.next().unwrap_or_default();
    let index = number
        .parse()
        .map_err(|_| Error::parse(0, format!("'{number}' is not an engine index")))?;
    let mut position = number.len() + 1;
    let mut knobs = Vec::new();
    for part in parts {
        let knob = part
            .split_once('=')
            .and_then(|(k, v)| Some((k.parse().ok()?, v.parse().ok()?)))
            .ok_or_else(|| {
                Error::parse(
                    position,
                    format!("'{part}' is not a knob choice TYPE=VALUE"),
                )
            })?;
        knobs.push(knob);
        position += part.len() + 1;
    }
    knobs.sort_unstable();
    Ok(Candidate::Engine { index, knobs })
}

fn parse_host(text: &str) -> Result<Candidate> {
    let (algorithm, fault) = match text.split_once('!') {
        Some((algorithm, fault)) => (algorithm, Some(fault.to_owned())),
        None => (text, None),
    };
    if algorithm.is_empty() {
        return Err(Error::parse(0, "host: needs an algorithm name"));
    }
    Ok(Candidate::Host {
        algorithm: algorithm.to_owned(),
        fault,
    })
}

/// A problem with its data; `via` narrows it to one candidate. The text form,
/// `<problem> fill=normal:7 via=legacy:1/tensor_op`, is the repro line.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Repro {
    /// The problem.
    pub problem: ConvProblem,
    /// The data.
    pub fill: Fill,
    /// The candidate; all candidates when absent.
    pub via: Option<Candidate>,
}

impl fmt::Display for Repro {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} fill={}", self.problem, self.fill)?;
        self.via.iter().try_for_each(|c| write!(f, " via={c}"))
    }
}

impl FromStr for Repro {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut line = Line::parse(text)?;
        let fill = line.take_parsed("fill")?.unwrap_or(Fill {
            kind: crate::fill::FillKind::Normal,
            seed: 0,
        });
        let via = line.take_parsed("via")?;
        let problem = ConvProblem::from_line(&mut line)?;
        line.finish(&format!("{} fill via", problem::KEYS))?;
        Ok(Repro { problem, fill, via })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_repro_lines_round_trip() {
        for via in [
            "legacy:1/tensor_op",
            "engine:42",
            "engine:42/2=4/13=-1",
            "host:a",
            "host:a!b",
        ] {
            let text = format!("fwd c=4 k=8 in=5x5 ker=3x3 fill=normal:7 via={via}");
            assert_eq!(text.parse::<Repro>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn parse_bad_candidates_name_the_place() {
        let position = |text: &str| text.parse::<Candidate>().unwrap_err().position();
        assert_eq!(position("legacy:x"), Some(7));
        assert_eq!(position("legacy:1/fast"), Some(9));
        assert_eq!(position("engine:3/2=4/oops"), Some(13));
        assert_eq!(position("magic:1"), Some(0));
        let line = "fwd c=4 k=8 in=5 ker=3 via=legacy:1/fast";
        assert_eq!(line.parse::<Repro>().unwrap_err().position(), Some(36));
    }
}
