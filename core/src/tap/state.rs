//! What the tap knows of a session: requests out, transaction, last bytes, parameters, last words. How it comes to know
//! it is [`messages`]'s.

mod messages;

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

use super::done::Done;
use super::names::Names;
use super::text::Effects;
use crate::clock::Moment;
use crate::error::{Sent, SqlState, TxStatus};
use crate::failure::Failure;
use crate::lock;
use crate::report::Ear;

/// Requests out whose effects are kept apart; more are taken together.
const REQUESTS: usize = 1_024;
/// A server reports about 15 parameters; extensions add some.
const PARAMETERS: usize = 64;
/// Longest name or value of a parameter that is kept.
pub(super) const VALUE: usize = 1_024;

/// The server's announcement that this session is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fatal {
    pub(crate) sqlstate: SqlState,
    pub(crate) message: String,
}

/// A request that waits for a byte.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting {
    /// Its number within the session.
    pub(crate) number: u64,
    /// When it was sent, or the last byte came.
    pub(crate) since: Moment,
}

/// What changed since it was last asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct News {
    pub(crate) in_hot_standby: Option<bool>,
    pub(crate) default_read_only: Option<bool>,
    /// 25006 passed that often.
    pub(crate) read_only_refusals: u32,
    /// The last of them came in a block that the caller began READ ONLY.
    pub(crate) in_read_only_block: bool,
    /// That many waits of commits for a standby were broken off.
    pub(crate) local_commits: u32,
}

/// Shared between the tap, the session and the monitor.
#[derive(Debug, Default)]
pub(crate) struct TapState {
    last_in: AtomicU64,
    last_out: AtomicU64,
    news_waiting: AtomicBool,
    /// An answer was read, and tokio-postgres hasn't come back for more: perhaps the caller hasn't got it.
    undelivered: AtomicBool,
    /// Bytes are being handed to the socket just now.
    held_back: AtomicBool,
    writing: AtomicBool,
    /// Nothing may leave any more.
    sealed: AtomicBool,
    /// How many times bytes have left.
    writes: AtomicU64,
    /// Hears of each success while that is of interest.
    ear: OnceLock<Ear>,
    pub(super) inner: Mutex<Inner>,
}

#[derive(Clone, Copy, Debug)]
struct Request {
    number: u64,
    effects: Effects,
    since: Moment,
    /// It ended with Sync, not as a Query does.
    synced: bool,
    /// Somebody waits for its answer. (Nobody does when a dropped statement is closed.)
    asked: bool,
}

#[derive(Debug)]
pub(super) struct Inner {
    next_number: u64,
    out: VecDeque<Request>,
    /// Requests out beyond [`REQUESTS`], folded into the last one kept.
    folded: usize,
    /// Whole messages of a request have left, and its end (Sync, or the Query itself) has not.
    pub(super) partial: Option<Effects>,
    /// The unfinished request is a COPY whose data the server waits for: its number.
    copying: Option<u64>,
    /// A message is half out: what it says isn't known yet.
    pub(super) half: bool,
    /// What has left of the next request is more than the close of a statement.
    asked: bool,
    status: TxStatus,
    read_only_block: bool,
    pub(super) statements: Names,
    pub(super) portals: Names,
    /// Statements and portals with names that were asked for.
    pub(super) named: u64,
    tag: Vec<u8>,
    /// How many transaction blocks have ended by a statement.
    ends: u64,
    /// The error of the request that is answered now.
    error: Option<SqlState>,
    /// The SQLSTATE that failed the block which is open or has just ended.
    block_error: Option<SqlState>,
    /// The last answered request ran CALL or DO in autocommit.
    called: bool,
    /// What the last answered request could do.
    last: Effects,
    parameters: HashMap<String, String>,
    pub(super) key: Option<(i32, i32)>,
    fatal: Option<Fatal>,
    sync_rep: bool,
    /// A prepared statement was refused as gone, or as no longer what it was.
    stale: bool,
    /// RESET ALL or DISCARD ALL was done.
    reset: bool,
    /// How often that came.
    local_commits: u64,
    news: News,
    done: Done,
    /// What was answered since the ear was told: whether a write was among it.
    fresh: Option<bool>,
    pub(super) refusal: Option<Failure>,
    pub(super) login_error: Option<Failure>,
}

impl Default for Inner {
    fn default() -> Self {
        Self {
            next_number: 0,
            out: VecDeque::new(),
            folded: 0,
            partial: None,
            copying: None,
            half: false,
            asked: false,
            status: TxStatus::Idle,
            read_only_block: false,
            statements: Names::default(),
            portals: Names::default(),
            named: 0,
            tag: Vec::new(),
            ends: 0,
            error: None,
            block_error: None,
            called: false,
            last: Effects::default(),
            parameters: HashMap::new(),
            key: None,
            fatal: None,
            sync_rep: false,
            stale: false,
            reset: false,
            local_commits: 0,
            news: News::default(),
            done: Done::default(),
            fresh: None,
            refusal: None,
            login_error: None,
        }
    }
}

impl TapState {
    pub(super) fn bytes_in(&self, now: Moment) {
        self.last_in.store(now.as_micros(), Ordering::Relaxed);
    }

    pub(super) fn bytes_out(&self, now: Moment) {
        self.last_out.store(now.as_micros(), Ordering::Relaxed);
        // The socket's task alone writes it, and [`Self::write_ends`] publishes it.
        self.writes.store(self.writes.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// An answer has been read (or, with `false`, all that was read has been handed on).
    pub(super) fn answer_read(&self, yes: bool) {
        // Said at every read, mostly with nothing to change: a load doesn't take the line from its readers.
        if self.undelivered.load(Ordering::Relaxed) != yes {
            self.undelivered.store(yes, Ordering::Release);
        }
    }

    /// Before bytes are handed to the socket: whoever asks meanwhile must not hear that nothing has left. `false` if
    /// nothing may leave any more.
    pub(super) fn write_begins(&self) -> bool {
        // In one order with [`Self::seal`] for everybody: either this write is stopped, or it is seen behind the seal.
        self.writing.store(true, Ordering::SeqCst);
        let open = !self.sealed.load(Ordering::SeqCst);
        if !open {
            self.write_ends();
        }
        open
    }

    /// The driver has requests in hand that the socket doesn't take now: nothing here knows of them yet.
    pub(super) fn hold_back(&self, held: bool) {
        if self.held_back.load(Ordering::Relaxed) != held {
            self.held_back.store(held, Ordering::Release);
        }
    }

    /// What has left is known.
    pub(super) fn write_ends(&self) {
        self.writing.store(false, Ordering::Release);
    }

    /// How many times bytes have left. Nothing of a call has left if this hasn't changed since before it.
    pub(crate) fn writes(&self) -> u64 {
        self.writes.load(Ordering::Acquire)
    }

    /// Lets nothing leave from now on: what [`Self::sent`] says afterwards stays true.
    pub(crate) fn seal(&self) {
        self.sealed.store(true, Ordering::SeqCst);
    }

    /// Whether a request has begun to leave and has not ended. To be asked under the lock: a write that is over by then
    /// has left its traces there.
    fn unfinished(&self, s: &Inner) -> bool {
        s.partial.is_some() || self.half(s)
    }

    fn half(&self, s: &Inner) -> bool {
        s.half || self.writing.load(Ordering::SeqCst)
    }

    /// What everything that is out may do.
    fn effects(&self, s: &Inner) -> Effects {
        let half = self.half(s).then_some(Effects::DOUBT);
        let all = s.out.iter().map(|r| r.effects).chain(s.partial).chain(half);
        all.fold(Effects::default(), Effects::then)
    }

    pub(super) fn has_news(&self) {
        self.news_waiting.store(true, Ordering::Release);
    }

    /// When the last byte came; [`Moment::ZERO`] if none has.
    pub(crate) fn last_in(&self) -> Moment {
        Moment::from_micros(self.last_in.load(Ordering::Relaxed))
    }

    /// When we last handed bytes to the socket; [`Moment::ZERO`] if never.
    pub(crate) fn last_out(&self) -> Moment {
        Moment::from_micros(self.last_out.load(Ordering::Relaxed))
    }

    /// Whether a request is out, in whole or in part. A transaction that merely stands open is not busy.
    pub(crate) fn busy(&self) -> bool {
        let s = lock(&self.inner);
        !s.out.is_empty() || self.unfinished(&s) || self.undelivered.load(Ordering::Acquire)
    }

    /// Whether a request is out, or a block open: not fit for another caller. (An answer that is complete and not yet
    /// handed on to a caller who may be gone doesn't matter to the next one.)
    pub(crate) fn inside(&self) -> bool {
        let s = lock(&self.inner);
        !s.out.is_empty()
            || self.unfinished(&s)
            || s.status != TxStatus::Idle
            || self.held_back.load(Ordering::Acquire)
    }

    /// How many statements and portals were given names. Whoever drops one of them closes it, from whatever thread.
    pub(crate) fn named(&self) -> u64 {
        lock(&self.inner).named
    }

    /// The oldest request that is out, and since when nothing has come for it. While a COPY's data flows the server has
    /// nothing to say: then since nothing has left either.
    pub(crate) fn waiting(&self) -> Option<Waiting> {
        let s = lock(&self.inner);
        let (number, since) = match (s.out.front(), s.copying) {
            (Some(first), _) => (first.number, first.since),
            (None, Some(number)) => (number, self.last_out()),
            (None, None) => return None,
        };
        Some(Waiting { number, since: since.max(self.last_in()) })
    }

    /// When the oldest request that is out was sent, or the one before it was answered.
    pub(crate) fn asked_at(&self) -> Option<Moment> {
        lock(&self.inner).out.front().map(|r| r.since)
    }

    /// How much of what is out has been handed to the kernel. What was answered is out as long as the answer has not
    /// been handed on: a caller who reads slowly may lose it.
    pub(crate) fn sent(&self) -> Sent {
        let s = lock(&self.inner);
        if !s.out.is_empty() || self.undelivered.load(Ordering::Acquire) {
            Sent::Complete
        } else if self.unfinished(&s) {
            Sent::Partial
        } else {
            Sent::None
        }
    }

    /// The transaction status.
    pub(crate) fn status(&self) -> TxStatus {
        lock(&self.inner).status
    }

    /// Whether something out may commit: by its words, or because it runs outside a block, or behind the block's end.
    /// If nothing is out: whether what was answered last may have.
    pub(crate) fn may_commit(&self) -> bool {
        let s = lock(&self.inner);
        let all = if s.out.is_empty() && !self.unfinished(&s) { s.last } else { self.effects(&s) };
        s.status == TxStatus::Idle || all.commits || all.goes_on
    }

    /// Whether the request that is answered now, or was last, is a COMMIT by its words.
    pub(crate) fn answers_commit(&self) -> bool {
        let s = lock(&self.inner);
        s.out.front().map_or(s.last, |r| r.effects).certain
    }

    /// Whether the request that is answered now, or was last, called a procedure or a code block outside a transaction: it may
    /// have committed on its own even where an error came back.
    pub(crate) fn called_in_autocommit(&self) -> bool {
        let s = lock(&self.inner);
        // An error reaches the caller before ReadyForQuery does: then the request is still out.
        s.out.front().map_or(s.called, |r| commits_inside(s.status, r.effects))
    }

    /// Whether what is out can be given up without asking what became of it: it has no lasting effect; or a block is
    /// open, nothing runs behind its end, and nothing can commit it, or it was begun READ ONLY by the caller.
    pub(crate) fn harmless(&self) -> bool {
        let s = lock(&self.inner);
        // What the caller hasn't got is as good as out.
        let unheard = self.undelivered.load(Ordering::Acquire).then_some(s.last);
        let all = unheard.unwrap_or_default().then(self.effects(&s));
        if !all.works {
            return true;
        }
        if s.status == TxStatus::Idle || all.goes_on {
            return false;
        }
        !all.commits || (s.read_only_block && all.read_only != Some(false))
    }

    /// Whether the open block was begun READ ONLY, and nothing that is out can write beside it.
    pub(crate) fn only_reads(&self) -> bool {
        let s = lock(&self.inner);
        let all = self.effects(&s);
        s.read_only_block && !all.goes_on && all.read_only != Some(false)
    }

    /// Whether the open block was begun READ ONLY by the caller.
    pub(crate) fn read_only_block(&self) -> bool {
        lock(&self.inner).read_only_block
    }

    /// The tag of the last CommandComplete.
    pub(crate) fn tag(&self) -> String {
        String::from_utf8_lossy(&lock(&self.inner).tag).into_owned()
    }

    /// How many transactions have ended here by a statement; those inside a text of several count as well.
    pub(crate) fn ends(&self) -> u64 {
        lock(&self.inner).ends
    }

    /// The SQLSTATE that failed the block which has just ended or is open.
    pub(crate) fn block_error(&self) -> Option<SqlState> {
        lock(&self.inner).block_error
    }

    /// A parameter as the server reported it last.
    pub(crate) fn parameter(&self, name: &str) -> Option<String> {
        lock(&self.inner).parameters.get(name).cloned()
    }

    /// A parameter that is on or off.
    pub(crate) fn flag(&self, name: &str) -> Option<bool> {
        lock(&self.inner).parameters.get(name).and_then(|v| on_off(v))
    }

    /// Corrects what was told at login and turned out to be old.
    pub(crate) fn set_flag(&self, name: &str, on: bool) {
        let value = if on { "on" } else { "off" };
        lock(&self.inner).parameters.insert(name.to_owned(), value.to_owned());
    }

    /// Process id and secret, for a cancel.
    pub(crate) fn key(&self) -> Option<(i32, i32)> {
        lock(&self.inner).key
    }

    /// The server's dying words, as an error or as a notice.
    pub(crate) fn fatal(&self) -> Option<Fatal> {
        lock(&self.inner).fatal.clone()
    }

    /// The commit is local alone: the notice of `SyncRepWaitForLSN` came.
    pub(crate) fn local_commit_only(&self) -> bool {
        lock(&self.inner).sync_rep
    }

    /// Whether the server has refused a prepared statement since the last call.
    pub(crate) fn take_stale(&self) -> bool {
        std::mem::take(&mut lock(&self.inner).stale)
    }

    /// Whether all settings were reset since the last call.
    pub(crate) fn take_reset(&self) -> bool {
        std::mem::take(&mut lock(&self.inner).reset)
    }

    /// How many commits here were told to be local alone.
    pub(crate) fn local_commits(&self) -> u64 {
        lock(&self.inner).local_commits
    }

    /// What changed since the last call; cheap when nothing did.
    pub(crate) fn take_news(&self) -> Option<News> {
        // Asked at every poll of a driver: the swap locks the line, the load doesn't.
        if !self.news_waiting.load(Ordering::Relaxed) || !self.news_waiting.swap(false, Ordering::Acquire) {
            return None;
        }
        Some(std::mem::take(&mut lock(&self.inner).news))
    }

    /// Tells of successes from now on.
    pub(crate) fn listen(&self, ear: Ear) {
        // Once, when the session is opened.
        let _ = self.ear.set(ear);
    }

    pub(super) fn tell(&self, write: bool, now: Moment) {
        if let Some(ear) = self.ear.get() {
            ear.done(write, now);
        }
    }

    /// What succeeded since the last call.
    pub(crate) fn take_done(&self) -> Done {
        std::mem::take(&mut lock(&self.inner).done)
    }

    pub(crate) fn refusal(&self) -> Option<Failure> {
        lock(&self.inner).refusal.clone()
    }

    pub(crate) fn login_error(&self) -> Option<Failure> {
        lock(&self.inner).login_error.clone()
    }
}

/// Whether something may be committed though the request was answered with an error: by a procedure outside a block, or
/// by a COMMIT in its middle.
fn commits_inside(status: TxStatus, e: Effects) -> bool {
    e.midway || (e.calls && status == TxStatus::Idle)
}

fn on_off(v: &str) -> Option<bool> {
    match v {
        "on" => Some(true),
        "off" => Some(false),
        _ => None,
    }
}
