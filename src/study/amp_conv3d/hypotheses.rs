//! What could make mean |fp32 − fp16| = 34.65: each hypothesis computed on the
//! report's shape and data, and laid beside the figure.
//!
//! A (3,1,1) kernel adds three taps. With T(j, d) the sum over the channels of
//! tap j on input plane d, the right output of plane d is
//! T(0, d−1) + T(1, d) + T(2, d+1), planes outside being zero, and every
//! hypothesis is another choice of taps, planes and channels. So the taps are
//! computed once.

use std::ops::Range;

use rayon::prelude::*;
use serde::Serialize;

use super::reported::{COMPARISONS, EXCEPTION, INPUT, Reported};
use crate::dtype::DType;
use crate::fill::{Fill, FillKind, Inputs};
use crate::problem::ConvProblem;
use crate::study::statistics::Spread;

/// A hypothesis, measured.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    /// In words.
    pub name: &'static str,
    /// Mean |wrong − right| of a sample, over seeds.
    pub figure: Spread,
    /// The same for each depth plane.
    pub planes: Vec<f64>,
    /// Standard deviations from the smallest reported figure.
    pub from_smallest: f64,
    /// Standard deviations from the nearest reported figure; 0 between them.
    pub from_nearest: f64,
    /// Whether the figures alone exclude it.
    pub excluded_by_figure: bool,
    /// What else excludes it.
    pub excluded_besides: Option<&'static str>,
}

impl Measured {
    /// Whether nothing excludes it.
    pub fn survives(&self) -> bool {
        !self.excluded_by_figure && self.excluded_besides.is_none()
    }
}

/// Beyond so many standard deviations from every reported figure a hypothesis is
/// excluded: of normal figures, fewer than one in a million lie there.
pub const EXCLUDED_FROM: f64 = 5.0;

/// A hypothesis: its name, the output it gives on a plane, made from the taps of
/// the right data and of data that have nothing to do with them, and what
/// excludes it whatever its figure.
struct Hypothesis(&'static str, Output, Option<&'static str>);

type Output = fn(&Taps, &Taps, usize) -> Vec<f32>;

const COSINES: &str = "the cosines of a second public report";

const HYPOTHESES: [Hypothesis; 12] = [
    Hypothesis("all outputs zero", |t, _, _| vec![0.0; t.outputs()], None),
    Hypothesis("outer taps dropped", |t, _, d| t.tap(1, d, 0), None),
    Hypothesis(
        "half of the channels lost",
        |t, _, d| t.right(d, 0..HALF),
        None,
    ),
    Hypothesis(
        "three quarters of the channels lost",
        |t, _, d| t.right(d, 0..QUARTER),
        None,
    ),
    Hypothesis(
        "filter read in another layout, or another run's output",
        |_, garbage, d| garbage.right(d, 0..ALL),
        None,
    ),
    Hypothesis(
        "two thirds of the channels multiply garbage",
        |t, garbage, d| sum(&[t.right(d, 0..THIRD), garbage.right(d, THIRD..ALL)]),
        Some(COSINES),
    ),
    Hypothesis(
        "outer taps multiply garbage",
        |t, garbage, d| sum(&[garbage.tap(0, d, -1), t.tap(1, d, 0), garbage.tap(2, d, 1)]),
        None,
    ),
    Hypothesis(
        "outer taps change places (w0, w2)",
        |t, _, d| sum(&[t.tap(2, d, -1), t.tap(1, d, 0), t.tap(0, d, 1)]),
        None,
    ),
    Hypothesis(
        "all taps read the centre plane, border masked",
        |t, _, d| {
            let inside = |j: &usize| (0..DEPTH).contains(&(d + j).wrapping_sub(1));
            let taps = (0..TAPS).filter(inside);
            sum(&taps.map(|j| t.tap(j, d, 0)).collect::<Vec<_>>())
        },
        None,
    ),
    Hypothesis(
        "adjacent taps change places (w0, w1)",
        |t, _, d| sum(&[t.tap(1, d, -1), t.tap(0, d, 0), t.tap(2, d, 1)]),
        None,
    ),
    Hypothesis(
        "all taps read the centre plane, border not masked",
        |t, _, d| sum(&[t.tap(0, d, 0), t.tap(1, d, 0), t.tap(2, d, 0)]),
        None,
    ),
    Hypothesis(
        "outer taps change places, border not masked",
        |t, _, d| sum(&[t.clamped(2, d, -1), t.tap(1, d, 0), t.clamped(0, d, 1)]),
        None,
    ),
];

const TAPS: usize = 3;
const DEPTH: usize = INPUT[0];
const PLANE: usize = INPUT[1] * INPUT[2];

/// Channels are summed in blocks, so that parts of a sum can be lost: a quarter
/// of all, a third, a half.
const QUARTER: usize = 1;
const THIRD: usize = 2;
const HALF: usize = 3;
const ALL: usize = 4;

/// The channels of a block.
fn block(index: usize, c: usize) -> Range<usize> {
    let ends = [0, c / 4, c.div_ceil(3), c / 2, c];
    ends[index]..ends[index + 1]
}

/// The sums of every tap, block of channels and plane for one sample, in single
/// precision: its rounding is far below any figure here.
struct Taps {
    /// Output channels.
    k: usize,
    /// By tap, block and plane: k × height × width sums.
    sums: Vec<Vec<f32>>,
}

/// Both operands in single precision.
struct Operands {
    c: usize,
    k: usize,
    x: Vec<f32>,
    w: Vec<f32>,
}

impl Operands {
    /// One sample of the exceptional comparison with `k` output channels.
    fn new(k: usize, seed: u64) -> Self {
        let Reported { c, kernel, .. } = COMPARISONS[EXCEPTION];
        let problem = ConvProblem::new(c, k, &INPUT, &kernel).with_type(DType::Fp32);
        let kind = FillKind::Normal;
        let inputs = Inputs::generate(&problem, Fill { kind, seed });
        let single = |tensor: &crate::tensor::Tensor| {
            let values = tensor.to_f64().into_iter();
            values.map(|v| v as f32).collect()
        };
        Operands {
            c,
            k,
            x: single(&inputs.first),
            w: single(&inputs.second),
        }
    }

    /// The sums of one tap over a block of channels on one plane.
    fn sums(&self, tap: usize, channels: Range<usize>, plane: usize) -> Vec<f32> {
        let mut sums = vec![0.0; self.k * PLANE];
        for (k, out) in sums.chunks_mut(PLANE).enumerate() {
            for c in channels.clone() {
                let weight = self.w[(k * self.c + c) * TAPS + tap];
                let image = &self.x[(c * DEPTH + plane) * PLANE..][..PLANE];
                out.iter_mut()
                    .zip(image)
                    .for_each(|(o, x)| *o += weight * x);
            }
        }
        sums
    }
}

impl Taps {
    fn new(k: usize, seed: u64) -> Self {
        let operands = Operands::new(k, seed);
        let places = (0..TAPS * ALL * DEPTH).into_par_iter();
        let sums = places.map(|at| {
            let (tap, index, plane) = (at / DEPTH / ALL, at / DEPTH % ALL, at % DEPTH);
            operands.sums(tap, block(index, operands.c), plane)
        });
        Taps {
            k,
            sums: sums.collect(),
        }
    }

    fn outputs(&self) -> usize {
        self.k * PLANE
    }

    /// T(tap, plane) over some blocks of channels.
    fn blocks(&self, tap: usize, plane: usize, blocks: Range<usize>) -> Vec<f32> {
        let parts = blocks.map(|index| &self.sums[(tap * ALL + index) * DEPTH + plane]);
        parts.fold(vec![0.0; self.outputs()], |total, part| add(total, part))
    }

    /// T(tap, d + offset) over all channels; zero outside.
    fn tap(&self, tap: usize, d: usize, offset: isize) -> Vec<f32> {
        self.part(tap, d, offset, 0..ALL)
    }

    /// The same with the nearest plane inside instead of zero.
    fn clamped(&self, tap: usize, d: usize, offset: isize) -> Vec<f32> {
        let plane = d.saturating_add_signed(offset).min(DEPTH - 1);
        self.blocks(tap, plane, 0..ALL)
    }

    fn part(&self, tap: usize, d: usize, offset: isize, blocks: Range<usize>) -> Vec<f32> {
        match d.checked_add_signed(offset) {
            Some(plane) if plane < DEPTH => self.blocks(tap, plane, blocks),
            _ => vec![0.0; self.outputs()],
        }
    }

    /// The right output of a plane, as far as some blocks of channels give it.
    fn right(&self, d: usize, blocks: Range<usize>) -> Vec<f32> {
        let part = |(tap, offset)| self.part(tap, d, offset, blocks.clone());
        sum(&[(0, -1), (1, 0), (2, 1)].map(part))
    }
}

fn add(mut total: Vec<f32>, part: &[f32]) -> Vec<f32> {
    total.iter_mut().zip(part).for_each(|(t, p)| *t += p);
    total
}

fn sum(parts: &[Vec<f32>]) -> Vec<f32> {
    let (first, rest) = parts.split_first().expect("every sum has parts");
    rest.iter()
        .fold(first.clone(), |total, part| add(total, part))
}

fn mean_difference(a: &[f32], b: &[f32]) -> f64 {
    let differences = a.iter().zip(b).map(|(a, b)| f64::from((a - b).abs()));
    differences.sum::<f64>() / a.len() as f64
}

/// Mean |wrong − right| on every plane of one sample, per hypothesis.
fn planes(k: usize, seed: u64) -> Vec<Vec<f64>> {
    // A seed far away stands for unrelated data.
    let (taps, garbage) = (Taps::new(k, seed), Taps::new(k, !seed));
    let right: Vec<_> = (0..DEPTH).map(|d| taps.right(d, 0..ALL)).collect();
    let measure = |hypothesis: &Hypothesis| {
        let wrong = |d| (hypothesis.1)(&taps, &garbage, d);
        (0..DEPTH)
            .map(|d| mean_difference(&wrong(d), &right[d]))
            .collect()
    };
    HYPOTHESES.iter().map(measure).collect()
}

/// Measures every hypothesis over some seeds, with `k` output channels.
pub fn measure(k: usize, seeds: Range<u64>) -> Vec<Measured> {
    let by_seed: Vec<_> = seeds.map(|seed| planes(k, seed)).collect();
    let hypotheses = HYPOTHESES.iter().enumerate();
    hypotheses
        .map(|(i, hypothesis)| {
            let of_seeds: Vec<&Vec<f64>> = by_seed.iter().map(|h| &h[i]).collect();
            judged(hypothesis, &of_seeds)
        })
        .collect()
}

fn judged(hypothesis: &Hypothesis, by_seed: &[&Vec<f64>]) -> Measured {
    let average = |values: &[f64]| Spread::of(values).mean;
    let figures: Vec<f64> = by_seed.iter().map(|planes| average(planes)).collect();
    let figure = Spread::of(&figures);
    let (smallest, largest) = COMPARISONS[EXCEPTION].v100;
    let nearest = figure.mean.clamp(smallest, largest);
    let from_nearest = figure.distance(nearest);
    let plane = |d| average(&by_seed.iter().map(|planes| planes[d]).collect::<Vec<_>>());
    Measured {
        name: hypothesis.0,
        figure,
        planes: (0..DEPTH).map(plane).collect(),
        from_smallest: figure.distance(smallest),
        from_nearest,
        excluded_by_figure: from_nearest.abs() > EXCLUDED_FROM,
        excluded_besides: hypothesis.2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Mean of |N(0, 1)|.
    const MEAN: f64 = 0.797_884_6;

    #[test]
    fn measure_agrees_with_the_variances_of_independent_terms() {
        let measured = measure(2, 0..3);
        let planes = |name: &str| &measured.iter().find(|m| m.name == name).unwrap().planes;
        let expected = |terms: f64| MEAN * (terms * 512.0).sqrt();
        for (name, first, middle, last) in [
            ("all outputs zero", 2.0, 3.0, 2.0),
            ("outer taps change places (w0, w2)", 2.0, 4.0, 2.0),
            ("adjacent taps change places (w0, w1)", 2.0, 4.0, 4.0),
            ("outer taps change places, border not masked", 3.0, 4.0, 3.0),
        ] {
            let means = planes(name);
            for (at, terms) in [(0, first), (3, middle), (7, last)] {
                let share = means[at] / expected(terms);
                assert!((share - 1.0).abs() < 0.12, "{name}, plane {at}: {share}");
            }
        }
    }

    #[test]
    fn blocks_together_are_all_channels() {
        let ends: Vec<_> = (0..ALL).map(|i| block(i, 512)).collect();
        assert_eq!(ends, [0..128, 128..171, 171..256, 256..512]);
        let taps = Taps::new(1, 5);
        let operands = Operands::new(1, 5);
        let whole = operands.sums(1, 0..512, 3);
        assert!(mean_difference(&taps.tap(1, 3, 0), &whole) < 1e-4);
        // At the border the tap outside is zero, not the border's plane.
        assert!(taps.tap(0, 0, -1).iter().all(|&v| v == 0.0));
        assert_eq!(taps.clamped(0, 0, -1), taps.tap(0, 0, 0));
    }

    #[test]
    fn judged_between_the_reported_figures_is_no_distance() {
        let planes = [vec![34.6; 8], vec![34.8; 8]];
        let measured = judged(&HYPOTHESES[0], &[&planes[0], &planes[1]]);
        assert_eq!(measured.from_nearest, 0.0);
        assert!(measured.from_smallest > 0.0 && measured.survives());
        let far = [vec![29.9; 8], vec![30.0; 8]];
        assert!(!judged(&HYPOTHESES[0], &[&far[0], &far[1]]).survives());
    }
}
