//! A slowed node, seen from its clients.
#![allow(clippy::print_stderr, reason = "tests tell why they are skipped")]

use std::time::{Duration, Instant};

use super::common::{any_binaries, app_session, cluster};

type Result<T = (), E = Box<dyn std::error::Error>> = std::result::Result<T, E>;

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_node_is_slow_for_all_its_sessions_can_be_promoted_and_is_quick_again_afterwards() -> Result {
    let Some(binaries) = any_binaries() else { return Ok(()) };
    let cluster = cluster(binaries, 2).await?;
    let (one, other) = (&app_session(&cluster, 1).await?, &app_session(&cluster, 1).await?);
    let work = async |session: &tokio_postgres::Client| -> Result<Duration> {
        let began = Instant::now();
        session.query_one("select count(*) from generate_series(1, 300000)", &[]).await?;
        Ok(began.elapsed())
    };
    let mut healthy = Duration::MAX;
    for _ in 0..5 {
        healthy = healthy.min(work(one).await?);
    }
    let slowed = cluster.slow_down(1, 5)?;
    assert!(cluster.slow_down(1, 5).is_err() && cluster.node(1).freeze().await.is_err());
    // A twentieth of the time: whatever else the machine does, the work takes many turns.
    let (a, b) = tokio::join!(work(one), work(other));
    let (a, b) = (a?, b?);
    assert!(a > healthy * 3 && b > healthy * 3, "{a:?} and {b:?}, {healthy:?} in health");
    cluster.promote(1).await?;
    assert!(!cluster.node(1).is_frozen() && cluster.node(1).postmaster_pid().is_some());
    drop(slowed);
    let mut again = Duration::MAX;
    for _ in 0..5 {
        again = again.min(work(one).await?);
    }
    assert!(again < a, "{again:?} when it is over, {a:?} before");
    cluster.slow_down(1, 50).map(drop)?;
    cluster.node(1).freeze().await?;
    cluster.node(1).kill().await?;
    assert!(cluster.slow_down(1, 50).is_err(), "it doesn't run");
    Ok(())
}
