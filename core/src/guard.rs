//! A foreign driver's socket under our rules: options set, silence seen, cut the moment its host is no longer the right one.
//!
//! Decides nothing: what a socket's counters mean is [`crate::decide::guard`]'s, what becomes of its host
//! [`crate::decide::topology`]'s, and [`crate::monitor`] carries that to [`Guarded::cut`]. A guard holds no descriptor. It
//! keeps the number and the socket's inode: to look or to cut it makes a second descriptor for a moment, compares, acts
//! and closes it. The number may be another socket's the next moment (the kernel gives numbers out again at once, inodes
//! not), so another inode means that the driver has closed its own, and the guard is over. Nothing has to be freed.

#[cfg(unix)]
mod socket;
#[cfg(not(unix))]
#[path = "guard/none.rs"]
mod socket;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use crate::clock::Moment;
use crate::decide::guard::{Call, Counters, Pulse, Seen};
use crate::decide::patience::{self, Patience};
use crate::decide::topology::EndCause as Ended;
use crate::host::{Candidate, HostId};
use crate::lock;
use crate::net::{Backlog, SocketOptions, SocketReport};
use crate::session::EndCause;
use crate::session::member;

pub(crate) use socket::{Descriptor, Number, peers};

/// A socket that pgfollow watches and may cut. Clones speak of the same one; dropping all of them changes nothing.
#[derive(Clone, Debug)]
pub struct Guard(pub(crate) Arc<Guarded>);

impl Guard {
    /// Whether it may be lent again: false once its host is not to be used any more, or the socket is closed or cut. A
    /// pool that asks this at each borrow closes what isn't usable.
    pub fn is_usable(&self) -> bool {
        let g = &self.0;
        !g.evicted.load(Ordering::Relaxed) && g.end.get().is_none() && g.number.open().is_ok()
    }

    /// Why pgfollow cut it, if it did: what the driver's own error ("server closed the connection unexpectedly") can't say.
    pub fn reason(&self) -> Option<&EndCause> {
        self.0.end.get()
    }

    /// Where it leads.
    pub fn candidate(&self) -> &Candidate {
        &self.0.candidate
    }

    /// The socket's options as the kernel took them.
    pub fn socket(&self) -> &SocketReport {
        &self.0.report
    }
}

/// What the monitor knows of one.
#[derive(Debug)]
pub(crate) struct Guarded {
    pub(crate) id: u64,
    pub(crate) host: HostId,
    pub(crate) candidate: Candidate,
    /// The host's generation when it was located.
    pub(crate) generation: u64,
    number: Number,
    report: SocketReport,
    user_timeout: Option<Duration>,
    state: Mutex<State>,
    evicted: AtomicBool,
    /// Cut as soon as no request is out.
    sentence: OnceLock<EndCause>,
    end: OnceLock<EndCause>,
}

#[derive(Debug)]
struct State {
    pulse: Pulse,
    /// The kernel's counters as last seen.
    last_out: Moment,
    backlog: Backlog,
    patience: Option<Patience>,
}

/// What a look shows.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Look {
    pub(crate) heard: Option<Moment>,
    pub(crate) call: Option<Call>,
    /// It is over: nothing is to be watched any more.
    pub(crate) ended: Option<Ended>,
}

/// What the kernel tells of a socket.
struct Kernel {
    counters: Counters,
    backlog: Backlog,
    /// Its peer, or the network, has ended it.
    ended: Option<Ended>,
}

impl Guarded {
    /// Takes a socket under guard; its options are set here.
    pub(crate) fn new(
        descriptor: &Descriptor,
        host: HostId,
        candidate: Candidate,
        generation: u64,
        options: &SocketOptions,
    ) -> Self {
        let report = descriptor.tune(options);
        let user_timeout = options.user_timeout.filter(|_| !candidate.address.is_unix());
        Self {
            id: member::next_number(),
            host,
            candidate,
            generation,
            number: descriptor.number(),
            report,
            user_timeout,
            state: Mutex::new(State {
                pulse: Pulse::default(),
                last_out: Moment::ZERO,
                backlog: Backlog::default(),
                patience: user_timeout.map(Patience::new),
            }),
            evicted: AtomicBool::new(false),
            sentence: OnceLock::new(),
            end: OnceLock::new(),
        }
    }

    pub(crate) fn number(&self) -> &Number {
        &self.number
    }

    /// Looks at the kernel's counters.
    pub(crate) fn look(&self, now: Moment) -> Look {
        if self.end.get().is_some() {
            return Look { ended: Some(Ended::Local), ..Look::default() };
        }
        let Ok(descriptor) = self.number.open() else {
            // The driver has closed it.
            return Look { ended: Some(Ended::Local), ..Look::default() };
        };
        // A Unix socket, or a system without TCP_INFO, tells nothing.
        let Some(kernel) = descriptor.counters() else { return Look::default() };
        let mut state = lock(&self.state);
        state.backlog = kernel.backlog;
        state.last_out = now.before(kernel.counters.sent);
        let Seen { heard, call } = state.pulse.look(kernel.counters, now);
        drop(state);
        if call.is_none()
            && let Some(cause) = self.sentence.get()
        {
            self.cut(cause.clone());
        }
        Look { heard, call, ended: kernel.ended }
    }

    /// Lifts the socket's TCP_USER_TIMEOUT while a live host takes nothing, or sets it again.
    pub(crate) fn mind_limit(&self, host_answers: bool, now: Moment) {
        let mut state = lock(&self.state);
        let State { last_out, backlog, patience: Some(patience), .. } = &mut *state else { return };
        let seen = patience::Seen { backlog: *backlog, last_out: *last_out, host_answers };
        let Some(lift) = patience.look(seen, now) else { return };
        let set = self.number.open().and_then(|d| d.set_user_timeout(self.user_timeout.filter(|_| !lift)));
        tracing::debug!(target: "pgfollow", host = %self.candidate, lift, ?set, "tcp_user_timeout of a guarded socket");
    }

    /// Not to be lent again.
    pub(crate) fn evict(&self) {
        self.evicted.store(true, Ordering::Relaxed);
    }

    /// The request that is out may finish, and nothing may follow it.
    pub(crate) fn condemn(&self, cause: EndCause, now: Moment) {
        let _ = self.sentence.set(cause);
        self.look(now);
    }

    /// Ends it: whoever reads or writes there gets the end of the stream at once. The first cause stays.
    pub(crate) fn cut(&self, cause: EndCause) {
        self.evict();
        let cause = self.sentence.get().cloned().unwrap_or(cause);
        if self.end.set(cause).is_ok()
            && let Ok(descriptor) = self.number.open()
        {
            // One that has ended already needs no end.
            let _ = descriptor.shut_down();
        }
    }
}

#[cfg(all(test, unix))]
mod tests;
