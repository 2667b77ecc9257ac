//! Speed of the oracle in products (multiply-adds) per second, value and
//! absolute sum together, and how many times faster than MPFR it is. Run on one
//! core with `RAYON_NUM_THREADS=1 cargo bench --bench oracle`.

use std::hint::black_box;
use std::time::{Duration, Instant};

use convfuzz::candidate::Repro;
use convfuzz::fill::Inputs;
use convfuzz::oracle::{self, Sample, arbiter};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

/// Real shapes: a late 1×1 and a middle 3×3 of a residual network, and the 3D
/// convolution of the first seed report; K from 256 to 1536.
const PROBLEMS: [(&str, &str); 3] = [
    ("resnet_1x1", "fwd c=256 k=64 in=28x28 ker=1x1"),
    ("resnet_3x3", "fwd c=128 k=128 in=14x14 ker=3x3 pad=1x1"),
    (
        "conv3d_3x1x1",
        "fwd c=512 k=128 in=8x8x8 ker=3x1x1 pad=1x0x0",
    ),
];

/// Outputs of a sample.
const SAMPLED: usize = 4096;

const TYPES: [&str; 4] = ["fp16", "bf16", "fp32", "fp64"];

fn inputs(problem: &str, dtype: &str) -> Inputs {
    let repro: Repro = format!("{problem} type={dtype} fill=normal:1")
        .parse()
        .expect("a constant line");
    Inputs::generate(&repro.problem, repro.fill)
}

fn fast(c: &mut Criterion) {
    let mut group = c.benchmark_group("oracle");
    group.sample_size(10);
    for (name, problem) in PROBLEMS {
        for dtype in TYPES {
            let inputs = inputs(problem, dtype);
            group.throughput(Throughput::Elements(inputs.problem.macs()));
            group.bench_function(format!("{name}/{dtype}"), |b| {
                b.iter(|| oracle::reference(black_box(&inputs), &Sample::All));
            });
        }
    }
    group.finish();
}

/// Products per second of `work`, which computes `products` a call; the best of
/// as many calls as fit a second.
fn rate(products: u64, mut work: impl FnMut()) -> f64 {
    let started = Instant::now();
    let mut best = Duration::MAX;
    while started.elapsed() < Duration::from_secs(1) {
        let call = Instant::now();
        work();
        best = best.min(call.elapsed());
    }
    products as f64 / best.as_secs_f64()
}

/// Prints the ratios between the paths, measured in one run, in the form that
/// `scripts/bench/oracle_vs_pytorch.py` reads.
fn ratios(_: &mut Criterion) {
    println!(
        "\n{:<14}{:<6}{:>10}{:>12}{:>12}{:>8}  line",
        "problem", "type", "fast G/s", "sample G/s", "MPFR G/s", "ratio"
    );
    for (name, problem) in PROBLEMS {
        for dtype in TYPES {
            let inputs = inputs(problem, dtype);
            let fast = rate(inputs.problem.macs(), || {
                black_box(oracle::reference(&inputs, &Sample::All));
            });
            let depth = inputs.problem.reduction_length() as u64;
            let slow = rate(depth, || {
                black_box(arbiter::output(&inputs, black_box(1000)));
            });
            let few = Sample::choose(&inputs.problem, SAMPLED, 1);
            let sampled = rate(depth * SAMPLED as u64, || {
                black_box(oracle::reference(&inputs, &few));
            });
            let [f, p, s] = [fast, sampled, slow].map(|rate| rate / 1e9);
            println!(
                "{name:<14}{dtype:<6}{f:>10.3}{p:>12.3}{s:>12.5}{:>8.0}  {problem} type={dtype}",
                fast / slow
            );
        }
    }
}

criterion_group!(benches, fast, ratios);
criterion_main!(benches);
