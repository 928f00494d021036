//! The true error of a session's call: host, stage, what had left, and its class.

use std::error::Error as _;
use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::types::WrongType;

use super::member::{EndCause, Member};
use crate::clock::Deadline;
use crate::decide::classify::{
    Carrier, Effect, Facts, Phase, Request, ServerWord, SessionFacts, Severity, Signal, classify,
};
use crate::error::{Class, Code, Error, Sent, SqlState, Stage, TxStatus};
use crate::sqlstate;
use crate::tap::report::{clean, is_stale_statement};

/// Explains errors of one session's calls. Cheap to clone, borrows nothing.
#[derive(Clone)]
pub struct Why {
    member: Arc<Member>,
}

impl Why {
    pub(super) fn new(member: Arc<Member>) -> Self {
        Self { member }
    }

    pub(crate) fn member(&self) -> &Member {
        &self.member
    }

    /// The error of whatever is begun now, if the session has ended already: nothing of it will leave.
    pub(super) fn over(&self) -> Option<Error> {
        let end = self.member.ended()?;
        let message = format!("the session was over before this call: {}", end.cause);
        let error = Error::new(end.cause.code(), Class::Transient, message);
        Some(self.told(error.on_host(self.member.candidate.to_string()).with_sent(Sent::None)))
    }

    /// Every error that a caller gets is recorded, once.
    pub(crate) fn told(&self, mut e: Error) -> Error {
        self.member.failed(&mut e);
        e
    }

    /// Adds to a driver's error what it doesn't tell: the host, how much of the request had left, the true cause where
    /// tokio-postgres has only "closed", and the class.
    pub fn diagnose(&self, e: tokio_postgres::Error) -> Error {
        self.told(self.explain(e))
    }

    /// The same, and nobody gets it yet.
    pub(super) fn explain(&self, e: tokio_postgres::Error) -> Error {
        let tap = &self.member.tap;
        let end = self.member.ended();
        let (mut sent, mut status) = (tap.sent(), tap.status());
        if e.as_db_error().is_some() {
            // What was answered had left, and its ReadyForQuery may not be here yet: an error fails the open block.
            sent = Sent::Complete;
            if status == TxStatus::InTransaction {
                status = TxStatus::Failed;
            }
        }
        let error = match e.as_db_error() {
            Some(db) => {
                let state = SqlState::new(db.code().code()).unwrap_or_default();
                let stale = is_stale_statement(state.as_str(), db.routine());
                let class = self.class(Signal::Sqlstate(ServerWord {
                    code: state,
                    severity: severity(db),
                    carrier: Carrier::Error,
                    ended: false,
                    sync_rep: false,
                }));
                // Prepared anew it will do.
                let class = if stale && class == Class::Permanent { Class::Transient } else { class };
                Error::new(Code::Server, class, self.words(state, db))
                    .with_sqlstate(state)
                    .at_stage(Stage::Work)
            }
            None => match end.map(|e| &e.cause) {
                Some(cause) => {
                    let error =
                        Error::new(cause.code(), self.lost(), cause.to_string()).at_stage(Stage::Blocked);
                    match cause {
                        EndCause::Server { sqlstate, .. } => error.with_sqlstate(*sqlstate),
                        _ => error,
                    }
                }
                None if e.is_closed() => {
                    Error::new(Code::ConnectionLost, self.lost(), "the connection is closed")
                        .at_stage(Stage::Blocked)
                }
                // Values that don't fit, wrong counts of parameters or rows: the call itself was wrong.
                None => {
                    if never_sent(&e) {
                        // What the tap saw was the question for the types.
                        sent = Sent::None;
                    }
                    Error::new(Code::WrongCall, Class::Permanent, wrong_words(&e)).at_stage(Stage::Work)
                }
            },
        };
        error
            .on_host(self.member.candidate.to_string())
            .with_sent(sent)
            .with_transaction(status)
            .caused_by(Box::new(e))
    }

    /// The server's message, with the remedy where a write met a standby. (In a block begun READ ONLY the mistake is
    /// the caller's own, on whatever host.)
    fn words(&self, state: SqlState, db: &tokio_postgres::error::DbError) -> String {
        let mut words = clean(db.message());
        let tap = &self.member.tap;
        if state.as_str() == "25006" && tap.flag("in_hot_standby") == Some(true) && !tap.read_only_block() {
            words
                .push_str("; the session is on a standby: target_session_attrs=read-write finds the primary");
        }
        words
    }

    /// Whether what the session was answered last is as safe as `synchronous_commit` promises. A server that stops waiting
    /// for its synchronous standby (somebody cancelled the statement, and a cancel ends that wait alone) answers as if all
    /// were well, with a mere warning: the write is committed on that host, and a failover may lose it.
    ///
    /// [`crate::Transaction::commit`], [`crate::Connector::run`] and [`crate::Session::within`] look by themselves. The
    /// driver's own `execute`, `query` or `batch_execute` outside a transaction return `Ok`: before a synchronous standby
    /// ask this behind a write, before the session's next request.
    ///
    /// ```no_run
    /// # async fn f(session: &pgfollow::Session) -> Result<(), pgfollow::Error> {
    /// let why = session.why();
    /// session.execute("INSERT INTO orders DEFAULT VALUES", &[]).await.map_err(|e| why.diagnose(e))?;
    /// why.confirmed()?; // committed, and not on this host alone
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Code::ReplicationUnknown`], an unknown outcome.
    pub fn confirmed(&self) -> Result<(), Error> {
        if self.member.tap.local_commit_only() { Err(self.local_only()) } else { Ok(()) }
    }

    /// Runs a call under a deadline; see [`crate::Session::within`].
    ///
    /// # Errors
    /// The call's own, explained, [`Code::CallTimedOut`], or [`Code::ReplicationUnknown`].
    pub async fn within<T>(
        &self,
        limit: Duration,
        call: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, Error> {
        let before = self.member.tap.local_commits();
        let value = self.bounded(limit, call).await?;
        // Any of the call's requests may have been the one.
        if self.member.tap.local_commits() == before { Ok(value) } else { Err(self.local_only()) }
    }

    /// The same, and what the server warned of is the caller's to look at.
    pub(super) async fn bounded<T>(
        &self,
        limit: Duration,
        call: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, Error> {
        let before = self.member.tap.writes();
        match Deadline::after(limit).bound(call).await {
            Ok(result) => result.map_err(|e| self.diagnose(e)),
            Err(_) => Err(self.told(self.give_up(before))),
        }
    }

    /// Ends the session because a call's time is over, and says what that means for the call. `before`: how many writes
    /// there had been before it.
    pub(crate) fn give_up(&self, before: u64) -> Error {
        // The request may still wait for its turn to be written: first nothing leaves any more, then it is looked at
        // what has left.
        self.member.end(EndCause::CallTimedOut);
        self.member.tap.seal();
        let tap = &self.member.tap;
        let sent = match tap.sent() {
            // It left, and its answer has come meanwhile; nobody has seen it.
            Sent::None if tap.writes() != before => Sent::Complete,
            sent => sent,
        };
        let (class, status) = (self.class_of(Signal::Io, sent), tap.status());
        Error::new(Code::CallTimedOut, class, "the call's deadline passed, so its session was ended")
            .at_stage(Stage::Blocked)
            .on_host(self.member.candidate.to_string())
            .with_sent(sent)
            .with_transaction(status)
    }

    /// What the loss of the connection means for what was out.
    fn lost(&self) -> Class {
        self.class(Signal::Io)
    }

    /// The class by the tap's facts.
    pub(super) fn class(&self, signal: Signal) -> Class {
        self.class_of(signal, self.member.tap.sent())
    }

    fn class_of(&self, signal: Signal, sent: Sent) -> Class {
        let tap = &self.member.tap;
        let answered = matches!(signal, Signal::Sqlstate(_) | Signal::RolledBack { .. });
        // An error and the ReadyForQuery behind it come together: the block is over when the caller hears of it.
        let commit = answered && tap.answers_commit();
        let inside = tap.called_in_autocommit();
        let open = tap.status() != TxStatus::Idle && !inside;
        let facts = Facts {
            phase: if commit || (open && tap.may_commit()) { Phase::Commit } else { Phase::Statement },
            signal,
            request: Request {
                // The session's declaration, or the block's own (which ends with the block).
                effect: if self.member.declared_read_only() || tap.only_reads() {
                    Effect::Read
                } else {
                    Effect::Write
                },
                // What was answered had left, though nothing of it is out any more.
                sent: if answered { Sent::Complete } else { sent },
                in_transaction: Some(open),
                may_commit_inside: inside,
            },
            session: SessionFacts { opened_read_only: tap.read_only_block(), healthy_lately: false },
        };
        classify(&facts).class
    }

    /// Committed here, replication unknown: the server stopped waiting for its standby.
    pub(super) fn local_only(&self) -> Error {
        let error = Error::new(
            Code::ReplicationUnknown,
            Class::UnknownOutcome,
            "the transaction was committed on this host, but the wait for a synchronous standby was broken off: a \
             failover may lose it",
        );
        self.told(error.on_host(self.member.candidate.to_string()).with_sent(Sent::Complete))
    }
}

/// Only whether the session goes on matters here; a localised severity is judged by the SQLSTATE alone.
fn severity(db: &tokio_postgres::error::DbError) -> Severity {
    use tokio_postgres::error::Severity as Said;
    match db.parsed_severity() {
        Some(Said::Fatal) => Severity::Fatal,
        Some(Said::Panic) => Severity::Panic,
        _ => Severity::Error,
    }
}

impl From<tokio_postgres::Error> for Error {
    /// The class from the SQLSTATE alone; a bare "closed" is unknown. [`Why::diagnose`] knows more: the host, what had
    /// left, the true cause, and whether a lost call can have done anything.
    ///
    /// What it doesn't know is which statement failed, and an error of the server is taken to have undone it. That holds
    /// for all but those that commit in parts: CALL, DO and CREATE INDEX CONCURRENTLY outside a transaction may answer
    /// 40001, 40P01 or 55P03 when some of their work is committed, and this calls them transient, as it must for every
    /// other statement. Let [`Why::diagnose`] explain the errors of those three (it calls them unknown), or look before
    /// you repeat one.
    fn from(e: tokio_postgres::Error) -> Self {
        if let Some(ours) = Self::find(&e).map(Self::copy) {
            return ours.caused_by(Box::new(e));
        }
        if wrong_call(&e) {
            return Self::new(Code::WrongCall, Class::Permanent, wrong_words(&e)).caused_by(Box::new(e));
        }
        let state = e.as_db_error().and_then(|db| SqlState::new(db.code().code()));
        match state {
            Some(state) => {
                let meaning = sqlstate::meaning(state);
                // A pooler's lost connection may have carried a COMMIT: only the session's tap knows.
                let unsure = meaning.ends_session || state.as_str().starts_with("08");
                let stale =
                    e.as_db_error().is_some_and(|db| is_stale_statement(state.as_str(), db.routine()));
                let class = match meaning.at_statement {
                    _ if unsure => Class::UnknownOutcome,
                    _ if stale => Class::Transient,
                    class => class,
                };
                let message = e.as_db_error().map_or_else(String::new, |db| clean(db.message()));
                Self::new(Code::Server, class, message).with_sqlstate(state).caused_by(Box::new(e))
            }
            None => Self::new(Code::ConnectionLost, Class::UnknownOutcome, clean(&e.to_string()))
                .caused_by(Box::new(e)),
        }
    }
}

/// Whether the driver found the call itself wrong. It doesn't tell its kind of error, only its words; whatever isn't
/// known by them may have been a lost connection.
fn wrong_call(e: &tokio_postgres::Error) -> bool {
    const WORDS: [&str; 3] =
        ["error deserializing column", "invalid column", "query returned an unexpected number of"];
    let text = e.to_string();
    let ours = || never_sent(e) || WORDS.iter().any(|w| text.starts_with(w));
    e.as_db_error().is_none() && !e.is_closed() && ours()
}

/// Whether the driver refused the values that were to be sent: wrong types, or a wrong count of them.
fn never_sent(e: &tokio_postgres::Error) -> bool {
    let text = e.to_string();
    ["error serializing parameter", "expected "].iter().any(|w| text.starts_with(w))
}

/// The words of a wrong call, with the two types that don't fit. No other cause is told: it may show a value.
fn wrong_words(e: &tokio_postgres::Error) -> String {
    let mut words = clean(&e.to_string());
    if let Some(types) = e.source().and_then(|s| s.downcast_ref::<WrongType>()) {
        words.push_str(": ");
        words.push_str(&clean(&types.to_string()));
    }
    words
}
