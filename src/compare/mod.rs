//! Results folders against each other and together: what changed between two
//! runs ([`diff`]), many runs in one matrix ([`combined`]), and the shards of one
//! campaign in one folder ([`merge`]). From the files alone; nothing is run.

pub mod combined;
pub mod diff;
pub mod difference;
pub mod engines;
pub mod errors;
pub mod faults;
pub mod merge;
pub mod origin;
pub mod run;
pub mod support;
pub mod trials;
