//! A small training: convolution, batch norm, ReLU, convolution, linear layer,
//! squared error, backward, gradient descent.
//!
//! Convolutions and the linear layer, which is a convolution with the extent of
//! its input, run on the backend, and so does batch norm. ReLU, the loss, casts
//! and the update are computed here, element by element or in a fixed order, so
//! they give the same bits for the same bits. In mixed precision every operand and result
//! of a convolution is fp16 and the weights are kept in fp32, as autocast has
//! it; there is no loss scaling, as in the report.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::trace::{Entry, LOSS, Label, Trace, UPDATE};
use crate::backend::batch_norm::BatchNorm;
use crate::backend::{Backend, RunOptions};
use crate::batch_norm::{self as norm, Output, Pass};
use crate::candidate::Candidate;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::fill::{Fill, FillKind, Inputs};
use crate::outcome::Outcome;
use crate::problem::{Compute, ConvProblem, Direction, Role};
use crate::tensor::Tensor;

/// Sizes of the network and length of the training.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Size {
    /// Batch size.
    pub batch: usize,
    /// Channels of the input and of both convolutions' outputs.
    pub channels: [usize; 3],
    /// Height and width.
    pub side: usize,
    /// Outputs of the linear layer.
    pub classes: usize,
    /// Training steps.
    pub steps: usize,
    /// Whether filter gradients of type fp16 are added up in fp16, as atomic
    /// additions to a result of that type are.
    pub half_sums: bool,
}

/// Types of the training.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Precision {
    /// fp32 throughout: opt level O0.
    Single,
    /// fp16 operands and results of convolutions: opt level O1.
    Mixed,
}

/// A layer that convolves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Layer {
    /// 3×3, before the batch norm.
    Conv1,
    /// 3×3, after the ReLU.
    Conv2,
    /// All features to all classes.
    Linear,
}

/// A convolution of the training step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operation {
    /// The layer.
    pub layer: Layer,
    /// Its pass.
    pub direction: Direction,
}

/// The algorithm of every convolution, by [`Operation`]'s name.
pub type Plan = BTreeMap<String, Chosen>;

/// The algorithm of one convolution.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chosen {
    /// The candidate's text.
    pub candidate: String,
    /// Whether its bits may differ from run to run, by its own word.
    pub nondeterministic: bool,
}

/// Step size of the gradient descent.
const RATE: f64 = 0.02;

impl Precision {
    /// Both.
    pub const ALL: [Precision; 2] = [Precision::Single, Precision::Mixed];

    /// Type of what convolutions and batch norm read and write.
    pub fn dtype(self) -> DType {
        match self {
            Precision::Single => DType::Fp32,
            Precision::Mixed => DType::Fp16,
        }
    }

    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Precision::Single => "fp32",
            Precision::Mixed => "mixed",
        }
    }
}

impl Chosen {
    /// One that promises the same bits in every run.
    pub fn steady(candidate: &str) -> Self {
        Chosen {
            candidate: candidate.to_owned(),
            nondeterministic: false,
        }
    }

    /// What is computed here, in a fixed order.
    fn host() -> Self {
        Chosen::steady("host")
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let layer = match self.layer {
            Layer::Conv1 => "conv1",
            Layer::Conv2 => "conv2",
            Layer::Linear => "linear",
        };
        write!(f, "{layer} {}", self.direction.name())
    }
}

impl Operation {
    /// All convolutions of a step, in order. The input needs no gradient.
    pub fn all() -> Vec<Operation> {
        use Direction::{BwdData, BwdFilter, Fwd};
        let of = |layer, direction| Operation { layer, direction };
        vec![
            of(Layer::Conv1, Fwd),
            of(Layer::Conv2, Fwd),
            of(Layer::Linear, Fwd),
            of(Layer::Linear, BwdFilter),
            of(Layer::Linear, BwdData),
            of(Layer::Conv2, BwdFilter),
            of(Layer::Conv2, BwdData),
            of(Layer::Conv1, BwdFilter),
        ]
    }

    /// What it computes.
    pub fn problem(self, size: &Size, precision: Precision) -> ConvProblem {
        let [input, hidden, features] = size.channels;
        let side = [size.side; 2];
        let mut problem = match self.layer {
            Layer::Conv1 => ConvProblem::new(input, hidden, &side, &[3, 3]),
            Layer::Conv2 => ConvProblem::new(hidden, features, &side, &[3, 3]),
            Layer::Linear => ConvProblem::new(features, size.classes, &side, &side),
        }
        .with_type(precision.dtype());
        problem.n = size.batch;
        problem.direction = self.direction;
        let filter = self.direction == Direction::BwdFilter;
        if size.half_sums && filter && precision == Precision::Mixed {
            problem.compute = Compute::Fp16;
        }
        if self.layer != Layer::Linear {
            problem.pad_before = vec![1, 1];
            problem.pad_after = vec![1, 1];
        }
        problem
    }
}

/// Where a training runs.
pub struct Lab<'a> {
    /// Convolutions.
    pub convolutions: &'a mut dyn Backend,
    /// Batch norm.
    pub norm: &'a mut dyn BatchNorm,
}

/// Trains with data and first weights of `seed`; returns every tensor computed.
pub fn train(
    lab: &mut Lab<'_>,
    size: &Size,
    precision: Precision,
    plan: &Plan,
    seed: u64,
) -> Result<Trace> {
    let mut training = Training {
        lab,
        size,
        precision,
        plan,
        trace: Vec::new(),
        step: 0,
        weights: Weights::new(size, seed),
    };
    let (x, target) = data(size, seed);
    for step in 1..=size.steps {
        training.step = step;
        training.step(&x, &target)?;
    }
    Ok(training.trace)
}

/// Master weights, fp32.
struct Weights {
    filters: [Tensor; 3],
    scale: Tensor,
    bias: Tensor,
}

impl Weights {
    /// Normal filters of such a size that activations keep theirs.
    fn new(size: &Size, seed: u64) -> Self {
        let filters = [Layer::Conv1, Layer::Conv2, Layer::Linear].map(|layer| {
            let direction = Direction::Fwd;
            let operation = Operation { layer, direction };
            let problem = operation.problem(size, Precision::Single);
            let inputs = generate(&problem, seed.wrapping_add(layer as u64));
            let scale = 1.0 / (problem.reduction_length() as f64).sqrt();
            map(&inputs.second, |v| v * scale)
        });
        let parameter =
            |value| Tensor::from_fn(DType::Fp32, &[1, size.channels[1], 1, 1], |_| value);
        Weights {
            filters,
            scale: parameter(1.0),
            bias: parameter(0.0),
        }
    }
}

fn generate(problem: &ConvProblem, seed: u64) -> Inputs {
    let kind = FillKind::Normal;
    Inputs::generate(problem, Fill { kind, seed })
}

/// The batch and what the network is to make of it, both normal.
fn data(size: &Size, seed: u64) -> (Tensor, Tensor) {
    let of = |layer, direction| {
        let operation = Operation { layer, direction };
        generate(
            &operation.problem(size, Precision::Single),
            seed.wrapping_add(3),
        )
    };
    let x = of(Layer::Conv1, Direction::Fwd).first;
    let target = of(Layer::Linear, Direction::BwdFilter).second;
    (x, target)
}

struct Training<'a, 'b> {
    lab: &'a mut Lab<'b>,
    size: &'a Size,
    precision: Precision,
    plan: &'a Plan,
    trace: Trace,
    step: usize,
    weights: Weights,
}

/// What the backward pass needs of the forward pass.
struct Forward {
    filters: [Tensor; 3],
    normed: norm::Inputs,
    saved: [Tensor; 2],
    x: Tensor,
    y: Tensor,
    hidden: Tensor,
    features: Tensor,
    result: Tensor,
}

impl Training<'_, '_> {
    fn step(&mut self, x: &Tensor, target: &Tensor) -> Result<()> {
        let forward = self.forward(x)?;
        let gradient = self.loss(&forward.result, target);
        let gradients = self.backward(&forward, gradient)?;
        self.update(gradients);
        Ok(())
    }

    fn forward(&mut self, x: &Tensor) -> Result<Forward> {
        use Direction::Fwd;
        let x = self.cast(x);
        let filters = self.weights.filters.clone().map(|w| self.cast(&w));
        let conv1 = self.convolve(Layer::Conv1, Fwd, &x, &filters[0])?;
        let (normed, mut outputs) = self.normalise(conv1)?;
        let y = taken(&mut outputs, Output::Y)?;
        let saved = [
            taken(&mut outputs, Output::SavedMean)?,
            taken(&mut outputs, Output::SavedInverse)?,
        ];
        let hidden = map(&y, |v| v.max(0.0));
        self.keep("relu", "y", &Chosen::host(), &hidden);
        let features = self.convolve(Layer::Conv2, Fwd, &hidden, &filters[1])?;
        let result = self.convolve(Layer::Linear, Fwd, &features, &filters[2])?;
        Ok(Forward {
            filters,
            normed,
            saved,
            x,
            y,
            hidden,
            features,
            result,
        })
    }

    /// Half the mean squared distance; returns its gradient.
    fn loss(&mut self, result: &Tensor, target: &Tensor) -> Tensor {
        let count = result.len() as f64;
        let distance = |i: usize| result.get(i) - target.get(i);
        let squares: f64 = (0..result.len()).map(|i| distance(i).powi(2)).sum();
        let loss = Tensor::from_values(DType::Fp32, &[1, 1], &[squares / count / 2.0]);
        self.keep(LOSS, LOSS, &Chosen::host(), &loss);
        let gradient = |i: usize| distance(i) / count;
        let gradient = Tensor::from_fn(result.dtype(), result.dims(), gradient);
        self.keep(LOSS, "dy", &Chosen::host(), &gradient);
        gradient
    }

    /// Gradients of the filters, the scale and the bias.
    fn backward(&mut self, forward: &Forward, dy: Tensor) -> Result<([Tensor; 3], [Tensor; 2])> {
        use Direction::{BwdData, BwdFilter};
        let filters = &forward.filters;
        let linear = self.convolve(Layer::Linear, BwdFilter, &forward.features, &dy)?;
        let dy = self.convolve(Layer::Linear, BwdData, &filters[2], &dy)?;
        let conv2 = self.convolve(Layer::Conv2, BwdFilter, &forward.hidden, &dy)?;
        let dy = self.convolve(Layer::Conv2, BwdData, &filters[1], &dy)?;
        let passed = |i: usize| {
            if forward.y.get(i) > 0.0 {
                dy.get(i)
            } else {
                0.0
            }
        };
        let dy = Tensor::from_fn(dy.dtype(), dy.dims(), passed);
        self.keep("relu backward", "dx", &Chosen::host(), &dy);
        let inputs = forward.normed.backward(dy, Some(forward.saved.clone()));
        let mut outputs = self.run_norm("batch norm backward", &inputs)?;
        let dx = taken(&mut outputs, Output::Dx)?;
        let parameters = [
            taken(&mut outputs, Output::Dscale)?,
            taken(&mut outputs, Output::Dbias)?,
        ];
        let conv1 = self.convolve(Layer::Conv1, BwdFilter, &forward.x, &dx)?;
        Ok(([conv1, conv2, linear], parameters))
    }

    /// Gradient descent, in fp32 but for the product's rounding.
    fn update(&mut self, (filters, [dscale, dbias]): ([Tensor; 3], [Tensor; 2])) {
        let old = &self.weights;
        let updated = Weights {
            filters: std::array::from_fn(|i| descended(&old.filters[i], &filters[i])),
            scale: descended(&old.scale, &dscale),
            bias: descended(&old.bias, &dbias),
        };
        self.weights = updated;
        for (i, layer) in ["conv1 w", "conv2 w", "linear w"].into_iter().enumerate() {
            self.keep(
                UPDATE,
                layer,
                &Chosen::host(),
                &self.weights.filters[i].clone(),
            );
        }
        self.keep(
            UPDATE,
            "scale",
            &Chosen::host(),
            &self.weights.scale.clone(),
        );
        self.keep(UPDATE, "bias", &Chosen::host(), &self.weights.bias.clone());
    }

    fn cast(&self, tensor: &Tensor) -> Tensor {
        let dtype = self.precision.dtype();
        Tensor::from_fn(dtype, tensor.dims(), |i| tensor.get(i))
    }

    fn keep(&mut self, operation: &str, tensor: &str, via: &Chosen, value: &Tensor) {
        self.trace.push(Entry {
            label: Label {
                step: self.step,
                operation: operation.to_owned(),
                tensor: tensor.to_owned(),
                via: via.candidate.clone(),
                nondeterministic: via.nondeterministic,
            },
            value: value.clone(),
        });
    }

    fn convolve(
        &mut self,
        layer: Layer,
        direction: Direction,
        first: &Tensor,
        second: &Tensor,
    ) -> Result<Tensor> {
        let operation = Operation { layer, direction };
        let problem = operation.problem(self.size, self.precision);
        let name = operation.to_string();
        let via = self.plan.get(&name).ok_or_else(|| {
            Error::internal(format!("the plan of a training has nothing for '{name}'"))
        })?;
        let inputs = inputs(problem, first, second);
        let candidate = via.candidate.parse()?;
        let result = convolution(self.lab.convolutions, &inputs, &candidate)?;
        self.keep(&name, tensor_name(direction), via, &result);
        Ok(result)
    }

    fn normalise(&mut self, x: Tensor) -> Result<(norm::Inputs, norm::Outputs)> {
        let problem = norm::Problem::new(
            Pass::Train,
            self.size.batch,
            self.size.channels[1],
            &[self.size.side; 2],
        )
        .with_type(self.precision.dtype());
        let fresh = norm::Inputs::from_x(&problem, norm::Fill::plain(), |i| x.get(i));
        let inputs = norm::Inputs {
            scale: self.weights.scale.clone(),
            bias: self.weights.bias.clone(),
            ..fresh
        };
        let outputs = self.run_norm("batch norm", &inputs)?;
        Ok((inputs, outputs))
    }

    fn run_norm(&mut self, operation: &str, inputs: &norm::Inputs) -> Result<norm::Outputs> {
        let candidates = self.lab.norm.candidates(&inputs.problem);
        let candidate = *candidates
            .first()
            .ok_or_else(|| Error::environment("this backend has no batch norm"))?;
        let options = RunOptions { repeats: 0 };
        let outputs = match self.lab.norm.run(inputs, candidate, &options)? {
            norm::Outcome::Ran(seen) => seen.outputs,
            other => {
                return Err(Error::environment(format!(
                    "{candidate} does not run for {operation}: {other:?}"
                )));
            }
        };
        let via = Chosen::steady(&candidate.to_string());
        for (output, tensor) in outputs.iter() {
            self.keep(operation, output.name(), &via, tensor);
        }
        Ok(outputs)
    }
}

/// The name of what a direction computes.
fn tensor_name(direction: Direction) -> &'static str {
    match direction.result() {
        Role::Y => "y",
        Role::X => "dx",
        Role::W => "dw",
    }
}

/// A case whose tensors are given.
pub fn inputs(problem: ConvProblem, first: &Tensor, second: &Tensor) -> Inputs {
    let [a, b] = problem.direction.operands();
    Inputs {
        first: shaped(first, &problem.dims(a)),
        second: shaped(second, &problem.dims(b)),
        fill: Fill {
            kind: FillKind::Normal,
            seed: 0,
        },
        prior: None,
        problem,
    }
}

/// The same values with dimensions of the same product.
fn shaped(tensor: &Tensor, dims: &[usize]) -> Tensor {
    Tensor::from_bytes(tensor.dtype(), dims, tensor.bytes())
        .expect("layers hand on tensors of the size they take")
}

/// One run of one convolution. What was chosen to be run must run.
pub fn convolution(backend: &mut dyn Backend, inputs: &Inputs, via: &Candidate) -> Result<Tensor> {
    match backend.run(inputs, via, &RunOptions { repeats: 0 })? {
        Outcome::Ran(seen) => Ok(seen.result),
        other => Err(Error::environment(format!(
            "{via} was chosen for '{}' and does not run: {other:?}",
            inputs.problem
        ))),
    }
}

fn taken(outputs: &mut norm::Outputs, output: Output) -> Result<Tensor> {
    let tensor = outputs.get_mut(output).map(|t| t.clone());
    tensor.ok_or_else(|| Error::internal(format!("batch norm gave no {}", output.name())))
}

fn map(tensor: &Tensor, f: impl Fn(f64) -> f64 + Sync) -> Tensor {
    Tensor::from_fn(tensor.dtype(), tensor.dims(), |i| f(tensor.get(i)))
}

fn descended(weight: &Tensor, gradient: &Tensor) -> Tensor {
    Tensor::from_fn(DType::Fp32, weight.dims(), |i| {
        weight.get(i) - RATE * gradient.get(i)
    })
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::backend::batch_norm;
    use crate::backend::host::{HostBackend, HostOptions};
    use crate::backend::open::{BackendKind, BackendSpec};
    use crate::study::reproducibility::trace::{identical, losses};

    /// A network small enough for tests.
    pub const SMALL: Size = Size {
        batch: 4,
        channels: [2, 3, 4],
        side: 4,
        classes: 3,
        steps: 6,
        half_sums: true,
    };

    fn trained(precision: Precision) -> Trace {
        let mut convolutions = HostBackend::new(&HostOptions::default()).unwrap();
        let spec = BackendSpec {
            kind: BackendKind::Host,
            ..BackendSpec::default()
        };
        let mut norm = batch_norm::open(&spec).unwrap();
        let operations = Operation::all().into_iter();
        let plan = operations.map(|o| (o.to_string(), Chosen::steady("host:direct")));
        let mut lab = Lab {
            convolutions: &mut convolutions,
            norm: &mut *norm,
        };
        train(&mut lab, &SMALL, precision, &plan.collect(), 1).unwrap()
    }

    #[test]
    fn train_descends_and_repeats_bit_for_bit() {
        for precision in Precision::ALL {
            let trace = trained(precision);
            let losses = losses(&trace);
            assert_eq!(losses.len(), SMALL.steps);
            assert!(losses[5] < 0.9 * losses[0], "{losses:?}");
            assert!(identical(&trace, &trained(precision)));
        }
    }

    #[test]
    fn train_gradients_are_those_of_the_loss() {
        // The loss falls by RATE·|g|² to first order; here g is all of it.
        let trace = trained(Precision::Single);
        let of = |step: usize, operation: &str, tensor: &str| {
            let found = trace.iter().find(|e| {
                let l = &e.label;
                (l.step, l.operation.as_str(), l.tensor.as_str()) == (step, operation, tensor)
            });
            found.unwrap().value.to_f64()
        };
        let squared =
            |name: &str, tensor: &str| of(2, name, tensor).iter().map(|v| v * v).sum::<f64>();
        let gradient = squared("conv1 bwd_filter", "dw")
            + squared("conv2 bwd_filter", "dw")
            + squared("linear bwd_filter", "dw")
            + squared("batch norm backward", "dscale")
            + squared("batch norm backward", "dbias");
        let fall = of(2, LOSS, LOSS)[0] - of(3, LOSS, LOSS)[0];
        let expected = RATE * gradient;
        assert!(
            fall > 0.5 * expected && fall < 1.2 * expected,
            "{fall} {expected}"
        );
    }
}
