#![expect(
    clippy::disallowed_methods,
    clippy::print_stderr,
    reason = "tests against real servers: real time, and words for people"
)]
//! What became of transactions whose COMMIT was never answered: every hard case, on real servers.

#[path = "outcome/blocked.rs"]
mod blocked;
#[path = "outcome/cut.rs"]
mod cut;
#[path = "outcome/failover.rs"]
mod failover;
#[path = "outcome/orphan.rs"]
mod orphan;
#[path = "outcome/relay.rs"]
mod relay;
#[path = "outcome/role.rs"]
mod role;
#[path = "outcome/run.rs"]
mod run;
#[path = "outcome/scene.rs"]
mod scene;
mod support;

use std::time::Duration;

use pgfollow_lab::{wait_for, wait_for_async};

/// Longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// One failover case by its id.
fn case(id: &str) -> serde_json::Value {
    let all = support::vectors("failover/hand.jsonl");
    all.into_iter().find(|c| c["id"] == id).unwrap_or_else(|| panic!("no case {id}"))
}
