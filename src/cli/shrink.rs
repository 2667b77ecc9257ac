//! `convfuzz shrink`: the simplest trial that fails the same way.

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;

use crate::campaign::solo::Solo;
use crate::candidate::Repro;
use crate::cli::backend::BackendArgs;
use crate::cli::dossier::{Dossier, TrialArgs};
use crate::cli::exit::Exit;
use crate::cli::terminal::Terminal;
use crate::error::Result;
use crate::minimize::{self, Minimized, Options, Step, minimize};
use crate::shrink::trigger::{Effort, Trigger};
use crate::shrink::{self, Field, Rate};

/// Find the simplest trial that fails the same way, and when it fails
///
/// Simplifies the problem, then the data, and probes around the result for the
/// condition under which it fails. Deterministic for the same start and seed.
/// Exit code 1 when the trial fails, 4 when only some of its runs do, 0 when it
/// does not fail here.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Shrink {
    /// The failing trial as a repro line with via=
    #[arg(required = true, value_name = "TRIAL")]
    words: Vec<String>,
    /// Parts of the line to leave as they are, such as c,k
    #[arg(long, value_name = "FIELD", value_delimiter = ',')]
    keep: Vec<Field>,
    /// Most trials of the search
    #[arg(long, value_name = "N", default_value_t = shrink::Options::default().max_trials)]
    max_trials: u32,
    /// Most trials to reduce the data with; 0 leaves it
    #[arg(long, value_name = "N", default_value_t = Options::default().data_trials)]
    data_trials: u32,
    /// Most trials to find the condition with; 0 leaves it out
    #[arg(long, value_name = "N", default_value_t = Effort::default().max_trials)]
    trigger_trials: u32,
    /// Fresh cases the condition is checked on
    #[arg(long, value_name = "N", default_value_t = Effort::default().check)]
    check: u32,
    /// Seeds the cases for the condition
    #[arg(long, value_name = "S", default_value_t = 0)]
    seed: u64,
    /// Also write a bundle into this folder, which is made
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    #[command(flatten)]
    trials: TrialArgs,
    #[command(flatten)]
    backend: BackendArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  convfuzz shrink 'fwd n=2 c=64 k=32 in=9x9 ker=3 fill=normal:7 via=engine:47' --out bundle
  convfuzz shrink --keep c,k 'fwd c=512 k=128 in=8x4x4 ker=3x1x1 type=fp16 via=host:gemm!conv3d_8x8'";

/// What `--json` prints.
#[derive(Serialize)]
struct Report<'a> {
    start: String,
    start_rate: Rate,
    repro: String,
    class: &'a str,
    detail: Option<&'a str>,
    rate: Rate,
    trials: u32,
    exhausted: bool,
    data: Option<&'a shrink::data::DataPatch>,
    condition: Option<String>,
    trigger: Option<&'a Trigger>,
}

impl Shrink {
    /// Shrinks, prints, and writes the bundle if asked to.
    pub fn execute(self, terminal: &Terminal) -> Result<Exit> {
        let repro: Repro = self.words.join(" ").parse()?;
        let terms = self.trials.terms(self.backend.chosen(terminal)?);
        let mut solo = Solo::start(terms.clone())?;
        let found = minimize(&mut solo, &repro, &self.options(), &mut |step| {
            terminal.note(words(step));
        })?;
        let Some(minimized) = found else {
            terminal.print(&format!("{repro}\ndoes not fail here"))?;
            return Ok(Exit::Clean);
        };
        self.print(terminal, &minimized)?;
        if let Some(out) = &self.out {
            Dossier::of_finding(&minimized, &terms, Some(out))?.write(out)?;
            terminal.note(&format!("bundle in {}", out.display()));
        }
        Ok(match minimized.rate.flaky() {
            true => Exit::Flaky,
            false => Exit::Failures,
        })
    }

    fn options(&self) -> Options {
        let trigger = Effort {
            max_trials: self.trigger_trials,
            check: self.check,
            seed: self.seed,
            ..Effort::default()
        };
        minimize::Options {
            shrink: shrink::Options {
                max_trials: self.max_trials,
                keep: self.keep.clone(),
                ..shrink::Options::default()
            },
            data_trials: self.data_trials,
            trigger: (self.trigger_trials > 0).then_some(trigger),
        }
    }

    fn print(&self, terminal: &Terminal, found: &Minimized) -> Result<()> {
        if self.json {
            return terminal.json(&Report::new(found));
        }
        terminal.print(&text(found))
    }
}

impl<'a> Report<'a> {
    fn new(found: &'a Minimized) -> Self {
        Report {
            start: found.start.to_string(),
            start_rate: found.start_rate,
            repro: found.repro.to_string(),
            class: &found.class,
            detail: found.record.detail.as_deref(),
            rate: found.rate,
            trials: found.trials,
            exhausted: found.exhausted,
            data: found.data.as_ref(),
            condition: found.trigger.as_ref().map(ToString::to_string),
            trigger: found.trigger.as_ref(),
        }
    }
}

/// What was found, in a few lines.
fn text(found: &Minimized) -> String {
    let Rate { failed, of } = found.rate;
    let mut lines = vec![found.repro.to_string()];
    lines.push(format!(
        "{}: {failed} of {of} runs failed; {} trials{}",
        found.class,
        found.trials,
        if found.exhausted {
            ", the budget ended"
        } else {
            ""
        }
    ));
    lines.extend(found.record.detail.clone());
    if let Some(data) = &found.data {
        lines.push(format!("data: {} elements are not zero", data.len()));
    }
    if let Some(trigger) = &found.trigger {
        lines.extend(condition(trigger));
    }
    lines.join("\n")
}

/// The condition, its score, and what each clause rests on.
fn condition(trigger: &Trigger) -> Vec<String> {
    let share = |v: Option<f64>| v.map_or("-".to_owned(), |v| format!("{v:.3}"));
    let mut lines = vec![
        match trigger.is_credible() {
            true => format!("fails when: {trigger}"),
            false => format!("no simple condition found; the best guess: {trigger}"),
        },
        format!(
            "  on {} fresh cases: precision {}, recall {}{}",
            trigger.checked(),
            share(trigger.check.precision()),
            share(trigger.check.recall()),
            if trigger.settled {
                ""
            } else {
                "; the budget ended first"
            }
        ),
    ];
    lines.extend(trigger.clauses.iter().map(|e| format!("  {e}")));
    let wrong = trigger.check.counterexamples.iter().take(3);
    lines.extend(wrong.map(|r| format!("  predicted wrongly: {r}")));
    lines
}

/// What is being done.
fn words(step: Step) -> &'static str {
    match step {
        Step::Shrinking => "looking for the simplest trial",
        Step::Data => "reducing its data",
        Step::Trigger => "looking for the condition",
    }
}
