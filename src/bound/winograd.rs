//! Winograd convolution: |Ŷ − Y| ≤ u·(2n_B + 2n_G + 1 + C + 2n_A)·W per tile,
//! W = |Aᵀ|[Σ_c (|G||g||Gᵀ|) ⊙ (|Bᵀ||d||B|)]|A| (after Barabasz, Anderson,
//! Soodhalter, Gregg, "Error analysis and improving the accuracy of Winograd
//! convolution for deep neural networks", ACM TOMS 46(4), 2020).
//!
//! Errors spread over a tile: next to a padded corner an output's own S can be
//! tiny while its tile is not, so nothing here is relative to S.

use rayon::prelude::*;
use rug::Rational;

use super::upper::Upper;
use crate::fill::Inputs;
use crate::geometry::to_3d;
use crate::problem::{ConvProblem, Direction};

/// Transform matrices of F(m, r), magnitudes only, rounded up.
#[derive(Clone, Debug)]
pub struct Transform {
    /// Outputs per tile and dimension.
    pub m: usize,
    /// Kernel extent.
    pub r: usize,
    /// |Aᵀ|, m × α.
    at: Vec<Vec<f64>>,
    /// |G|, α × r.
    g: Vec<Vec<f64>>,
    /// |Bᵀ|, α × α.
    bt: Vec<Vec<f64>>,
}

/// Interpolation points in the order libraries take them (Barabasz et al. 2020,
/// table 3; Lavin and Gray, CVPR 2016, for the first five).
const POINTS: [(i32, i32); 13] = [
    (0, 1),
    (1, 1),
    (-1, 1),
    (2, 1),
    (-2, 1),
    (1, 2),
    (-1, 2),
    (4, 1),
    (-4, 1),
    (1, 4),
    (-1, 4),
    (3, 4),
    (-4, 3),
];

impl Transform {
    /// Toom and Cook's construction in exact rationals, the point at infinity
    /// last. W does not depend on how rows are scaled between the matrices.
    pub fn new(m: usize, r: usize) -> Self {
        let alpha = m + r - 1;
        let points: Vec<Rational> = POINTS[..alpha - 1]
            .iter()
            .map(|&p| Rational::from(p))
            .collect();
        let power =
            |p: &Rational, e: usize| (0..e).fold(Rational::from(1), |product, _| product * p);
        // Aᵀ: row i holds p^i; infinity contributes to the last row alone.
        let at = (0..m)
            .map(|i| {
                let finite = points.iter().map(|p| up(&power(p, i)));
                finite.chain([if i == m - 1 { 1.0 } else { 0.0 }]).collect()
            })
            .collect();
        // G: row j holds p^k / N_j, N_j = Π_{i≠j} (p_j − p_i).
        let mut g: Vec<Vec<f64>> = points
            .iter()
            .enumerate()
            .map(|(j, p)| {
                let scale = others(&points, j).fold(Rational::from(1), |n, q| n * (p.clone() - q));
                (0..r).map(|k| up(&(power(p, k) / scale.clone()))).collect()
            })
            .collect();
        g.push((0..r).map(|k| if k == r - 1 { 1.0 } else { 0.0 }).collect());
        // Bᵀ: row j holds the coefficients of Π_{i≠j} (x − p_i); infinity's row
        // those of the product over all points.
        let mut bt: Vec<Vec<f64>> = (0..points.len())
            .map(|j| coefficients(others(&points, j), alpha))
            .collect();
        bt.push(coefficients(points.iter(), alpha));
        Transform { m, r, at, g, bt }
    }

    /// Length of the transformed tile.
    pub fn alpha(&self) -> usize {
        self.m + self.r - 1
    }

    /// Roundings of data, filter and output transforms, two dimensions:
    /// 2n_B + 2n_G + 2n_A, n_X the most nonzeros in a row of X.
    fn roundings(&self) -> f64 {
        let most = |rows: &[Vec<f64>]| {
            rows.iter()
                .map(|row| row.iter().filter(|v| **v != 0.0).count())
                .max()
                .unwrap_or(0)
        };
        2.0 * (most(&self.bt) + most(&self.g) + most(&self.at)) as f64
    }
}

fn others(points: &[Rational], j: usize) -> impl Iterator<Item = &Rational> {
    points
        .iter()
        .enumerate()
        .filter(move |(i, _)| *i != j)
        .map(|(_, p)| p)
}

/// Magnitudes of the coefficients, lowest first, of Π (x − p), padded to `len`.
fn coefficients<'a>(roots: impl Iterator<Item = &'a Rational>, len: usize) -> Vec<f64> {
    let mut polynomial = vec![Rational::from(1)];
    for root in roots {
        let mut next = vec![Rational::new(); polynomial.len() + 1];
        for (i, c) in polynomial.iter().enumerate() {
            next[i + 1] += c;
            next[i] -= Rational::from(c * root);
        }
        polynomial = next;
    }
    polynomial.resize(len, Rational::new());
    polynomial.iter().map(up).collect()
}

fn up(value: &Rational) -> f64 {
    value.clone().abs().to_f64().next_up() * if value.cmp0().is_eq() { 0.0 } else { 1.0 }
}

/// W of every output of a forward problem with a square kernel, or `None` when
/// Winograd with this transform does not apply.
#[derive(Clone, Debug)]
pub struct TileWeights {
    /// Per logical offset of the result.
    weights: Vec<f64>,
    /// Largest of them in the output's tile or near it.
    largest: Vec<f64>,
    /// Rounding steps outside the channel sum.
    roundings: f64,
}

impl TileWeights {
    /// W for tiles aligned at output 0.
    pub fn aligned(inputs: &Inputs, m: usize) -> Option<Self> {
        let problem = &inputs.problem;
        let r = square_kernel(problem)?;
        let transform = Transform::new(m, r);
        let weights = weights(inputs, &transform);
        Some(TileWeights {
            largest: around(problem, &weights, m),
            weights,
            roundings: transform.roundings(),
        })
    }

    /// W for every tile size in use and any alignment: for each size, twice the
    /// largest W of the aligned tiles around an output, since a shifted tile
    /// overlaps at most two of them in each dimension.
    pub fn any(inputs: &Inputs) -> Option<Self> {
        let sizes = tile_sizes(square_kernel(&inputs.problem)?);
        let mut all = sizes.iter().filter_map(|&m| {
            let mut one = Self::aligned(inputs, m)?;
            one.weights.clone_from(&one.largest);
            Some(one)
        });
        let mut widest = all.next()?;
        for other in all {
            widest.roundings = widest.roundings.max(other.roundings);
            for (w, o) in widest.weights.iter_mut().zip(other.weights) {
                *w = w.max(o);
            }
            widest.largest.clone_from(&widest.weights);
        }
        Some(widest)
    }

    /// Largest W in the tile: what its intermediate values can reach. One that
    /// overflows spoils outputs whose own W leaves it out, as infinity times a
    /// zero coefficient.
    pub fn largest(&self, index: usize) -> Upper {
        Upper::of(self.largest[index])
    }

    /// W of the tile that holds output `index`.
    pub fn at(&self, index: usize) -> Upper {
        Upper::of(self.weights[index])
    }

    /// 2n_B + 2n_G + 1 + 2n_A.
    pub fn roundings(&self) -> f64 {
        self.roundings + 1.0
    }
}

/// Tile sizes that cuDNN's notes name (input tiles 4, 6 and 13) and F(6, 3).
fn tile_sizes(r: usize) -> &'static [usize] {
    match r {
        3 => &[2, 4, 6],
        5 => &[2, 4, 9],
        _ => &[2, 4],
    }
}

/// The extent r of an r × r kernel in the last two dimensions, extent 1 before.
/// Stride and dilation are 1, direction is forward or its transpose.
fn square_kernel(problem: &ConvProblem) -> Option<usize> {
    let kernel = to_3d(&problem.kernel, 1);
    let plain = problem
        .stride
        .iter()
        .chain(&problem.dilation)
        .all(|&s| s == 1);
    let square = kernel[0] == 1 && kernel[1] == kernel[2] && (2..=5).contains(&kernel[1]);
    (plain && square && problem.direction == Direction::Fwd).then_some(kernel[1])
}

/// W per output, tiles aligned at 0.
fn weights(inputs: &Inputs, transform: &Transform) -> Vec<f64> {
    let p = &inputs.problem;
    let image = to_3d(&p.spatial, 1);
    let out = to_3d(&p.output_spatial(), 1);
    let (alpha, taps) = (transform.alpha(), transform.r * transform.r);
    let filters: Vec<Vec<f64>> = magnitudes(&inputs.second.to_f64())
        .chunks(taps)
        .map(|g| sandwich(&transform.g, g, transform.r))
        .collect();
    let x = magnitudes(&inputs.first.to_f64());
    let plane = image.iter().product::<usize>();
    let (cg, kg) = (p.c / p.groups, p.k / p.groups);
    let tiles = [out[1].div_ceil(transform.m), out[2].div_ceil(transform.m)];
    let slices: Vec<Vec<f64>> = (0..p.n * p.groups * out[0])
        .into_par_iter()
        .map(|slice| {
            let (n, group, depth) = (
                slice / out[0] / p.groups,
                slice / out[0] % p.groups,
                slice % out[0],
            );
            let mut result = vec![0.0; kg * out[1] * out[2]];
            for tile in 0..tiles[0] * tiles[1] {
                let corner = [tile / tiles[1] * transform.m, tile % tiles[1] * transform.m];
                let data: Vec<Vec<f64>> = (0..cg)
                    .map(|c| {
                        let start = (n * p.c + group * cg + c) * plane;
                        let window =
                            window(p, &x[start..start + plane], image, depth, corner, alpha);
                        sandwich(&transform.bt, &window, alpha)
                    })
                    .collect();
                for k in 0..kg {
                    let mut sum = vec![0.0; alpha * alpha];
                    for (c, d) in data.iter().enumerate() {
                        let g = &filters[(group * kg + k) * cg + c];
                        for ((s, d), g) in sum.iter_mut().zip(d).zip(g) {
                            *s += d * g;
                        }
                    }
                    let tile = sandwich(&transform.at, &sum, alpha);
                    store(
                        &mut result[k * out[1] * out[2]..],
                        out,
                        corner,
                        &tile,
                        transform.m,
                    );
                }
            }
            result
        })
        .collect();
    assemble(p, &slices, out, inflation(alpha, cg))
}

/// Covers the roundings of W's own computation: sums of nonnegative terms, each
/// rounded once per step.
fn inflation(alpha: usize, channels: usize) -> f64 {
    1.0 + (8 * alpha + channels + 8) as f64 * f64::EPSILON
}

/// Puts the slices (n, group, depth) in the result's logical order.
fn assemble(p: &ConvProblem, slices: &[Vec<f64>], out: [usize; 3], inflation: f64) -> Vec<f64> {
    let kg = p.k / p.groups;
    let area = out[1] * out[2];
    let mut weights = vec![0.0; p.n * p.k * out[0] * area];
    for (slice, values) in slices.iter().enumerate() {
        let (n, group, depth) = (
            slice / out[0] / p.groups,
            slice / out[0] % p.groups,
            slice % out[0],
        );
        for k in 0..kg {
            let start = ((n * p.k + group * kg + k) * out[0] + depth) * area;
            for (w, v) in weights[start..start + area]
                .iter_mut()
                .zip(&values[k * area..])
            {
                *w = v * inflation;
            }
        }
    }
    weights
}

fn magnitudes(values: &[f64]) -> Vec<f64> {
    values.iter().map(|v| v.abs()).collect()
}

/// |M| · tile · |Mᵀ| for a square tile of extent `n`, row-major.
fn sandwich(matrix: &[Vec<f64>], tile: &[f64], n: usize) -> Vec<f64> {
    let rows = matrix.len();
    let mut left = vec![0.0; rows * n];
    for (i, row) in matrix.iter().enumerate() {
        for (k, &m) in row.iter().enumerate().filter(|(_, m)| **m != 0.0) {
            for j in 0..n {
                left[i * n + j] += m * tile[k * n + j];
            }
        }
    }
    let mut both = vec![0.0; rows * rows];
    for i in 0..rows {
        for (j, row) in matrix.iter().enumerate() {
            both[i * rows + j] = row.iter().zip(&left[i * n..]).map(|(m, l)| m * l).sum();
        }
    }
    both
}

/// The |d| tile under outputs from `corner`, zeros in the padding.
fn window(
    p: &ConvProblem,
    plane: &[f64],
    image: [usize; 3],
    depth: usize,
    corner: [usize; 2],
    alpha: usize,
) -> Vec<f64> {
    let pad = to_3d(&p.pad_before, 0);
    let mut tile = vec![0.0; alpha * alpha];
    let inside = |at: usize, pad: usize, size: usize| at.checked_sub(pad).filter(|&i| i < size);
    let Some(d) = inside(depth, pad[0], image[0]) else {
        return tile;
    };
    for i in 0..alpha {
        let Some(row) = inside(corner[0] + i, pad[1], image[1]) else {
            continue;
        };
        for j in 0..alpha {
            if let Some(column) = inside(corner[1] + j, pad[2], image[2]) {
                tile[i * alpha + j] = plane[(d * image[1] + row) * image[2] + column];
            }
        }
    }
    tile
}

fn store(result: &mut [f64], out: [usize; 3], corner: [usize; 2], tile: &[f64], m: usize) {
    for i in 0..m.min(out[1] - corner[0]) {
        for j in 0..m.min(out[2] - corner[1]) {
            result[(corner[0] + i) * out[2] + corner[1] + j] = tile[i * m + j];
        }
    }
}

/// Twice the largest value within `m` of each output, in the last two
/// dimensions.
fn around(p: &ConvProblem, weights: &[f64], m: usize) -> Vec<f64> {
    let out = to_3d(&p.output_spatial(), 1);
    let area = out[1] * out[2];
    weights
        .par_chunks(area)
        .flat_map_iter(|plane| {
            let rows = spread(plane, out[1], out[2], m, true);
            spread(&rows, out[1], out[2], m, false)
                .into_iter()
                .map(|w| 2.0 * w)
        })
        .collect()
}

/// Maximum within `m` along one dimension of a plane.
fn spread(plane: &[f64], rows: usize, columns: usize, m: usize, vertical: bool) -> Vec<f64> {
    let at = |i: usize, j: usize| plane[i * columns + j];
    let range = |i: usize, size: usize| i.saturating_sub(m)..(i + m + 1).min(size);
    (0..rows * columns)
        .map(|index| {
            let (i, j) = (index / columns, index % columns);
            if vertical {
                range(i, rows).map(|i| at(i, j)).fold(0.0, f64::max)
            } else {
                range(j, columns).map(|j| at(i, j)).fold(0.0, f64::max)
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::candidate::Repro;

    /// Norms from the numerics notes: ‖Aᵀ‖₁ and ‖Bᵀ‖_F do not depend on row
    /// scaling for F(2,3); W/S does not at all.
    #[test]
    fn transform_f23_has_the_published_norms() {
        let t = Transform::new(2, 3);
        let norm1 = (0..4)
            .map(|j| t.at.iter().map(|row| row[j]).sum::<f64>())
            .fold(0.0, f64::max);
        assert!((norm1 - 2.0).abs() < 1e-12);
        let frobenius = t.bt.iter().flatten().map(|v| v * v).sum::<f64>().sqrt();
        assert!((frobenius - 8f64.sqrt()).abs() < 1e-12);
        assert_eq!(t.roundings(), 2.0 * (2.0 + 3.0 + 3.0));
    }

    /// Mean W/S for N(0,1), C = 64 (numerics, section 3): 7.1, 77, 229, 212.
    #[test]
    fn weights_on_normal_data_have_the_measured_mean() {
        for (m, r, published) in [(2, 3, 7.1), (4, 3, 77.0), (6, 3, 229.0), (4, 5, 212.0)] {
            let size = 2 * m + r - 1;
            let line = format!("fwd c=64 k=4 in={size}x{size} ker={r}x{r} fill=normal:1");
            let repro: Repro = line.parse().unwrap();
            let inputs = Inputs::generate(&repro.problem, repro.fill);
            let tiles = TileWeights::aligned(&inputs, m).unwrap();
            let outputs = crate::oracle::reference(&inputs, &crate::oracle::Sample::All).outputs;
            let mean = outputs
                .iter()
                .map(|o| tiles.at(o.index).get() / o.s)
                .sum::<f64>()
                / outputs.len() as f64;
            assert!((mean / published - 1.0).abs() < 0.15, "F({m},{r}): {mean}");
        }
    }

    #[test]
    fn any_is_never_below_a_shifted_tile() {
        let line = "fwd c=3 k=2 in=11x9 ker=3x3 pad=1x1 fill=normal:4";
        let repro: Repro = line.parse().unwrap();
        let inputs = Inputs::generate(&repro.problem, repro.fill);
        let any = TileWeights::any(&inputs).unwrap();
        for m in [2, 4, 6] {
            let aligned = TileWeights::aligned(&inputs, m).unwrap();
            for i in 0..2 * 11 * 9 {
                assert!(any.at(i) >= aligned.at(i));
            }
        }
    }

    #[test]
    fn kernels_that_winograd_does_not_serve_have_no_tiles() {
        for line in [
            "fwd c=3 k=2 in=9x9 ker=3x2",
            "fwd c=3 k=2 in=9x9 ker=3x3 stride=2x2",
        ] {
            let problem: ConvProblem = line.parse().unwrap();
            assert!(square_kernel(&problem).is_none());
        }
    }
}
