//! How often the algorithms of the backward pass give other bits.

use serde::Serialize;

use super::network::{Operation, Precision, Size, convolution};
use super::plan::{Choice, choices};
use crate::backend::Backend;
use crate::error::Result;
use crate::fill::{Fill, FillKind, Inputs};
use crate::problem::Direction;
use crate::study::SCHEMA;
use crate::study::statistics::Spread;
use crate::tensor::Tensor;

/// One algorithm on one operation: a row of `rates.csv`.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Rate {
    /// [`SCHEMA`].
    pub schema: u32,
    /// `fp32` or `mixed`.
    pub precision: String,
    /// The operation.
    pub operation: String,
    /// The algorithm or engine.
    pub candidate: String,
    /// Whether it is documented, or says, that its bits may differ.
    pub nondeterministic: bool,
    /// Runs with the same operands after the first.
    pub runs: u32,
    /// Of these, with other bits than the first.
    pub differed: u32,
    /// Largest |difference| from the first run.
    pub largest: f64,
    /// The same as a share of the root mean square of the result.
    pub largest_relative: f64,
    /// Why it did not run to the end, if so.
    pub stopped: Option<String>,
}

/// Runs of those that may differ, and of those that must not.
#[derive(Clone, Copy, Debug)]
pub struct Runs {
    /// Of an algorithm that may give other bits.
    pub nondeterministic: u32,
    /// Of one that must not.
    pub deterministic: u32,
}

/// Measures every algorithm of the backward operations.
pub fn measure(
    backend: &mut dyn Backend,
    size: &Size,
    precision: Precision,
    runs: Runs,
    seed: u64,
) -> Result<Vec<Rate>> {
    let backward = |o: &Operation| o.direction != Direction::Fwd;
    let mut rates = Vec::new();
    for operation in Operation::all().into_iter().filter(backward) {
        let problem = operation.problem(size, precision);
        let kind = FillKind::Normal;
        let inputs = Inputs::generate(&problem, Fill { kind, seed });
        for choice in choices(backend, &problem)? {
            let blank = Rate {
                schema: SCHEMA,
                precision: precision.name().to_owned(),
                operation: operation.to_string(),
                candidate: choice.candidate.to_string(),
                nondeterministic: choice.nondeterministic,
                ..Rate::default()
            };
            rates.push(rate(backend, &inputs, &choice, runs, blank));
        }
    }
    Ok(rates)
}

/// The rate of one; an algorithm that does not run has none.
fn rate(
    backend: &mut dyn Backend,
    inputs: &Inputs,
    choice: &Choice,
    runs: Runs,
    mut rate: Rate,
) -> Rate {
    let count = match choice.nondeterministic {
        true => runs.nondeterministic,
        false => runs.deterministic,
    };
    let mut run = || convolution(backend, inputs, &choice.candidate);
    let first = match run() {
        Ok(first) => first,
        Err(error) => {
            rate.stopped = Some(error.to_string());
            return rate;
        }
    };
    for _ in 0..count {
        match run() {
            Ok(again) => rate.add(&first, &again),
            Err(error) => {
                rate.stopped = Some(error.to_string());
                return rate;
            }
        }
    }
    rate
}

impl Rate {
    fn add(&mut self, first: &Tensor, again: &Tensor) {
        self.runs += 1;
        if first == again {
            return;
        }
        self.differed += 1;
        let (a, b) = (first.to_f64(), again.to_f64());
        let largest = a.iter().zip(&b).map(|(a, b)| (a - b).abs());
        self.largest = largest.fold(self.largest, f64::max);
        let squares: Vec<f64> = a.iter().map(|v| v * v).collect();
        self.largest_relative = self.largest / Spread::of(&squares).mean.sqrt();
    }

    /// Whether it gave other bits without being known to.
    pub fn is_finding(&self) -> bool {
        self.differed > 0 && !self.nondeterministic
    }
}
