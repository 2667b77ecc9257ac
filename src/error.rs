//! Faults of the harness and of what it was given. A numeric mismatch is never
//! an [`Error`]: it is a verdict.
//!
//! The error is opaque: match on [`Error::kind`], never on the text.

use std::fmt;

/// The result of anything in this crate that can go wrong.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, as far as a caller can act on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A text (repro line, file, option value) could not be parsed; the error
    /// has a position.
    Parse,
    /// A well-formed problem that no convolution can have; names the field.
    Problem,
    /// Options that do not go together, or a file that is not what it should be.
    Usage,
    /// The machine lacks what was asked for: a library, a GPU, a driver.
    Environment,
    /// Results could not be written or read: disk full, permissions, a lock.
    Output,
    /// A broken promise inside convfuzz itself: always a bug of ours.
    Internal,
}

/// One fault: a kind, a sentence that names cause and mend, and a position
/// where there is one.
pub struct Error(Box<Inner>);

struct Inner {
    kind: ErrorKind,
    message: String,
    position: Option<usize>,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    /// An error of `kind` that says `message`.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Error(Box::new(Inner {
            kind,
            message: message.into(),
            position: None,
            source: None,
        }))
    }

    /// A text that does not parse, with the byte offset (from 0) of the culprit.
    pub fn parse(position: usize, message: impl Into<String>) -> Self {
        let mut error = Self::new(ErrorKind::Parse, message);
        error.0.position = Some(position);
        error
    }

    /// An impossible problem; `field` is the name used in the repro line.
    pub fn problem(field: &str, message: impl fmt::Display) -> Self {
        Self::new(ErrorKind::Problem, format!("{field}: {message}"))
    }

    /// Options or input that cannot be used as given.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Usage, message)
    }

    /// Something the machine lacks.
    pub fn environment(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Environment, message)
    }

    /// Results that could not be written or read.
    pub fn output(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Output, message)
    }

    /// A bug of convfuzz.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Internal, message)
    }

    /// Adds the error that caused this one.
    #[must_use]
    pub fn with_source(
        mut self,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        self.0.source = Some(source.into());
        self
    }

    /// Shifts the position by `offset` bytes: for a text inside a longer one.
    #[must_use]
    pub fn offset(mut self, offset: usize) -> Self {
        self.0.position = self.0.position.map(|p| p + offset);
        self
    }

    /// Puts `context` and a colon in front of the message.
    #[must_use]
    pub fn context(mut self, context: impl fmt::Display) -> Self {
        self.0.message = format!("{context}: {}", self.0.message);
        self
    }

    /// What went wrong, as far as a caller can act on it.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Byte offset (from 0) in the parsed text, where there is one.
    pub fn position(&self) -> Option<usize> {
        self.0.position
    }

    /// The process exit code this error ends a command with: 2 for what the
    /// user gave, 3 for what the machine lacks, 70 for a bug of convfuzz.
    pub fn exit_code(&self) -> u8 {
        match self.kind() {
            ErrorKind::Parse | ErrorKind::Problem | ErrorKind::Usage => 2,
            ErrorKind::Environment | ErrorKind::Output => 3,
            ErrorKind::Internal => 70,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)?;
        if let Some(position) = self.0.position {
            write!(f, " (at column {})", position + 1)?;
        }
        if let Some(source) = &self.0.source {
            write!(f, ": {source}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {self}", self.0.kind)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_deref().map(|e| e as _)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_parse_position_counts_columns_from_one() {
        let error = Error::parse(4, "unknown key 'q'");
        assert_eq!(error.to_string(), "unknown key 'q' (at column 5)");
        assert_eq!(error.offset(10).position(), Some(14));
    }

    #[test]
    fn exit_code_kinds_are_fixed() {
        assert_eq!(Error::usage("").exit_code(), 2);
        assert_eq!(Error::problem("c", "").exit_code(), 2);
        assert_eq!(Error::environment("").exit_code(), 3);
        assert_eq!(Error::output("").exit_code(), 3);
        assert_eq!(Error::internal("").exit_code(), 70);
    }
}
