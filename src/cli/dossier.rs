//! A trial run once more for its bundle: what the commands that write bundles
//! share.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;

use crate::attribute::Attribution;
use crate::backend::Combination;
use crate::backend::open::BackendSpec;
use crate::campaign::solo::{Solo, Terms};
use crate::candidate::Repro;
use crate::cli::fuzz::duration;
use crate::error::{Error, Result};
use crate::finding::failure_class;
use crate::minimize::{Evidence, Minimized};
use crate::record::TrialRecord;
use crate::report::bundle::{Bundle, LOG};
use crate::shrink::data::DataPatch;

/// How single trials are run.
#[derive(Args, Clone, Debug)]
pub struct TrialArgs {
    /// Longest time for one trial
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "60s")]
    pub timeout: Duration,
    /// Further runs within each trial, compared bit for bit
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub repeats: u32,
}

impl TrialArgs {
    /// Terms for trials on `backend`.
    pub fn terms(&self, backend: BackendSpec) -> Terms {
        Terms {
            timeout: self.timeout,
            repeats: self.repeats,
            ..Terms::of(backend)
        }
    }
}

/// Everything a bundle is made of.
pub struct Dossier {
    repro: Repro,
    data: Option<DataPatch>,
    record: TrialRecord,
    evidence: Evidence,
    combination: Combination,
    minimized: Option<Minimized>,
    attribution: Option<Attribution>,
}

impl Dossier {
    /// Runs the trial in a worker of its own, judged and observed. A candidate
    /// that declines it is an error. cuDNN's log goes to `folder`.
    pub fn of_trial(
        repro: &Repro,
        data: Option<&DataPatch>,
        terms: &Terms,
        folder: Option<&Path>,
    ) -> Result<Self> {
        let log = folder.map(prepare_log).transpose()?;
        let mut solo = Solo::start(Terms {
            log: log.clone(),
            ..terms.clone()
        })?;
        let record = solo.trial(repro, data)?;
        if record.verdict == "skipped" {
            let why = record.detail.as_deref().unwrap_or("it is refused");
            return Err(Error::environment(format!(
                "{} cannot run this trial here: {why}",
                record.candidate
            )));
        }
        let evidence = Evidence::gather(&mut solo, repro, data)?;
        let combination = solo.combination().clone();
        // Its worker writes to the log until it ends.
        drop(solo);
        log.as_deref().map_or(Ok(()), trim_log)?;
        Ok(Dossier {
            attribution: evidence.attribution(),
            repro: repro.clone(),
            data: data.cloned(),
            record,
            evidence,
            combination,
            minimized: None,
        })
    }

    /// The same of a minimised finding.
    pub fn of_finding(minimized: &Minimized, terms: &Terms, folder: Option<&Path>) -> Result<Self> {
        let data = minimized.data.as_ref();
        let mut dossier = Self::of_trial(&minimized.repro, data, terms, folder)?;
        // A flaky trial may have passed just now.
        if dossier.class().is_none() {
            dossier.record.clone_from(&minimized.record);
        }
        dossier.minimized = Some(minimized.clone());
        Ok(dossier)
    }

    /// How the trial fails.
    pub fn class(&self) -> Option<String> {
        failure_class(&self.record)
    }

    /// What is wrong, in words; the verdict where nothing is.
    pub fn detail(&self) -> &str {
        self.record
            .detail
            .as_deref()
            .unwrap_or(&self.record.verdict)
    }

    /// What explains the result, in words; `None` where nothing is wrong with it.
    pub fn explanation(&self) -> Option<String> {
        self.class()?;
        Some(self.attribution.as_ref()?.to_string())
    }

    /// What it was run on.
    pub fn combination(&self) -> &Combination {
        &self.combination
    }

    /// The record of the trial.
    pub fn record(&self) -> &TrialRecord {
        &self.record
    }

    /// The attribution, whether or not the trial fails.
    pub fn attribution(&self) -> Option<&Attribution> {
        self.attribution.as_ref()
    }

    /// Writes the bundle into `folder`.
    pub fn write(&self, folder: &Path) -> Result<()> {
        let evidence = &self.evidence;
        let explanation = self.explanation();
        let bundle = Bundle {
            repro: &self.repro,
            combination: &self.combination,
            detail: self.detail(),
            inputs: &evidence.inputs,
            expected: &evidence.expected,
            bound: &evidence.bound,
            actual: &evidence.actual,
            nondeterministic: evidence
                .observed
                .as_ref()
                .is_some_and(|o| o.nondeterministic),
            class: &self.class().unwrap_or_default(),
            notes: &self.record.notes,
            data: self.data.as_ref(),
            minimized: self.minimized.as_ref(),
            attribution: explanation.as_deref(),
        };
        bundle.write(folder)
    }
}

/// Where cuDNN is to log; an earlier log goes.
fn prepare_log(folder: &Path) -> Result<PathBuf> {
    let failed =
        |e| Error::output(format!("cannot write the bundle {}", folder.display())).with_source(e);
    fs::create_dir_all(folder).map_err(failed)?;
    let log = std::path::absolute(folder).map_err(failed)?.join(LOG);
    match fs::remove_file(&log) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(failed(e)),
        _ => Ok(log),
    }
}

/// Keeps the end of a long log: the failing run is what it ends with.
fn trim_log(log: &Path) -> Result<()> {
    const MOST: usize = 40_000;
    let Ok(bytes) = fs::read(log) else {
        return Ok(());
    };
    let Some(excess) = bytes.len().checked_sub(MOST).filter(|n| *n > 0) else {
        return Ok(());
    };
    let line = bytes[excess..].iter().position(|b| *b == b'\n');
    let kept = &bytes[excess + line.map_or(0, |at| at + 1)..];
    fs::write(log, kept)
        .map_err(|e| Error::output(format!("cannot write {}", log.display())).with_source(e))
}
