//! Two mixed-precision trainings with every seed fixed give other losses: which
//! tensor differs first, is that expected, and what helps?
//!
//! A small training is run twice from the same seed, in one process and in two,
//! in fp32 and in mixed precision, with algorithms that may be nondeterministic
//! and with deterministic ones alone, and compared bit for bit.

use minijinja::value::Serde;
use minijinja::{Value, context};
use serde::Serialize;

use crate::backend::batch_norm::{self, BatchNorm};
use crate::backend::{Backend, Combination, open};
use crate::error::Result;
use crate::study::chart::{Axis, Chart, Series};
use crate::study::page::{self, Origin};
use crate::study::{Answer, Request, SCHEMA, Table};

mod network;
mod plan;
pub mod process;
mod rates;
mod trace;

use network::{Lab, Plan, Precision, Size, train};
use plan::Policy;
use process::{Job, elsewhere, scatter, without_fault};
use rates::{Rate, Runs};
use trace::{Difference, Trace, first_difference, identical, losses, weight_differences};

/// Its name on the command line.
pub const NAME: &str = "reproducibility";

const TEMPLATE: &str = include_str!("page.md.j2");

/// The report's total losses of both runs.
const REPORTED: [(f64, f64); 4] = [
    (37.44553, 37.44553),
    (37.56580, 37.56551),
    (37.46664, 37.46613),
    (37.67632, 37.67667),
];

/// What a GPU trains in a second, and large enough for several blocks to add to
/// one gradient.
const LARGE: Size = Size {
    batch: 16,
    channels: [16, 32, 32],
    side: 28,
    classes: 10,
    steps: REPORTED.len(),
};

/// The same for software.
const SMALL: Size = Size {
    batch: 2,
    channels: [3, 8, 8],
    side: 8,
    classes: 4,
    steps: REPORTED.len(),
};

/// Two runs compared: a row of `runs.csv`.
#[derive(Clone, Debug, Default, Serialize)]
struct Run {
    schema: u32,
    precision: String,
    choice: String,
    processes: u32,
    identical: bool,
    step: Option<usize>,
    operation: Option<String>,
    tensor: Option<String>,
    via: Option<String>,
    other_via: Option<String>,
    elements: Option<usize>,
    of: Option<usize>,
    index: Option<String>,
    first: Option<f64>,
    second: Option<f64>,
    largest: Option<f64>,
    largest_ulps: Option<f64>,
}

/// One step of two runs: a row of `steps.csv`.
#[derive(Clone, Debug, Default, Serialize)]
struct Step {
    schema: u32,
    precision: String,
    choice: String,
    processes: u32,
    step: usize,
    loss_first: f64,
    loss_second: f64,
    loss_difference: f64,
    largest_weight_difference: f64,
    reported_difference: f64,
}

/// Which algorithm computed what: a row of `plans.csv`.
#[derive(Clone, Debug, Default, Serialize)]
struct Planned {
    schema: u32,
    precision: String,
    choice: String,
    operation: String,
    candidate: String,
}

/// Many runs on the corrective path.
#[derive(Clone, Debug, Serialize)]
struct Corrected {
    precision: &'static str,
    runs: u32,
    identical: u32,
}

/// All that was measured.
#[derive(Default)]
struct Data {
    runs: Vec<Run>,
    steps: Vec<Step>,
    plans: Vec<Planned>,
    rates: Vec<Rate>,
    corrected: Vec<Corrected>,
    /// Whether two benchmarks chose alike, so that the choice was changed by hand.
    rotated: bool,
}

/// What a run is called whose algorithms a benchmark chose.
const BENCHMARKED: &str = "benchmarked";

/// Runs the study; `repeats` trainings are compared on the corrective path.
pub fn run(request: &Request, repeats: u32) -> Result<Answer> {
    let mut convolutions = open::open(&request.backend)?;
    let mut norm = batch_norm::open(&without_fault(&request.backend))?;
    let mut study = Study {
        request,
        size: if request.is_host() { SMALL } else { LARGE },
        repeats,
        convolutions: &mut *convolutions,
        norm: &mut *norm,
        data: Data::default(),
    };
    for precision in Precision::ALL {
        study.policies(precision)?;
        study.benchmark(precision)?;
        study.rates(precision)?;
        tracing::info!("{} measured", precision.name());
    }
    let data = study.data;
    data.answer(request, repeats, convolutions.combination())
}

struct Study<'a> {
    request: &'a Request,
    size: Size,
    repeats: u32,
    convolutions: &'a mut dyn Backend,
    norm: &'a mut dyn BatchNorm,
    data: Data,
}

impl Study<'_> {
    /// Both policies, in one process and in two; then many deterministic runs.
    fn policies(&mut self, precision: Precision) -> Result<()> {
        for policy in Policy::ALL {
            let plan = plan::plan(self.convolutions, &self.size, precision, policy)?;
            self.data.add_plan(precision, policy.name(), &plan);
            let first = self.train(precision, &plan, 0)?;
            let again = self.train(precision, &plan, 1)?;
            self.data.add(precision, policy.name(), 1, [&first, &again]);
            let other = elsewhere(&self.job(precision, &plan))?;
            self.data.add(precision, policy.name(), 2, [&first, &other]);
            if policy == Policy::Deterministic {
                self.correct(precision, &plan, &first)?;
            }
        }
        Ok(())
    }

    fn correct(&mut self, precision: Precision, plan: &Plan, first: &Trace) -> Result<()> {
        let mut same = 0;
        for run in 0..self.repeats {
            let again = self.train(precision, plan, u64::from(run))?;
            same += u32::from(identical(first, &again));
        }
        self.data.corrected.push(Corrected {
            precision: precision.name(),
            runs: self.repeats,
            identical: same,
        });
        Ok(())
    }

    /// Two runs that each choose the fastest deterministic algorithm.
    fn benchmark(&mut self, precision: Precision) -> Result<()> {
        let first = plan::benchmarked(self.convolutions, &self.size, precision, 0)?;
        let mut second = plan::benchmarked(self.convolutions, &self.size, precision, 1)?;
        if first == second {
            second = plan::rotated(self.convolutions, &self.size, precision, &first)?;
            self.data.rotated = true;
        }
        let names = ["benchmarked, run 1", "benchmarked, run 2"];
        for (name, plan) in names.into_iter().zip([&first, &second]) {
            self.data.add_plan(precision, name, plan);
        }
        let traces = [
            self.train(precision, &first, 0)?,
            self.train(precision, &second, 0)?,
        ];
        self.data
            .add(precision, BENCHMARKED, 1, [&traces[0], &traces[1]]);
        Ok(())
    }

    fn rates(&mut self, precision: Precision) -> Result<()> {
        let runs = Runs {
            nondeterministic: self.repeats,
            deterministic: self.repeats.min(10),
        };
        let seed = self.request.seed;
        let rates = rates::measure(self.convolutions, &self.size, precision, runs, seed)?;
        self.data.rates.extend(rates);
        Ok(())
    }

    fn train(&mut self, precision: Precision, plan: &Plan, run: u64) -> Result<Trace> {
        scatter(self.convolutions, run)?;
        let mut lab = Lab {
            convolutions: self.convolutions,
            norm: self.norm,
        };
        train(&mut lab, &self.size, precision, plan, self.request.seed)
    }

    fn job(&self, precision: Precision, plan: &Plan) -> Job {
        Job {
            backend: self.request.backend.clone(),
            size: self.size,
            precision,
            plan: plan.clone(),
            seed: self.request.seed,
            run: 1,
        }
    }
}

impl Data {
    fn add_plan(&mut self, precision: Precision, choice: &str, plan: &Plan) {
        let row = |(operation, candidate): (&String, &String)| Planned {
            schema: SCHEMA,
            precision: precision.name().to_owned(),
            choice: choice.to_owned(),
            operation: operation.clone(),
            candidate: candidate.clone(),
        };
        self.plans.extend(plan.iter().map(row));
    }

    fn add(&mut self, precision: Precision, choice: &str, processes: u32, traces: [&Trace; 2]) {
        let blank = Run {
            schema: SCHEMA,
            precision: precision.name().to_owned(),
            choice: choice.to_owned(),
            processes,
            identical: identical(traces[0], traces[1]),
            ..Run::default()
        };
        let found = first_difference(traces[0], traces[1]);
        self.runs
            .push(found.map_or(blank.clone(), |d| blank.with(d)));
        let [first, second] = traces.map(losses);
        let weights = weight_differences(traces[0], traces[1]);
        for (i, weight) in weights.into_iter().enumerate() {
            let reported = REPORTED.get(i).map_or(0.0, |(a, b)| (a - b).abs());
            self.steps.push(Step {
                schema: SCHEMA,
                precision: precision.name().to_owned(),
                choice: choice.to_owned(),
                processes,
                step: i + 1,
                loss_first: first[i],
                loss_second: second[i],
                loss_difference: (first[i] - second[i]).abs(),
                largest_weight_difference: weight,
                reported_difference: reported,
            });
        }
    }

    /// Runs that differ though every algorithm in them is deterministic and the same.
    fn unexpected(&self) -> Vec<&Run> {
        let fixed = |r: &&Run| r.choice == Policy::Deterministic.name() && !r.identical;
        let unknown = |r: &&Run| {
            let named = |rate: &&Rate| Some(&rate.candidate) == r.via.as_ref();
            let known = || self.rates.iter().filter(named).any(|r| r.nondeterministic);
            r.choice == Policy::Unrestricted.name() && !r.identical && !known()
        };
        let runs = self.runs.iter();
        runs.filter(|r| fixed(r) || unknown(r)).collect()
    }

    fn findings(&self) -> Vec<&Rate> {
        self.rates.iter().filter(|r| r.is_finding()).collect()
    }

    fn is_corrected(&self) -> bool {
        self.corrected.iter().all(|c| c.identical == c.runs)
    }

    /// The first difference of the unrestricted runs in one precision.
    fn difference(&self, precision: Precision) -> Option<&Run> {
        self.runs.iter().find(|r| {
            r.precision == precision.name()
                && r.choice == Policy::Unrestricted.name()
                && !r.identical
        })
    }

    fn verdict(&self, host: bool) -> String {
        let source = match host {
            true => "the planted nondeterministic algorithm of the host backend",
            false => "an algorithm that cuDNN documents as nondeterministic or that says so",
        };
        let first = match self.difference(Precision::Mixed) {
            Some(Run {
                step: Some(step),
                operation: Some(operation),
                tensor: Some(tensor),
                via: Some(via),
                ..
            }) => format!(
                "Two mixed-precision runs from one seed first differ in {tensor} of '{operation}' in step {step}, computed by {via}"
            ),
            _ => "Two mixed-precision runs from one seed did not differ here".to_owned(),
        };
        let expected = match (self.unexpected().is_empty(), self.findings().is_empty()) {
            (true, true) => format!("every difference comes from {source}: expected"),
            _ => "some differences come from algorithms that promise the same bits: NOT expected"
                .to_owned(),
        };
        let corrected = self.corrected.iter();
        let corrected: Vec<_> = corrected
            .map(|c| format!("{} of {} in {}", c.identical, c.runs, c.precision))
            .collect();
        format!(
            "{first}; {expected}. With deterministic algorithms alone, trainings with the very bits of the first: {}.",
            corrected.join(", ")
        )
    }

    fn answer(self, request: &Request, repeats: u32, combination: &Combination) -> Result<Answer> {
        let verdict = self.verdict(request.is_host());
        let origin = Origin {
            combination,
            command: format!(
                "convfuzz study {NAME} --backend {} --seed {} --runs {repeats}",
                combination.backend, request.seed
            ),
        };
        let values = self.values(request, &verdict);
        Ok(Answer {
            page: page::render(TEMPLATE, values, &origin)?,
            tables: vec![
                Table::new("runs.csv", &self.runs)?,
                Table::new("steps.csv", &self.steps)?,
                Table::new("rates.csv", &self.rates)?,
                Table::new("plans.csv", &self.plans)?,
            ],
            charts: vec![("growth.svg", self.chart())],
            wrong: !self.unexpected().is_empty()
                || !self.findings().is_empty()
                || !self.is_corrected(),
            combination: combination.clone(),
            verdict,
        })
    }

    fn values(&self, request: &Request, verdict: &str) -> Value {
        let growth = |s: &&Step| {
            s.precision == "mixed" && s.choice == Policy::Unrestricted.name() && s.processes == 1
        };
        let growth: Vec<_> = self.steps.iter().filter(growth).collect();
        let rates: Vec<_> = self.rates.iter().filter(|r| r.nondeterministic).collect();
        let others = self
            .rates
            .iter()
            .filter(|r| !r.nondeterministic && r.runs > 0);
        context! {
            verdict,
            host => request.is_host(),
            runs => Value::from(Serde(&self.runs)),
            growth => Value::from(Serde(growth)),
            reported => REPORTED.to_vec().into_iter().map(|(a, b)| context! { a, b }).collect::<Vec<_>>(),
            rates => Value::from(Serde(rates)),
            deterministic => others.count(),
            findings => Value::from(Serde(self.findings())),
            corrected => Value::from(Serde(&self.corrected)),
            rotated => self.rotated,
            changed => self.changed(),
        }
    }

    /// Operations that the two benchmarks chose otherwise.
    fn changed(&self) -> Vec<Value> {
        let of = |name: &'static str| self.plans.iter().filter(move |p| p.choice == name);
        let pairs = of("benchmarked, run 1").zip(of("benchmarked, run 2"));
        pairs
            .filter(|(a, b)| a.candidate != b.candidate)
            .map(|(a, b)| {
                context! {
                    precision => a.precision.clone(),
                    operation => a.operation.clone(),
                    first => a.candidate.clone(),
                    second => b.candidate.clone(),
                }
            })
            .collect()
    }

    fn chart(&self) -> Chart {
        let of = |precision: &str, choice: &str, processes| Series {
            name: format!("{choice}, {precision}"),
            joined: true,
            points: self
                .steps
                .iter()
                .filter(|s| (s.precision == precision) && (s.choice == choice))
                .filter(|s| s.processes == processes)
                .map(|s| (s.step as f64, s.largest_weight_difference))
                .collect(),
            ranges: Vec::new(),
        };
        let axis = |label: &str, log| Axis {
            label: label.to_owned(),
            log,
            names: Vec::new(),
        };
        let mut series = Vec::new();
        for precision in ["fp32", "mixed"] {
            series.push(of(precision, Policy::Unrestricted.name(), 1));
            series.push(of(precision, BENCHMARKED, 1));
        }
        let reported = REPORTED.iter().enumerate();
        series.push(Series {
            name: "reported: difference of the losses".to_owned(),
            points: reported
                .map(|(i, (a, b))| ((i + 1) as f64, (a - b).abs()))
                .collect(),
            ..Series::default()
        });
        Chart {
            title: "How far two runs from one seed drift apart".to_owned(),
            x: axis("training step", false),
            y: axis("largest difference of a weight", true),
            series,
        }
    }
}

impl Run {
    fn with(self, difference: Difference) -> Self {
        Run {
            step: Some(difference.label.step),
            operation: Some(difference.label.operation),
            tensor: Some(difference.label.tensor),
            via: Some(difference.label.via),
            other_via: Some(difference.other_via),
            elements: Some(difference.elements),
            of: Some(difference.of),
            index: Some(difference.index),
            first: Some(difference.first),
            second: Some(difference.second),
            largest: Some(difference.largest),
            largest_ulps: Some(difference.largest_ulps),
            ..self
        }
    }
}
