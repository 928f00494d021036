//! Follow the PostgreSQL primary through a failover.
//!
//! A [`Connector`] is given every candidate host and watches them. [`Connector::connect_within`] waits for the host of the
//! wanted role and gives a [`Session`], which dereferences to a [`tokio_postgres::Client`]. When the host dies, freezes or
//! is superseded by another primary, blocked calls return at once, and [`Why::diagnose`] says what that means for the work:
//!
//! ```no_run
//! use pgfollow::{Class, Connector, Error};
//! use std::time::Duration;
//!
//! async fn book(connector: &Connector, order: i64) -> Result<(), Error> {
//!     let mut session = connector.connect_within(Duration::from_secs(30)).await?;
//!     let tx = session.transaction().await?;
//!     let why = tx.why();
//!     tx.execute("INSERT INTO orders (id) VALUES ($1)", &[&order]).await.map_err(|e| why.diagnose(e))?;
//!     match tx.commit().await {
//!         Err(e) if e.class() == Class::Transient => println!("not done: again, on another session ({e})"),
//!         Err(e) if e.class() == Class::UnknownOutcome => println!("perhaps done: look, don't repeat it ({e})"),
//!         done => done?, // or an error that trying again can't help
//!     }
//!     Ok(())
//! }
//! ```
//!
//! [`Connector::run`] does all of that: it repeats what certainly did not commit, and asks what became of a COMMIT whose
//! answer was lost ([`outcome`]):
//!
//! ```no_run
//! # async fn f() -> Result<(), pgfollow::Error> {
//! let connector = pgfollow::Connector::new("postgresql://app@db-a,db-b,db-c/orders?target_session_attrs=read-write")?;
//! let order = 7_i64;
//! connector
//!     .run(async |tx| {
//!         tx.execute("INSERT INTO orders (id) VALUES ($1)", &[&order]).await?;
//!         Ok(())
//!     })
//!     .await?;
//! # Ok(()) }
//! ```
//!
//! - [`Error`]: code, class, host, stage, what had left, every attempt of a connect
//! - [`Connector::run`], [`retry`], [`outcome`]: work in a transaction, repeated where that is right, settled where nobody knows
//! - [`Connector::topology`], [`Connector::events`], [`Connector::health`], [`Connector::names`]: what is known, and changes
//! - [`Connector::listener`]: notifications, from whichever host is primary
//! - [`Connector::report`]: where the time of each outage went, how long callers waited, which errors they got
//! - [`config`]: every option; [`conninfo`]: the strings; [`clock`]: what a [`Moment`] is
//! - [`decide`]: the decisions, pure and without I/O, for those who want to know or to test them
//!
//! [`tokio_postgres`] is re-exported: its types are in the signatures here.

mod alone;
mod changes;
mod connect;
mod connector;
mod guard;
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
pub mod outcome;
pub mod report;
pub mod resolve;
pub mod retry;
#[cfg(feature = "blocking")]
pub mod runtime;
pub mod sqlstate;

pub use clock::{Deadline, Moment};
pub use config::{Config, ConfigBuilder, SessionAttrs};
pub use connector::{Connector, ConnectorBuilder, Health, Target};
pub use conninfo::{Environment, Origin};
pub use decide::accept::Role;
pub use decide::classify::{Facts, Verdict, classify};
pub use decide::topology::{HostSnapshot, Snapshot, State, TermRow, TopologyEvent};
pub use error::{Attempt, Class, Code, Error, Sent, SqlState, Stage, TxStatus};
pub use event::{Event, EventKind, NamedHost};
pub use guard::Guard;
pub use host::{Address, Candidate, HostId, HostSpec};
pub use listener::{Channels, Gap, GapCause, Heard, Listener};
pub use outcome::{Outcome, Token};
pub use pool::{Pool, PoolOptions, PoolSession, PoolStats};
pub use report::Report;
pub use resolve::Resolver;
pub use retry::{RunOptions, Sessions};
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
