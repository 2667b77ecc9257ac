//! Repro bundle of one failing trial: a folder that shows the fault without
//! convfuzz.
//!
//! | file | holds |
//! |---|---|
//! | `case.toml` | the trial, re-runnable by convfuzz |
//! | `report.md` | a page for the vendor: what, where, how to reproduce, when, why |
//! | `repro.cpp` | a program against cuDNN alone; exit code 1 when the fault shows |
//! | `repro.py` | the same in Python with NumPy, no compiler needed |
//! | `cudnn.log` | cuDNN's own log of the failing trial |
//! | `x.npy` `w.npy` `y.npy` | the operands (two of the three), bit for bit |
//! | `y_expected.npy` | exact values, rounded to double; named so for every direction |
//! | `y_bound.npy` | how far a right answer may be from the exact value |
//! | `y_actual.npy` | what the library returned |
//!
//! Arrays are in logical order. NumPy has no bfloat16: such arrays hold the bit
//! patterns as unsigned 16-bit integers.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use npyz::WriterBuilder;

use crate::backend::Combination;
use crate::candidate::{Candidate, Repro};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::fill::Inputs;
use crate::minimize::Minimized;
use crate::shrink::Rate;
use crate::shrink::data::DataPatch;
use crate::tensor::Tensor;

mod case;
mod page;
mod program;
mod python;

pub use case::CaseFile;

/// Version of the bundle's layout and of `case.toml`.
pub const SCHEMA: u32 = 2;

/// File name of cuDNN's log.
pub const LOG: &str = "cudnn.log";

/// Everything a bundle is made from.
#[derive(Clone, Debug)]
pub struct Bundle<'a> {
    /// The trial; `via` is set.
    pub repro: &'a Repro,
    /// What it was seen on.
    pub combination: &'a Combination,
    /// What is wrong, in words.
    pub detail: &'a str,
    /// The operands.
    pub inputs: &'a Inputs,
    /// Exact values in logical order of the result tensor; NaN where only NaN
    /// is right.
    pub expected: &'a [f64],
    /// Absolute bound per output; 0 where only the right bits pass.
    pub bound: &'a [f64],
    /// What the library returned.
    pub actual: &'a Tensor,
    /// Whether the candidate says that two runs may differ.
    pub nondeterministic: bool,
    /// How it fails, as [`crate::finding::failure_class`] says it; empty when it
    /// does not.
    pub class: &'a str,
    /// Notes the candidate declares, heuristics' ranks among them.
    pub notes: &'a str,
    /// Data that stands for the fill.
    pub data: Option<&'a DataPatch>,
    /// What is known of the finding, where it was minimised.
    pub minimized: Option<&'a Minimized>,
    /// What explains the result, in words.
    pub attribution: Option<&'a str>,
}

impl Bundle<'_> {
    /// Writes the bundle into `folder`, which is created.
    pub fn write(&self, folder: &Path) -> Result<()> {
        self.write_files(folder).map_err(|e| {
            Error::output(format!("cannot write the bundle {}", folder.display())).with_source(e)
        })
    }

    fn write_files(&self, folder: &Path) -> io::Result<()> {
        fs::create_dir_all(folder)?;
        fs::write(folder.join("case.toml"), self.case_file().text())?;
        let [first, second] = self.repro.problem.direction.operands();
        write_tensor(&folder.join(npy_name(first.name())), &self.inputs.first)?;
        write_tensor(&folder.join(npy_name(second.name())), &self.inputs.second)?;
        if let Some(prior) = &self.inputs.prior {
            write_tensor(&folder.join("prior.npy"), prior)?;
        }
        write_tensor(&folder.join("y_actual.npy"), self.actual)?;
        let dims = self.actual.dims();
        write_doubles(&folder.join("y_expected.npy"), dims, self.expected)?;
        write_doubles(&folder.join("y_bound.npy"), dims, self.bound)?;
        if self.is_of_cudnn() {
            fs::write(folder.join("repro.cpp"), program::render(self))?;
            fs::write(folder.join("repro.py"), python::render(self))?;
        }
        let has_log = folder.join(LOG).exists();
        fs::write(folder.join("report.md"), page::render(self, has_log))
    }

    fn is_of_cudnn(&self) -> bool {
        !matches!(self.repro.via, Some(Candidate::Host { .. }) | None)
    }

    fn rate(&self) -> Option<Rate> {
        self.minimized.map(|m| m.rate)
    }

    fn case_file(&self) -> CaseFile {
        CaseFile {
            schema: SCHEMA,
            repro: self.repro.to_string(),
            class: self.class.to_owned(),
            detail: self.detail.to_owned(),
            rate: self.rate(),
            found_as: self.minimized.map(|m| m.start.to_string()),
            trigger: self
                .minimized
                .and_then(|m| m.trigger.as_ref())
                .map(ToString::to_string),
            attribution: self.attribution.map(str::to_owned),
            combination: self.combination.clone(),
            data: self.data.cloned(),
        }
    }
}

/// File of a tensor by its lower-case name.
fn npy_name(tensor: &str) -> String {
    format!("{tensor}.npy")
}

fn write_tensor(path: &Path, tensor: &Tensor) -> io::Result<()> {
    fs::write(path, tensor_file(tensor)?)
}

/// A tensor as the bytes of a .npy file.
fn tensor_file(tensor: &Tensor) -> io::Result<Vec<u8>> {
    let descr = match tensor.dtype() {
        DType::Fp16 => "<f2",
        DType::Bf16 => "<u2",
        DType::Fp8E4m3 | DType::Fp8E5m2 => "|u1",
        DType::Fp32 => "<f4",
        DType::Fp64 => "<f8",
    };
    npy(descr, tensor.dims(), tensor.bytes())
}

fn write_doubles(path: &Path, dims: &[usize], values: &[f64]) -> io::Result<()> {
    fs::write(path, npy("<f8", dims, bytemuck::cast_slice(values))?)
}

/// Raw little-endian bytes under a .npy header, so that bit patterns, NaN
/// payloads included, arrive unchanged.
fn npy(descr: &str, dims: &[usize], bytes: &[u8]) -> io::Result<Vec<u8>> {
    let dtype: npyz::TypeStr = descr.parse().expect("a constant type string");
    let shape: Vec<u64> = dims.iter().map(|&d| d as u64).collect();
    let mut file = npyz::WriteOptions::new_header_only()
        .dtype(npyz::DType::Plain(dtype))
        .shape(&shape)
        .writer(Vec::new())
        .write_header_only()?;
    file.write_all(bytes)?;
    Ok(file)
}

#[cfg(test)]
mod tests;
