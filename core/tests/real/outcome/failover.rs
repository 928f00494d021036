//! Failovers and crashes between a COMMIT and the question what became of it.

use std::time::Duration;

use pgfollow::outcome::{Outcome, Unsettled};
use pgfollow::retry::RunOptions;
use pgfollow::{Class, Connector, Error};
use pgfollow_lab::StopMode;
use tokio::sync::watch;

use super::relay::Fault;
use super::scene::{Scene, brief, insert, number_in};
use super::{PATIENCE, wait_for_async};

/// The row is there, so it is committed on that node.
async fn committed_on(scene: &Scene, node: usize) {
    wait_for_async("the row", PATIENCE, || async {
        if scene.rows(node, 1).await == 1 { Ok(()) } else { Err(String::new()) }
    })
    .await
    .expect("it commits");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_a_failover_kept_is_success_and_is_not_repeated() {
    // Without the table: the monitor watched the promotion.
    for token_table in [true, false] {
        let Some(scene) = Scene::start(2, true, token_table).await else { return };
        scene.relay.plan(Fault::SwallowAnswer);
        let run = scene.connector.run(async |tx| insert(tx, 1).await);
        let failover = async {
            scene.relay.struck(1).await;
            committed_on(&scene, 1).await;
            scene.cluster.node(0).kill().await.expect("the primary dies");
            scene.cluster.promote(1).await.expect("the standby is promoted");
        };
        let (result, ()) = tokio::join!(run, failover);
        result.unwrap_or_else(|e| panic!("table {token_table}: {e}"));
        assert_eq!(scene.rows(1, 1).await, 1, "table {token_table}");
    }
}

/// Rows with ids of their own, until told to stop. Gives how many.
async fn writes(connector: Connector, worker: i64, stop: watch::Receiver<bool>) -> Result<i64, Error> {
    for n in 0.. {
        if *stop.borrow() {
            return Ok(n);
        }
        let id = worker * 1_000_000 + n;
        connector.run(async |tx| insert(tx, id).await).await?;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    unreachable!("more runs than numbers")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_error_of_a_failover_reaches_a_caller_of_run_and_no_row_is_lost_or_doubled() {
    let Some(scene) = Scene::start(3, true, true).await else { return };
    let (stop, stopped) = watch::channel(false);
    let workers: Vec<_> =
        (1..=6).map(|w| tokio::spawn(writes(scene.connector.clone(), w, stopped.clone()))).collect();
    tokio::time::sleep(Duration::from_secs(3)).await;
    scene.cluster.node(0).kill().await.expect("the primary dies");
    scene.cluster.promote(1).await.expect("the standby is promoted");
    tokio::time::sleep(Duration::from_secs(3)).await;
    stop.send_replace(true);
    let mut expected = 0;
    for w in workers {
        let n = tokio::time::timeout(PATIENCE, w).await.expect("no worker hangs").expect("no panic");
        expected += n.expect("no error reaches a caller");
    }
    let session = scene.cluster.node(1).session().await.expect("a session of the lab");
    let sql = "SELECT count(*), count(DISTINCT id) FROM w";
    let row = session.query_one(sql, &[]).await.expect("a count");
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (expected, expected));
    eprintln!("{expected} rows by 6 workers over a failover");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_on_the_old_primary_alone_is_done_again_on_the_new_one() {
    let Some(scene) = Scene::start(2, false, true).await else { return };
    let standby = scene.cluster.node(1);
    standby.stop(StopMode::Fast).await.expect("the standby stops");
    scene.relay.plan(Fault::SwallowAnswer);
    let options = RunOptions::new().deadline(Duration::from_secs(60));
    let run = scene.connector.run_with(&options, async |tx| insert(tx, 1).await);
    let failover = async {
        scene.relay.struck(1).await;
        committed_on(&scene, 0).await;
        scene.cluster.node(0).kill().await.expect("the primary dies");
        standby.start().await.expect("the standby starts");
        scene.cluster.promote(1).await.expect("the standby is promoted");
    };
    let (result, ()) = tokio::join!(run, failover);
    result.expect("it is done again");
    assert_eq!(scene.rows(1, 1).await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_number_that_a_crash_gave_to_a_stranger_proves_nothing() {
    let Some(scene) = Scene::start(1, false, false).await else { return };
    scene.relay.plan(Fault::Swallow);
    let options = brief().deadline(Duration::from_secs(40));
    let run = scene.write_once(1, &options);
    let crash = async {
        scene.relay.struck(1).await;
        scene.cluster.node(0).kill().await.expect("the server dies");
        scene.cluster.node(0).start().await.expect("it starts again");
    };
    let (result, ()) = tokio::join!(run, crash);
    let error = result.expect_err("it never arrived");
    assert_eq!(error.class(), Class::UnknownOutcome, "{error}");
    let token = error.token().expect("a token");
    let status = scene.number_status(0, number_in(token), 30).await;
    assert_eq!(status.as_deref(), Some("committed"), "the hazard itself is not there");
    let answer = scene.connector.check_outcome(token, PATIENCE).await.expect("an answer");
    assert_eq!(answer, Outcome::Unknown(Unsettled::Recovered));
    assert_eq!(scene.rows(0, 1).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_a_crash_swallowed_is_done_again_once() {
    let Some(scene) = Scene::start(1, false, true).await else { return };
    scene.relay.plan(Fault::Swallow);
    let options = RunOptions::new().deadline(Duration::from_secs(60));
    let run = scene.connector.run_with(&options, async |tx| insert(tx, 1).await);
    let crash = async {
        scene.relay.struck(1).await;
        scene.cluster.node(0).kill().await.expect("the server dies");
        scene.cluster.node(0).start().await.expect("it starts again");
    };
    let (result, ()) = tokio::join!(run, crash);
    result.expect("it is done again");
    assert_eq!(scene.rows(0, 1).await, 1);
}
