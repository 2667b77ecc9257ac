//! What the data promises, over all kinds, directions and types.

use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::dtype::{DType, Format};
use crate::geometry::Geometry;
use crate::problem::{Compute, Direction, Scale};

/// Small problems of every direction, rank and type, with factors that are
/// exact in a few bits.
fn problems() -> impl Strategy<Value = ConvProblem> {
    let shapes = select(vec![
        "fwd n=2 c=6 k=5 in=7 ker=3 pad=1",
        "fwd n=3 c=8 k=4 in=5x4 ker=3x2 pad=1+0x2 g=2 stride=2x1",
        "fwd c=5 k=5 in=4x3x5 ker=1x3x3 pad=0x1x1 g=5",
        "fwd c=64 k=2 in=6x6 ker=3x3 dil=2x1 pad=2",
        "fwd c=1 k=3 in=9 ker=1",
        "fwd c=300 k=1 in=3x3 ker=3x3",
    ]);
    let types = select(vec![
        (DType::Fp16, Compute::Fp16),
        (DType::Fp16, Compute::Fp32),
        (DType::Bf16, Compute::Fp32),
        (DType::Fp32, Compute::Fp32),
        (DType::Fp64, Compute::Fp64),
    ]);
    let direction = select(Direction::ALL.to_vec());
    let alpha = select(vec![1.0, 1.0, 2.0, -0.5, 1.5, 0.0]);
    let beta = select(vec![0.0, 0.0, 1.0, -0.25, 3.0]);
    (shapes, types, direction, alpha, beta).prop_map(|(text, types, direction, alpha, beta)| {
        let text = text.replace("pad=2", "pad=2x2");
        let mut problem: ConvProblem = text.parse().expect("a valid line");
        problem = problem.with_type(types.0);
        problem.compute = types.1;
        problem.direction = direction;
        (problem.alpha, problem.beta) = (Scale(alpha), Scale(beta));
        problem
    })
}

fn kinds(regime: Regime) -> impl Strategy<Value = FillKind> {
    let all = FillKind::ALL.into_iter();
    select(all.filter(|k| k.regime() == regime).collect::<Vec<_>>())
}

fn fill(kind: FillKind, seed: u64) -> Fill {
    Fill { kind, seed }
}

fn generate(text: &str, kind: FillKind, seed: u64) -> Inputs {
    Inputs::generate(&text.parse().unwrap(), fill(kind, seed))
}

/// Per output: the sum in f64, S, and the number of nonzero products.
fn sums(inputs: &Inputs) -> Vec<(f64, f64, usize)> {
    let (a, b) = (inputs.first.to_f64(), inputs.second.to_f64());
    let geometry = Geometry::new(&inputs.problem);
    let sum = |index| {
        let mut total = (0.0, 0.0, 0);
        geometry.for_each_product(index, |i, j| {
            let product = a[i] * b[j];
            total.0 += product;
            total.1 += product.abs();
            total.2 += usize::from(product != 0.0);
        });
        total
    };
    (0..geometry.outputs()).map(sum).collect()
}

fn whole(value: f64) -> bool {
    value.fract() == 0.0
}

proptest! {
    #[test]
    fn exact_kinds_keep_every_partial_sum_exact(
        problem in problems(),
        kind in kinds(Regime::ExactInteger),
        seed: u64,
    ) {
        let inputs = Inputs::generate(&problem, fill(kind, seed));
        prop_assert!(inputs.first.to_f64().into_iter().all(whole));
        prop_assert!(inputs.second.to_f64().into_iter().all(whole));
        let format = problem.compute.dtype().format();
        let limit = crate::dtype::exp2(format.precision);
        let prior = inputs.prior.as_ref().map(|p| p.to_f64());
        for (index, (sum, s, _)) in sums(&inputs).into_iter().enumerate() {
            prop_assert!(s < limit, "S = {} at {}", s, index);
            let old = prior.as_ref().map_or(0.0, |p| p[index]);
            let value = problem.alpha.0 * sum + problem.beta.0 * old;
            prop_assert!(format.holds(value), "{} is not exact", value);
            prop_assert!(value.abs() <= problem.result_type().format().max_finite());
        }
    }

    #[test]
    fn generate_thread_count_does_not_matter(problem in problems(), kind in select(FillKind::ALL.to_vec()), seed: u64) {
        let pool = |n| rayon::ThreadPoolBuilder::new().num_threads(n).build().unwrap();
        let on = |n| pool(n).install(|| Inputs::generate(&problem, fill(kind, seed)));
        let (one, three) = (on(1), on(3));
        prop_assert_eq!(one.first.bytes(), three.first.bytes());
        prop_assert_eq!(one.second.bytes(), three.second.bytes());
        prop_assert_eq!(one.prior, three.prior);
    }

    #[test]
    fn finite_kinds_have_finite_sums_and_nonzero_products(
        problem in problems(),
        kind in kinds(Regime::RoundingSensitive),
        seed: u64,
    ) {
        let inputs = Inputs::generate(&problem, fill(kind, seed));
        let list = sums(&inputs);
        let limit = problem.result_type().format().max_finite();
        prop_assert!(list.iter().all(|(_, s, _)| *s < limit));
        let products: usize = list.iter().map(|t| t.2).sum();
        let all: usize = sums(&Inputs { first: ones(&inputs.first), second: ones(&inputs.second), ..inputs })
            .iter()
            .map(|t| t.2)
            .sum();
        prop_assert!(products * 10 >= all * 9, "{} of {} products are not zero", products, all);
    }
}

fn ones(tensor: &Tensor) -> Tensor {
    Tensor::from_fn(tensor.dtype(), tensor.dims(), |_| 1.0)
}

#[test]
fn integers_are_dense_and_as_large_as_the_type_allows() {
    let inputs = generate("fwd n=2 c=4 k=8 in=9x9 ker=3x3", FillKind::Integers, 1);
    let values = inputs.first.to_f64();
    assert!(values.iter().all(|v| *v != 0.0));
    assert_eq!(values.iter().fold(0.0, |m: f64, v| m.max(v.abs())), 256.0);
    let half = "fwd n=2 c=4 k=8 in=9x9 ker=3x3 type=fp16 compute=fp16";
    let largest = |t: &Tensor| t.to_f64().iter().fold(0.0, |m: f64, v| m.max(v.abs()));
    let inputs = generate(half, FillKind::Integers, 1);
    // 36 products: 2047 / 36 = 56 = 7 · 8.
    assert_eq!(
        (largest(&inputs.first), largest(&inputs.second)),
        (7.0, 8.0)
    );
}

#[test]
fn integers_reductions_too_long_for_ones_are_thinned() {
    let text = "fwd c=3000 k=2 in=3x3 ker=3x3 type=fp16 compute=fp16";
    for kind in [FillKind::Integers, FillKind::Constant] {
        let inputs = generate(text, kind, 5);
        for (_, s, nonzero) in sums(&inputs) {
            assert!(s < 2048.0 && nonzero > 500, "S = {s}, {nonzero} products");
        }
    }
}

#[test]
fn sparse_keeps_a_quarter_of_the_first_operand() {
    let inputs = generate("fwd n=4 c=16 k=2 in=20x20 ker=1x1", FillKind::Sparse, 2);
    let kept = inputs.first.to_f64().iter().filter(|v| **v != 0.0).count();
    // 25,600 elements, five standard deviations.
    assert!((kept as i64 - 6400).abs() < 350, "{kept}");
    assert!(inputs.second.to_f64().iter().all(|v| *v != 0.0));
}

#[test]
fn impulse_shows_a_weight_in_an_output() {
    for direction in ["fwd", "bwd_data", "bwd_filter"] {
        let text = format!("{direction} n=2 c=6 k=5 in=7x7 ker=3x3 stride=3x3 type=bf16");
        let mut places = std::collections::HashSet::new();
        for seed in 0..20 {
            let inputs = generate(&text, FillKind::Impulse, seed);
            let first = inputs.first.to_f64();
            assert_eq!(first.iter().sum::<f64>(), 1.0);
            places.insert(first.iter().position(|v| *v == 1.0));
            assert!(
                sums(&inputs).iter().any(|(sum, ..)| *sum != 0.0),
                "{text} {seed}"
            );
        }
        assert!(places.len() > 10, "{} places", places.len());
    }
}

#[test]
fn impulse_weights_are_distinct_within_the_exact_range() {
    let inputs = generate(
        "fwd c=10 k=20 in=5x5 ker=3x3 type=fp16",
        FillKind::Impulse,
        3,
    );
    let mut weights = inputs.second.to_f64();
    weights.sort_by(f64::total_cmp);
    assert!(weights.windows(2).all(|w| w[0] < w[1]));
    assert!(*weights.last().unwrap() <= 2039.0);
}

/// Mean over the outputs of |Σ| / S.
fn remainder(text: &str, kind: FillKind) -> f64 {
    let inputs = generate(text, kind, 11);
    let list = sums(&inputs);
    list.iter().map(|(sum, s, _)| sum.abs() / s).sum::<f64>() / list.len() as f64
}

#[test]
fn cancelling_leaves_a_small_remainder_in_every_direction() {
    for text in [
        "fwd n=2 c=8 k=4 in=6x6 ker=3x3",
        "fwd n=2 c=4 k=4 in=9x9 ker=2x2 g=4",
        "bwd_data n=2 c=4 k=8 in=6x6 ker=3x3 pad=1x1",
        "bwd_data n=1 c=1 k=1 in=12 ker=4 stride=2 pad=2",
        "bwd_filter n=4 c=3 k=4 in=6x6 ker=3x3",
        "bwd_filter n=1 c=3 k=4 in=6x7 ker=3x2",
    ] {
        let left = remainder(text, FillKind::Cancelling);
        assert!(left < 1e-5, "{text}: {left}");
        assert!(left > 0.0, "{text}: nothing is left");
        assert!(remainder(text, FillKind::Normal) > 0.02, "{text}");
    }
}

#[test]
fn large_then_small_has_one_leading_product() {
    for text in [
        "fwd n=1 c=64 k=4 in=4x4 ker=1x1 type=fp16",
        "fwd n=1 c=4 k=4 in=4x4 ker=4x4 g=4",
        "bwd_data n=1 c=4 k=64 in=4x4 ker=1x1",
        "bwd_filter n=16 c=4 k=4 in=3x3 ker=3x3",
    ] {
        let inputs = generate(text, FillKind::LargeThenSmall, 4);
        let (a, b) = (inputs.first.to_f64(), inputs.second.to_f64());
        assert!(a.iter().chain(&b).all(|v| *v > 0.0));
        let geometry = Geometry::new(&inputs.problem);
        let mut products = Vec::new();
        geometry.for_each_product(0, |i, j| products.push(a[i] * b[j]));
        let rest = products[1..].iter().fold(0.0, |m: f64, v| m.max(*v));
        assert!(
            products[0] > 0.2 && rest < 1e-4 && rest > 0.0,
            "{text}: {} {rest}",
            products[0]
        );
    }
}

#[test]
fn near_overflow_has_sums_on_both_sides_of_the_threshold() {
    for kind in [
        "type=fp16",
        "type=bf16",
        "type=fp32",
        "type=fp16 compute=fp16",
        "type=fp64",
    ] {
        for direction in ["fwd", "bwd_data", "bwd_filter"] {
            let text = format!("{direction} n=4 c=24 k=24 in=7x7 ker=3x3 {kind}");
            let inputs = generate(&text, FillKind::NearOverflow, 8);
            let format: Format = inputs.problem.result_type().format();
            let full = sums(&inputs);
            let most = full.iter().map(|t| t.2).max().unwrap();
            let limit = format.overflow_threshold().min(f64::MAX);
            let near: Vec<f64> = full
                .iter()
                .filter(|t| t.2 == most)
                .map(|t| t.0.abs() / limit)
                .collect();
            assert!(
                near.iter()
                    .all(|r| *r > 0.6 && !(*r < f64::INFINITY && *r > 1.5)),
                "{text}"
            );
            assert!(near.iter().any(|r| *r < 1.0), "{text}: all overflow");
            assert!(near.iter().any(|r| *r >= 1.0), "{text}: none overflows");
        }
    }
}

#[test]
fn subnormal_results_are_at_and_below_the_smallest_normal() {
    for kind in ["fp16", "bf16", "fp32", "fp64"] {
        for seed in 0..4 {
            let text = format!("fwd n=2 c=8 k=8 in=6x6 ker=3x3 type={kind}");
            let inputs = generate(&text, FillKind::Subnormal, seed);
            let format = inputs.problem.result_type().format();
            let list = sums(&inputs);
            let below = list
                .iter()
                .filter(|t| t.0.abs() < format.min_normal())
                .count();
            let zero = list.iter().filter(|t| format.round(t.0) == 0.0).count();
            assert!(below * 2 > list.len(), "{text}: {below} of {}", list.len());
            assert!(zero * 10 < list.len(), "{text}: {zero} vanish");
        }
    }
}

#[test]
fn placed_specials_are_few_and_reach_results() {
    for seed in 0..30 {
        for (kind, is) in [
            (FillKind::NanPlaced, f64::is_nan as fn(f64) -> bool),
            (FillKind::InfPlaced, f64::is_infinite),
        ] {
            let inputs = generate("fwd n=2 c=3 k=4 in=6x6 ker=3x3 stride=2x2", kind, seed);
            let (a, b) = (inputs.first.to_f64(), inputs.second.to_f64());
            let count = a.iter().chain(&b).filter(|v| is(**v)).count();
            assert!((1..=3).contains(&count), "{count}");
            let list = sums(&inputs);
            assert!(list.iter().any(|t| !t.0.is_finite()));
        }
    }
}

#[test]
fn log_uniform_spans_its_binades_evenly() {
    let inputs = generate("fwd n=4 c=16 k=2 in=20x20 ker=1x1", FillKind::LogUniform, 2);
    let mut counts = [0i32; 24];
    for value in inputs.first.to_f64() {
        let e = crate::dtype::exponent(value.abs());
        counts[(e + 12).clamp(0, 23) as usize] += 1;
    }
    // 25,600 draws over 24 binades: 1,067 each, five standard deviations.
    assert!(counts.iter().all(|c| (c - 1067).abs() < 165), "{counts:?}");
}

#[test]
fn uniform_positive_has_the_moments_of_the_unit_interval() {
    let inputs = generate(
        "fwd n=4 c=16 k=2 in=20x20 ker=1x1",
        FillKind::UniformPositive,
        2,
    );
    let values = inputs.first.to_f64();
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    let square = values.iter().map(|v| v * v).sum::<f64>() / values.len() as f64;
    assert!(values.iter().all(|v| *v > 0.0 && *v <= 1.0));
    assert!((mean - 0.5).abs() < 0.01 && (square - 1.0 / 3.0).abs() < 0.01);
}

#[test]
fn seeds_and_roles_have_streams_of_their_own() {
    let square = "fwd n=4 c=4 k=4 in=4 ker=4 beta=1";
    let one = generate(square, FillKind::Normal, 1);
    let two = generate(square, FillKind::Normal, 2);
    assert_ne!(one.first.to_f64()[..16], one.second.to_f64()[..16]);
    assert_ne!(one.first.to_f64(), two.first.to_f64());
    assert_ne!(one.second.to_f64(), two.second.to_f64());
    assert_ne!(one.prior, two.prior);
}

/// FNV-1a (Fowler, Noll, Vo) of the bits of all tensors.
fn digest(inputs: &Inputs) -> u64 {
    let tensors = [&inputs.first, &inputs.second]
        .into_iter()
        .chain(&inputs.prior);
    tensors
        .flat_map(|t| (0..t.len()).map(move |i| t.bits(i)))
        .flat_map(u64::to_le_bytes)
        .fold(0xCBF2_9CE4_8422_2325, |h, byte| {
            (h ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3)
        })
}

/// A repro line must give the same bits forever: never edit these figures.
#[test]
fn generate_bits_never_change() {
    let digests: Vec<(FillKind, u64, u64)> = FillKind::ALL
        .into_iter()
        .map(|kind| {
            let half = "fwd n=2 c=6 k=5 in=7x5 ker=3x2 pad=1x0 g=1 type=fp16 beta=0.5";
            let double = "bwd_filter n=3 c=4 k=4 in=6 ker=3 g=2 type=fp64 beta=2";
            (
                kind,
                digest(&generate(half, kind, 7)),
                digest(&generate(double, kind, u64::MAX)),
            )
        })
        .collect();
    assert_eq!(digests, GOLDEN);
}

const GOLDEN: [(FillKind, u64, u64); 13] = [
    (FillKind::Constant, 0x87E77FB7D8F65725, 0xF28B30B4A11E1C25),
    (FillKind::Impulse, 0x41392DF6CECC9FFF, 0x58AA02B48A68EE5D),
    (FillKind::Integers, 0xC01F27EB92BE5945, 0x9C65FCDF61C24603),
    (FillKind::Sparse, 0xB49B7ABBAA44118A, 0x02A84B023BA57CAF),
    (FillKind::Normal, 0xF456B8B807A6C509, 0x1CDEEE085C889D9A),
    (
        FillKind::UniformPositive,
        0x990A9E6C0C15D92F,
        0x31BC90C2DFC40F7B,
    ),
    (FillKind::LogUniform, 0xE971372AA87687F0, 0xA5A78272C6410D28),
    (FillKind::Cancelling, 0xC83C10BB95459122, 0xD57BBA23094C0284),
    (
        FillKind::LargeThenSmall,
        0x1BE4AF7FC3FEACAA,
        0x68E3C6081D266B68,
    ),
    (
        FillKind::NearOverflow,
        0xE1E139C17981FD03,
        0xE61FEA7228562F9E,
    ),
    (FillKind::Subnormal, 0x2DE29806A2B95CFF, 0x8F6A6F9781326283),
    (FillKind::NanPlaced, 0x913023C3485B30A2, 0x3AA76BC315BA4786),
    (FillKind::InfPlaced, 0xE67EC4F986D3D5C4, 0xFE1BE50FD0AB07DE),
];
