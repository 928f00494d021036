//! Real servers: start, replication, faults, promotion.

use std::time::{Duration, Instant};

use pgfollow_lab::{Binaries, BinaryOptions, Cluster, ClusterOptions, LabError, Prober, monotonic_ns};

fn binaries(major: u32) -> Binaries {
    let options = BinaryOptions { major: Some(major), ..BinaryOptions::default() };
    Binaries::find(&options, &mut |line| eprintln!("{line}")).expect("binaries")
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_primary_is_replaced() -> Result<(), LabError> {
    for major in [15, 18] {
        let started = Instant::now();
        let options = ClusterOptions::new(binaries(major));
        let cluster = Cluster::start(options).await?;
        eprintln!("{} started in {:?}", cluster.server_version(), started.elapsed());
        let prober = Prober::start(&cluster, 1).await?;
        assert_eq!(prober.ready_now(), None);
        let at = monotonic_ns();
        cluster.node(0).kill().await?;
        cluster.promote(1).await?;
        let ready = prober.ready(Duration::from_secs(10)).await?;
        eprintln!("ready {} ms after the kill", (ready - at) / 1_000_000);
    }
    Ok(())
}
