//! What a pool adds to a query: acquire, a prepared `select 1`, release, against a held session of pgfollow that has
//! its statement at hand (that is the pool's own cost, which the bound is for), and against a held connection of
//! tokio-postgres (what a caller pays in all); deadpool beside it, against its own client. How: [`pairs`].
//!
//! Each pool has a session to lend at once: waiting for one is no cost of the pool's. The statement is asked of the
//! session each time, as whoever gets another session each time must.

use pgfollow::{Connector, Pool};
use pgfollow_lab::Binaries;
use tokio_postgres::NoTls;

use crate::pairs::{self, Held, Lane, Measured, PLAIN, Pairs, Rounds, SQL};
use crate::{Failed, Found};

/// Sessions of each pool.
const SIZE: usize = 8;

/// Acquire, a prepared `select 1`, release, against a held tokio-postgres and deadpool
#[derive(clap::Args, Default)]
pub(crate) struct Args {
    #[command(flatten)]
    rounds: Rounds,
}

struct Ours(Pool);

impl Lane for Ours {
    async fn query(&self) -> Result<(), Failed> {
        let session = self.0.acquire().await?;
        let statement = session.prepare_cached(SQL).await?;
        session.query_one(&statement, &[]).await?;
        Ok(())
    }
}

struct Deadpool(deadpool_postgres::Pool);

impl Lane for Deadpool {
    async fn query(&self) -> Result<(), Failed> {
        let session = self.0.get().await?;
        let statement = session.prepare_cached(SQL).await?;
        session.query_one(&statement, &[]).await?;
        Ok(())
    }
}

pub(crate) fn run(args: &Args, binaries: &Binaries) -> Result<Found, Failed> {
    pairs::alone(measure(args.rounds, binaries))
}

async fn measure(rounds: Rounds, binaries: &Binaries) -> Result<Found, Failed> {
    let cluster = pairs::server(binaries).await?;
    let url = format!("{}?target_session_attrs=read-write", cluster.conninfo());
    let connector = Connector::new(&url)?;
    let session = connector.connect().await?;
    let (ours, held) = (Ours(connector.pool_with(|o| o.max_conns(SIZE))?), Held::new(&session).await?);
    let manager = deadpool_postgres::Manager::new(url.parse()?, NoTls);
    let deadpool = Deadpool(deadpool_postgres::Pool::builder(manager).max_size(SIZE).build()?);
    let (first, second) = (pairs::plain(&url).await?, pairs::plain(&url).await?);
    let (plain, again) = (Held::new(&first).await?, Held::new(&second).await?);
    pairs::warm_up(rounds, &ours).await?;
    pairs::warm_up(rounds, &deadpool).await?;
    for lane in [&plain, &again, &held] {
        pairs::warm_up(rounds, lane).await?;
    }
    let (mut own, mut all) = (Pairs::default(), Pairs::default());
    let (mut peer, mut noise) = (Pairs::default(), Pairs::default());
    for n in 0..rounds.pairs {
        own.run(n, rounds, &held, &ours).await?;
        all.run(n, rounds, &plain, &ours).await?;
        peer.run(n, rounds, &plain, &deadpool).await?;
        noise.run(n, rounds, &plain, &again).await?;
    }
    let measured = Measured {
        bench: "pool-cost",
        server_version: cluster.server_version(),
        rounds,
        lanes: &[
            ("pgfollow's pool", "its held session", &own),
            ("pgfollow's pool", PLAIN, &all),
            ("deadpool", PLAIN, &peer),
        ],
        noise: &noise,
    };
    Ok(measured.report())
}
