//! The measurements of the study, a table each.

use serde::Serialize;

use super::bench::{
    Bench, Case, OFFSETS, Trial, beyond_half, half_errors, measured_errors, variants,
};
use crate::batch_norm::{Algorithm, Bounds, Output, Problem};
use crate::dtype::{DType, FP16};
use crate::error::Result;
use crate::fill::stream::Stream;
use crate::study::SCHEMA;
use crate::tensor::Tensor;

/// The type of a tensor, as it came from the library.
#[derive(Clone, Debug, Default, Serialize)]
pub struct TypeRow {
    /// Version of the columns.
    pub schema: u32,
    /// Type of x.
    pub input: String,
    /// Which tensor.
    pub tensor: String,
    /// Its type.
    pub dtype: String,
    /// Share of its values that fp16 cannot hold.
    pub beyond_fp16: f64,
}

/// Errors of statistics of fp16 data.
#[derive(Clone, Debug, Default, Serialize)]
pub struct StatisticRow {
    /// Version of the columns.
    pub schema: u32,
    /// Mean of x in standard deviations before rounding to fp16.
    pub offset: f64,
    /// Mode of the batch norm.
    pub mode: String,
    /// Memory order.
    pub layout: String,
    /// What computed it.
    pub candidate: String,
    /// Largest |mean − exact| in standard deviations.
    pub mean_error: f64,
    /// The same as multiples of 2^-24 · Σ|x|/m.
    pub mean_units: f64,
    /// Largest relative error of the variance.
    pub variance_error: f64,
    /// `mean_error` if the exact mean were kept in fp16.
    pub fp16_mean_error: f64,
    /// `variance_error` if the exact variance were kept in fp16.
    pub fp16_variance_error: f64,
    /// Largest |y − exact|.
    pub y_error: f64,
    /// Errors of the statistics as a share of what two passes may be off.
    pub two_pass: Option<f64>,
    /// The same of Welford's algorithm.
    pub welford: Option<f64>,
    /// The same of E[x²] − E[x]².
    pub squares: Option<f64>,
    /// Verdict of the oracle.
    pub verdict: String,
}

/// fp16 data against the same values cast up to fp32.
#[derive(Clone, Debug, Default, Serialize)]
pub struct UpcastRow {
    /// Version of the columns.
    pub schema: u32,
    /// Mean of x in standard deviations before rounding to fp16.
    pub offset: f64,
    /// What computed both.
    pub candidate: String,
    /// Share of elements where y of fp16 data is y of the cast data, rounded.
    pub y_equal: f64,
    /// Share of saved statistics with the same bits.
    pub statistics_equal: f64,
    /// Largest error of fp16's y beyond the rounding of its type.
    pub fp16_excess: f64,
    /// Largest error of the cast data's y.
    pub fp32_error: f64,
    /// Largest proven bound of either before its output is rounded, for the
    /// narrowest algorithm that explains the statistics; infinite where E[x²] −
    /// E[x]² may lose the variance altogether.
    pub bound: f64,
    /// Largest half ulp of y in fp16: what the type of the output costs.
    pub output_rounding: f64,
    /// Largest difference of the exact y of fp16 data from that of the data
    /// before it was rounded: what no cast brings back.
    pub input_loss: f64,
}

/// Where y leaves fp16's range.
#[derive(Clone, Debug, Default, Serialize)]
pub struct OverflowRow {
    /// Version of the columns.
    pub schema: u32,
    /// Scale of the batch norm.
    pub scale: f64,
    /// Largest exact |y|.
    pub largest: f64,
    /// Share of infinite elements of y in fp16.
    pub fp16_infinite: f64,
    /// The same in fp32.
    pub fp32_infinite: f64,
    /// Outputs of the next linear layer that are not finite: its input and output
    /// in fp16, y in fp16.
    pub linear_of_fp16: f64,
    /// The same, y in fp32 and cast for the layer, as autocast does.
    pub linear_of_cast: f64,
    /// The same, the layer taking y in fp32 and putting out fp16.
    pub linear_of_fp32: f64,
    /// The same, all in fp32.
    pub linear_in_fp32: f64,
}

/// One normalisation over its axes.
#[derive(Clone, Debug, Default, Serialize)]
pub struct NormRow {
    /// Version of the columns.
    pub schema: u32,
    /// batch, layer or group.
    pub norm: String,
    /// Mean of x in standard deviations before rounding to fp16.
    pub offset: f64,
    /// Values normalised together.
    pub count: usize,
    /// As in statistics.
    pub mean_units: f64,
    /// As in statistics.
    pub variance_error: f64,
    /// Largest error of y in fp16, as multiples of its ulp.
    pub fp16_ulp: f64,
    /// Largest error of y in fp32, as multiples of fp16's ulp at it.
    pub fp32_ulp: f64,
    /// Verdict of the oracle, of fp16 and of fp32.
    pub verdict: String,
}

/// The report's layer: BatchNorm1d(4), with data of each type.
pub fn types(bench: &mut Bench) -> Result<Vec<TypeRow>> {
    let mut rows = Vec::new();
    for dtype in DType::ALL {
        let problem: Problem = Problem {
            spatial: vec![1, 1],
            ..bench.problem(dtype)
        };
        let case = bench.case(&problem, &bench.draws(&problem));
        let Some(trial) = bench.run(&case, bench.plainest(&problem))? else {
            continue;
        };
        let inputs = [
            ("x", &case.inputs.x),
            ("scale", &case.inputs.scale),
            ("bias", &case.inputs.bias),
        ];
        let outputs = trial
            .outputs
            .iter()
            .map(|(output, tensor)| (output.name(), tensor));
        let row = |(name, tensor): (&str, &Tensor)| TypeRow {
            schema: SCHEMA,
            input: dtype.to_string(),
            tensor: name.to_owned(),
            dtype: tensor.dtype().to_string(),
            beyond_fp16: beyond_half(tensor),
        };
        rows.extend(inputs.into_iter().chain(outputs).map(row));
    }
    Ok(rows)
}

fn shifted(draws: &[f64], offset: f64) -> Vec<f64> {
    draws.iter().map(|draw| offset + draw).collect()
}

/// Errors of mean and variance over the offsets, for every candidate.
pub fn statistics(bench: &mut Bench, host: bool) -> Result<Vec<StatisticRow>> {
    let mut rows = Vec::new();
    let plain = bench.problem(DType::Fp16);
    let draws = bench.draws(&plain);
    for problem in variants(&plain, host) {
        for offset in OFFSETS {
            let case = bench.case(&problem, &shifted(&draws, offset));
            for candidate in bench.candidates(&problem) {
                let Some(trial) = bench.run(&case, candidate)? else {
                    continue;
                };
                rows.extend(statistic_row(&case, offset, &trial));
            }
        }
    }
    Ok(rows)
}

fn statistic_row(case: &Case, offset: f64, trial: &Trial) -> Option<StatisticRow> {
    let errors = measured_errors(case, &trial.outputs)?;
    let half = half_errors(case);
    let [two_pass, welford, squares] = trial.judgement.algorithms;
    Some(StatisticRow {
        schema: SCHEMA,
        offset,
        mode: case.inputs.problem.mode.name().to_owned(),
        layout: case.inputs.problem.layout.name().to_owned(),
        candidate: trial.candidate.to_string(),
        mean_error: errors.mean,
        mean_units: errors.mean_units,
        variance_error: errors.variance,
        fp16_mean_error: half.mean,
        fp16_variance_error: half.variance,
        y_error: trial.judgement.figures(Output::Y)?.max_error,
        two_pass,
        welford,
        squares,
        verdict: trial.judgement.verdict.columns().0.to_owned(),
    })
}

/// fp16 data as it is, and cast up.
pub fn upcast(bench: &mut Bench) -> Result<Vec<UpcastRow>> {
    let mut rows = Vec::new();
    let problem = bench.problem(DType::Fp16);
    let draws = bench.draws(&problem);
    let wide = problem.clone().with_type(DType::Fp32);
    for offset in OFFSETS {
        let values = shifted(&draws, offset);
        let half = bench.case(&problem, &values);
        let cast = bench.case(&wide, &half.inputs.x.to_f64());
        let unrounded = bench.case(&wide, &values);
        for candidate in bench.candidates(&problem) {
            let (Some(a), Some(b)) = (bench.run(&half, candidate)?, bench.run(&cast, candidate)?)
            else {
                continue;
            };
            let pair = Pair {
                cases: [&half, &cast],
                y: [a.outputs.get(Output::Y), b.outputs.get(Output::Y)],
                algorithms: [&a, &b].map(explaining),
            };
            let saved = [Output::SavedMean, Output::SavedInverse];
            let same = saved.map(|output| same_bits(a.outputs.get(output), b.outputs.get(output)));
            rows.extend(pair.row(offset, &unrounded).map(|row| UpcastRow {
                candidate: candidate.to_string(),
                statistics_equal: (same[0] + same[1]) / 2.0,
                ..row
            }));
        }
    }
    Ok(rows)
}

/// Share of elements with the same bits.
fn same_bits(a: Option<&Tensor>, b: Option<&Tensor>) -> f64 {
    let (Some(a), Some(b)) = (a, b) else {
        return f64::NAN;
    };
    let same = (0..a.len()).filter(|&i| a.bits(i) == b.bits(i)).count();
    same as f64 / a.len() as f64
}

/// y of fp16 data and of the same values in fp32.
struct Pair<'a> {
    cases: [&'a Case; 2],
    y: [Option<&'a Tensor>; 2],
    algorithms: [Option<Algorithm>; 2],
}

/// The algorithm that may be off the least and yet explains a trial's statistics.
fn explaining(trial: &Trial) -> Option<Algorithm> {
    let pairs = Algorithm::ALL.into_iter().zip(trial.judgement.algorithms);
    let explains = |ratio: Option<f64>| ratio.is_some_and(|ratio| ratio <= 1.0);
    let mut found = pairs.filter(|(_, ratio)| explains(*ratio));
    found.next().map(|(algorithm, _)| algorithm)
}

impl Pair<'_> {
    fn row(&self, offset: f64, unrounded: &Case) -> Option<UpcastRow> {
        let [Some(half), Some(cast)] = self.y else {
            return None;
        };
        let [first, second] = self.algorithms;
        let bounds = |at: usize, algorithm| {
            let case = self.cases[at];
            Bounds::new(&case.inputs, &case.reference, algorithm)
        };
        let bounds = [bounds(0, first), bounds(1, second)];
        let mut row = UpcastRow {
            schema: SCHEMA,
            offset,
            ..UpcastRow::default()
        };
        let mut equal = 0;
        for i in 0..half.len() {
            let exact = self.cases[0].exact(Output::Y, i);
            let rounding = FP16.ulp(exact) / 2.0;
            let bound = bounds.iter().map(|bounds| bounds.at(Output::Y, i).get());
            equal += usize::from(half.get(i) == FP16.round(cast.get(i)));
            row.fp16_excess = row.fp16_excess.max((half.get(i) - exact).abs() - rounding);
            row.fp32_error = row.fp32_error.max((cast.get(i) - exact).abs());
            row.bound = bound.fold(row.bound, f64::max);
            row.output_rounding = row.output_rounding.max(rounding);
            let lost = (unrounded.exact(Output::Y, i) - exact).abs();
            row.input_loss = row.input_loss.max(lost);
        }
        row.y_equal = equal as f64 / half.len() as f64;
        Some(row)
    }
}

/// Scales from where y is small to where fp16 has no room.
const SCALES: [f64; 9] = [
    1.0, 256.0, 4096.0, 16384.0, 20000.0, 32768.0, 65536.0, 131072.0, 262144.0,
];

/// Outputs of the linear layer of the overflow table, as of the report's network.
const LINEAR_OUTPUTS: usize = 5;

/// Where fp16's y overflows and fp32's does not, and what a linear layer makes of
/// both.
pub fn overflow(bench: &mut Bench, seed: u64) -> Result<Vec<OverflowRow>> {
    let mut rows = Vec::new();
    for scale in SCALES {
        let shape = |dtype| Problem {
            n: 2048,
            spatial: vec![1, 1],
            ..bench.problem(dtype)
        };
        let (half, wide) = (shape(DType::Fp16), shape(DType::Fp32));
        let rounded: Vec<f64> = bench.draws(&half).iter().map(|&x| FP16.round(x)).collect();
        let prepared = |bench: &Bench, problem: &Problem| {
            let mut case = bench.case(problem, &rounded);
            for group in 0..problem.groups() {
                case.inputs.scale.set(group, scale);
                case.inputs.bias.set(group, 0.0);
            }
            Case::new(case.inputs)
        };
        let (half, wide) = (prepared(bench, &half), prepared(bench, &wide));
        let candidate = bench.plainest(&half.inputs.problem);
        let (Some(a), Some(b)) = (bench.run(&half, candidate)?, bench.run(&wide, candidate)?)
        else {
            continue;
        };
        if let (Some(a), Some(b)) = (a.outputs.get(Output::Y), b.outputs.get(Output::Y)) {
            rows.push(overflow_row(scale, &half, (a, b), seed));
        }
    }
    Ok(rows)
}

fn overflow_row(
    scale: f64,
    case: &Case,
    (half, wide): (&Tensor, &Tensor),
    seed: u64,
) -> OverflowRow {
    let infinite = |tensor: &Tensor| {
        let infinite = (0..tensor.len()).filter(|&i| tensor.get(i).is_infinite());
        infinite.count() as f64 / tensor.len() as f64
    };
    let exact = (0..half.len()).map(|i| case.exact(Output::Y, i).abs());
    let features = case.inputs.problem.c;
    let layer = Linear::new(features, seed);
    let (half_y, wide_y) = (half.to_f64(), wide.to_f64());
    let cast: Vec<f64> = wide_y.iter().map(|&y| FP16.round(y)).collect();
    OverflowRow {
        schema: SCHEMA,
        scale,
        largest: exact.fold(0.0, f64::max),
        fp16_infinite: infinite(half),
        fp32_infinite: infinite(wide),
        linear_of_fp16: layer.not_finite(&half_y, DType::Fp16),
        linear_of_cast: layer.not_finite(&cast, DType::Fp16),
        linear_of_fp32: layer.not_finite(&wide_y, DType::Fp16),
        linear_in_fp32: layer.not_finite(&wide_y, DType::Fp32),
    }
}

/// A linear layer with weights as PyTorch starts with: uniform up to
/// 1/sqrt(features). Its sums are exact here: only the types of its input and
/// output are at issue.
struct Linear {
    features: usize,
    weights: Vec<f64>,
}

impl Linear {
    fn new(features: usize, seed: u64) -> Self {
        let stream = Stream::new(seed, 31);
        let largest = 1.0 / (features as f64).sqrt();
        let weight = |i| FP16.round(largest * (2.0 * stream.unit(i, 0) - 1.0));
        Linear {
            features,
            weights: (0..features * LINEAR_OUTPUTS).map(weight).collect(),
        }
    }

    /// Share of outputs in `dtype` that are not finite.
    fn not_finite(&self, y: &[f64], dtype: DType) -> f64 {
        let rows = y.chunks_exact(self.features);
        let total = rows.len() * LINEAR_OUTPUTS;
        let outputs = rows.flat_map(|row| {
            let weights = self.weights.chunks_exact(self.features);
            weights.map(move |weights| {
                let products = row.iter().zip(weights).map(|(y, w)| y * w);
                dtype.format().round(products.sum())
            })
        });
        outputs.filter(|z| !z.is_finite()).count() as f64 / total as f64
    }
}

/// Batch, layer and group norm: what is normalised together is all that differs.
/// A layer norm of n images is a batch norm of one image of n channels.
pub fn norms(bench: &mut Bench) -> Result<Vec<NormRow>> {
    let mut rows = Vec::new();
    let plain = bench.problem(DType::Fp16);
    let draws = bench.draws(&plain);
    let (images, channels, plane) = (plain.n, plain.c, plain.plane());
    for offset in OFFSETS {
        for (norm, n, c, size) in [
            ("batch", images, channels, plane),
            ("layer", 1, images, channels * plane),
            ("group", 1, images * 2, channels / 2 * plane),
        ] {
            let problem = Problem {
                n,
                c,
                spatial: vec![1, size],
                ..plain.clone()
            };
            let values = shifted(&draws, offset);
            let half = bench.case(&problem, &values);
            let wide = problem.with_type(DType::Fp32);
            let wide = bench.case(&wide, &half.inputs.x.to_f64());
            let candidate = bench.plainest(&half.inputs.problem);
            let (Some(a), Some(b)) = (bench.run(&half, candidate)?, bench.run(&wide, candidate)?)
            else {
                continue;
            };
            let Some(errors) = measured_errors(&half, &a.outputs) else {
                continue;
            };
            rows.push(NormRow {
                schema: SCHEMA,
                norm: norm.to_owned(),
                offset,
                count: half.inputs.problem.count(),
                mean_units: errors.mean_units,
                variance_error: errors.variance,
                fp16_ulp: half_ulps(&half, a.outputs.get(Output::Y)),
                fp32_ulp: half_ulps(&wide, b.outputs.get(Output::Y)),
                verdict: format!(
                    "{}, {}",
                    a.judgement.verdict.columns().0,
                    b.judgement.verdict.columns().0
                ),
            });
        }
    }
    Ok(rows)
}

/// Largest error of y in ulp of fp16, at elements of 1/16 and more: below, where
/// y crosses zero, an ulp says nothing about the whole.
fn half_ulps(case: &Case, y: Option<&Tensor>) -> f64 {
    let Some(y) = y else { return f64::NAN };
    let ulps = (0..y.len()).filter_map(|i| {
        let exact = case.exact(Output::Y, i);
        let ulp = (y.get(i) - exact).abs() / FP16.ulp(exact);
        (exact.abs() >= 0.0625).then_some(ulp)
    });
    ulps.fold(0.0, f64::max)
}
