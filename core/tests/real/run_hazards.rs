#![expect(clippy::disallowed_methods, reason = "tests against real servers: real time")]
//! Hazards of a runtime that ends under a pool, and of closures that commit and look away.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use pgfollow::decide::pool::{NotOpened, Pool as Book, PoolRules};
use pgfollow::{Class, Code, Connector, Error, Moment};
use pgfollow_lab::{Cluster, ClusterOptions, StopMode, servers, wait_for, wait_for_async};
use rand::SeedableRng;
use tokio::runtime::Runtime;

use super::outcome::relay::Fault;
use super::outcome::scene::{Scene, brief, insert};

const PATIENCE: Duration = Duration::from_secs(30);

/// Breaks off the one commit's wait for the standby, as an operator does.
async fn break_off_the_wait(scene: &Scene) {
    let session = scene.cluster.node(0).session().await.expect("a session of the lab");
    let sql = "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
    wait_for_async("the wait for the standby", PATIENCE, || async {
        let row = session.query_one(sql, &[]).await.map_err(|e| e.to_string())?;
        if row.get::<_, i64>(0) == 1 { Ok(()) } else { Err(String::new()) }
    })
    .await
    .expect("it waits");
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// A caller that comes while its runtime ends must not turn in a circle: the process would never exit.
#[test]
fn a_caller_on_a_runtime_that_has_ended_does_not_spin_for_ever() {
    let ended = runtime();
    let handle = ended.handle().clone();
    let pool = {
        let _inside = handle.enter();
        Connector::new("host=127.0.0.1 port=1 user=u").unwrap().pool()
    };
    ended.shutdown_timeout(Duration::from_secs(1));
    let (told, hears) = mpsc::channel();
    std::thread::spawn(move || {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            handle.block_on(pool.acquire_within(Duration::from_secs(1))).map(drop)
        }));
        // An error or tokio's own panic: either will do.
        let _ = told.send(result.is_ok());
    });
    hears.recv_timeout(Duration::from_secs(20)).expect("it spins in open_wanted");
}

/// A place whose session is being settled when the runtime ends must be free for the next runtime.
#[test]
fn a_runtime_that_ends_while_a_session_is_settled_costs_no_place() {
    let Some(binaries) = servers() else { return };
    let servers = runtime();
    let mut options = ClusterOptions::new(binaries);
    options.nodes = 1;
    let cluster = servers.block_on(Cluster::start(options)).expect("a cluster");
    let uri = format!("{}?target_session_attrs=read-write", cluster.conninfo());
    let first = runtime();
    let pool = first.block_on(async { Connector::new(&uri).unwrap().pool_with(|o| o.max_conns(1)).unwrap() });
    first.block_on(async {
        let s = pool.acquire_within(PATIENCE).await.expect("a session");
        s.batch_execute("BEGIN").await.unwrap();
        cluster.node(0).freeze().await.unwrap();
        drop(s);
        wait_for("it to be settled", PATIENCE, || pool.stats().now.settling == 1).await.unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;
    });
    first.shutdown_timeout(Duration::from_secs(1));
    servers.block_on(cluster.node(0).thaw()).unwrap();
    let second = runtime();
    let got = second.block_on(async {
        let caller = pool.acquire_within(Duration::from_secs(8)).await;
        caller.map(drop)
    });
    assert!(got.is_ok(), "{got:?} {:?}", pool.stats());
}

/// The COMMIT that a closure sent is on its way, though the closure gave it up and returned an error.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closure_that_sent_a_commit_and_failed_is_not_repeated() {
    let Some(scene) = Scene::start(1, false, true).await else { return };
    let times = AtomicU32::new(0);
    let said = scene
        .connector
        .run(async |tx| {
            insert(tx, 1).await?;
            if times.fetch_add(1, Ordering::Relaxed) == 0 {
                let mut abandoned = Box::pin(tx.batch_execute("COMMIT"));
                let _ = futures_util::poll!(&mut abandoned);
                return Err(Error::new(Code::Server, Class::Transient, "of the moment"));
            }
            Ok(())
        })
        .await;
    assert_eq!(scene.rows(0, 1).await, 1, "committed twice: {said:?}");
}

/// A session that hears no warnings doesn't hear that its commit is known to one host alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broken_wait_for_a_standby_is_not_called_done_where_warnings_are_off() {
    let Some(scene) = Scene::start(2, true, true).await else { return };
    scene.cluster.node(1).stop(StopMode::Fast).await.expect("the standby stops");
    let options = brief();
    let write = scene.connector.run_once(&options, async |tx| {
        tx.batch_execute("SET LOCAL client_min_messages = error").await?;
        insert(tx, 1).await
    });
    let (said, ()) = tokio::join!(write, break_off_the_wait(&scene));
    assert!(said.is_err(), "called done, and no standby has it");
}

/// A role that usually waits for nobody, and one transaction that must be safe: its check has to be as careful as it was.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_that_asked_for_a_standby_is_not_called_committed_without_one() {
    let Some(scene) = Scene::start(2, true, true).await else { return };
    let lab = scene.cluster.node(0).session().await.expect("a session of the lab");
    lab.batch_execute("SET synchronous_commit = local; ALTER ROLE app SET synchronous_commit = off")
        .await
        .unwrap();
    scene.cluster.node(1).stop(StopMode::Fast).await.expect("the standby stops");
    scene.relay.plan(Fault::SwallowAnswer);
    let options = brief();
    let write = scene.connector.run_once(&options, async |tx| {
        tx.batch_execute("SET LOCAL synchronous_commit = on").await?;
        insert(tx, 1).await
    });
    let (said, ()) = tokio::join!(write, break_off_the_wait(&scene));
    assert!(said.is_err(), "called done, and no standby has it");
}

/// What the server told one borrower is not the next one's to read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_notices_of_one_borrower_are_not_told_to_the_next() {
    let Some(scene) = Scene::start(1, false, false).await else { return };
    let pool = scene.connector.pool_with(|o| o.max_conns(1)).expect("a pool");
    let first = pool.acquire_within(PATIENCE).await.expect("a session");
    first.batch_execute("DO $$ BEGIN RAISE NOTICE 'of the first'; END $$").await.unwrap();
    drop(first);
    let second = pool.acquire_within(PATIENCE).await.expect("a session");
    let heard = tokio::time::timeout(Duration::from_secs(1), second.message()).await;
    assert!(heard.is_err(), "{heard:?}");
}

/// The server drops an orphan within seconds only as long as the session's own settings hold.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_borrower_s_reset_does_not_take_the_orphan_s_bounds_away() {
    let Some(scene) = Scene::start(1, false, false).await else { return };
    let pool = scene.connector.pool_with(|o| o.max_conns(1)).expect("a pool");
    let setting = async || {
        let s = pool.acquire_within(PATIENCE).await.expect("a session");
        let sql = "SELECT current_setting('client_connection_check_interval')";
        s.query_one(sql, &[]).await.unwrap().get::<_, String>(0)
    };
    let before = setting().await;
    pool.acquire_within(PATIENCE).await.unwrap().batch_execute("DISCARD ALL").await.unwrap();
    assert_eq!(setting().await, before);
}

/// Fifty transactions lose their answers at once, as in a failover of a large service.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_commits_that_lost_their_answers_are_all_settled() {
    let Some(scene) = Scene::start(1, false, true).await else { return };
    let connector = &scene.connector;
    let pool = connector.pool_with(|o| o.max_conns(60).min_conns(60)).expect("a pool");
    drop(pool.acquire_within(PATIENCE).await.unwrap());
    wait_for("a full pool", PATIENCE, || pool.stats().now.idle == 60).await.unwrap();
    let mut all = tokio::task::JoinSet::new();
    for id in 0..60_i64 {
        scene.relay.plan(Fault::CutAfter(Duration::from_millis(300)));
        let pool = pool.clone();
        all.spawn(async move {
            let options = pgfollow::retry::RunOptions::new().deadline(Duration::from_secs(8));
            pool.run_once(&options, async |tx| insert(tx, id).await).await
        });
    }
    let results = all.join_all().await;
    let unknown: Vec<String> = results.into_iter().filter_map(Result::err).map(|e| e.to_string()).collect();
    assert!(unknown.is_empty(), "{} of 60: {}", unknown.len(), unknown[0]);
}

/// Between "none is idle" and "I wait" one may come back: whoever waits then must not wait beside an idle session.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nobody_waits_beside_an_idle_session() {
    let Some(scene) = Scene::start(1, false, false).await else { return };
    let pool = scene.connector.pool_with(|o| o.max_conns(1)).expect("a pool");
    drop(pool.acquire_within(PATIENCE).await.unwrap());
    let mut all = tokio::task::JoinSet::new();
    for _ in 0..3 {
        let pool = pool.clone();
        all.spawn(async move {
            for n in 0..20_000_u32 {
                match pool.acquire_within(Duration::from_secs(4)).await {
                    Ok(s) => drop(s),
                    Err(e) => return Err(format!("round {n}: {e}; {:?}", pool.stats().now)),
                }
                if n % 64 == 0 {
                    tokio::task::yield_now().await;
                }
            }
            Ok(())
        });
    }
    let failed: Vec<String> = all.join_all().await.into_iter().filter_map(Result::err).collect();
    assert!(failed.is_empty(), "{failed:?}");
}

/// What a caller asked for and dropped before its driver had seen it is done nevertheless: its locks must not be kept by a
/// session that lies idle in the pool.
#[tokio::test]
async fn a_dropped_block_does_not_keep_its_locks_in_an_idle_session() {
    let Some(scene) = Scene::start(1, false, false).await else { return };
    let pool = scene.connector.pool_with(|o| o.max_conns(1)).expect("a pool");
    let s = pool.acquire_within(PATIENCE).await.expect("a session");
    let _ = futures_util::poll!(std::pin::pin!(s.batch_execute("BEGIN; LOCK TABLE w")));
    drop(s);
    tokio::time::sleep(Duration::from_secs(4)).await;
    let lab = scene.cluster.node(0).session().await.expect("a session of the lab");
    let locked = lab.batch_execute("SET lock_timeout = '1s'; INSERT INTO w VALUES (1)").await;
    assert!(locked.is_ok(), "{locked:?} {:?}", pool.stats().now);
}

/// The keeper sleeps until the moment that the book names: one that has passed makes it run in a circle.
#[test]
fn a_pool_that_opens_as_many_as_it_may_has_nothing_due() {
    let second = Duration::from_secs(1);
    let mut rng = rand::rngs::StdRng::seed_from_u64(1);
    let mut book = Book::new(PoolRules {
        max: 5,
        min: 5,
        validate_after: second,
        lifetime: Duration::ZERO,
        lifetime_jitter: 0.0,
        idle_max: 600 * second,
        test_every: 30 * second,
    });
    let slot = book.open(Moment::ZERO).expect("a place");
    book.not_opened(slot, NotOpened::ForGood, Moment::ZERO, &mut rng);
    let now = Moment::from_millis(3_000);
    while book.open(now).is_some() {}
    assert!(book.next() > now, "due {}, and nothing can be done before a login ends", book.next());
}

/// A service under load that ends: its workers are in the midst of acquiring.
#[test]
fn a_runtime_can_end_while_callers_come() {
    for round in 0..300 {
        let ending = runtime();
        ending.block_on(async {
            let pool = Connector::new("host=127.0.0.1 port=1 user=u").unwrap().pool();
            for _ in 0..16 {
                let pool = pool.clone();
                tokio::spawn(async move {
                    loop {
                        let _ = pool.acquire_within(Duration::from_millis(1)).await;
                        tokio::task::yield_now().await;
                    }
                });
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        });
        let (told, hears) = mpsc::channel();
        std::thread::spawn(move || {
            drop(ending);
            let _ = told.send(());
        });
        hears
            .recv_timeout(Duration::from_secs(20))
            .unwrap_or_else(|_| panic!("round {round}: the runtime doesn't end"));
    }
}
