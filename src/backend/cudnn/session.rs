//! An opened GPU: driver, context, cuDNN and its handle.

use std::cell::RefCell;
use std::env;
use std::ffi::c_int;
use std::rc::Rc;

use cudarc::cudnn::sys::cudnnHandle_t;

use super::CudnnOptions;
use super::driver::{Context, Driver, Gpu};
use super::library::Cudnn;
use super::search::{Attempt, Surroundings};
use super::status::Failure;
use crate::backend::Combination;
use crate::error::{Error, Result};

/// Everything both of cuDNN's APIs run on. One thread's own.
pub struct Session {
    // Dropped in this order: the handle needs the context.
    handle: Handle,
    context: Context,
    gpu: Gpu,
    combination: Combination,
    tf32_forbidden: bool,
    lost: RefCell<Option<String>>,
}

/// A cuDNN handle, destroyed on drop.
struct Handle {
    raw: cudnnHandle_t,
    cudnn: Rc<Cudnn>,
    destroy: unsafe extern "C" fn(cudnnHandle_t) -> c_int,
}

impl Handle {
    fn new(cudnn: &Rc<Cudnn>) -> Result<Handle> {
        // SAFETY: cudnnStatus_t cudnnCreate(cudnnHandle_t *) and
        // cudnnDestroy(cudnnHandle_t), status as int.
        let (create, destroy) = unsafe {
            let create: unsafe extern "C" fn(*mut cudnnHandle_t) -> c_int =
                cudnn.library.symbol("cudnnCreate")?;
            (create, cudnn.library.symbol("cudnnDestroy")?)
        };
        let mut raw = std::ptr::null_mut();
        // SAFETY: the pointer is good for one handle; a context is current.
        let status = unsafe { create(&raw mut raw) };
        cudnn.check("cudnnCreate", status)?;
        Ok(Handle {
            raw,
            cudnn: Rc::clone(cudnn),
            destroy,
        })
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // A lost context answers with its error: there is nothing to do about it.
        // SAFETY: created once, destroyed once.
        unsafe { (self.destroy)(self.raw) };
    }
}

impl Session {
    /// Opens the GPU and the library that `options` name.
    pub fn open(options: &CudnnOptions) -> Result<Session> {
        Self::open_noting(options, &mut Vec::new())
    }

    /// [`Session::open`], noting every place that was tried.
    pub fn open_noting(options: &CudnnOptions, tried: &mut Vec<Attempt>) -> Result<Session> {
        let around = Surroundings::read(options.library.as_deref());
        let driver = Rc::new(Driver::load(&around, tried)?);
        let gpu = choose(driver.gpus()?, options.device)?;
        let cudnn = Rc::new(Cudnn::load(&around, tried)?);
        let context = Context::new(&driver, gpu.index)?;
        let handle = Handle::new(&cudnn).map_err(|e| e.context(cudnn.library.path.display()))?;
        Ok(Session {
            combination: combination(&driver, &gpu, &cudnn),
            tf32_forbidden: tf32_forbidden(env::var("NVIDIA_TF32_OVERRIDE").ok().as_deref()),
            handle,
            context,
            gpu,
            lost: RefCell::new(None),
        })
    }

    /// cuDNN's handle; it works on the default stream.
    pub fn handle(&self) -> cudnnHandle_t {
        self.handle.raw
    }

    /// The library.
    pub fn cudnn(&self) -> &Rc<Cudnn> {
        &self.handle.cudnn
    }

    /// The CUDA driver.
    pub fn driver(&self) -> &Rc<Driver> {
        self.context.driver()
    }

    /// The CUDA context.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// The GPU.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// What records say of this machine.
    pub fn combination(&self) -> &Combination {
        &self.combination
    }

    /// Whether the user forbade TF32 (NVIDIA_TF32_OVERRIDE=0).
    pub fn tf32_forbidden(&self) -> bool {
        self.tf32_forbidden
    }

    /// Call before each use: makes the context current, and refuses once a
    /// kernel has destroyed it.
    pub fn enter(&self) -> Result<()> {
        if let Some(words) = &*self.lost.borrow() {
            return Err(lost(words));
        }
        Ok(self.context.make_current()?)
    }

    /// After a failure: whether the context survived. If it did not, every
    /// later [`Session::enter`] says so and the process must be replaced.
    pub fn survived(&self, failure: &Failure) -> bool {
        let Err(error) = self.context.synchronize() else {
            return true;
        };
        *self.lost.borrow_mut() = Some(format!("{failure}; since then {error}"));
        false
    }
}

fn lost(words: &str) -> Error {
    Error::environment(format!(
        "the CUDA context of this process was lost: {words}. Nothing can run in it any more: \
         start a new process"
    ))
}

fn choose(gpus: Vec<Gpu>, index: usize) -> Result<Gpu> {
    let count = gpus.len();
    gpus.into_iter().nth(index).ok_or_else(|| {
        Error::environment(format!(
            "GPU {index} was asked for, but the driver shows {count} (numbered from 0; see \
             CUDA_VISIBLE_DEVICES)"
        ))
    })
}

fn combination(driver: &Driver, gpu: &Gpu, cudnn: &Cudnn) -> Combination {
    Combination {
        backend: "cudnn".to_owned(),
        device: gpu.name.clone(),
        sm: gpu.sm(),
        driver: super::probe::driver_version().unwrap_or_default(),
        cudnn: cudnn.version.to_string(),
        cuda: driver.cuda_text(),
        convfuzz: env!("CARGO_PKG_VERSION").to_owned(),
    }
}

/// NVIDIA documents 0 as the value that turns TF32 off everywhere; 1 and
/// absence leave it to the library.
fn tf32_forbidden(value: Option<&str>) -> bool {
    value.is_some_and(|v| v.trim() == "0")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn tf32_forbidden_only_by_zero() {
        assert!(tf32_forbidden(Some("0")));
        assert!(!tf32_forbidden(Some("1")));
        assert!(!tf32_forbidden(None));
    }

    #[test]
    fn choose_absent_gpu_says_how_many_there_are() {
        let gpu = Gpu {
            index: 0,
            name: "a".into(),
            capability: (9, 0),
            memory: 1,
        };
        assert_eq!(choose(vec![gpu.clone()], 0).unwrap(), gpu);
        let error = choose(vec![gpu], 3).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Environment);
        assert!(
            error
                .to_string()
                .starts_with("GPU 3 was asked for, but the driver shows 1")
        );
    }
}
