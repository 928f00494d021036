//! The commands as a person or a script sees them.

mod bad_input;
mod classify;
mod config;
mod drill_and_probe;
mod drill_yours;
mod lab_command;
mod outcome_command;
mod report;
