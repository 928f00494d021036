//! `pgf_classify`: plain facts in, verdict out. The facts go to the core in their written form, so the rules for what is
//! left out or misspelt are the core's.

use std::ffi::c_char;
use std::mem::{self, offset_of};
use std::ptr;

use pgfollow::decide::classify::{RetryUnit, Siblings};
use pgfollow::{Class, Code, Error, Facts, Verdict, classify};
use serde_json::{Map, Value, json};

use crate::barrier::{call, wrong_call};
use crate::error::{pgf_class, pgf_error};
use crate::status::pgf_status;
use crate::text::taken;

/// When a failure happened.
#[derive(Clone, Copy)]
#[repr(i32)]
pub enum pgf_phase {
    /// Looking a name up.
    PGF_PHASE_RESOLVE = 1,
    /// Opening the socket.
    PGF_PHASE_CONNECT = 2,
    /// TLS, login, role.
    PGF_PHASE_HANDSHAKE = 3,
    /// Nobody was using the connection.
    PGF_PHASE_IDLE = 4,
    /// Waiting for a connection of the pool.
    PGF_PHASE_ACQUIRE = 5,
    /// A request that can't end its transaction block, or one outside any block.
    PGF_PHASE_STATEMENT = 6,
    /// A request that may end the transaction, or of which nobody is sure.
    PGF_PHASE_COMMIT = 7,
}

impl pgf_phase {
    /// As the core's facts write them, in the order of their numbers.
    const WRITTEN: &[&str] = &["resolve", "connect", "handshake", "idle", "acquire", "statement", "commit"];
}

/// What was seen of a failure.
#[derive(Clone, Copy)]
#[repr(i32)]
pub enum pgf_signal {
    /// The transport failed: refused, reset, end of file, timed out.
    PGF_SIGNAL_IO = 1,
    /// A look-up failed: `rcode`, `resolved_before`.
    PGF_SIGNAL_DNS = 2,
    /// The server said something: `sqlstate`, `severity`, `is_notice`, `ended`, `routine`.
    PGF_SIGNAL_SQLSTATE = 3,
    /// The certificate, the version, no TLS at all.
    PGF_SIGNAL_TLS = 4,
    /// The host isn't of the wanted role.
    PGF_SIGNAL_ROLE_MISMATCH = 5,
    /// A deadline passed: the caller's, or connect_timeout.
    PGF_SIGNAL_DEADLINE = 6,
    /// COMMIT was answered ROLLBACK; `sqlstate` is what had failed the block, if known.
    PGF_SIGNAL_ROLLED_BACK = 7,
    /// No connection of the pool came free in time.
    PGF_SIGNAL_ACQUIRE_TIMEOUT = 8,
    /// The pool refused at once.
    PGF_SIGNAL_OVERLOADED = 9,
    /// The pool is closed.
    PGF_SIGNAL_POOL_CLOSED = 10,
}

impl pgf_signal {
    /// As the core's facts write them, in the order of their numbers.
    const WRITTEN: &[&str] = &[
        "io",
        "dns",
        "sqlstate",
        "tls",
        "role-mismatch",
        "deadline",
        "rolled-back",
        "acquire-timeout",
        "overloaded",
        "pool-closed",
    ];
}

/// What a request does.
#[derive(Clone, Copy)]
#[repr(i32)]
pub enum pgf_effect {
    /// Declared read-only by the caller.
    PGF_EFFECT_READ = 1,
    /// Changes something, or nobody said that it doesn't.
    PGF_EFFECT_WRITE = 2,
    /// Nothing that lasts: BEGIN, SET, ROLLBACK, a ping.
    PGF_EFFECT_NONE = 3,
    /// COPY FROM STDIN.
    PGF_EFFECT_COPY_IN = 4,
    /// LISTEN.
    PGF_EFFECT_LISTEN = 5,
}

impl pgf_effect {
    /// As the core's facts write them, in the order of their numbers.
    const WRITTEN: &[&str] = &["read", "write", "none", "copy-in", "listen"];
}

/// How much of a request had been handed to the kernel.
#[derive(Clone, Copy)]
#[repr(i32)]
pub enum pgf_sent {
    /// Not a byte.
    PGF_SENT_NONE = 1,
    /// Some of it.
    PGF_SENT_PARTIAL = 2,
    /// All of it.
    PGF_SENT_COMPLETE = 3,
}

impl pgf_sent {
    /// As the core's facts write them, in the order of their numbers.
    const WRITTEN: &[&str] = &["none", "partial", "complete"];
}

/// Three answers to a question.
#[derive(Clone, Copy)]
#[repr(i32)]
pub enum pgf_answer {
    /// Nobody said.
    PGF_NOT_SAID = 0,
    /// Yes.
    PGF_YES = 1,
    /// No.
    PGF_NO = 2,
}

/// What is known of a failure. Set all of it to zero, then `size` to sizeof(pgf_failure), then what you know: zero is "not
/// said" everywhere, and gets the careful answer (a write, completely sent, which may have committed by itself). The texts
/// need not end with a zero byte.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct pgf_failure {
    /// sizeof(pgf_failure).
    pub size: usize,
    /// A pgf_phase. Needed.
    pub phase: i32,
    /// A pgf_signal. Needed.
    pub signal: i32,
    /// The name server's answer: NXDOMAIN, NODATA, SERVFAIL, ...
    pub rcode: *const c_char,
    /// Its length.
    pub rcode_len: usize,
    /// The server's SQLSTATE.
    pub sqlstate: *const c_char,
    /// Its length: 5.
    pub sqlstate_len: usize,
    /// The severity in English (PG_DIAG_SEVERITY_NONLOCALIZED); not said: ERROR.
    pub severity: *const c_char,
    /// Its length.
    pub severity_len: usize,
    /// The message's routine (PG_DIAG_SOURCE_FUNCTION).
    pub routine: *const c_char,
    /// Its length.
    pub routine_len: usize,
    /// The text with which the application opened the transaction, such as BEGIN READ ONLY.
    pub application_opened: *const c_char,
    /// Its length.
    pub application_opened_len: usize,
    /// Not 0: this process has resolved the name before.
    pub resolved_before: i32,
    /// Not 0: the SQLSTATE came in a notice, not in an error.
    pub is_notice: i32,
    /// Not 0: the connection ended behind the message.
    pub ended: i32,
    /// A pgf_effect.
    pub effect: i32,
    /// A pgf_sent.
    pub sent: i32,
    /// A pgf_answer: whether a transaction block was open when the request was sent.
    pub in_transaction: i32,
    /// Not 0: CALL, DO, CREATE INDEX CONCURRENTLY, which can commit in their middle. Not the careful answer: say it where
    /// it is so.
    pub may_commit_inside: i32,
    /// Not 0: the host was well within the last minute.
    pub healthy_lately: i32,
}

/// What may be repeated.
#[derive(Clone, Copy)]
#[repr(i32)]
pub enum pgf_retry_unit {
    /// Nothing.
    PGF_RETRY_NONE = 0,
    /// The connect.
    PGF_RETRY_CONNECT = 1,
    /// The statement.
    PGF_RETRY_STATEMENT = 2,
    /// The whole transaction (where none was open, the statement is all of it).
    PGF_RETRY_TRANSACTION = 3,
    /// Nothing before the outcome is known.
    PGF_RETRY_OUTCOME_CHECK = 4,
}

/// What to do about a failure. Set `size` to sizeof(pgf_verdict) before the call.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct pgf_verdict {
    /// sizeof(pgf_verdict).
    pub size: usize,
    /// A pgf_class: what it says about the work.
    pub error_class: i32,
    /// A pgf_retry_unit: what may be repeated.
    pub retry_unit: i32,
    /// 1: this connection must not be used again.
    pub discard: i32,
    /// 1: hand none of the other connections to the host out untested. 0: they are well.
    pub recheck_siblings: i32,
    /// 1: another host may do better.
    pub next_host: i32,
    /// 1: wait, with jitter, before another try.
    pub backoff: i32,
    /// 0: nobody was using the connection, so nobody need hear of it.
    pub shown_to_caller: i32,
}

fn written(table: &'static [&'static str], number: i32, field: &str) -> Result<Option<&'static str>, Error> {
    if number == 0 {
        return Ok(None);
    }
    let place = usize::try_from(number).ok().and_then(|n| n.checked_sub(1));
    let text = place.and_then(|n| table.get(n).copied());
    text.map(Some).ok_or_else(|| wrong_call(format!("{field} is {number}, which this library doesn't know")))
}

fn text(at: *const c_char, len: usize, field: &str) -> Result<Option<&'static str>, Error> {
    Ok(Some(taken(at, len, field)?).filter(|t| !t.is_empty()))
}

/// The caller's facts, of which a newer or older header may have more or fewer.
fn facts(failure: *const pgf_failure) -> Result<pgf_failure, Error> {
    if failure.is_null() {
        return Err(wrong_call("failure is NULL"));
    }
    // SAFETY: not NULL, and every version of the structure begins with its size.
    let size = unsafe { failure.cast::<usize>().read() };
    let ours = size_of::<pgf_failure>();
    if !(offset_of!(pgf_failure, rcode)..=ours * 16).contains(&size) {
        return Err(wrong_call(format!("failure's size is {size}: set it to sizeof(pgf_failure)")));
    }
    // SAFETY: the caller says that it has that many bytes; what we don't have stays zero, which is valid for every field.
    let (known, rest) = unsafe {
        let mut known: pgf_failure = mem::zeroed();
        ptr::copy_nonoverlapping(failure.cast::<u8>(), (&raw mut known).cast::<u8>(), size.min(ours));
        let rest = failure.cast::<u8>().add(size.min(ours));
        (known, std::slice::from_raw_parts(rest, size.saturating_sub(ours)))
    };
    if rest.iter().any(|b| *b != 0) {
        let message = "failure says something that this library is too old for";
        return Err(Error::new(Code::UnsupportedOption, Class::Permanent, message));
    }
    Ok(known)
}

fn put(object: &mut Map<String, Value>, key: &str, value: Option<impl Into<Value>>) {
    if let Some(value) = value {
        object.insert(key.to_owned(), value.into());
    }
}

fn signal(f: &pgf_failure) -> Result<Value, Error> {
    let kind =
        written(pgf_signal::WRITTEN, f.signal, "signal")?.ok_or_else(|| wrong_call("signal is not set"))?;
    if f.signal >= pgf_signal::PGF_SIGNAL_ACQUIRE_TIMEOUT as i32 {
        return Ok(json!({"type": "pool", "event": kind}));
    }
    let mut signal = Map::new();
    put(&mut signal, "type", Some(kind));
    let sqlstate = text(f.sqlstate, f.sqlstate_len, "sqlstate")?;
    match kind {
        "dns" => {
            let rcode = text(f.rcode, f.rcode_len, "rcode")?.ok_or_else(|| wrong_call("rcode is not set"))?;
            put(&mut signal, "rcode", Some(rcode));
            put(&mut signal, "resolved_before", Some(f.resolved_before != 0));
        }
        "rolled-back" => put(&mut signal, "cause", sqlstate),
        "sqlstate" => {
            put(&mut signal, "code", Some(sqlstate.ok_or_else(|| wrong_call("sqlstate is not set"))?));
            put(&mut signal, "severity", text(f.severity, f.severity_len, "severity")?);
            put(&mut signal, "as", (f.is_notice != 0).then_some("notice"));
            put(&mut signal, "then", (f.ended != 0).then_some("EOF"));
            put(&mut signal, "routine", text(f.routine, f.routine_len, "routine")?);
        }
        _ => {}
    }
    Ok(signal.into())
}

fn read(f: &pgf_failure) -> Result<Facts, Error> {
    let phase =
        written(pgf_phase::WRITTEN, f.phase, "phase")?.ok_or_else(|| wrong_call("phase is not set"))?;
    let in_transaction = match f.in_transaction {
        0 => None,
        1 => Some(true),
        2 => Some(false),
        n => return Err(wrong_call(format!("in_transaction is {n}, which is no pgf_answer"))),
    };
    let mut request = Map::new();
    put(&mut request, "effect", written(pgf_effect::WRITTEN, f.effect, "effect")?);
    put(&mut request, "sent", written(pgf_sent::WRITTEN, f.sent, "sent")?);
    put(&mut request, "in_transaction", in_transaction);
    put(&mut request, "may_commit_inside", Some(f.may_commit_inside != 0));
    let mut session = Map::new();
    put(&mut session, "healthy_lately", Some(f.healthy_lately != 0));
    let opened = text(f.application_opened, f.application_opened_len, "application_opened")?;
    put(&mut session, "application_opened", opened);
    let facts = json!({"phase": phase, "signal": signal(f)?, "request": request, "session": session});
    serde_json::from_value(facts).map_err(|e| wrong_call(format!("the facts can't be read: {e}")))
}

fn told(v: &Verdict) -> pgf_verdict {
    pgf_verdict {
        size: 0,
        error_class: pgf_class::from(v.class) as i32,
        retry_unit: match v.retry_unit {
            RetryUnit::None => pgf_retry_unit::PGF_RETRY_NONE,
            RetryUnit::Connect => pgf_retry_unit::PGF_RETRY_CONNECT,
            RetryUnit::Statement => pgf_retry_unit::PGF_RETRY_STATEMENT,
            RetryUnit::Transaction => pgf_retry_unit::PGF_RETRY_TRANSACTION,
            RetryUnit::OutcomeCheck => pgf_retry_unit::PGF_RETRY_OUTCOME_CHECK,
        } as i32,
        discard: v.discard.into(),
        recheck_siblings: (v.siblings == Siblings::Recheck).into(),
        next_host: v.next_host.into(),
        backoff: v.backoff.is_some().into(),
        shown_to_caller: v.shown_to_caller.into(),
    }
}

/// Says what a failure means for the work: of a libpq connection or of any other driver's.
#[unsafe(no_mangle)]
pub extern "C" fn pgf_classify(
    failure: *const pgf_failure,
    verdict: *mut pgf_verdict,
    error: *mut *mut pgf_error,
) -> pgf_status {
    call(error, || {
        if verdict.is_null() {
            return Err(wrong_call("verdict is NULL"));
        }
        // SAFETY: not NULL, and every version of the structure begins with its size.
        let size = unsafe { verdict.cast::<usize>().read() };
        if !(offset_of!(pgf_verdict, discard)..=size_of::<pgf_verdict>() * 16).contains(&size) {
            return Err(wrong_call(format!("verdict's size is {size}: set it to sizeof(pgf_verdict)")));
        }
        let told = pgf_verdict { size, ..told(&classify(&read(&facts(failure)?)?)) };
        // SAFETY: the caller says that it has that many bytes.
        unsafe {
            let bytes = size.min(size_of::<pgf_verdict>());
            ptr::copy_nonoverlapping((&raw const told).cast::<u8>(), verdict.cast::<u8>(), bytes);
        }
        Ok(())
    })
}
