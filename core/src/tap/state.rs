//! What the tap knows of a session: requests out, transaction, last bytes, parameters, last words.

use std::collections::{HashMap, VecDeque};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::text::Effect;
use crate::clock::{self, Moment};
use crate::error::{Sent, SqlState, TxStatus};
use crate::failure::Failure;
use crate::lock;

/// Named statements whose effect is remembered; of later ones the careful answer is given.
const STATEMENTS: usize = 4_096;
/// Requests out whose effects are kept apart; more are taken together.
const REQUESTS: usize = 1_024;

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
}

/// Shared between the tap, the session and the monitor.
#[derive(Debug, Default)]
pub(crate) struct TapState {
    last_in: AtomicU64,
    last_out: AtomicU64,
    news_waiting: AtomicBool,
    /// An answer was read, and tokio-postgres hasn't come back for more: perhaps the caller hasn't got it.
    undelivered: AtomicBool,
    pub(super) inner: Mutex<Inner>,
}

#[derive(Clone, Copy, Debug)]
struct Request {
    number: u64,
    effect: Effect,
    since: Moment,
    /// It is no more than the end of a COPY.
    ends_copy: bool,
}

#[derive(Debug)]
pub(super) struct Inner {
    next_number: u64,
    out: VecDeque<Request>,
    /// Requests out beyond [`REQUESTS`], folded into the last one kept.
    folded: usize,
    /// Whole messages of a request have left, and its end (Sync, or the Query itself) has not.
    pub(super) partial: Option<Effect>,
    /// A message is half out: what it says isn't known yet.
    pub(super) half: bool,
    /// Bytes are being handed to the socket just now.
    pub(super) writing: bool,
    /// Nothing may leave any more.
    pub(super) sealed: bool,
    /// The server takes COPY data, and ignores every Sync until their end.
    copying: bool,
    /// CopyDone or CopyFail has left, and its Sync has not.
    copy_ending: bool,
    status: TxStatus,
    read_only_block: bool,
    /// The open block was begun READ ONLY and stayed so: there is nothing in it to commit.
    only_reads: bool,
    statements: HashMap<Vec<u8>, Effect>,
    tag: String,
    /// The SQLSTATE that failed the open block.
    block_error: Option<SqlState>,
    /// The last answered request ran CALL or DO in autocommit.
    called: bool,
    /// What the last answered request could do.
    last: Effect,
    /// How many times bytes have left since the login.
    pub(super) writes: u64,
    pub(super) parameters: HashMap<String, String>,
    pub(super) key: Option<(i32, i32)>,
    fatal: Option<Fatal>,
    sync_rep: bool,
    news: News,
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
            half: false,
            writing: false,
            sealed: false,
            copying: false,
            copy_ending: false,
            status: TxStatus::Idle,
            read_only_block: false,
            only_reads: false,
            statements: HashMap::new(),
            tag: String::new(),
            block_error: None,
            called: false,
            last: Effect::default(),
            writes: 0,
            parameters: HashMap::new(),
            key: None,
            fatal: None,
            sync_rep: false,
            news: News::default(),
            refusal: None,
            login_error: None,
        }
    }
}

impl TapState {
    pub(super) fn bytes_in(&self) {
        self.last_in.store(clock::now().as_micros(), Ordering::Relaxed);
    }

    pub(super) fn bytes_out(&self) {
        self.last_out.store(clock::now().as_micros(), Ordering::Relaxed);
    }

    /// An answer has been read (or, with `false`, all that was read has been handed on).
    pub(super) fn answer_read(&self, yes: bool) {
        self.undelivered.store(yes, Ordering::Release);
    }

    /// How many times bytes have left. Nothing of a call has left if this hasn't changed since before it.
    pub(crate) fn writes(&self) -> u64 {
        lock(&self.inner).writes
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
        !s.out.is_empty() || s.unfinished() || self.undelivered.load(Ordering::Acquire)
    }

    /// The oldest request that is out, and since when nothing has come for it.
    pub(crate) fn waiting(&self) -> Option<Waiting> {
        let s = lock(&self.inner);
        let first = s.out.front()?;
        Some(Waiting { number: first.number, since: first.since.max(self.last_in()) })
    }

    /// How much of what is out has been handed to the kernel. What was answered is out as long as the answer has not
    /// been handed on: a caller who reads slowly may lose it.
    pub(crate) fn sent(&self) -> Sent {
        let s = lock(&self.inner);
        if !s.out.is_empty() || self.undelivered.load(Ordering::Acquire) {
            Sent::Complete
        } else if s.unfinished() {
            Sent::Partial
        } else {
            Sent::None
        }
    }

    /// The transaction status.
    pub(crate) fn status(&self) -> TxStatus {
        lock(&self.inner).status
    }

    /// Whether something out may commit: by its words, or because it runs outside a block. If nothing is out: whether
    /// what was answered last may have.
    pub(crate) fn may_commit(&self) -> bool {
        let s = lock(&self.inner);
        let answered = s.out.is_empty() && !s.unfinished() && s.last.may_end;
        s.status == TxStatus::Idle || s.effects().may_end || answered
    }

    /// Whether the request that is answered now, or was last, is a COMMIT by its words.
    pub(crate) fn answers_commit(&self) -> bool {
        let s = lock(&self.inner);
        s.out.front().map_or(s.last, |r| r.effect).commits
    }

    /// Lets nothing leave from now on: what [`Self::sent`] says afterwards stays true.
    pub(crate) fn seal(&self) {
        lock(&self.inner).sealed = true;
    }

    /// Whether the request that is answered now, or was last, called a procedure or a code block outside a transaction,
    /// or went on behind a COMMIT of its own: it may have committed something even where an error came back.
    pub(crate) fn called_in_autocommit(&self) -> bool {
        let s = lock(&self.inner);
        // An error reaches the caller before ReadyForQuery does: then the request is still out.
        s.out.front().map_or(s.called, |r| commits_inside(s.status, r.effect))
    }

    /// Whether what is out can be given up without asking what became of it: a block is open, and it was begun READ
    /// ONLY by the caller, or nothing that is out can end it.
    pub(crate) fn harmless(&self) -> bool {
        let s = lock(&self.inner);
        s.status != TxStatus::Idle && (s.reads_alone() || !s.effects().may_end)
    }

    /// Whether the open block was begun READ ONLY by the caller.
    pub(crate) fn read_only_block(&self) -> bool {
        lock(&self.inner).read_only_block
    }

    /// Whether the open block was begun READ ONLY, and nothing that has run or is out can have written beside it.
    pub(crate) fn only_reads(&self) -> bool {
        lock(&self.inner).reads_alone()
    }

    /// The tag of the last CommandComplete.
    pub(crate) fn tag(&self) -> String {
        lock(&self.inner).tag.clone()
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

    /// What changed since the last call; cheap when nothing did.
    pub(crate) fn take_news(&self) -> Option<News> {
        if !self.news_waiting.swap(false, Ordering::Acquire) {
            return None;
        }
        Some(std::mem::take(&mut lock(&self.inner).news))
    }

    pub(crate) fn refusal(&self) -> Option<Failure> {
        lock(&self.inner).refusal.clone()
    }

    pub(crate) fn login_error(&self) -> Option<Failure> {
        lock(&self.inner).login_error.clone()
    }
}

/// Whether something may be committed though the request was answered with an error.
fn commits_inside(status: TxStatus, effect: Effect) -> bool {
    effect.midway || (effect.calls && status == TxStatus::Idle)
}

fn on_off(v: &str) -> Option<bool> {
    match v {
        "on" => Some(true),
        "off" => Some(false),
        _ => None,
    }
}

impl Inner {
    fn effects(&self) -> Effect {
        let half = (self.half || self.writing).then_some(Effect::UNKNOWN);
        self.out.iter().map(|r| r.effect).chain(self.partial).chain(half).fold(Effect::default(), Effect::and)
    }

    fn unfinished(&self) -> bool {
        self.partial.is_some() || self.half || self.writing
    }

    fn reads_alone(&self) -> bool {
        let e = self.effects();
        self.only_reads && !e.read_write && !e.beyond
    }

    /// The server waits for COPY data. It ignores the Sync that came with the Execute (PostgreSQL manual, "COPY
    /// Operations"), so that one ReadyForQuery answers it and the Sync behind the data's end.
    pub(super) fn copy_begins(&mut self) {
        if self.out.get(1).is_some_and(|r| r.ends_copy) {
            self.out.remove(1);
        } else {
            self.copying = true;
        }
    }

    /// CopyDone or CopyFail leaves.
    pub(super) fn copy_ends(&mut self) {
        self.copy_ending = true;
    }

    /// Bytes of a request leave.
    pub(super) fn sending(&mut self, effect: Effect) {
        self.partial = Some(self.partial.unwrap_or_default().and(effect));
    }

    pub(super) fn remember(&mut self, statement: &[u8], effect: Effect) {
        if self.statements.len() < STATEMENTS || self.statements.contains_key(statement) {
            self.statements.insert(statement.to_vec(), effect);
        }
    }

    pub(super) fn forget(&mut self, statement: &[u8]) {
        self.statements.remove(statement);
    }

    pub(super) fn effect_of(&self, statement: &[u8]) -> Effect {
        self.statements.get(statement).copied().unwrap_or(Effect::UNKNOWN)
    }

    /// A request's end has left: its ReadyForQuery is owed.
    pub(super) fn sent(&mut self, now: Moment) {
        let effect = self.partial.take().unwrap_or_default();
        let ends_copy = std::mem::take(&mut self.copy_ending);
        if ends_copy && std::mem::take(&mut self.copying) {
            return;
        }
        self.next_number += 1;
        // A statement that is closed behind a COMMIT must not hide what the COMMIT was answered.
        if effect.asked {
            self.tag.clear();
            self.sync_rep = false;
        }
        let full = self.out.len() >= REQUESTS;
        match self.out.back_mut() {
            Some(last) if full => {
                last.effect = last.effect.and(effect);
                self.folded += 1;
            }
            _ => self.out.push_back(Request { number: self.next_number, effect, since: now, ends_copy }),
        }
    }

    /// ReadyForQuery came.
    pub(super) fn ready(&mut self, status: u8, now: Moment) {
        let done = if self.folded > 0 && self.out.len() == 1 {
            self.folded -= 1;
            self.out.front().copied()
        } else {
            self.out.pop_front()
        };
        if let Some(next) = self.out.front_mut() {
            // Its own wait begins now.
            next.since = next.since.max(now);
        }
        // The session goes on, whatever a notice had announced.
        self.fatal = None;
        self.copying = false;
        let before = self.status;
        // What closes a statement changes nothing about the answer before it.
        if let Some(r) = done.filter(|r| r.effect.asked) {
            self.called = commits_inside(before, r.effect);
            self.last = r.effect;
        }
        self.status = match status {
            b'T' => TxStatus::InTransaction,
            b'E' => TxStatus::Failed,
            _ => TxStatus::Idle,
        };
        if self.status == TxStatus::Idle {
            self.read_only_block = false;
            self.only_reads = false;
        } else if let Some(r) = done {
            let kept = self.read_only_block && !r.effect.leaves;
            self.read_only_block = (kept || r.effect.read_only) && !r.effect.read_write;
            self.only_reads = match before {
                TxStatus::Idle => r.effect.opens_read_only,
                _ => self.only_reads && !r.effect.leaves,
            } && !r.effect.read_write;
            if before == TxStatus::Idle && self.status != TxStatus::Failed {
                self.block_error = None;
            }
        }
    }

    pub(super) fn completed(&mut self, tag: &[u8]) {
        self.tag = String::from_utf8_lossy(tag).into_owned();
    }

    /// An error or notice passed after the login. `true` where there is news.
    pub(super) fn reported(&mut self, r: &super::report::Report, is_error: bool) -> bool {
        let code = r.sqlstate;
        let dying = matches!(r.severity.as_str(), "FATAL" | "PANIC");
        // A crash or an immediate shutdown can arrive as a mere notice.
        if dying || (!is_error && matches!(code.as_str(), "57P01" | "57P02" | "57P03")) {
            self.fatal = Some(Fatal { sqlstate: code, message: r.message.clone() });
        }
        if !is_error {
            self.sync_rep |= r.routine == "SyncRepWaitForLSN";
            return false;
        }
        self.block_error = Some(code);
        if code.as_str() != "25006" {
            return false;
        }
        self.news.read_only_refusals += 1;
        self.news.in_read_only_block =
            self.read_only_block || self.out.front().is_some_and(|r| r.effect.read_only);
        true
    }

    /// A parameter was reported. `true` where there is news.
    pub(super) fn parameter(&mut self, name: &str, value: &str) -> bool {
        let before = self.parameters.insert(name.to_owned(), value.to_owned());
        if before.as_deref() == Some(value) {
            return false;
        }
        match name {
            "in_hot_standby" => self.news.in_hot_standby = on_off(value),
            "default_transaction_read_only" => self.news.default_read_only = on_off(value),
            _ => return false,
        }
        true
    }
}
