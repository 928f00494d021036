//! Thousands of failovers in a minute: the real library against a modelled PostgreSQL cluster, in simulated time.
//!
//! [`World`] holds servers, processes and the network between them (`world.rs` the queue of events, `net.rs` the pipes,
//! `backend.rs` and `sql.rs` a server's side of a connection, `node.rs` and `cluster.rs` servers, replication and every
//! fault). The library dials into it by [`net::SimDial`]. [`run()`] draws a run from a seed: [`script`] tells what goes
//! wrong, [`workload`] and [`service`] what the clients do, [`check`] holds what they were told against what the servers did.
//!
//! [`fleet`] lets a whole fleet fall upon one cold node, [`endless`] one process live through failover after failover,
//! [`downtime`] takes a pool's only server away for long.
//!
//! Nothing here waits for real time, and nothing is left to chance: the same seed gives the same run to the last byte,
//! which its log's checksum shows.

mod backend;
pub mod check;
mod cluster;
pub mod downtime;
pub mod endless;
pub mod fleet;
pub mod net;
mod node;
mod run;
pub mod script;
pub mod service;
mod sql;
mod wire;
pub mod workload;
mod world;

pub use check::{Bounds, Broken, Counts};
pub use run::{Drawn, MakeService, Options, PATIENCE, Report, in_simulated_time, run, sessions};
pub use script::Story;
pub use world::{Marks, Model, World};
