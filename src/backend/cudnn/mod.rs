//! NVIDIA's cuDNN on a GPU: the library as users have it, both of its APIs.
//!
//! The only folder with `unsafe` and cudarc. Nothing here panics or aborts on
//! a machine without CUDA: [`CudnnBackend::open`] gives an error that says what
//! is missing, [`probe`] a report.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::backend::{Backend, Combination, Listing, RunOptions, Steps, Support};
use crate::candidate::Candidate;
use crate::error::{Error, Result};
use crate::fill::Inputs;
use crate::outcome::Outcome;
use crate::problem::ConvProblem;

pub mod batch_norm;
pub mod driver;
pub mod graph;
pub mod legacy;
pub mod library;
pub mod memory;
pub mod observe;
pub mod pack;
pub mod probe;
pub mod search;
pub mod session;
pub mod status;

pub use graph::KnobBudget;
pub use probe::{Probe, probe};

use observe::Bench;
use session::Session;

/// Which library, GPU and APIs to use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CudnnOptions {
    /// libcudnn's file or folder; found by itself when absent.
    pub library: Option<PathBuf>,
    /// CUDA's ordinal of the GPU.
    pub device: usize,
    /// Which of cuDNN's APIs.
    pub apis: Apis,
    /// How many knob choices of engines are run.
    pub knobs: KnobBudget,
    /// Seed of the sampled knob choices.
    pub seed: u64,
    /// Whether plans of the graph API are also run with odd strides of the
    /// dimensions of size 1.
    pub odd_strides: bool,
}

/// Which of cuDNN's APIs candidates come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Apis {
    /// Algorithms and math types.
    pub legacy: bool,
    /// Engines and knobs.
    pub engines: bool,
}

impl Default for Apis {
    fn default() -> Self {
        Apis {
            legacy: true,
            engines: true,
        }
    }
}

/// One of cuDNN's APIs, as a source of candidates.
trait Api {
    /// Whether `candidate` is one of this API's.
    fn owns(&self, candidate: &Candidate) -> bool;

    /// As [`Backend::list`].
    fn list(
        &mut self,
        session: &Session,
        problem: &ConvProblem,
        steps: &mut Steps<'_>,
    ) -> Result<Vec<Listing>>;

    /// Which engines and knob values were tried so far.
    fn coverage(&self) -> Vec<graph::Row> {
        Vec::new()
    }

    /// As [`Backend::support`].
    fn support(
        &mut self,
        session: &Session,
        problem: &ConvProblem,
        candidate: &Candidate,
    ) -> Result<Support> {
        self.list_one(session, problem, candidate, &mut Steps::unwatched())
    }

    /// As [`Backend::list_one`].
    fn list_one(
        &mut self,
        session: &Session,
        problem: &ConvProblem,
        candidate: &Candidate,
        steps: &mut Steps<'_>,
    ) -> Result<Support> {
        crate::backend::find(self.list(session, problem, steps)?, candidate)
    }

    /// As [`Backend::run`].
    fn run(
        &mut self,
        session: &Session,
        bench: &mut Bench,
        inputs: &Inputs,
        candidate: &Candidate,
        options: &RunOptions,
    ) -> Result<Outcome>;
}

/// cuDNN on one GPU. Belongs to the thread that opened it.
pub struct CudnnBackend {
    // Dropped in this order: plans and buffers need the session.
    apis: Vec<Box<dyn Api>>,
    bench: Bench,
    session: Session,
}

impl CudnnBackend {
    /// Loads driver and library and opens the GPU.
    pub fn open(options: &CudnnOptions) -> Result<CudnnBackend> {
        let session = Session::open(options)?;
        let mut apis: Vec<Box<dyn Api>> = Vec::new();
        if options.apis.legacy {
            apis.push(Box::new(legacy::Legacy::new(&session)?));
        }
        if options.apis.engines {
            let graph = graph::Graph::new(&session, options)?;
            apis.push(Box::new(graph));
        }
        Ok(CudnnBackend {
            apis,
            bench: Bench::default(),
            session,
        })
    }
}

impl CudnnBackend {
    /// Which engines and knob values were tried since it was opened.
    pub fn coverage(&self) -> Vec<graph::Row> {
        self.apis.iter().flat_map(|api| api.coverage()).collect()
    }
}

impl Backend for CudnnBackend {
    fn combination(&self) -> &Combination {
        self.session.combination()
    }

    fn device_memory(&self) -> Result<Option<u64>> {
        self.session.enter()?;
        let free = self.session.context().free_memory();
        Ok(free.ok().map(|bytes| bytes as u64))
    }

    fn list(&mut self, problem: &ConvProblem, steps: &mut Steps<'_>) -> Result<Vec<Listing>> {
        self.session.enter()?;
        let mut listings = Vec::new();
        for api in &mut self.apis {
            listings.extend(api.list(&self.session, problem, steps)?);
        }
        Ok(listings)
    }

    fn support(&mut self, problem: &ConvProblem, candidate: &Candidate) -> Result<Support> {
        self.session.enter()?;
        owner(&mut self.apis, candidate)?.support(&self.session, problem, candidate)
    }

    fn list_one(
        &mut self,
        problem: &ConvProblem,
        candidate: &Candidate,
        steps: &mut Steps<'_>,
    ) -> Result<Support> {
        self.session.enter()?;
        owner(&mut self.apis, candidate)?.list_one(&self.session, problem, candidate, steps)
    }

    fn run(
        &mut self,
        inputs: &Inputs,
        candidate: &Candidate,
        options: &RunOptions,
    ) -> Result<Outcome> {
        self.session.enter()?;
        let api = owner(&mut self.apis, candidate)?;
        api.run(&self.session, &mut self.bench, inputs, candidate, options)
    }
}

fn owner<'a>(apis: &'a mut [Box<dyn Api>], candidate: &Candidate) -> Result<&'a mut Box<dyn Api>> {
    apis.iter_mut()
        .find(|api| api.owns(candidate))
        .ok_or_else(|| {
            Error::usage(format!(
                "the cudnn backend, as opened, has no candidate '{candidate}'"
            ))
        })
}

#[cfg(test)]
mod gpu_tests;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn open_without_the_library_gives_an_environment_error() {
        let options = CudnnOptions {
            library: Some("/no/such/folder/libcudnn.so.9".into()),
            ..CudnnOptions::default()
        };
        let error = CudnnBackend::open(&options).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Environment);
        assert_eq!(error.exit_code(), 3);
    }
}
