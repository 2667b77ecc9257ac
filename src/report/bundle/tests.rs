//! What a bundle's files say, for candidates of cuDNN that cannot be run here.

use std::process::Command;

use super::*;
use crate::minimize::Minimized;
use crate::record::TrialRecord;

/// Calls `render` with a bundle of a trial whose result is 0, 1, 2, …
pub(super) fn with_bundle<T>(line: &str, render: impl FnOnce(&Bundle<'_>) -> T) -> T {
    let repro: Repro = line.parse().unwrap();
    let inputs = Inputs::generate(&repro.problem, repro.fill);
    let dims = repro.problem.dims(repro.problem.direction.result());
    let outputs: usize = dims.iter().product();
    let actual = Tensor::from_fn(repro.problem.result_type(), &dims, |i| i as f64);
    let combination = Combination {
        device: "NVIDIA H200".to_owned(),
        cudnn: "9.19.0".to_owned(),
        ..Combination::default()
    };
    let minimized = minimized(&repro);
    render(&Bundle {
        repro: &repro,
        combination: &combination,
        detail: "1 of 2 outputs wrong",
        inputs: &inputs,
        expected: &vec![1.5; outputs],
        bound: &vec![0.0; outputs],
        actual: &actual,
        nondeterministic: false,
        class: "wrong_value",
        notes: "TENSOR_CORE+heur_a:0",
        data: minimized.data.as_ref(),
        minimized: Some(&minimized),
        attribution: Some("The tail of 8 channels is missing."),
    })
}

fn minimized(repro: &Repro) -> Minimized {
    let data = DataPatch {
        first: vec![(1, 1.0), (2, f64::INFINITY)],
        second: vec![(0, 2.0)],
        prior: Vec::new(),
    };
    let rate = Rate { failed: 5, of: 5 };
    Minimized {
        start: "fwd c=64 k=64 in=9 ker=3 via=engine:3".parse().unwrap(),
        start_rate: rate,
        class: "wrong_value".to_owned(),
        repro: repro.clone(),
        data: Some(data),
        rate,
        trials: 123,
        exhausted: false,
        trigger: None,
        record: TrialRecord::default(),
    }
}

const LINES: [&str; 4] = [
    "fwd c=2 k=2 in=3x3 ker=1x1 type=fp16 fill=ints:1 via=engine:47/2=4/13=1",
    "bwd_data c=2 k=2 in=3 ker=1 type=bf16 layout=nhwc beta=2 fill=ints:1 via=engine:4",
    "bwd_filter c=2 k=2 in=3x3x3 ker=1x1x1 type=fp64 fill=ints:1 via=legacy:1/fma",
    "fwd c=2 k=2 in=3 ker=1 fill=ints:1 via=legacy:0/default",
];

#[test]
fn page_says_what_where_when_and_how() {
    let page = with_bundle(LINES[0], |b| page::render(b, true));
    for words in [
        "# Wrong values in fwd (2D, fp16, nchw) by engine:47/2=4/13=1",
        "| GPU | NVIDIA H200 |",
        "Engine 47 of the graph API with knobs 2 = 4, 13 = 1",
        "nvcc -std=c++17",
        "convfuzz repro case.toml",
        "| x | fp16 | (1, 2, 3, 3) | (18, 9, 3, 1) |",
        "- x[0,0,0,1] = 1.0, x[0,0,0,2] = inf",
        "| [0,0,0,0] | 1.5 | 0.0 | 0.000e0 |",
        "18 of 18 outputs are wrong",
        "The tail of 8 channels is missing.",
        "It declares: TENSOR_CORE.",
        "mode:rank from 0 = first choice: a:0.",
        "minimised in 123 trials",
        "`cudnn.log`",
        "Of 5 runs 5 failed.",
    ] {
        assert!(page.contains(words), "no '{words}' in\n{page}");
    }
    assert!(!page.contains("When it happens"));
}

/// Python's own compiler, where there is one.
#[test]
fn script_of_every_kind_is_python() {
    let folder = tempfile::tempdir().unwrap();
    for line in LINES {
        let script = with_bundle(line, python::render);
        let canonical = line.parse::<Repro>().unwrap().to_string();
        assert!(script.contains(&canonical), "{script}");
        let path = folder.path().join("repro.py");
        fs::write(&path, script).unwrap();
        match Command::new("python3")
            .arg("-m")
            .arg("py_compile")
            .arg(&path)
            .output()
        {
            Ok(output) => assert!(
                output.status.success(),
                "{}",
                String::from_utf8_lossy(&output.stderr)
            ),
            Err(e) => eprintln!("not compiled: python3 does not start ({e})"),
        }
    }
}

#[test]
fn script_of_an_engine_names_numbers_of_the_direction() {
    let script = with_bundle(LINES[1], python::render);
    assert!(script.contains("make(12,"), "{script}");
    assert!(script.contains("(709, DESCRIPTOR"));
    assert!(script.contains("1301, INT64, i64([4])"));
    let knobs = with_bundle(LINES[0], python::render);
    assert!(knobs.contains("[(2, 4), (13, 1)]"), "{knobs}");
    // The legacy API has no 1D convolutions.
    assert!(script.contains("[1, 2, 3], [6, 1, 2]"), "{script}");
    let legacy = with_bundle(LINES[3], python::render);
    assert!(legacy.contains("[1, 2, 1, 3], [6, 3, 3, 1]"), "{legacy}");
}

fn case_file(line: &str) -> CaseFile {
    with_bundle(line, |b| b.case_file())
}

#[test]
fn case_file_round_trips_with_infinite_data() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("case.toml");
    let case = case_file(LINES[3]);
    fs::write(&path, case.text()).unwrap();
    assert_eq!(CaseFile::read(&path).unwrap(), case);
    assert_eq!(CaseFile::read(folder.path()).unwrap(), case);
    assert_eq!(case.data.unwrap().first[1], (2, f64::INFINITY));
}

#[test]
fn case_file_of_version_1_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("case.toml");
    let text = "schema = 1\nrepro = \"fwd c=1 k=1 in=1 ker=1 via=engine:4\"\ndetail = \"x\"\n\
                [combination]\nbackend = \"cudnn\"\ndevice = \"\"\nsm = \"\"\ndriver = \"\"\n\
                cudnn = \"\"\ncuda = \"\"\nconvfuzz = \"\"\n";
    fs::write(&path, text).unwrap();
    let case = CaseFile::read(&path).unwrap();
    assert_eq!((case.schema, case.data, case.rate), (1, None, None));
    for (change, to, words) in [
        ("schema = 1", "schema = 9", "use the convfuzz that wrote it"),
        ("schema = 1", "scheme = 1", "missing field `schema`"),
        ("detail = \"x\"\n", "", "missing field `detail`"),
        ("detail", "extra = 1\ndetail", "unknown field `extra`"),
        ("fwd c=1", "sideways", "sideways"),
        (" via=engine:4", "", "add via="),
    ] {
        fs::write(&path, text.replacen(change, to, 1)).unwrap();
        let error = CaseFile::read(&path).and_then(|c| c.trial()).unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
        assert_eq!(error.exit_code(), 2);
    }
}

#[test]
fn check_tensors_names_what_is_missing_cut_short_or_edited() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("case.toml");
    let case = case_file(LINES[3]);
    // Alone it needs no tensors.
    case.check_tensors(&file).unwrap();
    let inputs = case.inputs().unwrap();
    write_tensor(&folder.path().join("x.npy"), &inputs.first).unwrap();
    let why = |case: &CaseFile| case.check_tensors(&file).unwrap_err().to_string();
    assert!(
        why(&case).contains("w.npy cannot be read"),
        "{}",
        why(&case)
    );
    let path = folder.path().join("w.npy");
    write_tensor(&path, &inputs.second).unwrap();
    case.check_tensors(&file).unwrap();
    let mut bytes = fs::read(&path).unwrap();
    let last = bytes.pop().unwrap();
    fs::write(&path, &bytes).unwrap();
    assert!(why(&case).contains("w.npy is cut short"), "{}", why(&case));
    bytes.push(last ^ 1);
    fs::write(&path, &bytes).unwrap();
    assert!(why(&case).contains("w.npy does not hold"), "{}", why(&case));
}
