//! Batch normalisation through the program: the command and the study, on the
//! host backend.

use std::path::Path;

use assert_cmd::Command;
use predicates::prelude::*;
use predicates::str::contains;

fn convfuzz(arguments: &str) -> Command {
    let mut command = Command::cargo_bin("convfuzz").unwrap();
    command.args(arguments.split_whitespace());
    command
}

fn records(folder: &Path) -> Vec<csv::StringRecord> {
    let mut reader = csv::Reader::from_path(folder.join("batch_norm.csv")).unwrap();
    reader.records().map(Result::unwrap).collect()
}

/// The columns of a file are those of its section in results/README.md, in order.
fn columns_are_documented(file: &Path, heading: &str) {
    let text = include_str!("../results/README.md");
    let section = text.split(heading).nth(1).unwrap();
    let section = section.split("\n## ").next().unwrap();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `"));
    let documented: Vec<&str> = rows.filter_map(|row| row.split('`').next()).collect();
    let mut reader = csv::Reader::from_path(file).unwrap();
    let header = reader.headers().unwrap();
    assert!(
        header.iter().eq(documented.iter().copied()),
        "{header:?} {documented:?}"
    );
}

#[test]
fn drawn_cases_of_honest_algorithms_are_clean_and_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let options = "batch-norm --backend host --cases 6 --seed 2 --out";
    convfuzz(options).arg(&out).assert().success();
    assert_eq!(records(&out).len(), 6 * 12);
    columns_are_documented(&out.join("batch_norm.csv"), "## batch_norm.csv");
    convfuzz(options)
        .arg(&out)
        .assert()
        .code(2)
        .stderr(contains("is there already"));
}

#[test]
fn the_same_seed_gives_the_same_records() {
    let folder = tempfile::tempdir().unwrap();
    let run = |name: &str| {
        let out = folder.path().join(name);
        convfuzz("batch-norm --backend host --cases 3 --seed 5 --out")
            .arg(&out)
            .assert()
            .success();
        records(&out)
    };
    assert_eq!(run("a"), run("b"));
}

#[test]
fn a_planted_fault_is_told_with_its_line() {
    let line = "bn_train c=3 in=5x5 type=fp16 fill=spike:1 via=host:two_pass/seq";
    let mut command = convfuzz("batch-norm --fault bn_last_dropped");
    command
        .arg(line)
        .assert()
        .code(1)
        .stdout(contains(line).and(contains("elements wrong; at [")));
    convfuzz("batch-norm --backend host")
        .arg(line)
        .assert()
        .success();
}

#[test]
fn bad_input_is_one_error_that_names_it() {
    for (line, code, said) in [
        ("bn_tain c=1 in=1x1", 2, "unknown pass 'bn_tain'"),
        (
            "bn_train c=1 in=1x1 via=cudnn:plain",
            2,
            "the host backend has no candidate",
        ),
        ("bn_train c=0 in=1x1", 2, "c: must be at least 1"),
    ] {
        let mut command = convfuzz("batch-norm --backend host");
        command.arg(line).assert().code(code).stderr(contains(said));
    }
    convfuzz("batch-norm --cudnn-lib /nowhere --cases 1")
        .assert()
        .code(3);
}

#[test]
fn the_study_writes_its_page_tables_and_charts() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = convfuzz("study batch-norm --backend host --seed 3 --out");
    command
        .arg(folder.path())
        .assert()
        .success()
        .stdout(contains("None of"));
    let page = std::fs::read_to_string(folder.path().join("page.md")).unwrap();
    assert!(page.contains("| **casting up recovers nothing**"), "{page}");
    for file in [
        "claims",
        "types",
        "statistics",
        "upcast",
        "overflow",
        "norms",
    ] {
        let mut reader = csv::Reader::from_path(folder.path().join(format!("{file}.csv"))).unwrap();
        assert!(reader.records().count() > 3, "{file}");
    }
    for file in ["variance.svg", "overflow.svg"] {
        let svg = std::fs::read_to_string(folder.path().join(file)).unwrap();
        assert!(svg.contains("<circle"), "{file}");
    }
}

#[test]
fn the_study_without_cudnn_says_what_is_missing_and_offers_the_host() {
    let mut command = convfuzz("study batch-norm --cudnn-lib /nowhere --out /tmp/none");
    let offer = contains("convfuzz study batch-norm --backend host");
    command.assert().code(3).stderr(offer);
}
