//! The seven C functions of the backend API.

use std::ffi::{c_int, c_void};
use std::rc::Rc;

use super::super::library::Cudnn;
use super::super::status::Failure;
use super::words;
use crate::error::Result;

/// cudnnBackendDescriptor_t.
pub type Raw = *mut c_void;

/// The functions, looked up once. Enums and statuses cross as `int`.
pub struct Calls {
    /// The library they come from.
    pub cudnn: Rc<Cudnn>,
    /// cudnnBackendCreateDescriptor.
    pub create: unsafe extern "C" fn(c_int, *mut Raw) -> c_int,
    /// cudnnBackendDestroyDescriptor.
    pub destroy: unsafe extern "C" fn(Raw) -> c_int,
    /// cudnnBackendFinalize.
    pub finalize: unsafe extern "C" fn(Raw) -> c_int,
    /// cudnnBackendSetAttribute.
    pub set: unsafe extern "C" fn(Raw, c_int, c_int, i64, *const c_void) -> c_int,
    /// cudnnBackendGetAttribute.
    pub get: unsafe extern "C" fn(Raw, c_int, c_int, i64, *mut i64, *mut c_void) -> c_int,
    /// cudnnBackendExecute.
    pub execute: unsafe extern "C" fn(*mut c_void, Raw, Raw) -> c_int,
}

impl Calls {
    /// Looks the functions up.
    pub fn look_up(cudnn: &Rc<Cudnn>) -> Result<Rc<Calls>> {
        let library = &cudnn.library;
        words::listen(cudnn);
        // SAFETY: the signatures are those of cudnn_graph.h in every version
        // since 8.0; enums are ints, handles and descriptors pointers.
        unsafe {
            Ok(Rc::new(Calls {
                create: library.symbol("cudnnBackendCreateDescriptor")?,
                destroy: library.symbol("cudnnBackendDestroyDescriptor")?,
                finalize: library.symbol("cudnnBackendFinalize")?,
                set: library.symbol("cudnnBackendSetAttribute")?,
                get: library.symbol("cudnnBackendGetAttribute")?,
                execute: library.symbol("cudnnBackendExecute")?,
                cudnn: Rc::clone(cudnn),
            }))
        }
    }

    /// Turns a status into a result; `of` says what the call was about.
    pub fn check(
        &self,
        call: &'static str,
        status: i32,
        of: &str,
    ) -> std::result::Result<(), Failure> {
        // Taken whether needed or not: reasons of a success are warnings.
        let heard = words::take();
        self.cudnn.check(call, status).map_err(|mut failure| {
            let known = heard.or(Some(failure.message)).filter(|w| !w.is_empty());
            failure.message = match known {
                Some(words) => format!("{of}: {words}"),
                None => of.to_owned(),
            };
            failure
        })
    }
}
