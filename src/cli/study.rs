//! `convfuzz study`: questions that users asked, answered with measurements.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};

use crate::cli::backend::BackendArgs;
use crate::cli::exit::Exit;
use crate::cli::terminal::Terminal;
use crate::error::Result;
use crate::report::folder::default_name;
use crate::study::{Answer, Request, amp_conv3d, batch_norm, offer_host, reproducibility};

/// Answer a reported question about mixed precision with measurements
///
/// Each study writes a page that starts with its verdict, its tables as CSV and
/// its charts as SVG into a folder; files of an earlier run there are replaced.
/// The questions are about cuDNN on a GPU; --backend host measures the same on
/// software algorithms. Ends with 1 when a candidate was wrong.
#[derive(Args, Debug)]
pub struct Study {
    #[command(subcommand)]
    which: Which,
}

#[derive(Debug, Subcommand)]
enum Which {
    #[command(name = amp_conv3d::NAME)]
    AmpConv3d(AmpConv3d),
    BatchNorm(BatchNorm),
    #[command(name = reproducibility::NAME)]
    Reproducibility(Reproducibility),
    /// One training, for 'reproducibility', which starts it
    #[command(name = reproducibility::process::COMMAND, hide = true)]
    Training,
}

/// Why do two trainings with every seed fixed give other losses?
///
/// Runs a small training twice from one seed, in one process and in two, in fp32
/// and in mixed precision, and compares every tensor bit for bit; measures how
/// often algorithms of the backward pass give other bits; shows what helps.
#[derive(Args, Debug)]
struct Reproducibility {
    /// Trainings on the corrective path, and runs of a nondeterministic algorithm [default: 100]
    #[arg(
        long,
        value_name = "N",
        default_value_t = 100,
        hide_default_value = true
    )]
    #[arg(value_parser = clap::value_parser!(u32).range(2..=100_000))]
    runs: u32,
    #[command(flatten)]
    common: Common,
}

/// Does mixed precision harm batch norm? Every claim of a report, with numbers
///
/// Types of all statistics, errors of mean and variance of fp16 data, what
/// casting up changes, where fp16 overflows, layer norm and group norm beside.
#[derive(Args, Debug)]
struct BatchNorm {
    #[command(flatten)]
    common: Common,
}

/// Does half precision explain what a Conv3d gives on a V100 and on a P40?
///
/// Measures the eight comparisons of the report on every candidate, judges each
/// against the exact values, recomputes what could make the exceptional figure,
/// and tries the ways around it on the planted form of the fault.
#[derive(Args, Debug)]
struct AmpConv3d {
    /// Seeds that figures are averaged over, from --seed on [default: 32; 8 in software]
    #[arg(long, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u64).range(2..=10_000))]
    seeds: Option<u64>,
    #[command(flatten)]
    common: Common,
}

/// Options of every study.
#[derive(Args, Debug)]
struct Common {
    /// Seed of all data
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Folder to write to [default: results/studies/<name>-<combination>]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    #[command(flatten)]
    backend: BackendArgs,
}

impl Study {
    /// Measures, writes the folder and prints the verdict.
    pub fn execute(self, terminal: &Terminal) -> Result<Exit> {
        match self.which {
            Which::AmpConv3d(study) => study.execute(terminal),
            Which::Reproducibility(study) => {
                let run = |request: &Request| reproducibility::run(request, study.runs);
                study.common.answer(terminal, reproducibility::NAME, run)
            }
            Which::Training => training(),
            Which::BatchNorm(study) => {
                study
                    .common
                    .answer(terminal, batch_norm::NAME, batch_norm::study)
            }
        }
    }
}

fn training() -> Result<Exit> {
    let mut stdout = std::io::stdout().lock();
    reproducibility::process::serve(std::io::stdin().lock(), &mut stdout)?;
    Ok(Exit::Clean)
}

impl AmpConv3d {
    fn execute(self, terminal: &Terminal) -> Result<Exit> {
        self.common.answer(terminal, amp_conv3d::NAME, |request| {
            let default = if request.is_host() { 8 } else { 32 };
            amp_conv3d::run(request, self.seeds.unwrap_or(default))
        })
    }
}

impl Common {
    /// Runs a study and writes its answer down.
    fn answer(
        &self,
        terminal: &Terminal,
        name: &str,
        study: impl FnOnce(&Request) -> Result<Answer>,
    ) -> Result<Exit> {
        let request = Request::new(self.backend.spec()?, self.seed);
        let answer = study(&request).map_err(offer_host(name))?;
        let folder = self.folder(name, &answer);
        let files = answer.write(&folder)?;
        terminal.print(&answer.verdict)?;
        let list: Vec<_> = files.iter().map(|p| p.display().to_string()).collect();
        terminal.note(&format!("written: {}", list.join(", ")));
        Ok(match answer.wrong {
            true => Exit::Failures,
            false => Exit::Clean,
        })
    }

    fn folder(&self, name: &str, answer: &Answer) -> PathBuf {
        let default = || {
            let made_on = default_name(&answer.combination);
            Path::new("results/studies").join(format!("{name}-{made_on}"))
        };
        self.out.clone().unwrap_or_else(default)
    }
}
