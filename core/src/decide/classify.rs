//! Error × stage × bytes sent × transaction → class and next step.
//!
//! Decides for native sessions and for foreign drivers alike: both bring the same [`Facts`], and whoever knows less
//! leaves fields out and gets the careful answer. Default-deny: what isn't known counts as a write, as sent, and as
//! permanent when the server answered with it. Doesn't look at a socket or keep anything. `session.rs`, `retry.rs`,
//! the pool and `pgfollow classify` call it and act on the [`Verdict`]. A failed connect as a whole is
//! [`crate::decide::walk`]'s; the two read the same table of SQLSTATEs.

use serde::{Deserialize, Serialize};

use crate::error::{Class, Sent, SqlState};
use crate::sqlstate::{self, Meaning, Scope};

/// What is known of a failure. The JSON form is the `input` of a classify vector; unknown keys are ignored.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Facts {
    /// When it happened.
    pub phase: Phase,
    /// What was seen.
    pub signal: Signal,
    /// The request in question.
    #[serde(default)]
    pub request: Request,
    /// The session and its host.
    #[serde(default)]
    pub session: SessionFacts,
}

/// The part of a connection's life in which a failure was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// Looking a name up.
    Resolve,
    /// Opening the socket.
    Connect,
    /// TLS, login, role.
    Handshake,
    /// Nobody was using the connection.
    Idle,
    /// Waiting for a connection of the pool.
    Acquire,
    /// A request that can't end its transaction block, or one outside any block.
    Statement,
    /// A request that may end the transaction: COMMIT, END, PREPARE TRANSACTION, COMMIT PREPARED, or a text of which
    /// nobody is sure.
    Commit,
}

/// What was seen.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
pub enum Signal {
    /// The transport failed: refused, reset, end of file, timed out. Which of them changes nothing.
    Io,
    /// A look-up failed.
    Dns {
        /// `NXDOMAIN`, `NODATA`, `SERVFAIL`, …
        rcode: String,
        /// Whether this process has resolved the name before.
        #[serde(default)]
        resolved_before: bool,
    },
    /// The server said something with an SQLSTATE.
    Sqlstate(ServerWord),
    /// TLS failed: the certificate's name or chain, the version, no TLS at all.
    Tls,
    /// The host isn't of the wanted role.
    RoleMismatch,
    /// A deadline passed: the caller's, or `connect_timeout`.
    Deadline,
    /// The pool itself.
    Pool {
        /// What it said.
        event: PoolEvent,
    },
    /// COMMIT was answered with the tag ROLLBACK and no error.
    RolledBack {
        /// The error that had failed the block, as the session saw it pass.
        #[serde(default)]
        cause: Option<SqlState>,
    },
}

/// An ErrorResponse or NoticeResponse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct ServerWord {
    /// Its SQLSTATE.
    pub code: SqlState,
    /// Its severity.
    #[serde(default)]
    pub severity: Severity,
    /// Which of the two messages it was.
    #[serde(default, rename = "as")]
    pub carrier: Carrier,
    /// Whether the connection ended behind it.
    #[serde(default, rename = "then", deserialize_with = "present")]
    pub ended: bool,
    /// Whether its routine field is `SyncRepWaitForLSN`: committed here, not known to be committed on a standby.
    #[serde(default, rename = "routine", deserialize_with = "sync_rep")]
    pub sync_rep: bool,
}

/// Severities, as far as they differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Severity {
    /// The session goes on.
    #[default]
    Error,
    /// The session is over.
    Fatal,
    /// All sessions of the server are over.
    Panic,
    /// A notice.
    Warning,
    /// A notice.
    Notice,
    /// A notice.
    Info,
    /// A notice.
    Log,
    /// A notice.
    Debug,
}

/// The message that carried an SQLSTATE.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Carrier {
    /// ErrorResponse.
    #[default]
    Error,
    /// NoticeResponse.
    Notice,
}

/// What a pool says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PoolEvent {
    /// No connection came free in time.
    AcquireTimeout,
    /// Refused at once, because the wait would have been too long.
    Overloaded,
    /// The pool is closed, and stays so.
    PoolClosed,
}

/// The request in question. The default is the careful one: a write that has left completely, of which nobody said
/// whether it was part of a transaction. It may have committed by itself, and only the whole may be repeated.
/// `may_commit_inside` alone is false unless said: else every refused statement would be unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Request {
    /// What it does, as far as the caller declared it.
    pub effect: Effect,
    /// How much of it had been handed to the kernel.
    pub sent: Sent,
    /// Whether a transaction block was open when it was sent; `None` where nobody said.
    pub in_transaction: Option<bool>,
    /// CALL or DO: it can commit in its middle when it runs outside a block.
    pub may_commit_inside: bool,
}

impl Request {
    /// Whether it may have run outside a block, and so have committed by itself.
    fn may_stand_alone(&self) -> bool {
        self.in_transaction != Some(true)
    }

    /// What has to be repeated of it. Alone on a new connection, a statement of a lost transaction would be half of it.
    fn unit(&self) -> RetryUnit {
        if self.in_transaction == Some(false) { RetryUnit::Statement } else { RetryUnit::Transaction }
    }
}

impl Default for Request {
    fn default() -> Self {
        Self { effect: Effect::Write, sent: Sent::Complete, in_transaction: None, may_commit_inside: false }
    }
}

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Effect {
    /// Declared read-only by the caller.
    Read,
    /// Changes something, or nobody said that it doesn't.
    Write,
    /// Nothing that lasts: BEGIN, SET, ROLLBACK, a ping.
    None,
    /// COPY FROM STDIN.
    CopyIn,
    /// LISTEN.
    Listen,
}

/// The session and its host. The reported parameters are not among the facts: a server that turns read-only tells
/// `default_transaction_read_only` behind the first 25006, so an `off` at that moment proves nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct SessionFacts {
    /// Whether the application itself made its transaction READ ONLY (in JSON: the text with which it did).
    #[serde(rename = "application_opened", deserialize_with = "read_only_text")]
    pub opened_read_only: bool,
    /// Whether the host was healthy within the last 60 s: then 28000 is the sign of a restart.
    pub healthy_lately: bool,
}

/// What to do about a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// What it says about the work.
    pub class: Class,
    /// What may be repeated.
    pub retry_unit: RetryUnit,
    /// Whether this connection must not be used again.
    pub discard: bool,
    /// What to do about the other connections to the same host.
    pub siblings: Siblings,
    /// Whether another host may do better: the walk goes on, or the repeat is sent elsewhere.
    pub next_host: bool,
    /// Whether another try must wait first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backoff: Option<Backoff>,
    /// Whether the caller hears of it at all: nobody was using an idle connection.
    pub shown_to_caller: bool,
}

/// What may be repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RetryUnit {
    /// The connect.
    Connect,
    /// The statement.
    Statement,
    /// The whole transaction (where none was open, the statement is all of it).
    Transaction,
    /// Nothing before the outcome is known.
    OutcomeCheck,
    /// Nothing.
    None,
}

/// What to do about the other connections to the same host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Siblings {
    /// None may be handed out unvalidated.
    Recheck,
    /// They are well.
    Leave,
}

/// Waiting before another try.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Backoff {
    /// Needed, with jitter.
    Required,
}

impl Verdict {
    const PERMANENT: Self = Self {
        class: Class::Permanent,
        retry_unit: RetryUnit::None,
        discard: false,
        siblings: Siblings::Leave,
        next_host: false,
        backoff: None,
        shown_to_caller: true,
    };

    const UNKNOWN: Self =
        Self { class: Class::UnknownOutcome, retry_unit: RetryUnit::OutcomeCheck, ..Self::PERMANENT };

    const fn transient(unit: RetryUnit) -> Self {
        Self { class: Class::Transient, retry_unit: unit, ..Self::PERMANENT }
    }

    const fn discarded(self, siblings: Siblings, next_host: bool) -> Self {
        Self { discard: true, siblings, next_host, ..self }
    }

    fn backing_off(self, backoff: bool) -> Self {
        Self { backoff: (backoff && self.class == Class::Transient).then_some(Backoff::Required), ..self }
    }
}

/// Decides what a failure means.
pub fn classify(facts: &Facts) -> Verdict {
    match facts.phase {
        Phase::Resolve | Phase::Connect | Phase::Handshake => connecting(facts),
        Phase::Idle => idle(&facts.signal),
        // Nothing of the request had left: never unknown, even for a write.
        Phase::Acquire => match &facts.signal {
            Signal::Pool { event } => pool(*event, &facts.request),
            Signal::Deadline => Verdict::transient(unit(facts)),
            _ => connecting(facts),
        },
        Phase::Statement | Phase::Commit => working(facts),
    }
}

fn connecting(facts: &Facts) -> Verdict {
    let (class, goes_on, backoff) = match &facts.signal {
        Signal::Io | Signal::Deadline => (Class::Transient, true, false),
        Signal::Dns { rcode, resolved_before } => {
            let final_answer = rcode.eq_ignore_ascii_case("NXDOMAIN") && !resolved_before;
            (if final_answer { Class::Permanent } else { Class::Transient }, true, false)
        }
        Signal::Tls => (Class::Permanent, true, false),
        Signal::RoleMismatch => (Class::Transient, true, true),
        Signal::Sqlstate(word) if word.code.as_str() == "28000" && facts.session.healthy_lately => {
            (Class::Transient, true, true)
        }
        Signal::Sqlstate(word) => {
            let m = sqlstate::meaning(word.code);
            (m.at_connect, !m.stops_walk, m.backoff)
        }
        Signal::Pool { event } => return pool(*event, &facts.request),
        // No commit is under way here: somebody mixed things up.
        Signal::RolledBack { .. } => (Class::Permanent, false, false),
    };
    let verdict = match class {
        Class::Transient => Verdict::transient(RetryUnit::Connect),
        _ => Verdict::PERMANENT,
    };
    // A new connection that failed proves nothing about those that are open.
    verdict.discarded(Siblings::Leave, goes_on).backing_off(backoff)
}

fn idle(signal: &Signal) -> Verdict {
    let quiet = |v: Verdict| Verdict { shown_to_caller: false, ..v };
    match signal {
        Signal::Pool { event } => pool(*event, &Request::default()),
        Signal::Sqlstate(word) => {
            let m = sqlstate::meaning(word.code);
            let verdict =
                if hopeless(m) { Verdict::PERMANENT } else { Verdict::transient(RetryUnit::Connect) };
            if over(word, m) { quiet(verdict.discarded(siblings(m), elsewhere(m))) } else { quiet(verdict) }
        }
        _ => quiet(Verdict::transient(RetryUnit::Connect).discarded(Siblings::Recheck, true)),
    }
}

fn pool(event: PoolEvent, request: &Request) -> Verdict {
    match event {
        PoolEvent::AcquireTimeout | PoolEvent::Overloaded => {
            Verdict::transient(request.unit()).backing_off(true)
        }
        // A closed pool never recovers: calling it transient makes an endless loop.
        PoolEvent::PoolClosed => Verdict::PERMANENT,
    }
}

fn working(facts: &Facts) -> Verdict {
    match &facts.signal {
        Signal::Io | Signal::Deadline | Signal::Tls | Signal::Dns { .. } | Signal::RoleMismatch => {
            lost(facts).discarded(Siblings::Recheck, true)
        }
        Signal::Pool { event } => pool(*event, &facts.request),
        Signal::RolledBack { cause } => rolled_back(*cause),
        Signal::Sqlstate(word) => said(facts, word),
    }
}

/// The connection is gone, or given up, and the answer never came.
fn lost(facts: &Facts) -> Verdict {
    if may_have_been_done(facts) { Verdict::UNKNOWN } else { Verdict::transient(unit(facts)) }
}

/// Whether the server may have applied something that lasts, when no answer tells.
fn may_have_been_done(facts: &Facts) -> bool {
    let r = &facts.request;
    let changes = match r.effect {
        Effect::Read | Effect::None | Effect::Listen => false,
        // As long as CopyDone hasn't left completely, the server can only roll the COPY back.
        Effect::CopyIn => r.sent == Sent::Complete,
        Effect::Write => true,
    };
    let ends_here = facts.phase == Phase::Commit || r.may_stand_alone();
    // Half a request counts as a whole one: an earlier part of a pipeline may have been complete.
    changes && ends_here && r.sent != Sent::None
}

/// The server answered, or left a last word.
fn said(facts: &Facts, word: &ServerWord) -> Verdict {
    let m = sqlstate::meaning(word.code);
    let over = over(word, m);
    let after = |v: Verdict| if over { v.discarded(siblings(m), elsewhere(m)) } else { v };
    if word.sync_rep {
        // Committed on the server that answered; whether a failover keeps it, nobody knows.
        return after(Verdict::UNKNOWN);
    }
    if over {
        let verdict = match lost(facts) {
            v if v.class == Class::Transient && hopeless(m) => Verdict::PERMANENT,
            v => v,
        };
        return after(verdict.backing_off(m.backoff));
    }
    if word.carrier == Carrier::Notice {
        // A notice that ends nothing answers nothing. Who asks all the same has no answer to the request.
        return lost(facts);
    }
    if facts.request.sent == Sent::None {
        // An error that answers some earlier request: this one never left.
        return Verdict::transient(unit(facts));
    }
    answered(facts, word.code, m)
}

/// An ErrorResponse after which the session goes on: the request itself was refused or undone.
fn answered(facts: &Facts, code: SqlState, m: Meaning) -> Verdict {
    let r = &facts.request;
    let changes = matches!(r.effect, Effect::Write | Effect::CopyIn);
    let at_commit = facts.phase == Phase::Commit;
    // A cancel that raced with COMMIT, or a commit that went through another server and lost it there.
    let raced = at_commit && (code.as_str() == "57014" || code.as_str().starts_with("08"));
    // A statement outside a block commits as well: the other server (a pooler's, a foreign table's) may have done it.
    let raced = raced || (r.may_stand_alone() && matches!(code.as_str(), "08000" | "08006"));
    // What a procedure committed before it failed stays committed.
    let in_parts = r.may_commit_inside && r.may_stand_alone();
    if changes && (raced || in_parts || m.at_statement == Class::UnknownOutcome) {
        return Verdict::UNKNOWN;
    }
    match (code.as_str(), m.at_statement) {
        ("25006", _) => read_only(facts),
        (_, Class::Permanent) => Verdict::PERMANENT,
        (_, Class::Transient | Class::UnknownOutcome) => {
            Verdict::transient(unit(facts)).backing_off(m.backoff)
        }
    }
}

/// 25006: refused for certain. Why, decides what to do.
fn read_only(facts: &Facts) -> Verdict {
    if facts.session.opened_read_only {
        // The application's own wish, on whatever host: evidence of nothing.
        return Verdict::PERMANENT;
    }
    // A standby, a fenced primary, or a session that was made read-only: none of them may serve a write again. Whether
    // the host's other sessions are affected is for a probe to find out.
    Verdict::transient(unit(facts)).discarded(Siblings::Recheck, true)
}

/// COMMIT answered ROLLBACK: certainly not done. Whether repeating helps depends on what had failed the block.
fn rolled_back(cause: Option<SqlState>) -> Verdict {
    let again = Verdict::transient(RetryUnit::Transaction);
    match cause.map(sqlstate::meaning) {
        Some(m) if m.at_statement == Class::Permanent => Verdict::PERMANENT,
        Some(m) => again.backing_off(m.backoff),
        None => again,
    }
}

/// Whether the session is over after this word.
fn over(word: &ServerWord, m: Meaning) -> bool {
    word.ended || m.ends_session || matches!(word.severity, Severity::Fatal | Severity::Panic)
}

/// What was under way may be repeated after any end of a session but one: its database was dropped.
fn hopeless(m: Meaning) -> bool {
    m.ends_session && m.at_statement == Class::Permanent
}

fn siblings(m: Meaning) -> Siblings {
    if m.scope == Scope::Session { Siblings::Leave } else { Siblings::Recheck }
}

/// After a timeout of this session alone the same host will do.
fn elsewhere(m: Meaning) -> bool {
    m.scope != Scope::Session
}

fn unit(facts: &Facts) -> RetryUnit {
    if facts.phase == Phase::Commit { RetryUnit::Transaction } else { facts.request.unit() }
}

fn present<'de, D: serde::Deserializer<'de>>(d: D) -> Result<bool, D::Error> {
    match Option::<String>::deserialize(d)? {
        None => Ok(false),
        Some(text) if text.eq_ignore_ascii_case("EOF") => Ok(true),
        // Taken for "the session goes on", a slip would hide that it ended.
        Some(text) => {
            Err(serde::de::Error::custom(format!("unknown value {text:?} of then: known is \"EOF\"")))
        }
    }
}

fn sync_rep<'de, D: serde::Deserializer<'de>>(d: D) -> Result<bool, D::Error> {
    Ok(Option::<String>::deserialize(d)?.is_some_and(|text| text == "SyncRepWaitForLSN"))
}

fn read_only_text<'de, D: serde::Deserializer<'de>>(d: D) -> Result<bool, D::Error> {
    let text = Option::<String>::deserialize(d)?.unwrap_or_default().to_ascii_uppercase();
    Ok(text.split_whitespace().collect::<Vec<_>>().join(" ").contains("READ ONLY"))
}
