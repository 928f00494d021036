//! What something adds to a query, as a ratio to a connection of tokio-postgres alone: the harness of such benches.
//!
//! One server over loopback TCP (all sides set TCP_NODELAY), all on one current-thread runtime: caller and connection
//! task share a core, so that nothing that is added can hide on another one. Blocks alternate in ABBA order, so that
//! whatever drifts slowly (clocks, caches, other work) falls on both alike. Beside each pair runs one of two plain
//! connections: what differs there is noise.

use std::time::{Duration, Instant};

use pgfollow_lab::{Binaries, Cluster, ClusterOptions};
use serde_json::{Map, Value, json};
use tokio_postgres::{Client, NoTls, Statement};

use crate::stats::Spread;
use crate::{Failed, Found};

/// The query.
pub(crate) const SQL: &str = "select 1";
/// The bound: at most so many times the plain query.
const BOUND: f64 = 1.02;
/// Blocks of each lane before any counts.
const WARM_UP: usize = 5;

/// How much is measured.
#[derive(clap::Args, Clone, Copy)]
pub(crate) struct Rounds {
    /// Pairs of blocks
    #[arg(long, default_value_t = 101, value_parser = clap::value_parser!(u16).range(51..))]
    pub(crate) pairs: u16,
    /// Queries a block
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(100..))]
    block: u32,
}

impl Default for Rounds {
    fn default() -> Self {
        Self { pairs: 101, block: 1000 }
    }
}

/// Runs a bench on one thread.
pub(crate) fn alone(measure: impl Future<Output = Result<Found, Failed>>) -> Result<Found, Failed> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(measure)
}

/// One server.
pub(crate) async fn server(binaries: &Binaries) -> Result<Cluster, Failed> {
    let mut options = ClusterOptions::new(binaries.clone());
    options.nodes = 1;
    Ok(Cluster::start(options).await?)
}

/// A way to ask.
pub(crate) trait Lane {
    /// The query, once.
    async fn query(&self) -> Result<(), Failed>;
}

/// A connection that is held, and its prepared statement.
pub(crate) struct Held<'a> {
    client: &'a Client,
    statement: Statement,
}

impl<'a> Held<'a> {
    pub(crate) async fn new(client: &'a Client) -> Result<Self, Failed> {
        Ok(Self { client, statement: client.prepare(SQL).await? })
    }
}

impl Lane for Held<'_> {
    async fn query(&self) -> Result<(), Failed> {
        self.client.query_one(&self.statement, &[]).await?;
        Ok(())
    }
}

/// What most lanes are compared with.
pub(crate) const PLAIN: &str = "tokio-postgres";

/// tokio-postgres as one uses it without us. It sets TCP_NODELAY on its sockets too.
pub(crate) async fn plain(url: &str) -> Result<Client, Failed> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    // Its end is told by the client's next call.
    tokio::spawn(connection);
    Ok(client)
}

async fn block(rounds: Rounds, lane: &impl Lane) -> Result<Duration, Failed> {
    let start = Instant::now();
    for _ in 0..rounds.block {
        lane.query().await?;
    }
    Ok(start.elapsed())
}

pub(crate) async fn warm_up(rounds: Rounds, lane: &impl Lane) -> Result<(), Failed> {
    for _ in 0..WARM_UP {
        block(rounds, lane).await?;
    }
    Ok(())
}

/// Block times of pairs (plain lane, other lane).
#[derive(Default)]
pub(crate) struct Pairs(Vec<(Duration, Duration)>);

impl Pairs {
    /// The pair number `n`.
    pub(crate) async fn run(
        &mut self,
        n: u16,
        rounds: Rounds,
        plain: &impl Lane,
        other: &impl Lane,
    ) -> Result<(), Failed> {
        self.0.push(if n.is_multiple_of(2) {
            let first = block(rounds, plain).await?;
            (first, block(rounds, other).await?)
        } else {
            let first = block(rounds, other).await?;
            (block(rounds, plain).await?, first)
        });
        Ok(())
    }

    fn ratio(&self) -> Spread {
        Spread::of(&self.0.iter().map(|(a, b)| b.as_secs_f64() / a.as_secs_f64()).collect::<Vec<_>>())
    }

    /// Microseconds a query of one lane.
    fn micros(&self, rounds: Rounds, lane: impl Fn(&(Duration, Duration)) -> Duration) -> Spread {
        let each = |p| lane(p).as_secs_f64() * 1e6 / f64::from(rounds.block);
        Spread::of(&self.0.iter().map(each).collect::<Vec<_>>())
    }
}

/// What was measured.
pub(crate) struct Measured<'a> {
    /// The subcommand.
    pub(crate) bench: &'static str,
    pub(crate) server_version: &'a str,
    pub(crate) rounds: Rounds,
    /// What was measured, what it is compared with, and both: ours first, which the bound is for, then others.
    pub(crate) lanes: &'a [(&'static str, &'static str, &'a Pairs)],
    /// Two plain connections.
    pub(crate) noise: &'a Pairs,
}

impl Measured<'_> {
    pub(crate) fn report(&self) -> Found {
        let Self { bench, server_version, rounds, lanes, noise } = *self;
        let (ratio, aa) = (lanes[0].2.ratio(), noise.ratio());
        let plain = noise.micros(rounds, |p| p.0);
        // A ratio within what two plain connections differ by says nothing, for or against.
        let within_bounds = match ratio.median <= BOUND {
            true => Some(true),
            false => (ratio.median > aa.p90).then_some(false),
        };
        let row = |name: &str, s: Spread, digits: usize| {
            format!("{name:44}{:>10.digits$}{:>10.digits$}{:>10.digits$}", s.median, s.p10, s.p90)
        };
        let mut text = vec![
            format!(
                "{bench}: prepared {SQL}, PostgreSQL {server_version}, current-thread runtime, {} pairs of blocks of {}",
                rounds.pairs, rounds.block
            ),
            format!("{:44}{:>10}{:>10}{:>10}", "", "median", "p10", "p90"),
            row("tokio-postgres, µs a query", plain, 2),
        ];
        let micros = |pairs: &Pairs| pairs.micros(rounds, |p| p.1);
        text.extend(
            lanes.iter().map(|(name, _, pairs)| row(&format!("{name}, µs a query"), micros(pairs), 2)),
        );
        text.extend(lanes.iter().map(|(name, to, pairs)| row(&format!("{name} / {to}"), pairs.ratio(), 4)));
        text.push(row("A/A", aa, 4));
        let verdict = match within_bounds {
            Some(true) => "within the bound",
            Some(false) => "OVER THE BOUND",
            None => {
                "UNDECIDED: over the bound, but not above the noise; repeat it on a machine that does nothing else"
            }
        };
        text.push(format!(
            "{verdict}: the bound is {BOUND} for {} / {}, and counts above the A/A spread",
            lanes[0].0, lanes[0].1
        ));
        let peers = lanes[1..].iter().map(|(name, to, pairs)| {
            (format!("{name} / {to}"), json!({"us": micros(pairs).json(), "ratio": pairs.ratio().json()}))
        });
        let json = json!({
            "bench": bench,
            "server_version": server_version,
            "runtime": "current_thread",
            "pairs": rounds.pairs,
            "block": rounds.block,
            "plain_us": plain.json(),
            "pgfollow_us": micros(lanes[0].2).json(),
            "ratio": ratio.json(),
            "aa_ratio": aa.json(),
            "peers": Value::Object(peers.collect::<Map<_, _>>()),
            "bound": BOUND,
            "within_bounds": within_bounds,
        });
        Found { text: text.join("\n"), json, within_bounds }
    }
}
