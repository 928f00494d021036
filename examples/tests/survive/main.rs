//! Each example in a failover of a real cluster.

mod axum;
mod bb8;
mod common;
mod diesel;
mod metrics;
