//! The program from outside: exit codes, files, and what is said about bad
//! input. Everything here runs on the host backend.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use convfuzz::record::TrialRecord;
use convfuzz::report::environment::Ending;
use convfuzz::report::{folder, read};
use tempfile::TempDir;

const PROBLEM: &str = "fwd c=4 k=3 in=6x5 ker=3x3 pad=1x1 stride=2x1";

fn convfuzz(arguments: &[&str]) -> Command {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("convfuzz"));
    // Not in the repository, whose regressions a run would replay.
    command.current_dir(std::env::temp_dir());
    command.args(arguments).env_remove("CONVFUZZ_LOG");
    command
}

fn run(arguments: &[&str]) -> Output {
    convfuzz(arguments).output().expect("the program starts")
}

fn code(output: &Output) -> i32 {
    output.status.code().unwrap_or(-1)
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// `fuzz` on the host backend with small problems, into `out`.
fn fuzz<'a>(out: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let fixed = [
        "fuzz",
        "--backend",
        "host",
        "--max-macs",
        "20000",
        "--jobs",
        "2",
        "--minimize",
        "0",
        "--out",
        out,
    ];
    fixed.into_iter().chain(more.iter().copied()).collect()
}

fn text(path: &Path) -> &str {
    path.to_str().expect("temporary paths are UTF-8")
}

fn trials(folder: &Path) -> Vec<TrialRecord> {
    read::trials(&folder.join(folder::TRIALS)).expect("trials.csv reads back")
}

/// Runs, and expects one clear line with all of `words` and exit code `expected`.
fn expect_error(arguments: &[&str], expected: i32, words: &[&str]) {
    let output = run(arguments);
    let said = stderr(&output);
    assert_eq!(code(&output), expected, "{arguments:?}: {said}");
    let errors: Vec<_> = said.lines().filter(|l| l.starts_with("error: ")).collect();
    assert_eq!(errors.len(), 1, "{arguments:?}: {said}");
    for word in words {
        assert!(errors[0].contains(word), "{word:?} not in {said}");
    }
}

#[test]
fn fuzz_clean_run_exits_0_with_files_that_add_up() {
    let parent = TempDir::new().unwrap();
    let out = parent.path().join("deep/er");
    let output = run(&fuzz(text(&out), &["--cases", "6", "--seed", "11"]));
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(stdout(&output).contains("Seed 11"), "{}", stdout(&output));

    let trials = trials(&out);
    let cases: BTreeSet<_> = trials.iter().map(|t| t.case).collect();
    assert_eq!(cases.len(), 6);
    let environment = read::environment(&out.join(folder::ENVIRONMENT)).unwrap();
    assert_eq!(
        (environment.seed, environment.ending),
        (11, Some(Ending::Completed))
    );
    let tally = environment.tally.unwrap();
    let ends = tally.passed + tally.failed + tally.skipped + tally.untrusted + tally.crashed;
    assert_eq!(tally.trials, ends + tally.timed_out);
    assert_eq!(tally.trials, trials.len() as u64);
    assert!(tally.passed > 0 && tally.failed == 0, "{tally:?}");

    let matrix = read::matrix(&out.join(folder::MATRIX)).unwrap();
    assert_eq!(matrix.iter().map(|r| r.trials).sum::<u64>(), tally.trials);
    assert_eq!(matrix.iter().map(|r| r.passed).sum::<u64>(), tally.passed);
    assert_eq!(read::trials(&out.join(folder::FAILURES)).unwrap(), []);
    assert_eq!(fs::read_dir(&out).unwrap().count(), folder::FILES.len());
}

#[test]
fn fuzz_planted_fault_exits_1_and_failures_name_it() {
    let out = TempDir::new().unwrap();
    let fault = ["--cases", "12", "--seed", "5", "--fault", "slice_lost"];
    let output = run(&fuzz(text(out.path()), &fault));
    assert_eq!(code(&output), 1, "{}", stderr(&output));
    let failures = read::trials(&out.path().join(folder::FAILURES)).unwrap();
    assert!(!failures.is_empty());
    for failure in &failures {
        assert!(failure.candidate.ends_with("!slice_lost"), "{failure:?}");
        assert!(failure.repro.ends_with(&failure.candidate), "{failure:?}");
        assert_eq!(failure.verdict, "failed");
    }
    let failed = trials(out.path())
        .into_iter()
        .filter(|t| t.verdict == "failed");
    assert_eq!(failed.count(), failures.len());
    assert!(
        stdout(&output).contains("!slice_lost"),
        "{}",
        stdout(&output)
    );

    // The repro line alone shows the failure again.
    let again = run(&[
        "run",
        "--backend",
        "host",
        "--fault",
        "slice_lost",
        &failures[0].repro,
    ]);
    assert_eq!(code(&again), 1, "{}", stderr(&again));
}

#[test]
fn fuzz_same_seed_gives_the_same_trials() {
    let parent = TempDir::new().unwrap();
    let untimed = |name: &str| -> Vec<TrialRecord> {
        let out = parent.path().join(name);
        let output = run(&fuzz(text(&out), &["--cases", "5", "--seed", "3"]));
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        let mut trials = trials(&out);
        for trial in &mut trials {
            (trial.library_ms, trial.own_ms) = (None, None);
        }
        trials
    };
    let first = untimed("a");
    assert!(first.len() > 10);
    let (first, second) = (format!("{first:#?}"), format!("{:#?}", untimed("b")));
    assert!(first == second, "the runs differ");
}

#[test]
fn fuzz_second_run_goes_beside_the_first() {
    let out = TempDir::new().unwrap();
    for _ in 0..2 {
        let output = run(&fuzz(text(out.path()), &["--cases", "1"]));
        assert_eq!(code(&output), 0, "{}", stderr(&output));
    }
    assert!(!trials(out.path()).is_empty());
    assert!(!trials(&out.path().join("run-2")).is_empty());
}

#[test]
fn bad_input_malformed_repro_lines_name_the_column() {
    for (line, words) in [
        ("fwd c=4 k=4 in=8xA ker=1x1", ["'A'", "(at column 18)"]),
        ("sideways c=4", ["sideways", "(at column 1)"]),
        ("fwd c=4 k=4 in=8 ker=1 q=1", ["'q'", "(at column 24)"]),
        (
            "fwd c=4 k=4 in=8 ker=1 fill=odd:1",
            ["'odd'", "(at column 29)"],
        ),
        (
            "fwd c=4 k=4 in=8 ker=1 via=magic:1",
            ["'magic'", "(at column 28)"],
        ),
    ] {
        expect_error(&["run", line], 2, &words);
        expect_error(&["list", line], 2, &words);
    }
}

#[test]
fn bad_input_impossible_problems_name_the_field() {
    for (line, field) in [
        ("fwd c=3 k=4 in=8 ker=1 g=2", "c: "),
        ("fwd c=4 k=4 in=2 ker=5", "ker: "),
        ("fwd c=4 k=4 in=8x8 ker=3", "ker: "),
    ] {
        expect_error(&["run", line], 2, &[field]);
    }
}

#[test]
fn bad_input_unknown_values_name_the_option() {
    for (arguments, words) in [
        (["fuzz", "--dtype", "fp12"], ["fp12", "--dtype"]),
        (["fuzz", "--dims", "4"], ["4", "--dims"]),
        (["fuzz", "--direction", "up"], ["up", "--direction"]),
        (["fuzz", "--backend", "tpu"], ["tpu", "--backend"]),
        (["fuzz", "--time", "soon"], ["soon", "--time"]),
        (["fuzz", "--cases", "0"], ["0", "--cases"]),
        (["fuzz", "--seed", "-1"], ["-1", ""]),
        (
            ["fuzz", "--fault", "no_such_fault"],
            ["no_such_fault", "tap_dropped"],
        ),
        (["fuzz", "--colour", "always"], ["--colour", ""]),
        (["run", "--against", "fp12"], ["fp12", "--against"]),
    ] {
        expect_error(&arguments, 2, &words);
    }
    expect_error(
        &["fuzz", "--backend", "cudnn", "--fault", "tap_dropped"],
        2,
        &["--fault", "host"],
    );
}

#[test]
fn no_arguments_show_the_help_and_exit_2() {
    let output = run(&[]);
    assert_eq!(code(&output), 2);
    assert!(
        stderr(&output).contains("Exit codes:"),
        "{}",
        stderr(&output)
    );
    let help = run(&["--help"]);
    assert_eq!(code(&help), 0);
    assert!(stdout(&help).contains("130  interrupted"));
}

#[test]
fn environment_no_cudnn_is_exit_3_and_says_what_to_do() {
    let out = TempDir::new().unwrap();
    let doctor = run(&["doctor"]);
    if code(&doctor) == 0 {
        eprintln!("skipped: this machine has a usable cuDNN and GPU");
        return;
    }
    assert_eq!(code(&doctor), 3);
    assert!(
        stdout(&doctor).contains("Places tried:"),
        "{}",
        stdout(&doctor)
    );
    let place = out.path().join("never");
    let arguments = [
        "fuzz",
        "--backend",
        "cudnn",
        "--cases",
        "1",
        "--out",
        text(&place),
    ];
    expect_error(&arguments, 3, &[]);
    assert!(!place.exists(), "a run that cannot start leaves no folder");
    expect_error(&["list", "--backend", "cudnn", PROBLEM], 3, &[]);
}

#[test]
fn environment_named_library_that_is_missing_is_exit_3() {
    // Named explicitly, it must not quietly become the host backend.
    for command in ["run", "list"] {
        expect_error(
            &[command, "--cudnn-lib", "/no/such/lib.so", PROBLEM],
            3,
            &[],
        );
    }
    let doctor = run(&["doctor", "--cudnn-lib", "/no/such/lib.so"]);
    assert_eq!(code(&doctor), 3);
    assert!(
        stdout(&doctor).contains("/no/such/lib.so"),
        "{}",
        stdout(&doctor)
    );
}

const H200: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/src/backend/cudnn/graph/properties/h200.json"
);

#[test]
fn list_device_props_that_cannot_be_used_are_exit_2() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let bad = text(file.path());
    for (content, words) in [
        ("not JSON", "are not JSON"),
        ("{\"warpSize\":32}", "lack 'deviceVer'"),
    ] {
        fs::write(file.path(), content).unwrap();
        expect_error(&["list", "--device-props", bad, PROBLEM], 2, &[bad, words]);
    }
    let missing = "/no/such/props.json";
    expect_error(
        &["list", "--device-props", missing, PROBLEM],
        2,
        &[missing, "cannot read"],
    );
    for contradiction in [
        ["--backend", "host"],
        ["--api", "legacy"],
        ["--fault", "tap_dropped"],
        ["--device", "0"],
    ] {
        let mut arguments = vec!["list", "--device-props", H200, PROBLEM];
        arguments.extend(contradiction);
        assert_eq!(code(&run(&arguments)), 2, "{contradiction:?}");
    }
}

#[test]
fn list_device_props_without_the_library_is_exit_3() {
    let gone = "/no/such/libcudnn.so.9";
    let arguments = ["list", "--device-props", H200, "--cudnn-lib", gone, PROBLEM];
    expect_error(&arguments, 3, &["--device-props", gone]);
}

/// Where cuDNN 9.8 or later is found.
#[test]
fn list_device_props_lists_engines_and_knobs_without_a_gpu() {
    let library = std::env::var("CONVFUZZ_CUDNN_LIB");
    let mut arguments = vec!["list", "--json", "--device-props", H200];
    if let Ok(library) = &library {
        arguments.extend(["--cudnn-lib", library]);
    }
    arguments.push("fwd c=8 k=8 in=9x9 ker=3x3 type=fp16");
    let output = run(&arguments);
    if code(&output) == 3 {
        eprintln!("skipped, no engine was listed: {}", stderr(&output));
        return;
    }
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let list = document(&output);
    expect_documented("list --json", &list);
    assert_eq!(list["combination"]["device"], "NVIDIA H200");
    let candidates = list["candidates"].as_array().unwrap();
    let with = |key: &str| candidates.iter().filter(|c| !c[key].is_null()).count();
    assert!(with("arithmetic") > 3 && with("refused") > 3, "{list:#}");
    assert!(with("knobs") > 3, "{list:#}");
    let legacy = |c: &serde_json::Value| c["candidate"].as_str().unwrap().starts_with("legacy");
    assert!(!candidates.iter().any(legacy));
}

#[test]
fn output_folder_that_cannot_be_written_is_exit_3() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let below = file.path().join("below");
    // Root may write anywhere but here: a file, below a file, a file system of
    // the kernel's.
    for place in [file.path(), &below, Path::new("/proc/convfuzz")] {
        expect_error(
            &fuzz(text(place), &["--cases", "1"]),
            3,
            &["--out", text(place)],
        );
    }
}

#[test]
fn output_folder_in_use_is_exit_3_and_names_the_holder() {
    let out = TempDir::new().unwrap();
    let mut holder = started(out.path());
    let words = ["in use", &format!("process {}", holder.id())];
    expect_error(&fuzz(text(out.path()), &["--cases", "1"]), 3, &words);
    holder.kill().unwrap();
    holder.wait().unwrap();
    // The lock of a killed run is gone with it.
    let output = run(&fuzz(text(out.path()), &["--cases", "1"]));
    assert_eq!(code(&output), 0, "{}", stderr(&output));
}

/// A long run that has written its first trials.
fn started(out: &Path) -> Child {
    let child = convfuzz(&fuzz(text(out), &["--time", "5m", "--seed", "1"]))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let path = out.join(folder::TRIALS);
    wait_for("the first trials", || {
        fs::read_to_string(&path).is_ok_and(|t| t.lines().count() > 5)
    });
    child
}

fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let started = Instant::now();
    while !done() {
        assert!(
            started.elapsed() < Duration::from_secs(60),
            "no sign of {what}"
        );
        sleep(Duration::from_millis(20));
    }
}

fn interrupt(child: &Child) {
    let id = rustix::process::Pid::from_raw(child.id() as i32).expect("a running child");
    rustix::process::kill_process(id, rustix::process::Signal::INT).expect("it is ours");
}

#[test]
fn interrupt_once_writes_everything_and_exits_130() {
    let out = TempDir::new().unwrap();
    let child = started(out.path());
    interrupt(&child);
    let output = child.wait_with_output().unwrap();
    assert_eq!(code(&output), 130, "{}", stderr(&output));
    let environment = read::environment(&out.path().join(folder::ENVIRONMENT)).unwrap();
    assert_eq!(environment.ending, Some(Ending::Interrupted));
    let trials = trials(out.path());
    assert_eq!(environment.tally.unwrap().trials, trials.len() as u64);
    let matrix = read::matrix(&out.path().join(folder::MATRIX)).unwrap();
    let counted: u64 = matrix.iter().map(|row| row.trials).sum();
    assert_eq!(counted, trials.len() as u64);
    assert!(stdout(&output).contains("before it was stopped"));
}

#[test]
fn interrupt_twice_quits_at_once_and_leaves_no_hung_worker() {
    let out = TempDir::new().unwrap();
    // One problem in 20 hangs: soon both workers do.
    let hang = [
        "--time",
        "5m",
        "--timeout",
        "5m",
        "--fault",
        "hang",
        "--seed",
        "1",
    ];
    let mut child = convfuzz(&fuzz(text(out.path()), &hang))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut seen = 0;
    wait_for("hung workers", || {
        let now = fs::metadata(out.path().join(folder::TRIALS)).map_or(0, |m| m.len());
        sleep(Duration::from_millis(700));
        let stuck = now > 0 && now == seen;
        seen = now;
        stuck
    });
    let workers = children(child.id());
    assert_eq!(workers.len(), 2);
    interrupt(&child);
    sleep(Duration::from_millis(700));
    assert_eq!(
        child.try_wait().unwrap(),
        None,
        "the first waits for trials"
    );
    interrupt(&child);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    wait_for("the end of the workers", || {
        let alive = |id: &u32| Path::new(&format!("/proc/{id}/exe")).read_link().is_ok();
        !workers.iter().any(alive)
    });
    trials(out.path());
}

/// Processes started by process `id`, as the kernel lists them.
fn children(id: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{id}/task")).unwrap();
    let list = |task: fs::DirEntry| fs::read_to_string(task.path().join("children")).ok();
    let texts: Vec<_> = tasks.flatten().filter_map(list).collect();
    texts
        .iter()
        .flat_map(|text| text.split_whitespace().map(|w| w.parse().unwrap()))
        .collect()
}

#[test]
fn fuzz_candidate_that_kills_its_worker_costs_one_trial_each_time() {
    let out = TempDir::new().unwrap();
    let fault = ["--cases", "60", "--seed", "2", "--fault", "abort"];
    let output = run(&fuzz(text(out.path()), &fault));
    assert_eq!(code(&output), 1, "{}", stderr(&output));
    let failures = read::trials(&out.path().join(folder::FAILURES)).unwrap();
    assert!(!failures.is_empty());
    for failure in &failures {
        assert_eq!(failure.verdict, "crashed", "{failure:?}");
        assert!(failure.candidate.ends_with("!abort"), "{failure:?}");
    }
    let other = |t: &TrialRecord| !t.candidate.ends_with("!abort") && t.verdict == "passed";
    assert!(trials(out.path()).iter().any(other));
    assert!(stdout(&output).contains("workers were replaced"));
}

#[test]
fn killed_run_keeps_its_trials_and_says_it_did_not_end() {
    let out = TempDir::new().unwrap();
    let mut child = started(out.path());
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(trials(out.path()).len() >= 4);
    let environment = read::environment(&out.path().join(folder::ENVIRONMENT)).unwrap();
    assert_eq!(environment.ending, None);
}

#[test]
fn json_every_command_prints_one_document() {
    let out = TempDir::new().unwrap();
    let mut fuzz = fuzz(text(out.path()), &["--cases", "2", "--seed", "9", "--json"]);
    fuzz.push("--quiet");
    let fuzz = document(&run(&fuzz));
    expect_documented("fuzz --json", &fuzz);
    assert_eq!(fuzz["seed"], 9);
    assert_eq!(fuzz["combination"]["backend"], "host");
    let trials = trials(out.path()).len();
    assert_eq!(fuzz["summary"]["tally"]["trials"], trials);

    let list = document(&run(&["list", "--backend", "host", "--json", PROBLEM]));
    expect_documented("list --json", &list);
    let candidates = list["candidates"].as_array().unwrap();
    let refused = candidates
        .iter()
        .filter(|c| c["refused"].is_string())
        .count();
    assert!(refused > 0 && refused < candidates.len(), "{list:#}");

    let against = [
        "run",
        "--backend",
        "host",
        "--json",
        "--against",
        "fp64",
        PROBLEM,
    ];
    let run_ = document(&run(&against));
    expect_documented("run --json", &run_);
    let trials = run_["trials"].as_array().unwrap();
    assert_eq!(trials.len(), candidates.len());
    let passed: Vec<_> = trials.iter().filter(|t| t["verdict"] == "passed").collect();
    assert!(!passed.is_empty(), "{run_:#}");
    for trial in passed {
        assert!(trial["mean_error"].is_number(), "{trial:#}");
        assert_eq!(trial["against"][0]["type"], "fp64");
        assert!(trial["against"][0]["mean_error"].is_number(), "{trial:#}");
    }

    let doctor = document(&run(&["doctor", "--json"]));
    expect_documented("doctor --json", &doctor);
    assert!(doctor["cudnn_backend"]["ready"].is_boolean());
}

/// The keys of `document` are those of the section `name` in results/README.md.
fn expect_documented(name: &str, document: &serde_json::Value) {
    let text = include_str!("../results/README.md");
    let heading = format!("\n## {name}\n");
    let (_, section) = text.split_once(&heading).expect("a section per command");
    let section = section.split("\n## ").next().unwrap_or(section);
    let key = |line: &str| Some(line.strip_prefix("| `")?.split_once('`')?.0.to_owned());
    let documented: BTreeSet<_> = section.lines().filter_map(key).collect();
    let keys: BTreeSet<_> = document.as_object().unwrap().keys().cloned().collect();
    assert_eq!(keys, documented, "{name}");
}

fn document(output: &Output) -> serde_json::Value {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|e| panic!("{e}: {} {}", stdout(output), stderr(output)))
}

#[test]
fn run_unquoted_line_and_via_narrow_to_one_candidate() {
    let line = format!("{PROBLEM} type=fp16 fill=ints:4 via=host:direct");
    let mut words = vec!["run", "--backend", "host"];
    words.extend(line.split_whitespace());
    let output = run(&words);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let table = stdout(&output);
    assert_eq!(table.matches("host:").count(), 2, "{table}");
    assert!(table.contains("passed"), "{table}");
}

#[test]
fn run_explain_and_repro_warn_of_a_case_recorded_elsewhere_and_go_on() {
    let folder = TempDir::new().unwrap();
    let line = "fwd c=8 k=8 in=5 ker=3 fill=ints:1 via=host:gemm!taps_flipped";
    let bundle = folder.path().join("bundle");
    let made = ["bundle", "--backend", "host", "--out", text(&bundle), line];
    assert_eq!(code(&run(&made)), 1);
    let case = bundle.join("case.toml");
    let warned = |output: &Output| stderr(output).contains("warning: the line was recorded on the");
    for (recorded, warns) in [("host", false), ("cudnn", true)] {
        let here = "backend = \"host\"";
        let edited = fs::read_to_string(&case).unwrap();
        let edited = edited.replace(here, &format!("backend = \"{recorded}\""));
        fs::write(&case, edited).unwrap();
        for command in ["run", "explain", "repro"] {
            let output = run(&[command, "--backend", "host", text(&bundle)]);
            assert_eq!(code(&output), 1, "{command}: {}", stderr(&output));
            assert_eq!(warned(&output), warns, "{command}: {}", stderr(&output));
        }
    }
    // A line by itself says nothing of where it is from.
    assert!(!warned(&run(&["run", "--backend", "host", line])));
}

#[test]
fn run_against_fp32_shows_what_fp16_rounding_costs() {
    // The smallest of the reported comparisons: N(0,1) data, 8 products an
    // output; a P40 gave a mean |y16 - y32| of 0.0009.
    let line = "fwd n=4 c=8 k=4 in=8x16x16 ker=1x1x1 type=fp16 fill=normal:1 via=host:direct";
    let output = run(&[
        "run",
        "--backend",
        "host",
        "--json",
        "--against",
        "fp32",
        line,
    ]);
    let report = document(&output);
    let trial = &report["trials"][0];
    let against = trial["against"][0]["mean_error"].as_f64().unwrap();
    assert!((0.0004..0.0018).contains(&against), "{trial:#}");
    let own = trial["mean_error"].as_f64().unwrap();
    assert!(own < against, "{trial:#}");
}

#[test]
fn stdout_reader_that_leaves_is_no_error() {
    let mut child = convfuzz(&["list", "--backend", "host", "--json", PROBLEM])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let mut said = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut said)
        .unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0), "{said}");
    assert!(
        !said.contains("bug in convfuzz") && !said.contains("error"),
        "{said}"
    );
}

#[test]
fn stdout_that_is_full_is_exit_3() {
    let full = File::options().write(true).open("/dev/full").unwrap();
    let output = convfuzz(&["list", "--backend", "host", PROBLEM])
        .stdout(full)
        .output()
        .unwrap();
    assert_eq!(code(&output), 3, "{}", stderr(&output));
    assert!(stderr(&output).contains("stdout"), "{}", stderr(&output));
}

/// A file system of `size` bytes, where this user may mount one.
struct Small(
    PathBuf,
    #[expect(dead_code, reason = "kept until unmounted")] TempDir,
);

impl Small {
    fn mount(size: &str) -> Option<Self> {
        let folder = TempDir::new().ok()?;
        let path = folder.path().to_owned();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"])
            .arg(&path)
            .output();
        mounted
            .is_ok_and(|o| o.status.success())
            .then(|| Small(path, folder))
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

#[test]
fn output_disk_that_fills_up_is_exit_3_and_loses_nothing_written() {
    let Some(small) = Small::mount("64k") else {
        eprintln!("skipped: this user may not mount a small file system");
        return;
    };
    let output = run(&fuzz(text(&small.0), &["--cases", "5000", "--seed", "1"]));
    assert_eq!(code(&output), 3, "{}", stderr(&output));
    let errors = stderr(&output);
    assert_eq!(errors.matches("error: ").count(), 1, "{errors}");
    assert!(errors.contains("free some space"), "{errors}");
    assert!(trials(&small.0).len() > 10);
}

#[test]
fn examine_soundness_judges_every_fill_and_writes_a_table() {
    let folder = TempDir::new().unwrap();
    let csv = folder.path().join("soundness.csv");
    let output = run(&["examine", "--soundness", "30000", "--csv", text(&csv)]);
    assert_eq!(code(&output), 0, "{}", stdout(&output));
    let said = stdout(&output);
    assert!(said.contains(" 0 outside their bound"), "{said}");
    let mut judged = std::collections::BTreeMap::<String, u64>::new();
    let mut algorithms = BTreeSet::new();
    for row in csv::Reader::from_path(&csv).unwrap().records() {
        let row = row.unwrap();
        *judged.entry(row[0].to_owned()).or_default() += row[3].parse::<u64>().unwrap();
        algorithms.insert(row[1].to_owned());
        assert_eq!(&row[4], "0", "{row:?}");
        let ratio: f64 = row[5].parse().unwrap_or(0.0);
        assert!(ratio <= 1.0, "{row:?}");
    }
    assert_eq!(judged.len(), convfuzz::fill::FillKind::ALL.len());
    assert!(judged.values().all(|&n| n >= 30_000), "{judged:?}");
    assert_eq!(
        algorithms.len(),
        convfuzz::backend::host::ALGORITHMS.len(),
        "{algorithms:?}"
    );
}

#[test]
fn probe_host_tensor_cores_agree_with_their_models() {
    let output = run(&["probe", "--backend", "host", "--json"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let report: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    let candidates = report["candidates"].as_array().unwrap();
    let hopper: Vec<_> = candidates
        .iter()
        .filter(|c| c["candidate"] == "host:tensor_hopper")
        .collect();
    assert_eq!(hopper.len(), 2, "fp16 and bf16");
    for row in hopper {
        assert_eq!(
            (&row["best"], &row["declared"]),
            (&"Hopper".into(), &"Hopper".into())
        );
        assert_eq!(
            (row["hopper"].as_f64(), row["best_share"].as_f64()),
            (Some(1.0), Some(1.0))
        );
        assert!(row["ampere"].as_f64() < Some(0.9), "{row}");
    }
    let table = stdout(&run(&["probe", "--backend", "host"]));
    assert!(table.contains("closest model"), "{table}");
}
