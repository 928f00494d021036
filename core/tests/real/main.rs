//! Against real PostgreSQL servers, clusters of them and real faults. One program, so that tests that wait for different
//! things wait side by side; a name picks one file's: `cargo test -p pgfollow --test real listener::`.

mod between;
mod bulk_load;
#[cfg(feature = "deadpool")]
mod deadpool;
mod errors;
mod failover;
mod failover_cases;
mod front;
mod guard;
mod healthy;
mod listener;
mod moving_name;
mod outcome;
mod pool;
mod pool_hazards;
mod pool_silence;
mod report;
mod run_hazards;
mod run_role;
mod runtimes;
mod standby;
mod statements;
#[path = "../support/mod.rs"]
mod support;
