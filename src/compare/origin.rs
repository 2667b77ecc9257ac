//! What two runs were made on and with.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use crate::campaign::INCIDENTAL;
use crate::campaign::shard::Shard;
use crate::compare::difference::{Change, Configuration, Difference, Subject};
use crate::compare::run::Run;
use crate::error::{Error, Result};

/// Differences of combination, seed, options and completeness.
pub fn differences(a: &Run, b: &Run) -> Result<Vec<Difference>> {
    let (ours, theirs) = (combination(a)?, combination(b)?);
    let mut found = changed(Subject::Combination, &ours, &theirs);
    found.extend(changed(Subject::Run, &conditions(a), &conditions(b)));
    Ok(found)
}

/// The combination by key.
pub fn combination(run: &Run) -> Result<Map<String, Value>> {
    match serde_json::to_value(&run.environment.combination) {
        Ok(Value::Object(map)) => Ok(map),
        _ => Err(Error::internal("a combination is not a JSON object")),
    }
}

/// What decides which trials a run made, by key; `incidental` things left out.
fn conditions(run: &Run) -> Map<String, Value> {
    let environment = &run.environment;
    let mut all = environment.options.as_object().cloned().unwrap_or_default();
    all.retain(|key, _| !INCIDENTAL.contains(&&**key));
    // Files of versions without shards lack the option, and are whole.
    all.entry("shard")
        .or_insert(Shard::WHOLE.to_string().into());
    all.insert("seed".to_owned(), environment.seed.into());
    all.insert("system".to_owned(), environment.system.clone().into());
    let complete = if run.is_complete() { "yes" } else { "no" };
    all.insert("completed".to_owned(), complete.into());
    all
}

fn changed(subject: Subject, a: &Map<String, Value>, b: &Map<String, Value>) -> Vec<Difference> {
    let keys: BTreeSet<_> = a.keys().chain(b.keys()).collect();
    let differs = |key: &&String| a.get(*key) != b.get(*key);
    let difference = |key: &String| {
        let none = Configuration::default();
        Difference::new(subject, Change::Changed, key, none)
            .values(text(a.get(key)), text(b.get(key)))
    };
    keys.into_iter().filter(differs).map(difference).collect()
}

/// A value as the user wrote it; JSON for lists and the like.
fn text(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    }
}
