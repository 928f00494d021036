//! Follow the PostgreSQL primary through a failover.
//!
//! Read the files in the order of a connection's life: [`config`], [`conninfo`], [`host`], …

mod connect;
mod connector;
mod handshake;
mod lookup;
mod monitor;
mod open;
mod role;
mod session;
mod spare;
mod tap;
mod tls;

pub mod clock;
pub mod config;
pub mod conninfo;
pub mod decide;
pub mod dial;
pub mod error;
pub mod event;
pub mod failure;
pub mod host;
pub mod net;
pub mod resolve;
pub mod sqlstate;

pub use clock::{Deadline, Moment};
pub use config::{Config, ConfigBuilder, SessionAttrs};
pub use connector::{Connector, ConnectorBuilder, Health};
pub use conninfo::{Environment, Origin};
pub use decide::accept::Role;
pub use decide::classify::{Facts, Verdict, classify};
pub use decide::topology::{Snapshot, TermRow};
pub use error::{Attempt, Class, Code, Error, Sent, SqlState, Stage, TxStatus};
pub use event::{Event, EventKind};
pub use host::{Address, Candidate, HostId, HostSpec};
pub use resolve::Resolver;
pub use session::{EndCause, Message, Session, Transaction, TransactionBuilder, Why};

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex whose data every holder leaves whole, so that another thread's panic is no reason to stop.
fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}
