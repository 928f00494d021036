#![expect(clippy::disallowed_methods, reason = "tests against real servers: real time")]
//! A transaction between two of its statements is work under way, though nothing of it is out.

use std::time::Duration;

use pgfollow::{Connector, Session};
use pgfollow_lab::{Cluster, ClusterOptions, servers, wait_for};

const PATIENCE: Duration = Duration::from_secs(20);

async fn one() -> Option<(Cluster, Connector)> {
    let mut options = ClusterOptions::new(servers()?);
    (options.nodes, options.sync) = (1, false);
    let cluster = Cluster::start(options).await.expect("a cluster");
    let uri = format!("{}?target_session_attrs=read-write", cluster.conninfo());
    Some((cluster, Connector::new(&uri).expect("a connector")))
}

async fn pid(session: &Session) -> i32 {
    session.query_one("SELECT pg_backend_pid()", &[]).await.expect("its pid").get(0)
}

fn signal(pid: i32, name: &str) {
    let done = std::process::Command::new("kill").args([name, &pid.to_string()]).status();
    assert!(done.expect("kill").success());
}

/// A path that was dropped on the way (a firewall's idle limit), or one backend that is stuck.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_sibling_ends_no_transaction_that_stands_between_two_statements() {
    let Some((_cluster, connector)) = one().await else { return };
    let pool = connector.pool_with(|o| o.max_conns(2)).expect("a pool");
    let mut working = pool.acquire_within(PATIENCE).await.expect("a session");
    let silent = pool.acquire_within(PATIENCE).await.expect("another session");
    working.batch_execute("CREATE TABLE w (n int)").await.expect("a table");
    let stuck = pid(&silent).await;
    drop(silent);
    let tx = working.transaction().await.expect("a transaction");
    tx.execute("INSERT INTO w VALUES (1)", &[]).await.expect("a row");
    signal(stuck, "-STOP");
    // Longer than an idle session is lent without a ping.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    let got = pool.acquire_within(PATIENCE).await.map(drop);
    signal(stuck, "-CONT");
    got.expect("another session was opened");
    tx.execute("INSERT INTO w VALUES (2)", &[]).await.expect("its server is well");
    tx.commit().await.expect("its server is well");
}

/// "Old sessions get 25006, an open transaction still commits."
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fence_ends_no_transaction_that_stands_between_two_statements() {
    let Some((cluster, connector)) = one().await else { return };
    let mut session = connector.connect_within(PATIENCE).await.expect("a session");
    session.batch_execute("CREATE TABLE w (n int)").await.expect("a table");
    let before = connector.topology().hosts[0].generation;
    let tx = session.transaction().await.expect("a transaction");
    tx.execute("INSERT INTO w VALUES (1)", &[]).await.expect("a row");
    cluster.node(0).demote().await.expect("fenced");
    wait_for("the fence to be seen", PATIENCE, || connector.topology().hosts[0].generation > before)
        .await
        .expect("the monitor asks");
    tokio::time::sleep(Duration::from_millis(200)).await;
    tx.execute("INSERT INTO w VALUES (2)", &[]).await.expect("it began before the fence");
    tx.commit().await.expect("it began before the fence");
    assert!(!session.is_usable(), "the next one would be refused");
}
