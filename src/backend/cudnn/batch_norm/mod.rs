//! cuDNN's batch normalisation through its legacy API, with the same guards as
//! convolutions: redzones, poisoned results and workspace, repeats.

use std::time::{Duration, Instant};

use cudarc::driver::sys::CUdeviceptr;

use super::CudnnOptions;
use super::driver::Called;
use super::memory::{Buffer, Poison, WORKSPACE_POISON, difference};
use super::observe::shortage;
use super::pack::{from_layout, to_layout};
use super::session::Session;
use super::status::Failure;
use crate::backend::batch_norm::{BatchNorm, Candidate};
use crate::backend::{Combination, RunOptions};
use crate::batch_norm::outcome::Deviation;
use crate::batch_norm::{Inputs, Mode, Observation, Outcome, Output, Outputs, Pass, Problem};
use crate::error::{Error, Result};
use crate::outcome::{MemoryFault, MemoryFaultKind, Repeat};
use crate::problem::Layout;
use crate::tensor::Tensor;

mod calls;
#[cfg(test)]
mod gpu_tests;

use calls::{Addresses, Described, Functions};

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
    /// The library declines, or fails, while it is asked.
    Asked(Failure),
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
            Stop::Harness(Error::internal(format!(
                "cuDNN derives parameters of another shape or type than documented for {}",
                inputs.problem
            )))
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

/// Tensors of a pass on the device.
struct Device {
    slots: Vec<Slot>,
    workspace: Buffer,
    reserve: Buffer,
}

/// One tensor.
struct Slot {
    name: &'static str,
    buffer: Buffer,
    /// Which output it is, if one.
    output: Option<Output>,
    /// What it holds before a run; poison when absent.
    before: Option<Vec<u8>>,
    layout: Layout,
}

/// Collects the tensors of a pass.
struct Builder<'a> {
    session: &'a Session,
    problem: &'a Problem,
    parameter_layout: Layout,
    slots: Vec<Slot>,
}

impl Builder<'_> {
    fn layout(&self, image: bool) -> Layout {
        match image {
            true => self.problem.layout,
            false => self.parameter_layout,
        }
    }

    /// A tensor that is only read.
    fn input(&mut self, name: &'static str, tensor: &Tensor, image: bool) -> Called {
        let packed = to_layout(tensor, self.layout(image));
        self.push(name, packed.len(), None, Some(packed), image)
    }

    /// A tensor that is only written.
    fn result(&mut self, output: Output) -> Called {
        let elements: usize = self.problem.output_dims(output).iter().product();
        let bytes = elements * self.problem.output_type(output).size();
        self.push(output.name(), bytes, Some(output), None, output.is_image())
    }

    /// A tensor that is read and written.
    fn updated(&mut self, output: Output, before: &Tensor) -> Called {
        let packed = to_layout(before, self.layout(false));
        self.push(
            output.name(),
            packed.len(),
            Some(output),
            Some(packed),
            false,
        )
    }

    fn push(
        &mut self,
        name: &'static str,
        bytes: usize,
        output: Option<Output>,
        before: Option<Vec<u8>>,
        image: bool,
    ) -> Called {
        let buffer = Buffer::new(self.session.driver(), name, bytes)?;
        if let Some(before) = &before {
            buffer.upload(before)?;
        }
        self.slots.push(Slot {
            name,
            buffer,
            output,
            before,
            layout: self.layout(image),
        });
        Ok(())
    }

    fn fill(&mut self, inputs: &Inputs) -> Called {
        self.input("x", &inputs.x, true)?;
        self.input("scale", &inputs.scale, false)?;
        self.input("bias", &inputs.bias, false)?;
        if let Some(dy) = &inputs.dy {
            self.input("dy", dy, true)?;
        }
        if let Some([mean, inverse]) = &inputs.saved {
            self.input("saved_mean", mean, false)?;
            self.input("saved_inverse", inverse, false)?;
        }
        if self.problem.pass == Pass::Infer {
            self.input("running_mean", &inputs.running_mean, false)?;
            self.input("running_variance", &inputs.running_variance, false)?;
        }
        for output in self.problem.outputs() {
            match output {
                Output::RunningMean => self.updated(output, &inputs.running_mean)?,
                Output::RunningVariance => self.updated(output, &inputs.running_variance)?,
                _ => self.result(output)?,
            }
        }
        Ok(())
    }
}

impl Device {
    fn new(
        session: &Session,
        inputs: &Inputs,
        parameter_layout: Layout,
        (workspace, reserve): (usize, usize),
    ) -> Called<Device> {
        let mut builder = Builder {
            session,
            problem: &inputs.problem,
            parameter_layout,
            slots: Vec::new(),
        };
        builder.fill(inputs)?;
        Ok(Device {
            slots: builder.slots,
            workspace: Buffer::new(session.driver(), "workspace", workspace)?,
            reserve: Buffer::new(session.driver(), "reserve", reserve)?,
        })
    }

    fn address(&self, name: &str) -> CUdeviceptr {
        let found = self.slots.iter().find(|slot| slot.name == name);
        found.map_or(0, |slot| slot.buffer.address())
    }

    fn addresses(&self) -> Addresses {
        let space = |buffer: &Buffer| match buffer.bytes() {
            0 => (0, 0),
            bytes => (buffer.address(), bytes),
        };
        Addresses {
            x: self.address("x"),
            y: self.address("y"),
            scale: self.address("scale"),
            bias: self.address("bias"),
            running_mean: self.address("running_mean"),
            running_variance: self.address("running_variance"),
            saved_mean: self.address("saved_mean"),
            saved_inverse: self.address("saved_inverse"),
            dy: self.address("dy"),
            dx: self.address("dx"),
            dscale: self.address("dscale"),
            dbias: self.address("dbias"),
            workspace: space(&self.workspace),
            reserve: space(&self.reserve),
        }
    }

    /// Poisons or restores what a run may write.
    fn reset(&self, problem: &Problem, repeat: Option<Repeat>) -> Called {
        let poison = match repeat {
            Some(Repeat::OutputPoison) => Poison::Finite,
            _ => Poison::Nan,
        };
        for slot in &self.slots {
            match (slot.output, &slot.before) {
                (Some(_), Some(before)) => slot.buffer.upload(before)?,
                (Some(output), None) => slot.buffer.poison(problem.output_type(output), poison)?,
                (None, _) => {}
            }
        }
        match repeat {
            Some(Repeat::WorkspaceLeftover) => Ok(()),
            Some(Repeat::WorkspaceZero) => self.workspace.fill(0),
            _ => self.workspace.fill(WORKSPACE_POISON),
        }
    }

    /// Damage done anywhere, mended for the next run.
    fn damage(&self) -> Called<Vec<MemoryFault>> {
        let mut faults = Vec::new();
        for slot in &self.slots {
            faults.extend(slot.damage()?);
        }
        for buffer in [&self.workspace, &self.reserve] {
            let found = buffer.damage()?;
            if !found.is_empty() {
                buffer.guard()?;
            }
            faults.extend(found);
        }
        Ok(faults)
    }
}

impl Slot {
    fn damage(&self) -> Called<Vec<MemoryFault>> {
        let mut faults = self.buffer.damage()?;
        if let (None, Some(before)) = (self.output, &self.before) {
            let found = self.buffer.download()?;
            let kind = MemoryFaultKind::InputChanged;
            faults.extend(difference(&found, before, self.name, kind, 0));
        }
        if !faults.is_empty() {
            self.buffer.guard()?;
            if let (None, Some(before)) = (self.output, &self.before) {
                self.buffer.upload(before)?;
            }
        }
        Ok(faults)
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
        owner
            .functions
            .overflowed(&owner.session)
            .map_err(Stop::Launched)
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
        launched.and_then(|()| self.wait()).map_err(Stop::Launched)
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
        self.launch().map_err(Stop::Launched)?;
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
