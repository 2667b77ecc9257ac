//! Repro bundle of one failing trial: a folder that shows the fault without
//! convfuzz.
//!
//! | file | holds |
//! |---|---|
//! | `case.toml` | the trial, re-runnable by convfuzz |
//! | `repro.cpp` | a program against cuDNN alone; exit code 1 when the fault shows |
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
use serde::{Deserialize, Serialize};

use crate::backend::Combination;
use crate::candidate::{Candidate, Repro};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::fill::Inputs;
use crate::tensor::Tensor;

mod program;

/// Version of the bundle's layout and of `case.toml`.
pub const SCHEMA: u32 = 1;

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
}

/// `case.toml`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CaseFile {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The repro line.
    pub repro: String,
    /// What is wrong, in words.
    pub detail: String,
    /// What it was seen on.
    pub combination: Combination,
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
        fs::write(folder.join("case.toml"), self.case_file())?;
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
        if !matches!(self.repro.via, Some(Candidate::Host { .. }) | None) {
            fs::write(folder.join("repro.cpp"), program::render(self))?;
        }
        Ok(())
    }

    fn case_file(&self) -> String {
        let case = CaseFile {
            schema: SCHEMA,
            repro: self.repro.to_string(),
            detail: self.detail.to_owned(),
            combination: self.combination.clone(),
        };
        toml::to_string(&case).expect("plain strings and numbers serialise")
    }
}

impl CaseFile {
    /// Reads `case.toml`; errors name the file and what is wrong in it.
    pub fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path)
            .map_err(|e| Error::usage(format!("cannot read {}", path.display())).with_source(e))?;
        let case: CaseFile = toml::from_str(&text).map_err(|e| {
            Error::usage(format!("{} is not a case file", path.display())).with_source(e)
        })?;
        if case.schema != SCHEMA {
            return Err(Error::usage(format!(
                "{} has schema {}, this convfuzz reads schema {SCHEMA}: use the convfuzz that wrote it ({})",
                path.display(),
                case.schema,
                case.combination.convfuzz
            )));
        }
        Ok(case)
    }
}

/// File of a tensor by its lower-case name.
fn npy_name(tensor: &str) -> String {
    format!("{tensor}.npy")
}

fn write_tensor(path: &Path, tensor: &Tensor) -> io::Result<()> {
    let descr = match tensor.dtype() {
        DType::Fp16 => "<f2",
        DType::Bf16 => "<u2",
        DType::Fp32 => "<f4",
        DType::Fp64 => "<f8",
    };
    write_npy(path, descr, tensor.dims(), tensor.bytes())
}

fn write_doubles(path: &Path, dims: &[usize], values: &[f64]) -> io::Result<()> {
    write_npy(path, "<f8", dims, bytemuck::cast_slice(values))
}

/// Writes raw little-endian bytes under a .npy header, so that bit patterns,
/// NaN payloads included, arrive unchanged.
fn write_npy(path: &Path, descr: &str, dims: &[usize], bytes: &[u8]) -> io::Result<()> {
    let dtype: npyz::TypeStr = descr.parse().expect("a constant type string");
    let shape: Vec<u64> = dims.iter().map(|&d| d as u64).collect();
    let mut file = npyz::WriteOptions::new_header_only()
        .dtype(npyz::DType::Plain(dtype))
        .shape(&shape)
        .writer(io::BufWriter::new(fs::File::create(path)?))
        .write_header_only()?;
    file.write_all(bytes)?;
    file.flush()
}
