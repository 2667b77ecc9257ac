//! proptest strategies for problems and their fills: valid by construction,
//! aimed at the boundaries where kernels go wrong, cheap by budget.
//!
//! A strategy draws a [`Sketch`] of small independent choices and builds a
//! problem from it, so proptest shrinks towards small and plain problems and no
//! draw is ever rejected.

use proptest::prelude::*;
use proptest::sample::select;
use serde::{Deserialize, Serialize};

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::fill::{Fill, FillKind};
use crate::problem::{Compute, ConvProblem, Direction, Layout, Role, Scale};

/// What may be drawn. Lists are weights too: a value that stands twice in one is
/// drawn twice as often.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Most multiply-adds of a problem.
    pub max_macs: u64,
    /// Most elements of a tensor.
    pub max_elements: u64,
    /// Spatial dimensions.
    pub ranks: Vec<u8>,
    /// Directions.
    pub directions: Vec<Direction>,
    /// Data types.
    pub types: Vec<DType>,
    /// Layouts.
    pub layouts: Vec<Layout>,
    /// Whether groups are drawn.
    pub groups: bool,
    /// Whether paddings may differ before and after.
    pub asymmetric: bool,
    /// Whether alpha and beta may differ from 1 and 0.
    pub scales: bool,
    /// Kinds of fill.
    pub fills: Vec<FillKind>,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            max_macs: 1 << 20,
            max_elements: 1 << 18,
            ranks: vec![1, 2, 3],
            directions: vec![Direction::Fwd],
            types: DType::USUAL.to_vec(),
            layouts: vec![Layout::Nchw, Layout::Nhwc],
            groups: true,
            asymmetric: true,
            scales: true,
            fills: FillKind::ALL.to_vec(),
        }
    }
}

impl Limits {
    /// Checks that something can be drawn; the error names the field.
    pub fn validate(&self) -> Result<()> {
        let empty = [
            ("ranks", self.ranks.is_empty()),
            ("directions", self.directions.is_empty()),
            ("types", self.types.is_empty()),
            ("layouts", self.layouts.is_empty()),
            ("fills", self.fills.is_empty()),
        ];
        if let Some((name, _)) = empty.iter().find(|(_, empty)| *empty) {
            return Err(Error::usage(format!("{name}: at least one is needed")));
        }
        if self.ranks.iter().any(|r| !(1..=3).contains(r)) {
            return Err(Error::usage("ranks: spatial dimensions are 1, 2 and 3"));
        }
        if self.max_macs < LEAST_MACS || self.max_elements < LEAST_MACS {
            return Err(Error::usage(format!(
                "max_macs and max_elements: at least {LEAST_MACS}, or no boundary can be reached"
            )));
        }
        Ok(())
    }
}

/// Budgets below this leave no room for a padded 3×3×3 kernel.
const LEAST_MACS: u64 = 1000;

/// A problem with the fills it is to be run with: at least one of exact
/// integers and one that is sensitive to rounding, where the limits allow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Draw {
    /// The problem.
    pub problem: ConvProblem,
    /// Its fills, plainest first.
    pub fills: Vec<Fill>,
}

/// Draws within `limits`, which must be valid.
pub fn draw(limits: &Limits) -> BoxedStrategy<Draw> {
    (problem(limits), fills(limits))
        .prop_map(|(problem, fills)| Draw { problem, fills })
        .boxed()
}

/// Problems within `limits`, which must be valid.
pub fn problem(limits: &Limits) -> BoxedStrategy<ConvProblem> {
    let limits = limits.clone();
    sketch(&limits)
        .prop_map(move |sketch| sketch.build(&limits))
        .boxed()
}

/// Independent choices that a problem is built from.
#[derive(Clone, Debug)]
struct Sketch {
    rank: u8,
    direction: Direction,
    types: Types,
    layout: Layout,
    channels: Channels,
    kernel: Kernel,
    spatial: [Spatial; 3],
    /// Stride and dilation 1 throughout: what transform algorithms need.
    plain: bool,
    batch: usize,
    alpha: f64,
    beta: f64,
}

#[derive(Clone, Copy, Debug)]
struct Types {
    operands: DType,
    result: DType,
    compute: Compute,
}

#[derive(Clone, Copy, Debug)]
struct Channels {
    relation: Relation,
    c: Boundary,
    k: Boundary,
    groups: usize,
}

/// How C and K are drawn together.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Relation {
    Independent,
    /// Both multiples of the same number.
    BothMultiples,
    /// One a multiple, the other just off.
    OneOff,
    Depthwise,
}

/// A number near a multiple of `unit`.
#[derive(Clone, Copy, Debug)]
struct Boundary {
    times: usize,
    unit: usize,
    off: i8,
}

#[derive(Clone, Copy, Debug)]
struct Kernel {
    class: KernelClass,
    extent: usize,
    others: [usize; 2],
}

/// Which dimensions of a kernel have extent.
#[derive(Clone, Copy, Debug, PartialEq)]
enum KernelClass {
    Pointwise,
    Cube,
    /// (k, 1, 1).
    FirstAxis,
    /// (1, 1, k).
    LastAxis,
    /// (1, k, k).
    Plane,
    Mixed,
}

#[derive(Clone, Copy, Debug)]
struct Spatial {
    size: usize,
    stride: usize,
    dilation: usize,
    padding: Padding,
    /// Image smaller than the kernel, made up for by padding.
    tiny: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Padding {
    None,
    Same,
    /// More than the kernel's extent.
    Wide,
    Uneven(usize, usize),
}

fn sketch(limits: &Limits) -> impl Strategy<Value = Sketch> + use<> {
    let shape = (
        ranks(limits),
        select(limits.directions.clone()),
        types(limits),
        select(limits.layouts.clone()),
        channels(limits.groups),
    );
    let rest = (
        kernel(),
        [spatial(limits), spatial(limits), spatial(limits)],
        prop::bool::weighted(0.5),
        prop_oneof![4 => Just(1usize), 2 => Just(2), 2 => Just(3), 1 => Just(5), 1 => Just(8)],
        scales(limits.scales),
    );
    (shape, rest).prop_map(
        |(
            (rank, direction, types, layout, channels),
            (kernel, spatial, plain, batch, (alpha, beta)),
        )| {
            Sketch {
                rank,
                direction,
                types,
                layout,
                channels,
                kernel,
                spatial,
                plain,
                batch,
                alpha,
                beta,
            }
        },
    )
}

/// 3D problems are where the known faults are; 1D ones run as 2D.
fn ranks(limits: &Limits) -> impl Strategy<Value = u8> + use<> {
    let weight = |rank: u8| match rank {
        1 => 1,
        2 => 4,
        _ => 5,
    };
    let choices: Vec<(u32, Just<u8>)> =
        limits.ranks.iter().map(|&r| (weight(r), Just(r))).collect();
    proptest::strategy::Union::new_weighted(choices)
}

fn types(limits: &Limits) -> impl Strategy<Value = Types> + use<> {
    let mut choices = Vec::new();
    for &dtype in &limits.types {
        let plain = |result, compute| {
            Just(Types {
                operands: dtype,
                result,
                compute,
            })
        };
        match dtype {
            DType::Fp8E4m3 | DType::Fp8E5m2 => {
                for (weight, result) in [
                    (4, dtype),
                    (2, DType::Fp32),
                    (2, DType::Fp16),
                    (1, DType::Bf16),
                ] {
                    choices.push((weight, plain(result, Compute::Fp32)));
                }
            }
            DType::Fp16 => {
                choices.push((12, plain(dtype, Compute::Fp32)));
                choices.push((4, plain(dtype, Compute::Fp16)));
                choices.push((1, plain(DType::Fp32, Compute::Fp32)));
            }
            DType::Bf16 => {
                choices.push((7, plain(dtype, Compute::Fp32)));
                choices.push((1, plain(DType::Fp32, Compute::Fp32)));
            }
            DType::Fp32 => choices.push((10, plain(dtype, Compute::Fp32))),
            DType::Fp64 => choices.push((4, plain(dtype, Compute::Fp64))),
        }
    }
    proptest::strategy::Union::new_weighted(choices)
}

fn boundary() -> impl Strategy<Value = Boundary> {
    let unit =
        prop_oneof![3 => Just(4usize), 5 => Just(8), 3 => Just(16), 2 => Just(32), 1 => Just(64)];
    let off = prop_oneof![4 => Just(0i8), 2 => Just(1), 2 => Just(-1)];
    (1usize..4, unit, off).prop_map(|(times, unit, off)| Boundary { times, unit, off })
}

fn channels(groups: bool) -> impl Strategy<Value = Channels> {
    let relation = prop_oneof![
        3 => Just(Relation::Independent),
        6 => Just(Relation::BothMultiples),
        2 => Just(Relation::OneOff),
        1 => Just(if groups { Relation::Depthwise } else { Relation::Independent }),
    ];
    let count = if groups {
        prop_oneof![6 => Just(1usize), 1 => Just(2), 1 => Just(3), 1 => Just(4)].boxed()
    } else {
        Just(1).boxed()
    };
    (relation, boundary(), boundary(), count).prop_map(|(relation, c, k, groups)| Channels {
        relation,
        c,
        k,
        groups,
    })
}

fn kernel() -> impl Strategy<Value = Kernel> {
    let class = prop_oneof![
        2 => Just(KernelClass::Pointwise),
        4 => Just(KernelClass::Cube),
        7 => Just(KernelClass::FirstAxis),
        2 => Just(KernelClass::LastAxis),
        3 => Just(KernelClass::Plane),
        3 => Just(KernelClass::Mixed),
    ];
    let extent =
        || prop_oneof![1 => Just(2usize), 8 => Just(3), 1 => Just(4), 2 => Just(5), 1 => Just(7)];
    (class, extent(), 1usize..5, 1usize..5).prop_map(|(class, extent, a, b)| Kernel {
        class,
        extent,
        others: [a, b],
    })
}

fn spatial(limits: &Limits) -> impl Strategy<Value = Spatial> + use<> {
    let size = prop_oneof![
        3 => 1usize..8,
        3 => 8usize..20,
        2 => select(vec![15usize, 16, 17, 31, 32, 33]),
        1 => 20usize..70,
    ];
    let stride = prop_oneof![5 => Just(1usize), 4 => Just(2), 1 => Just(3)];
    let dilation = prop_oneof![5 => Just(1usize), 4 => Just(2), 1 => Just(3)];
    let uneven = if limits.asymmetric { 1 } else { 0 };
    let padding = prop_oneof![
        5 => Just(Padding::None),
        6 => Just(Padding::Same),
        1 => Just(Padding::Wide),
        uneven => (0usize..4, 0usize..4).prop_map(|(a, b)| Padding::Uneven(a, b)),
    ];
    (size, stride, dilation, padding, prop::bool::weighted(0.06)).prop_map(
        |(size, stride, dilation, padding, tiny)| Spatial {
            size,
            stride,
            dilation,
            padding,
            tiny,
        },
    )
}

/// Mostly 1 and 0; all exact in fp32, as cuDNN takes them.
fn scales(drawn: bool) -> BoxedStrategy<(f64, f64)> {
    if !drawn {
        return Just((1.0, 0.0)).boxed();
    }
    let alpha = prop_oneof![9 => Just(1.0), 1 => select(vec![2.0, 0.5, -1.0, 0.75])];
    let beta = prop_oneof![9 => Just(0.0), 1 => select(vec![1.0, -0.5, 2.0])];
    (alpha, beta).boxed()
}

impl Boundary {
    fn value(self) -> usize {
        (self.times * self.unit)
            .saturating_add_signed(self.off.into())
            .max(1)
    }

    fn on_unit(self, unit: usize) -> usize {
        self.times * unit
    }
}

impl Channels {
    /// Channels per group (of x and of y) and groups.
    fn values(self) -> (usize, usize, usize) {
        let unit = self.c.unit;
        match self.relation {
            Relation::Independent => (self.c.value(), self.k.value(), self.groups),
            Relation::BothMultiples => (self.c.on_unit(unit), self.k.on_unit(unit), 1),
            Relation::OneOff => (self.c.on_unit(unit), self.k.on_unit(unit) + 1, 1),
            Relation::Depthwise => (1, self.k.times, self.c.value()),
        }
    }
}

impl Kernel {
    fn extents(self, rank: usize) -> Vec<usize> {
        let k = self.extent;
        let cells = match self.class {
            KernelClass::Pointwise => [1, 1, 1],
            KernelClass::Cube => [k, k, k],
            KernelClass::FirstAxis => [k, 1, 1],
            KernelClass::LastAxis => [1, 1, k],
            KernelClass::Plane => [1, k, k],
            KernelClass::Mixed => [k, self.others[0], self.others[1]],
        };
        match (rank, self.class) {
            // The plane of two dimensions is the whole of them; an axis is one.
            (1, _) => vec![cells.into_iter().max().unwrap_or(1)],
            (2, KernelClass::LastAxis | KernelClass::Plane) => cells[1..].to_vec(),
            (rank, _) => cells[..rank].to_vec(),
        }
    }
}

impl Sketch {
    fn build(&self, limits: &Limits) -> ConvProblem {
        let rank = usize::from(self.rank);
        let kernel = self.kernel.extents(rank);
        let (cg, kg, groups) = self.channels.values();
        let mut problem = ConvProblem::new(cg * groups, kg * groups, &vec![1; rank], &kernel);
        problem.direction = self.direction;
        problem.n = self.batch;
        problem.groups = groups;
        problem.layout = self.layout;
        problem.x_type = self.types.operands;
        problem.w_type = self.types.operands;
        problem.y_type = self.types.operands;
        *result_type(&mut problem) = self.types.result;
        problem.compute = self.types.compute;
        problem.alpha = Scale(self.alpha);
        problem.beta = Scale(self.beta);
        for d in 0..rank {
            self.spatial(d).apply(&mut problem, d);
        }
        fit(&mut problem, limits);
        debug_assert!(problem.validate().is_ok(), "{problem}");
        problem
    }

    fn spatial(&self, d: usize) -> Spatial {
        let drawn = self.spatial[d];
        if self.plain {
            Spatial {
                stride: 1,
                dilation: 1,
                ..drawn
            }
        } else {
            drawn
        }
    }
}

fn result_type(problem: &mut ConvProblem) -> &mut DType {
    match problem.direction.result() {
        Role::X => &mut problem.x_type,
        Role::W => &mut problem.w_type,
        Role::Y => &mut problem.y_type,
    }
}

impl Spatial {
    fn apply(self, problem: &mut ConvProblem, d: usize) {
        problem.stride[d] = self.stride;
        problem.dilation[d] = if problem.kernel[d] > 1 {
            self.dilation
        } else {
            1
        };
        let extent = problem.kernel_extent(d);
        let (before, after) = match self.padding {
            Padding::None => (0, 0),
            Padding::Same => (extent / 2, extent / 2),
            Padding::Wide => (extent + 1, extent + 1),
            Padding::Uneven(before, after) => (before, after),
        };
        problem.pad_before[d] = before;
        problem.pad_after[d] = after;
        problem.spatial[d] = if self.tiny { 1 } else { self.size };
        ensure_output(problem, d);
    }
}

/// Widens padding, if there is any, else the image, until the kernel fits.
fn ensure_output(problem: &mut ConvProblem, d: usize) {
    let missing = problem
        .kernel_extent(d)
        .saturating_sub(problem.padded_extent(d));
    if missing == 0 {
        return;
    }
    if problem.pad_before[d] > 0 && problem.pad_before[d] == problem.pad_after[d] {
        problem.pad_before[d] += missing.div_ceil(2);
        problem.pad_after[d] = problem.pad_before[d];
    } else {
        problem.spatial[d] += missing;
    }
}

/// Makes a problem cheap enough: images first, so that channel and kernel
/// boundaries survive, then the batch, then channels.
fn fit(problem: &mut ConvProblem, limits: &Limits) {
    while !affordable(problem, limits) {
        if shrink_image(problem) {
            continue;
        }
        if problem.n > 1 {
            problem.n /= 2;
        } else {
            shrink_channels(problem);
        }
    }
}

/// Halves the largest image dimension that can still be halved; whether one
/// could.
fn shrink_image(problem: &mut ConvProblem) -> bool {
    let halved = |d: usize| {
        let uncovered = problem
            .kernel_extent(d)
            .saturating_sub(problem.pad_before[d] + problem.pad_after[d]);
        (problem.spatial[d] / 2)
            .max(uncovered)
            .max(problem.kernel_extent(d).min(4))
    };
    let smaller = (0..problem.rank()).filter(|&d| halved(d) < problem.spatial[d]);
    let Some(d) = smaller.max_by_key(|&d| problem.spatial[d]) else {
        return false;
    };
    problem.spatial[d] = halved(d);
    true
}

fn affordable(problem: &ConvProblem, limits: &Limits) -> bool {
    let fits = |role| problem.elements(role) as u64 <= limits.max_elements;
    problem.macs() <= limits.max_macs && [Role::X, Role::W, Role::Y].into_iter().all(fits)
}

/// Halves the larger channel count, keeping groups and, as far as it goes,
/// multiples; then taps; then the image. Ends at the smallest problem.
fn shrink_channels(problem: &mut ConvProblem) {
    let (cg, kg) = (problem.c / problem.groups, problem.k / problem.groups);
    if cg.max(kg) > 1 {
        let halved = |v: usize| (v / 2).max(1);
        if cg >= kg {
            problem.c = halved(cg) * problem.groups;
        } else {
            problem.k = halved(kg) * problem.groups;
        }
    } else if problem.groups > 1 {
        problem.groups /= 2;
        (problem.c, problem.k) = (cg * problem.groups, kg * problem.groups);
    } else {
        let d = (0..problem.rank())
            .max_by_key(|&d| problem.padded_extent(d))
            .unwrap_or(0);
        problem.kernel[d] = 1;
        problem.dilation[d] = 1;
        problem.pad_before[d] = 0;
        problem.pad_after[d] = 0;
        problem.spatial[d] = (problem.spatial[d] / 2).max(1);
    }
}

fn fills(limits: &Limits) -> impl Strategy<Value = Vec<Fill>> + use<> {
    let of = |weighted: &[(u32, FillKind)]| {
        let allowed: Vec<(u32, Just<Option<FillKind>>)> = weighted
            .iter()
            .map(|&(weight, kind)| (weight * occurrences(&limits.fills, kind), kind))
            .filter(|(weight, _)| *weight > 0)
            .map(|(weight, kind)| (weight, Just(Some(kind))))
            .collect();
        if allowed.is_empty() {
            Just(None).boxed()
        } else {
            proptest::strategy::Union::new_weighted(allowed).boxed()
        }
    };
    let exact = of(&EXACT);
    let rounding = of(&ROUNDING);
    let special = prop_oneof![6 => Just(None), 4 => of(&SPECIAL)];
    (exact, rounding, special, any::<u32>()).prop_map(|(exact, rounding, special, seed)| {
        [exact, rounding, special]
            .into_iter()
            .flatten()
            .map(|kind| Fill {
                kind,
                seed: seed.into(),
            })
            .collect()
    })
}

fn occurrences(list: &[FillKind], kind: FillKind) -> u32 {
    list.iter().filter(|k| **k == kind).count() as u32
}

const EXACT: [(u32, FillKind); 4] = [
    (16, FillKind::Integers),
    (3, FillKind::Sparse),
    (1, FillKind::Impulse),
    (1, FillKind::Constant),
];

const ROUNDING: [(u32, FillKind); 6] = [
    (8, FillKind::Normal),
    (3, FillKind::UniformPositive),
    (3, FillKind::LogUniform),
    (2, FillKind::Cancelling),
    (2, FillKind::LargeThenSmall),
    (3, FillKind::Subnormal),
];

const SPECIAL: [(u32, FillKind); 3] = [
    (4, FillKind::NearOverflow),
    (2, FillKind::NanPlaced),
    (2, FillKind::InfPlaced),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fill::Regime;
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;

    proptest! {
        #[test]
        fn draws_are_valid_and_within_their_limits(
            draw in draw(&Limits { directions: Direction::ALL.to_vec(), ..Limits::default() })
        ) {
            let limits = Limits::default();
            prop_assert!(draw.problem.validate().is_ok());
            prop_assert!(affordable(&draw.problem, &limits));
            let again: ConvProblem = draw.problem.to_string().parse().unwrap();
            prop_assert_eq!(again, draw.problem);
            let has = |regime| draw.fills.iter().any(|f| f.kind.regime() == regime);
            prop_assert!(has(Regime::ExactInteger) && has(Regime::RoundingSensitive));
        }

        #[test]
        fn draws_fit_the_smallest_budget(
            draw in draw(&Limits { max_macs: LEAST_MACS, max_elements: LEAST_MACS, ..Limits::default() })
        ) {
            prop_assert!(draw.problem.macs() <= LEAST_MACS);
            prop_assert!(draw.problem.validate().is_ok());
        }

        #[test]
        fn draws_respect_narrow_limits(
            draw in draw(&Limits {
                ranks: vec![3],
                types: vec![DType::Bf16],
                layouts: vec![Layout::Nhwc],
                groups: false,
                asymmetric: false,
                scales: false,
                fills: vec![FillKind::Normal],
                ..Limits::default()
            })
        ) {
            let p = &draw.problem;
            prop_assert_eq!((p.rank(), p.x_type, p.layout, p.groups), (3, DType::Bf16, Layout::Nhwc, 1));
            prop_assert_eq!(&p.pad_before, &p.pad_after);
            prop_assert_eq!((p.alpha, p.beta), (Scale(1.0), Scale(0.0)));
            prop_assert!(draw.fills.iter().all(|f| f.kind == FillKind::Normal));
        }
    }

    /// A named class of problems and the least share of draws that must be in it.
    type Share = (&'static str, fn(&ConvProblem) -> bool, f64);

    const SHARES: [Share; 16] = [
        (
            "3D (3,1,1) fp16, both multiples of 8",
            |p| p.kernel == [3, 1, 1] && p.c % 8 == 0 && p.k % 8 == 0 && p.x_type == DType::Fp16,
            0.012,
        ),
        ("C one below a multiple of 8", |p| p.c % 8 == 7, 0.05),
        (
            "C one above a multiple of 8",
            |p| p.c % 8 == 1 && p.c > 1,
            0.05,
        ),
        (
            "C and K both multiples of 16",
            |p| p.c % 16 == 0 && p.k % 16 == 0,
            0.1,
        ),
        (
            "K just off, C on a multiple",
            |p| p.c % 8 == 0 && p.k % 8 == 1,
            0.05,
        ),
        ("pointwise", |p| p.kernel.iter().all(|&k| k == 1), 0.08),
        (
            "(1,k,k)",
            |p| p.rank() == 3 && p.kernel[0] == 1 && p.kernel[1] > 1,
            0.04,
        ),
        (
            "image smaller than kernel",
            |p| (0..p.rank()).any(|d| p.spatial[d] < p.kernel_extent(d)),
            0.04,
        ),
        (
            "padding larger than kernel",
            |p| (0..p.rank()).any(|d| p.pad_before[d] > p.kernel_extent(d)),
            0.08,
        ),
        ("asymmetric padding", |p| p.pad_before != p.pad_after, 0.08),
        (
            "stride with dilation",
            |p| (0..p.rank()).any(|d| p.stride[d] > 1 && p.dilation[d] > 1),
            0.08,
        ),
        ("groups", |p| p.groups > 1, 0.12),
        ("depthwise", |p| p.groups > 1 && p.c == p.groups, 0.04),
        ("odd batch above 1", |p| p.n % 2 == 1 && p.n > 1, 0.1),
        ("alpha not 1", |p| p.alpha.0 != 1.0, 0.05),
        ("beta not 0", |p| p.beta.0 != 0.0, 0.05),
    ];

    #[test]
    fn draws_reach_every_boundary() {
        let mut runner = TestRunner::deterministic();
        let strategy = problem(&Limits::default());
        let draws: Vec<ConvProblem> = (0..4000)
            .map(|_| strategy.new_tree(&mut runner).unwrap().current())
            .collect();
        for (name, class, least) in SHARES {
            let share = draws.iter().filter(|p| class(p)).count() as f64 / draws.len() as f64;
            assert!(
                share >= least,
                "{name}: {share} of draws, at least {least} wanted"
            );
        }
    }

    #[test]
    fn draws_weigh_repeated_values() {
        let limits = Limits {
            types: vec![DType::Fp32, DType::Fp32, DType::Fp32, DType::Bf16],
            fills: [FillKind::Integers]
                .into_iter()
                .chain([FillKind::Sparse; 30])
                .collect(),
            ..Limits::default()
        };
        let mut runner = TestRunner::deterministic();
        let strategy = draw(&limits);
        let draws: Vec<Draw> = (0..1000)
            .map(|_| strategy.new_tree(&mut runner).unwrap().current())
            .collect();
        let share = |test: fn(&Draw) -> bool| draws.iter().filter(|d| test(d)).count();
        // Weights 30 to 8, and 90 to 16.
        assert!((740..840).contains(&share(|d| d.problem.x_type == DType::Fp32)));
        assert!((800..900).contains(&share(|d| d.fills[0].kind == FillKind::Sparse)));
    }

    #[test]
    fn validate_names_the_field() {
        let empty = Limits {
            types: vec![],
            ..Limits::default()
        };
        assert!(
            empty
                .validate()
                .unwrap_err()
                .to_string()
                .starts_with("types")
        );
        let small = Limits {
            max_macs: 3,
            ..Limits::default()
        };
        assert!(
            small
                .validate()
                .unwrap_err()
                .to_string()
                .starts_with("max_macs")
        );
    }
}
