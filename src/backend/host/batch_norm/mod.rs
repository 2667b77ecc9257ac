//! Batch normalisation in software: the algorithms a library may use, in honest
//! arithmetic, and faults that can be planted in one of them ([`faults`]).

use std::fmt;
use std::str::FromStr;
use std::time::Instant;

use crate::backend::batch_norm::{BatchNorm, Candidate};
use crate::backend::{Combination, RunOptions};
use crate::batch_norm::{Algorithm, Inputs, Observation, Outcome, Output, Outputs, Pass, Problem};
use crate::dtype::FP64;
use crate::error::{Error, Result};
use crate::tensor::Tensor;

mod arithmetic;
pub mod faults;

pub use arithmetic::Order;
use arithmetic::{Machine, Moments};
use faults::Fault;

/// An algorithm of this backend. Text form `two_pass/seq`, `welford/tree/fp64`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostCandidate {
    /// How the variance is computed.
    pub algorithm: Algorithm,
    /// How sums are ordered.
    pub order: Order,
    /// Whether everything is computed in fp64, whatever the data.
    pub wide: bool,
}

/// The host backend.
pub struct HostBatchNorm {
    combination: Combination,
    fault: Option<Fault>,
}

impl HostBatchNorm {
    /// The backend, with a fault planted in every algorithm or none; an unknown
    /// one is a usage error that lists all.
    pub fn new(fault: Option<&str>) -> Result<Self> {
        Ok(HostBatchNorm {
            combination: super::combination(),
            fault: fault.map(str::parse).transpose()?,
        })
    }
}

impl BatchNorm for HostBatchNorm {
    fn combination(&self) -> &Combination {
        &self.combination
    }

    fn candidates(&self, _problem: &Problem) -> Vec<Candidate> {
        HostCandidate::all().map(Candidate::Host).collect()
    }

    fn run(
        &mut self,
        inputs: &Inputs,
        candidate: Candidate,
        _options: &RunOptions,
    ) -> Result<Outcome> {
        let Candidate::Host(host) = candidate else {
            let words = format!("the host backend has no candidate '{candidate}'");
            return Err(Error::usage(words));
        };
        let started = Instant::now();
        let outputs = Run::new(inputs, host, self.fault).outputs();
        Ok(Outcome::Ran(Box::new(Observation {
            outputs,
            unwritten: Vec::new(),
            memory: Vec::new(),
            deviations: Vec::new(),
            overflow_reported: false,
            elapsed: started.elapsed(),
        })))
    }
}

/// One pass being computed.
struct Run<'a> {
    inputs: &'a Inputs,
    problem: &'a Problem,
    machine: Machine,
    algorithm: Algorithm,
    fault: Option<Fault>,
    x: Vec<f64>,
    dy: Vec<f64>,
}

/// What a group is normalised by.
#[derive(Clone, Copy)]
struct Group {
    moments: Moments,
    inverse: f64,
}

/// Sums of a backward pass.
#[derive(Clone, Copy)]
struct Sums {
    bias: f64,
    scale: f64,
}

impl<'a> Run<'a> {
    fn new(inputs: &'a Inputs, host: HostCandidate, fault: Option<Fault>) -> Self {
        let format = match host.wide {
            true => FP64,
            false => inputs.problem.parameter_type().format(),
        };
        Run {
            inputs,
            problem: &inputs.problem,
            machine: Machine {
                format,
                order: host.order,
            },
            algorithm: host.algorithm,
            fault,
            x: inputs.x.to_f64(),
            dy: inputs.dy.as_ref().map_or(Vec::new(), Tensor::to_f64),
        }
    }

    fn has(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    fn round(&self, value: f64) -> f64 {
        self.machine.round(value)
    }

    fn outputs(&self) -> Outputs {
        let groups: Vec<Group> = (0..self.problem.groups()).map(|g| self.group(g)).collect();
        match self.problem.pass {
            Pass::Train => self.train(&groups),
            Pass::Infer => self.infer(&groups),
            Pass::Backward => self.backward(&groups),
        }
    }

    /// Values of a group in logical order.
    fn members(&self, values: &[f64], group: usize) -> Vec<f64> {
        let count = self.problem.count();
        let taken = match self.fault {
            Some(Fault::LastDropped) if count % 2 == 1 && count > 1 => count - 1,
            _ => count,
        };
        let members = (0..taken).map(|at| values[self.problem.member(group, at)]);
        members.collect()
    }

    fn group(&self, group: usize) -> Group {
        let inputs = self.inputs;
        let given = |mean: &Tensor, variance: &Tensor| Moments {
            mean: mean.get(group),
            variance: variance.get(group),
        };
        match (self.problem.pass, &inputs.saved) {
            (Pass::Infer, _) => {
                let moments = given(&inputs.running_mean, &inputs.running_variance);
                self.rooted(moments)
            }
            (Pass::Backward, Some([mean, inverse])) => Group {
                moments: given(mean, inverse),
                inverse: inverse.get(group),
            },
            _ => self.rooted(self.moments(group)),
        }
    }

    fn moments(&self, group: usize) -> Moments {
        let members = self.members(&self.x, group);
        let mut moments = self.machine.moments(&members, self.algorithm);
        if let Some(fault) = self.fault {
            fault.moments(&mut moments, members.len());
        }
        moments
    }

    fn rooted(&self, moments: Moments) -> Group {
        let epsilon = self.round(self.problem.epsilon.0);
        let variance = match self.fault {
            Some(Fault::UnbiasedInverse) => moments.variance * bessel(self.problem.count()),
            _ => moments.variance,
        };
        let inverse = match self.fault {
            Some(Fault::EpsilonOutside) => 1.0 / (variance.sqrt() + epsilon),
            _ => 1.0 / self.round(self.round(variance + epsilon).sqrt()),
        };
        Group {
            moments,
            inverse: self.round(inverse),
        }
    }

    /// An image whose elements depend on their group.
    fn image(&self, value: impl Fn(usize, usize) -> f64) -> Tensor {
        let values: Vec<f64> = (0..self.problem.elements())
            .map(|i| value(self.parameters_of(i), i))
            .collect();
        Tensor::from_values(self.problem.dtype, &self.problem.dims(), &values)
    }

    /// The group whose parameters element `i` is given.
    fn parameters_of(&self, i: usize) -> usize {
        match self.fault {
            Some(Fault::WrongChannel) => faults::wrong_channel(self.problem, i),
            _ => self.problem.group(i),
        }
    }

    fn parameter(&self, value: impl Fn(usize) -> f64) -> Tensor {
        let values: Vec<f64> = (0..self.problem.groups()).map(value).collect();
        let dims = self.problem.parameter_dims();
        Tensor::from_values(self.problem.parameter_type(), &dims, &values)
    }

    fn y(&self, groups: &[Group]) -> Tensor {
        self.image(|group, i| {
            let scale = self.inputs.scale.get(group);
            let scaled = self.round(self.normalised(&groups[group], self.x[i]) * scale);
            let y = self.round(scaled + self.inputs.bias.get(group));
            match self.fault {
                Some(fault) => fault.y(y, self.problem.dtype),
                None => y,
            }
        })
    }

    fn normalised(&self, group: &Group, x: f64) -> f64 {
        self.round(self.round(x - group.moments.mean) * group.inverse)
    }

    fn train(&self, groups: &[Group]) -> Outputs {
        let mut outputs = Outputs::default();
        for output in self.problem.outputs() {
            outputs.push(
                output,
                match output {
                    Output::RunningMean => self.running_mean(groups),
                    Output::RunningVariance => self.running_variance(groups),
                    Output::SavedMean => self.parameter(|g| groups[g].moments.mean),
                    Output::SavedInverse => self.parameter(|g| groups[g].inverse),
                    _ => self.y(groups),
                },
            );
        }
        outputs
    }

    fn infer(&self, groups: &[Group]) -> Outputs {
        let mut outputs = Outputs::default();
        outputs.push(Output::Y, self.y(groups));
        outputs
    }

    fn running_mean(&self, groups: &[Group]) -> Tensor {
        self.parameter(|g| self.average(self.inputs.running_mean.get(g), groups[g].moments.mean))
    }

    fn running_variance(&self, groups: &[Group]) -> Tensor {
        let factor = match self.fault {
            Some(Fault::BiasedRunning) => 1.0,
            _ => bessel(self.problem.count()),
        };
        self.parameter(|g| {
            let sample = self.round(groups[g].moments.variance * factor);
            self.average(self.inputs.running_variance.get(g), sample)
        })
    }

    fn average(&self, old: f64, new: f64) -> f64 {
        let factor = match self.fault {
            Some(Fault::RunningStale) => return old,
            Some(Fault::FactorSwapped) => 1.0 - self.problem.factor.0,
            _ => self.problem.factor.0,
        };
        let factor = self.round(factor);
        let kept = self.round(self.round(1.0 - factor) * old);
        self.round(kept + self.round(factor * new))
    }

    fn backward(&self, groups: &[Group]) -> Outputs {
        let sums: Vec<Sums> = (0..groups.len())
            .map(|g| self.sums(&groups[g], g))
            .collect();
        let mut outputs = Outputs::default();
        outputs.push(Output::Dx, self.dx(groups, &sums));
        let (mut scale, mut bias) = (
            self.parameter(|g| sums[g].scale),
            self.parameter(|g| sums[g].bias),
        );
        if self.has(Fault::GradientsSwapped) {
            std::mem::swap(&mut scale, &mut bias);
        }
        outputs.push(Output::Dscale, scale);
        outputs.push(Output::Dbias, bias);
        outputs
    }

    fn sums(&self, own: &Group, group: usize) -> Sums {
        let x = self.members(&self.x, group);
        let dy = self.members(&self.dy, group);
        let product = |(x, dy): (&f64, &f64)| self.round(self.normalised(own, *x) * dy);
        let products: Vec<f64> = x.iter().zip(&dy).map(product).collect();
        Sums {
            bias: self.machine.sum(&dy, &|v| v),
            scale: self.machine.sum(&products, &|v| v),
        }
    }

    fn dx(&self, groups: &[Group], sums: &[Sums]) -> Tensor {
        let count = self.problem.count() as f64;
        self.image(|group, i| {
            let (own, sums) = (&groups[group], &sums[group]);
            let mean = match self.fault {
                Some(Fault::MeanTermMissing) => 0.0,
                _ => self.round(sums.bias / count),
            };
            let slope = match self.fault {
                Some(Fault::SlopeTermMissing) => 0.0,
                _ => self.round(sums.scale / count),
            };
            let along = self.round(self.normalised(own, self.x[i]) * slope);
            let centred = self.round(self.round(self.dy[i] - mean) - along);
            let gain = self.round(self.inputs.scale.get(group) * own.inverse);
            self.round(centred * gain)
        })
    }
}

/// m/(m − 1), which makes a biased variance unbiased; 1 where it is 0/0.
fn bessel(count: usize) -> f64 {
    count as f64 / (count as f64 - 1.0).max(1.0)
}

impl HostCandidate {
    /// All of them, plainest first.
    pub fn all() -> impl Iterator<Item = HostCandidate> {
        let orders = [Order::Sequential, Order::Tree];
        Algorithm::ALL.into_iter().flat_map(move |algorithm| {
            orders.into_iter().flat_map(move |order| {
                [false, true].map(|wide| HostCandidate {
                    algorithm,
                    order,
                    wide,
                })
            })
        })
    }
}

impl Order {
    fn name(self) -> &'static str {
        match self {
            Order::Sequential => "seq",
            Order::Tree => "tree",
        }
    }
}

impl fmt::Display for HostCandidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.algorithm.name(), self.order.name())?;
        f.write_str(if self.wide { "/fp64" } else { "" })
    }
}

impl FromStr for HostCandidate {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let found = HostCandidate::all().find(|candidate| candidate.to_string() == text);
        found.ok_or_else(|| {
            let known: Vec<String> = HostCandidate::all().map(|c| c.to_string()).collect();
            let words = format!("unknown algorithm '{text}'; known: {}", known.join(", "));
            Error::parse(0, words)
        })
    }
}

#[cfg(test)]
mod tests;
