//! The hosts' names are gone; the hosts aren't.

use std::time::Duration;

use pgfollow_lab::dns::{DnsServer, Kind, Rule};
use pgfollow_lab::wait_for;

use super::bench::{Bench, PATIENCE, cluster, works};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_that_vanish_take_no_session_with_them() {
    let Some(cluster) = cluster().await else { return };
    let dns = DnsServer::start("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let names: Vec<String> = cluster.nodes().iter().map(|n| format!("{}.test", n.name())).collect();
    for (name, node) in names.iter().zip(cluster.nodes()) {
        dns.set(name, Kind::A, Rule::addresses([node.host().into()], 1));
    }
    let hosts: Vec<String> =
        names.iter().zip(cluster.nodes()).map(|(name, n)| format!("{name}:{}", n.port())).collect();
    let uri = cluster.conninfo_to(&hosts.join(","));
    let more = format!("&dns_servers={}", dns.address());
    let bench = Bench::over(cluster, &uri, &more).await;
    let idle = bench.session().await;
    // Longer than a vanished address is kept.
    let calls = bench.calls(Duration::from_millis(12_500)).await;
    for name in &names {
        dns.remove(name);
    }
    wait_for("the connector to learn it", PATIENCE, || bench.connector.names().iter().all(|n| n.stale))
        .await
        .unwrap();
    works(&idle).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    works(&idle).await;
    // Now there isn't even somebody to ask.
    dns.stop().await;
    for session in calls.succeed().await {
        works(&session).await;
    }
    works(&idle).await;
}
