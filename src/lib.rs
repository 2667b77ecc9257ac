//! convfuzz finds wrong numbers in cuDNN convolutions.
#![warn(missing_docs)]

pub mod attribute;
pub mod backend;
pub mod batch_norm;
pub mod bound;
pub mod campaign;
pub mod candidate;
pub mod cli;
pub mod compare;
pub mod dtype;
pub mod error;
pub mod fill;
pub mod finding;
pub mod geometry;
pub mod judge;
pub mod life;
pub mod line;
pub mod lowering;
pub mod minimize;
pub mod oracle;
pub mod outcome;
pub mod problem;
pub mod record;
pub mod report;
pub mod shrink;
pub mod strategy;
pub mod study;
pub mod tensor;
pub mod trial;
