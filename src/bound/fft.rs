//! FFT convolution: |err| ≤ 12·u·log2(N)·Σ_c ‖x_c‖₂·‖w_c‖₂, first order
//! (Percival, "Rapid multiplication modulo the sum and difference of highly
//! composite numbers", Math. Comp. 72, 2003). Errors spread over the transform:
//! an output whose own products are all zero need not come back zero.

use super::upper::Upper;
use crate::fill::Inputs;
use crate::problem::{ConvProblem, Direction, Role};

/// Tiles of tiled FFT algorithms are 32 in each dimension (CUDNN_CONVOLUTION_
/// FWD_ALGO_FFT_TILING, cuDNN's documentation).
const LARGEST_TILE: usize = 32;

/// Percival's constant.
const PERCIVAL: f64 = 12.0;

/// Σ_c ‖x_c‖₂·‖w_c‖₂ for every plane of the result, for whole images: no
/// smaller than over any tile.
#[derive(Clone, Debug)]
pub struct ImageNorms {
    products: Vec<Upper>,
    /// Elements of a result plane.
    per_plane: usize,
}

/// Elements of a transform, at most: images are padded to a good size, less than
/// twice the linear convolution's extent, or to a fixed tile.
pub fn length(problem: &ConvProblem) -> f64 {
    (0..problem.rank())
        .map(|d| problem.padded_extent(d) + problem.kernel_extent(d))
        .map(|extent| 2.0 * extent.max(LARGEST_TILE) as f64)
        .product()
}

/// Relative error of the transforms: 12·u·log2 N.
pub fn transform_error(problem: &ConvProblem, u: f64) -> Upper {
    Upper::of(PERCIVAL) * Upper::of(u) * Upper::of(length(problem).log2().next_up())
}

impl ImageNorms {
    /// Norms of the two operands, multiplied and summed over the channels that
    /// each result plane sums.
    pub fn new(inputs: &Inputs) -> Self {
        let problem = &inputs.problem;
        let [first, second] = problem.direction.operands();
        let norms = |role: Role| {
            let tensor = if role == first {
                &inputs.first
            } else {
                &inputs.second
            };
            debug_assert!(role == first || role == second);
            let plane: usize = problem.dims(role)[2..].iter().product();
            plane_norms(&tensor.to_f64(), plane)
        };
        let pairs = Pairs::new(problem);
        let (a, b) = (norms(first), norms(second));
        let result = problem.dims(problem.direction.result());
        let products = (0..result[0] * result[1])
            .map(|plane| pairs.of(plane).map(|(i, j)| a[i] * b[j]).sum())
            .collect();
        ImageNorms {
            products,
            per_plane: result[2..].iter().product(),
        }
    }

    /// The norm product of the plane that holds output `index`.
    pub fn at(&self, index: usize) -> Upper {
        self.products[index / self.per_plane]
    }
}

fn plane_norms(values: &[f64], plane: usize) -> Vec<Upper> {
    values
        .chunks(plane)
        .map(|plane| {
            plane
                .iter()
                .map(|&v| Upper::of(v) * Upper::of(v))
                .sum::<Upper>()
                .sqrt()
        })
        .collect()
}

/// Which planes of the operands a result plane sums over.
struct Pairs<'a> {
    problem: &'a ConvProblem,
    cg: usize,
    kg: usize,
}

impl<'a> Pairs<'a> {
    fn new(problem: &'a ConvProblem) -> Self {
        Pairs {
            problem,
            cg: problem.c / problem.groups,
            kg: problem.k / problem.groups,
        }
    }

    fn of(&self, plane: usize) -> Box<dyn Iterator<Item = (usize, usize)> + '_> {
        let (p, cg, kg) = (self.problem, self.cg, self.kg);
        match p.direction {
            Direction::Fwd => {
                let (n, k) = (plane / p.k, plane % p.k);
                let first = k / kg * cg;
                Box::new((0..cg).map(move |c| (n * p.c + first + c, k * cg + c)))
            }
            Direction::BwdData => {
                let (n, c) = (plane / p.c, plane % p.c);
                let first = c / cg * kg;
                Box::new((first..first + kg).map(move |k| (k * cg + c % cg, n * p.k + k)))
            }
            Direction::BwdFilter => {
                let (k, c) = (plane / cg, plane % cg);
                let channel = k / kg * cg + c;
                Box::new((0..p.n).map(move |n| (n * p.c + channel, n * p.k + k)))
            }
        }
    }
}
