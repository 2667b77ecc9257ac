//! `convfuzz worker`: the process that runs trials for `fuzz`. Not for people.

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
        worker::serve(std::io::stdin().lock(), std::io::stdout().lock())?;
        Ok(Exit::Clean)
    }
}
