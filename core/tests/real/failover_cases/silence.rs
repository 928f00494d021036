//! fo-h01 and fo-h02: hosts that say nothing any more, and whose sockets don't tell.

use std::time::{Duration, Instant};

use pgfollow::decide::topology::TopologyEvent;
use pgfollow::{Class, Connector, EventKind, Stage};
use pgfollow_lab::{Binaries, Cluster, ClusterOptions, netns, servers, wait_for};

use super::workload::Workload;
use super::{PATIENCE, case, seconds};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_black_hole_ends_every_wait_and_writes_go_to_the_promoted_one() {
    // Found outside: inside there is no network to fetch them from.
    let Some(binaries) = servers() else { return };
    if netns::alone(a_black_hole_ends_every_wait_and_writes_go_to_the_promoted_one).await {
        black_hole(binaries).await;
    }
}

async fn black_hole(binaries: Binaries) {
    let case = case("fo-h01");
    let (expect, settings) = (&case["expect"], &case["input"]["settings"]);
    assert_eq!(settings["keepalive"], "idle 1 s, interval 1 s, count 3");
    let mut options = ClusterOptions::new(binaries);
    (options.nodes, options.sync) = (2, false);
    let cluster = Cluster::start(options).await.unwrap();
    let connector = Connector::new(&format!(
        "{}?target_session_attrs=read-write&tcp_user_timeout={}&keepalives_idle=1&keepalives_interval=1&keepalives_count=3",
        cluster.conninfo(),
        settings["tcp_user_timeout_ms"],
    ))
    .unwrap();
    let workload = Workload::start(&connector, 4, Duration::from_millis(50)).await;
    let mut idle = Vec::new();
    for _ in 0..4 {
        idle.push(connector.connect_within(PATIENCE).await.unwrap());
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let mut events = connector.events();
    let fault = Instant::now();
    cluster.cut(0).unwrap();
    tokio::time::sleep(Duration::from_secs(3)).await;
    cluster.promote(1).await.unwrap();
    wait_for("the idle sessions to end", PATIENCE, || idle.iter().all(|s| s.ended().is_some()))
        .await
        .unwrap();
    let idle_ended = fault.elapsed();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let log = workload.stop().await;
    let first = log.first_write_on(cluster.node(1).host(), fault);
    eprintln!("fo-h01: idle ended after {idle_ended:?}, first write after {first:?}; {}", log.summary());
    let bound = seconds(&expect["no_wait_longer_than_s"]);
    assert!(log.longest() <= bound && idle_ended <= bound);
    assert!(first <= seconds(&expect["first_write_on_new_primary_within_s"]), "{first:?}");
    // "dead socket": the calls that were blocked say so. "not writable yet": the search for a primary, whose length is
    // told. (The report that names both shares is not there yet.)
    let blocked = log.errors().filter(|(_, e)| e.stage() == Some(Stage::Blocked)).count();
    assert_eq!(blocked, 4, "each writer's call in flight");
    let told: Vec<EventKind> = std::iter::from_fn(|| events.try_recv().ok()).map(|e| e.kind).collect();
    let searched = told.iter().any(|e| {
        matches!(e, EventKind::Topology(TopologyEvent::SearchEnded { took_us, .. }) if *took_us > 1_000_000)
    });
    assert!(searched, "{told:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_server_holds_no_call_beyond_its_deadline_and_a_write_is_unknown() {
    let case = case("fo-h02");
    let (expect, settings) = (&case["expect"], &case["input"]["settings"]);
    let Some(binaries) = servers() else { return };
    let mut options = ClusterOptions::new(binaries);
    (options.nodes, options.sync) = (2, false);
    let cluster = Cluster::start(options).await.unwrap();
    let connector = Connector::new(&format!(
        "{}?target_session_attrs=read-write&tcp_user_timeout={}",
        cluster.conninfo(),
        settings["tcp_user_timeout_ms"],
    ))
    .unwrap();
    let deadline = Duration::from_millis(settings["query_deadline_ms"].as_u64().unwrap());
    let reader = connector.connect_within(PATIENCE).await.unwrap();
    let writer = connector.connect_within(PATIENCE).await.unwrap();
    writer.batch_execute("CREATE TABLE t (n int)").await.unwrap();
    reader.declare_read_only(true);
    tokio::time::sleep(Duration::from_secs(1)).await;
    cluster.node(0).freeze().await.unwrap();
    let (read, write) = tokio::join!(
        timed(reader.within(deadline, reader.query_one("SELECT 1", &[]))),
        timed(writer.within(deadline, writer.execute("INSERT INTO t VALUES (1)", &[]))),
    );
    let (read, write) = ((read.0.unwrap_err(), read.1), (write.0.unwrap_err(), write.1));
    eprintln!("fo-h02: read {:?}: {}; write {:?}: {}", read.1, read.0, write.1, write.0);
    let bound = seconds(&expect["no_wait_longer_than_s"]);
    assert!(read.1 <= bound && write.1 <= bound);
    let class = |c: Class| c.to_string();
    assert_eq!(Some(class(read.0.class()).as_str()), expect["read_class"].as_str());
    assert_eq!(Some(class(write.0.class()).as_str()), expect["write_class"].as_str());
}

async fn timed<F: Future>(f: F) -> (F::Output, Duration) {
    let began = Instant::now();
    let output = f.await;
    (output, began.elapsed())
}
