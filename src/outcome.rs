//! What a backend reports of one run, before anyone judges it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::tensor::Tensor;

/// The end of one attempt to run a candidate.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It ran to its end.
    Ran(Box<Observation>),
    /// The library declines this candidate for this problem.
    NotSupported(String),
    /// The machine has too little memory for it.
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
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Observation {
    /// The result tensor in logical order.
    pub result: Tensor,
    /// Logical offsets that still hold the poison written before the run.
    pub unwritten: Vec<usize>,
    /// Damage outside the buffers, and other memory faults.
    pub memory: Vec<MemoryFault>,
    /// Results of further runs with the same inputs, when asked for; those
    /// bitwise equal to `result` are left out.
    pub deviations: Vec<Deviation>,
    /// Further runs that were to give the same bits.
    pub repeated: u32,
    /// Workspace the candidate was given, bytes.
    pub workspace: u64,
    /// Time in the library, planning included.
    pub elapsed: Duration,
}

impl Observation {
    /// Repeats that gave other bits than the first run and were to give the same.
    /// Of a candidate that is declared nondeterministic that is no failure.
    pub fn varied(&self) -> u32 {
        let varied = self.deviations.iter().filter(|d| d.under.keeps_bits());
        varied.count() as u32
    }
}

/// A repeat that differed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Deviation {
    /// What was different about the repeat.
    pub under: Repeat,
    /// Its result.
    pub result: Tensor,
}

/// What a repeat changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Repeat {
    /// Nothing.
    Same,
    /// The workspace was filled with zeros instead of NaN.
    WorkspaceZero,
    /// The workspace held the leftovers of another run.
    WorkspaceLeftover,
    /// The result tensor held other poison before the run.
    OutputPoison,
    /// The plan was rebuilt from its serialised form.
    PlanFromJson,
    /// The tensors lay at other addresses, which the plan was promised to be
    /// multiples of 16 bytes and no more.
    Moved,
    /// The plan was built for tensors whose dimensions of size 1 have strides
    /// that mean nothing.
    OddStrides,
}

impl Repeat {
    /// Whether the result must have the same bits: not where the library is
    /// free to choose another kernel.
    pub fn keeps_bits(self) -> bool {
        !matches!(self, Repeat::Moved | Repeat::OddStrides)
    }
}

/// Memory the candidate had no business with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryFault {
    /// Which buffer: x, w, y or workspace.
    pub buffer: String,
    /// What happened to it.
    pub kind: MemoryFaultKind,
    /// Offset in bytes of the first damaged byte, from the start of the buffer
    /// (negative: before it).
    pub offset: i64,
    /// Number of damaged bytes seen.
    pub bytes: u64,
}

/// Kinds of memory damage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryFaultKind {
    /// The redzone before the buffer was written.
    Before,
    /// The redzone behind the buffer was written.
    Behind,
    /// An input was changed.
    InputChanged,
}
