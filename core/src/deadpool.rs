//! A manager for [deadpool-postgres](deadpool_postgres): its pool, our sessions (feature `deadpool`).
//!
//! The pool stays deadpool's own: its sizes, its time-outs, its statement cache. What changes is how it connects (to the
//! host of the wanted role, waiting through a failover) and that a connection whose host was superseded, demoted or
//! restarted, or is silent, is closed at once, so that the pool replaces it and calls on it end.
//!
//! ```no_run
//! use pgfollow::{Connector, deadpool, deadpool::deadpool_postgres::{Pool, Runtime}};
//! use std::time::Duration;
//!
//! # async fn f() -> Result<(), Box<dyn std::error::Error>> {
//! let connector = Connector::new("postgresql://app@db-a,db-b/orders?target_session_attrs=read-write")?;
//! let pool = Pool::builder(deadpool::manager(&connector))
//!     .max_size(10)
//!     .runtime(Runtime::Tokio1)
//!     .wait_timeout(Some(Duration::from_secs(5)))
//!     .build()?;
//! let client = pool.get().await?;
//! client.execute("UPDATE stock SET n = n - 1 WHERE id = $1", &[&7_i32]).await?;
//! # Ok(()) }
//! ```
//!
//! Its errors are tokio-postgres's; where one carries an error of pgfollow (no host could be had), [`Error::find`] gives
//! it.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

pub use deadpool_postgres;
use deadpool_postgres::{Manager, ManagerConfig, RecyclingMethod};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::JoinHandle;
use tokio_postgres::{Client, Config, NoTls};

use crate::connector::Connector;
use crate::error::Error;
use crate::net::BoxFuture;

/// A manager whose connections follow the primary. It waits for a host as long as `pool_acquire_timeout` says. A
/// connection is tested by its closed flag alone: what is dead is closed.
pub fn manager(connector: &Connector) -> Manager {
    let config = ManagerConfig { recycling_method: RecyclingMethod::Fast };
    // The address and everything else come from the connector's own configuration.
    Manager::from_connect(Config::new(), Connect::new(connector), config)
}

/// How deadpool connects through a connector; for a [`Manager`] with settings of one's own.
#[derive(Clone)]
pub struct Connect {
    connector: Connector,
    patience: Duration,
}

impl Connect {
    /// Through this connector, waiting for a host as long as `pool_acquire_timeout` says.
    pub fn new(connector: &Connector) -> Self {
        Self { connector: connector.clone(), patience: connector.config().pool_acquire_timeout }
    }

    /// Waits so long for a host instead. deadpool's own `create_timeout` may end it before.
    #[must_use]
    pub fn patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }
}

impl deadpool_postgres::Connect for Connect {
    fn connect(&self, _: &Config) -> BoxFuture<'_, Result<(Client, JoinHandle<()>), tokio_postgres::Error>> {
        Box::pin(async move {
            match self.connector.connect_within(self.patience).await {
                Ok(session) => {
                    let (client, ending) = session.into_parts();
                    let connector = self.connector.clone();
                    // deadpool looks whether a connection is closed and at nothing else. It aborts this task when the
                    // client goes.
                    let tended = async move { _ = ending.tend(&connector).await };
                    Ok((client, tokio::spawn(tended)))
                }
                Err(e) => Err(disguised(e).await),
            }
        })
    }
}

/// Our error as the one that deadpool wants. Only tokio-postgres makes its errors, so it is made to fail: over a stream
/// that gives ours.
async fn disguised(e: Error) -> tokio_postgres::Error {
    let mut config = Config::new();
    config.user("nobody");
    match config.connect_raw(Failing(Some(e)), NoTls).await {
        Err(e) => e,
        // A stream that gives nothing can't have logged in.
        Ok(_) => unreachable!("a login over a stream that fails"),
    }
}

/// Takes everything and gives an error.
struct Failing(Option<Error>);

impl AsyncRead for Failing {
    fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let e = self.0.take().map_or_else(|| io::ErrorKind::BrokenPipe.into(), io::Error::other);
        Poll::Ready(Err(e))
    }
}

impl AsyncWrite for Failing {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(buf.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{Class, Code};

    #[tokio::test]
    async fn an_error_of_ours_comes_through_deadpools_hands_unchanged() {
        let ours = Error::new(Code::NoHostFits, Class::Transient, "no host")
            .with_retry_after(Duration::from_secs(1));
        let theirs = disguised(ours).await;
        let outer: Box<dyn std::error::Error> = Box::new(deadpool_postgres::PoolError::Backend(theirs));
        let found = Error::find(&*outer).expect("it is in there");
        assert_eq!((found.code(), found.class()), (Code::NoHostFits, Class::Transient));
        assert_eq!(found.retry_after(), Some(Duration::from_secs(1)));
        // And by a bare `?`.
        let again = Error::from(disguised(Error::new(Code::NoSuchName, Class::Permanent, "who?")).await);
        assert_eq!((again.code(), again.class()), (Code::NoSuchName, Class::Permanent));
    }
}
