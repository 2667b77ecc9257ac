//! On a GPU: random small problems, every engine, many knob choices, all judged.
//!
//! `cargo test --lib sweep_tests -- --ignored --nocapture`. Settings:
//! `CONVFUZZ_SWEEP_SECONDS`, `CONVFUZZ_SWEEP_SEED`, `CONVFUZZ_SWEEP_KNOBS`; for
//! given problems only, `CONVFUZZ_SWEEP_LINES` (a file of lines; those that are
//! empty or begin with # are skipped), where a `via` narrows a line to one
//! candidate; and `CONVFUZZ_SWEEP_CURRENT`, a file that
//! holds the line being run, for when it ends the process.

use std::fs;
use std::time::Duration;

use super::knobs::SplitMix;
use super::*;
use crate::backend::Backend;
use crate::backend::cudnn::{Apis, CudnnBackend, CudnnOptions};
use crate::bound::Bounds;
use crate::candidate::Repro;
use crate::fill::{Fill, FillKind, Inputs};
use crate::judge::{Case, Judgement, Verdict, judge};
use crate::oracle::{Reference, Sample, reference};

fn setting(name: &str) -> Option<String> {
    std::env::var(format!("CONVFUZZ_SWEEP_{name}")).ok()
}

fn parsed<T: std::str::FromStr>(name: &str, default: T) -> T {
    setting(name)
        .and_then(|text| text.parse().ok())
        .unwrap_or(default)
}

fn pick<T: Copy>(random: &mut SplitMix, list: &[T]) -> T {
    list[random.below(list.len() as u64) as usize]
}

const DIRECTIONS: [&str; 4] = ["fwd", "fwd", "bwd_data", "bwd_filter"];
const BATCHES: [usize; 7] = [1, 1, 2, 3, 4, 8, 17];
const CHANNELS: [usize; 20] = [
    1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 24, 31, 32, 33, 40, 63, 64, 65, 96, 128,
];
const GROUPS: [usize; 9] = [1, 1, 1, 1, 1, 2, 3, 4, 8];
const IMAGES: [usize; 8] = [1, 3, 5, 7, 8, 9, 14, 17];
const KERNELS: [usize; 8] = [1, 1, 2, 3, 3, 3, 5, 7];
const STRIDES: [usize; 5] = [1, 1, 1, 2, 3];
const PADDINGS: [usize; 6] = [0, 0, 1, 1, 2, 3];
const DILATIONS: [usize; 5] = [1, 1, 1, 1, 2];
const TYPES: [&str; 7] = [
    "",
    "",
    "type=fp16",
    "type=fp16",
    "type=bf16",
    "type=fp16 compute=fp16",
    "type=fp64",
];
const SCALES: [&str; 7] = ["", "", "", "", "beta=1", "alpha=0.5", "alpha=2 beta=-1"];

/// A random line, which may be no possible problem.
fn line(random: &mut SplitMix) -> String {
    let rank = pick(random, &[1, 2, 2, 2, 2, 3, 3]);
    let sizes = |random: &mut SplitMix, values: &[usize]| -> String {
        let words: Vec<String> = (0..rank)
            .map(|_| pick(random, values).to_string())
            .collect();
        words.join("x")
    };
    let groups = pick(random, &GROUPS);
    format!(
        "{} n={} c={} k={} in={} ker={} stride={} pad={} dil={} g={groups} layout={} {} {}",
        pick(random, &DIRECTIONS),
        pick(random, &BATCHES),
        groups * pick(random, &CHANNELS),
        groups * pick(random, &CHANNELS),
        sizes(random, &IMAGES),
        sizes(random, &KERNELS),
        sizes(random, &STRIDES),
        sizes(random, &PADDINGS),
        sizes(random, &DILATIONS),
        pick(random, &["nchw", "nhwc"]),
        pick(random, &TYPES),
        pick(random, &SCALES),
    )
}

/// A random problem of at most a few million products.
fn problem(random: &mut SplitMix) -> ConvProblem {
    loop {
        if let Ok(problem) = line(random).parse::<ConvProblem>()
            && (50..3_000_000).contains(&problem.macs())
        {
            return problem;
        }
    }
}

#[derive(Default)]
struct Tally {
    problems: u64,
    trials: u64,
    findings: u64,
    planning: Duration,
    running: Duration,
}

/// Runs every offered candidate of a problem on integers and on reals.
fn sweep(
    backend: &mut CudnnBackend,
    problem: &ConvProblem,
    via: Option<&Candidate>,
    seed: u64,
    tally: &mut Tally,
) {
    let start = Instant::now();
    let listings = match via {
        None => backend.candidates(problem).unwrap(),
        Some(candidate) => vec![Listing {
            candidate: candidate.clone(),
            support: backend.support(problem, candidate).unwrap(),
        }],
    };
    tally.planning += start.elapsed();
    tally.problems += 1;
    for kind in [FillKind::Integers, FillKind::Normal] {
        let inputs = Inputs::generate(problem, Fill { kind, seed });
        let reference = reference(&inputs, &Sample::All);
        for listing in &listings {
            trial(backend, &inputs, &reference, listing, tally);
        }
    }
}

fn trial(
    backend: &mut CudnnBackend,
    inputs: &Inputs,
    reference: &Reference,
    listing: &Listing,
    tally: &mut Tally,
) {
    let Support::Offered {
        arithmetic, notes, ..
    } = &listing.support
    else {
        return;
    };
    let repro = Repro {
        problem: inputs.problem.clone(),
        fill: inputs.fill,
        via: Some(listing.candidate.clone()),
    };
    if let Some(path) = setting("CURRENT") {
        fs::write(path, repro.to_string()).unwrap();
    }
    let repeats = if inputs.fill.kind == FillKind::Normal {
        4
    } else {
        0
    };
    let start = Instant::now();
    let outcome = backend
        .run(inputs, &listing.candidate, &RunOptions { repeats })
        .unwrap_or_else(|error| panic!("LOST\t{repro}\t{error}"));
    tally.running += start.elapsed();
    tally.trials += 1;
    let bounds = Bounds::new(inputs, arithmetic);
    let case = Case { inputs, reference };
    let judgement = judge(case, bounds.as_ref(), listing.support.promises(), &outcome);
    report(&repro, notes, &judgement, tally);
}

fn report(repro: &Repro, notes: &[String], judgement: &Judgement, tally: &mut Tally) {
    if let Verdict::Failed(kind) = judgement.verdict {
        tally.findings += 1;
        println!(
            "FINDING\t{repro}\t{}\t{kind:?}\t{} of {}\t{}",
            notes.join("+"),
            judgement.wrong,
            judgement.judged,
            judgement
                .detail
                .as_deref()
                .unwrap_or("")
                .replace('\n', "; ")
        );
    }
}

fn backend(seed: u64) -> CudnnBackend {
    CudnnBackend::open(&CudnnOptions {
        apis: Apis {
            legacy: false,
            engines: true,
        },
        knobs: parsed("KNOBS", KnobBudget::Count(24)),
        seed,
        ..CudnnOptions::default()
    })
    .unwrap_or_else(|e| panic!("{e}"))
}

#[test]
#[ignore = "needs an NVIDIA GPU and cuDNN"]
fn sweep_every_plan_is_right() {
    let seed = parsed("SEED", 1u64);
    let limit = Duration::from_secs(parsed("SECONDS", 60));
    let mut backend = backend(seed);
    let (mut tally, start) = (Tally::default(), Instant::now());
    let given = setting("LINES").map(|path| fs::read_to_string(path).unwrap());
    let mut random = SplitMix(seed);
    let mut lines = given
        .iter()
        .flat_map(|text| text.lines())
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    while start.elapsed() < limit {
        let (problem, via) = match (&given, lines.next()) {
            (None, _) => (problem(&mut random), None),
            (Some(_), None) => break,
            (Some(_), Some(line)) => {
                let repro: Repro = line.parse().unwrap();
                (repro.problem, repro.via)
            }
        };
        sweep(&mut backend, &problem, via.as_ref(), seed, &mut tally);
    }
    println!(
        "SUM\t{} problems, {} trials, {} findings; planning {:?}, running {:?}, all {:?}",
        tally.problems,
        tally.trials,
        tally.findings,
        tally.planning,
        tally.running,
        start.elapsed()
    );
    assert_eq!(tally.findings, 0, "findings above");
}

/// Prints the GPU's properties for planning without it: the contents of a file
/// in `properties/`.
#[test]
#[ignore = "needs an NVIDIA GPU and cuDNN 9.8 or later"]
fn properties_are_captured_and_usable() {
    let session = Session::open(&CudnnOptions::default()).unwrap_or_else(|e| panic!("{e}"));
    let planner = Planner::on(&session).unwrap();
    let json = planner.properties(0).unwrap();
    println!("PROPERTIES {json}");
    let offline = Planner::offline(None, &DeviceProperties::parse(&json).unwrap()).unwrap();
    let line = "fwd n=2 c=32 k=32 in=14x14 ker=3x3 pad=1x1 type=fp16";
    let indices = |planner: &Planner| -> Vec<i64> {
        let prepared = planner.prepare(&line.parse().unwrap()).unwrap();
        planner
            .engines(&prepared)
            .map(|engine| engine.index)
            .collect()
    };
    let here = indices(&planner);
    // Some engines ask the GPU itself, so the lists may differ a little.
    let there = indices(&offline);
    assert!(there.len() > 5 && there.iter().all(|index| here.contains(index)));
}
