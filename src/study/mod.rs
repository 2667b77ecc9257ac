//! Studies: a question somebody asked about numbers they saw, answered with
//! measurements. A study takes a backend and a seed, and gives an [`Answer`]: a
//! page with its verdict first, tables and charts, all made from the same data.

use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::backend::Combination;
use crate::backend::open::{BackendKind, BackendSpec};
use crate::error::{Error, ErrorKind, Result};
use crate::report::csv_file;

pub mod amp_conv3d;
pub mod batch_norm;
pub mod chart;
pub mod page;
pub mod reproducibility;
pub mod statistics;

use chart::Chart;

/// Version of the columns of all studies' tables, their first column: grows when
/// one is added, renamed or changes its meaning.
pub const SCHEMA: u32 = 1;

/// The page of every study, in its folder.
pub const PAGE: &str = "page.md";

/// What any study is asked.
#[derive(Clone, Debug)]
pub struct Request {
    /// Where to measure: never [`BackendKind::Auto`].
    pub backend: BackendSpec,
    /// Seeds all data.
    pub seed: u64,
}

/// What a study found.
#[derive(Debug)]
pub struct Answer {
    /// What it was measured on.
    pub combination: Combination,
    /// The answer in a few sentences: for the terminal; the page starts with it.
    pub verdict: String,
    /// The page, Markdown.
    pub page: String,
    /// CSV files.
    pub tables: Vec<Table>,
    /// SVG files.
    pub charts: Vec<(&'static str, Chart)>,
    /// Whether anything was wrong that is not a planted fault.
    pub wrong: bool,
}

/// One CSV file of a study.
#[derive(Debug)]
pub struct Table {
    name: &'static str,
    bytes: Vec<u8>,
}

impl Request {
    /// A request to `study`. These are questions about cuDNN: software stands in
    /// for it only when asked to, not by default.
    pub fn new(backend: BackendSpec, seed: u64) -> Self {
        let kind = match backend.kind {
            BackendKind::Auto if backend.fault.is_some() => BackendKind::Host,
            BackendKind::Auto => BackendKind::Cudnn,
            kind => kind,
        };
        Request {
            backend: BackendSpec { kind, ..backend },
            seed,
        }
    }

    /// Whether software is asked for.
    pub fn is_host(&self) -> bool {
        self.backend.kind == BackendKind::Host
    }
}

impl Table {
    /// A file of that name with `rows`, the header being `T`'s field names. The
    /// first field is [`SCHEMA`].
    pub fn new<T: Serialize + Default>(name: &'static str, rows: &[T]) -> Result<Self> {
        let bytes = csv_file::table(rows)?;
        Ok(Table { name, bytes })
    }
}

impl Answer {
    /// Writes all files into `folder`, which is created; earlier files of the
    /// same names are replaced. Returns their paths, the page first.
    pub fn write(&self, folder: &Path) -> Result<Vec<PathBuf>> {
        std::fs::create_dir_all(folder).map_err(|e| csv_file::cannot_write(folder, &e))?;
        let mut files = vec![(PAGE, self.page.clone().into_bytes())];
        for table in &self.tables {
            files.push((table.name, table.bytes.clone()));
        }
        for (name, chart) in &self.charts {
            files.push((name, chart.svg()?.into_bytes()));
        }
        let write = |(name, bytes): &(&str, Vec<u8>)| {
            let path = folder.join(name);
            csv_file::replace(&path, bytes).map(|()| path)
        };
        files.iter().map(write).collect()
    }
}

/// Adds to an error of the machine how `study` runs without one.
pub fn offer_host(study: &str) -> impl Fn(Error) -> Error {
    move |error| match error.kind() {
        ErrorKind::Environment => Error::environment(format!(
            "{error}\nThe study's host form needs no GPU: convfuzz study {study} --backend host"
        )),
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Serialize, Default)]
    struct Row {
        schema: u32,
        value: f64,
    }

    fn answer() -> Answer {
        let rows = [Row {
            schema: SCHEMA,
            value: 0.1,
        }];
        Answer {
            combination: Combination::default(),
            verdict: "Yes.".to_owned(),
            page: "# Yes\n".to_owned(),
            tables: vec![Table::new("rows.csv", &rows).unwrap()],
            charts: vec![("rows.svg", Chart::default())],
            wrong: false,
        }
    }

    #[test]
    fn write_twice_replaces_and_names_every_file() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("a/b");
        answer().write(&out).unwrap();
        let paths = answer().write(&out).unwrap();
        let names: Vec<_> = paths.iter().map(|p| p.file_name().unwrap()).collect();
        assert_eq!(names, ["page.md", "rows.csv", "rows.svg"]);
        let text = std::fs::read_to_string(&paths[1]).unwrap();
        assert_eq!(text, "schema,value\n1,0.1\n");
    }

    #[test]
    fn request_software_only_when_asked_for() {
        let kind = |spec: BackendSpec| Request::new(spec, 0).backend.kind;
        assert_eq!(kind(BackendSpec::default()), BackendKind::Cudnn);
        let fault = BackendSpec {
            fault: Some("one_ulp".to_owned()),
            ..BackendSpec::default()
        };
        assert_eq!(kind(fault), BackendKind::Host);
    }

    #[test]
    fn offer_host_is_made_for_what_the_machine_lacks() {
        let offer = offer_host("some-study");
        let said = offer(Error::environment("no GPU")).to_string();
        assert!(said.starts_with("no GPU\n"), "{said}");
        assert!(said.ends_with("study some-study --backend host"), "{said}");
        assert_eq!(offer(Error::usage("no")).to_string(), "no");
    }
}
