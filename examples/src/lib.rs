//! pgfollow under other people's pools, and in a web service. Each file is an example, each has a program of the same name
//! (`cargo run -p pgfollow-examples --bin bb8 -- postgresql://…`), and each is tested in a failover of a real cluster
//! (`tests/`). For deadpool there is a ready manager: feature `deadpool` of pgfollow.

pub mod axum;
pub mod bb8;
pub mod diesel;
pub mod metrics;
