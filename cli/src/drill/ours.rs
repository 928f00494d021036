//! The service through pgfollow: one pool, as large as there are workers, default settings otherwise, or, without pace
//! (`--no-pace`), a session for each worker that opens it by itself, as soon as it wants.

use std::time::Duration;

use pgfollow::config::Tuning;
use pgfollow::report::OutageReport;
use pgfollow::{Connector, Error, Pool, Session};
use pgfollow_lab::{monotonic_ns, wait_for};

use super::client::{INSERT, Kind, Writer};
use super::record::{CallError, Explained};

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

/// The outages that the library saw.
pub(crate) async fn outages(connector: &Connector) -> Vec<Explained> {
    let closed = || connector.report().outages.iter().all(|o| !o.open);
    // One that doesn't close is told as it looks now.
    let _ = wait_for("the outage to be closed", CLOSED, closed).await;
    let (report, now) = (connector.report(), monotonic_ns());
    let explained = |o: OutageReport| {
        let ago = Duration::from_secs_f64((report.taken_ms - o.until_ms).max(0.0) / 1e3);
        let until = now.saturating_sub(u64::try_from(ago.as_nanos()).unwrap_or(u64::MAX));
        Explained { until, causes_ms: o.causes_ms.into_iter().collect() }
    };
    report.outages.into_iter().map(explained).collect()
}

/// A worker's way to a session.
pub(crate) enum Ours {
    /// From the process's pool.
    Pooled(Pool),
    /// One of its own, opened anew by itself whenever it ended: a pool alone would keep a pace.
    Own(Connector, Option<Box<Session>>),
}

impl Writer for Ours {
    async fn write(
        &mut self,
        client: &str,
        worker: i32,
        seq: i64,
        had: &mut Option<u64>,
    ) -> Result<String, CallError> {
        match self {
            Self::Pooled(pool) => {
                let session = pool.acquire_within(PATIENCE).await.map_err(told)?;
                *had = Some(monotonic_ns());
                insert(&session, client, worker, seq).await
            }
            Self::Own(connector, own) => {
                let session = match own.take().filter(|s| s.is_usable()) {
                    Some(session) => session,
                    None => Box::new(connector.connect_within(PATIENCE).await.map_err(told)?),
                };
                *had = Some(monotonic_ns());
                insert(own.insert(session), client, worker, seq).await
            }
        }
    }
}

async fn insert(session: &Session, client: &str, worker: i32, seq: i64) -> Result<String, CallError> {
    let why = session.why();
    // Nothing was asked of the server to be written yet.
    let insert = session.prepare_cached(INSERT).await.map_err(told)?;
    let row = session.query_one(&insert, &[&client, &worker, &seq]).await;
    row.map(|row| row.get(0)).map_err(|e| told(why.diagnose(e)))
}

fn told(e: Error) -> CallError {
    let code = e.sqlstate().map_or_else(|| e.code().name().to_owned(), |s| s.to_string());
    CallError { class: e.class(), code, message: e.message().to_owned() }
}
