//! `convfuzz explain`: what is behind a wrong result, or how a right one is
//! summed.

use clap::Args;
use serde::Serialize;

use crate::attribute::Attribution;
use crate::backend::Combination;
use crate::campaign::solo::{Settled, Solo};
use crate::candidate::Repro;
use crate::cli::backend::BackendArgs;
use crate::cli::dossier::{Dossier, TrialArgs};
use crate::cli::exit::Exit;
use crate::cli::given::Given;
use crate::cli::terminal::Terminal;
use crate::error::Result;
use crate::minimize::order::{self, Order};
use crate::report::table::{Cell, Table};
use crate::tensor::index_text;

/// Say which cause explains a wrong result, or in which order a sum is made
///
/// Computes what each of many causes would give (dropped, flipped or swapped
/// taps, layouts, lost products, channel tails, padding, narrower operands and
/// sums, saturation, and so on) and compares it with the result bit for bit. A
/// cause is named only when it explains every output and no other kind does.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Explain {
    /// The trial as a repro line with via=, or a bundle
    #[arg(required = true, value_name = "TRIAL")]
    words: Vec<String>,
    /// Show in which order the products of an output are added up (method of FPRev)
    #[arg(long)]
    tree: bool,
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
  convfuzz explain 'fwd c=8 k=8 in=5 ker=3 fill=ints:1 via=host:gemm!taps_flipped'
  convfuzz explain --tree 'fwd c=64 k=8 in=1 ker=1 type=fp16 via=engine:42'";

/// What `--json` prints.
#[derive(Serialize)]
struct Report<'a> {
    repro: String,
    combination: &'a Combination,
    verdict: &'a str,
    reason: Option<&'a str>,
    detail: Option<&'a str>,
    /// In words.
    explanation: Option<String>,
    attribution: Option<&'a Attribution>,
    tree: Option<Summation>,
}

/// The order of a sum.
#[derive(Serialize)]
struct Summation {
    /// The output, as indices.
    output: String,
    /// Its products.
    products: usize,
    /// `((0 1) 2)`: what is in brackets is added first; `None` where no tree
    /// fits.
    order: Option<String>,
    /// The shape in words, where it has one.
    shape: Option<String>,
}

impl Explain {
    /// Runs the trial and explains it.
    pub fn execute(self, terminal: &Terminal) -> Result<Exit> {
        let given = Given::read(&self.words)?;
        let repro = &given.repro;
        let Settled {
            backend,
            combination,
            ..
        } = self.backend.settled(terminal)?;
        given.warn(terminal, &combination);
        let terms = self.trials.terms(backend);
        let dossier = Dossier::of_trial(repro, given.data.as_ref(), &terms, None)?;
        let order = match self.tree {
            true => Some(order::order(&mut Solo::start(terms)?, repro)?),
            false => None,
        };
        let order = order.map(|order| Summation::new(repro, &order));
        match self.json {
            true => terminal.json(&report(repro, &dossier, order))?,
            false => print(terminal, repro, &dossier, order)?,
        }
        Ok(match dossier.class() {
            Some(_) => Exit::Failures,
            None => Exit::Clean,
        })
    }
}

fn report<'a>(repro: &Repro, dossier: &'a Dossier, tree: Option<Summation>) -> Report<'a> {
    let record = dossier.record();
    Report {
        repro: repro.to_string(),
        combination: dossier.combination(),
        verdict: &record.verdict,
        reason: record.reason.as_deref(),
        detail: record.detail.as_deref(),
        explanation: dossier.explanation(),
        attribution: dossier.attribution(),
        tree,
    }
}

fn print(
    terminal: &Terminal,
    repro: &Repro,
    dossier: &Dossier,
    order: Option<Summation>,
) -> Result<()> {
    let record = dossier.record();
    let reason = record.reason.as_ref().map(|r| format!(": {r}"));
    terminal.print(&format!(
        "{repro}\n{}{}",
        record.verdict,
        reason.unwrap_or_default()
    ))?;
    record.detail.iter().try_for_each(|d| terminal.print(d))?;
    if let Some(words) = dossier.explanation() {
        terminal.print(&format!("\n{words}"))?;
    }
    if let (Some(_), Some(attribution)) = (dossier.class(), dossier.attribution()) {
        alternatives(terminal, attribution)?;
    }
    order.iter().try_for_each(|o| terminal.print(&o.text()))
}

/// The hypotheses that came nearest.
fn alternatives(terminal: &Terminal, attribution: &Attribution) -> Result<()> {
    if attribution.alternatives.is_empty() {
        return Ok(());
    }
    let mut table = Table::new(&["hypothesis", ">bit for bit", ">within bounds"]);
    let share = |v: f64| Cell::from(format!("{:.0}%", 100.0 * v).as_str());
    for one in &attribution.alternatives {
        let cause = one.cause.to_string();
        table.row(vec![
            cause.as_str().into(),
            share(one.bits),
            share(one.within),
        ]);
    }
    terminal.print(&format!(
        "\nThe nearest of {} hypotheses, and the share of wrong outputs each gives:",
        attribution.tried
    ))?;
    terminal.table(&table)
}

impl Summation {
    fn new(repro: &Repro, order: &Order) -> Self {
        let dims = repro.problem.dims(repro.problem.direction.result());
        Summation {
            output: index_text(&dims, order.output),
            products: order.products,
            order: order.tree.as_ref().map(ToString::to_string),
            shape: order.tree.as_ref().and_then(|t| t.shape()),
        }
    }

    fn text(&self) -> String {
        let shape = self.shape.as_ref().map(|s| format!(": {s}"));
        let order = self
            .order
            .as_deref()
            .unwrap_or("no tree fits what came back");
        format!(
            "\nOrder of the {} products of output {}{}\n{order}",
            self.products,
            self.output,
            shape.unwrap_or_default()
        )
    }
}
