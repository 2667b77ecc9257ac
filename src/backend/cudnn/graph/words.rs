//! The library's reasons, which it gives to a log callback alone.
//!
//! A refused engine or plan has a status without words; the callback of
//! cudnnSetCallback hears the reasons, deepest first, such as
//! `'c' per group must be 1 at: wDesc->dimA[1] != 1`.

use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::panic::catch_unwind;

use super::super::library::Cudnn;

/// CUDNN_SEV_ERROR_EN | CUDNN_SEV_WARNING_EN.
const MASK: c_uint = (1 << 1) | (1 << 2);

type Callback = unsafe extern "C" fn(c_int, *mut c_void, *const c_void, *const c_char);

thread_local! {
    static HEARD: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Starts listening, for the whole process and for good. Users who set the
/// library's own logging keep it instead.
pub fn listen(cudnn: &Cudnn) {
    if std::env::var_os("CUDNN_LOGLEVEL_DBG").is_some() {
        return;
    }
    // SAFETY: cudnnStatus_t (unsigned, void *, cudnnCallback_t) since 7.1.
    let set = unsafe {
        cudnn
            .library
            .optional::<unsafe extern "C" fn(c_uint, *mut c_void, Callback) -> c_int>(
                "cudnnSetCallback",
            )
    };
    if let Some(set) = set {
        // SAFETY: `hear` is never unloaded and takes no user data. A failure
        // only leaves refusals without reasons.
        unsafe { set(MASK, std::ptr::null_mut(), hear) };
    }
}

/// The reason heard since the last call, if any.
pub fn take() -> Option<String> {
    HEARD.with_borrow_mut(Option::take)
}

unsafe extern "C" fn hear(
    _severity: c_int,
    _data: *mut c_void,
    _debug: *const c_void,
    message: *const c_char,
) {
    if message.is_null() {
        return;
    }
    // SAFETY: the library passes lines that end with 0, the last of them empty.
    let text = unsafe { lines(message) };
    // Unwinding into C would end the process.
    let _ = catch_unwind(|| {
        HEARD.with(|heard| {
            if let Ok(mut heard) = heard.try_borrow_mut()
                && heard.is_none()
            {
                *heard = reason(&text);
            }
        });
    });
}

/// All lines of a message.
///
/// # Safety
/// `start` must point to texts that end with 0 one behind the other, the last
/// of them empty.
unsafe fn lines(mut start: *const c_char) -> String {
    let mut text = String::new();
    loop {
        // SAFETY: `start` is at the beginning of a text that ends with 0.
        let line = unsafe { CStr::from_ptr(start) };
        if line.is_empty() {
            return text;
        }
        text.push_str(&line.to_string_lossy());
        text.push('\n');
        // SAFETY: behind the 0 of a text that is not empty another begins.
        start = unsafe { start.add(line.count_bytes() + 1) };
    }
}

/// The deepest reason in a message that says more than that an inner call
/// failed, without the addresses some contain.
fn reason(message: &str) -> Option<String> {
    message
        .lines()
        .filter_map(|line| line.split_once("Reason:"))
        .map(|(_, reason)| reason.split(" (stt=").next().unwrap_or(reason).trim())
        .find(|reason| !reason.is_empty() && !reason.ends_with("()"))
        .map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reason_deepest_comes_first() {
        let message = "CuDNN (v91900 56) function cudnnBackendFinalize() called:\n\
             \tWarning: CUDNN_STATUS_NOT_SUPPORTED_SHAPE; Reason: 'c' per group must be 1\n\
             \tWarning: CUDNN_STATUS_NOT_SUPPORTED; Reason: ptrDesc->finalize()\n";
        assert_eq!(reason(message).unwrap(), "'c' per group must be 1");
        assert_eq!(reason("nothing of the kind"), None);
        assert_eq!(reason("a; Reason: core_engine.getStatus()"), None);
        let searched = "a; Reason: no search results or none implementable (stt=1, cur=0x7f)";
        assert_eq!(
            reason(searched).unwrap(),
            "no search results or none implementable"
        );
    }

    #[test]
    fn take_forgets_what_it_gave() {
        let text = b"called:\0a; Reason: because\0\0";
        // SAFETY: lines that end with 0, the last empty; the rest is not read.
        unsafe {
            hear(
                2,
                std::ptr::null_mut(),
                std::ptr::null(),
                text.as_ptr().cast(),
            );
        }
        assert_eq!(take().as_deref(), Some("because"));
        assert_eq!(take(), None);
    }
}
