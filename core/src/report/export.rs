//! The same figures for whoever collects metrics, through the `metrics` facade: OpenTelemetry's names where it has some
//! (semantic conventions for database clients), our own under `pgfollow.`. Durations are seconds. Without an installed
//! recorder each costs a load.

use std::time::Duration;

use metrics::{counter, gauge, histogram};

use super::book::By;
use crate::decide::attribute::Outage;
use crate::decide::pool::Counts;
use crate::error::{Error, Stage};

const SYSTEM: (&str, &str) = ("db.system.name", "postgresql");

/// A login was tried: `db.client.connection.create_time` where it succeeded.
pub(super) fn dialled(host: &str, by: By, result: &'static str, took: Duration) {
    if result == "connected" && by != By::Monitor {
        histogram!("db.client.connection.create_time", SYSTEM.0 => SYSTEM.1, "server.address" => host.to_owned())
            .record(took.as_secs_f64());
    }
    counter!("pgfollow.dials", "server.address" => host.to_owned(), "by" => by.name(), "result" => result)
        .increment(1);
}

/// A stage of somebody's way to a session, or of a call.
pub(super) fn stage(stage: Stage, took: Duration) {
    histogram!("pgfollow.stage.duration", "stage" => stage.to_string()).record(took.as_secs_f64());
}

/// A caller has a session; `count` of them waited that long.
pub(super) fn acquired(wait: Duration, count: usize) {
    histogram!("db.client.connection.wait_time", SYSTEM.0 => SYSTEM.1).record_many(wait.as_secs_f64(), count);
}

/// A session was lent for that long.
pub(super) fn used(time: Duration) {
    histogram!("db.client.connection.use_time", SYSTEM.0 => SYSTEM.1).record(time.as_secs_f64());
}

/// A pool's sessions and waiters now.
pub(super) fn pool(name: &'static str, counts: Counts) {
    let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let count = |state: &'static str| {
        gauge!("db.client.connection.count", "db.client.connection.state" => state,
            "db.client.connection.pool.name" => name)
    };
    count("idle").set(number(counts.idle));
    count("used").set(number(counts.lent + counts.settling));
    gauge!("db.client.connection.pending_requests", "db.client.connection.pool.name" => name)
        .set(number(counts.waiting));
}

/// A caller's patience ended.
pub(super) fn timeout() {
    counter!("db.client.connection.timeouts", SYSTEM.0 => SYSTEM.1).increment(1);
}

/// A caller was refused at once.
pub(super) fn shed() {
    counter!("pgfollow.sheds").increment(1);
}

/// Requests that were answered, by the time that they took.
pub(super) fn operations(host: &str, took: Duration, count: usize) {
    histogram!("db.client.operation.duration", SYSTEM.0 => SYSTEM.1, "server.address" => host.to_owned())
        .record_many(took.as_secs_f64(), count);
}

/// A caller got an error.
pub(super) fn error(e: &Error) {
    let state = e.sqlstate().map_or_else(String::new, |s| s.to_string());
    counter!("pgfollow.errors", "class" => e.class().to_string(), "code" => e.code().name(),
        "db.response.status_code" => state, "server.address" => e.host().unwrap_or_default().to_owned())
    .increment(1);
}

/// A session ended otherwise than by its owner.
pub(super) fn evicted(host: &str, cause: &str) {
    counter!("pgfollow.evictions", "server.address" => host.to_owned(), "cause" => cause.to_owned())
        .increment(1);
}

/// An outage is over.
pub(super) fn outage(o: &Outage) {
    histogram!("pgfollow.outage.duration").record(o.whole().as_secs_f64());
    for (cause, part) in o.parts.iter().filter(|(_, d)| !d.is_zero()) {
        histogram!("pgfollow.outage.cause", "cause" => cause.name()).record(part.as_secs_f64());
    }
    counter!("pgfollow.outage.unknown_outcomes").increment(o.unknown);
}

/// Sessions at a host, as the database counted them.
pub(super) fn sessions(host: &str, application: u32, monitors: u32) {
    let count =
        |of: &'static str| gauge!("pgfollow.sessions", "server.address" => host.to_owned(), "of" => of);
    count("application").set(application);
    count("monitors").set(monitors);
}
