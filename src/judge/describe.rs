//! Findings in words: the one place that writes them.

use super::element::Summary;
use super::{Case, FailureKind};
use crate::dtype::DType;
use crate::oracle::{Class, Output};
use crate::outcome::{MemoryFault, MemoryFaultKind, Repeat};
use crate::problem::ConvProblem;
use crate::tensor::{Tensor, index_text};

/// The correctly rounded value, for a reader; NaN or infinity where right.
pub fn expected(output: &Output, dtype: DType) -> f64 {
    match output.class {
        Class::Nan => f64::NAN,
        Class::Infinite { negative: true } => f64::NEG_INFINITY,
        Class::Infinite { negative: false } => f64::INFINITY,
        Class::Finite => output
            .value
            .rounded(dtype)
            .unwrap_or_else(|| dtype.format().round(output.value.hi)),
    }
}

/// The worst mismatch: place, values with their bits, distance, allowance.
pub fn mismatch(case: Case<'_>, summary: &Summary, result: &Tensor) -> String {
    let Some(worst) = summary.worst else {
        return String::new();
    };
    let dtype = result.dtype();
    let width = dtype.size() * 2;
    let error = (worst.actual - worst.expected).abs();
    let ulps = error / dtype.format().ulp(worst.expected);
    format!(
        "{} of {} outputs wrong; at {} expected {} (0x{:0width$x}), got {} (0x{:0width$x}), off by {error:.3e} = {ulps:.1} ulp, allowed {:.3e}",
        summary.wrong,
        summary.judged,
        place(&case.inputs.problem, worst.index),
        worst.expected,
        dtype.to_bits(worst.expected),
        worst.actual,
        result.bits(worst.index),
        worst.bound,
    )
}

/// A logical offset of the result tensor as indices: `[n,k,h,w]`.
pub fn place(problem: &ConvProblem, index: usize) -> String {
    index_text(&problem.dims(problem.direction.result()), index)
}

/// The failure kind of memory damage.
pub fn memory_kind(fault: &MemoryFault) -> FailureKind {
    match fault.kind {
        MemoryFaultKind::InputChanged => FailureKind::InputChanged,
        MemoryFaultKind::Before | MemoryFaultKind::Behind => FailureKind::OutOfBoundsWrite,
    }
}

/// Memory damage in words.
pub fn memory(fault: &MemoryFault) -> String {
    let what = match fault.kind {
        MemoryFaultKind::Before => "written before its start",
        MemoryFaultKind::Behind => "written past its end",
        MemoryFaultKind::InputChanged => "changed, though an input",
    };
    format!(
        "{} was {what}: {} bytes from byte offset {}",
        fault.buffer, fault.bytes, fault.offset
    )
}

/// What a repeat changed, in words.
pub fn repeat(under: Repeat) -> &'static str {
    match under {
        Repeat::Same => "a second identical run",
        Repeat::WorkspaceZero => "with a zeroed workspace",
        Repeat::WorkspaceLeftover => "with another run's leftovers in the workspace",
        Repeat::OutputPoison => "with other values in the output before the run",
        Repeat::Moved => "with the tensors at other addresses, multiples of 16 bytes",
        Repeat::OddStrides => "with odd strides of the dimensions of size 1",
        Repeat::PlanFromJson => "with the plan rebuilt from its JSON",
    }
}
