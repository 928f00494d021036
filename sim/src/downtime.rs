//! A server that is away for long while nobody asks its pool for anything.

use std::sync::Arc;
use std::time::Duration;

use pgfollow::clock;
use rand::SeedableRng;
use rand::rngs::StdRng;

use crate::run::{builder, in_simulated_time};
use crate::world::{Inner, Model, World};

/// How a server is away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Away {
    /// Its host answers nothing.
    Silent,
    /// Its host refuses.
    Refusing,
    /// It takes nobody yet (57P03).
    Starting,
}

/// A pool and its server's absence.
#[derive(Clone, Copy, Debug)]
pub struct Downtime {
    /// `pool_max_conns`.
    pub size: usize,
    /// `pool_min_conns`.
    pub min: usize,
    /// After which a try to open a session is given up.
    pub patience: Duration,
    /// For so long.
    pub lasts: Duration,
    /// In what way.
    pub away: Away,
}

/// What was seen after the server's return.
#[derive(Clone, Copy, Debug)]
pub struct Returned {
    /// Sessions in the pool when the server came back: none can be alive.
    pub left: usize,
    /// From the return until the pool had its least sessions again, though nobody wanted one.
    pub refilled: Option<Duration>,
    /// How long a caller waited who came in the moment of the return; `None` if he got nothing.
    pub borrowed: Option<Duration>,
}

/// Lets it happen, and looks for that long after the server's return.
///
/// # Panics
/// If the runtime can't be made, or the pool not be filled before.
pub fn run(downtime: &Downtime, look: Duration) -> Returned {
    in_simulated_time(async {
        let undisturbed = live(downtime, look, false).await;
        Returned { borrowed: live(downtime, look, true).await.borrowed, ..undisturbed }
    })
}

async fn pause(d: Duration) {
    clock::sleep_until(clock::now() + d).await;
}

async fn live(downtime: &Downtime, look: Duration, borrow: bool) -> Returned {
    let Downtime { size, min, patience, lasts, away } = *downtime;
    tokio::time::advance(Duration::from_secs(10)).await;
    let world = World::new(Model { nodes: 1, processes: 1, sync: false, ..Model::default() }, 1, false);
    tokio::spawn(Arc::clone(&world).drive());
    let connector = builder("db-0", &world, 0, &mut StdRng::seed_from_u64(1)).build();
    let options = |o: pgfollow::PoolOptions| o.max_conns(size).min_conns(min).acquire_timeout(patience);
    let pool = connector.and_then(|c| c.pool_with(options)).expect("the configuration is right");
    drop(pool.acquire().await.expect("a session"));
    pause(Duration::from_secs(5)).await;
    assert_eq!(pool.stats().now.idle, min);

    world.with(|w| leave(w, away));
    pause(lasts).await;
    let left = pool.stats().now.idle;
    world.with(|w| w.start(0, 0));
    let back = clock::now();
    let borrowed = if borrow {
        let session = pool.acquire_within(look).await;
        let query = async { session.ok()?.simple_query("SELECT id FROM writes WHERE id = 0").await.ok() };
        query.await.map(|_| clock::now() - back)
    } else {
        None
    };
    while pool.stats().now.idle < min && clock::now() - back < look {
        pause(Duration::from_millis(10)).await;
    }
    let refilled = (pool.stats().now.idle >= min).then(|| clock::now() - back);
    world.end();
    Returned { left, refilled, borrowed }
}

fn leave(w: &mut Inner, away: Away) {
    match away {
        Away::Silent => w.power_off(0),
        Away::Refusing => w.kill(0),
        // Its return starts it anew.
        Away::Starting => w.crash(0, 3_600_000_000),
    }
}
