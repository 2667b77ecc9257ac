//! What the user sees: results on stdout, everything else on stderr.

use std::io::{self, IsTerminal, Write};

use clap::{ColorChoice, ValueEnum};
use serde::Serialize;

use crate::error::{Error, Result};
use crate::report::table::Table;

/// When to use colours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum When {
    /// On a terminal, unless NO_COLOR is set.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

impl From<When> for ColorChoice {
    fn from(when: When) -> Self {
        match when {
            When::Auto => ColorChoice::Auto,
            When::Always => ColorChoice::Always,
            When::Never => ColorChoice::Never,
        }
    }
}

/// Manners of this run's output.
#[derive(Clone, Copy, Debug)]
pub struct Terminal {
    color: bool,
    quiet: bool,
    /// Whether a moving progress bar is welcome.
    pub progress: bool,
}

impl Terminal {
    /// `verbose` log lines and a progress bar would overwrite each other.
    pub fn new(color: When, quiet: bool, verbose: bool) -> Self {
        let plain = std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty());
        Terminal {
            color: match color {
                When::Auto => io::stdout().is_terminal() && !plain,
                When::Always => true,
                When::Never => false,
            },
            quiet,
            progress: !quiet && !verbose && io::stderr().is_terminal(),
        }
    }

    /// Prints a result. A reader that went away (`| head`) is no error.
    pub fn print(&self, text: &str) -> Result<()> {
        let mut stdout = io::stdout().lock();
        let written = writeln!(stdout, "{text}").and_then(|()| stdout.flush());
        match written {
            Err(e) if e.kind() != io::ErrorKind::BrokenPipe => {
                Err(Error::output(format!("cannot write to stdout: {e}")))
            }
            _ => Ok(()),
        }
    }

    /// Prints a table.
    pub fn table(&self, table: &Table) -> Result<()> {
        self.print(&self.draw(table))
    }

    /// A table as it would be printed.
    pub fn draw(&self, table: &Table) -> String {
        table.render(self.color)
    }

    /// Prints one JSON document.
    pub fn json(&self, value: &impl Serialize) -> Result<()> {
        let text = serde_json::to_string_pretty(value)
            .map_err(|e| Error::internal("a result does not fit JSON").with_source(e))?;
        self.print(&text)
    }

    /// Tells something that is no result, unless the user wants quiet.
    pub fn note(&self, text: &str) {
        if !self.quiet {
            // Nobody to tell is no reason to stop.
            let _ = writeln!(io::stderr(), "{text}");
        }
    }

    /// Tells of an error.
    pub fn error(&self, error: &Error) {
        let _ = writeln!(io::stderr(), "error: {error}");
    }
}
