//! The verdict, the page, the tables and the chart.

use minijinja::value::Serde;
use minijinja::{Value, context};

use super::data::{Compared, Data, Run, Step};
use super::network::{Precision, Size};
use super::plan::{FAULT, Policy};
use super::trace::Cause;
use super::{BENCHMARK, NAME, reported};
use crate::backend::Combination;
use crate::error::Result;
use crate::study::chart::{Axis, Chart, Series};
use crate::study::page::{self, Origin};
use crate::study::{Answer, Request, Table};

const TEMPLATE: &str = include_str!("page.md.j2");

impl Data {
    /// All files of the study.
    pub fn answer(
        &self,
        request: &Request,
        repeats: u32,
        size: &Size,
        combination: &Combination,
    ) -> Result<Answer> {
        let verdict = self.verdict();
        let origin = Origin {
            combination,
            command: command(request, repeats, combination),
        };
        let values = self.values(request, size, &verdict);
        Ok(Answer {
            page: page::render(TEMPLATE, values, &origin)?,
            tables: vec![
                Table::new("runs.csv", &self.runs)?,
                Table::new("steps.csv", &self.steps)?,
                Table::new("tensors.csv", &self.tensors)?,
                Table::new("rates.csv", &self.rates)?,
                Table::new("plans.csv", &self.plans)?,
                Table::new("corrected.csv", &self.corrected)?,
            ],
            charts: vec![("growth.svg", self.chart())],
            wrong: !self.is_as_promised(),
            combination: combination.clone(),
            verdict,
        })
    }

    /// Whether whatever promises the same bits gave them.
    fn is_as_promised(&self) -> bool {
        self.unexpected().is_empty() && self.findings().is_empty() && self.is_corrected()
    }

    /// The answer in a few sentences.
    pub fn verdict(&self) -> String {
        let first = match self.difference() {
            Some(run) => format!(
                "Two trainings from one seed ({}, {} algorithms) part in step {}, at {}.",
                run.precision,
                run.choice,
                run.step.unwrap_or_default(),
                place(run)
            ),
            None => "Two trainings from one seed did not part here.".to_owned(),
        };
        format!("{first} {} {}", self.expected(), self.helped())
    }

    fn expected(&self) -> String {
        if self.is_as_promised() {
            return match self.runs.iter().all(|r| r.identical) {
                true => "Nothing differed.".to_owned(),
                false => "That is expected: all that differed is known to be nondeterministic, \
                          or was another algorithm."
                    .to_owned(),
            };
        }
        let mut broken: Vec<&str> = self
            .unexpected()
            .into_iter()
            .filter_map(|run| run.via.as_deref())
            .chain(self.findings().into_iter().map(|r| r.candidate.as_str()))
            .collect();
        broken.sort_unstable();
        broken.dedup();
        format!(
            "That is NOT expected: other bits came from what promises the same ones: {}.",
            broken.join(", ")
        )
    }

    fn helped(&self) -> String {
        let corrected = self.corrected.iter();
        let counts: Vec<_> = corrected
            .map(|c| format!("{} of {} in {}", c.identical, c.runs, c.precision))
            .collect();
        format!(
            "With deterministic algorithms alone, fixed once, trainings that repeated the first \
             bit for bit: {}.",
            counts.join(", ")
        )
    }

    fn values(&self, request: &Request, size: &Size, verdict: &str) -> Value {
        let known: Vec<_> = self.rates.iter().filter(|r| r.nondeterministic).collect();
        let others = self.rates.iter().filter(|r| !r.nondeterministic);
        let (steady, stopped): (Vec<_>, Vec<_>) = others.partition(|r| r.stopped.is_none());
        let found = self.difference();
        let heuristic = |run: &Run| run.choice == Policy::Default.name();
        context! {
            verdict,
            host => request.is_host(),
            fault => request.backend.fault.clone(),
            planted => FAULT,
            size => Value::from(Serde(*size)),
            runs => Value::from(Serde(&self.runs)),
            heuristic => self.runs.iter().any(heuristic),
            found => found.map(|run| self.shown(run)),
            reported => reported_losses(),
            growth => self.growth(),
            hidden => self.is_hidden(Precision::Mixed),
            rates => Value::from(Serde(known)),
            steady => steady.len(),
            steady_runs => steady.iter().map(|r| r.runs).sum::<u32>(),
            stopped => stopped.len(),
            findings => Value::from(Serde(self.findings())),
            unexpected => Value::from(Serde(self.unexpected())),
            corrected => Value::from(Serde(&self.corrected)),
            elsewhere => self.elsewhere(),
            rotated => self.rotated,
            changed => self.changed_values(),
        }
    }

    /// The first difference, and every tensor of its step.
    fn shown(&self, run: &Run) -> Value {
        let of = |t: &&Compared| {
            (t.precision == run.precision && t.choice == run.choice) && Some(t.step) == run.step
        };
        let tensors: Vec<&Compared> = self.tensors.iter().filter(of).collect();
        let same = tensors.iter().take_while(|t| t.elements == 0).count();
        context! {
            run => Value::from(Serde(run)),
            place => place(run),
            cause => in_words(run.cause),
            before => tensors[..same].iter().map(|t| t.name()).collect::<Vec<_>>(),
            tensors => Value::from(Serde(&tensors[same..])),
        }
    }

    /// Steps of pairs in one process, in the way of choosing that
    /// [`Data::difference`] tells of, in both precisions.
    fn growth(&self) -> Vec<Value> {
        let steps = self.grown().into_iter();
        steps
            .map(|s| {
                let reported = reported::LOSSES.iter().map(|l| l.values.get(s.step - 1));
                let reported = reported.map(|v| v.map(|(a, b)| reported::relative(*a, *b)));
                context! { step => Value::from(Serde(s)), reported => reported.collect::<Vec<_>>() }
            })
            .collect()
    }

    fn grown(&self) -> Vec<&Step> {
        let choice = self.difference().map(|run| run.choice.as_str());
        let of = |s: &&Step| Some(s.choice.as_str()) == choice && s.processes == 1;
        self.steps.iter().filter(of).collect()
    }

    /// Whether weights differ somewhere and the loss of no later step does.
    fn is_hidden(&self, precision: Precision) -> bool {
        let steps = self.grown();
        let mut steps = steps.iter().filter(|s| s.precision == precision.name());
        steps.clone().any(|s| s.largest_weight_difference > 0.0)
            && steps.all(|s| s.loss_relative == 0.0)
    }

    /// Trainings on the corrective path in processes of their own.
    fn elsewhere(&self) -> Vec<Value> {
        let fixed = |r: &&Run| r.choice == Policy::Deterministic.name() && r.processes == 2;
        let runs = self.runs.iter().filter(fixed);
        runs.map(|r| context! { precision => r.precision.clone(), runs => r.runs, identical => r.identical })
            .collect()
    }

    fn changed_values(&self) -> Vec<Value> {
        let changed = self.changed().into_iter();
        changed
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
        let mut series = Vec::new();
        for precision in Precision::ALL.map(Precision::name) {
            for choice in Policy::ALL.map(Policy::name).into_iter().chain([BENCHMARK]) {
                series.extend(self.drift(precision, choice));
            }
        }
        let reported = (0..reported::STEPS).filter_map(|i| Some((i + 1, reported::total(i)?)));
        series.push(Series {
            name: "reported (total loss)".to_owned(),
            points: reported.map(|(step, v)| (step as f64, v)).collect(),
            joined: true,
            ..Series::default()
        });
        let axis = |label: &str, log| Axis {
            label: label.to_owned(),
            log,
            names: Vec::new(),
        };
        Chart {
            title: "How far the losses of two runs from one seed drift apart".to_owned(),
            x: axis("training step", false),
            y: axis("difference as a share of the loss", true),
            series,
        }
    }

    /// How the losses of two runs in one process drift apart, where they do.
    fn drift(&self, precision: &str, choice: &str) -> Option<Series> {
        let steps = self.steps.iter();
        let of = steps.filter(|s| s.precision == precision && s.choice == choice);
        let points = of
            .filter(|s| s.processes == 1)
            .map(|s| (s.step as f64, s.loss_relative));
        let points: Vec<_> = points.collect();
        points.iter().any(|p| p.1 > 0.0).then(|| Series {
            name: format!("{precision}, {choice}"),
            points,
            joined: true,
            ranges: Vec::new(),
        })
    }
}

impl Compared {
    fn name(&self) -> String {
        format!("{} {}", self.operation, self.tensor)
    }
}

/// Tensor, operation and algorithm of the first difference.
fn place(run: &Run) -> String {
    let text = |part: &Option<String>| part.clone().unwrap_or_default();
    let other = match run.via == run.other_via {
        true => String::new(),
        false => format!(" and by {}", text(&run.other_via)),
    };
    format!(
        "{} of {}, computed by {}{other}",
        text(&run.tensor),
        text(&run.operation),
        text(&run.via)
    )
}

fn in_words(cause: Option<Cause>) -> &'static str {
    match cause {
        Some(Cause::Nondeterministic) => {
            "the algorithm is known to give other bits from run to run: expected"
        }
        Some(Cause::OtherAlgorithm) => "the two runs took different algorithms: expected",
        Some(Cause::BrokenPromise) => {
            "the same algorithm, which promises the same bits: **not expected**"
        }
        None => "no difference",
    }
}

fn reported_losses() -> Vec<Value> {
    let losses = reported::LOSSES.iter();
    losses
        .map(|l| {
            let pairs = l.values.iter();
            let pairs = pairs.map(|(a, b)| format!("{a:.5}{}", beside(*a, *b)));
            context! { name => l.name, steps => pairs.collect::<Vec<_>>() }
        })
        .collect()
}

/// The second run's loss, where it differs.
fn beside(a: f64, b: f64) -> String {
    match a == b {
        true => String::new(),
        false => format!(" / **{b:.5}**"),
    }
}

/// The command that measures it again.
fn command(request: &Request, repeats: u32, combination: &Combination) -> String {
    let fault = request.backend.fault.as_ref();
    let fault = fault.map_or(String::new(), |f| format!(" --fault {f}"));
    format!(
        "convfuzz study {NAME} --backend {}{fault} --seed {} --runs {repeats}",
        combination.backend, request.seed
    )
}
