//! The standalone Python script of a bundle.

use minijinja::{Value, context};

use super::{Bundle, npy_name, program};
use crate::candidate::{Candidate, MathType};
use crate::dtype::DType;
use crate::problem::{Compute, ConvProblem, Direction, Layout, Role};

const TEMPLATE: &str = include_str!("repro.py.j2");

/// Renders the script of a bundle whose candidate is one of cuDNN's.
pub fn render(bundle: &Bundle<'_>) -> String {
    let mut script = program::environment()
        .render_str(TEMPLATE, values(bundle))
        .expect("the template is constant and a test renders both of its forms");
    script.push('\n');
    script
}

fn values(bundle: &Bundle<'_>) -> Value {
    let problem = program::described(bundle);
    let [first, second] = problem.direction.operands();
    let own = context! {
        first => tensor(bundle, first, &npy_name(first.name())),
        second => tensor(bundle, second, &npy_name(second.name())),
        result => tensor(bundle, problem.direction.result(), "prior.npy"),
        compute_number => data_type(problem.compute.dtype()),
    };
    let specific = match &bundle.repro.via {
        Some(Candidate::Legacy { math, .. }) => legacy(&problem, *math),
        Some(Candidate::Engine { knobs, .. }) => engine(&problem, knobs),
        _ => context! {},
    };
    context! { ..own, ..specific, ..program::values(bundle) }
}

fn legacy(problem: &ConvProblem, math: MathType) -> Value {
    let (name, descriptors, first, second, result) = match problem.direction {
        Direction::Fwd => (
            "Forward",
            "x_desc, w_desc, conv, y_desc",
            "x_desc, x",
            "w_desc, w",
            "y_desc, y",
        ),
        Direction::BwdData => (
            "BackwardData",
            "w_desc, y_desc, conv, x_desc",
            "w_desc, w",
            "y_desc, y",
            "x_desc, x",
        ),
        Direction::BwdFilter => (
            "BackwardFilter",
            "x_desc, y_desc, conv, w_desc",
            "x_desc, x",
            "y_desc, y",
            "w_desc, w",
        ),
    };
    context! {
        workspace_name => format!("cudnnGetConvolution{name}WorkspaceSize"),
        execute_name => format!("cudnnConvolution{name}"),
        descriptors,
        execute_first => first,
        execute_second => second,
        execute_result => result,
        math_number => math as i32,
        filter_format_number => match problem.layout {
            Layout::Nchw => 0,
            Layout::Nhwc => 1,
        },
    }
}

/// Numbers of cudnn_graph.h.
fn engine(problem: &ConvProblem, knobs: &[(u32, i64)]) -> Value {
    // Operation, alpha, beta, convolution, w, x, y.
    let numbers = match problem.direction {
        Direction::Fwd => [10, 700, 701, 702, 703, 704, 705],
        Direction::BwdData => [12, 706, 707, 708, 709, 710, 711],
        Direction::BwdFilter => [11, 712, 713, 714, 715, 716, 717],
    };
    let pairs: Vec<_> = knobs.iter().map(|(k, v)| format!("({k}, {v})")).collect();
    context! {
        operation_number => numbers[0],
        alpha_number => numbers[1],
        beta_number => numbers[2],
        conv_number => numbers[3],
        w_number => numbers[4],
        x_number => numbers[5],
        y_number => numbers[6],
        scalar_kind => if problem.compute == Compute::Fp64 { "DOUBLE" } else { "FLOAT" },
        knob_pairs => pairs.join(", "),
    }
}

/// Arguments of the script's `Tensor`.
fn tensor(bundle: &Bundle<'_>, role: Role, file: &str) -> String {
    let problem = &program::described(bundle);
    let (dims, dtype) = (problem.dims(role), problem.dtype(role));
    let strides = program::strides(bundle, &dims);
    let (number, width) = (data_type(dtype), dtype.size());
    format!("\"{file}\", {number}, {width}, {dims:?}, {strides:?}")
}

/// cudnnDataType_t.
fn data_type(dtype: DType) -> i32 {
    match dtype {
        DType::Fp32 => 0,
        DType::Fp64 => 1,
        DType::Fp16 => 2,
        DType::Bf16 => 9,
        DType::Fp8E4m3 => 12,
        DType::Fp8E5m2 => 13,
    }
}
