//! The service through pgfollow: one pool, as large as there are workers, default settings otherwise.

use std::collections::BTreeMap;
use std::time::Duration;

use pgfollow::{Connector, Error, Pool};

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

pub(crate) fn pool(conninfo: &str, size: usize) -> Result<Pool, Error> {
    connector(conninfo)?.pool_with(|o| o.max_conns(size))
}

/// What each cause has of the outages that the library saw, in ms.
pub(crate) fn causes(pool: &Pool) -> BTreeMap<String, f64> {
    pool.connector().report().causes_ms().into_iter().map(|(c, ms)| (c.to_owned(), ms)).collect()
}

#[derive(Clone)]
pub(crate) struct Ours(pub(crate) Pool);

impl Writer for Ours {
    async fn write(&mut self, client: &str, worker: i32, seq: i64) -> Result<String, CallError> {
        let session = self.0.acquire_within(PATIENCE).await.map_err(told)?;
        let why = session.why();
        // Nothing was asked of the server to be written yet.
        let insert = session.prepare_cached(INSERT).await.map_err(told)?;
        let row = session.query_one(&insert, &[&client, &worker, &seq]).await;
        row.map(|row| row.get(0)).map_err(|e| told(why.diagnose(e)))
    }
}

fn told(e: Error) -> CallError {
    let code = e.sqlstate().map_or_else(|| e.code().name().to_owned(), |s| s.to_string());
    CallError { class: e.class(), code, message: e.message().to_owned() }
}
