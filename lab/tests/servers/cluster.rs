//! Real servers: start, replication, promotion, the way back.
#![allow(clippy::print_stderr, reason = "tests tell their figures")]

use std::time::{Duration, Instant};

use super::common::{any_binaries, app_session, binaries, cluster, processes_below};
use pgfollow_lab::{
    Cluster, ClusterOptions, LabError, Prober, StopMode, Tls, monotonic_ns, skipped, wait_for,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

type Result<T = (), E = Box<dyn std::error::Error>> = std::result::Result<T, E>;

async fn two_failovers(major: u32) -> Result {
    let Some(binaries) = binaries(major) else { return Ok(()) };
    let cluster = cluster(binaries, 3).await?;

    let session = app_session(&cluster, 0).await?;
    session.batch_execute("create table t (i int); insert into t values (1)").await?;
    let names: String = session.query_one("show synchronous_standby_names", &[]).await?.get(0);
    assert_eq!(names, "FIRST 1 (n2, n3)");
    let prober = Prober::start(&cluster, 1).await?;
    assert_eq!(prober.ready_now(), None, "a standby took a write");

    let at = monotonic_ns();
    cluster.node(0).kill().await?;
    cluster.promote(1).await?;
    let ready = prober.ready(Duration::from_secs(10)).await?;
    eprintln!("{} ready {:.1} ms after the kill", cluster.server_version(), (ready - at) as f64 / 1e6);
    let session = app_session(&cluster, 1).await?;
    let n: i64 = session.query_one("select count(*) from t", &[]).await?.get(0);
    assert_eq!(n, 1, "an acknowledged write is gone");

    synchronous_again(&cluster, 1).await?;
    let (third, at) = (app_session(&cluster, 2).await?, Instant::now());
    session.batch_execute("insert into t values (2)").await?;
    loop {
        let n: i64 = third.query_one("select count(*) from t", &[]).await?.get(0);
        if n == 2 {
            break;
        }
        assert!(at.elapsed() < Duration::from_secs(5), "the third node doesn't follow the new primary");
    }

    // Back as a standby (rewound), then primary again: a second failover.
    let began = Instant::now();
    cluster.restart(0).await?;
    eprintln!("{} back as standby in {:?}", cluster.server_version(), began.elapsed());
    assert!(cluster.node(0).is_standby_by_files());
    cluster.node(1).stop(StopMode::Fast).await?;
    cluster.promote(0).await?;
    let session = app_session(&cluster, 0).await?;
    let n: i64 = session.query_one("select count(*) from t", &[]).await?.get(0);
    assert_eq!(n, 2);

    let folder = cluster.folder().to_owned();
    assert!(processes_below(&folder) > 0);
    drop(cluster);
    assert_eq!(processes_below(&folder), 0);
    assert!(!folder.exists());
    Ok(())
}

async fn synchronous_again(cluster: &Cluster, node: usize) -> Result<(), LabError> {
    let session = &cluster.node(node).session().await?;
    pgfollow_lab::wait_for_async("a synchronous standby", Duration::from_secs(10), || async move {
        let sql = "select count(*) from pg_stat_replication where sync_state = 'sync'";
        let row = session.query_one(sql, &[]).await.map_err(|e| e.to_string())?;
        if row.get::<_, i64>(0) == 1 { Ok(()) } else { Err("none".to_owned()) }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn acknowledged_writes_survive_two_failovers_on_15() -> Result {
    two_failovers(15).await
}

#[tokio::test(flavor = "multi_thread")]
async fn acknowledged_writes_survive_two_failovers_on_18() -> Result {
    two_failovers(18).await
}

/// n3 gets some rows that n2 doesn't, and n2 is promoted.
async fn standby_ahead(major: u32, rows: i32) -> Result {
    let Some(binaries) = binaries(major) else { return Ok(()) };
    let cluster = cluster(binaries, 3).await?;
    app_session(&cluster, 0).await?.batch_execute("create table t (i int, filler text)").await?;
    let second = cluster.node(1).session().await?;
    // Its walreceiver ends. The file is mended before the promotion: a rewind would copy it to n3.
    second.batch_execute("alter system set primary_conninfo = ''").await?;
    second.batch_execute("select pg_reload_conf()").await?;
    let receivers = || async {
        let row = second.query_one("select count(*) from pg_stat_wal_receiver", &[]).await;
        let n: i64 = row.map_err(|e| e.to_string())?.get(0);
        if n == 0 { Ok(()) } else { Err("still receiving".to_owned()) }
    };
    pgfollow_lab::wait_for_async("n2 to be cut off", Duration::from_secs(20), receivers).await?;
    second.batch_execute("alter system reset primary_conninfo").await?;
    // Acknowledged by n3, which is the synchronous one now.
    let sql = format!("insert into t select i, repeat('x', 1000) from generate_series(1, {rows}) i");
    app_session(&cluster, 0).await?.batch_execute(&sql).await?;

    cluster.node(0).kill().await?;
    cluster.promote(1).await?;
    app_session(&cluster, 1).await?.batch_execute("insert into t values (-1)").await?;
    let follows = || async {
        let third = app_session(&cluster, 2).await.map_err(|e| e.to_string())?;
        let all = third.query("select i from t", &[]).await.map_err(|e| e.to_string())?;
        if all.len() == 1 && all[0].get::<_, i32>(0) == -1 {
            Ok(())
        } else {
            Err(format!("{} rows", all.len()))
        }
    };
    pgfollow_lab::wait_for_async("n3 to follow n2", Duration::from_secs(60), follows).await?;
    synchronous_again(&cluster, 1).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn standby_that_received_more_than_the_promoted_one_comes_back_by_itself_on_15() -> Result {
    standby_ahead(15, 1).await
}

#[tokio::test(flavor = "multi_thread")]
async fn standby_that_is_segments_ahead_of_the_promoted_one_comes_back_by_itself_on_18() -> Result {
    standby_ahead(18, 4000).await
}

#[tokio::test(flavor = "multi_thread")]
async fn two_clusters_are_never_taken_for_one() -> Result {
    let Some(binaries) = any_binaries() else { return Ok(()) };
    let (a, b) = tokio::try_join!(cluster(binaries.clone(), 1), cluster(binaries, 1))?;
    let mut ids = Vec::new();
    for c in [&a, &b] {
        let session = c.node(0).session().await?;
        let row = session.query_one("select system_identifier from pg_control_system()", &[]).await?;
        ids.push(row.get::<_, i64>(0));
    }
    assert_ne!(ids[0], ids[1]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn split_brain_lets_both_primaries_write() -> Result {
    let Some(binaries) = any_binaries() else { return Ok(()) };
    let cluster = cluster(binaries, 3).await?;
    cluster.promote_alone(1).await?;
    for node in [0, 1] {
        app_session(&cluster, node).await?.batch_execute("create table written (i int)").await?;
    }
    // The promoted one has left a history that it can't come back from without a rewind.
    cluster.restart_as_standby(1, 0).await?;
    wait_for("the rejoined node", Duration::from_secs(5), || cluster.node(1).is_standby_by_files()).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn frozen_primary_does_not_hold_up_its_replacement() -> Result {
    let Some(binaries) = any_binaries() else { return Ok(()) };
    let cluster = cluster(binaries, 3).await?;
    let prober = Prober::start(&cluster, 1).await?;
    let at = monotonic_ns();
    cluster.node(0).freeze().await?;
    cluster.promote(1).await?;
    let took = prober.ready(Duration::from_secs(10)).await? - at;
    eprintln!("ready {:.1} ms after the freeze", took as f64 / 1e6);
    synchronous_again(&cluster, 1).await?;
    // Thawed, the old one has no standby left: its commits wait for ever, they are not acknowledged.
    cluster.node(0).thaw().await?;
    let old = app_session(&cluster, 0).await?;
    let write = old.batch_execute("create table stale (i int)");
    let acknowledged = tokio::time::timeout(Duration::from_millis(300), write).await;
    assert!(acknowledged.is_err(), "{acknowledged:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_and_own_authentication_rules_reach_the_server() -> Result {
    let Some(binaries) = binaries(15) else { return Ok(()) };
    if !binaries.has_tls() {
        skipped("these servers were built without TLS");
        return Ok(());
    }
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()])?;
    let mut options = ClusterOptions::new(binaries);
    options.nodes = 1;
    let (certificate, key) = (made.cert.pem(), made.signing_key.serialize_pem());
    options.tls = Some(Tls { certificate, key, client_ca: None });
    options.settings = vec![("password_encryption".into(), "md5".into())];
    let all = "127.0.0.0/8";
    options.hba = Some(format!("host all postgres {all} scram-sha-256\nhost all app {all} md5\n"));
    let cluster = Cluster::start(options).await?;
    app_session(&cluster, 0).await?;
    let mut socket = tokio::net::TcpStream::connect((cluster.node(0).host(), cluster.node(0).port())).await?;
    // SSLRequest: length 8, code 80877103.
    socket.write_all(&[0, 0, 0, 8, 4, 210, 22, 47]).await?;
    assert_eq!(socket.read_u8().await?, b'S');
    Ok(())
}

/// Started as a program of its own by the test below, with this in its environment.
const OWNER: &str = "PGFOLLOW_LAB_TEST_OWNER";

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_owner_leaves_nothing_behind() -> Result {
    let Some(binaries) = any_binaries() else { return Ok(()) };
    if std::env::var_os(OWNER).is_some() {
        let cluster = cluster(binaries, 2).await?;
        // The hardest case: what is frozen can't end by itself.
        cluster.node(1).freeze().await?;
        eprintln!("FOLDER {}", cluster.folder().display());
        std::future::pending::<()>().await;
    }
    let mut owner = std::process::Command::new(std::env::current_exe()?)
        .args(["--exact", "cluster::a_killed_owner_leaves_nothing_behind", "--nocapture"])
        .env(OWNER, "1")
        .stderr(std::process::Stdio::piped())
        .spawn()?;
    let stderr = std::io::BufReader::new(owner.stderr.take().expect("piped"));
    let folder = std::io::BufRead::lines(stderr)
        .map_while(std::io::Result::ok)
        .find_map(|l| l.strip_prefix("FOLDER ").map(std::path::PathBuf::from))
        .expect("the owner's cluster");
    assert!(processes_below(&folder) > 0);
    owner.kill()?;
    owner.wait()?;
    let gone = || processes_below(&folder) == 0 && !folder.exists();
    wait_for("the keeper to clear away", Duration::from_secs(10), gone).await?;
    Ok(())
}

async fn identifiers(major: u32) -> Result {
    let Some(binaries) = binaries(major) else { return Ok(()) };
    let mut seen = std::collections::BTreeSet::new();
    // The first makes its data anew, the others copy a template.
    for _ in 0..3 {
        let cluster = cluster(binaries.clone(), 2).await?;
        let sql = "select system_identifier::text from pg_control_system()";
        let row = cluster.node(0).session().await?.query_one(sql, &[]).await?;
        assert!(seen.insert(row.get::<_, String>(0)), "twice: {row:?}");
        cluster.promote(1).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn two_clusters_of_a_process_never_look_like_one_15() -> Result {
    identifiers(15).await
}

#[tokio::test(flavor = "multi_thread")]
async fn two_clusters_of_a_process_never_look_like_one_18() -> Result {
    identifiers(18).await
}
