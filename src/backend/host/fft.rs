//! FFT convolution: transforms of whole padded images, products summed over the
//! channels in the frequency domain. Real arithmetic in f32, or f64 for fp64.

use rustfft::num_complex::Complex;
use rustfft::{FftNum, FftPlanner};

use super::arena::Arena;
use super::gemm::epilogue;
use crate::bound::Accumulator;
use crate::fill::Inputs;
use crate::geometry::to_3d;
use crate::problem::{ConvProblem, Direction};

/// A scalar the transforms run in.
pub trait Scalar: FftNum {
    /// Rounds to this type.
    fn of(value: f64) -> Self;
    /// Exact.
    fn widen(self) -> f64;
}

impl Scalar for f32 {
    fn of(value: f64) -> Self {
        value as f32
    }

    fn widen(self) -> f64 {
        self.into()
    }
}

impl Scalar for f64 {
    fn of(value: f64) -> Self {
        value
    }

    fn widen(self) -> f64 {
        self
    }
}

/// Why the FFT does not serve a problem, if so.
pub fn refusal(problem: &ConvProblem) -> Option<&'static str> {
    let plain = problem
        .stride
        .iter()
        .chain(&problem.dilation)
        .all(|&s| s == 1);
    if problem.direction != Direction::Fwd {
        Some("the FFT here is forward only")
    } else if !plain {
        Some("the FFT needs stride and dilation 1")
    } else {
        None
    }
}

/// Three-dimensional transforms of one size.
struct Transforms<T: Scalar> {
    size: [usize; 3],
    planner: FftPlanner<T>,
}

type Spectrum<T> = Vec<Complex<T>>;

impl<T: Scalar> Transforms<T> {
    /// Large enough that the wanted part does not wrap around.
    fn new(problem: &ConvProblem) -> Self {
        let extent = |d: usize| (problem.padded_extent(d)).next_power_of_two();
        let size: Vec<usize> = (0..problem.rank()).map(extent).collect();
        Transforms {
            size: to_3d(&size, 1),
            planner: FftPlanner::new(),
        }
    }

    fn zeros(&self) -> Spectrum<T> {
        vec![Complex::new(T::zero(), T::zero()); self.size.iter().product()]
    }

    fn at(&self, [d, h, w]: [usize; 3]) -> usize {
        (d * self.size[1] + h) * self.size[2] + w
    }

    fn transform(&mut self, data: &mut Spectrum<T>, inverse: bool) {
        for axis in 0..3 {
            let len = self.size[axis];
            if len == 1 {
                continue;
            }
            let fft = if inverse {
                self.planner.plan_fft_inverse(len)
            } else {
                self.planner.plan_fft_forward(len)
            };
            let stride: usize = self.size[axis + 1..].iter().product();
            let zero = Complex::new(T::zero(), T::zero());
            let mut line = vec![zero; len];
            let mut scratch = vec![zero; fft.get_inplace_scratch_len()];
            for block in data.chunks_mut(stride * len) {
                for start in 0..stride {
                    for (cell, from) in line.iter_mut().zip(block[start..].iter().step_by(stride)) {
                        *cell = *from;
                    }
                    fft.process_with_scratch(&mut line, &mut scratch);
                    let to = block[start..].iter_mut().step_by(stride);
                    to.zip(&line).for_each(|(to, cell)| *to = *cell);
                }
            }
        }
    }

    /// Spectrum of planes of extent `from` placed at `offset`.
    fn spectra(
        &mut self,
        values: &[f64],
        from: [usize; 3],
        offset: [usize; 3],
    ) -> Vec<Spectrum<T>> {
        let plane: usize = from.iter().product();
        values
            .chunks(plane)
            .map(|plane| {
                let mut data = self.zeros();
                for (i, &value) in plane.iter().enumerate() {
                    let at = [i / (from[1] * from[2]), i / from[2] % from[1], i % from[2]];
                    let cell = self.at([at[0] + offset[0], at[1] + offset[1], at[2] + offset[2]]);
                    data[cell].re = T::of(value);
                }
                self.transform(&mut data, false);
                data
            })
            .collect()
    }
}

/// Computes every output of a problem that [`refusal`] lets pass.
pub fn run<T: Scalar>(inputs: &Inputs, arena: &mut Arena, compute: Accumulator) {
    let p = &inputs.problem;
    let mut transforms = Transforms::<T>::new(p);
    let images = transforms.spectra(&arena.first, to_3d(&p.spatial, 1), to_3d(&p.pad_before, 0));
    let filters = transforms.spectra(&arena.second, to_3d(&p.kernel, 1), [0; 3]);
    let (cg, kg) = (p.c / p.groups, p.k / p.groups);
    for n in 0..p.n {
        for k in 0..p.k {
            let first = n * p.c + k / kg * cg;
            let mut sum = transforms.zeros();
            for c in 0..cg {
                let pairs = images[first + c].iter().zip(&filters[k * cg + c]);
                for (s, (x, w)) in sum.iter_mut().zip(pairs) {
                    // Correlation: the filter's spectrum is conjugated.
                    *s = *s + *x * w.conj();
                }
            }
            transforms.transform(&mut sum, true);
            store(p, &transforms, arena, n * p.k + k, &sum, compute);
        }
    }
}

fn store<T: Scalar>(
    p: &ConvProblem,
    transforms: &Transforms<T>,
    arena: &mut Arena,
    plane: usize,
    sum: &Spectrum<T>,
    compute: Accumulator,
) {
    let out = to_3d(&p.output_spatial(), 1);
    let scale = T::of(transforms.zeros().len() as f64);
    for d in 0..out[0] {
        for h in 0..out[1] {
            for w in 0..out[2] {
                let index = ((plane * out[0] + d) * out[1] + h) * out[2] + w;
                let value = (sum[transforms.at([d, h, w])].re / scale).widen();
                let prior = if p.beta.0 == 0.0 {
                    0.0
                } else {
                    arena.prior(index)
                };
                let value = epilogue(compute, value, p.alpha.0, p.beta.0, prior);
                arena.store(index as isize, value);
            }
        }
    }
}
