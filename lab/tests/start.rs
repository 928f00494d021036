//! How fast a cluster starts. A program of its own, so that no other test of the lab runs beside it.
#![allow(clippy::print_stderr, reason = "tests tell their figures")]

mod common;

use std::time::{Duration, Instant};

use common::{binaries, cluster};
use pgfollow_lab::LabError;

const BOUND: Duration = Duration::from_secs(3);

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_that_starts_slowly_makes_every_drill_slow() -> Result<(), LabError> {
    for binaries in [15, 18].into_iter().filter_map(binaries) {
        let version = binaries.version().to_owned();
        let mut best = Duration::MAX;
        // The machine may be busy with something else for one try, hardly for three.
        for _ in 0..3 {
            let began = Instant::now();
            drop(cluster(binaries.clone(), 3).await?);
            best = best.min(began.elapsed());
            if best < BOUND {
                break;
            }
        }
        eprintln!("{version}: primary and two standbys up and down again in {best:?}");
        assert!(best < BOUND, "{version}: {best:?}");
    }
    Ok(())
}
