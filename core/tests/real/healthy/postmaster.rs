//! The postmaster alone is in trouble: its children go on.

use std::time::{Duration, Instant};

use super::bench::{Bench, PATIENCE, works};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_postmaster_takes_no_call_with_it() {
    let Some(bench) = Bench::start().await else { return };
    let idle = bench.session().await;
    let calls = bench.calls(Duration::from_secs(7)).await;
    bench.cluster.node(0).freeze_postmaster_only().await.unwrap();
    // A caller's connect hangs and fails, and then the monitor's own dial does.
    let began = Instant::now();
    let patience = Duration::from_millis(1500);
    assert!(bench.connector.connect_within(patience).await.is_err(), "the postmaster still forks");
    eprintln!("a new session failed after {:?}", began.elapsed());
    for session in calls.succeed().await {
        works(&session).await;
    }
    works(&idle).await;
    bench.cluster.node(0).thaw().await.unwrap();
    works(&bench.session().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_insert_outlives_its_killed_postmaster_and_is_told_so() {
    let Some(bench) = Bench::start().await else { return };
    let (session, idle) = (bench.session().await, bench.session().await);
    // Busy all the time (one that waits notices the postmaster's death), and few rows: the disk doesn't matter.
    let sql = "INSERT INTO t SELECT n FROM (SELECT generate_series(1, $1::bigint) AS n) s
               WHERE md5(md5(n::text)) LIKE '00%'";
    // The rate of this machine now. It is shared, so the call may take half or twice as long.
    let (sample, began) = (100_000_i64, Instant::now());
    session.execute(sql, &[&sample]).await.unwrap();
    let rounds = 3.5 / began.elapsed().as_secs_f64();
    session.batch_execute("TRUNCATE t").await.unwrap();
    #[expect(clippy::cast_possible_truncation, reason = "a few million")]
    let rows = (sample as f64 * rounds) as i64;
    let began = Instant::now();
    let busy = tokio::spawn(async move {
        let done = session.execute(sql, &[&rows]).await;
        (done.map_err(|e| session.why().diagnose(e)), began.elapsed())
    });
    tokio::time::sleep(Duration::from_millis(300)).await;
    bench.cluster.node(0).kill_postmaster_only().await.unwrap();
    let error = bench.refused().await;
    assert!(!busy.is_finished(), "the INSERT was too short to be disturbed ({error})");
    let (done, took) = tokio::time::timeout(PATIENCE * 2, busy).await.unwrap().unwrap();
    eprintln!("{rows} rounds took {took:?}");
    let done = done.expect("the INSERT in flight");
    // Backends without a postmaster end when they next wait, so the session can't be used on.
    assert!(idle.execute("SELECT 1", &[]).await.is_err());
    bench.cluster.restart(0).await.unwrap();
    let session = bench.session().await;
    let kept: i64 = session.query_one("SELECT count(*) FROM t", &[]).await.unwrap().get(0);
    assert_eq!(u64::try_from(kept).unwrap(), done, "what was acknowledged is there");
    assert!(done > 0);
    works(&session).await;
}
