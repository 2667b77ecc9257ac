//! Counter-based random numbers: a draw is a pure function of (seed, stream,
//! index), so that data never depends on the order or number of threads.
//!
//! The generator is SplitMix64 read at an arbitrary place of its sequence: its
//! i-th output is `mix(key + i * GAMMA)` (Steele, Lea, Flood: *Fast splittable
//! pseudorandom number generators*, OOPSLA 2014). Each (seed, stream) has a key
//! of its own. The bits are part of every repro line and never change.

use std::f64::consts::TAU;

use crate::dtype::exp2;

/// 2^64 divided by the golden ratio, made odd: the increment of SplitMix64.
const GAMMA: u64 = 0x9E37_79B9_7F4A_7C15;

/// One sequence of draws.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stream {
    key: u64,
}

impl Stream {
    /// The sequence number `stream` of `seed`.
    pub(super) fn new(seed: u64, stream: u64) -> Self {
        let key = mix(seed.wrapping_add(GAMMA));
        Stream {
            key: mix(key.wrapping_add(stream.wrapping_mul(GAMMA))),
        }
    }

    /// 64 uniform bits.
    pub(super) fn bits(self, index: u64) -> u64 {
        mix(self
            .key
            .wrapping_add((index.wrapping_add(1)).wrapping_mul(GAMMA)))
    }

    /// Uniform on (0, 1], a multiple of 2^-53.
    pub(super) fn unit(self, index: u64) -> f64 {
        ((self.bits(index) >> 11) + 1) as f64 * exp2(-53)
    }

    /// Uniform on 0..n, by the high half of a product (bias below n·2^-64).
    pub(super) fn below(self, index: u64, n: u64) -> u64 {
        ((u128::from(self.bits(index)) * u128::from(n)) >> 64) as u64
    }

    /// A fair coin.
    pub(super) fn coin(self, index: u64) -> bool {
        self.bits(index) >> 63 == 1
    }

    /// Standard normal, by Box and Muller (Ann. Math. Stat. 29, 1958), from
    /// draws 2·index and 2·index + 1. `libm` keeps the bits the same on every
    /// platform.
    pub(super) fn normal(self, index: u64) -> f64 {
        let radius = libm::sqrt(-2.0 * libm::log(self.unit(2 * index)));
        radius * libm::cos(TAU * self.unit(2 * index + 1))
    }
}

/// The finaliser of SplitMix64: variant 13 of Stafford's *Better bit mixing*
/// (2011), a bijection of 64-bit words.
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_equal_the_published_splitmix64_sequence() {
        // First outputs of the reference implementation for state 1234567.
        let stream = Stream { key: 1_234_567 };
        let expected = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
            4_593_380_528_125_082_431,
            16_408_922_859_458_223_821,
        ];
        for (i, bits) in expected.into_iter().enumerate() {
            assert_eq!(stream.bits(i as u64), bits);
        }
    }

    #[test]
    fn normal_moments_are_those_of_the_distribution() {
        let stream = Stream::new(3, 1);
        let draws: Vec<f64> = (0..100_000).map(|i| stream.normal(i)).collect();
        let moment = |p: i32| draws.iter().map(|v| v.powi(p)).sum::<f64>() / 1e5;
        // Five standard deviations of each sample moment.
        assert!(moment(1).abs() < 0.016, "mean {}", moment(1));
        assert!((moment(2) - 1.0).abs() < 0.023, "variance {}", moment(2));
        assert!(moment(3).abs() < 0.062, "skewness {}", moment(3));
        assert!((moment(4) - 3.0).abs() < 0.16, "kurtosis {}", moment(4));
    }

    #[test]
    fn unit_and_below_fill_their_ranges() {
        let stream = Stream::new(9, 0);
        let mut counts = [0; 7];
        for i in 0..70_000 {
            let u = stream.unit(i);
            assert!(u > 0.0 && u <= 1.0);
            counts[stream.below(i, 7) as usize] += 1;
        }
        // Five standard deviations around 10,000.
        assert!(
            counts.iter().all(|&c: &i32| (c - 10_000).abs() < 470),
            "{counts:?}"
        );
    }

    #[test]
    fn streams_and_seeds_differ() {
        let first = |seed, stream| Stream::new(seed, stream).bits(0);
        let all = [
            first(0, 0),
            first(0, 1),
            first(1, 0),
            first(1, 1),
            first(2, 0),
        ];
        for (i, a) in all.iter().enumerate() {
            assert!(all[i + 1..].iter().all(|b| a != b));
        }
    }
}
