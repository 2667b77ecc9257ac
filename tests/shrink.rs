//! Shrinking of faults planted in the host backend, judged as in a campaign:
//! each random start must end at the same minimal repro line.

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use convfuzz::backend::host::{HostBackend, HostOptions, carrier};
use convfuzz::candidate::Repro;
use convfuzz::error::Result;
use convfuzz::minimize::{InProcess, Options, minimize};
use convfuzz::shrink::trigger::Effort;
use convfuzz::shrink::{self, shrink};
use convfuzz::strategy::{Limits, draw};
use convfuzz::trial::{Event, TrialOptions, run_case};

/// How a case fails, in the words of its record; wrong values are one class,
/// whether it is exactness or a bound that shows them.
fn failure(backend: &mut HostBackend, repro: &Repro) -> Result<Option<String>> {
    let mut reason = None;
    run_case(backend, repro, &TrialOptions::default(), &mut |event| {
        if let Event::Done(record) = event
            && record.verdict == "failed"
        {
            reason = record.reason;
        }
    })?;
    Ok(reason.map(|reason| match reason.as_str() {
        "mismatch" | "out_of_bound" => "wrong_value".to_owned(),
        _ => reason,
    }))
}

/// Random cases that show `fault` in the way `class` says, with exact and with
/// rounding-sensitive data in turn.
fn starts(backend: &mut HostBackend, fault: &str, class: &str, count: usize) -> Vec<Repro> {
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[3; 32]);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let limits = Limits {
        max_macs: 20_000,
        ..Limits::default()
    };
    let strategy = (draw(&limits), 0..2usize).prop_map(|(d, fill)| Repro {
        problem: d.problem,
        fill: d.fills[fill],
        via: Some(carrier(Some(fault))),
    });
    let all = std::iter::repeat_with(|| strategy.new_tree(&mut runner).unwrap().current());
    all.take(4_000)
        .filter(|r| failure(backend, r).unwrap().as_deref() == Some(class))
        .take(count)
        .collect()
}

/// Fault, class of failure, the line every start must end at.
const MINIMAL: &[(&str, &str, &str)] = &[
    (
        "tap_dropped",
        "wrong_value",
        "fwd c=1 k=1 in=1 ker=2 pad=1 fill=const:0",
    ),
    (
        "taps_flipped",
        "wrong_value",
        "fwd c=1 k=1 in=2 ker=2 fill=impulse:0",
    ),
    (
        "taps_swapped",
        "wrong_value",
        "fwd c=1 k=1 in=2 ker=2 fill=impulse:0",
    ),
    (
        "filter_layout",
        "wrong_value",
        "fwd c=2 k=1 in=2 ker=2 fill=impulse:1",
    ),
    (
        "input_layout",
        "wrong_value",
        "fwd c=2 k=1 in=2 ker=1 fill=impulse:1",
    ),
    (
        "channel_tail_8",
        "wrong_value",
        "fwd c=2 k=1 in=1 ker=1 fill=impulse:0",
    ),
    (
        "channel_tail_16",
        "wrong_value",
        "fwd c=2 k=1 in=1 ker=1 fill=impulse:0",
    ),
    (
        "channel_tail_32",
        "wrong_value",
        "fwd c=2 k=1 in=1 ker=1 fill=impulse:0",
    ),
    (
        "slice_lost",
        "wrong_value",
        "fwd c=8 k=1 in=1 ker=1 fill=const:0",
    ),
    (
        "summand_lost",
        "wrong_value",
        "fwd c=8 k=1 in=1 ker=1 fill=const:0",
    ),
    (
        "row_missing",
        "wrong_value",
        "fwd c=1 k=1 in=2x1 ker=1x1 fill=const:0",
    ),
    (
        "column_missing",
        "wrong_value",
        "fwd c=1 k=1 in=2 ker=1 fill=const:0",
    ),
    (
        "batch_wrapped",
        "wrong_value",
        "fwd n=3 c=1 k=1 in=1 ker=1 fill=impulse:0",
    ),
    (
        "index_overflow",
        "wrong_value",
        "fwd c=1 k=1 in=4097 ker=1 fill=ints:0",
    ),
    (
        "stride_dilation",
        "wrong_value",
        "fwd c=1 k=1 in=3 ker=2 stride=2 dil=2 fill=impulse:0",
    ),
    (
        "groups_off",
        "wrong_value",
        "fwd c=2 k=2 in=1 ker=1 g=2 fill=impulse:0",
    ),
    (
        "padding_garbage",
        "wrong_value",
        "fwd c=1 k=1 in=1 ker=1 pad=1 fill=const:0",
    ),
    (
        "padding_replicate",
        "wrong_value",
        "fwd c=1 k=1 in=1 ker=1 pad=1 fill=const:0",
    ),
    (
        "padding_swapped",
        "wrong_value",
        "fwd c=1 k=1 in=1 ker=1 pad=0+1 fill=const:0",
    ),
    (
        "alpha_ignored",
        "wrong_value",
        "fwd c=1 k=1 in=1 ker=1 alpha=-1 fill=const:0",
    ),
    (
        "beta_ignored",
        "wrong_value",
        "fwd c=1 k=1 in=1 ker=1 beta=1 fill=const:0",
    ),
    (
        "stale_output",
        "unwritten",
        "fwd c=1 k=1 in=14 ker=1 fill=const:0",
    ),
    (
        "write_past_end",
        "out_of_bounds_write",
        "fwd c=1 k=1 in=1 ker=1 fill=const:0",
    ),
    (
        "write_before_start",
        "out_of_bounds_write",
        "fwd c=1 k=1 in=1 ker=1 fill=const:0",
    ),
    (
        "input_modified",
        "input_changed",
        "fwd c=1 k=1 in=1 ker=1 fill=const:0",
    ),
    (
        "workspace_read",
        "wrong_nan",
        "fwd c=1 k=1 in=1 ker=1 pad=1 fill=const:0",
    ),
    (
        "conv3d_8x8",
        "wrong_value",
        "fwd c=8 k=8 in=3x1x1 ker=3x1x1 type=fp16 fill=impulse:0",
    ),
    (
        "one_ulp",
        "wrong_value",
        "fwd c=1 k=1 in=100 ker=1 fill=const:0",
    ),
    (
        "execution_failure",
        "execution_failed",
        "fwd c=1 k=1 in=1 ker=1 fill=const:0",
    ),
    (
        "tf32_truncated",
        "wrong_value",
        "fwd c=1 k=1 in=1 ker=1 fill=normal:0",
    ),
];

#[test]
fn shrink_planted_faults_end_at_their_minimal_line() {
    const STARTS: usize = 4;
    let mut backend = HostBackend::new(&HostOptions::default()).unwrap();
    let mut wrong = Vec::new();
    let mut trials = Vec::new();
    for (fault, class, expected) in MINIMAL {
        let starts = starts(&mut backend, fault, class, STARTS);
        assert_eq!(starts.len(), STARTS, "{fault}");
        for start in &starts {
            let mut predicate = |r: &Repro| failure(&mut backend, r);
            let end = shrink(start, &shrink::Options::default(), &mut predicate).unwrap();
            let end = end.expect("a case that fails");
            let minimal = format!("{expected} via=host:gemm!{fault}");
            if end.repro.to_string() != minimal {
                wrong.push(format!("{start}\n    -> {}\n    != {minimal}", end.repro));
            }
            trials.push(end.trials);
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    trials.sort_unstable();
    let (median, most) = (trials[trials.len() / 2], trials[trials.len() - 1]);
    println!(
        "{} searches: median {median} trials, most {most}",
        trials.len()
    );
    assert!(median < 100 && most < 500, "median {median}, most {most}");
}

/// Fault, its minimal case, the condition in words. The condition must predict
/// at least 99 in 100 of 1,000 fresh cases, both ways.
const TRIGGERS: &[(&str, &str, &str)] = &[
    (
        "conv3d_8x8",
        "fwd c=8 k=8 in=3x1x1 ker=3x1x1 type=fp16 fill=impulse:0",
        "c % 8 == 0 and k % 8 == 0 and kernel == (3,1,1) and type == fp16",
    ),
    (
        "alpha_ignored",
        "fwd c=1 k=1 in=1 ker=1 alpha=-1 fill=const:0",
        "alpha != 1",
    ),
    (
        "beta_ignored",
        "fwd c=1 k=1 in=1 ker=1 beta=1 fill=const:0",
        "beta != 0",
    ),
    (
        "execution_failure",
        "fwd c=1 k=1 in=1 ker=1 fill=const:0",
        "c % 2 != 0",
    ),
    (
        "batch_wrapped",
        "fwd n=3 c=1 k=1 in=1 ker=1 fill=impulse:0",
        "n >= 3",
    ),
    (
        "groups_off",
        "fwd c=2 k=2 in=1 ker=1 g=2 fill=impulse:0",
        "groups >= 2",
    ),
    (
        "input_modified",
        "fwd c=1 k=1 in=1 ker=1 fill=const:0",
        "always",
    ),
    (
        "write_past_end",
        "fwd c=1 k=1 in=1 ker=1 fill=const:0",
        "always",
    ),
];

#[test]
fn minimize_planted_faults_conditions_in_words_predict_fresh_cases() {
    let options = Options {
        data_trials: 0,
        trigger: Some(Effort {
            check: 1_000,
            ..Effort::default()
        }),
        ..Options::default()
    };
    let mut wrong = Vec::new();
    for (fault, minimum, expected) in TRIGGERS {
        let mut backend = HostBackend::new(&HostOptions::default()).unwrap();
        let minimum: Repro = format!("{minimum} via=host:gemm!{fault}").parse().unwrap();
        let mut subject = InProcess(&mut backend);
        let found = minimize(&mut subject, &minimum, &options, &mut |_| {}).unwrap();
        let trigger = found.expect("it fails").trigger.expect("asked for");
        let (precision, recall) = (trigger.check.precision(), trigger.check.recall());
        let sure = precision >= Some(0.99) && recall >= Some(0.99);
        // Cases that prove nothing do not count: nine in ten must be left.
        if trigger.to_string() != *expected || !sure || trigger.checked() < 900 {
            let checked = trigger.checked();
            wrong.push(format!(
                "{fault}: {trigger}, {precision:?}, {recall:?}, {checked}"
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
