//! Who follows whom: promotion, and the way back as a standby.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::{Cluster, Node};
use crate::LabError;
use crate::wait::poll;

impl Node {
    /// The `primary_conninfo` with which this node follows another.
    pub(super) fn follow_string(&self, primary: &Self) -> String {
        format!(
            "host={} port={} user=postgres password={} application_name={} connect_timeout=2",
            primary.host(),
            primary.port(),
            self.secrets.superuser,
            self.name()
        )
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
