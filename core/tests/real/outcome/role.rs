//! Roles that may not use the table, or not any more: never an error in the caller's transaction.

use std::sync::Arc;

use pgfollow::retry::{self, RunOptions, Sessions};
use pgfollow::{Class, Code, Connector, Deadline, EndCause, Error, Session};
use tokio::sync::{Mutex, OwnedMutexGuard};

use super::PATIENCE;
use super::relay::Fault;
use super::scene::{Scene, brief, insert};

/// A cancel that reaches a COMMIT leaves the session alive and the outcome open: whoever lends sessions must not lend this
/// one again, for its backend may be ended by the check.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_whose_commit_is_in_question_comes_back_ended() {
    let Some(scene) = Scene::start(1, false, true).await else { return };
    super::blocked::slow_commit(&scene).await;
    let connector = scene.connector.clone();
    let session = connector.connect_within(PATIENCE).await.expect("a session");
    let source = One { connector, session: Arc::new(Mutex::new(session)) };
    let options = brief();
    let run = retry::run_once(&source, &options, async |tx| insert(tx, 1).await);
    let cancel = async {
        let session = scene.cluster.node(0).session().await.expect("a session of the lab");
        let sql = "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
        super::wait_for_async("the COMMIT", PATIENCE, || async {
            let row = session.query_one(sql, &[]).await.map_err(|e| e.to_string())?;
            if row.get::<_, i64>(0) == 1 { Ok(()) } else { Err(String::new()) }
        })
        .await
        .expect("it commits");
    };
    let (result, ()) = tokio::join!(run, cancel);
    let error = result.expect_err("cancelled");
    assert_eq!(error.class(), Class::Transient, "{error}");
    assert!(error.to_string().contains("not committed"), "{error}");
    // By us, before the check, and not by the check's end of its backend.
    assert_eq!(source.session.lock().await.ended(), Some(EndCause::Closed), "it would be lent again");
}

/// A source that lends one session again and again.
struct One {
    connector: Connector,
    session: Arc<Mutex<Session>>,
}

impl Sessions for One {
    type Lent = OwnedMutexGuard<Session>;

    async fn acquire(&self, _writes: bool, deadline: Deadline) -> Result<Self::Lent, Error> {
        let waits = deadline.bound(Arc::clone(&self.session).lock_owned()).await;
        waits.map_err(|_| Error::new(Code::DeadlinePassed, Class::Transient, "no session"))
    }

    fn connector(&self) -> &Connector {
        &self.connector
    }
}

async fn as_superuser(scene: &Scene, sql: &str) {
    let session = scene.cluster.node(0).session().await.expect("a session of the lab");
    session.batch_execute(sql).await.unwrap_or_else(|e| panic!("{sql}: {e}"));
}

async fn tokens(scene: &Scene) -> i64 {
    let session = scene.cluster.node(0).session().await.expect("a session of the lab");
    session.query_one("SELECT count(*) FROM pgfollow.outcome", &[]).await.expect("a count").get(0)
}

fn weak(scene: &Scene) -> Connector {
    let uri = format!(
        "postgresql://weak:w@{}/{}?target_session_attrs=read-write&sslmode=disable",
        scene.relay.address,
        scene.cluster.database()
    );
    Connector::new(&uri).expect("a connector")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_role_without_privileges_on_the_table_writes_and_is_settled_without_it() {
    let Some(scene) = Scene::start(1, false, true).await else { return };
    as_superuser(&scene, "CREATE ROLE weak LOGIN PASSWORD 'w'; GRANT INSERT ON w TO weak").await;
    let weak = weak(&scene);
    for (id, fault) in [(1, None), (2, Some(Fault::SwallowAnswer)), (3, Some(Fault::CutBefore))] {
        fault.into_iter().for_each(|f| scene.relay.plan(f));
        let options = brief().deadline(std::time::Duration::from_secs(6));
        weak.run_with(&options, async |tx| insert(tx, id).await)
            .await
            .unwrap_or_else(|e| panic!("{id}: {e}"));
        assert_eq!((scene.rows(0, id).await, tokens(&scene).await), (1, 0));
    }
    // Half of the privileges is none: its tokens could be written and never be asked for.
    as_superuser(&scene, "GRANT USAGE ON SCHEMA pgfollow TO weak; GRANT INSERT ON pgfollow.outcome TO weak")
        .await;
    weak.run(async |tx| insert(tx, 4).await).await.expect("it writes");
    assert_eq!((scene.rows(0, 4).await, tokens(&scene).await), (1, 0));
    pgfollow::outcome::install(&scene.connector, &["weak".to_owned()], PATIENCE).await.expect("granted");
    weak.run(async |tx| insert(tx, 5).await).await.expect("it writes");
    assert_eq!((scene.rows(0, 5).await, tokens(&scene).await), (1, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_that_is_closed_under_a_live_session_costs_a_repeat_and_no_error() {
    let Some(scene) = Scene::start(1, false, true).await else { return };
    as_superuser(&scene, "CREATE ROLE weak LOGIN PASSWORD 'w'; GRANT INSERT ON w TO weak").await;
    pgfollow::outcome::install(&scene.connector, &["weak".to_owned()], PATIENCE).await.expect("granted");
    let connector = weak(&scene);
    let session = connector.connect_within(PATIENCE).await.expect("a session");
    let source = One { connector, session: Arc::new(Mutex::new(session)) };
    let write =
        async |id: i64| retry::run_with(&source, &RunOptions::new(), async |tx| insert(tx, id).await).await;
    write(1).await.expect("with the table");
    assert_eq!(tokens(&scene).await, 1);
    as_superuser(&scene, "REVOKE ALL ON pgfollow.outcome FROM weak").await;
    write(2).await.expect("without it");
    assert_eq!((scene.rows(0, 2).await, tokens(&scene).await), (1, 1));
    // Gone altogether, and the next session sees that by itself.
    as_superuser(&scene, "DROP SCHEMA pgfollow CASCADE").await;
    write(3).await.expect("without it");
    assert_eq!(scene.rows(0, 3).await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unlogged_table_is_not_used_for_a_crash_would_empty_it() {
    let Some(scene) = Scene::start(1, false, true).await else { return };
    as_superuser(&scene, "ALTER TABLE pgfollow.outcome SET UNLOGGED").await;
    scene.write_once(1, &brief()).await.expect("it writes");
    assert_eq!(tokens(&scene).await, 0);
    let error = pgfollow::outcome::install(&scene.connector, &[], PATIENCE).await.expect_err("of no use");
    assert!(error.to_string().contains("SET LOGGED"), "{error}");
}
