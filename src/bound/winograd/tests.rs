//! W and the bound against Winograd itself, in software, with tiles that start
//! anywhere.

use proptest::prelude::*;
use rug::Rational;

use super::*;
use crate::bound::{Accumulator, Arithmetic, Bounds, Family, OperandRounding};
use crate::candidate::Repro;
use crate::dtype::FP16;
use crate::oracle::{self, Sample};

fn inputs(line: &str) -> Inputs {
    let repro: Repro = line.parse().unwrap();
    Inputs::generate(&repro.problem, repro.fill)
}

/// Winograd, step by step.
struct Emulation {
    transform: Transform<f64>,
    /// Of every operation, and of transformed tiles.
    round: fn(f64) -> f64,
    store: fn(f64) -> f64,
    /// Applied to the data.
    data: fn(f64) -> f64,
    /// The first tile starts that far before the first output.
    begin: [usize; 2],
}

fn single(value: f64) -> f64 {
    f64::from(value as f32)
}

fn half(value: f64) -> f64 {
    FP16.round(value)
}

fn same(value: f64) -> f64 {
    value
}

impl Emulation {
    /// In single precision, transformed tiles stored by `store`.
    fn honest(transform: &Transform<Rational>, store: fn(f64) -> f64, begin: [usize; 2]) -> Self {
        Emulation {
            transform: transform.map(&|v| single(v.to_f64())),
            round: single,
            store,
            data: same,
            begin,
        }
    }

    /// What computes W for this alignment.
    fn magnitudes(transform: &Transform<Rational>, begin: [usize; 2]) -> Self {
        Emulation {
            transform: transform.map(&|v| v.to_f64().abs()),
            round: same,
            store: same,
            data: f64::abs,
            begin,
        }
    }

    fn run(&self, inputs: &Inputs) -> Vec<f64> {
        match inputs.problem.direction {
            Direction::BwdFilter => self.gradient(&Gradient::new(inputs)),
            _ => self.correlation(&Correlation::new(inputs)),
        }
    }

    fn sandwich(&self, matrix: &Matrix<f64>, tile: &[f64]) -> Vec<f64> {
        let (rows, n) = (matrix.len(), matrix[0].len());
        let dot = |row: &[f64], at: &dyn Fn(usize) -> f64| {
            (0..n).filter(|&k| row[k] != 0.0).fold(0.0, |sum, k| {
                (self.round)(sum + (self.round)(row[k] * at(k)))
            })
        };
        let left: Vec<f64> = (0..rows * n)
            .map(|i| dot(&matrix[i / n], &|k| tile[k * n + i % n]))
            .collect();
        (0..rows * rows)
            .map(|i| dot(&matrix[i % rows], &|k| left[i / rows * n + k]))
            .collect()
    }

    fn stored(&self, matrix: &Matrix<f64>, tile: &[f64]) -> Vec<f64> {
        let tile = self.sandwich(matrix, tile);
        tile.into_iter().map(self.store).collect()
    }

    /// n × n values of a plane from `start` on.
    fn tile(&self, plane: &[f64], size: [usize; 2], start: [isize; 2], n: usize) -> Vec<f64> {
        let at = |i: usize| {
            let row = usize::try_from(start[0] + (i / n) as isize).ok();
            let column = usize::try_from(start[1] + (i % n) as isize).ok();
            let place = row.zip(column).filter(|p| p.0 < size[0] && p.1 < size[1]);
            place.map_or(0.0, |(row, column)| {
                (self.data)(plane[row * size[1] + column])
            })
        };
        (0..n * n).map(at).collect()
    }

    fn starts(&self, out: [usize; 2], m: usize) -> Vec<[isize; 2]> {
        let line = |d: usize| {
            (0..out[d] + self.begin[d])
                .step_by(m)
                .map(move |s| s as isize - self.begin[d] as isize)
        };
        line(0).flat_map(|i| line(1).map(move |j| [i, j])).collect()
    }

    fn add(&self, sum: &mut [f64], d: &[f64], g: &[f64]) {
        for (s, (d, g)) in sum.iter_mut().zip(d.iter().zip(g)) {
            *s = (self.round)(*s + (self.round)(d * g));
        }
    }

    fn correlation(&self, c: &Correlation<'_>) -> Vec<f64> {
        let t = &self.transform;
        let area = c.out[1] * c.out[2];
        let (out, size) = ([c.out[1], c.out[2]], [c.image[1], c.image[2]]);
        let mut result = vec![f64::NAN; c.problem.n * c.groups() * c.produced * c.out[0] * area];
        let filter = |group, produced, summed| {
            let tap = |i| (self.data)(c.filters.get(c.tap_offset(group, produced, summed, i)));
            self.stored(&t.g, &(0..c.r * c.r).map(tap).collect::<Vec<_>>())
        };
        for slice in 0..c.problem.n * c.groups() {
            for depth in 0..c.out[0] {
                for start in self.starts(out, t.m) {
                    let data: Vec<Vec<f64>> = (0..c.summed)
                        .map(|channel| {
                            let from = c.image_offset(slice, channel, depth);
                            let plane: Vec<f64> = (0..size[0] * size[1])
                                .map(|i| from.map_or(0.0, |from| c.images.get(from + i)))
                                .collect();
                            let at = [start[0] - c.shift[1], start[1] - c.shift[2]];
                            self.stored(&t.bt, &self.tile(&plane, size, at, t.alpha()))
                        })
                        .collect();
                    for produced in 0..c.produced {
                        let mut sum = vec![0.0; t.alpha() * t.alpha()];
                        for (summed, d) in data.iter().enumerate() {
                            let g = filter(slice % c.groups(), produced, summed);
                            self.add(&mut sum, d, &g);
                        }
                        let y = self.sandwich(&t.at, &sum);
                        let plane = c.result_offset(slice, produced, depth);
                        for (i, y) in y.iter().enumerate() {
                            let row = start[0] + (i / t.m) as isize;
                            let column = start[1] + (i % t.m) as isize;
                            let inside = |at: isize, size| (0..size as isize).contains(&at);
                            if inside(row, out[0]) && inside(column, out[1]) {
                                result[plane + row as usize * out[1] + column as usize] = *y;
                            }
                        }
                    }
                }
            }
        }
        result
    }

    fn gradient(&self, g: &Gradient<'_>) -> Vec<f64> {
        let (t, p) = (&self.transform, g.problem);
        let (cg, kg) = (p.c / p.groups, p.k / p.groups);
        let (out, size) = ([g.out[1], g.out[2]], [g.image[1], g.image[2]]);
        let mut result = Vec::new();
        for pair in 0..p.k * cg {
            let (k, c) = (pair / cg, pair / cg / kg * cg + pair % cg);
            let mut sum = vec![0.0; t.alpha() * t.alpha()];
            for (n, depth) in g.planes() {
                let from = ((n * p.k + k) * g.out[0] + depth) * out[0] * out[1];
                let dy: Vec<f64> = (0..out[0] * out[1]).map(|i| g.dy.get(from + i)).collect();
                let Some(d) = depth.checked_sub(g.pad[0]).filter(|&d| d < g.image[0]) else {
                    continue;
                };
                let from = ((n * p.c + c) * g.image[0] + d) * size[0] * size[1];
                let x: Vec<f64> = (0..size[0] * size[1]).map(|i| g.x.get(from + i)).collect();
                for start in self.starts(out, t.r) {
                    let filter = self.stored(&t.g, &self.tile(&dy, out, start, t.r));
                    let at = [start[0] - g.pad[1] as isize, start[1] - g.pad[2] as isize];
                    let data = self.stored(&t.bt, &self.tile(&x, size, at, t.alpha()));
                    self.add(&mut sum, &data, &filter);
                }
            }
            result.extend(self.sandwich(&t.at, &sum));
        }
        result
    }
}

/// The transform of a problem for tile m.
fn transform(problem: &ConvProblem, m: usize) -> Transform<Rational> {
    let r = square_kernel(problem).unwrap();
    match problem.direction {
        Direction::BwdFilter => Transform::new(r, m),
        _ => Transform::new(m, r),
    }
    .unwrap()
}

fn arithmetic(tile: Option<u32>, operands: OperandRounding) -> Arithmetic {
    Arithmetic {
        family: Family::Winograd { tile },
        operands,
        ..Arithmetic::simt(Accumulator::Fp32)
    }
}

/// Largest error of an emulation as a share of its bound.
fn worst_share(inputs: &Inputs, emulation: &Emulation, arithmetic: &Arithmetic) -> f64 {
    let bounds = Bounds::new(inputs, arithmetic).unwrap();
    let result = emulation.run(inputs);
    let reference = oracle::reference(inputs, &Sample::All);
    assert_eq!(result.len(), reference.total);
    let share = |o: &oracle::Output| {
        let error = o.value.error_below(result[o.index]);
        if error == 0.0 {
            0.0
        } else {
            error / bounds.at(o)
        }
    };
    reference.outputs.iter().map(share).fold(0.0, larger)
}

const NO_FLOOR: Floor = Floor {
    stored: 0.0,
    operation: 0.0,
};

fn cases() -> impl Strategy<Value = (String, usize, [usize; 2], bool)> {
    let kernels = vec![
        (3, 2),
        (3, 4),
        (3, 6),
        (2, 2),
        (2, 4),
        (5, 2),
        (5, 9),
        (4, 4),
    ];
    (
        prop::sample::select(vec!["fwd", "bwd_data", "bwd_filter"]),
        prop::sample::select(kernels),
        prop::sample::select(vec!["normal", "loguniform", "impulse", "positive", "subnormal"]),
        (1usize..3, 1usize..4, 1usize..4, 1usize..3),
        (0usize..9, 0usize..9, 0usize..6, 0usize..6, any::<bool>()),
        (0usize..9, 0usize..9, any::<bool>(), any::<u32>()),
    )
        .prop_map(|(head, (r, m), fill, (n, c, k, g), (h, w, pad, end, deep), (i, j, stored, seed))| {
            let (pad, end) = (pad.min(r + 1), end.min(r));
            let (depth, deep, front) = if deep { ("2x", "1x", "1x") } else { ("", "", "") };
            let types = if stored { "fp16,fp16,fp32" } else { "fp32" };
            let line = format!(
                "{head} n={n} c={} k={} g={g} in={depth}{}x{} ker={deep}{r}x{r} pad={front}{pad}+{end}x{end}+{pad} type={types} fill={fill}:{seed}",
                c * g, k * g, r + h, r + w,
            );
            (line, m, [i % m, j % m], stored)
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Sound: for every direction, tile, alignment and data.
    #[test]
    fn weights_and_bound_hold_for_every_alignment((line, m, begin, stored) in cases()) {
        let inputs = inputs(&line);
        let exact = transform(&inputs.problem, m);
        let any = TileWeights::of_sizes(&inputs, &[m], Alignment::Any, NO_FLOOR).unwrap();
        let first = TileWeights::new(&inputs, Some(m as u32), NO_FLOOR).unwrap();
        for (begin, tiles) in [(begin, &any), ([0, 0], &any), ([0, 0], &first)] {
            let aligned = Emulation::magnitudes(&exact, begin).run(&inputs);
            for (i, &w) in aligned.iter().enumerate() {
                let bound = tiles.at(i).get();
                prop_assert!(w <= bound, "{w} at {i} above {bound}, from {begin:?}");
            }
        }
        let (operands, store): (_, fn(f64) -> f64) = if stored {
            (OperandRounding::Fp16, half)
        } else {
            (OperandRounding::None, same)
        };
        let first = Emulation::honest(&exact, store, [0, 0]);
        let share = worst_share(&inputs, &first, &arithmetic(Some(m as u32), operands));
        prop_assert!(share <= 1.0, "share {share}");
        if tile_sizes(square_kernel(&inputs.problem).unwrap()).contains(&m) {
            let honest = Emulation::honest(&exact, store, begin);
            let share = worst_share(&inputs, &honest, &arithmetic(None, operands));
            prop_assert!(share <= 1.0, "share of any tile {share}");
        }
    }
}

/// Mean W/S for N(0,1), C = 64, tiles aligned: 7.1, 77, 229 and 212 in a
/// simulation of its own. For any alignment it is larger, mostly because an
/// output may then be the tile's last, where rows of |Aᵀ| are largest.
#[test]
fn weights_on_normal_data_have_the_measured_mean() {
    for (m, r, published) in [(2, 3, 7.1), (4, 3, 77.0), (6, 3, 229.0), (4, 5, 212.0)] {
        let size = 2 * m + r - 1;
        let inputs = inputs(&format!(
            "fwd c=64 k=4 in={size}x{size} ker={r}x{r} fill=normal:1"
        ));
        let outputs = oracle::reference(&inputs, &Sample::All).outputs;
        let mean = |alignment| {
            let tiles = TileWeights::of_sizes(&inputs, &[m], alignment, NO_FLOOR).unwrap();
            let ratios = outputs.iter().map(|o| tiles.at(o.index).get() / o.s);
            ratios.sum::<f64>() / outputs.len() as f64
        };
        let (first, any) = (mean(Alignment::First), mean(Alignment::Any));
        assert!(
            (first / published - 1.0).abs() < 0.15,
            "F({m},{r}): {first}"
        );
        let transform = transform(&inputs.problem, m).magnitudes();
        let rows = transform.at.iter().map(|row| row.iter().sum::<f64>());
        let (sum, last) = rows.fold((0.0, 0.0), |(s, l), v| (s + v, f64::max(l, v)));
        let unknown_place = (last * m as f64 / sum).powi(2);
        let maxima = any / first / unknown_place;
        assert!((0.3..1.5).contains(&maxima), "F({m},{r}): {maxima}");
    }
}

/// The filter transform of F(4,3) divides by up to 24 twice: weights of 2^-20
/// all but vanish in fp16, where the smallest subnormal is 2^-24.
#[test]
fn floor_covers_transformed_tiles_below_fp16() {
    let mut small = inputs("fwd c=4 k=2 in=8x8 ker=3x3 type=fp32 fill=positive:2");
    let weights = &small.second;
    small.second = Tensor::from_fn(weights.dtype(), weights.dims(), |i| {
        weights.get(i) * crate::dtype::exp2(-20)
    });
    let honest = Emulation::honest(&transform(&small.problem, 4), half, [0, 0]);
    let arithmetic = arithmetic(Some(4), OperandRounding::Fp16);
    assert!(worst_share(&small, &honest, &arithmetic) <= 1.0);
    let mut unaware = Bounds::new(&small, &arithmetic).unwrap();
    unaware.forget_floor();
    let result = honest.run(&small);
    let outputs = oracle::reference(&small, &Sample::All).outputs;
    let exceeds = |o: &&oracle::Output| o.value.error_below(result[o.index]) > unaware.at(o);
    assert!(outputs.iter().filter(exceeds).count() > 0, "never needed");
}

/// One nonzero value per image and filter, so that no transform adds and W = S
/// at one output; then all channels but the first round away in every element
/// of the transformed tile.
fn channels_that_round_away(line: &str) -> Inputs {
    let mut made = inputs(line);
    let tail = crate::dtype::exp2(-12) * 0.999;
    let spike = |t: &Tensor, place: usize| {
        let plane: usize = t.dims()[2..].iter().product();
        let value = |i: usize| match (i % plane == place, i / plane) {
            (false, _) => 0.0,
            (true, 0) => 1.0,
            (true, _) => tail,
        };
        Tensor::from_fn(t.dtype(), t.dims(), value)
    };
    (made.first, made.second) = (spike(&made.first, 10), spike(&made.second, 4));
    made
}

/// A bound four times as wide would fail this.
#[test]
fn bound_is_reached_where_channels_round_away() {
    let made = channels_that_round_away("fwd c=512 k=1 in=4x4 ker=3x3 fill=const:0");
    let honest = Emulation::honest(&transform(&made.problem, 2), same, [0, 0]);
    let share = worst_share(&made, &honest, &arithmetic(Some(2), OperandRounding::None));
    assert!((0.3..=1.0).contains(&share), "{share}");
}

/// Where neither tile nor alignment is known, no one kernel can reach a quarter
/// of what the widest may: F(6,3) comes closest.
#[test]
fn bound_of_any_tile_is_reached_as_far_as_one_can() {
    let made = channels_that_round_away("fwd c=512 k=1 in=4x4 ker=3x3 fill=const:0");
    let mut best = 0.0;
    for m in [2, 4, 6] {
        for begin in (0..m).flat_map(|i| (0..m).map(move |j| [i, j])) {
            let honest = Emulation::honest(&transform(&made.problem, m), same, begin);
            let any = arithmetic(None, OperandRounding::None);
            best = f64::max(best, worst_share(&made, &honest, &any));
        }
    }
    assert!((ANY_TILE_SHARE..=1.0).contains(&best), "{best}");
    assert!(best / 4.0 < ANY_TILE_SHARE, "{best}");
}

/// Seen of the bound of any tile.
const ANY_TILE_SHARE: f64 = 0.02;

#[test]
fn kernels_that_winograd_does_not_serve_have_no_tiles() {
    for line in [
        "fwd c=3 k=2 in=9x9 ker=3x2",
        "fwd c=3 k=2 in=9x9 ker=3x3 stride=2x2",
        "bwd_filter c=3 k=2 in=9x9 ker=3x3 dil=2x2",
    ] {
        let problem: ConvProblem = line.parse().unwrap();
        assert!(square_kernel(&problem).is_none());
    }
}
