//! Transaction numbers, as far as an outcome check without the token table goes by them: taken by the first write, logged
//! with it, and taken anew by a stranger where a crash lost that record.

use super::Backend;
use crate::node::{Entry, FIRST_XID, Node};
use crate::world::{ConnId, Inner, Marks};

impl Inner {
    /// The transaction has written: it gets a number, unless it has one.
    pub(super) fn take_number(&mut self, id: ConnId, node: usize) {
        if self.model.marks != Marks::Numbers || self.backend(id).is_none_or(|b| b.xid.is_some()) {
            return;
        }
        self.next_entry += 1;
        let n = &mut self.nodes[node];
        let xid = n.next_xid;
        n.next_xid += 1;
        n.wal.push(Entry { id: self.next_entry, xid: Some(xid), writes: [].into() });
        if let Some(b) = self.backend(id) {
            b.xid = Some(xid);
        }
    }

    /// The numbers of a server's transactions that are under way, those that wait for a standby among them.
    pub(super) fn running(&self, node: usize) -> Vec<u64> {
        if self.model.marks != Marks::Numbers {
            return Vec::new();
        }
        let xid = |b: &Backend| b.xid;
        self.conns
            .values()
            .filter(|c| c.node == node)
            .filter_map(|c| c.server.as_ref().and_then(xid))
            .collect()
    }
}

/// `txid_status`; `None` for a number that nobody had yet.
pub(crate) fn status(node: &Node, xid: u64, running: &[u64]) -> Option<&'static str> {
    if xid >= node.next_xid {
        return None;
    }
    let committed = |e: &Entry| e.xid == Some(xid) && !e.writes.is_empty();
    Some(match () {
        () if running.contains(&xid) => "in progress",
        () if node.wal.iter().any(committed) => "committed",
        () => "aborted",
    })
}

impl Node {
    /// As far as the log is on its disk: a commit brings everything before it there.
    pub(crate) fn flushed(&self) -> usize {
        self.wal.iter().rposition(|e| !e.writes.is_empty()).map_or(0, |last| last + 1)
    }

    /// The processes ended without a word: what no commit had brought to the disk is gone, numbers as well.
    pub(crate) fn lose_unflushed(&mut self) {
        self.wal.truncate(self.flushed());
        self.count_on();
    }

    /// A recovery goes on behind the highest number that the log knows.
    pub(crate) fn count_on(&mut self) {
        self.next_xid = self.wal.iter().filter_map(|e| e.xid).max().map_or(FIRST_XID, |last| last + 1);
    }
}
