//! Winograd convolution in f32: F(2×2, 3×3) and F(4×4, 3×3), matrices of Lavin
//! and Gray, "Fast algorithms for convolutional neural networks", CVPR 2016.

use super::arena::Arena;
use super::gemm::epilogue;
use crate::bound::Accumulator;
use crate::fill::Inputs;
use crate::geometry::to_3d;
use crate::problem::{ConvProblem, Direction};

type Matrix = &'static [&'static [f32]];

/// The matrices of one algorithm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Winograd {
    /// Outputs per tile and dimension, m.
    pub m: usize,
    at: Matrix,
    g: Matrix,
    bt: Matrix,
}

/// F(2×2, 3×3).
pub const F2: Winograd = Winograd {
    m: 2,
    at: &[&[1.0, 1.0, 1.0, 0.0], &[0.0, 1.0, -1.0, -1.0]],
    g: &[
        &[1.0, 0.0, 0.0],
        &[0.5, 0.5, 0.5],
        &[0.5, -0.5, 0.5],
        &[0.0, 0.0, 1.0],
    ],
    bt: &[
        &[1.0, 0.0, -1.0, 0.0],
        &[0.0, 1.0, 1.0, 0.0],
        &[0.0, -1.0, 1.0, 0.0],
        &[0.0, 1.0, 0.0, -1.0],
    ],
};

/// F(4×4, 3×3).
pub const F4: Winograd = Winograd {
    m: 4,
    at: &[
        &[1.0, 1.0, 1.0, 1.0, 1.0, 0.0],
        &[0.0, 1.0, -1.0, 2.0, -2.0, 0.0],
        &[0.0, 1.0, 1.0, 4.0, 4.0, 0.0],
        &[0.0, 1.0, -1.0, 8.0, -8.0, 1.0],
    ],
    g: &[
        &[1.0 / 4.0, 0.0, 0.0],
        &[-1.0 / 6.0, -1.0 / 6.0, -1.0 / 6.0],
        &[-1.0 / 6.0, 1.0 / 6.0, -1.0 / 6.0],
        &[1.0 / 24.0, 1.0 / 12.0, 1.0 / 6.0],
        &[1.0 / 24.0, -1.0 / 12.0, 1.0 / 6.0],
        &[0.0, 0.0, 1.0],
    ],
    bt: &[
        &[4.0, 0.0, -5.0, 0.0, 1.0, 0.0],
        &[0.0, -4.0, -4.0, 1.0, 1.0, 0.0],
        &[0.0, 4.0, -4.0, -1.0, 1.0, 0.0],
        &[0.0, -2.0, -1.0, 2.0, 1.0, 0.0],
        &[0.0, 2.0, -1.0, -2.0, 1.0, 0.0],
        &[0.0, 4.0, 0.0, -5.0, 0.0, 1.0],
    ],
};

/// Why Winograd does not serve a problem, if so.
pub fn refusal(problem: &ConvProblem) -> Option<&'static str> {
    let kernel = to_3d(&problem.kernel, 1);
    let plain = problem
        .stride
        .iter()
        .chain(&problem.dilation)
        .all(|&s| s == 1);
    if problem.direction != Direction::Fwd {
        Some("Winograd here is forward only")
    } else if problem.rank() != 2 || kernel != [1, 3, 3] {
        Some("Winograd here is for 2D 3x3 kernels")
    } else if !plain {
        Some("Winograd needs stride and dilation 1")
    } else {
        None
    }
}

impl Winograd {
    /// Computes every output of a problem that [`refusal`] lets pass.
    pub fn run(&self, inputs: &Inputs, arena: &mut Arena) {
        let p = &inputs.problem;
        let alpha = self.m + 2;
        let filters: Vec<Vec<f32>> = arena
            .second
            .chunks(9)
            .map(|g| sandwich(self.g, &narrow(g), 3))
            .collect();
        let out = p.output_spatial();
        let (cg, kg) = (p.c / p.groups, p.k / p.groups);
        for slice in 0..p.n * p.groups {
            let (n, group) = (slice / p.groups, slice % p.groups);
            for corner in corners(&out, self.m) {
                let data: Vec<Vec<f32>> = (0..cg)
                    .map(|c| {
                        let tile = tile(p, &arena.first, n * p.c + group * cg + c, corner, alpha);
                        sandwich(self.bt, &tile, alpha)
                    })
                    .collect();
                for k in group * kg..(group + 1) * kg {
                    let mut sum = vec![0.0f32; alpha * alpha];
                    for (c, d) in data.iter().enumerate() {
                        for ((s, d), g) in sum.iter_mut().zip(d).zip(&filters[k * cg + c]) {
                            *s += d * g;
                        }
                    }
                    let y = sandwich(self.at, &sum, alpha);
                    self.store(p, arena, n * p.k + k, corner, &y);
                }
            }
        }
    }

    fn store(
        &self,
        p: &ConvProblem,
        arena: &mut Arena,
        plane: usize,
        corner: [usize; 2],
        y: &[f32],
    ) {
        let out = p.output_spatial();
        for i in 0..self.m.min(out[0] - corner[0]) {
            for j in 0..self.m.min(out[1] - corner[1]) {
                let index = (plane * out[0] + corner[0] + i) * out[1] + corner[1] + j;
                let sum = f64::from(y[i * self.m + j]);
                let prior = if p.beta.0 == 0.0 {
                    0.0
                } else {
                    arena.prior(index)
                };
                let value = epilogue(Accumulator::Fp32, sum, p.alpha.0, p.beta.0, prior);
                arena.store(index as isize, value);
            }
        }
    }
}

fn narrow(values: &[f64]) -> Vec<f32> {
    values.iter().map(|&v| v as f32).collect()
}

fn corners(out: &[usize], m: usize) -> impl Iterator<Item = [usize; 2]> {
    let (rows, columns) = (out[0], out[1]);
    (0..rows)
        .step_by(m)
        .flat_map(move |i| (0..columns).step_by(m).map(move |j| [i, j]))
}

fn tile(p: &ConvProblem, x: &[f64], plane: usize, corner: [usize; 2], alpha: usize) -> Vec<f32> {
    let (rows, columns) = (p.spatial[0], p.spatial[1]);
    let mut tile = vec![0.0; alpha * alpha];
    for i in 0..alpha {
        for j in 0..alpha {
            let row = (corner[0] + i)
                .checked_sub(p.pad_before[0])
                .filter(|&r| r < rows);
            let column = (corner[1] + j)
                .checked_sub(p.pad_before[1])
                .filter(|&c| c < columns);
            if let (Some(row), Some(column)) = (row, column) {
                tile[i * alpha + j] = x[(plane * rows + row) * columns + column] as f32;
            }
        }
    }
    tile
}

/// M · tile · Mᵀ for a square tile of extent `n`.
fn sandwich(matrix: Matrix, tile: &[f32], n: usize) -> Vec<f32> {
    let rows = matrix.len();
    let mut left = vec![0.0; rows * n];
    for i in 0..rows {
        for j in 0..n {
            left[i * n + j] = (0..n).map(|k| matrix[i][k] * tile[k * n + j]).sum();
        }
    }
    let mut both = vec![0.0; rows * rows];
    for i in 0..rows {
        for j in 0..rows {
            both[i * rows + j] = (0..n).map(|k| left[i * n + k] * matrix[j][k]).sum();
        }
    }
    both
}
