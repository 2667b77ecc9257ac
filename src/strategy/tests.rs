use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use super::*;
use crate::problem::{Direction, Layout, Role};

fn runner(seed: u8) -> TestRunner {
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[seed; 32]);
    TestRunner::new_with_rng(Config::default(), rng)
}

fn draws(limits: &Limits, count: usize) -> Vec<Draw> {
    let (mut runner, strategy) = (runner(1), draw(limits));
    (0..count)
        .map(|_| strategy.new_tree(&mut runner).unwrap().current())
        .collect()
}

/// Limits of all kinds, small and odd ones included.
fn limits() -> impl Strategy<Value = Limits> {
    let list = |all: Vec<usize>| proptest::sample::subsequence(all, 1..=3);
    (
        prop_oneof![1u64..50, 50u64..5_000, 5_000u64..10_000_000],
        prop_oneof![1u64..50, 50u64..10_000, 10_000u64..2_000_000],
        list(vec![1, 2, 3]),
        proptest::sample::subsequence(Direction::ALL.to_vec(), 1..=3),
        proptest::sample::subsequence(Types::ALL.to_vec(), 1..=7),
        0u32..=100,
    )
        .prop_map(
            |(max_macs, max_elements, ranks, directions, types, often)| Limits {
                max_macs,
                max_elements,
                ranks,
                directions,
                types,
                percent: Percentages {
                    groups: often / 2,
                    depthwise: often / 2,
                    stride: often,
                    dilation: often,
                    padding: often,
                    asymmetric: often / 2,
                    beyond: often / 2,
                    alpha: often,
                    beta: often,
                    special_fill: often,
                },
                ..Limits::default()
            },
        )
}

fn check(draw: &Draw, limits: &Limits) -> Result<(), TestCaseError> {
    let problem = &draw.problem;
    prop_assert!(problem.validate().is_ok(), "{}", problem);
    prop_assert!(problem.macs() <= limits.max_macs, "{}", problem);
    for role in [Role::X, Role::W, Role::Y] {
        prop_assert!(
            problem.elements(role) as u64 <= limits.max_elements,
            "{}",
            problem
        );
    }
    prop_assert!(limits.ranks.contains(&problem.rank()));
    prop_assert!(limits.directions.contains(&problem.direction));
    prop_assert!(
        limits
            .types
            .contains(&Types::of(problem).expect("a listed configuration"))
    );
    let regimes: Vec<_> = draw.fills.iter().map(|f| f.kind.regime()).collect();
    prop_assert_eq!(
        &regimes[..2],
        &[Regime::ExactInteger, Regime::RoundingSensitive]
    );
    prop_assert!(regimes[2..].iter().all(|r| *r == Regime::Special) && regimes.len() <= 3);
    let again: ConvProblem = problem.to_string().parse().expect("a line that parses");
    prop_assert_eq!(&again, problem);
    Ok(())
}

proptest! {
    #[test]
    fn draw_is_valid_and_within_any_limits(limits in limits(), seed: u8) {
        prop_assert!(limits.validate().is_ok());
        let (mut runner, strategy) = (runner(seed), draw(&limits));
        for _ in 0..20 {
            check(&strategy.new_tree(&mut runner).unwrap().current(), &limits)?;
        }
    }
}

#[test]
fn simplify_stays_within_limits_and_ends_small() {
    let limits = Limits::default();
    let mut runner = runner(3);
    for _ in 0..40 {
        let mut tree = draw(&limits).new_tree(&mut runner).unwrap();
        while tree.simplify() {
            check(&tree.current(), &limits).unwrap();
        }
        let end = tree.current();
        assert!(end.problem.macs() <= 64, "{}", end.problem);
        assert!(end.fills.iter().all(|f| f.seed == 0));
    }
}

/// Share of default draws, in percent, of which `is` holds.
fn share(draws: &[Draw], is: impl Fn(&ConvProblem) -> bool) -> f64 {
    let count = draws.iter().filter(|d| is(&d.problem)).count();
    100.0 * count as f64 / draws.len() as f64
}

fn any_axis(problem: &ConvProblem, is: impl Fn(usize) -> bool) -> bool {
    (0..problem.rank()).any(is)
}

type Class = Box<dyn Fn(&ConvProblem) -> bool>;

#[test]
fn draw_default_hits_every_boundary_class() {
    let draws = draws(&Limits::default(), 2_000);
    let aligned = |channels: usize, unit: usize| channels.is_multiple_of(unit);
    let classes: Vec<(&str, f64, Class)> = vec![
        (
            "c and k multiples of 8",
            10.0,
            Box::new(move |p| aligned(p.c, 8) && aligned(p.k, 8)),
        ),
        (
            "only c a multiple of 8",
            10.0,
            Box::new(move |p| aligned(p.c, 8) && !aligned(p.k, 8)),
        ),
        (
            "only k a multiple of 8",
            10.0,
            Box::new(move |p| !aligned(p.c, 8) && aligned(p.k, 8)),
        ),
        (
            "neither a multiple of 8",
            10.0,
            Box::new(move |p| !aligned(p.c, 8) && !aligned(p.k, 8)),
        ),
        (
            "long in depth only",
            2.0,
            Box::new(|p| p.rank() == 3 && p.kernel[0] > 1 && p.kernel[1..] == [1, 1]),
        ),
        (
            "flat in depth only",
            2.0,
            Box::new(|p| p.rank() == 3 && p.kernel[0] == 1 && p.kernel[1] > 1 && p.kernel[2] > 1),
        ),
        (
            "long in height only",
            2.0,
            Box::new(|p| p.rank() == 2 && p.kernel[0] > 1 && p.kernel[1] == 1),
        ),
        (
            "long in width only",
            2.0,
            Box::new(|p| p.rank() == 2 && p.kernel[0] == 1 && p.kernel[1] > 1),
        ),
        (
            "1x1x1",
            3.0,
            Box::new(|p| p.rank() == 3 && p.kernel == [1; 3]),
        ),
        (
            "1x1",
            3.0,
            Box::new(|p| p.rank() == 2 && p.kernel == [1; 2]),
        ),
        (
            "image smaller than the kernel",
            5.0,
            Box::new(|p| any_axis(p, |d| p.spatial[d] < p.kernel_extent(d))),
        ),
        (
            "padding larger than the kernel",
            5.0,
            Box::new(|p| {
                any_axis(p, |d| {
                    p.pad_before[d] >= p.kernel_extent(d) && p.kernel[d] > 1
                })
            }),
        ),
        (
            "asymmetric padding",
            10.0,
            Box::new(|p| p.pad_before != p.pad_after),
        ),
        (
            "padding before only",
            1.0,
            Box::new(|p| any_axis(p, |d| p.pad_before[d] > 0 && p.pad_after[d] == 0)),
        ),
        (
            "odd image",
            40.0,
            Box::new(|p| any_axis(p, |d| p.spatial[d] % 2 == 1)),
        ),
        (
            "image of one",
            3.0,
            Box::new(|p| any_axis(p, |d| p.spatial[d] == 1)),
        ),
        (
            "stride",
            25.0,
            Box::new(|p| p.stride.iter().any(|s| *s > 1)),
        ),
        (
            "dilation",
            15.0,
            Box::new(|p| any_axis(p, |d| p.dilation[d] > 1 && p.kernel[d] > 1)),
        ),
        (
            "stride and dilation",
            3.0,
            Box::new(|p| {
                any_axis(p, |d| {
                    p.stride[d] > 1 && p.dilation[d] > 1 && p.kernel[d] > 1
                })
            }),
        ),
        (
            "stride above the kernel",
            5.0,
            Box::new(|p| any_axis(p, |d| p.stride[d] > p.kernel_extent(d))),
        ),
        (
            "even kernel",
            10.0,
            Box::new(|p| p.kernel.iter().any(|k| k % 2 == 0)),
        ),
        ("groups", 8.0, Box::new(|p| p.groups > 1 && p.groups < p.c)),
        (
            "depthwise",
            5.0,
            Box::new(|p| p.groups > 1 && p.groups == p.c),
        ),
        (
            "depthwise with a multiplier",
            1.0,
            Box::new(|p| p.groups > 1 && p.groups == p.c && p.k > p.c),
        ),
        ("batch 1", 25.0, Box::new(|p| p.n == 1)),
        ("batch 2", 8.0, Box::new(|p| p.n == 2)),
        ("odd batch", 15.0, Box::new(|p| p.n > 1 && p.n % 2 == 1)),
        ("1D", 25.0, Box::new(|p| p.rank() == 1)),
        ("2D", 25.0, Box::new(|p| p.rank() == 2)),
        ("3D", 25.0, Box::new(|p| p.rank() == 3)),
        ("NCHW", 40.0, Box::new(|p| p.layout == Layout::Nchw)),
        ("NHWC", 40.0, Box::new(|p| p.layout == Layout::Nhwc)),
        ("alpha", 5.0, Box::new(|p| p.alpha.0 != 1.0)),
        ("beta", 5.0, Box::new(|p| p.beta.0 != 0.0)),
        (
            "a million multiply-adds",
            10.0,
            Box::new(|p| p.macs() > 1_000_000),
        ),
        (
            "long reduction",
            5.0,
            Box::new(|p| p.reduction_length() > 1_000),
        ),
        (
            "one output position",
            2.0,
            Box::new(|p| p.output_spatial().iter().all(|o| *o == 1)),
        ),
        (
            "one channel to one",
            0.2,
            Box::new(|p| p.c == 1 && p.k == 1),
        ),
    ];
    for (name, least, is) in &classes {
        let share = share(&draws, is);
        assert!(
            share >= *least,
            "{name}: {share}% of draws, expected {least}%"
        );
    }
    for unit in [4, 8, 16, 32, 64] {
        for delta in [-1isize, 0, 1] {
            let near = |v: usize| {
                v.checked_add_signed(-delta)
                    .is_some_and(|v| v >= unit && v % unit == 0)
            };
            let [c, k] = [share(&draws, |p| near(p.c)), share(&draws, |p| near(p.k))];
            assert!(
                c >= 1.0 && k >= 1.0,
                "multiples of {unit} {delta:+}: {c}% and {k}%"
            );
        }
    }
    for types in Types::ALL {
        let share = share(&draws, |p| Types::of(p) == Some(types));
        let least = if types.weight() == 1 { 1.0 } else { 7.0 };
        assert!(share >= least, "{types}: {share}%");
    }
    for kind in FillKind::ALL {
        let count = draws
            .iter()
            .filter(|d| d.fills.iter().any(|f| f.kind == kind))
            .count();
        assert!(count >= 40, "{kind:?}: {count} of 2,000");
    }
}

#[test]
fn draw_restricted_limits_restrict() {
    let limits = Limits {
        ranks: vec![3],
        types: vec![Types::TrueHalf],
        layouts: vec![Layout::Nhwc],
        directions: vec![Direction::BwdData],
        fills: [(FillKind::Normal, 1)].into(),
        percent: Percentages {
            groups: 0,
            depthwise: 100,
            padding: 0,
            ..Percentages::default()
        },
        ..Limits::default()
    };
    limits.validate().unwrap();
    for draw in draws(&limits, 100) {
        let p = &draw.problem;
        assert_eq!(
            (p.rank(), p.layout, p.direction),
            (3, Layout::Nhwc, Direction::BwdData)
        );
        assert_eq!((Types::of(p), p.groups), (Some(Types::TrueHalf), p.c));
        assert_eq!(draw.fills.len(), 1);
        assert_eq!(draw.fills[0].kind, FillKind::Normal);
    }
}

#[test]
fn limits_read_from_text_have_defaults_and_refuse_the_unknown() {
    let limits: Limits = toml::from_str(
        "max_macs = 1000\nranks = [2]\n[percent]\ngroups = 0\n[fills]\nlog_uniform = 2",
    )
    .unwrap();
    assert_eq!((limits.max_macs, limits.percent.groups), (1000, 0));
    assert_eq!(limits.percent.depthwise, Percentages::default().depthwise);
    assert_eq!(limits.fills, [(FillKind::LogUniform, 2)].into());
    assert!(toml::from_str::<Limits>("max_mac = 1000").is_err());
    assert!(toml::from_str::<Limits>("[percent]\ngroup = 1").is_err());
    let text = toml::to_string(&Limits::default()).unwrap();
    assert_eq!(toml::from_str::<Limits>(&text).unwrap(), Limits::default());
}

#[test]
fn limits_errors_name_the_field() {
    let message = |text: &str| {
        let limits: Limits = toml::from_str(text).unwrap();
        limits.validate().unwrap_err().to_string()
    };
    assert!(message("max_macs = 0").starts_with("max_macs: "));
    assert!(message("ranks = []").starts_with("ranks: "));
    assert!(message("ranks = [4]").starts_with("ranks: "));
    assert!(message("[fills]\nnormal = 0").starts_with("fills: "));
    assert!(message("[percent]\nstride = 101").starts_with("percent.stride: "));
    assert!(message("[percent]\ngroups = 60\ndepthwise = 60").starts_with("percent.groups + "));
}

#[test]
fn types_names_parse_back() {
    for types in Types::ALL {
        assert_eq!(types.name().parse::<Types>().unwrap(), types);
        let word = serde_json::to_value(types).unwrap();
        assert_eq!(word, types.name());
    }
    assert!(
        "half"
            .parse::<Types>()
            .unwrap_err()
            .to_string()
            .contains("true_half")
    );
}
