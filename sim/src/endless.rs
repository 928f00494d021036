//! One process that lives through failover after failover, as a service does for months: what grows is a leak.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use pgfollow::{Connector, Pool, clock};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::run::{connector, in_simulated_time};
use crate::workload::insert;
use crate::world::{Model, World};

/// Workers on the pool.
const WORKERS: i64 = 4;

/// What is there some seconds after a failover.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    /// Tasks of the runtime.
    pub tasks: usize,
    /// Connections that the library holds or dials.
    pub pipes: usize,
    /// Writes since the failover before.
    pub writes: usize,
}

/// Fails over that often, now by a kill, now by a lost host or a switchover, and tells after each what is there.
///
/// # Panics
/// If the runtime can't be made.
pub fn fail_over_and_over(times: usize, look: impl FnMut(Seen)) {
    in_simulated_time(live(times, look));
}

async fn pause(ms: u64) {
    clock::sleep_until(clock::now() + Duration::from_millis(ms)).await;
}

async fn live(times: usize, mut look: impl FnMut(Seen)) {
    tokio::time::advance(Duration::from_secs(10)).await;
    let mut rng = StdRng::seed_from_u64(1);
    let world = World::new(Model { processes: 1, sync: true, ..Model::default() }, rng.random(), false);
    tokio::spawn(Arc::clone(&world).drive());
    let connector: Connector = connector(&world, 0, |_| {}, &mut rng);
    let pool = connector.pool();
    let (stop, writes) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let workers: Vec<_> = (0..WORKERS)
        .map(|number| tokio::spawn(work(pool.clone(), number, Arc::clone(&stop), Arc::clone(&writes))))
        .collect();
    for _ in 0..times {
        pause(5_000).await;
        let old = world.with(|w| w.leader);
        match rng.random_range(0..3) {
            0 => world.with(|w| w.kill(old)),
            1 => world.with(|w| w.power_off(old)),
            _ => world.with(|w| w.stop(old)),
        }
        pause(1_000).await;
        world.with(|w| {
            if let Some(best) = w.most_advanced(old) {
                w.promote(best, 100_000);
            }
        });
        pause(500).await;
        world.with(|w| {
            let leader = w.leader;
            (0..w.nodes.len()).filter(|n| *n != old).for_each(|n| w.follow(n, leader));
            w.rejoin(old, 500_000);
        });
        // Kernels and watchful times have come to their ends.
        pause(12_000).await;
        let pipes = world.with(|w| {
            w.forget();
            w.open_pipes()
        });
        let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
        look(Seen { tasks, pipes, writes: writes.swap(0, Ordering::Relaxed) });
    }
    stop.store(true, Ordering::Relaxed);
    for worker in workers {
        // One that panicked has said so.
        let _ = worker.await;
    }
    world.end();
}

async fn work(pool: Pool, number: i64, stop: Arc<AtomicBool>, writes: Arc<AtomicUsize>) {
    let mut row = number * 1_000_000_000;
    while !stop.load(Ordering::Relaxed) {
        row += 1;
        let sql = insert(row);
        let done = pool.run(async |tx| Ok(tx.batch_execute(&sql).await?)).await;
        writes.fetch_add(usize::from(done.is_ok()), Ordering::Relaxed);
        pause(1_000).await;
    }
}
