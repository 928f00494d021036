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
    // At each release. [`SYSTEM`] in literals: such a key is built by the compiler, any other one on the heap.
    histogram!("db.client.connection.use_time", "db.system.name" => "postgresql").record(time.as_secs_f64());
}

/// A pool's sessions and waiters now.
pub(super) fn pool(name: &str, counts: Counts) {
    let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let count = |state: &'static str| {
        gauge!("db.client.connection.count", "db.client.connection.state" => state,
            "db.client.connection.pool.name" => name.to_owned())
    };
    count("idle").set(number(counts.idle));
    count("used").set(number(counts.lent + counts.settling));
    gauge!("db.client.connection.pending_requests", "db.client.connection.pool.name" => name.to_owned())
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

/// An error was met. `own`: the report counts it by its own kind; applications make SQLSTATEs up, and each would be
/// a series more.
pub(super) fn error(e: &Error, own: bool) {
    let state =
        if own { e.sqlstate().map_or_else(String::new, |s| s.to_string()) } else { "other".to_owned() };
    counter!("pgfollow.errors", "class" => e.class().to_string(), "code" => e.code().name(),
        "db.response.status_code" => state, "server.address" => e.host().unwrap_or_default().to_owned())
    .increment(1);
}

/// An error was kept from its caller: `run` did the work again, or found it committed.
pub(super) fn spared() {
    counter!("pgfollow.errors.spared").increment(1);
}

/// Callers got unknown outcomes.
pub(super) fn unknown_outcomes(count: u64) {
    counter!("pgfollow.outage.unknown_outcomes").increment(count);
}

/// A session ended otherwise than by its owner.
pub(super) fn evicted(host: &str, cause: &str) {
    counter!("pgfollow.evictions", "server.address" => host.to_owned(), "cause" => cause.to_owned())
        .increment(1);
}

/// It was asked what became of a transaction.
pub(super) fn outcome(way: &'static str, result: &'static str) {
    counter!("pgfollow.outcomes", "way" => way, "result" => result).increment(1);
}

/// An outage is over.
pub(super) fn outage(o: &Outage) {
    histogram!("pgfollow.outage.duration").record(o.whole().as_secs_f64());
    for (cause, part) in o.parts.iter().filter(|(_, d)| !d.is_zero()) {
        histogram!("pgfollow.outage.cause", "cause" => cause.name()).record(part.as_secs_f64());
    }
    unknown_outcomes(o.errors.unknown);
}

/// Sessions at a host, as the database counted them.
pub(super) fn sessions(host: &str, application: u32, monitors: u32) {
    let count =
        |of: &'static str| gauge!("pgfollow.sessions", "server.address" => host.to_owned(), "of" => of);
    count("application").set(application);
    count("monitors").set(monitors);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::{Arc, Mutex};

    use metrics::{
        Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
        SharedString, Unit,
    };

    use super::*;
    use crate::error::{Class, Code};

    /// The last value of each metric, by name and labels.
    #[derive(Default, Clone)]
    struct Seen(Arc<Mutex<BTreeMap<String, f64>>>);

    struct One(Seen, String);

    impl One {
        fn is(&self, v: f64) {
            self.0.0.lock().expect("values").insert(self.1.clone(), v);
        }
    }

    impl CounterFn for One {
        fn increment(&self, n: u64) {
            self.is(f64::from(u32::try_from(n).expect("few")));
        }
        fn absolute(&self, n: u64) {
            CounterFn::increment(self, n);
        }
    }

    impl GaugeFn for One {
        fn increment(&self, v: f64) {
            self.is(v);
        }
        fn decrement(&self, v: f64) {
            self.is(-v);
        }
        fn set(&self, v: f64) {
            self.is(v);
        }
    }

    impl HistogramFn for One {
        fn record(&self, v: f64) {
            self.is(v);
        }
    }

    impl Seen {
        fn one(&self, key: &Key) -> Arc<One> {
            let labels: Vec<_> = key.labels().map(|l| format!("{}={}", l.key(), l.value())).collect();
            Arc::new(One(self.clone(), format!("{}{{{}}}", key.name(), labels.join(","))))
        }
    }

    impl Recorder for Seen {
        fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
            Counter::from_arc(self.one(key))
        }
        fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
            Gauge::from_arc(self.one(key))
        }
        fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
            Histogram::from_arc(self.one(key))
        }
    }

    /// Dashboards are built on these names: none may change unseen.
    #[test]
    fn a_dashboard_finds_every_figure_under_its_name() {
        let seen = Seen::default();
        metrics::with_local_recorder(&seen, || {
            dialled("a", By::Caller, "connected", Duration::from_millis(20));
            dialled("a", By::Monitor, "connected", Duration::from_millis(1));
            stage(Stage::Queue, Duration::from_millis(3));
            acquired(Duration::from_millis(4), 2);
            used(Duration::from_millis(5));
            pool("p", Counts { idle: 1, lent: 2, waiting: 3, ..Counts::default() });
            timeout();
            shed();
            operations("a", Duration::from_millis(6), 1);
            error(
                &Error::new(Code::ConnectionLost, Class::UnknownOutcome, "secret").on_host("a".to_owned()),
                true,
            );
            spared();
            evicted("a", "reset");
            outcome("table", "committed");
            sessions("a", 8, 9);
        });
        let seen = seen.0.lock().expect("values").clone();
        let got: Vec<_> = seen.iter().map(|(k, v)| format!("{k} {v}")).collect();
        let pg = "db.system.name=postgresql";
        let mut want = vec![
            format!("db.client.connection.count{{db.client.connection.state=idle,db.client.connection.pool.name=p}} 1"),
            format!("db.client.connection.count{{db.client.connection.state=used,db.client.connection.pool.name=p}} 2"),
            format!("db.client.connection.create_time{{{pg},server.address=a}} 0.02"),
            "db.client.connection.pending_requests{db.client.connection.pool.name=p} 3".to_owned(),
            format!("db.client.connection.timeouts{{{pg}}} 1"),
            format!("db.client.connection.use_time{{{pg}}} 0.005"),
            format!("db.client.connection.wait_time{{{pg}}} 0.004"),
            format!("db.client.operation.duration{{{pg},server.address=a}} 0.006"),
            "pgfollow.dials{server.address=a,by=caller,result=connected} 1".to_owned(),
            "pgfollow.dials{server.address=a,by=monitor,result=connected} 1".to_owned(),
            "pgfollow.errors{class=unknown-outcome,code=ConnectionLost,db.response.status_code=,server.address=a} 1"
                .to_owned(),
            "pgfollow.errors.spared{} 1".to_owned(),
            "pgfollow.evictions{server.address=a,cause=reset} 1".to_owned(),
            "pgfollow.outcomes{way=table,result=committed} 1".to_owned(),
            "pgfollow.sessions{server.address=a,of=application} 8".to_owned(),
            "pgfollow.sessions{server.address=a,of=monitors} 9".to_owned(),
            "pgfollow.sheds{} 1".to_owned(),
            "pgfollow.stage.duration{stage=queue} 0.003".to_owned(),
        ];
        want.sort();
        assert_eq!(got, want);
    }
}
