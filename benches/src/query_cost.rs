//! What a session adds to a query: a prepared `select 1` through pgfollow against tokio-postgres alone.
//!
//! One server, one connection each over loopback TCP (both set TCP_NODELAY), all on one current-thread runtime: caller
//! and connection task share a core, so that nothing that the session does can hide on another one. Blocks alternate
//! in ABBA order, so that whatever drifts slowly (clocks, caches, other work) falls on both alike. Beside each pair
//! runs one of two plain connections: what differs there is noise.

use std::time::{Duration, Instant};

use pgfollow::Connector;
use pgfollow_lab::{Binaries, Cluster, ClusterOptions};
use serde_json::json;
use tokio_postgres::{Client, NoTls, Statement};

use crate::stats::Spread;
use crate::{Failed, Found};

/// The bound: at most so many times the plain query.
const BOUND: f64 = 1.02;
/// Blocks of each connection before any counts.
const WARM_UP: usize = 5;

/// A prepared `select 1` through a session, against tokio-postgres alone
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Pairs of blocks
    #[arg(long, default_value_t = 101, value_parser = clap::value_parser!(u16).range(51..))]
    pairs: u16,
    /// Queries a block
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(100..))]
    block: u32,
}

impl Default for Args {
    fn default() -> Self {
        Self { pairs: 101, block: 1000 }
    }
}

pub(crate) fn run(args: &Args, binaries: &Binaries) -> Result<Found, Failed> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(measure(args, binaries))
}

/// One connection and its prepared statement.
struct Lane<'a> {
    client: &'a Client,
    statement: Statement,
}

impl<'a> Lane<'a> {
    async fn new(client: &'a Client) -> Result<Self, Failed> {
        Ok(Self { client, statement: client.prepare("select 1").await? })
    }

    async fn block(&self, queries: u32) -> Result<Duration, Failed> {
        let start = Instant::now();
        for _ in 0..queries {
            self.client.query_one(&self.statement, &[]).await?;
        }
        Ok(start.elapsed())
    }
}

/// Block times of pairs (first lane, second lane).
#[derive(Default)]
struct Pairs(Vec<(Duration, Duration)>);

impl Pairs {
    async fn run(&mut self, n: u16, queries: u32, a: &Lane<'_>, b: &Lane<'_>) -> Result<(), Failed> {
        self.0.push(if n.is_multiple_of(2) {
            let first = a.block(queries).await?;
            (first, b.block(queries).await?)
        } else {
            let first = b.block(queries).await?;
            (a.block(queries).await?, first)
        });
        Ok(())
    }

    fn ratio(&self) -> Spread {
        Spread::of(&self.0.iter().map(|(a, b)| b.as_secs_f64() / a.as_secs_f64()).collect::<Vec<_>>())
    }

    /// Microseconds a query of one lane.
    fn micros(&self, queries: u32, lane: impl Fn(&(Duration, Duration)) -> Duration) -> Spread {
        Spread::of(
            &self.0.iter().map(|p| lane(p).as_secs_f64() * 1e6 / f64::from(queries)).collect::<Vec<_>>(),
        )
    }
}

async fn measure(args: &Args, binaries: &Binaries) -> Result<Found, Failed> {
    let mut options = ClusterOptions::new(binaries.clone());
    options.nodes = 1;
    let cluster = Cluster::start(options).await?;
    let url = format!("{}?target_session_attrs=read-write", cluster.conninfo());
    let connector = Connector::new(&url)?;
    let session = connector.connect().await?;
    let (first, second) = (plain(&url).await?, plain(&url).await?);
    let (ours, plain, again) =
        (Lane::new(&session).await?, Lane::new(&first).await?, Lane::new(&second).await?);
    for lane in [&ours, &plain, &again] {
        for _ in 0..WARM_UP {
            lane.block(args.block).await?;
        }
    }
    let (mut cost, mut noise) = (Pairs::default(), Pairs::default());
    for n in 0..args.pairs {
        cost.run(n, args.block, &plain, &ours).await?;
        noise.run(n, args.block, &plain, &again).await?;
    }
    Ok(report(args, cluster.server_version(), &cost, &noise))
}

/// tokio-postgres as one uses it without us. It sets TCP_NODELAY on its sockets too.
async fn plain(url: &str) -> Result<Client, Failed> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    // Its end is told by the client's next call.
    tokio::spawn(connection);
    Ok(client)
}

fn report(args: &Args, server_version: &str, cost: &Pairs, noise: &Pairs) -> Found {
    let (ratio, aa) = (cost.ratio(), noise.ratio());
    let plain = cost.micros(args.block, |p| p.0);
    let ours = cost.micros(args.block, |p| p.1);
    // A ratio within what two plain connections differ by says nothing, for or against.
    let within_bounds = match ratio.median <= BOUND {
        true => Some(true),
        false => (ratio.median > aa.p90).then_some(false),
    };
    let row = |name: &str, s: Spread, digits: usize| {
        format!("{name:28}{:>10.digits$}{:>10.digits$}{:>10.digits$}", s.median, s.p10, s.p90)
    };
    let text = [
        format!(
            "query-cost: prepared select 1, PostgreSQL {server_version}, current-thread runtime, {} pairs of blocks of {}",
            args.pairs, args.block
        ),
        format!("{:28}{:>10}{:>10}{:>10}", "", "median", "p10", "p90"),
        row("tokio-postgres, µs a query", plain, 2),
        row("pgfollow, µs a query", ours, 2),
        row("pgfollow / tokio-postgres", ratio, 4),
        row("A/A", aa, 4),
        format!(
            "{}: the bound is {BOUND}, and counts above the A/A spread",
            match within_bounds {
                Some(true) => "within the bound",
                Some(false) => "OVER THE BOUND",
                None =>
                    "UNDECIDED: over the bound, but not above the noise; repeat it on a machine that does nothing else",
            }
        ),
    ];
    let json = json!({
        "bench": "query-cost",
        "server_version": server_version,
        "runtime": "current_thread",
        "pairs": args.pairs,
        "block": args.block,
        "plain_us": plain.json(),
        "pgfollow_us": ours.json(),
        "ratio": ratio.json(),
        "aa_ratio": aa.json(),
        "bound": BOUND,
        "within_bounds": within_bounds,
    });
    Found { text: text.join("\n"), json, within_bounds }
}
