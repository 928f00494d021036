//! What a session adds to a query: a prepared `select 1` through pgfollow against tokio-postgres alone. How: [`pairs`].

use pgfollow::Connector;
use pgfollow_lab::Binaries;

use crate::pairs::{self, Held, Measured, Pairs, Rounds};
use crate::{Failed, Found};

/// A prepared `select 1` through a session, against tokio-postgres alone
#[derive(clap::Args, Default)]
pub(crate) struct Args {
    #[command(flatten)]
    rounds: Rounds,
}

pub(crate) fn run(args: &Args, binaries: &Binaries) -> Result<Found, Failed> {
    pairs::alone(measure(args.rounds, binaries))
}

async fn measure(rounds: Rounds, binaries: &Binaries) -> Result<Found, Failed> {
    let cluster = pairs::server(binaries).await?;
    let url = format!("{}?target_session_attrs=read-write", cluster.conninfo());
    let connector = Connector::new(&url)?;
    let session = connector.connect().await?;
    let (first, second) = (pairs::plain(&url).await?, pairs::plain(&url).await?);
    let (ours, plain, again) =
        (Held::new(&session).await?, Held::new(&first).await?, Held::new(&second).await?);
    for lane in [&ours, &plain, &again] {
        pairs::warm_up(rounds, lane).await?;
    }
    let (mut cost, mut noise) = (Pairs::default(), Pairs::default());
    for n in 0..rounds.pairs {
        cost.run(n, rounds, &plain, &ours).await?;
        noise.run(n, rounds, &plain, &again).await?;
    }
    let measured = Measured {
        bench: "query-cost",
        server_version: cluster.server_version(),
        rounds,
        lanes: &[("pgfollow", pairs::PLAIN, &cost)],
        noise: &noise,
    };
    Ok(measured.report())
}
