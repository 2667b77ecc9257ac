//! `convfuzz list`: the candidates of a problem, and why others are refused.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;

use crate::backend::cudnn::graph::{self, DeviceProperties, KnobRange, Offline};
use crate::backend::open::{BackendKind, BackendSpec};
use crate::backend::{Combination, Listing, Support};
use crate::bound::{Accumulator, Arithmetic, Family, Generation, OperandRounding, Units};
use crate::candidate::{Candidate, Repro};
use crate::cli::backend::BackendArgs;
use crate::cli::exit::Exit;
use crate::cli::terminal::Terminal;
use crate::error::{Error, Result};
use crate::problem::ConvProblem;
use crate::report::table::{Cell, Mood, Table};

/// List the candidates for a problem, and why others are refused
#[derive(Args, Debug)]
pub struct List {
    /// The problem as a repro line, such as 'fwd c=64 k=32 in=14x14 ker=3x3 type=fp16'
    #[arg(required = true, value_name = "PROBLEM")]
    words: Vec<String>,
    #[command(flatten)]
    backend: BackendArgs,
    /// List cuDNN's engines and their knobs for the GPU of this file, which need not be here
    ///
    /// The file holds the JSON that cuDNN 9.8 or later gives of a device
    /// (CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION). The library is asked;
    /// nothing is run.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["device", "fault"], help_heading = "Backend")]
    device_props: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Report<'a> {
    problem: String,
    combination: &'a Combination,
    candidates: Vec<Entry>,
}

/// One candidate; fields of a refused one are null but for `refused`.
#[derive(Default, Serialize)]
struct Entry {
    candidate: String,
    arithmetic: Option<String>,
    workspace: Option<u64>,
    nondeterministic: Option<bool>,
    notes: Option<Vec<String>>,
    refused: Option<String>,
    /// Of an engine's own choice, with `--device-props`.
    #[serde(skip_serializing_if = "Option::is_none")]
    knobs: Option<Vec<KnobRange>>,
}

impl List {
    /// Asks the backend and prints its answer.
    pub fn execute(self, terminal: &Terminal) -> Result<Exit> {
        let problem = self.words.join(" ").parse::<Repro>()?.problem;
        let found = match &self.device_props {
            Some(file) => ask_offline(file, &self.backend.spec()?, &problem)?,
            None => self.ask(terminal, &problem)?,
        };
        let entries = found.listings.iter();
        let entries = entries.map(|l| Entry::new(l, &found.knobs)).collect();
        if self.json {
            terminal.json(&Report {
                problem: problem.to_string(),
                combination: &found.combination,
                candidates: entries,
            })?;
        } else {
            terminal.print(&problem.to_string())?;
            terminal.table(&table(&entries))?;
        }
        Ok(Exit::Clean)
    }

    fn ask(&self, terminal: &Terminal, problem: &ConvProblem) -> Result<Offline> {
        let mut backend = self.backend.open(terminal)?;
        Ok(Offline {
            listings: backend.candidates(problem)?,
            combination: backend.combination().clone(),
            knobs: BTreeMap::new(),
        })
    }
}

/// Asks cuDNN for the engines on the GPU of a device-property file.
fn ask_offline(file: &Path, spec: &BackendSpec, problem: &ConvProblem) -> Result<Offline> {
    if spec.kind == BackendKind::Host || !spec.apis.engines {
        return Err(Error::usage(
            "--device-props is for cuDNN's engines: it goes with neither --backend host nor \
             --api legacy",
        ));
    }
    let about = |error: Error| error.context(format!("--device-props {}", file.display()));
    let text = fs::read_to_string(file)
        .map_err(|e| about(Error::usage("cannot read the file").with_source(e)))?;
    let properties = DeviceProperties::parse(&text).map_err(about)?;
    let library = spec.library.as_deref();
    graph::offline(library, &properties, problem, spec.knobs, spec.seed).map_err(about)
}

impl Entry {
    fn new(listing: &Listing, knobs: &BTreeMap<i64, Vec<KnobRange>>) -> Self {
        let candidate = listing.candidate.to_string();
        let knobs = match &listing.candidate {
            Candidate::Engine { index, knobs: own } if own.is_empty() => knobs.get(index).cloned(),
            _ => None,
        };
        match &listing.support {
            Support::Refused(why) => Entry {
                candidate,
                refused: Some(why.clone()),
                ..Entry::default()
            },
            Support::Offered {
                arithmetic,
                workspace,
                nondeterministic,
                notes,
            } => Entry {
                candidate,
                arithmetic: Some(describe(arithmetic)),
                workspace: Some(*workspace),
                nondeterministic: Some(*nondeterministic),
                notes: Some(notes.clone()),
                refused: None,
                knobs,
            },
        }
    }
}

fn table(entries: &Vec<Entry>) -> Table {
    let mut columns = vec!["candidate", "declared arithmetic", ">workspace", "notes"];
    let with_knobs = entries.iter().any(|entry| entry.knobs.is_some());
    if with_knobs {
        columns.push("knobs");
    }
    let mut table = Table::new(&columns);
    for entry in entries {
        let mut row = row(entry);
        if with_knobs {
            let knobs = entry.knobs.iter().flatten().map(knob);
            row.push(knobs.collect::<Vec<_>>().join(", ").into());
        }
        table.row(row);
    }
    table
}

fn row(entry: &Entry) -> Vec<Cell> {
    match &entry.refused {
        Some(why) => vec![
            entry.candidate.as_str().into(),
            Cell::new("refused", Mood::Warn),
            "".into(),
            why.as_str().into(),
        ],
        None => vec![
            entry.candidate.as_str().into(),
            entry.arithmetic.clone().unwrap_or_default().into(),
            entry.workspace.map(bytes).unwrap_or_default().into(),
            notes(entry).into(),
        ],
    }
}

/// A knob as repro lines number it, with its name and values.
fn knob(knob: &KnobRange) -> String {
    let step = match knob.stride {
        1 => String::new(),
        stride => format!(" by {stride}"),
    };
    format!(
        "{} {} {}..{}{step}",
        knob.knob, knob.name, knob.minimum, knob.maximum
    )
}

fn notes(entry: &Entry) -> String {
    let mut notes = entry.notes.clone().unwrap_or_default();
    if entry.nondeterministic == Some(true) && !notes.iter().any(|n| n == "nondeterministic") {
        notes.push("nondeterministic".to_owned());
    }
    notes.join(", ")
}

/// A number of bytes in the largest binary unit that leaves a digit.
fn bytes(count: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let step = (count.max(1).ilog2() / 10).min(4);
    match step {
        0 => format!("{count} B"),
        _ => {
            let scaled = count as f64 / 2f64.powi(10 * step as i32);
            format!("{scaled:.1} {}", units[step as usize])
        }
    }
}

/// The declared arithmetic in a few words.
fn describe(arithmetic: &Arithmetic) -> String {
    let mut words = vec![
        family(arithmetic.family),
        units(arithmetic.units).to_owned(),
    ];
    match arithmetic.operands {
        OperandRounding::None => {}
        OperandRounding::Tf32 => words.push("operands tf32".to_owned()),
        OperandRounding::Fp16 => words.push("operands fp16".to_owned()),
        OperandRounding::Bf16 => words.push("operands bf16".to_owned()),
    }
    words.push(format!("sums {}", accumulator(arithmetic.accumulator)));
    if arithmetic.partials != arithmetic.accumulator {
        words.push(format!("partials {}", accumulator(arithmetic.partials)));
    }
    if arithmetic.flush_to_zero {
        words.push("may flush subnormals".to_owned());
    }
    words.join(", ")
}

fn family(family: Family) -> String {
    let tile = |tile: Option<u32>| tile.map(|t| format!(" {t}")).unwrap_or_default();
    match family {
        Family::InnerProduct => "inner product".to_owned(),
        Family::Winograd { tile: t } => format!("Winograd{}", tile(t)),
        Family::Fft { tile: t } => format!("FFT{}", tile(t)),
    }
}

fn units(units: Units) -> &'static str {
    match units {
        Units::Simt => "scalar",
        Units::TensorCore(Generation::Volta) => "tensor core (Volta)",
        Units::TensorCore(Generation::Ampere) => "tensor core (Ampere)",
        Units::TensorCore(Generation::Hopper) => "tensor core (Hopper)",
        Units::TensorCore(Generation::Fp8) => "tensor core (FP8)",
        Units::TensorCore(Generation::Unknown) => "tensor core",
    }
}

fn accumulator(accumulator: Accumulator) -> &'static str {
    match accumulator {
        Accumulator::Bf16 => "bf16",
        Accumulator::Fp16 => "fp16",
        Accumulator::Fp32 => "fp32",
        Accumulator::Fp64 => "fp64",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn describe_names_only_what_matters() {
        let mut arithmetic = Arithmetic::simt(Accumulator::Fp32);
        assert_eq!(describe(&arithmetic), "inner product, scalar, sums fp32");
        arithmetic.family = Family::Winograd { tile: Some(2) };
        arithmetic.units = Units::TensorCore(Generation::Hopper);
        arithmetic.operands = OperandRounding::Tf32;
        arithmetic.partials = Accumulator::Fp16;
        let full = "Winograd 2, tensor core (Hopper), operands tf32, sums fp32, partials fp16";
        assert_eq!(describe(&arithmetic), full);
    }

    #[test]
    fn knob_shows_number_name_and_values() {
        let mut range = KnobRange {
            knob: 17,
            name: "SPLIT_K_SLC".to_owned(),
            minimum: 1,
            maximum: 9,
            stride: 1,
        };
        assert_eq!(knob(&range), "17 SPLIT_K_SLC 1..9");
        range.stride = 4;
        assert_eq!(knob(&range), "17 SPLIT_K_SLC 1..9 by 4");
    }

    #[test]
    fn bytes_keep_one_to_four_digits() {
        let shown = [0, 1023, 1024, 1536 << 10, 5 << 30].map(bytes);
        assert_eq!(shown, ["0 B", "1023 B", "1.0 KiB", "1.5 MiB", "5.0 GiB"]);
    }
}
