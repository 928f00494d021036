//! Each example in a failover of a real cluster.

mod axum;
mod bb8;
#[path = "../common/mod.rs"]
mod common;
mod diesel;
