//! A transaction whose commit looks at the tag.

use std::ops::{Deref, DerefMut};

use tokio_postgres::IsolationLevel;

use super::why::Why;
use crate::decide::classify::Signal;
use crate::error::{Class, Code, Error};

/// A transaction; dereferences to tokio-postgres's. Dropped without a commit it rolls back.
pub struct Transaction<'a> {
    inner: tokio_postgres::Transaction<'a>,
    why: Why,
}

impl<'a> Transaction<'a> {
    /// Commits. A COMMIT that the server answers with ROLLBACK (an earlier statement had failed) is an error: nothing of
    /// the transaction was kept. tokio-postgres alone would return Ok.
    ///
    /// # Errors
    /// [`Code::RolledBack`] in that case, with the class of the error that failed the block, else transient. A lost
    /// connection is an unknown outcome.
    pub async fn commit(self) -> Result<(), Error> {
        let Self { inner, why } = self;
        inner.commit().await.map_err(|e| why.diagnose(e))?;
        let member = why.member();
        if member.tap.tag() == "ROLLBACK" {
            let failed_by = member.tap.block_error();
            let class = why.class(Signal::RolledBack { cause: failed_by });
            let mut e = Error::new(
                Code::RolledBack,
                class,
                "the transaction was rolled back at COMMIT, because one of its statements had failed",
            )
            .on_host(member.candidate.to_string());
            if let Some(s) = failed_by {
                e = e.with_sqlstate(s);
            }
            return Err(why.told(e));
        }
        if member.tap.local_commit_only() {
            return Err(why.local_only());
        }
        Ok(())
    }

    /// Rolls back.
    ///
    /// # Errors
    /// The loss of the connection, explained.
    pub async fn rollback(self) -> Result<(), Error> {
        let Self { inner, why } = self;
        inner.rollback().await.map_err(|e| why.diagnose(e))
    }

    /// Explains the errors of this transaction's calls.
    pub fn why(&self) -> Why {
        self.why.clone()
    }
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
    inner: tokio_postgres::TransactionBuilder<'a>,
}

impl<'a> TransactionBuilder<'a> {
    pub(super) fn new(why: Why, inner: tokio_postgres::TransactionBuilder<'a>) -> Self {
        Self { why, inner }
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
        let Self { why, inner } = self;
        if let Some(over) = why.over() {
            return Err(over);
        }
        match inner.start().await {
            Ok(inner) => Ok(Transaction { inner, why }),
            Err(e) => {
                let e = why.explain(e);
                let unsure = e.class() == Class::UnknownOutcome;
                Err(why.told(if unsure { e.with_class(Class::Transient) } else { e }))
            }
        }
    }
}
