//! `convfuzz doctor`: what there is to test on this machine, and what to do
//! when it is nothing.

use clap::Args;
use serde::Serialize;

use crate::backend::cudnn::{self, CudnnOptions, Probe};
use crate::cli::backend::CudnnArgs;
use crate::cli::exit::Exit;
use crate::cli::terminal::Terminal;
use crate::error::Result;
use crate::report::table::{Cell, Mood, Table};

/// Report GPU, driver, cuDNN and CUDA, and what to do if something is missing
///
/// Exits with 0 when cuDNN can be tested here and with 3 when not.
#[derive(Args, Debug)]
pub struct Doctor {
    #[command(flatten)]
    cudnn: CudnnArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report<'a> {
    convfuzz: &'a str,
    host_backend: bool,
    cudnn_backend: &'a Probe,
}

impl Doctor {
    /// Probes and reports.
    pub fn execute(self, terminal: &Terminal) -> Result<Exit> {
        let probe = cudnn::probe(&CudnnOptions::from(&self.cudnn));
        if self.json {
            terminal.json(&Report {
                convfuzz: env!("CARGO_PKG_VERSION"),
                host_backend: true,
                cudnn_backend: &probe,
            })?;
        } else {
            terminal.table(&findings(&probe))?;
            terminal.print(&advice(&probe))?;
        }
        Ok(match probe.ready {
            true => Exit::Clean,
            false => Exit::Environment,
        })
    }
}

fn findings(probe: &Probe) -> Table {
    let mut table = Table::new(&["part", "found", "where"]);
    let mut row = |part: &str, found: Option<&str>, place: Option<&str>| {
        let found = match found {
            Some(text) => Cell::new(text, Mood::Good),
            None => Cell::new("missing", Mood::Bad),
        };
        table.row(vec![part.into(), found, place.unwrap_or_default().into()]);
    };
    let (driver, cudnn) = (&probe.driver, &probe.cudnn);
    row("driver", driver.version.as_deref(), driver.path.as_deref());
    row("CUDA of the driver", driver.cuda.as_deref(), None);
    if probe.gpus.is_empty() {
        row("GPU", None, None);
    }
    for gpu in &probe.gpus {
        let text = format!("{}, SM {}, {} GiB", gpu.name, gpu.sm(), gpu.memory >> 30);
        row(&format!("GPU {}", gpu.index), Some(&text), None);
    }
    row("cuDNN", cudnn.version.as_deref(), cudnn.path.as_deref());
    row("CUDA of cuDNN", cudnn.cuda.as_deref(), None);
    row("host backend", Some("always there"), None);
    table
}

fn advice(probe: &Probe) -> String {
    let mut lines = Vec::new();
    if !probe.cudnn.missing.is_empty() {
        let missing = probe.cudnn.missing.join(", ");
        lines.push(format!(
            "cuDNN lacks parts that engines may need: {missing}"
        ));
    }
    if let Some(value) = &probe.tf32_override {
        lines.push(format!("NVIDIA_TF32_OVERRIDE={value} changes fp32 results"));
    }
    if probe.ready {
        lines.push("Ready: 'convfuzz fuzz' will test cuDNN.".to_owned());
        return lines.join("\n");
    }
    lines.push("cuDNN cannot be tested here:".to_owned());
    lines.extend(probe.advice.iter().map(|a| format!("  - {a}")));
    lines.push("Places tried:".to_owned());
    let tried = probe.tried.iter();
    lines.extend(tried.map(|t| format!("  {}: {}", t.place, t.result)));
    lines.push(
        "'convfuzz fuzz --backend host' still tests the software algorithms and the harness."
            .to_owned(),
    );
    lines.join("\n")
}
