#![expect(
    clippy::disallowed_methods,
    clippy::print_stderr,
    reason = "tests against real servers: real time, and words for people"
)]
//! Healthy work is never aborted: disturbances that look like a host's death, each with calls in flight that the server
//! carries on with. All with default settings, and (where a verdict could need it) a standby that answers all the while,
//! so that not the want of a second opinion is what keeps the calls alive.

#[path = "healthy/bench.rs"]
mod bench;
#[path = "healthy/names.rs"]
mod names;
#[path = "healthy/own_stall.rs"]
mod own_stall;
#[path = "healthy/postmaster.rs"]
mod postmaster;
#[path = "healthy/refusal.rs"]
mod refusal;
#[path = "healthy/slow.rs"]
mod slow;
