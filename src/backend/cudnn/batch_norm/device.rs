//! The tensors of a pass on the device, between redzones.

use cudarc::driver::sys::CUdeviceptr;

use super::super::driver::Called;
use super::super::memory::{Buffer, Poison, WORKSPACE_POISON, difference};
use super::super::pack::to_layout;
use super::super::session::Session;
use super::calls::Addresses;
use crate::batch_norm::{Inputs, Output, Pass, Problem};
use crate::outcome::{MemoryFault, MemoryFaultKind, Repeat};
use crate::problem::Layout;
use crate::tensor::Tensor;

/// Tensors of a pass on the device.
pub struct Device {
    /// All tensors.
    pub slots: Vec<Slot>,
    /// Workspace, exactly as long as asked for.
    pub workspace: Buffer,
    /// What a training pass leaves for the backward pass.
    pub reserve: Buffer,
}

/// One tensor.
pub struct Slot {
    name: &'static str,
    /// Where it lies.
    pub buffer: Buffer,
    /// Which output it is, if one.
    pub output: Option<Output>,
    /// What it holds before a run; poison when absent.
    before: Option<Vec<u8>>,
    /// Its memory order.
    pub layout: Layout,
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
    /// Allocates everything and puts the inputs there.
    pub fn new(
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

    /// Where everything lies.
    pub fn addresses(&self) -> Addresses {
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
    pub fn reset(&self, problem: &Problem, repeat: Option<Repeat>) -> Called {
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
    pub fn damage(&self) -> Called<Vec<MemoryFault>> {
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
