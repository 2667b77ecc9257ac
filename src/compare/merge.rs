//! The shards of one campaign, joined as if it had been run in one piece.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::campaign::INCIDENTAL;
use crate::campaign::shard::Shard;
use crate::compare::origin::combination;
use crate::compare::run::Run;
use crate::error::{Error, Result};
use crate::record::TrialRecord;
use crate::report::environment::{Ending, Environment};
use crate::report::folder::Folder;
use crate::report::tally::is_bad;

/// The results of a campaign whose shards were joined.
#[derive(Clone, Debug)]
pub struct Joined {
    /// What all shards agree on.
    pub environment: Environment,
    /// All trials, in case order.
    pub trials: Vec<TrialRecord>,
}

/// Joins all shards of one campaign, given in any order. Shards that are
/// missing, doubled, unfinished or of different campaigns are refused.
pub fn join(shards: Vec<Run>) -> Result<Joined> {
    let first = shards
        .first()
        .ok_or_else(|| Error::usage("there are no shards to merge"))?;
    shards.iter().try_for_each(check_finished)?;
    shards[1..]
        .iter()
        .try_for_each(|other| check_same(first, other))?;
    check_whole(&shards)?;
    shards.iter().try_for_each(check_cases)?;
    let environment = environment(&shards, first);
    let mut trials: Vec<_> = shards.into_iter().flat_map(|run| run.trials).collect();
    trials.sort_by_key(|trial| (trial.case, trial.trial));
    Ok(Joined {
        environment,
        trials,
    })
}

impl Joined {
    /// Whether any trial speaks against the library.
    pub fn has_failures(&self) -> Result<bool> {
        let mut verdicts = self.trials.iter().map(TrialRecord::parsed_verdict);
        verdicts.try_fold(false, |any, verdict| Ok(any || is_bad(verdict?)))
    }

    /// Writes a results folder; says where it is, which is inside `path` if that
    /// holds a run already.
    pub fn write(&self, path: &Path) -> Result<PathBuf> {
        let mut folder = Folder::create(path, self.environment.clone())?;
        self.trials.iter().try_for_each(|t| folder.record(t))?;
        let path = folder.path().to_owned();
        folder.finish(Ending::Completed).map(|_| path)
    }
}

/// The environment of the whole: the shards' options, without their share; from
/// the start of the first to the end of this merge.
fn environment(shards: &[Run], first: &Run) -> Environment {
    let ours = &first.environment;
    let mut options = ours.options.clone();
    if let Some(options) = options.as_object_mut() {
        options.insert("shard".to_owned(), Shard::WHOLE.to_string().into());
    }
    let mut merged = Environment::starting(ours.combination.clone(), ours.seed, options);
    merged.system.clone_from(&ours.system);
    let started = shards.iter().map(|run| run.environment.started).min();
    merged.started = started.unwrap_or(merged.started);
    merged
}

fn check_finished(run: &Run) -> Result<()> {
    if run.is_complete() {
        return Ok(());
    }
    Err(Error::usage(format!(
        "shard '{}' was not finished; continue it with fuzz --resume first",
        run.name()
    )))
}

/// What must agree, by name.
fn essentials(run: &Run) -> Result<BTreeMap<String, Value>> {
    let mut all: BTreeMap<_, _> = combination(run)?.into_iter().collect();
    let options = run.environment.options.as_object();
    for (key, value) in options.into_iter().flatten() {
        all.insert(format!("option {key}"), value.clone());
    }
    all.insert("seed".to_owned(), run.environment.seed.into());
    all.retain(|key, _| key != "option shard" && !is_incidental(key));
    Ok(all)
}

fn is_incidental(key: &str) -> bool {
    INCIDENTAL
        .iter()
        .any(|name| key.strip_prefix("option ") == Some(name))
}

fn check_same(first: &Run, other: &Run) -> Result<()> {
    let (ours, theirs) = (essentials(first)?, essentials(other)?);
    let keys = ours.keys().chain(theirs.keys());
    let differs = keys.clone().find(|key| ours.get(*key) != theirs.get(*key));
    let Some(key) = differs else {
        return Ok(());
    };
    let text = |value: Option<&Value>| value.unwrap_or(&Value::Null).to_string();
    Err(Error::usage(format!(
        "'{}' and '{}' are not shards of one campaign: {key} is {} and {}",
        first.name(),
        other.name(),
        text(ours.get(key)),
        text(theirs.get(key)),
    )))
}

/// Every shard once.
fn check_whole(shards: &[Run]) -> Result<()> {
    let count = shards[0].shard()?.count();
    let mut by_index = BTreeMap::new();
    for run in shards {
        let shard = run.shard()?;
        if shard.count() != count {
            return Err(Error::usage(format!(
                "'{}' is shard {} and '{}' is shard {shard}: they were cut differently",
                shards[0].name(),
                shards[0].shard()?,
                run.name(),
            )));
        }
        if let Some(twin) = by_index.insert(shard.index(), run) {
            return Err(Error::usage(format!(
                "'{}' and '{}' are both shard {shard}; give each shard once",
                twin.name(),
                run.name()
            )));
        }
    }
    let absent = |index: &u32| !by_index.contains_key(index);
    let missing: Vec<_> = (0..count)
        .filter(absent)
        .map(|index| format!("{index}/{count}"))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(Error::usage(format!(
        "missing shards: {}",
        missing.join(", ")
    )))
}

/// No case in a shard it does not belong to: else it could be there twice.
fn check_cases(run: &Run) -> Result<()> {
    let shard = run.shard()?;
    match run.trials.iter().find(|trial| !shard.has(trial.case)) {
        None => Ok(()),
        Some(stray) => Err(Error::usage(format!(
            "'{}' says it is shard {shard} but holds case {}",
            run.name(),
            stray.case
        ))),
    }
}
