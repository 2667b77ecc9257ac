//! Does mixed precision explain what a Conv3d gives on a V100 and on a P40?
//!
//! The report compares fp32 (opt level O0) with fp16 (O2, O1) for eight
//! convolutions: seven differ alike on both GPUs, one differs by 34.65 on the
//! V100 and by 0.0106 on the P40. The study measures all eight on the backend at
//! hand, judges every candidate against the exact values, recomputes what could
//! make 34.65, and runs the planted form of the fault.

use minijinja::value::Serde;
use minijinja::{Value, context};
use serde::Serialize;

use crate::backend::open;
use crate::error::Result;
use crate::study::chart::{Axis, Chart, Series};
use crate::study::page::{self, Origin};
use crate::study::{Answer, Request, SCHEMA, Table};

mod comparison;
mod emulation;
mod hypotheses;
mod reported;

use comparison::{Agreement, Comparison, SAME};
use hypotheses::{EXCLUDED_FROM, Measured};
use reported::{COMPARISONS, EXCEPTION, Scale};

/// Its name on the command line.
pub const NAME: &str = "amp-conv3d";

const TEMPLATE: &str = include_str!("page.md.j2");

/// A row of `comparisons.csv`.
#[derive(Clone, Debug, Default, Serialize)]
struct Row {
    schema: u32,
    comparison: String,
    v100_lowest: f64,
    v100_highest: f64,
    p40: f64,
    measured: f64,
    deviation: f64,
    interval_low: f64,
    interval_high: f64,
    figures: usize,
    candidates_low: Option<f64>,
    candidates_high: Option<f64>,
    from_p40: f64,
    p40_in_interval: bool,
    p40_explained: bool,
    from_v100: f64,
    v100_in_interval: bool,
    v100_explained: bool,
    ran: usize,
    wrong: usize,
    o0_candidate: String,
    o2_candidate: String,
}

/// A row of `hypotheses.csv`.
#[derive(Clone, Debug, Default, Serialize)]
struct Excluded {
    schema: u32,
    hypothesis: String,
    mean: f64,
    deviation: f64,
    seeds: usize,
    from_smallest: f64,
    from_nearest: f64,
    excluded_by_figure: bool,
    excluded_besides: Option<String>,
    survives: bool,
    plane_0: f64,
    plane_1: f64,
    plane_2: f64,
    plane_3: f64,
    plane_4: f64,
    plane_5: f64,
    plane_6: f64,
    plane_7: f64,
}

/// All that was measured.
struct Data {
    comparisons: Vec<Comparison>,
    hypotheses: Vec<Measured>,
    ways: Vec<emulation::Way>,
}

/// Runs the study over `seeds` seeds, from the request's on.
pub fn run(request: &Request, seeds: u64) -> Result<Answer> {
    let mut backend = open::open(&request.backend)?;
    let scale = match request.is_host() {
        true => Scale::Software,
        false => Scale::Full,
    };
    let mut comparisons = Vec::new();
    for reported in &COMPARISONS {
        // Large figures spread little; in software they also cost the most.
        let seeds = match (scale, reported.c) {
            (Scale::Software, 512) => seeds.div_ceil(8).max(2),
            _ => seeds,
        };
        let range = request.seed..request.seed.saturating_add(seeds);
        let measured = Comparison::measure(&mut *backend, reported, scale, range)?;
        tracing::info!("{}: {}", reported.name(), measured.spread.mean);
        comparisons.push(measured);
    }
    let few = request.seed..request.seed.saturating_add(seeds.min(MOST_DRAWS));
    let data = Data {
        comparisons,
        hypotheses: hypotheses::measure(COMPARISONS[EXCEPTION].k, few),
        ways: emulation::ways(scale, request.seed)?,
    };
    data.answer(request, seeds, backend.combination())
}

/// Most seeds that hypotheses are computed over.
const MOST_DRAWS: u64 = 16;

impl Data {
    fn answer(
        &self,
        request: &Request,
        seeds: u64,
        combination: &crate::backend::Combination,
    ) -> Result<Answer> {
        let rows: Vec<Row> = self.comparisons.iter().map(Row::new).collect();
        let excluded: Vec<Excluded> = self.hypotheses.iter().map(Excluded::new).collect();
        let all = |of: fn(&Comparison) -> Vec<comparison::Trial>| -> Vec<_> {
            self.comparisons.iter().flat_map(of).collect()
        };
        let figures = self.comparisons.iter().flat_map(|c| c.figures.clone());
        let verdict = self.verdict(&rows);
        let origin = Origin {
            combination,
            command: format!(
                "convfuzz study {NAME} --backend {} --seed {} --seeds {seeds}",
                combination.backend, request.seed
            ),
        };
        Ok(Answer {
            page: page::render(TEMPLATE, self.values(request, &verdict, &rows), &origin)?,
            verdict,
            tables: vec![
                Table::new("comparisons.csv", &rows)?,
                Table::new("trials.csv", &all(|c| c.trials.clone()))?,
                Table::new("seeds.csv", &figures.collect::<Vec<_>>())?,
                Table::new("hypotheses.csv", &excluded)?,
                Table::new("emulation.csv", &self.ways)?,
            ],
            charts: vec![
                ("figures.svg", figures_chart(&rows)),
                ("planes.svg", planes_chart(&self.hypotheses)),
            ],
            wrong: rows.iter().any(|row| row.wrong > 0),
            combination: combination.clone(),
        })
    }

    /// The answer in a few sentences.
    fn verdict(&self, rows: &[Row]) -> String {
        let p40 = rows.iter().filter(|row| row.p40_explained).count();
        let v100 = rows.iter().filter(|row| row.v100_explained).count();
        let exception = &rows[EXCEPTION];
        let (ran, wrong) = rows
            .iter()
            .fold((0, 0), |(r, w), row| (r + row.ran, w + row.wrong));
        let surviving = self.hypotheses.iter().filter(|h| h.survives()).count();
        format!(
            "Half precision explains {p40} of the 8 figures of the P40 and {v100} of the 8 of the \
             V100. The V100's {} for {} is no precision effect: measured here {}. Of {ran} trials \
             {wrong} were wrong. Of {} hypotheses about the V100, {surviving} survive the figure.",
            exception.v100_lowest,
            exception.comparison,
            crate::report::table::short(exception.measured),
            self.hypotheses.len(),
        )
    }

    fn values(&self, request: &Request, verdict: &str, rows: &[Row]) -> Value {
        let wrong: Vec<_> = self
            .comparisons
            .iter()
            .flat_map(Comparison::wrong)
            .collect();
        let o1: Vec<_> = self.comparisons.iter().map(|c| c.o1).collect();
        context! {
            verdict,
            rows => Value::from(Serde(rows)),
            exception => Value::from(Serde(&rows[EXCEPTION])),
            host => request.is_host(),
            same => SAME * 100.0,
            excluded_from => EXCLUDED_FROM,
            draws => self.hypotheses[0].figure.count,
            hypotheses => self.hypotheses.iter().map(shown).collect::<Vec<_>>(),
            ways => Value::from(Serde(&self.ways)),
            wrong => Value::from(Serde(wrong)),
            other_operands => o1.iter().map(|o| o.other_operands).fold(0.0, f64::max) * 100.0,
            o2_o1 => o1.iter().map(|o| o.from_o2).fold(0.0, f64::max),
            least_from_o0 => o1.iter().filter_map(|o| o.least_from_o0).min_by(f64::total_cmp),
            half_values => o1.iter().map(|o| o.half_values).fold(0.0, f64::max) * 100.0,
            tf32 => self.against_tf32(),
        }
    }

    /// Per comparison the first figure against a TF32 result, where there is one.
    fn against_tf32(&self) -> Vec<Value> {
        let row = |c: &Comparison| {
            let figure = c.trials.iter().find_map(|t| t.against_tf32)?;
            let own = c.trials.iter().find_map(|t| t.against_fp32)?;
            Some(context! { name => c.reported.name(), figure, own })
        };
        self.comparisons.iter().filter_map(row).collect()
    }
}

fn shown(hypothesis: &Measured) -> Value {
    let standing = match (hypothesis.excluded_by_figure, hypothesis.excluded_besides) {
        (true, _) => "excluded".to_owned(),
        (false, Some(by)) => format!("excluded by {by}"),
        (false, None) => "**survives**".to_owned(),
    };
    let planes: Vec<_> = hypothesis
        .planes
        .iter()
        .map(|v| format!("{v:.1}"))
        .collect();
    context! {
        name => hypothesis.name,
        mean => format!("{:.2}", hypothesis.figure.mean),
        deviation => format!("{:.2}", hypothesis.figure.deviation),
        from_smallest => format!("{:+.1}", hypothesis.from_smallest),
        from_nearest => format!("{:+.1}", hypothesis.from_nearest),
        survives => hypothesis.survives(),
        standing,
        planes => planes.join(", "),
    }
}

impl Row {
    fn new(c: &Comparison) -> Self {
        let reported = &c.reported;
        let Agreement {
            relative: from_p40,
            in_interval: p40_in_interval,
        } = c.agreement(reported.p40);
        let v100 = c.agreement(reported.v100.0);
        let (interval_low, interval_high) = c.spread.interval();
        let range = c.over_candidates();
        let [o0_candidate, o2_candidate] = c.pair.clone();
        Row {
            schema: SCHEMA,
            comparison: reported.name(),
            v100_lowest: reported.v100.0,
            v100_highest: reported.v100.1,
            p40: reported.p40,
            measured: c.spread.mean,
            deviation: c.spread.deviation,
            interval_low,
            interval_high,
            figures: c.spread.count,
            candidates_low: range.map(|r| r.0),
            candidates_high: range.map(|r| r.1),
            from_p40,
            p40_in_interval,
            p40_explained: c.agreement(reported.p40).explained(),
            from_v100: v100.relative,
            v100_in_interval: v100.in_interval,
            v100_explained: v100.explained(),
            ran: c.ran(),
            wrong: c.wrong().len(),
            o0_candidate,
            o2_candidate,
        }
    }
}

impl Excluded {
    fn new(h: &Measured) -> Self {
        let plane = |d: usize| h.planes.get(d).copied().unwrap_or_default();
        Excluded {
            schema: SCHEMA,
            hypothesis: h.name.to_owned(),
            mean: h.figure.mean,
            deviation: h.figure.deviation,
            seeds: h.figure.count,
            from_smallest: h.from_smallest,
            from_nearest: h.from_nearest,
            excluded_by_figure: h.excluded_by_figure,
            excluded_besides: h.excluded_besides.map(str::to_owned),
            survives: h.survives(),
            plane_0: plane(0),
            plane_1: plane(1),
            plane_2: plane(2),
            plane_3: plane(3),
            plane_4: plane(4),
            plane_5: plane(5),
            plane_6: plane(6),
            plane_7: plane(7),
        }
    }
}

fn figures_chart(rows: &[Row]) -> Chart {
    let points = |value: fn(&Row) -> f64| -> Vec<(f64, f64)> {
        let rows = rows.iter().enumerate();
        rows.map(|(i, row)| (i as f64, value(row))).collect()
    };
    let series = |name: &str, value| Series {
        name: name.to_owned(),
        points: points(value),
        ..Series::default()
    };
    let ranges = rows.iter().enumerate();
    let ranges = ranges.map(|(i, row)| (i as f64, row.interval_low, row.interval_high));
    let mut measured = series("measured, with where single figures lie", |r| r.measured);
    measured.ranges = ranges.collect();
    Chart {
        title: "Mean |fp32 − fp16| of a Conv3d".to_owned(),
        x: Axis {
            label: "channels in→out (kernel)".to_owned(),
            names: rows.iter().map(|row| row.comparison.clone()).collect(),
            ..Axis::default()
        },
        y: Axis {
            label: "mean |fp32 − fp16|".to_owned(),
            log: true,
            ..Axis::default()
        },
        series: vec![
            measured,
            series("reported, P40", |r| r.p40),
            series("reported, V100", |r| r.v100_lowest),
        ],
    }
}

fn planes_chart(hypotheses: &[Measured]) -> Chart {
    let line = |h: &Measured| Series {
        name: h.name.to_owned(),
        points: h
            .planes
            .iter()
            .enumerate()
            .map(|(d, &v)| (d as f64, v))
            .collect(),
        joined: true,
        ranges: Vec::new(),
    };
    let surviving = hypotheses.iter().filter(|h| h.survives());
    Chart {
        title: "The measurement that would decide: the mean difference per depth plane".to_owned(),
        x: Axis {
            label: "depth plane of the output".to_owned(),
            ..Axis::default()
        },
        y: Axis {
            label: "mean |fp32 − fp16|".to_owned(),
            ..Axis::default()
        },
        series: surviving.map(line).collect(),
    }
}
