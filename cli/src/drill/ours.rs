//! The service through pgfollow: one connector, a session for each worker, default settings.

use std::time::Duration;

use pgfollow::{Connector, Error, Session};
use tokio_postgres::Statement;

use super::client::{INSERT, Kind, Writer};
use super::record::CallError;

/// How long a worker waits for a session.
const PATIENCE: Duration = Duration::from_secs(30);

/// A connector to whatever host takes writes.
pub(crate) fn connector(conninfo: &str) -> Result<Connector, Error> {
    Connector::builder(conninfo)
        .set("target_session_attrs", "read-write")
        .set("application_name", Kind::Pgfollow.application())
        .build()
}

pub(crate) struct Ours {
    connector: Connector,
    session: Option<(Session, Statement)>,
}

impl Ours {
    pub(crate) fn new(connector: Connector) -> Self {
        Self { connector, session: None }
    }

    async fn session(&mut self) -> Result<&(Session, Statement), Error> {
        // What a pool does before it lends a connection.
        if self.session.as_ref().is_some_and(|(s, _)| !s.is_usable()) {
            self.session = None;
        }
        if self.session.is_none() {
            let s = self.connector.connect_within(PATIENCE).await?;
            let why = s.why();
            let insert = s.prepare(INSERT).await.map_err(|e| why.diagnose(e))?;
            self.session = Some((s, insert));
        }
        self.session.as_ref().ok_or_else(|| unreachable!("set above"))
    }
}

impl Writer for Ours {
    async fn write(&mut self, client: &str, worker: i32, seq: i64) -> Result<String, CallError> {
        let (session, insert) = self.session().await.map_err(told)?;
        let why = session.why();
        match session.query_one(insert, &[&client, &worker, &seq]).await {
            Ok(row) => Ok(row.get(0)),
            Err(e) => {
                self.session = None;
                Err(told(why.diagnose(e)))
            }
        }
    }
}

fn told(e: Error) -> CallError {
    let code = e.sqlstate().map_or_else(|| e.code().name().to_owned(), |s| s.to_string());
    CallError { class: e.class(), code, message: e.message().to_owned() }
}
