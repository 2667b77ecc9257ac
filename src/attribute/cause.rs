//! Causes of wrong output, and how sure one may be of them.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What went wrong, by kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// An accepted plan failed to execute.
    ExecutionFailed,
    /// Memory outside the result was written.
    OutOfBoundsWrite,
    /// An input was changed.
    InputChanged,
    /// Outputs were never written.
    Unwritten,
    /// The result depends on what a buffer held before.
    Uninitialised,
    /// Repeats differ, all of them right: the order of summation varies.
    NondeterministicOrder,
    /// Repeats differ, and some of them are wrong.
    Race,
    /// A tap of the kernel is not applied.
    TapDropped,
    /// Taps are applied in mirrored order.
    TapsFlipped,
    /// Two taps change places.
    TapsSwapped,
    /// Every tap uses its neighbour's weight.
    TapsShifted,
    /// Mirrored taps that also read past the border instead of zeros.
    TapsMispaired,
    /// Padding is another value than zero.
    PaddingValue,
    /// Padding repeats the border, mirrors it or wraps around.
    PaddingReplicated,
    /// Padding before and after change places, or those of two dimensions do.
    PaddingSwapped,
    /// The filter is read in another memory order.
    FilterLayout,
    /// The image is read in another memory order.
    InputLayout,
    /// The batch index wraps.
    BatchWrapped,
    /// Offsets into the image wrap.
    IndexWrapped,
    /// Groups read other groups' channels.
    WrongGroups,
    /// Stride or dilation is ignored, or they change places.
    StrideDilation,
    /// Consecutive products of every sum are lost.
    LostProducts,
    /// The last channels of every sum are read wrongly.
    ChannelTail,
    /// alpha is taken as 1.
    AlphaIgnored,
    /// beta is taken as 0.
    BetaIgnored,
    /// Results have the wrong sign.
    SignFlipped,
    /// Results are a factor off.
    Scaled,
    /// Overflow gives the largest finite value.
    Saturated,
    /// Overflow gives NaN.
    OverflowNan,
    /// Finite results become infinite.
    EarlyOverflow,
    /// Subnormal values become zero.
    FlushedToZero,
    /// Results are rounded twice.
    DoubleRounding,
    /// Results are truncated instead of rounded.
    ResultTruncated,
    /// NaN is lost.
    NanDropped,
    /// Outputs are zero.
    Zeroed,
    /// Operands are rounded to a narrower format before they are multiplied.
    OperandsRounded,
    /// Sums are kept in a narrower format.
    NarrowSums,
    /// Partial sums are kept in a narrower format.
    NarrowPartials,
    /// A few results are one unit in the last place off.
    OneUlp,
}

impl Kind {
    /// The name in records, as serde writes it.
    pub fn name(self) -> String {
        match serde_json::to_value(self) {
            Ok(serde_json::Value::String(name)) => name,
            other => unreachable!("unit variants serialise to strings, not {other:?}"),
        }
    }

    fn words(self) -> &'static str {
        match self {
            Kind::ExecutionFailed => "an accepted plan failed to execute",
            Kind::OutOfBoundsWrite => "memory outside the result is written",
            Kind::InputChanged => "an input is changed",
            Kind::Unwritten => "outputs are never written",
            Kind::Uninitialised => "the result depends on what memory held before",
            Kind::NondeterministicOrder => "the order of summation differs from run to run",
            Kind::Race => "results differ from run to run, and some are wrong",
            Kind::TapDropped => "a tap is dropped",
            Kind::TapsFlipped => "taps are mirrored",
            Kind::TapsSwapped => "two taps change places",
            Kind::TapsShifted => "taps are shifted",
            Kind::TapsMispaired => "taps are mirrored and read past the border",
            Kind::PaddingValue => "padding is not zero",
            Kind::PaddingReplicated => "padding is read from the image",
            Kind::PaddingSwapped => "paddings change places",
            Kind::FilterLayout => "the filter is read in another layout",
            Kind::InputLayout => "the image is read in another layout",
            Kind::BatchWrapped => "the batch index wraps",
            Kind::IndexWrapped => "offsets into the image wrap",
            Kind::WrongGroups => "groups read other groups' channels",
            Kind::StrideDilation => "stride or dilation is taken wrongly",
            Kind::LostProducts => "products are lost",
            Kind::ChannelTail => "the last channels are read wrongly",
            Kind::AlphaIgnored => "alpha is taken as 1",
            Kind::BetaIgnored => "beta is taken as 0",
            Kind::SignFlipped => "the sign is wrong",
            Kind::Scaled => "results are a factor off",
            Kind::Saturated => "overflow gives the largest finite value",
            Kind::OverflowNan => "overflow gives NaN",
            Kind::EarlyOverflow => "finite results become infinite",
            Kind::FlushedToZero => "subnormals become zero",
            Kind::DoubleRounding => "results are rounded twice",
            Kind::ResultTruncated => "results are truncated, not rounded",
            Kind::NanDropped => "NaN is lost",
            Kind::Zeroed => "outputs are zero",
            Kind::OperandsRounded => "operands are rounded before they are multiplied",
            Kind::NarrowSums => "sums are kept in a narrower format",
            Kind::NarrowPartials => "partial sums are kept in a narrower format",
            Kind::OneUlp => "a few results are one unit in the last place off",
        }
    }
}

/// What went wrong, and which part of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cause {
    /// The kind.
    pub kind: Kind,
    /// Which taps, products, dimensions, formats; empty when there is no more
    /// to say.
    pub which: String,
}

impl Cause {
    /// A cause.
    pub fn new(kind: Kind, which: impl Into<String>) -> Self {
        Cause {
            kind,
            which: which.into(),
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind.words())?;
        if self.which.is_empty() {
            return Ok(());
        }
        write!(f, ": {}", self.which)
    }
}

/// How well a cause explains the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Confidence {
    /// Some of it.
    Partial,
    /// Every output lies within the bound that the cause allows.
    WithinRung,
    /// Every wrong output is reproduced bit for bit.
    BitExact,
}
