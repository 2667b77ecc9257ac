//! The choices of a recipe: which values, and how often. In every list the
//! plainest comes first, because proptest simplifies towards it.

use proptest::prelude::*;
use proptest::sample::select;
use proptest::strategy::Union;

use super::limits::{Limits, Percentages, Types};
use super::recipe::{Axis, Channels, Grouping, Pad, Recipe};

/// Recipes for `limits`.
pub(super) fn recipes(limits: &Limits) -> impl Strategy<Value = Recipe> + use<> {
    let kind = (
        select(sorted(&limits.directions)),
        types(&limits.types),
        select(sorted(&limits.layouts)),
    );
    let percent = &limits.percent;
    let sizes = (batch(), grouping(percent), channel_pair());
    let factors = (alpha(percent.alpha), beta(percent.beta), any::<bool>());
    (kind, sizes, axes(limits), factors).prop_map(
        |(
            (direction, types, layout),
            (n, grouping, (c, k)),
            axes,
            (alpha, beta, keep_channels),
        )| {
            let (c, k) = per_group(grouping, c, k);
            Recipe {
                direction,
                types,
                layout,
                n,
                grouping,
                c,
                k,
                axes,
                alpha,
                beta,
                keep_channels,
            }
        },
    )
}

fn sorted<T: Ord + Clone>(list: &[T]) -> Vec<T> {
    let mut list = list.to_vec();
    list.sort();
    list.dedup();
    list
}

fn weighted<T: Clone + std::fmt::Debug + 'static>(
    list: impl IntoIterator<Item = (u32, T)>,
) -> Union<Just<T>> {
    Union::new_weighted(list.into_iter().map(|(w, v)| (w, Just(v))).collect())
}

fn types(allowed: &[Types]) -> impl Strategy<Value = Types> + use<> {
    weighted(sorted(allowed).into_iter().map(|t| (t.weight(), t)))
}

fn batch() -> impl Strategy<Value = usize> {
    weighted([
        (8, 1),
        (4, 2),
        (4, 3),
        (2, 5),
        (1, 4),
        (1, 7),
        (1, 8),
        (1, 9),
    ])
}

/// c and k, half of the time around multiples of the same unit.
fn channel_pair() -> impl Strategy<Value = (Channels, Channels)> {
    (any::<bool>(), channels(), channels()).prop_map(|(apart, c, k)| {
        let unit = if apart { k.unit } else { c.unit };
        (c, Channels { unit, ..k })
    })
}

fn channels() -> impl Strategy<Value = Channels> {
    let unit = weighted([(2, 1), (3, 4), (5, 8), (4, 16), (4, 32), (4, 64)]);
    let count = weighted([(6, 1), (3, 2), (2, 3), (1, 4), (1, 5), (1, 8)]);
    let delta = weighted([(3, 0), (1, -1), (1, 1)]);
    (unit, count, delta).prop_map(|(unit, count, delta)| Channels { unit, count, delta })
}

fn grouping(percent: &Percentages) -> impl Strategy<Value = Grouping> + use<> {
    let plain = 100 - percent.groups - percent.depthwise;
    let mut list = vec![(plain, Just(Grouping::One).boxed())];
    let groups = weighted([(4, 2), (2, 3), (2, 4), (1, 5), (2, 8), (1, 16)]);
    list.push((percent.groups, groups.prop_map(Grouping::Groups).boxed()));
    let per_group = weighted([(4, 1), (2, 2), (1, 3)]);
    list.push((
        percent.depthwise,
        per_group.prop_map(Grouping::Depthwise).boxed(),
    ));
    list.retain(|(weight, _)| *weight > 0);
    Union::new_weighted(list)
}

/// Grouped channels are counted per group, so their counts start small.
fn per_group(grouping: Grouping, c: Channels, k: Channels) -> (Channels, Channels) {
    let once = |channels: Channels| Channels {
        count: 1,
        ..channels
    };
    match grouping {
        Grouping::Groups(_) => (once(c), once(k)),
        Grouping::One | Grouping::Depthwise(_) => (c, k),
    }
}

fn axes(limits: &Limits) -> impl Strategy<Value = Vec<Axis>> + use<> {
    let axis = axis(&limits.percent);
    select(sorted(&limits.ranks))
        .prop_flat_map(move |rank| (kernel(rank), proptest::collection::vec(axis.clone(), rank)))
        .prop_map(|(kernel, mut axes)| {
            axes.iter_mut().zip(kernel).for_each(|(a, e)| a.kernel = e);
            axes
        })
}

/// Kernel extents: points, cubes, and those flat or long in one direction.
fn kernel(rank: usize) -> impl Strategy<Value = Vec<usize>> {
    let extent = || weighted([(6, 3), (2, 2), (2, 5), (1, 4), (1, 7), (1, 6)]);
    let free = weighted([(4, 1), (3, 3), (2, 2), (1, 5), (1, 4), (1, 7)]);
    let one = move |at: usize| {
        extent().prop_map(move |e| (0..rank).map(|d| if d == at { e } else { 1 }).collect())
    };
    let all_but_first =
        extent().prop_map(move |e| (0..rank).map(|d| if d == 0 { 1 } else { e }).collect());
    prop_oneof![
        3 => Just(vec![1; rank]),
        3 => one(0),
        2 => one(rank - 1),
        3 => all_but_first,
        6 => extent().prop_map(move |e| vec![e; rank]),
        5 => proptest::collection::vec(free, rank),
    ]
}

fn axis(percent: &Percentages) -> impl Strategy<Value = Axis> + Clone + use<> {
    let size = prop_oneof![4 => 1usize..=8, 5 => 5usize..=20, 2 => 15usize..=33, 1 => 31usize..=65];
    let pad_to_fit = any::<bool>();
    (
        size,
        chance(percent.stride, 1, [(3, 2), (2, 3), (1, 4), (1, 5)]),
        chance(percent.dilation, 1, [(3, 2), (2, 3), (1, 4), (1, 5)]),
        pad(percent),
        pad_to_fit,
    )
        .prop_map(|(size, stride, dilation, pad, pad_to_fit)| Axis {
            kernel: 1,
            dilation,
            stride,
            pad,
            size,
            pad_to_fit,
        })
        .boxed()
}

/// `plain`, or with a chance of `percent` one of the others.
fn chance<const N: usize>(
    percent: u32,
    plain: usize,
    others: [(u32, usize); N],
) -> BoxedStrategy<usize> {
    either(percent, Just(plain).boxed(), weighted(others).boxed())
}

fn either<T: std::fmt::Debug + Clone + 'static>(
    percent: u32,
    plain: BoxedStrategy<T>,
    other: BoxedStrategy<T>,
) -> BoxedStrategy<T> {
    match percent {
        0 => plain,
        1..=99 => Union::new_weighted(vec![(100 - percent, plain), (percent, other)]).boxed(),
        _ => other,
    }
}

fn pad(percent: &Percentages) -> BoxedStrategy<Pad> {
    let sides = (0usize..=4, 0usize..=4).prop_map(|(before, after)| match before == after {
        true => Pad::Sides(before, after + 1),
        false => Pad::Sides(before, after),
    });
    let even = prop_oneof![
        3 => Just(Pad::Half),
        1 => (1usize..=3).prop_map(|both| Pad::Sides(both, both)),
    ];
    let beyond = (0usize..=2).prop_map(Pad::Beyond);
    let regular = 100 - percent.asymmetric - percent.beyond;
    let mut list = vec![
        (regular, even.boxed()),
        (percent.asymmetric, sides.boxed()),
        (percent.beyond, beyond.boxed()),
    ];
    list.retain(|(weight, _)| *weight > 0);
    either(
        percent.padding,
        Just(Pad::None).boxed(),
        Union::new_weighted(list).boxed(),
    )
}

/// Factors that are exact in every type, fp16 included.
fn alpha(percent: u32) -> BoxedStrategy<f64> {
    let others = weighted([(2, 2.0), (2, 0.5), (2, -1.0), (1, 1.5), (1, -0.25)]);
    either(percent, Just(1.0).boxed(), others.boxed())
}

fn beta(percent: u32) -> BoxedStrategy<f64> {
    let others = weighted([(3, 1.0), (2, 0.5), (1, 2.0), (1, -1.0), (1, -0.25)]);
    either(percent, Just(0.0).boxed(), others.boxed())
}
