//! `known_issues.toml`: what a user knows of already. An entry marks findings,
//! and never keeps a trial from being run or judged.
//!
//! ```toml
//! [[issue]]
//! reference = "https://example.com/bugs/1234"
//! candidate = "engine:42"          # patterns: * any text, ? one character
//! direction = "fwd"
//! types     = "fp16*"
//! cudnn     = ">=9.10, <9.20"      # where it holds; everywhere when absent
//! sm        = ["8.9", "9.0"]
//! ```

use std::cmp::Ordering;
use std::path::Path;

use serde::Deserialize;
use toml::Spanned;

use crate::backend::Combination;
use crate::error::{Error, Result};
use crate::finding::Signature;
use crate::life::table;
use crate::problem::{Direction, Layout};

/// A known issue.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Issue {
    /// Where it is written about: an address, or a text.
    pub reference: String,
    /// What it is.
    pub note: Option<String>,
    /// Versions of cuDNN that have it.
    cudnn: Option<Versions>,
    /// Compute capabilities that have it.
    sm: Option<Vec<String>>,
    verdict: Option<String>,
    reason: Option<String>,
    direction: Option<String>,
    candidate: Option<String>,
    notes: Option<String>,
    rank: Option<u8>,
    types: Option<String>,
    compute: Option<String>,
    layout: Option<String>,
}

/// The entries of a file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Issues(Vec<Issue>);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    issue: Vec<Spanned<Issue>>,
}

/// What an entry is worth tonight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It is of other versions or GPUs.
    Elsewhere,
    /// It marks an open finding.
    Marks,
    /// All that it matches is fixed.
    PassesNow,
    /// It matches no finding.
    MatchesNothing,
}

impl Issues {
    /// Reads a file; errors name it, the line and the mend.
    pub fn read(path: &Path) -> Result<Self> {
        Self::parse(&table::text(path)?, path)
    }

    fn parse(text: &str, path: &Path) -> Result<Self> {
        let file: File = toml::from_str(text).map_err(|e| table::bad_toml(path, text, &e, KEYS))?;
        let issues = file.issue.into_iter().map(|issue| {
            let line = table::line(text, issue.span().start);
            let issue = issue.into_inner();
            issue
                .check()
                .map(|()| issue)
                .map_err(|why| Error::usage(format!("'{}', line {line}: {why}", path.display())))
        });
        issues.collect::<Result<_>>().map(Issues)
    }

    /// The entry that marks a finding on a combination, if any.
    pub fn mark(&self, signature: &Signature, on: &Combination) -> Option<&Issue> {
        let marks = |issue: &&Issue| issue.applies(on) && issue.matches(signature);
        self.0.iter().find(marks)
    }

    /// Every entry with what it is worth among findings, given as signature and
    /// whether it is open.
    pub fn standings<'a>(
        &'a self,
        on: &Combination,
        findings: &[(&Signature, bool)],
    ) -> Vec<(&'a Issue, Standing)> {
        let standing = |issue: &'a Issue| (issue, issue.standing(on, findings));
        self.0.iter().map(standing).collect()
    }
}

/// The mend of an unknown key.
const KEYS: &str = "an [[issue]] has reference, note, cudnn, sm, verdict, reason, direction, candidate, notes, rank, types, compute, layout";

impl Issue {
    fn standing(&self, on: &Combination, findings: &[(&Signature, bool)]) -> Standing {
        if !self.applies(on) {
            return Standing::Elsewhere;
        }
        let mut matched = findings.iter().filter(|(s, _)| self.matches(s)).peekable();
        match (matched.peek().is_some(), matched.any(|(_, open)| *open)) {
            (false, _) => Standing::MatchesNothing,
            (true, false) => Standing::PassesNow,
            (true, true) => Standing::Marks,
        }
    }

    fn applies(&self, on: &Combination) -> bool {
        let version = self.cudnn.as_ref().is_none_or(|v| v.hold(&on.cudnn));
        version && self.sm.as_ref().is_none_or(|list| list.contains(&on.sm))
    }

    fn matches(&self, signature: &Signature) -> bool {
        let rank = self.rank.is_none_or(|rank| rank == signature.rank);
        let texts = [
            (&self.verdict, &signature.verdict),
            (&self.reason, &signature.reason),
            (&self.direction, &signature.direction),
            (&self.candidate, &signature.candidate),
            (&self.notes, &signature.notes),
            (&self.types, &signature.types),
            (&self.compute, &signature.compute),
            (&self.layout, &signature.layout),
        ];
        let fits = |(pattern, text): (&Option<String>, &String)| {
            pattern.as_ref().is_none_or(|p| glob(p, text))
        };
        rank && texts.into_iter().all(fits)
    }

    fn check(&self) -> std::result::Result<(), String> {
        let patterns = [
            &self.verdict,
            &self.reason,
            &self.direction,
            &self.candidate,
            &self.notes,
            &self.types,
            &self.compute,
            &self.layout,
        ];
        if self.rank.is_none() && patterns.into_iter().all(Option::is_none) {
            return Err("this issue would match every finding; add a pattern such as candidate = \"engine:42\"".to_owned());
        }
        let words = |list: &[&'static str]| list.to_vec();
        let closed = [
            (
                "verdict",
                &self.verdict,
                words(&["failed", "crashed", "timed_out"]),
            ),
            (
                "direction",
                &self.direction,
                Direction::ALL.map(Direction::name).to_vec(),
            ),
            (
                "layout",
                &self.layout,
                words(&[Layout::Nchw.name(), Layout::Nhwc.name()]),
            ),
            ("compute", &self.compute, words(&["fp16", "fp32", "fp64"])),
        ];
        closed
            .into_iter()
            .try_for_each(|(key, pattern, known)| match pattern {
                Some(p) if !known.iter().any(|word| glob(p, word)) => Err(format!(
                    "{key} = \"{p}\" can match nothing; known: {}",
                    known.join(", ")
                )),
                _ => Ok(()),
            })
    }
}

/// Whether `text` fits a pattern of plain characters, `*` and `?`.
fn glob(pattern: &str, text: &str) -> bool {
    let pattern: Vec<char> = pattern.chars().collect();
    let text: Vec<char> = text.chars().collect();
    let (mut p, mut t) = (0, 0);
    // Where the latest star is, and how much of the text it has taken.
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some('*') => {
                star = Some((p, t));
                p += 1;
            }
            Some(&c) if c == '?' || c == text[t] => (p, t) = (p + 1, t + 1),
            _ => match &mut star {
                Some((at, taken)) => {
                    *taken += 1;
                    (p, t) = (*at + 1, *taken);
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|&c| c == '*')
}

/// Conditions on a version, all of which must hold: `>=9.10, <9.20`. A bound
/// with fewer numbers stands for all versions that begin with it.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(try_from = "String")]
struct Versions(Vec<(Relation, Vec<u32>)>);

#[derive(Clone, Copy, Debug, PartialEq)]
enum Relation {
    Least,
    Most,
    Above,
    Below,
    Is,
}

/// Longer signs first: `>` begins `>=`.
const RELATIONS: [(&str, Relation); 5] = [
    (">=", Relation::Least),
    ("<=", Relation::Most),
    (">", Relation::Above),
    ("<", Relation::Below),
    ("=", Relation::Is),
];

impl TryFrom<String> for Versions {
    type Error = String;

    fn try_from(text: String) -> std::result::Result<Self, String> {
        let wrong = || {
            format!("'{text}' is no range of versions; write it as \">=9.10, <9.20\" or \"=9.14\"")
        };
        let condition = |part: &str| {
            let part = part.trim();
            let (sign, relation) = RELATIONS.iter().find(|(sign, _)| part.starts_with(sign))?;
            Some((*relation, numbers(part[sign.len()..].trim())?))
        };
        let conditions: Option<Vec<_>> = text.split(',').map(condition).collect();
        conditions.map(Versions).ok_or_else(wrong)
    }
}

fn numbers(text: &str) -> Option<Vec<u32>> {
    text.split('.').map(|n| n.parse().ok()).collect()
}

impl Versions {
    /// Nothing holds of a version that is not there, as on the host.
    fn hold(&self, version: &str) -> bool {
        let Some(version) = numbers(version) else {
            return false;
        };
        self.0.iter().all(|(relation, bound)| {
            let order = version[..bound.len().min(version.len())].cmp(bound);
            match relation {
                Relation::Least => order != Ordering::Less,
                Relation::Most => order != Ordering::Greater,
                Relation::Above => order == Ordering::Greater,
                Relation::Below => order == Ordering::Less,
                Relation::Is => order == Ordering::Equal,
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(text: &str) -> Result<Issues> {
        Issues::parse(text, Path::new("known_issues.toml"))
    }

    fn signature() -> Signature {
        Signature {
            verdict: "failed".to_owned(),
            reason: "mismatch".to_owned(),
            direction: "fwd".to_owned(),
            candidate: "engine:42".to_owned(),
            notes: "TENSOR_CORE+WINOGRAD".to_owned(),
            rank: 3,
            types: "fp16".to_owned(),
            compute: "fp32".to_owned(),
            layout: "nhwc".to_owned(),
        }
    }

    fn h200() -> Combination {
        Combination {
            backend: "cudnn".to_owned(),
            sm: "9.0".to_owned(),
            cudnn: "9.19.0".to_owned(),
            ..Combination::default()
        }
    }

    fn issue(body: &str) -> Issues {
        parse(&format!("[[issue]]\nreference = \"bug 1\"\n{body}")).unwrap()
    }

    #[test]
    fn mark_patterns_versions_and_gpus_decide() {
        for (body, marks) in [
            ("candidate = \"engine:42\"", true),
            ("candidate = \"engine:*\"", true),
            ("candidate = \"engine:4\"", false),
            ("candidate = \"engine:?\"", false),
            ("notes = \"*WINOGRAD*\"\nrank = 3", true),
            ("rank = 2", false),
            ("types = \"fp*\"\nlayout = \"nchw\"", false),
            ("rank = 3\ncudnn = \">=9.10, <9.20\"", true),
            ("rank = 3\ncudnn = \"=9.19\"", true),
            ("rank = 3\ncudnn = \"<=9.19\"", true),
            ("rank = 3\ncudnn = \">9.19\"", false),
            ("rank = 3\ncudnn = \"<9.9\"", false),
            ("rank = 3\nsm = [\"8.9\", \"9.0\"]", true),
            ("rank = 3\nsm = [\"7.0\"]", false),
        ] {
            let marked = issue(body).mark(&signature(), &h200()).is_some();
            assert_eq!(marked, marks, "{body}");
        }
        let host = Combination::default();
        assert!(
            issue("rank = 3\ncudnn = \">=9\"")
                .mark(&signature(), &host)
                .is_none()
        );
    }

    #[test]
    fn standings_tell_what_an_entry_is_worth() {
        let signature = signature();
        let standing =
            |body: &str, open: bool| issue(body).standings(&h200(), &[(&signature, open)])[0].1;
        assert_eq!(standing("rank = 3", true), Standing::Marks);
        assert_eq!(standing("rank = 3", false), Standing::PassesNow);
        assert_eq!(standing("rank = 1", true), Standing::MatchesNothing);
        assert_eq!(
            standing("rank = 3\nsm = [\"7.0\"]", true),
            Standing::Elsewhere
        );
    }

    #[test]
    fn parse_faults_name_line_and_mend() {
        for (text, words) in [
            (
                "[[issue]]\nreference = \"a\"\ncandidat = \"b\"",
                vec!["line 3", "candidat", "layout"],
            ),
            (
                "[[issue]]\nreference = 7\nrank = 1",
                vec!["line 2", "string"],
            ),
            ("\n[[issue]]\nrank = 1", vec!["line 2", "reference"]),
            (
                "[[issue]]\nreference = \"a\"",
                vec!["line 1", "every finding"],
            ),
            (
                "[[issue]]\nreference = \"a\"\ndirection = \"forward\"",
                vec!["line 1", "bwd_data"],
            ),
            (
                "[[issue]]\nreference = \"a\"\nrank = 2\ncudnn = \"9.1\"",
                vec!["line 4", ">=9.10"],
            ),
            ("[[issues]]\n", vec!["line 1", "issues"]),
            ("reference = ", vec!["line 1"]),
        ] {
            let error = parse(text).unwrap_err();
            assert_eq!(error.exit_code(), 2);
            let said = error.to_string();
            assert!(
                !said.contains('\n') && said.contains("known_issues.toml"),
                "{said}"
            );
            for word in words {
                assert!(said.contains(word), "{word:?} not in {said}");
            }
        }
        assert_eq!(parse("").unwrap(), Issues::default());
    }

    proptest! {
        #[test]
        fn glob_plain_text_matches_itself_alone(a in "[a-c:+]{0,6}", b in "[a-c:+]{0,6}") {
            prop_assert_eq!(glob(&a, &b), a == b);
        }

        #[test]
        fn glob_star_stands_for_any_part(a in "[a-c]{0,4}", b in "[a-c]{0,4}", c in "[a-c]{0,4}") {
            let (whole, pattern) = (format!("{a}{b}{c}"), format!("{a}*{c}"));
            prop_assert!(glob(&pattern, &whole));
            let question = format!("{a}{}{c}", "?".repeat(b.len()));
            prop_assert!(glob(&question, &whole));
            let longer = format!("{question}?");
            prop_assert!(!glob(&longer, &whole));
        }
    }
}
