//! C statuses in one place: names, what they mean for a trial, and the
//! [`Failure`] of a call.
//!
//! Statuses cross the boundary as `i32`: the bindings' enums would be undefined
//! behaviour for a value they do not know, and every new cuDNN adds some.

use std::borrow::Cow;
use std::fmt;

use crate::error::{Error, ErrorKind};
use crate::outcome::Outcome;

/// Success, of cuDNN and of the CUDA driver alike.
pub const SUCCESS: i32 = 0;

/// What a status means for the trial it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// The library declines.
    NotSupported,
    /// The call is not one the library documents as valid.
    BadParam,
    /// Device or host memory ran out.
    OutOfMemory,
    /// Anything else: never a skip.
    Failed,
}

/// cuDNN's statuses; 1 to 14 are of cuDNN 8, from 1001 of cuDNN 9. The numbers
/// do not overlap.
const NAMES: &[(i32, &str)] = &[
    (0, "SUCCESS"),
    (1, "NOT_INITIALIZED"),
    (2, "ALLOC_FAILED"),
    (3, "BAD_PARAM"),
    (4, "INTERNAL_ERROR"),
    (5, "INVALID_VALUE"),
    (6, "ARCH_MISMATCH"),
    (7, "MAPPING_ERROR"),
    (8, "EXECUTION_FAILED"),
    (9, "NOT_SUPPORTED"),
    (10, "LICENSE_ERROR"),
    (11, "RUNTIME_PREREQUISITE_MISSING"),
    (12, "RUNTIME_IN_PROGRESS"),
    (13, "RUNTIME_FP_OVERFLOW"),
    (14, "VERSION_MISMATCH"),
    (1001, "NOT_INITIALIZED"),
    (1002, "SUBLIBRARY_VERSION_MISMATCH"),
    (1003, "SERIALIZATION_VERSION_MISMATCH"),
    (1004, "DEPRECATED"),
    (1005, "LICENSE_ERROR"),
    (1006, "RUNTIME_IN_PROGRESS"),
    (1007, "RUNTIME_FP_OVERFLOW"),
    (1008, "SUBLIBRARY_LOADING_FAILED"),
    (2000, "BAD_PARAM"),
    (2001, "INVALID_VALUE"),
    (2002, "BAD_PARAM_NULL_POINTER"),
    (2003, "BAD_PARAM_MISALIGNED_POINTER"),
    (2004, "BAD_PARAM_NOT_FINALIZED"),
    (2005, "BAD_PARAM_OUT_OF_BOUND"),
    (2006, "BAD_PARAM_SIZE_INSUFFICIENT"),
    (2007, "BAD_PARAM_STREAM_MISMATCH"),
    (2008, "BAD_PARAM_SHAPE_MISMATCH"),
    (2009, "BAD_PARAM_DUPLICATED_ENTRIES"),
    (2010, "BAD_PARAM_ATTRIBUTE_TYPE"),
    (2011, "BAD_PARAM_CUDA_GRAPH_MISMATCH"),
    (2012, "BAD_PARAM_DESCRIPTOR_TYPE"),
    (3000, "NOT_SUPPORTED"),
    (3001, "NOT_SUPPORTED_GRAPH_PATTERN"),
    (3002, "NOT_SUPPORTED_SHAPE"),
    (3003, "NOT_SUPPORTED_DATA_TYPE"),
    (3004, "NOT_SUPPORTED_LAYOUT"),
    (3005, "NOT_SUPPORTED_INCOMPATIBLE_CUDA_DRIVER"),
    (3006, "NOT_SUPPORTED_INCOMPATIBLE_CUDART"),
    (3007, "NOT_SUPPORTED_ARCH_MISMATCH"),
    (3008, "NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING"),
    (3009, "NOT_SUPPORTED_SUBLIBRARY_UNAVAILABLE"),
    (3010, "NOT_SUPPORTED_SHARED_MEMORY_INSUFFICIENT"),
    (3011, "NOT_SUPPORTED_PADDING"),
    (3012, "NOT_SUPPORTED_BAD_LAUNCH_PARAM"),
    (3013, "NOT_SUPPORTED_CUDA_GRAPH_NATIVE_API"),
    (3014, "NOT_SUPPORTED_INVALID_DYNAMIC_SHAPE"),
    (4000, "INTERNAL_ERROR"),
    (4001, "INTERNAL_ERROR_COMPILATION_FAILED"),
    (4002, "INTERNAL_ERROR_UNEXPECTED_VALUE"),
    (4003, "INTERNAL_ERROR_HOST_ALLOCATION_FAILED"),
    (4004, "INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
    (4005, "INTERNAL_ERROR_BAD_LAUNCH_PARAM"),
    (4006, "INTERNAL_ERROR_TEXTURE_CREATION_FAILED"),
    (5000, "EXECUTION_FAILED"),
    (5001, "EXECUTION_FAILED_CUDA_DRIVER"),
    (5002, "EXECUTION_FAILED_CUBLAS"),
    (5003, "EXECUTION_FAILED_CUDART"),
    (5004, "EXECUTION_FAILED_CURAND"),
];

/// The name of a cuDNN status; the number where the name is not known.
pub fn name(status: i32) -> Cow<'static, str> {
    match NAMES.iter().find(|(number, _)| *number == status) {
        Some((_, name)) => (*name).into(),
        None => format!("status {status}").into(),
    }
}

/// What a cuDNN status means. Statuses of cuDNN 9 come in families of a
/// thousand, so new ones are understood by their family.
pub fn meaning(status: i32) -> Meaning {
    match status {
        2 | 4003 | 4004 => Meaning::OutOfMemory,
        6 | 9 | 11 | 3000..=3999 => Meaning::NotSupported,
        3 | 5 | 2000..=2999 => Meaning::BadParam,
        _ => Meaning::Failed,
    }
}

/// A call into cuDNN or the CUDA driver that did not succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The function.
    pub call: &'static str,
    /// The status, by name.
    pub status: String,
    /// What it means for a trial.
    pub meaning: Meaning,
    /// The library's own words; may be empty.
    pub message: String,
}

impl Failure {
    /// A cuDNN call that returned `status`.
    pub fn cudnn(call: &'static str, status: i32, message: String) -> Self {
        Failure {
            call,
            status: name(status).into_owned(),
            meaning: meaning(status),
            message,
        }
    }

    /// The outcome of a trial that ends here. `BAD_PARAM` counts as a refusal
    /// only while the library is still being asked (`asking`); once it has
    /// accepted the candidate, it is a failure.
    pub fn into_outcome(self, asking: bool) -> Outcome {
        match self.meaning {
            Meaning::NotSupported => Outcome::NotSupported(self.to_string()),
            Meaning::BadParam if asking => Outcome::NotSupported(self.to_string()),
            Meaning::OutOfMemory => Outcome::OutOfMemory(self.to_string()),
            _ => Outcome::ExecutionFailed {
                message: self.detail(),
                status: self.status,
            },
        }
    }

    fn detail(&self) -> String {
        match self.message.as_str() {
            "" => self.call.to_owned(),
            message => format!("{}: {message}", self.call),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} answered {}", self.call, self.status)?;
        if !self.message.is_empty() {
            write!(f, ": {}", self.message)?;
        }
        Ok(())
    }
}

impl From<Failure> for Error {
    /// For calls that set the machine up: the machine is at fault, not a trial.
    fn from(failure: Failure) -> Self {
        Error::new(ErrorKind::Environment, failure.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meaning_unknown_statuses_follow_their_family() {
        assert_eq!(meaning(3999), Meaning::NotSupported);
        assert_eq!(meaning(2999), Meaning::BadParam);
        assert_eq!(meaning(4999), Meaning::Failed);
        assert_eq!(meaning(5999), Meaning::Failed);
        assert_eq!(meaning(-1), Meaning::Failed);
        assert_eq!(name(3999), "status 3999");
    }

    #[test]
    fn meaning_cudnn_8_and_9_agree() {
        for (number, text) in NAMES {
            let twins = NAMES.iter().filter(|(_, t)| t == text);
            for (twin, _) in twins {
                assert_eq!(meaning(*number), meaning(*twin), "{text}");
            }
        }
    }

    #[test]
    fn into_outcome_execution_failures_are_never_skips() {
        for status in [4, 8, 1001, 4000, 5000, 5001, 7777] {
            let outcome = Failure::cudnn("f", status, String::new()).into_outcome(true);
            assert!(
                matches!(outcome, Outcome::ExecutionFailed { .. }),
                "{status}"
            );
        }
        let bad = Failure::cudnn("f", 2000, "words".into());
        assert!(matches!(
            bad.clone().into_outcome(true),
            Outcome::NotSupported(_)
        ));
        assert!(matches!(
            bad.into_outcome(false),
            Outcome::ExecutionFailed { .. }
        ));
    }
}
