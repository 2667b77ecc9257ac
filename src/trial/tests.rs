//! Whole cases on the host backend.

use super::*;
use crate::backend::host::{HostBackend, HostOptions};

fn records(line: &str, fault: Option<&str>) -> Vec<TrialRecord> {
    records_with(line, fault, &TrialOptions::default())
}

fn records_with(line: &str, fault: Option<&str>, options: &TrialOptions) -> Vec<TrialRecord> {
    let host = HostOptions {
        fault: fault.map(str::to_owned),
    };
    let mut backend = HostBackend::new(&host).unwrap();
    let mut records = Vec::new();
    let mut starting = 0;
    run_case(
        &mut backend,
        &line.parse().unwrap(),
        options,
        &mut |event| match event {
            Event::Starting(_) => starting += 1,
            Event::Judged(_) => assert!(starting > 0),
            Event::Done(record) => records.push(record),
        },
    )
    .unwrap();
    records
}

#[test]
fn run_case_records_every_candidate_once() {
    let records = records(
        "fwd c=8 k=8 in=9x9 ker=3x3 pad=1x1 type=fp16 fill=normal:1",
        None,
    );
    assert_eq!(records.len(), crate::backend::host::ALGORITHMS.len());
    for record in &records {
        let expected = match record.candidate.as_str() {
            "host:gemm_tf32" => "skipped",
            _ => "passed",
        };
        assert_eq!(record.verdict, expected, "{record:?}");
        let parsed: Repro = record.repro.parse().unwrap();
        assert_eq!(parsed.via.unwrap().to_string(), record.candidate);
    }
}

#[test]
fn run_case_known_record_stands_in_the_place_of_its_trial() {
    let line = "fwd c=8 k=8 in=9x9 ker=3x3 pad=1x1 type=fp16 fill=normal:1";
    let all = records(line, None);
    let place = all.iter().position(|r| r.verdict == "passed").unwrap() + 1;
    let stand_in = |candidate: &str| TrialRecord {
        candidate: candidate.to_owned(),
        verdict: "crashed".to_owned(),
        ..TrialRecord::default()
    };
    let options = TrialOptions {
        // One that is refused and one that nobody lists say nothing.
        known: vec![
            stand_in(&all[place].candidate),
            stand_in("host:gemm_tf32"),
            stand_in("host:none"),
        ],
        ..TrialOptions::default()
    };
    let again = records_with(line, None, &options);
    let names = |records: &[TrialRecord]| -> Vec<String> {
        records.iter().map(|r| r.candidate.clone()).collect()
    };
    assert_eq!(names(&again), names(&all));
    assert_eq!(again[place], options.known[0]);
    let crashed = again.iter().filter(|r| r.verdict == "crashed");
    assert_eq!(crashed.count(), 1);
}

#[test]
fn run_case_planted_fault_fails_its_carrier_alone() {
    let line = "fwd c=8 k=8 in=9x9 ker=3x3 pad=1x1 fill=ints:1";
    for record in records(line, Some("tap_dropped")) {
        let planted = record.candidate.ends_with("!tap_dropped");
        assert_eq!(record.verdict == "failed", planted, "{record:?}");
    }
}

#[test]
fn run_case_named_candidate_runs_alone_even_with_its_fault() {
    let line = "fwd c=8 k=8 in=9x9 ker=3x3 pad=1x1 fill=ints:1 via=host:gemm!taps_flipped";
    let records = records(line, None);
    assert_eq!(records.len(), 1);
    assert_eq!(records[0].reason.as_deref(), Some("mismatch"));
}

#[test]
fn run_case_unknown_candidate_is_named() {
    let mut backend = HostBackend::new(&HostOptions::default()).unwrap();
    let line = "fwd c=8 k=8 in=9 ker=3 via=legacy:1";
    let options = TrialOptions::default();
    let error = run_case(&mut backend, &line.parse().unwrap(), &options, &mut |_| ()).unwrap_err();
    assert_eq!(error.exit_code(), 2);
    assert!(error.to_string().contains("legacy:1"), "{error}");
}

/// Lines on which an honest algorithm was once reported: overflow inside a
/// transform spoils its neighbours.
#[test]
fn run_case_overflow_inside_transforms_is_no_failure() {
    for line in [
        "fwd c=13 k=13 in=16x3 ker=3x3 pad=1+3x0+1 g=13 fill=overflow:93393613",
        "fwd n=3 c=31 k=93 in=1x68 ker=1x1 g=31 layout=nhwc alpha=-1 fill=overflow:3897005440",
    ] {
        for record in records(line, None) {
            assert_ne!(record.verdict, "failed", "{record:?}");
        }
    }
}

#[test]
fn run_case_records_how_outputs_were_decided() {
    let decided = |line: &str| {
        let records = records(line, None);
        let ran: Vec<_> = records.iter().filter(|r| r.judged.is_some()).collect();
        assert!(!ran.is_empty());
        for record in &ran {
            let paths = [record.exact, record.certified, record.arbitrated];
            let sum: u64 = paths.into_iter().map(Option::unwrap).sum();
            assert_eq!(Some(sum), record.judged, "{record:?}");
        }
        // Two random outputs of the case, beside the worst of each trial.
        let audited: u64 = ran.iter().filter_map(|r| r.audited).sum();
        (ran[0].exact, ran[0].certified, audited - ran.len() as u64)
    };
    let half = "fwd c=8 k=8 in=9x9 ker=3x3 type=fp16 fill=normal:1";
    assert_eq!(decided(half), (Some(392), Some(0), 2));
    let single = "fwd c=8 k=8 in=9x9 ker=3x3 fill=normal:1";
    assert_eq!(decided(single), (Some(0), Some(392), 2));
}

/// One output in a hundred is judged. Of seeds whose sample has none of the
/// wrong outputs, only the other form of the case can tell.
#[test]
fn run_case_faults_outside_the_sample_show_against_another_form() {
    let options = |metamorphic| TrialOptions {
        outputs: 64,
        metamorphic,
        ..TrialOptions::default()
    };
    for (fault, form, rest) in [
        ("spoiled_in_batch", "alone", "n=3 fill=normal"),
        (
            "spoiled_with_padding",
            "padding written out",
            "pad=1x1 fill=ints",
        ),
        (
            "spoiled_channels_last",
            "in nchw",
            "layout=nhwc fill=positive",
        ),
        (
            "spoiled_in_groups",
            "as a convolution of its own",
            "g=2 fill=normal",
        ),
    ] {
        for direction in ["fwd", "bwd_data"] {
            let trial = |seed, metamorphic| {
                let line = format!(
                    "{direction} c=8 k=8 in=20x20 ker=3x3 {rest}:{seed} via=host:gemm!{fault}"
                );
                records_with(&line, None, &options(metamorphic)).remove(0)
            };
            let unseen = |&seed: &u64| trial(seed, 0).verdict == "passed";
            let seed = (0..20).find(unseen).expect("samples miss it");
            let seen = trial(seed, 1);
            assert_eq!(seen.reason.as_deref(), Some("metamorphic"), "{seen:?}");
            assert!(seen.detail.unwrap().contains(form));
        }
    }
}

#[test]
fn run_case_honest_algorithms_agree_with_every_form_of_a_case() {
    let options = TrialOptions {
        metamorphic: 1,
        ..TrialOptions::default()
    };
    for direction in ["fwd", "bwd_data", "bwd_filter"] {
        for types in ["fp32", "fp16", "bf16 alpha=2 beta=-1", "fp64"] {
            for fill in [
                "normal:1",
                "ints:2",
                "loguniform:3",
                "cancel:4",
                "subnormal:5",
            ] {
                let line = format!(
                    "{direction} n=2 c=6 k=4 in=7x6 ker=3x3 pad=1x2 g=2 type={types} fill={fill}"
                );
                for record in records_with(&line, None, &options) {
                    assert_ne!(record.verdict, "failed", "{record:?}");
                }
            }
        }
    }
}

/// Judgements of equal results are shared; they must be what each would get.
#[test]
fn run_case_candidates_together_and_alone_have_the_same_figures() {
    for rest in [
        "type=fp16 fill=ints:3",
        "fill=normal:4",
        "type=fp16 fill=nan:5",
    ] {
        let line = format!("fwd n=2 c=6 k=4 in=7x6 ker=3x3 pad=1x1 {rest}");
        for mut together in records(&line, None) {
            let mut alone = records(&together.repro, None).remove(0);
            for record in [&mut together, &mut alone] {
                (record.library_ms, record.own_ms) = (None, None);
                record.audited = None;
                record.suspect = false;
            }
            assert_eq!(format!("{together:?}"), format!("{alone:?}"));
        }
    }
}
