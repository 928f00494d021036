//! The pool's own tasks: opening, settling, testing, closing, while no caller looks.
//!
//! Decides nothing: the book says what is due. Every task holds the pool weakly and ends by itself.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

use super::lent::PING;
use super::{Grant, Held, Shared};
use crate::clock::{self, Deadline};
use crate::decide::pool::{Back, Look, NotOpened, SlotId};
use crate::decide::topology::{Input, TopologyEvent};
use crate::error::{Class, Error, TxStatus};
use crate::event::{Event, EventKind};
use crate::lock;
use crate::session::{EndCause, Session};

/// What a caller abandoned may take this long to end; then its session is closed.
const SETTLE: Duration = Duration::from_secs(1);
/// The metrics are told at least this often what the pool has.
const TELL: Duration = Duration::from_secs(5);

/// Starts the pool's task.
pub(super) fn start(shared: &Arc<Shared>) {
    shared.keeper.start(|| keep(Arc::downgrade(shared), shared.connector.events()));
}

async fn keep(shared: Weak<Shared>, mut events: Receiver<Event>) {
    loop {
        let Some(s) = shared.upgrade() else { return };
        s.sweep();
        s.mind_kept();
        let unsettled = std::mem::take(&mut lock(&s.state).unsettled);
        unsettled.into_iter().for_each(|held| s.begin_settling(held));
        open_wanted(&s);
        let work = Arc::clone(&s.work);
        let (next, counts) = {
            let book = &lock(&s.state).book;
            (book.next().min(clock::now() + TELL), book.counts())
        };
        s.recorder.pool(&s.name, counts);
        drop(s);
        tokio::select! {
            biased;
            () = work.notified() => {}
            () = clock::sleep_until(next) => {}
            over = something_ended(&mut events) => if over { return },
        }
    }
}

/// Until some session has ended, or a host isn't what it was. True when nothing more will be told.
async fn something_ended(events: &mut Receiver<Event>) -> bool {
    loop {
        match events.recv().await {
            Ok(Event {
                kind: EventKind::SessionEnded { .. } | EventKind::Topology(TopologyEvent::Cleared { .. }),
                ..
            })
            | Err(RecvError::Lagged(_)) => return false,
            Ok(_) => {}
            Err(RecvError::Closed) => return true,
        }
    }
}

/// Opens what is wanted now, each in a task of its own: a caller who leaves doesn't end it.
pub(super) fn open_wanted(shared: &Arc<Shared>) {
    loop {
        let slot = {
            let mut state = lock(&shared.state);
            if state.closed {
                return;
            }
            state.book.open(clock::now())
        };
        let Some(slot) = slot else { return };
        let place = Place { shared: Arc::downgrade(shared), slot: Some(slot) };
        tokio::spawn(open(
            place,
            Arc::clone(shared).connector.clone(),
            shared.attrs,
            shared.options.acquire_timeout,
        ));
    }
}

/// A place in the pool while its session is being opened; given back should the task end early.
struct Place {
    shared: Weak<Shared>,
    slot: Option<SlotId>,
}

impl Drop for Place {
    fn drop(&mut self) {
        if let (Some(s), Some(slot)) = (self.shared.upgrade(), self.slot) {
            s.not_opened(slot, None);
        }
    }
}

async fn open(mut place: Place, connector: crate::Connector, attrs: crate::SessionAttrs, patience: Duration) {
    let watch = Weak::clone(&place.shared);
    let mut failed = |e: &Error| {
        if let Some(s) = watch.upgrade() {
            lock(&s.state).note_failure(e.copy());
        }
    };
    let result = Box::pin(connector.connect_told(attrs, patience, &mut failed)).await;
    let (Some(s), Some(slot)) = (place.shared.upgrade(), place.slot.take()) else { return };
    match result {
        Ok(session) => s.opened(slot, session),
        // Whose time is over is told by the caller's own words.
        Err(unopened) => s.not_opened(slot, Some(unopened.error)),
    }
    open_wanted(&s);
    s.work.notify_one();
}

/// A session that nobody may have yet; it is given up should the task end early.
struct Settling {
    shared: Weak<Shared>,
    held: Option<Box<Held>>,
}

impl Settling {
    /// `back`: unless it has ended, or is to end.
    fn over(&mut self, back: Option<Back>) {
        if let (Some(s), Some(held)) = (self.shared.upgrade(), self.held.take()) {
            let back = back.unwrap_or_else(|| s.ended(&held, clock::now()));
            s.settled(held, back);
        }
    }
}

impl Drop for Settling {
    fn drop(&mut self) {
        self.over(None);
    }
}

/// Brings a session out of what its caller left behind, or proves an idle one.
async fn settle(mut settling: Settling) {
    let Some(held) = &mut settling.held else { return };
    let mut settled = clean(&held.session).await;
    held.mark = None;
    held.session.member().rest_ends();
    held.session.forget_messages();
    if settled && held.bare {
        let opener = settling.shared.upgrade().map(|s| Arc::clone(s.connector.monitor()));
        let Some(monitor) = opener else { return };
        let again = monitor.opener.set_again(&held.session);
        settled = Deadline::after(PING).bound(again).await.is_ok() && held.session.is_usable();
        held.bare = false;
    }
    let back = if settled { Some(Back::Good(held.session.member().tap.last_in())) } else { None };
    settling.over(back);
}

/// Whether the session is outside every transaction with nothing out, within the bound. The empty query stands behind
/// whatever was abandoned, what the driver hasn't taken up yet included.
async fn clean(session: &Session) -> bool {
    let member = session.member();
    let _pinged = member.pinged();
    let deadline = Deadline::after(if member.tap.busy() { SETTLE } else { PING });
    for sql in ["", "ROLLBACK"] {
        match deadline.bound(session.simple_query(sql)).await {
            Ok(Ok(_)) => {}
            Ok(Err(_)) if session.is_usable() => {}
            Ok(Err(_)) => return false,
            Err(_) => {
                if member.tap.harmless() {
                    // Nobody waits for it any more. What can't be cancelled is closed all the same.
                    let _ = Deadline::after(SETTLE).bound(session.cancel()).await;
                }
                member.end(EndCause::Closed);
                return false;
            }
        }
        member.proved();
        if member.tap.status() == TxStatus::Idle {
            return session.is_usable() && !member.tap.busy();
        }
    }
    false
}

impl Shared {
    fn sweep(self: &Arc<Self>) {
        let mut guard = lock(&self.state);
        let state = &mut *guard;
        let idle = &mut state.idle;
        let sweep = state.book.sweep(clock::now(), |slot| match &idle[slot.0] {
            Some(held) if !held.session.is_usable() => Look::Bad,
            Some(held) if held.session.is_doubted() => Look::Doubted,
            // Its last caller dropped something before the driver had seen it.
            Some(held) if held.session.member().tap.inside() => Look::Doubted,
            Some(held) => Look::Good(held.session.member().tap.last_in()),
            None => Look::Bad,
        });
        state.stats.closed += sweep.close.len() as u64;
        for slot in sweep.close {
            // Its goodbye is a message to its driver: nothing waits here.
            drop(idle[slot.0].take());
        }
        let test: Vec<_> = sweep.test.into_iter().filter_map(|slot| idle[slot.0].take()).collect();
        drop(guard);
        test.into_iter().for_each(|held| self.begin_settling(held));
    }

    /// Not to be called under the pool's lock: a runtime that ends drops the task here and now, and its session comes back.
    fn begin_settling(self: &Arc<Self>, held: Box<Held>) {
        tokio::spawn(settle(Settling { shared: Arc::downgrade(self), held: Some(held) }));
    }

    fn opened(&self, slot: SlotId, session: Session) {
        let now = clock::now();
        session.member().rests_in(&self.work);
        let held = Box::new(Held { session, slot, mark: None, bare: false, since: now });
        let mut guard = lock(&self.state);
        let state = &mut *guard;
        state.stats.opened += 1;
        state.last_failure = None;
        let host = held.session.member().host;
        let next = state.book.opened(slot, host, now, &mut state.rng);
        self.place(guard, held, next);
    }

    /// `error`: unless the task itself was ended.
    fn not_opened(&self, slot: SlotId, error: Option<Error>) {
        let mut guard = lock(&self.state);
        let state = &mut *guard;
        state.stats.failed += 1;
        let for_good = error.as_ref().is_some_and(|e| e.class() == Class::Permanent);
        let why = if for_good {
            NotOpened::ForGood
        } else {
            NotOpened::ForNow(error.as_ref().and_then(Error::retry_after))
        };
        state.book.not_opened(slot, why, clock::now(), &mut state.rng);
        if state.closed {
            state.empty.notify_waiters();
        }
        let Some(e) = error else { return };
        if for_good {
            for waiter in state.book.turn_away() {
                if let Some(sender) = state.waiters.remove(&waiter) {
                    // A waiter that has just left needs no answer.
                    let _ = sender.send(Grant::Failed(e.copy()));
                }
            }
        }
        state.note_failure(e);
    }

    fn settled(&self, held: Box<Held>, back: Back) {
        let mut state = lock(&self.state);
        let back = self.keep(&mut state, &held, back);
        let next = state.book.settled(held.slot, back, clock::now());
        self.place(state, held, next);
    }

    /// A session turned out to be inside something after it was lent: it is settled, and another one lent.
    pub(super) fn unlend(&self, held: Box<Held>) {
        lock(&self.state).stats.acquired -= 1;
        self.settle(held);
    }

    /// A session failed its ping: its siblings that were silent for as long are closed with it.
    pub(super) fn silent(&self, held: Box<Held>) {
        let mut state = lock(&self.state);
        state.stats.acquired -= 1;
        // A ping that the host answered by an error, or a reset, says nothing of the silent ones.
        let siblings = match held.session.ended() {
            Some(EndCause::CallTimedOut) => {
                let member = held.session.member();
                let (host, generation) = (member.host, member.generation());
                self.connector.monitor().feed(Input::PingFailed { host, generation });
                state.book.silent(held.slot)
            }
            _ => Vec::new(),
        };
        state.stats.closed += siblings.len() as u64;
        let gone: Vec<_> = siblings.iter().map(|s| state.idle[s.0].take()).collect();
        let next = state.book.back(held.slot, Back::Bad, clock::now());
        self.place(state, held, next);
        drop(gone);
    }

    /// A caller keeps a session for good.
    pub(super) fn detached(&self, slot: SlotId) {
        let mut state = lock(&self.state);
        state.book.detach(slot);
        if state.closed {
            state.empty.notify_waiters();
        }
        drop(state);
        self.work.notify_one();
    }
}
