//! The lab's clusters, faults and scripted servers, seen from a client that knows nothing of the lab.

mod blackhole;
mod cluster;
#[path = "../common/mod.rs"]
mod common;
mod faults;
mod slow;
mod wire;
