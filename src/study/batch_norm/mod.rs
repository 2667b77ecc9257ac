//! Seed report 3: under automatic mixed precision, batch norm gives fp16. Every
//! claim of the report and of the answers to it, with numbers.

use minijinja::context;
use minijinja::value::{Serde, Value};

use self::bench::Bench;
use self::claims::Claim;
use self::measure::{NormRow, OverflowRow, StatisticRow, TypeRow, UpcastRow};
use crate::error::Result;
use crate::study::chart::{Axis, Chart, Series};
use crate::study::page::{Origin, render};
use crate::study::{Answer, Request, Table};

mod bench;
mod claims;
mod measure;

/// The command's name.
pub const NAME: &str = "batch-norm";

const TEMPLATE: &str = include_str!("page.md");

/// Everything that was measured.
pub struct Measurements {
    types: Vec<TypeRow>,
    statistics: Vec<StatisticRow>,
    upcast: Vec<UpcastRow>,
    overflow: Vec<OverflowRow>,
    norms: Vec<NormRow>,
}

/// Runs the study.
pub fn study(request: &Request) -> Result<Answer> {
    let mut bench = Bench::open(&request.backend, request.seed)?;
    let found = Measurements {
        types: measure::types(&mut bench)?,
        statistics: measure::statistics(&mut bench, request.is_host())?,
        upcast: measure::upcast(&mut bench)?,
        overflow: measure::overflow(&mut bench, request.seed)?,
        norms: measure::norms(&mut bench)?,
    };
    let claims = claims::judged(&found);
    let combination = bench.backend().combination().clone();
    let verdict = verdict(&claims, &bench);
    let origin = Origin {
        combination: &combination,
        command: command(request),
    };
    let page = page(&found, &claims, &verdict, &bench, &origin)?;
    Ok(Answer {
        verdict,
        page,
        tables: vec![
            Table::new("claims.csv", &claims)?,
            Table::new("types.csv", &found.types)?,
            Table::new("statistics.csv", &found.statistics)?,
            Table::new("upcast.csv", &found.upcast)?,
            Table::new("overflow.csv", &found.overflow)?,
            Table::new("norms.csv", &found.norms)?,
        ],
        charts: vec![
            ("variance.svg", variance_chart(&found.statistics)),
            ("overflow.svg", overflow_chart(&found.overflow)),
        ],
        wrong: !bench.failures.is_empty() && request.backend.fault.is_none(),
        combination,
    })
}

fn command(request: &Request) -> String {
    let backend = if request.is_host() { "host" } else { "cudnn" };
    let fault = match &request.backend.fault {
        Some(fault) => format!(" --fault {fault}"),
        None => String::new(),
    };
    format!(
        "convfuzz study {NAME} --backend {backend}{fault} --seed {}",
        request.seed
    )
}

/// The answer in a few sentences; trials that failed come first.
fn verdict(claims: &[Claim], bench: &Bench) -> String {
    let with = |verdict: &str| {
        let names = claims.iter().filter(|claim| claim.verdict == verdict);
        let names: Vec<&str> = names.map(|claim| claim.claim.as_str()).collect();
        names.join(", ")
    };
    let part = |verdict: &str| match with(verdict).as_str() {
        "" => None,
        names => Some(format!("{verdict}: {names}")),
    };
    let all = ["holds", "holds in part", "does not hold", "not measured"];
    let parts: Vec<String> = all.into_iter().filter_map(part).collect();
    let trials = match bench.failures.len() {
        0 => format!("None of {} trials is wrong.", bench.trials),
        failed => format!("{failed} of {} trials are wrong.", bench.trials),
    };
    format!("{trials} Of {} claims: {}.", claims.len(), parts.join("; "))
}

fn page(
    found: &Measurements,
    claims: &[Claim],
    verdict: &str,
    bench: &Bench,
    origin: &Origin<'_>,
) -> Result<String> {
    let values = context! {
        verdict => verdict,
        claims => Value::from(Serde(claims)),
        trials => bench.trials,
        failures => bench.failures.clone(),
        types => Value::from(Serde(&found.types)),
        statistics => Value::from(Serde(&found.statistics)),
        upcast => Value::from(Serde(&found.upcast)),
        overflow => Value::from(Serde(&found.overflow)),
        norms => Value::from(Serde(&found.norms)),
    };
    render(TEMPLATE, values, origin)
}

fn axis(label: &str, log: bool) -> Axis {
    Axis {
        label: label.to_owned(),
        log,
        names: Vec::new(),
    }
}

fn line(name: &str, points: Vec<(f64, f64)>) -> Series {
    Series {
        name: name.to_owned(),
        points,
        joined: true,
        ranges: Vec::new(),
    }
}

fn variance_chart(rows: &[StatisticRow]) -> Chart {
    let name = |row: &StatisticRow| format!("{} {} {}", row.candidate, row.mode, row.layout);
    let mut names: Vec<String> = rows.iter().map(name).collect();
    names.dedup();
    names.sort();
    names.dedup();
    let mut series: Vec<Series> = names
        .iter()
        .map(|this| {
            let own = rows.iter().filter(|row| name(row) == *this);
            line(
                this,
                own.map(|row| (row.offset, row.variance_error)).collect(),
            )
        })
        .collect();
    if let Some(first) = names.first() {
        let own = rows.iter().filter(|row| name(row) == *first);
        let half = own
            .map(|row| (row.offset, row.fp16_variance_error))
            .collect();
        series.push(line("exact, kept in fp16", half));
    }
    Chart {
        title: "Largest relative error of the variance of fp16 data".to_owned(),
        x: axis("mean of x in standard deviations", true),
        y: axis("relative error", true),
        series,
    }
}

fn overflow_chart(rows: &[OverflowRow]) -> Chart {
    let curve = |name: &str, share: fn(&OverflowRow) -> f64| {
        line(
            name,
            rows.iter().map(|row| (row.scale, share(row))).collect(),
        )
    };
    Chart {
        title: "Share of elements that are not finite".to_owned(),
        x: axis("scale of the batch norm", true),
        y: axis("share", false),
        series: vec![
            curve("y in fp16", |row| row.fp16_infinite),
            curve("y in fp32", |row| row.fp32_infinite),
            curve("linear of fp16 y", |row| row.linear_of_fp16),
            curve("linear of fp32 y, cast", |row| row.linear_of_cast),
            curve("linear taking fp32", |row| row.linear_of_fp32),
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::open::{BackendKind, BackendSpec};

    fn host(fault: Option<&str>) -> Answer {
        let spec = BackendSpec {
            kind: BackendKind::Host,
            fault: fault.map(str::to_owned),
            ..BackendSpec::default()
        };
        study(&Request::new(spec, 1)).unwrap()
    }

    fn verdict_of(answer: &Answer, claim: &str) -> String {
        let row = answer
            .page
            .lines()
            .find(|line| line.contains(&format!("**{claim}**")));
        let cells: Vec<&str> = row.unwrap().split(" | ").collect();
        cells[2].replace('*', "")
    }

    #[test]
    fn claims_are_judged_on_the_host() {
        let answer = host(None);
        assert!(!answer.wrong, "{}", answer.page);
        for (claim, expected) in [
            ("output type", "holds"),
            ("statistic types", "holds"),
            ("arithmetic in fp32", "holds"),
            ("casting up recovers nothing", "holds"),
            ("fp16 overflows first", "holds"),
            ("the next layer overflows too", "holds in part"),
            ("layer and group norm are of another kind", "does not hold"),
        ] {
            assert_eq!(verdict_of(&answer, claim), expected, "{claim}");
        }
    }

    #[test]
    fn statistics_in_fp16_turn_the_verdict() {
        let answer = host(Some("bn_half_statistics"));
        assert_eq!(verdict_of(&answer, "arithmetic in fp32"), "does not hold");
        assert!(answer.verdict.contains("are wrong"), "{}", answer.verdict);
    }
}
