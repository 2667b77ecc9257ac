//! Which backend to use, as options say it, and opening it.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::cudnn::{Apis, CudnnBackend, CudnnOptions, KnobBudget};
use super::host::{HostBackend, HostOptions};
use super::{Backend, cudnn};
use crate::error::Result;

/// Kinds of backend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BackendKind {
    /// cuDNN where there are a GPU and a library, else the host.
    #[default]
    Auto,
    /// cuDNN.
    Cudnn,
    /// Software.
    Host,
}

/// Everything needed to open a backend, in any process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackendSpec {
    /// Which kind.
    pub kind: BackendKind,
    /// Fault to plant in the host backend.
    pub fault: Option<String>,
    /// cuDNN's file or folder, instead of searching for it.
    pub library: Option<PathBuf>,
    /// CUDA's ordinal of the GPU.
    pub device: usize,
    /// Which of cuDNN's APIs.
    pub apis: Apis,
    /// Knob choices per engine.
    pub knobs: KnobBudget,
    /// Seeds the choice of knobs.
    pub seed: u64,
    /// Whether plans are also run with odd strides of dimensions of size 1.
    pub odd_strides: bool,
}

/// Opens the backend. A planted fault means the host; `auto` settles for the
/// host when no cuDNN is usable, and never fails for that.
pub fn open(spec: &BackendSpec) -> Result<Box<dyn Backend>> {
    match resolve(spec) {
        BackendKind::Host => {
            let options = HostOptions {
                fault: spec.fault.clone(),
            };
            Ok(Box::new(HostBackend::new(&options)?))
        }
        _ => Ok(Box::new(CudnnBackend::open(&cudnn_options(spec))?)),
    }
}

/// The kind that `spec` comes to on this machine: never `Auto`.
pub(super) fn resolve(spec: &BackendSpec) -> BackendKind {
    match spec.kind {
        BackendKind::Auto if spec.fault.is_some() => BackendKind::Host,
        // A library that was named is wanted: its absence is an error.
        BackendKind::Auto if spec.library.is_some() => BackendKind::Cudnn,
        BackendKind::Auto if cudnn::probe(&cudnn_options(spec)).ready => BackendKind::Cudnn,
        BackendKind::Auto => BackendKind::Host,
        kind => kind,
    }
}

/// Options of the cuDNN backend that `spec` names.
pub fn cudnn_options(spec: &BackendSpec) -> CudnnOptions {
    CudnnOptions {
        library: spec.library.clone(),
        device: spec.device,
        apis: spec.apis,
        knobs: spec.knobs,
        seed: spec.seed,
        odd_strides: spec.odd_strides,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_planted_fault_is_the_host() {
        let spec = BackendSpec {
            fault: Some("tap_dropped".to_owned()),
            ..BackendSpec::default()
        };
        assert_eq!(open(&spec).unwrap().combination().backend, "host");
    }

    #[test]
    fn open_missing_library_is_an_environment_error() {
        let spec = BackendSpec {
            library: Some(PathBuf::from("/nonexistent/libcudnn.so.9")),
            ..BackendSpec::default()
        };
        let error = open(&spec).err().expect("no such library");
        assert_eq!(error.exit_code(), 3, "{error}");
    }
}
