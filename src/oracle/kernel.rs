//! The inner loops: register-blocked sums over packed panels, compiled for the
//! widest vector unit the CPU has.

use std::array;

use pulp::Simd;

/// Positions that are summed side by side: two vectors of single precision, or
/// twice two of double, where AVX-512 is.
pub const LANES: usize = 32;

/// Channels that share one pass over a patch panel: with two vectors per
/// channel, 24 of AVX-512's 32 registers hold sums. With 16 registers, half of
/// the channels make a pass.
pub const CHANNELS: usize = 12;

/// One row of a patch panel: the same r of LANES positions.
pub type PatchRow<T> = [T; LANES];

/// One row of a weight panel: the same r of CHANNELS channels.
pub type WeightRow<T> = [T; CHANNELS];

/// Sums of CHANNELS × LANES outputs.
pub type Sums<T> = [[T; LANES]; CHANNELS];

/// How many channels and positions of a block are in use.
#[derive(Clone, Copy)]
pub struct Used {
    /// Of CHANNELS.
    pub channels: usize,
    /// Of LANES.
    pub lanes: usize,
}

/// Single or double precision, in vectors.
pub trait Real: Copy + Default {
    /// A vector of the CPU.
    type Vector<S: Simd>: Copy;
    /// Numbers in a vector.
    fn lanes<S: Simd>() -> usize;
    /// A slice in whole vectors.
    fn vectors<S: Simd>(values: &[Self]) -> &[Self::Vector<S>];
    /// The same, to write.
    fn vectors_mut<S: Simd>(values: &mut [Self]) -> &mut [Self::Vector<S>];
    /// The same number in all lanes.
    fn splat<S: Simd>(simd: S, value: Self) -> Self::Vector<S>;
    /// a · b + c, rounded once.
    fn mul_add<S: Simd>(
        simd: S,
        a: Self::Vector<S>,
        b: Self::Vector<S>,
        c: Self::Vector<S>,
    ) -> Self::Vector<S>;
}

macro_rules! real {
    ($t:ty, $vector:ident, $lanes:ident, $split:ident, $split_mut:ident, $splat:ident, $mul_add:ident) => {
        impl Real for $t {
            type Vector<S: Simd> = S::$vector;

            #[inline(always)]
            fn lanes<S: Simd>() -> usize {
                S::$lanes
            }

            #[inline(always)]
            fn vectors<S: Simd>(values: &[Self]) -> &[S::$vector] {
                S::$split(values).0
            }

            #[inline(always)]
            fn vectors_mut<S: Simd>(values: &mut [Self]) -> &mut [S::$vector] {
                S::$split_mut(values).0
            }

            #[inline(always)]
            fn splat<S: Simd>(simd: S, value: Self) -> S::$vector {
                simd.$splat(value)
            }

            #[inline(always)]
            fn mul_add<S: Simd>(
                simd: S,
                a: S::$vector,
                b: S::$vector,
                c: S::$vector,
            ) -> S::$vector {
                simd.$mul_add(a, b, c)
            }
        }
    };
}

real!(
    f64,
    f64s,
    F64_LANES,
    as_simd_f64s,
    as_mut_simd_f64s,
    splat_f64s,
    mul_add_f64s
);
real!(
    f32,
    f32s,
    F32_LANES,
    as_simd_f32s,
    as_mut_simd_f32s,
    splat_f32s,
    mul_add_f32s
);

/// sums += Σ_r weight · patch, each step one fused multiply-add.
#[inline(always)]
pub fn add_products<S: Simd, T: Real>(
    simd: S,
    patches: &[PatchRow<T>],
    weights: &[WeightRow<T>],
    used: Used,
    sums: &mut Sums<T>,
) {
    // A constant once compiled for S.
    if S::REGISTER_COUNT >= 32 {
        sweep::<S, T, CHANNELS>(simd, patches, weights, used, sums);
    } else {
        sweep::<S, T, { CHANNELS / 2 }>(simd, patches, weights, used, sums);
    }
}

#[inline(always)]
fn sweep<S: Simd, T: Real, const N: usize>(
    simd: S,
    patches: &[PatchRow<T>],
    weights: &[WeightRow<T>],
    used: Used,
    sums: &mut Sums<T>,
) {
    for channel in (0..used.channels).step_by(N) {
        for vector in (0..used.lanes.div_ceil(T::lanes::<S>())).step_by(2) {
            block::<S, T, N>(simd, patches, weights, (channel, vector), sums);
        }
    }
}

/// N channels from `channel` on, two vectors of positions from `vector` on.
#[inline(always)]
fn block<S: Simd, T: Real, const N: usize>(
    simd: S,
    patches: &[PatchRow<T>],
    weights: &[WeightRow<T>],
    (channel, vector): (usize, usize),
    sums: &mut Sums<T>,
) {
    let width = LANES / T::lanes::<S>();
    let rows = &mut sums.as_flattened_mut()[channel * LANES..(channel + N) * LANES];
    let rows = &mut T::vectors_mut::<S>(rows)[vector..];
    // Fixed indices and no way out of the loop but its end: else the compiler
    // keeps the sums in memory.
    let mut local: [[T::Vector<S>; 2]; N] =
        array::from_fn(|n| [rows[n * width], rows[n * width + 1]]);
    let patches = &T::vectors::<S>(patches.as_flattened())[vector..];
    for (patch, weight) in patches.chunks(width).zip(weights) {
        let &[a, b, ..] = patch else { break };
        for n in 0..N {
            let w = T::splat(simd, weight[(channel + n) % CHANNELS]);
            local[n][0] = T::mul_add(simd, a, w, local[n][0]);
            local[n][1] = T::mul_add(simd, b, w, local[n][1]);
        }
    }
    store::<T, S, N>(rows, width, &local);
}

#[inline(always)]
fn store<T: Real, S: Simd, const N: usize>(
    rows: &mut [T::Vector<S>],
    width: usize,
    local: &[[T::Vector<S>; 2]; N],
) {
    for n in 0..N {
        rows[n * width] = local[n][0];
        rows[n * width + 1] = local[n][1];
    }
}

/// Channels and vectors that are summed twice at a time.
const TWICE: usize = 2;

/// Σ_r weight · patch in twice the working precision: Dot2 of Ogita, Rump and
/// Oishi, "Accurate sum and dot product", SIAM J. Sci. Comput. 26(6), 2005.
#[inline(always)]
pub fn add_products_twice<S: Simd>(
    simd: S,
    patches: &[PatchRow<f64>],
    weights: &[WeightRow<f64>],
    used: Used,
    [sums, corrections]: [&mut Sums<f64>; 2],
) {
    let vectors = LANES / S::F64_LANES;
    let patches = f64::vectors::<S>(patches.as_flattened());
    for channel in (0..used.channels).step_by(TWICE) {
        for vector in (0..used.lanes.div_ceil(S::F64_LANES)).step_by(TWICE) {
            let load = |from: &Sums<f64>| -> [[S::f64s; TWICE]; TWICE] {
                array::from_fn(|n| {
                    let row = f64::vectors::<S>(&from[channel + n]);
                    [row[vector], row[vector + 1]]
                })
            };
            let (mut sum, mut correction) = (load(sums), load(corrections));
            for (patch, weight) in patches[vector..].chunks(vectors).zip(weights) {
                for n in 0..TWICE {
                    let w = simd.splat_f64s(weight[channel + n]);
                    for v in 0..TWICE {
                        let lane = (&mut sum[n][v], &mut correction[n][v]);
                        step_twice(simd, patch[v], w, lane);
                    }
                }
            }
            for n in 0..TWICE {
                for v in 0..TWICE {
                    f64::vectors_mut::<S>(&mut sums[channel + n])[vector + v] = sum[n][v];
                    f64::vectors_mut::<S>(&mut corrections[channel + n])[vector + v] =
                        correction[n][v];
                }
            }
        }
    }
}

/// One product: TwoProduct by fused multiply-add, TwoSum (Knuth).
#[inline(always)]
fn step_twice<S: Simd>(
    simd: S,
    a: S::f64s,
    b: S::f64s,
    (sum, correction): (&mut S::f64s, &mut S::f64s),
) {
    let product = simd.mul_f64s(a, b);
    let product_error = simd.mul_add_f64s(a, b, simd.neg_f64s(product));
    let next = simd.add_f64s(*sum, product);
    let back = simd.sub_f64s(next, *sum);
    let kept = simd.sub_f64s(*sum, simd.sub_f64s(next, back));
    let sum_error = simd.add_f64s(kept, simd.sub_f64s(product, back));
    *correction = simd.add_f64s(*correction, simd.add_f64s(product_error, sum_error));
    *sum = next;
}

/// Work to be compiled for the CPU at hand, in plain loops: `call` must be
/// `#[inline(always)]`.
pub use pulp::NullaryFnOnce as Dispatched;
/// The same in vectors.
pub use pulp::WithSimd;

/// Runs `work` under the widest instruction set the CPU has (AVX-512, AVX2 with
/// FMA, or the baseline).
pub fn dispatch<W: WithSimd>(work: W) -> W::Output {
    pulp::Arch::new().dispatch(work)
}
