//! Work in a transaction on a pool's sessions; what that means is [`crate::retry`]'s.

use super::{Pool, PoolSession};
use crate::clock::{self, Deadline};
use crate::connect::Limit;
use crate::connector::Connector;
use crate::error::Error;
use crate::retry::{RunOptions, Sessions, run_once, run_with};
use crate::session::Transaction;

impl Sessions for Pool {
    type Lent = PoolSession;

    /// Of the pool's one role, whatever the work does.
    async fn acquire(&self, _writes: bool, deadline: Deadline) -> Result<PoolSession, Error> {
        match deadline.left(clock::now()) {
            Some(left) => self.acquire_until(Limit::of_run(left)).await,
            None => Self::acquire(self).await,
        }
    }

    fn connector(&self) -> &Connector {
        &self.shared.connector
    }
}

impl Pool {
    /// [`Connector::run`] on sessions of the pool.
    ///
    /// ```no_run
    /// # async fn f(id: i64) -> Result<(), pgfollow::Error> {
    /// let pool = pgfollow::Pool::connect("postgresql://app@db-a,db-b,db-c/orders")?;
    /// pool.run(async |tx| {
    ///     tx.execute("INSERT INTO orders (id) VALUES ($1)", &[&id]).await?;
    ///     Ok(())
    /// })
    /// .await
    /// # }
    /// ```
    ///
    /// # Errors
    /// The last attempt's: a permanent one at once, a transient one once attempts, deadline or budget are used up, one of
    /// class unknown where the check couldn't settle it ([`Error::token`] asks later).
    pub async fn run<T, F>(&self, work: F) -> Result<T, Error>
    where
        F: Clone + AsyncFnOnce(&mut Transaction<'_>) -> Result<T, Error>,
    {
        run_with(self, &RunOptions::new(), work).await
    }

    /// [`Connector::run_with`] on sessions of the pool.
    ///
    /// # Errors
    /// The last attempt's, as of [`Self::run`].
    pub async fn run_with<T, F>(&self, options: &RunOptions, work: F) -> Result<T, Error>
    where
        F: Clone + AsyncFnOnce(&mut Transaction<'_>) -> Result<T, Error>,
    {
        run_with(self, options, work).await
    }

    /// [`Connector::run_once`] on a session of the pool.
    ///
    /// # Errors
    /// The attempt's; of class unknown only where the check couldn't settle it.
    pub async fn run_once<T, F>(&self, options: &RunOptions, work: F) -> Result<T, Error>
    where
        F: AsyncFnOnce(&mut Transaction<'_>) -> Result<T, Error>,
    {
        run_once(self, options, work).await
    }
}
