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
        // The machine may be busy with something else for one try, hardly for five.
        for _ in 0..5 {
            let began = Instant::now();
            let started = cluster(binaries.clone(), 3).await?;
            let took = began.elapsed();
            drop(started);
            eprintln!("{version}: primary and two standbys started in {took:?}");
            best = best.min(took);
            if best < BOUND {
                break;
            }
        }
        assert!(best < BOUND, "{version}: {best:?}");
    }
    Ok(())
}
