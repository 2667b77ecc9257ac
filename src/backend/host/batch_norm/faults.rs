//! Faults that batch normalisations of real libraries had, or might have.

use std::str::FromStr;

use super::arithmetic::Moments;
use crate::batch_norm::{Mode, Problem};
use crate::dtype::{DType, FP16};
use crate::error::{Error, Result};
use crate::problem::Layout;

/// A fault, planted in every algorithm of the backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// The running variance takes the biased variance.
    BiasedRunning,
    /// y is normalised by the unbiased variance.
    UnbiasedInverse,
    /// 1/(sqrt(σ²) + ε).
    EpsilonOutside,
    /// Mean and variance are kept in fp16.
    HalfStatistics,
    /// Running statistics take 1 − f of what is new.
    FactorSwapped,
    /// The last value of a group of an odd number is left out.
    LastDropped,
    /// NHWC data takes its parameters as if it were NCHW.
    WrongChannel,
    /// Running statistics stay as they were.
    RunningStale,
    /// The number of values is kept in 16 bits.
    CountOverflow,
    /// dscale and dbias change places.
    GradientsSwapped,
    /// dx without the mean of dy.
    MeanTermMissing,
    /// dx without the slope of dy on x̂.
    SlopeTermMissing,
    /// y is rounded to fp16's range and precision before its own type.
    HalfOutput,
    /// The variance is off by one part in a thousand.
    VarianceScaled,
}

impl Fault {
    /// All of them.
    pub const ALL: [Fault; 14] = [
        Fault::BiasedRunning,
        Fault::UnbiasedInverse,
        Fault::EpsilonOutside,
        Fault::HalfStatistics,
        Fault::FactorSwapped,
        Fault::LastDropped,
        Fault::WrongChannel,
        Fault::RunningStale,
        Fault::CountOverflow,
        Fault::GradientsSwapped,
        Fault::MeanTermMissing,
        Fault::SlopeTermMissing,
        Fault::HalfOutput,
        Fault::VarianceScaled,
    ];

    /// The name in `--fault`.
    pub fn name(self) -> &'static str {
        match self {
            Fault::BiasedRunning => "bn_biased_running",
            Fault::UnbiasedInverse => "bn_unbiased_inverse",
            Fault::EpsilonOutside => "bn_epsilon_outside",
            Fault::HalfStatistics => "bn_half_statistics",
            Fault::FactorSwapped => "bn_factor_swapped",
            Fault::LastDropped => "bn_last_dropped",
            Fault::WrongChannel => "bn_wrong_channel",
            Fault::RunningStale => "bn_running_stale",
            Fault::CountOverflow => "bn_count_overflow",
            Fault::GradientsSwapped => "bn_gradients_swapped",
            Fault::MeanTermMissing => "bn_mean_term_missing",
            Fault::SlopeTermMissing => "bn_slope_term_missing",
            Fault::HalfOutput => "bn_half_output",
            Fault::VarianceScaled => "bn_variance_scaled",
        }
    }

    /// What it does to computed statistics of `count` values.
    pub(super) fn moments(self, moments: &mut Moments, count: usize) {
        match self {
            Fault::HalfStatistics => {
                moments.mean = FP16.round(moments.mean);
                moments.variance = FP16.round(moments.variance);
            }
            Fault::CountOverflow => {
                let kept = f64::from(count as u16);
                let factor = count as f64 / kept;
                moments.mean *= factor;
                moments.variance *= factor;
            }
            Fault::VarianceScaled => moments.variance *= 1.001,
            _ => {}
        }
    }

    /// What it does to a result.
    pub(super) fn y(self, y: f64, dtype: DType) -> f64 {
        match self {
            Fault::HalfOutput if dtype != DType::Fp16 => FP16.round(y),
            _ => y,
        }
    }
}

/// The group of the element that lies where element `i` of NHWC data does, were
/// it NCHW data.
pub(super) fn wrong_channel(problem: &Problem, i: usize) -> usize {
    if problem.layout == Layout::Nchw || problem.mode == Mode::PerActivation {
        return problem.group(i);
    }
    let (plane, channels) = (problem.plane(), problem.c);
    let (image, channel, at) = (i / plane / channels, i / plane % channels, i % plane);
    problem.group((image * plane + at) * channels + channel)
}

impl FromStr for Fault {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let found = Fault::ALL.into_iter().find(|fault| fault.name() == text);
        found.ok_or_else(|| {
            let known: Vec<_> = Fault::ALL.iter().map(|fault| fault.name()).collect();
            let words = format!("unknown fault '{text}'; known: {}", known.join(", "));
            Error::usage(words)
        })
    }
}
