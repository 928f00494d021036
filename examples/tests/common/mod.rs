//! What the tests share: a cluster, a failover, and writers that must come through it.
#![allow(dead_code, reason = "each test binary uses its part")]
#![allow(clippy::print_stderr, reason = "words for people")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pgfollow::Connector;
use pgfollow_examples::bb8::Manager;
use pgfollow_lab::{Cluster, ClusterOptions, servers};

/// Longer than anything here takes on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
const WRITERS: usize = 4;

/// The writers' statement; it tells where it landed.
pub(crate) const WRITE: &str = "INSERT INTO w VALUES (1) RETURNING host(inet_server_addr()) AS host";

/// A primary and a standby, with a connector to both and table w; `None` where there are no servers.
pub(crate) async fn start() -> Option<(Cluster, Connector)> {
    let mut options = ClusterOptions::new(servers()?);
    (options.nodes, options.sync) = (2, false);
    let cluster = Cluster::start(options).await.expect("a cluster");
    let more = "target_session_attrs=read-write&pool_max_conns=4&pool_acquire_timeout=20s";
    let connector = Connector::new(&format!("{}?{more}", cluster.conninfo())).expect("a connector");
    let session = connector.connect_within(PATIENCE).await.expect("a session");
    session
        .batch_execute("CREATE TABLE w (n int); CREATE TABLE orders (id bigserial)")
        .await
        .expect("a table");
    Some((cluster, connector))
}

/// What happens to the primary.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Its kernel resets the sockets.
    Kill,
    /// It says nothing any more.
    Freeze,
}

/// Writers write without pause; the primary is lost and the standby promoted. Each of them must come back, by itself, and
/// then go on at the promoted one without another error.
pub(crate) async fn survives<W, F>(cluster: &Cluster, fault: Fault, write: W)
where
    W: Fn() -> F + Clone + Send + 'static,
    F: Future<Output = Result<String, String>> + Send,
{
    let stop = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..WRITERS)
        .map(|_| {
            let (write, stop) = (write.clone(), Arc::clone(&stop));
            tokio::spawn(async move {
                let mut log = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    log.push(tokio::time::timeout(PATIENCE, write()).await.expect("a call hangs"));
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                log
            })
        })
        .collect();
    tokio::time::sleep(Duration::from_secs(2)).await;
    if fault == Fault::Kill {
        cluster.node(0).kill().await.expect("killed");
        cluster.promote(1).await.expect("promoted");
    } else {
        cluster.node(0).freeze().await.expect("frozen");
        cluster.promote_alone(1).await.expect("promoted");
    }
    tokio::time::sleep(Duration::from_secs(5)).await;
    stop.store(true, Ordering::Relaxed);
    let (old, new) = (cluster.node(0).host().to_string(), cluster.node(1).host().to_string());
    for w in writers {
        let log = w.await.expect("no panic");
        assert_eq!(log[0].as_ref(), Ok(&old));
        let there = |done: &Result<String, String>| done.as_ref() == Ok(&new);
        let first = log.iter().position(there).expect("it came back");
        let errors: Vec<_> = log.iter().filter_map(|done| done.as_ref().err()).collect();
        eprintln!("{} errors on the way, at first {:?}", errors.len(), errors.first());
        let stray = log[first..].iter().find(|done| !there(done));
        assert!(stray.is_none(), "{stray:?}");
    }
}

/// [`survives`] through the bb8 example's pool.
pub(crate) async fn bb8_survives(cluster: &Cluster, fault: Fault, pool: bb8::Pool<Manager>) {
    survives(cluster, fault, move || {
        let pool = pool.clone();
        async move {
            let session = pool.get().await.map_err(|e| e.to_string())?;
            let row = session.query_one(WRITE, &[]).await;
            Ok(row.map_err(|e| session.why().diagnose(e).to_string())?.get(0))
        }
    })
    .await;
}
