#![expect(
    clippy::disallowed_methods,
    clippy::print_stderr,
    reason = "tests against real servers: real time, and words for people"
)]
//! deadpool's pool over our connections, on real clusters: it goes on at the promoted host, whatever became of the old.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pgfollow::deadpool::deadpool_postgres::{Pool, PoolError, Runtime};
use pgfollow::{Class, Connector, Error, deadpool};
use pgfollow_lab::{Cluster, ClusterOptions, servers};
use tokio::time::timeout;

/// Longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);
const WORKERS: usize = 4;

enum Fault {
    Kill,
    Freeze,
    Demote,
}

fn pool(connector: &Connector) -> Pool {
    Pool::builder(deadpool::manager(connector))
        .max_size(WORKERS)
        .runtime(Runtime::Tokio1)
        .wait_timeout(Some(PATIENCE))
        .build()
        .unwrap()
}

/// One write; where it landed.
async fn write(pool: &Pool) -> Result<String, String> {
    let client = pool.get().await.map_err(|e| e.to_string())?;
    let sql = "INSERT INTO w VALUES (1) RETURNING host(inet_server_addr())";
    Ok(client.query_one(sql, &[]).await.map_err(|e| e.to_string())?.get(0))
}

async fn survives(fault: Fault) {
    let Some(binaries) = servers() else { return };
    let mut options = ClusterOptions::new(binaries);
    (options.nodes, options.sync) = (2, false);
    let cluster = Cluster::start(options).await.unwrap();
    let connector =
        Connector::new(&format!("{}?target_session_attrs=read-write", cluster.conninfo())).unwrap();
    let pool = pool(&connector);
    pool.get().await.unwrap().batch_execute("CREATE TABLE w (n int)").await.unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let workers: Vec<_> = (0..WORKERS)
        .map(|_| {
            let (pool, stop) = (pool.clone(), Arc::clone(&stop));
            tokio::spawn(async move {
                let mut log = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    let done = timeout(PATIENCE, write(&pool)).await.expect("a call hangs");
                    log.push((Instant::now(), done));
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                log
            })
        })
        .collect();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let began = Instant::now();
    match fault {
        Fault::Kill => cluster.node(0).kill().await.unwrap(),
        Fault::Freeze => cluster.node(0).freeze().await.unwrap(),
        Fault::Demote => cluster.node(0).demote().await.unwrap(),
    }
    cluster.promote(1).await.unwrap();
    tokio::time::sleep(Duration::from_secs(6)).await;
    stop.store(true, Ordering::Relaxed);
    let promoted = cluster.node(1).host().to_string();
    for w in workers {
        let log = w.await.unwrap();
        assert!(log[0].1.is_ok(), "{:?}", log[0].1);
        let there = |done: &Result<String, String>| done.as_ref() == Ok(&promoted);
        let first = log.iter().position(|(_, done)| there(done)).expect("it came back");
        let errors = log.iter().filter(|(_, done)| done.is_err()).count();
        eprintln!("back after {:?} with {errors} errors", log[first].0 - began);
        let strays: Vec<_> = log[first..].iter().filter(|(_, done)| !there(done)).collect();
        assert!(strays.is_empty(), "{strays:?}");
    }
    assert!(pool.status().size <= WORKERS);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deadpool_goes_on_at_the_promoted_host_after_a_kill() {
    survives(Fault::Kill).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deadpool_goes_on_at_the_promoted_host_after_a_freeze() {
    survives(Fault::Freeze).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deadpool_gives_up_connections_whose_host_takes_no_writes_any_more() {
    survives(Fault::Demote).await;
}

#[tokio::test]
async fn when_no_host_can_be_had_deadpool_gives_the_error_of_pgfollow() {
    let conninfo = "postgresql://u@127.0.0.1:1/d?pool_acquire_timeout=300ms&monitor=off";
    let Err(e) = pool(&Connector::new(conninfo).unwrap()).get().await else { panic!("nobody listens there") };
    assert!(matches!(e, PoolError::Backend(_)), "{e:?}");
    let ours = Error::find(&e).unwrap_or_else(|| panic!("{e:?}"));
    assert_eq!(ours.class(), Class::Transient);
    assert!(!ours.attempts().is_empty());
}
