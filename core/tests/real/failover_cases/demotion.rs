//! fo-h04: a primary that becomes a standby without a single broken connection.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use pgfollow::{Connector, Error};
use pgfollow_lab::{Binaries, Cluster, ClusterOptions, Node, servers, wait_for};
use tokio::sync::watch;

use super::proxy::Proxy;
use super::workload::Workload;
use super::{PATIENCE, case, seconds};

fn at(node: &Node) -> SocketAddr {
    (node.host(), node.port()).into()
}

/// A cluster whose primary is reached through a proxy.
struct Scene {
    cluster: Cluster,
    proxy: Proxy,
    connector: Connector,
}

impl Scene {
    async fn start(binaries: Binaries) -> Self {
        let mut options = ClusterOptions::new(binaries);
        options.sync = false;
        let trust = |what| format!("host {what} all 127.0.0.0/8 trust\n");
        options.hba = Some(format!("{}{}", trust("all"), trust("replication")));
        let cluster = Cluster::start(options).await.unwrap();
        let proxy = Proxy::start(at(cluster.node(0))).await.unwrap();
        let hosts = format!("{},{}", proxy.address, at(cluster.node(1)));
        let uri = format!("{}?target_session_attrs=read-write&sslmode=disable", cluster.conninfo_to(&hosts));
        let connector = Connector::new(&uri).unwrap();
        Self { cluster, proxy, connector }
    }

    /// Gives every session of the primary a standby behind it, and promotes another one.
    async fn demote(&self) {
        self.proxy.switch(at(self.cluster.node(2)));
        wait_for("every session to be a standby's", PATIENCE, || self.proxy.switched()).await.unwrap();
        self.cluster.node(0).kill().await.unwrap();
        self.cluster.promote(1).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_that_survive_a_demotion_refuse_one_write_each_and_are_left() {
    let case = case("fo-h04");
    let Some(binaries) = servers() else { return };
    let scene = Scene::start(binaries).await;
    let workload = Workload::start(&scene.connector, 6, Duration::from_millis(10)).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let fault = Instant::now();
    scene.demote().await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let log = workload.stop().await;
    let first = log.first_write_on(scene.cluster.node(1).host(), fault);
    eprintln!("fo-h04: first write after {first:?}; {}", log.summary());
    assert!(first <= seconds(&case["expect"]["first_write_on_new_primary_within_s"]), "{first:?}");
    let mut refused: HashMap<usize, u32> = HashMap::new();
    for (wait, error) in log.errors() {
        assert_eq!(error.sqlstate().map(|s| s.to_string()).as_deref(), Some("25006"), "{error}");
        *refused.entry(wait.worker).or_default() += 1;
    }
    // "One per call in flight": a worker has one at a time.
    assert!(!refused.is_empty(), "no write met the standby, so this proves nothing");
    assert!(refused.values().all(|n| *n == 1), "{refused:?}");
    log.check_rows(&scene.cluster, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_refusal_of_a_demoted_host_reaches_a_caller_of_run() {
    let Some(binaries) = servers() else { return };
    let scene = Scene::start(binaries).await;
    let session = scene.connector.connect_within(PATIENCE).await.unwrap();
    session.batch_execute("CREATE TABLE w (id bigint)").await.unwrap();
    let (stop, stopped) = watch::channel(false);
    let workers: Vec<_> =
        (0..6).map(|_| tokio::spawn(runs(scene.connector.clone(), stopped.clone()))).collect();
    tokio::time::sleep(Duration::from_secs(1)).await;
    scene.demote().await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    stop.send_replace(true);
    let mut done = 0;
    for worker in workers {
        let rows = tokio::time::timeout(PATIENCE, worker).await.expect("no run hangs").unwrap();
        done += rows.expect("run hides every refusal");
    }
    let session = scene.cluster.node(1).session().await.unwrap();
    let row = session.query_one("SELECT count(*) FROM w", &[]).await.unwrap();
    assert_eq!(row.get::<_, i64>(0), done, "a row is lost or doubled");
}

/// Writes through `run` until told to stop. Gives how many rows.
async fn runs(connector: Connector, stop: watch::Receiver<bool>) -> Result<i64, Error> {
    let mut done = 0;
    while !*stop.borrow() {
        connector
            .run(async |tx| {
                tx.execute("INSERT INTO w VALUES ($1)", &[&done]).await?;
                Ok(())
            })
            .await?;
        done += 1;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(done)
}
