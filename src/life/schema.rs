//! The documentation of the store's files, checked against the types.

use super::history::Row as Night;
use super::state::Sighting;
use super::store::Row;
use super::{SCHEMA, store};
use crate::report::csv_file::columns;

const DOCUMENT: &str = include_str!("../../results/README.md");

/// First cells of the table in the section headed `name`.
fn documented(name: &str) -> Vec<String> {
    let heading = format!("## {name}\n");
    let (_, section) = DOCUMENT.split_once(&heading).expect("a section per file");
    let section = section.split("\n## ").next().unwrap_or(section);
    let cell = |line: &str| Some(line.strip_prefix("| `")?.split_once('`')?.0.to_owned());
    section.lines().filter_map(cell).collect()
}

#[test]
fn document_columns_of_the_store_are_the_types_columns_in_order() {
    assert_eq!(documented("findings.csv"), columns::<Row>().unwrap());
    assert_eq!(documented("nights.csv"), columns::<Sighting>().unwrap());
    assert_eq!(documented("history.csv"), columns::<Night>().unwrap());
    assert!(DOCUMENT.contains(&format!("`schema`, now {SCHEMA} in a store")));
    for file in [store::FINDINGS, store::FACTS, store::NIGHTS] {
        assert!(DOCUMENT.contains(file), "{file}");
    }
}
