#![expect(
    clippy::disallowed_methods,
    clippy::print_stderr,
    reason = "tests against real servers: real time, and words for people"
)]
//! The failover cases of `tests/vectors/failover`, on real servers; bounds come from the file.

mod demotion;
mod proxy;
mod silence;
mod switchover;
mod workload;

use std::time::Duration;

use serde_json::Value;

/// Longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// One case by its id.
fn case(id: &str) -> Value {
    let all = crate::support::vectors("failover/hand.jsonl");
    all.into_iter().find(|c| c["id"] == id).unwrap_or_else(|| panic!("no case {id}"))
}

/// A bound of a case, in seconds.
fn seconds(v: &Value) -> Duration {
    Duration::from_secs_f64(v.as_f64().unwrap_or_else(|| panic!("{v} is no number of seconds")))
}
