//! The page for the vendor: `report.md`.

use minijinja::{Value, context};

use super::{Bundle, program};
use crate::candidate::Candidate;
use crate::dtype::DType;
use crate::minimize::Minimized;
use crate::problem::{ConvProblem, Role};
use crate::report::environment::system;
use crate::shrink::data::DataPatch;
use crate::shrink::trigger::Trigger;
use crate::tensor::index_text;

const TEMPLATE: &str = include_str!("report.md.j2");

/// Most wrong outputs shown, and most elements of data written out.
const ROWS: usize = 8;

/// Renders the page.
pub fn render(bundle: &Bundle<'_>, has_log: bool) -> String {
    let mut page = program::environment()
        .render_str(TEMPLATE, values(bundle, has_log))
        .expect("the template is constant and a test renders its forms");
    page.push('\n');
    page
}

fn values(bundle: &Bundle<'_>, has_log: bool) -> Value {
    let problem = &bundle.repro.problem;
    let combination = bundle.combination;
    let or_none = |text: &str| match text.is_empty() {
        true => "none".to_owned(),
        false => text.to_owned(),
    };
    let (rows, wrong) = rows(bundle);
    let minimized = bundle.minimized;
    context! {
        title => title(bundle),
        device => combination.device.clone(),
        sm => combination.sm.clone(),
        driver => or_none(&combination.driver),
        cuda => or_none(&combination.cuda),
        cudnn => or_none(&combination.cudnn),
        convfuzz => combination.convfuzz.clone(),
        system => system(),
        summary => summary(bundle),
        detail => bundle.detail,
        of_cudnn => bundle.is_of_cudnn(),
        rate => bundle.rate().map(|r| context! { failed => r.failed, of => r.of }),
        repro => bundle.repro.to_string(),
        tensors => tensors(bundle),
        convolution => convolution(problem),
        data => bundle.data.map(|patch| data(problem, patch)),
        rows,
        wrong,
        total => bundle.expected.len(),
        trigger => minimized.and_then(|m| m.trigger.as_ref()).map(trigger),
        attribution => bundle.attribution,
        candidate => candidate(bundle),
        ranks => ranks(bundle),
        found_as => minimized.map(|m| m.start.to_string()).filter(|s| *s != bundle.repro.to_string()),
        trials => minimized.map_or(0, |m| m.trials),
        exhausted => minimized.is_some_and(exhausted),
        has_bf16 => [problem.x_type, problem.w_type, problem.y_type].contains(&DType::Bf16),
        has_log,
    }
}

fn exhausted(minimized: &Minimized) -> bool {
    minimized.exhausted
}

/// One line that names the place and the fault.
fn title(bundle: &Bundle<'_>) -> String {
    let problem = &bundle.repro.problem;
    let via = bundle
        .repro
        .via
        .as_ref()
        .map(ToString::to_string)
        .unwrap_or_default();
    format!(
        "{} in {} ({}D, {}, {}) by {via}",
        class_words(bundle.class),
        problem.direction.name(),
        problem.rank(),
        problem.type_text(),
        problem.layout.name()
    )
}

/// How it fails, in words.
fn class_words(class: &str) -> &str {
    match class {
        "wrong_value" => "Wrong values",
        "wrong_nan" => "NaN where there should be none, or none where there should be",
        "wrong_infinity" => "Wrong infinities",
        "execution_failed" => "Accepted, then fails to execute",
        "out_of_bounds_write" => "Writes outside its buffers",
        "input_changed" => "Changes an input",
        "unwritten" => "Leaves outputs unwritten",
        "uninitialised_read" => "Result depends on uninitialised memory",
        "nondeterministic" => "Nondeterministic without saying so",
        "metamorphic" => "Another form of the case gives another result",
        "odd_strides" => "Wrong with odd strides of dimensions of size 1",
        "undeclared" => "Arithmetic other than declared",
        "crashed" => "Ends the process",
        "timed_out" => "Does not end",
        _ => "Result",
    }
}

fn summary(bundle: &Bundle<'_>) -> String {
    let words = match &bundle.repro.via {
        Some(Candidate::Legacy { algorithm, math }) => format!(
            "The legacy API's algorithm {algorithm} with math type {} runs",
            math.name()
        ),
        Some(Candidate::Engine { index, knobs }) if knobs.is_empty() => {
            format!("Engine {index} of the graph API, with its own knobs, runs")
        }
        Some(Candidate::Engine { index, knobs }) => {
            let knobs: Vec<_> = knobs.iter().map(|(k, v)| format!("{k} = {v}")).collect();
            format!(
                "Engine {index} of the graph API with knobs {} runs",
                knobs.join(", ")
            )
        }
        _ => "A software algorithm of convfuzz runs".to_owned(),
    };
    format!(
        "{words} the convolution below without an error status, unless one is quoted here. {}:",
        class_words(bundle.class)
    )
}

fn tensors(bundle: &Bundle<'_>) -> Vec<Value> {
    let problem = &bundle.repro.problem;
    let roles = [Role::X, Role::W, Role::Y];
    let row = |role: Role| {
        let dims = problem.dims(role);
        context! {
            name => role.name(),
            dtype => problem.dtype(role).name(),
            dims => list(&dims),
            strides => list(&program::strides(bundle, &dims)),
        }
    };
    roles.map(row).to_vec()
}

fn convolution(problem: &ConvProblem) -> String {
    format!(
        "Cross-correlation, {}, padding {} before and {} after, stride {}, dilation {}, {} group{}, \
         compute type {}, alpha {}, beta {}.",
        problem.direction.name(),
        list(&problem.pad_before),
        list(&problem.pad_after),
        list(&problem.stride),
        list(&problem.dilation),
        problem.groups,
        if problem.groups == 1 { "" } else { "s" },
        problem.compute.name(),
        problem.alpha.0,
        problem.beta.0
    )
}

/// Each tensor's nonzero elements, in words; `None` when they are too many.
fn data(problem: &ConvProblem, patch: &DataPatch) -> Vec<String> {
    let [first, second] = problem.direction.operands();
    let parts = [
        (first, &patch.first),
        (second, &patch.second),
        (problem.direction.result(), &patch.prior),
    ];
    let words = parts.iter().filter(|(_, list)| !list.is_empty());
    words
        .map(|(role, list)| {
            let dims = problem.dims(*role);
            let shown = list.iter().take(ROWS);
            let shown =
                shown.map(|(at, v)| format!("{}{} = {v:?}", role.name(), index_text(&dims, *at)));
            let more = match list.len().saturating_sub(ROWS) {
                0 => String::new(),
                more => format!(", and {more} more"),
            };
            format!("{}{more}", shown.collect::<Vec<_>>().join(", "))
        })
        .collect()
}

/// The first wrong outputs, and how many there are.
fn rows(bundle: &Bundle<'_>) -> (Vec<Value>, usize) {
    let wrong = |&i: &usize| {
        let (expected, actual) = (bundle.expected[i], bundle.actual.get(i));
        let right = match expected.is_nan() {
            true => actual.is_nan(),
            false => actual == expected || (actual - expected).abs() <= bundle.bound[i],
        };
        !right
    };
    let all: Vec<usize> = (0..bundle.expected.len()).filter(wrong).collect();
    let row = |&i: &usize| {
        context! {
            index => index_text(bundle.actual.dims(), i),
            expected => format!("{:?}", bundle.expected[i]),
            actual => format!("{:?}", bundle.actual.get(i)),
            allowed => format!("{:.3e}", bundle.bound[i]),
        }
    };
    (all.iter().take(ROWS).map(row).collect(), all.len())
}

fn trigger(trigger: &Trigger) -> Value {
    let share =
        |v: Option<f64>| v.map_or("unknown (no such case)".to_owned(), |v| format!("{v:.3}"));
    let lines = |list: &[crate::candidate::Repro]| -> Vec<String> {
        list.iter().take(ROWS).map(ToString::to_string).collect()
    };
    context! {
        words => trigger.to_string(),
        failing => trigger.learnt_from.0,
        passing => trigger.learnt_from.1,
        checked => trigger.checked(),
        precision => share(trigger.check.precision()),
        recall => share(trigger.check.recall()),
        settled => trigger.settled,
        credible => trigger.is_credible(),
        evidence => trigger.clauses.iter().map(ToString::to_string).collect::<Vec<_>>(),
        counterexamples => lines(&trigger.check.counterexamples),
    }
}

fn candidate(bundle: &Bundle<'_>) -> String {
    let notes: Vec<_> = notes(bundle).filter(|n| !n.starts_with("heur_")).collect();
    let may_differ = match bundle.nondeterministic {
        true => " It says that two runs may differ.",
        false => "",
    };
    match notes.is_empty() {
        true => format!("It declares no notes.{may_differ}"),
        false => format!("It declares: {}.{may_differ}", notes.join(", ")),
    }
}

/// Whether the heuristics would have chosen it.
fn ranks(bundle: &Bundle<'_>) -> String {
    let ranks: Vec<_> = notes(bundle)
        .filter_map(|n| n.strip_prefix("heur_"))
        .collect();
    match (&bundle.repro.via, ranks.is_empty()) {
        (Some(Candidate::Engine { .. }), true) => {
            "No heuristic lists this configuration for this problem.".to_owned()
        }
        (Some(Candidate::Engine { .. }), false) => format!(
            "The heuristics list it for this problem, mode:rank from 0 = first choice: {}.",
            ranks.join(", ")
        ),
        _ => String::new(),
    }
}

fn notes<'a>(bundle: &Bundle<'a>) -> impl Iterator<Item = &'a str> {
    bundle.notes.split('+').filter(|n| !n.is_empty())
}

fn list(values: &[usize]) -> String {
    let words: Vec<_> = values.iter().map(usize::to_string).collect();
    format!("({})", words.join(", "))
}
