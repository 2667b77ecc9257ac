//! What a condition may speak of: numbers and words read off a case.

use std::fmt;

use serde::{Deserialize, Serialize, Serializer};

use crate::candidate::{Candidate, Repro};
use crate::geometry::to_3d;
use crate::problem::ConvProblem;

/// A property of a case. Spatial ones have an index: 0 depth, 1 height,
/// 2 width; dimensions that a problem lacks count as of size 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Feature {
    /// Number of spatial dimensions.
    Rank,
    /// Batch.
    N,
    /// Channels of x.
    C,
    /// Channels of y.
    K,
    /// Groups.
    Groups,
    /// All kernel extents together.
    Kernels,
    /// Kernel extent.
    Kernel(u8),
    /// Image size.
    In(u8),
    /// Stride.
    Stride(u8),
    /// Dilation.
    Dilation(u8),
    /// Padding before.
    PadBefore(u8),
    /// Padding after.
    PadAfter(u8),
    /// Type of the operands (of the first).
    Type,
    /// Type of the result.
    ResultType,
    /// Compute type.
    Compute,
    /// Memory layout.
    Layout,
    /// Direction.
    Direction,
    /// The factor alpha.
    Alpha,
    /// The factor beta.
    Beta,
    /// What the data can prove.
    Regime,
    /// Distribution of the data.
    Fill,
    /// Value of a knob, by its type; `default` when it is not set.
    Knob(u32),
    /// Channels of x per group.
    CPerGroup,
    /// Channels of y per group.
    KPerGroup,
    /// As many channels in as out.
    SameChannels,
    /// One channel of x in each of several groups.
    Depthwise,
    /// Whether alpha or beta differs from (1, 0).
    Scaled,
    /// Largest stride.
    MaxStride,
    /// Largest dilation of a kernel extent above 1.
    MaxDilation,
    /// Largest padding.
    MaxPad,
    /// Whether padding differs before and after in some dimension.
    Uneven,
    /// Whether the image is smaller than the kernel in some dimension.
    SmallImage,
    /// Whether padding reaches the extent of the kernel in some dimension.
    WidePad,
    /// Kernel taps.
    Taps,
    /// Output size.
    Out(u8),
    /// Output positions of one channel of one image.
    Positions,
    /// Elements of the result.
    Outputs,
    /// Products per output.
    Reduction,
}

/// The value of a feature.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Value {
    /// A count or size.
    Number(i64),
    /// A name, or whether something holds.
    Word(String),
}

impl Feature {
    /// Every feature of cases whose engines have these knobs set; those that
    /// are set directly first, those that follow from others last.
    pub(super) fn all(knobs: impl IntoIterator<Item = u32>) -> Vec<Feature> {
        use Feature::*;
        let axes: [fn(u8) -> Feature; 6] = [Kernel, In, Stride, Dilation, PadBefore, PadAfter];
        let mut all = vec![Rank, N, C, K, Groups, Kernels];
        all.extend(axes.iter().flat_map(|axis| (0..3).map(axis)));
        all.extend([Type, ResultType, Compute, Layout, Direction]);
        all.extend([Alpha, Beta, Regime, Fill]);
        all.extend(knobs.into_iter().map(Knob));
        all.extend([CPerGroup, KPerGroup, SameChannels, Depthwise, Scaled]);
        all.extend([MaxStride, MaxDilation, MaxPad, Uneven, SmallImage, WidePad]);
        all.extend([Taps, Out(0), Out(1), Out(2), Positions, Outputs, Reduction]);
        all
    }

    /// Whether the value follows from those of other features: a condition on
    /// those is easier to read.
    pub(super) fn derived(self) -> bool {
        self >= Feature::CPerGroup
    }

    /// Whether the value is one of a short list of names.
    pub(super) fn enumerated(self) -> bool {
        (Feature::Type..=Feature::Fill).contains(&self)
    }

    /// The value in `repro`.
    pub fn of(self, repro: &Repro) -> Value {
        let p = &repro.problem;
        match self {
            Feature::Kernels => word(extents(&p.kernel)),
            Feature::Type => word(p.dtype(p.direction.operands()[0])),
            Feature::ResultType => word(p.result_type()),
            Feature::Compute => word(p.compute.name()),
            Feature::Layout => word(p.layout.name()),
            Feature::Direction => word(p.direction.name()),
            Feature::Alpha => word(p.alpha.0),
            Feature::Beta => word(p.beta.0),
            Feature::Regime => word(repro.fill.kind.regime().name()),
            Feature::Fill => word(repro.fill.kind.name()),
            Feature::Knob(kind) => knob(repro, kind),
            Feature::SameChannels => word(p.c == p.k),
            Feature::Depthwise => word(p.groups > 1 && p.groups == p.c),
            Feature::Scaled => word((p.alpha.0, p.beta.0) != (1.0, 0.0)),
            Feature::Uneven => word(p.pad_before != p.pad_after),
            Feature::SmallImage => word(any(p, |d| p.spatial[d] < p.kernel_extent(d))),
            Feature::WidePad => word(any(p, |d| {
                p.pad_before[d].max(p.pad_after[d]) >= p.kernel_extent(d)
            })),
            _ => Value::Number(i64::try_from(self.number(p)).unwrap_or(i64::MAX)),
        }
    }

    fn number(self, p: &ConvProblem) -> usize {
        let at = |list: &[usize], filler, d: u8| to_3d(list, filler)[usize::from(d)];
        let largest = |list: &[usize]| list.iter().copied().max().unwrap_or(0);
        match self {
            Feature::Rank => p.rank(),
            Feature::N => p.n,
            Feature::C => p.c,
            Feature::K => p.k,
            Feature::Groups => p.groups,
            Feature::Kernel(d) => at(&p.kernel, 1, d),
            Feature::In(d) => at(&p.spatial, 1, d),
            Feature::Stride(d) => at(&p.stride, 1, d),
            Feature::Dilation(d) => at(&p.dilation, 1, d),
            Feature::PadBefore(d) => at(&p.pad_before, 0, d),
            Feature::PadAfter(d) => at(&p.pad_after, 0, d),
            Feature::CPerGroup => p.c / p.groups,
            Feature::KPerGroup => p.k / p.groups,
            Feature::MaxStride => largest(&p.stride),
            Feature::MaxDilation => max_dilation(p),
            Feature::MaxPad => largest(&p.pad_before).max(largest(&p.pad_after)),
            Feature::Taps => p.kernel.iter().product(),
            Feature::Out(d) => at(&p.output_spatial(), 1, d),
            Feature::Positions => p.output_spatial().iter().product(),
            Feature::Outputs => p.elements(p.direction.result()),
            Feature::Reduction => p.reduction_length(),
            _ => unreachable!("{self:?} is a word"),
        }
    }
}

/// `(3,1,1)`.
fn extents(list: &[usize]) -> String {
    let words: Vec<_> = list.iter().map(usize::to_string).collect();
    format!("({})", words.join(","))
}

fn word(value: impl ToString) -> Value {
    Value::Word(value.to_string())
}

fn any(p: &ConvProblem, is: impl Fn(usize) -> bool) -> bool {
    (0..p.rank()).any(is)
}

fn max_dilation(p: &ConvProblem) -> usize {
    let long = (0..p.rank()).filter(|d| p.kernel[*d] > 1);
    long.map(|d| p.dilation[d]).max().unwrap_or(1)
}

fn knob(repro: &Repro, kind: u32) -> Value {
    let set = match &repro.via {
        Some(Candidate::Engine { knobs, .. }) => knobs.iter().find(|(k, _)| *k == kind),
        _ => None,
    };
    set.map_or_else(|| word("default"), |(_, value)| Value::Number(*value))
}

impl fmt::Display for Feature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let axis = |d: &u8| ["d", "h", "w"][usize::from(*d)];
        match self {
            Feature::Kernel(d) => write!(f, "kernel_{}", axis(d)),
            Feature::In(d) => write!(f, "in_{}", axis(d)),
            Feature::Stride(d) => write!(f, "stride_{}", axis(d)),
            Feature::Dilation(d) => write!(f, "dilation_{}", axis(d)),
            Feature::PadBefore(d) => write!(f, "pad_before_{}", axis(d)),
            Feature::PadAfter(d) => write!(f, "pad_after_{}", axis(d)),
            Feature::Out(d) => write!(f, "out_{}", axis(d)),
            Feature::Knob(kind) => write!(f, "knob {kind}"),
            other => f.write_str(other.plain_name()),
        }
    }
}

impl Feature {
    fn plain_name(self) -> &'static str {
        match self {
            Feature::Rank => "rank",
            Feature::N => "n",
            Feature::C => "c",
            Feature::K => "k",
            Feature::Groups => "groups",
            Feature::Kernels => "kernel",
            Feature::Type => "type",
            Feature::ResultType => "result type",
            Feature::Compute => "compute",
            Feature::Layout => "layout",
            Feature::Direction => "direction",
            Feature::Alpha => "alpha",
            Feature::Beta => "beta",
            Feature::Regime => "regime",
            Feature::Fill => "fill",
            Feature::CPerGroup => "c/groups",
            Feature::KPerGroup => "k/groups",
            Feature::SameChannels => "(c == k)",
            Feature::Depthwise => "depthwise",
            Feature::Scaled => "(alpha,beta) != (1,0)",
            Feature::MaxStride => "largest stride",
            Feature::MaxDilation => "largest dilation",
            Feature::MaxPad => "largest pad",
            Feature::Uneven => "uneven padding",
            Feature::SmallImage => "(image < kernel)",
            Feature::WidePad => "(pad >= kernel)",
            Feature::Taps => "kernel taps",
            Feature::Positions => "output positions",
            Feature::Outputs => "outputs",
            Feature::Reduction => "products per output",
            _ => unreachable!("{self:?} has an index"),
        }
    }
}

impl Serialize for Feature {
    /// As its name.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Number(number) => write!(f, "{number}"),
            Value::Word(word) => f.write_str(word),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_every_feature_has_a_value_and_a_name() {
        let repro: Repro = "fwd n=2 c=6 k=4 in=9x8 ker=3x1 stride=2x1 pad=1+0x4 dil=2x5 g=2 \
                            type=fp16 beta=1 fill=ints:3 via=engine:4/2=7"
            .parse()
            .unwrap();
        let value = |f: Feature| f.of(&repro).to_string();
        assert_eq!(value(Feature::Kernel(0)), "1");
        assert_eq!(value(Feature::Kernel(1)), "3");
        assert_eq!(value(Feature::PadBefore(1)), "1");
        assert_eq!(value(Feature::MaxDilation), "2");
        assert_eq!(value(Feature::Knob(2)), "7");
        assert_eq!(value(Feature::Knob(3)), "default");
        assert_eq!(value(Feature::Reduction), "9");
        assert_eq!(value(Feature::WidePad), "true");
        assert_eq!(value(Feature::Regime), "exact_integer");
        let names: std::collections::HashSet<_> = Feature::all([2])
            .iter()
            .map(|f| (f.to_string(), f.of(&repro)).0)
            .collect();
        assert_eq!(names.len(), Feature::all([2]).len());
    }

    #[test]
    fn outputs_follow_the_direction() {
        let repro: Repro = "bwd_filter n=2 c=6 k=4 in=9 ker=3".parse().unwrap();
        assert_eq!(Feature::Outputs.of(&repro), Value::Number(72));
        let w = repro.problem.elements(crate::problem::Role::W);
        assert_eq!(w, 72);
    }
}
