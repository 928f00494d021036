//! A black hole in a private network namespace: no error and no byte, in both directions, and back.
//!
//! The test runs its own program again inside the namespace.
#![allow(clippy::print_stderr, reason = "tests tell why they are skipped")]

use std::time::{Duration, Instant};

use super::common::{any_binaries, app_session, cluster};
use pgfollow_lab::{Cluster, Prober, monotonic_ns, netns, wait_for_async};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

type Result<T = (), E = Box<dyn std::error::Error>> = std::result::Result<T, E>;

const SOON: Duration = Duration::from_secs(10);
const A_WHILE: Duration = Duration::from_millis(700);

#[tokio::test(flavor = "multi_thread")]
async fn black_hole_gives_neither_error_nor_byte() -> Result {
    // Found outside: inside there is no network to fetch them from.
    let Some(binaries) = any_binaries() else { return Ok(()) };
    if !netns::alone(black_hole_gives_neither_error_nor_byte).await {
        return Ok(());
    }
    assert!(std::net::UdpSocket::bind("127.0.0.1:53").is_ok(), "port 53 is closed");
    assert!(std::fs::read_to_string("/etc/resolv.conf")?.starts_with("nameserver 127.0.0.1"));
    let cluster = cluster(binaries, 3).await?;
    session_over_the_hole(&cluster).await?;
    raw_socket_over_the_hole(&cluster).await?;
    cut_standby_loses_its_primary(&cluster).await?;
    cut_primary_is_replaced(&cluster).await
}

/// A query over an established session: silence while cut, its answer after the heal.
async fn session_over_the_hole(cluster: &Cluster) -> Result {
    let session = app_session(cluster, 0).await?;
    let beside = app_session(cluster, 1).await?;
    cluster.cut(0)?;
    let mut query = std::pin::pin!(session.query_one("select 1", &[]));
    assert!(timeout(A_WHILE, &mut query).await.is_err(), "something came through");
    beside.query_one("select 1", &[]).await?;
    cluster.heal(0)?;
    // TCP sends again by itself.
    timeout(SOON, query).await??;
    replicating(cluster, 2).await
}

/// The bare socket: writing succeeds, reading waits, connecting hangs.
async fn raw_socket_over_the_hole(cluster: &Cluster) -> Result {
    let address = (cluster.node(0).host(), cluster.node(0).port());
    let mut open = TcpStream::connect(address).await?;
    cluster.cut(0)?;
    let cut_at = Instant::now();
    let mut byte = [0];
    while cut_at.elapsed() < A_WHILE {
        // The start of an SSLRequest; the server waits for the rest anyway.
        open.write_all(&[0]).await?;
        let read = timeout(Duration::from_millis(100), open.read(&mut byte)).await;
        assert!(read.is_err(), "{read:?}");
    }
    let connect = timeout(A_WHILE, TcpStream::connect(address)).await;
    assert!(connect.is_err(), "{connect:?}");
    assert_eq!(open.take_error()?.map(|e| e.to_string()), None);
    cluster.heal(0)?;
    timeout(SOON, TcpStream::connect(address)).await??;
    replicating(cluster, 2).await
}

/// Cutting n2 also stops what n2 reads from n1; the third node carries the commits on.
async fn cut_standby_loses_its_primary(cluster: &Cluster) -> Result {
    let session = app_session(cluster, 0).await?;
    session.batch_execute("create table t (i int)").await?;
    cluster.cut(1)?;
    // n2 is the synchronous one: its silence holds the commit up.
    let mut insert = std::pin::pin!(session.execute("insert into t values (1)", &[]));
    assert!(timeout(A_WHILE, &mut insert).await.is_err(), "a commit got through to a cut standby");
    cluster.heal(1)?;
    timeout(SOON, insert).await??;
    replicating(cluster, 2).await
}

/// Nobody may wait for the primary behind the hole: not the promotion, not the standby that changes sides.
async fn cut_primary_is_replaced(cluster: &Cluster) -> Result {
    let prober = Prober::start(cluster, 1).await?;
    cluster.cut(0)?;
    let cut_at = monotonic_ns();
    cluster.promote(1).await?;
    let took = prober.ready(SOON).await? - cut_at;
    eprintln!("ready {:.1} ms after the cut", took as f64 / 1e6);
    wait_for_async("the third node to change sides", SOON, || async {
        let session = cluster.node(1).session().await.map_err(|e| e.to_string())?;
        let sql =
            "select count(*) from pg_stat_replication where application_name = 'n3' and sync_state = 'sync'";
        let row = session.query_one(sql, &[]).await.map_err(|e| e.to_string())?;
        if row.get::<_, i64>(0) == 1 { Ok(()) } else { Err("not yet".to_owned()) }
    })
    .await?;
    cluster.heal(0)?;
    cluster.restart(0).await?;
    Ok(())
}

async fn replicating(cluster: &Cluster, standbys: i64) -> Result {
    let session = &cluster.node(0).session().await?;
    wait_for_async("replication to go on", Duration::from_secs(20), || async move {
        let sql = "select count(*) from pg_stat_replication where replay_lsn = pg_current_wal_lsn()";
        let row = session.query_one(sql, &[]).await.map_err(|e| e.to_string())?;
        let n: i64 = row.get(0);
        if n == standbys { Ok(()) } else { Err(format!("{n} of {standbys}")) }
    })
    .await?;
    Ok(())
}
