//! The report against real servers: each fault's outage is explained by the true cause, its parts add up, and its length
//! is what the service itself saw. `REPORT_DIR=folder` keeps the reports as JSON.
#![expect(
    clippy::disallowed_methods,
    clippy::print_stderr,
    reason = "tests against real servers: real time, and words for people"
)]

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use pgfollow::net::{Answer, AnswerSource, BoxFuture, Family, Resolve, ResolveError};
use pgfollow::report::OutageReport;
use pgfollow::{Connector, Error, EventKind, Report, Session, clock};
use pgfollow_lab::{Binaries, Cluster, ClusterOptions, StopMode, servers, wait_for};
use tokio::sync::watch;
use tokio::task::JoinSet;

const PATIENCE: Duration = Duration::from_secs(60);
const WORKERS: usize = 4;
/// What the service's own clock and the report may differ by, on a machine that does much else.
const SLACK: Duration = Duration::from_millis(400);

/// A write: when it began and ended (waiting for a session included), and its result.
struct Call {
    worker: usize,
    ended: Instant,
    result: Result<(), Error>,
}

/// Workers that write and keep a session each.
struct Service {
    workers: JoinSet<Vec<Call>>,
    stop: watch::Sender<bool>,
}

async fn write(session: &mut Option<Session>, connector: &Connector) -> Result<(), Error> {
    let s = match session.take().filter(Session::is_usable) {
        Some(s) => s,
        None => connector.connect_within(PATIENCE).await?,
    };
    let why = s.why();
    let result = s.execute("INSERT INTO w VALUES (1)", &[]).await;
    *session = Some(s);
    result.map(|_| ()).map_err(|e| why.diagnose(e))
}

impl Service {
    async fn start(cluster: &Cluster, connector: &Connector) -> Self {
        let admin = cluster.node(0).session().await.expect("the lab's session");
        admin.batch_execute("CREATE TABLE w (n int); GRANT ALL ON w TO app").await.expect("a table");
        let (stop, stopped) = watch::channel(false);
        let mut workers = JoinSet::new();
        for worker in 0..WORKERS {
            let (connector, stopped) = (connector.clone(), stopped.clone());
            workers.spawn(async move {
                let (mut calls, mut session) = (Vec::new(), None);
                while !*stopped.borrow() {
                    let result = write(&mut session, &connector).await;
                    calls.push(Call { worker, ended: Instant::now(), result });
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                calls
            });
        }
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        Self { workers, stop }
    }

    async fn stop(self) -> Vec<Call> {
        let _ = self.stop.send(true);
        let calls = tokio::time::timeout(PATIENCE, self.workers.join_all()).await.expect("no worker hangs");
        calls.into_iter().flatten().collect()
    }
}

async fn cluster(binaries: Binaries, nodes: usize, sync: bool) -> Cluster {
    let mut options = ClusterOptions::new(binaries);
    (options.nodes, options.sync) = (nodes, sync);
    Cluster::start(options).await.expect("a cluster")
}

fn connector(cluster: &Cluster) -> Connector {
    let conninfo = format!("{}?target_session_attrs=read-write&application_name=orders", cluster.conninfo());
    Connector::new(&conninfo).expect("a connector")
}

/// Waits until the outage is closed, stops the service, and checks what holds for every outage.
async fn explained(
    name: &str,
    service: Service,
    connector: &Connector,
    fault: Instant,
) -> (OutageReport, Report) {
    let closed = || connector.report().outages.last().is_some_and(|o| !o.open);
    wait_for("the outage to be over", PATIENCE, closed).await.unwrap_or_else(|e| panic!("{name}: {e}"));
    let calls = service.stop().await;
    let report = connector.report();
    eprintln!("{name}: {}", report.to_text());
    if let Some(folder) = std::env::var_os("REPORT_DIR") {
        let path = std::path::Path::new(&folder).join(format!("{name}.json"));
        std::fs::write(&path, serde_json::to_string_pretty(&report).expect("JSON")).expect("a file");
    }
    assert_eq!(report.outages.len(), 1, "{name}: {:#?}", report.outages);
    let o = report.outages[0].clone();
    let sum: f64 = o.causes_ms.values().sum();
    assert!((sum - o.whole_ms).abs() < 1e-6, "{name}: {sum} of {}", o.whole_ms);
    // The service's own view: until the last worker wrote again, each after its longest pause.
    let mut back: HashMap<usize, (Duration, Instant)> = HashMap::new();
    let mut last: HashMap<usize, Instant> = HashMap::new();
    for c in calls.iter().filter(|c| c.result.is_ok()) {
        let gap = last.insert(c.worker, c.ended).map_or(Duration::ZERO, |before| c.ended - before);
        let longest = back.entry(c.worker).or_insert((gap, c.ended));
        if gap > longest.0 {
            *longest = (gap, c.ended);
        }
    }
    assert_eq!(back.len(), WORKERS, "{name}: a worker never wrote");
    let seen = back.values().map(|(_, at)| at.saturating_duration_since(fault)).max().unwrap_or_default();
    let told = Duration::from_secs_f64(o.whole_ms / 1e3);
    eprintln!("{name}: the service saw {seen:?}, the report says {told:?}");
    assert!(told.abs_diff(seen) < SLACK, "{name}: the service saw {seen:?}, the report says {told:?}");
    // Every error that a worker got is in the table, once.
    let errors: usize = calls.iter().filter(|c| c.result.is_err()).count();
    assert_eq!(report.errors.iter().map(|e| e.count).sum::<u64>(), errors as u64, "{name}");
    let unknown = calls.iter().filter_map(|c| c.result.as_ref().err());
    let unknown = unknown.filter(|e| e.class() == pgfollow::Class::UnknownOutcome).count();
    assert_eq!(o.unknown, unknown as u64, "{name}");
    // What succeeded is counted, all of it.
    let written = calls.iter().filter(|c| c.result.is_ok()).count() as u64;
    assert_eq!(report.calls.writes, written, "{name}");
    (o, report)
}

fn part(o: &OutageReport, cause: &str) -> f64 {
    o.causes_ms[cause] / o.whole_ms
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_promotion_after_a_kill_is_the_databases_own() {
    let Some(binaries) = servers() else { return };
    let cluster = cluster(binaries, 3, true).await;
    let connector = connector(&cluster);
    let mut events = connector.events();
    let service = Service::start(&cluster, &connector).await;
    let fault = Instant::now();
    cluster.node(0).kill().await.unwrap();
    tokio::time::sleep(Duration::from_secs(3)).await;
    cluster.promote(1).await.unwrap();
    let (o, report) = explained("kill", service, &connector, fault).await;
    assert!(part(&o, "not_writable_yet") > 0.8, "{:?}", o.causes_ms);
    let ready = o.fault_to_ready_ms.expect("the new primary was seen");
    assert!(o.fault_to_first_success_ms.is_some_and(|first| first >= ready), "{o:?}");
    assert!(o.lost_host.as_deref().is_some_and(|h| h.contains("127.0.0.2")), "{o:?}");
    assert!(o.back_host.as_deref().is_some_and(|h| h.contains("127.0.0.3")), "{o:?}");
    // The database's own count of this service's sessions.
    let counted = || {
        let hosts = connector.report().hosts;
        hosts.iter().any(|h| h.state == "primary" && h.sessions.is_some_and(|s| s.monitors > 0))
    };
    wait_for("the sessions to be counted", PATIENCE, counted).await.unwrap();
    for stage in ["dial", "authenticate", "role", "work"] {
        assert!(report.stages.contains_key(stage), "{stage} of {:?}", report.stages.keys());
    }
    assert!(report.acquire.is_some_and(|q| q.max_ms > 2_000.0), "{:?}", report.acquire);
    let told: Vec<_> = std::iter::from_fn(|| events.try_recv().ok()).collect();
    let ended = told.iter().filter(|e| matches!(e.kind, EventKind::OutageEnded { .. })).count();
    assert_eq!(ended, 1);
    let new = told.iter().find(|e| e.name() == "new_primary" && e.text().contains("127.0.0.3"));
    assert!(new.is_some(), "{:?}", told.iter().map(pgfollow::Event::text).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_primary_is_a_dead_socket_until_somebody_looks_elsewhere() {
    let Some(binaries) = servers() else { return };
    let cluster = cluster(binaries, 3, true).await;
    let connector = connector(&cluster);
    let service = Service::start(&cluster, &connector).await;
    let fault = Instant::now();
    cluster.node(0).freeze().await.unwrap();
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    cluster.promote(1).await.unwrap();
    let (o, _) = explained("freeze", service, &connector, fault).await;
    let both = part(&o, "dead_socket") + part(&o, "not_writable_yet");
    assert!(both > 0.8 && part(&o, "dead_socket") > 0.1, "{:?}", o.causes_ms);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commits_that_wait_for_a_lost_standby_are_charged_to_it() {
    let Some(binaries) = servers() else { return };
    let cluster = cluster(binaries, 2, true).await;
    let connector = connector(&cluster);
    let service = Service::start(&cluster, &connector).await;
    let fault = Instant::now();
    cluster.node(1).stop(StopMode::Fast).await.unwrap();
    tokio::time::sleep(Duration::from_secs(4)).await;
    cluster.restart(1).await.unwrap();
    let (o, _) = explained("sync", service, &connector, fault).await;
    assert!(part(&o, "waiting_for_standby") > 0.8, "{:?}", o.causes_ms);
    assert_eq!(o.failed, 0);
}

/// One name, and the address that it gives now.
#[derive(Debug)]
struct Moving(Mutex<IpAddr>);

impl Resolve for Moving {
    fn resolve<'a>(&'a self, _: &'a str, family: Family) -> BoxFuture<'a, Result<Answer, ResolveError>> {
        let at = *self.0.lock().expect("an address");
        Box::pin(async move {
            if family == Family::V6 {
                return Err(ResolveError::NoData);
            }
            let (source, at_time) = (AnswerSource::Dns, clock::now());
            Ok(Answer { addresses: vec![at], ttl: None, source, server: None, at: at_time })
        })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_that_moves_late_is_a_stale_name() {
    let Some(binaries) = servers() else { return };
    let cluster = cluster(binaries, 2, false).await;
    let name = Arc::new(Moving(Mutex::new(cluster.node(0).host().into())));
    let conninfo = format!(
        "host=db port={} user={} password={} dbname={} target_session_attrs=read-write application_name=orders",
        cluster.node(0).port(),
        cluster.user(),
        cluster.password(),
        cluster.database(),
    );
    let resolver = Arc::clone(&name);
    let connector = Connector::builder(&conninfo).resolver(resolver).build().expect("a connector");
    let service = Service::start(&cluster, &connector).await;
    let fault = Instant::now();
    cluster.node(0).kill().await.unwrap();
    cluster.promote(1).await.unwrap();
    tokio::time::sleep(Duration::from_secs(4)).await;
    *name.0.lock().expect("an address") = cluster.node(1).host().into();
    let (o, _) = explained("moved-name", service, &connector, fault).await;
    assert!(part(&o, "stale_name") > 0.8, "{:?}", o.causes_ms);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connect_that_waited_for_its_turn_is_seen_to_have_done_so() {
    let Some(binaries) = servers() else { return };
    let cluster = cluster(binaries, 1, false).await;
    let uri = format!("{}?max_connect_rate=2", cluster.conninfo());
    let connector = Connector::new(&uri).expect("a connector");
    let mut connects = JoinSet::new();
    for _ in 0..5 {
        let connector = connector.clone();
        connects.spawn(async move { connector.connect_within(PATIENCE).await.map(drop) });
    }
    connects.join_all().await.into_iter().collect::<Result<(), _>>().expect("all have their turn");
    let pace = connector.report().stages["pace"];
    // Two at once, and the others at two a second.
    assert!(pace.count >= 5 && pace.max_ms > 700.0, "{pace:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_query_and_an_error_of_the_application_are_no_outage() {
    let Some(binaries) = servers() else { return };
    let cluster = cluster(binaries, 1, false).await;
    let connector = connector(&cluster);
    let session = connector.connect_within(PATIENCE).await.expect("a session");
    session.batch_execute("CREATE TABLE u (n int UNIQUE); INSERT INTO u VALUES (1)").await.expect("a table");
    session.execute("SELECT pg_sleep(2)", &[]).await.expect("a slow query");
    let again = session.execute("INSERT INTO u VALUES (1)", &[]).await.map_err(|e| session.why().diagnose(e));
    assert!(again.is_err());
    tokio::time::sleep(Duration::from_secs(4)).await;
    let report = connector.report();
    assert!(report.outages.is_empty(), "{:#?}", report.outages);
    assert!(report.stages["blocked"].max_ms > 1_500.0, "{:?}", report.stages);
    assert_eq!(report.errors[0].sqlstate.as_deref(), Some("23505"));
}
