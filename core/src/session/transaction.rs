//! A transaction whose commit looks at the tag.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::{IsolationLevel, Statement};

use super::statements::Statements;
use super::why::Why;
use crate::decide::classify::Signal;
use crate::error::{Class, Code, Error};

/// A transaction; dereferences to tokio-postgres's. Dropped without a commit it rolls back.
pub struct Transaction<'a> {
    inner: tokio_postgres::Transaction<'a>,
    why: Why,
    statements: Arc<Statements>,
}

impl<'a> Transaction<'a> {
    /// Commits. A COMMIT that the server answers with ROLLBACK (an earlier statement had failed) is an error: nothing of
    /// the transaction was kept. tokio-postgres alone would return Ok.
    ///
    /// # Errors
    /// [`Code::RolledBack`] in that case, with the class of the error that failed the block, else transient. A lost
    /// connection is an unknown outcome.
    pub async fn commit(self) -> Result<(), Error> {
        let Self { inner, why, .. } = self;
        inner.commit().await.map_err(|e| why.diagnose(e))?;
        committed(&why)
    }

    /// Commits within a time. `last_act` goes along with COMMIT in one request, so that it costs no round trip and nothing
    /// can come between.
    pub(crate) async fn commit_within(
        self,
        last_act: Option<&str>,
        limit: Duration,
    ) -> Result<(), CommitFailed> {
        let Self { inner, why, .. } = self;
        let Some(act) = last_act else {
            let committed_at_all = why.bounded(limit, inner.commit()).await;
            return committed_at_all.and_then(|()| committed(&why)).map_err(CommitFailed::at_commit);
        };
        let text = format!("{act}; COMMIT");
        if let Err(error) = why.bounded(limit, inner.batch_execute(&text)).await {
            // Looked at before the driver's transaction, dropped here, sends its ROLLBACK.
            let before = ["", "SET"].contains(&why.member().tap.tag().as_str());
            // One that ends the session may have come instead of an answer.
            let refused = error.code() == Code::Server && before && why.member().tap.fatal().is_none();
            return Err(match error.sqlstate() {
                // An earlier statement had failed; with COMMIT alone the server would say so by its tag.
                Some(s) if s.as_str() == "25P02" => CommitFailed::at_commit(rolled_back(&why)),
                _ => CommitFailed { error, last_act_refused: refused },
            });
        }
        // It is over. The driver's transaction doesn't know, and would send a ROLLBACK; forgetting it leaks nothing, for
        // it is a reference and has no savepoint's name.
        std::mem::forget(inner);
        committed(&why).map_err(CommitFailed::at_commit)
    }

    /// Rolls back.
    ///
    /// # Errors
    /// The loss of the connection, explained.
    pub async fn rollback(self) -> Result<(), Error> {
        let Self { inner, why, .. } = self;
        inner.rollback().await.map_err(|e| why.diagnose(e))
    }

    /// As [`crate::Session::prepare_cached`], with its session's cache. A statement outlives the block.
    ///
    /// # Errors
    /// What the server says to the text, or the loss of the connection: transient, for nothing was executed.
    pub async fn prepare_cached(&self, sql: &str) -> Result<Statement, Error> {
        self.statements.get_or(sql, &self.why, || self.inner.prepare(sql)).await
    }

    /// Explains the errors of this transaction's calls.
    pub fn why(&self) -> Why {
        self.why.clone()
    }
}

/// Why a transaction with a last act didn't commit.
pub(crate) struct CommitFailed {
    pub(crate) error: Error,
    /// The server refused the last act, so nothing was committed; the transaction itself may have been in order.
    pub(crate) last_act_refused: bool,
}

impl CommitFailed {
    fn at_commit(error: Error) -> Self {
        Self { error, last_act_refused: false }
    }
}

/// Whether what was answered without an error is committed.
fn committed(why: &Why) -> Result<(), Error> {
    let tap = &why.member().tap;
    if tap.tag() == "ROLLBACK" {
        return Err(rolled_back(why));
    }
    why.confirmed()
}

fn rolled_back(why: &Why) -> Error {
    let member = why.member();
    let failed_by = member.tap.block_error();
    let class = why.class(Signal::RolledBack { cause: failed_by });
    let e = Error::new(
        Code::RolledBack,
        class,
        "the transaction was rolled back at COMMIT, because one of its statements had failed",
    )
    .on_host(member.candidate.to_string());
    why.told(match failed_by {
        Some(s) => e.with_sqlstate(s),
        None => e,
    })
}

impl<'a> Deref for Transaction<'a> {
    type Target = tokio_postgres::Transaction<'a>;
    fn deref(&self) -> &Self::Target {
        &self.inner
    }
}

impl DerefMut for Transaction<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.inner
    }
}

/// The settings of a transaction to be.
pub struct TransactionBuilder<'a> {
    why: Why,
    statements: Arc<Statements>,
    inner: tokio_postgres::TransactionBuilder<'a>,
}

impl<'a> TransactionBuilder<'a> {
    pub(super) fn new(
        why: Why,
        statements: Arc<Statements>,
        inner: tokio_postgres::TransactionBuilder<'a>,
    ) -> Self {
        Self { why, statements, inner }
    }

    /// The isolation level.
    #[must_use]
    pub fn isolation_level(mut self, level: IsolationLevel) -> Self {
        self.inner = self.inner.isolation_level(level);
        self
    }

    /// READ ONLY or READ WRITE. READ ONLY is also a declaration, for this block alone: its host may be left at once.
    #[must_use]
    pub fn read_only(mut self, yes: bool) -> Self {
        self.inner = self.inner.read_only(yes);
        self
    }

    /// DEFERRABLE or not.
    #[must_use]
    pub fn deferrable(mut self, yes: bool) -> Self {
        self.inner = self.inner.deferrable(yes);
        self
    }

    /// Begins it.
    ///
    /// # Errors
    /// What the server says to BEGIN, or the loss of the connection: transient, for a BEGIN does nothing.
    pub async fn start(self) -> Result<Transaction<'a>, Error> {
        let Self { why, statements, inner } = self;
        if let Some(over) = why.over() {
            return Err(over);
        }
        match inner.start().await {
            Ok(inner) => Ok(Transaction { inner, why, statements }),
            Err(e) => {
                let e = why.explain(e);
                let unsure = e.class() == Class::UnknownOutcome;
                Err(why.told(if unsure { e.with_class(Class::Transient) } else { e }))
            }
        }
    }
}
