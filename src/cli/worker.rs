//! `convfuzz worker`: the process that runs trials for `fuzz`. Not for people.

use std::os::unix::process::parent_id;
use std::time::Duration;

use clap::Args;

use crate::campaign::worker;
use crate::cli::exit::Exit;
use crate::error::Result;

/// Serve trials to the convfuzz that started this process
#[derive(Args, Debug)]
pub struct Worker {}

impl Worker {
    /// Serves until the other side hangs up.
    pub fn execute(self) -> Result<Exit> {
        end_with_parent();
        worker::serve(std::io::stdin().lock(), std::io::stdout().lock())?;
        Ok(Exit::Clean)
    }
}

/// Ends this process soon after its parent, even from inside a kernel that
/// hangs: nobody else would. An idle worker ends by itself when its input does.
fn end_with_parent() {
    let parent = parent_id();
    std::thread::spawn(move || {
        while parent_id() == parent {
            std::thread::sleep(Duration::from_millis(500));
        }
        // Not exit: CUDA's own exit handlers would wait for the kernel.
        std::process::abort();
    });
}
