//! One results folder, read whole and checked.

use std::path::{Path, PathBuf};

use crate::campaign::shard::Shard;
use crate::error::{Error, Result};
use crate::record::TrialRecord;
use crate::report::environment::{Ending, Environment};
use crate::report::{folder, read};

/// A results folder.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// Where it is, as it was given.
    pub path: PathBuf,
    /// What it was made on and with.
    pub environment: Environment,
    /// Its trials, in the order of the file.
    pub trials: Vec<TrialRecord>,
}

impl Run {
    /// Reads the folder `path`. `trials.csv` may be compressed, as
    /// `trials.csv.gz`. A run that was killed is read as far as it came.
    pub fn open(path: &Path) -> Result<Self> {
        check_folder(path)?;
        let run = Run {
            path: path.to_owned(),
            environment: read::environment(&path.join(folder::ENVIRONMENT))?,
            trials: read::trials(&path.join(folder::TRIALS))?,
        };
        run.check_length()?;
        Ok(run)
    }

    /// The folder as the user knows it.
    pub fn name(&self) -> String {
        self.path.display().to_string()
    }

    /// Which part of a campaign it is; results of versions without shards are
    /// the whole.
    pub fn shard(&self) -> Result<Shard> {
        match self.environment.options.get("shard") {
            None => Ok(Shard::WHOLE),
            Some(shard) => serde_json::from_value(shard.clone()).map_err(|e| {
                Error::usage(format!("'{}' states no readable shard", self.name())).with_source(e)
            }),
        }
    }

    /// Whether the run did all it was asked for.
    pub fn is_complete(&self) -> bool {
        self.environment.ending == Some(Ending::Completed)
    }

    /// A run that ended counted its trials: fewer rows mean a cut file.
    fn check_length(&self) -> Result<()> {
        let rows = self.trials.len() as u64;
        match self.environment.tally {
            Some(tally) if tally.trials != rows => Err(Error::usage(format!(
                "'{}' is damaged: {} says {} trials, {} holds {rows}; copy the folder again",
                self.name(),
                folder::ENVIRONMENT,
                tally.trials,
                folder::TRIALS,
            ))),
            _ => Ok(()),
        }
    }
}

fn check_folder(path: &Path) -> Result<()> {
    let name = path.display();
    if !path.is_dir() {
        return Err(Error::usage(format!("there is no folder '{name}'")));
    }
    if !path.join(folder::ENVIRONMENT).exists() {
        return Err(Error::usage(format!(
            "'{name}' is not a results folder of convfuzz: it has no {}",
            folder::ENVIRONMENT
        )));
    }
    Ok(())
}
