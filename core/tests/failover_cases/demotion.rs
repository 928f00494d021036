//! fo-h04: a primary that becomes a standby without a single broken connection.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use pgfollow::Connector;
use pgfollow_lab::{Cluster, ClusterOptions, Node, servers, wait_for};

use super::proxy::Proxy;
use super::workload::Workload;
use super::{PATIENCE, case, seconds};

fn at(node: &Node) -> SocketAddr {
    (node.host(), node.port()).into()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_that_survive_a_demotion_refuse_one_write_each_and_are_left() {
    let case = case("fo-h04");
    let Some(binaries) = servers() else { return };
    let mut options = ClusterOptions::new(binaries);
    options.sync = false;
    let trust = |what| format!("host {what} all 127.0.0.0/8 trust\n");
    options.hba = Some(format!("{}{}", trust("all"), trust("replication")));
    let cluster = Cluster::start(options).await.unwrap();
    let (primary, promoted, standby) = (cluster.node(0), cluster.node(1), cluster.node(2));
    let proxy = Proxy::start(at(primary)).await.unwrap();
    let hosts = format!("{},{}", proxy.address, at(promoted));
    let uri = format!("{}?target_session_attrs=read-write&sslmode=disable", cluster.conninfo_to(&hosts));
    let connector = Connector::new(&uri).unwrap();
    let workload = Workload::start(&connector, 6, Duration::from_millis(10)).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let fault = Instant::now();
    proxy.switch(at(standby));
    wait_for("every session to be a standby's", PATIENCE, || proxy.switched()).await.unwrap();
    primary.kill().await.unwrap();
    cluster.promote(1).await.unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let log = workload.stop().await;
    let first = log.first_write_on(promoted.host(), fault);
    eprintln!("fo-h04: first write after {first:?}; {}", log.summary());
    assert!(first <= seconds(&case["expect"]["first_write_on_new_primary_within_s"]), "{first:?}");
    let mut refused: HashMap<usize, u32> = HashMap::new();
    for (wait, error) in log.errors() {
        assert_eq!(error.sqlstate().map(|s| s.to_string()).as_deref(), Some("25006"), "{error}");
        *refused.entry(wait.worker).or_default() += 1;
    }
    // "One per call in flight": a worker has one at a time. (There is no run() yet that would hide it.)
    assert!(!refused.is_empty(), "no write met the standby, so this proves nothing");
    assert!(refused.values().all(|n| *n == 1), "{refused:?}");
    log.check_rows(&cluster, 1).await;
}
