//! The layer rule: each module of src/ uses only modules above it in the list
//! below, and only the cuDNN backend may be unsafe.

use std::fs;
use std::path::{Path, PathBuf};

/// Top-level modules, lowest first.
const LAYERS: [&str; 28] = [
    "error",
    "line",
    "dtype",
    "problem",
    "geometry",
    "lowering",
    "tensor",
    "fill",
    "candidate",
    "strategy",
    "oracle",
    "bound",
    "outcome",
    "judge",
    "batch_norm",
    "record",
    "backend",
    "trial",
    "attribute",
    "shrink",
    "campaign",
    "finding",
    "minimize",
    "report",
    "life",
    "compare",
    "study",
    "cli",
];

/// The only place for `unsafe` and for cudarc.
const UNSAFE_FOLDER: &str = "backend/cudnn/";

/// What is wrong with one source file, one line of text per fault; `path` is
/// relative to src/.
fn violations(path: &str, source: &str) -> Vec<String> {
    let code = without_comments(source);
    let mut found = layer_violations(path, &code);
    found.extend(unsafe_violations(path, &code));
    found
}

fn layer_violations(path: &str, code: &str) -> Vec<String> {
    let module = path.split(['/', '.']).next().unwrap_or(path);
    if matches!(module, "lib" | "main") {
        return Vec::new();
    }
    let Some(rank) = layer(module) else {
        return vec![format!("{path}: '{module}' is not in the list of layers")];
    };
    let allowed = |used: &str| used == module || layer(used).is_some_and(|r| r < rank);
    used_modules(code)
        .into_iter()
        .filter(|used| !allowed(used))
        .map(|used| format!("{path}: {module} must not use {used}"))
        .collect()
}

fn layer(module: &str) -> Option<usize> {
    LAYERS.iter().position(|&m| m == module)
}

/// Modules after every `crate::`, those in a `use crate::{a::B, c}` included.
fn used_modules(code: &str) -> Vec<String> {
    code.match_indices("crate::")
        .flat_map(|(at, found)| heads(&code[at + found.len()..]))
        .collect()
}

fn heads(rest: &str) -> Vec<String> {
    match rest.strip_prefix('{') {
        None => vec![identifier(rest)],
        Some(list) => entries(list).iter().map(|e| identifier(e.trim())).collect(),
    }
}

/// The comma-separated entries of a brace list, up to its closing brace.
fn entries(list: &str) -> Vec<&str> {
    let (mut depth, mut start, mut entries) = (0, 0, Vec::new());
    for (i, c) in list.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => {
                entries.push(&list[start..i]);
                break;
            }
            '}' => depth -= 1,
            ',' if depth == 0 => {
                entries.push(&list[start..i]);
                start = i + 1;
            }
            _ => {}
        }
    }
    entries.retain(|e| !e.trim().is_empty());
    entries
}

fn identifier(text: &str) -> String {
    text.chars()
        .take_while(|c| c.is_alphanumeric() || *c == '_')
        .collect()
}

fn unsafe_violations(path: &str, code: &str) -> Vec<String> {
    if path.starts_with(UNSAFE_FOLDER) {
        return Vec::new();
    }
    ["unsafe", "cudarc"]
        .into_iter()
        .filter(|word| has_word(code, word))
        .map(|word| format!("{path}: '{word}' outside src/{UNSAFE_FOLDER}"))
        .collect()
}

fn has_word(code: &str, word: &str) -> bool {
    code.split(|c: char| !c.is_alphanumeric() && c != '_')
        .any(|w| w == word)
}

/// The source without `//` comments and string contents, so that words in text
/// are not taken for code. Line ends stay.
fn without_comments(source: &str) -> String {
    let mut code = String::new();
    let (mut in_string, mut in_comment, mut escaped) = (false, false, false);
    let mut chars = source.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\n' => in_comment = false,
            _ if in_comment => continue,
            '\'' if !in_string && chars.peek() == Some(&'"') => {
                // The character literal '"' opens no string.
                chars.next();
                chars.next();
                continue;
            }
            '/' if !in_string && chars.peek() == Some(&'/') => in_comment = true,
            '"' if !escaped => in_string = !in_string,
            _ => {}
        }
        escaped = in_string && c == '\\' && !escaped;
        if !in_string && !in_comment {
            code.push(c);
        }
    }
    code
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("src/ is readable") {
        let path = entry.expect("src/ is readable").path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn sources_of_this_crate_keep_their_layer() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut paths = Vec::new();
    sources(&root, &mut paths);
    assert!(paths.len() > 10, "found only {} sources", paths.len());
    let mut found = Vec::new();
    for path in paths {
        let source = fs::read_to_string(&path).expect("sources are text");
        let relative = path.strip_prefix(&root).expect("below src/");
        found.extend(violations(&relative.to_string_lossy(), &source));
    }
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

#[test]
fn planted_upward_use_is_found() {
    let upward = "use crate::judge::Verdict;\n";
    let said = violations("oracle/arbiter.rs", upward);
    assert_eq!(said, ["oracle/arbiter.rs: oracle must not use judge"]);
    assert!(violations("judge.rs", "use crate::oracle::Output;").is_empty());
    assert!(violations("judge.rs", "use crate::judge::Verdict;").is_empty());
}

#[test]
fn planted_use_in_braces_and_in_code_is_found() {
    let list = "use crate::{error::{Error, Result}, report::table, cli};";
    assert_eq!(violations("shrink/mod.rs", list).len(), 2);
    let inline = "fn f() -> crate::campaign::Plan {}";
    assert_eq!(violations("trial.rs", inline).len(), 1);
    let reexport = "pub use crate::backend::Backend;";
    assert_eq!(violations("fill.rs", reexport).len(), 1);
}

#[test]
fn planted_module_outside_the_list_is_found() {
    assert_eq!(violations("helpers.rs", "").len(), 1);
    assert_eq!(violations("cli/mod.rs", "use crate::helpers::a;").len(), 1);
}

#[test]
fn planted_unsafe_and_cudarc_are_found() {
    assert_eq!(violations("tensor.rs", "unsafe { f() }").len(), 1);
    assert_eq!(violations("backend/mod.rs", "use cudarc::driver;").len(), 1);
    assert!(violations("backend/cudnn/sys.rs", "unsafe { cudarc::f() }").is_empty());
}

#[test]
fn words_in_comments_and_strings_are_no_code() {
    let source = "// unsafe crate::cli\n/// [`crate::cli`]\nlet a = \"unsafe \\\" crate::cli\";\n";
    assert!(violations("dtype.rs", source).is_empty());
    let after = "let a = '\"'; let b = \"x\"; unsafe {}";
    assert_eq!(violations("dtype.rs", after).len(), 1);
}
