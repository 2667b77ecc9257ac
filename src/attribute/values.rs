//! Hypotheses about how sums become results, and about arithmetic.

use super::cause::{Cause, Kind};
use super::frame::{Frame, Hypothesis};
use crate::dtype::{BF16, FP16, FP32, Format, TF32};

/// All hypotheses of this family.
pub fn hypotheses(frame: &Frame<'_>) -> Vec<Hypothesis<'static>> {
    let mut all = scales(frame);
    all.extend(stores());
    all.extend(operands(frame));
    all.extend(sums(frame));
    all
}

fn scales(frame: &Frame<'_>) -> Vec<Hypothesis<'static>> {
    let (alpha, beta) = (frame.inputs.problem.alpha.0, frame.inputs.problem.beta.0);
    let mut all = Vec::new();
    let mut add = |kind, which: &str, a, b| {
        if (a, b) != (alpha, beta) {
            all.push(Hypothesis::new(Cause::new(kind, which)).scales(a, b));
        }
    };
    add(Kind::AlphaIgnored, "", 1.0, beta);
    add(Kind::BetaIgnored, "", alpha, 0.0);
    if alpha != -1.0 || beta != 0.0 {
        add(Kind::SignFlipped, "", -alpha, -beta);
    }
    for factor in [2.0, 0.5] {
        add(
            Kind::Scaled,
            &factor.to_string(),
            factor * alpha,
            factor * beta,
        );
    }
    all
}

fn stores() -> Vec<Hypothesis<'static>> {
    let plain = |kind, which: &str, store: fn(Format, f64) -> f64| {
        Hypothesis::new(Cause::new(kind, which)).store(store)
    };
    vec![
        plain(Kind::Saturated, "", |f, v| match v.is_nan() {
            true => v,
            false => v.clamp(-f.max_finite(), f.max_finite()),
        }),
        plain(Kind::OverflowNan, "", |f, v| {
            match v.is_finite() && f.round(v).is_infinite() {
                true => f64::NAN,
                false => v,
            }
        }),
        plain(
            Kind::EarlyOverflow,
            "from half the largest on",
            |f, v| match v.abs() >= 0.5 * f.max_finite() {
                true => f64::INFINITY.copysign(v),
                false => v,
            },
        ),
        plain(Kind::FlushedToZero, "results", |f, v| {
            match v.abs() < f.min_normal() {
                true => 0.0,
                false => v,
            }
        }),
        plain(Kind::DoubleRounding, "first to one bit more", |f, v| {
            Format {
                precision: f.precision + 1,
                ..f
            }
            .round(v)
        }),
        plain(Kind::DoubleRounding, "first to fp32", |_, v| FP32.round(v)),
        plain(Kind::ResultTruncated, "", |f, v| f.truncate(v)),
        plain(Kind::NanDropped, "zero instead", |_, v| match v.is_nan() {
            true => 0.0,
            false => v,
        }),
    ]
}

/// Whether some operand has values that `map` changes.
fn changes(frame: &Frame<'_>, map: fn(f64) -> f64) -> bool {
    let differs = |v: &f64| map(*v) != *v && !v.is_nan();
    frame.patches.iter().chain(&frame.weights).any(differs)
}

/// What may happen to an operand, and its name.
type Narrowing = (&'static str, fn(f64) -> f64);

fn operands(frame: &Frame<'_>) -> Vec<Hypothesis<'static>> {
    let maps: [Narrowing; 7] = [
        ("rounded to tf32", |v| TF32.round(v)),
        ("truncated to tf32", |v| TF32.truncate(v)),
        ("rounded to bf16", |v| BF16.round(v)),
        ("truncated to bf16", |v| BF16.truncate(v)),
        ("rounded to fp16, with its range", |v| FP16.round(v)),
        ("truncated to fp16, with its range", |v| FP16.truncate(v)),
        ("rounded to fp32", |v| FP32.round(v)),
    ];
    maps.into_iter()
        .filter(|(_, map)| changes(frame, *map))
        .map(|(which, map)| {
            Hypothesis::new(Cause::new(Kind::OperandsRounded, which))
                .operand(map)
                .among(7)
        })
        .collect()
}

/// Slices of partial sums that are tried.
const SLICES: [usize; 6] = [4, 8, 16, 32, 64, 128];

fn sums(frame: &Frame<'_>) -> Vec<Hypothesis<'static>> {
    let compute = frame.inputs.problem.compute.dtype().format();
    let mut all = Vec::new();
    for (name, format) in [("fp16", FP16), ("bf16", BF16), ("fp32", FP32)] {
        if format.precision >= compute.precision {
            continue;
        }
        let cause = Cause::new(Kind::NarrowSums, format!("{name}, in order"));
        all.push(Hypothesis::new(cause).emulate(move |pairs| sequential(format, pairs)));
        for slice in SLICES
            .into_iter()
            .filter(|&s| s < frame.outer * frame.inner)
        {
            let which = format!("{name}, slices of {slice} products");
            let sum = move |pairs: &[(f64, f64)]| sliced(compute, format, slice, pairs);
            let hypothesis = Hypothesis::new(Cause::new(Kind::NarrowPartials, which));
            all.push(hypothesis.emulate(sum).among(SLICES.len()));
        }
    }
    all
}

/// One accumulator of `format`. Half and bfloat16 take products unrounded.
fn sequential(format: Format, pairs: &[(f64, f64)]) -> f64 {
    let fused = format.precision < FP32.precision;
    pairs.iter().fold(0.0, |sum, (a, b)| {
        let product = if fused { a * b } else { format.round(a * b) };
        format.round(sum + product)
    })
}

fn sliced(compute: Format, partials: Format, slice: usize, pairs: &[(f64, f64)]) -> f64 {
    pairs.chunks(slice).fold(0.0, |total, pairs| {
        partials.round(total + partials.round(sequential(compute, pairs)))
    })
}
