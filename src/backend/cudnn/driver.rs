//! The CUDA driver: devices, the context, device memory.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::rc::Rc;

use cudarc::driver::sys::{CUcontext, CUdevice, CUdevice_attribute, CUdeviceptr};
use serde::Serialize;

use super::library::{Library, cuda_version};
use super::search::{Attempt, Surroundings};
use super::status::{Failure, Meaning, SUCCESS};
use crate::error::{Error, Result};

/// CUDA_ERROR_OUT_OF_MEMORY.
const OUT_OF_MEMORY: i32 = 2;
/// CUDA_ERROR_STUB_LIBRARY: the toolkit's stand-in for linking.
const STUB_LIBRARY: i32 = 34;
/// CUDA_ERROR_NO_DEVICE.
const NO_DEVICE: i32 = 100;

/// One GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Gpu {
    /// CUDA's ordinal.
    pub index: usize,
    /// Name as the driver gives it.
    pub name: String,
    /// Compute capability, major and minor.
    pub capability: (u32, u32),
    /// Memory, bytes.
    pub memory: u64,
}

impl Gpu {
    /// Compute capability as text, such as `9.0`.
    pub fn sm(&self) -> String {
        format!("{}.{}", self.capability.0, self.capability.1)
    }
}

macro_rules! functions {
    ($table:ident { $($field:ident = $symbol:literal ($($arg:ty),*);)* }) => {
        /// The functions in use, all present.
        struct $table {
            $($field: unsafe extern "C" fn($($arg),*) -> c_int,)*
        }

        impl $table {
            fn look_up(library: &Library) -> Result<Self> {
                // SAFETY: the signatures are those of cuda.h, CUresult as int.
                unsafe { Ok($table { $($field: library.symbol($symbol)?,)* }) }
            }
        }
    };
}

functions!(Functions {
    init = "cuInit" (c_uint);
    version = "cuDriverGetVersion" (*mut c_int);
    error_name = "cuGetErrorName" (c_int, *mut *const c_char);
    device_count = "cuDeviceGetCount" (*mut c_int);
    device = "cuDeviceGet" (*mut CUdevice, c_int);
    device_name = "cuDeviceGetName" (*mut c_char, c_int, CUdevice);
    device_attribute = "cuDeviceGetAttribute" (*mut c_int, c_int, CUdevice);
    device_memory = "cuDeviceTotalMem_v2" (*mut usize, CUdevice);
    retain = "cuDevicePrimaryCtxRetain" (*mut CUcontext, CUdevice);
    release = "cuDevicePrimaryCtxRelease_v2" (CUdevice);
    set_current = "cuCtxSetCurrent" (CUcontext);
    synchronize = "cuCtxSynchronize" ();
    memory_info = "cuMemGetInfo_v2" (*mut usize, *mut usize);
    allocate = "cuMemAlloc_v2" (*mut CUdeviceptr, usize);
    free = "cuMemFree_v2" (CUdeviceptr);
    upload = "cuMemcpyHtoD_v2" (CUdeviceptr, *const c_void, usize);
    download = "cuMemcpyDtoH_v2" (*mut c_void, CUdeviceptr, usize);
    fill_16 = "cuMemsetD16_v2" (CUdeviceptr, u16, usize);
    fill_32 = "cuMemsetD32_v2" (CUdeviceptr, c_uint, usize);
    fill_8 = "cuMemsetD8_v2" (CUdeviceptr, u8, usize);
});

/// The loaded driver library, initialised.
pub struct Driver {
    /// The library.
    pub library: Library,
    /// Highest CUDA version it supports, such as 13000.
    pub cuda: usize,
    functions: Functions,
}

/// What a call into the driver gave.
pub type Called<T = ()> = std::result::Result<T, Failure>;

impl Driver {
    /// Finds and loads libcuda and initialises it.
    pub fn load(around: &Surroundings, tried: &mut Vec<Attempt>) -> Result<Driver> {
        let names = ["libcuda.so.1".to_owned()];
        let library = Library::first_of(&around.places(&names, &[]), tried).ok_or_else(|| {
            Error::environment(
                "no NVIDIA driver: libcuda.so.1 was not found. Install the driver, or in a \
                 container start it with GPU access (docker run --gpus all)",
            )
        })?;
        let functions = Functions::look_up(&library)?;
        let mut driver = Driver {
            library,
            cuda: 0,
            functions,
        };
        // SAFETY: cuInit takes flags that must be 0.
        let status = unsafe { (driver.functions.init)(0) };
        driver.initialised(status)?;
        driver.cuda = driver.read_version()?;
        Ok(driver)
    }

    fn initialised(&self, status: i32) -> Result<()> {
        let path = self.library.path.display();
        match status {
            SUCCESS => Ok(()),
            STUB_LIBRARY => Err(Error::environment(format!(
                "{path} is the CUDA toolkit's stub, not a driver: take its folder off \
                 LD_LIBRARY_PATH"
            ))),
            NO_DEVICE => Err(Error::environment(format!(
                "the driver ({path}) sees no GPU: check nvidia-smi and CUDA_VISIBLE_DEVICES"
            ))),
            _ => Err(Error::environment(format!(
                "the driver ({path}) does not start: {}",
                self.failure("cuInit", status)
            ))),
        }
    }

    fn read_version(&self) -> Called<usize> {
        let mut version = 0;
        // SAFETY: the pointer is good for one int.
        let status = unsafe { (self.functions.version)(&raw mut version) };
        self.check("cuDriverGetVersion", status)?;
        Ok(version as usize)
    }

    /// Highest CUDA version as text, such as `13.0`.
    pub fn cuda_text(&self) -> String {
        cuda_version(self.cuda)
    }

    fn check(&self, call: &'static str, status: i32) -> Called {
        if status == SUCCESS {
            return Ok(());
        }
        Err(self.failure(call, status))
    }

    fn failure(&self, call: &'static str, status: i32) -> Failure {
        Failure {
            call,
            status: self.error_name(status),
            meaning: match status {
                OUT_OF_MEMORY => Meaning::OutOfMemory,
                _ => Meaning::Failed,
            },
            message: String::new(),
        }
    }

    fn error_name(&self, status: i32) -> String {
        let mut name = std::ptr::null();
        // SAFETY: the pointer is good for one pointer.
        let found = unsafe { (self.functions.error_name)(status, &raw mut name) };
        if found != SUCCESS || name.is_null() {
            return format!("CUDA error {status}");
        }
        // SAFETY: on success it points to a constant string of the library.
        unsafe { CStr::from_ptr(name) }
            .to_string_lossy()
            .into_owned()
    }

    /// All GPUs the process may use.
    pub fn gpus(&self) -> Called<Vec<Gpu>> {
        let mut count = 0;
        // SAFETY: the pointer is good for one int.
        let status = unsafe { (self.functions.device_count)(&raw mut count) };
        self.check("cuDeviceGetCount", status)?;
        (0..count as usize).map(|index| self.gpu(index)).collect()
    }

    fn gpu(&self, index: usize) -> Called<Gpu> {
        use CUdevice_attribute::{
            CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR as MAJOR,
            CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR as MINOR,
        };
        let device = self.device(index)?;
        let mut name = [0u8; 256];
        let mut memory = 0;
        // SAFETY: the buffer is as long as stated; the device is valid.
        let status = unsafe {
            (self.functions.device_name)(name.as_mut_ptr().cast(), name.len() as c_int, device)
        };
        self.check("cuDeviceGetName", status)?;
        // SAFETY: the pointer is good for one size; the device is valid.
        let status = unsafe { (self.functions.device_memory)(&raw mut memory, device) };
        self.check("cuDeviceTotalMem", status)?;
        let end = name.iter().position(|&b| b == 0).unwrap_or(name.len());
        Ok(Gpu {
            index,
            name: String::from_utf8_lossy(&name[..end]).into_owned(),
            capability: (
                self.attribute(device, MAJOR)?,
                self.attribute(device, MINOR)?,
            ),
            memory: memory as u64,
        })
    }

    fn device(&self, index: usize) -> Called<CUdevice> {
        let mut device = 0;
        // SAFETY: the pointer is good for one device; any index may be asked.
        let status = unsafe { (self.functions.device)(&raw mut device, index as c_int) };
        self.check("cuDeviceGet", status)?;
        Ok(device)
    }

    fn attribute(&self, device: CUdevice, attribute: CUdevice_attribute) -> Called<u32> {
        let mut value = 0;
        // SAFETY: the pointer is good for one int; the device is valid.
        let status = unsafe {
            (self.functions.device_attribute)(&raw mut value, attribute as c_int, device)
        };
        self.check("cuDeviceGetAttribute", status)?;
        Ok(value as u32)
    }
}

/// The primary context of one GPU, the one cuDNN's own CUDA runtime uses too.
pub struct Context {
    driver: Rc<Driver>,
    device: CUdevice,
    raw: CUcontext,
}

impl Context {
    /// Retains the context of GPU `index` and makes it current.
    pub fn new(driver: &Rc<Driver>, index: usize) -> Called<Context> {
        let device = driver.device(index)?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the pointer is good for one context; the device is valid.
        let status = unsafe { (driver.functions.retain)(&raw mut raw, device) };
        driver.check("cuDevicePrimaryCtxRetain", status)?;
        let context = Context {
            driver: Rc::clone(driver),
            device,
            raw,
        };
        context.make_current()?;
        Ok(context)
    }

    /// The driver behind it.
    pub fn driver(&self) -> &Rc<Driver> {
        &self.driver
    }

    /// Makes it the calling thread's context.
    pub fn make_current(&self) -> Called {
        // SAFETY: `raw` is retained until drop.
        let status = unsafe { (self.driver.functions.set_current)(self.raw) };
        self.driver.check("cuCtxSetCurrent", status)
    }

    /// Waits until the GPU is idle; errors of earlier kernels surface here, and
    /// once more in every later call if the context is lost.
    pub fn synchronize(&self) -> Called {
        // SAFETY: takes nothing.
        let status = unsafe { (self.driver.functions.synchronize)() };
        self.driver.check("cuCtxSynchronize", status)
    }

    /// Free memory of the GPU, bytes.
    pub fn free_memory(&self) -> Called<usize> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: both pointers are good for one size.
        let status = unsafe { (self.driver.functions.memory_info)(&raw mut free, &raw mut total) };
        self.driver.check("cuMemGetInfo", status)?;
        Ok(free)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // A lost context answers with its error: there is nothing to do about it.
        // SAFETY: retained once, released once.
        unsafe { (self.driver.functions.release)(self.device) };
    }
}

/// Raw device memory, freed on drop. Copies are synchronous, on the default
/// stream.
pub struct Allocation {
    driver: Rc<Driver>,
    start: CUdeviceptr,
    bytes: usize,
}

impl Allocation {
    /// Allocates `bytes` (at least one) in the current context.
    pub fn new(driver: &Rc<Driver>, bytes: usize) -> Called<Allocation> {
        let mut start = 0;
        // SAFETY: the pointer is good for one address.
        let status = unsafe { (driver.functions.allocate)(&raw mut start, bytes.max(1)) };
        driver.check("cuMemAlloc", status)?;
        Ok(Allocation {
            driver: Rc::clone(driver),
            start,
            bytes,
        })
    }

    /// Length in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Device address of byte `offset`.
    pub fn address(&self, offset: usize) -> CUdeviceptr {
        self.start + offset as CUdeviceptr
    }

    /// Copies `data` to `offset`.
    pub fn upload(&self, offset: usize, data: &[u8]) -> Called {
        self.assert_inside(offset, data.len());
        // SAFETY: source and target are good for `data.len()` bytes.
        let status = unsafe {
            (self.driver.functions.upload)(self.address(offset), data.as_ptr().cast(), data.len())
        };
        self.driver.check("cuMemcpyHtoD", status)
    }

    /// Copies from `offset` into `data`.
    pub fn download(&self, offset: usize, data: &mut [u8]) -> Called {
        self.assert_inside(offset, data.len());
        // SAFETY: source and target are good for `data.len()` bytes.
        let status = unsafe {
            let target = data.as_mut_ptr().cast();
            (self.driver.functions.download)(target, self.address(offset), data.len())
        };
        self.driver.check("cuMemcpyDtoH", status)
    }

    /// Sets `count` bytes from `offset`.
    pub fn fill_8(&self, offset: usize, value: u8, count: usize) -> Called {
        self.assert_inside(offset, count);
        // SAFETY: the range is inside the allocation.
        let status = unsafe { (self.driver.functions.fill_8)(self.address(offset), value, count) };
        self.driver.check("cuMemsetD8", status)
    }

    /// Sets `count` 16-bit words from `offset`, which must be even.
    pub fn fill_16(&self, offset: usize, value: u16, count: usize) -> Called {
        self.assert_inside(offset, 2 * count);
        // SAFETY: the range is inside the allocation.
        let status = unsafe { (self.driver.functions.fill_16)(self.address(offset), value, count) };
        self.driver.check("cuMemsetD16", status)
    }

    /// Sets `count` 32-bit words from `offset`, which must be a multiple of 4.
    pub fn fill_32(&self, offset: usize, value: u32, count: usize) -> Called {
        self.assert_inside(offset, 4 * count);
        // SAFETY: the range is inside the allocation.
        let status = unsafe { (self.driver.functions.fill_32)(self.address(offset), value, count) };
        self.driver.check("cuMemsetD32", status)
    }

    /// The one guard of the unsafe copies above: a range outside would be our
    /// own bug.
    fn assert_inside(&self, offset: usize, count: usize) {
        let end = offset.checked_add(count);
        assert!(
            end.is_some_and(|end| end <= self.bytes),
            "device copy of {count} bytes at {offset} leaves an allocation of {}",
            self.bytes
        );
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // A lost context cannot free; the process's end will.
        // SAFETY: allocated once, freed once; the caller has waited for kernels.
        unsafe { (self.driver.functions.free)(self.start) };
    }
}

/// Writes to any device address, as a stray kernel would.
#[cfg(test)]
pub(super) fn poke(driver: &Driver, address: CUdeviceptr, data: &[u8]) {
    // SAFETY: tests aim inside their own allocations.
    let status = unsafe { (driver.functions.upload)(address, data.as_ptr().cast(), data.len()) };
    assert_eq!(status, SUCCESS);
}

/// Reads from any device address.
#[cfg(test)]
pub(super) fn peek(driver: &Driver, address: CUdeviceptr, bytes: usize) -> Vec<u8> {
    let mut data = vec![0; bytes];
    // SAFETY: tests aim inside their own allocations.
    let status = unsafe { (driver.functions.download)(data.as_mut_ptr().cast(), address, bytes) };
    assert_eq!(status, SUCCESS);
    data
}
