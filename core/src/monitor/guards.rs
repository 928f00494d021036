//! Foreign drivers' sockets among a host's members: registered, looked at, cut with the rest.
//!
//! Decides nothing. A guard can't tell what runs on its socket, so everything is taken for a write: where calls may be
//! ended, it is cut, and where only idle sessions may, it is not (its pool is told by [`crate::Guard::is_usable`]).

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::Monitor;
use crate::clock::{self, Moment};
use crate::config::SessionAttrs;
use crate::connector::locate::Ticket;
use crate::decide::topology::{InFlight, Input, MemberId, RoleFacts};
use crate::guard::{Guarded, Look, Number};
use crate::host::{Address, Candidate, HostId};
use crate::lock;
use crate::session::EndCause;

impl Monitor {
    /// A foreign driver has a session there.
    pub(crate) fn guard(self: &Arc<Self>, g: &Arc<Guarded>) {
        lock(&self.guards).insert(g.id, Arc::clone(g));
        self.feed(Input::SessionOpened { member: MemberId(g.id), host: g.host, facts: RoleFacts::default() });
        // It may have become an old one between its dial and now.
        if g.generation < self.generation(g.host) {
            g.evict();
            if self.forbidden(g.host, SessionAttrs::ReadWrite).is_some()
                && let Some(cause) = self.snapshot().host(g.host).map(|h| h.cause)
            {
                g.condemn(self.verdict(g.host, cause), clock::now());
            }
        }
        self.wake.notify_one();
    }

    /// The host at that address, and the candidate that led there.
    pub(crate) fn place_at(&self, address: SocketAddr) -> Option<(HostId, Candidate)> {
        let id = *lock(&self.places).ids.get(&Address::Tcp(address))?;
        Some((id, self.candidate(id)?))
    }

    /// It is a server itself, of that major version, and takes all of the settings that its sessions get.
    pub(super) fn proved(&self, host: HostId, version: u32) {
        lock(&self.places).proved.insert(host, version);
    }

    /// The version, if so much is known of that host.
    pub(crate) fn proved_version(&self, host: HostId) -> Option<u32> {
        let version = *lock(&self.places).proved.get(&host)?;
        let indirect = self.snapshot().host(host).is_some_and(|h| h.indirect);
        (!indirect).then_some(version)
    }

    /// A turn to log in that nobody gives back within that time ends by itself.
    pub(crate) fn expire(&self, ticket: Ticket, length: Duration) {
        self.spawn(async move {
            clock::sleep_until(clock::now() + length).await;
            if let Some(ticket) = ticket.upgrade() {
                let turn = lock(&ticket).take();
                drop(turn);
            }
        });
    }

    /// The guard of a descriptor.
    pub(crate) fn guarded(&self, number: &Number) -> Option<Arc<Guarded>> {
        lock(&self.guards).values().find(|g| g.number() == number).cloned()
    }

    /// Ends the guarded sockets of a host that were located before `generation`, as far as the verdict permits.
    pub(super) fn clear_guards(
        &self,
        host: HostId,
        generation: u64,
        verdict: &EndCause,
        in_flight: InFlight,
        replaced: bool,
    ) {
        let now = clock::now();
        let old: Vec<_> = lock(&self.guards)
            .values()
            .filter(|g| g.host == host && g.generation < generation)
            .cloned()
            .collect();
        // All pools may know before the first of their sockets ends.
        for g in &old {
            g.evict();
        }
        for g in &old {
            match in_flight {
                InFlight::Close | InFlight::CloseUnlessHarmless { .. } => g.cut(verdict.clone()),
                // Another one is right: what is out here may finish, and nothing may follow it.
                InFlight::Leave | InFlight::CloseHarmless if replaced => g.condemn(verdict.clone(), now),
                InFlight::Leave | InFlight::CloseHarmless => {}
            }
        }
    }

    /// Looks at all of them, and forgets those that are over.
    pub(super) fn look_at_guards(self: &Arc<Self>, now: Moment) -> Vec<(Arc<Guarded>, Look)> {
        let all: Vec<_> = lock(&self.guards).values().cloned().collect();
        let mut seen = Vec::with_capacity(all.len());
        for g in all {
            let look = g.look(now);
            if let Some(cause) = look.ended {
                lock(&self.guards).remove(&g.id);
                self.feed(Input::SessionEnded {
                    member: MemberId(g.id),
                    host: g.host,
                    generation: g.generation,
                    cause,
                });
            }
            seen.push((g, look));
        }
        seen
    }

    /// What was seen on it says that it isn't to be written to again.
    pub(super) fn guard_retired(&self, member: MemberId) {
        if let Some(g) = lock(&self.guards).get(&member.0) {
            g.evict();
        }
    }
}
