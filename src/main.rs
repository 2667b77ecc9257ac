//! The convfuzz program: arguments in, exit code out.

use std::process::ExitCode;

use clap::Parser;
use convfuzz::cli::{Cli, panics};

fn main() -> ExitCode {
    panics::guard(|| Cli::parse().execute()).into()
}
