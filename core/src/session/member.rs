//! What the connector knows of one live session, and how it ends one: shared between the session's owner, its
//! driver task and the registry.
//!
//! Decides nothing: [`crate::decide::topology`] gives the verdict, [`crate::monitor`] carries it to [`Member::end`].

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::Wake;
use std::time::Duration;

use futures_util::task::AtomicWaker;

use tokio::sync::Notify;

use crate::clock::{self, Moment};
use crate::decide::patience::{Patience, Seen};
use crate::error::{Code, SqlState, TxStatus};
use crate::host::{Candidate, HostId};
use crate::lock;
use crate::net::SocketControl;
use crate::report::Recorder;
use crate::tap::TapState;

/// Why a session ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndCause {
    /// Another host is primary on a higher timeline, or this one's role no longer fits.
    Verdict {
        /// [`Code::Superseded`] or [`Code::HostGone`].
        code: Code,
        /// The evidence, in words.
        reason: String,
    },
    /// The server ended it and said why.
    Server {
        /// 57P01, 57P02, …
        sqlstate: SqlState,
        /// The server's text.
        message: String,
    },
    /// The connection failed: reset, end of file, timed out.
    Lost {
        /// The transport's words.
        message: String,
        /// RST.
        reset: bool,
        /// ETIMEDOUT: keepalives or TCP_USER_TIMEOUT.
        timed_out: bool,
    },
    /// The caller's own deadline for a call passed ([`crate::Session::within`]).
    CallTimedOut,
    /// Closed by its owner.
    Closed,
}

impl EndCause {
    /// The number of an error that comes of it.
    pub(crate) fn code(&self) -> Code {
        match self {
            Self::Verdict { code, .. } => *code,
            Self::CallTimedOut => Code::CallTimedOut,
            Self::Server { .. } | Self::Lost { .. } | Self::Closed => Code::ConnectionLost,
        }
    }
}

impl fmt::Display for EndCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Verdict { reason, .. } => f.write_str(reason),
            Self::Server { sqlstate, message } => {
                write!(f, "the server ended the session: {message} ({sqlstate})")
            }
            Self::Lost { message, .. } => write!(f, "the connection was lost: {message}"),
            Self::CallTimedOut => f.write_str("the call's deadline passed, so its session was ended"),
            Self::Closed => f.write_str("the session was closed"),
        }
    }
}

/// The end of a session: why and when.
#[derive(Clone, Debug)]
pub(crate) struct End {
    pub(crate) cause: EndCause,
    pub(crate) at: Moment,
}

/// A live session as the connector sees it.
pub(crate) struct Member {
    pub(crate) id: u64,
    pub(crate) host: HostId,
    pub(crate) candidate: Candidate,
    /// The host's generation when the session was born (or when a ping proved it good since).
    generation: AtomicU64,
    pub(crate) tap: Arc<TapState>,
    /// The caller said that what it does here only reads.
    declared_read_only: AtomicBool,
    /// A sibling died: a ping must prove this session before it is lent again.
    doubted: AtomicBool,
    /// Not to be used for writes again.
    retired: AtomicBool,
    /// Its owner looks only whether it is closed.
    blind: AtomicBool,
    limit: Option<Limit>,
    /// Why it is about to end: what is out may finish, nothing may follow.
    sentence: OnceLock<EndCause>,
    recorder: OnceLock<Arc<Recorder>>,
    end: OnceLock<End>,
    /// Wakes the driver: the end is decided, or the owner has let go.
    pub(crate) bell: AtomicWaker,
    /// Its owner has let go of it.
    left: AtomicBool,
    turns: Turns,
    rest: Rest,
}

/// Whether the session lies in a pool, and who is told if it doesn't lie still.
#[derive(Default)]
struct Rest {
    resting: AtomicBool,
    bell: OnceLock<Arc<Notify>>,
    pinged: AtomicBool,
}

/// A pool's ping is under way, until this is dropped.
pub(crate) struct Pinged<'a>(&'a Member);

impl Drop for Pinged<'_> {
    fn drop(&mut self) {
        self.0.rest.pinged.store(false, Ordering::Relaxed);
    }
}

/// The driver's turns. A turn takes up all requests that were made before it began.
#[derive(Default)]
struct Turns {
    /// How many were begun, times two; plus one if the connection has called for another since the last began.
    begun: AtomicU64,
    /// The last that was finished.
    finished: AtomicU64,
    waker: AtomicWaker,
}

/// A socket's TCP_USER_TIMEOUT, which may rest while a live host takes nothing ([`crate::decide::patience`]).
pub(crate) struct Limit {
    control: Arc<dyn SocketControl>,
    user_timeout: Duration,
    patience: Mutex<Patience>,
}

impl Limit {
    pub(crate) fn new(control: Arc<dyn SocketControl>, user_timeout: Duration) -> Self {
        Self { control, user_timeout, patience: Mutex::new(Patience::new(user_timeout)) }
    }
}

/// What the owner of a session holds of it; its drop is the session's parting.
pub(crate) struct Leash(Arc<Member>);

impl Leash {
    pub(crate) fn new(member: &Arc<Member>) -> Self {
        Self(Arc::clone(member))
    }
}

impl Drop for Leash {
    fn drop(&mut self) {
        self.0.left.store(true, Ordering::Release);
        self.0.bell.wake();
    }
}

/// A number for a session or a guarded socket; never used twice.
pub(crate) fn next_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl Member {
    pub(crate) fn new(
        host: HostId,
        candidate: Candidate,
        generation: u64,
        tap: Arc<TapState>,
        limit: Option<Limit>,
    ) -> Self {
        Self {
            id: next_number(),
            host,
            candidate,
            generation: AtomicU64::new(generation),
            tap,
            declared_read_only: AtomicBool::new(false),
            doubted: AtomicBool::new(false),
            retired: AtomicBool::new(false),
            blind: AtomicBool::new(false),
            limit,
            sentence: OnceLock::new(),
            recorder: OnceLock::new(),
            end: OnceLock::new(),
            bell: AtomicWaker::new(),
            left: AtomicBool::new(false),
            turns: Turns::default(),
            rest: Rest::default(),
        }
    }

    /// Errors of its calls are told to this.
    pub(crate) fn recorded_by(&self, recorder: &Arc<Recorder>) {
        // Once, when the session is opened.
        let _ = self.recorder.set(Arc::clone(recorder));
    }

    /// A caller gets this error.
    pub(crate) fn failed(&self, e: &mut crate::error::Error) {
        if let Some(r) = self.recorder.get() {
            r.failed(e, Some(self.host));
        }
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }

    pub(crate) fn declare_read_only(&self, yes: bool) {
        self.declared_read_only.store(yes, Ordering::Relaxed);
    }

    pub(crate) fn declared_read_only(&self) -> bool {
        self.declared_read_only.load(Ordering::Relaxed)
    }

    pub(crate) fn doubt(&self) {
        self.doubted.store(true, Ordering::Relaxed);
    }

    pub(crate) fn doubted(&self) -> bool {
        self.doubted.load(Ordering::Relaxed)
    }

    /// A ping was answered.
    pub(crate) fn proved(&self) {
        self.doubted.store(false, Ordering::Relaxed);
    }

    pub(crate) fn retire(&self) {
        self.retired.store(true, Ordering::Relaxed);
        self.bell.wake();
    }

    /// Its owner looks only whether it is closed: so once it isn't to be used again, it closes when nothing runs on it.
    pub(crate) fn close_when_retired(&self) {
        self.blind.store(true, Ordering::Relaxed);
        self.bell.wake();
    }

    /// Why it closes now, if nothing runs on it and it is not to be used again.
    pub(crate) fn closes_now(&self) -> Option<EndCause> {
        let sentence = self.sentence.get();
        let blind = self.blind.load(Ordering::Relaxed) && self.retired();
        if sentence.is_none() && !blind || self.tap.busy() {
            return None;
        }
        // A block may come to its own end, unless nothing may be sent any more.
        sentence.cloned().or_else(|| {
            let reason = format!("host {} is no longer what it was", self.candidate);
            (self.tap.status() == TxStatus::Idle)
                .then_some(EndCause::Verdict { code: Code::HostGone, reason })
        })
    }

    pub(crate) fn retired(&self) -> bool {
        self.retired.load(Ordering::Relaxed)
    }

    /// Looks at what waits to be sent, and lifts the socket's TCP_USER_TIMEOUT or sets it again.
    pub(crate) fn mind_limit(&self, host_answers: impl FnOnce() -> bool, now: Moment) {
        let Some(limit) = &self.limit else { return };
        let mut patience = lock(&limit.patience);
        if !self.tap.busy() && !patience.lifted() {
            return;
        }
        // An error is the socket's end, or a kernel that doesn't tell.
        let Ok(backlog) = limit.control.backlog() else { return };
        let seen = Seen { backlog, last_out: self.tap.last_out(), host_answers: host_answers() };
        let Some(lift) = patience.look(seen, now) else { return };
        let set = limit.control.set_user_timeout((!lift).then_some(limit.user_timeout));
        tracing::debug!(target: "pgfollow", host = %self.candidate, lift, ?set, "tcp_user_timeout of a full socket");
    }

    /// Lets what is out finish and nothing else leave; whatever ends the session from now on, this is why.
    pub(crate) fn condemn(&self, cause: EndCause) {
        let _ = self.sentence.set(cause);
        self.retire();
        self.tap.seal();
    }

    /// Ends the session: its socket closes without another byte, and calls on it return. The first cause stays.
    pub(crate) fn end(&self, cause: EndCause) {
        let cause = self.sentence.get().cloned().unwrap_or(cause);
        // The cause is there before anyone can see the end.
        let _ = self.end.set(End { cause, at: clock::now() });
        self.bell.wake();
    }

    /// The end, once it has come.
    pub(crate) fn ended(&self) -> Option<&End> {
        self.end.get()
    }

    /// Whether the session's owner has let go of it.
    pub(crate) fn left(&self) -> bool {
        self.left.load(Ordering::Acquire)
    }

    /// The driver begins a turn.
    pub(crate) fn turn_begins(&self) -> u64 {
        // Only the driver counts; a call for it that comes from here on is for the turn after it.
        let turn = self.turns.begun.load(Ordering::Relaxed) / 2 + 1;
        self.turns.begun.swap(turn * 2, Ordering::AcqRel);
        turn
    }

    /// The driver finished it: whatever was asked before it began has been taken up.
    pub(crate) fn turn_ends(&self, turn: u64) {
        self.turns.finished.store(turn, Ordering::Release);
        self.turns.waker.wake();
    }

    /// Once [`Self::taken_up`] that mark, the tap knows all that was asked before: also what a dropped call left in the
    /// driver's queue. `alone`: nobody but the session's owner can ask anything of it; where nothing called for the driver
    /// since its last turn, that is at once then.
    pub(crate) fn mark(&self, alone: bool) -> u64 {
        if !alone {
            // A statement that another thread drops is closed by a request of that thread's. The queue gives its waker to
            // one of those who ask; who comes behind it finds none, and must not trust that the driver was called yet.
            // A read that also writes: the driver's next turn begins after it.
            let begun = self.turns.begun.fetch_add(0, Ordering::AcqRel);
            self.bell.wake();
            return begun / 2;
        }
        // Whoever asked has called for the driver before he let go (see `wake_by_ref`), or a turn was under way that
        // looks at the queue once more.
        let begun = self.turns.begun.load(Ordering::Acquire);
        if begun % 2 == 1 { begun / 2 } else { (begun / 2).saturating_sub(1) }
    }

    /// Whether the driver has finished a turn that began after the mark.
    pub(crate) fn taken_up(&self, mark: u64) -> bool {
        self.turns.finished.load(Ordering::Acquire) > mark || self.ended().is_some()
    }

    /// The pool that it belongs to is told by this bell.
    pub(crate) fn rests_in(&self, pool: &Arc<Notify>) {
        // Once, when the pool has opened it.
        let _ = self.rest.bell.set(Arc::clone(pool));
    }

    /// Its pool asks it whether it lives: what is lost meanwhile is nobody's call.
    pub(crate) fn pinged(&self) -> Pinged<'_> {
        self.rest.pinged.store(true, Ordering::Relaxed);
        Pinged(self)
    }

    /// Whether its pool asks it just now.
    pub(crate) fn is_pinged(&self) -> bool {
        self.rest.pinged.load(Ordering::Relaxed)
    }

    /// It has come back to its pool.
    pub(crate) fn rest(&self) {
        self.rest.resting.store(true, Ordering::SeqCst);
    }

    /// It is lent, or looked after.
    pub(crate) fn rest_ends(&self) {
        self.rest.resting.store(false, Ordering::Relaxed);
    }

    /// After a turn of the driver: if something was begun on a session that was given back, its pool is told (once).
    pub(crate) fn mind_rest(&self) {
        if self.rest.resting.load(Ordering::SeqCst)
            && self.tap.inside()
            && let Some(bell) = self.rest.bell.get()
        {
            self.rest_ends();
            bell.notify_one();
        }
    }

    /// Waits for that. For one waiter at a time.
    pub(crate) async fn take_up(&self, mark: u64) {
        std::future::poll_fn(|cx| {
            self.turns.waker.register(cx.waker());
            if self.taken_up(mark) { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
        })
        .await;
    }
}

/// How the connection calls for its driver: when a request was queued, or the socket has something.
impl Wake for Member {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.turns.begun.fetch_or(1, Ordering::AcqRel);
        self.bell.wake();
    }
}
