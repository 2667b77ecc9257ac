//! A trial as the user gives it: as a repro line, or as a bundle that holds one.

use std::path::Path;

use crate::backend::Combination;
use crate::candidate::Repro;
use crate::cli::terminal::Terminal;
use crate::error::{Error, Result};
use crate::report::bundle::CaseFile;
use crate::shrink::data::DataPatch;

/// A trial, or a case of which all trials are meant.
pub struct Given {
    /// Its line.
    pub repro: Repro,
    /// Data that stands for the fill.
    pub data: Option<DataPatch>,
    /// What it was recorded on, where that is known.
    recorded: Option<Combination>,
}

impl Given {
    /// The words of a repro line; or one word, the name of a bundle or its case.toml.
    pub fn read(words: &[String]) -> Result<Self> {
        if let [word] = words
            && Path::new(word).exists()
        {
            return Self::of_case(&CaseFile::read(Path::new(word))?);
        }
        Ok(Given {
            repro: words.join(" ").parse()?,
            data: None,
            recorded: None,
        })
    }

    /// The trial of a case file.
    pub fn of_case(case: &CaseFile) -> Result<Self> {
        Ok(Given {
            repro: case.trial()?,
            data: case.data.clone(),
            recorded: Some(case.combination.clone()),
        })
    }

    /// Says so when the line may mean something else here: an engine's index means
    /// something in one version of cuDNN only. It is run all the same.
    pub fn warn(&self, terminal: &Terminal, here: &Combination) {
        if let (Some(recorded), Some(candidate)) = (&self.recorded, &self.repro.via)
            && let Some(warning) = recorded.warning(here, candidate)
        {
            terminal.note(&format!("warning: {warning}"));
        }
    }

    /// The line, where the fill says all there is of the data.
    pub fn filled(&self) -> Result<&Repro> {
        match &self.data {
            None => Ok(&self.repro),
            Some(_) => Err(Error::usage(
                "this case has data of its own, which no line can hold; run it with 'convfuzz repro'",
            )),
        }
    }
}
