//! What can go wrong in the lab. One type: the lab's callers print it and stop.

use std::io;
use std::time::Duration;

/// An error of the lab, with what was being done. Holds no password.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LabError {
    /// No usable server binaries.
    #[error("no PostgreSQL server binaries: {0}")]
    Binaries(String),
    /// The system refused something.
    #[error("{what}: {source}")]
    Io {
        /// What was being done.
        what: String,
        /// What the system said.
        source: io::Error,
    },
    /// A server's program ended badly.
    #[error("{what} failed: {detail}")]
    Command {
        /// Which program, for what.
        what: String,
        /// Its exit and the end of its output.
        detail: String,
    },
    /// A server answered with an error, or the session to it broke.
    #[error("{what}: {}", in_full(source))]
    Postgres {
        /// What was being done.
        what: String,
        /// The driver's error.
        source: tokio_postgres::Error,
    },
    /// A condition didn't come true in time.
    #[error("waited {after:?} in vain for {what}{}", last.as_ref().map(|l| format!(" (last: {l})")).unwrap_or_default())]
    Timeout {
        /// The condition.
        what: String,
        /// The bound.
        after: Duration,
        /// What was seen last.
        last: Option<String>,
    },
    /// The call makes no sense in the node's or the process's present state.
    #[error("{0}")]
    State(String),
}

/// tokio-postgres prints "db error" alone; the server's own words are in its source.
fn in_full(e: &tokio_postgres::Error) -> String {
    match (e.as_db_error(), std::error::Error::source(e)) {
        (Some(db), _) => format!("{} ({})", db.message(), db.code().code()),
        (None, Some(source)) => format!("{e}: {source}"),
        (None, None) => e.to_string(),
    }
}

impl LabError {
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }

    pub(crate) fn pg(what: impl Into<String>) -> impl FnOnce(tokio_postgres::Error) -> Self {
        let what = what.into();
        move |source| Self::Postgres { what, source }
    }
}
