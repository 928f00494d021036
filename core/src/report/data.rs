//! The report as plain data. `docs/report.schema.json` is its published form; keys may be added, never renamed.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::hist::Quantiles;
use crate::decide::attribute::{Asked, OutageCause};

/// What a connector did and met since it was made. Times are milliseconds since then unless their name says otherwise;
/// `taken_unix_ms - taken_ms` is its beginning by the wall clock.
///
/// ```no_run
/// # fn f(connector: &pgfollow::Connector) -> Result<(), serde_json::Error> {
/// let report = connector.report();
/// println!("{}", report.to_text());
/// std::fs::write("report.json", serde_json::to_string(&report)?).ok(); // pgfollow report report.json --html report.html
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Version of this form: 1.
    pub schema: u32,
    /// Version of pgfollow.
    pub pgfollow: String,
    /// The service's name towards the database.
    pub application_name: String,
    /// When it was taken: milliseconds since 1970, UTC.
    pub taken_unix_ms: f64,
    /// When it was taken.
    pub taken_ms: f64,
    /// The whole in a sentence.
    pub verdict: String,
    /// Outages, oldest first; the last one may still be open. The last 16 are kept.
    pub outages: Vec<OutageReport>,
    /// Older outages that are not kept.
    pub outages_dropped: u64,
    /// Every address that is or was a candidate.
    pub hosts: Vec<HostReport>,
    /// Every name.
    pub names: Vec<NameLine>,
    /// How long callers waited for a session; `null` before the first.
    pub acquire: Option<Quantiles>,
    /// How long each stage lasted, by its name (queue, pace, resolve, dial, secure, authenticate, role, blocked, work);
    /// those that never happened are absent.
    pub stages: BTreeMap<String, Quantiles>,
    /// Requests that succeeded.
    pub calls: Calls,
    /// Errors that callers got, or that `run` kept from them; the most frequent first.
    pub errors: Vec<ErrorLine>,
    /// Logins tried, by result.
    pub dials: Vec<DialLine>,
    /// Sessions that ended otherwise than by their owners.
    pub evictions: Vec<EvictionLine>,
    /// Outcomes that were asked for, because the answer to a COMMIT was lost.
    #[serde(default)]
    pub outcomes: Vec<OutcomeLine>,
    /// Callers refused at once because they could not have been served in time.
    pub sheds: u64,
    /// Callers whose patience ended while they waited for a session.
    pub timeouts: u64,
    /// What happened, oldest first. The last 256 are kept.
    pub events: Vec<EventLine>,
    /// Older events that are not kept.
    pub events_dropped: u64,
}

/// An outage: see `docs/report.md`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OutageReport {
    /// When the first call that failed had begun to wait, or failed.
    pub from_ms: f64,
    /// When the first write after the last trouble succeeded. For an open one, the present.
    pub until_ms: f64,
    /// It goes on; what is said of it may change in hindsight.
    pub open: bool,
    /// Its length: the sum of `causes_ms`.
    pub whole_ms: f64,
    /// What each cause has of it; all six are there.
    pub causes_ms: BTreeMap<String, f64>,
    /// The cause with the largest part.
    pub main_cause: Option<OutageCause>,
    /// The same over time, without gaps.
    pub segments: Vec<SegmentLine>,
    /// Where the first call was lost.
    pub lost_host: Option<String>,
    /// Where writes succeeded again.
    pub back_host: Option<String>,
    /// From the beginning until that host took writes, as the database's own team sees it; `null` if it did all along.
    pub fault_to_ready_ms: Option<f64>,
    /// From the beginning to the first write of this service that succeeded.
    pub fault_to_first_success_ms: Option<f64>,
    /// From the beginning until nobody was held up any more; `null` while it is open.
    pub fault_to_last_success_ms: Option<f64>,
    /// Errors of failover origin that callers got.
    pub failed: u64,
    /// Other errors that callers got meanwhile.
    pub other_errors: u64,
    /// Of all these, unknown outcomes.
    pub unknown: u64,
    /// Errors that no caller got, because `run` did the work again or found it committed.
    #[serde(default)]
    pub spared: u64,
    /// Outcomes that `run` asked for, by their answers.
    #[serde(default)]
    pub outcomes: Asked,
}

/// A stretch of an outage.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SegmentLine {
    /// From then.
    pub from_ms: f64,
    /// Until then.
    pub until_ms: f64,
    /// Its cause.
    pub cause: OutageCause,
}

/// An address.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HostReport {
    /// Its number.
    pub id: u32,
    /// The configured name.
    pub name: String,
    /// The address.
    pub address: String,
    /// What it is now.
    pub state: String,
    /// Its timeline, where it could be read.
    pub timeline: Option<u32>,
    /// Age of its last answer to the monitor.
    pub answer_age_ms: Option<f64>,
    /// Round trip of the last question.
    pub rtt_ms: Option<f64>,
    /// Its name doesn't give it any more.
    pub gone: bool,
    /// Its states over time, oldest first. The last 64 are kept.
    pub states: Vec<StateLine>,
    /// Sessions there, as the database counted them last.
    pub sessions: Option<SessionsSeen>,
}

/// A stretch in which a host's state stayed the same.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StateLine {
    /// From then until the next one.
    pub from_ms: f64,
    /// The state.
    pub state: String,
}

/// Sessions at a host as `pg_stat_activity` showed them to the monitor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionsSeen {
    /// Age of the count, in milliseconds.
    pub age_ms: u64,
    /// Under this service's application_name, all its processes together.
    pub application: u32,
    /// Of these, commits that waited for a synchronous standby.
    pub waiting_for_standby: u32,
    /// Under the monitors' name, all processes together.
    pub monitors: u32,
    /// `max_connections`.
    pub max_connections: u32,
}

/// A name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NameLine {
    /// As configured.
    pub name: String,
    /// Its addresses.
    pub addresses: Vec<String>,
    /// Shortest time to live of the last answers, in seconds, where a name server gave one.
    pub ttl_s: Option<u64>,
    /// Time since the older of the last good answers.
    pub age_ms: Option<u64>,
    /// No last look-up succeeded.
    pub stale: bool,
    /// What the last look-up failed with.
    pub error: Option<String>,
}

/// Requests that succeeded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Calls {
    /// Writes and commits, by their command tags.
    pub writes: u64,
    /// Everything else.
    pub others: u64,
}

/// Errors of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorLine {
    /// Where; `null` if no single host is to blame.
    pub host: Option<String>,
    /// Name of the code.
    pub code: String,
    /// Class.
    pub class: crate::error::Class,
    /// SQLSTATE.
    pub sqlstate: Option<String>,
    /// How often callers got it.
    pub count: u64,
    /// How often no caller got it, because `run` did the work again or found it committed.
    #[serde(default)]
    pub spared: u64,
}

/// Logins of one result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DialLine {
    /// Where.
    pub host: String,
    /// `caller`, `monitor` or `ahead` (a session opened ahead of a caller).
    pub by: String,
    /// `connected`, or why not.
    pub result: String,
    /// How often.
    pub count: u64,
}

/// Sessions that ended of one cause.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EvictionLine {
    /// Where.
    pub host: String,
    /// The cause.
    pub cause: String,
    /// How often.
    pub count: u64,
}

/// Outcomes of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutcomeLine {
    /// `table` (a row of `pgfollow.outcome`) or `number` (the transaction's number).
    pub way: String,
    /// `committed`, `not_committed` or `unknown`.
    pub result: String,
    /// How often.
    pub count: u64,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EventLine {
    /// When.
    pub at_ms: f64,
    /// Its name.
    pub event: String,
    /// In words.
    pub text: String,
}

impl Report {
    /// What each cause has of all outages together, in milliseconds; all six are there. The drill's `causes_ms`.
    pub fn causes_ms(&self) -> BTreeMap<&'static str, f64> {
        let sum = |name: &str| self.outages.iter().filter_map(|o| o.causes_ms.get(name)).sum::<f64>();
        OutageCause::ALL.into_iter().map(|c| (c.name(), sum(c.name()))).collect()
    }
}
