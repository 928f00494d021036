//! Who follows whom: promotion, and the way back as a standby.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::conf::Changing;
use super::network::link_address;
use super::{APP_DATABASE, Cluster, Node, StopMode};
use crate::LabError;
use crate::process::{command, run};
use crate::wait::{pause, poll};

/// How long a standby must hold on to its connection to a new primary before commits may wait for it.
const SURE: Duration = Duration::from_millis(150);

impl Node {
    /// The `primary_conninfo` with which this node follows another.
    pub(super) fn follow_string(&self, primary: &Self) -> String {
        let source = self.source_string(primary);
        format!("{source} password={} application_name={}", self.secrets.superuser, self.name())
    }

    /// The same without the password, for command lines: those are open to all.
    fn source_string(&self, source: &Self) -> String {
        let host = link_address(source.fixed.number, self.fixed.number);
        format!("host={host} port={} user=postgres connect_timeout=2", source.port())
    }
}

impl Cluster {
    /// `synchronous_standby_names` for that node as primary: empty in an asynchronous cluster.
    pub(super) fn sync_names(&self, primary: usize) -> String {
        let others: Vec<&str> =
            self.nodes.iter().enumerate().filter(|(i, _)| *i != primary).map(|(_, n)| n.name()).collect();
        if !self.sync || others.is_empty() {
            return String::new();
        }
        format!("FIRST 1 ({})", others.join(", "))
    }

    /// Promotes a standby and points the other standbys at it. Returns when it is out of recovery.
    ///
    /// It starts without a synchronous standby, so its first writes wait for nobody; as soon as one streams,
    /// a synchronous cluster is synchronous again. A standby that had received more than the promoted one is
    /// rewound, or else copied anew.
    pub async fn promote(&self, index: usize) -> Result<(), LabError> {
        // What a rejoin has begun is done before its primary may change.
        let _rejoin = self.rejoin.lock().await;
        let node = &self.nodes[index];
        self.trigger(index)?;
        let mut followers = Vec::new();
        for (i, other) in self.nodes.iter().enumerate() {
            if i != index && other.is_standby_by_files() {
                followers.push((Arc::clone(other), other.log().len()));
                let follow = Some(other.follow_string(node));
                other.configure(|c| c.follow = follow)?;
            }
        }
        self.primary.store(index, Ordering::Relaxed);
        node.wait_promoted().await?;
        let mut tasks =
            vec![tokio::spawn(watch_followers(Arc::clone(node), followers, Arc::clone(&self.rejoin)))];
        let names = self.sync_names(index);
        if !names.is_empty() {
            tasks.push(tokio::spawn(resync(Arc::clone(node), names)));
        }
        let mut slot = self.after_promotion.lock().unwrap_or_else(PoisonError::into_inner);
        for old in std::mem::replace(&mut *slot, tasks) {
            old.abort();
        }
        Ok(())
    }

    /// Promotes a standby and changes nothing else: the other standbys stay with the old primary, which may
    /// live on (split brain).
    pub async fn promote_alone(&self, index: usize) -> Result<(), LabError> {
        self.trigger(index)?;
        self.nodes[index].wait_promoted().await
    }

    /// Starts a node again: the cluster's primary as primary, any other as its standby. One that still runs is killed
    /// first.
    pub async fn restart(&self, index: usize) -> Result<(), LabError> {
        if index == self.primary() {
            let node = &self.nodes[index];
            if node.postmaster_pid().is_some() {
                node.kill().await?;
            }
            return node.start().await;
        }
        self.restart_as_standby(index, self.primary()).await
    }

    /// Makes a node a standby of that primary and waits until it streams. One that still runs is killed first.
    /// A former primary is rewound (pg_rewind); what can't follow then is copied anew (pg_basebackup).
    pub async fn restart_as_standby(&self, index: usize, primary: usize) -> Result<(), LabError> {
        let (node, source) = (&self.nodes[index], &self.nodes[primary]);
        if index == primary {
            return Err(LabError::State(format!("{} can't follow itself", node.name())));
        }
        let _rejoin = self.rejoin.lock().await;
        if node.is_alive() {
            node.kill().await?;
        }
        let rewound = if node.is_standby_by_files() { Ok(()) } else { rewind(node, source).await };
        follow_or_copy(rewound, node, source).await
    }

    fn trigger(&self, index: usize) -> Result<(), LabError> {
        let node = &self.nodes[index];
        if !node.is_standby_by_files() {
            return Err(LabError::State(format!("{} is no standby", node.name())));
        }
        node.trigger_promotion()
    }
}

/// Starts a node that was prepared as a standby; if either failed, copies it anew.
async fn follow_or_copy(prepared: Result<(), LabError>, node: &Node, source: &Node) -> Result<(), LabError> {
    let followed = match prepared {
        Ok(()) => start_following(node, source).await,
        Err(e) => Err(e),
    };
    let Err(error) = followed else { return Ok(()) };
    // Without a source to copy from, what there is must stay.
    source.session().await?;
    tracing::warn!(node = node.name(), %error, "copying the node anew");
    if node.is_alive() {
        node.kill().await?;
    }
    base_backup(node, source).await?;
    start_following(node, source).await
}

async fn start_following(node: &Node, source: &Node) -> Result<(), LabError> {
    node.mark_standby(true)?;
    let follow = Some(node.follow_string(source));
    node.configure(|c| *c = Changing { follow, ..Changing::default() })?;
    node.start().await?;
    let session = &source.session().await?;
    let name = node.name();
    let sql =
        "select exists (select from pg_stat_replication where state = 'streaming' and application_name = $1)";
    let what = format!("{name} to stream");
    poll(&what, Duration::from_secs(5), Duration::from_millis(10), || async move {
        let row = session.query_one(sql, &[&name]).await.map_err(|e| e.to_string())?;
        if row.get(0) { Ok(()) } else { Err(String::new()) }
    })
    .await
}

/// Brings back each standby that can't follow the new primary, for it had received more than that one when it was
/// promoted. It would try for ever. Followers come with the length of their log before the promotion.
async fn watch_followers(
    primary: Arc<Node>,
    mut followers: Vec<(Arc<Node>, usize)>,
    rejoin: Arc<tokio::sync::Mutex<()>>,
) {
    // Ends with the next promotion or with the cluster: a node may be frozen now and thawed much later.
    while !followers.is_empty() {
        pause(SURE).await;
        let Some(at) = followers.iter().position(|(node, from)| has_diverged(node, *from)) else { continue };
        let (node, _) = followers.swap_remove(at);
        let _busy = rejoin.lock().await;
        // Somebody else's command may have come first.
        let follows = node.follows().is_some_and(|f| f == node.follow_string(&primary));
        if !follows || node.postmaster_pid().is_none() || !node.is_standby_by_files() {
            continue;
        }
        tracing::info!(node = node.name(), "ahead of the new primary: rewinding it");
        // Stopped cleanly: pg_rewind would have to recover a killed one first, and can't as long as it is a standby.
        let rewound = match node.stop(StopMode::Fast).await {
            Ok(()) => rewind(&node, &primary).await,
            Err(e) => Err(e),
        };
        if let Err(error) = follow_or_copy(rewound, &node, &primary).await {
            tracing::warn!(node = node.name(), %error, "can't follow the new primary");
        }
    }
}

/// What a standby's log says, since that place, once it holds more of the old timeline than the new one was forked
/// from: its own words, and those of the primary that refuses it.
fn has_diverged(node: &Node, from: usize) -> bool {
    let log = node.log();
    let new = log.get(from..).unwrap_or_default();
    !node.is_frozen()
        && ["before current recovery point", "is not in this server's history"]
            .iter()
            .any(|w| new.contains(w))
}

async fn rewind(node: &Node, source: &Node) -> Result<(), LabError> {
    // pg_rewind reads the source's timeline from its control file, which a promotion writes later.
    let session = source.session().await?;
    session.batch_execute("checkpoint").await.map_err(LabError::pg("a checkpoint before pg_rewind"))?;
    let mut c = command(node.binaries.dir().join("pg_rewind"), node.run_as);
    c.arg("--no-sync").arg("--target-pgdata").arg(&node.data);
    c.arg("--source-server").arg(format!("{} dbname={APP_DATABASE}", node.source_string(source)));
    c.env("PGPASSWORD", &node.secrets.superuser);
    run("pg_rewind", c).await.map(|_| ())
}

async fn base_backup(node: &Node, source: &Node) -> Result<(), LabError> {
    std::fs::remove_dir_all(&node.data).map_err(LabError::io("removing the old data directory"))?;
    let mut c = command(node.binaries.dir().join("pg_basebackup"), node.run_as);
    c.args(["--no-sync", "--checkpoint=fast", "--wal-method=stream", "--pgdata"]).arg(&node.data);
    c.arg("--dbname").arg(node.source_string(source)).env("PGPASSWORD", &node.secrets.superuser);
    run("pg_basebackup", c).await.map(|_| ())
}

/// Ends with the work done, with the primary, or with the cluster (which aborts it).
async fn resync(primary: Arc<Node>, names: String) {
    let Ok(session) = primary.session().await else { return };
    let session = &session;
    // A standby that is ahead of the new primary's fork streams the old timeline's end and is then thrown out, again
    // and again. Waiting for it would stop every commit: only one that has what this timeline began with, and stays
    // on one connection, counts.
    let Ok(row) = session.query_one("select pg_current_wal_lsn()::text", &[]).await else { return };
    let begun = &row.get::<_, String>(0);
    let sql =
        "select pid from pg_stat_replication where state = 'streaming' and flush_lsn >= $1::text::pg_lsn";
    let mut before: Vec<i32> = Vec::new();
    // Ends with the work done, the primary's session, or the cluster: one may be restarted much later.
    loop {
        let Ok(rows) = session.query(sql, &[begun]).await else { return };
        let now: Vec<i32> = rows.iter().map(|r| r.get(0)).collect();
        if now.iter().any(|pid| before.contains(pid)) {
            break;
        }
        before = now;
        pause(SURE).await;
    }
    if let Err(error) = primary.configure(|c| c.sync_names = names) {
        tracing::warn!(node = primary.name(), %error, "the new primary stays asynchronous");
    }
}
