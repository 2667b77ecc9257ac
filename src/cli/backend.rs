//! Options that choose a backend, shared by the commands.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::backend::Backend;
use crate::backend::cudnn::{Apis, CudnnOptions, KnobBudget};
use crate::backend::open::{self, BackendKind, BackendSpec};
use crate::campaign::solo::Settled;
use crate::cli::terminal::Terminal;
use crate::error::{Error, Result};

/// Where cuDNN is, and on which GPU.
#[derive(Args, Clone, Debug)]
pub struct CudnnArgs {
    /// File or folder of the cuDNN library, instead of looking for it
    #[arg(long, value_name = "PATH", help_heading = "Backend")]
    cudnn_lib: Option<PathBuf>,
    /// Number of the GPU, as CUDA counts [default: 0]
    #[arg(long, value_name = "N", help_heading = "Backend")]
    device: Option<usize>,
    /// Which of cuDNN's APIs candidates come from
    #[arg(long, value_enum, default_value_t, help_heading = "Backend")]
    api: Api,
    /// Knob choices of engines per problem, beyond the engines' own: default, a number, or all
    #[arg(long, value_name = "BUDGET", default_value_t, help_heading = "Backend")]
    knobs: KnobBudget,
    /// Also run plans of the graph API with odd strides of the dimensions of size 1
    #[arg(long, help_heading = "Backend")]
    odd_strides: bool,
}

/// Values of `--api`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Api {
    /// Both
    #[default]
    All,
    /// Algorithms and math types
    Legacy,
    /// Engines and knobs of the graph API
    Engine,
}

impl From<Api> for Apis {
    fn from(api: Api) -> Self {
        Apis {
            legacy: api != Api::Engine,
            engines: api != Api::Legacy,
        }
    }
}

/// Which backend.
#[derive(Args, Clone, Debug)]
pub struct BackendArgs {
    /// What to test
    #[arg(long, value_enum, default_value_t, help_heading = "Backend")]
    backend: Choice,
    #[command(flatten)]
    cudnn: CudnnArgs,
    /// Plant this fault in the host backend, to see it caught
    #[arg(long, value_name = "NAME", help_heading = "Backend")]
    fault: Option<String>,
}

/// Values of `--backend`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Choice {
    /// cuDNN where there is one, else the host backend
    #[default]
    Auto,
    /// NVIDIA's cuDNN on a GPU
    Cudnn,
    /// The same algorithm families in software
    Host,
}

const HOST_BY_DEFAULT: &str = "no usable cuDNN here ('convfuzz doctor' says why): using the host backend, which tests software algorithms";

impl From<&CudnnArgs> for CudnnOptions {
    fn from(args: &CudnnArgs) -> Self {
        CudnnOptions {
            library: args.cudnn_lib.clone(),
            device: args.device.unwrap_or(0),
            apis: args.api.into(),
            knobs: args.knobs,
            odd_strides: args.odd_strides,
            ..CudnnOptions::default()
        }
    }
}

impl BackendArgs {
    /// The planted fault, if any.
    pub fn fault(&self) -> Option<&str> {
        self.fault.as_deref()
    }

    /// The backend that is asked for, options checked against one another.
    pub fn spec(&self) -> Result<BackendSpec> {
        Ok(BackendSpec {
            kind: self.kind()?,
            fault: self.fault.clone(),
            library: self.cudnn.cudnn_lib.clone(),
            device: self.cudnn.device.unwrap_or(0),
            apis: self.cudnn.api.into(),
            knobs: self.cudnn.knobs,
            seed: 0,
            odd_strides: self.cudnn.odd_strides,
        })
    }

    /// Options that only one backend has ask for that backend: a library that
    /// is named and missing must not quietly become the host backend.
    fn kind(&self) -> Result<BackendKind> {
        let cudnn = self.cudnn.cudnn_lib.is_some() || self.cudnn.device.is_some();
        let host = self.fault.is_some();
        match (self.backend, cudnn, host) {
            (_, true, true) => Err(Error::usage(
                "--fault is for the host backend, --cudnn-lib and --device are for cudnn",
            )),
            (Choice::Host, true, _) => Err(Error::usage(
                "--cudnn-lib and --device do not go with --backend host",
            )),
            (Choice::Cudnn, _, true) => Err(Error::usage(
                "--fault does not go with --backend cudnn: faults are planted in the host backend only",
            )),
            (Choice::Cudnn, ..) | (Choice::Auto, true, _) => Ok(BackendKind::Cudnn),
            (Choice::Host, ..) | (Choice::Auto, _, true) => Ok(BackendKind::Host),
            (Choice::Auto, false, false) => Ok(BackendKind::Auto),
        }
    }

    /// Opens it, and says so when it is only the host backend by default.
    pub fn open(&self, terminal: &Terminal) -> Result<Box<dyn Backend>> {
        open::open(&self.settled(terminal)?.backend)
    }

    /// The backend for another process to open, `auto` decided; says so when it
    /// is only the host backend by default.
    pub fn chosen(&self, terminal: &Terminal) -> Result<BackendSpec> {
        let spec = self.spec()?;
        match spec.kind {
            BackendKind::Auto => self.settled(terminal).map(|settled| settled.backend),
            _ => Ok(spec),
        }
    }

    /// The same, and what it runs on.
    pub fn settled(&self, terminal: &Terminal) -> Result<Settled> {
        let asked = self.spec()?.kind;
        let settled = Settled::of(self.spec()?)?;
        if (asked, settled.backend.kind) == (BackendKind::Auto, BackendKind::Host) {
            terminal.note(HOST_BY_DEFAULT);
        }
        Ok(settled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        backend: BackendArgs,
    }

    fn kind(options: &str) -> Result<BackendKind> {
        let words = std::iter::once("convfuzz").chain(options.split_whitespace());
        Line::try_parse_from(words).unwrap().backend.kind()
    }

    #[test]
    fn kind_options_of_one_backend_ask_for_it() {
        for (options, expected) in [
            ("", BackendKind::Auto),
            ("--backend host", BackendKind::Host),
            ("--backend cudnn", BackendKind::Cudnn),
            ("--fault tap_dropped", BackendKind::Host),
            ("--cudnn-lib /x", BackendKind::Cudnn),
            ("--device 1", BackendKind::Cudnn),
        ] {
            assert_eq!(kind(options).unwrap(), expected, "{options}");
        }
    }

    #[test]
    fn kind_contradictions_are_refused() {
        for options in [
            "--backend cudnn --fault a",
            "--backend host --device 1",
            "--backend host --cudnn-lib /x",
            "--cudnn-lib /x --fault a",
        ] {
            assert!(kind(options).is_err(), "{options}");
        }
    }
}
