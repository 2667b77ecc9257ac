//! The reproducibility study through the program, on the host backend.

use std::path::Path;

use assert_cmd::Command;
use predicates::prelude::*;
use predicates::str::contains;

fn convfuzz(arguments: &str) -> Command {
    let mut command = Command::cargo_bin("convfuzz").unwrap();
    command.args(arguments.split_whitespace());
    command
}

/// Rows of a table, as the values of some columns.
fn rows(folder: &Path, file: &str, columns: &[&str]) -> Vec<Vec<String>> {
    let mut reader = csv::Reader::from_path(folder.join(file)).unwrap();
    let header = reader.headers().unwrap().clone();
    let place = |name: &&str| header.iter().position(|h| h == *name).expect("a column");
    let places: Vec<usize> = columns.iter().map(place).collect();
    let records = reader.records().map(Result::unwrap);
    records
        .map(|r| places.iter().map(|&p| r[p].to_owned()).collect())
        .collect()
}

/// Every column of a file is named in its row of results/README.md.
fn columns_are_documented(folder: &Path, file: &str) {
    let text = include_str!("../results/README.md");
    let section = text.split("## study reproducibility").nth(1).unwrap();
    let section = section.split("\n## ").next().unwrap();
    let mut lines = section.lines();
    let row = lines.find(|l| l.starts_with(&format!("| `{file}`")));
    let row = row.unwrap_or_else(|| panic!("{file} is not documented"));
    let mut reader = csv::Reader::from_path(folder.join(file)).unwrap();
    for column in reader.headers().unwrap().iter().skip(1) {
        assert!(row.contains(&format!("`{column}`")), "{file}: {column}");
    }
}

#[test]
fn the_study_finds_the_planted_algorithm_and_shows_what_helps() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = convfuzz("study reproducibility --backend host --seed 0 --runs 2 --out");
    command.arg(folder.path()).assert().success().stdout(
        contains("dw of linear bwd_filter")
            .and(contains("That is expected"))
            .and(contains("2 of 2 in fp32, 2 of 2 in mixed")),
    );
    let columns = [
        "precision",
        "choice",
        "processes",
        "identical",
        "operation",
        "cause",
    ];
    let runs = rows(folder.path(), "runs.csv", &columns);
    for precision in ["fp32", "mixed"] {
        for processes in ["1", "2"] {
            let part = [
                precision,
                "unrestricted",
                processes,
                "false",
                "linear bwd_filter",
            ];
            let part = [&part[..], &["nondeterministic"]].concat();
            assert!(runs.iter().any(|r| *r == part), "{part:?} {runs:?}");
            let fixed = [precision, "deterministic", processes, "true", "", ""];
            assert!(runs.iter().any(|r| *r == fixed), "{fixed:?} {runs:?}");
        }
        let other = |r: &&Vec<String>| r[0] == precision && r[5] == "other_algorithm";
        assert_eq!(runs.iter().filter(other).count(), 1, "{runs:?}");
    }
    for file in ["runs", "steps", "tensors", "rates", "plans", "corrected"] {
        columns_are_documented(folder.path(), &format!("{file}.csv"));
    }
    let page = std::fs::read_to_string(folder.path().join("page.md")).unwrap();
    assert!(page.contains("| fp32 | 2 | 100 | 2 |"), "{page}");
    let svg = std::fs::read_to_string(folder.path().join("growth.svg")).unwrap();
    assert!(svg.contains("<polyline"), "{svg}");
}

#[test]
fn a_fault_behind_a_promise_of_the_same_bits_is_not_expected() {
    let folder = tempfile::tempdir().unwrap();
    let fault = "study reproducibility --fault order_nondeterministic --runs 2 --out";
    let mut command = convfuzz(fault);
    command
        .arg(folder.path())
        .assert()
        .code(1)
        .stdout(contains("NOT expected").and(contains("host:gemm!order_nondeterministic")));
    let page = std::fs::read_to_string(folder.path().join("page.md")).unwrap();
    assert!(page.contains("**Not expected.**"), "{page}");
    assert!(page.contains("--fault order_nondeterministic"), "{page}");
    let corrected = rows(folder.path(), "corrected.csv", &["runs", "identical"]);
    assert!(corrected.iter().any(|r| r[0] != r[1]), "{corrected:?}");
}

#[test]
fn without_cudnn_it_says_what_is_missing_and_offers_the_host() {
    let mut command = convfuzz("study reproducibility --cudnn-lib /nowhere --out /tmp/none");
    let offer = contains("convfuzz study reproducibility --backend host");
    command.assert().code(3).stderr(offer);
}

#[test]
fn a_training_process_that_is_given_no_job_says_whom_it_serves() {
    let mut command = convfuzz("study training");
    let served = contains("this command serves 'convfuzz study'");
    command.write_stdin("{}").assert().code(2).stderr(served);
}
