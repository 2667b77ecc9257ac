//! Single lines run again, each in a worker that may die.

use crate::backend::host::{carrier, faults::CARRIER};
use crate::backend::open::{self, BackendSpec};
use crate::backend::{Backend, Combination};
use crate::campaign::solo::{Solo, Terms};
use crate::candidate::{Candidate, Repro};
use crate::error::{Error, ErrorKind, Result};
use crate::finding::failure_class;
use crate::record::TrialRecord;

/// Runs lines.
pub struct Replayer {
    terms: Terms,
    solo: Option<Solo>,
    combination: Combination,
    lister: Option<Box<dyn Backend>>,
}

/// How runs of one line ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Runs {
    /// Failed in the way that was asked for.
    pub failed: u64,
    /// Passed.
    pub passed: u64,
}

impl Replayer {
    /// Starts a worker, which says what it runs on.
    pub fn start(terms: Terms) -> Result<Self> {
        let solo = Solo::start(terms.clone())?;
        Ok(Replayer {
            combination: solo.combination().clone(),
            solo: Some(solo),
            lister: None,
            terms,
        })
    }

    /// What lines run on.
    pub fn combination(&self) -> &Combination {
        &self.combination
    }

    /// Runs a line that names its candidate. What this backend does not have, as
    /// an engine of another version, is `None`.
    pub fn trial(&mut self, repro: &Repro) -> Result<Option<TrialRecord>> {
        let repro = as_built(repro, &self.terms.backend);
        let solo = match &mut self.solo {
            Some(solo) => solo,
            none => none.insert(Solo::start(self.terms.clone())?),
        };
        match solo.trial(&repro, None) {
            Ok(record) => Ok(Some(record)),
            Err(error) => {
                // A worker ends after an error; the next line needs another.
                self.solo = None;
                unusable(error).map(|()| None)
            }
        }
    }

    /// Runs a line `times`, telling every record, and counts how it went. A line
    /// that ends or hangs its worker is not run again.
    pub fn runs(
        &mut self,
        repro: &Repro,
        class: &str,
        times: u32,
        on: &mut dyn FnMut(&TrialRecord) -> Result<()>,
    ) -> Result<Runs> {
        let mut runs = Runs::default();
        for _ in 0..times {
            let Some(record) = self.trial(repro)? else {
                break;
            };
            on(&record)?;
            let failed = failure_class(&record);
            runs.failed += u64::from(failed.as_deref() == Some(class));
            runs.passed += u64::from(record.verdict == "passed");
            let deadly = matches!(record.verdict.as_str(), "crashed" | "timed_out");
            if deadly || record.verdict == "skipped" {
                break;
            }
        }
        Ok(runs)
    }

    /// The lines of every candidate of a line that names none.
    pub fn expand(&mut self, repro: &Repro) -> Result<Vec<Repro>> {
        if repro.via.is_some() {
            return Ok(vec![repro.clone()]);
        }
        let lister = match &mut self.lister {
            Some(lister) => lister,
            none => none.insert(open::open(&self.terms.backend)?),
        };
        let listings = lister.candidates(&repro.problem)?;
        let with = |candidate| Repro {
            via: Some(candidate),
            ..repro.clone()
        };
        Ok(listings.into_iter().map(|l| with(l.candidate)).collect())
    }
}

/// Nothing where the line is of no use here; the error where it is graver.
fn unusable(error: Error) -> Result<()> {
    match error.kind() {
        ErrorKind::Usage | ErrorKind::Parse | ErrorKind::Problem => Ok(()),
        _ => Err(error),
    }
}

/// The line as this build of the backend runs it. A planted fault is a property
/// of the host backend, as a bug is one of a library, though a line names it: a
/// replay is of what is planted now.
fn as_built(repro: &Repro, spec: &BackendSpec) -> Repro {
    let mut repro = repro.clone();
    if let Some(Candidate::Host { algorithm, .. }) = &repro.via
        && algorithm == CARRIER
    {
        repro.via = Some(carrier(spec.fault.as_deref()));
    }
    repro
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_built_the_carrier_bears_what_is_planted_now() {
        let line = |via: &str| -> Repro {
            format!("fwd c=4 k=3 in=6x5 ker=3x3 via={via}")
                .parse()
                .unwrap()
        };
        let spec = |fault: Option<&str>| BackendSpec {
            fault: fault.map(str::to_owned),
            ..BackendSpec::default()
        };
        let old = line("host:gemm!slice_lost");
        assert_eq!(as_built(&old, &spec(None)), line("host:gemm"));
        let planted = as_built(&old, &spec(Some("tap_dropped")));
        assert_eq!(planted, line("host:gemm!tap_dropped"));
        for other in ["host:direct", "engine:4"] {
            assert_eq!(
                as_built(&line(other), &spec(Some("tap_dropped"))),
                line(other)
            );
        }
    }

    #[test]
    fn unusable_lines_are_left_out_and_a_broken_machine_is_not() {
        assert!(unusable(Error::usage("no such candidate")).is_ok());
        assert!(unusable(Error::environment("no GPU")).is_err());
        assert!(unusable(Error::internal("a bug")).is_err());
    }
}
