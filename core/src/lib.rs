//! Follow the PostgreSQL primary through a failover.
//!
//! A [`Connector`] is given every candidate host and watches them. [`Connector::connect_within`] waits for the host of the
//! wanted role and gives a [`Session`], which dereferences to a [`tokio_postgres::Client`]. When the host dies, freezes or
//! is superseded by another primary, blocked calls return at once, and [`Why::diagnose`] says what that means for the work:
//!
//! ```no_run
//! use pgfollow::{Class, Connector, Error, tokio_postgres};
//! use std::time::Duration;
//!
//! async fn book(connector: &Connector, order: i64) -> Result<(), Error> {
//!     loop {
//!         let mut session = connector.connect_within(Duration::from_secs(30)).await?;
//!         let done: Result<(), Error> = async {
//!             let tx = session.transaction().await?;
//!             let why = tx.why();
//!             tx.execute("INSERT INTO orders (id) VALUES ($1)", &[&order]).await.map_err(|e| why.diagnose(e))?;
//!             tx.commit().await
//!         }
//!         .await;
//!         match done {
//!             Ok(()) => return Ok(()),
//!             // Certainly not done: again, after a moment, on another session.
//!             Err(e) if e.class() == Class::Transient => tokio::time::sleep(Duration::from_millis(100)).await,
//!             // It may have been done: look, and never just repeat it.
//!             Err(e) if e.class() == Class::UnknownOutcome => {
//!                 let session = connector.connect_within(Duration::from_secs(30)).await?;
//!                 let why = session.why();
//!                 let found = session.query_opt("SELECT 1 FROM orders WHERE id = $1", &[&order]).await;
//!                 if found.map_err(|e| why.diagnose(e))?.is_some() {
//!                     return Ok(());
//!                 }
//!             }
//!             // Trying again is useless.
//!             Err(e) => return Err(e),
//!         }
//!     }
//! }
//! # async fn f() -> Result<(), Error> {
//! let connector = Connector::new("postgresql://app@db-a,db-b,db-c/orders?target_session_attrs=read-write")?;
//! book(&connector, 7).await
//! # }
//! ```
//!
//! (That look is right only where the old primary can't commit the order any more: it answers on the primary of the
//! highest term, behind synchronous replication. The outcome check that needs no such care is not there yet.)
//!
//! - [`Error`]: code, class, host, stage, what had left, every attempt of a connect
//! - [`Connector::topology`], [`Connector::events`], [`Connector::health`], [`Connector::names`]: what is known, and changes
//! - [`Connector::listener`]: notifications, from whichever host is primary
//! - [`config`]: every option; [`conninfo`]: the strings; [`clock`]: what a [`Moment`] is
//! - [`decide`]: the decisions, pure and without I/O, for those who want to know or to test them
//!
//! [`tokio_postgres`] is re-exported: its types are in the signatures here.

mod connect;
mod connector;
mod handshake;
mod listener;
mod lookup;
mod monitor;
mod open;
mod pace;
mod pool;
mod role;
mod session;
mod spare;
mod tap;
mod tls;

pub mod clock;
pub mod config;
pub mod conninfo;
#[cfg(feature = "deadpool")]
pub mod deadpool;
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
pub use decide::topology::{HostSnapshot, Snapshot, State, TermRow, TopologyEvent};
pub use error::{Attempt, Class, Code, Error, Sent, SqlState, Stage, TxStatus};
pub use event::{Event, EventKind};
pub use host::{Address, Candidate, HostId, HostSpec};
pub use listener::{Channels, Gap, GapCause, Heard, Listener};
pub use pool::{Pool, PoolOptions, PoolSession, PoolStats};
pub use resolve::Resolver;
pub use session::{EndCause, Ending, Message, Session, Transaction, TransactionBuilder, Why};
pub use tokio_postgres;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex whose data every holder leaves whole, so that another thread's panic is no reason to stop.
fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The README's code must compile.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
