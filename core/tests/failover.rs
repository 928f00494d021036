#![expect(
    clippy::disallowed_methods,
    clippy::print_stderr,
    reason = "a test against real servers: real time, and words for people"
)]
//! Real failovers of real clusters: a session is cut, and the next one stands on the new primary.

use std::time::{Duration, Instant};

use pgfollow::{Class, Connector};
use pgfollow_lab::{Binaries, BinaryOptions, Cluster, ClusterOptions, Prober, monotonic_ns, skipped};

fn binaries() -> Option<Binaries> {
    Binaries::find(&BinaryOptions::default(), &mut |line| eprintln!("{line}")).map_err(skipped).ok()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blocked_write_on_a_frozen_primary_returns_and_the_next_lands_on_the_new_one() {
    let Some(binaries) = binaries() else { return };
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
