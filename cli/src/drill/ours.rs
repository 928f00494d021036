//! The service through pgfollow: one pool, as large as there are workers, default settings otherwise, unless it is
//! to go without pace (`--no-pace`).

use std::collections::BTreeMap;
use std::time::Duration;

use pgfollow::config::Tuning;
use pgfollow::{Connector, Error, Pool};
use pgfollow_lab::wait_for;

use super::client::{INSERT, Kind, Writer};
use super::record::CallError;

/// How long a worker waits for a session.
const PATIENCE: Duration = Duration::from_secs(30);
/// Until an outage is closed, once nobody asks for anything any more: its causes may change until then.
const CLOSED: Duration = Duration::from_secs(4);

/// A connector to whatever host takes writes.
pub(crate) fn connector(conninfo: &str, pace: bool) -> Result<Connector, Error> {
    let mut builder = Connector::builder(conninfo)
        .set("target_session_attrs", "read-write")
        .set("application_name", Kind::Pgfollow.application());
    if !pace {
        let all_at_once = |t: &mut Tuning| t.handshakes = usize::MAX;
        builder = builder.set("max_connect_rate", "100000").config(|c| c.tuning(all_at_once));
    }
    builder.build()
}

pub(crate) fn pool(conninfo: &str, pace: bool, size: usize) -> Result<Pool, Error> {
    connector(conninfo, pace)?.pool_with(|o| o.max_conns(size))
}

/// What each cause has of the outages that the library saw, in ms.
pub(crate) async fn causes(pool: &Pool) -> BTreeMap<String, f64> {
    let report = || pool.connector().report();
    let closed = || report().outages.iter().all(|o| !o.open);
    // One that doesn't close is told as it looks now.
    let _ = wait_for("the outage to be closed", CLOSED, closed).await;
    report().causes_ms().into_iter().map(|(c, ms)| (c.to_owned(), ms)).collect()
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
