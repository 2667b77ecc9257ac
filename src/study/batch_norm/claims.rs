//! What the report and the maintainers say, each with what was measured of it.

use serde::Serialize;

use super::Measurements;
use super::measure::{NormRow, OverflowRow, StatisticRow, TypeRow, UpcastRow};
use crate::report::table::short;
use crate::study::SCHEMA;

/// A claim and its verdict.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Claim {
    /// Version of the columns.
    pub schema: u32,
    /// A short name.
    pub claim: String,
    /// Who says so.
    pub by: String,
    /// What is said.
    pub statement: String,
    /// `holds`, `holds in part`, `does not hold`, or `not measured`.
    pub verdict: String,
    /// The figures it rests on.
    pub measured: String,
}

/// Whether a claim holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finding {
    /// Yes.
    Holds,
    /// Under a condition, which the figures name.
    InPart,
    /// No.
    Fails,
    /// Nothing ran that could tell.
    Unknown,
}

impl Finding {
    fn of(holds: bool) -> Self {
        if holds {
            Finding::Holds
        } else {
            Finding::Fails
        }
    }

    fn words(self) -> &'static str {
        match self {
            Finding::Holds => "holds",
            Finding::InPart => "holds in part",
            Finding::Fails => "does not hold",
            Finding::Unknown => "not measured",
        }
    }
}

const REPORT: &str = "the report";
const MAINTAINERS: &str = "the maintainers";

/// All claims, judged.
pub fn judged(found: &Measurements) -> Vec<Claim> {
    let claim =
        |claim: &str, by: &str, statement: &str, (finding, measured): (Finding, String)| Claim {
            schema: SCHEMA,
            claim: claim.to_owned(),
            by: by.to_owned(),
            statement: statement.to_owned(),
            verdict: finding.words().to_owned(),
            measured,
        };
    vec![
        claim(
            "output type",
            REPORT,
            "fp16 goes in and fp16 comes out: y is not fp32",
            output_type(&found.types),
        ),
        claim(
            "statistic types",
            MAINTAINERS,
            "running mean and variance, saved mean and inverse deviation are fp32 for fp16 data",
            statistic_types(&found.types),
        ),
        claim(
            "arithmetic in fp32",
            MAINTAINERS,
            "intermediate results are in fp32 whatever the data's type",
            arithmetic(&found.statistics),
        ),
        claim(
            "casting up recovers nothing",
            MAINTAINERS,
            "the input is fp16 already: in fp32 the batch norm gives the same but for the rounding of its output",
            upcast(&found.upcast),
        ),
        claim(
            "fp16 overflows first",
            MAINTAINERS,
            "where fp16's y overflows and fp32's does not, the scale is unusually large",
            overflow(&found.overflow),
        ),
        claim(
            "the next layer overflows too",
            MAINTAINERS,
            "an fp32 y would overflow in the next layer anyway",
            next_layer(&found.overflow),
        ),
        claim(
            "layer and group norm are of another kind",
            REPORT,
            "layer_norm and group_norm give fp32 for a numerical reason",
            norms(&found.norms),
        ),
    ]
}

fn unknown() -> (Finding, String) {
    (Finding::Unknown, "nothing ran".to_owned())
}

fn largest(values: impl Iterator<Item = f64>) -> f64 {
    values.fold(0.0, f64::max)
}

fn output_type(rows: &[TypeRow]) -> (Finding, String) {
    let Some(y) = rows
        .iter()
        .find(|row| row.input == "fp16" && row.tensor == "y")
    else {
        return unknown();
    };
    (
        Finding::of(y.dtype == "fp16"),
        format!("y of fp16 data is {}", y.dtype),
    )
}

fn statistic_types(rows: &[TypeRow]) -> (Finding, String) {
    let statistics: Vec<&TypeRow> = rows
        .iter()
        .filter(|row| {
            row.input == "fp16" && (row.tensor.contains("running") || row.tensor.contains("saved"))
        })
        .collect();
    if statistics.is_empty() {
        return unknown();
    }
    let single = statistics.iter().all(|row| row.dtype == "fp32");
    let least = statistics
        .iter()
        .map(|row| row.beyond_fp16)
        .fold(1.0, f64::min);
    let words = format!(
        "all {} are {}; {:.0}% of their values at least are not representable in fp16",
        statistics.len(),
        statistics[0].dtype,
        100.0 * least
    );
    (Finding::of(single && least > 0.0), words)
}

/// Holds when no trial fails, an algorithm in fp32 explains all statistics, and
/// means are more exact than fp16 could hold them. Means beyond 100 deviations
/// tell nothing of that: fp32 sums one after the other are no better there.
fn arithmetic(rows: &[StatisticRow]) -> (Finding, String) {
    let telling = |row: &&StatisticRow| (1.0..=100.0).contains(&row.offset);
    if rows.iter().filter(telling).count() == 0 {
        return unknown();
    }
    let with = |verdict| rows.iter().filter(|row| row.verdict == verdict).count();
    let finer = rows
        .iter()
        .filter(telling)
        .all(|row| row.mean_error < row.fp16_mean_error);
    let holds = with("failed") == 0 && finer && rows.iter().all(is_explained);
    let gain = rows
        .iter()
        .filter(telling)
        .map(|row| row.fp16_mean_error / row.mean_error);
    let words = format!(
        "of {} trials {} passed, {} failed, and of the others the bound for E[x²] − E[x]² is as \
         wide as the values; up to a mean of 100 deviations the mean is at least {} times as \
         exact as fp16 could hold it{}",
        rows.len(),
        with("passed"),
        with("failed"),
        short(gain.fold(f64::INFINITY, f64::min)),
        worst_variance(rows)
    );
    (Finding::of(holds), words)
}

fn is_explained(row: &StatisticRow) -> bool {
    let ratios = [row.two_pass, row.welford, row.squares];
    ratios.into_iter().flatten().any(|ratio| ratio <= 1.0)
}

fn worst_variance(rows: &[StatisticRow]) -> String {
    let worst = rows
        .iter()
        .max_by(|a, b| a.variance_error.total_cmp(&b.variance_error));
    worst.map_or_else(String::new, |row| {
        format!(
            "; the variance is off by up to {} of itself ({} at a mean of {} deviations)",
            short(row.variance_error),
            row.candidate,
            row.offset
        )
    })
}

/// Holds when what fp16 data loses beyond its output rounding is within the bound
/// that the cast data needs as well.
fn upcast(rows: &[UpcastRow]) -> (Finding, String) {
    if rows.is_empty() {
        return unknown();
    }
    let inside = rows
        .iter()
        .all(|row| row.fp16_excess <= row.bound && row.fp32_error <= row.bound);
    let equal = rows.iter().map(|row| row.y_equal).fold(1.0, f64::min);
    let statistics = rows
        .iter()
        .map(|row| row.statistics_equal)
        .fold(1.0, f64::min);
    let near = |row: &&UpcastRow| row.offset <= 10.0;
    let loss = largest(rows.iter().filter(near).map(|row| row.input_loss));
    let gain = largest(rows.iter().filter(near).map(|row| row.output_rounding));
    let words = format!(
        "at least {:.2}% of y and {:.0}% of the saved statistics are the same bit for bit, the rest within the bound of fp32 sums; up to a mean of 10 deviations fp32's y is closer by the output's rounding, {} at most, and rounding the input to fp16 has moved the exact y by up to {}",
        100.0 * equal,
        100.0 * statistics,
        short(gain),
        short(loss)
    );
    (Finding::of(inside), words)
}

fn overflow(rows: &[OverflowRow]) -> (Finding, String) {
    let Some(first) = rows.iter().find(|row| row.fp16_infinite > 0.0) else {
        return unknown();
    };
    let single = rows.iter().all(|row| row.fp32_infinite == 0.0);
    let words = format!(
        "fp16's y is infinite from a scale of {} on ({} of y; largest size of y {}), fp32's never; scales start at 1",
        first.scale,
        short(first.fp16_infinite),
        short(first.largest)
    );
    (Finding::of(single && first.scale >= 1000.0), words)
}

/// Autocast casts y to fp16 for the layer: then it makes no difference. A layer
/// that took fp32 would be spared in part.
fn next_layer(rows: &[OverflowRow]) -> (Finding, String) {
    let overflowing: Vec<&OverflowRow> =
        rows.iter().filter(|row| row.fp16_infinite > 0.0).collect();
    let Some(first) = overflowing.first() else {
        return unknown();
    };
    // Two kernels may round y across the edge of fp16's range differently.
    let same = |row: &&OverflowRow| row.linear_of_cast >= 0.99 * row.linear_of_fp16;
    let cast = overflowing.iter().all(same);
    let spared = overflowing
        .iter()
        .any(|row| row.linear_of_fp32 < row.linear_of_cast);
    let words = format!(
        "at a scale of {} the linear layer's outputs are not finite in {} of cases with y in fp16, {} with y in fp32 cast for the layer, {} if the layer took fp32 and put out fp16, {} all in fp32",
        first.scale,
        short(first.linear_of_fp16),
        short(first.linear_of_cast),
        short(first.linear_of_fp32),
        short(first.linear_in_fp32)
    );
    let finding = match (cast, spared) {
        (true, false) => Finding::Holds,
        (true, true) => Finding::InPart,
        _ => Finding::Fails,
    };
    (finding, words)
}

/// Fails when all three are right by the same bound in both types.
fn norms(rows: &[NormRow]) -> (Finding, String) {
    if rows.is_empty() {
        return unknown();
    }
    let of = |norm: &'static str| {
        rows.iter()
            .filter(move |row| row.norm == norm && row.offset <= 10.0)
    };
    let part = |norm| {
        format!(
            "{norm} norm: fp16 {} ulp, fp32 {} ulp of fp16",
            short(largest(of(norm).map(|row| row.fp16_ulp))),
            short(largest(of(norm).map(|row| row.fp32_ulp)))
        )
    };
    let right = rows.iter().all(|row| !row.verdict.contains("failed"));
    let parts: Vec<String> = ["batch", "layer", "group"].map(part).into();
    let words = format!(
        "largest error of y up to a mean of 10 deviations, {}; the same arithmetic over other axes, and the same gain from an fp32 output",
        parts.join("; ")
    );
    (Finding::of(!right), words)
}
