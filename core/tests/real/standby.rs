#![expect(
    clippy::disallowed_methods,
    clippy::print_stderr,
    reason = "tests against real servers: real time, and figures for people"
)]
//! Before a server whose synchronous standby is gone. What a pool's callers give up waits on at the server, and must not
//! fill it; and a wait that is broken off is answered as if all were well.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pgfollow::{Class, Code, Connector, EventKind, Pool};
use pgfollow_lab::{Cluster, ClusterOptions, servers, wait_for_async};

const ENOUGH: Duration = Duration::from_secs(30);
const SIZE: usize = 4;

/// Sessions of the service there, monitors not among them; and how many of them wait for a standby.
async fn backends(cluster: &Cluster) -> (i64, i64) {
    let session = cluster.node(0).session().await.expect("a session of the lab");
    let sql = "SELECT count(*), count(*) FILTER (WHERE wait_event = 'SyncRep') FROM pg_stat_activity \
               WHERE usename = 'app' AND application_name = 'pgfollow'";
    let row = session.query_one(sql, &[]).await.expect("a count");
    (row.get(0), row.get(1))
}

async fn scene() -> Option<(Cluster, Connector, Pool)> {
    let mut options = ClusterOptions::new(servers()?);
    options.nodes = 2;
    let cluster = Cluster::start(options).await.expect("a cluster");
    let uri = format!("{}?target_session_attrs=read-write", cluster.conninfo());
    let connector = Connector::new(&uri).expect("valid");
    let pool = connector.pool_with(|o| o.max_conns(SIZE)).expect("valid");
    let session = pool.acquire_within(ENOUGH).await.expect("a session");
    session.batch_execute("CREATE TABLE t (n int)").await.expect("a table");
    drop(session);
    // The monitor has looked around before anything breaks.
    tokio::time::sleep(Duration::from_secs(1)).await;
    Some((cluster, connector, pool))
}

/// Each waits for its commit no longer than 300 ms, which is before anybody calls it blocked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commits_that_are_given_up_do_not_fill_the_server_while_a_standby_is_gone() {
    let Some((cluster, connector, pool)) = scene().await else { return };
    cluster.node(1).freeze().await.expect("the standby freezes");
    let (stop, refused) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(Vec::new())));
    let mut callers = tokio::task::JoinSet::new();
    for n in 0..12_i32 {
        let (pool, stop, refused) = (pool.clone(), Arc::clone(&stop), Arc::clone(&refused));
        callers.spawn(async move {
            while stop.load(Ordering::Relaxed) == 0 {
                match pool.acquire_within(Duration::from_secs(2)).await {
                    Ok(session) => {
                        let sql = format!("INSERT INTO t VALUES ({n})");
                        let insert = session.batch_execute(&sql);
                        // Its error is what the test is about: nobody confirms the commit.
                        let _ = session.within(Duration::from_millis(300), insert).await;
                    }
                    Err(e) if e.code() == Code::Overloaded => {
                        refused.lock().expect("a list").push((e.class(), e.retry_after(), e.to_string()));
                    }
                    Err(_) => {}
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
    }
    let mut most = (0, 0);
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let seen = backends(&cluster).await;
        most = (most.0.max(seen.0), most.1.max(seen.1));
    }
    let (stats, report) = (pool.stats(), connector.report());
    stop.store(1, Ordering::Relaxed);
    callers.join_all().await;
    eprintln!("at most {most:?} backends; {stats:?}; {}", report.verdict);
    let size = i64::try_from(SIZE).expect("small");
    assert!(most.0 <= size, "{} backends for a pool of {size}: {stats:?}", most.0);
    assert_eq!(most.1, size, "the commits never waited");
    assert_eq!(stats.now.kept, SIZE, "{stats:?}");
    let refused = refused.lock().expect("a list").clone();
    assert!(refused.len() > 20, "only {} were refused at once", refused.len());
    for (class, retry_after, text) in refused {
        assert!(class == Class::Transient && retry_after.is_some() && text.contains("standby"), "{text}");
    }
    let outage = report.outages.last().expect("an outage");
    let (standby, whole) = (outage.causes_ms["waiting_for_standby"], outage.whole_ms);
    assert!(standby > 0.9 * whole && whole > 8_000.0, "{outage:?}");

    cluster.node(1).thaw().await.expect("the standby is back");
    wait_for_async("the pool is whole", ENOUGH, || async {
        let stats = pool.stats();
        if stats.now.kept == 0 { Ok(()) } else { Err(format!("{stats:?}")) }
    })
    .await
    .expect("every place comes back");
    let mut all = Vec::new();
    for _ in 0..SIZE {
        let session = pool.acquire_within(ENOUGH).await.expect("a session for every place");
        session.batch_execute("INSERT INTO t VALUES (-1)").await.expect("it commits");
        all.push(session);
    }
    assert_eq!(backends(&cluster).await, (size, 0));
}

/// The host that held the places is gone for good: they must not keep anybody from the new primary.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn places_of_waiting_commits_are_free_once_their_host_is_superseded() {
    let Some((cluster, _, pool)) = scene().await else { return };
    cluster.node(1).freeze().await.expect("the standby freezes");
    for n in 0..SIZE {
        let session = pool.acquire_within(ENOUGH).await.expect("a session");
        let sql = format!("INSERT INTO t VALUES ({n})");
        let given_up = session.within(Duration::from_millis(300), session.batch_execute(&sql)).await;
        assert_eq!(given_up.expect_err("nobody confirms it").code(), Code::CallTimedOut);
    }
    wait_for_async("all places are kept", ENOUGH, || async {
        let stats = pool.stats();
        if stats.now.kept == SIZE { Ok(()) } else { Err(format!("{stats:?}")) }
    })
    .await
    .expect("they wait");
    cluster.node(0).freeze().await.expect("the primary freezes");
    cluster.node(1).thaw().await.expect("the standby is back");
    cluster.promote(1).await.expect("it is promoted");
    let began = std::time::Instant::now();
    let session = loop {
        match pool.acquire_within(ENOUGH).await {
            Ok(session) => break session,
            Err(e) if e.class() == Class::Transient && began.elapsed() < ENOUGH => {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            Err(e) => panic!("{e}"),
        }
    };
    eprintln!("served {:?} after the promotion", began.elapsed());
    session.batch_execute("INSERT INTO t VALUES (9)").await.expect("it takes writes");
    assert_eq!(pool.stats().now.kept, 0);
    cluster.node(0).thaw().await.expect("the old one is let go");
}

/// As soon as a commit waits for the standby, its wait is cancelled: by any administrator, or the client's own cancel.
async fn break_off_the_wait(cluster: &Cluster) {
    let session = cluster.node(0).session().await.expect("a session of the lab");
    let sql = "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
    wait_for_async("the wait for the standby", ENOUGH, || async {
        let row = session.query_one(sql, &[]).await.map_err(|e| e.to_string())?;
        if row.get::<_, i64>(0) == 1 { Ok(()) } else { Err(String::new()) }
    })
    .await
    .expect("it waits");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_outside_a_transaction_whose_wait_was_broken_off_is_not_taken_for_safe() {
    let Some((cluster, connector, _)) = scene().await else { return };
    let session = connector.connect_within(ENOUGH).await.expect("a session");
    let (why, mut events) = (session.why(), connector.events());
    session.batch_execute("INSERT INTO t VALUES (0)").await.expect("confirmed");
    why.confirmed().expect("nothing was broken off");
    cluster.node(1).freeze().await.expect("the standby freezes");

    let insert = session.execute("INSERT INTO t VALUES (1)", &[]);
    let (answer, ()) = tokio::join!(insert, break_off_the_wait(&cluster));
    answer.expect("the server says that all is well");
    let told = why.confirmed().expect_err("it is on that host alone");
    assert_eq!((told.code(), told.class()), (Code::ReplicationUnknown, Class::UnknownOutcome), "{told}");

    let insert = session.within(ENOUGH, session.batch_execute("INSERT INTO t VALUES (2)"));
    let (answer, ()) = tokio::join!(insert, break_off_the_wait(&cluster));
    assert_eq!(answer.expect_err("a call of ours looks itself").code(), Code::ReplicationUnknown);

    let told = async {
        loop {
            let event = events.recv().await.expect("an event");
            if matches!(event.kind, EventKind::CommitLocalOnly { .. }) {
                return event.text();
            }
        }
    };
    let text = tokio::time::timeout(ENOUGH, told).await.expect("it is told");
    assert!(text.contains("alone"), "{text}");
    cluster.node(1).thaw().await.expect("the standby is back");
    session.execute("INSERT INTO t VALUES (3)", &[]).await.expect("confirmed");
    why.confirmed().expect("the next commit is judged for itself");
}
