//! What a run leaves behind: a results folder, tables and matrices, all made
//! from records and never from live state.
//!
//! `results/README.md` documents every file column by column; a test compares
//! it with the types here.

pub mod bundle;
pub mod coverage;
pub mod csv_file;
pub mod environment;
pub mod folder;
pub mod journal;
pub mod lock;
pub mod matrix;
pub mod read;
#[cfg(test)]
mod schema;
pub mod summary;
pub mod table;
pub mod tally;
