//! The original is still under way, waits for a standby, comes late, or is an orphan; and checks whose own answer is lost.

use std::time::{Duration, Instant};

use pgfollow::outcome::{Outcome, Unsettled};
use pgfollow::{Class, Code, Connector};
use pgfollow_lab::{LabError, PoolMode, StopMode, skipped};

use super::PATIENCE;
use super::relay::Fault;
use super::scene::{Scene, backend_in, brief, foreign_token, insert};

/// Backends of the service that are not idle and not a monitor's.
const AT_WORK: &str = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'app' AND application_name = 'pgfollow' \
                       AND state <> 'idle'";

/// A COMMIT that takes a minute.
const SLOW_COMMIT: &str = "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS \
    $$ BEGIN IF NEW.id > 0 THEN PERFORM pg_sleep(60); END IF; RETURN NULL; END $$; \
    CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON w DEFERRABLE INITIALLY DEFERRED \
    FOR EACH ROW EXECUTE FUNCTION slow()";

async fn at_work(scene: &Scene) -> i64 {
    let session = scene.cluster.node(0).session().await.expect("a session of the lab");
    session.query_one(AT_WORK, &[]).await.expect("a count").get(0)
}

async fn waits_for(scene: &Scene, pid: i32) -> Option<String> {
    let session = scene.cluster.node(0).session().await.expect("a session of the lab");
    let sql = "SELECT wait_event FROM pg_stat_activity WHERE pid = $1";
    session.query_opt(sql, &[&pid]).await.expect("an answer")?.get(0)
}

/// As soon as a backend waits for a standby, other than this one, its wait is cancelled.
async fn break_off_the_wait(scene: &Scene, spared: Option<i32>) {
    let session = scene.cluster.node(0).session().await.expect("a session of the lab");
    let sql = "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity \
               WHERE wait_event = 'SyncRep' AND pid IS DISTINCT FROM $1";
    super::wait_for_async("the wait for the standby", PATIENCE, || async {
        let row = session.query_one(sql, &[&spared]).await.map_err(|e| e.to_string())?;
        if row.get::<_, i64>(0) == 1 { Ok(()) } else { Err(String::new()) }
    })
    .await
    .expect("it waits");
}

pub(crate) async fn slow_commit(scene: &Scene) {
    let session = scene.connector.connect_within(PATIENCE).await.expect("a session");
    session.batch_execute(SLOW_COMMIT).await.expect("a trigger");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_original_that_still_runs_is_ended_and_told_as_not_committed() {
    for token_table in [true, false] {
        let Some(scene) = Scene::start(1, false, token_table).await else { return };
        slow_commit(&scene).await;
        scene.relay.plan(Fault::SwallowAnswer);
        let error = scene.write_once(1, &brief()).await.expect_err("it didn't commit");
        assert_eq!(error.class(), Class::Transient, "table {token_table}: {error}");
        assert_eq!((at_work(&scene).await, scene.rows(0, 1).await), (0, 0), "table {token_table}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_waits_for_a_standby_stays_unknown_and_its_wait_is_not_broken_off() {
    for token_table in [true, false] {
        let Some(scene) = Scene::start(2, true, token_table).await else { return };
        let (lost, _) = foreign_token(&scene).await;
        scene.cluster.node(1).stop(StopMode::Fast).await.expect("the standby stops");
        let error = scene.write_once(1, &brief()).await.expect_err("nobody confirms it");
        assert_eq!(error.class(), Class::UnknownOutcome, "table {token_table}: {error}");
        assert!(error.to_string().contains("waiting for a synchronous standby"), "{error}");
        let token = *error.token().expect("a token");
        assert_eq!(
            waits_for(&scene, backend_in(&token)).await.as_deref(),
            Some("SyncRep"),
            "table {token_table}"
        );
        if token_table {
            // Nobody has that token. The check's own commit waits; somebody breaks that wait off, and its fence is then
            // known to this host alone.
            let check = scene.connector.check_outcome(&lost, Duration::from_secs(8));
            let (answer, ()) = tokio::join!(check, break_off_the_wait(&scene, Some(backend_in(&token))));
            assert_eq!(answer.expect("an answer"), Outcome::Unknown(Unsettled::WaitingForStandby));
        }
        scene.cluster.node(1).start().await.expect("the standby starts");
        let answer = scene.connector.check_outcome(&token, PATIENCE).await.expect("an answer");
        assert_eq!(answer, Outcome::Committed, "table {token_table}");
        assert_eq!(scene.rows(0, 1).await, 1);
        if token_table {
            let answer = scene.connector.check_outcome(&lost, PATIENCE).await.expect("an answer");
            assert_eq!(answer, Outcome::NotCommitted);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_whose_wait_for_a_standby_is_broken_off_is_not_called_committed() {
    for token_table in [true, false] {
        let Some(scene) = Scene::start(2, true, token_table).await else { return };
        scene.cluster.node(1).stop(StopMode::Fast).await.expect("the standby stops");
        let options = brief();
        let write = scene.write_once(1, &options);
        let (result, ()) = tokio::join!(write, break_off_the_wait(&scene, None));
        let error = result.expect_err("nobody confirmed it");
        assert_eq!(
            (error.class(), error.code()),
            (Class::UnknownOutcome, Code::ReplicationUnknown),
            "table {token_table}: {error}"
        );
        let token = *error.token().expect("a token");
        scene.cluster.node(1).start().await.expect("the standby starts");
        let answer = scene.connector.check_outcome(&token, PATIENCE).await.expect("an answer");
        assert_eq!(answer, Outcome::Committed, "table {token_table}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_original_that_arrives_after_the_check_can_not_commit_any_more() {
    let Some(scene) = Scene::start(1, false, true).await else { return };
    let (token, key) = foreign_token(&scene).await;
    let original = scene.connector.connect_within(PATIENCE).await.expect("a session");
    original.batch_execute("BEGIN; INSERT INTO w VALUES (1)").await.expect("its work");
    let answer = scene.connector.check_outcome(&token, PATIENCE).await.expect("an answer");
    assert_eq!(answer, Outcome::NotCommitted);
    let last = format!("INSERT INTO pgfollow.outcome (token, state) VALUES ('{key}', 'd'); COMMIT");
    let error = original.batch_execute(&last).await.expect_err("the token is taken");
    assert_eq!(error.code().map(|c| c.code()), Some("23505"));
    drop(original);
    assert_eq!(scene.rows(0, 1).await, 0);
    let answer = scene.connector.check_outcome(&token, PATIENCE).await.expect("an answer");
    assert_eq!(answer, Outcome::NotCommitted);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_check_whose_own_answer_is_lost_is_asked_again_and_says_the_same() {
    let Some(scene) = Scene::start(1, false, true).await else { return };
    let moment = Fault::CutAfter(Duration::from_millis(50));
    // The original arrives; then the check's own COMMIT does, and its answer is lost, twice.
    for fault in [moment, moment, moment] {
        scene.relay.plan(fault);
    }
    scene.write_once(1, &brief()).await.expect("it committed");
    scene.relay.struck(3).await;
    assert_eq!(scene.rows(0, 1).await, 1);
    // The original never arrives; the first check takes the token, and the second one finds it taken by a check.
    for fault in [Fault::CutBefore, moment, Fault::CutBefore] {
        scene.relay.plan(fault);
    }
    let error = scene.write_once(2, &brief()).await.expect_err("it never arrived");
    scene.relay.struck(6).await;
    assert_eq!((error.class(), scene.rows(0, 2).await), (Class::Transient, 0), "{error}");
}

/// The path dies without a word to either side, and no keepalive tells the server (a middle box answers them): the orphan
/// would hold its lock for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_orphan_idle_in_its_transaction_does_not_keep_its_repeat_from_its_locks() {
    for token_table in [true, false] {
        let Some(scene) = Scene::start(1, false, token_table).await else { return };
        scene.write_once(1, &brief()).await.expect("undisturbed");
        scene.relay.plan(Fault::Swallow);
        let began = Instant::now();
        let update = async |tx: &mut pgfollow::Transaction<'_>| {
            tx.execute("UPDATE w SET id = id + 1", &[]).await?;
            Ok(())
        };
        // The COMMIT is waited for 3 s of these.
        let error = scene.connector.run_once(&brief().deadline(Duration::from_secs(4)), update).await;
        let error = error.expect_err("the COMMIT never arrived");
        assert_eq!(error.class(), Class::Transient, "table {token_table}: {error}");
        scene.connector.run(update).await.expect("the lock is free");
        let took = began.elapsed();
        eprintln!("settled and done again after {took:?} (table {token_table})");
        assert!(took < Duration::from_secs(15), "{took:?}");
        assert_eq!(scene.rows(0, 2).await, 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_of_another_cluster_or_of_long_ago_takes_no_row() {
    let Some(scene) = Scene::start(1, false, true).await else { return };
    let (token, key) = foreign_token(&scene).await;
    let text = token.to_string();
    let fields: Vec<&str> = text.split('.').collect();
    let with = |n: usize, value: &str| {
        let mut fields = fields.clone();
        fields[n] = value;
        fields.join(".").parse::<pgfollow::outcome::Token>().expect("a token")
    };
    for (n, value, why) in [
        (2, "1", Unsettled::OtherSystem),
        (3, "1", Unsettled::OtherDatabase),
        (4, "1700000000000000", Unsettled::TooOld),
    ] {
        let answer = scene.connector.check_outcome(&with(n, value), PATIENCE).await.expect("an answer");
        assert_eq!(answer, Outcome::Unknown(why));
    }
    let session = scene.connector.connect_within(PATIENCE).await.expect("a session");
    let sql = format!("SELECT count(*) FROM pgfollow.outcome WHERE token = '{key}'");
    assert_eq!(session.query_one(&sql, &[]).await.expect("a count").get::<_, i64>(0), 0);
    // A primary of an older term than the transaction's: asked again until there is a newer one.
    let answer =
        scene.connector.check_outcome(&with(5, "9"), Duration::from_secs(2)).await.expect("an answer");
    assert_eq!(answer, Outcome::Unknown(Unsettled::NoPrimary));
    scene.connector.run(async |tx| insert(tx, 1).await).await.expect("all is well");
}

/// Its backend may be lent to another client by then, and the process id in the login is the pooler's invention.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_a_pooler_no_backend_is_ended() {
    let Some(scene) = Scene::start(1, false, true).await else { return };
    slow_commit(&scene).await;
    let pooler = match scene.cluster.pooler(0, PoolMode::Transaction).await {
        Ok(p) => p,
        Err(e @ LabError::Binaries(_)) => return skipped(e),
        Err(e) => panic!("{e}"),
    };
    let uri = scene.cluster.conninfo_to(&format!("127.0.0.1:{}", pooler.port()));
    let uri = format!("{uri}?target_session_attrs=read-write&endpoint=indirect");
    let connector = Connector::new(&uri).expect("a connector");
    let insert = |id: i64| {
        // Unnamed statements: named ones don't survive a change of the server connection.
        let text = format!("INSERT INTO w VALUES ({id})");
        async move |tx: &mut pgfollow::Transaction<'_>| Ok(tx.batch_execute(&text).await?)
    };
    connector.run(insert(-1)).await.unwrap_or_else(|e| panic!("{e}\n{}", pooler.log()));
    let options = brief().deadline(Duration::from_secs(8));
    let error = connector.run_once(&options, insert(1)).await.expect_err("its COMMIT takes a minute");
    assert_eq!(error.class(), Class::UnknownOutcome, "{error}");
    assert!(error.to_string().contains("still under way"), "{error}");
    let token = error.token().expect("a token").to_string();
    assert!(token.contains(".-.-."), "{token}");
    let session = scene.cluster.node(0).session().await.expect("a session of the lab");
    let sleeping = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
    let row = session.query_one(sleeping, &[]).await.expect("a count");
    assert_eq!(row.get::<_, i64>(0), 1, "the original was ended");
}
