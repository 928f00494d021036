#![expect(
    clippy::disallowed_methods,
    clippy::print_stderr,
    reason = "tests against real servers: real time, and words for people"
)]
//! What became of transactions whose COMMIT was never answered: every hard case, on real servers.

mod blocked;
mod cut;
mod failover;
mod orphan;
pub(crate) mod relay;
mod role;
mod run;
pub(crate) mod scene;

use std::time::Duration;

use pgfollow_lab::{wait_for, wait_for_async};

/// Longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// One failover case by its id.
fn case(id: &str) -> serde_json::Value {
    let all = crate::support::vectors("failover/hand.jsonl");
    all.into_iter().find(|c| c["id"] == id).unwrap_or_else(|| panic!("no case {id}"))
}
