//! The standalone C++ program of a bundle.

use minijinja::{Environment, UndefinedBehavior, Value, context};

use super::{Bundle, npy_name};
use crate::candidate::{Candidate, MathType};
use crate::dtype::DType;
use crate::problem::{Compute, ConvProblem, Direction, Layout, Role};
use crate::tensor::Tensor;

const TEMPLATE: &str = include_str!("repro.cpp.j2");

/// Arrays of up to this many elements, all tensors of the bundle together, are
/// written into the program, which then needs no other file.
const INLINE_ELEMENTS: usize = 4096;

/// Renders the program of a bundle whose candidate is one of cuDNN's.
pub fn render(bundle: &Bundle<'_>) -> String {
    let mut program = environment()
        .render_str(TEMPLATE, values(bundle))
        .expect("the template is constant and a test renders both of its forms");
    program.push('\n');
    program
}

/// For templates in which every name must be known.
pub(super) fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment
}

pub(super) fn values(bundle: &Bundle<'_>) -> Value {
    let problem = described(bundle);
    let [first, second] = problem.direction.operands();
    let result = problem.direction.result();
    let common = context! {
        repro => bundle.repro.to_string(),
        device => bundle.combination.device.clone(),
        driver => bundle.combination.driver.clone(),
        cudnn => bundle.combination.cudnn.clone(),
        rank => problem.rank(),
        first => tensor_initialiser(bundle, first, &npy_name(first.name())),
        second => tensor_initialiser(bundle, second, &npy_name(second.name())),
        result => tensor_initialiser(bundle, result, "prior.npy"),
        first_role => first.name(),
        second_role => second.name(),
        result_role => result.name(),
        x_tensor => variable(&problem, Role::X),
        w_tensor => variable(&problem, Role::W),
        y_tensor => variable(&problem, Role::Y),
        nondeterministic => bundle.nondeterministic,
        has_prior => bundle.inputs.prior.is_some(),
        arrays => arrays(bundle),
        compute => data_type(problem.compute.dtype()),
        fp8 => [problem.x_type, problem.w_type, problem.y_type].iter().any(|t| t.is_fp8()),
        scalar_type => if problem.compute == Compute::Fp64 { "double" } else { "float" },
        alpha => literal(problem.alpha.0),
        beta => literal(problem.beta.0),
        groups => problem.groups,
        pad_before => list(&problem.pad_before),
        pad_after => list(&problem.pad_after),
        stride => list(&problem.stride),
        dilation => list(&problem.dilation),
    };
    let specific = match &bundle.repro.via {
        Some(Candidate::Legacy { algorithm, math }) => legacy(&problem, *algorithm, *math),
        Some(Candidate::Engine { index, knobs }) => engine(&problem, *index, knobs),
        _ => context! {},
    };
    context! { ..specific, ..common }
}

/// The problem as the backend puts it to cuDNN, whose legacy API has no 1D
/// convolutions: they are 2D ones of height 1. Logical offsets do not change. A
/// graph API that knows none either refuses the program (exit code 2).
pub(super) fn described(bundle: &Bundle<'_>) -> ConvProblem {
    let mut problem = bundle.repro.problem.clone();
    let legacy = matches!(bundle.repro.via, Some(Candidate::Legacy { .. }));
    if legacy && problem.rank() == 1 {
        for (list, filler) in [
            (&mut problem.spatial, 1),
            (&mut problem.kernel, 1),
            (&mut problem.stride, 1),
            (&mut problem.dilation, 1),
            (&mut problem.pad_before, 0),
            (&mut problem.pad_after, 0),
        ] {
            list.insert(0, filler);
        }
    }
    problem
}

fn legacy(problem: &ConvProblem, algorithm: u8, math: MathType) -> Value {
    let (name, algorithm_type, descriptors, first, second, result) = match problem.direction {
        Direction::Fwd => (
            "Forward",
            "cudnnConvolutionFwdAlgo_t",
            "x_desc, w_desc, conv, y_desc",
            "x_desc, x",
            "w_desc, w",
            "y_desc, y",
        ),
        Direction::BwdData => (
            "BackwardData",
            "cudnnConvolutionBwdDataAlgo_t",
            "w_desc, y_desc, conv, x_desc",
            "w_desc, w",
            "y_desc, y",
            "x_desc, x",
        ),
        Direction::BwdFilter => (
            "BackwardFilter",
            "cudnnConvolutionBwdFilterAlgo_t",
            "x_desc, y_desc, conv, w_desc",
            "x_desc, x",
            "y_desc, y",
            "w_desc, w",
        ),
    };
    context! {
        api => "legacy",
        algorithm,
        algorithm_type,
        math_type => math_constant(math),
        filter_format => match problem.layout {
            Layout::Nchw => "CUDNN_TENSOR_NCHW",
            Layout::Nhwc => "CUDNN_TENSOR_NHWC",
        },
        workspace_call => format!(
            "cudnnGetConvolution{name}WorkspaceSize(handle, {descriptors}, algorithm, &bytes)"
        ),
        execute_call => format!(
            "cudnnConvolution{name}(handle, &alpha, {first}, {second}, conv, algorithm, workspace, bytes, &beta, {result})"
        ),
    }
}

fn engine(problem: &ConvProblem, index: i64, knobs: &[(u32, i64)]) -> Value {
    let (operation, x, y) = match problem.direction {
        Direction::Fwd => ("FORWARD", "X", "Y"),
        Direction::BwdData => ("BWD_DATA", "DX", "DY"),
        Direction::BwdFilter => ("BWD_FILTER", "X", "DY"),
    };
    let choices: Vec<String> = knobs.iter().map(|(k, v)| format!("{{{k}, {v}}}")).collect();
    context! {
        api => "graph",
        operation,
        operation_descriptor => operation.replace("BWD", "BACKWARD"),
        x_attribute => x,
        w_attribute => if problem.direction == Direction::BwdFilter { "DW" } else { "W" },
        y_attribute => y,
        engine => index,
        // An array needs an element: a negative type stands for none.
        knobs => if choices.is_empty() { "{-1, 0}".to_owned() } else { choices.join(", ") },
        scalar_attribute => if problem.compute == Compute::Fp64 {
            "CUDNN_TYPE_DOUBLE"
        } else {
            "CUDNN_TYPE_FLOAT"
        },
    }
}

fn math_constant(math: MathType) -> &'static str {
    match math {
        MathType::Default => "CUDNN_DEFAULT_MATH",
        MathType::TensorOp => "CUDNN_TENSOR_OP_MATH",
        MathType::TensorOpAllowConversion => "CUDNN_TENSOR_OP_MATH_ALLOW_CONVERSION",
        MathType::Fma => "CUDNN_FMA_MATH",
    }
}

fn data_type(dtype: DType) -> &'static str {
    match dtype {
        DType::Fp16 => "CUDNN_DATA_HALF",
        DType::Bf16 => "CUDNN_DATA_BFLOAT16",
        DType::Fp8E4m3 => "CUDNN_DATA_FP8_E4M3",
        DType::Fp8E5m2 => "CUDNN_DATA_FP8_E5M2",
        DType::Fp32 => "CUDNN_DATA_FLOAT",
        DType::Fp64 => "CUDNN_DATA_DOUBLE",
    }
}

/// Members of the program's `Tensor`.
fn tensor_initialiser(bundle: &Bundle<'_>, role: Role, file: &str) -> String {
    let problem = &described(bundle);
    let dims = problem.dims(role);
    format!(
        "\"{file}\", {}, {{{}}}, {{{}}}",
        data_type(problem.dtype(role)),
        list(&dims),
        list(&strides(bundle, &dims))
    )
}

/// Strides in memory. Where the fault takes odd ones of dimensions of size 1,
/// those: twice the number of elements and one.
pub(super) fn strides(bundle: &Bundle<'_>, dims: &[usize]) -> Vec<usize> {
    let mut strides = bundle.repro.problem.layout.strides(dims);
    if bundle.class == "odd_strides" {
        let odd = 2 * dims.iter().product::<usize>() + 1;
        let ones = strides.iter_mut().zip(dims).filter(|(_, size)| **size == 1);
        ones.for_each(|(stride, _)| *stride = odd);
    }
    strides
}

/// The program's variable that holds the tensor in `role`.
fn variable(problem: &ConvProblem, role: Role) -> &'static str {
    let [first, _] = problem.direction.operands();
    if role == problem.direction.result() {
        "result"
    } else if role == first {
        "first"
    } else {
        "second"
    }
}

fn arrays(bundle: &Bundle<'_>) -> Vec<Value> {
    let total = bundle.inputs.first.len() + bundle.inputs.second.len() + 2 * bundle.expected.len();
    if total > INLINE_ELEMENTS {
        return Vec::new();
    }
    let [first, second] = bundle.repro.problem.direction.operands();
    let mut arrays = vec![
        tensor_array(&npy_name(first.name()), "first_bits", &bundle.inputs.first),
        tensor_array(
            &npy_name(second.name()),
            "second_bits",
            &bundle.inputs.second,
        ),
        double_array("y_expected.npy", "expected_values", bundle.expected),
        double_array("y_bound.npy", "bound_values", bundle.bound),
    ];
    if let Some(prior) = &bundle.inputs.prior {
        arrays.push(tensor_array("prior.npy", "prior_bits", prior));
    }
    arrays
}

fn tensor_array(file: &str, name: &str, tensor: &Tensor) -> Value {
    let words: Vec<String> = (0..tensor.len())
        .map(|i| format!("{:#x}", tensor.bits(i)))
        .collect();
    let element = match tensor.dtype().size() {
        1 => "uint8_t",
        2 => "uint16_t",
        4 => "uint32_t",
        _ => "uint64_t",
    };
    context! { file, name, type => element, values => words.join(", ") }
}

fn double_array(file: &str, name: &str, values: &[f64]) -> Value {
    let words: Vec<String> = values.iter().map(|&v| literal(v)).collect();
    context! { file, name, type => "double", values => words.join(", ") }
}

/// A C++ literal of exactly this value.
fn literal(value: f64) -> String {
    if value.is_nan() {
        "NAN".to_owned()
    } else if value.is_infinite() {
        if value > 0.0 { "INFINITY" } else { "-INFINITY" }.to_owned()
    } else {
        // Debug prints the shortest decimal that parses back, with a point or
        // exponent, so it is a floating-point literal.
        format!("{value:?}")
    }
}

fn list(values: &[usize]) -> String {
    let words: Vec<String> = values.iter().map(usize::to_string).collect();
    words.join(", ")
}

#[cfg(test)]
mod tests {
    use super::super::tests::with_bundle;
    use super::*;

    fn rendered(line: &str) -> String {
        with_bundle(line, render)
    }

    #[test]
    fn render_legacy_inlines_small_data_and_calls_the_direction() {
        let line = "bwd_data c=2 k=2 in=3 ker=1 type=fp16 fill=ints:1 via=legacy:1/tensor_op";
        let program = rendered(line);
        assert!(program.contains(line));
        assert!(
            program.contains(
                "cudnnConvolutionBackwardData(handle, &alpha, w_desc, w, y_desc, y, conv"
            )
        );
        assert!(program.contains("static const uint16_t first_bits[] = { 0x"));
        assert!(program.contains("CUDNN_TENSOR_OP_MATH"));
        assert!(!program.contains("cudnnBackend") && !program.contains("bool accepted"));
    }

    /// What the harness varies between repeats, and how it counts failures.
    #[test]
    fn render_runs_with_every_workspace_and_tells_refusals_from_faults() {
        let program = rendered("fwd c=2 k=2 in=3 ker=1 fill=ints:1 via=engine:84");
        for words in [
            "once(handle, NANS, with_nan)",
            "once(handle, ZEROS, with_zero)",
            "once(handle, LEFTOVER, with_leftover)",
            "if (accepted) std::exit(1);",
            "CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, { 1 }",
            "executing = accepted = false",
        ] {
            assert!(program.contains(words), "no '{words}' in\n{program}");
        }
    }

    #[test]
    fn render_engine_sets_every_knob() {
        let program = rendered(
            "fwd c=64 k=64 in=9x9 ker=3x3 layout=nhwc fill=normal:1 via=engine:42/2=4/13=1",
        );
        assert!(program.contains("{ {2, 4}, {13, 1} }"));
        assert!(program.contains("CUDNN_ATTR_ENGINE_GLOBAL_INDEX, { 42 }"));
        assert!(!program.contains("first_bits"), "too large to be inlined");
    }

    /// For a compiler at hand: `cargo test print_programs -- --ignored` leaves
    /// one program of each kind in the folder named by CONVFUZZ_PROGRAMS.
    #[test]
    #[ignore = "writes files for a C++ compiler to check"]
    fn print_programs() {
        let folder = std::path::PathBuf::from(std::env::var_os("CONVFUZZ_PROGRAMS").unwrap());
        let heads = ["fwd", "bwd_data", "bwd_filter"];
        for head in heads {
            for via in ["legacy:1/default", "engine:1/2=3"] {
                let line =
                    format!("{head} c=4 k=4 in=5 ker=3 type=fp16 beta=1 fill=ints:1 via={via}");
                let name = format!("{head}-{}.cpp", &via[..6]);
                std::fs::write(folder.join(name), rendered(&line)).unwrap();
            }
        }
    }

    #[test]
    fn literal_values_parse_back() {
        for value in [0.1, -1e-300, 3.0, f64::MIN_POSITIVE / 8.0] {
            assert_eq!(literal(value).parse::<f64>().unwrap(), value);
        }
        assert_eq!(literal(f64::NAN), "NAN");
    }
}
