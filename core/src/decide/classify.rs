//! What an error means for the caller's work: class, what to repeat, what to do with the connection and its siblings.
//!
//! Decides from plain facts, so that native sessions ([`crate::session`]) and foreign drivers get the same answer. The
//! SQLSTATE's own meaning is [`crate::sqlstate`]'s; the circumstances are added here. Whatever the facts leave open is
//! taken the careful way: a write that left and was not answered may have been done.

use serde::{Deserialize, Serialize};

use crate::error::{Class, Sent, SqlState};
use crate::net::ResolveError;
use crate::sqlstate::{self, Scope};

/// Where in a connection's life the error came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Looking a name up.
    Resolve,
    /// Dialling.
    Connect,
    /// TLS, login, role.
    Handshake,
    /// Waiting for a pool.
    Acquire,
    /// Nothing was asked.
    Idle,
    /// A statement was out.
    Statement,
    /// A COMMIT was out.
    Commit,
}

/// What was seen.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
pub enum Signal {
    /// The transport failed.
    Io,
    /// The look-up failed.
    Dns {
        /// What the name server said (NXDOMAIN, SERVFAIL, TIMEOUT, …).
        rcode: String,
        /// Whether this process has resolved the name before.
        #[serde(default)]
        known_before: bool,
    },
    /// The server reported an error, or announced its end in a notice.
    Sqlstate {
        /// The code.
        code: SqlState,
        /// FATAL, ERROR, WARNING, …
        #[serde(default)]
        severity: String,
        /// `EOF` where the connection ended with it.
        #[serde(default)]
        then: Option<String>,
    },
    /// TLS failed: the certificate isn't the host's.
    Tls,
    /// No host of the wanted role.
    RoleMismatch,
    /// A deadline of the caller passed.
    Deadline,
    /// The pool said no.
    Pool {
        /// `acquire-timeout`, `overloaded`, `pool-closed`.
        event: String,
    },
    /// COMMIT was answered with this tag, and no error.
    Tag {
        /// The tag.
        tag: String,
    },
    /// COMMIT succeeded here, and the wait for a synchronous standby was broken off.
    LocalCommitOnly,
}

impl Signal {
    /// From a failed look-up.
    pub fn dns(e: &ResolveError, known_before: bool) -> Self {
        let rcode = if *e == ResolveError::NoSuchName { "NXDOMAIN" } else { "SERVFAIL" };
        Self::Dns { rcode: rcode.to_owned(), known_before }
    }
}

/// What a request does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Effect {
    /// Declared to read only.
    Read,
    /// May write. The careful default.
    #[default]
    Write,
    /// Nothing was asked.
    None,
    /// COPY FROM STDIN.
    CopyIn,
    /// LISTEN: only reads.
    Listen,
}

/// The request that met the error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Request {
    /// What it does.
    pub effect: Effect,
    /// How much of it had left.
    pub sent: Sent,
    /// Whether a block was open.
    pub in_transaction: bool,
    /// It runs CALL or DO, which may commit on their own.
    pub calls: bool,
}

impl Default for Request {
    fn default() -> Self {
        Self { effect: Effect::Write, sent: Sent::Complete, in_transaction: false, calls: false }
    }
}

/// The session that met the error.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct SessionFacts {
    /// The statement by which the caller opened the block.
    pub application_opened: Option<String>,
}

/// The facts of one error.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Facts {
    /// Where.
    pub phase: Phase,
    /// What.
    pub signal: Signal,
    /// The request, if there was one.
    #[serde(default)]
    pub request: Request,
    /// The session.
    #[serde(default)]
    pub session: SessionFacts,
}

/// What to do again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RetryUnit {
    /// The connect.
    Connect,
    /// The statement.
    Statement,
    /// The whole transaction.
    Transaction,
    /// Nothing: ask what became of it first.
    OutcomeCheck,
    /// Nothing.
    None,
}

/// What to do with the other sessions of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Siblings {
    /// None may be handed out before a check.
    Recheck,
    /// They are well.
    Leave,
}

/// The verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// What it says about the work.
    pub class: Class,
    /// What to do again.
    pub retry_unit: RetryUnit,
    /// Whether the connection is to be closed.
    pub discard: bool,
    /// What to do with its siblings.
    pub siblings: Siblings,
    /// Whether another host may help.
    pub next_host: bool,
    /// Whether another try must wait.
    pub backoff: bool,
    /// Whether a caller is to see it at all.
    pub shown_to_caller: bool,
}

impl Verdict {
    const fn of(class: Class, retry_unit: RetryUnit) -> Self {
        Self {
            class,
            retry_unit,
            discard: false,
            siblings: Siblings::Leave,
            next_host: false,
            backoff: false,
            shown_to_caller: true,
        }
    }

    const fn ended(mut self, siblings: Siblings) -> Self {
        self.discard = true;
        self.siblings = siblings;
        self.next_host = true;
        self
    }
}

/// Classifies an error.
pub fn classify(f: &Facts) -> Verdict {
    match f.phase {
        Phase::Resolve | Phase::Connect | Phase::Handshake => connecting(&f.signal),
        Phase::Acquire => acquiring(&f.signal),
        Phase::Idle => {
            let siblings = match &f.signal {
                Signal::Sqlstate { code, .. } if sqlstate::meaning(*code).scope == Scope::Session => {
                    Siblings::Leave
                }
                _ => Siblings::Recheck,
            };
            let v = Verdict::of(Class::Transient, RetryUnit::Connect).ended(siblings);
            Verdict { shown_to_caller: false, ..v }
        }
        Phase::Statement | Phase::Commit => working(f),
    }
}

fn connecting(signal: &Signal) -> Verdict {
    let again = Verdict { next_host: true, ..Verdict::of(Class::Transient, RetryUnit::Connect) };
    let never = Verdict::of(Class::Permanent, RetryUnit::None);
    match signal {
        Signal::Dns { rcode, known_before: false } if rcode == "NXDOMAIN" => {
            Verdict { next_host: true, ..never }
        }
        Signal::Sqlstate { code, .. } => {
            let m = sqlstate::meaning(*code);
            let base = if m.at_connect == Class::Transient { again } else { never };
            Verdict { next_host: !m.stops_walk, backoff: m.backoff, ..base }
        }
        Signal::RoleMismatch => Verdict { backoff: true, ..again },
        // Nothing secret was sent to the wrong host: another one may be right.
        Signal::Tls => Verdict { next_host: true, ..never },
        Signal::Io | Signal::Dns { .. } | Signal::Deadline => again,
        Signal::Pool { .. } | Signal::Tag { .. } | Signal::LocalCommitOnly => acquiring(signal),
    }
}

fn acquiring(signal: &Signal) -> Verdict {
    match signal {
        // A closed pool never recovers.
        Signal::Pool { event } if event == "pool-closed" => Verdict::of(Class::Permanent, RetryUnit::None),
        Signal::Pool { event } if event == "overloaded" => {
            Verdict { backoff: true, ..Verdict::of(Class::Transient, RetryUnit::Statement) }
        }
        // Nothing was sent.
        _ => Verdict::of(Class::Transient, RetryUnit::Statement),
    }
}

fn working(f: &Facts) -> Verdict {
    let r = &f.request;
    match &f.signal {
        Signal::Sqlstate { code, severity, then } => {
            let m = sqlstate::meaning(*code);
            let over = m.ends_session || then.is_some() || matches!(severity.as_str(), "FATAL" | "PANIC");
            if over {
                let siblings = if m.scope == Scope::Session { Siblings::Leave } else { Siblings::Recheck };
                return lost(f, siblings);
            }
            refused(f, *code, m)
        }
        Signal::Tag { tag } if tag == "ROLLBACK" => Verdict::of(Class::Transient, RetryUnit::Transaction),
        Signal::LocalCommitOnly => Verdict::of(Class::UnknownOutcome, RetryUnit::OutcomeCheck),
        Signal::Pool { .. } if r.sent == Sent::None => acquiring(&f.signal),
        _ => lost(f, Siblings::Recheck),
    }
}

/// The connection ended, or is given up, with the request out.
fn lost(f: &Facts, siblings: Siblings) -> Verdict {
    let r = &f.request;
    let unit = if r.in_transaction { RetryUnit::Transaction } else { RetryUnit::Statement };
    let reads = matches!(r.effect, Effect::Read | Effect::Listen | Effect::None) && f.phase != Phase::Commit;
    // An open block is rolled back with its session, unless its COMMIT was out.
    let rolled_back = r.in_transaction && f.phase != Phase::Commit;
    if r.sent == Sent::None || reads || rolled_back {
        Verdict::of(Class::Transient, unit).ended(siblings)
    } else {
        Verdict::of(Class::UnknownOutcome, RetryUnit::OutcomeCheck).ended(siblings)
    }
}

/// The server refused the request and the session goes on.
fn refused(f: &Facts, code: SqlState, m: sqlstate::Meaning) -> Verdict {
    let r = &f.request;
    let unit = if r.in_transaction { RetryUnit::Transaction } else { RetryUnit::Statement };
    if code.as_str() == "25006" {
        let opened = f.session.application_opened.as_deref().unwrap_or_default().to_ascii_uppercase();
        if opened.contains("READ ONLY") {
            // The caller asked for it; no other host would do otherwise.
            return Verdict::of(Class::Permanent, RetryUnit::None);
        }
        return Verdict::of(Class::Transient, unit).ended(Siblings::Recheck);
    }
    // A cancel that raced with COMMIT may have come too late; a procedure may have committed a part before it failed.
    let raced = f.phase == Phase::Commit && code.as_str() == "57014";
    let partly = r.calls && !r.in_transaction && r.sent != Sent::None;
    if raced || partly || m.at_statement == Class::UnknownOutcome {
        return Verdict::of(Class::UnknownOutcome, RetryUnit::OutcomeCheck);
    }
    match m.at_statement {
        Class::Transient => Verdict { backoff: m.backoff, ..Verdict::of(Class::Transient, unit) },
        _ => Verdict::of(Class::Permanent, RetryUnit::None),
    }
}
