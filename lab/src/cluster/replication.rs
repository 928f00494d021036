//! Who follows whom: promotion, and the way back as a standby.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::conf::Changing;
use super::network::link_address;
use super::{APP_DATABASE, Cluster, Node};
use crate::LabError;
use crate::process::{command, run};
use crate::wait::poll;

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
    /// a synchronous cluster is synchronous again.
    pub async fn promote(&self, index: usize) -> Result<(), LabError> {
        let node = &self.nodes[index];
        self.trigger(index)?;
        for (i, other) in self.nodes.iter().enumerate() {
            if i != index && other.is_standby_by_files() {
                let follow = Some(other.follow_string(node));
                other.configure(|c| c.follow = follow)?;
            }
        }
        self.primary.store(index, Ordering::Relaxed);
        node.wait_promoted().await?;
        self.resync_later(index);
        Ok(())
    }

    /// Promotes a standby and changes nothing else: the other standbys stay with the old primary, which may
    /// live on (split brain).
    pub async fn promote_alone(&self, index: usize) -> Result<(), LabError> {
        self.trigger(index)?;
        self.nodes[index].wait_promoted().await
    }

    /// Starts a node again: the cluster's primary as primary, any other as its standby.
    pub async fn restart(&self, index: usize) -> Result<(), LabError> {
        if index == self.primary() {
            return self.nodes[index].start().await;
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
        if node.is_alive() {
            node.kill().await?;
        }
        let rewound = if node.is_standby_by_files() { Ok(()) } else { rewind(node, source).await };
        let followed = match rewound {
            Ok(()) => self.start_following(index, primary).await,
            Err(e) => Err(e),
        };
        let Err(error) = followed else { return Ok(()) };
        tracing::warn!(node = node.name(), %error, "copying the node anew");
        if node.is_alive() {
            node.kill().await?;
        }
        base_backup(node, source).await?;
        self.start_following(index, primary).await
    }

    async fn start_following(&self, index: usize, primary: usize) -> Result<(), LabError> {
        let (node, source) = (&self.nodes[index], &self.nodes[primary]);
        node.mark_standby(true)?;
        let follow = Some(node.follow_string(source));
        node.configure(|c| *c = Changing { follow, ..Changing::default() })?;
        node.start().await?;
        let session = &source.session().await?;
        let name = node.name();
        let sql = "select exists (select from pg_stat_replication where state = 'streaming' and application_name = $1)";
        let what = format!("{name} to stream");
        poll(&what, Duration::from_secs(5), Duration::from_millis(10), || async move {
            let row = session.query_one(sql, &[&name]).await.map_err(|e| e.to_string())?;
            if row.get(0) { Ok(()) } else { Err(String::new()) }
        })
        .await
    }

    fn trigger(&self, index: usize) -> Result<(), LabError> {
        let node = &self.nodes[index];
        if !node.is_standby_by_files() {
            return Err(LabError::State(format!("{} is no standby", node.name())));
        }
        node.trigger_promotion()
    }

    /// Makes that primary synchronous once a standby streams from it.
    fn resync_later(&self, index: usize) {
        let names = self.sync_names(index);
        let mut slot = self.resync.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(old) = slot.take() {
            old.abort();
        }
        if !names.is_empty() {
            *slot = Some(tokio::spawn(resync(Arc::clone(&self.nodes[index]), names)));
        }
    }
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
    let sql = "select exists (select from pg_stat_replication where state = 'streaming')";
    loop {
        let minute = Duration::from_secs(60);
        let streams = poll("a standby to stream", minute, Duration::from_millis(20), || async move {
            match session.query_one(sql, &[]).await {
                Ok(row) if row.get(0) => Ok(true),
                Ok(_) => Err(String::new()),
                Err(_) => Ok(false),
            }
        })
        .await;
        match streams {
            Ok(true) => break,
            Ok(false) => return,
            // No standby yet: one may be restarted later.
            Err(_) => {}
        }
    }
    if let Err(error) = primary.configure(|c| c.sync_names = names) {
        tracing::warn!(node = primary.name(), %error, "the new primary stays asynchronous");
    }
}
