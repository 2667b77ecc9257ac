//! Trigger inference.
