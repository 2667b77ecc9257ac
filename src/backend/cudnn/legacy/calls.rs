//! The legacy API's functions and descriptors.

use std::ffi::{c_int, c_void};

use cudarc::cudnn::sys::{
    cudnnConvolutionDescriptor_t, cudnnConvolutionMode_t, cudnnDataType_t, cudnnFilterDescriptor_t,
    cudnnHandle_t, cudnnMathType_t, cudnnTensorDescriptor_t, cudnnTensorFormat_t,
};

use super::super::driver::Called;
use super::super::library::{Cudnn, Library};
use super::super::observe::Launch;
use super::super::session::Session;
use crate::candidate::MathType;
use crate::dtype::DType;
use crate::error::Result;
use crate::problem::{ConvProblem, Direction, Layout, Role};

/// Creates a descriptor.
pub type Create<T> = unsafe extern "C" fn(*mut T) -> c_int;
/// Destroys a descriptor.
pub type Destroy<T> = unsafe extern "C" fn(T) -> c_int;
/// `cudnnSetTensorNdDescriptor`.
pub type SetTensor = unsafe extern "C" fn(
    cudnnTensorDescriptor_t,
    c_int,
    c_int,
    *const c_int,
    *const c_int,
) -> c_int;
type SetFilter =
    unsafe extern "C" fn(cudnnFilterDescriptor_t, c_int, c_int, c_int, *const c_int) -> c_int;
type SetConvolution = unsafe extern "C" fn(
    cudnnConvolutionDescriptor_t,
    c_int,
    *const c_int,
    *const c_int,
    *const c_int,
    c_int,
    c_int,
) -> c_int;
type SetOption = unsafe extern "C" fn(cudnnConvolutionDescriptor_t, c_int) -> c_int;
/// Descriptors are pointers; which of the three is the filter depends on the
/// direction, so these three calls take them untyped.
type Workspace = unsafe extern "C" fn(
    cudnnHandle_t,
    *mut c_void,
    *mut c_void,
    cudnnConvolutionDescriptor_t,
    *mut c_void,
    c_int,
    *mut usize,
) -> c_int;
type Convolve = unsafe extern "C" fn(
    cudnnHandle_t,
    *const c_void,
    *mut c_void,
    *const c_void,
    *mut c_void,
    *const c_void,
    cudnnConvolutionDescriptor_t,
    c_int,
    *mut c_void,
    usize,
    *const c_void,
    *mut c_void,
    *mut c_void,
) -> c_int;

/// The functions in use, all present.
pub struct Functions {
    create_tensor: Create<cudnnTensorDescriptor_t>,
    destroy_tensor: Destroy<cudnnTensorDescriptor_t>,
    set_tensor: SetTensor,
    create_filter: Create<cudnnFilterDescriptor_t>,
    destroy_filter: Destroy<cudnnFilterDescriptor_t>,
    set_filter: SetFilter,
    create_convolution: Create<cudnnConvolutionDescriptor_t>,
    destroy_convolution: Destroy<cudnnConvolutionDescriptor_t>,
    set_convolution: SetConvolution,
    set_groups: SetOption,
    set_math: SetOption,
    forward: Calls,
    backward_data: Calls,
    backward_filter: Calls,
}

/// The two calls of one direction, and their names.
#[derive(Clone, Copy)]
struct Calls {
    workspace_name: &'static str,
    workspace: Workspace,
    convolve_name: &'static str,
    convolve: Convolve,
}

impl Functions {
    /// Looks all of them up; the error names the one that is missing.
    pub fn look_up(library: &Library) -> Result<Functions> {
        // SAFETY: the signatures are those of cudnn_ops.h and cudnn_cnn.h, the
        // same in 8.9 and 9.x, with enums and statuses as int and descriptors
        // as the pointers they are.
        unsafe {
            Ok(Functions {
                create_tensor: library.symbol("cudnnCreateTensorDescriptor")?,
                destroy_tensor: library.symbol("cudnnDestroyTensorDescriptor")?,
                set_tensor: library.symbol("cudnnSetTensorNdDescriptor")?,
                create_filter: library.symbol("cudnnCreateFilterDescriptor")?,
                destroy_filter: library.symbol("cudnnDestroyFilterDescriptor")?,
                set_filter: library.symbol("cudnnSetFilterNdDescriptor")?,
                create_convolution: library.symbol("cudnnCreateConvolutionDescriptor")?,
                destroy_convolution: library.symbol("cudnnDestroyConvolutionDescriptor")?,
                set_convolution: library.symbol("cudnnSetConvolutionNdDescriptor")?,
                set_groups: library.symbol("cudnnSetConvolutionGroupCount")?,
                set_math: library.symbol("cudnnSetConvolutionMathType")?,
                forward: Calls::look_up(
                    library,
                    "cudnnGetConvolutionForwardWorkspaceSize",
                    "cudnnConvolutionForward",
                )?,
                backward_data: Calls::look_up(
                    library,
                    "cudnnGetConvolutionBackwardDataWorkspaceSize",
                    "cudnnConvolutionBackwardData",
                )?,
                backward_filter: Calls::look_up(
                    library,
                    "cudnnGetConvolutionBackwardFilterWorkspaceSize",
                    "cudnnConvolutionBackwardFilter",
                )?,
            })
        }
    }

    fn calls(&self, direction: Direction) -> &Calls {
        match direction {
            Direction::Fwd => &self.forward,
            Direction::BwdData => &self.backward_data,
            Direction::BwdFilter => &self.backward_filter,
        }
    }
}

impl Calls {
    fn look_up(
        library: &Library,
        workspace_name: &'static str,
        convolve_name: &'static str,
    ) -> Result<Calls> {
        // SAFETY: as in `Functions::look_up`; the three directions share their
        // signatures: operand, operand, convolution, result.
        unsafe {
            Ok(Calls {
                workspace_name,
                workspace: library.symbol(workspace_name)?,
                convolve_name,
                convolve: library.symbol(convolve_name)?,
            })
        }
    }
}

/// A descriptor, destroyed on drop.
pub struct Descriptor<T: Copy> {
    /// The library's pointer.
    pub raw: T,
    destroy: Destroy<T>,
}

impl<T: Copy> Descriptor<*mut T> {
    /// Creates one; `call` is what failures name.
    pub fn new(
        cudnn: &Cudnn,
        call: &'static str,
        create: Create<*mut T>,
        destroy: Destroy<*mut T>,
    ) -> Called<Self> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the pointer is good for one descriptor.
        cudnn.check(call, unsafe { create(&raw mut raw) })?;
        Ok(Descriptor { raw, destroy })
    }
}

impl<T: Copy> Drop for Descriptor<T> {
    fn drop(&mut self) {
        // SAFETY: created once, destroyed once.
        unsafe { (self.destroy)(self.raw) };
    }
}

/// A tensor's descriptor: the filter has a kind of its own.
enum Shape {
    Tensor(Descriptor<cudnnTensorDescriptor_t>),
    Filter(Descriptor<cudnnFilterDescriptor_t>),
}

impl Shape {
    fn raw(&self) -> *mut c_void {
        match self {
            Shape::Tensor(descriptor) => descriptor.raw.cast(),
            Shape::Filter(descriptor) => descriptor.raw.cast(),
        }
    }
}

/// Everything cuDNN must know of a problem. The math type changes from
/// candidate to candidate.
pub struct Described {
    problem: ConvProblem,
    x: Shape,
    w: Shape,
    y: Shape,
    convolution: Descriptor<cudnnConvolutionDescriptor_t>,
}

impl Described {
    /// Describes a problem that [`refusal`] lets pass.
    pub fn new(session: &Session, functions: &Functions, problem: &ConvProblem) -> Called<Self> {
        let cudnn = session.cudnn();
        let described = Described {
            x: tensor(cudnn, functions, problem, Role::X)?,
            w: filter(cudnn, functions, problem)?,
            y: tensor(cudnn, functions, problem, Role::Y)?,
            convolution: convolution(cudnn, functions, problem)?,
            problem: problem.clone(),
        };
        Ok(described)
    }

    /// The problem described.
    pub fn problem(&self) -> &ConvProblem {
        &self.problem
    }

    fn shape(&self, role: Role) -> *mut c_void {
        match role {
            Role::X => self.x.raw(),
            Role::W => self.w.raw(),
            Role::Y => self.y.raw(),
        }
    }

    fn set_math(&self, session: &Session, functions: &Functions, math: MathType) -> Called {
        // SAFETY: the descriptor is alive.
        let status = unsafe { (functions.set_math)(self.convolution.raw, math_type(math)) };
        session.cudnn().check("cudnnSetConvolutionMathType", status)
    }

    /// The workspace that a candidate asks for, bytes.
    pub fn workspace(
        &self,
        session: &Session,
        functions: &Functions,
        algorithm: u8,
        math: MathType,
    ) -> Called<usize> {
        self.set_math(session, functions, math)?;
        let direction = self.problem.direction;
        let calls = functions.calls(direction);
        let [first, second] = direction.operands();
        let mut bytes = 0;
        // SAFETY: handle and descriptors are alive and of the kinds the
        // direction takes, in its order; the pointer is good for one size.
        let status = unsafe {
            (calls.workspace)(
                session.handle(),
                self.shape(first),
                self.shape(second),
                self.convolution.raw,
                self.shape(direction.result()),
                algorithm.into(),
                &raw mut bytes,
            )
        };
        session.cudnn().check(calls.workspace_name, status)?;
        Ok(bytes)
    }

    /// Launches a candidate.
    pub fn convolve(
        &self,
        session: &Session,
        functions: &Functions,
        algorithm: u8,
        math: MathType,
        launch: &Launch,
    ) -> Called {
        self.set_math(session, functions, math)?;
        let direction = self.problem.direction;
        let calls = functions.calls(direction);
        let [first, second] = direction.operands();
        let at = |role| match role {
            Role::X => launch.pointers.x as *mut c_void,
            Role::W => launch.pointers.w as *mut c_void,
            Role::Y => launch.pointers.y as *mut c_void,
        };
        let [alpha, beta] = Scalar::of(&self.problem);
        // SAFETY: handle and descriptors are alive and of the kinds the
        // direction takes, in its order; device pointers are good for the
        // sizes described, the workspace for the size given; the scalars are
        // of the type cuDNN reads for this result type.
        let status = unsafe {
            (calls.convolve)(
                session.handle(),
                alpha.pointer(),
                self.shape(first),
                at(first),
                self.shape(second),
                at(second),
                self.convolution.raw,
                algorithm.into(),
                launch.pointers.workspace as *mut c_void,
                launch.workspace,
                beta.pointer(),
                self.shape(direction.result()),
                at(direction.result()),
            )
        };
        session.cudnn().check(calls.convolve_name, status)
    }
}

/// alpha and beta as cuDNN reads them: double for fp64 results, else float.
enum Scalar {
    Float(f32),
    Double(f64),
}

impl Scalar {
    fn of(problem: &ConvProblem) -> [Scalar; 2] {
        [problem.alpha.0, problem.beta.0].map(|value| match problem.result_type() {
            DType::Fp64 => Scalar::Double(value),
            _ => Scalar::Float(value as f32),
        })
    }

    fn pointer(&self) -> *const c_void {
        match self {
            Scalar::Float(value) => (value as *const f32).cast(),
            Scalar::Double(value) => (value as *const f64).cast(),
        }
    }
}

/// Why no algorithm of the legacy API can be asked for this problem at all.
pub fn refusal(problem: &ConvProblem) -> Option<String> {
    if problem.pad_before != problem.pad_after {
        return Some("the legacy API has symmetric padding only".to_owned());
    }
    if problem.result_type() != DType::Fp64 {
        for (name, scale) in [("alpha", problem.alpha.0), ("beta", problem.beta.0)] {
            if f64::from(scale as f32) != scale {
                return Some(format!(
                    "{name}={scale} is not an fp32 value, and cuDNN reads it as one"
                ));
            }
        }
    }
    let beyond = |role| {
        let sizes = [dims(problem, role), strides(problem, role)].concat();
        ints(&sizes).is_none()
    };
    [Role::X, Role::Y]
        .into_iter()
        .find(|&role| beyond(role))
        .map(|role| {
            format!(
                "tensor {} has a size or stride beyond 2147483647, and the legacy API takes C ints",
                role.name()
            )
        })
}

/// Dimensions as cuDNN takes them: 1D problems are 2D ones of height 1.
fn dims(problem: &ConvProblem, role: Role) -> Vec<usize> {
    let mut dims = problem.dims(role);
    if problem.rank() == 1 {
        dims.insert(2, 1);
    }
    dims
}

fn strides(problem: &ConvProblem, role: Role) -> Vec<usize> {
    problem.layout.strides(&dims(problem, role))
}

fn ints(list: &[usize]) -> Option<Vec<c_int>> {
    list.iter().map(|&v| c_int::try_from(v).ok()).collect()
}

/// As [`ints`], for lists that validation or [`refusal`] has checked.
pub fn checked_ints(list: &[usize]) -> Vec<c_int> {
    ints(list).expect("validated problems have sizes of C ints")
}

/// A spatial list as cuDNN takes it: `first` is put before a single entry.
fn spatial(list: &[usize], first: usize) -> Vec<c_int> {
    let mut list = list.to_vec();
    if list.len() == 1 {
        list.insert(0, first);
    }
    checked_ints(&list)
}

fn tensor(
    cudnn: &Cudnn,
    functions: &Functions,
    problem: &ConvProblem,
    role: Role,
) -> Called<Shape> {
    let descriptor = Descriptor::new(
        cudnn,
        "cudnnCreateTensorDescriptor",
        functions.create_tensor,
        functions.destroy_tensor,
    )?;
    let dims = checked_ints(&dims(problem, role));
    let strides = checked_ints(&strides(problem, role));
    // SAFETY: the descriptor is alive; both lists have `dims.len()` entries.
    let status = unsafe {
        (functions.set_tensor)(
            descriptor.raw,
            data_type(problem.dtype(role)),
            dims.len() as c_int,
            dims.as_ptr(),
            strides.as_ptr(),
        )
    };
    cudnn.check("cudnnSetTensorNdDescriptor", status)?;
    Ok(Shape::Tensor(descriptor))
}

fn filter(cudnn: &Cudnn, functions: &Functions, problem: &ConvProblem) -> Called<Shape> {
    let descriptor = Descriptor::new(
        cudnn,
        "cudnnCreateFilterDescriptor",
        functions.create_filter,
        functions.destroy_filter,
    )?;
    let dims = checked_ints(&dims(problem, Role::W));
    // SAFETY: the descriptor is alive; the list has `dims.len()` entries.
    let status = unsafe {
        (functions.set_filter)(
            descriptor.raw,
            data_type(problem.w_type),
            format(problem.layout),
            dims.len() as c_int,
            dims.as_ptr(),
        )
    };
    cudnn.check("cudnnSetFilterNdDescriptor", status)?;
    Ok(Shape::Filter(descriptor))
}

fn convolution(
    cudnn: &Cudnn,
    functions: &Functions,
    problem: &ConvProblem,
) -> Called<Descriptor<cudnnConvolutionDescriptor_t>> {
    let descriptor = Descriptor::new(
        cudnn,
        "cudnnCreateConvolutionDescriptor",
        functions.create_convolution,
        functions.destroy_convolution,
    )?;
    let padding = spatial(&problem.pad_before, 0);
    let stride = spatial(&problem.stride, 1);
    let dilation = spatial(&problem.dilation, 1);
    // SAFETY: the descriptor is alive; the lists have `padding.len()` entries.
    let status = unsafe {
        (functions.set_convolution)(
            descriptor.raw,
            padding.len() as c_int,
            padding.as_ptr(),
            stride.as_ptr(),
            dilation.as_ptr(),
            cudnnConvolutionMode_t::CUDNN_CROSS_CORRELATION as c_int,
            data_type(problem.compute.dtype()),
        )
    };
    cudnn.check("cudnnSetConvolutionNdDescriptor", status)?;
    let groups = checked_ints(&[problem.groups])[0];
    // SAFETY: the descriptor is alive.
    let status = unsafe { (functions.set_groups)(descriptor.raw, groups) };
    cudnn.check("cudnnSetConvolutionGroupCount", status)?;
    Ok(descriptor)
}

/// cudnnDataType_t.
pub fn data_type(dtype: DType) -> c_int {
    let value = match dtype {
        DType::Fp16 => cudnnDataType_t::CUDNN_DATA_HALF,
        DType::Bf16 => cudnnDataType_t::CUDNN_DATA_BFLOAT16,
        DType::Fp32 => cudnnDataType_t::CUDNN_DATA_FLOAT,
        DType::Fp8E4m3 => cudnnDataType_t::CUDNN_DATA_FP8_E4M3,
        DType::Fp8E5m2 => cudnnDataType_t::CUDNN_DATA_FP8_E5M2,
        DType::Fp64 => cudnnDataType_t::CUDNN_DATA_DOUBLE,
    };
    value as c_int
}

fn format(layout: Layout) -> c_int {
    let value = match layout {
        Layout::Nchw => cudnnTensorFormat_t::CUDNN_TENSOR_NCHW,
        Layout::Nhwc => cudnnTensorFormat_t::CUDNN_TENSOR_NHWC,
    };
    value as c_int
}

fn math_type(math: MathType) -> c_int {
    let value = match math {
        MathType::Default => cudnnMathType_t::CUDNN_DEFAULT_MATH,
        MathType::TensorOp => cudnnMathType_t::CUDNN_TENSOR_OP_MATH,
        MathType::TensorOpAllowConversion => cudnnMathType_t::CUDNN_TENSOR_OP_MATH_ALLOW_CONVERSION,
        MathType::Fma => cudnnMathType_t::CUDNN_FMA_MATH,
    };
    value as c_int
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(line: &str) -> ConvProblem {
        line.parse().unwrap()
    }

    #[test]
    fn refusal_asymmetric_padding_says_why() {
        let asymmetric = problem("fwd c=4 k=4 in=5x5 ker=3x3 pad=1+0x1");
        assert_eq!(
            refusal(&asymmetric).unwrap(),
            "the legacy API has symmetric padding only"
        );
        assert_eq!(
            refusal(&problem("fwd c=4 k=4 in=5x5 ker=3x3 pad=1x1")),
            None
        );
    }

    #[test]
    fn refusal_alpha_must_be_a_float_unless_the_result_is_double() {
        let tenth = "fwd c=4 k=4 in=5x5 ker=3x3 alpha=0.1";
        assert!(refusal(&problem(tenth)).unwrap().starts_with("alpha=0.1"));
        assert_eq!(refusal(&problem(&format!("{tenth} type=fp64"))), None);
        let half = "fwd c=4 k=4 in=5x5 ker=3x3 alpha=0.5 beta=-2";
        assert_eq!(refusal(&problem(half)), None);
    }

    #[test]
    fn refusal_strides_beyond_c_ints_name_the_tensor() {
        let huge = problem("fwd c=2147483647 k=1 in=2x2 ker=1x1");
        assert!(refusal(&huge).unwrap().starts_with("tensor x"));
    }

    #[test]
    fn dims_1d_is_2d_of_height_one() {
        let line = problem("fwd n=2 c=4 k=6 in=9 ker=3 layout=nhwc");
        assert_eq!(dims(&line, Role::X), [2, 4, 1, 9]);
        assert_eq!(dims(&line, Role::W), [6, 4, 1, 3]);
        assert_eq!(dims(&line, Role::Y), [2, 6, 1, 7]);
        assert_eq!(strides(&line, Role::X), [36, 1, 36, 4]);
        assert_eq!(spatial(&line.pad_before, 0), [0, 0]);
        assert_eq!(spatial(&line.stride, 1), [1, 1]);
    }
}
