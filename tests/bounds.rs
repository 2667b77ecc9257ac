//! Bounds against the host's algorithms, which do the arithmetic they declare:
//! sound on every fill, and tight where an input is made for it.

use convfuzz::backend::host::{HostBackend, HostOptions};
use convfuzz::backend::{Backend, RunOptions, Support};
use convfuzz::bound::Bounds;
use convfuzz::candidate::{Candidate, Repro};
use convfuzz::dtype::exp2;
use convfuzz::fill::Inputs;
use convfuzz::oracle::{self, Sample};
use convfuzz::outcome::Outcome;
use convfuzz::tensor::Tensor;

/// Largest |result − exact| / bound over the outputs, the output rounding
/// deducted, of one host algorithm.
fn worst_share(inputs: &Inputs, algorithm: &str) -> Option<f64> {
    let mut backend = HostBackend::new(&HostOptions::default()).unwrap();
    let candidate = Candidate::Host {
        algorithm: algorithm.to_owned(),
        fault: None,
    };
    let support = backend.support(&inputs.problem, &candidate).unwrap();
    let Support::Offered { arithmetic, .. } = support else {
        return None;
    };
    let outcome = backend.run(inputs, &candidate, &RunOptions { repeats: 0 });
    let Outcome::Ran(seen) = outcome.unwrap() else {
        return None;
    };
    let bounds = Bounds::new(inputs, &arithmetic)?;
    let format = inputs.problem.result_type().format();
    let share = |output: &oracle::Output| {
        let rounding = 0.5 * format.ulp(output.value.hi);
        let error = output.value.error_below(seen.result.get(output.index));
        (error - rounding).max(0.0) / bounds.at(output)
    };
    let reference = oracle::reference(inputs, &Sample::All);
    Some(reference.outputs.iter().map(share).fold(0.0, f64::max))
}

fn inputs(line: &str) -> Inputs {
    let repro: Repro = line.parse().unwrap();
    Inputs::generate(&repro.problem, repro.fill)
}

/// One product near one first, then products just below what the accumulator
/// keeps, all truncated away: the adversarial input of the numerics notes.
fn adversarial(line: &str, tail: f64) -> Inputs {
    let mut inputs = inputs(line);
    let fill = |like: &Tensor, head: f64| {
        Tensor::from_fn(
            like.dtype(),
            like.dims(),
            |i| if i == 0 { head } else { tail },
        )
    };
    inputs.first = fill(&inputs.first, 1.0);
    inputs.second = fill(&inputs.second, 1.0);
    inputs
}

#[test]
fn tensor_core_bound_is_reached_by_a_made_input() {
    // Terms just below 2^-F of the sum vanish one by one: their sum, n·2^-F, is
    // the first term of the bound. A bound loosened by 4 would fail here.
    for (algorithm, tail) in [
        ("tensor_volta", exp2(-11) * (2.0 - exp2(-9)).sqrt() * 0.7),
        ("tensor_ampere", exp2(-12) * 0.99),
        ("tensor_hopper", exp2(-13) * 1.4),
    ] {
        let inputs = adversarial("fwd c=512 k=1 in=1 ker=1 type=fp16,fp16,fp32", tail);
        let share = worst_share(&inputs, algorithm).unwrap();
        assert!((0.3..=1.0).contains(&share), "{algorithm}: {share}");
    }
}

#[test]
fn scalar_bound_is_reached_by_a_made_input() {
    // Each small product is just under half an ulp of the sum and rounds away.
    let inputs = adversarial("fwd c=512 k=1 in=1 ker=1 type=fp32", exp2(-12) * 0.999);
    let share = worst_share(&inputs, "direct").unwrap();
    assert!((0.3..=1.0).contains(&share), "{share}");
    let inputs = adversarial("fwd c=512 k=1 in=1 ker=1 type=fp64", exp2(-27) * 1.4);
    let share = worst_share(&inputs, "direct").unwrap();
    assert!((0.3..=1.0).contains(&share), "{share}");
}

#[test]
fn half_accumulator_bound_is_reached_by_a_made_input() {
    let line = "fwd c=256 k=1 in=1 ker=1 type=fp16,fp16,fp32 compute=fp16";
    let share = worst_share(&adversarial(line, exp2(-6) * 1.4), "direct").unwrap();
    assert!((0.25..=1.0).contains(&share), "{share}");
}

#[test]
fn tf32_bound_is_reached_by_a_made_input() {
    // Operands just under one and a half ulps of TF32 above one: rounding to
    // nearest loses half an ulp of the truncation that is allowed.
    let mut inputs = inputs("fwd c=64 k=1 in=1 ker=1 fill=const:0");
    let value = 1.0 + exp2(-11) - exp2(-20);
    inputs.first = Tensor::from_fn(inputs.first.dtype(), inputs.first.dims(), |_| value);
    inputs.second = inputs.first.clone();
    inputs.second = Tensor::from_fn(inputs.first.dtype(), &[1, 64, 1], |_| value);
    let share = worst_share(&inputs, "gemm_tf32").unwrap();
    assert!((0.3..=1.0).contains(&share), "{share}");
}

#[test]
fn honest_algorithms_stay_inside_on_every_fill() {
    // `convfuzz examine` runs the long form of this through the whole judge.
    let lines = [
        "fwd n=2 c=24 k=9 in=17x13 ker=3x3 pad=1x1",
        "fwd c=33 k=7 in=9x8x7 ker=3x1x2 stride=2x1x1 pad=1x0x1",
        "bwd_data c=6 k=20 in=9x9 ker=3x3 pad=1x1 stride=2x2",
        "bwd_filter n=3 c=4 k=5 in=11x12 ker=3x2",
    ];
    let fills = [
        "normal",
        "positive",
        "loguniform",
        "cancel",
        "largefirst",
        "subnormal",
        "sparse",
    ];
    let mut judged = 0;
    for line in lines {
        for types in ["fp16", "fp16 compute=fp16", "bf16", "fp32", "fp64"] {
            for fill in fills {
                let inputs = inputs(&format!("{line} type={types} fill={fill}:5"));
                for algorithm in convfuzz::backend::host::ALGORITHMS {
                    if let Some(share) = worst_share(&inputs, algorithm) {
                        assert!(share <= 1.0, "{algorithm} {line} {types} {fill}: {share}");
                        judged += 1;
                    }
                }
            }
        }
    }
    assert!(judged > 500, "{judged}");
}
