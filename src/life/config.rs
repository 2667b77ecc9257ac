//! The configuration of a nightly run.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::SignedDuration;
use serde::Deserialize;

use super::table;
use crate::backend::cudnn::{Apis, KnobBudget};
use crate::backend::open::{BackendKind, BackendSpec};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::problem::{Direction, Layout};
use crate::strategy::Limits;

/// The defaults, each key explained.
pub const DEFAULT: &str = include_str!("default.toml");

/// What a nightly run does.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Folder for all that outlives the night.
    pub store: PathBuf,
    /// File of repro lines that are run first.
    pub corpus: Option<PathBuf>,
    /// File of known issues.
    pub known_issues: Option<PathBuf>,
    /// Time for the whole night.
    pub time: Span,
    /// Generated problems, at most, over all parts.
    pub cases: Option<u64>,
    /// Part of the time that is kept for new findings, 0 (none is looked into) to 0.9.
    pub minimize_share: f64,
    /// Runs of every finding's line.
    pub replays: u32,
    /// Worker processes.
    pub jobs: Option<usize>,
    /// Longest time for one trial.
    pub timeout: Span,
    /// Further runs within each trial.
    pub repeats: u32,
    backend: Backend,
    limits: Size,
    shares: Shares,
    part: Vec<Part>,
}

/// A duration in jiff's friendly form, such as `1h30m`; longer than zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Span(pub Duration);

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Backend {
    kind: BackendKind,
    library: Option<PathBuf>,
    device: usize,
    fault: Option<String>,
}

/// What is drawn, beyond the weighted lists.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Size {
    max_macs: u64,
    max_elements: u64,
    groups: bool,
    asymmetric: bool,
    scales: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Shares {
    direction: Option<BTreeMap<Direction, u32>>,
    #[serde(rename = "type")]
    dtype: Option<BTreeMap<DType, u32>>,
    dims: Option<BTreeMap<Dims, u32>>,
    layout: Option<BTreeMap<Layout, u32>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
enum Dims {
    #[serde(rename = "1d")]
    One = 1,
    #[serde(rename = "2d")]
    Two,
    #[serde(rename = "3d")]
    Three,
}

/// A campaign with its share of the time.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Part {
    /// Folder of its results.
    pub name: String,
    #[serde(default)]
    api: Api,
    #[serde(default)]
    knobs: KnobBudget,
    /// Its weight among the parts.
    #[serde(default = "one")]
    pub share: u32,
}

fn one() -> u32 {
    1
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Api {
    #[default]
    All,
    Legacy,
    Engine,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            store: PathBuf::from("nightly"),
            corpus: None,
            known_issues: None,
            time: Span(Duration::from_secs(8 * 3600)),
            cases: None,
            minimize_share: 0.15,
            replays: 3,
            jobs: None,
            timeout: Span(Duration::from_secs(60)),
            repeats: 1,
            backend: Backend::default(),
            limits: Size::default(),
            shares: Shares::default(),
            part: Vec::new(),
        }
    }
}

impl Default for Size {
    fn default() -> Self {
        let limits = Limits::default();
        Size {
            max_macs: limits.max_macs,
            max_elements: limits.max_elements,
            groups: limits.groups,
            asymmetric: limits.asymmetric,
            scales: limits.scales,
        }
    }
}

impl TryFrom<String> for Span {
    type Error = String;

    fn try_from(text: String) -> std::result::Result<Self, String> {
        let parsed = text.parse::<SignedDuration>().ok();
        parsed
            .and_then(|signed| Duration::try_from(signed).ok())
            .filter(|duration| !duration.is_zero())
            .map(Span)
            .ok_or_else(|| format!("'{text}' is not a duration such as 90s, 10m or 8h"))
    }
}

/// The mend of an unknown key.
const MEND: &str = "'convfuzz nightly --print-config' prints every key with its default";

/// Largest weight: a list in [`Limits`] repeats its values so often.
const MOST: u32 = 100;

impl Config {
    /// Reads a file; errors name it, the line and the mend. Paths in it become
    /// relative to its folder.
    pub fn read(path: &Path) -> Result<Self> {
        let text = table::text(path)?;
        let config = Self::parse(&text, path)?;
        Ok(config.relative_to(path.parent().unwrap_or(Path::new(""))))
    }

    fn parse(text: &str, path: &Path) -> Result<Self> {
        let config: Config =
            toml::from_str(text).map_err(|e| table::bad_toml(path, text, &e, MEND))?;
        let named = |e: Error| e.context(format!("'{}'", path.display()));
        config.validate().map_err(named)?;
        Ok(config)
    }

    fn relative_to(mut self, folder: &Path) -> Self {
        self.store = folder.join(&self.store);
        let files = [&mut self.corpus, &mut self.known_issues];
        for path in files.into_iter().flatten() {
            *path = folder.join(&path);
        }
        if let Some(library) = &mut self.backend.library {
            *library = folder.join(&library);
        }
        self
    }

    fn validate(&self) -> Result<()> {
        if !(0.0..=0.9).contains(&self.minimize_share) {
            return Err(Error::usage(format!(
                "minimize_share = {}: choose a part of the time from 0 to 0.9",
                self.minimize_share
            )));
        }
        if self.replays == 0 || self.jobs == Some(0) || self.cases == Some(0) {
            return Err(Error::usage(
                "replays, jobs and cases: at least 1 is needed",
            ));
        }
        self.backend.validate()?;
        self.limits()?.validate()?;
        self.validate_parts()
    }

    fn validate_parts(&self) -> Result<()> {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        for (i, part) in self.part.iter().enumerate() {
            let name = &part.name;
            if name.is_empty() || !name.chars().all(plain) || name == REPLAY {
                return Err(Error::usage(format!(
                    "part '{name}': a name is letters, digits, - and _, and not '{REPLAY}'"
                )));
            }
            if self.part[..i].iter().any(|other| other.name == *name) {
                return Err(Error::usage(format!(
                    "two parts are named '{name}'; rename one"
                )));
            }
            if part.share == 0 {
                return Err(Error::usage(format!(
                    "part '{name}' has share 0; give it one of at least 1, or take it out"
                )));
            }
        }
        Ok(())
    }

    /// The campaigns, in order.
    pub fn parts(&self) -> Vec<Part> {
        if !self.part.is_empty() {
            return self.part.clone();
        }
        vec![Part {
            name: "all".to_owned(),
            api: Api::All,
            knobs: KnobBudget::Default,
            share: 1,
        }]
    }

    /// What is drawn, in every part.
    pub fn limits(&self) -> Result<Limits> {
        let (defaults, shares) = (Limits::default(), &self.shares);
        let ranks = shares.dims.as_ref().map(|dims| {
            let ranks = dims.iter().map(|(&dims, &weight)| (dims as u8, weight));
            ranks.collect()
        });
        Ok(Limits {
            max_macs: self.limits.max_macs,
            max_elements: self.limits.max_elements,
            groups: self.limits.groups,
            asymmetric: self.limits.asymmetric,
            scales: self.limits.scales,
            directions: weighted("direction", &shares.direction, defaults.directions)?,
            types: weighted("type", &shares.dtype, defaults.types)?,
            ranks: weighted("dims", &ranks, defaults.ranks)?,
            layouts: weighted("layout", &shares.layout, defaults.layouts)?,
            ..defaults
        })
    }

    /// The backend of replays: both APIs.
    pub fn backend(&self) -> BackendSpec {
        let Backend {
            kind,
            library,
            device,
            fault,
        } = self.backend.clone();
        BackendSpec {
            kind: match fault {
                Some(_) => BackendKind::Host,
                None => kind,
            },
            fault,
            library,
            device,
            ..BackendSpec::default()
        }
    }
}

/// Folder of a night's replays, beside those of the parts.
pub const REPLAY: &str = "replay";

impl Part {
    /// The backend of this part, from that of the replays.
    pub fn backend(&self, common: &BackendSpec) -> BackendSpec {
        BackendSpec {
            apis: Apis {
                legacy: self.api != Api::Engine,
                engines: self.api != Api::Legacy,
            },
            knobs: self.knobs,
            ..common.clone()
        }
    }
}

impl Backend {
    fn validate(&self) -> Result<()> {
        if self.fault.is_some() && (self.kind == BackendKind::Cudnn || self.library.is_some()) {
            return Err(Error::usage(
                "backend: fault is for the host backend, kind = \"cudnn\" and library are not; take one out",
            ));
        }
        if self.kind == BackendKind::Host && self.library.is_some() {
            return Err(Error::usage(
                "backend: library does not go with kind = \"host\"; take one out",
            ));
        }
        Ok(())
    }
}

/// The values of a share, each as often as its weight says.
fn weighted<T: Copy + Ord>(
    name: &str,
    shares: &Option<BTreeMap<T, u32>>,
    default: Vec<T>,
) -> Result<Vec<T>> {
    let Some(shares) = shares else {
        return Ok(default);
    };
    if shares.values().any(|&weight| weight > MOST) {
        return Err(Error::usage(format!(
            "shares.{name}: weights go from 0 to {MOST}"
        )));
    }
    let divisor = shares.values().fold(0, |a, &b| gcd(a, b));
    if divisor == 0 {
        return Err(Error::usage(format!(
            "shares.{name}: nothing is left to draw; give one a weight above 0"
        )));
    }
    let repeat = |(&value, &weight): (&T, &u32)| vec![value; (weight / divisor) as usize];
    Ok(shares.iter().flat_map(repeat).collect())
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config> {
        Config::parse(text, Path::new("night.toml"))
    }

    /// The default text with its comments opened: every key there must be one.
    fn uncommented() -> String {
        let open = |line: &str| {
            let rest = line.strip_prefix("# ").unwrap_or(line);
            let key = rest.split(' ').next().unwrap_or_default();
            let word = |c: char| c.is_ascii_lowercase() || c == '_';
            let setting = key.chars().all(word) && rest.starts_with(&format!("{key} = "));
            if setting || rest == "[[part]]" {
                rest.to_owned()
            } else {
                line.to_owned()
            }
        };
        DEFAULT.lines().map(open).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn default_text_is_the_default() {
        assert_eq!(parse(DEFAULT).unwrap(), Config::default());
        assert_eq!(parse("").unwrap(), Config::default());
    }

    #[test]
    fn default_text_comments_are_settings_too() {
        let text = uncommented();
        // One of two that exclude each other.
        let text = text.replace("fault = ", "# fault = ");
        let config = parse(&text).unwrap();
        assert_eq!(config.part.len(), 2);
        assert!(config.corpus.is_some() && config.known_issues.is_some());
        assert_eq!((config.cases, config.jobs), (Some(10_000), Some(8)));
        let shares = config.shares;
        assert!(shares.direction.is_some() && shares.dtype.is_some());
        assert!(shares.dims.is_some() && shares.layout.is_some());
    }

    #[test]
    fn limits_weights_repeat_values_and_leave_others_out() {
        let config = parse("[shares]\ndims = { 2d = 20, 3d = 30 }\ntype = { fp16 = 4, bf16 = 0 }");
        let limits = config.unwrap().limits().unwrap();
        assert_eq!(limits.ranks, [2, 2, 3, 3, 3]);
        assert_eq!(limits.types, [DType::Fp16]);
        assert_eq!(limits.directions, Limits::default().directions);
    }

    #[test]
    fn parts_set_apis_and_knobs() {
        let text = "[[part]]\nname = \"k\"\napi = \"engine\"\nknobs = \"16\"\nshare = 2";
        let part = parse(text).unwrap().parts().remove(0);
        let spec = part.backend(&BackendSpec::default());
        assert_eq!((spec.apis.legacy, spec.apis.engines), (false, true));
        assert_eq!((spec.knobs, part.share), (KnobBudget::Count(16), 2));
        assert_eq!(Config::default().parts().len(), 1);
    }

    #[test]
    fn parse_faults_name_line_and_mend() {
        for (text, words) in [
            (
                "time = \"8h\"\ntimes = 3",
                vec!["line 2", "times", "--print-config"],
            ),
            ("replays = \"three\"", vec!["line 1", "three"]),
            ("time = 3", vec!["line 1", "--print-config"]),
            ("\ntime = \"soon\"", vec!["line 2", "90s"]),
            ("[backend]\nkind = \"gpu\"", vec!["line 2", "cudnn"]),
            ("[shares]\ntype = { fp17 = 1 }", vec!["line 2", "fp16"]),
            (
                "[shares]\ntype = { fp16 = 0 }",
                vec!["shares.type", "above 0"],
            ),
            (
                "[shares]\ntype = { fp16 = 101 }",
                vec!["shares.type", "100"],
            ),
            ("[limits]\nmax_macs = 10", vec!["max_macs", "1000"]),
            ("minimize_share = 1.5", vec!["minimize_share", "0.9"]),
            ("[[part]]\nname = \"a/b\"", vec!["a/b", "letters"]),
            ("[[part]]\nname = \"replay\"", vec!["replay"]),
            (
                "[[part]]\nname = \"a\"\n[[part]]\nname = \"a\"",
                vec!["rename"],
            ),
            (
                "[backend]\nkind = \"cudnn\"\nfault = \"x\"",
                vec!["fault", "take one out"],
            ),
        ] {
            let error = parse(text).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{text}");
            let said = error.to_string();
            assert!(
                said.contains("night.toml") && !said.contains('\n'),
                "{said}"
            );
            for word in words {
                assert!(said.contains(word), "{word:?} not in {said}");
            }
        }
    }

    #[test]
    fn relative_to_paths_follow_the_file() {
        let config = parse("corpus = \"c.txt\"\nstore = \"/var/s\"").unwrap();
        let config = config.relative_to(Path::new("/etc/convfuzz"));
        assert_eq!(config.corpus, Some(PathBuf::from("/etc/convfuzz/c.txt")));
        assert_eq!(config.store, PathBuf::from("/var/s"));
    }
}
