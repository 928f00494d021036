//! Places of sessions that were closed over a commit: whether their backends still wait for a synchronous standby.
//!
//! Decides nothing: what keeps a place, and for how long, is [`crate::decide::pool`]'s. Looks are the monitor's to make,
//! on its own session there. Only its session on a direct host is asked: behind a pooler no process id is the backend's.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::{Grant, Held, Shared, State, overloaded};
use crate::clock::{self, Deadline, Moment};
use crate::decide::pool::{Back, Seen, SlotId};
use crate::decide::shed::{LATER, Shed};
use crate::error::Sent;
use crate::host::HostId;
use crate::lock;
use crate::session::EndCause;
use crate::session::member::Member;

/// Bounds a look: a host that is asked for longer has other troubles.
const LOOK: Duration = Duration::from_secs(1);

/// An abandoned session's place and what is left of it.
pub(super) type KeptPlace = (SlotId, Arc<Member>);

impl Shared {
    /// How a session comes back that isn't to be used again. To be asked without the lock.
    pub(super) fn ended(&self, held: &Held, now: Moment) -> Back {
        let member = held.session.member();
        let ours = match member.ended().map(|e| &e.cause) {
            Some(EndCause::CallTimedOut | EndCause::Closed | EndCause::Lost { .. }) => true,
            // Its host is to be left, or has ended it itself.
            Some(EndCause::Verdict { .. } | EndCause::Server { .. }) | None => false,
        };
        let committing = || !member.tap.harmless() && member.tap.sent() != Sent::None;
        if ours && committing() && self.connector.monitor().can_look(member) {
            Back::Abandoned(now)
        } else {
            Back::Bad
        }
    }

    /// Notes what is about to come back so.
    pub(super) fn keep(&self, state: &mut State, held: &Held, back: Back) -> Back {
        match back {
            // Nobody waits for its place.
            Back::Abandoned(_) if state.closed => Back::Bad,
            Back::Abandoned(_) => {
                state.kept.push((held.slot, Arc::clone(held.session.member())));
                back
            }
            back => back,
        }
    }

    /// Frees the places that are kept no longer, and looks at the others when that is due.
    pub(super) fn mind_kept(self: &Arc<Self>) {
        let kept = lock(&self.state).kept.clone();
        if kept.is_empty() {
            return;
        }
        let monitor = self.connector.monitor();
        let gone = kept.iter().filter(|(_, m)| m.generation() < monitor.generation(m.host));
        let gone: Vec<SlotId> = gone.map(|(slot, _)| *slot).collect();
        let now = clock::now();
        let due: Vec<KeptPlace> = {
            let mut state = lock(&self.state);
            state.book.forget(&gone, now);
            let due = state.book.look(now);
            self.tidy(&mut state);
            state.kept.iter().filter(|(slot, _)| due.contains(slot)).cloned().collect()
        };
        if !due.is_empty() {
            tokio::spawn(look(Arc::downgrade(self), due));
        }
    }

    fn looked(&self, seen: &BTreeMap<SlotId, Seen>) {
        let now = clock::now();
        let mut guard = lock(&self.state);
        let state = &mut *guard;
        let refused = state.book.looked(|slot| seen.get(&slot).copied(), now).refused;
        let waiting = |(slot, _): &&KeptPlace| seen.get(slot) == Some(&Seen::Waits);
        for (_, member) in state.kept.iter().filter(waiting) {
            self.recorder.kept(member, now);
        }
        self.tidy(state);
        state.stats.shed += refused.len() as u64;
        for waiter in refused {
            if let Some(sender) = state.waiters.remove(&waiter) {
                self.recorder.shed();
                // A waiter that has just left needs no answer.
                let _ = sender.send(Grant::Failed(overloaded(Shed::Standby(LATER))));
            }
        }
        drop(guard);
        self.work.notify_one();
    }

    /// Forgets the sessions whose places the book has freed.
    pub(super) fn tidy(&self, state: &mut State) {
        let State { kept, book, .. } = state;
        kept.retain(|(slot, member)| {
            let keeps = book.keeps(*slot);
            if !keeps {
                self.recorder.let_go(member.id);
            }
            keeps
        });
    }
}

async fn look(shared: Weak<Shared>, places: Vec<KeptPlace>) {
    let Some(monitor) = shared.upgrade().map(|s| Arc::clone(s.connector.monitor())) else { return };
    let mut hosts: BTreeMap<HostId, Vec<(SlotId, i32)>> = BTreeMap::new();
    for (slot, member) in &places {
        let pid = member.tap.key().map_or(0, |(pid, _)| pid);
        hosts.entry(member.host).or_default().push((*slot, pid));
    }
    let mut seen = BTreeMap::new();
    for (host, backends) in hosts {
        let pids: Vec<i32> = backends.iter().map(|(_, pid)| *pid).collect();
        let look = Deadline::after(LOOK).bound(monitor.backends(host, &pids)).await;
        let Ok(Some(at_work)) = look else { continue };
        for (slot, pid) in backends {
            let found = at_work.iter().find(|(p, _)| *p == pid);
            let what = match found {
                Some((_, true)) => Seen::Waits,
                Some((_, false)) => Seen::Runs,
                None => Seen::Gone,
            };
            seen.insert(slot, what);
        }
    }
    drop(monitor);
    if let Some(s) = shared.upgrade() {
        s.looked(&seen);
    }
}
