#![expect(
    clippy::disallowed_methods,
    clippy::print_stderr,
    reason = "a test against real servers: real time, and words for people"
)]
//! Real failovers of real clusters: a session is cut, and the next one stands on the new primary.

use std::time::{Duration, Instant};

use pgfollow::{Class, Connector};
use pgfollow_lab::{Cluster, ClusterOptions, Prober, monotonic_ns, servers};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blocked_write_on_a_frozen_primary_returns_and_the_next_lands_on_the_new_one() {
    let Some(binaries) = servers() else { return };
    let cluster = Cluster::start(ClusterOptions::new(binaries)).await.unwrap();
    let url = format!("{}?target_session_attrs=read-write", cluster.conninfo());
    let connector = Connector::new(&url).unwrap();
    let mut session = connector.connect_within(Duration::from_secs(10)).await.unwrap();
    session.batch_execute("CREATE TABLE t (n int)").await.unwrap();
    // What a READ ONLY block declared ends with it: the write below is none the more harmless.
    let block = session.build_transaction().read_only(true).start().await.unwrap();
    block.query_one("SELECT count(*) FROM t", &[]).await.unwrap();
    block.commit().await.unwrap();
    // The monitor looks around before anything breaks.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let prober = Prober::start(&cluster, 1).await.unwrap();
    cluster.node(0).freeze().await.unwrap();
    let why = session.why();
    let blocked = tokio::spawn(async move {
        let r = session.execute("INSERT INTO t VALUES (1)", &[]).await;
        (r.map_err(|e| why.diagnose(e)), monotonic_ns())
    });
    tokio::time::sleep(Duration::from_secs(2)).await;
    cluster.promote(1).await.unwrap();
    let ready = prober.ready(Duration::from_secs(10)).await.unwrap();
    let (result, at) = tokio::time::timeout(Duration::from_secs(5), blocked).await.unwrap().unwrap();
    let error = result.unwrap_err();
    eprintln!("cut {} ms after ready: {error}", (at as i64 - ready as i64) / 1_000_000);
    assert_eq!(error.class(), Class::UnknownOutcome);
    assert!(error.to_string().contains("superseded"), "{error}");
    let started = Instant::now();
    let session = connector.connect_within(Duration::from_secs(5)).await.unwrap();
    eprintln!("connected in {:?} to {}", started.elapsed(), session.candidate());
    session.execute("INSERT INTO t VALUES (2)", &[]).await.unwrap();
    assert!(
        session.candidate().to_string().contains(&cluster.node(1).host().to_string()),
        "{:?}",
        session.candidate()
    );
}

/// Logging in to a server that was just promoted means queueing with everybody else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_that_waits_for_a_promotion_gets_a_session_that_was_opened_before_it() {
    let Some(binaries) = servers() else { return };
    let cluster = Cluster::start(ClusterOptions::new(binaries)).await.unwrap();
    let url = format!("{}?target_session_attrs=read-write", cluster.conninfo());
    let connector = Connector::new(&url).unwrap();
    let session = connector.connect_within(Duration::from_secs(10)).await.unwrap();
    // The monitor looks around before anything breaks.
    tokio::time::sleep(Duration::from_secs(1)).await;
    cluster.node(0).kill().await.unwrap();
    while session.is_usable() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let waiting = tokio::spawn(async move {
        let session = connector.connect_within(Duration::from_secs(20)).await;
        (session, connector)
    });
    let on = |node: usize| {
        cluster.conninfo_to(&format!("{}:{}", cluster.node(node).host(), cluster.node(node).port()))
    };
    let ours = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgfollow'";
    for node in [1, 2] {
        let watcher = Connector::new(&format!("{}?monitor=off&application_name=watcher", on(node))).unwrap();
        let watcher = watcher.connect_within(Duration::from_secs(10)).await.unwrap();
        let opened = async {
            while watcher.query_one(ours, &[]).await.unwrap().get::<_, i64>(0) == 0 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), opened).await.expect("a session is opened ahead");
    }
    let promotion = std::time::SystemTime::now();
    cluster.promote(1).await.unwrap();
    let (session, connector) = tokio::time::timeout(Duration::from_secs(20), waiting).await.unwrap().unwrap();
    let session = session.unwrap();
    let started = "SELECT backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid()";
    let started: std::time::SystemTime = session.query_one(started, &[]).await.unwrap().get(0);
    assert!(started < promotion, "{started:?} is not before {promotion:?}");
    session.batch_execute("CREATE TABLE t ()").await.expect("it takes writes");
    // What nobody took is given back.
    let other = Connector::new(&format!("{}?monitor=off&application_name=watcher", on(2))).unwrap();
    let other = other.connect_within(Duration::from_secs(10)).await.unwrap();
    let closed = async {
        while other.query_one(ours, &[]).await.unwrap().get::<_, i64>(0) > 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), closed).await.expect("the other one is closed");
    drop(connector);
}
