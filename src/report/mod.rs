//! What people and programs read: made from records only, never from live state.

pub mod bundle;
