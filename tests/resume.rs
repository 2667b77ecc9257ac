//! Campaigns in pieces: shards, and runs that were killed and resumed. Everything
//! here runs the program on the host backend.

use std::path::Path;
use std::process::{Command, Output};

use convfuzz::record::TrialRecord;
use convfuzz::report::{folder, read};
use tempfile::TempDir;

fn convfuzz(arguments: &[&str]) -> Command {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("convfuzz"));
    // Not in the repository, whose regressions a run would replay.
    command.current_dir(std::env::temp_dir());
    command.args(arguments).env_remove("CONVFUZZ_LOG");
    command
}

fn code(output: &Output) -> i32 {
    output.status.code().unwrap_or(-1)
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// `fuzz` on the host backend with small problems, into `out`.
fn fuzz<'a>(out: &'a Path, more: &[&'a str]) -> Vec<&'a str> {
    let out = out.to_str().expect("temporary paths are UTF-8");
    let words = "fuzz --quiet --backend host --max-macs 20000 --jobs 2 --out";
    let fixed = words.split(' ').chain([out]);
    fixed.chain(more.iter().copied()).collect()
}

/// The trials of a folder without the columns of time.
fn untimed(folder: &Path) -> Vec<TrialRecord> {
    let mut trials = read::trials(&folder.join(folder::TRIALS)).expect("trials.csv reads back");
    for trial in &mut trials {
        (trial.library_ms, trial.own_ms) = (None, None);
    }
    trials
}

/// NaN is not equal to itself; its text is.
fn words(trials: &[TrialRecord]) -> Vec<String> {
    trials.iter().map(|t| format!("{t:?}")).collect()
}

#[test]
fn shard_runs_together_are_the_whole() {
    let parent = TempDir::new().unwrap();
    let run = |name: &str, more: &[&str]| {
        let out = parent.path().join(name);
        let options = [&["--cases", "7", "--seed", "5"], more].concat();
        let output = convfuzz(&fuzz(&out, &options)).output().unwrap();
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        out
    };
    let whole = untimed(&run("whole", &[]));
    let mut joined = Vec::new();
    for shard in ["0/3", "1/3", "2/3"] {
        let out = run(&shard.replace('/', "-"), &["--shard", shard]);
        let environment = read::environment(&out.join(folder::ENVIRONMENT)).unwrap();
        assert_eq!(environment.options["shard"], shard);
        let trials = untimed(&out);
        let index: i64 = shard[..1].parse().unwrap();
        assert!(trials.iter().all(|t| t.case % 3 == index), "{shard}");
        joined.extend(trials);
    }
    joined.sort_by_key(|t| (t.case, t.trial));
    assert_eq!(words(&joined), words(&whole));
}

#[test]
fn shard_that_does_not_exist_is_exit_2() {
    for shard in ["3/3", "1/0", "x"] {
        let output = convfuzz(&["fuzz", "--shard", shard]).output().unwrap();
        assert_eq!(code(&output), 2, "{}", stderr(&output));
        assert!(stderr(&output).contains("--shard"), "{}", stderr(&output));
    }
}
