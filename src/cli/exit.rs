//! Exit codes: one table for the program, its help and its documents.

use std::process::ExitCode;

use crate::error::Error;

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Nothing failed.
    Clean,
    /// A candidate failed, crashed or hung.
    Failures,
    /// Options or input that cannot be used.
    Usage,
    /// The machine lacks something, or results cannot be written.
    Environment,
    /// Some runs of one and the same trial fail, others do not.
    Flaky,
    /// Of a nightly run: findings are open, all of them known before.
    KnownOnly,
    /// A bug of convfuzz.
    Bug,
    /// The user stopped it.
    Interrupted,
}

impl Exit {
    /// All of them, by code.
    pub const ALL: [Exit; 8] = [
        Exit::Clean,
        Exit::Failures,
        Exit::Usage,
        Exit::Environment,
        Exit::Flaky,
        Exit::KnownOnly,
        Exit::Bug,
        Exit::Interrupted,
    ];

    /// The process exit code.
    pub fn code(self) -> u8 {
        match self {
            Exit::Clean => 0,
            Exit::Failures => 1,
            Exit::Usage => 2,
            Exit::Environment => 3,
            Exit::Flaky => 4,
            Exit::KnownOnly => 5,
            // EX_SOFTWARE of sysexits.h.
            Exit::Bug => 70,
            // 128 + SIGINT, as shells report it.
            Exit::Interrupted => 130,
        }
    }

    /// What it tells a script.
    pub fn meaning(self) -> &'static str {
        match self {
            Exit::Clean => "nothing failed",
            Exit::Failures => {
                "failures found: a candidate was wrong, crashed or hung; diff: support lost or a new finding"
            }
            Exit::Usage => "bad usage or input",
            Exit::Environment => {
                "environment: no usable library or GPU, or the results cannot be written"
            }
            Exit::Flaky => "flaky: some runs of the trial failed, others did not",
            Exit::KnownOnly => "nightly: nothing new, but known findings are open",
            Exit::Bug => "a bug of convfuzz",
            Exit::Interrupted => "interrupted; what was done is written",
        }
    }
}

impl From<&Error> for Exit {
    fn from(error: &Error) -> Self {
        Exit::ALL
            .into_iter()
            .find(|exit| exit.code() == error.exit_code())
            .unwrap_or(Exit::Bug)
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        ExitCode::from(exit.code())
    }
}

/// The table at the end of `--help`.
pub fn help() -> String {
    let row = |exit: Exit| format!("  {:>3}  {}", exit.code(), exit.meaning());
    let rows: Vec<_> = Exit::ALL.into_iter().map(row).collect();
    format!("Exit codes:\n{}", rows.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn from_error_every_kind_has_its_own_code() {
        for (kind, exit) in [
            (ErrorKind::Parse, Exit::Usage),
            (ErrorKind::Problem, Exit::Usage),
            (ErrorKind::Usage, Exit::Usage),
            (ErrorKind::Environment, Exit::Environment),
            (ErrorKind::Output, Exit::Environment),
            (ErrorKind::Internal, Exit::Bug),
        ] {
            assert_eq!(Exit::from(&Error::new(kind, "")), exit);
        }
    }

    #[test]
    fn help_lists_every_code_once() {
        let help = help();
        let codes: Vec<_> = help
            .lines()
            .filter_map(|line| line.split_whitespace().next()?.parse::<u8>().ok())
            .collect();
        assert_eq!(codes, [0, 1, 2, 3, 4, 5, 70, 130]);
    }
}
