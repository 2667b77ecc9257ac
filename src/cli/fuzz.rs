//! `convfuzz fuzz`: the main job.

use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Args;
use jiff::SignedDuration;
use serde::Serialize;

use crate::backend::Combination;
use crate::campaign::past::Past;
use crate::campaign::shard::Shard;
use crate::campaign::solo::Settled;
use crate::campaign::{self, Plan};
use crate::cli::backend::BackendArgs;
use crate::cli::exit::Exit;
use crate::cli::interrupt;
use crate::cli::minimize::{Bundled, MinimizeArgs};
use crate::cli::progress::{Budget, Progress};
use crate::cli::recorder::{self, Ended, Recorder, Resumed};
use crate::cli::terminal::Terminal;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::fill::FillKind;
use crate::finding::Finding;
use crate::problem::{Direction, Layout};
use crate::record::measured;
use crate::report::environment::Environment;
use crate::report::folder;
use crate::report::journal::Begun;
use crate::report::summary::Summary;
use crate::strategy::Limits;
use crate::trial::TrialOptions;

/// Cases when neither --cases nor --time is given.
const DEFAULT_CASES: u64 = 200;

/// Generate problems, run every candidate, judge every output
///
/// Each generated problem is filled with exact-integer data, where the result
/// must be right bit for bit, and with rounding-sensitive data, where it must be
/// inside a derived bound. Results are written as the run goes; Ctrl-C ends the
/// run cleanly, a second one at once.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Fuzz {
    /// Stop after this many generated cases [default: 200, unless --time is given]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    cases: Option<u64>,
    /// Stop after this long, such as 90s, 10m, 1h30m
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    time: Option<Duration>,
    /// Seed of the run; the same seed and options give the same trials [default: drawn, printed]
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    #[command(flatten)]
    backend: BackendArgs,
    #[command(flatten)]
    limits: LimitArgs,
    /// Folder for the results [default: results/<gpu>-<driver>-cudnn<version>]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Worker processes [default: one per processor core, at most 16, and 2 GiB of the GPU's memory each]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    jobs: Option<u16>,
    /// Longest time for one trial
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "60s")]
    timeout: Duration,
    /// Further runs of each candidate, compared bit for bit
    #[arg(long, value_name = "N", default_value_t = 1)]
    repeats: u32,
    #[command(flatten)]
    minimize: MinimizeArgs,
    /// Go on with the run in --out where it was cut off; begin it where nothing is there
    ///
    /// The settings must be those it was begun with; without --seed its seed is
    /// taken. With --time the rest of that time is left.
    #[arg(long)]
    resume: bool,
    /// Most memory a worker may hold, in MiB [default: an even part of three quarters of what is there]
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..))]
    worker_memory: Option<u64>,
    /// Run shard I of N only: the cases whose number modulo N is I, counted from 0
    #[arg(long, value_name = "I/N", default_value_t, hide_default_value = true)]
    shard: Shard,
    /// Print the summary as JSON
    #[arg(long)]
    json: bool,
}

/// What is generated.
#[derive(Args, Debug)]
struct LimitArgs {
    /// Tensor types to generate [default: all but FP8]
    #[arg(
        long,
        value_name = "TYPE",
        value_delimiter = ',',
        help_heading = "Problems"
    )]
    dtype: Vec<DType>,
    /// Spatial dimensions to generate [default: 1,2,3]
    #[arg(
        long,
        value_name = "N",
        value_delimiter = ',',
        help_heading = "Problems"
    )]
    #[arg(value_parser = clap::value_parser!(u8).range(1..=3))]
    dims: Vec<u8>,
    /// Directions to generate [default: fwd]
    #[arg(
        long,
        value_name = "DIR",
        value_delimiter = ',',
        help_heading = "Problems"
    )]
    #[arg(value_parser = direction)]
    direction: Vec<Direction>,
    /// Memory layouts to generate [default: nchw,nhwc]
    #[arg(
        long,
        value_name = "LAYOUT",
        value_delimiter = ',',
        help_heading = "Problems"
    )]
    layout: Vec<Layout>,
    /// Distributions of data to generate, as in fill= [default: all]
    #[arg(
        long,
        value_name = "FILL",
        value_delimiter = ',',
        help_heading = "Problems"
    )]
    fill: Vec<FillKind>,
    /// Most multiply-adds of a problem [default: 1048576]
    #[arg(long, value_name = "N", help_heading = "Problems")]
    max_macs: Option<u64>,
}

const EXAMPLES: &str = "\
Examples:
  convfuzz fuzz                                     200 cases on whatever is here
  convfuzz fuzz --time 8h --out results/nightly
  convfuzz fuzz --cases 50 --seed 7 --dtype fp16,bf16 --dims 3
  convfuzz fuzz --cases 5000 --seed 7 --shard 2/8   the third eighth of it
  convfuzz fuzz --resume --cases 5000 --seed 7 --out DIR   after a kill, or the first time
  convfuzz fuzz --fault tap_dropped --cases 20      a planted fault must be caught";

/// What `--json` prints.
#[derive(Serialize)]
struct Report<'a> {
    seed: u64,
    folder: &'a Path,
    interrupted: bool,
    combination: &'a Combination,
    cases: u64,
    replayed: u64,
    workers_replaced: u64,
    planning_ms: f64,
    quarantined: &'a [String],
    summary: &'a Summary,
    findings: Vec<FindingEntry>,
    minimized: &'a [Bundled],
}

/// One fault, however many trials showed it.
#[derive(Serialize)]
struct FindingEntry {
    id: String,
    signature: String,
    trials: u64,
    repro: String,
    detail: Option<String>,
    #[serde(with = "measured")]
    max_ratio: Option<f64>,
}

impl Fuzz {
    /// Runs the campaign, writes the results, prints the summary.
    pub fn execute(self, terminal: &Terminal) -> Result<Exit> {
        let stop = interrupt::flag()?;
        let settled = self.backend.settled(terminal)?;
        let path = self.place(&settled.combination);
        let plan = self.plan(&settled, &path)?;
        let combination = settled.combination;
        let (recorder, past) = match self.open(&path, &plan, &combination, terminal)? {
            Resumed::Run(recorder, past) => (recorder, past),
            Resumed::Complete(ended) => {
                terminal.note("this run is complete: nothing is left to do");
                return self.tell(&ended, &plan, &combination, &[], false, terminal);
            }
        };
        terminal.note(&format!(
            "seed {}; results in {}",
            plan.seed,
            recorder.folder.path().display()
        ));
        let mut ended = campaign_of(&plan, past, *recorder, &stop)?;
        let bundles = self
            .minimize
            .run(&ended.findings, &plan, &ended.folder, &stop, terminal)?;
        let interrupted = stop.load(Ordering::SeqCst);
        if !interrupted {
            ended.close()?;
        }
        self.tell(&ended, &plan, &combination, &bundles, interrupted, terminal)
    }

    /// Prints what it came to.
    fn tell(
        &self,
        ended: &Ended,
        plan: &Plan,
        combination: &Combination,
        bundles: &[Bundled],
        interrupted: bool,
        terminal: &Terminal,
    ) -> Result<Exit> {
        if self.json {
            let report = ended.report(plan.seed, interrupted, combination, bundles);
            terminal.json(&report)?;
        } else {
            ended.print(terminal, plan.seed, interrupted)?;
            bundles.iter().try_for_each(|b| terminal.print(&b.text()))?;
        }
        Ok(match (interrupted, ended.summary.tally.bad()) {
            (true, _) => Exit::Interrupted,
            (false, 0) => Exit::Clean,
            (false, _) => Exit::Failures,
        })
    }

    fn place(&self, combination: &Combination) -> PathBuf {
        let default = || Path::new("results").join(folder::default_name(combination));
        self.out.clone().unwrap_or_else(default)
    }

    fn plan(&self, settled: &Settled, path: &Path) -> Result<Plan> {
        Ok(Plan {
            backend: settled.backend.clone(),
            seed: self.seed(path)?,
            cases: self.cases(),
            time: self.time,
            limits: self.limits.limits()?,
            jobs: self.jobs.map_or_else(|| settled.jobs(), usize::from),
            timeout: self.timeout,
            repeats: self.repeats,
            outputs: TrialOptions::default().outputs,
            regressions: self.regressions(),
            shard: self.shard,
            memory: self.worker_memory.map(|mebibytes| mebibytes << 20),
            program: None,
        })
    }

    /// The one given, else that of the run that is gone on with, else a new one.
    fn seed(&self, path: &Path) -> Result<u64> {
        let earlier = match (self.seed, self.resume) {
            (None, true) => recorder::earlier_seed(path)?,
            (seed, _) => seed,
        };
        Ok(earlier.unwrap_or_else(fresh_seed))
    }

    /// Where failing seeds are kept: a checkout of convfuzz has the folder. A
    /// planted fault's failures are no news.
    fn regressions(&self) -> Option<PathBuf> {
        let folder = Path::new("proptest-regressions");
        let wanted = self.backend.fault().is_none() && folder.is_dir();
        wanted.then(|| folder.join("fuzz.txt"))
    }

    fn cases(&self) -> Option<u64> {
        match (self.cases, self.time) {
            (None, None) => Some(DEFAULT_CASES),
            (cases, _) => cases,
        }
    }

    fn open(
        &self,
        path: &Path,
        plan: &Plan,
        combination: &Combination,
        terminal: &Terminal,
    ) -> Result<Resumed> {
        let options = serde_json::to_value(plan)
            .map_err(|e| Error::internal("the plan does not fit JSON").with_source(e))?;
        let environment = Environment::starting(combination.clone(), plan.seed, options);
        let replayed = Past::none(plan.regressions.as_deref()).replayed;
        let begun = Begun::now(environment, replayed);
        let progress = Progress::start(budget(plan), *terminal);
        if self.resume {
            return Recorder::resume(path, begun, progress, terminal);
        }
        let (recorder, past) = Recorder::begin(path, begun, progress)?;
        Ok(Resumed::Run(recorder, past))
    }
}

/// Runs a campaign to its end, its past included.
fn campaign_of(
    plan: &Plan,
    past: Past<'_>,
    mut recorder: Recorder,
    stop: &AtomicBool,
) -> Result<Ended> {
    let ran = campaign::run(plan, past, &mut recorder, stop);
    recorder.finish(ran, stop.load(Ordering::SeqCst))
}

fn budget(plan: &Plan) -> Budget {
    match (plan.cases, plan.time) {
        (None, Some(time)) => Budget::Time(time),
        (cases, _) => {
            let cases = cases.unwrap_or(DEFAULT_CASES);
            let end = i64::try_from(cases).unwrap_or(i64::MAX);
            Budget::Cases(plan.shard.share(0, end))
        }
    }
}

impl LimitArgs {
    fn limits(&self) -> Result<Limits> {
        let defaults = Limits::default();
        let limits = Limits {
            types: or(&self.dtype, defaults.types),
            ranks: or(&self.dims, defaults.ranks),
            directions: or(&self.direction, defaults.directions),
            layouts: or(&self.layout, defaults.layouts),
            fills: or(&self.fill, defaults.fills),
            max_macs: self.max_macs.unwrap_or(defaults.max_macs),
            ..defaults
        };
        limits.validate()?;
        Ok(limits)
    }
}

/// The values given, or the default where none were.
fn or<T: Clone>(given: &[T], default: Vec<T>) -> Vec<T> {
    if given.is_empty() {
        default
    } else {
        given.to_vec()
    }
}

impl Ended {
    fn report<'a>(
        &'a self,
        seed: u64,
        interrupted: bool,
        combination: &'a Combination,
        minimized: &'a [Bundled],
    ) -> Report<'a> {
        Report {
            seed,
            folder: &self.folder,
            interrupted,
            combination,
            cases: self.campaign.cases,
            replayed: self.campaign.replayed,
            workers_replaced: self.campaign.replaced,
            planning_ms: self.campaign.planning_ms,
            quarantined: &self.campaign.quarantined,
            summary: &self.summary,
            findings: self.findings.iter().map(FindingEntry::new).collect(),
            minimized,
        }
    }

    fn print(&self, terminal: &Terminal, seed: u64, interrupted: bool) -> Result<()> {
        terminal.table(&self.summary.table())?;
        for finding in self.findings.iter() {
            terminal.print(&FindingEntry::new(finding).text())?;
        }
        terminal.print(&self.closing(seed, interrupted))
    }

    /// The last words: what it comes to, where the time went, how to repeat it.
    fn closing(&self, seed: u64, interrupted: bool) -> String {
        let (tally, campaign) = (&self.summary.tally, &self.campaign);
        let stopped = if interrupted {
            " before it was stopped"
        } else {
            ""
        };
        let mut lines = vec![format!(
            "\n{} trials of {} cases ({} replayed){stopped}: {}.",
            tally.trials,
            campaign.cases,
            campaign.replayed,
            self.verdict()
        )];
        if campaign.replaced > 0 {
            lines.push(format!("{} workers were replaced.", campaign.replaced));
        }
        for candidate in &campaign.quarantined {
            lines.push(format!(
                "Left out after it ended too many workers: {candidate}"
            ));
        }
        lines.push(self.split());
        let folder = self.folder.display();
        lines.push(format!("Seed {seed}. Results: {folder}"));
        lines.join("\n")
    }

    /// Where the workers' time went.
    fn split(&self) -> String {
        let times = [
            self.campaign.planning_ms,
            self.summary.library_ms,
            self.summary.own_ms,
        ];
        let all = times.iter().sum::<f64>().max(f64::MIN_POSITIVE);
        let [planning, library, own] =
            times.map(|ms| format!("{:.1} s ({:.0}%)", ms / 1e3, 100.0 * ms / all));
        format!(
            "Time of the workers: {planning} listing candidates, {library} in the library, {own} in data, oracle and judging."
        )
    }

    fn verdict(&self) -> String {
        let tally = &self.summary.tally;
        match (tally.bad(), tally.passed) {
            (0, 0) => "nothing failed, but nothing passed either: this run proves nothing".into(),
            (0, _) => "nothing failed".to_owned(),
            (bad, _) => format!("{bad} trials failed, {} findings", self.findings.len()),
        }
    }
}

impl FindingEntry {
    fn new(finding: &Finding) -> Self {
        FindingEntry {
            id: finding.signature.id(),
            signature: finding.signature.to_string(),
            trials: finding.trials,
            repro: finding.repro.clone(),
            detail: finding.detail.clone(),
            max_ratio: finding.max_ratio,
        }
    }

    fn text(&self) -> String {
        let detail = self.detail.as_ref().map(|d| format!("\n  {d}"));
        format!(
            "\n{} ({} trials)\n  {}{}",
            self.signature,
            self.trials,
            self.repro,
            detail.unwrap_or_default().replace('\n', "\n  ")
        )
    }
}

/// A seed short enough to be typed again, from the system's randomness.
fn fresh_seed() -> u64 {
    u64::from(RandomState::new().hash_one("seed") as u32)
}

fn direction(text: &str) -> std::result::Result<Direction, String> {
    let known = Direction::ALL.map(Direction::name);
    Direction::ALL
        .into_iter()
        .find(|d| d.name() == text)
        .ok_or_else(|| format!("unknown direction '{text}'; known: {}", known.join(", ")))
}

/// A positive duration in the friendly form of jiff: `90s`, `10m`, `1h30m`.
pub fn duration(text: &str) -> std::result::Result<Duration, String> {
    let parsed: SignedDuration = text
        .parse()
        .map_err(|_| format!("'{text}' is not a duration such as 90s, 10m or 1h30m"))?;
    match Duration::try_from(parsed) {
        Ok(duration) if !duration.is_zero() => Ok(duration),
        _ => Err("must be longer than zero".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duration_friendly_forms_parse() {
        assert_eq!(duration("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("1h30m"), Ok(Duration::from_secs(5400)));
        assert_eq!(duration("2 min"), Ok(Duration::from_secs(120)));
        for bad in ["", "10", "0s", "-5m", "soon"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn limits_help_names_the_real_default() {
        use clap::{CommandFactory, Parser};
        #[derive(Parser)]
        struct Line {
            #[command(flatten)]
            limits: LimitArgs,
        }
        let help = Line::command().render_help().to_string();
        let default = format!("[default: {}]", Limits::default().max_macs);
        assert!(help.contains(&default), "{help}");
        let none = Line::parse_from(["convfuzz"]).limits.limits().unwrap();
        assert_eq!(none, Limits::default());
        let some = Line::parse_from(["convfuzz", "--dims", "2,3", "--layout", "nhwc"]);
        let some = some.limits.limits().unwrap();
        assert_eq!((some.ranks, some.layouts), (vec![2, 3], vec![Layout::Nhwc]));
    }

    #[test]
    fn direction_names_parse_and_others_list_them() {
        for direction_ in Direction::ALL {
            assert_eq!(direction(direction_.name()), Ok(direction_));
        }
        assert!(direction("up").unwrap_err().contains("bwd_filter"));
    }
}
