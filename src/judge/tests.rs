//! Injected errors: the judge must fail what is wrong and pass what is right.

use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::bound::{Accumulator, Arithmetic, Family, Generation, OperandRounding, Units};
use crate::candidate::Repro;
use crate::dtype::DType;
use crate::fill::FillKind;
use crate::fill::stream::Stream;
use crate::oracle::{self, Sample};
use crate::outcome::{Deviation, MemoryFault, MemoryFaultKind};

struct Bench {
    inputs: Inputs,
    reference: Reference,
    bounds: Bounds,
}

impl Bench {
    fn new(line: &str, arithmetic: Arithmetic) -> Self {
        let repro: Repro = line.parse().unwrap();
        let inputs = Inputs::generate(&repro.problem, repro.fill);
        Bench {
            reference: oracle::reference(&inputs, &Sample::All),
            bounds: Bounds::new(&inputs, &arithmetic).unwrap(),
            inputs,
        }
    }

    /// The correctly rounded result.
    fn right(&self) -> Tensor {
        let role = self.inputs.problem.direction.result();
        let dims = self.inputs.problem.dims(role);
        let dtype = self.inputs.problem.result_type();
        let outputs = &self.reference.outputs;
        Tensor::from_fn(dtype, &dims, |i| outputs[i].value.rounded(dtype).unwrap())
    }

    fn seen(&self, result: Tensor) -> Observation {
        Observation {
            result,
            unwritten: vec![],
            memory: vec![],
            deviations: vec![],
            repeated: 0,
            workspace: 0,
            elapsed: Duration::ZERO,
        }
    }

    fn judge(&self, seen: Observation) -> Verdict {
        self.judgement(seen).verdict
    }

    fn judgement(&self, seen: Observation) -> Judgement {
        let case = Case {
            inputs: &self.inputs,
            reference: &self.reference,
        };
        judge(
            case,
            Some(&self.bounds),
            Promises::default(),
            &Outcome::Ran(Box::new(seen)),
        )
    }

    /// The right result but for output 7, which is off by `share` of its bound.
    fn off_by(&self, share: f64) -> Verdict {
        let mut result = self.right();
        let output = &self.reference.outputs[7];
        let half_ulp = 0.5 * result.dtype().format().ulp(output.value.hi);
        result.set(
            7,
            output.value.hi + share * (self.bounds.at(output) + half_ulp),
        );
        self.judge(self.seen(result))
    }

    fn with(&self, index: usize, value: f64) -> Verdict {
        let mut result = self.right();
        result.set(index, value);
        self.judge(self.seen(result))
    }
}

fn families() -> Vec<(&'static str, Arithmetic)> {
    let simt = Arithmetic::simt(Accumulator::Fp32);
    let winograd = Family::Winograd { tile: Some(2) };
    vec![
        ("inner product", simt),
        (
            "tensor core",
            Arithmetic {
                units: Units::TensorCore(Generation::Hopper),
                ..simt
            },
        ),
        (
            "tf32",
            Arithmetic {
                operands: OperandRounding::Tf32,
                ..simt
            },
        ),
        (
            "half partial sums",
            Arithmetic {
                partials: Accumulator::Fp16,
                ..simt
            },
        ),
        (
            "winograd",
            Arithmetic {
                family: winograd,
                ..simt
            },
        ),
        (
            "any winograd",
            Arithmetic {
                family: Family::Winograd { tile: None },
                ..simt
            },
        ),
        (
            "fft",
            Arithmetic {
                family: Family::Fft { tile: None },
                ..simt
            },
        ),
    ]
}

const LINE: &str = "fwd c=8 k=6 in=9x9 ker=3x3 pad=1x1 fill=normal:3";

#[test]
fn injected_errors_fail_beyond_the_bound_and_pass_inside() {
    for (name, arithmetic) in families() {
        let bench = Bench::new(LINE, arithmetic);
        assert_eq!(
            bench.off_by(2.0),
            Verdict::Failed(FailureKind::OutOfBound),
            "{name}"
        );
        assert_eq!(
            bench.off_by(-2.0),
            Verdict::Failed(FailureKind::OutOfBound),
            "{name}"
        );
        assert_eq!(bench.off_by(0.5), Verdict::Passed, "{name}");
        assert_eq!(
            bench.with(3, f64::NAN),
            Verdict::Failed(FailureKind::WrongNan),
            "{name}"
        );
        let inf = bench.with(3, f64::INFINITY);
        assert_eq!(inf, Verdict::Failed(FailureKind::WrongInfinity), "{name}");
    }
}

#[test]
fn zero_data_is_untrusted_and_zero_results_fail() {
    let simt = Arithmetic::simt(Accumulator::Fp32);
    let bench = Bench::new(LINE, simt);
    let zeros = Tensor::from_fn(bench.right().dtype(), bench.right().dims(), |_| 0.0);
    let seen = bench.seen(zeros.clone());
    assert_eq!(bench.judge(seen), Verdict::Failed(FailureKind::OutOfBound));
    let mut empty = Bench::new(LINE, simt);
    empty.inputs.first = Tensor::from_fn(
        empty.inputs.first.dtype(),
        empty.inputs.first.dims(),
        |_| 0.0,
    );
    empty.reference = oracle::reference(&empty.inputs, &Sample::All);
    empty.bounds = Bounds::new(&empty.inputs, &simt).unwrap();
    let seen = empty.seen(zeros);
    assert_eq!(
        empty.judge(seen),
        Verdict::Untrusted(UntrustedReason::MostlyZero)
    );
}

#[test]
fn integers_must_be_right_bit_for_bit() {
    let line = "fwd c=8 k=6 in=9x9 ker=3x3 type=fp16 fill=ints:3";
    let bench = Bench::new(line, Arithmetic::simt(Accumulator::Fp32));
    assert_eq!(bench.judge(bench.seen(bench.right())), Verdict::Passed);
    let mut result = bench.right();
    result.set_bits(5, result.bits(5) ^ 1);
    assert_eq!(
        bench.judge(bench.seen(result)),
        Verdict::Failed(FailureKind::Mismatch)
    );
}

/// Where the exact value is beyond FP8's range, conversions saturate or not;
/// where it is not, neither is right.
#[test]
fn overflow_of_fp8_may_saturate_but_only_where_due() {
    for (dtype, top, due) in [
        ("fp8_e4m3", 448.0, f64::NAN),
        ("fp8_e5m2", 57344.0, f64::INFINITY),
    ] {
        let line = format!("fwd c=64 k=1 in=1 ker=1 type={dtype} fill=const:0");
        let mut bench = Bench::new(&line, Arithmetic::simt(Accumulator::Fp32));
        let one = bench.inputs.first.get(0) * bench.inputs.second.get(0);
        assert_eq!(bench.right().get(0), 64.0 * one, "{dtype}");
        let mut judged = |factor: f64, result: f64| {
            let first = &mut bench.inputs.first;
            (0..first.len()).for_each(|i| first.set(i, factor));
            bench.reference = oracle::reference(&bench.inputs, &Sample::All);
            let mut tensor = Tensor::from_fn(bench.inputs.problem.y_type, &[1, 1, 1], |_| 0.0);
            tensor.set(0, result);
            bench.judge(bench.seen(tensor))
        };
        let large = top / 32.0;
        for right in [due, top] {
            assert_eq!(judged(large, right), Verdict::Passed, "{dtype} {right}");
        }
        assert!(matches!(judged(large, -top), Verdict::Failed(_)), "{dtype}");
        assert!(
            matches!(judged(large, 0.5 * top), Verdict::Failed(_)),
            "{dtype}"
        );
        assert!(matches!(judged(1.0, due), Verdict::Failed(_)), "{dtype}");
        assert!(matches!(judged(1.0, top), Verdict::Failed(_)), "{dtype}");
    }
}

#[test]
fn overflow_must_be_infinite_and_only_overflow() {
    let line = "fwd c=64 k=8 in=9x9 ker=1x1 type=fp16 fill=overflow:1";
    let bench = Bench::new(line, Arithmetic::simt(Accumulator::Fp32));
    let right = bench.right();
    assert_eq!(bench.judge(bench.seen(right.clone())), Verdict::Passed);
    let infinite = (0..right.len())
        .find(|&i| right.get(i) == f64::INFINITY)
        .unwrap();
    assert_eq!(
        bench.with(infinite, 65504.0),
        Verdict::Failed(FailureKind::WrongInfinity)
    );
    assert_eq!(
        bench.with(infinite, f64::NEG_INFINITY),
        Verdict::Failed(FailureKind::WrongInfinity)
    );
    assert_eq!(
        bench.with(infinite, f64::NAN),
        Verdict::Failed(FailureKind::WrongNan)
    );
}

#[test]
fn memory_faults_and_deviations_have_kinds_of_their_own() {
    let bench = Bench::new(LINE, Arithmetic::simt(Accumulator::Fp32));
    let judged = |change: &dyn Fn(&mut Observation)| {
        let mut seen = bench.seen(bench.right());
        change(&mut seen);
        bench.judge(seen)
    };
    let memory = |kind| {
        judged(&move |seen| {
            seen.memory.push(MemoryFault {
                buffer: "y".to_owned(),
                kind,
                offset: 4,
                bytes: 4,
            });
        })
    };
    assert_eq!(
        memory(MemoryFaultKind::Behind),
        Verdict::Failed(FailureKind::OutOfBoundsWrite)
    );
    assert_eq!(
        memory(MemoryFaultKind::InputChanged),
        Verdict::Failed(FailureKind::InputChanged)
    );
    let unwritten = judged(&|seen| seen.unwritten.push(3));
    assert_eq!(unwritten, Verdict::Failed(FailureKind::Unwritten));
    // Another right result, but not the same bits.
    let deviating = |under| {
        judged(&move |seen| {
            let mut result = seen.result.clone();
            result.set_bits(2, result.bits(2) ^ 1);
            seen.deviations.push(Deviation { under, result });
        })
    };
    assert_eq!(
        deviating(Repeat::Same),
        Verdict::Failed(FailureKind::Nondeterministic)
    );
    let zeroed = deviating(Repeat::WorkspaceZero);
    assert_eq!(zeroed, Verdict::Failed(FailureKind::UninitialisedRead));
    for (other_kernel, kind) in [
        (Repeat::Moved, FailureKind::OutOfBound),
        (Repeat::OddStrides, FailureKind::OddStrides),
    ] {
        assert_eq!(deviating(other_kernel), Verdict::Passed);
        let wrong = judged(&|seen| {
            let mut result = seen.result.clone();
            result.set(2, 100.0);
            seen.deviations.push(Deviation {
                under: other_kernel,
                result,
            });
        });
        assert_eq!(wrong, Verdict::Failed(kind));
    }
}

#[test]
fn strict_nan_through_a_transform_must_arrive_where_it_is_promised() {
    let line = "fwd c=8 k=6 in=9x9 ker=3x3 fill=nan:1";
    let winograd = Arithmetic {
        family: Family::Winograd { tile: Some(2) },
        ..Arithmetic::simt(Accumulator::Fp32)
    };
    let bench = Bench::new(line, winograd);
    let dims = bench
        .inputs
        .problem
        .dims(bench.inputs.problem.direction.result());
    let outputs = &bench.reference.outputs;
    assert!(outputs.iter().any(|o| o.class == oracle::Class::Nan));
    // Every NaN was clamped on its way.
    let clamped = Tensor::from_fn(
        bench.inputs.problem.result_type(),
        &dims,
        |i| match outputs[i].class {
            oracle::Class::Finite => outputs[i].value.hi,
            _ => 0.0,
        },
    );
    let verdict = |strict_nan| {
        let case = Case {
            inputs: &bench.inputs,
            reference: &bench.reference,
        };
        let promises = Promises {
            strict_nan,
            ..Promises::default()
        };
        let seen = Outcome::Ran(Box::new(bench.seen(clamped.clone())));
        judge(case, Some(&bench.bounds), promises, &seen).verdict
    };
    assert_eq!(verdict(true), Verdict::Failed(FailureKind::WrongNan));
    assert!(!matches!(verdict(false), Verdict::Failed(_)));
}

#[test]
fn message_names_place_bits_and_allowance() {
    let bench = Bench::new(LINE, Arithmetic::simt(Accumulator::Fp32));
    let mut result = bench.right();
    result.set(9 * 9 + 2, 100.0);
    let words = bench.judgement(bench.seen(result)).detail.unwrap();
    assert!(
        words.starts_with("1 of 486 outputs wrong; at [0,1,0,2] expected"),
        "{words}"
    );
    assert!(words.contains("got 100 (0x42c80000)"), "{words}");
}

fn lines() -> impl Strategy<Value = String> {
    (
        prop::sample::select(vec!["fwd", "bwd_data", "bwd_filter"]),
        prop::sample::select(DType::ALL.to_vec()),
        prop::sample::select(vec![
            FillKind::Normal,
            FillKind::UniformPositive,
            FillKind::LogUniform,
            FillKind::Cancelling,
            FillKind::NearOverflow,
            FillKind::Subnormal,
        ]),
        (1usize..40, 1usize..4, 1usize..3, 1usize..3),
        any::<u64>(),
    )
        .prop_map(|(head, dtype, fill, (c, k, g, stride), seed)| {
            format!(
                "{head} c={} k={} in=6x5 ker=3x2 stride={stride}x1 pad=1x0 dil=1x2 g={g} type={dtype} fill={}:{seed}",
                c * g,
                k * g,
                fill.name(),
            )
        })
}

proptest! {
    /// Certified values lead to the verdicts that exact ones do, near the bound too.
    #[test]
    fn verdicts_are_those_of_the_arbiter(line in lines(), share in 0.0f64..1.5, seed: u64) {
        let accumulator = match line.contains("fp64") {
            true => Accumulator::Fp64,
            false => Accumulator::Fp32,
        };
        let mut bench = Bench::new(&line, Arithmetic::simt(accumulator));
        let dtype = bench.inputs.problem.result_type();
        let random = Stream::new(seed, 0);
        let dims = bench.inputs.problem.dims(bench.inputs.problem.direction.result());
        let result = Tensor::from_fn(dtype, &dims, |i| {
            let output = &bench.reference.outputs[i];
            output.value.hi + share * random.sign(i, 0) * bench.bounds.at(output)
        });
        let fast = bench.judgement(bench.seen(result.clone()));
        let mut exact = oracle::reference_by_arbiter(&bench.inputs);
        // S is rounded up: bounds are those of the fast one.
        for (exact, fast) in exact.outputs.iter_mut().zip(&bench.reference.outputs) {
            exact.s = fast.s;
        }
        bench.reference = exact;
        let slow = bench.judgement(bench.seen(result));
        prop_assert_eq!((fast.verdict, fast.wrong), (slow.verdict, slow.wrong));
    }
}
