//! The decisions: state + input + now → actions. No I/O, no clock, no async; randomness is seeded and passed in.

pub mod accept;
pub mod attempt;
pub mod attribute;
pub mod classify;
pub mod guard;
pub mod listener;
pub mod locate;
pub mod names;
pub mod outcome;
pub mod pace;
pub mod patience;
pub mod place;
pub mod pool;
pub mod retry;
pub mod shed;
pub mod topology;
pub mod walk;
