//! The faults: what is done to the primary, and when which node is promoted.

use std::fmt;
use std::time::Duration;

use super::scene::ask_identity;
use pgfollow_lab::{Cluster, LabError, Prober, Slowed, StopMode, monotonic_ns, wait_for_async};

/// What happens to the primary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Fault {
    /// A clean, fast stop; a standby is promoted when it has stopped
    Stop,
    /// kill -9 of all its processes; a standby is promoted at once
    Kill,
    /// All its processes are stopped (SIGSTOP), the sockets stay open; promotion after 3 s
    Freeze,
    /// Every packet to and from it is dropped without a word; promotion after 3 s
    Blackhole,
    /// It turns read-only by default and lives on; promotion after 1 s
    Demote,
    /// kill -9; promotion after 8 s
    SlowPromotion,
    /// Nothing happens to it, and a standby is promoted beside it
    SplitBrain,
    /// kill -9; and of the new primary again 5 s after it was ready
    SecondFailover,
    /// Whatever the user's own command does to the user's own cluster (`--dsn`)
    #[value(skip)]
    Trigger,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Stop => "stop",
            Self::Kill => "kill",
            Self::Freeze => "freeze",
            Self::Blackhole => "blackhole",
            Self::Demote => "demote",
            Self::SlowPromotion => "slow-promotion",
            Self::SplitBrain => "split-brain",
            Self::SecondFailover => "second-failover",
            Self::Trigger => "trigger",
        })
    }
}

impl Fault {
    /// How many nodes it takes at least.
    pub(crate) const fn nodes(self) -> u8 {
        match self {
            Self::SecondFailover => 3,
            _ => 2,
        }
    }

    /// What the service's first success is held against where the user says nothing.
    pub(crate) const fn budget(self) -> Duration {
        match self {
            // A newer term must be seen twice over before a primary that still answers is left.
            Self::SplitBrain => Duration::from_millis(1500),
            _ => Duration::from_millis(250),
        }
    }

    /// How long to watch after the promotion at least.
    pub(crate) const fn watch(self) -> Duration {
        match self {
            Self::SplitBrain => Duration::from_secs(20),
            _ => Duration::from_secs(2),
        }
    }

    /// What it was, in a sentence.
    pub(crate) const fn told(self) -> &'static str {
        match self {
            Self::Stop => "clean stop of the primary",
            Self::Kill => "kill -9 of the primary",
            Self::Freeze => "primary frozen, promotion after 3 s",
            Self::Blackhole => "primary behind a black hole, promotion after 3 s",
            Self::Demote => "primary demoted in place, promotion after 1 s",
            Self::SlowPromotion => "kill -9 of the primary, promotion after 8 s",
            Self::SplitBrain => "a second primary beside the first",
            Self::SecondFailover => "kill -9 of the primary, and of its successor 5 s later",
            Self::Trigger => "the trigger command",
        }
    }
}

/// A node that took over. Times are CLOCK_MONOTONIC in ns.
#[derive(Clone, Debug)]
pub(crate) struct Promotion {
    pub(crate) node: usize,
    /// Just before the fault that led to it.
    pub(crate) fault: u64,
    /// Just before the promotion was asked for.
    pub(crate) asked: u64,
    /// The first write acknowledged to the prober there.
    pub(crate) ready: u64,
}

/// The longest that a promoted node may take.
const PATIENCE: Duration = Duration::from_secs(20);
/// The longest until a standby follows a new primary. The lab may have to rewind it first, or to copy it anew.
const REJOIN: Duration = Duration::from_secs(40);

/// Makes the fault and all its promotions. The last new primary is slow from its promotion on, for as long as what is
/// returned lives. `nodes`: what each calls itself, kept true.
pub(crate) async fn inject(
    fault: Fault,
    cluster: &Cluster,
    slow_node: Option<u8>,
    nodes: &mut [String],
) -> Result<(Vec<Promotion>, Option<Slowed>), LabError> {
    // Opened before the fault: they hold a session on what will be primary.
    let first = Prober::start(cluster, 1).await?;
    let second = match fault {
        Fault::SecondFailover => Some(Prober::start(cluster, 2).await?),
        _ => None,
    };
    let old = cluster.node(0);
    let at = monotonic_ns();
    match fault {
        Fault::Stop => old.stop(StopMode::Fast).await?,
        Fault::Kill | Fault::SlowPromotion | Fault::SecondFailover => old.kill().await?,
        Fault::Freeze => old.freeze().await?,
        Fault::Blackhole => cluster.cut(0)?,
        Fault::Demote => old.demote().await?,
        // A trigger's failover is not made here.
        Fault::SplitBrain | Fault::Trigger => {}
    }
    let pause = match fault {
        Fault::Freeze | Fault::Blackhole => 3,
        Fault::Demote => 1,
        Fault::SlowPromotion => 8,
        _ => 0,
    };
    sleep_until(at, Duration::from_secs(pause)).await;
    let (promotion, mut slowed) = promote(cluster, 1, at, &first, slow_node).await?;
    let mut done = vec![promotion];
    if let Some(second) = second {
        let ready = done[0].ready;
        follows(cluster, 1, 2).await?;
        // The lab may have had to rewind it, and then it was started anew.
        nodes[2] = ask_identity(&cluster.node(2).session().await?).await?;
        sleep_until(ready, Duration::from_secs(5)).await;
        let at = monotonic_ns();
        cluster.node(1).kill().await?;
        let (promotion, anew) = promote(cluster, 2, at, &second, slow_node).await?;
        slowed = anew;
        done.push(promotion);
    }
    Ok((done, slowed))
}

async fn promote(
    cluster: &Cluster,
    node: usize,
    fault: u64,
    prober: &Prober,
    slow_node: Option<u8>,
) -> Result<(Promotion, Option<Slowed>), LabError> {
    let asked = monotonic_ns();
    cluster.promote(node).await?;
    let slowed = slow_node.map(|percent| cluster.slow_down(node, percent)).transpose()?;
    let ready = prober.ready(PATIENCE).await?;
    Ok((Promotion { node, fault, asked, ready }, slowed))
}

/// Waits until `standby` streams from `primary`; in a synchronous cluster until commits wait for it, so that no
/// acknowledged write can be lost with `primary`.
async fn follows(cluster: &Cluster, primary: usize, standby: usize) -> Result<(), LabError> {
    let session = &cluster.node(primary).session().await?;
    let name = cluster.node(standby).name();
    let sync = cluster.is_sync();
    let sql =
        "select sync_state from pg_stat_replication where application_name = $1 and state = 'streaming'";
    let what = format!("{name} to follow the new primary");
    wait_for_async(&what, REJOIN, || async move {
        let row = session.query_opt(sql, &[&name]).await.map_err(|e| e.to_string())?;
        match row.map(|r| r.get::<_, String>(0)) {
            Some(state) if state == "sync" || !sync => Ok(()),
            Some(state) => Err(state),
            None => Err("not streaming".to_owned()),
        }
    })
    .await
}

/// Sleeps until `after` has passed since `from` (CLOCK_MONOTONIC, ns).
pub(crate) async fn sleep_until(from: u64, after: Duration) {
    let passed = Duration::from_nanos(monotonic_ns().saturating_sub(from));
    tokio::time::sleep(after.saturating_sub(passed)).await;
}
