//! A connector may be older or younger than the runtime that it is used in: kept in a static, asked for its health
//! before anything runs, used by one `block_on` after the other.
#![expect(clippy::disallowed_methods, reason = "tests over real sockets: real time")]

use std::time::Duration;

use pgfollow::{Code, Connector, Health, Pool, State};
use pgfollow_lab::{Cluster, ClusterOptions, servers, wait_for};
use tokio::runtime::{Builder, Runtime};

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

const NOBODY: &str = "host=127.0.0.1,127.0.0.9 port=1 user=u target_session_attrs=read-write";

#[test]
fn a_connector_that_is_asked_before_any_runtime_is_there_works_later() {
    let connector = Connector::new(NOBODY).expect("a connector");
    assert!(matches!(connector.health(), Health::Degraded(_)));
    assert!(connector.topology().hosts.is_empty());
    connector.accept_term("127.0.0.1").expect_err("nobody is known");
    let error = runtime().block_on(connector.connect()).expect_err("nobody is there");
    assert_eq!(error.code(), Code::DialFailed, "{error}");
    assert_eq!(connector.topology().hosts.len(), 2);
}

#[test]
fn a_connector_that_outlives_a_runtime_goes_on_watching_in_the_next() {
    let Some(binaries) = servers() else { return };
    let main = runtime();
    let mut options = ClusterOptions::new(binaries);
    (options.nodes, options.sync) = (2, false);
    let cluster = main.block_on(Cluster::start(options)).unwrap();
    let uri = format!("{}?target_session_attrs=read-write", cluster.conninfo());
    let connector = Connector::new(&uri).unwrap();
    let patience = Duration::from_secs(20);
    let first = runtime();
    let held = first.block_on(async {
        let session = connector.connect_within(patience).await.unwrap();
        tokio::time::sleep(Duration::from_millis(500)).await;
        session
    });
    drop(first);
    let before = connector.monitor_last_run();
    main.block_on(async {
        assert!(held.ended().is_some() && !held.is_usable(), "nothing drives it any more");
        tokio::time::timeout(patience, held.message()).await.expect("it waits for ever");
        let session = connector.connect_within(patience).await.unwrap();
        assert_eq!(
            session.address().to_string(),
            format!("{}:{}", cluster.node(0).host(), cluster.node(0).port())
        );
        let blocked = session.simple_query("SELECT pg_sleep(60)");
        let failover = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            // Nothing but the monitor tells of this one.
            cluster.node(0).freeze().await.unwrap();
            cluster.promote_alone(1).await.unwrap();
        };
        let (ended, ()) = tokio::time::timeout(patience, async { tokio::join!(blocked, failover) })
            .await
            .expect("the monitor ends it");
        assert_eq!(session.why().diagnose(ended.unwrap_err()).code(), Code::Superseded);
        assert!(connector.monitor_last_run() > before);
    });
    let old = cluster.node(0).host().to_string();
    main.block_on(async {
        cluster.node(0).thaw().await.unwrap();
        wait_for("the old primary to be known as such", patience, || {
            connector.topology().hosts.iter().any(|h| h.state == State::StalePrimary)
        })
        .await
        .unwrap();
    });
    let mut reader = main.block_on(connector.connect_within(patience)).unwrap();
    let reading = main.spawn(async move {
        let tx = reader.transaction().await?;
        tx.batch_execute("SELECT pg_sleep(60)").await.map_err(|e| tx.why().diagnose(e))
    });
    main.block_on(async { tokio::time::sleep(Duration::from_millis(500)).await });
    // On a thread of the operator's, say. It lets the call over there finish, which takes a task.
    connector.accept_term(&old).unwrap();
    let ended = main.block_on(async { tokio::time::timeout(patience, reading).await });
    let error = ended.expect("it is ended").expect("no panic").unwrap_err();
    assert_eq!(error.code(), Code::Superseded, "{error}");
    main.block_on(async { drop(cluster) });
}

#[test]
fn a_pool_that_outlives_a_runtime_opens_and_settles_in_the_next() {
    let Some(binaries) = servers() else { return };
    let main = runtime();
    let mut options = ClusterOptions::new(binaries);
    (options.nodes, options.sync) = (1, false);
    let cluster = main.block_on(Cluster::start(options)).unwrap();
    let pool = Pool::connect(&format!("{}?pool_max_conns=2", cluster.conninfo())).unwrap();
    let first = runtime();
    first.block_on(async {
        let idle = pool.acquire().await.unwrap();
        let asleep = pool.acquire().await.unwrap();
        // What its caller leaves behind is being settled when the runtime ends.
        let sleeping = asleep.simple_query("SELECT pg_sleep(60)");
        tokio::time::timeout(Duration::from_millis(200), sleeping).await.expect_err("it sleeps");
        drop((asleep, idle));
        wait_for("one to be settled", Duration::from_secs(5), || pool.stats().now.settling == 1)
            .await
            .unwrap();
        tokio::time::sleep(Duration::from_millis(200)).await;
    });
    drop(first);
    main.block_on(async {
        let begun = std::time::Instant::now();
        let one = pool.acquire().await.unwrap();
        let other = pool.acquire().await.expect("no place was lost");
        assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
        other.batch_execute("BEGIN").await.unwrap();
        drop(other);
        pool.acquire().await.expect("somebody settles it").batch_execute("SELECT 1").await.unwrap();
        drop(one);
        drop(cluster);
    });
}
