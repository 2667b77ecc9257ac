//! What `doctor` reports: GPUs, driver, cuDNN, every place tried, what to do.

use std::fs;

use serde::Serialize;

use super::CudnnOptions;
use super::driver::{Driver, Gpu};
use super::library::{Cudnn, CudnnFound};
use super::search::{Attempt, Surroundings};
use super::session::Session;
use crate::error::Result;

/// The state of this machine as the cuDNN backend sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Probe {
    /// Whether the backend opens and can run.
    pub ready: bool,
    /// The NVIDIA driver.
    pub driver: DriverFound,
    /// GPUs the process may use.
    pub gpus: Vec<Gpu>,
    /// The cuDNN library.
    pub cudnn: CudnnFound,
    /// Value of NVIDIA_TF32_OVERRIDE, when set.
    pub tf32_override: Option<String>,
    /// Every place tried, in order.
    pub tried: Vec<Attempt>,
    /// What is missing and how to mend it; empty when ready.
    pub advice: Vec<String>,
}

/// What of the driver was found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DriverFound {
    /// Driver version, such as `580.159.04`.
    pub version: Option<String>,
    /// Highest CUDA version it supports, such as `13.0`.
    pub cuda: Option<String>,
    /// The libcuda that is mapped.
    pub path: Option<String>,
    /// Why it cannot be used.
    pub error: Option<String>,
}

/// Looks at the machine. Never fails: what is missing is part of the answer.
pub fn probe(options: &CudnnOptions) -> Probe {
    let around = Surroundings::read(options.library.as_deref());
    let mut tried = Vec::new();
    let driver = Driver::load(&around, &mut tried);
    let gpus = gpus(&driver);
    let cudnn = Cudnn::load(&around, &mut tried);
    let opened = Session::open(options).map(|_| ());
    Probe {
        ready: opened.is_ok(),
        advice: advice(&driver, &gpus, &cudnn, &opened),
        driver: driver_found(&driver, &gpus),
        gpus: gpus.unwrap_or_default(),
        cudnn: CudnnFound::new(&cudnn),
        tf32_override: std::env::var("NVIDIA_TF32_OVERRIDE").ok(),
        tried,
    }
}

fn gpus(driver: &Result<Driver>) -> Result<Vec<Gpu>> {
    match driver {
        Ok(driver) => Ok(driver.gpus()?),
        Err(_) => Ok(Vec::new()),
    }
}

fn driver_found(driver: &Result<Driver>, gpus: &Result<Vec<Gpu>>) -> DriverFound {
    DriverFound {
        version: driver_version(),
        cuda: driver.as_ref().ok().map(Driver::cuda_text),
        path: driver
            .as_ref()
            .ok()
            .map(|d| d.library.path.display().to_string()),
        error: [driver.as_ref().err(), gpus.as_ref().err()]
            .into_iter()
            .flatten()
            .next()
            .map(ToString::to_string),
    }
}

/// The distinct reasons why the backend does not open.
fn advice(
    driver: &Result<Driver>,
    gpus: &Result<Vec<Gpu>>,
    cudnn: &Result<Cudnn>,
    opened: &Result<()>,
) -> Vec<String> {
    let errors = [
        driver.as_ref().err(),
        gpus.as_ref().err(),
        cudnn.as_ref().err(),
        opened.as_ref().err(),
    ];
    let mut advice: Vec<String> = Vec::new();
    for error in errors.into_iter().flatten().map(ToString::to_string) {
        if !advice.contains(&error) {
            advice.push(error);
        }
    }
    advice
}

/// The driver's version, from NVML or else from the kernel module's own word.
pub(super) fn driver_version() -> Option<String> {
    nvml_version().or_else(|| kernel_module_version(&fs::read_to_string(KERNEL_MODULE).ok()?))
}

const KERNEL_MODULE: &str = "/proc/driver/nvidia/version";

fn nvml_version() -> Option<String> {
    let nvml = nvml_wrapper::Nvml::builder()
        .lib_path("libnvidia-ml.so.1".as_ref())
        .init()
        .ok()?;
    nvml.sys_driver_version().ok()
}

/// In `NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04  Tue …`: the
/// first word that is numbers between dots.
fn kernel_module_version(text: &str) -> Option<String> {
    text.split_whitespace()
        .find(|word| word.contains('.') && word.split('.').all(|part| part.parse::<u32>().is_ok()))
        .map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_module_version_closed_and_open_modules() {
        let closed = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.57.02  Tue Jul 13\n\
                      GCC version:  gcc version 9.3.0";
        let open = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release";
        assert_eq!(kernel_module_version(closed).unwrap(), "470.57.02");
        assert_eq!(kernel_module_version(open).unwrap(), "580.159.04");
        assert_eq!(kernel_module_version("nothing here"), None);
    }

    #[test]
    fn probe_never_fails_and_gives_reasons_exactly_when_not_ready() {
        let probe = probe(&CudnnOptions::default());
        assert_eq!(probe.ready, probe.advice.is_empty(), "{probe:?}");
        assert!(!probe.tried.is_empty());
        serde_json::to_string(&probe).unwrap();
    }

    #[test]
    fn probe_given_library_that_is_missing_is_named_in_the_advice() {
        let options = CudnnOptions {
            library: Some("/no/such/libcudnn.so.9".into()),
            ..CudnnOptions::default()
        };
        let probe = probe(&options);
        assert!(!probe.ready);
        assert!(
            probe
                .advice
                .iter()
                .any(|a| a.contains("/no/such/libcudnn.so.9"))
        );
        assert!(probe.cudnn.error.is_some());
    }
}
