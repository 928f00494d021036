//! The service through pgfollow: one pool, as large as there are workers, default settings otherwise, unless the user
//! wants some of them changed (`--option`).

use std::collections::BTreeMap;
use std::time::Duration;

use pgfollow::{Connector, Error, Pool};
use pgfollow_lab::wait_for;

use super::client::{INSERT, Kind, Writer};
use super::record::CallError;

/// How long a worker waits for a session.
const PATIENCE: Duration = Duration::from_secs(30);
/// Until an outage is closed, once nobody asks for anything any more: its causes may change until then.
const CLOSED: Duration = Duration::from_secs(4);
/// The environment variable with the user's options, one a line: no argument, for one may be a secret.
pub(crate) const OPTIONS: &str = "DRILL_OPTIONS";

/// A connector to whatever host takes writes.
pub(crate) fn connector(conninfo: &str, options: &[String]) -> Result<Connector, Error> {
    let mut builder = Connector::builder(conninfo)
        .set("target_session_attrs", "read-write")
        .set("application_name", Kind::Pgfollow.application());
    for option in options {
        let (keyword, value) = option.split_once('=').unwrap_or((option, ""));
        builder = builder.set(keyword, value);
    }
    builder.build()
}

/// # Errors
/// An option that can't be used.
pub(crate) fn check(options: &[String]) -> Result<(), Error> {
    if options.is_empty() { Ok(()) } else { connector("host=localhost user=nobody", options).map(drop) }
}

/// The user's options as a client process gets them.
pub(crate) fn options() -> Vec<String> {
    let lines = std::env::var(OPTIONS).unwrap_or_default();
    lines.lines().map(str::to_owned).collect()
}

pub(crate) fn pool(conninfo: &str, options: &[String], size: usize) -> Result<Pool, Error> {
    connector(conninfo, options)?.pool_with(|o| o.max_conns(size))
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
