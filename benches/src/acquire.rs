//! What a pool adds to a call: acquire and release without a query, beside deadpool and bb8.
//!
//! One server, a pool of eight warm sessions each, in one run. Blocks of the three alternate in an order that turns
//! round (a b c, c b a), so that whatever drifts slowly falls on all alike. One task on a current-thread runtime, then
//! 64 tasks on two threads, where most of them wait.

use std::time::{Duration, Instant};

use pgfollow::{Connector, Pool};
use pgfollow_lab::{Binaries, Cluster, ClusterOptions};
use serde_json::json;
use tokio::runtime::{Builder, Runtime};
use tokio_postgres::NoTls;

use crate::stats::Spread;
use crate::{Failed, Found};

/// Sessions of each pool.
const SIZE: usize = 8;
/// Bounds against deadpool, at one task and at 64.
const BOUNDS: [f64; 2] = [0.75, 1.0];
/// Tasks of the two parts.
const TASKS: [usize; 2] = [1, 64];

/// Acquire and release without a query, against deadpool and bb8
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Rounds of three blocks
    #[arg(long, default_value_t = 51, value_parser = clap::value_parser!(u16).range(11..))]
    rounds: u16,
    /// Acquires a block
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1000..))]
    block: u32,
}

impl Default for Args {
    fn default() -> Self {
        Self { rounds: 51, block: 20_000 }
    }
}

type Bb8 = bb8::Pool<bb8_postgres::PostgresConnectionManager<NoTls>>;

/// The three pools.
#[derive(Clone)]
struct Pools {
    ours: Pool,
    deadpool: deadpool_postgres::Pool,
    bb8: Bb8,
}

impl Pools {
    async fn new(conninfo: &str) -> Result<Self, Failed> {
        let ours = Connector::new(&format!("{conninfo}?target_session_attrs=read-write"))?
            .pool_with(|o| o.max_conns(SIZE))?;
        let plain: tokio_postgres::Config = conninfo.parse()?;
        let manager = deadpool_postgres::Manager::new(plain.clone(), NoTls);
        let deadpool = deadpool_postgres::Pool::builder(manager).max_size(SIZE).build()?;
        let manager = bb8_postgres::PostgresConnectionManager::new(plain, NoTls);
        let bb8 =
            Bb8::builder().max_size(u32::try_from(SIZE)?).test_on_check_out(false).build(manager).await?;
        let pools = Self { ours, deadpool, bb8 };
        // All of them full.
        let (mut a, mut b, mut c) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..SIZE {
            a.push(pools.ours.acquire_within(Duration::from_secs(10)).await?);
            b.push(pools.deadpool.get().await?);
            c.push(pools.bb8.get_owned().await?);
        }
        drop((a, b, c));
        Ok(pools)
    }

    /// Time for one acquire and release, in nanoseconds.
    async fn block(&self, which: usize, tasks: usize, block: u32) -> Result<f64, Failed> {
        let each = block / u32::try_from(tasks)?;
        let start = Instant::now();
        if tasks == 1 {
            self.clone().turns(which, each).await?;
        } else {
            let mut running = tokio::task::JoinSet::new();
            for _ in 0..tasks {
                running.spawn(self.clone().turns(which, each));
            }
            while let Some(done) = running.join_next().await {
                done??;
            }
        }
        Ok(start.elapsed().as_secs_f64() * 1e9 / f64::from(each) / tasks as f64)
    }

    async fn turns(self, which: usize, n: u32) -> Result<(), Failed> {
        for _ in 0..n {
            match which {
                0 => drop(self.ours.acquire().await?),
                1 => drop(self.deadpool.get().await?),
                _ => drop(self.bb8.get().await?),
            }
        }
        Ok(())
    }
}

pub(crate) fn run(args: &Args, binaries: &Binaries) -> Result<Found, Failed> {
    let mut texts = Vec::new();
    let mut parts = Vec::new();
    let mut within = true;
    for (tasks, bound) in TASKS.into_iter().zip(BOUNDS) {
        let runtime: Runtime = match tasks {
            1 => Builder::new_current_thread().enable_all().build()?,
            _ => Builder::new_multi_thread().worker_threads(2).enable_all().build()?,
        };
        let times = runtime.block_on(measure(args, binaries, tasks))?;
        let [ours, deadpool, bb8] = &times;
        let ratio = |other: &[f64]| -> Vec<f64> { ours.iter().zip(other).map(|(a, b)| a / b).collect() };
        let (to_deadpool, to_bb8) = (Spread::of(&ratio(deadpool)), Spread::of(&ratio(bb8)));
        let [o, d, b] = times.each_ref().map(|t| Spread::of(t).median);
        within &= to_deadpool.median <= bound && to_bb8.median < 1.0;
        texts.push(format!(
            "acquire and release, {tasks} task(s): {o:.0} ns (deadpool {d:.0}, bb8 {b:.0}); ratio to deadpool {:.2} \
             (bound {bound}), to bb8 {:.2} (bound 1)",
            to_deadpool.median, to_bb8.median
        ));
        parts.push(json!({
            "tasks": tasks, "bound": bound, "ns": {"pgfollow": o, "deadpool": d, "bb8": b},
            "ratio_to_deadpool": to_deadpool.json(), "ratio_to_bb8": to_bb8.json(),
        }));
    }
    Ok(Found {
        text: texts.join("\n"),
        json: json!({"bench": "acquire", "rounds": args.rounds, "block": args.block, "parts": parts}),
        within_bounds: Some(within),
    })
}

/// The times of the three pools, a figure a round.
async fn measure(args: &Args, binaries: &Binaries, tasks: usize) -> Result<[Vec<f64>; 3], Failed> {
    let mut options = ClusterOptions::new(binaries.clone());
    options.nodes = 1;
    let cluster = Cluster::start(options).await?;
    let pools = Pools::new(&cluster.conninfo()).await?;
    let mut times = [Vec::new(), Vec::new(), Vec::new()];
    for round in 0..=args.rounds {
        let order = if round % 2 == 0 { [0, 1, 2] } else { [2, 1, 0] };
        for which in order {
            let ns = pools.block(which, tasks, args.block).await?;
            // The first round only warms up.
            if round > 0 {
                times[which].push(ns);
            }
        }
    }
    Ok(times)
}
