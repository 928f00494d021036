//! The modelled token table behaves as PostgreSQL's does: what the outcome check's answers rest on.

use std::sync::Arc;
use std::time::Duration;

use pgfollow::clock;
use pgfollow::tokio_postgres::{Client, SimpleQueryMessage};
use pgfollow_sim::net::SimDial;
use pgfollow_sim::{Model, World, in_simulated_time};

const DONE: &str = "INSERT INTO pgfollow.outcome (token, state) VALUES ('t1', 'd')";
const CHECK: &str = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SET LOCAL lock_timeout = '1s'; \
    INSERT INTO pgfollow.outcome AS o (token, state) VALUES ('t1', 'v') \
    ON CONFLICT (token) DO UPDATE SET token = excluded.token RETURNING o.state; COMMIT";

async fn client(world: &Arc<World>) -> Client {
    SimDial::new(world, 0).bare_client(0).await.expect("a login")
}

fn in_a_world(test: impl AsyncFnOnce(Arc<World>)) {
    in_simulated_time(async {
        let world = World::new(Model::default(), 1, false);
        tokio::spawn(Arc::clone(&world).drive());
        test(world).await;
    });
}

fn state(answer: &[SimpleQueryMessage]) -> Option<String> {
    answer.iter().find_map(|m| match m {
        SimpleQueryMessage::Row(r) => r.get("state").map(str::to_owned),
        _ => None,
    })
}

#[test]
fn a_check_finds_what_was_done_however_often_it_asks() {
    in_a_world(async |world| {
        let (a, b) = (client(&world).await, client(&world).await);
        a.batch_execute(&format!("BEGIN; INSERT INTO writes (id) VALUES (1); {DONE}; COMMIT"))
            .await
            .expect("done");
        for _ in 0..2 {
            assert_eq!(state(&b.simple_query(CHECK).await.expect("an answer")).as_deref(), Some("d"));
        }
    });
}

#[test]
fn a_token_that_a_check_has_taken_can_not_be_committed_any_more() {
    in_a_world(async |world| {
        let (a, b) = (client(&world).await, client(&world).await);
        assert_eq!(state(&b.simple_query(CHECK).await.expect("an answer")).as_deref(), Some("v"));
        let e = a.batch_execute(&format!("BEGIN; {DONE}; COMMIT")).await.expect_err("the token is taken");
        assert_eq!(e.code().map(|c| c.code()), Some("23505"));
        assert_eq!(state(&b.simple_query(CHECK).await.expect("an answer")).as_deref(), Some("v"));
    });
}

#[test]
fn a_check_waits_for_the_original_that_still_runs_and_gives_up_after_its_lock_timeout() {
    in_a_world(async |world| {
        let (a, b) = (client(&world).await, client(&world).await);
        a.batch_execute(&format!("BEGIN; {DONE}")).await.expect("open");
        let begin = clock::now();
        let e = b.simple_query(CHECK).await.expect_err("it is held");
        assert_eq!(e.code().map(|c| c.code()), Some("55P03"));
        assert!(clock::now() - begin >= Duration::from_secs(1));
        b.batch_execute("ROLLBACK").await.expect("rolled back");
        a.batch_execute("COMMIT").await.expect("committed");
        assert_eq!(state(&b.simple_query(CHECK).await.expect("an answer")).as_deref(), Some("d"));
    });
}

/// What keeps the places of commits that their callers gave up goes by that (`core/src/pool/kept.rs`).
#[test]
fn a_commit_that_waits_for_a_standby_is_seen_to_wait_when_its_client_has_gone() {
    in_simulated_time(async {
        // Nobody is there to confirm.
        let world = World::new(Model { nodes: 1, ..Model::default() }, 1, false);
        tokio::spawn(Arc::clone(&world).drive());
        let (a, b) = (client(&world).await, client(&world).await);
        let call = tokio::time::timeout(
            Duration::from_secs(1),
            a.batch_execute("INSERT INTO writes (id) VALUES (1)"),
        );
        assert!(call.await.is_err(), "it waits");
        drop(a);
        clock::sleep_until(clock::now() + Duration::from_secs(20)).await;
        let at_work = "SELECT pid, coalesce(wait_event = 'SyncRep', false) FROM pg_catalog.pg_stat_activity \
            WHERE state = 'active' AND pid IN (1, 2)";
        let answer = b.simple_query(at_work).await.expect("an answer");
        let rows: Vec<_> = answer
            .iter()
            .filter_map(
                |m| if let SimpleQueryMessage::Row(r) = m { Some((r.get(0)?, r.get(1)?)) } else { None },
            )
            .collect();
        assert_eq!(rows, [("1", "t")]);
    });
}
