//! A session while a caller has it, and the proof that it lives before.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::{Held, Shared};
use crate::clock::{self, Deadline};
use crate::session::{EndCause, Session};

/// A session that doesn't answer a ping within this is dead.
pub(super) const PING: Duration = Duration::from_secs(1);

/// A session of a pool; dropped, it goes back. Dereferences to [`Session`], and so to [`tokio_postgres::Client`].
///
/// What its caller left open is rolled back before the next caller gets it. What else a caller changes (SET, LISTEN,
/// temporary tables, advisory locks) stays, as in other pools: use `SET LOCAL`, or [`Self::detach`].
pub struct PoolSession {
    shared: Arc<Shared>,
    /// There until it goes back.
    held: Option<Box<Held>>,
    /// Somebody looked at the session itself, and may have asked something of it.
    used: AtomicBool,
}

impl PoolSession {
    pub(super) fn new(shared: Arc<Shared>, held: Box<Held>) -> Self {
        Self { shared, held: Some(held), used: AtomicBool::new(false) }
    }

    fn held(&self) -> &Held {
        self.held.as_deref().expect("held until it is dropped")
    }

    /// Takes it out of the pool for good; its place is free for another one.
    pub fn detach(mut self) -> Session {
        let held = self.held.take().expect("held until it is dropped");
        self.shared.detached(held.slot);
        held.session
    }

    /// Itself, if it may be lent; else it has been given back, and another one has to do.
    pub(super) async fn checked(mut self, prove: bool, deadline: Deadline) -> Option<Self> {
        let held = self.held.as_deref_mut().expect("held until it is dropped");
        let member = held.session.member();
        if let Some(mark) = held.mark.take() {
            member.rest_ends();
            // Should this wait be broken off, it goes back as one that was used.
            *self.used.get_mut() = true;
            if !member.taken_up(mark) && deadline.bound(member.take_up(mark)).await.is_err() {
                return None;
            }
            *self.used.get_mut() = false;
            // What the server told its last caller is not this one's to read.
            held.session.forget_messages();
            if member.tap.inside() {
                // Its last caller dropped a call before the driver had taken it up.
                let held = self.held.take().expect("held until it is dropped");
                self.shared.unlend(held);
                return None;
            }
        }
        if !held.session.is_usable() {
            return None;
        }
        if !prove && !member.doubted() {
            return Some(self);
        }
        self.used.store(true, Ordering::Relaxed);
        match self.held().session.answers(deadline).await {
            Answer::Came => return Some(self),
            Answer::Failed => {
                let held = self.held.take().expect("held until it is dropped");
                self.shared.silent(held);
            }
            Answer::NoTime => {
                let held = self.held.take().expect("held until it is dropped");
                self.shared.unlend(held);
            }
        }
        None
    }
}

/// What became of a ping.
enum Answer {
    Came,
    /// An error, or nothing within the bound: the session is over.
    Failed,
    /// Nothing yet, and the caller's own time is over: that says nothing of the session.
    NoTime,
}

impl Session {
    /// Whether the server answers an empty query, within the bound of a ping or the caller's.
    async fn answers(&self, deadline: Deadline) -> Answer {
        let bound = Deadline::after(PING);
        let member = self.member();
        let pinged = member.pinged();
        let ping = bound.min(deadline).bound(self.simple_query("")).await;
        drop(pinged);
        match ping {
            Ok(Ok(_)) => {
                member.proved();
                Answer::Came
            }
            Ok(Err(_)) => Answer::Failed,
            Err(_) if bound.passed(clock::now()) => {
                member.end(EndCause::CallTimedOut);
                Answer::Failed
            }
            Err(_) => Answer::NoTime,
        }
    }
}

impl Deref for PoolSession {
    type Target = Session;
    fn deref(&self) -> &Session {
        self.used.store(true, Ordering::Relaxed);
        &self.held().session
    }
}

impl DerefMut for PoolSession {
    fn deref_mut(&mut self) -> &mut Session {
        *self.used.get_mut() = true;
        &mut self.held.as_deref_mut().expect("held until it is dropped").session
    }
}

impl Drop for PoolSession {
    fn drop(&mut self) {
        if let Some(held) = self.held.take() {
            self.shared.give_back(held, *self.used.get_mut());
        }
    }
}

impl std::fmt::Debug for PoolSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.held().session.fmt(f)
    }
}
