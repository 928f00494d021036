//! Faults of one real server, seen from its clients.
#![allow(clippy::print_stderr, reason = "tests tell why they are skipped")]

use std::time::Duration;

use super::common::{any_binaries, app_session, cluster};
use pgfollow_lab::{Cluster, StopMode, netns, wait_for};
use tokio::time::timeout;

type Result<T = (), E = Box<dyn std::error::Error>> = std::result::Result<T, E>;

const SOON: Duration = Duration::from_secs(5);
const A_WHILE: Duration = Duration::from_millis(300);

async fn single() -> Result<Option<Cluster>> {
    let Some(binaries) = any_binaries() else { return Ok(None) };
    Ok(Some(cluster(binaries, 1).await?))
}

#[tokio::test(flavor = "multi_thread")]
async fn frozen_server_is_silent_and_goes_on_where_it_was() -> Result {
    let Some(cluster) = single().await? else { return Ok(()) };
    let node = cluster.node(0);
    let session = app_session(&cluster, 0).await?;
    node.freeze().await?;
    assert!(node.is_frozen());
    let mut query = std::pin::pin!(session.query_one("select 1", &[]));
    assert!(timeout(A_WHILE, &mut query).await.is_err(), "a frozen server answered");
    assert!(timeout(A_WHILE, app_session(&cluster, 0)).await.is_err(), "a frozen server took a session");
    node.thaw().await?;
    timeout(SOON, query).await??;
    assert!(!node.is_frozen());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn frozen_postmaster_leaves_old_sessions_alone() -> Result {
    let Some(cluster) = single().await? else { return Ok(()) };
    let session = app_session(&cluster, 0).await?;
    cluster.node(0).freeze_postmaster_only().await?;
    timeout(SOON, session.query_one("select 1", &[])).await??;
    assert!(timeout(A_WHILE, app_session(&cluster, 0)).await.is_err());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn busy_statement_outlives_its_killed_postmaster() -> Result {
    let Some(cluster) = single().await? else { return Ok(()) };
    let session = app_session(&cluster, 0).await?;
    session.batch_execute("create table t (i int)").await?;
    // Busy, not waiting: a backend that waits sees its postmaster die.
    let mut busy = std::pin::pin!(session.execute("insert into t select generate_series(1, 1000000)", &[]));
    assert!(timeout(Duration::from_millis(20), &mut busy).await.is_err(), "done before the kill");
    cluster.node(0).kill_postmaster_only().await?;
    assert!(cluster.node(0).postmaster_pid().is_none());
    assert_eq!(timeout(Duration::from_secs(20), busy).await??, 1_000_000);
    cluster.node(0).start().await?;
    let n: i64 = app_session(&cluster, 0).await?.query_one("select count(*) from t", &[]).await?.get(0);
    assert_eq!(n, 1_000_000);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn demoted_server_refuses_writes_of_old_and_new_sessions() -> Result {
    let Some(cluster) = single().await? else { return Ok(()) };
    let old = app_session(&cluster, 0).await?;
    old.batch_execute("create table t (i int)").await?;
    cluster.node(0).demote().await?;
    let new = app_session(&cluster, 0).await?;
    for session in [&old, &new] {
        let e =
            session.execute("insert into t values (1)", &[]).await.expect_err("a write on a demoted server");
        assert_eq!(e.code().map(|c| c.code()), Some("25006"));
    }
    cluster.node(0).undemote().await?;
    app_session(&cluster, 0).await?.execute("insert into t values (1)", &[]).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn full_server_refuses_with_53300_until_freed() -> Result {
    let Some(cluster) = single().await? else { return Ok(()) };
    let held = cluster.exhaust_connections(0).await?;
    assert!(held.count() >= 90, "{}", held.count());
    let e = app_session(&cluster, 0).await.expect_err("a session on a full server");
    assert_eq!(e.code().map(|c| c.code()), Some("53300"));
    cluster.node(0).session().await?;
    drop(held);
    pgfollow_lab::wait_for_async("a free connection", SOON, || async {
        app_session(&cluster, 0).await.map(|_| ()).map_err(|e| e.to_string())
    })
    .await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn smart_shutdown_waits_for_its_sessions() -> Result {
    let Some(cluster) = single().await? else { return Ok(()) };
    let node = cluster.node(0);
    let session = app_session(&cluster, 0).await?;
    node.stop(StopMode::Smart).await?;
    pgfollow_lab::wait_for_async("new sessions to be refused", SOON, || async {
        match app_session(&cluster, 0).await {
            Err(e) if e.code().map(|c| c.code()) == Some("57P03") => Ok(()),
            other => Err(format!("{:?}", other.map(|_| ()))),
        }
    })
    .await?;
    session.query_one("select 1", &[]).await?;
    drop(session);
    wait_for("the server's end", SOON, || !node.is_alive()).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn stopped_and_killed_servers_come_back() -> Result {
    let Some(cluster) = single().await? else { return Ok(()) };
    let node = cluster.node(0);
    app_session(&cluster, 0).await?.batch_execute("create table t (i int)").await?;
    node.stop(StopMode::Fast).await?;
    assert!(node.stop(StopMode::Fast).await.is_err(), "stopping what is down is a mistake");
    node.start().await?;
    node.stop(StopMode::Immediate).await?;
    node.start().await?;
    node.freeze().await?;
    node.kill().await?;
    node.start().await?;
    app_session(&cluster, 0).await?.batch_execute("insert into t values (1)").await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn cut_outside_a_private_namespace_is_refused() -> Result {
    if netns::is_private() {
        return Ok(());
    }
    let Some(cluster) = single().await? else { return Ok(()) };
    assert!(cluster.cut(0).is_err());
    Ok(())
}
