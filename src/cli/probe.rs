//! `convfuzz probe`: which tensor-core model the hardware agrees with.

use clap::Args;
use serde::Serialize;

use crate::backend::Combination;
use crate::campaign::probe::{self, Agreement};
use crate::cli::backend::BackendArgs;
use crate::cli::exit::Exit;
use crate::cli::terminal::Terminal;
use crate::error::Result;
use crate::report::table::{Cell, Mood, Table};

/// Compare what candidates sum with the published tensor-core models, bit for bit
///
/// Runs 1x1 convolutions whose products tell models apart, on every candidate,
/// and prints which share of the outputs each model predicts. The bounds rest on
/// these models; a candidate that agrees with none is not wrong, but uses
/// another order or another unit.
#[derive(Args, Debug)]
pub struct Probe {
    #[command(flatten)]
    backend: BackendArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report<'a> {
    combination: &'a Combination,
    candidates: Vec<Agreement>,
}

impl Probe {
    /// Probes and prints.
    pub fn execute(self, terminal: &Terminal) -> Result<Exit> {
        let mut backend = self.backend.open(terminal)?;
        let candidates = probe::probe(&mut *backend)?;
        if self.json {
            terminal.json(&Report {
                combination: backend.combination(),
                candidates,
            })?;
        } else {
            terminal.table(&table(&candidates))?;
        }
        Ok(Exit::Clean)
    }
}

fn table(rows: &[Agreement]) -> Table {
    let mut table = Table::new(&[
        "candidate",
        "type",
        "declares",
        ">outputs",
        ">Volta",
        ">Ampere",
        ">Hopper",
        "closest model",
        ">share",
    ]);
    for row in rows {
        let mood = match row.best_share {
            1.0 => Mood::Good,
            _ => Mood::Plain,
        };
        table.row(vec![
            row.candidate.as_str().into(),
            row.dtype.as_str().into(),
            row.declared.as_str().into(),
            Cell::new(row.outputs, Mood::Plain),
            percent(row.volta).into(),
            percent(row.ampere).into(),
            percent(row.hopper).into(),
            Cell::new(&row.best, mood),
            Cell::new(percent(row.best_share), mood),
        ]);
    }
    table
}

/// 100% means all, never all but a few.
fn percent(share: f64) -> String {
    match share {
        1.0 => "100%".to_owned(),
        _ => format!("{:.1}%", (share * 1000.0).floor() / 10.0),
    }
}
