#![expect(
    clippy::disallowed_methods,
    clippy::print_stderr,
    reason = "tests against real servers: real time, and words for people"
)]
//! Healthy work is never aborted: disturbances that look like a host's death, each with calls in flight that the server
//! carries on with. All with default settings, and (where a verdict could need it) a standby that answers all the while,
//! so that not the want of a second opinion is what keeps the calls alive.

mod bench;
mod names;
mod own_stall;
mod postmaster;
mod refusal;
mod slow;
