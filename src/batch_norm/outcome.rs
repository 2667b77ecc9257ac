//! What a backend reports of one run, before anyone judges it.

use std::time::Duration;

use super::problem::{Output, Problem};
use crate::outcome::{MemoryFault, Repeat};
use crate::tensor::Tensor;

/// The tensors that a pass computed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outputs(Vec<(Output, Tensor)>);

/// The end of one attempt to run a candidate.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// It ran to its end.
    Ran(Box<Observation>),
    /// The library declines.
    NotSupported(String),
    /// The machine has too little memory.
    OutOfMemory(String),
    /// The library accepted it and then failed: never a skip.
    ExecutionFailed {
        /// The library's status, by name.
        status: String,
        /// What was being called, and the library's message if any.
        message: String,
    },
}

/// What was seen of a run that ended.
#[derive(Clone, Debug)]
pub struct Observation {
    /// What came out.
    pub outputs: Outputs,
    /// Per output the logical offsets that still hold the poison written before
    /// the run.
    pub unwritten: Vec<(Output, Vec<usize>)>,
    /// Damage outside the buffers, and changed inputs.
    pub memory: Vec<MemoryFault>,
    /// Further runs with the same inputs that gave other bits.
    pub deviations: Vec<Deviation>,
    /// Whether the library said that an integer sum overflowed
    /// (`cudnnQueryRuntimeError`; persistent kernels only).
    pub overflow_reported: bool,
    /// Time in the library.
    pub elapsed: Duration,
}

/// A repeat that differed.
#[derive(Clone, Debug)]
pub struct Deviation {
    /// What was different about the repeat.
    pub under: Repeat,
    /// What came out.
    pub outputs: Outputs,
}

impl Outputs {
    /// Adds a tensor.
    pub fn push(&mut self, output: Output, tensor: Tensor) {
        self.0.push((output, tensor));
    }

    /// The tensor of an output, if the pass has it.
    pub fn get(&self, output: Output) -> Option<&Tensor> {
        let found = self.0.iter().find(|(this, _)| *this == output);
        found.map(|(_, tensor)| tensor)
    }

    /// The same, to be changed.
    pub fn get_mut(&mut self, output: Output) -> Option<&mut Tensor> {
        let found = self.0.iter_mut().find(|(this, _)| *this == output);
        found.map(|(_, tensor)| tensor)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (Output, &Tensor)> {
        self.0.iter().map(|(output, tensor)| (*output, tensor))
    }

    /// Whether every output a problem has is there, with its shape and type.
    pub fn fit(&self, problem: &Problem) -> bool {
        problem.outputs().into_iter().all(|output| {
            self.get(output).is_some_and(|tensor| {
                tensor.dims() == problem.output_dims(output)
                    && tensor.dtype() == problem.output_type(output)
            })
        })
    }
}
