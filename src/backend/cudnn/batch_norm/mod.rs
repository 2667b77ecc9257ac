//! cuDNN's batch normalisation through its legacy API, with the same guards as
//! convolutions: redzones, poisoned results and workspace, repeats.

use std::time::{Duration, Instant};

use super::CudnnOptions;
use super::driver::Called;
use super::memory::{Buffer, Poison, WORKSPACE_POISON};
use super::observe::shortage;
use super::pack::from_layout;
use super::session::Session;
use super::status::{Failure, Meaning};
use crate::backend::batch_norm::{BatchNorm, Candidate};
use crate::backend::{Combination, RunOptions};
use crate::batch_norm::outcome::Deviation;
use crate::batch_norm::{Inputs, Mode, Observation, Outcome, Output, Outputs, Pass, Problem};
use crate::error::{Error, Result};
use crate::outcome::{MemoryFault, Repeat};
use crate::tensor::Tensor;

mod calls;
mod device;
mod functions;
#[cfg(test)]
mod gpu_tests;

use calls::{Addresses, Described};
use device::Device;
use functions::Functions;

/// cuDNN's batch normalisation on one GPU. Belongs to the thread that opened it.
pub struct CudnnBatchNorm {
    functions: Functions,
    session: Session,
}

impl CudnnBatchNorm {
    /// Loads driver and library and opens the GPU.
    pub fn open(options: &CudnnOptions) -> Result<Self> {
        let session = Session::open(options)?;
        Ok(CudnnBatchNorm {
            functions: Functions::look_up(&session.cudnn().library)?,
            session,
        })
    }
}

/// Why a run ended before there was anything to observe.
enum Stop {
    /// The library declines, or fails, while it is asked: also by the call that
    /// launches, since no other says what it supports.
    Asked(Failure),
    /// We cannot give it what it asks for.
    Declined(String),
    /// Memory.
    Allocated(Failure),
    /// The library or its kernels failed.
    Launched(Failure),
    /// We or the machine did.
    Harness(Error),
}

impl BatchNorm for CudnnBatchNorm {
    fn combination(&self) -> &Combination {
        self.session.combination()
    }

    fn candidates(&self, problem: &Problem) -> Vec<Candidate> {
        match problem.pass {
            Pass::Infer => vec![Candidate::Plain],
            _ => vec![Candidate::Plain, Candidate::Extended],
        }
    }

    fn run(
        &mut self,
        inputs: &Inputs,
        candidate: Candidate,
        options: &RunOptions,
    ) -> Result<Outcome> {
        if !self.candidates(&inputs.problem).contains(&candidate) {
            let words = format!(
                "cuDNN has no candidate '{candidate}' for {}",
                inputs.problem.pass.name()
            );
            return Err(Error::usage(words));
        }
        self.session.enter()?;
        match self.observe(inputs, candidate, options) {
            Ok(observation) => Ok(Outcome::Ran(Box::new(observation))),
            Err(Stop::Asked(failure)) => Ok(self.ended(failure, true)),
            Err(Stop::Declined(why)) => Ok(Outcome::NotSupported(why)),
            Err(Stop::Launched(failure)) => Ok(self.ended(failure, false)),
            Err(Stop::Allocated(failure)) => shortage(&self.session, failure).map(converted),
            Err(Stop::Harness(error)) => Err(error),
        }
    }
}

/// An outcome that is not a result, in the words of this module.
fn converted(outcome: crate::outcome::Outcome) -> Outcome {
    use crate::outcome::Outcome as Plain;
    match outcome {
        Plain::NotSupported(why) => Outcome::NotSupported(why),
        Plain::OutOfMemory(why) => Outcome::OutOfMemory(why),
        Plain::ExecutionFailed { status, message } => Outcome::ExecutionFailed { status, message },
        Plain::Ran(_) => unreachable!("failures have no result"),
    }
}

impl CudnnBatchNorm {
    fn ended(&self, failure: Failure, asking: bool) -> Outcome {
        self.session.survived(&failure);
        converted(failure.into_outcome(asking))
    }

    fn observe(
        &self,
        inputs: &Inputs,
        candidate: Candidate,
        options: &RunOptions,
    ) -> std::result::Result<Observation, Stop> {
        let described =
            Described::new(&self.session, &self.functions, &inputs.problem).map_err(Stop::Asked)?;
        let layout = described.parameter_layout.ok_or_else(|| {
            Stop::Declined(
                "cuDNN derives parameters of another shape, type or layout than documented"
                    .to_owned(),
            )
        })?;
        let memory = self
            .memory(&described, inputs, candidate)
            .map_err(Stop::Asked)?;
        let device = Device::new(&self.session, inputs, layout, memory).map_err(Stop::Allocated)?;
        let trial = Trial {
            owner: self,
            described: &described,
            device: &device,
            candidate,
            inputs,
        };
        trial.fill_reserve()?;
        trial.run(options)
    }

    /// Bytes of workspace and of reserve space that a candidate asks for.
    fn memory(
        &self,
        described: &Described,
        inputs: &Inputs,
        candidate: Candidate,
    ) -> Called<(usize, usize)> {
        match (candidate, inputs.problem.pass) {
            (Candidate::Extended, Pass::Train) => {
                described.train_memory(&self.session, &self.functions)
            }
            (Candidate::Extended, _) => described.backward_memory(&self.session, &self.functions),
            _ => Ok((0, 0)),
        }
    }
}

struct Trial<'a> {
    owner: &'a CudnnBatchNorm,
    described: &'a Described,
    device: &'a Device,
    candidate: Candidate,
    inputs: &'a Inputs,
}

/// The repeats that say something, `count` of them in turn.
fn repeats(count: u32, workspace: usize) -> Vec<Repeat> {
    let with_workspace = [Repeat::WorkspaceZero, Repeat::WorkspaceLeftover];
    let kinds = [Repeat::Same, Repeat::OutputPoison];
    let kinds: Vec<Repeat> = kinds
        .into_iter()
        .chain(with_workspace.into_iter().filter(|_| workspace > 0))
        .collect();
    kinds.into_iter().cycle().take(count as usize).collect()
}

impl Trial<'_> {
    fn run(&self, options: &RunOptions) -> std::result::Result<Observation, Stop> {
        let (outputs, mut memory, elapsed) = self.once(None)?;
        let overflow_reported = self.overflowed()?;
        let mut deviations = Vec::new();
        for under in repeats(options.repeats, self.device.workspace.bytes()) {
            let (again, more, _) = self.once(Some(under))?;
            let new: Vec<_> = more.into_iter().filter(|f| !memory.contains(f)).collect();
            memory.extend(new);
            if again != outputs {
                deviations.push(Deviation {
                    under,
                    outputs: again,
                });
            }
        }
        Ok(Observation {
            unwritten: self.unwritten(&outputs),
            outputs,
            memory,
            deviations,
            overflow_reported,
            elapsed,
        })
    }

    fn overflowed(&self) -> std::result::Result<bool, Stop> {
        if self.inputs.problem.mode != Mode::Persistent {
            return Ok(false);
        }
        let owner = self.owner;
        match owner.functions.overflowed(&owner.session) {
            // A library that does not answer has reported nothing.
            Err(failure) if failure.meaning != Meaning::Failed => Ok(false),
            found => found.map_err(Stop::Launched),
        }
    }

    /// A backward pass finds in the reserve space what a training pass left.
    fn fill_reserve(&self) -> std::result::Result<(), Stop> {
        let reserve = &self.device.reserve;
        if reserve.bytes() == 0 {
            return Ok(());
        }
        reserve
            .fill(WORKSPACE_POISON)
            .map_err(|f| self.machine(f))?;
        if self.inputs.problem.pass == Pass::Train {
            return Ok(());
        }
        let owner = self.owner;
        let (bytes, _) = self
            .described
            .train_memory(&owner.session, &owner.functions)
            .map_err(Stop::Asked)?;
        let scratch =
            |name, bytes| Buffer::new(owner.session.driver(), name, bytes).map_err(Stop::Allocated);
        let image = self.inputs.problem.elements() * self.inputs.problem.dtype.size();
        let (y, workspace) = (scratch("y", image)?, scratch("workspace", bytes)?);
        let to = Addresses {
            y: y.address(),
            running_mean: 0,
            running_variance: 0,
            saved_mean: 0,
            saved_inverse: 0,
            workspace: (workspace.address(), bytes),
            ..self.device.addresses()
        };
        let launched = self
            .described
            .train_extended(&owner.session, &owner.functions, &to);
        launched.map_err(Stop::Asked)?;
        self.wait().map_err(Stop::Launched)
    }

    /// One launch with everything around it.
    fn once(
        &self,
        repeat: Option<Repeat>,
    ) -> std::result::Result<(Outputs, Vec<MemoryFault>, Duration), Stop> {
        let problem = &self.inputs.problem;
        self.device
            .reset(problem, repeat)
            .map_err(|f| self.machine(f))?;
        self.wait().map_err(|f| self.machine(f))?;
        let start = Instant::now();
        self.launch().map_err(Stop::Asked)?;
        self.wait().map_err(Stop::Launched)?;
        let spent = start.elapsed();
        let memory = self.device.damage().map_err(|f| self.machine(f))?;
        Ok((self.collect()?, memory, spent))
    }

    fn launch(&self) -> Called {
        let (session, functions) = (&self.owner.session, &self.owner.functions);
        let to = self.device.addresses();
        match (self.inputs.problem.pass, self.candidate) {
            (Pass::Train, Candidate::Extended) => {
                self.described.train_extended(session, functions, &to)
            }
            (Pass::Train, _) => self.described.train(session, functions, &to),
            (Pass::Infer, _) => self.described.infer(session, functions, &to),
            (Pass::Backward, Candidate::Extended) => {
                self.described.backward_extended(session, functions, &to)
            }
            (Pass::Backward, _) => self.described.backward(session, functions, &to),
        }
    }

    fn collect(&self) -> std::result::Result<Outputs, Stop> {
        let problem = &self.inputs.problem;
        let mut outputs = Outputs::default();
        for slot in &self.device.slots {
            let Some(output) = slot.output else { continue };
            let bytes = slot.buffer.download().map_err(|f| self.machine(f))?;
            let (dtype, dims) = (problem.output_type(output), problem.output_dims(output));
            let tensor = from_layout(dtype, &dims, slot.layout, &bytes)
                .ok_or_else(|| Stop::Harness(Error::internal("a buffer has a wrong length")))?;
            outputs.push(output, tensor);
        }
        Ok(outputs)
    }

    /// Elements that still hold the poison of the first run.
    fn unwritten(&self, outputs: &Outputs) -> Vec<(Output, Vec<usize>)> {
        let updated = |output| matches!(output, Output::RunningMean | Output::RunningVariance);
        let left = |(output, tensor): (Output, &Tensor)| {
            let poison = Poison::Nan.bits(tensor.dtype());
            let left: Vec<usize> = (0..tensor.len())
                .filter(|&i| tensor.bits(i) == poison)
                .collect();
            (!left.is_empty() && !updated(output)).then_some((output, left))
        };
        outputs.iter().filter_map(left).collect()
    }

    fn wait(&self) -> Called {
        self.owner.session.context().synchronize()
    }

    /// A copy or fill that fails outside any launch.
    fn machine(&self, failure: Failure) -> Stop {
        self.owner.session.survived(&failure);
        Stop::Harness(failure.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeats_vary_only_what_is_there() {
        use Repeat::*;
        assert_eq!(repeats(3, 0), [Same, OutputPoison, Same]);
        assert_eq!(
            repeats(4, 8),
            [Same, OutputPoison, WorkspaceZero, WorkspaceLeftover]
        );
    }
}
