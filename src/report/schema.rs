//! The documentation of the files, checked against the types.

use std::collections::BTreeSet;

use crate::backend::Combination;
use crate::record::{SCHEMA, TrialRecord};
use crate::report::coverage;
use crate::report::csv_file::columns;
use crate::report::environment::Environment;
use crate::report::matrix::Row;
use crate::report::tally::Tally;

const DOCUMENT: &str = include_str!("../../results/README.md");

/// First cells of the table in the section headed `name`.
fn documented(name: &str) -> Vec<String> {
    let heading = format!("## {name}\n");
    let (_, section) = DOCUMENT.split_once(&heading).expect("a section per file");
    let section = section.split("\n## ").next().unwrap_or(section);
    let cell = |line: &str| Some(line.strip_prefix("| `")?.split_once('`')?.0.to_owned());
    section.lines().filter_map(cell).collect()
}

fn keys(value: &serde_json::Value) -> BTreeSet<String> {
    let object = value.as_object().expect("a struct is an object");
    object.keys().cloned().collect()
}

#[test]
fn document_csv_columns_are_the_types_columns_in_order() {
    assert_eq!(documented("trials.csv"), columns::<TrialRecord>().unwrap());
    assert_eq!(documented("matrix.csv"), columns::<Row>().unwrap());
    let coverage = columns::<coverage::Row>().unwrap();
    assert_eq!(documented("coverage.csv"), coverage);
}

#[test]
fn document_environment_keys_are_the_types_keys() {
    let environment = Environment::starting(Combination::default(), 0, serde_json::Value::Null);
    let environment = serde_json::to_value(environment).unwrap();
    let documented: BTreeSet<_> = documented("environment.json").into_iter().collect();
    assert_eq!(documented, keys(&environment));
    let tally = serde_json::to_value(Tally::default()).unwrap();
    for key in keys(&environment["combination"]).union(&keys(&tally)) {
        assert!(DOCUMENT.contains(&format!("`{key}`")), "{key}");
    }
}

#[test]
fn document_states_the_schema() {
    assert!(DOCUMENT.contains(&format!("`schema`, now {SCHEMA}.")));
}
