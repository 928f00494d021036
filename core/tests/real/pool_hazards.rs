#![expect(clippy::disallowed_methods, reason = "tests against real servers: real time")]
//! Hazards of the pool and of `run` on real servers.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use pgfollow::decide::pool::{Back, Next, Pool as Book, PoolRules};
use pgfollow::tokio_postgres::SimpleQueryMessage;
use pgfollow::{Class, Connector, Error, HostId, Moment, Pool, SessionAttrs};
use pgfollow_lab::{Cluster, ClusterOptions, servers, wait_for, wait_for_async};
use rand::SeedableRng;

use super::outcome::relay::Fault;
use super::outcome::scene::{Scene, brief, insert};

const PATIENCE: Duration = Duration::from_secs(30);
const SECOND: Duration = Duration::from_secs(1);

async fn as_superuser(scene: &Scene, sql: &str) {
    let session = scene.cluster.node(0).session().await.expect("a session of the lab");
    session.batch_execute(sql).await.unwrap_or_else(|e| panic!("{sql}: {e}"));
}

fn uri(scene: &Scene) -> String {
    let hosts = scene.relay.address.to_string();
    format!("{}?target_session_attrs=read-write&sslmode=disable", scene.cluster.conninfo_to(&hosts))
}

/// One caller's declaration must not turn the next one's lost COMMIT into "certainly not done".
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_declaration_that_only_reads_ends_with_its_borrower() {
    let Some(scene) = Scene::start(1, false, true).await else { return };
    let pool = scene.connector.pool_with(|o| o.max_conns(1)).expect("a pool");
    let session = pool.acquire_within(PATIENCE).await.expect("a session");
    session.declare_read_only(true);
    session.query("SELECT 1", &[]).await.expect("read");
    drop(session);
    scene.relay.plan(Fault::CutAfter(Duration::from_millis(100)));
    let done = pool.run(async |tx| insert(tx, 1).await).await;
    scene.relay.struck(1).await;
    assert_eq!(scene.rows(0, 1).await, 1, "the work was committed twice: {done:?}");
}

/// A seed makes chance repeatable; tokens must still differ from those of a run before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_seeded_connector_made_again_takes_no_stranger_s_commit_for_its_own() {
    let Some(scene) = Scene::start(1, false, true).await else { return };
    let seeded = || Connector::builder(&uri(&scene)).seed(7).build().expect("a connector");
    seeded().run_once(&brief(), async |tx| insert(tx, 1).await).await.expect("undisturbed");
    // The process starts again.
    let again = seeded();
    scene.relay.plan(Fault::CutBefore);
    let said = again.run_once(&brief(), async |tx| insert(tx, 2).await).await;
    scene.relay.struck(1).await;
    assert_eq!((said.is_ok(), scene.rows(0, 2).await), (false, 0), "called done, and it is not there");
}

/// The pool for reads of the tour: a standby can't be marked, and needs no mark.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_on_a_standby_is_not_failed_by_its_own_marks() {
    for token_table in [true, false] {
        let Some(scene) = Scene::start(2, false, token_table).await else { return };
        let hosts = format!("{}:{}", scene.cluster.node(1).host(), scene.cluster.node(1).port());
        let uri = format!("{}?sslmode=disable", scene.cluster.conninfo_to(&hosts));
        let connector = Connector::new(&uri).expect("a connector");
        let pool = connector.pool_with(|o| o.attrs(SessionAttrs::Standby)).expect("a pool");
        let read = pool.run(async |tx| Ok(tx.query_one("SELECT 1", &[]).await?.get::<_, i32>(0))).await;
        assert_eq!(read.unwrap_or_else(|e| panic!("token table {token_table}: {e}")), 1);
    }
}

/// Row-level security of many services: each transaction takes its tenant's role, which may not use the table.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closure_that_takes_another_role_is_not_failed_by_the_token() {
    let Some(scene) = Scene::start(1, false, true).await else { return };
    as_superuser(&scene, "CREATE ROLE tenant; GRANT tenant TO app; GRANT INSERT ON w TO tenant").await;
    let pool = scene.connector.pool_with(|o| o.max_conns(2)).expect("a pool");
    let times = AtomicU32::new(0);
    for id in 0..10 {
        let done = pool.run(async |tx| {
            times.fetch_add(1, Ordering::Relaxed);
            tx.batch_execute("SET LOCAL ROLE tenant").await?;
            insert(tx, id).await
        });
        done.await
            .unwrap_or_else(|e| panic!("call {id} after {} rounds: {e}", times.load(Ordering::Relaxed)));
    }
    assert!(times.load(Ordering::Relaxed) <= 11, "each was done twice: {}", times.load(Ordering::Relaxed));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closure_that_makes_its_transaction_read_only_is_not_failed_by_the_token() {
    let Some(scene) = Scene::start(1, false, true).await else { return };
    let pool = scene.connector.pool_with(|o| o.max_conns(1)).expect("a pool");
    let times = AtomicU32::new(0);
    for call in 0..10 {
        let done = pool.run(async |tx| {
            times.fetch_add(1, Ordering::Relaxed);
            tx.batch_execute("SET TRANSACTION READ ONLY").await?;
            Ok(tx.query("SELECT * FROM w", &[]).await?.len())
        });
        done.await
            .unwrap_or_else(|e| panic!("call {call} after {} rounds: {e}", times.load(Ordering::Relaxed)));
    }
    // The first one tells: its 25006 is evidence that the host may take no writes, so that session isn't lent again.
    assert!(
        times.load(Ordering::Relaxed) <= 11 && pool.stats().opened <= 2,
        "{times:?} rounds, {:?}",
        pool.stats()
    );
}

/// What an impatient caller can't wait for is not dead.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_impatient_caller_costs_no_session_of_a_healthy_pool() {
    let Some(scene) = Scene::start(1, false, false).await else { return };
    let pool = scene.connector.pool_with(|o| o.max_conns(3)).expect("a pool");
    let mut all = Vec::new();
    for _ in 0..3 {
        all.push(pool.acquire_within(PATIENCE).await.expect("a session"));
    }
    drop(all);
    tokio::time::sleep(SECOND + SECOND / 2).await;
    // A moment of slowness, and a caller who has less patience than that.
    scene.cluster.node(0).freeze().await.unwrap();
    let _ = pool.acquire_within(Duration::from_millis(20)).await;
    scene.cluster.node(0).thaw().await.unwrap();
    tokio::time::sleep(SECOND / 2).await;
    let stats = pool.stats();
    assert_eq!((stats.closed, stats.now.idle), (0, 3), "{stats:?}");
}

/// A session that lay silent in a caller's hands is as doubtful as one that lay idle in the pool.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiting_caller_gets_no_silent_session_unproved() {
    let mut options = ClusterOptions::new(match servers() {
        Some(s) => s,
        None => return,
    });
    options.nodes = 1;
    let cluster = Cluster::start(options).await.expect("a cluster");
    let connector =
        Connector::new(&format!("{}?target_session_attrs=read-write", cluster.conninfo())).unwrap();
    let pool = connector.pool_with(|o| o.max_conns(1)).expect("a pool");
    let held = pool.acquire_within(PATIENCE).await.expect("a session");
    held.query("SELECT 1", &[]).await.expect("it lives");
    tokio::time::sleep(SECOND + SECOND / 2).await;
    cluster.node(0).freeze().await.unwrap();
    let waiting = tokio::spawn({
        let pool = pool.clone();
        async move { pool.acquire_within(SECOND * 2).await.map(drop) }
    });
    wait_for("somebody to wait", PATIENCE, || pool.stats().now.waiting == 1).await.unwrap();
    drop(held);
    let got = waiting.await.unwrap();
    cluster.node(0).thaw().await.unwrap();
    assert!(got.is_err(), "a session of a frozen server, silent for 1.5 s, was lent without a ping");
}

/// Where somebody always waits, sessions go from hand to hand.
#[test]
fn a_session_that_goes_from_hand_to_hand_has_an_end_of_life_too() {
    let mut rng = rand::rngs::StdRng::seed_from_u64(1);
    let mut book = Book::new(PoolRules {
        max: 1,
        min: 0,
        validate_after: SECOND,
        lifetime: 60 * SECOND,
        lifetime_jitter: 0.0,
        idle_max: 600 * SECOND,
        test_every: 30 * SECOND,
    });
    book.wait(false, PATIENCE, true).expect("room");
    let slot = book.open(Moment::ZERO).expect("a place");
    book.opened(slot, HostId(1), Moment::ZERO, &mut rng);
    for second in 1..600_u64 {
        let now = Moment::from_millis(second * 1_000);
        book.wait(false, PATIENCE, true).expect("room");
        if book.back(slot, Back::Good(now), now) == Next::Close {
            return;
        }
    }
    panic!("lent for ten times its lifetime");
}

/// By a cached statement.
async fn read(pool: &Pool) -> Result<usize, Error> {
    pool.run(async |tx| {
        let all = tx.prepare_cached("SELECT * FROM w").await?;
        Ok(tx.query(&all, &[]).await?.len())
    })
    .await
}

/// A change of a table must not break a statement on a session for the rest of the session's life.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_of_a_table_breaks_no_cached_statement_of_a_run() {
    let Some(scene) = Scene::start(1, false, true).await else { return };
    let pool = scene.connector.pool_with(|o| o.max_conns(1)).expect("a pool");
    read(&pool).await.expect("prepared");
    as_superuser(&scene, "ALTER TABLE w ADD COLUMN more int").await;
    // A statement that was refused did nothing: `run` does it again, prepared anew.
    read(&pool).await.unwrap_or_else(|e| panic!("broken by the change: {e}"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn statements_that_somebody_deallocated_are_prepared_again() {
    let Some(scene) = Scene::start(1, false, true).await else { return };
    let pool = scene.connector.pool_with(|o| o.max_conns(1)).expect("a pool");
    read(&pool).await.expect("prepared");
    pool.acquire().await.unwrap().batch_execute("DISCARD ALL").await.unwrap();
    read(&pool).await.unwrap_or_else(|e| panic!("broken by the other caller: {e}"));
}

/// The token's row was refused, so nothing was committed: nobody has to ask.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_time_out_at_the_token_s_row_is_not_an_unknown_outcome() {
    let Some(scene) = Scene::start(1, false, true).await else { return };
    let blocker = scene.cluster.node(0).session().await.expect("a session of the lab");
    blocker.batch_execute("BEGIN; LOCK TABLE pgfollow.outcome IN ACCESS EXCLUSIVE MODE").await.unwrap();
    let error = scene
        .connector
        .run_once(&brief(), async |tx| {
            tx.batch_execute("SET LOCAL statement_timeout = '300ms'").await?;
            insert(tx, 1).await
        })
        .await
        .expect_err("the table is locked");
    assert_eq!(scene.rows(0, 1).await, 0);
    assert_eq!(error.class(), Class::Transient, "token {:?}: {error}", error.token());
}

/// A login that has to wait for its turn is not tried a hundred thousand times meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pool_that_must_wait_for_its_turn_does_not_spin() {
    let Some(scene) = Scene::start(1, false, false).await else { return };
    let connector = Connector::new(&format!("{}&max_connect_rate=0.1", uri(&scene))).unwrap();
    let pool = connector.pool_with(|o| o.max_conns(4).min_conns(4)).expect("a pool");
    drop(pool.acquire_within(PATIENCE).await.expect("a session"));
    tokio::time::sleep(2 * SECOND).await;
    let stats = pool.stats();
    assert!(stats.failed < 50, "{stats:?}");
}

/// The table was emptied (TRUNCATE, or dropped and made anew) between the COMMIT and the question.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_emptied_token_table_proves_nothing() {
    for empty in [
        "TRUNCATE pgfollow.outcome",
        "CREATE TABLE pgfollow.o (LIKE pgfollow.outcome INCLUDING ALL); \
        DROP TABLE pgfollow.outcome; ALTER TABLE pgfollow.o RENAME TO outcome; \
        GRANT SELECT, INSERT, UPDATE ON pgfollow.outcome TO app",
    ] {
        let Some(scene) = Scene::start(1, false, true).await else { return };
        scene.relay.plan(Fault::SwallowAnswer);
        let options = brief();
        let run = scene.write_once(1, &options);
        let meanwhile = async {
            scene.relay.struck(1).await;
            wait_for_async("the row", PATIENCE, || async {
                if scene.rows(0, 1).await == 1 { Ok(()) } else { Err(String::new()) }
            })
            .await
            .expect("it commits");
            as_superuser(&scene, empty).await;
        };
        let (said, ()) = tokio::join!(run, meanwhile);
        if let Err(e) = said {
            assert_ne!(e.class(), Class::Transient, "it is there: {e}");
        }
    }
}

/// Callers go away at any await of a run; closures panic.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn runs_dropped_anywhere_leave_nothing_in_the_pool() {
    let Some(scene) = Scene::start(1, false, true).await else { return };
    let pool = scene.connector.pool_with(|o| o.max_conns(2)).expect("a pool");
    for n in 0..400_u64 {
        let id = i64::try_from(n).unwrap() + 1_000;
        let run = pool.run(async |tx| {
            insert(tx, id).await?;
            assert!(n % 50 != 49, "as closures do");
            insert(tx, id).await
        });
        if n % 50 == 49 {
            let caught = futures_util::FutureExt::catch_unwind(std::panic::AssertUnwindSafe(run)).await;
            assert!(caught.is_err());
        } else {
            let _ = tokio::time::timeout(Duration::from_micros(n * 37 % 6_000), run).await;
        }
        if n % 10 == 0 {
            let s = pool.acquire_within(PATIENCE).await.unwrap();
            let answer = s.simple_query("SELECT now() = statement_timestamp()").await.unwrap();
            let own = answer.iter().any(|m| matches!(m, SimpleQueryMessage::Row(r) if r.get(0) == Some("t")));
            assert!(own, "round {n}: in a stranger's transaction");
        }
    }
    wait_for("all to come back", PATIENCE, || {
        let now = pool.stats().now;
        (now.lent, now.settling, now.waiting, now.opening) == (0, 0, 0, 0)
    })
    .await
    .unwrap_or_else(|e| panic!("{e}: {:?}", pool.stats()));
    let halves =
        "SELECT count(*) FROM (SELECT id FROM w WHERE id >= 1000 GROUP BY id HAVING count(*) <> 2) AS h";
    let s = pool.acquire_within(PATIENCE).await.unwrap();
    assert_eq!(s.query_one(halves, &[]).await.unwrap().get::<_, i64>(0), 0);
}
