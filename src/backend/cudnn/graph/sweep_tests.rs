//! On a GPU: random small problems, every engine, many knob choices.
//!
//! `cargo test --lib sweep_tests -- --ignored --nocapture`, with
//! `CONVFUZZ_SWEEP_SECONDS`, `CONVFUZZ_SWEEP_SEED`, `CONVFUZZ_SWEEP_KNOBS` and,
//! for given problems only, `CONVFUZZ_SWEEP_LINES` (a file). Every plan whose
//! output is wrong is printed with its line.

use std::collections::BTreeMap;
use std::time::Duration;

use super::knobs::SplitMix;
use super::*;
use crate::backend::Backend;
use crate::backend::cudnn::{Apis, CudnnBackend, CudnnOptions};
use crate::bound::{Accumulator, Arithmetic, OperandRounding};
use crate::dtype::{BF16, DType, FP16, FP32, TF32};
use crate::fill::{Fill, FillKind};
use crate::geometry::Geometry;
use crate::outcome::Observation;
use crate::problem::Role;
use crate::tensor::Tensor;

fn setting<T: std::str::FromStr>(name: &str, default: T) -> T {
    std::env::var(format!("CONVFUZZ_SWEEP_{name}"))
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(default)
}

/// Integers whose sums are exact in every accumulator, or reals that are not.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Data {
    Integers,
    Reals,
}

fn inputs(problem: &ConvProblem, data: Data, seed: u64) -> Inputs {
    let tensor = |role: Role, stream: u64| {
        Tensor::from_fn(problem.dtype(role), &problem.dims(role), |i| {
            let bits = SplitMix(seed ^ (stream << 56) ^ i as u64).next() >> 11;
            let uniform = bits as f64 * 2f64.powi(-53);
            match data {
                Data::Integers => (uniform * 5.0).floor() - 2.0,
                Data::Reals => 4.0 * uniform - 2.0,
            }
        })
    };
    let [first, second] = problem.direction.operands();
    Inputs {
        problem: problem.clone(),
        fill: Fill {
            kind: match data {
                Data::Integers => FillKind::Integers,
                Data::Reals => FillKind::Normal,
            },
            seed,
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

/// A generous error for what an engine declares.
fn tolerance(problem: &ConvProblem, arithmetic: &Arithmetic, s: f64, value: f64) -> f64 {
    let sums = match arithmetic.accumulator {
        Accumulator::Fp16 => FP16.unit_roundoff(),
        Accumulator::Fp32 => FP32.unit_roundoff(),
        _ => DType::Fp64.format().unit_roundoff(),
    };
    let operands = match arithmetic.operands {
        OperandRounding::None => 0.0,
        OperandRounding::Tf32 => 4.0 * TF32.unit_roundoff(),
        OperandRounding::Fp16 => 2.0 * FP16.unit_roundoff(),
        OperandRounding::Bf16 => 2.0 * BF16.unit_roundoff(),
    };
    let format = problem.result_type().format();
    let k = problem.reduction_length() as f64 + 2.0;
    (k * sums + operands) * s + format.unit_roundoff() * value.abs() + format.min_subnormal()
}

/// The largest S whose integer sums every accumulator in use holds exactly.
fn exact_up_to(problem: &ConvProblem, arithmetic: &Arithmetic) -> f64 {
    let half = arithmetic.accumulator == Accumulator::Fp16 || problem.result_type() == DType::Fp16;
    match (problem.result_type(), half) {
        (DType::Bf16, _) => 256.0,
        (_, true) => 2048.0,
        _ => 2f64.powi(24),
    }
}

/// What a plan's output shows.
#[derive(Default)]
struct Seen {
    wrong: usize,
    first: Option<(usize, f64, f64)>,
    error: f64,
}

fn compare(
    problem: &ConvProblem,
    arithmetic: &Arithmetic,
    data: Data,
    reference: &[(f64, f64)],
    observation: &Observation,
) -> Seen {
    let mut seen = Seen::default();
    for (index, &(value, s)) in reference.iter().enumerate() {
        let actual = observation.result.get(index);
        let error = (actual - value).abs();
        let exact = data == Data::Integers && s <= exact_up_to(problem, arithmetic);
        let limit = match exact {
            true => 0.0,
            false => tolerance(problem, arithmetic, s, value),
        };
        seen.error = seen
            .error
            .max(error / (FP32.unit_roundoff() * s.max(1e-30)));
        if !error.le(&limit) {
            seen.wrong += 1;
            seen.first.get_or_insert((index, value, actual));
        }
    }
    seen
}

fn pick<T: Copy>(random: &mut SplitMix, list: &[T]) -> T {
    list[random.below(list.len() as u64) as usize]
}

/// A random problem of at most a few million products.
fn problem(random: &mut SplitMix) -> ConvProblem {
    loop {
        let rank = pick(random, &[1, 2, 2, 2, 2, 3, 3]);
        let mut list = |values: &[usize]| -> String {
            let words: Vec<String> = (0..rank)
                .map(|_| pick(random, values).to_string())
                .collect();
            words.join("x")
        };
        let (kernel, input) = (
            list(&[1, 1, 2, 3, 3, 3, 5, 7]),
            list(&[1, 3, 5, 7, 8, 9, 14, 17]),
        );
        let (stride, dilation) = (list(&[1, 1, 1, 2, 3]), list(&[1, 1, 1, 1, 2]));
        let padding = list(&[0, 0, 1, 1, 2, 3]);
        let channels = [
            1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 24, 31, 32, 33, 40, 63, 64, 65, 96, 128,
        ];
        let groups = pick(random, &[1, 1, 1, 1, 1, 2, 3, 4, 8]);
        let line = format!(
            "{} n={} c={} k={} in={input} ker={kernel} stride={stride} pad={padding} dil={dilation} \
             g={groups} layout={} {} {}",
            pick(random, &["fwd", "fwd", "bwd_data", "bwd_filter"]),
            pick(random, &[1, 1, 2, 3, 4, 8, 17]),
            groups * pick(random, &channels),
            groups * pick(random, &channels),
            pick(random, &["nchw", "nhwc"]),
            pick(
                random,
                &[
                    "",
                    "",
                    "type=fp16",
                    "type=fp16",
                    "type=bf16",
                    "type=fp16 compute=fp16",
                    "type=fp64"
                ]
            ),
            pick(
                random,
                &["", "", "", "", "beta=1", "alpha=0.5", "alpha=2 beta=-1"]
            ),
        );
        if let Ok(problem) = line.parse::<ConvProblem>()
            && (50..3_000_000).contains(&problem.macs())
        {
            return problem;
        }
    }
}

#[derive(Default)]
struct Tally {
    plans: u64,
    trials: u64,
    bad: u64,
    library: Duration,
    classes: BTreeMap<String, (u64, f64)>,
}

/// Runs every offered candidate of a problem on both kinds of data.
fn sweep(backend: &mut CudnnBackend, problem: &ConvProblem, seed: u64, tally: &mut Tally) {
    let start = Instant::now();
    let listings = backend.candidates(problem).unwrap();
    tally.library += start.elapsed();
    for data in [Data::Integers, Data::Reals] {
        let inputs = inputs(problem, data, seed);
        let reference = reference(&inputs);
        for listing in &listings {
            let Support::Offered {
                arithmetic,
                nondeterministic,
                notes,
                ..
            } = &listing.support
            else {
                continue;
            };
            tally.plans += u64::from(data == Data::Integers);
            tally.trials += 1;
            let start = Instant::now();
            let options = RunOptions {
                repeats: if data == Data::Reals { 4 } else { 0 },
            };
            let line = format!("{problem} fill={} via={}", inputs.fill, listing.candidate);
            if let Ok(path) = std::env::var("CONVFUZZ_SWEEP_CURRENT") {
                std::fs::write(path, &line).unwrap();
            }
            let outcome = match backend.run(&inputs, &listing.candidate, &options) {
                Ok(outcome) => outcome,
                Err(error) => panic!("LOST\t{line}\t{error}"),
            };
            tally.library += start.elapsed();
            let mut faults = Vec::new();
            match &outcome {
                Outcome::Ran(observation) => {
                    let seen = compare(problem, arithmetic, data, &reference, observation);
                    if let Some((index, expected, actual)) = seen.first {
                        faults.push(format!(
                            "WRONG {}/{} first [{index}] {actual:e} for {expected:e} ({:.3e} u32*S)",
                            seen.wrong,
                            reference.len(),
                            seen.error
                        ));
                    }
                    if !observation.memory.is_empty() {
                        faults.push(format!("MEMORY {:?}", observation.memory));
                    }
                    if !observation.unwritten.is_empty() {
                        faults.push(format!("UNWRITTEN {}", observation.unwritten.len()));
                    }
                    let under: Vec<_> = observation.deviations.iter().map(|d| d.under).collect();
                    if !under.is_empty() && !nondeterministic {
                        faults.push(format!("DEVIATES {under:?}"));
                    }
                    if data == Data::Reals {
                        let class = format!(
                            "{} {} {} {:?}",
                            problem.direction.name(),
                            problem.type_text(),
                            problem.compute.name(),
                            notes
                                .iter()
                                .filter(|n| !n.starts_with("heur"))
                                .collect::<Vec<_>>()
                        );
                        let entry = tally.classes.entry(class).or_default();
                        entry.0 += 1;
                        entry.1 = entry.1.max(seen.error);
                    }
                }
                Outcome::NotSupported(words) => faults.push(format!("NOT SUPPORTED {words}")),
                other => faults.push(format!("FAILED {other:?}")),
            }
            for fault in faults {
                tally.bad += 1;
                println!("FINDING\t{line}\t{}\t{fault}", notes.join("+"));
            }
        }
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU and cuDNN"]
fn sweep_every_plan_is_right() {
    let seed = setting("SEED", 1u64);
    let limit = Duration::from_secs(setting("SECONDS", 60));
    let mut backend = CudnnBackend::open(&CudnnOptions {
        apis: Apis {
            legacy: false,
            engines: true,
        },
        knobs: setting("KNOBS", KnobBudget::Count(24)),
        seed,
        ..CudnnOptions::default()
    })
    .unwrap();
    let lines = std::env::var("CONVFUZZ_SWEEP_LINES")
        .map(|path| std::fs::read_to_string(path).unwrap())
        .unwrap_or_default();
    let mut given = lines.lines().filter(|line| !line.trim().is_empty());
    let mut random = SplitMix(seed);
    let (mut tally, start) = (Tally::default(), Instant::now());
    let mut problems = 0;
    while start.elapsed() < limit {
        let problem = match given.next() {
            Some(line) => line.parse().unwrap(),
            None if lines.is_empty() => problem(&mut random),
            None => break,
        };
        problems += 1;
        sweep(&mut backend, &problem, seed, &mut tally);
    }
    for (class, (count, error)) in &tally.classes {
        println!("CLASS\t{class}\t{count}\t{error:.3e}");
    }
    println!(
        "SUM\t{problems} problems, {} plans, {} trials, {} findings, {:?} of {:?} in the library",
        tally.plans,
        tally.trials,
        tally.bad,
        tally.library,
        start.elapsed()
    );
    assert_eq!(tally.bad, 0, "findings above");
}

/// Prints the GPU's properties for planning without it.
#[test]
#[ignore = "needs an NVIDIA GPU and cuDNN 9.8 or later"]
fn properties_are_captured_and_usable() {
    let session = Session::open(&CudnnOptions::default()).unwrap();
    let planner = Planner::on(&session).unwrap();
    let json = planner.properties(0).unwrap();
    println!("PROPERTIES {json}");
    let offline = Planner::offline(None, &json).unwrap();
    let problem: ConvProblem = "fwd n=2 c=32 k=32 in=14x14 ker=3x3 pad=1x1 type=fp16"
        .parse()
        .unwrap();
    let here = planner.prepare(&problem).unwrap();
    let there = offline.prepare(&problem).unwrap();
    let indices = |p: &Prepared| p.engines().map(|e| e.index).collect::<Vec<_>>();
    assert_eq!(indices(&here), indices(&there));
    assert!(!indices(&here).is_empty());
}
