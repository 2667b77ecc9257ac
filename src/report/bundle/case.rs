//! `case.toml`: a trial that convfuzz can run again.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{SCHEMA, npy_name, tensor_file};
use crate::backend::Combination;
use crate::candidate::Repro;
use crate::error::{Error, Result};
use crate::fill::Inputs;
use crate::shrink::Rate;
use crate::shrink::data::DataPatch;
use crate::tensor::Tensor;

/// `case.toml`. Of version 1, the fields with a default are absent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CaseFile {
    /// [`SCHEMA`] of the convfuzz that wrote it.
    pub schema: u32,
    /// The repro line.
    pub repro: String,
    /// How it fails, as [`crate::finding::failure_class`] says it.
    #[serde(default)]
    pub class: String,
    /// What is wrong, in words.
    pub detail: String,
    /// The line that a campaign found, before it was minimised.
    #[serde(default)]
    pub found_as: Option<String>,
    /// The condition under which it fails, in words.
    #[serde(default)]
    pub trigger: Option<String>,
    /// What explains the result, in words.
    #[serde(default)]
    pub attribution: Option<String>,
    /// Failures among runs when it was written.
    #[serde(default)]
    pub rate: Option<Rate>,
    /// What it was seen on.
    pub combination: Combination,
    /// Data that stands for the fill of the line.
    #[serde(default)]
    pub data: Option<DataPatch>,
}

/// Just enough of any version's file to tell its version.
#[derive(Deserialize)]
struct Version {
    schema: u32,
}

impl CaseFile {
    /// Its text.
    pub fn text(&self) -> String {
        toml::to_string(self).expect("plain strings and numbers serialise")
    }

    /// Reads `case.toml`, or the one in the folder `path`; errors name the file,
    /// what is wrong in it, and the mend.
    pub fn read(path: &Path) -> Result<Self> {
        let path = match path.is_dir() {
            true => &path.join("case.toml"),
            false => path,
        };
        let named = |what: String| Error::usage(format!("{}: {what}", path.display()));
        let text = fs::read_to_string(path).map_err(|e| {
            named(format!(
                "cannot be read ({e}); name a bundle or its case.toml"
            ))
        })?;
        let broken = |e: toml::de::Error| {
            named(format!(
                "not a case file, or edited or cut short: {}",
                e.to_string().trim_end()
            ))
        };
        let Version { schema } = toml::from_str(&text).map_err(broken)?;
        if schema == 0 || schema > SCHEMA {
            return Err(named(format!(
                "has schema {schema}, this convfuzz reads 1 to {SCHEMA}: use the convfuzz that wrote it, or a newer one"
            )));
        }
        toml::from_str(&text).map_err(broken)
    }

    /// The trial. A line that was edited into nonsense is an error.
    pub fn trial(&self) -> Result<Repro> {
        let repro: Repro = self
            .repro
            .parse()
            .map_err(|e: Error| e.context("the line 'repro' of the case file"))?;
        if repro.via.is_none() {
            return Err(Error::usage(
                "the line 'repro' of the case file names no candidate: add via= to it",
            ));
        }
        Ok(repro)
    }

    /// The data of the trial.
    pub fn inputs(&self) -> Result<Inputs> {
        let repro = self.trial()?;
        match &self.data {
            None => Ok(Inputs::generate(&repro.problem, repro.fill)),
            Some(patch) => patch.apply(&repro.problem, repro.fill),
        }
    }

    /// Whether the operands that lie beside the file at `path`, if any do, are
    /// the ones it describes. One that is missing, edited or cut short is an
    /// error that names it.
    pub fn check_tensors(&self, path: &Path) -> Result<()> {
        let folder = match path.is_dir() {
            true => path,
            false => path.parent().unwrap_or(Path::new(".")),
        };
        let inputs = self.inputs()?;
        let [first, second] = inputs.problem.direction.operands();
        let mut files = vec![
            (npy_name(first.name()), &inputs.first),
            (npy_name(second.name()), &inputs.second),
        ];
        files.extend(inputs.prior.iter().map(|p| ("prior.npy".to_owned(), p)));
        if files.iter().all(|(name, _)| !folder.join(name).exists()) {
            return Ok(());
        }
        files
            .iter()
            .try_for_each(|(name, tensor)| same_tensor(&folder.join(name), tensor))
    }
}

fn same_tensor(path: &Path, tensor: &Tensor) -> Result<()> {
    let mend = "restore it, or copy case.toml elsewhere to run it by itself";
    let found = fs::read(path)
        .map_err(|e| Error::usage(format!("{} cannot be read ({e}): {mend}", path.display())))?;
    let expected = tensor_file(tensor)
        .map_err(|e| Error::internal("cannot lay out a tensor in memory").with_source(e))?;
    if found == expected {
        return Ok(());
    }
    let how = match found.len() < expected.len() {
        true => "is cut short",
        false => "does not hold what case.toml describes",
    };
    Err(Error::usage(format!("{} {how}: {mend}", path.display())))
}
