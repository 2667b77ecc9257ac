//! Honest algorithms against one another, and faults against their carrier.

use proptest::prelude::*;

use super::*;
use crate::candidate::Repro;
use crate::problem::Direction;

fn backend() -> HostBackend {
    HostBackend::new(&HostOptions::default()).unwrap()
}

fn inputs(line: &str) -> Inputs {
    let repro: Repro = line.parse().unwrap();
    Inputs::generate(&repro.problem, repro.fill)
}

fn observe(inputs: &Inputs, algorithm: &str, fault: Option<&str>, repeats: u32) -> Outcome {
    let candidate = Candidate::Host {
        algorithm: algorithm.to_owned(),
        fault: fault.map(str::to_owned),
    };
    backend()
        .run(inputs, &candidate, &RunOptions { repeats })
        .unwrap()
}

fn result(inputs: &Inputs, algorithm: &str) -> Option<Observation> {
    match observe(inputs, algorithm, None, 0) {
        Outcome::Ran(observation) => Some(*observation),
        Outcome::NotSupported(_) => None,
        other => panic!("{other:?}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    /// On small integers every sum is exact, so all must agree bit for bit,
    /// transforms within the last place.
    #[test]
    fn honest_algorithms_agree_on_integers(
        head in prop::sample::select(vec!["fwd", "bwd_data", "bwd_filter"]),
        types in prop::sample::select(vec!["fp16", "fp16 compute=fp16", "bf16", "fp32", "fp64"]),
        (n, c, k, g) in (1usize..3, 1usize..9, 1usize..5, 1usize..3),
        (size, ker, stride, pad) in (1usize..6, 1usize..4, 1usize..3, 0usize..3),
        (alpha, beta) in (prop::sample::select(vec![1, 2]), prop::sample::select(vec![0, 1])),
        seed: u64,
    ) {
        let line = format!(
            "{head} n={n} c={} k={} in={}x4 ker={ker}x3 stride={stride}x1 pad={pad}x1 g={g} type={types} alpha={alpha} beta={beta} fill=sparse:{seed}",
            c * g, k * g, size + ker
        );
        let inputs = inputs(&line);
        let direct = result(&inputs, "direct").unwrap();
        prop_assert!(direct.unwritten.is_empty() && direct.memory.is_empty());
        for algorithm in &ALGORITHMS[1..7] {
            if let Some(other) = result(&inputs, algorithm) {
                prop_assert_eq!(&other.result, &direct.result, "{}", algorithm);
            }
        }
        for algorithm in &ALGORITHMS[7..] {
            if let Some(other) = result(&inputs, algorithm) {
                let largest = |t: &crate::tensor::Tensor| t.to_f64().iter().fold(0.0, |m: f64, v| m.max(v.abs()));
                let scale = largest(&inputs.first) * largest(&inputs.second) * inputs.problem.reduction_length() as f64;
                for i in 0..direct.result.len() {
                    let (a, b) = (direct.result.get(i), other.result.get(i));
                    let ulp = direct.result.dtype().format().ulp(a);
                    let close = a == b || (a - b).abs() <= 1e-5 * scale + ulp;
                    prop_assert!(close, "{} at {}: {} {}", algorithm, i, a, b);
                }
            }
        }
    }
}

/// Lines on which each fault's trigger holds and its effect can be seen.
fn showing(fault: &str) -> &'static str {
    match fault {
        "stride_dilation" => "fwd c=3 k=4 in=9x9 ker=2x3 stride=2x2 dil=2x2 pad=1x1 fill=normal:1",
        "spoiled_channels_last" => "fwd c=3 k=4 in=5x5 ker=3x3 layout=nhwc fill=normal:1",
        "groups_off" | "spoiled_in_groups" => "fwd c=4 k=4 in=5x5 ker=3x3 g=2 fill=normal:1",
        "padding_swapped" => "fwd c=3 k=4 in=5x5 ker=3x3 pad=2+0x1 fill=normal:1",
        "alpha_ignored" => "fwd c=3 k=4 in=5x5 ker=3x3 alpha=2 fill=normal:1",
        "beta_ignored" => "fwd c=3 k=4 in=5x5 ker=3x3 beta=2 fill=normal:1",
        "nan_for_inf" | "inf_for_large" | "saturation" => {
            "fwd c=8 k=8 in=7x7 ker=3x3 type=fp16 fill=overflow:1"
        }
        "flush_to_zero" => "fwd c=8 k=8 in=7x7 ker=3x3 type=fp16 fill=subnormal:1",
        "index_overflow" => "fwd c=8 k=2 in=30x30 ker=3x3 fill=normal:1",
        "fp16_accumulate" | "fp16_partials" => "fwd c=9 k=4 in=5x5 ker=3x3 type=fp16 fill=normal:1",
        "double_rounding" => "fwd c=9 k=8 in=9x9 ker=3x3 type=fp16 fill=ints:1",
        "conv3d_8x8" => "fwd c=8 k=8 in=4x3x3 ker=3x1x1 pad=1x0x0 type=fp16 fill=normal:1",
        _ => "fwd n=3 c=5 k=4 in=6x7 ker=3x3 pad=1x1 fill=normal:1",
    }
}

#[test]
fn faults_show_where_their_trigger_holds() {
    for fault in FAULTS.iter().filter(|f| !f.kills()) {
        let inputs = inputs(showing(fault.name));
        assert!(fault.triggers(&inputs.problem), "{}", fault.name);
        let honest = result(&inputs, CARRIER).unwrap();
        let mut shown = false;
        let mut backend = backend();
        let candidate = Candidate::Host {
            algorithm: CARRIER.to_owned(),
            fault: Some(fault.name.to_owned()),
        };
        for _ in 0..3 {
            let options = RunOptions { repeats: 8 };
            shown |= match backend.run(&inputs, &candidate, &options).unwrap() {
                Outcome::Ran(seen) => {
                    seen.result != honest.result
                        || !seen.deviations.is_empty()
                        || !seen.memory.is_empty()
                        || !seen.unwritten.is_empty()
                }
                Outcome::ExecutionFailed { .. } => true,
                _ => false,
            };
        }
        assert!(shown, "{} does not show", fault.name);
    }
}

#[test]
fn observe_counts_repeats_with_other_bits() {
    let inputs = inputs(showing("order_nondeterministic"));
    for (fault, varied) in [(Some("order_nondeterministic"), 1..=7), (None, 0..=0)] {
        match observe(&inputs, CARRIER, fault, 8) {
            Outcome::Ran(seen) => {
                assert!(seen.repeated >= 8, "{}", seen.repeated);
                assert!(
                    varied.contains(&seen.varied()),
                    "{fault:?} {}",
                    seen.varied()
                );
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn faults_without_their_trigger_compute_as_ever() {
    // One channel, one tap, no padding, fp64: most triggers do not hold.
    let plain = inputs("bwd_filter c=2 k=2 in=3 ker=1 type=fp64 fill=normal:1");
    assert_eq!(plain.problem.direction, Direction::BwdFilter);
    let honest = result(&plain, CARRIER).unwrap();
    let mut quiet = 0;
    for fault in FAULTS.iter().filter(|f| !f.triggers(&plain.problem)) {
        match observe(&plain, CARRIER, Some(fault.name), 4) {
            Outcome::Ran(seen) => {
                assert_eq!(seen.result, honest.result, "{}", fault.name);
                assert!(seen.deviations.is_empty() && seen.memory.is_empty());
            }
            other => panic!("{}: {other:?}", fault.name),
        }
        quiet += 1;
    }
    assert!(quiet >= 25, "{quiet}");
}

#[test]
fn faults_number_and_names_are_distinct() {
    let mut names: Vec<_> = FAULTS.iter().map(|f| f.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), FAULTS.len());
    assert!(FAULTS.iter().filter(|f| !f.kills()).count() >= 30);
}

#[test]
fn run_unknown_names_are_usage_errors() {
    let inputs = inputs("fwd c=1 k=1 in=3 ker=1");
    for text in [
        "host:magic",
        "host:gemm!magic",
        "host:direct!tap_dropped",
        "legacy:1",
    ] {
        let candidate: Candidate = text.parse().unwrap();
        let error = backend()
            .run(&inputs, &candidate, &RunOptions { repeats: 0 })
            .unwrap_err();
        assert_eq!(error.exit_code(), 2, "{text}");
    }
}

/// Faults that nothing but one check of memory or contract can see: without it
/// all their results are right.
#[test]
fn faults_of_memory_and_contract_show_to_their_own_check_alone() {
    let line = "fwd n=2 c=5 k=4 in=6x7 ker=3x3 pad=1x1 fill=normal:8";
    let inputs = inputs(line);
    let honest = result(&inputs, CARRIER).unwrap().result;
    let seen = |fault| match observe(&inputs, CARRIER, Some(fault), 4) {
        Outcome::Ran(seen) => *seen,
        other => panic!("{other:?}"),
    };
    let damage = |fault| {
        let seen = seen(fault);
        assert!(seen.deviations.is_empty() && seen.unwritten.is_empty());
        assert_eq!(seen.result, honest, "{fault}");
        let places = seen.memory.into_iter();
        let places = places.map(|m| (m.buffer, m.kind, m.offset));
        places.collect::<Vec<_>>()
    };
    use crate::outcome::MemoryFaultKind::{Before, Behind, InputChanged};
    let (y, x) = (4 * honest.len() as i64, 4 * inputs.first.len() as i64);
    for (fault, buffer, kind, offset) in [
        ("write_past_end", "y", Behind, y),
        ("write_before_start", "y", Before, -4),
        ("input_modified", "x", InputChanged, 0),
        ("input_overrun", "x", Behind, x),
        ("workspace_overrun", "workspace", Behind, 8 * 45),
    ] {
        assert_eq!(damage(fault), [(buffer.to_owned(), kind, offset)]);
    }

    // NaN around the inputs, in the output and in the workspace.
    for poison in ["read_past_end", "prior_read", "workspace_read"] {
        let seen = seen(poison);
        assert!(seen.memory.is_empty());
        assert!(
            (0..honest.len()).any(|i| seen.result.get(i).is_nan()),
            "{poison}"
        );
    }
    assert_eq!(seen("stale_output").unwritten[0], 5);

    let leftover = seen("workspace_leftover");
    assert_eq!(leftover.result, honest);
    let under: Vec<_> = leftover.deviations.iter().map(|d| d.under).collect();
    assert_eq!(under, [Repeat::WorkspaceLeftover]);
    let order = seen("order_nondeterministic");
    assert!(order.memory.is_empty() && !order.deviations.is_empty());
}

#[test]
fn observe_other_bits_under_one_change_are_controlled_by_identical_runs() {
    for seed in 0..4 {
        let inputs = inputs(&format!("fwd c=9 k=4 in=5x5 ker=3x3 fill=normal:{seed}"));
        let Outcome::Ran(seen) = observe(&inputs, CARRIER, Some("order_nondeterministic"), 1)
        else {
            panic!("it runs");
        };
        assert!(seen.deviations.iter().any(|d| d.under == Repeat::Same));
    }
}
