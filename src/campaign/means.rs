//! Mean errors of whole results: what users quote when they compare
//! precisions, `mean |y16 − y32|`. Never a verdict.

use serde::{Deserialize, Serialize};

use crate::backend::{Backend, Combination, Listing, RunOptions, Steps, Support};
use crate::candidate::Candidate;
use crate::dtype::DType;
use crate::error::Result;
use crate::fill::{Fill, Inputs};
use crate::oracle::{self, Class, Sample};
use crate::outcome::Outcome;
use crate::problem::ConvProblem;
use crate::record::measured;
use crate::tensor::Tensor;

/// Above this many multiply-adds, a mean is taken over a sample: below, the
/// exact values of all outputs cost less than those of [`SAMPLED`] single ones.
const ALL_UP_TO: u64 = 1 << 34;

/// Sampled outputs, drawn evenly: mean |error| of a normal error is then known
/// to 0.6% (standard deviation of the mean, sqrt(pi/2 − 1)/sqrt(2^14)).
const SAMPLED: usize = 1 << 14;

/// Values of a case that results are compared with, at outputs chosen evenly.
#[derive(Clone, Debug)]
pub struct Baseline {
    /// (logical offset, value) of outputs with a finite value.
    values: Vec<(usize, f64)>,
    /// Elements of the result.
    total: usize,
}

impl Baseline {
    /// Exact values of `problem` with all its tensors of `dtype`: the same
    /// draws of the fill, rounded to that type. `None` keeps the types.
    pub fn exact(problem: &ConvProblem, fill: Fill, dtype: Option<DType>) -> Self {
        let problem = match dtype {
            Some(dtype) => problem.clone().with_type(dtype),
            None => problem.clone(),
        };
        let inputs = Inputs::generate(&problem, fill);
        let reference = oracle::reference(&inputs, &sample(&problem));
        let finite = reference
            .outputs
            .iter()
            .filter(|o| o.class == Class::Finite);
        Baseline {
            values: finite.map(|o| (o.index, o.value.hi)).collect(),
            total: reference.total,
        }
    }

    /// All values of another result.
    pub fn result(result: &Tensor) -> Self {
        let values = result.to_f64().into_iter().enumerate();
        Baseline {
            values: values.filter(|(_, v)| v.is_finite()).collect(),
            total: result.len(),
        }
    }

    /// Mean |result − value|; `None` when there is nothing to average.
    pub fn mean_error(&self, result: &Tensor) -> Option<f64> {
        let errors = self.values.iter().map(|&(i, v)| (result.get(i) - v).abs());
        (!self.values.is_empty()).then(|| errors.sum::<f64>() / self.values.len() as f64)
    }

    /// How many outputs the mean is over, in words.
    pub fn basis(&self) -> String {
        match self.values.len() == self.total {
            true => format!("all {} outputs", self.total),
            false => format!("{} of {} outputs", self.values.len(), self.total),
        }
    }
}

/// All outputs where that is cheap, else outputs spread evenly, so that borders
/// count for no more than their share.
fn sample(problem: &ConvProblem) -> Sample {
    let total = problem.elements(problem.direction.result());
    if problem.macs() <= ALL_UP_TO || total <= SAMPLED {
        return Sample::All;
    }
    let stride = coprime_stride(total);
    let mut chosen: Vec<usize> = (0..SAMPLED)
        .map(|i| (i as u128 * stride as u128 % total as u128) as usize)
        .collect();
    chosen.sort_unstable();
    Sample::Some(chosen)
}

/// A step through `total` places that visits all before one twice: near the
/// golden section of it, which spreads any number of steps evenly (Weyl).
fn coprime_stride(total: usize) -> usize {
    let golden = (total as f64 * 0.618_033_988_749_894_9) as usize;
    (golden.max(1)..).find(|&s| gcd(s, total) == 1).unwrap_or(1)
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Mean errors of one candidate's result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Means {
    /// Text form of the candidate.
    pub candidate: String,
    /// What the means are over, in words.
    pub basis: String,
    /// One per reference.
    pub values: Vec<Mean>,
}

/// Mean |y − reference|; `None` when there is nothing to average.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Mean(#[serde(with = "measured")] pub Option<f64>);

/// A backend that hands on to another and measures every result it sees.
pub struct Measured<'a> {
    inner: &'a mut dyn Backend,
    references: Vec<Baseline>,
    /// What was measured, one entry per candidate.
    pub means: Vec<Means>,
}

impl<'a> Measured<'a> {
    /// Measures results against each of `references`.
    pub fn new(inner: &'a mut dyn Backend, references: Vec<Baseline>) -> Self {
        Measured {
            inner,
            references,
            means: Vec::new(),
        }
    }

    /// Per reference the mean error of a candidate; empty when it did not run.
    pub fn of(&self, candidate: &str) -> Vec<Option<f64>> {
        let own = self.means.iter().find(|m| m.candidate == candidate);
        own.map(|m| m.values.iter().map(|&Mean(v)| v).collect())
            .unwrap_or_default()
    }

    /// The first result of a candidate counts: later ones are of another form
    /// of the case.
    fn measure(&mut self, candidate: &Candidate, result: &Tensor) {
        let Some(first) = self.references.first() else {
            return;
        };
        let candidate = candidate.to_string();
        if self.means.iter().any(|m| m.candidate == candidate) {
            return;
        }
        let values = self.references.iter().map(|r| Mean(r.mean_error(result)));
        self.means.push(Means {
            candidate,
            basis: first.basis(),
            values: values.collect(),
        });
    }
}

impl Backend for Measured<'_> {
    fn combination(&self) -> &Combination {
        self.inner.combination()
    }

    fn list(&mut self, problem: &ConvProblem, steps: &mut Steps<'_>) -> Result<Vec<Listing>> {
        self.inner.list(problem, steps)
    }

    fn support(&mut self, problem: &ConvProblem, candidate: &Candidate) -> Result<Support> {
        self.inner.support(problem, candidate)
    }

    fn list_one(
        &mut self,
        problem: &ConvProblem,
        candidate: &Candidate,
        steps: &mut Steps<'_>,
    ) -> Result<Support> {
        self.inner.list_one(problem, candidate, steps)
    }

    fn run(
        &mut self,
        inputs: &Inputs,
        candidate: &Candidate,
        options: &RunOptions,
    ) -> Result<Outcome> {
        let outcome = self.inner.run(inputs, candidate, options)?;
        if let Outcome::Ran(seen) = &outcome {
            self.measure(candidate, &seen.result);
        }
        Ok(outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::candidate::Repro;

    fn exact(line: &str, dtype: Option<DType>) -> (Baseline, ConvProblem) {
        let repro: Repro = line.parse().unwrap();
        let exact = Baseline::exact(&repro.problem, repro.fill, dtype);
        (exact, repro.problem)
    }

    #[test]
    fn mean_error_of_shifted_exact_values_is_the_shift() {
        let (exact, problem) = exact("fwd c=3 k=2 in=5x4 ker=3x3 type=fp64 fill=normal:3", None);
        let values: Vec<_> = exact.values.iter().map(|&(_, v)| v + 0.25).collect();
        let dims = problem.dims(problem.direction.result());
        let result = Tensor::from_values(DType::Fp64, &dims, &values);
        let mean = exact.mean_error(&result).unwrap();
        assert!((mean - 0.25).abs() < 1e-12, "{mean}");
        assert_eq!(exact.basis(), "all 12 outputs");
    }

    #[test]
    fn exact_against_another_type_uses_the_same_draws_unrounded() {
        let line = "fwd c=8 k=4 in=6x6 ker=3x3 type=fp16 fill=normal:7";
        let (half, _) = exact(line, None);
        let (single, _) = exact(line, Some(DType::Fp32));
        let pairs = || half.values.iter().zip(&single.values);
        assert!(pairs().all(|(a, b)| a.1 != b.1));
        // 72 products of unit variance; operands differ by up to 2^-11 each.
        let worst = pairs().map(|(a, b)| (a.1 - b.1).abs()).fold(0.0, f64::max);
        assert!(worst < 72.0 * 16.0 * 2.0 * 4.9e-4, "{worst}");
    }

    #[test]
    fn coprime_stride_visits_every_place_once() {
        for total in [1, 2, 7, 64, 360] {
            let stride = coprime_stride(total);
            let mut seen: Vec<_> = (0..total).map(|i| i * stride % total).collect();
            seen.sort_unstable();
            assert!(seen.into_iter().eq(0..total), "{total}");
        }
    }
}
