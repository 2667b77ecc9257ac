//! Winograd convolution: |Ŷ − Y| ≤ u·(2(n_B+1) + 2(n_G+1) + 2(n_A+1) + C)·W per
//! tile, W = |Aᵀ|[Σ_c (|G||g||Gᵀ|) ⊙ (|Bᵀ||d||B|)]|A|, C the number of tiles
//! summed (after Barabasz, Anderson, Soodhalter, Gregg, "Error analysis and
//! improving the accuracy of Winograd convolution for deep neural networks",
//! ACM TOMS 46(4), 2020; one rounding more per transform, for its constants).
//!
//! Errors spread over a tile: next to a padded corner an output's own S can be
//! tiny while its tile is not, so nothing here is relative to S.
//!
//! **Where tiles start**: at output 0, and every m from there, in algorithms
//! whose tile is known. Of others nothing is known, and W is made for any
//! alignment. Tile
//! starts s are put in *buckets* of m neighbouring starts per dimension. For
//! every start of a bucket, |Bᵀ||d||B| is at most, entry by entry, its maximum
//! over the bucket; all that follows is sums of products with non-negative
//! numbers, which are monotonic; so W computed from the maxima is at least the
//! W of every tile in the bucket. An output at place p lies at place i of the
//! tile that starts at p − i, for some i below m: the largest, over all i, of W
//! at i in the bucket of p − i bounds it whatever the alignment is. The maximum
//! is taken after each dimension, which only makes it larger.
//!
//! bwd_data is the forward form over dy with the filter turned round and
//! channels exchanged. bwd_filter is F(r, m): a tile of dy, m × m, is the
//! filter, the r × r weights are the outputs, and the tiles of all images are
//! summed before Aᵀ; a grid of tiles has one start in each bucket, so the sum
//! over all buckets of products of maxima bounds it for every grid.

use rayon::prelude::*;

use super::upper::Upper;
use crate::fill::Inputs;
use crate::geometry::to_3d;
use crate::problem::{ConvProblem, Direction};
use crate::tensor::Tensor;

mod transform;

#[cfg(test)]
mod tests;

use transform::{Matrix, Transform};

/// What is lost below the formats' ranges, absolute.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Floor {
    /// When an element of a transformed tile is stored.
    pub stored: f64,
    /// By a fused multiplication and addition.
    pub operation: f64,
}

impl Floor {
    /// Of an element transformed by `matrix` in two dimensions: α operations
    /// each, the first dimension's multiplied by a row.
    fn of(&self, matrix: &Matrix<f64>) -> f64 {
        let row = |row: &Vec<f64>| row.iter().sum::<f64>();
        let most = matrix.iter().map(row).fold(0.0, f64::max);
        self.stored + matrix.len() as f64 * (1.0 + most) * self.operation
    }
}

/// What bounds one output.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Weight {
    /// W.
    w: f64,
    /// Error through the [`Floor`], absolute.
    floor: f64,
    /// Largest W in any tile that may hold the output.
    largest: f64,
}

impl Weight {
    fn max(self, other: Weight) -> Weight {
        Weight {
            w: larger(self.w, other.w),
            floor: larger(self.floor, other.floor),
            largest: larger(self.largest, other.largest),
        }
    }
}

/// Maximum that keeps NaN, which is no bound.
fn larger(a: f64, b: f64) -> f64 {
    if b > a || b.is_nan() { b } else { a }
}

/// W of every output, whatever the alignment of tiles.
#[derive(Clone, Debug)]
pub struct TileWeights {
    /// Per logical offset of the result.
    weights: Vec<Weight>,
    /// Largest element of a transformed tile.
    transformed: f64,
    roundings: f64,
    terms: u64,
}

/// Tile sizes that cuDNN's notes name (transformed tiles 4, 6 and 13) and
/// F(6, 3).
fn tile_sizes(r: usize) -> &'static [usize] {
    match r {
        3 => &[2, 4, 6],
        5 => &[2, 4, 9],
        _ => &[2, 4],
    }
}

impl TileWeights {
    /// W for tiles of m outputs (of dy, for bwd_filter) from output 0 on, or for
    /// any size in use, wherever tiles start; `None` where Winograd does not
    /// apply.
    pub fn new(inputs: &Inputs, tile: Option<u32>, floor: Floor) -> Option<Self> {
        let r = square_kernel(&inputs.problem)?;
        let Some(m) = tile else {
            return Self::of_sizes(inputs, tile_sizes(r), Alignment::Any, floor);
        };
        Self::of_sizes(inputs, &[m as usize], Alignment::First, floor)
    }

    fn of_sizes(
        inputs: &Inputs,
        sizes: &[usize],
        alignment: Alignment,
        floor: Floor,
    ) -> Option<Self> {
        let mut all = sizes
            .iter()
            .map(|&m| Self::of_size(inputs, m, alignment, floor));
        let mut widest = all.next()??;
        for other in all {
            widest.widen(&other?);
        }
        Some(widest)
    }

    fn of_size(inputs: &Inputs, m: usize, alignment: Alignment, floor: Floor) -> Option<Self> {
        let r = square_kernel(&inputs.problem)?;
        match inputs.problem.direction {
            Direction::BwdFilter => {
                // m and r change places.
                let transform = Transform::new(r, m)?.magnitudes();
                Some(Gradient::new(inputs).weights(&transform, alignment, floor))
            }
            _ => {
                let transform = Transform::new(m, r)?.magnitudes();
                Some(Correlation::new(inputs).weights(&transform, alignment, floor))
            }
        }
    }

    fn widen(&mut self, other: &TileWeights) {
        for (mine, theirs) in self.weights.iter_mut().zip(&other.weights) {
            *mine = mine.max(*theirs);
        }
        self.transformed = larger(self.transformed, other.transformed);
        self.roundings = self.roundings.max(other.roundings);
        self.terms = self.terms.max(other.terms);
    }

    /// W of any tile that may hold output `index`.
    pub fn at(&self, index: usize) -> Upper {
        Upper::of(self.weights[index].w)
    }

    /// What underflow may add at output `index`, absolute.
    pub fn floor(&self, index: usize) -> Upper {
        Upper::of(self.weights[index].floor)
    }

    #[cfg(test)]
    pub(super) fn forget_floor(&mut self) {
        self.weights.iter_mut().for_each(|w| w.floor = 0.0);
    }

    /// Largest W in such a tile: what its intermediate values can reach. One
    /// that overflows spoils outputs whose own W leaves it out, as infinity
    /// times a zero coefficient.
    pub fn largest(&self, index: usize) -> Upper {
        Upper::of(self.weights[index].largest)
    }

    /// Largest magnitude of any element of a transformed tile.
    pub fn transformed(&self) -> Upper {
        Upper::of(self.transformed)
    }

    /// Roundings of the transforms: 2(n_B+1) + 2(n_G+1) + 2(n_A+1).
    pub fn roundings(&self) -> f64 {
        self.roundings
    }

    /// Tiles that are multiplied and summed before the output transform.
    pub fn terms(&self) -> u64 {
        self.terms
    }
}

/// The extent r of an r × r kernel in the last two dimensions, extent 1 before;
/// stride and dilation are 1.
fn square_kernel(problem: &ConvProblem) -> Option<usize> {
    let kernel = to_3d(&problem.kernel, 1);
    let mut steps = problem.stride.iter().chain(&problem.dilation);
    let square = kernel[0] == 1 && kernel[1] == kernel[2] && (2..=5).contains(&kernel[1]);
    (square && steps.all(|&s| s == 1)).then_some(kernel[1])
}

/// fwd, and bwd_data as a forward convolution: every result plane is a sum of
/// correlations of images with filters.
struct Correlation<'a> {
    problem: &'a ConvProblem,
    images: &'a Tensor,
    filters: &'a Tensor,
    image: [usize; 3],
    out: [usize; 3],
    /// Output p and tap t meet the image at p + t − shift.
    shift: [isize; 3],
    /// Channels summed and produced, per group.
    summed: usize,
    produced: usize,
    r: usize,
}

impl<'a> Correlation<'a> {
    fn new(inputs: &'a Inputs) -> Self {
        let p = &inputs.problem;
        let (input, output) = (to_3d(&p.spatial, 1), to_3d(&p.output_spatial(), 1));
        let (pad, kernel) = (to_3d(&p.pad_before, 0), to_3d(&p.kernel, 1));
        let (cg, kg) = (p.c / p.groups, p.k / p.groups);
        let pad = pad.map(|pad| pad as isize);
        let forward = Correlation {
            problem: p,
            images: &inputs.first,
            filters: &inputs.second,
            image: input,
            out: output,
            shift: pad,
            summed: cg,
            produced: kg,
            r: kernel[1],
        };
        if p.direction == Direction::Fwd {
            return forward;
        }
        // x position i gets dy[o]·w[t] with o = i + pad − t; with t counted from
        // the filter's end, o = i + t' − (r − 1 − pad).
        let turned = |d: usize| kernel[d] as isize - 1 - pad[d];
        Correlation {
            images: &inputs.second,
            filters: &inputs.first,
            image: output,
            out: input,
            shift: [turned(0), turned(1), turned(2)],
            summed: kg,
            produced: cg,
            ..forward
        }
    }

    fn groups(&self) -> usize {
        self.problem.groups
    }

    /// Logical offset of the image of (image and group, channel) at `depth` of
    /// the result; `None` in the padding.
    fn image_offset(&self, slice: usize, channel: usize, depth: usize) -> Option<usize> {
        let depth = usize::try_from(depth as isize - self.shift[0]).ok()?;
        let plane = slice * self.summed + channel;
        (depth < self.image[0])
            .then(|| (plane * self.image[0] + depth) * self.image[1] * self.image[2])
    }

    /// Logical offset of tap `t` of a filter, turned round for bwd_data.
    fn tap_offset(&self, group: usize, produced: usize, summed: usize, t: usize) -> usize {
        let taps = self.r * self.r;
        if self.problem.direction == Direction::Fwd {
            ((group * self.produced + produced) * self.summed + summed) * taps + t
        } else {
            ((group * self.summed + summed) * self.produced + produced) * taps + taps - 1 - t
        }
    }

    /// Logical offset of the result's plane.
    fn result_offset(&self, slice: usize, channel: usize, depth: usize) -> usize {
        let plane = slice * self.produced + channel;
        (plane * self.out[0] + depth) * self.out[1] * self.out[2]
    }

    fn weights(
        &self,
        transform: &Transform<f64>,
        alignment: Alignment,
        floor: Floor,
    ) -> TileWeights {
        let shape = Buckets::new([self.out[1], self.out[2]], transform.m, alignment);
        let filters = self.filter_sums(transform);
        let slices: Vec<(Vec<Weight>, f64)> = (0..self.problem.n * self.groups() * self.out[0])
            .into_par_iter()
            .map(|at| {
                self.slice(
                    transform,
                    shape,
                    floor,
                    &filters,
                    (at / self.out[0], at % self.out[0]),
                )
            })
            .collect();
        let area = self.out[1] * self.out[2];
        let planes = slices.len() * self.produced;
        let mut weights = vec![Weight::default(); planes * area];
        for (at, (values, _)) in slices.iter().enumerate() {
            for (channel, plane) in values.chunks(area).enumerate() {
                let start = self.result_offset(at / self.out[0], channel, at % self.out[0]);
                weights[start..start + area].copy_from_slice(plane);
            }
        }
        let largest = slices
            .iter()
            .map(|s| s.1)
            .chain(filters.iter().map(Hats::largest));
        TileWeights {
            weights,
            transformed: largest.fold(0.0, larger),
            roundings: transform.roundings(),
            terms: self.summed as u64,
        }
    }

    /// |G||g||Gᵀ| of all filters of each produced channel.
    fn filter_sums(&self, transform: &Transform<f64>) -> Vec<Hats> {
        let values = magnitudes(self.filters);
        let hats = |channel: usize| {
            let (group, produced) = (channel / self.produced, channel % self.produced);
            let tiles = (0..self.summed).flat_map(|summed| {
                let tap = |t| values[self.tap_offset(group, produced, summed, t)];
                let g: Vec<f64> = (0..self.r * self.r).map(tap).collect();
                sandwich(&transform.g, &g, self.r)
            });
            Hats::new(tiles.collect(), transform.alpha())
        };
        let channels = 0..self.groups() * self.produced;
        channels.into_par_iter().map(hats).collect()
    }

    /// Weights of all channels of one image, group and depth, and the largest
    /// element of its transformed tiles.
    fn slice(
        &self,
        transform: &Transform<f64>,
        shape: Buckets,
        floor: Floor,
        filters: &[Hats],
        (slice, depth): (usize, usize),
    ) -> (Vec<Weight>, f64) {
        let tiles = self.data(transform, shape, (slice, depth));
        let first = slice % self.groups() * self.produced;
        let mut weights = Vec::with_capacity(self.produced * self.out[1] * self.out[2]);
        for filter in &filters[first..first + self.produced] {
            let bounds: Vec<TileBound> = tiles
                .iter()
                .map(|data| TileBound::new(transform, floor, data, filter))
                .collect();
            weights.extend(shape.outputs().map(|at| shape.weight(at, &bounds)));
        }
        (weights, tiles.iter().map(Hats::largest).fold(0.0, larger))
    }

    /// Largest |Bᵀ||d||B| per bucket, all summed channels.
    fn data(
        &self,
        transform: &Transform<f64>,
        shape: Buckets,
        (slice, depth): (usize, usize),
    ) -> Vec<Hats> {
        let (area, plane) = (transform.alpha().pow(2), self.image[1] * self.image[2]);
        let mut tiles = vec![Vec::with_capacity(self.summed * area); shape.count()];
        for channel in 0..self.summed {
            let values = match self.image_offset(slice, channel, depth) {
                Some(start) => (start..start + plane)
                    .map(|i| magnitude(self.images.get(i)))
                    .collect(),
                None => vec![0.0; plane],
            };
            let image = Plane {
                values: &values,
                size: [self.image[1], self.image[2]],
                shift: [self.shift[1], self.shift[2]],
            };
            let maxima = shape.maxima(&transform.bt, &image);
            for (tile, hat) in tiles.iter_mut().zip(maxima.chunks(area)) {
                tile.extend_from_slice(hat);
            }
        }
        let alpha = transform.alpha();
        tiles.into_iter().map(|t| Hats::new(t, alpha)).collect()
    }
}

/// bwd_filter: r × r outputs per pair of channels, tiles of dy as filters.
struct Gradient<'a> {
    problem: &'a ConvProblem,
    x: &'a Tensor,
    dy: &'a Tensor,
    image: [usize; 3],
    out: [usize; 3],
    pad: [usize; 3],
}

impl<'a> Gradient<'a> {
    fn new(inputs: &'a Inputs) -> Self {
        let p = &inputs.problem;
        Gradient {
            problem: p,
            x: &inputs.first,
            dy: &inputs.second,
            image: to_3d(&p.spatial, 1),
            out: to_3d(&p.output_spatial(), 1),
            pad: to_3d(&p.pad_before, 0),
        }
    }

    /// `transform` is that of F(r, m).
    fn weights(
        &self,
        transform: &Transform<f64>,
        alignment: Alignment,
        floor: Floor,
    ) -> TileWeights {
        let p = self.problem;
        let shape = Buckets::new([self.out[1], self.out[2]], transform.r, alignment);
        let hats = |channels: usize, one: &(dyn Fn(usize) -> Hats + Sync)| -> Vec<Hats> {
            (0..channels).into_par_iter().map(one).collect()
        };
        let dy = hats(p.k, &|k| self.gradient(transform, shape, k));
        let x = hats(p.c, &|c| self.data(transform, shape, c));
        let (cg, kg) = (p.c / p.groups, p.k / p.groups);
        let bound = |pair: usize| {
            let k = pair / cg;
            let c = k / kg * cg + pair % cg;
            TileBound::new(transform, floor, &x[c], &dy[k]).weights()
        };
        let weights: Vec<Vec<Weight>> = (0..p.k * cg).into_par_iter().map(bound).collect();
        TileWeights {
            weights: weights.concat(),
            transformed: x.iter().chain(&dy).map(Hats::largest).fold(0.0, larger),
            roundings: transform.roundings(),
            terms: (p.n * self.out[0] * shape.count()) as u64,
        }
    }

    /// Largest |G||dy||Gᵀ| per image, depth and bucket.
    fn gradient(&self, transform: &Transform<f64>, shape: Buckets, k: usize) -> Hats {
        let size = [self.out[1], self.out[2]];
        let tiles = self.planes().flat_map(|(n, depth)| {
            let start = ((n * self.problem.k + k) * self.out[0] + depth) * size[0] * size[1];
            let values = window(self.dy, Some(start), size);
            let plane = Plane {
                values: &values,
                size,
                shift: [0, 0],
            };
            shape.maxima(&transform.g, &plane)
        });
        Hats::new(tiles.collect(), transform.alpha())
    }

    /// Largest |Bᵀ||x||B| under the same tiles.
    fn data(&self, transform: &Transform<f64>, shape: Buckets, c: usize) -> Hats {
        let size = [self.image[1], self.image[2]];
        let tiles = self.planes().flat_map(|(n, depth)| {
            let depth = depth
                .checked_sub(self.pad[0])
                .filter(|&d| d < self.image[0]);
            let start =
                depth.map(|d| ((n * self.problem.c + c) * self.image[0] + d) * size[0] * size[1]);
            let values = window(self.x, start, size);
            let plane = Plane {
                values: &values,
                size,
                shift: [self.pad[1] as isize, self.pad[2] as isize],
            };
            shape.maxima(&transform.bt, &plane)
        });
        Hats::new(tiles.collect(), transform.alpha())
    }

    /// Images and depths of dy, in one order for both operands.
    fn planes(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let depths = self.out[0];
        (0..self.problem.n * depths).map(move |i| (i / depths, i % depths))
    }
}

/// The magnitudes of a plane from `start`; zeros in the padding.
fn window(tensor: &Tensor, start: Option<usize>, size: [usize; 2]) -> Vec<f64> {
    let area = size[0] * size[1];
    match start {
        Some(start) => (start..start + area)
            .map(|i| magnitude(tensor.get(i)))
            .collect(),
        None => vec![0.0; area],
    }
}

/// Magnitudes of an image plane; tile start s and element k meet it at
/// s + k − shift.
struct Plane<'a> {
    values: &'a [f64],
    size: [usize; 2],
    shift: [isize; 2],
}

/// Where the first tile may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Alignment {
    /// At output 0.
    First,
    /// Anywhere.
    Any,
}

/// Buckets of neighbouring tile starts, one dimension as the other: bucket b
/// holds the `span` starts that end with bm, so that a grid of tiles has exactly
/// one in each.
#[derive(Clone, Copy)]
struct Buckets {
    out: [usize; 2],
    m: usize,
    span: usize,
    across: [usize; 2],
}

impl Buckets {
    /// Buckets of all tiles that overlap places 0 to `out`.
    fn new(out: [usize; 2], m: usize, alignment: Alignment) -> Self {
        let span = match alignment {
            Alignment::First => 1,
            Alignment::Any => m,
        };
        Buckets {
            out,
            m,
            span,
            across: out.map(|size| (size + span - 1).div_ceil(m)),
        }
    }

    fn count(&self) -> usize {
        self.across[0] * self.across[1]
    }

    fn outputs(&self) -> impl Iterator<Item = [usize; 2]> + use<> {
        let out = self.out;
        (0..out[0] * out[1]).map(move |i| [i / out[1], i % out[1]])
    }

    /// Per bucket, the largest |M||plane window||Mᵀ| over its starts, entry by
    /// entry.
    fn maxima(&self, matrix: &Matrix<f64>, plane: &Plane<'_>) -> Vec<f64> {
        let (alpha, [_, width]) = (matrix.len(), plane.size);
        let rows = self.slide(matrix, plane.values, (0, width), plane);
        let mut maxima = vec![0.0; self.count() * alpha * alpha];
        for (line, row) in rows.chunks(width).enumerate() {
            let (bucket, a) = (line / alpha, line % alpha);
            for (at, v) in self
                .slide(matrix, row, (1, 1), plane)
                .into_iter()
                .enumerate()
            {
                let (across, b) = (at / alpha, at % alpha);
                let tile = bucket * self.across[1] + across;
                maxima[(tile * alpha + a) * alpha + b] = v;
            }
        }
        maxima
    }

    /// One dimension of that: `values` holds lines of `width`; the result is
    /// bucket → row of the matrix → width.
    fn slide(
        &self,
        matrix: &Matrix<f64>,
        values: &[f64],
        (dimension, width): (usize, usize),
        plane: &Plane<'_>,
    ) -> Vec<f64> {
        let (size, shift) = (plane.size[dimension] as isize, plane.shift[dimension]);
        let mut result = vec![0.0; self.across[dimension] * matrix.len() * width];
        let mut sum = vec![0.0; width];
        for (line, best) in result.chunks_mut(width).enumerate() {
            let (bucket, row) = (line / matrix.len(), &matrix[line % matrix.len()]);
            for start in 0..self.span {
                let first = (bucket * self.m) as isize + 1 - self.span as isize;
                let start = first + start as isize - shift;
                sum.fill(0.0);
                for (k, &factor) in row.iter().enumerate().filter(|(_, f)| **f != 0.0) {
                    let at = start + k as isize;
                    if (0..size).contains(&at) {
                        let from = &values[at as usize * width..][..width];
                        sum.iter_mut().zip(from).for_each(|(s, v)| *s += factor * v);
                    }
                }
                best.iter_mut()
                    .zip(&sum)
                    .for_each(|(b, s)| *b = larger(*b, *s));
            }
        }
        result
    }

    /// The largest bound at an output over every tile that may hold it.
    fn weight(&self, at: [usize; 2], bounds: &[TileBound]) -> Weight {
        let mut weight = Weight::default();
        for (row, i) in self.holding(at[0]) {
            for (column, j) in self.holding(at[1]) {
                let tile = row * self.across[1] + column;
                weight = weight.max(bounds[tile].at(i, j));
            }
        }
        weight
    }

    /// Buckets whose tiles may hold place `p`, with its place in the tile.
    fn holding(self, p: usize) -> impl Iterator<Item = (usize, usize)> {
        (0..self.m).filter_map(move |i| {
            let from_first = (p + self.span - 1).checked_sub(i)?;
            let (bucket, start) = (from_first / self.m, from_first % self.m);
            (start < self.span).then_some((bucket, i))
        })
    }
}

/// Transformed tiles that are summed, their magnitudes: term → α × α.
struct Hats {
    tiles: Vec<f64>,
    /// Their sum.
    sum: Vec<f64>,
}

impl Hats {
    fn new(tiles: Vec<f64>, alpha: usize) -> Self {
        let mut sum = vec![0.0; alpha * alpha];
        for tile in tiles.chunks(alpha * alpha) {
            sum.iter_mut().zip(tile).for_each(|(s, v)| *s += v);
        }
        Hats { tiles, sum }
    }

    fn largest(&self) -> f64 {
        self.tiles.iter().copied().fold(0.0, larger)
    }
}

/// |Aᵀ|[Σ D ⊙ G]|A| of one tile, with what the floor makes of it.
struct TileBound {
    m: usize,
    w: Vec<f64>,
    floor: Vec<f64>,
    largest: f64,
}

impl TileBound {
    fn new(transform: &Transform<f64>, floor: Floor, data: &Hats, filter: &Hats) -> Self {
        let (alpha, area) = (transform.alpha(), data.sum.len());
        let mut products = vec![0.0; area];
        let pairs = data.tiles.chunks(area).zip(filter.tiles.chunks(area));
        for (d, g) in pairs {
            for (p, (d, g)) in products.iter_mut().zip(d.iter().zip(g)) {
                *p += d * g;
            }
        }
        // (D + ε)(G + δ) − DG, what each product and sum loses itself, and the
        // output transform's operations: α a row, of rows that sum to 1 or more.
        let terms = data.tiles.len() / area;
        let (e, d) = (floor.of(&transform.bt), floor.of(&transform.g));
        let each = e * d + floor.operation;
        let last = 2.0 * alpha as f64 * floor.operation;
        let lost: Vec<f64> = (data.sum.iter().zip(&filter.sum))
            .map(|(data, filter)| e * filter + d * data + terms as f64 * each + last)
            .collect();
        let up = inflation(alpha, terms);
        let out = |sum: &[f64]| -> Vec<f64> {
            let tile = sandwich(&transform.at, sum, alpha);
            tile.into_iter().map(|v| v * up).collect()
        };
        let w = out(&products);
        TileBound {
            m: transform.m,
            largest: w.iter().copied().fold(0.0, larger),
            floor: out(&lost),
            w,
        }
    }

    fn at(&self, i: usize, j: usize) -> Weight {
        Weight {
            w: self.w[i * self.m + j],
            floor: self.floor[i * self.m + j],
            largest: self.largest,
        }
    }

    fn weights(&self) -> Vec<Weight> {
        (0..self.m * self.m)
            .map(|i| self.at(i / self.m, i % self.m))
            .collect()
    }
}

/// Covers the roundings of W's own computation: sums of nonnegative terms, each
/// rounded once per step, and of the sums of tiles.
fn inflation(alpha: usize, terms: usize) -> f64 {
    1.0 + (8 * alpha + 2 * terms + 16) as f64 * f64::EPSILON
}

fn magnitudes(tensor: &Tensor) -> Vec<f64> {
    tensor.to_f64().into_iter().map(magnitude).collect()
}

/// |value|; NaN has no bound.
fn magnitude(value: f64) -> f64 {
    if value.is_nan() {
        f64::INFINITY
    } else {
        value.abs()
    }
}

/// |M| · tile · |Mᵀ| for a square tile of extent `n`, row-major.
fn sandwich(matrix: &Matrix<f64>, tile: &[f64], n: usize) -> Vec<f64> {
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
            both[i * rows + j] = (row.iter().zip(&left[i * n..]))
                .filter(|(m, _)| **m != 0.0)
                .map(|(m, l)| m * l)
                .sum();
        }
    }
    both
}
