//! Batch normalisation: the problem, its data, its exact values, the bounds of
//! honest arithmetic, and the verdict. What runs it is a backend
//! ([`crate::backend::batch_norm`]).
//!
//! With m values x of a group (a channel, or an activation), mean μ, biased
//! variance σ² and r = 1/sqrt(σ² + ε):
//!
//! - training: y = γ·(x − μ)·r + β; the running mean becomes (1−f)·old + f·μ, the
//!   running variance (1−f)·old + f·σ²·m/(m−1); μ and r are saved;
//! - inference: the same y, of the running mean and variance;
//! - backward: dβ = Σ dy, dγ = Σ dy·x̂ with x̂ = (x − μ)·r,
//!   dx = γ·r·(dy − dβ/m − x̂·dγ/m).
//!
//! (Ioffe, Szegedy, ICML 2015; the factor m/(m−1) because cuDNN documents the
//! running variance as the *sample* variance.)

pub mod bound;
pub mod inputs;
pub mod judge;
pub mod oracle;
pub mod outcome;
pub mod problem;
pub mod strategy;

pub use bound::{Algorithm, Bounds};
pub use inputs::{Fill, FillKind, Inputs};
pub use judge::{Judgement, judge};
pub use oracle::Reference;
pub use outcome::{Observation, Outcome, Outputs};
pub use problem::{Mode, Output, Pass, Problem};
