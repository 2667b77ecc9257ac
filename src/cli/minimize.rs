//! The findings of a run, each brought down to its simplest trial and bundled.

use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;

use crate::campaign::Plan;
use crate::campaign::solo::{Solo, Terms};
use crate::candidate::Repro;
use crate::cli::dossier::Dossier;
use crate::cli::fuzz::duration;
use crate::cli::terminal::Terminal;
use crate::error::{Error, Result};
use crate::finding::{Finding, Findings, Signature};
use crate::judge::{FailureKind, Verdict};
use crate::minimize::{Minimized, Options, minimize};
use crate::shrink::Rate;
use crate::trial::{TrialOptions, metamorphic};

/// How many findings are looked into.
#[derive(Args, Clone, Debug)]
pub struct MinimizeArgs {
    /// Shrink, explain and bundle so many findings at the end; 0 for none
    #[arg(
        long = "minimize",
        value_name = "N",
        default_value_t = 20,
        help_heading = "Findings"
    )]
    findings: usize,
    /// Longest time for that; what is left by then is bundled as it was found
    #[arg(long, value_name = "DURATION", value_parser = duration, help_heading = "Findings")]
    minimize_time: Option<Duration>,
}

/// What became of one finding, or of several that turned out to be the same.
#[derive(Clone, Debug, Serialize)]
pub struct Bundled {
    /// Ids of the findings.
    pub findings: Vec<String>,
    /// Their signatures.
    pub signatures: Vec<String>,
    /// The simplest trial; the one found, where it did not fail again.
    pub repro: String,
    /// How it fails; `None` when it did not fail again by itself.
    pub class: Option<String>,
    /// Failures among the last runs.
    pub rate: Option<Rate>,
    /// The condition under which it fails.
    pub trigger: Option<String>,
    /// Whether fresh cases bear the condition out.
    pub credible: bool,
    /// Share of cases predicted to fail that did, on fresh cases.
    pub precision: Option<f64>,
    /// Share of failing cases that were predicted.
    pub recall: Option<f64>,
    /// What is wrong, in words.
    pub detail: Option<String>,
    /// The bundle's folder.
    pub bundle: Option<PathBuf>,
}

/// Folder of the bundles in a results folder, and their index.
const FOLDER: &str = "findings";

impl MinimizeArgs {
    /// Looks into findings of every kind, the most often seen first, several at a
    /// time, and writes bundles to `folder/findings/`.
    pub fn run(
        &self,
        findings: &Findings,
        plan: &Plan,
        folder: &Path,
        stop: &AtomicBool,
        terminal: &Terminal,
    ) -> Result<Vec<Bundled>> {
        let mut queue = by_kind(findings.iter().cloned().collect());
        let left_out = queue.len().saturating_sub(self.findings);
        queue.truncate(self.findings);
        if queue.is_empty() {
            return Ok(Vec::new());
        }
        terminal.note(&format!(
            "minimising {} findings{}",
            queue.len(),
            match left_out {
                0 => String::new(),
                n => format!("; {n} more are left as they are (--minimize)"),
            }
        ));
        let now = Instant::now();
        let job = Job {
            folder: folder.join(FOLDER),
            terms: plan.terms(),
            queue: Mutex::new(queue.into()),
            done: Mutex::new(Vec::new()),
            end: self.minimize_time.and_then(|time| now.checked_add(time)),
            stop,
        };
        job.run(plan.jobs)
    }
}

/// One finding of every kind, then a second of every kind, and so on: a fault
/// has a finding for each type and layout it shows in, and its many must not
/// crowd out the few of another. Within a round, those most often seen first.
fn by_kind(mut findings: Vec<Finding>) -> Vec<Finding> {
    findings.sort_by_key(|f| Reverse(f.trials));
    let mut seen = HashMap::new();
    let mut rounds: Vec<(usize, Finding)> = Vec::new();
    for finding in findings {
        let Signature {
            reason,
            direction,
            candidate,
            ..
        } = &finding.signature;
        let kind = (direction.clone(), candidate.clone(), reason.clone());
        let round = seen.entry(kind).or_insert(0);
        rounds.push((*round, finding));
        *round += 1;
    }
    rounds.sort_by_key(|(round, _)| *round);
    rounds.into_iter().map(|(_, finding)| finding).collect()
}

/// The work, shared by its threads.
struct Job<'a> {
    folder: PathBuf,
    terms: Terms,
    queue: Mutex<VecDeque<Finding>>,
    done: Mutex<Vec<Bundled>>,
    /// From when on findings are bundled as they are.
    end: Option<Instant>,
    stop: &'a AtomicBool,
}

impl Job<'_> {
    fn run(&self, threads: usize) -> Result<Vec<Bundled>> {
        let threads = threads.clamp(1, self.lock(&self.queue)?.len());
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..threads).map(|_| scope.spawn(|| self.work())).collect();
            workers.into_iter().try_for_each(|w| {
                w.join()
                    .unwrap_or_else(|_| Err(Error::internal("a minimising thread panicked")))
            })
        })?;
        self.write_index()?;
        Ok(std::mem::take(&mut *self.lock(&self.done)?))
    }

    fn work(&self) -> Result<()> {
        let mut solo = Solo::start(self.terms.clone())?;
        while let Some(finding) = self.next()? {
            match self.end {
                Some(end) if Instant::now() >= end => self.as_found(&finding)?,
                _ => self.finding(&mut solo, &finding)?,
            }
            // A run may be killed: what is done is told at once.
            self.write_index()?;
        }
        Ok(())
    }

    /// Writes the index of what is done, in the order of ids.
    fn write_index(&self) -> Result<()> {
        let mut done = self.lock(&self.done)?;
        done.sort_by(|a, b| a.findings.cmp(&b.findings));
        write_index(&self.folder, &done)
    }

    fn next(&self) -> Result<Option<Finding>> {
        if self.stop.load(Ordering::SeqCst) {
            return Ok(None);
        }
        Ok(self.lock(&self.queue)?.pop_front())
    }

    fn finding(&self, solo: &mut Solo, finding: &Finding) -> Result<()> {
        let options = Options::brief();
        let without_trigger = Options {
            trigger: None,
            ..options.clone()
        };
        let terms = self.terms.showing(&finding.signature.reason);
        solo.change_terms(terms.clone());
        let mut found = None;
        for start in starts(finding)? {
            found = minimize(solo, &start, &without_trigger, &mut |_| {})?;
            if found.is_some() {
                break;
            }
        }
        let Some(mut found) = found else {
            return self.sporadic(finding);
        };
        if self.known(finding, &found)? {
            return Ok(());
        }
        if let Some(effort) = &options.trigger {
            found.find_trigger(solo, effort)?;
        }
        let bundle = self.folder.join(finding.signature.id());
        let dossier = Dossier::of_finding(&found, &terms, Some(&bundle))?;
        dossier.write(&bundle)?;
        let mut done = self.lock(&self.done)?;
        let entry = done.iter_mut().find(|b| same(b, &found));
        if let Some(entry) = entry {
            if let Some(trigger) = &found.trigger {
                entry.trigger = Some(trigger.to_string());
                entry.credible = trigger.is_credible();
                entry.precision = trigger.check.precision();
                entry.recall = trigger.check.recall();
            }
            entry.bundle = Some(bundle);
        }
        Ok(())
    }

    /// Bundles the first trial of a finding that fails, as it is.
    fn as_found(&self, finding: &Finding) -> Result<()> {
        let terms = self.terms.showing(&finding.signature.reason);
        let bundle = self.folder.join(finding.signature.id());
        for start in starts(finding)? {
            let dossier = Dossier::of_trial(&start, None, &terms, Some(&bundle))?;
            let Some(class) = dossier.class() else {
                continue;
            };
            dossier.write(&bundle)?;
            self.lock(&self.done)?.push(Bundled {
                class: Some(class),
                repro: start.to_string(),
                detail: Some(dossier.detail().to_owned()),
                bundle: Some(bundle),
                ..Bundled::unexplored(finding)
            });
            return Ok(());
        }
        discard(&bundle)?;
        self.sporadic(finding)
    }

    /// Whether another finding came down to the same trial; otherwise takes it.
    fn known(&self, finding: &Finding, found: &Minimized) -> Result<bool> {
        let mut done = self.lock(&self.done)?;
        let new = Bundled::unexplored(finding);
        if let Some(entry) = done.iter_mut().find(|b| same(b, found)) {
            entry.findings.extend(new.findings);
            entry.signatures.extend(new.signatures);
            return Ok(true);
        }
        done.push(Bundled {
            repro: found.repro.to_string(),
            class: Some(found.class.clone()),
            rate: Some(found.rate),
            detail: found.record.detail.clone(),
            ..new
        });
        Ok(false)
    }

    /// It did not fail again by itself: kept with its line.
    fn sporadic(&self, finding: &Finding) -> Result<()> {
        self.lock(&self.done)?.push(Bundled::unexplored(finding));
        Ok(())
    }

    fn lock<'m, T>(&self, mutex: &'m Mutex<T>) -> Result<std::sync::MutexGuard<'m, T>> {
        mutex
            .lock()
            .map_err(|_| Error::internal("a minimising thread panicked"))
    }
}

fn same(known: &Bundled, found: &Minimized) -> bool {
    known.repro == found.repro.to_string() && known.class.as_ref() == Some(&found.class)
}

/// The trials that may show a finding by itself: its own, and where two forms of it
/// disagreed the other forms', any of which may be the wrong one.
fn starts(finding: &Finding) -> Result<Vec<Repro>> {
    let own: Repro = finding.repro.parse()?;
    let disagreement = Verdict::Failed(FailureKind::Metamorphic).columns().1;
    let forms = match Some(&finding.signature.reason) == disagreement.as_ref() {
        true => metamorphic::lines(&own, TrialOptions::default().metamorphic),
        false => Vec::new(),
    };
    Ok(std::iter::once(own).chain(forms).collect())
}

/// Removes a bundle that was begun.
fn discard(bundle: &Path) -> Result<()> {
    fs::remove_dir_all(bundle)
        .map_err(|e| Error::output(format!("cannot remove {}", bundle.display())).with_source(e))
}

impl Bundled {
    /// A finding of which nothing more is known than what the run saw.
    fn unexplored(finding: &Finding) -> Self {
        Bundled {
            findings: vec![finding.signature.id()],
            signatures: vec![finding.signature.to_string()],
            repro: finding.repro.clone(),
            class: None,
            rate: None,
            trigger: None,
            credible: false,
            precision: None,
            recall: None,
            detail: finding.detail.clone(),
            bundle: None,
        }
    }

    /// For the terminal.
    pub fn text(&self) -> String {
        let mut lines = vec![format!("\n{}", self.repro)];
        match (&self.class, self.rate) {
            (Some(class), Some(Rate { failed, of })) => {
                lines.push(format!("  {class}, {failed} of {of} runs"));
            }
            (Some(class), None) => lines.push(format!("  {class}; bundled as it was found")),
            _ => lines.push("  did not fail again by itself".to_owned()),
        }
        lines.extend(self.condition().map(|t| format!("  {t}")));
        let bundle = self.bundle.iter();
        lines.extend(bundle.map(|b| format!("  bundle: {}", b.display())));
        if self.findings.len() > 1 {
            lines.push(format!(
                "  {} findings came down to this",
                self.findings.len()
            ));
        }
        lines.join("\n")
    }

    /// The condition with how well it did.
    fn condition(&self) -> Option<String> {
        let share = |v: Option<f64>| v.map_or("-".to_owned(), |v| format!("{v:.2}"));
        self.trigger.as_ref().map(|trigger| {
            let (precision, recall) = (share(self.precision), share(self.recall));
            match self.credible {
                true => format!("fails when {trigger} (precision {precision}, recall {recall})"),
                false => format!(
                    "no simple condition found (precision {precision}, recall {recall} of the best guess)"
                ),
            }
        })
    }

    /// An entry of the index.
    fn markdown(&self) -> String {
        let mut lines = vec![format!("## `{}`\n", self.repro)];
        match (&self.class, self.rate) {
            (Some(class), Some(Rate { failed, of })) => {
                lines.push(format!("{class}; {failed} of {of} runs failed."));
            }
            (Some(class), None) => lines.push(format!("{class}; bundled as it was found.")),
            _ => lines.push("Did not fail again when run by itself.".to_owned()),
        }
        lines.extend(self.detail.iter().map(|d| format!("\n{d}\n")));
        lines.extend(self.condition().map(|t| format!("\n{t}.")));
        if let (Some(_), Some(id)) = (&self.bundle, self.findings.first()) {
            lines.push(format!("\n[Report]({id}/report.md)"));
        }
        lines.push("\nSeen as:\n".to_owned());
        lines.extend(self.signatures.iter().map(|s| format!("- {s}")));
        lines.join("\n")
    }
}

fn write_index(folder: &Path, done: &[Bundled]) -> Result<()> {
    let path = folder.join("index.md");
    let entries: Vec<_> = done.iter().map(Bundled::markdown).collect();
    let text = format!("# Findings\n\n{}\n", entries.join("\n\n"));
    fs::create_dir_all(folder)
        .and_then(|()| fs::write(&path, text))
        .map_err(|e| Error::output(format!("cannot write {}", path.display())).with_source(e))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::TrialRecord;

    fn finding(candidate: &str, layout: &str, trials: u64) -> Finding {
        let record = TrialRecord {
            verdict: "failed".to_owned(),
            candidate: candidate.to_owned(),
            layout: layout.to_owned(),
            ..TrialRecord::default()
        };
        Finding {
            signature: Signature::of(&record).unwrap(),
            trials,
            repro: String::new(),
            detail: None,
            max_ratio: None,
        }
    }

    #[test]
    fn by_kind_takes_one_of_each_before_a_second_of_any() {
        let findings = vec![
            finding("engine:4", "nchw", 90),
            finding("engine:4", "nhwc", 80),
            finding("engine:84", "nchw", 1),
            finding("engine:7", "nchw", 3),
        ];
        let order = by_kind(findings);
        let trials: Vec<u64> = order.iter().map(|f| f.trials).collect();
        assert_eq!(trials, [90, 3, 1, 80]);
    }
}
