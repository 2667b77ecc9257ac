//! `convfuzz examine --soundness`: do honest algorithms stay inside their bounds?

use std::path::Path;

use crate::campaign::soundness::{Row, Soundness};
use crate::cli::examine::write_csv;
use crate::cli::exit::Exit;
use crate::cli::terminal::Terminal;
use crate::error::Result;
use crate::report::table::{Cell, Mood, Table};

/// Judges `outputs` of every fill and prints a row per fill and algorithm.
pub fn execute(terminal: &Terminal, outputs: u64, csv: Option<&Path>) -> Result<Exit> {
    let soundness = Soundness {
        outputs,
        seed: 0,
        fault: None,
    };
    let rows = soundness.run(&mut |judged| tracing::info!("{judged} outputs judged"))?;
    terminal.table(&table(&rows))?;
    if let Some(path) = csv {
        write_csv(path, &rows)?;
    }
    for repro in rows.iter().filter_map(|row| row.repro.as_deref()) {
        terminal.print(&format!("outside its bound: {repro}"))?;
    }
    let total = |count: fn(&Row) -> u64| rows.iter().map(count).sum::<u64>();
    let exceeding = total(|row| row.exceeding);
    terminal.print(&format!(
        "{} outputs of {} trials judged, {exceeding} outside their bound",
        total(|row| row.outputs),
        total(|row| row.trials),
    ))?;
    Ok(match exceeding {
        0 => Exit::Clean,
        _ => Exit::Failures,
    })
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new(&[
        "fill",
        "algorithm",
        ">trials",
        ">outputs",
        ">exceeding",
        ">largest error/bound",
    ]);
    for row in rows {
        table.row(vec![
            row.fill.as_str().into(),
            row.candidate.as_str().into(),
            Cell::new(row.trials, Mood::Plain),
            Cell::new(row.outputs, Mood::Plain),
            Cell::count(row.exceeding, Mood::Bad),
            Cell::measured(row.largest_ratio),
        ]);
    }
    table
}
