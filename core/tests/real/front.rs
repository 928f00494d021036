//! Servers that aren't a stock PostgreSQL 15 with SCRAM: a pooler in front, other logins, an old version. Default
//! settings log in there and work, and nothing is taken for a failover.
#![expect(clippy::disallowed_methods, reason = "tests against real servers: real time, and words for people")]

use std::time::{Duration, Instant};

use crate::support::hosts::{Hosts, Kind, Place};
use pgfollow::decide::topology::{State, TopologyEvent};
use pgfollow::{Code, Connector, Event, EventKind, Session};
use pgfollow_lab::wire::{Options, Role, Seen, canned};
use pgfollow_lab::{Cluster, ClusterOptions, LabError, PoolMode, StopMode, servers, skipped};
use tokio::sync::broadcast::Receiver;

/// Longer than any login takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);
/// Two full rounds of whatever the monitor does every few seconds.
const A_WHILE: Duration = Duration::from_secs(10);

async fn one_node(change: impl FnOnce(&mut ClusterOptions)) -> Option<Cluster> {
    let mut options = ClusterOptions::new(servers()?);
    options.nodes = 1;
    change(&mut options);
    Some(Cluster::start(options).await.expect("a cluster"))
}

/// What a service does: statements, a transaction that commits, one that rolls back.
async fn work(session: &mut Session, table: &str) {
    session.batch_execute(&format!("CREATE TABLE {table} (n int)")).await.expect("a table");
    let insert = format!("INSERT INTO {table} VALUES (1)");
    // Unnamed statements: named ones don't survive a change of the server connection, with any driver.
    session.execute_typed(&insert, &[]).await.expect("an insert");
    let tx = session.transaction().await.expect("a transaction");
    tx.execute_typed(&insert, &[]).await.expect("an insert in the transaction");
    tx.commit().await.expect("a commit");
    let tx = session.transaction().await.expect("another transaction");
    tx.execute_typed(&insert, &[]).await.expect("another insert");
    tx.rollback().await.expect("a rollback");
    let rows = session.query_typed(&format!("SELECT n FROM {table}"), &[]).await.expect("rows");
    assert_eq!(rows.len(), 2);
}

/// Uses a session now and then for a while; it must not notice anything, and nothing may be judged.
async fn left_alone(connector: &Connector, session: &Session, events: &mut Receiver<Event>) {
    let end = Instant::now() + A_WHILE;
    while Instant::now() < end {
        session.batch_execute("SELECT 1").await.expect("a query");
        // Long enough to be idle, and to make the monitor ask for itself.
        tokio::time::sleep(Duration::from_millis(1_500)).await;
    }
    assert!(session.is_usable() && session.ended().is_none(), "{session:?}");
    while let Ok(event) = events.try_recv() {
        let verdict = matches!(
            event.kind,
            EventKind::SessionEnded { .. }
                | EventKind::Topology(
                    TopologyEvent::Cleared { .. }
                        | TopologyEvent::Conflict { .. }
                        | TopologyEvent::NewPrimary { before: Some(_), .. }
                )
        );
        assert!(!verdict, "{event:?}");
    }
    // A hiccup of a busy machine may leave it in doubt for a moment, and no more than that.
    let end = Instant::now() + Duration::from_secs(5);
    loop {
        let snapshot = connector.topology();
        let states: Vec<_> = snapshot.hosts.iter().map(|h| (h.state, h.generation)).collect();
        if states == [(State::Primary, 0)] {
            return;
        }
        assert!(Instant::now() < end, "{snapshot:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn behind_pgbouncer(mode: PoolMode) {
    let Some(cluster) = one_node(|_| ()).await else { return };
    let pooler = match cluster.pooler(0, mode).await {
        Ok(p) => p,
        Err(e @ LabError::Binaries(_)) => return skipped(e),
        Err(e) => panic!("{e}"),
    };
    let conninfo = cluster.conninfo_to(&format!("127.0.0.1:{}", pooler.port()));
    for (table, attrs) in [("plain", ""), ("wanted", "?target_session_attrs=read-write")] {
        let connector = Connector::new(&format!("{conninfo}{attrs}")).expect("a connector");
        let mut events = connector.events();
        let mut session = match connector.connect_within(PATIENCE).await {
            Ok(s) => s,
            Err(e) => panic!("{e}\n{}", pooler.log()),
        };
        // Beside it another one, so that in transaction mode the two share server connections.
        let other = connector.connect_within(PATIENCE).await.expect("another session");
        work(&mut session, table).await;
        assert_eq!(session.role().in_hot_standby, Some(false));
        if attrs.is_empty() {
            left_alone(&connector, &session, &mut events).await;
        }
        other.batch_execute("SELECT 1").await.expect("the other session works too");
        let target = connector.locate(PATIENCE).await.expect("a foreign driver is sent there");
        let options = target.keywords().into_iter().find(|(key, _)| key == "options");
        assert_eq!(options, None, "PgBouncer refuses a login with options that it doesn't know");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pgbouncer_by_session_is_no_failover_and_refuses_no_startup_parameter() {
    behind_pgbouncer(PoolMode::Session).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pgbouncer_by_transaction_is_no_failover_and_refuses_no_startup_parameter() {
    behind_pgbouncer(PoolMode::Transaction).await;
}

/// PgBouncer greets every client with what the first server connection told it, in_hot_standby included, and keeps its
/// server connections over a promotion.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_promoted_behind_pgbouncer_is_writable_though_the_greeting_denies_it() {
    let Some(cluster) = one_node(|o| o.nodes = 2).await else { return };
    let pooler = match cluster.pooler(1, PoolMode::Transaction).await {
        Ok(p) => p,
        Err(e @ LabError::Binaries(_)) => return skipped(e),
        Err(e) => panic!("{e}"),
    };
    let conninfo = cluster.conninfo_to(&format!("127.0.0.1:{}", pooler.port()));
    let standby = Connector::new(&format!("{conninfo}?target_session_attrs=standby")).expect("a connector");
    let session = standby.connect_within(PATIENCE).await.expect("a session on the standby");
    session.batch_execute("SELECT 1").await.expect("a query");
    cluster.node(0).kill().await.expect("killed");
    cluster.promote(1).await.expect("promoted");
    let primary =
        Connector::new(&format!("{conninfo}?target_session_attrs=read-write")).expect("a connector");
    let mut session = match primary.connect_within(PATIENCE).await {
        Ok(s) => s,
        Err(e) => panic!("{e}\n{}", pooler.log()),
    };
    assert_eq!(session.role().in_hot_standby, Some(false), "the old greeting");
    work(&mut session, "t").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_came_back_as_a_standby_behind_pgbouncer_is_not_taken_for_writable() {
    let Some(cluster) = one_node(|o| o.nodes = 2).await else { return };
    let pooler = match cluster.pooler(0, PoolMode::Transaction).await {
        Ok(p) => p,
        Err(e @ LabError::Binaries(_)) => return skipped(e),
        Err(e) => panic!("{e}"),
    };
    let conninfo = cluster.conninfo_to(&format!("127.0.0.1:{}", pooler.port()));
    let conninfo = format!("{conninfo}?target_session_attrs=read-write");
    let connector = Connector::new(&conninfo).expect("a connector");
    drop(connector.connect_within(PATIENCE).await.expect("a session on the primary"));
    cluster.node(0).stop(StopMode::Fast).await.expect("stopped");
    cluster.promote(1).await.expect("promoted");
    cluster.restart_as_standby(0, 1).await.expect("a standby");
    // One that knows nothing yet, so the greeting is all it has at first. PgBouncer may need a moment to log in again.
    let fresh = Connector::new(&conninfo).expect("a connector");
    let end = Instant::now() + PATIENCE;
    loop {
        match fresh.connect().await {
            Err(e) if e.code() == Code::WrongRole => return,
            Err(e) => assert!(Instant::now() < end, "{e}"),
            // Until it finds a server again PgBouncer greets from what it remembers, and ends the session by its first
            // statement: harmless.
            Ok(s) => {
                let asked = s.simple_query("SELECT 1").await;
                assert!(asked.is_err(), "{s:?} passes for writable: {:?}", s.role());
            }
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_with_md5_passwords_lets_default_settings_in() {
    let md5 = "host all all 127.0.0.0/8 md5\nhost replication all 127.0.0.0/8 md5\n";
    let change = |o: &mut ClusterOptions| {
        o.hba = Some(md5.to_owned());
        o.settings.push(("password_encryption".to_owned(), "md5".to_owned()));
    };
    let Some(cluster) = one_node(change).await else { return };
    let admin = cluster.node(0).session().await.expect("the lab's session");
    let row = admin.query_one("SELECT rolpassword FROM pg_authid WHERE rolname = 'app'", &[]).await;
    let kept: String = row.expect("the password's hash").get(0);
    assert!(kept.starts_with("md5"), "the server kept no MD5 hash, so it asks for SCRAM");
    let connector = Connector::new(&cluster.conninfo()).expect("a connector");
    let mut session = connector.connect_within(PATIENCE).await.expect("a session");
    work(&mut session, "t").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_trusts_everybody_lets_default_settings_in_without_a_password() {
    let trust = "host all all 127.0.0.0/8 trust\nhost replication all 127.0.0.0/8 trust\n";
    let Some(cluster) = one_node(|o| o.hba = Some(trust.to_owned())).await else { return };
    let node = cluster.node(0);
    let conninfo = format!("postgresql://app@{}:{}/app", node.host(), node.port());
    let connector = Connector::new(&conninfo).expect("a connector");
    let mut session = connector.connect_within(PATIENCE).await.expect("a session");
    work(&mut session, "t").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgresql_13_which_tells_no_role_is_asked_for_it() {
    let place = |label: &str, role| {
        let script = canned::server("13.9", role);
        let place = Place { label: label.to_owned(), kind: Kind::Scripts(vec![script]) };
        (label.to_owned(), vec![place])
    };
    let servers = [place("standby", Role::Standby), place("primary", Role::Primary)];
    let hosts = Hosts::start(&servers, &Options::default()).await.expect("servers");
    for (attrs, wanted) in [
        ("read-write", "primary"),
        ("primary", "primary"),
        ("standby", "standby"),
        ("read-only", "standby"),
        ("prefer-standby", "standby"),
    ] {
        let list = format!("{},{}", hosts.ip("standby"), hosts.ip("primary"));
        let conninfo =
            format!("host={list} port={} user=u dbname=d target_session_attrs={attrs}", hosts.port);
        let connector = Connector::new(&conninfo).expect("a connector");
        let mut session = connector.connect_within(PATIENCE).await.expect(attrs);
        assert_eq!(hosts.label_at(session.address()), wanted, "{attrs}");
        let done = session.batch_execute("SELECT 1").await;
        done.unwrap_or_else(|e| panic!("{attrs}: {}", session.why().diagnose(e)));
        let tx = session.transaction().await.expect("a transaction");
        tx.execute_typed("INSERT INTO t VALUES (1)", &[]).await.expect("an insert");
        tx.commit().await.expect("a commit");
    }
    // Nobody tells, so somebody must have asked; and only for what the version has.
    let seen = hosts.seen("primary");
    let all: Vec<&str> = seen.iter().flat_map(Seen::texts).collect();
    assert!(all.contains(&"SHOW transaction_read_only"), "{all:?}");
    assert!(all.iter().all(|q| !q.contains("in_hot_standby")), "{all:?}");

    // One host and nothing else in the string: libpq's `any`, and the monitor's questions find the primary.
    let conninfo = format!("host={} port={} user=u dbname=d", hosts.ip("primary"), hosts.port);
    let connector = Connector::new(&conninfo).expect("a connector");
    let mut events = connector.events();
    let session = connector.connect_within(PATIENCE).await.expect("a session");
    left_alone(&connector, &session, &mut events).await;
    drop(session);
    hosts.stop().await;
}
