//! The V100's fault, planted in software: what it does to the figure, and which
//! ways around it work.

use serde::Serialize;

use super::reported::{COMPARISONS, EXCEPTION, Reported, Scale};
use crate::backend::Steps;
use crate::backend::host::{HostBackend, HostOptions, carrier};
use crate::campaign::means::{Baseline, Measured};
use crate::candidate::{Candidate, Repro};
use crate::dtype::DType;
use crate::error::Result;
use crate::fill::{Fill, FillKind, Inputs};
use crate::problem::{ConvProblem, Role};
use crate::study::SCHEMA;
use crate::tensor::Tensor;
use crate::trial::{self, Event, TrialOptions};

/// The planted fault: fp16, (3,1,1), both channel counts multiples of 8.
pub const FAULT: &str = "conv3d_8x8";

/// One way to run the exceptional comparison where the fault is.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Way {
    /// [`SCHEMA`].
    pub schema: u32,
    /// In words.
    pub way: &'static str,
    /// The verdict on its result.
    pub verdict: String,
    /// Mean |y − exact result in fp32|.
    pub figure: Option<f64>,
    /// The repro line; padded data are zero in the channels added.
    pub repro: String,
}

/// Runs the comparison with the fault planted, as reported and in every way
/// around it.
pub fn ways(scale: Scale, seed: u64) -> Result<Vec<Way>> {
    let reported = &COMPARISONS[EXCEPTION];
    let half = Case::new(reported, scale, DType::Fp16, seed);
    let single = Case::new(reported, scale, DType::Fp32, seed);
    let around = carrier(Some(FAULT));
    let other: Candidate = "host:direct".parse()?;
    Ok(vec![
        half.run("as reported", &around, [0, 0])?,
        single.run("in fp32", &around, [0, 0])?,
        half.run("another algorithm, chosen by name", &other, [0, 0])?,
        half.run("one zero channel more in the input", &around, [1, 0])?,
        half.run("one zero channel more in the output", &around, [0, 1])?,
    ])
}

struct Case {
    problem: ConvProblem,
    fill: Fill,
}

impl Case {
    fn new(reported: &Reported, scale: Scale, dtype: DType, seed: u64) -> Self {
        let problem = reported.problem(scale, dtype);
        let kind = FillKind::Normal;
        Case {
            problem: ConvProblem { n: 1, ..problem },
            fill: Fill { kind, seed },
        }
    }

    /// Judges a candidate on the case with so many zero channels added to x and y.
    fn run(&self, way: &'static str, via: &Candidate, more: [usize; 2]) -> Result<Way> {
        let inputs = self.padded(more);
        let repro = Repro {
            problem: inputs.problem.clone(),
            fill: self.fill,
            via: Some(via.clone()),
        };
        let mut backend = HostBackend::new(&HostOptions::default())?;
        let baselines = self.baselines();
        let mut measured = Measured::new(&mut backend, baselines);
        let options = TrialOptions {
            repeats: 0,
            outputs: usize::MAX,
            ..TrialOptions::default()
        };
        let mut verdict = String::new();
        let listing = trial::listing(&mut measured, &repro, &mut Steps::unwatched())?;
        trial::run_inputs(
            &mut measured,
            &repro,
            &listing,
            inputs,
            &options,
            &mut |event| {
                if let Event::Done(record) = event {
                    verdict = record.verdict;
                }
            },
        )?;
        let means = measured.of(&via.to_string());
        Ok(Way {
            schema: SCHEMA,
            way,
            verdict,
            figure: means.first().copied().flatten(),
            repro: repro.to_string(),
        })
    }

    /// The exact fp32 result. Channels added to y come last in the only sample,
    /// so the offsets of the others stay.
    fn baselines(&self) -> Vec<Baseline> {
        vec![Baseline::exact(&self.problem, self.fill, Some(DType::Fp32))]
    }

    fn padded(&self, more: [usize; 2]) -> Inputs {
        let inputs = Inputs::generate(&self.problem, self.fill);
        let mut problem = self.problem.clone();
        problem.c += more[0];
        problem.k += more[1];
        Inputs {
            first: padded(&inputs.first, &problem.dims(Role::X)),
            second: padded(&inputs.second, &problem.dims(Role::W)),
            problem,
            ..inputs
        }
    }
}

/// The tensor with zeros in what `dims` has more in its first two dimensions.
fn padded(tensor: &Tensor, dims: &[usize]) -> Tensor {
    let inner: usize = dims[2..].iter().product();
    let (rows, columns) = (tensor.dims()[0], tensor.dims()[1]);
    Tensor::from_fn(tensor.dtype(), dims, |i| {
        let (row, column) = (i / inner / dims[1], i / inner % dims[1]);
        match row < rows && column < columns {
            true => tensor.get((row * columns + column) * inner + i % inner),
            false => 0.0,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padded_tensor_keeps_its_values_and_adds_zeros() {
        let tensor = Tensor::from_values(DType::Fp16, &[1, 2, 2], &[1.0, 2.0, 3.0, 4.0]);
        let more = padded(&tensor, &[2, 3, 2]);
        assert_eq!(more.to_f64()[..7], [1.0, 2.0, 3.0, 4.0, 0.0, 0.0, 0.0]);
        assert_eq!(padded(&tensor, &[1, 2, 2]), tensor);
    }
}
