//! The text corpus: repro lines worth running every night, one a line. Blank
//! lines and lines that begin with `#` (such as `# See: <address>`) are for
//! people.

use std::path::Path;

use super::table;
use crate::candidate::Repro;
use crate::error::Result;

/// Reads a corpus; errors name the file and the line.
pub fn read(path: &Path) -> Result<Vec<Repro>> {
    parse(&table::text(path)?, path)
}

fn parse(text: &str, path: &Path) -> Result<Vec<Repro>> {
    let entries = text
        .lines()
        .map(str::trim)
        .zip(1..)
        .filter(|(line, _)| !line.is_empty() && !line.starts_with('#'));
    entries
        .map(|(line, number): (&str, usize)| {
            line.parse::<Repro>()
                .map_err(|e| e.context(format!("'{}', line {number}", path.display())))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_comments_are_left_out_and_faults_have_a_line() {
        let line = "fwd c=4 k=3 in=6x5 ker=3x3";
        let text = format!("# See: the report\n{line}\n\n  {line} via=host:direct\n");
        let path = Path::new("corpus.txt");
        let entries = parse(&text, path).unwrap();
        assert_eq!(entries.len(), 2);
        assert!(entries[0].via.is_none() && entries[1].via.is_some());
        let error = parse(&format!("{line}\nsideways"), path).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        assert!(
            error.to_string().contains("'corpus.txt', line 2"),
            "{error}"
        );
    }
}
