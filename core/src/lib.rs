//! Follow the PostgreSQL primary through a failover.
//!
//! Read the files in the order of a connection's life: [`config`], [`conninfo`], [`host`], …

pub mod clock;
pub mod config;
pub mod conninfo;
pub mod decide;
pub mod error;
pub mod failure;
pub mod host;
pub mod net;

pub use clock::{Deadline, Moment};
pub use config::{Config, ConfigBuilder, SessionAttrs};
pub use conninfo::{Environment, Origin};
pub use error::{Attempt, Class, Code, Error, Sent, SqlState, Stage, TxStatus};
pub use host::{Address, Candidate, HostId, HostSpec};
