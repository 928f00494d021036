//! Black holes: which addresses belong to a node, and cutting them off.
//!
//! A node's clients come to its own address. Its standbys come to an address for that pair alone: so a cut
//! standby loses its primary too, though the packets it sends carry no address that tells it from other clients.

use std::net::Ipv4Addr;
use std::sync::PoisonError;

use super::Cluster;
use crate::{LabError, netns};

/// Where `primary` listens for `follower` (both from 1).
pub(super) fn link_address(primary: usize, follower: usize) -> Ipv4Addr {
    let octet = |n: usize| u8::try_from(n).unwrap_or(u8::MAX);
    Ipv4Addr::new(127, 9, octet(primary), octet(follower))
}

impl Cluster {
    /// Puts a node behind a black hole: every packet to and from it is dropped without a word, its replication
    /// included. Only inside a private network namespace ([`netns::rerun`]).
    pub fn cut(&self, index: usize) -> Result<(), LabError> {
        self.change_cuts(|cut| {
            cut.insert(index);
        })
    }

    /// Lets a node's packets through again.
    pub fn heal(&self, index: usize) -> Result<(), LabError> {
        self.change_cuts(|cut| {
            cut.remove(&index);
        })
    }

    /// Whether that node is behind a black hole.
    pub fn is_cut(&self, index: usize) -> bool {
        self.cut.lock().unwrap_or_else(PoisonError::into_inner).contains(&index)
    }

    fn change_cuts(
        &self,
        change: impl FnOnce(&mut std::collections::BTreeSet<usize>),
    ) -> Result<(), LabError> {
        let mut cut = self.cut.lock().unwrap_or_else(PoisonError::into_inner);
        let mut next = cut.clone();
        change(&mut next);
        let all = 1..=self.nodes.len();
        let addresses: Vec<Ipv4Addr> = next
            .iter()
            .flat_map(|i| {
                let me = i + 1;
                let links = all.clone().filter(move |o| *o != me);
                let links = links.flat_map(move |o| [link_address(me, o), link_address(o, me)]);
                std::iter::once(self.nodes[*i].host()).chain(links)
            })
            .collect();
        netns::cut_off(&addresses)?;
        *cut = next;
        Ok(())
    }
}
