//! How far a right answer may be from the exact value.
//!
//! A bound is derived from what a candidate *declares* it does to the numbers
//! ([`Arithmetic`]) and from the data. It covers everything up to the value
//! that is rounded to the output type; that last rounding is judged exactly
//! (see [`crate::judge`]).
//!
//! | constant | value | source |
//! |---|---|---|
//! | sum of n products, scalar units | n·u·S, any order | Jeannerod, Rump, SIAM J. Matrix Anal. Appl. 34(2), 2013 |
//! | underflow of a product | η (half of it proven) | IEEE 754 |
//! | tensor core: fraction bits F | 23 (sm_70), 24 (sm_80, sm_89), 25 (sm_90 on) | Fasi et al., PeerJ CS 7:e330, 2021; Khattak, Mikaitis, arXiv:2512.07004 |
//! | tensor core, FP8 operands: F, and bits of a step's result | 13, block 32 | MMA-Sim, arXiv:2511.10909 |
//! | tensor core: block b | 4, 8, 16 (tf32: –, 4, 8), halved for kernels that use smaller steps | the same; MMA-Sim, arXiv:2511.10909 |
//! | tensor core: one step | t·2^−F·S + 2^−23·S for t products | derived from truncation to 2^(E−F) |
//! | tensor core, fp16 result | 2^−11 a product | round to nearest, the same sources |
//! | operands below a format's range in a step | 2^−F·2^emin·max | exponents are clamped at emin, the same sources |
//! | narrower partial sums | (q−1)·u·S, q ≤ 2048 slices | derived; range of CUDNN_KNOB_TYPE_SPLIT_K |
//! | operands rounded to p bits | 2·2^(1−p) + 2^(2−2p), truncation allowed | derived |
//! | Winograd | u·(2(n_B+1) + 2(n_G+1) + 2(n_A+1) + C)·W, W of any alignment of tiles unless known | Barabasz et al., ACM TOMS 46(4), 2020; alignment derived in [`winograd`] |
//! | transforms stored in a narrower type | as operands rounded to p bits, times W; its range as an absolute term | derived: data and filter once each |
//! | FFT | 12·u·log2 N·Σ‖x‖‖w‖ | Percival, Math. Comp. 72, 2003 |
//! | alpha, beta | 3·u·(\|alpha\|·M + \|beta·prior\|), and one output rounding of each | derived |

use serde::{Deserialize, Serialize};

use crate::dtype::exp2;
use crate::fill::Inputs;
use crate::oracle::Output;
use crate::problem::{ConvProblem, Direction};

mod fft;
mod operands;
mod sums;
pub mod upper;
pub mod winograd;

use fft::ImageNorms;
use operands::Magnitudes;
use sums::SumShape;
use upper::Upper;
use winograd::{Floor, TileWeights};

/// What a candidate declares it does to the numbers: the contract a bound is
/// derived from. Where a candidate does not say, the widest it may do is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Arithmetic {
    /// Algorithm family.
    pub family: Family,
    /// What may happen to operands before they are multiplied.
    pub operands: OperandRounding,
    /// Type of the accumulator.
    pub accumulator: Accumulator,
    /// What may add the products up: tensor cores include scalar units.
    pub units: Units,
    /// Type in which partial sums of a split reduction may be stored.
    pub partials: Accumulator,
    /// Whether subnormals may be flushed to zero.
    pub flush_to_zero: bool,
}

/// Algorithm family: how error spreads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Family {
    /// Every output is a sum of its own products.
    InnerProduct,
    /// Winograd; `tile` is m of F(m, r) when known, and tiles then start at
    /// output 0: the output tile, or dy's for bwd_filter, F(r, m).
    Winograd {
        /// m; `None` = any in use.
        tile: Option<u32>,
    },
    /// FFT; `tile` is the transform length when known.
    Fft {
        /// Transform length; `None` = the whole padded image.
        tile: Option<u32>,
    },
}

/// What happens to operands before they are multiplied. With Winograd it is
/// what transformed tiles are stored as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OperandRounding {
    /// Nothing: products are of the stored values.
    None,
    /// TF32, rounded or truncated.
    Tf32,
    /// fp16, with its range.
    Fp16,
    /// bf16.
    Bf16,
}

/// Type sums are kept in, narrowest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Accumulator {
    /// bfloat16: partial sums only.
    Bf16,
    /// Half.
    Fp16,
    /// Single.
    Fp32,
    /// Double.
    Fp64,
}

/// What adds the products up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Units {
    /// Scalar fused multiply-adds, round to nearest, any order.
    Simt,
    /// Tensor cores: block alignment and truncation.
    TensorCore(Generation),
}

/// Tensor-core generation, as far as arithmetic differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Generation {
    /// sm_70, sm_75.
    Volta,
    /// sm_80 to sm_89.
    Ampere,
    /// sm_90 and later.
    Hopper,
    /// FP8 operands, on sm_89 and sm_90.
    Fp8,
    /// Not modelled: the widest constants of all generations.
    Unknown,
}

impl Arithmetic {
    /// Scalar sums of exact operands, in `accumulator`.
    pub fn simt(accumulator: Accumulator) -> Self {
        Arithmetic {
            family: Family::InnerProduct,
            operands: OperandRounding::None,
            accumulator,
            units: Units::Simt,
            partials: accumulator,
            flush_to_zero: false,
        }
    }
}

/// Bounds for every output of one case under one arithmetic.
#[derive(Clone, Debug)]
pub struct Bounds {
    arithmetic: Arithmetic,
    scale: Scale,
    shape: SumShape,
    /// Operand rounding and family: multiplies the scale.
    relative: Upper,
    /// Per nonzero product: operands below their format's range.
    per_product: Upper,
    /// Terms of every sum, where the family makes error without products.
    depth: Option<u64>,
    epilogue: Epilogue,
    overflow: Overflow,
}

/// What error is relative to.
#[derive(Clone, Debug)]
enum Scale {
    /// The output's own S.
    Own,
    /// W of the output's tile.
    Tile(TileWeights),
    /// Norms of whole images.
    Image(ImageNorms),
}

/// alpha, beta and their roundings.
#[derive(Clone, Copy, Debug)]
struct Epilogue {
    alpha: Upper,
    beta: f64,
    /// Zero where alpha and beta are 1 and 0.
    relative: Upper,
    absolute: Upper,
}

/// When intermediate results may leave the accumulator's range.
#[derive(Clone, Copy, Debug)]
struct Overflow {
    always: bool,
    threshold: f64,
}

impl Bounds {
    /// Bounds for a case. `None` when the family has no bound for the problem:
    /// the candidate then cannot be judged by values.
    pub fn new(inputs: &Inputs, arithmetic: &Arithmetic) -> Option<Self> {
        let (a, b) = (inputs.first.to_f64(), inputs.second.to_f64());
        let (a, b) = (Magnitudes::of(&a), Magnitudes::of(&b));
        let problem = &inputs.problem;
        let (scale, family_error) = scale(inputs, arithmetic)?;
        let rounding = operands::relative(arithmetic.operands);
        Some(Bounds {
            arithmetic: *arithmetic,
            shape: scale.shape(problem),
            relative: rounding + family_error + rounding * family_error,
            per_product: match scale {
                // Tiles know their own.
                Scale::Tile(_) => Upper::ZERO,
                _ => {
                    operands::absolute(arithmetic.operands, a, b)
                        + clamped_exponents(inputs, arithmetic, a, b)
                        + operands::flushed(arithmetic, a, b)
                }
            },
            depth: scale.terms(problem),
            epilogue: Epilogue::new(problem, arithmetic),
            overflow: Overflow::new(problem, arithmetic, &scale, a, b),
            scale,
        })
    }

    /// Bound on the distance between the exact value of `output` and what the
    /// candidate rounds to the output type, rounded up.
    pub fn at(&self, output: &Output) -> f64 {
        let nonzero = self.depth.unwrap_or(output.nonzero);
        let scale = self.scale_at(output);
        let sum = self.sum_error(nonzero);
        let first_order = sum.relative + self.relative;
        // Rounded operands are summed: errors compound.
        let compound = sum.relative * self.relative;
        let accumulated = (first_order + compound) * scale
            + sum.absolute
            + self.per_product * Upper::of(nonzero as f64)
            + self.floor(output);
        self.epilogue.apply(accumulated, scale, output).get()
    }

    /// Whether infinities or NaN may arise at `output` though its exact value
    /// is finite: an intermediate result may leave the accumulator's range.
    pub fn may_overflow(&self, output: &Output) -> bool {
        let within = match &self.scale {
            Scale::Tile(tiles) => tiles.largest(output.index),
            _ => self.scale_at(output),
        };
        let largest = within * self.epilogue.alpha.max(Upper::of(1.0));
        // Twice: rounding errors, and transforms that pass through larger values.
        self.overflow.always || (largest + largest).get() >= self.overflow.threshold
    }

    /// Whether every partial sum at `output` is exact when the data are
    /// integers: S within the accumulator's and partial sums' precision.
    pub fn exact_for_integers(&self, output: &Output) -> bool {
        let narrowest = self.arithmetic.accumulator.min(self.arithmetic.partials);
        let mut precision = narrowest.format().precision;
        if let Units::TensorCore(generation) = self.arithmetic.units {
            precision = precision.min(generation.model().fraction + 1);
        }
        matches!(self.scale, Scale::Own)
            && self.epilogue.relative == Upper::ZERO
            && output.s <= exp2(precision)
    }

    /// Whether non-finite data spreads beyond the outputs that use it.
    pub fn spreads(&self) -> bool {
        !matches!(self.scale, Scale::Own)
    }

    fn scale_at(&self, output: &Output) -> Upper {
        match &self.scale {
            Scale::Own => Upper::of(output.s),
            Scale::Tile(tiles) => tiles.at(output.index).max(Upper::of(output.s)),
            Scale::Image(norms) => norms.at(output.index).max(Upper::of(output.s)),
        }
    }

    /// Error through underflow in transformed tiles.
    fn floor(&self, output: &Output) -> Upper {
        match &self.scale {
            Scale::Tile(tiles) => tiles.floor(output.index),
            _ => Upper::ZERO,
        }
    }

    /// The bound as it would be without that error, to show that it is needed.
    #[cfg(test)]
    fn forget_floor(&mut self) {
        if let Scale::Tile(tiles) = &mut self.scale {
            tiles.forget_floor();
        }
    }

    fn sum_error(&self, nonzero: u64) -> sums::SumError {
        let shape = SumShape {
            nonzero,
            ..self.shape
        };
        let tf32 = self.arithmetic.operands == OperandRounding::Tf32;
        let mut error = sums::sum_error(&self.arithmetic, shape, tf32);
        if let Units::TensorCore(_) = self.arithmetic.units {
            let scalar = Arithmetic {
                units: Units::Simt,
                ..self.arithmetic
            };
            let scalar = sums::sum_error(&scalar, shape, tf32);
            error.relative = error.relative.max(scalar.relative);
            error.absolute = error.absolute.max(scalar.absolute);
        }
        error
    }
}

/// What the family's error is relative to, and the error of its transforms.
fn scale(inputs: &Inputs, arithmetic: &Arithmetic) -> Option<(Scale, Upper)> {
    let u = arithmetic.accumulator.format().unit_roundoff();
    match arithmetic.family {
        Family::InnerProduct => Some((Scale::Own, Upper::ZERO)),
        Family::Winograd { tile } => {
            let tiles = TileWeights::new(inputs, tile, tile_floor(arithmetic))?;
            let error = sums::second_order(Upper::of(tiles.roundings()) * Upper::of(u));
            Some((Scale::Tile(tiles), error))
        }
        Family::Fft { .. } => {
            let error = fft::transform_error(&inputs.problem, u);
            Some((Scale::Image(ImageNorms::new(inputs)), error))
        }
    }
}

/// What transformed tiles lose below their formats' ranges: stored elements up
/// to the smallest normal, which some engines flush, and as much again where a
/// tensor core clamps exponents (t·2^−F of it, t ≤ 16, F ≥ 23).
fn tile_floor(arithmetic: &Arithmetic) -> Floor {
    let stored = arithmetic.operands.format().map_or(0.0, |f| f.min_normal());
    let compute = arithmetic.accumulator.format();
    Floor {
        stored: 2.0 * stored,
        // A product and a sum.
        operation: 2.0
            * if arithmetic.flush_to_zero {
                compute.min_normal()
            } else {
                compute.min_subnormal()
            },
    }
}

impl Scale {
    /// Terms of every sum, where they are not the output's nonzero products.
    fn terms(&self, problem: &ConvProblem) -> Option<u64> {
        match self {
            Scale::Own => None,
            Scale::Tile(tiles) => Some(tiles.terms()),
            Scale::Image(_) => Some(problem.reduction_length() as u64),
        }
    }

    /// How tensor cores may cut the sums up.
    fn shape(&self, problem: &ConvProblem) -> SumShape {
        match (self, problem.direction) {
            // Tiles of many images and rows, each row perhaps padded.
            (Scale::Tile(tiles), Direction::BwdFilter) => SumShape {
                nonzero: tiles.terms(),
                runs: tiles.terms(),
                run_length: 1,
            },
            // Channels, in one run.
            (Scale::Tile(tiles), _) => SumShape {
                nonzero: tiles.terms(),
                runs: 1,
                run_length: tiles.terms(),
            },
            _ => sum_shape(problem),
        }
    }
}

/// Runs of consecutive products and their length, by direction: channels of one
/// tap, or output columns of one row.
fn sum_shape(problem: &ConvProblem) -> SumShape {
    let taps: usize = problem.kernel.iter().product();
    let (runs, run_length) = match problem.direction {
        Direction::Fwd => (taps, problem.c / problem.groups),
        Direction::BwdData => (taps, problem.k / problem.groups),
        Direction::BwdFilter => {
            let out = problem.output_spatial();
            let last = out[out.len() - 1];
            (problem.reduction_length() / last, last)
        }
    };
    SumShape {
        nonzero: problem.reduction_length() as u64,
        runs: runs as u64,
        run_length: run_length as u64,
    }
}

/// Tensor cores clamp the exponents of subnormal operands at emin, so a step's
/// largest exponent can exceed its largest product.
fn clamped_exponents(
    inputs: &Inputs,
    arithmetic: &Arithmetic,
    a: Magnitudes,
    b: Magnitudes,
) -> Upper {
    let Units::TensorCore(generation) = arithmetic.units else {
        return Upper::ZERO;
    };
    let side = |below: Magnitudes, least: f64, other: Magnitudes| {
        if below.least < least {
            Upper::of(least) * Upper::of(other.largest)
        } else {
            Upper::ZERO
        }
    };
    let format = |t: &crate::tensor::Tensor| {
        arithmetic
            .operands
            .format()
            .unwrap_or(t.dtype().format())
            .min_normal()
    };
    let clamped = side(a, format(&inputs.first), b) + side(b, format(&inputs.second), a);
    clamped * Upper::of(exp2(-generation.model().fraction))
}

impl Epilogue {
    fn new(problem: &ConvProblem, arithmetic: &Arithmetic) -> Self {
        let (alpha, beta) = (problem.alpha.0, problem.beta.0);
        let plain = alpha == 1.0 && beta == 0.0;
        let compute = arithmetic.accumulator.format();
        let output = problem.result_type().format();
        // Two products and a sum in the compute type; a kernel may first store
        // the scaled sum in the output type.
        let roundings =
            Upper::of(3.0 * compute.unit_roundoff()) + Upper::of(2.0 * output.unit_roundoff());
        let absolute =
            Upper::of(3.0 * compute.min_subnormal()) + Upper::of(2.0 * output.min_subnormal());
        Epilogue {
            alpha: Upper::of(alpha),
            beta,
            relative: if plain { Upper::ZERO } else { roundings },
            absolute: match (plain, arithmetic.flush_to_zero) {
                (true, _) => Upper::ZERO,
                (false, false) => absolute,
                // The scaled sum, the prior before it is scaled, and their sum.
                (false, true) => {
                    let factors = Upper::of(2.0) + Upper::of(alpha) + Upper::of(beta);
                    absolute + factors * Upper::of(compute.min_normal())
                }
            },
        }
    }

    fn apply(&self, error: Upper, scale: Upper, output: &Output) -> Upper {
        // |beta·prior| ≤ |value| + |alpha|·S.
        let prior = if self.beta == 0.0 {
            Upper::ZERO
        } else {
            Upper::of(output.value.hi) + self.alpha * Upper::of(output.s)
        };
        let size = self.alpha * (scale + error) + prior;
        self.alpha * error + self.relative * (size + size) + self.absolute
    }
}

impl Overflow {
    fn new(
        problem: &ConvProblem,
        arithmetic: &Arithmetic,
        scale: &Scale,
        a: Magnitudes,
        b: Magnitudes,
    ) -> Self {
        let narrowest = arithmetic.accumulator.min(arithmetic.partials);
        let mut threshold = narrowest.format().max_finite();
        if let (Some(format), true) = (
            arithmetic.operands.format(),
            arithmetic.family != Family::InnerProduct,
        ) {
            threshold = threshold.min(format.max_finite());
        }
        if let Family::Fft { .. } = arithmetic.family {
            // Products of spectra, and their sums before the division by N, are
            // at most N·‖x‖·‖w‖ (Cauchy and Schwarz, Parseval).
            threshold /= fft::length(problem);
        }
        let stored = match scale {
            Scale::Tile(tiles) => {
                let transformed = tiles.transformed() + tiles.transformed();
                transformed.get() >= threshold
            }
            _ => false,
        };
        Overflow {
            always: stored || operands::may_overflow(arithmetic.operands, a, b),
            threshold,
        }
    }
}
