//! `convfuzz matrix`: any number of results folders in one table.

use std::path::PathBuf;

use clap::Args;

use crate::cli::exit::Exit;
use crate::cli::terminal::Terminal;
use crate::compare::combined::Combined;
use crate::error::Result;
use crate::report::csv_file;

/// Put any number of results folders into one matrix
///
/// One row per combination (GPU, driver, cuDNN, CUDA), candidate and
/// configuration; folders made on the same combination are counted together.
/// Prints CSV unless a file is named.
#[derive(Args, Debug)]
pub struct CombineRuns {
    /// Results folders
    #[arg(required = true, value_name = "DIR")]
    folders: Vec<PathBuf>,
    /// Write the CSV here and not to stdout
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Also write a Markdown document here, with a table per combination
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
}

impl CombineRuns {
    /// Reads, counts and writes.
    pub fn execute(self, terminal: &Terminal) -> Result<Exit> {
        let combined = Combined::read(&self.folders)?;
        let csv = combined.csv()?;
        if let Some(path) = &self.markdown {
            csv_file::replace(path, combined.markdown()?.as_bytes())?;
        }
        match &self.csv {
            Some(path) => csv_file::replace(path, &csv)?,
            None => terminal.print(String::from_utf8_lossy(&csv).trim_end())?,
        }
        Ok(Exit::Clean)
    }
}
