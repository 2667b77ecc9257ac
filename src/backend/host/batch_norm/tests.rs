//! Honest algorithms stay inside the bounds; planted faults do not.

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use super::faults::Fault;
use super::*;
use crate::backend::batch_norm::Case;
use crate::batch_norm::strategy::{self, Limits};
use crate::batch_norm::{Fill, Judgement, Reference, judge};
use crate::dtype::{DType, exp2};
use crate::judge::{UntrustedReason, Verdict};

const PLAIN: RunOptions = RunOptions { repeats: 0 };

/// Runs `candidates` on a case and judges them.
fn judged(
    inputs: &Inputs,
    fault: Option<Fault>,
    candidates: impl Iterator<Item = HostCandidate>,
) -> Vec<(HostCandidate, Judgement)> {
    let mut backend = HostBatchNorm::new(fault.map(Fault::name)).unwrap();
    let reference = Reference::of(inputs);
    let mut run = |host| {
        let outcome = backend.run(inputs, Candidate::Host(host), &PLAIN).unwrap();
        (host, judge(inputs, &reference, &outcome))
    };
    candidates.map(&mut run).collect()
}

fn inputs(line: &str) -> Inputs {
    let case: Case = line.parse().unwrap();
    Inputs::generate(&case.problem, case.fill)
}

/// The verdict of the plainest algorithm.
fn verdict(line: &str, fault: Option<Fault>) -> Verdict {
    let first = HostCandidate::all().take(1);
    judged(&inputs(line), fault, first)[0].1.verdict
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(120))]
    /// The bounds are sound: no honest algorithm fails, whatever the order of its
    /// sums, the data, the layout and the type.
    #[test]
    fn honest_algorithms_never_fail((problem, fill) in strategy::case(&Limits {
        elements: 2000,
        ..Limits::default()
    })) {
        let inputs = Inputs::generate(&problem, fill);
        for (candidate, judgement) in judged(&inputs, None, HostCandidate::all()) {
            prop_assert!(
                !matches!(judgement.verdict, Verdict::Failed(_)),
                "{problem} fill={fill} via=host:{candidate}: {:?}", judgement.detail
            );
        }
    }
}

/// The verdict on a line where `output` came out with these values.
fn verdict_with(line: &str, output: Output, values: &[(usize, f64)]) -> Verdict {
    let inputs = inputs(line);
    let host = HostCandidate::all().next().unwrap();
    let mut backend = HostBatchNorm::new(None).unwrap();
    let outcome = backend.run(&inputs, Candidate::Host(host), &PLAIN).unwrap();
    let Outcome::Ran(mut seen) = outcome else {
        panic!("{line} did not run");
    };
    let tensor = seen.outputs.get_mut(output).unwrap();
    for &(index, value) in values {
        tensor.set(index, value);
    }
    judge(&inputs, &Reference::of(&inputs), &Outcome::Ran(seen)).verdict
}

/// A persistent kernel of cuDNN 9.19 on an H200 computes dx as a·dy + b·x + c,
/// whose terms are thousands of times the result here.
#[test]
fn gradients_of_the_fused_form_are_right() {
    let line = "bn_bwd c=32 in=14x7 type=fp16 mode=persistent eps=0.00000001 \
                fill=offset:7624390262274099580";
    let at = (3 * 14 + 13) * 7 + 2;
    let with = |value| verdict_with(line, Output::Dx, &[(at, value)]);
    assert_eq!(with(-0.0743408203125), Verdict::Passed);
    assert!(matches!(with(-0.0753173828125), Verdict::Failed(_)));
}

/// Where γ·r is beyond fp32, a form that scales by it gives infinity times zero.
#[test]
fn scales_beyond_the_accumulators_range_leave_no_number() {
    let line = "bn_train c=4 in=1x1 type=bf16 factor=1 running=off \
                fill=overflow:18299579568708873028";
    for i in 0..4 {
        let found = verdict_with(line, Output::Y, &[(i, f64::NAN)]);
        assert_eq!(found, Verdict::Untrusted(UntrustedReason::NonFinite));
    }
    let plain = "bn_train c=4 in=1x1 type=bf16 factor=1 running=off fill=normal:1";
    let found = verdict_with(plain, Output::Y, &[(0, f64::NAN)]);
    assert!(matches!(found, Verdict::Failed(_)), "{found:?}");
}

/// Lines on which a fault must show, one line per fault at least.
const CAUGHT: [(Fault, &str); 16] = [
    (
        Fault::BiasedRunning,
        "bn_train n=4 c=3 in=4x4 factor=1 fill=normal:1",
    ),
    (
        Fault::UnbiasedInverse,
        "bn_train n=4 c=3 in=4x4 fill=normal:1",
    ),
    (Fault::EpsilonOutside, "bn_train n=4 c=3 in=4x4 fill=tiny:1"),
    (
        Fault::EpsilonOutside,
        "bn_infer n=4 c=3 in=4x4 fill=normal:1",
    ),
    (
        Fault::HalfStatistics,
        "bn_train n=4 c=3 in=4x4 type=fp16 fill=normal:1",
    ),
    (
        Fault::FactorSwapped,
        "bn_train n=4 c=3 in=4x4 fill=normal:1",
    ),
    (Fault::LastDropped, "bn_train n=1 c=3 in=5x5 fill=spike:1"),
    (
        Fault::LastDropped,
        "bn_bwd n=1 c=3 in=25x25 saved=off fill=normal:1",
    ),
    (
        Fault::WrongChannel,
        "bn_train n=2 c=4 in=3x5 layout=nhwc fill=normal:1",
    ),
    (Fault::RunningStale, "bn_train n=4 c=3 in=4x4 fill=normal:1"),
    (
        Fault::CountOverflow,
        "bn_train n=1 c=1 in=257x256 fill=normal:1",
    ),
    (
        Fault::GradientsSwapped,
        "bn_bwd n=4 c=3 in=4x4 fill=normal:1",
    ),
    (
        Fault::MeanTermMissing,
        "bn_bwd n=4 c=3 in=4x4 fill=normal:1",
    ),
    (
        Fault::SlopeTermMissing,
        "bn_bwd n=4 c=3 in=4x4 fill=normal:1",
    ),
    (Fault::HalfOutput, "bn_train n=4 c=3 in=4x4 fill=normal:1"),
    (
        Fault::VarianceScaled,
        "bn_train n=4 c=3 in=4x4 fill=normal:1",
    ),
];

#[test]
fn planted_faults_are_caught_and_their_absence_passes() {
    for (fault, line) in CAUGHT {
        let found = verdict(line, Some(fault));
        assert!(
            matches!(found, Verdict::Failed(_)),
            "{line} with {fault:?}: {found:?}"
        );
        assert_eq!(verdict(line, None), Verdict::Passed, "{line}");
    }
    for fault in Fault::ALL {
        assert!(
            CAUGHT.iter().any(|(caught, _)| *caught == fault),
            "{fault:?}"
        );
    }
}

/// Every fault but one that takes 65,536 values is found by cases as a run draws
/// them.
#[test]
fn planted_faults_are_found_by_drawn_cases() {
    let mut runner = TestRunner::deterministic();
    let limits = Limits {
        elements: 1000,
        ..Limits::default()
    };
    let drawn: Vec<(Inputs, Reference)> = (0..80)
        .map(|_| {
            let case = strategy::case(&limits).new_tree(&mut runner).unwrap();
            let (problem, fill) = case.current();
            let inputs = Inputs::generate(&problem, fill);
            let reference = Reference::of(&inputs);
            (inputs, reference)
        })
        .collect();
    for fault in Fault::ALL
        .into_iter()
        .filter(|fault| *fault != Fault::CountOverflow)
    {
        let mut backend = HostBatchNorm::new(Some(fault.name())).unwrap();
        let found = drawn.iter().any(|(inputs, reference)| {
            let candidate = backend.candidates(&inputs.problem)[0];
            let outcome = backend.run(inputs, candidate, &PLAIN).unwrap();
            let judgement = judge(inputs, reference, &outcome);
            matches!(judgement.verdict, Verdict::Failed(_))
        });
        assert!(found, "{fault:?}");
    }
}

/// The largest share of its bound that an output of honest algorithms reaches.
fn share(inputs: &Inputs, output: Output) -> f64 {
    let ratio = |(candidate, judgement): (HostCandidate, Judgement)| {
        assert_eq!(judgement.wrong(), 0, "{candidate}: {:?}", judgement.detail);
        judgement.figures(output).unwrap().max_ratio
    };
    let all = judged(inputs, None, HostCandidate::all());
    all.into_iter().map(ratio).fold(0.0, f64::max)
}

/// 2,048 values of which each addition rounds the same way, by nearly half an
/// ulp, once the sum is above 1,024.
fn drifting(line: &str) -> Inputs {
    let problem: Problem = line.parse().unwrap();
    let value = 1.0 + 0.98 * exp2(-14);
    let inputs = Inputs::from_x(&problem, Fill::plain(), |_| value);
    let dy = Tensor::from_fn(problem.dtype, &problem.dims(), |_| value);
    match problem.pass {
        Pass::Backward => inputs.backward(dy, None),
        _ => inputs,
    }
}

/// The bounds are tight: a made input reaches a fifth of each (an eighth of the
/// variance, a twentieth of dx, whose terms do not all err at once), so that one
/// much wider fails here.
#[test]
fn bounds_are_reached_by_made_inputs() {
    let shape = "n=1 c=1 in=1x2048 eps=1";
    let train = drifting(&format!("bn_train {shape} factor=1"));
    let backward = drifting(&format!("bn_bwd {shape} saved=off"));
    let infer = inputs("bn_infer n=4 c=8 in=16x16");
    for (inputs, output, least) in [
        (&train, Output::SavedMean, 0.2),
        (&train, Output::RunningMean, 0.2),
        (&train, Output::RunningVariance, 0.15),
        (&train, Output::SavedInverse, 0.15),
        (&train, Output::Y, 0.2),
        (&infer, Output::Y, 0.2),
        (&backward, Output::Dbias, 0.2),
        (&backward, Output::Dscale, 0.2),
        (&backward, Output::Dx, 0.05),
    ] {
        let share = share(inputs, output);
        println!("{} {output:?}: {share:.3}", inputs.problem);
        assert!(share >= least, "{} {output:?}: {share}", inputs.problem);
    }
}

#[test]
fn statistics_tell_the_algorithm_apart_where_the_mean_is_large() {
    let problem: Problem = "bn_train n=4 c=4 in=8x8".parse().unwrap();
    let fill = Fill::plain();
    let plain = Inputs::generate(&problem, fill);
    let inputs = Inputs::from_x(&problem, fill, |i| 1000.0 + plain.x.get(i));
    for (host, judgement) in judged(&inputs, None, HostCandidate::all()) {
        let ratios = judgement.algorithms.map(Option::unwrap);
        let own = Algorithm::ALL
            .iter()
            .position(|a| *a == host.algorithm)
            .unwrap();
        assert!(ratios[own] <= 1.0, "{host}: {ratios:?}");
        if host.algorithm == Algorithm::Squares && !host.wide {
            assert!(ratios[0] > 1.0, "{host}: {ratios:?}");
        }
    }
}

#[test]
fn groups_of_one_value_and_of_one_constant_do_not_fail() {
    for line in [
        "bn_train n=1 c=5 in=1x1 fill=normal:1",
        "bn_train n=4 c=5 in=3x3 fill=const:1",
        "bn_bwd n=1 c=5 in=1x1 fill=normal:1",
    ] {
        for (candidate, judgement) in judged(&inputs(line), None, HostCandidate::all()) {
            assert_eq!(judgement.wrong(), 0, "{line} {candidate} {judgement:?}");
        }
    }
}

#[test]
fn fp16_outputs_overflow_where_they_should() {
    let line = "bn_train n=8 c=4 in=8x8 type=fp16 fill=overflow:1";
    let reference = Reference::of(&inputs(line));
    let y = reference.get(Output::Y).unwrap();
    let most = DType::Fp16.format().overflow_threshold();
    let over = y.iter().filter(|value| value.hi.abs() >= most).count();
    assert!(over > 0 && over < y.len());
    assert_eq!(verdict(line, None), Verdict::Passed);
}

#[test]
fn unknown_faults_and_candidates_are_usage_errors() {
    let error = HostBatchNorm::new(Some("nothing")).err().unwrap();
    assert!(error.to_string().contains("bn_half_statistics"), "{error}");
    let mut backend = HostBatchNorm::new(None).unwrap();
    let error = backend.run(&inputs("bn_infer c=1 in=1x1"), Candidate::Plain, &PLAIN);
    assert_eq!(error.err().unwrap().exit_code(), 2);
}
