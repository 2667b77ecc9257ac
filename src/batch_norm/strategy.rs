//! proptest strategies, valid by construction, aimed at where kernels go wrong:
//! groups of one value, odd and even counts, channels about the vector widths,
//! means large against the deviation.

use proptest::prelude::*;
use proptest::sample::select;

use super::inputs::{Fill, FillKind};
use super::problem::{Mode, Pass, Problem};
use crate::dtype::DType;
use crate::problem::{Layout, Scale};

/// What is drawn.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Passes to draw from.
    pub passes: Vec<Pass>,
    /// Types to draw from.
    pub types: Vec<DType>,
    /// The most elements of x.
    pub elements: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            passes: Pass::ALL.to_vec(),
            types: DType::USUAL.to_vec(),
            elements: 1 << 16,
        }
    }
}

/// Any valid problem within `limits`.
pub fn problem(limits: &Limits) -> impl Strategy<Value = Problem> + use<> {
    let elements = limits.elements;
    (
        select(limits.passes.clone()),
        select(limits.types.clone()),
        select(Mode::ALL.to_vec()),
        (batch(), channels(), sizes()),
        select(vec![Layout::Nchw, Layout::Nhwc]),
        (epsilon(), factor(), any::<[bool; 2]>()),
    )
        .prop_map(move |(pass, dtype, mode, (n, c, spatial), layout, rest)| {
            let (epsilon, factor, [running, saved]) = rest;
            let plain = Problem::new(pass, n, c, &spatial).with_type(dtype);
            let problem = Problem {
                mode,
                layout,
                epsilon: Scale(epsilon),
                factor: match pass {
                    Pass::Train => Scale(factor),
                    _ => plain.factor,
                },
                running: running || pass != Pass::Train,
                saved: saved || pass == Pass::Infer,
                ..plain
            };
            shrunk(problem, elements)
        })
}

/// Any distribution, with a seed.
pub fn fill() -> impl Strategy<Value = Fill> {
    (select(FillKind::ALL.to_vec()), any::<u64>()).prop_map(|(kind, seed)| Fill { kind, seed })
}

/// A problem with a fill.
pub fn case(limits: &Limits) -> impl Strategy<Value = (Problem, Fill)> + use<> {
    (problem(limits), fill())
}

fn batch() -> impl Strategy<Value = usize> {
    prop_oneof![
        Just(1),
        2usize..5,
        5usize..40,
        select(vec![63, 64, 65, 129])
    ]
}

fn channels() -> impl Strategy<Value = usize> {
    prop_oneof![
        1usize..9,
        select(vec![15, 16, 17, 31, 32, 33, 63, 64, 65, 128, 200]),
    ]
}

/// 2 or 3 spatial sizes: 1 × 1 as of a linear layer, small ones of either parity,
/// and long rows.
fn sizes() -> impl Strategy<Value = Vec<usize>> {
    let plane = prop_oneof![
        Just(vec![1, 1]),
        prop::collection::vec(1usize..8, 2..=3),
        prop::collection::vec(select(vec![7, 8, 14, 15, 16, 17, 32, 33]), 2),
        (1usize..4, 100usize..1200).prop_map(|(h, w)| vec![h, w]),
    ];
    plane.boxed()
}

fn epsilon() -> impl Strategy<Value = f64> {
    prop_oneof![3 => Just(1e-5), 1 => select(vec![1e-3, 1e-8, 1e-12, 1.0])]
}

fn factor() -> impl Strategy<Value = f64> {
    prop_oneof![2 => Just(0.1), 1 => select(vec![0.0, 0.9, 1.0]), 1 => 0.0f64..1.0]
}

/// Fewer images, then fewer channels, until x is small enough.
fn shrunk(mut problem: Problem, elements: usize) -> Problem {
    while problem.elements() > elements {
        if problem.n > 1 {
            problem.n = problem.n.div_ceil(2);
        } else if problem.c > 1 {
            problem.c = problem.c.div_ceil(2);
        } else {
            let last = problem.spatial.len() - 1;
            problem.spatial[last] = problem.spatial[last].div_ceil(2);
        }
    }
    problem
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest! {
        #[test]
        fn problems_are_valid_and_round_trip(problem in problem(&Limits::default())) {
            prop_assert!(problem.validate().is_ok(), "{problem}");
            prop_assert!(problem.elements() <= Limits::default().elements);
            prop_assert_eq!(problem.to_string().parse::<Problem>().unwrap(), problem);
        }
    }
}
