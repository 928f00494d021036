//! The pure decisions and the parsers: no server, no socket, no clock. Mostly the shared vectors of `tests/vectors/`.

mod attempt_race;
mod attempt_vectors;
mod attempt_world;
mod attribute_vectors;
mod classify_vectors;
mod conninfo_oracle;
mod conninfo_vectors;
mod options_doc;
mod outcome_vectors;
mod pool_vectors;
#[path = "../support/mod.rs"]
mod support;
mod topology_properties;
mod topology_vectors;
