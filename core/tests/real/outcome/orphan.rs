//! An orphan idle in its transaction behind a black hole. The test runs its own program again in a private network
//! namespace.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use pgfollow::{Connector, EventKind, Transaction};
use pgfollow_lab::{netns, servers};

use super::PATIENCE;
use super::scene::Scene;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_orphan_behind_a_black_hole_is_settled_within_15_seconds() {
    // Found outside: inside there is no network to fetch them from.
    if servers().is_none() {
        return;
    }
    if !netns::alone(an_orphan_behind_a_black_hole_is_settled_within_15_seconds).await {
        return;
    }
    for token_table in [true, false] {
        let scene = Scene::start(1, false, token_table).await.expect("servers");
        settled_behind_a_black_hole(&scene, token_table).await;
    }
}

async fn settled_behind_a_black_hole(scene: &Scene, token_table: bool) {
    // Without the relay: the hole is between this very session and its server.
    let uri = format!("{}?target_session_attrs=read-write", scene.cluster.conninfo());
    let connector = Connector::new(&uri).expect("a connector");
    let session = connector.connect_within(PATIENCE).await.expect("a session");
    session.batch_execute("INSERT INTO w VALUES (1)").await.expect("a row");
    let mut events = connector.events();
    let times = AtomicU32::new(0);
    let update = async |tx: &mut Transaction<'_>| {
        tx.execute("UPDATE w SET id = id + 1", &[]).await?;
        if times.fetch_add(1, Ordering::Relaxed) == 0 {
            // Its COMMIT goes into the hole; the server keeps the row locked.
            scene.cluster.cut(0).expect("packets are dropped");
        }
        Ok(())
    };
    let began = Instant::now();
    let run = async {
        connector.run(update).await.unwrap_or_else(|e| panic!("table {token_table}: {e}"));
        began.elapsed()
    };
    let heal = async {
        while !matches!(events.recv().await.expect("an event").kind, EventKind::SessionEnded { .. }) {}
        let given_up = began.elapsed();
        scene.cluster.heal(0).expect("packets pass again");
        given_up
    };
    let (settled, given_up) = tokio::join!(run, heal);
    eprintln!("table {token_table}: given up after {given_up:?}, settled and done again after {settled:?}");
    assert_eq!(scene.rows(0, 2).await, 1, "done twice, or not at all");
    assert!(times.load(Ordering::Relaxed) >= 2);
    assert!(settled < Duration::from_secs(15), "{settled:?}");
}
