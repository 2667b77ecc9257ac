//! Tests that need an NVIDIA GPU and cuDNN:
//! `cargo test --lib gpu_tests -- --ignored --test-threads=1 --nocapture`.

use std::collections::BTreeMap;
use std::process::Command;

use super::driver::poke;
use super::memory::{Buffer, Poison, REDZONE};
use super::observe::{Bench, Launch, Setup};
use super::session::Session;
use super::status::Meaning;
use super::*;
use crate::backend::Support;
use crate::bound::{Accumulator, Family, OperandRounding};
use crate::dtype::{BF16, DType, FP16, FP32, TF32};
use crate::error::ErrorKind;
use crate::fill::{Fill, FillKind};
use crate::geometry::Geometry;
use crate::outcome::{MemoryFaultKind, Observation, Repeat};
use crate::problem::Role;
use crate::tensor::Tensor;

/// A number in [0, 1) from a position: SplitMix64's finaliser.
fn uniform(seed: u64, i: usize) -> f64 {
    let mut z = (i as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ seed.rotate_left(32);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    ((z ^ (z >> 31)) >> 11) as f64 * 2f64.powi(-53)
}

#[derive(Clone, Copy, PartialEq)]
enum Data {
    Integers,
    Reals,
}

fn inputs(problem: &ConvProblem, data: Data) -> Inputs {
    let [first, second] = problem.direction.operands();
    let tensor = |role: Role, seed: u64| {
        Tensor::from_fn(problem.dtype(role), &problem.dims(role), |i| match data {
            Data::Integers => (uniform(seed, i) * 5.0).floor() - 2.0,
            Data::Reals => 4.0 * uniform(seed, i) - 2.0,
        })
    };
    Inputs {
        problem: problem.clone(),
        fill: Fill {
            kind: FillKind::Normal,
            seed: 0,
        },
        first: tensor(first, 1),
        second: tensor(second, 2),
        prior: (problem.beta.0 != 0.0).then(|| tensor(problem.direction.result(), 3)),
    }
}

/// Value and S of every output, in double arithmetic.
fn reference(inputs: &Inputs) -> Vec<(f64, f64)> {
    let geometry = Geometry::new(&inputs.problem);
    let (first, second) = (inputs.first.to_f64(), inputs.second.to_f64());
    let (alpha, beta) = (inputs.problem.alpha.0, inputs.problem.beta.0);
    (0..geometry.outputs())
        .map(|index| {
            let (mut sum, mut s) = (0.0, 0.0);
            geometry.for_each_product(index, |a, b| {
                sum += first[a] * second[b];
                s += (first[a] * second[b]).abs();
            });
            let prior = inputs.prior.as_ref().map_or(0.0, |p| beta * p.get(index));
            (alpha * sum + prior, s * alpha.abs() + prior.abs())
        })
        .collect()
}

/// A generous error for what a candidate declares: enough to tell a right
/// result from a wrong one, not a bound.
fn tolerance(problem: &ConvProblem, support: &Support, s_max: f64, s: f64, value: f64) -> f64 {
    let Support::Offered { arithmetic, .. } = support else {
        panic!("only offered candidates run");
    };
    let sums = match arithmetic.accumulator {
        Accumulator::Bf16 => BF16.unit_roundoff(),
        Accumulator::Fp16 => FP16.unit_roundoff(),
        Accumulator::Fp32 => FP32.unit_roundoff(),
        Accumulator::Fp64 => DType::Fp64.format().unit_roundoff(),
    };
    let operands = match arithmetic.operands {
        OperandRounding::None => 0.0,
        OperandRounding::Tf32 => 4.0 * TF32.unit_roundoff(),
        OperandRounding::Fp16 => 2.0 * FP16.unit_roundoff(),
        OperandRounding::Bf16 => 2.0 * BF16.unit_roundoff(),
    };
    let scale = match arithmetic.family {
        Family::InnerProduct => s,
        _ => 50.0 * s_max,
    };
    let format = problem.result_type().format();
    let k = problem.reduction_length() as f64;
    (k * sums + operands) * scale + format.unit_roundoff() * value.abs() + format.min_subnormal()
}

/// Algorithms alone: some engines of current cuDNN are wrong, which is for the
/// sweep of engines to find.
fn backend() -> CudnnBackend {
    let options = CudnnOptions {
        apis: Apis {
            legacy: true,
            engines: false,
        },
        ..CudnnOptions::default()
    };
    CudnnBackend::open(&options).unwrap_or_else(|e| panic!("{e}"))
}

/// What was found wrong, to be shown all at once.
#[derive(Default)]
struct Faults(Vec<String>);

impl Faults {
    fn expect(&mut self, right: bool, words: impl FnOnce() -> String) {
        if !right {
            let words = words();
            println!("  WRONG: {words}");
            self.0.push(words);
        }
    }

    fn end(self) {
        assert!(
            self.0.is_empty(),
            "{} faults:\n{}",
            self.0.len(),
            self.0.join("\n")
        );
    }
}

/// Runs every offered candidate of a line, checks results and memory, prints
/// what was accepted; the numbers of the algorithms that ran.
fn run_all(backend: &mut CudnnBackend, line: &str, data: Data, faults: &mut Faults) -> Vec<String> {
    let problem: ConvProblem = line.parse().unwrap();
    let inputs = inputs(&problem, data);
    let reference = reference(&inputs);
    let mut ran: BTreeMap<String, String> = BTreeMap::new();
    let mut results: Vec<(String, Tensor)> = Vec::new();
    println!("{line}");
    for listing in backend.candidates(&problem).unwrap() {
        if matches!(listing.support, Support::Refused(_)) {
            continue;
        }
        let options = RunOptions { repeats: 4 };
        let outcome = backend.run(&inputs, &listing.candidate, &options).unwrap();
        let Outcome::Ran(seen) = outcome else {
            let skip = matches!(outcome, Outcome::NotSupported(_));
            println!("  {}: {outcome:?}", listing.candidate);
            faults.expect(skip, || {
                format!("{line} via={}: {outcome:?}", listing.candidate)
            });
            continue;
        };
        check(&problem, &reference, &listing, &seen, faults);
        let twin = results.iter().find(|(_, tensor)| *tensor == seen.result);
        if let Some((name, _)) = twin {
            println!("      same bits as {name}");
        }
        results.push((listing.candidate.to_string(), seen.result));
        if let Candidate::Legacy { algorithm, math } = &listing.candidate {
            let maths = ran.entry(algorithm.to_string()).or_default();
            maths.push(math.name().chars().next().unwrap_or('?'));
        }
    }
    println!("  ran: {ran:?}");
    ran.into_keys().collect()
}

fn check(
    problem: &ConvProblem,
    reference: &[(f64, f64)],
    listing: &Listing,
    seen: &Observation,
    faults: &mut Faults,
) {
    let Support::Offered {
        nondeterministic, ..
    } = listing.support
    else {
        return;
    };
    let s_max = reference.iter().fold(0.0f64, |m, &(_, s)| m.max(s));
    let (mut ulps, mut u32s, mut wrong) = (0.0f64, 0.0f64, 0);
    for (i, &(value, s)) in reference.iter().enumerate() {
        let error = (seen.result.get(i) - value).abs();
        ulps = ulps.max(error / problem.result_type().format().ulp(value));
        u32s = u32s.max(error / (FP32.unit_roundoff() * s.max(1e-30)));
        let limit = tolerance(problem, &listing.support, s_max, s, value);
        wrong += usize::from(!error.le(&limit));
    }
    let under: Vec<Repeat> = seen.deviations.iter().map(|d| d.under).collect();
    println!(
        "  {} ws={} {:?}: {ulps:.2} ulp, {u32s:.1} u32*S {under:?}",
        listing.candidate, seen.workspace, seen.elapsed
    );
    let at = format!("{problem} via={}", listing.candidate);
    faults.expect(wrong == 0, || {
        format!("{at}: {wrong} outputs off, {ulps} ulp")
    });
    faults.expect(seen.memory.is_empty(), || {
        format!("{at}: {:?}", seen.memory)
    });
    faults.expect(seen.unwritten.is_empty(), || format!("{at}: unwritten"));
    faults.expect(nondeterministic || under.is_empty(), || {
        format!("{at}: {under:?}")
    });
}

#[test]
#[ignore = "needs an NVIDIA GPU and cuDNN"]
fn probe_on_a_gpu_is_ready() {
    let probe = probe(&CudnnOptions::default());
    println!("{}", serde_json::to_string_pretty(&probe).unwrap());
    assert!(probe.ready, "{:?}", probe.advice);
    assert!(probe.driver.version.is_some() && probe.cudnn.version.is_some());
    assert!(probe.cudnn.path.unwrap().starts_with('/'));
    let backend = backend();
    let combination = backend.combination();
    assert!(!combination.driver.is_empty() && !combination.cuda.is_empty());
    assert_eq!(combination.sm, probe.gpus[0].sm());
}

/// Problems, and the algorithms that an H200 with cuDNN 9.19 accepts for fp32,
/// fp16, true half, bf16 and fp64.
const SHAPES: &[(&str, [&str; 5])] = &[
    (
        "n=2 c=32 k=32 in=16x16 ker=3x3 pad=1x1",
        ["012457", "012457", "017", "0127", "012"],
    ),
    (
        "n=2 c=32 k=32 in=16x16 ker=5x5 pad=2x2",
        ["012457", "012457", "01", "0127", "012"],
    ),
    (
        "n=3 c=7 k=5 in=13x11 ker=3x2 pad=1x1",
        ["01245", "01245", "01", "012", "012"],
    ),
    (
        "n=2 c=32 k=32 in=16x16 ker=3x3 pad=2x2 dil=2x2",
        ["012", "012", "01", "012", "012"],
    ),
    (
        "n=2 c=32 k=32 in=16x16 ker=3x3 pad=1x1 stride=2x2",
        ["0125", "0125", "01", "012", "012"],
    ),
    (
        "n=2 c=32 k=32 in=16x16 ker=3x3 pad=1x1 g=4",
        ["012457", "012457", "017", "0127", "012"],
    ),
    (
        "n=2 c=16 k=16 in=8x8x8 ker=3x1x1 pad=1x0x0",
        ["015", "015", "", "01", "015"],
    ),
    (
        "n=2 c=16 k=16 in=8x8x8 ker=3x3x3 pad=1x1x1",
        ["015", "015", "", "01", "015"],
    ),
    (
        "n=2 c=32 k=32 in=64 ker=3 pad=1",
        ["01", "01", "01", "01", "01"],
    ),
];

const TYPES: [&str; 5] = [
    "",
    " type=fp16",
    " type=fp16 compute=fp16",
    " type=bf16",
    " type=fp64",
];

/// The same for channels-last layouts, by rank.
fn channels_last(shape: &str) -> [&'static str; 5] {
    if shape.contains("8x8x8") {
        ["1", "1", "", "1", ""]
    } else {
        ["01"; 5]
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU and cuDNN"]
fn forward_every_accepted_algorithm_is_right() {
    let mut backend = backend();
    let known = backend.combination().sm == "9.0" && backend.combination().cudnn == "9.19.0";
    let mut faults = Faults::default();
    for (shape, table) in SHAPES {
        for (layout, table) in [("", *table), (" layout=nhwc", channels_last(shape))] {
            for (types, expected) in TYPES.iter().zip(table) {
                let line = format!("fwd {shape}{layout}{types}");
                let ran = run_all(&mut backend, &line, Data::Reals, &mut faults);
                let missing = expected.chars().any(|a| !ran.contains(&a.to_string()));
                faults.expect(!known || !missing, || {
                    format!("{line}: expected {expected}, ran {ran:?}")
                });
            }
        }
    }
    faults.end();
}

#[test]
#[ignore = "needs an NVIDIA GPU and cuDNN"]
fn backward_every_accepted_algorithm_is_right() {
    let mut backend = backend();
    let mut faults = Faults::default();
    for direction in ["bwd_data", "bwd_filter"] {
        for (shape, _) in SHAPES {
            for types in TYPES {
                let line = format!("{direction} {shape}{types}");
                run_all(&mut backend, &line, Data::Reals, &mut faults);
            }
        }
    }
    faults.end();
}

#[test]
#[ignore = "needs an NVIDIA GPU and cuDNN"]
fn forward_integers_alpha_and_beta_are_right() {
    let mut backend = backend();
    let mut faults = Faults::default();
    for tail in ["", " alpha=0.5", " beta=1", " alpha=-2 beta=0.25"] {
        for types in TYPES {
            let line = format!("fwd n=2 c=8 k=16 in=9x9 ker=3x3 pad=1x1{types}{tail}");
            let ran = run_all(&mut backend, &line, Data::Integers, &mut faults);
            faults.expect(!ran.is_empty(), || format!("{line}: nothing ran"));
        }
    }
    faults.end();
}

/// Math types that are listed as the same as another must give the same bits.
#[test]
#[ignore = "needs an NVIDIA GPU and cuDNN"]
fn candidates_same_as_another_have_its_bits() {
    let mut backend = backend();
    let mut faults = Faults::default();
    let options = RunOptions { repeats: 0 };
    let mut compared = 0;
    for (shape, _) in SHAPES {
        for types in TYPES {
            let problem: ConvProblem = format!("fwd {shape}{types}").parse().unwrap();
            let inputs = inputs(&problem, Data::Reals);
            for listing in backend.candidates(&problem).unwrap() {
                let Some(twin) = twin(&listing) else { continue };
                let one = backend.run(&inputs, &listing.candidate, &options).unwrap();
                let other = backend.run(&inputs, &twin, &options).unwrap();
                let (Outcome::Ran(one), Outcome::Ran(other)) = (one, other) else {
                    continue;
                };
                compared += 1;
                faults.expect(one.result == other.result, || {
                    format!("{problem}: {} differs from {twin}", listing.candidate)
                });
            }
        }
    }
    println!("{compared} pairs compared");
    assert!(compared > 0);
    faults.end();
}

/// The candidate that a refused one is said to be the same as.
fn twin(listing: &Listing) -> Option<Candidate> {
    let Support::Refused(why) = &listing.support else {
        return None;
    };
    let name = why.strip_prefix("same as ")?.split(':').next()?;
    let Candidate::Legacy { algorithm, .. } = listing.candidate else {
        return None;
    };
    Some(format!("legacy:{algorithm}/{name}").parse().unwrap())
}

#[test]
#[ignore = "needs an NVIDIA GPU and cuDNN"]
fn run_many_cases_leaks_no_device_memory() {
    let mut backend = backend();
    let candidate: Candidate = "legacy:1".parse().unwrap();
    let options = RunOptions { repeats: 0 };
    let mut free = Vec::new();
    let start = std::time::Instant::now();
    for case in 0..600 {
        let line = format!("fwd c=32 k=32 in={0}x{0} ker=3x3 pad=1x1", 8 + case % 7);
        let problem = line.parse().unwrap();
        let outcome = backend.run(&inputs(&problem, Data::Reals), &candidate, &options);
        assert!(matches!(outcome, Ok(Outcome::Ran(_))), "{outcome:?}");
        free.push(backend.session.context().free_memory().unwrap());
    }
    println!("600 cases in {:?}", start.elapsed());
    assert_eq!(free[100], free[599]);
    let inputs = inputs(
        &"fwd c=32 k=32 in=16x16 ker=3x3".parse().unwrap(),
        Data::Reals,
    );
    let start = std::time::Instant::now();
    for _ in 0..600 {
        backend.run(&inputs, &candidate, &options).unwrap();
    }
    println!("600 trials of one case in {:?}", start.elapsed());
}

#[test]
#[ignore = "needs an NVIDIA GPU and cuDNN"]
fn candidates_asymmetric_padding_is_refused_in_words() {
    let problem = "fwd c=8 k=8 in=9x9 ker=3x3 pad=1+0x1".parse().unwrap();
    for listing in backend().candidates(&problem).unwrap() {
        let Candidate::Legacy { .. } = listing.candidate else {
            continue;
        };
        let Support::Refused(why) = listing.support else {
            panic!("{} was offered", listing.candidate);
        };
        assert!(why.contains("symmetric padding") || why.starts_with("same as"));
    }
}

fn session() -> Session {
    Session::open(&CudnnOptions::default()).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
#[ignore = "needs an NVIDIA GPU and cuDNN"]
fn buffer_one_stray_byte_is_seen_at_every_size() {
    let session = session();
    for bytes in [0usize, 1, 2, 511, 512, 4096, 65536, 2 << 20, (2 << 20) + 2] {
        let buffer = Buffer::new(session.driver(), "y", bytes).unwrap();
        assert_eq!(buffer.damage().unwrap(), []);
        let end = buffer.address() + bytes as u64;
        poke(session.driver(), end, &[0]);
        poke(session.driver(), buffer.address() - 1, &[0]);
        poke(session.driver(), end + REDZONE as u64 - 1, &[0]);
        let damage = buffer.damage().unwrap();
        let places: Vec<_> = damage.iter().map(|d| (d.kind, d.offset, d.bytes)).collect();
        assert_eq!(
            places,
            [
                (MemoryFaultKind::Before, -1, 1),
                (MemoryFaultKind::Behind, bytes as i64, 2)
            ]
        );
        buffer.guard().unwrap();
        assert_eq!(buffer.damage().unwrap(), []);
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU and cuDNN"]
fn buffer_poison_reaches_every_element() {
    let session = session();
    for dtype in DType::ALL {
        for poison in [Poison::Nan, Poison::Finite] {
            let buffer = Buffer::new(session.driver(), "y", 7 * dtype.size()).unwrap();
            buffer.poison(dtype, poison).unwrap();
            let bytes = buffer.download().unwrap();
            let tensor = Tensor::from_bytes(dtype, &[1, 7], &bytes).unwrap();
            assert!((0..7).all(|i| tensor.bits(i) == poison.bits(dtype)));
            assert_eq!(buffer.damage().unwrap(), []);
        }
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU and cuDNN"]
fn buffer_beyond_the_memory_is_a_shortage() {
    let failure = Buffer::new(session().driver(), "y", 1 << 42).err().unwrap();
    assert_eq!(failure.meaning, Meaning::OutOfMemory);
}

/// Observes a made-up launch that may misbehave.
fn observe(session: &Session, launch: &mut dyn FnMut(&Launch)) -> Observation {
    let problem: ConvProblem = "fwd c=2 k=2 in=4x4 ker=1x1 layout=nhwc".parse().unwrap();
    let setup = Setup {
        workspace: 64,
        planning: std::time::Duration::ZERO,
        repeats: &[
            Repeat::OutputPoison,
            Repeat::WorkspaceZero,
            Repeat::WorkspaceLeftover,
            Repeat::Moved,
            Repeat::Same,
        ],
    };
    let outcome =
        Bench::default().observe(session, &inputs(&problem, Data::Reals), &setup, &mut |at| {
            launch(at);
            Ok(())
        });
    match outcome.unwrap() {
        Outcome::Ran(observation) => *observation,
        other => panic!("{other:?}"),
    }
}

const OUTPUT: usize = 2 * 16 * 4;

#[test]
#[ignore = "needs an NVIDIA GPU and cuDNN"]
fn observe_a_launch_that_does_nothing_leaves_everything_unwritten() {
    let seen = observe(&session(), &mut |_| {});
    assert_eq!(seen.unwritten, (0..32).collect::<Vec<_>>());
    let under: Vec<_> = seen.deviations.iter().map(|d| d.under).collect();
    assert_eq!(under, [Repeat::OutputPoison]);
}

#[test]
#[ignore = "needs an NVIDIA GPU and cuDNN"]
fn observe_places_missing_elements_and_stray_writes() {
    let session = session();
    let driver = session.driver();
    let seen = observe(&session, &mut |at| {
        poke(driver, at.pointers.y, &[0; OUTPUT - 4]);
        poke(driver, at.pointers.y + OUTPUT as u64 + 4, &[0; 4]);
        poke(driver, at.pointers.workspace - 2, &[0; 2]);
        poke(driver, at.pointers.x + 5, &[0xAA]);
    });
    // The last element in memory, NHWC, is the last in logical order too.
    assert_eq!(seen.unwritten, [31]);
    let faults: Vec<_> = seen
        .memory
        .iter()
        .map(|f| (f.buffer.as_str(), f.kind, f.offset))
        .collect();
    assert_eq!(
        faults,
        [
            ("x", MemoryFaultKind::InputChanged, 5),
            ("y", MemoryFaultKind::Behind, OUTPUT as i64 + 4),
            ("workspace", MemoryFaultKind::Before, -2),
        ]
    );
}

#[test]
#[ignore = "needs an NVIDIA GPU and cuDNN"]
fn observe_moved_tensors_lie_at_odd_multiples_of_16_with_their_data() {
    let session = session();
    let driver = session.driver();
    let mut seen = Vec::new();
    let observed = observe(&session, &mut |at| {
        let data = [at.pointers.x, at.pointers.w].map(|p| super::driver::peek(driver, p, 16));
        let places = [at.pointers.x, at.pointers.w, at.pointers.y].map(|p| p % 256);
        poke(driver, at.pointers.y, &[0; OUTPUT]);
        seen.push((at.repeat, places, data));
    });
    assert!(observed.memory.is_empty() && observed.deviations.is_empty());
    for (repeat, places, data) in &seen {
        let moved = *repeat == Some(Repeat::Moved);
        assert_eq!(*places, if moved { [16, 48, 80] } else { [0; 3] });
        assert_eq!(*data, seen[0].2);
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU and cuDNN"]
fn observe_names_what_a_result_depends_on() {
    let session = session();
    let driver = session.driver();
    let seen = observe(&session, &mut |at| {
        // What it wrote last time is what it reads this time, unless refilled.
        let stale = super::driver::peek(driver, at.pointers.workspace, 1)[0];
        poke(driver, at.pointers.y, &[stale; OUTPUT]);
        poke(driver, at.pointers.workspace, &[0x11]);
    });
    let under: Vec<_> = seen.deviations.iter().map(|d| d.under).collect();
    assert_eq!(under, [Repeat::WorkspaceZero, Repeat::WorkspaceLeftover]);
    let mut count = 0;
    let seen = observe(&session, &mut |at| {
        count += 1;
        poke(driver, at.pointers.y, &[count; OUTPUT]);
    });
    assert!(seen.deviations.iter().any(|d| d.under == Repeat::Same));
}

const LOSE_CONTEXT: &str = "CONVFUZZ_TEST_LOSE_CONTEXT";

#[test]
#[ignore = "needs an NVIDIA GPU and cuDNN"]
fn run_after_a_lost_context_says_to_start_a_new_process() {
    if std::env::var_os(LOSE_CONTEXT).is_some() {
        return lose_context();
    }
    // In a process of its own: the context does not come back.
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--ignored", "--nocapture"])
        .arg("backend::cudnn::gpu_tests::run_after_a_lost_context_says_to_start_a_new_process")
        .env(LOSE_CONTEXT, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    println!("{text}");
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}"
    );
}

fn lose_context() {
    let mut backend = backend();
    let problem: ConvProblem = "fwd c=32 k=32 in=16x16 ker=3x3".parse().unwrap();
    let inputs = inputs(&problem, Data::Reals);
    let setup = Setup {
        workspace: 0,
        planning: std::time::Duration::ZERO,
        repeats: &[],
    };
    let outcome = {
        let session = &backend.session;
        let wild = legacy::tests_support::wild_launch(session, &problem);
        let mut launch = |at: &Launch| wild(at);
        backend.bench.observe(session, &inputs, &setup, &mut launch)
    };
    println!("{outcome:?}");
    let Ok(Outcome::ExecutionFailed { status, .. }) = outcome else {
        panic!("a wild pointer must fail the launch");
    };
    assert!(!status.is_empty());
    let candidate = "legacy:0".parse().unwrap();
    let error = backend
        .run(&inputs, &candidate, &RunOptions { repeats: 0 })
        .unwrap_err();
    println!("{error}");
    assert_eq!(error.kind(), ErrorKind::Environment);
    assert!(error.to_string().contains("start a new process"));
}
