//! Real PostgreSQL clusters, faults, a scripted wire server and a small DNS server.
//!
//! Used by `pgfollow lab`, `pgfollow drill`, tests and benches; the library itself never depends on it.
//! Linux only: processes are found through `/proc`, networks are cut in a network namespace.
//!
//! ```no_run
//! # async fn f() -> Result<(), pgfollow_lab::LabError> {
//! use pgfollow_lab::{Binaries, BinaryOptions, Cluster, ClusterOptions, Prober};
//! let binaries = Binaries::find(&BinaryOptions::default(), &mut |line| eprintln!("{line}"))?;
//! let cluster = Cluster::start(ClusterOptions::new(binaries)).await?;
//! let prober = Prober::start(&cluster, 1).await?;
//! cluster.node(0).kill().await?;
//! cluster.promote(1).await?;
//! let ready_ns = prober.ready(std::time::Duration::from_secs(10)).await?;
//! # let _ = ready_ns; Ok(()) }
//! ```

mod binaries;
mod cluster;
mod control;
mod error;
pub mod netns;
mod prober;
mod process;
mod skip;
mod sys;
mod wait;

pub use binaries::{Binaries, BinaryOptions};
pub use cluster::{Cluster, ClusterOptions, Exhausted, Node, PoolMode, Pooler, Slowed, StopMode, Tls};
pub use control::Control;
pub use error::LabError;
pub use prober::Prober;
pub use skip::{servers, skipped};
pub use sys::{monotonic_ns, send_signal};
pub use wait::{wait_for, wait_for_async};

pub mod dns;
pub mod wire;
