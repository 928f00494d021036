//! What the client processes tell the drill: one line of JSON a call.

use std::collections::BTreeMap;

use pgfollow::Class;
use serde::{Deserialize, Serialize};

/// The environment variable with a client's connection string: it holds a password, so it is no argument. Its name
/// must not begin with PG, for those are options of the library.
pub(crate) const CONNINFO: &str = "DRILL_CONNINFO";
/// What a server calls itself: `address:port@start`. The start tells servers apart that share an address (a moving one),
/// and a restarted server from what it was.
macro_rules! identity {
    () => {
        "coalesce(host(inet_server_addr()) || ':' || inet_server_port(), 'local:' || current_setting('port')) \
         || '@' || extract(epoch from pg_postmaster_start_time())"
    };
}
pub(crate) use identity;

/// Where the clients write. No unique constraint: a write done twice must be seen.
pub(crate) const TABLE: &str = "pgfollow_drill";

/// A line.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum Told {
    /// A call ended.
    Call(Call),
    /// At the end: the outages that the library saw.
    Outages { outages: Vec<Explained> },
}

/// An outage as the library explains it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Explained {
    /// Its end. CLOCK_MONOTONIC in ns.
    pub(crate) until: u64,
    /// What each cause has of it, in ms.
    pub(crate) causes_ms: BTreeMap<String, f64>,
}

/// One call of a worker: a session, and one INSERT. Its number is never used again.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Call {
    /// The worker, from 0.
    pub(crate) worker: i32,
    /// The write's number within the worker.
    pub(crate) seq: i64,
    /// CLOCK_MONOTONIC in ns.
    pub(crate) start: u64,
    /// When it had a session, if it got so far.
    pub(crate) had: Option<u64>,
    /// CLOCK_MONOTONIC in ns.
    pub(crate) end: u64,
    /// How it ended.
    #[serde(flatten)]
    pub(crate) result: CallResult,
}

/// How a call ended.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "result", rename_all = "snake_case")]
pub(crate) enum CallResult {
    /// Acknowledged.
    Ok {
        /// By whom, as the server itself says ([`identity`]).
        node: String,
    },
    /// An error.
    Failed(CallError),
    /// Still waiting when the drill ended.
    Waiting,
}

/// A call's error.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct CallError {
    pub(crate) class: Class,
    /// The library's code, or the SQLSTATE, or a word.
    pub(crate) code: String,
    pub(crate) message: String,
}
