//! Descriptors and launches of batch normalisation.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use cudarc::driver::sys::CUdeviceptr;

use super::super::driver::Called;
use super::super::legacy::calls::{Descriptor, checked_ints, data_type};
use super::super::library::Cudnn;
use super::super::session::Session;
use super::functions::{Functions, Pointer, Tensor};
use crate::batch_norm::{Mode, Problem};
use crate::dtype::DType;
use crate::problem::Layout;

/// CUDNN_BATCHNORM_OPS_BN: neither activation nor addition.
const PLAIN_OPS: c_int = 0;
/// Device addresses of a pass; 0 where it has no such tensor.
#[derive(Clone, Copy, Debug, Default)]
pub struct Addresses {
    /// x.
    pub x: CUdeviceptr,
    /// y.
    pub y: CUdeviceptr,
    /// Scale.
    pub scale: CUdeviceptr,
    /// Bias.
    pub bias: CUdeviceptr,
    /// Running mean, read and written.
    pub running_mean: CUdeviceptr,
    /// Running variance, read and written.
    pub running_variance: CUdeviceptr,
    /// Mean, saved or given.
    pub saved_mean: CUdeviceptr,
    /// Inverse deviation, saved or given.
    pub saved_inverse: CUdeviceptr,
    /// dy.
    pub dy: CUdeviceptr,
    /// dx.
    pub dx: CUdeviceptr,
    /// Gradient of the scale.
    pub dscale: CUdeviceptr,
    /// Gradient of the bias.
    pub dbias: CUdeviceptr,
    /// Workspace and its bytes.
    pub workspace: (CUdeviceptr, usize),
    /// Reserve space and its bytes.
    pub reserve: (CUdeviceptr, usize),
}

/// Everything cuDNN must know of a problem.
pub struct Described {
    x: Descriptor<Tensor>,
    parameter: Descriptor<Tensor>,
    mode: c_int,
    epsilon: f64,
    factor: f64,
    one: Scalar,
    zero: Scalar,
    /// Memory order of parameters.
    pub parameter_layout: Option<Layout>,
}

/// A factor as cuDNN reads it: double for fp64 data, else float.
enum Scalar {
    Float(f32),
    Double(f64),
}

impl Scalar {
    fn of(value: f32, dtype: DType) -> Self {
        match dtype {
            DType::Fp64 => Scalar::Double(value.into()),
            _ => Scalar::Float(value),
        }
    }

    fn pointer(&self) -> *const c_void {
        match self {
            Scalar::Float(value) => (value as *const f32).cast(),
            Scalar::Double(value) => (value as *const f64).cast(),
        }
    }
}

/// A device address as a pointer to C.
fn at(address: CUdeviceptr) -> Pointer {
    address as Pointer
}

fn mode(mode: Mode) -> c_int {
    match mode {
        Mode::PerActivation => 0,
        Mode::Spatial => 1,
        Mode::Persistent => 2,
    }
}

impl Described {
    /// Describes a problem.
    pub fn new(session: &Session, functions: &Functions, problem: &Problem) -> Called<Self> {
        let cudnn = session.cudnn();
        let dims = problem.dims();
        let x = created(cudnn, functions)?;
        let (sizes, strides) = (
            checked_ints(&dims),
            checked_ints(&problem.layout.strides(&dims)),
        );
        // SAFETY: the descriptor is alive; both lists have `dims.len()` entries.
        let status = unsafe {
            (functions.set)(
                x.raw,
                data_type(problem.dtype),
                dims.len() as c_int,
                sizes.as_ptr(),
                strides.as_ptr(),
            )
        };
        cudnn.check("cudnnSetTensorNdDescriptor", status)?;
        let parameter = created(cudnn, functions)?;
        // SAFETY: both descriptors are alive.
        let status = unsafe { (functions.derive)(parameter.raw, x.raw, mode(problem.mode)) };
        cudnn.check("cudnnDeriveBNTensorDescriptor", status)?;
        let parameter_layout = layout(cudnn, functions, &parameter, problem)?;
        Ok(Described {
            x,
            parameter,
            mode: mode(problem.mode),
            epsilon: problem.epsilon.0,
            factor: problem.factor.0,
            one: Scalar::of(1.0, problem.dtype),
            zero: Scalar::of(0.0, problem.dtype),
            parameter_layout,
        })
    }

    /// Bytes of workspace of a training pass, and of reserve space.
    pub fn train_memory(&self, session: &Session, functions: &Functions) -> Called<(usize, usize)> {
        let mut bytes = 0;
        // SAFETY: handle and descriptors are alive; z and activation are absent,
        // as these operations allow; the pointer is good for one size.
        let status = unsafe {
            (functions.train_workspace)(
                session.handle(),
                self.mode,
                PLAIN_OPS,
                self.x.raw,
                null_mut(),
                self.x.raw,
                self.parameter.raw,
                null_mut(),
                &raw mut bytes,
            )
        };
        let call = "cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize";
        session.cudnn().check(call, status)?;
        Ok((bytes, self.reserve(session, functions)?))
    }

    /// Bytes of workspace of a backward pass, and of reserve space.
    pub fn backward_memory(
        &self,
        session: &Session,
        functions: &Functions,
    ) -> Called<(usize, usize)> {
        let mut bytes = 0;
        // SAFETY: as in `train_memory`.
        let status = unsafe {
            (functions.backward_workspace)(
                session.handle(),
                self.mode,
                PLAIN_OPS,
                self.x.raw,
                null_mut(),
                self.x.raw,
                null_mut(),
                self.x.raw,
                self.parameter.raw,
                null_mut(),
                &raw mut bytes,
            )
        };
        let call = "cudnnGetBatchNormalizationBackwardExWorkspaceSize";
        session.cudnn().check(call, status)?;
        Ok((bytes, self.reserve(session, functions)?))
    }

    fn reserve(&self, session: &Session, functions: &Functions) -> Called<usize> {
        let mut bytes = 0;
        // SAFETY: handle and descriptor are alive, the activation is absent, the
        // pointer is good for one size.
        let status = unsafe {
            (functions.reserve)(
                session.handle(),
                self.mode,
                PLAIN_OPS,
                null_mut(),
                self.x.raw,
                &raw mut bytes,
            )
        };
        let call = "cudnnGetBatchNormalizationTrainingExReserveSpaceSize";
        session.cudnn().check(call, status)?;
        Ok(bytes)
    }

    /// Launches a training pass.
    pub fn train(&self, session: &Session, functions: &Functions, to: &Addresses) -> Called {
        // SAFETY: handle and descriptors are alive; every address is null, where
        // that is allowed, or good for the tensor it is described by.
        let status = unsafe {
            (functions.train)(
                session.handle(),
                self.mode,
                self.one.pointer(),
                self.zero.pointer(),
                self.x.raw,
                at(to.x),
                self.x.raw,
                at(to.y),
                self.parameter.raw,
                at(to.scale),
                at(to.bias),
                self.factor,
                at(to.running_mean),
                at(to.running_variance),
                self.epsilon,
                at(to.saved_mean),
                at(to.saved_inverse),
            )
        };
        session
            .cudnn()
            .check("cudnnBatchNormalizationForwardTraining", status)
    }

    /// Launches a training pass that is given workspace.
    pub fn train_extended(
        &self,
        session: &Session,
        functions: &Functions,
        to: &Addresses,
    ) -> Called {
        // SAFETY: as in `train`; workspace and reserve space are as long as stated.
        let status = unsafe {
            (functions.train_extended)(
                session.handle(),
                self.mode,
                PLAIN_OPS,
                self.one.pointer(),
                self.zero.pointer(),
                self.x.raw,
                at(to.x),
                null_mut(),
                null_mut(),
                self.x.raw,
                at(to.y),
                self.parameter.raw,
                at(to.scale),
                at(to.bias),
                self.factor,
                at(to.running_mean),
                at(to.running_variance),
                self.epsilon,
                at(to.saved_mean),
                at(to.saved_inverse),
                null_mut(),
                at(to.workspace.0),
                to.workspace.1,
                at(to.reserve.0),
                to.reserve.1,
            )
        };
        session
            .cudnn()
            .check("cudnnBatchNormalizationForwardTrainingEx", status)
    }

    /// Launches an inference pass.
    pub fn infer(&self, session: &Session, functions: &Functions, to: &Addresses) -> Called {
        // SAFETY: as in `train`.
        let status = unsafe {
            (functions.infer)(
                session.handle(),
                self.mode,
                self.one.pointer(),
                self.zero.pointer(),
                self.x.raw,
                at(to.x),
                self.x.raw,
                at(to.y),
                self.parameter.raw,
                at(to.scale),
                at(to.bias),
                at(to.running_mean),
                at(to.running_variance),
                self.epsilon,
            )
        };
        session
            .cudnn()
            .check("cudnnBatchNormalizationForwardInference", status)
    }

    /// Launches a backward pass.
    pub fn backward(&self, session: &Session, functions: &Functions, to: &Addresses) -> Called {
        let (one, zero) = (self.one.pointer(), self.zero.pointer());
        // SAFETY: as in `train`.
        let status = unsafe {
            (functions.backward)(
                session.handle(),
                self.mode,
                one,
                zero,
                one,
                zero,
                self.x.raw,
                at(to.x),
                self.x.raw,
                at(to.dy),
                self.x.raw,
                at(to.dx),
                self.parameter.raw,
                at(to.scale),
                at(to.dscale),
                at(to.dbias),
                self.epsilon,
                at(to.saved_mean),
                at(to.saved_inverse),
            )
        };
        session
            .cudnn()
            .check("cudnnBatchNormalizationBackward", status)
    }

    /// Launches a backward pass that is given workspace.
    pub fn backward_extended(
        &self,
        session: &Session,
        functions: &Functions,
        to: &Addresses,
    ) -> Called {
        let (one, zero) = (self.one.pointer(), self.zero.pointer());
        // SAFETY: as in `train_extended`; y and dz are absent, as without an
        // activation and an addition they may be.
        let status = unsafe {
            (functions.backward_extended)(
                session.handle(),
                self.mode,
                PLAIN_OPS,
                one,
                zero,
                one,
                zero,
                self.x.raw,
                at(to.x),
                null_mut(),
                null_mut(),
                self.x.raw,
                at(to.dy),
                null_mut(),
                null_mut(),
                self.x.raw,
                at(to.dx),
                self.parameter.raw,
                at(to.scale),
                at(to.bias),
                at(to.dscale),
                at(to.dbias),
                self.epsilon,
                at(to.saved_mean),
                at(to.saved_inverse),
                null_mut(),
                at(to.workspace.0),
                to.workspace.1,
                at(to.reserve.0),
                to.reserve.1,
            )
        };
        session
            .cudnn()
            .check("cudnnBatchNormalizationBackwardEx", status)
    }
}

fn created(cudnn: &Cudnn, functions: &Functions) -> Called<Descriptor<Tensor>> {
    let call = "cudnnCreateTensorDescriptor";
    Descriptor::new(cudnn, call, functions.create, functions.destroy)
}

/// The most dimensions a tensor of cuDNN has.
const MOST_DIMENSIONS: usize = 8;

/// The memory order of parameters as the library derived it; `None` when it is
/// neither of ours, or their sizes or type are not what is documented.
fn layout(
    cudnn: &Cudnn,
    functions: &Functions,
    derived: &Descriptor<Tensor>,
    problem: &Problem,
) -> Called<Option<Layout>> {
    let (mut dtype, mut rank) = (0, 0);
    let mut sizes = [0; MOST_DIMENSIONS];
    let mut strides = [0; MOST_DIMENSIONS];
    // SAFETY: the descriptor is alive; the lists are as long as asked for.
    let status = unsafe {
        (functions.get)(
            derived.raw,
            MOST_DIMENSIONS as c_int,
            &raw mut dtype,
            &raw mut rank,
            sizes.as_mut_ptr(),
            strides.as_mut_ptr(),
        )
    };
    cudnn.check("cudnnGetTensorNdDescriptor", status)?;
    let rank = (rank as usize).min(MOST_DIMENSIONS);
    let dims = problem.parameter_dims();
    let documented = dtype == data_type(problem.parameter_type());
    if !documented || sizes[..rank] != checked_ints(&dims) {
        return Ok(None);
    }
    Ok([Layout::Nchw, Layout::Nhwc]
        .into_iter()
        .find(|layout| same_places(&dims, &strides[..rank], *layout)))
}

/// Whether strides put elements where a layout does: those of dimensions of size
/// 1 mean nothing.
fn same_places(dims: &[usize], strides: &[c_int], layout: Layout) -> bool {
    let expected = layout.strides(dims);
    let pairs = expected.iter().zip(strides).zip(dims);
    pairs
        .into_iter()
        .all(|((&ours, &theirs), &size)| size == 1 || ours as i64 == i64::from(theirs))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_places_ignores_strides_that_mean_nothing() {
        assert!(same_places(&[1, 4, 1, 1], &[7, 1, 9, 9], Layout::Nchw));
        assert!(same_places(&[1, 4, 2, 3], &[24, 1, 12, 4], Layout::Nhwc));
        assert!(!same_places(&[1, 4, 2, 3], &[24, 1, 12, 4], Layout::Nchw));
    }
}
