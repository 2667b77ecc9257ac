//! `convfuzz merge`: the shards of one campaign in one results folder.

use std::path::PathBuf;

use clap::Args;

use crate::cli::exit::Exit;
use crate::cli::terminal::Terminal;
use crate::compare::merge;
use crate::compare::run::Run;
use crate::error::Result;

/// Join the shards of one campaign into one results folder
///
/// The files are those that the campaign in one piece would have written, times
/// aside. Shards that are missing, doubled, unfinished or not of one campaign are
/// refused. Ends with 1 when the whole holds failures, as the campaign would.
#[derive(Args, Debug)]
pub struct MergeShards {
    /// Results folder to make
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Results folders of all shards, in any order
    #[arg(required = true, value_name = "SHARD")]
    shards: Vec<PathBuf>,
}

impl MergeShards {
    /// Reads, checks, joins and writes.
    pub fn execute(self, terminal: &Terminal) -> Result<Exit> {
        let shards: Result<Vec<_>> = self.shards.iter().map(|path| Run::open(path)).collect();
        let joined = merge::join(shards?)?;
        let folder = joined.write(&self.out)?;
        terminal.print(&format!(
            "{} trials of {} shards in {}",
            joined.trials.len(),
            self.shards.len(),
            folder.display()
        ))?;
        Ok(match joined.has_failures()? {
            true => Exit::Failures,
            false => Exit::Clean,
        })
    }
}
