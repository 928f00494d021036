//! Slow answers and refused writes of a host that is well, and one that pauses.

use std::time::Duration;

use pgfollow::Class;
use pgfollow::decide::topology::State;

use super::bench::{Bench, clears, works};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_query_of_twenty_seconds_is_not_a_sick_host() {
    let Some(bench) = Bench::start().await else { return };
    let mut events = bench.connector.events();
    for session in bench.calls(Duration::from_secs(20)).await.succeed().await {
        works(&session).await;
    }
    assert_eq!(clears(&mut events), []);
    // Nothing has changed for 20 s; the picture is of this moment all the same.
    assert!(pgfollow::clock::now() - bench.connector.topology().at < Duration::from_secs(5));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_that_pauses_for_two_and_a_half_seconds_loses_no_call() {
    let Some(bench) = Bench::start().await else { return };
    let (idle, late) = (bench.session().await, bench.session().await);
    let calls = bench.calls(Duration::from_secs(4)).await;
    bench.cluster.node(0).freeze().await.unwrap();
    let began = std::time::Instant::now();
    let late = tokio::spawn(async move {
        late.declare_read_only(true);
        let row = late.query_one("SELECT 7", &[]).await.map_err(|e| late.why().diagnose(e));
        (row.map(|r| r.get::<_, i32>(0)), std::time::Instant::now(), late)
    });
    // A connect that hangs there takes one of the vetoes away.
    assert!(bench.connector.connect_within(Duration::from_secs(1)).await.is_err());
    tokio::time::sleep(Duration::from_millis(2500).saturating_sub(began.elapsed())).await;
    bench.cluster.node(0).thaw().await.unwrap();
    let (answer, at, late) = late.await.unwrap();
    assert_eq!(answer.expect("the call made while the host paused"), 7);
    assert!(at - began >= Duration::from_millis(2400), "the host answered while it was stopped");
    for session in calls.succeed().await {
        works(&session).await;
    }
    late.declare_read_only(false);
    works(&late).await;
    works(&idle).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_in_a_read_only_block_says_nothing_of_the_host() {
    let Some(bench) = Bench::start().await else { return };
    let (mut session, idle) = (bench.session().await, bench.session().await);
    let calls = bench.calls(Duration::from_secs(3)).await;
    let mut events = bench.connector.events();
    let before = bench.connector.topology();
    let block = session.build_transaction().read_only(true).start().await.unwrap();
    let why = block.why();
    let error =
        block.execute("INSERT INTO t VALUES (3)", &[]).await.map_err(|e| why.diagnose(e)).unwrap_err();
    assert_eq!(error.sqlstate().unwrap().as_str(), "25006", "{error}");
    assert_eq!(error.class(), Class::Permanent, "{error}");
    block.rollback().await.unwrap();
    works(&session).await;
    works(&idle).await;
    for session in calls.succeed().await {
        works(&session).await;
    }
    let after = bench.connector.topology();
    let primary = after.cluster.incumbent.and_then(|id| after.host(id)).unwrap();
    assert_eq!(primary.state, State::Primary);
    assert_eq!(Some(primary.generation), before.host(primary.id).map(|h| h.generation));
    assert_eq!(clears(&mut events), []);
}
