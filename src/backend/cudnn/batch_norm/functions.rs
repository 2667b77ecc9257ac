//! The library's functions for batch normalisation, by their C signatures.

use std::ffi::{c_double, c_int, c_void};
use std::ptr::null_mut;

use cudarc::cudnn::sys::{cudnnHandle_t, cudnnTensorDescriptor_t};

use super::super::driver::Called;
use super::super::legacy::calls::{Create, Destroy, SetTensor};
use super::super::library::Library;
use super::super::session::Session;
use crate::error::Result;

/// CUDNN_ERRQUERY_BLOCKING.
const BLOCKING: c_int = 2;
/// CUDNN_STATUS_RUNTIME_FP_OVERFLOW of cuDNN 8 and 9.
const FP_OVERFLOW: [c_int; 2] = [13, 1007];

/// A descriptor or a device address.
pub type Pointer = *mut c_void;
/// A tensor's descriptor.
pub type Tensor = cudnnTensorDescriptor_t;

pub(super) type Derive = unsafe extern "C" fn(Tensor, Tensor, c_int) -> c_int;
pub(super) type GetTensor =
    unsafe extern "C" fn(Tensor, c_int, *mut c_int, *mut c_int, *mut c_int, *mut c_int) -> c_int;
pub(super) type Train = unsafe extern "C" fn(
    cudnnHandle_t,
    c_int,
    *const c_void,
    *const c_void,
    Tensor,
    Pointer,
    Tensor,
    Pointer,
    Tensor,
    Pointer,
    Pointer,
    c_double,
    Pointer,
    Pointer,
    c_double,
    Pointer,
    Pointer,
) -> c_int;
pub(super) type TrainExtended = unsafe extern "C" fn(
    cudnnHandle_t,
    c_int,
    c_int,
    *const c_void,
    *const c_void,
    Tensor,
    Pointer,
    Tensor,
    Pointer,
    Tensor,
    Pointer,
    Tensor,
    Pointer,
    Pointer,
    c_double,
    Pointer,
    Pointer,
    c_double,
    Pointer,
    Pointer,
    Pointer,
    Pointer,
    usize,
    Pointer,
    usize,
) -> c_int;
pub(super) type Infer = unsafe extern "C" fn(
    cudnnHandle_t,
    c_int,
    *const c_void,
    *const c_void,
    Tensor,
    Pointer,
    Tensor,
    Pointer,
    Tensor,
    Pointer,
    Pointer,
    Pointer,
    Pointer,
    c_double,
) -> c_int;
pub(super) type Backward = unsafe extern "C" fn(
    cudnnHandle_t,
    c_int,
    *const c_void,
    *const c_void,
    *const c_void,
    *const c_void,
    Tensor,
    Pointer,
    Tensor,
    Pointer,
    Tensor,
    Pointer,
    Tensor,
    Pointer,
    Pointer,
    Pointer,
    c_double,
    Pointer,
    Pointer,
) -> c_int;
pub(super) type BackwardExtended = unsafe extern "C" fn(
    cudnnHandle_t,
    c_int,
    c_int,
    *const c_void,
    *const c_void,
    *const c_void,
    *const c_void,
    Tensor,
    Pointer,
    Tensor,
    Pointer,
    Tensor,
    Pointer,
    Tensor,
    Pointer,
    Tensor,
    Pointer,
    Tensor,
    Pointer,
    Pointer,
    Pointer,
    Pointer,
    c_double,
    Pointer,
    Pointer,
    Pointer,
    Pointer,
    usize,
    Pointer,
    usize,
) -> c_int;
pub(super) type TrainWorkspace = unsafe extern "C" fn(
    cudnnHandle_t,
    c_int,
    c_int,
    Tensor,
    Tensor,
    Tensor,
    Tensor,
    Pointer,
    *mut usize,
) -> c_int;
pub(super) type BackwardWorkspace = unsafe extern "C" fn(
    cudnnHandle_t,
    c_int,
    c_int,
    Tensor,
    Tensor,
    Tensor,
    Tensor,
    Tensor,
    Tensor,
    Pointer,
    *mut usize,
) -> c_int;
pub(super) type Reserve =
    unsafe extern "C" fn(cudnnHandle_t, c_int, c_int, Pointer, Tensor, *mut usize) -> c_int;
pub(super) type QueryError =
    unsafe extern "C" fn(cudnnHandle_t, *mut c_int, c_int, Pointer) -> c_int;

/// The functions in use, all present.
pub struct Functions {
    pub(super) create: Create<Tensor>,
    pub(super) destroy: Destroy<Tensor>,
    pub(super) set: SetTensor,
    pub(super) get: GetTensor,
    pub(super) derive: Derive,
    pub(super) train: Train,
    pub(super) train_extended: TrainExtended,
    pub(super) infer: Infer,
    pub(super) backward: Backward,
    pub(super) backward_extended: BackwardExtended,
    pub(super) train_workspace: TrainWorkspace,
    pub(super) backward_workspace: BackwardWorkspace,
    pub(super) reserve: Reserve,
    pub(super) query_error: QueryError,
}

impl Functions {
    /// Looks all of them up; the error names the one that is missing.
    pub fn look_up(library: &Library) -> Result<Functions> {
        // SAFETY: the signatures are those of cudnn_ops.h, the same in 8.9 and
        // 9.x, with enums and statuses as int and activation descriptors, which
        // are always absent here, as untyped pointers.
        unsafe {
            Ok(Functions {
                create: library.symbol("cudnnCreateTensorDescriptor")?,
                destroy: library.symbol("cudnnDestroyTensorDescriptor")?,
                set: library.symbol("cudnnSetTensorNdDescriptor")?,
                get: library.symbol("cudnnGetTensorNdDescriptor")?,
                derive: library.symbol("cudnnDeriveBNTensorDescriptor")?,
                train: library.symbol("cudnnBatchNormalizationForwardTraining")?,
                train_extended: library.symbol("cudnnBatchNormalizationForwardTrainingEx")?,
                infer: library.symbol("cudnnBatchNormalizationForwardInference")?,
                backward: library.symbol("cudnnBatchNormalizationBackward")?,
                backward_extended: library.symbol("cudnnBatchNormalizationBackwardEx")?,
                train_workspace: library
                    .symbol("cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize")?,
                backward_workspace: library
                    .symbol("cudnnGetBatchNormalizationBackwardExWorkspaceSize")?,
                reserve: library.symbol("cudnnGetBatchNormalizationTrainingExReserveSpaceSize")?,
                query_error: library.symbol("cudnnQueryRuntimeError")?,
            })
        }
    }

    /// Whether a persistent kernel overflowed since the last query.
    pub fn overflowed(&self, session: &Session) -> Called<bool> {
        let mut found = 0;
        // SAFETY: the handle is alive, the pointer good for one status, a tag
        // is not asked for.
        let status =
            unsafe { (self.query_error)(session.handle(), &raw mut found, BLOCKING, null_mut()) };
        session.cudnn().check("cudnnQueryRuntimeError", status)?;
        Ok(FP_OVERFLOW.contains(&found))
    }
}
