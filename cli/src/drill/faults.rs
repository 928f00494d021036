//! The faults, and the moment from which the database takes writes again.

use std::time::Duration;

use clap::ValueEnum;
use pgfollow_lab::{Cluster, LabError, Prober, StopMode, monotonic_ns, wait_for_async};

/// Longest wait for a promoted node's first write.
const PROMOTION: Duration = Duration::from_secs(30);
/// How long an orchestrator takes to believe that a silent primary is gone.
const NOTICE: Duration = Duration::from_secs(3);

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Fault {
    /// Fast stop; promote when it has stopped
    Stop,
    /// SIGKILL to all its processes; promote at once
    Kill,
    /// SIGSTOP to all its processes; promote after 3 s
    Freeze,
    /// All its packets are dropped; promote after 3 s
    Blackhole,
    /// It becomes read-only in place; promote after 1 s
    Demote,
    /// SIGKILL; promote after 8 s
    SlowPromotion,
    /// Promote at once, the old primary stays
    SplitBrain,
    /// SIGKILL and promote; 5 s later the same with the new primary
    SecondFailover,
}

impl Fault {
    pub(crate) fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |v| v.get_name().to_owned())
    }

    /// How long the workload is watched after the failover.
    pub(crate) fn watch(self) -> Duration {
        // Both primaries answer: who still writes to the old one?
        if self == Self::SplitBrain { Duration::from_secs(20) } else { Duration::ZERO }
    }
}

/// One failover: times of CLOCK_MONOTONIC in nanoseconds.
pub(crate) struct Phase {
    pub(crate) fault: u64,
    pub(crate) ready: u64,
    /// Index of the promoted node.
    pub(crate) node: usize,
    pub(crate) address: String,
    /// The node that was primary before.
    pub(crate) old_address: String,
}

/// Breaks the cluster and promotes. Returns once the (last) promoted node has taken a write.
pub(crate) async fn inject(fault: Fault, cluster: &Cluster) -> Result<Vec<Phase>, LabError> {
    let mut phases = vec![failover(fault, cluster, 0, 1).await?];
    if fault == Fault::SecondFailover {
        // The standby that is promoted next must have everything, or its writes are lost by the database itself.
        let watcher = cluster.node(1).session().await?;
        wait_for_async("the second standby to be synchronous", Duration::from_secs(5), || async {
            let sql = "SELECT 1 FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum')";
            let found = watcher.query_opt(sql, &[]).await.map_err(|e| e.to_string())?;
            if found.is_some() || !cluster.is_sync() { Ok(()) } else { Err(String::new()) }
        })
        .await?;
        let since = Duration::from_nanos(monotonic_ns().saturating_sub(phases[0].ready));
        tokio::time::sleep(Duration::from_secs(5).saturating_sub(since)).await;
        phases.push(failover(Fault::Kill, cluster, 1, 2).await?);
    }
    Ok(phases)
}

async fn failover(fault: Fault, cluster: &Cluster, old: usize, new: usize) -> Result<Phase, LabError> {
    let prober = Prober::start(cluster, new).await?;
    let node = cluster.node(old);
    let at = monotonic_ns();
    match fault {
        Fault::Stop => node.stop(StopMode::Fast).await?,
        Fault::Kill | Fault::SecondFailover => node.kill().await?,
        Fault::SlowPromotion => {
            node.kill().await?;
            tokio::time::sleep(Duration::from_secs(8)).await;
        }
        Fault::Freeze => {
            node.freeze().await?;
            tokio::time::sleep(NOTICE).await;
        }
        Fault::Blackhole => {
            cluster.cut(old)?;
            tokio::time::sleep(NOTICE).await;
        }
        Fault::Demote => {
            node.demote().await?;
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        Fault::SplitBrain => {}
    }
    cluster.promote(new).await?;
    let ready = prober.ready(PROMOTION).await?;
    Ok(Phase {
        fault: at,
        ready,
        node: new,
        address: cluster.node(new).host().to_string(),
        old_address: node.host().to_string(),
    })
}
