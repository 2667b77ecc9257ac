//! Ctrl-C, and the signals that ask a program to end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::cli::exit::Exit;
use crate::error::{Error, Result};

/// A flag that the first Ctrl-C sets; the second ends the program at once.
pub fn flag() -> Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    let set = Arc::clone(&flag);
    ctrlc::set_handler(move || {
        if set.swap(true, Ordering::SeqCst) {
            std::process::exit(Exit::Interrupted.code().into());
        }
        eprintln!("\nstopping: trials that run are finished; Ctrl-C again to quit at once");
    })
    .map_err(|e| Error::internal("no handler for Ctrl-C").with_source(e))?;
    Ok(flag)
}
