//! The decisions: state + input + now → actions. No I/O, no clock, no async; randomness is seeded and passed in.

pub mod accept;
pub mod attempt;
pub mod classify;
pub mod listener;
pub mod names;
pub mod pace;
pub mod patience;
pub mod place;
pub mod pool;
pub mod shed;
pub mod topology;
pub mod walk;
