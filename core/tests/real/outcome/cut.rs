//! fo-h05 and fo-h06: connections cut in the moment of COMMIT, and a promotion without the last transaction.

use std::collections::HashMap;
use std::time::Duration;

use pgfollow::Class;
use pgfollow::outcome::Outcome;

use super::relay::Fault;
use super::scene::{Scene, brief, number_in};
use super::{PATIENCE, case};

/// Where in a COMMIT's life the connection goes, for the n-th time.
fn moment(n: u64) -> Fault {
    // Spread as if by chance, and the same each time (Knuth's multiplicative hash).
    let chance = n.wrapping_mul(2_654_435_761) >> 7;
    match chance % 4 {
        0 => Fault::CutBefore,
        1 => Fault::CutAmid,
        // A commit takes a millisecond or two here: some of these hit it, some come after it.
        _ => Fault::CutAfter(Duration::from_micros(chance / 4 % 3_000)),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_commits_cut_at_random_moments_are_all_told_as_they_are() {
    let expect = &case("fo-h05")["expect"];
    let Some(scene) = Scene::start(1, false, true).await else { return };
    let (mut committed, mut not_committed) = (0_u64, 0_u64);
    let mut wrong: HashMap<&str, Vec<i64>> = HashMap::new();
    for id in 0..200_i64 {
        scene.relay.plan(moment(id.unsigned_abs()));
        match scene.write_once(id, &brief()).await {
            Ok(()) => {
                committed += 1;
                if scene.rows(0, id).await != 1 {
                    wrong.entry("committed without its row").or_default().push(id);
                }
            }
            Err(e) if e.class() == Class::Transient => {
                not_committed += 1;
                if scene.rows(0, id).await != 0 {
                    wrong.entry("not committed with its row").or_default().push(id);
                }
                // What isn't committed is done again, by hand.
                scene.write_once(id, &brief()).await.expect("undisturbed");
            }
            Err(e) => panic!("{id}: {e}"),
        }
    }
    eprintln!("fo-h05: of 200 cut commits {committed} had committed and {not_committed} had not");
    assert!(wrong.is_empty(), "{wrong:?}");
    assert!(committed > 20 && not_committed > 20, "both kinds must occur: {committed}, {not_committed}");
    // The report tells what the callers got, and what the check kept from them.
    let report = scene.connector.report();
    let got: u64 = report.errors.iter().map(|e| e.count).sum();
    let spared: u64 = report.errors.iter().map(|e| e.spared).sum();
    let unknown: u64 = report.outages.iter().map(|o| o.unknown).sum();
    let answers =
        |result| report.outcomes.iter().filter(|o| o.result == result).map(|o| o.count).sum::<u64>();
    assert_eq!((got, unknown), (not_committed, 0), "{}", report.to_text());
    assert!(spared > 0 && spared == answers("committed"), "{}", report.to_text());
    assert!(report.errors.iter().all(|e| e.count == 0 || e.class == Class::Transient), "{:?}", report.errors);
    let session = scene.cluster.node(0).session().await.expect("a session of the lab");
    let sql = "SELECT count(*), count(DISTINCT id) FROM w";
    let row = session.query_one(sql, &[]).await.expect("a count");
    let (rows, ids) = (row.get::<_, i64>(0), row.get::<_, i64>(1));
    assert_eq!((rows, ids), (200, 200));
    assert_eq!(
        (expect["duplicates"].as_i64(), expect["reported_not_committed_with_row"].as_i64()),
        (Some(0), Some(0))
    );
}

/// Commits one row on the primary alone and loses the answer; the standby, which never hears of it, is promoted. Gives what
/// the run said.
async fn last_transaction_is_lost(scene: &Scene) -> pgfollow::Error {
    let standby = scene.cluster.node(1);
    standby.stop(pgfollow_lab::StopMode::Fast).await.expect("the standby stops");
    scene.relay.plan(Fault::SwallowAnswer);
    let options = brief().deadline(Duration::from_secs(60));
    let run = scene.write_once(1, &options);
    let failover = async {
        scene.relay.struck(1).await;
        super::wait_for_async("the row on the old primary", PATIENCE, || async {
            if scene.rows(0, 1).await == 1 { Ok(()) } else { Err(String::new()) }
        })
        .await
        .expect("it commits there");
        scene.cluster.node(0).kill().await.expect("the primary dies");
        standby.start().await.expect("the standby starts");
        // The monitor sees it in recovery first, as in most failovers.
        tokio::time::sleep(Duration::from_secs(2)).await;
        scene.cluster.promote(1).await.expect("it is promoted");
    };
    let (result, ()) = tokio::join!(run, failover);
    result.expect_err("the row is lost, so the run must not say that it is there")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_that_an_asynchronous_failover_lost_is_told_as_not_committed() {
    assert_eq!(case("fo-h06")["expect"]["answer"], "no");
    let Some(scene) = Scene::start(2, false, true).await else { return };
    let error = last_transaction_is_lost(&scene).await;
    assert_eq!(error.class(), Class::Transient, "{error}");
    assert_eq!(scene.rows(1, 1).await, 0);
    // The same answer as often as it is asked for, also when others have used the transaction's number.
    scene.number_status(1, 3, 30).await;
    let token = error.token().expect("a token");
    for _ in 0..2 {
        let answer = scene.connector.check_outcome(token, PATIENCE).await.expect("an answer");
        assert_eq!(answer, Outcome::NotCommitted);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_number_that_a_failover_gave_to_a_stranger_proves_nothing() {
    let Some(scene) = Scene::start(2, false, false).await else { return };
    let error = last_transaction_is_lost(&scene).await;
    assert_eq!(error.class(), Class::UnknownOutcome, "{error}");
    let token = error.token().expect("a token");
    let status = scene.number_status(1, number_in(token), 30).await;
    assert_eq!(status.as_deref(), Some("committed"), "the hazard itself is not there");
    let answer = scene.connector.check_outcome(token, PATIENCE).await.expect("an answer");
    assert_eq!(answer, Outcome::Unknown(pgfollow::outcome::Unsettled::Recovered));
}
