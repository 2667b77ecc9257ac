//! From a failure to its bundle and back, through the program, on faults planted
//! in the host backend.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use convfuzz::report::bundle::CaseFile;
use serde_json::Value;
use tempfile::TempDir;

const SEED_1: &str = "fwd n=2 c=512 k=128 in=4x2x2 ker=3x1x1 pad=1x0x0 type=fp16 fill=normal:5 \
                      via=host:gemm!conv3d_8x8";

fn run(arguments: &[&str]) -> Output {
    Command::new(assert_cmd::cargo::cargo_bin!("convfuzz"))
        .current_dir(std::env::temp_dir())
        .args(arguments)
        .env_remove("CONVFUZZ_LOG")
        .output()
        .expect("the program starts")
}

/// Exit code, stdout, stderr.
fn host(arguments: &[&str]) -> (i32, String, String) {
    let output = run(&[arguments, &["--backend", "host"]].concat());
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let code = output.status.code().expect("no signal");
    (code, text(&output.stdout), text(&output.stderr))
}

fn path_text(path: &Path) -> &str {
    path.to_str().expect("temporary paths are UTF-8")
}

/// A bundle of the seed-1 fault.
fn bundle(parent: &TempDir) -> PathBuf {
    let line = "fwd n=2 c=16 k=8 in=4x2x2 ker=3x1x1 pad=1x0x0 type=fp16 fill=normal:5 \
                via=host:gemm!conv3d_8x8";
    bundle_of(parent, line, "in")
}

/// The bundle of a trial shrunk with a field kept.
fn bundle_of(parent: &TempDir, line: &str, keep: &str) -> PathBuf {
    let out = parent.path().join("bundle");
    let (code, said, errors) = host(&[
        "shrink",
        line,
        "--keep",
        keep,
        "--trigger-trials",
        "0",
        "--out",
        path_text(&out),
    ]);
    assert_eq!(code, 1, "{said}{errors}");
    out
}

#[test]
fn shrink_reporters_channels_are_kept_and_the_bundle_says_it_all() {
    let parent = tempfile::tempdir().unwrap();
    let out = bundle_of(&parent, SEED_1, "c,k");
    let case = CaseFile::read(&out).unwrap();
    assert_eq!(
        case.repro,
        "fwd c=512 k=128 in=3x1x1 ker=3x1x1 type=fp16 fill=impulse:0 via=host:gemm!conv3d_8x8"
    );
    assert_eq!(case.class, "wrong_value");
    assert_eq!(case.data.expect("reduced").len(), 2);
    let page = fs::read_to_string(out.join("report.md")).unwrap();
    assert!(page.contains("Found as `fwd n=2 c=512"), "{page}");
    for file in [
        "x.npy",
        "w.npy",
        "y_expected.npy",
        "y_actual.npy",
        "y_bound.npy",
    ] {
        let bytes = fs::read(out.join(file)).unwrap();
        assert_eq!(&bytes[..6], b"\x93NUMPY", "{file}");
    }
}

#[test]
fn shrink_json_is_the_same_twice_and_has_the_condition_as_data() {
    let line = "fwd c=24 k=16 in=4x2x2 ker=3x1x1 pad=1x0x0 type=fp16 fill=normal:5 \
                via=host:gemm!conv3d_8x8";
    let arguments = ["shrink", "--json", line];
    let (code, first, errors) = host(&arguments);
    assert_eq!(code, 1, "{errors}");
    assert_eq!(first, host(&arguments).1);
    let json: Value = serde_json::from_str(&first).unwrap();
    assert_eq!(
        json["condition"],
        "c % 8 == 0 and k % 8 == 0 and kernel == (3,1,1) and type == fp16"
    );
    assert_eq!(
        json["trigger"]["clauses"][0]["clause"]["test"]["multiple"],
        8
    );
    assert_eq!(json["trigger"]["check"]["false_fail"], 0);
}

#[test]
fn shrink_what_does_not_fail_ends_with_0_and_what_is_no_trial_with_2() {
    let (code, said, _) = host(&["shrink", "fwd c=2 k=2 in=4 ker=3 fill=ints:1 via=host:gemm"]);
    assert_eq!(code, 0);
    assert!(said.contains("does not fail here"), "{said}");
    let (code, _, errors) = host(&["shrink", "fwd c=2 k=2 in=4 ker=3 fill=ints:1"]);
    assert_eq!(code, 2);
    assert!(errors.contains("add via="), "{errors}");
    let (code, _, errors) = host(&["shrink", SEED_1, "--keep", "colour"]);
    assert_eq!(code, 2);
    assert!(errors.contains("unknown field 'colour'"), "{errors}");
}

#[test]
fn repro_says_fails_fixed_flaky_and_cannot_run() {
    let parent = tempfile::tempdir().unwrap();
    let out = bundle(&parent);
    let (code, said, errors) = host(&["repro", path_text(&out)]);
    assert_eq!(code, 1, "{said}{errors}");
    assert!(said.contains("fails: 5 of 5 runs failed"), "{said}");

    let file = out.join("case.toml");
    let text = fs::read_to_string(&file).unwrap();
    let with = |from: &str, to: &str| {
        assert!(text.contains(from));
        fs::write(&file, text.replace(from, to)).unwrap();
        host(&["repro", path_text(&file), "--runs", "60"])
    };
    // The library that no longer has the fault.
    let (code, said, _) = with("!conv3d_8x8", "");
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("fixed: 0 of 60"), "{said}");
    let (code, said, _) = with("!conv3d_8x8", "!race_rare");
    assert_eq!(code, 4, "{said}");
    assert!(said.contains("flaky: "), "{said}");
    let (code, _, errors) = with("host:gemm!conv3d_8x8", "host:gemm_tf32");
    assert_eq!(code, 3, "{errors}");
    assert!(errors.contains("cannot be run here"), "{errors}");
    let (code, _, errors) = with("host:gemm!conv3d_8x8", "host:nothing");
    assert_eq!(code, 2, "{errors}");
}

#[test]
fn repro_broken_bundles_are_told_apart() {
    let parent = tempfile::tempdir().unwrap();
    let out = bundle(&parent);
    let file = out.join("case.toml");
    let text = fs::read_to_string(&file).unwrap();
    let refused = |text: &str, words: &str| {
        fs::write(&file, text).unwrap();
        let (code, _, errors) = host(&["repro", path_text(&out)]);
        assert_eq!(code, 2, "{errors}");
        assert!(errors.contains(words), "no '{words}' in {errors}");
    };
    refused(
        &text.replace("schema = 2", "schema = 3"),
        "use the convfuzz that wrote it",
    );
    refused(&text[..text.len() / 2], "edited or cut short");
    refused(&text.replace("fwd ", "sideways "), "sideways");
    refused(&text.replace("[data]", "[date]"), "unknown field `date`");
    refused(
        &text.replace("first = [[", "first = [[99999999, 1.0], ["),
        "is outside its",
    );
    fs::write(&file, &text).unwrap();
    fs::remove_file(out.join("x.npy")).unwrap();
    refused(&text, "x.npy cannot be read");
    fs::remove_file(&file).unwrap();
    let (code, _, errors) = host(&["repro", path_text(&out)]);
    assert_eq!(code, 2);
    assert!(errors.contains("case.toml: cannot be read"), "{errors}");
}

#[test]
fn fuzz_findings_are_minimised_and_bundled() {
    let parent = tempfile::tempdir().unwrap();
    let out = parent.path().join("run");
    let (code, said, errors) = host(&[
        "fuzz",
        "--fault",
        "alpha_ignored",
        "--cases",
        "25",
        "--seed",
        "1",
        "--max-macs",
        "20000",
        "--fill",
        "ints",
        "--jobs",
        "2",
        "--minimize",
        "1",
        "--out",
        path_text(&out),
    ]);
    assert_eq!(code, 1, "{said}{errors}");
    let line = "fwd c=1 k=1 in=1 ker=1 alpha=-1 fill=const:0 via=host:gemm!alpha_ignored";
    assert!(said.contains(line), "{said}");
    assert!(said.contains("fails when alpha != 1"), "{said}");
    let index = fs::read_to_string(out.join("findings/index.md")).unwrap();
    assert!(
        index.contains(line) && index.contains("report.md"),
        "{index}"
    );
    let bundles = fs::read_dir(out.join("findings")).unwrap();
    let cases = bundles.filter(|e| e.as_ref().unwrap().path().join("case.toml").exists());
    assert_eq!(cases.count(), 1);
}

#[test]
fn explain_names_the_cause_and_shows_the_order_of_a_sum() {
    let (code, said, errors) = host(&[
        "explain",
        "fwd c=8 k=8 in=5x5 ker=3x3 pad=1x1 fill=ints:1 via=host:gemm!padding_garbage",
    ]);
    assert_eq!(code, 1, "{errors}");
    assert!(
        said.contains("padding is not zero: 1; bit for bit"),
        "{said}"
    );
    let line = "fwd c=48 k=1 in=1 ker=1 type=fp16 fill=ints:1 via=host:tensor_ampere";
    let (code, said, errors) = host(&["explain", "--tree", "--json", line]);
    assert_eq!(code, 0, "{errors}");
    let json: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(json["verdict"], "passed");
    assert_eq!(json["explanation"], Value::Null);
    assert_eq!(
        json["tree"]["shape"], "blocks of 8 added at once to what came before",
        "{json:#}"
    );
    let large = "fwd c=200 k=1 in=1 ker=1 fill=ints:1 via=host:gemm";
    let (code, _, errors) = host(&["explain", "--tree", large]);
    assert_eq!(code, 2);
    assert!(errors.contains("give a smaller problem"), "{errors}");
}

/// Arguments of a run whose fault shows in the channels-last form of each case alone.
const OTHER_FORM: [&str; 11] = [
    "fuzz",
    "--fault",
    "spoiled_channels_last",
    "--layout",
    "nchw",
    "--cases",
    "120",
    "--seed",
    "3",
    "--max-macs",
    "20000",
];

#[test]
fn disagreeing_forms_come_down_to_the_form_that_is_wrong() {
    let parent = tempfile::tempdir().unwrap();
    let out = parent.path().join("run");
    let options = ["--minimize", "3", "--out", path_text(&out)];
    let (code, said, errors) = host(&[&OTHER_FORM[..], &options].concat());
    assert_eq!(code, 1, "{said}{errors}");
    let line =
        "fwd c=1 k=1 in=1 ker=1 layout=nhwc fill=const:0 via=host:gemm!spoiled_channels_last";
    assert!(said.contains(line), "{said}");
    assert!(said.contains("fails when layout == nhwc"), "{said}");
    assert!(said.contains("3 findings came down to this"), "{said}");
}

#[test]
fn what_time_leaves_is_bundled_as_it_was_found_and_reproduces() {
    let parent = tempfile::tempdir().unwrap();
    let out = parent.path().join("run");
    let options = ["--minimize", "3", "--minimize-time", "1ms", "--json"];
    let (code, said, errors) =
        host(&[&OTHER_FORM[..], &options, &["--out", path_text(&out)]].concat());
    assert_eq!(code, 1, "{said}{errors}");
    let json: Value = serde_json::from_str(&said).unwrap();
    let minimized = json["minimized"].as_array().unwrap();
    assert_eq!(minimized.len(), 3, "{said}");
    for entry in minimized {
        assert!(
            entry["class"].is_string() && entry["rate"].is_null(),
            "{entry}"
        );
        let bundle = entry["bundle"].as_str().unwrap();
        let (code, said, errors) = host(&["repro", bundle]);
        assert_eq!(code, 1, "{said}{errors}");
    }
    let index = fs::read_to_string(out.join("findings/index.md")).unwrap();
    assert_eq!(
        index.matches("bundled as it was found").count(),
        3,
        "{index}"
    );
}
