//! What outlives a run: findings and their lives from night to night, the
//! issues a user knows of, and the nightly run that brings them up to date.
//!
//! A store is a folder that belongs to one device:
//!
//! | in it | holds |
//! |---|---|
//! | `findings.csv` | one row per finding, made anew from `findings/` |
//! | `findings/<id>/` | `finding.toml`, `nights.csv`, and the repro bundle once there is one |
//! | `history.csv` | one row per night |
//! | `nights/<number>-<date>/` | results folders of the night's replays and campaigns |
//!
//! `results/README.md` documents the columns; a test compares it with the types.

pub mod config;
pub mod corpus;
pub mod history;
pub mod issues;
pub mod night;
pub mod replay;
#[cfg(test)]
mod schema;
pub mod state;
pub mod store;
mod table;

/// Version of `findings.csv`, `finding.toml`, `nights.csv` and `history.csv`;
/// grows when a column is added, renamed or changes its meaning.
pub const SCHEMA: u32 = 1;
