//! fo-h03: a planned switchover, announced at every step.

use std::time::{Duration, Instant};

use pgfollow::{Class, Connector};
use pgfollow_lab::{Cluster, ClusterOptions, StopMode, servers};

use super::workload::Workload;
use super::{case, seconds};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clean_switchover_costs_no_row_and_leaves_nobody_behind() {
    let case = case("fo-h03");
    let expect = &case["expect"];
    let Some(binaries) = servers() else { return };
    let mut options = ClusterOptions::new(binaries);
    options.nodes = 2;
    let cluster = Cluster::start(options).await.unwrap();
    let connector =
        Connector::new(&format!("{}?target_session_attrs=read-write", cluster.conninfo())).unwrap();
    let workload = Workload::start(&connector, 8, Duration::from_millis(20)).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let fault = Instant::now();
    cluster.node(0).stop(StopMode::Fast).await.unwrap();
    cluster.promote(1).await.unwrap();
    cluster.restart_as_standby(0, 1).await.unwrap();
    let (after, most) = expect["sessions_on_old_primary_for_writes_after_s"]
        .as_object()
        .and_then(|o| o.iter().next())
        .expect("a bound");
    let after = Duration::from_secs(after.parse().unwrap());
    tokio::time::sleep(after.saturating_sub(fault.elapsed())).await;
    let old = cluster.node(0).session().await.unwrap();
    // The monitor's session has another name.
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgfollow'";
    let left: i64 = old.query_one(sql, &[]).await.unwrap().get(0);
    let log = workload.stop().await;
    let first = log.first_write_on(cluster.node(1).host(), fault);
    eprintln!("fo-h03: first write after {first:?}; {}", log.summary());
    assert_eq!(Some(left), most.as_i64(), "sessions on the old primary");
    assert!(first <= seconds(&expect["first_write_on_new_primary_within_s"]), "{first:?}");
    let permanent: Vec<_> = log.errors().filter(|(_, e)| e.class() == Class::Permanent).collect();
    let told: Vec<String> = permanent.iter().map(|(_, e)| e.to_string()).collect();
    assert_eq!(Some(told.len() as u64), expect["permanent_errors"].as_u64(), "{told:?}");
    log.check_rows(&cluster, 1).await;
}
