//! The command line: arguments in, exit code out. One file per command.

use clap::{Args, Parser, Subcommand};
use tracing_subscriber::filter::{EnvFilter, LevelFilter};

use crate::cli::exit::Exit;
use crate::cli::terminal::{Terminal, When};
use crate::error::Result;

pub mod backend;
mod batch_norm;
pub mod bundle;
pub mod diff;
pub mod doctor;
pub mod dossier;
pub mod examine;
pub mod exit;
pub mod explain;
pub mod fuzz;
pub mod given;
pub mod interrupt;
pub mod list;
pub mod matrix;
pub mod merge;
pub mod minimize;
pub mod nightly;
pub mod panics;
mod probe;
pub mod progress;
pub mod recorder;
pub mod repro;
pub mod run;
pub mod shrink;
mod soundness;
pub mod study;
pub mod terminal;
pub mod worker;

const EXAMPLES: &str = "\
Examples:
  convfuzz doctor                       what is there to test on this machine
  convfuzz fuzz --time 10m              the main job; results go to results/
  convfuzz fuzz --cases 50 --seed 7 --backend host --dtype fp16 --dims 2,3
  convfuzz list 'fwd c=512 k=128 in=8x16x16 ker=3x1x1 pad=1x0x0 type=fp16'
  convfuzz diff results/yesterday results/today
  convfuzz run 'fwd c=64 k=32 in=14x14 ker=3x3 type=fp16 fill=normal:7'";

/// Finds wrong numbers in cuDNN convolutions.
///
/// Generates convolution problems, runs every algorithm and engine that cuDNN
/// offers for them, and judges each output against an exact oracle with a
/// derived bound.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 100, propagate_version = false)]
#[command(after_help = after_help())]
pub struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

fn after_help() -> String {
    format!("{EXAMPLES}\n\n{}", exit::help())
}

#[derive(Args, Debug)]
struct Global {
    /// When to use colours
    #[arg(long, global = true, value_enum, default_value_t, value_name = "WHEN")]
    color: When,
    /// Say more on stderr (twice: more still)
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    verbose: u8,
    /// Print results and errors only
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    quiet: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    Fuzz(fuzz::Fuzz),
    Nightly(nightly::Nightly),
    Run(run::Run),
    List(list::List),
    Doctor(doctor::Doctor),
    #[command(name = "bundle")]
    Bundle(bundle::MakeBundle),
    Shrink(shrink::Shrink),
    Repro(repro::Again),
    Explain(explain::Explain),
    Examine(examine::Examine),
    Probe(probe::Probe),
    #[command(name = "batch-norm")]
    BatchNorm(batch_norm::BatchNormalise),
    Study(study::Study),
    #[command(name = "diff")]
    Diff(diff::DiffRuns),
    #[command(name = "matrix")]
    Matrix(matrix::CombineRuns),
    #[command(name = "merge")]
    Merge(merge::MergeShards),
    #[command(hide = true)]
    Worker(worker::Worker),
}

impl Cli {
    /// Does what was asked; errors are told on stderr.
    pub fn execute(self) -> Exit {
        let Global {
            color,
            verbose,
            quiet,
        } = self.global;
        start_log(verbose, quiet);
        let terminal = Terminal::new(color, quiet, verbose > 0);
        self.command.execute(&terminal).unwrap_or_else(|error| {
            terminal.error(&error);
            Exit::from(&error)
        })
    }
}

impl Command {
    fn execute(self, terminal: &Terminal) -> Result<Exit> {
        match self {
            Command::Fuzz(command) => command.execute(terminal),
            Command::Nightly(command) => command.execute(terminal),
            Command::Run(command) => command.execute(terminal),
            Command::List(command) => command.execute(terminal),
            Command::Doctor(command) => command.execute(terminal),
            Command::Bundle(command) => command.execute(terminal),
            Command::Shrink(command) => command.execute(terminal),
            Command::Repro(command) => command.execute(terminal),
            Command::Explain(command) => command.execute(terminal),
            Command::Examine(command) => command.execute(terminal),
            Command::Probe(command) => command.execute(terminal),
            Command::BatchNorm(command) => command.execute(terminal),
            Command::Study(command) => command.execute(terminal),
            Command::Diff(command) => command.execute(terminal),
            Command::Matrix(command) => command.execute(terminal),
            Command::Merge(command) => command.execute(terminal),
            Command::Worker(command) => command.execute(),
        }
    }
}

/// The log goes to stderr; CONVFUZZ_LOG overrides the options.
fn start_log(verbose: u8, quiet: bool) {
    let level = match (quiet, verbose) {
        (true, _) => LevelFilter::ERROR,
        (_, 0) => LevelFilter::WARN,
        (_, 1) => LevelFilter::INFO,
        (_, 2) => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    let filter = EnvFilter::builder()
        .with_default_directive(level.into())
        .with_env_var("CONVFUZZ_LOG")
        .from_env_lossy();
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .init();
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn help_ends_with_the_exit_codes() {
        let help = Cli::command().render_help().to_string();
        assert!(help.trim_end().ends_with(&exit::help()), "{help}");
    }
}
