#![expect(
    clippy::disallowed_methods,
    clippy::print_stderr,
    reason = "tests against real servers: real time, and words for people"
)]
//! A listener on real clusters: every fault gives one gap, and then it hears the new primary.

use std::time::{Duration, Instant};

use pgfollow::{Class, Code, Connector, EndCause, Gap, GapCause, Heard, Listener};
use pgfollow_lab::{Binaries, Cluster, ClusterOptions, netns, servers, wait_for_async};
use tokio::time::timeout;

/// Longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

async fn start(binaries: Binaries, nodes: usize) -> Cluster {
    let mut options = ClusterOptions::new(binaries);
    (options.nodes, options.sync) = (nodes, false);
    Cluster::start(options).await.unwrap()
}

fn connector(cluster: &Cluster, more: &str) -> Connector {
    // Any host would do for its sessions: a listener wants the primary all the same.
    Connector::new(&format!("{}?target_session_attrs=any{more}", cluster.conninfo())).unwrap()
}

async fn listen(connector: &Connector, channels: &[&str]) -> Listener {
    let listener = connector.listener(channels.iter().copied()).unwrap();
    listening(&listener).await;
    listener
}

async fn listening(listener: &Listener) {
    assert!(timeout(PATIENCE, listener.channels().listening()).await.expect("it listens"));
}

async fn next(listener: &mut Listener) -> Heard {
    let next = timeout(PATIENCE, listener.next()).await.expect("it hears nothing");
    next.expect("it has ended").expect("it goes on")
}

async fn notify(cluster: &Cluster, node: usize, channel: &str, payload: &str) {
    let session = cluster.node(node).session().await.unwrap();
    session.execute("SELECT pg_notify($1, $2)", &[&channel, &payload]).await.unwrap();
}

async fn hears(listener: &mut Listener, cluster: &Cluster, node: usize, channel: &str) {
    notify(cluster, node, channel, "hello").await;
    let heard = next(listener).await;
    let Heard::Notification { channel: c, payload, process_id } = heard else { panic!("{heard:?}") };
    assert_eq!((c.as_str(), payload.as_str()), (channel, "hello"));
    assert!(process_id > 0);
}

async fn gap(listener: &mut Listener) -> Gap {
    let heard = next(listener).await;
    let Heard::Gap(gap) = heard else { panic!("{heard:?}") };
    assert!(gap.from <= gap.to, "{gap:?}");
    gap
}

fn ended(gap: &Gap) -> &EndCause {
    let GapCause::SessionEnded { cause, .. } = &gap.cause else { panic!("{gap:?}") };
    cause
}

/// Backends of the service on that node that were started by a listener or a session.
async fn backends(cluster: &Cluster, node: usize) -> i64 {
    let session = cluster.node(node).session().await.unwrap();
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgfollow'";
    session.query_one(sql, &[]).await.unwrap().get(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_primary_leaves_one_gap_and_all_channels_go_on_at_the_promoted_one() {
    let Some(binaries) = servers() else { return };
    let cluster = start(binaries, 2).await;
    let connector = connector(&cluster, "");
    let hard = "Or\"ders; DROP TABLE x";
    let mut listener = listen(&connector, &["a", hard]).await;
    hears(&mut listener, &cluster, 0, hard).await;
    let channels = listener.channels();
    channels.add("late").unwrap();
    channels.remove("a");
    listening(&listener).await;
    notify(&cluster, 0, "a", "nobody listens").await;
    hears(&mut listener, &cluster, 0, "late").await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    cluster.node(0).kill().await.unwrap();
    cluster.promote(1).await.unwrap();
    let gap = gap(&mut listener).await;
    eprintln!("kill: {gap:?}");
    assert!(channels.is_listening());
    hears(&mut listener, &cluster, 1, "late").await;
    hears(&mut listener, &cluster, 1, hard).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_primary_does_not_leave_a_listener_deaf() {
    let Some(binaries) = servers() else { return };
    let cluster = start(binaries, 2).await;
    let connector = connector(&cluster, "");
    let mut listener = listen(&connector, &["a"]).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    cluster.node(0).freeze().await.unwrap();
    cluster.promote(1).await.unwrap();
    let gap = gap(&mut listener).await;
    eprintln!("freeze: {gap:?}");
    assert!(matches!(ended(&gap), EndCause::Verdict { .. }), "{gap:?}");
    hears(&mut listener, &cluster, 1, "a").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_monitor_its_own_heartbeat_finds_the_dead_path() {
    let Some(binaries) = servers() else { return };
    let cluster = start(binaries, 2).await;
    let connector = connector(&cluster, "&monitor=off");
    let mut listener = listen(&connector, &["a"]).await;
    // Kernels go on answering for stopped processes: only a question finds it.
    cluster.node(0).freeze().await.unwrap();
    cluster.promote(1).await.unwrap();
    let gap = gap(&mut listener).await;
    eprintln!("freeze without a monitor: {gap:?}");
    assert!(ended(&gap).to_string().contains("heartbeat"), "{gap:?}");
    hears(&mut listener, &cluster, 1, "a").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_demoted_in_place_is_left_though_its_session_lives() {
    let Some(binaries) = servers() else { return };
    for monitor in ["on", "off"] {
        let cluster = start(binaries.clone(), 2).await;
        let connector = connector(&cluster, &format!("&monitor={monitor}"));
        let mut listener = listen(&connector, &["a"]).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        cluster.node(0).demote().await.unwrap();
        cluster.promote(1).await.unwrap();
        let gap = gap(&mut listener).await;
        eprintln!("demote, monitor {monitor}: {gap:?}");
        assert!(matches!(ended(&gap), EndCause::Verdict { .. }), "{gap:?}");
        hears(&mut listener, &cluster, 1, "a").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_terminated_backend_is_told_as_one_gap_with_the_servers_words() {
    let Some(binaries) = servers() else { return };
    let cluster = start(binaries, 1).await;
    let connector = connector(&cluster, "");
    let mut listener = listen(&connector, &["a"]).await;
    let session = cluster.node(0).session().await.unwrap();
    let sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'pgfollow'";
    for _ in 0..3 {
        session.query_one(sql, &[]).await.expect("one backend, the listener's");
        let gap = gap(&mut listener).await;
        let EndCause::Server { sqlstate, .. } = ended(&gap) else { panic!("{gap:?}") };
        assert_eq!(sqlstate.as_str(), "57P01");
        hears(&mut listener, &cluster, 0, "a").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_no_reconnect_can_cure_ends_the_stream_with_its_error() {
    let Some(binaries) = servers() else { return };
    let cluster = start(binaries, 1).await;
    let at = format!("{}:{}", cluster.node(0).host(), cluster.node(0).port());
    let uri = |user: &str, database: &str| format!("postgresql://{user}@{at}/{database}");
    let good = format!("{}:{}", cluster.user(), cluster.password());
    for (uri, state) in [(uri("app:wrong", "app"), "28P01"), (uri(&good, "nowhere"), "3D000")] {
        let mut listener = Connector::new(&uri).unwrap().listener(["a"]).unwrap();
        let heard = timeout(PATIENCE, listener.next()).await.expect("it waits for ever");
        let e = heard.expect("its error").unwrap_err();
        assert_eq!(e.class(), Class::Permanent);
        assert_eq!(e.sqlstate().map(|s| s.to_string()).as_deref(), Some(state), "{e}");
        assert!(listener.next().await.is_none());
        assert!(!listener.channels().listening().await && !listener.channels().is_listening());
    }
    let connector = connector(&cluster, "");
    for name in ["", "a\0b", &"n".repeat(64)] {
        let Err(e) = connector.listener([name]) else { panic!("{name:?} can't be") };
        assert_eq!((e.code(), e.class()), (Code::InvalidOption, Class::Permanent));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_burst_is_read_whole_and_one_that_nobody_reads_is_counted() {
    const BURST: i32 = 20_000;
    let Some(binaries) = servers() else { return };
    let cluster = start(binaries, 1).await;
    let connector = connector(&cluster, "");
    let mut listener = listen(&connector, &["a"]).await;
    let session = cluster.node(0).session().await.unwrap();
    let burst = async |size: i32| {
        let sql =
            format!("SELECT pg_notify('a', n || repeat('x', {size})) FROM generate_series(1, {BURST}) n");
        session.batch_execute(&sql).await.unwrap();
    };
    burst(1).await;
    for n in 1..=BURST {
        let heard = next(&mut listener).await;
        let Heard::Notification { payload, .. } = &heard else { panic!("{heard:?} at {n}") };
        assert_eq!(*payload, format!("{n}x"));
    }
    // 20 MB against a buffer of 4.
    burst(1_000).await;
    notify(&cluster, 0, "a", "last").await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let (mut heard, mut missed) = (0, 0);
    loop {
        match next(&mut listener).await {
            Heard::Notification { payload, .. } if payload == "last" => break,
            Heard::Notification { .. } => heard += 1,
            Heard::Gap(gap) => {
                assert_eq!(gap.cause, GapCause::SlowReader);
                missed += gap.missed;
            }
            other => panic!("{other:?}"),
        }
    }
    eprintln!("heard {heard}, missed {missed}");
    assert_eq!(heard + missed, u64::try_from(BURST).unwrap());
    assert!(missed > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_listener_leaves_no_backend_behind() {
    let Some(binaries) = servers() else { return };
    let cluster = start(binaries, 1).await;
    let connector = connector(&cluster, "");
    let mut listener = listen(&connector, &["a"]).await;
    assert_eq!(backends(&cluster, 0).await, 1);
    assert!(timeout(Duration::from_millis(10), listener.next()).await.is_err());
    hears(&mut listener, &cluster, 0, "a").await;
    drop(listener);
    wait_for_async("its backend to go", PATIENCE, || async {
        let n = backends(&cluster, 0).await;
        if n == 0 { Ok(()) } else { Err(format!("{n} left")) }
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fo_h07_a_black_hole_is_found_by_a_listener_that_only_reads() {
    // Found outside: inside there is no network to fetch them from.
    let Some(binaries) = servers() else { return };
    if !netns::alone(fo_h07_a_black_hole_is_found_by_a_listener_that_only_reads).await {
        return;
    }
    for monitor in ["auto", "off"] {
        black_hole(binaries.clone(), monitor).await;
    }
}

async fn black_hole(binaries: Binaries, monitor: &str) {
    let all = crate::support::vectors("failover/hand.jsonl");
    let case = all.iter().find(|c| c["id"] == "fo-h07").expect("the case");
    let (expect, settings) = (&case["expect"], &case["input"]["settings"]);
    assert_eq!(settings["keepalive"], "idle 1 s, interval 1 s, count 3");
    let cluster = start(binaries, 2).await;
    let more = format!(
        "&monitor={monitor}&tcp_user_timeout={}&keepalives_idle=1&keepalives_interval=1&keepalives_count=3",
        settings["tcp_user_timeout_ms"]
    );
    let connector = connector(&cluster, &more);
    let mut listener = listen(&connector, &["a"]).await;
    hears(&mut listener, &cluster, 0, "a").await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let fault = Instant::now();
    cluster.cut(0).unwrap();
    cluster.promote(1).await.unwrap();
    let gap = gap(&mut listener).await;
    let took = fault.elapsed();
    eprintln!("fo-h07, monitor {monitor}: gap after {took:?}: {gap:?}");
    let bound = Duration::from_secs_f64(expect["gap_signalled_within_s"].as_f64().unwrap());
    assert!(took <= bound, "{took:?}");
    assert_eq!(expect["listening_again_on"], "a primary");
    assert_eq!(expect["notify_received_after_reconnect"], true);
    hears(&mut listener, &cluster, 1, "a").await;
    // The next cluster in this namespace has the same addresses.
    cluster.heal(0).unwrap();
}
