//! How quickly a verdict reaches its callers: from the event that says "the old primary's sessions are cleared" to the
//! error of a call that is blocked there.
//!
//! Each run is a failover of its own cluster: the primary is frozen (its sockets stay open, nobody answers), a standby is
//! promoted. Two sessions are blocked on the old one: an INSERT, and a `pg_sleep` in a transaction that has
//! written. Client, monitor and callers share a multi-thread runtime of two workers, as in a small service.

use std::time::Duration;

use pgfollow::decide::topology::{InFlight, State, TopologyEvent};
use pgfollow::{Address, Class, Code, Connector, Event, EventKind, HostId, Moment, clock};
use pgfollow_lab::{Binaries, Cluster, ClusterOptions, wait_for, wait_for_async};
use serde_json::json;
use tokio::sync::broadcast::Receiver;
use tokio::task::JoinHandle;

use crate::stats::Spread;
use crate::{Failed, Found};

/// The bounds, in ms.
const MEDIAN: f64 = 5.0;
const WORST: f64 = 50.0;
/// From the freeze to the promotion.
const PAUSE: Duration = Duration::from_secs(1);
/// The longest that a run waits for anything.
const PATIENCE: Duration = Duration::from_secs(15);

/// From a verdict's event to the error of a blocked call
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Failovers, each of a cluster of its own
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..))]
    runs: u16,
}

impl Default for Args {
    fn default() -> Self {
        Self { runs: 20 }
    }
}

/// How a blocked call ended, and when its caller had that.
struct End {
    outcome: Result<u64, pgfollow::Error>,
    at: Moment,
}

/// One blocked call's end, in ms.
struct Sample {
    /// Since the verdict was decided: the event's own time.
    decided: f64,
    /// Since a subscriber of the events had it; below zero where the caller was quicker.
    received: f64,
}

/// What one failover gave.
struct Failover {
    insert: Sample,
    sleep: Sample,
}

pub(crate) fn run(args: &Args, binaries: &Binaries) -> Result<Found, Failed> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let mut all = Vec::new();
        for n in 1..=args.runs {
            // In a task: what the main thread does is not on the workers.
            let binaries = binaries.clone();
            let seen = tokio::spawn(failover(binaries)).await??;
            anstream::eprintln!(
                "failover {n} of {}: INSERT {:.3} ms, pg_sleep {:.3} ms after the verdict",
                args.runs,
                seen.insert.decided,
                seen.sleep.decided
            );
            all.push(seen);
        }
        Ok(report(&all, binaries.version()))
    })
}

async fn failover(binaries: Binaries) -> Result<Failover, Failed> {
    let mut options = ClusterOptions::new(binaries);
    options.nodes = 2;
    let cluster = Cluster::start(options).await?;
    let connector = Connector::new(&format!("{}?target_session_attrs=read-write", cluster.conninfo()))?;
    let writer = connector.connect_within(PATIENCE).await?;
    let mut sleeper = connector.connect_within(PATIENCE).await?;
    writer.batch_execute("create table t (n int)").await?;
    let old = settled(&connector, &cluster).await?;

    let sleep = tokio::spawn(async move {
        let why = sleeper.why();
        let tx = sleeper.transaction().await?;
        tx.execute("insert into t values (1)", &[]).await.map_err(|e| why.diagnose(e))?;
        let outcome = tx.execute("select pg_sleep(600)", &[]).await;
        let at = clock::now();
        Ok(End { outcome: outcome.map_err(|e| why.diagnose(e)), at })
    });
    asleep(&cluster).await?;
    cluster.node(0).freeze().await?;
    let insert = tokio::spawn(async move {
        let outcome = writer.execute("insert into t values (2)", &[]).await;
        let at = clock::now();
        Ok(End { outcome: outcome.map_err(|e| writer.why().diagnose(e)), at })
    });
    let verdict = tokio::spawn(verdict(connector.events(), old));
    tokio::time::sleep(PAUSE).await;
    cluster.promote(1).await?;
    let (event, received) = tokio::time::timeout(PATIENCE, verdict).await??.ok_or("the events ended")?;
    Ok(Failover {
        insert: sample(insert, Class::UnknownOutcome, event.at, received).await?,
        sleep: sample(sleep, Class::Transient, event.at, received).await?,
    })
}

/// Waits until the monitor knows both nodes; says which one is the first primary.
async fn settled(connector: &Connector, cluster: &Cluster) -> Result<HostId, Failed> {
    let mut old = None;
    let is_old = |a: &Address| matches!(a, Address::Tcp(a) if a.ip() == cluster.node(0).host());
    wait_for("the monitor to know both nodes", PATIENCE, || {
        let seen = connector.topology();
        old = seen.hosts.iter().find(|h| h.state == State::Primary && is_old(&h.address)).map(|h| h.id);
        old.is_some() && seen.hosts.iter().any(|h| h.state == State::Standby)
    })
    .await?;
    old.ok_or_else(|| "the first primary is unknown".into())
}

/// Waits until the server runs the `pg_sleep`.
async fn asleep(cluster: &Cluster) -> Result<(), Failed> {
    let session = &cluster.node(0).session().await?;
    let sql = "select count(*) from pg_stat_activity where wait_event = 'PgSleep'";
    wait_for_async("pg_sleep to run", PATIENCE, || async move {
        let row = session.query_one(sql, &[]).await.map_err(|e| e.to_string())?;
        if row.get::<_, i64>(0) > 0 { Ok(()) } else { Err("not yet".to_owned()) }
    })
    .await?;
    Ok(())
}

/// The event that ends all calls on that host, and when it arrived here.
async fn verdict(mut events: Receiver<Event>, old: HostId) -> Option<(Event, Moment)> {
    loop {
        let event = events.recv().await.ok()?;
        let received = clock::now();
        if let EventKind::Topology(TopologyEvent::Cleared { host, in_flight, .. }) = &event.kind
            && *host == old
            && matches!(in_flight, InFlight::Close | InFlight::CloseUnlessHarmless { grace: Duration::ZERO })
        {
            return Some((event, received));
        }
    }
}

/// A call's end: the verdict must be what ended it, and its class must be right.
async fn sample(
    call: JoinHandle<Result<End, pgfollow::Error>>,
    class: Class,
    decided: Moment,
    received: Moment,
) -> Result<Sample, Failed> {
    let End { outcome, at } = tokio::time::timeout(PATIENCE, call).await???;
    let Err(error) = outcome else { return Err("the blocked call succeeded".into()) };
    if error.code() != Code::Superseded || error.class() != class {
        return Err(format!("the call ended by something else, or in the wrong class: {error}").into());
    }
    Ok(Sample { decided: between(decided, at), received: between(received, at) })
}

/// Milliseconds; below zero if `to` was first.
fn between(from: Moment, to: Moment) -> f64 {
    ((to - from).as_secs_f64() - (from - to).as_secs_f64()) * 1e3
}

fn report(all: &[Failover], server_version: &str) -> Found {
    let of = |f: &dyn Fn(&Failover) -> f64| Spread::of(&all.iter().map(f).collect::<Vec<_>>());
    let rows = [
        ("INSERT, since decided", of(&|f| f.insert.decided)),
        ("INSERT, since received", of(&|f| f.insert.received)),
        ("pg_sleep, since decided", of(&|f| f.sleep.decided)),
        ("pg_sleep, since received", of(&|f| f.sleep.received)),
    ];
    // The stricter of the two clocks counts: a subscriber hears of the verdict after it was decided.
    let within_bounds = [rows[0].1, rows[2].1].iter().all(|s| s.median <= MEDIAN && s.worst <= WORST);
    let mut text = vec![
        format!(
            "verdict: ms from the verdict to the blocked call's error, PostgreSQL {server_version}, {} failovers",
            all.len()
        ),
        format!("{:28}{:>10}{:>10}{:>10}", "", "median", "p90", "worst"),
    ];
    text.extend(
        rows.iter().map(|(name, s)| format!("{name:28}{:>10.3}{:>10.3}{:>10.3}", s.median, s.p90, s.worst)),
    );
    text.push(format!(
        "{}: the bounds are {MEDIAN} ms (median) and {WORST} ms (worst), since decided",
        if within_bounds { "within the bounds" } else { "OVER THE BOUNDS" }
    ));
    let json = json!({
        "bench": "verdict",
        "server_version": server_version,
        "runtime": "multi_thread, 2 workers",
        "failovers": all.len(),
        "insert_ms": {"since_decided": rows[0].1.json(), "since_received": rows[1].1.json()},
        "pg_sleep_ms": {"since_decided": rows[2].1.json(), "since_received": rows[3].1.json()},
        "bound_median_ms": MEDIAN,
        "bound_worst_ms": WORST,
        "within_bounds": within_bounds,
    });
    Found { text: text.join("\n"), json, within_bounds: Some(within_bounds) }
}
