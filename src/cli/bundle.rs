//! `convfuzz bundle`: a trial as a folder that shows it without convfuzz.

use std::path::PathBuf;

use clap::Args;

use crate::candidate::Repro;
use crate::cli::backend::BackendArgs;
use crate::cli::dossier::{Dossier, TrialArgs};
use crate::cli::exit::Exit;
use crate::cli::terminal::Terminal;
use crate::error::Result;

/// Write a trial as a standalone reproducer
///
/// Runs the trial as it is, judges it, and writes a folder with the operands,
/// the exact values, what is allowed, what came back, programs in C++ and Python
/// that need cuDNN alone and end with 1 where the fault shows, cuDNN's log, and
/// a page for the vendor. 'convfuzz shrink --out' does the same with the
/// simplest trial that fails the same way.
#[derive(Args, Debug)]
pub struct MakeBundle {
    /// The trial as a repro line with via=
    #[arg(required = true, value_name = "TRIAL")]
    words: Vec<String>,
    #[command(flatten)]
    trials: TrialArgs,
    #[command(flatten)]
    backend: BackendArgs,
    /// Folder to write, which is made
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

impl MakeBundle {
    /// Runs, judges, writes.
    pub fn execute(self, terminal: &Terminal) -> Result<Exit> {
        let repro: Repro = self.words.join(" ").parse()?;
        let terms = self.trials.terms(self.backend.chosen(terminal)?);
        let dossier = Dossier::of_trial(&repro, None, &terms, Some(&self.out))?;
        dossier.write(&self.out)?;
        terminal.print(&format!("{}: {}", self.out.display(), dossier.detail()))?;
        Ok(match dossier.class() {
            Some(_) => Exit::Failures,
            None => Exit::Clean,
        })
    }
}
