//! Results folders against each other and together: properties of the library,
//! and the commands from outside. Everything here runs on the host backend.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use convfuzz::backend::Combination;
use convfuzz::compare::combined::Combined;
use convfuzz::compare::diff::Diff;
use convfuzz::compare::difference::{Change, Difference, Subject};
use convfuzz::compare::merge;
use convfuzz::compare::run::Run;
use convfuzz::record::{SCHEMA, TrialRecord};
use convfuzz::report::csv_file::columns;
use convfuzz::report::environment::{Ending, Environment};
use convfuzz::report::{folder, matrix, read};
use proptest::prelude::*;
use tempfile::TempDir;

// Runs made by hand.

/// A trial of problem number `case` by `candidate`; `end` is its verdict, with a
/// reason behind a colon.
fn trial(case: i64, candidate: &str, end: &str) -> TrialRecord {
    let (verdict, reason) = end.split_once(':').unwrap_or((end, ""));
    TrialRecord {
        schema: SCHEMA,
        case,
        repro: format!("fwd c=8 k=8 in=9 ker=3 fill=normal:{case} via={candidate}"),
        direction: "fwd".to_owned(),
        rank: 1,
        types: "fp32".to_owned(),
        compute: "fp32".to_owned(),
        layout: "nchw".to_owned(),
        regime: "rounding_sensitive".to_owned(),
        api: candidate.split(':').next().unwrap_or_default().to_owned(),
        candidate: candidate.to_owned(),
        verdict: verdict.to_owned(),
        reason: (!reason.is_empty()).then(|| reason.to_owned()),
        ..TrialRecord::default()
    }
}

fn measured(case: i64, candidate: &str, max_ulp: f64) -> TrialRecord {
    TrialRecord {
        max_ulp: Some(max_ulp),
        ..trial(case, candidate, "passed")
    }
}

fn noted(case: i64, candidate: &str, notes: &str) -> TrialRecord {
    TrialRecord {
        notes: notes.to_owned(),
        ..trial(case, candidate, "passed")
    }
}

fn run_of(shard: &str, trials: Vec<TrialRecord>) -> Run {
    let options = serde_json::json!({ "shard": shard, "cases": 9 });
    let mut environment = Environment::starting(Combination::default(), 7, options);
    environment.ending = Some(Ending::Completed);
    Run {
        path: PathBuf::from(shard),
        environment,
        trials,
    }
}

fn diff(a: &[TrialRecord], b: &[TrialRecord]) -> Diff {
    Diff::between(&run_of("0/1", a.to_vec()), &run_of("0/1", b.to_vec())).unwrap()
}

/// Subject, change and candidate of every difference.
fn said(diff: &Diff) -> Vec<(Subject, Change, &str)> {
    let short = |d: &'_ Difference| (d.subject, d.change);
    let all = diff.differences.iter();
    all.map(|d| (short(d).0, short(d).1, &*d.candidate))
        .collect()
}

#[test]
fn support_declined_or_not_offered_for_the_same_case_is_lost() {
    let other = trial(1, "engine:9", "passed");
    let a = [
        trial(1, "engine:1", "passed"),
        trial(1, "engine:2", "passed"),
        other.clone(),
    ];
    let declined = trial(1, "engine:1", "skipped:not_supported");
    let found = diff(&a, &[declined.clone(), other.clone()]);
    let lost = |candidate| (Subject::Support, Change::Lost, candidate);
    assert_eq!(said(&found), [lost("engine:1"), lost("engine:2")]);
    assert!(found.is_alarm());
    let back = diff(&[declined, other], &a);
    assert!(back.differences.iter().all(|d| d.change == Change::Gained));
    assert!(!back.is_alarm());
}

#[test]
fn support_without_an_answer_is_not_lost() {
    let a = [
        trial(1, "engine:1", "passed"),
        trial(2, "engine:1", "passed"),
    ];
    for b in [
        // Full, or set aside: no word about support.
        vec![trial(1, "engine:1", "skipped:out_of_memory")],
        vec![trial(1, "engine:1", "skipped:quarantined")],
        // Other candidates were asked for, or other cases.
        vec![trial(1, "legacy:1/fma", "passed")],
        vec![trial(5, "engine:1", "passed")],
        // Another case of this run was declined, not this one.
        vec![
            trial(1, "engine:1", "passed"),
            trial(3, "engine:1", "skipped:not_supported"),
        ],
        // Other knobs of the same engine ran.
        vec![trial(1, "engine:1/2=3", "passed")],
    ] {
        let found = diff(&a, &b);
        let support = found
            .differences
            .iter()
            .filter(|d| d.subject == Subject::Support);
        assert_eq!(
            support.filter(|d| d.change == Change::Lost).count(),
            0,
            "{b:?}"
        );
    }
}

#[test]
fn support_last_case_of_a_killed_run_is_not_lost() {
    let a = [
        trial(1, "engine:1", "passed"),
        trial(1, "engine:2", "passed"),
    ];
    let mut killed = run_of("0/1", vec![trial(1, "engine:1", "passed")]);
    let lost = |b: &Run| {
        let found = Diff::between(&run_of("0/1", a.to_vec()), b).unwrap();
        found.select(Subject::Support, Change::Lost).count()
    };
    assert_eq!(lost(&killed), 1);
    killed.environment.ending = None;
    assert_eq!(lost(&killed), 0);
}

#[test]
fn support_of_runs_without_common_cases_needs_many_declined_trials() {
    let a = [trial(1, "engine:1", "passed")];
    let declined = |n: i64| (100..100 + n).map(|i| trial(i, "engine:1", "skipped:not_supported"));
    let few: Vec<_> = declined(29).collect();
    let many: Vec<_> = declined(30).collect();
    assert_eq!(said(&diff(&a, &few)), []);
    let lost = (Subject::Support, Change::Lost, "engine:1");
    assert_eq!(said(&diff(&a, &many)), [lost]);
}

#[test]
fn errors_on_the_same_trials_change_by_a_factor_of_two() {
    let a = [measured(1, "host:a", 3.0)];
    let against = |ulp| diff(&a, &[measured(1, "host:a", ulp)]);
    assert_eq!(said(&against(5.9)), []);
    assert_eq!(
        said(&against(6.0)),
        [(Subject::Error, Change::Worse, "host:a")]
    );
    assert_eq!(
        said(&against(0.0)),
        [(Subject::Error, Change::Better, "host:a")]
    );
    assert_eq!(against(6.0).differences[0].factor, Some(2.0));
    // Worse, and still within an ulp: as good as before.
    assert_eq!(
        said(&diff(
            &[measured(1, "host:a", 0.1)],
            &[measured(1, "host:a", 0.9)]
        )),
        []
    );
    let endless = [measured(1, "host:a", f64::INFINITY)];
    assert_eq!(said(&diff(&endless, &endless)), []);
}

#[test]
fn errors_on_other_trials_need_many_and_a_factor_of_four() {
    let many = |from: i64, ulp: f64| (from..from + 30).map(move |i| measured(i, "host:a", ulp));
    let a: Vec<_> = many(0, 2.0).collect();
    let worse: Vec<_> = many(100, 8.0).collect();
    assert_eq!(
        said(&diff(&a, &worse)),
        [(Subject::Error, Change::Worse, "host:a")]
    );
    assert_eq!(said(&diff(&a, &worse[1..])), []);
    let noise: Vec<_> = many(100, 7.9).collect();
    assert_eq!(said(&diff(&a, &noise)), []);
}

#[test]
fn findings_are_told_by_signature_and_say_what_the_other_run_did() {
    let a = [
        trial(1, "engine:1", "passed"),
        trial(2, "engine:1", "passed"),
    ];
    let b = [
        trial(1, "engine:1", "failed:mismatch"),
        trial(2, "engine:1", "failed:mismatch"),
    ];
    let found = diff(&a, &b);
    assert_eq!(said(&found), [(Subject::Finding, Change::New, "engine:1")]);
    let new = &found.differences[0];
    assert_eq!(
        (&*new.what, &*new.a, &*new.b),
        ("mismatch", "passed", "2 trials")
    );
    assert_eq!(
        said(&diff(&b, &a)),
        [(Subject::Finding, Change::Gone, "engine:1")]
    );
    let unseen = diff(&[trial(3, "engine:1", "passed")], &b);
    assert_eq!(unseen.differences[0].a, "not run");
}

#[test]
fn findings_do_not_depend_on_places_in_heuristics() {
    let failed = |notes: &str| TrialRecord {
        verdict: "failed".to_owned(),
        reason: Some("mismatch".to_owned()),
        ..noted(1, "engine:1", notes)
    };
    let a = failed("TENSOR_CORE+heur_a:1");
    assert_eq!(
        said(&diff(
            std::slice::from_ref(&a),
            &[failed("TENSOR_CORE+heur_a:4+heur_b:0")]
        )),
        []
    );
    // The same trial under other notes is the same finding; another trial is not.
    let renamed = diff(std::slice::from_ref(&a), &[failed("FFT")]);
    assert_eq!(renamed.select(Subject::Finding, Change::New).count(), 0);
    let elsewhere = TrialRecord {
        notes: "FFT".to_owned(),
        ..trial(2, "engine:1", "failed:mismatch")
    };
    let other = diff(&[a], &[elsewhere]);
    assert_eq!(other.select(Subject::Finding, Change::New).count(), 1);
}

#[test]
fn engines_with_other_notes_changed_meaning_and_are_found_again() {
    let a = [
        noted(1, "engine:1", "TENSOR_CORE+heur_a:3"),
        noted(1, "engine:2", "WINOGRAD"),
    ];
    let b = [
        noted(1, "engine:1", "FFT"),
        noted(1, "engine:2", "WINOGRAD+heur_a:0"),
        noted(1, "engine:3", "TENSOR_CORE"),
    ];
    let found = diff(&a, &b);
    let engines: Vec<_> = found.select(Subject::Engine, Change::Changed).collect();
    assert_eq!(engines.len(), 1);
    assert_eq!(
        (&*engines[0].candidate, &*engines[0].b),
        ("engine:1", "FFT")
    );
    assert!(
        engines[0].detail.contains("engine:3 looks like it"),
        "{:?}",
        engines[0]
    );
}

#[test]
fn engines_without_a_common_configuration_are_unsure_and_knobs_tell_them_apart() {
    let a = [noted(1, "engine:1/2=1", "A")];
    let elsewhere = TrialRecord {
        layout: "nhwc".to_owned(),
        ..noted(2, "engine:1", "A")
    };
    let found = diff(&a, &[elsewhere]);
    assert_eq!(found.select(Subject::Engine, Change::Unsure).count(), 1);
    let knobs = diff(&a, &[noted(1, "engine:1/5=1", "A")]);
    assert_eq!(knobs.select(Subject::Engine, Change::Changed).count(), 1);
    let same = diff(&a, &[noted(1, "engine:1/2=9", "A")]);
    assert_eq!(said(&same), []);
}

#[test]
fn engines_are_listed_in_the_order_of_their_numbers() {
    let names = ["engine:2", "engine:10", "engine:9"];
    let runs: Vec<_> = names.iter().map(|n| trial(1, n, "passed")).collect();
    let gone: Vec<_> = names
        .iter()
        .map(|n| trial(1, n, "skipped:not_supported"))
        .collect();
    let found = diff(&runs, &gone);
    let listed: Vec<_> = found.differences.iter().map(|d| &*d.candidate).collect();
    assert_eq!(listed, ["engine:2", "engine:9", "engine:10"]);
}

/// Trials with every end, of few cases and candidates so that runs overlap.
fn any_trials() -> impl Strategy<Value = Vec<TrialRecord>> {
    let candidate = prop::sample::select(vec!["engine:1", "engine:2", "legacy:0/fma", "host:a"]);
    let end = prop::sample::select(vec![
        "passed",
        "passed",
        "failed:mismatch",
        "failed:wrong_nan",
        "skipped:not_supported",
        "skipped:out_of_memory",
        "crashed",
    ]);
    let notes = prop::sample::select(vec!["", "TENSOR_CORE", "WINOGRAD+heur_a:1"]);
    let ulp = prop::sample::select(vec![0.5, 1.0, 1.5, 3.0, 8.0, f64::INFINITY]);
    let one = (0..6_i64, candidate, end, notes, ulp);
    prop::collection::btree_map((0..6_i64, 0..4_usize), one, 0..24).prop_map(|map| {
        let made = map
            .into_iter()
            .map(|((case, number), (_, candidate, end, notes, ulp))| {
                let mut trial = trial(case, candidate, end);
                trial.trial = number as u32;
                trial.notes = notes.to_owned();
                trial.max_ulp = (end == "passed").then_some(ulp);
                trial
            });
        let mut seen = BTreeSet::new();
        made.filter(|t| seen.insert(t.repro.clone())).collect()
    })
}

/// What a difference says, with A and B exchanged if asked.
fn facts(diff: &Diff, exchanged: bool) -> BTreeSet<String> {
    let both_ways = |d: &&Difference| d.subject != Subject::Engine;
    let fact = |d: &Difference| {
        let (change, a, b) = match exchanged {
            true => (d.change.reversed(), &d.b, &d.a),
            false => (d.change, &d.a, &d.b),
        };
        let place = (d.configuration(), &d.candidate, &d.what);
        format!("{:?} {change:?} {place:?} {a} {b}", d.subject)
    };
    diff.differences
        .iter()
        .filter(both_ways)
        .map(fact)
        .collect()
}

proptest! {
    #[test]
    fn diff_of_a_run_with_itself_is_empty(a in any_trials()) {
        prop_assert_eq!(diff(&a, &a).differences, vec![]);
    }

    #[test]
    fn diff_the_other_way_round_says_the_reverse(a in any_trials(), b in any_trials()) {
        prop_assert_eq!(facts(&diff(&a, &b), false), facts(&diff(&b, &a), true));
    }

    #[test]
    fn join_in_any_order_gives_the_whole(
        trials in any_trials(),
        count in 1..5_u32,
        order in Just(vec![0_u32, 1, 2, 3]).prop_shuffle(),
    ) {
        let shard = |index: u32| {
            let mine = |t: &&TrialRecord| t.case % i64::from(count) == i64::from(index);
            run_of(&format!("{index}/{count}"), trials.iter().filter(mine).cloned().collect())
        };
        let shards = order.into_iter().filter(|&i| i < count).map(shard).collect();
        let joined = merge::join(shards).unwrap();
        prop_assert_eq!(joined.trials, trials);
        prop_assert_eq!(&joined.environment.options["shard"], "0/1");
    }
}

/// Joining `shards` is refused with all of `words`.
fn expect_refusal(shards: Vec<Run>, words: &[&str]) {
    let error = merge::join(shards).unwrap_err();
    assert_eq!(error.exit_code(), 2);
    for word in words {
        assert!(error.to_string().contains(word), "{word:?} not in {error}");
    }
}

#[test]
fn join_what_is_not_one_campaign_is_refused_in_clear_words() {
    let shard = |text: &str| run_of(text, vec![]);
    let changed = |change: &dyn Fn(&mut Environment)| {
        let mut run = shard("1/2");
        change(&mut run.environment);
        vec![shard("0/2"), run]
    };
    expect_refusal(vec![], &["no shards"]);
    expect_refusal(vec![shard("0/3"), shard("2/3")], &["missing", "1/3"]);
    expect_refusal(vec![shard("0/2"), shard("0/2")], &["both shard 0/2"]);
    expect_refusal(
        vec![shard("0/2"), shard("1/3")],
        &["0/2", "1/3", "differently"],
    );
    expect_refusal(changed(&|e| e.seed = 8), &["seed", "7", "8"]);
    expect_refusal(
        changed(&|e| e.combination.cudnn = "9.1".to_owned()),
        &["cudnn", "9.1"],
    );
    expect_refusal(
        changed(&|e| e.options["cases"] = 10.into()),
        &["option cases", "9", "10"],
    );
    expect_refusal(changed(&|e| e.ending = None), &["not finished", "--resume"]);
    expect_refusal(changed(&|e| e.options["shard"] = "x".into()), &["shard"]);
    let stray = run_of("1/2", vec![trial(2, "host:a", "passed")]);
    expect_refusal(vec![shard("0/2"), stray], &["1/2", "case 2"]);
    merge::join(changed(&|e| e.options["jobs"] = 3.into())).unwrap();
}

// The documents.

const DOCUMENT: &str = include_str!("../results/README.md");

/// First cells of the table in the section headed `name`.
fn documented(name: &str) -> Vec<String> {
    let (_, section) = DOCUMENT
        .split_once(&format!("## {name}\n"))
        .expect("a section");
    let section = section.split("\n## ").next().unwrap_or(section);
    let cell = |line: &str| Some(line.strip_prefix("| `")?.split_once('`')?.0.to_owned());
    section.lines().filter_map(cell).collect()
}

#[test]
fn document_csv_columns_are_those_written() {
    assert_eq!(documented("diff --csv"), columns::<Difference>().unwrap());
    let mut matrix = documented("matrix --csv");
    matrix.extend(columns::<matrix::Row>().unwrap().into_iter().skip(1));
    assert_eq!(matrix, Combined::columns().unwrap());
}

// The program from outside.

fn convfuzz(arguments: &[&str]) -> Output {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("convfuzz"));
    // Not in the repository, whose regressions a run would replay.
    command.current_dir(std::env::temp_dir());
    command.args(arguments).env_remove("CONVFUZZ_LOG");
    command.output().expect("the program starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn name(path: &Path) -> &str {
    path.to_str().expect("temporary paths are UTF-8")
}

/// Runs, and expects this exit code; the answer is what was printed.
fn expect(arguments: &[&str], code: i32) -> String {
    let output = convfuzz(arguments);
    assert_eq!(
        output.status.code(),
        Some(code),
        "{arguments:?}: {}",
        text(&output.stderr)
    );
    text(&output.stdout)
}

/// Runs, and expects one clear line with all of `words`.
fn expect_error(arguments: &[&str], words: &[&str]) {
    let output = convfuzz(arguments);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    for word in words {
        assert!(said.contains(word), "{word:?} not in {said}");
    }
}

/// A run of six small cases on the host, in `parent/place`.
fn fuzz(parent: &TempDir, place: &str, more: &[&str], code: i32) -> PathBuf {
    let out = parent.path().join(place);
    let words = "fuzz --quiet --backend host --max-macs 20000 --jobs 2 --seed 5 --cases 6 --out";
    let fixed: Vec<_> = words.split(' ').chain([name(&out)]).collect();
    expect(&[&fixed[..], more].concat(), code);
    out
}

/// The trials of a folder without the columns of time, in words: NaN is not
/// equal to itself, its text is.
fn untimed(folder: &Path) -> Vec<String> {
    let mut trials = read::trials(&folder.join(folder::TRIALS)).unwrap();
    for trial in &mut trials {
        (trial.library_ms, trial.own_ms) = (None, None);
    }
    trials.iter().map(|t| format!("{t:?}")).collect()
}

#[test]
fn diff_of_a_planted_fault_is_new_one_way_and_gone_the_other() {
    let parent = TempDir::new().unwrap();
    let clean = fuzz(&parent, "clean", &[], 0);
    let broken = fuzz(&parent, "broken", &["--fault", "slice_lost"], 1);
    let csv = parent.path().join("diff.csv");
    let report = expect(
        &["diff", name(&clean), name(&broken), "--csv", name(&csv)],
        1,
    );
    assert!(
        report.contains("## New findings (") && !report.contains("Support lost ("),
        "{report}"
    );
    let mut rows = csv::Reader::from_path(&csv).unwrap();
    let rows: Vec<Difference> = rows.deserialize().collect::<Result<_, _>>().unwrap();
    let new: Vec<_> = rows.iter().filter(|d| d.change == Change::New).collect();
    assert!(!new.is_empty());
    for difference in new {
        assert_eq!(difference.a, "passed", "{difference:?}");
        assert!(difference.repro.ends_with("!slice_lost"), "{difference:?}");
    }
    let back = expect(
        &["diff", name(&broken), name(&clean), "--format", "table"],
        0,
    );
    assert!(back.contains("Findings gone"), "{back}");
    let header = columns::<Difference>().unwrap().join(",");
    let nothing = expect(&["diff", name(&clean), name(&clean), "--format", "csv"], 0);
    assert_eq!(nothing.trim_end(), header);
}

#[test]
fn merge_of_shards_is_the_run_in_one_piece_and_matrix_counts_both() {
    let parent = TempDir::new().unwrap();
    let whole = fuzz(&parent, "whole", &[], 0);
    let shards = ["0/2", "1/2"].map(|s| fuzz(&parent, &s.replace('/', "-"), &["--shard", s], 0));
    let merged = parent.path().join("merged");
    let merge = [
        "merge",
        "--out",
        name(&merged),
        name(&shards[1]),
        name(&shards[0]),
    ];
    expect(&merge, 0);
    assert_eq!(untimed(&merged), untimed(&whole));
    let matrix = |folder: &Path| fs::read(folder.join(folder::MATRIX)).unwrap();
    assert_eq!(text(&matrix(&merged)), text(&matrix(&whole)));
    assert!(expect(&["diff", name(&whole), name(&merged)], 0).contains("0 lost"));
    expect_error(&merge[..4], &["missing shards: 0/2"]);

    let markdown = parent.path().join("matrix.md");
    let csv = expect(
        &[
            "matrix",
            name(&whole),
            name(&merged),
            "--markdown",
            name(&markdown),
        ],
        0,
    );
    let mut csv = csv::Reader::from_reader(csv.as_bytes());
    let place = |column: &str| {
        csv::StringRecord::from(Combined::columns().unwrap())
            .iter()
            .position(|c| c == column)
    };
    let trials = place("trials").unwrap();
    let counted = csv
        .records()
        .map(|row| row.unwrap()[trials].parse::<usize>().unwrap());
    assert_eq!(counted.sum::<usize>(), 2 * untimed(&whole).len());
    assert!(
        fs::read_to_string(&markdown)
            .unwrap()
            .starts_with("## backend host, device")
    );
    expect_error(&["matrix", name(&whole), name(&whole)], &["same folder"]);
}

#[test]
fn what_is_no_results_folder_is_one_clear_error() {
    let parent = TempDir::new().unwrap();
    let good = fuzz(&parent, "good", &[], 0);
    let absent = parent.path().join("absent");
    expect_error(
        &["diff", name(&good), name(&absent)],
        &["no folder", "absent"],
    );
    expect_error(&["matrix", name(parent.path())], &["not a results folder"]);

    let trials = fs::read_to_string(good.join(folder::TRIALS)).unwrap();
    let cut = trials.len() * 2 / 3;
    fs::write(good.join(folder::TRIALS), &trials[..cut]).unwrap();
    expect_error(&["matrix", name(&good)], &["damaged", "trials.csv"]);
    fs::write(good.join(folder::TRIALS), &trials).unwrap();

    let environment = fs::read_to_string(good.join(folder::ENVIRONMENT)).unwrap();
    let now = format!("\"schema\": {}", convfuzz::record::SCHEMA);
    let newer = environment.replacen(&now, "\"schema\": 99", 1);
    fs::write(good.join(folder::ENVIRONMENT), newer).unwrap();
    expect_error(
        &["merge", "--out", name(&absent), name(&good)],
        &["schema 99"],
    );
    assert!(!absent.exists());
}
