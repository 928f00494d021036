#![expect(clippy::disallowed_methods, reason = "a test against real servers: real time")]
//! po-h02: a host that drops packets while a pool's sessions are lent and fifty callers come.

use std::time::{Duration, Instant};

use pgfollow::{Class, Connector};
use pgfollow_lab::{Binaries, Cluster, ClusterOptions, netns, servers, wait_for};

const ENOUGH: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_callers_of_a_black_holed_pool_are_all_answered_in_time_and_it_fills_again() {
    let Some(binaries) = servers() else { return };
    if netns::alone(fifty_callers_of_a_black_holed_pool_are_all_answered_in_time_and_it_fills_again).await {
        black_hole(binaries).await;
    }
}

async fn black_hole(binaries: Binaries) {
    let cases = crate::support::vectors("pool/hand.jsonl");
    let case = cases.iter().find(|c| c["id"] == "po-h02").expect("the case");
    let (settings, expect) = (&case["input"]["settings"], &case["expect"]);
    let ms = |v: &serde_json::Value| Duration::from_millis(v.as_u64().expect("ms"));
    let size = usize::try_from(case["input"]["size"].as_u64().expect("a size")).unwrap();
    let mut options = ClusterOptions::new(binaries);
    options.nodes = 1;
    let cluster = Cluster::start(options).await.unwrap();
    let url = format!("{}?tcp_user_timeout={}", cluster.conninfo(), settings["tcp_user_timeout_ms"]);
    let pool = Connector::new(&url).unwrap().pool_with(|o| o.max_conns(size).min_conns(size)).unwrap();
    let mut lent = Vec::new();
    for _ in 0..size {
        lent.push(pool.acquire_within(ENOUGH).await.unwrap());
    }
    cluster.cut(0).unwrap();
    let deadline = ms(&settings["query_deadline_ms"]);
    let mut queries = tokio::task::JoinSet::new();
    for session in lent {
        queries.spawn(async move {
            let call = session.execute("SELECT 1", &[]);
            session.within(deadline, call).await.map(drop)
        });
    }
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..50 {
        let (pool, patience) = (pool.clone(), ms(&settings["acquire_timeout_ms"]));
        callers.spawn(async move {
            let began = Instant::now();
            let e = pool.acquire_within(patience).await.expect_err("nothing can be had");
            (began.elapsed(), e)
        });
    }
    for (took, e) in callers.join_all().await {
        assert!(took <= ms(&expect["every_borrower_answered_within_ms"]), "{took:?}: {e}");
        assert_eq!(e.class(), Class::Transient, "{e}");
    }
    for result in queries.join_all().await {
        result.expect_err("no answer came");
    }
    cluster.heal(0).unwrap();
    let back =
        Duration::from_secs(expect["pool_full_again_within_s_after_host_returns"].as_u64().expect("s"));
    wait_for("the pool to be full again", back, || pool.stats().now.idle == size).await.unwrap();
}
