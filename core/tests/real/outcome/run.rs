//! What `run` repeats, what it refuses to, and that it can be spawned.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use pgfollow::retry::{self, RunOptions};
use pgfollow::tokio_postgres::IsolationLevel;
use pgfollow::{Class, Code, Connector, Error, Transaction};

use super::relay::Fault;
use super::scene::{Scene, brief, insert};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn serializable_closures_that_collide_are_all_done_once() {
    let Some(scene) = Scene::start(1, false, true).await else { return };
    scene.connector.run(async |tx| insert(tx, 0).await).await.expect("a row");
    // From a pool: sessions that are opened one after the other hardly ever collide.
    let pool = scene.connector.pool_with(|o| o.max_conns(4)).expect("a pool");
    let options = RunOptions::new()
        .isolation_level(IsolationLevel::Serializable)
        .attempts(200)
        .deadline(Duration::from_secs(60));
    let rounds = AtomicU32::new(0);
    let worker = async || {
        for _ in 0..5 {
            let done = pool.run_with(&options, async |tx| {
                rounds.fetch_add(1, Ordering::Relaxed);
                let n: i64 = tx.query_one("SELECT id FROM w", &[]).await?.get(0);
                tokio::time::sleep(Duration::from_millis(5)).await;
                tx.execute("UPDATE w SET id = $1", &[&(n + 1)]).await?;
                Ok(())
            });
            done.await.expect("it gets its turn");
        }
    };
    tokio::join!(worker(), worker(), worker(), worker());
    assert_eq!(scene.rows(0, 20).await, 1, "an increment was lost or doubled");
    assert!(rounds.load(Ordering::Relaxed) > 20, "nothing collided, so this proves nothing");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closure_that_ends_its_own_transaction_is_refused_and_not_repeated() {
    let Some(scene) = Scene::start(1, false, true).await else { return };
    let times = AtomicU32::new(0);
    for text in ["COMMIT", "ROLLBACK", "END; BEGIN", "COMMIT AND CHAIN", "ROLLBACK AND CHAIN", "ABORT; BEGIN"]
    {
        times.store(0, Ordering::Relaxed);
        let result = scene.connector.run(async |tx| {
            times.fetch_add(1, Ordering::Relaxed);
            insert(tx, 1).await?;
            Ok(tx.batch_execute(text).await?)
        });
        let error = result.await.expect_err(text);
        assert_eq!(
            (error.code(), error.class()),
            (Code::TransactionControl, Class::Permanent),
            "{text}: {error}"
        );
        assert_eq!(times.load(Ordering::Relaxed), 1, "{text}");
    }
    // Sent, and not waited for: it comes before the run's own.
    let error = scene.connector.run(async |tx| {
        insert(tx, 2).await?;
        let mut abandoned = Box::pin(tx.batch_execute("COMMIT"));
        let _ = futures_util::poll!(&mut abandoned);
        Ok(())
    });
    assert_eq!(error.await.expect_err("seen").code(), Code::TransactionControl);
    // Savepoints are no transaction control.
    let inner = async |tx: &mut Transaction<'_>| {
        insert(tx, 3).await?;
        let savepoint = tx.savepoint("s").await?;
        savepoint.execute("INSERT INTO w VALUES (4)", &[]).await?;
        savepoint.rollback().await?;
        tx.batch_execute("SAVEPOINT t; INSERT INTO w VALUES (4); ROLLBACK TO t").await?;
        Ok(())
    };
    scene.connector.run(inner).await.expect("the outer transaction lives");
    assert_eq!((scene.rows(0, 3).await, scene.rows(0, 4).await), (1, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_repeating_can_not_help_is_returned_at_once() {
    let Some(scene) = Scene::start(1, false, true).await else { return };
    let times = AtomicU32::new(0);
    let run = async |text: &'static str| {
        times.store(0, Ordering::Relaxed);
        let result = scene.connector.run(async |tx| {
            times.fetch_add(1, Ordering::Relaxed);
            Ok(tx.batch_execute(text).await?)
        });
        (result.await.expect_err(text), times.load(Ordering::Relaxed))
    };
    let (error, times) = run("INSERT INTO nowhere VALUES (1)").await;
    assert_eq!((error.class(), times), (Class::Permanent, 1), "{error}");
    // A failed block whose error the closure keeps to itself.
    let silent = scene.connector.run(async |tx| {
        let _ = tx.batch_execute("INSERT INTO nowhere VALUES (1)").await;
        Ok(())
    });
    let error = silent.await.expect_err("the server rolled back");
    assert_eq!((error.code(), error.class()), (Code::RolledBack, Class::Permanent), "{error}");
    let refused = scene.connector.run(async |tx| {
        insert(tx, 1).await?;
        Err::<(), _>(retry::give_up("sold out"))
    });
    let error = refused.await.expect_err("refused");
    assert_eq!((error.code(), error.to_string().as_str()), (Code::GaveUp, "sold out"));
    assert_eq!(scene.rows(0, 1).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_is_lost_in_the_midst_of_the_work_costs_a_repeat_and_no_error() {
    let Some(scene) = Scene::start(1, false, true).await else { return };
    let times = AtomicU32::new(0);
    let work = async |tx: &mut Transaction<'_>| {
        insert(tx, 1).await?;
        if times.fetch_add(1, Ordering::Relaxed) == 0 {
            // A bare `?`: tokio-postgres has only "closed" to say.
            tx.query("SELECT pg_terminate_backend(pg_backend_pid()), pg_sleep(1)", &[]).await?;
        }
        Ok(())
    };
    scene.connector.run(work).await.expect("done again");
    assert_eq!((times.load(Ordering::Relaxed), scene.rows(0, 1).await), (2, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_that_only_reads_takes_no_token_and_is_repeated_whatever_became_of_it() {
    let Some(scene) = Scene::start(1, false, true).await else { return };
    scene.relay.plan(Fault::CutAfter(Duration::ZERO));
    let read = async |tx: &mut Transaction<'_>| {
        Ok(tx.query_one("SELECT count(*) FROM pgfollow.outcome", &[]).await?.get::<_, i64>(0))
    };
    let tokens = scene.connector.run_with(&RunOptions::new().read_only(true), read).await.expect("read");
    scene.relay.struck(1).await;
    assert_eq!(tokens, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deadline_ends_work_that_hangs() {
    let Some(scene) = Scene::start(1, false, true).await else { return };
    let began = Instant::now();
    let error = scene
        .connector
        .run_with(&brief().deadline(Duration::from_secs(2)), async |tx| {
            insert(tx, 1).await?;
            Ok(tx.batch_execute("SELECT pg_sleep(60)").await?)
        })
        .await
        .expect_err("too late");
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    assert_eq!((error.code(), error.class()), (Code::CallTimedOut, Class::Transient), "{error}");
}

/// The repeats of a service whose database is in trouble must not become a storm of their own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repeats_end_with_the_budget() {
    let Some(scene) = Scene::start(1, false, true).await else { return };
    let times = AtomicU32::new(0);
    let always = async |_: &mut Transaction<'_>| {
        times.fetch_add(1, Ordering::Relaxed);
        Err::<(), _>(Error::new(Code::Server, Class::Transient, "of the moment"))
    };
    let error = scene.connector.run(always).await.expect_err("it never works");
    assert_eq!(times.load(Ordering::Relaxed), 4, "{error}");
    assert!(error.to_string().contains("a tenth of its calls"), "{error}");
}

/// Compiles: the futures are `Send`, also with captures by reference, as handlers of web frameworks have them.
#[expect(dead_code, reason = "compiled, not run")]
fn runs_can_be_spawned(connector: Connector, id: i64, name: String) {
    async fn handler(connector: &Connector, id: i64, name: &str) -> Result<i64, Error> {
        connector
            .run(async |tx| {
                tx.execute("INSERT INTO w VALUES ($1)", &[&id]).await?;
                let row = tx.query_one("SELECT count(*) FROM w WHERE name = $1", &[&name]).await?;
                Ok(row.get(0))
            })
            .await
    }
    tokio::spawn({
        let (connector, name) = (connector.clone(), name.clone());
        async move { handler(&connector, id, &name).await }
    });
    tokio::spawn({
        let (connector, name) = (connector.clone(), name.clone());
        async move {
            let options = RunOptions::new().read_only(true);
            connector.run_with(&options, async move |tx| Ok(tx.query(&name, &[&id]).await?.len())).await
        }
    });
    tokio::spawn(async move { connector.run(async |tx| Ok(tx.batch_execute(&name).await?)).await });
}
