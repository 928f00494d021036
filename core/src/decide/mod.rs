//! The decisions: state + input + now → actions. No I/O, no clock, no async; randomness is seeded and passed in.

pub mod accept;
pub mod attempt;
pub mod attribute;
pub mod classify;
pub mod names;
pub mod patience;
pub mod place;
pub mod topology;
pub mod walk;
