//! Random numbers addressed by index: no state, so any order gives the same.

use crate::dtype::exp2;

/// Stafford's "Mix13" finaliser as used by SplitMix64 (Steele, Lea, Flood,
/// "Fast splittable pseudorandom number generators", OOPSLA 2014).
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// 2^64 / golden ratio, odd: SplitMix64's counter increment.
const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// An independent stream of random words, addressed by index and lane.
#[derive(Clone, Copy)]
pub struct Stream(u64);

impl Stream {
    /// The stream `tag` of a seed: every tensor has its own.
    pub fn new(seed: u64, tag: u64) -> Self {
        Stream(mix(seed.wrapping_add(GAMMA).wrapping_mul(GAMMA) ^ mix(tag)))
    }

    /// 64 random bits.
    pub fn word(self, index: usize, lane: u64) -> u64 {
        mix(mix(self.0.wrapping_add(GAMMA.wrapping_mul(index as u64 + 1))) ^ mix(lane + 1))
    }

    /// Uniform on [0, 1), a multiple of 2^-53.
    pub fn unit(self, index: usize, lane: u64) -> f64 {
        (self.word(index, lane) >> 11) as f64 * exp2(-53)
    }

    /// 1 or -1.
    pub fn sign(self, index: usize, lane: u64) -> f64 {
        if self.word(index, lane) & 1 == 0 {
            1.0
        } else {
            -1.0
        }
    }

    /// Standard normal, by Box and Muller (1958), with the portable `libm`.
    pub fn normal(self, index: usize) -> f64 {
        let radius = (-2.0 * libm::log(1.0 - self.unit(index, 0))).sqrt();
        radius * libm::cos(std::f64::consts::TAU * self.unit(index, 1))
    }
}
