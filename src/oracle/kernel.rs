//! The inner loops: register-blocked sums over packed panels, compiled for the
//! widest vector unit the CPU has.

/// Positions that are summed side by side.
pub const LANES: usize = 8;

/// Channels that share one pass over a patch panel: with two 4-lane registers
/// per channel, 12 of AVX2's 16 registers hold sums.
pub const CHANNELS: usize = 6;

/// One row of a patch panel: the same r of LANES positions.
pub type PatchRow = [f64; LANES];

/// One row of a weight panel: the same r of CHANNELS channels.
pub type WeightRow = [f64; CHANNELS];

/// Sums of CHANNELS × LANES outputs.
pub type Sums = [[f64; LANES]; CHANNELS];

/// sums += Σ_r weight · patch, each step one fused multiply-add.
#[inline(always)]
pub fn add_products(patches: &[PatchRow], weights: &[WeightRow], sums: &mut Sums) {
    let mut local = *sums;
    for (patch, weight) in patches.iter().zip(weights) {
        for (sum, &w) in local.iter_mut().zip(weight) {
            for (lane, &p) in sum.iter_mut().zip(patch) {
                *lane = p.mul_add(w, *lane);
            }
        }
    }
    *sums = local;
}

/// Σ_r weight · patch in twice the working precision: Dot2 of Ogita, Rump and
/// Oishi, "Accurate sum and dot product", SIAM J. Sci. Comput. 26(6), 2005.
#[inline(always)]
pub fn add_products_twice(
    patches: &[PatchRow],
    weights: &[WeightRow],
    sums: &mut Sums,
    corrections: &mut Sums,
) {
    for channel in 0..CHANNELS {
        let (mut sum, mut correction) = (sums[channel], corrections[channel]);
        for (patch, weight) in patches.iter().zip(weights) {
            let w = weight[channel];
            for lane in 0..LANES {
                let product = patch[lane] * w;
                let product_error = patch[lane].mul_add(w, -product);
                let next = sum[lane] + product;
                let back = next - sum[lane];
                let sum_error = (sum[lane] - (next - back)) + (product - back);
                correction[lane] += product_error + sum_error;
                sum[lane] = next;
            }
        }
        sums[channel] = sum;
        corrections[channel] = correction;
    }
}

/// Work to be compiled for the CPU at hand: `call` must be `#[inline(always)]`.
pub use pulp::NullaryFnOnce as Dispatched;

/// Runs `work` under the widest instruction set the CPU has (AVX-512, AVX2 with
/// FMA, or the baseline).
pub fn dispatch<W: Dispatched>(work: W) -> W::Output {
    pulp::Arch::new().dispatch(work)
}
