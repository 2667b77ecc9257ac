//! Campaigns that are left alone: workers that die, runs that are killed and go
//! on, disks that fill up. Everything here runs on the host backend, through the
//! program.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use convfuzz::backend::open::{BackendKind, BackendSpec};
use convfuzz::campaign::solo::{Solo, Terms};
use convfuzz::candidate::Repro;
use convfuzz::record::TrialRecord;
use convfuzz::report::environment::Ending;
use convfuzz::report::{folder, journal, read};
use tempfile::TempDir;

fn program() -> &'static Path {
    assert_cmd::cargo::cargo_bin!("convfuzz")
}

fn convfuzz(arguments: &[&str]) -> Command {
    let mut command = Command::new(program());
    // Not in the repository, whose regressions a run would replay.
    command.current_dir(std::env::temp_dir());
    command.args(arguments).env_remove("CONVFUZZ_LOG");
    command
}

fn name(path: &Path) -> &str {
    path.to_str().expect("temporary paths are UTF-8")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Arguments of `fuzz` with tiny problems, into `out`.
fn fuzz<'a>(out: &'a Path, more: &[&'a str]) -> Vec<&'a str> {
    let fixed = "fuzz --backend host --max-macs 2000 --minimize 0 --seed 5 --out";
    let fixed = fixed.split(' ').chain([name(out)]);
    fixed.chain(more.iter().copied()).collect()
}

/// Runs to the end, which must be this.
#[track_caller]
fn expect(arguments: &[&str], code: i32) -> Output {
    let output = convfuzz(arguments).output().expect("the program starts");
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
    output
}

/// Ends with `code` and one line of error with all of `words`.
#[track_caller]
fn expect_error(output: &Output, code: i32, words: &[&str]) {
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{said}");
    let errors: Vec<_> = said.lines().filter(|l| l.starts_with("error: ")).collect();
    assert_eq!(errors.len(), 1, "{said}");
    for word in words {
        assert!(errors[0].contains(word), "{word:?} not in {said}");
    }
}

fn trials(folder: &Path) -> Vec<TrialRecord> {
    read::trials(&folder.join(folder::TRIALS)).expect("trials.csv reads back")
}

/// Rows in words without what depends on the clock: NaN is not equal to itself,
/// its text is.
fn untimed(mut rows: Vec<TrialRecord>) -> Vec<String> {
    for row in &mut rows {
        (row.library_ms, row.own_ms) = (None, None);
    }
    rows.iter().map(|row| format!("{row:?}")).collect()
}

/// Everything a complete run leaves, times left out, by file.
fn files(folder: &Path) -> BTreeMap<String, Vec<String>> {
    let entries = fs::read_dir(folder).expect("the results are there");
    let names = entries.map(|e| e.unwrap().file_name().into_string().unwrap());
    let content = |file: &str| match file {
        folder::TRIALS | folder::FAILURES => untimed(read::trials(&folder.join(file)).unwrap()),
        folder::ENVIRONMENT => {
            let environment = read::environment(&folder.join(file)).unwrap();
            vec![format!("{:?} {:?}", environment.ending, environment.tally)]
        }
        _ => vec![fs::read_to_string(folder.join(file)).unwrap()],
    };
    names.map(|n| (n.clone(), content(&n))).collect()
}

/// Two runs left the same files.
#[track_caller]
fn expect_same(left: &Path, right: &Path) {
    let (left, right) = (files(left), files(right));
    let names: Vec<_> = left.keys().collect();
    assert_eq!(names, right.keys().collect::<Vec<_>>());
    assert_eq!(names.len(), folder::FILES.len(), "{names:?}");
    for (name, ours) in &left {
        let theirs = &right[name];
        let differs = ours.iter().zip(theirs).find(|(a, b)| a != b);
        assert_eq!(differs, None, "{name}");
        assert_eq!(ours.len(), theirs.len(), "{name}");
    }
}

fn start(arguments: &[&str]) -> Child {
    let mut command = convfuzz(arguments);
    let command = command.stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().expect("the program starts")
}

/// A run into `out` that was killed once it had written this many trials.
fn killed(out: &Path, more: &[&str], rows: usize) {
    let mut child = start(&fuzz(out, more));
    let end = Instant::now() + Duration::from_secs(60);
    let written = || fs::read_to_string(out.join(folder::TRIALS)).unwrap_or_default();
    while written().lines().count() <= rows {
        assert!(Instant::now() < end, "no trials");
        assert_eq!(child.try_wait().unwrap(), None, "it ended before");
        sleep(Duration::from_millis(2));
    }
    child.kill().unwrap();
    child.wait().unwrap();
}

// Workers.

/// The rows of all candidates but the one that carries the fault, and of that
/// where it did its work; with its name as if there were no fault.
fn without_deaths(folder: &Path, fault: &str) -> BTreeMap<(i64, u32), String> {
    let alive = |t: &TrialRecord| !matches!(t.verdict.as_str(), "crashed" | "timed_out");
    let rows: Vec<_> = trials(folder).into_iter().filter(alive).collect();
    let keys: Vec<_> = rows.iter().map(|t| (t.case, t.trial)).collect();
    let plain = |row: String| row.replace(&format!("!{fault}"), "");
    keys.into_iter()
        .zip(untimed(rows).into_iter().map(plain))
        .collect()
}

/// Every row of the run with `fault` that is no death is one of the clean run.
/// Gives the share of the carrier's trials that are.
fn deaths_change_nothing_else(fault: &str, more: &[&str]) -> (usize, usize) {
    let parent = TempDir::new().unwrap();
    let (clean, faulty) = (parent.path().join("clean"), parent.path().join("faulty"));
    expect(&fuzz(&clean, more), 0);
    expect(&fuzz(&faulty, &[more, &["--fault", fault]].concat()), 1);
    let (ours, theirs) = (
        without_deaths(&faulty, fault),
        without_deaths(&clean, fault),
    );
    for (place, row) in &ours {
        assert_eq!(Some(row), theirs.get(place), "{place:?}");
    }
    let carried = |t: &&TrialRecord| t.candidate.ends_with(fault) && t.verdict != "skipped";
    let all = trials(&faulty);
    let dead = all.len() - ours.len();
    assert_eq!(theirs.len(), all.len());
    (dead, all.iter().filter(carried).count())
}

#[test]
fn workers_killed_in_1_of_20_of_1000_trials_change_no_other_record() {
    let (dead, of) = deaths_change_nothing_else("dies", &["--cases", "420", "--jobs", "2"]);
    assert!(of >= 1000, "{of} trials of the carrier");
    assert!((of / 33..of / 14).contains(&dead), "{dead} of {of}");
}

#[test]
fn workers_killed_by_planning_name_the_candidate_and_change_no_other_record() {
    let more = ["--cases", "100", "--jobs", "2"];
    let (dead, of) = deaths_change_nothing_else("plan_segfault", &more);
    assert!(dead > 0 && dead < of, "{dead} of {of}");
}

/// A step that is no candidate's: what a library's heuristics are.
#[test]
fn workers_killed_by_ranking_blame_no_candidate_and_change_no_record() {
    let (parent, fault) = (TempDir::new().unwrap(), "rank_segfault");
    let (clean, faulty) = (parent.path().join("clean"), parent.path().join("faulty"));
    let more = ["--cases", "100", "--jobs", "2"];
    expect(&fuzz(&clean, &more), 0);
    expect(
        &fuzz(&faulty, &[&more[..], &["--fault", fault]].concat()),
        1,
    );
    // What died has a row of its own, so the others are not at the same places.
    let living = |folder: &Path| {
        let mut rows = trials(folder);
        rows.retain(|t| t.verdict != "crashed");
        rows.iter_mut().for_each(|t| t.trial = 0);
        let plain = |row: String| row.replace(&format!("!{fault}"), "");
        untimed(rows).into_iter().map(plain).collect::<Vec<_>>()
    };
    let (ours, theirs) = (living(&faulty), living(&clean));
    assert_eq!(ours.len(), theirs.len());
    for (ours, theirs) in ours.iter().zip(&theirs) {
        assert_eq!(ours, theirs);
    }
    let deaths: Vec<_> = trials(&faulty)
        .into_iter()
        .filter(|t| t.verdict == "crashed")
        .collect();
    assert!(!deaths.is_empty());
    for death in &deaths {
        assert_eq!(death.candidate, "");
        let detail = death.detail.as_deref().unwrap();
        assert!(detail.contains("signal 11 (SIGSEGV)"), "{detail}");
        assert!(detail.ends_with("when heur_host was asked"), "{detail}");
    }
    // Nor is a candidate blamed that is run alone.
    let repro = Repro {
        via: Some(format!("host:gemm!{fault}").parse().unwrap()),
        ..deaths[0].repro.parse().unwrap()
    };
    let mut solo = Solo::start(Terms {
        program: Some(env!("CARGO_BIN_EXE_convfuzz").into()),
        ..Terms::of(BackendSpec {
            kind: BackendKind::Host,
            ..BackendSpec::default()
        })
    })
    .unwrap();
    for _ in 0..2 {
        assert_eq!(solo.trial(&repro, None).unwrap().verdict, "passed");
    }
}

#[test]
fn workers_that_hang_are_killed_and_change_no_other_record() {
    let more = ["--cases", "40", "--jobs", "2", "--timeout", "1500ms"];
    let (dead, of) = deaths_change_nothing_else("hang", &more);
    assert!(dead > 0 && dead < of, "{dead} of {of}");
}

#[test]
fn workers_that_take_all_memory_are_clean_skips() {
    let out = TempDir::new().unwrap();
    let more = ["--cases", "60", "--jobs", "2", "--worker-memory", "400"];
    expect(
        &fuzz(out.path(), &[&more[..], &["--fault", "allocate"]].concat()),
        0,
    );
    let all = trials(out.path());
    let full: Vec<_> = all
        .iter()
        .filter(|t| t.reason.as_deref() == Some("out_of_memory"))
        .collect();
    assert!(!full.is_empty());
    for trial in full {
        assert_eq!(trial.verdict, "skipped");
        assert!(trial.candidate.ends_with("!allocate"), "{trial:?}");
        let detail = trial.detail.as_deref().unwrap();
        assert!(detail.contains("may have 0.4 GiB"), "{detail}");
    }
}

/// Runs with one worker and with three a candidate that always kills, in which it
/// is left out alike; gives the detail of a crash.
fn left_out_alike(fault: &str) -> String {
    let parent = TempDir::new().unwrap();
    let more = ["--cases", "24", "--fault", fault, "--dtype", "fp32"];
    let runs = ["1", "3"].map(|jobs| {
        let out = parent.path().join(jobs);
        let output = expect(&fuzz(&out, &[&more[..], &["--jobs", jobs]].concat()), 1);
        let said = text(&output.stdout);
        assert!(
            said.contains("Left out after it ended too many workers"),
            "{said}"
        );
        out
    });
    expect_same(&runs[0], &runs[1]);
    let all = trials(&runs[0]);
    let ends = |end: &str| {
        let ended = |t: &&TrialRecord| t.verdict == end || t.reason.as_deref() == Some(end);
        all.iter().filter(ended).count()
    };
    assert!(ends("crashed") > 0 && ends("quarantined") > ends("crashed"));
    let accused = format!("host:gemm!{fault}");
    let crashes: Vec<_> = all.iter().filter(|t| t.verdict == "crashed").collect();
    assert!(crashes.iter().all(|t| t.candidate == accused));
    crashes[0].detail.clone().unwrap()
}

#[test]
fn workers_deadly_candidate_is_left_out_alike_with_any_number_of_them() {
    let detail = left_out_alike("deadly");
    // What it printed is evidence, though it looks like the word of a worker.
    let expected = "killed by signal 6 (SIGABRT); stdout: {\"done\":null} | planted fault: abort; stderr: planted fault: abort; the same when retried alone";
    assert_eq!(detail, expected);
}

#[test]
fn workers_candidate_that_is_deadly_to_plan_is_left_out_alike_too() {
    let detail = left_out_alike("plan_deadly");
    assert!(detail.contains("killed by signal 6 (SIGABRT)"), "{detail}");
    let end = "the same when retried alone; while it was planned";
    assert!(detail.ends_with(end), "{detail}");
}

/// A shared library that aborts as soon as it is loaded, by the name that
/// programs ask for; `None` without a C compiler.
fn deadly_library(folder: &Path, name: &str) -> Option<PathBuf> {
    let source = folder.join("deadly.c");
    let code = "#include <stdlib.h>\n#include <stdio.h>\n__attribute__((constructor)) static void load(void) { fputs(\"cannot go on\\n\", stderr); abort(); }\n";
    fs::write(&source, code).ok()?;
    let library = folder.join(name);
    let made = Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .arg(&library)
        .arg(&source)
        .status();
    made.is_ok_and(|status| status.success()).then_some(library)
}

#[test]
fn workers_library_that_aborts_on_load_is_exit_3_in_words() {
    let parent = TempDir::new().unwrap();
    let Some(_) = deadly_library(parent.path(), "libcuda.so.1") else {
        eprintln!("skipped: there is no C compiler");
        return;
    };
    let line = "fwd c=1 k=1 in=1 ker=1";
    let out = parent.path().join("out");
    let night = parent.path().join("night.toml");
    fs::write(&night, "store = \"store\"").unwrap();
    let commands: [&[&str]; 5] = [
        &["nightly", "--config", name(&night)],
        &["fuzz", "--cases", "1", "--out", name(&out)],
        &[
            "fuzz",
            "--cases",
            "1",
            "--out",
            name(&out),
            "--backend",
            "cudnn",
        ],
        &["run", line],
        &["list", line],
    ];
    for arguments in commands {
        let mut command = convfuzz(arguments);
        let output = command
            .env("LD_LIBRARY_PATH", parent.path())
            .output()
            .unwrap();
        expect_error(&output, 3, &["SIGABRT", "stderr: cannot go on"]);
    }
    assert!(!out.exists());
}

#[test]
fn run_trial_that_crashes_or_hangs_is_recorded_as_such() {
    let line = "fwd c=2 k=2 in=4 ker=3 fill=ints:1";
    let deadly = ["run", "--backend", "host", "--fault", "deadly", line];
    let said = text(&expect(&deadly, 1).stdout);
    let rows: Vec<_> = said.lines().filter(|l| l.contains("crashed")).collect();
    assert_eq!(rows.len(), 1, "{said}");
    assert!(rows[0].contains("host:gemm!deadly"), "{said}");
    assert!(said.matches("passed").count() > 3, "{said}");
    assert!(said.contains("the same when retried alone"), "{said}");
    // Which problems hang is up to their line.
    let hangs =
        (1..200).map(|n| format!("fwd n={n} c=1 k=1 in=2 ker=1 fill=ints:1 via=host:gemm!hang"));
    let hangs = hangs
        .map(|line| ["run", "--backend", "host", "--timeout", "300ms", &line].map(str::to_owned));
    let ended = hangs.into_iter().find_map(|arguments| {
        let output = convfuzz(&arguments.each_ref().map(String::as_str))
            .output()
            .unwrap();
        (output.status.code() == Some(1)).then(|| text(&output.stdout))
    });
    let said = ended.expect("one problem in 20 hangs");
    assert!(
        said.contains("timed_out") && said.contains("no end within 0.3 s"),
        "{said}"
    );
}

// Going on.

/// Numbers that look drawn, and are the same in every run of the test.
struct Dice(u64);

impl Dice {
    /// The next number below `end`; SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }
}

#[test]
fn resume_after_50_kills_ends_as_if_there_had_been_none() {
    let parent = TempDir::new().unwrap();
    let whole = parent.path().join("whole");
    let more = ["--cases", "40", "--fault", "deadly"];
    expect(&fuzz(&whole, &[&more[..], &["--jobs", "2"]].concat()), 1);
    let (mut dice, mut kills, mut runs) = (Dice(7), 0, 0);
    while kills < 50 {
        runs += 1;
        let out = parent.path().join(format!("run-{runs}"));
        loop {
            let jobs = (1 + dice.below(3)).to_string();
            let resume = [&more[..], &["--resume", "--jobs", &jobs]].concat();
            let mut child = start(&fuzz(&out, &resume));
            let patience = if kills < 50 { dice.below(400) } else { 60_000 };
            wait(&mut child, Duration::from_millis(patience));
            match child.try_wait().unwrap() {
                Some(status) => {
                    assert_eq!(status.code(), Some(1));
                    break;
                }
                None => child.kill().unwrap(),
            }
            child.wait().unwrap();
            kills += 1;
        }
        expect_same(&out, &whole);
    }
}

/// Waits until a process ends, but no longer than that.
fn wait(child: &mut Child, longest: Duration) {
    let end = Instant::now() + longest;
    while Instant::now() < end && child.try_wait().unwrap().is_none() {
        sleep(Duration::from_millis(1));
    }
}

#[test]
fn resume_of_a_complete_run_says_so_and_ends_as_it_did() {
    let parent = TempDir::new().unwrap();
    for (place, more, code) in [
        ("clean", &["--cases", "3"][..], 0),
        ("failed", &["--cases", "8", "--fault", "slice_lost"][..], 1),
    ] {
        let out = parent.path().join(place);
        // The first time there is nothing to go on with.
        let resume = [more, &["--resume"]].concat();
        let first = expect(&fuzz(&out, &resume), code);
        let before = files(&out);
        let again = expect(&fuzz(&out, &resume), code);
        let said = text(&again.stderr);
        assert!(said.contains("this run is complete"), "{said}");
        let table = |output: &Output| text(&output.stdout).lines().take(4).collect::<String>();
        assert_eq!(table(&again), table(&first));
        assert_eq!(files(&out), before);
        let other = expect(
            &fuzz(&out, &[&resume[..], &["--timeout", "9s"]].concat()),
            2,
        );
        expect_error(&other, 2, &["option timeout", name(&out), "--out"]);
    }
}

#[test]
fn resume_under_other_settings_is_refused_by_name_and_changes_nothing() {
    let out = TempDir::new().unwrap();
    let more = ["--cases", "5000"];
    killed(out.path(), &more, 20);
    let path = out.path().join(journal::NAME);
    let before = fs::read(&path).unwrap();
    for (change, words) in [
        (
            &["--cases", "5001"][..],
            "option cases was 5000, is 5001 now",
        ),
        (
            &["--cases", "5000", "--fault", "hang"],
            "option backend.fault was null, is \"hang\" now",
        ),
        (
            &["--cases", "5000", "--dims", "2"],
            "option limits.ranks was [1,2,3], is [2] now",
        ),
        (&["--cases", "5000", "--shard", "0/2"], "option shard was"),
    ] {
        let output = expect(&fuzz(out.path(), &[change, &["--resume"]].concat()), 2);
        expect_error(&output, 2, &[words, name(out.path()), "--out"]);
    }
    let seed = "fuzz --resume --backend host --max-macs 2000 --cases 5000 --seed 6 --out";
    let seed: Vec<_> = seed.split(' ').chain([name(out.path())]).collect();
    expect_error(&expect(&seed, 2), 2, &["option seed was 5, is 6 now"]);
    assert_eq!(fs::read(&path).unwrap(), before);
    // A run is never begun over what another one left.
    expect(&fuzz(out.path(), &["--cases", "1"]), 0);
    assert!(out.path().join("run-2").join(folder::TRIALS).exists());
    assert_eq!(fs::read(&path).unwrap(), before);
}

#[test]
fn resume_without_seed_takes_the_one_of_the_run() {
    let parent = TempDir::new().unwrap();
    let (out, whole) = (parent.path().join("out"), parent.path().join("whole"));
    let more = ["--cases", "60"];
    killed(&out, &more, 20);
    let line = "fuzz --resume --backend host --max-macs 2000 --minimize 0 --cases 60 --out";
    let line: Vec<_> = line.split(' ').chain([name(&out)]).collect();
    let said = text(&expect(&line, 0).stderr);
    assert!(
        said.contains("going on with the run that began at"),
        "{said}"
    );
    assert!(said.contains("seed 5;"), "{said}");
    expect(&fuzz(&whole, &more), 0);
    expect_same(&out, &whole);
}

#[test]
fn resume_of_a_damaged_or_missing_journal_is_exit_2_and_changes_nothing() {
    let out = TempDir::new().unwrap();
    let more = ["--cases", "5000"];
    killed(out.path(), &more, 20);
    let path = out.path().join(journal::NAME);
    let whole = fs::read(&path).unwrap();
    let mut damaged = whole.clone();
    let third = damaged
        .iter()
        .enumerate()
        .filter(|(_, b)| **b == b'\n')
        .nth(1)
        .unwrap()
        .0
        + 20;
    damaged[third] ^= 4;
    fs::write(&path, &damaged).unwrap();
    let resume = fuzz(out.path(), &["--cases", "5000", "--resume"]);
    expect_error(&expect(&resume, 2), 2, &[name(&path), "line 3", "--out"]);
    assert_eq!(fs::read(&path).unwrap(), damaged);
    let rows = trials(out.path()).len();
    fs::remove_file(&path).unwrap();
    expect_error(
        &expect(&resume, 2),
        2,
        &["did not end", journal::NAME, "--out"],
    );
    assert_eq!(trials(out.path()).len(), rows);
}

#[test]
fn resume_of_a_folder_in_use_is_exit_3_and_names_the_holder() {
    let parent = TempDir::new().unwrap();
    // Also when the run lies beside an earlier one.
    let nested = parent.path().join("run-2");
    expect(&fuzz(parent.path(), &["--cases", "1"]), 0);
    let mut holder = start(&fuzz(parent.path(), &["--time", "5m"]));
    let end = Instant::now() + Duration::from_secs(60);
    while !nested.join(folder::TRIALS).exists() {
        assert!(Instant::now() < end, "no second run");
        sleep(Duration::from_millis(5));
    }
    for place in [parent.path(), &nested] {
        let output = expect(&fuzz(place, &["--time", "5m", "--resume"]), 3);
        expect_error(&output, 3, &["in use", &format!("process {}", holder.id())]);
    }
    holder.kill().unwrap();
    holder.wait().unwrap();
}

#[test]
fn resume_with_a_time_has_the_rest_of_it() {
    let out = TempDir::new().unwrap();
    let more = ["--time", "3s"];
    killed(out.path(), &more, 100);
    let begun = Instant::now();
    let resume = fuzz(out.path(), &["--time", "3s", "--resume"]);
    expect(&resume, 0);
    assert!(begun.elapsed() < Duration::from_secs(20));
    let cases: Vec<_> = trials(out.path()).iter().map(|t| t.case).collect();
    assert!(cases.is_sorted());
    let last = cases.last().copied().unwrap();
    assert!((0..=last).all(|case| cases.binary_search(&case).is_ok()));
    let environment = read::environment(&out.path().join(folder::ENVIRONMENT)).unwrap();
    assert_eq!(environment.ending, Some(Ending::Completed));
    let again = expect(&resume, 0);
    assert!(text(&again.stderr).contains("complete"));
}

#[test]
fn interrupted_run_goes_on() {
    let parent = TempDir::new().unwrap();
    let (out, whole) = (parent.path().join("out"), parent.path().join("whole"));
    let more = ["--cases", "80"];
    let mut child = start(&fuzz(&out, &more));
    while fs::read_to_string(out.join(folder::TRIALS))
        .unwrap_or_default()
        .lines()
        .count()
        < 10
    {
        sleep(Duration::from_millis(2));
    }
    let id = rustix::process::Pid::from_raw(child.id() as i32).unwrap();
    rustix::process::kill_process(id, rustix::process::Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(out.join(journal::NAME).exists());
    expect(&fuzz(&out, &[&more[..], &["--resume"]].concat()), 0);
    expect(&fuzz(&whole, &more), 0);
    expect_same(&out, &whole);
}

// The disk.

#[test]
fn disk_limit_on_files_is_exit_3_and_the_run_goes_on_without_it() {
    let parent = TempDir::new().unwrap();
    let (out, whole) = (parent.path().join("out"), parent.path().join("whole"));
    let more = ["--cases", "40", "--resume"];
    // Of 512 or 1024 bytes, as the shell likes; the signal would end the program.
    let script = "trap '' XFSZ; ulimit -f 100; exec \"$0\" \"$@\"";
    let limited = Command::new("sh")
        .args(["-c", script])
        .arg(program())
        .args(fuzz(&out, &more))
        .current_dir(std::env::temp_dir())
        .output()
        .unwrap();
    expect_error(&limited, 3, &[name(&out), "ulimit -f", "--out"]);
    let environment = read::environment(&out.join(folder::ENVIRONMENT)).unwrap();
    assert_eq!(environment.ending, Some(Ending::Error));
    expect(&fuzz(&out, &more), 0);
    expect(&fuzz(&whole, &more), 0);
    expect_same(&out, &whole);
}

/// A file system of its own, where this user may mount one.
struct Mounted(TempDir);

impl Mounted {
    fn new(options: &str) -> Option<Self> {
        let mounted = Mounted(TempDir::new().ok()?);
        mounted
            .mount(&["-t", "tmpfs", "-o", options, "tmpfs"])
            .then_some(mounted)
    }

    fn again(&self, options: &str) {
        assert!(self.mount(&["-o", &format!("remount,{options}")]));
    }

    fn mount(&self, arguments: &[&str]) -> bool {
        let mut command = Command::new("mount");
        let output = command.args(arguments).arg(self.0.path()).output();
        output.is_ok_and(|o| o.status.success())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path()).output();
    }
}

#[test]
fn disk_that_is_full_is_exit_3_and_the_run_goes_on_when_there_is_space() {
    let Some(disk) = Mounted::new("size=128k") else {
        eprintln!("skipped: this user may not mount a small file system");
        return;
    };
    let whole = TempDir::new().unwrap();
    let out = disk.0.path().join("out");
    let more = ["--cases", "40", "--resume"];
    expect_error(
        &expect(&fuzz(&out, &more), 3),
        3,
        &[name(&out), "free some space"],
    );
    disk.again("size=64m");
    expect(&fuzz(&out, &more), 0);
    let whole = whole.path().join("whole");
    expect(&fuzz(&whole, &more), 0);
    expect_same(&out, &whole);
}

#[test]
fn disk_that_is_read_only_is_exit_3() {
    let Some(disk) = Mounted::new("size=16m") else {
        eprintln!("skipped: this user may not mount a small file system");
        return;
    };
    let out = disk.0.path().join("out");
    killed(&out, &["--cases", "5000"], 20);
    disk.again("ro");
    let new = disk.0.path().join("new");
    for (place, more) in [
        (&out, &["--cases", "5000", "--resume"][..]),
        (&new, &["--cases", "1"]),
    ] {
        let output = expect(&fuzz(place, more), 3);
        expect_error(&output, 3, &[name(place), "--out"]);
    }
    assert!(trials(&out).len() >= 19);
}

/// A nightly run goes on while a new build takes the program's place.
#[test]
fn workers_start_though_the_program_is_gone() {
    let folder = TempDir::new().unwrap();
    let (copy, out) = (folder.path().join("convfuzz"), folder.path().join("out"));
    fs::copy(program(), &copy).unwrap();
    let arguments = fuzz(&out, &["--cases", "3", "--jobs", "1"]);
    let mut command = Command::new(&copy);
    let mut child = command
        .current_dir(std::env::temp_dir())
        .args(arguments)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the copy starts");
    // The program is running by now; its first worker is hardly started.
    fs::remove_file(&copy).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(!trials(&out).is_empty());
}
