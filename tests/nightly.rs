//! Nights on the host backend, through the program.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

/// Columns of a CSV file by name: one map-like row per line.
struct Table(Vec<csv::StringRecord>, csv::StringRecord);

impl Table {
    fn read(path: &Path) -> Self {
        let mut reader = csv::Reader::from_path(path).expect("the file is there");
        let header = reader.headers().expect("it has a header").clone();
        let rows: csv::Result<Vec<_>> = reader.records().collect();
        Table(rows.expect("its rows are whole"), header)
    }

    fn column(&self, name: &str) -> Vec<&str> {
        let at = self.1.iter().position(|h| h == name).expect("a column");
        self.0.iter().map(|row| &row[at]).collect()
    }
}

/// A folder with a configuration, and the nights run from it.
struct Site(TempDir);

/// Small problems of one type, of which a few show the fault.
const SMALL: &str = "\
cases = 4
time = \"60s\"
minimize_share = 0
jobs = 2
[limits]
max_macs = 20000
scales = false
[shares]
type = { fp32 = 1 }
dims = { 2d = 1 }
layout = { nchw = 1 }
[backend]
kind = \"host\"
";

impl Site {
    fn new() -> Self {
        Site(TempDir::new().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    /// Runs `nightly` with a configuration text, small problems by default.
    fn run(&self, top: &str, backend: &str, arguments: &[&str]) -> Output {
        self.write("night.toml", &format!("{top}\n{SMALL}{backend}"));
        self.command(arguments)
    }

    fn command(&self, arguments: &[&str]) -> Output {
        Command::new(assert_cmd::cargo::cargo_bin!("convfuzz"))
            .current_dir(std::env::temp_dir())
            .env_remove("CONVFUZZ_LOG")
            .args(["nightly", "--config"])
            .arg(self.path("night.toml"))
            .args(arguments)
            .output()
            .expect("the program starts")
    }

    /// A night on that day of December, always with the same seed.
    fn night(&self, day: u8, fault: bool, top: &str) -> Output {
        let backend = if fault {
            "fault = \"slice_lost\"\n"
        } else {
            ""
        };
        let date = format!("2026-12-{day:02}");
        self.run(top, backend, &["--date", &date, "--seed", "5"])
    }

    fn history(&self) -> Table {
        Table::read(&self.path("nightly/history.csv"))
    }

    fn findings(&self) -> Table {
        Table::read(&self.path("nightly/findings.csv"))
    }

    fn states(&self) -> Vec<String> {
        let mut states: Vec<_> = self
            .findings()
            .column("state")
            .iter()
            .map(|s| (*s).to_owned())
            .collect();
        states.dedup();
        states
    }
}

fn code(output: &Output) -> i32 {
    output.status.code().unwrap_or(-1)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The night ended with `expected`, and said all of `words` on stdout.
#[track_caller]
fn expect(output: &Output, expected: i32, words: &[&str]) {
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(code(output), expected, "{out}\n{err}");
    for word in words {
        assert!(out.contains(word), "{word:?} not in {out}");
    }
}

/// It ended with `expected` and one line of error with all of `words`.
#[track_caller]
fn expect_error(output: &Output, expected: i32, words: &[&str]) {
    let err = text(&output.stderr);
    assert_eq!(code(output), expected, "{err}");
    let errors: Vec<_> = err.lines().filter(|l| l.starts_with("error: ")).collect();
    assert_eq!(errors.len(), 1, "{err}");
    for word in words {
        assert!(errors[0].contains(word), "{word:?} not in {err}");
    }
}

#[test]
fn nights_fault_comes_and_goes_findings_live_through_all_states() {
    let site = Site::new();
    expect(&site.night(1, false, ""), 0, &["Night 1", "clean"]);
    assert_eq!(site.states(), [""; 0]);

    let output = site.night(2, true, "");
    expect(&output, 1, &["new finding", "slice_lost", "0 regressed"]);
    assert_eq!(site.states(), ["new"]);
    let count = site.findings().0.len();
    // Each is certain: its line fails in every replay of the same night.
    assert!(
        site.findings()
            .column("rate")
            .iter()
            .all(|r| r.parse() == Ok(1.0))
    );

    expect(&site.night(3, true, ""), 5, &["known findings only"]);
    assert_eq!(site.states(), ["known"]);

    expect(&site.night(4, false, ""), 0, &["clean", "fixed"]);
    assert_eq!(site.states(), ["fixed"]);

    expect(&site.night(5, true, ""), 1, &["regressed", "0 new"]);
    assert_eq!(site.states(), ["regressed"]);

    let table = site.findings();
    assert_eq!(table.0.len(), count);
    assert!(
        table
            .column("first_date")
            .iter()
            .all(|d| *d == "2026-12-02")
    );
    assert!(table.column("last_date").iter().all(|d| *d == "2026-12-05"));
    assert!(table.column("nights").iter().all(|n| *n == "3"));
    let history = site.history();
    assert_eq!(history.column("night"), ["1", "2", "3", "4", "5"]);
    let outcomes = ["clean", "new_finding", "known_only", "clean", "new_finding"];
    assert_eq!(history.column("outcome"), outcomes);
    let all = count.to_string();
    assert_eq!(history.column("fixed"), ["0", "0", "0", &all, "0"]);
    assert_eq!(history.column("regressed"), ["0", "0", "0", "0", &all]);
    assert_eq!(history.column("replayed")[1], "0");
    assert_eq!(history.column("replayed")[3], all);
    // The same seed draws the same cases, and the results of each night are kept.
    assert!(
        site.path("nightly/nights/0005-2026-12-05/all/trials.csv")
            .exists()
    );
    assert!(
        site.path("nightly/nights/0004-2026-12-04/replay/trials.csv")
            .exists()
    );
}

#[test]
fn nights_clock_set_back_is_said_and_order_stays() {
    let site = Site::new();
    expect(&site.night(20, true, ""), 1, &["Night 1"]);
    let output = site.night(2, false, "");
    expect(&output, 0, &["Night 2, 2026-12-02", "fixed"]);
    let said = text(&output.stderr);
    assert!(said.contains("the clock says 2026-12-02"), "{said}");
    assert!(said.contains("same seed"), "{said}");
    assert_eq!(site.states(), ["fixed"]);
    assert_eq!(site.history().column("night"), ["1", "2"]);
}

#[test]
fn nights_finding_of_a_killed_night_is_still_news() {
    let site = Site::new();
    expect(&site.night(1, true, ""), 1, &["new finding"]);
    // Killed before it could tell anybody.
    fs::remove_file(site.path("nightly/history.csv")).unwrap();
    expect(&site.night(2, true, ""), 1, &["Night 2", "new finding"]);
    expect(&site.night(3, true, ""), 5, &["Night 3"]);
    // The same with a folder in use: the other night goes on undisturbed.
    let lock = fs::File::create(site.path("nightly/.convfuzz.lock")).unwrap();
    lock.lock().unwrap();
    expect_error(&site.night(4, true, ""), 3, &["in use", "--out"]);
    assert_eq!(site.history().column("night"), ["2", "3"]);
}

#[test]
fn nights_known_issue_marks_and_stale_ones_are_reported() {
    let site = Site::new();
    let top = "known_issues = \"known.toml\"";
    site.write(
        "known.toml",
        "[[issue]]\nreference = \"bug 1\"\ncandidate = \"host:gemm!*\"\n\
         [[issue]]\nreference = \"bug 2\"\ncandidate = \"engine:7\"\n\
         [[issue]]\nreference = \"bug 3\"\ncandidate = \"host:gemm!*\"\nsm = [\"7.0\"]\n",
    );
    let output = site.night(1, true, top);
    let nothing = "known issue 'bug 2': it matches no finding";
    expect(
        &output,
        5,
        &["known issue: bug 1", nothing, "known findings only"],
    );
    assert!(!text(&output.stdout).contains("bug 3"));
    assert_eq!(site.states(), ["known"]);
    let findings = site.findings();
    assert!(!findings.0.is_empty());
    assert!(findings.column("issue").iter().all(|i| *i == "bug 1"));
    // Marked, but run and judged as ever.
    assert_ne!(site.history().column("failed"), ["0"]);

    let output = site.night(2, false, top);
    expect(
        &output,
        0,
        &["known issue 'bug 1': what it matches passes now"],
    );
    assert_eq!(site.history().column("stale_issues"), ["1", "2"]);
}

#[test]
fn night_corpus_comes_first_and_a_finding_gets_its_bundle() {
    let site = Site::new();
    site.write(
        "corpus.txt",
        "# See: the report\nfwd c=64 k=8 in=9x9 ker=3x3 pad=1x1 fill=ints:3 via=host:gemm\n\
         fwd c=4 k=3 in=6x5 ker=3x3 fill=ints:1\n",
    );
    let top = "corpus = \"corpus.txt\"";
    site.write(
        "night.toml",
        &format!(
            "{top}\n{}fault = \"slice_lost\"\n",
            SMALL.replace("share = 0", "share = 0.9")
        ),
    );
    let arguments = ["--date", "2026-12-01", "--seed", "5"];
    let output = site.command(&arguments);
    expect(&output, 1, &["2 lines of the corpus", "fails when"]);
    let replay = Table::read(&site.path("nightly/nights/0001-2026-12-01/replay/trials.csv"));
    // The first line names its candidate, the second is run by all.
    assert_eq!(
        replay.column("case").iter().filter(|c| **c == "-1").count(),
        1
    );
    assert!(replay.column("case").iter().filter(|c| **c == "-2").count() > 5);
    assert_eq!(replay.column("verdict")[0], "failed");
    let findings = site.findings();
    assert!(
        findings
            .column("minimal")
            .iter()
            .all(|line| line.contains("!slice_lost"))
    );
    let id = findings.column("id")[0].to_owned();
    assert!(
        site.path(&format!("nightly/findings/{id}/bundle/case.toml"))
            .exists()
    );
    assert_eq!(site.history().column("corpus"), ["2"]);
}

#[test]
fn night_faults_of_input_and_machine_are_one_clear_line() {
    let site = Site::new();
    for (top, backend, words) in [
        (
            "replay = 3",
            "",
            vec!["night.toml", "line 1", "replay", "--print-config"],
        ),
        (
            "replays = \"three\"",
            "",
            vec!["night.toml", "line 1", "three"],
        ),
        (
            "corpus = \"none.txt\"",
            "",
            vec!["none.txt", "make it or correct the path"],
        ),
        ("", "fault = \"no_such\"\n", vec!["no_such", "slice_lost"]),
    ] {
        expect_error(&site.run(top, backend, &[]), 2, &words);
    }
    // The last one got as far as the store, and the history tells.
    assert_eq!(site.history().column("outcome"), ["could_not_run"]);

    let library = SMALL.replace("\"host\"", "\"cudnn\"\nlibrary = \"/none/libcudnn.so.9\"");
    site.write("night.toml", &library);
    // Without a driver that is what is missing first.
    let output = site.command(&[]);
    let missing = String::from_utf8_lossy(&output.stderr).into_owned();
    let named = ["/none/libcudnn.so.9", "libcuda.so.1"];
    let named = named.into_iter().find(|word| missing.contains(word));
    expect_error(&output, 3, &[named.expect("what is missing is named")]);
    assert_eq!(site.history().column("outcome").len(), 2);

    site.write("night.toml", SMALL);
    expect_error(
        &site.command(&["--out", "/proc/a"]),
        3,
        &["/proc/a", "--out"],
    );
    site.write("taken", "");
    let taken = site.path("taken");
    expect_error(
        &site.command(&["--out", taken.to_str().unwrap()]),
        3,
        &["is a file"],
    );
    site.write("nightly/history.csv", "schema,night\n1\n");
    expect_error(&site.command(&[]), 2, &["history.csv", "damaged"]);
}

#[test]
fn print_config_is_a_configuration_that_reads_back() {
    let site = Site::new();
    let output = Command::new(assert_cmd::cargo::cargo_bin!("convfuzz"))
        .args(["nightly", "--print-config"])
        .output()
        .unwrap();
    assert_eq!(code(&output), 0);
    let printed = text(&output.stdout);
    site.write("night.toml", &format!("surprise = 1\n{printed}"));
    expect_error(&site.command(&[]), 2, &["line 1", "surprise"]);
    let changed = printed
        .replace("time = \"8h\"", "time = \"20s\"\ncases = 1")
        .replace("minimize_share = 0.15", "minimize_share = 0")
        .replace("kind = \"auto\"", "kind = \"host\"");
    site.write("night.toml", &changed);
    expect(
        &site.command(&["--date", "2026-12-01"]),
        0,
        &["seed 20261201"],
    );
}
