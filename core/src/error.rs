//! One error type: what happened, where, what had been sent, and what to do next.
//!
//! The class is computed once (in [`crate::decide`]) and carried; nobody downstream decides it again. Messages are
//! safe to log: no password, no query text, and the server's own words are cleaned before they come in here.

mod json;

use std::fmt;
use std::time::Duration;

use serde::{Serialize, Serializer};

use crate::decide::attribute::Fate;
use crate::outcome::Token;
use crate::report::Told;

macro_rules! codes {
    ($($(#[doc = $doc:literal])+ $name:ident = $n:literal,)+) => {
        /// What went wrong, as a stable number: the same in every language, never reused.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        #[repr(i32)]
        pub enum Code { $($(#[doc = $doc])+ $name = $n,)+ }

        impl Code {
            /// Every code with its name and meaning: the table from which the documentation is made.
            pub const TABLE: &'static [(Self, &'static str, &'static str)] =
                &[$((Self::$name, stringify!($name), concat!($($doc),+)),)+];
        }
    };
}

codes! {
    /// The connection string can't be read.
    InvalidConninfo = 1,
    /// An option has a value that it can't have, or two options contradict each other.
    InvalidOption = 2,
    /// An option asks for something that pgfollow can't do.
    UnsupportedOption = 3,
    /// A file that an option names can't be read or used (certificate, key, password or service file).
    UnusableFile = 4,
    /// The name doesn't exist.
    NoSuchName = 10,
    /// No answer, or a failure, from the name servers.
    ResolveFailed = 11,
    /// The host refused, is unreachable, or the socket failed.
    DialFailed = 20,
    /// The host didn't finish its part in time (dial, TLS, login or role).
    ConnectTimedOut = 21,
    /// The server has no TLS and the configuration requires it.
    TlsRefused = 30,
    /// The TLS handshake failed.
    TlsFailed = 31,
    /// The certificate isn't the configured host's.
    TlsIdentity = 32,
    /// What answered doesn't speak PostgreSQL's protocol, or broke its limits.
    ProtocolViolation = 40,
    /// The connection ended during login.
    HandshakeLost = 41,
    /// The server asks for an authentication that the configuration or pgfollow doesn't allow.
    AuthenticationMethod = 42,
    /// The server reported an error (see the SQLSTATE).
    Server = 50,
    /// The call itself doesn't fit: its parameters, the columns it reads, or the number of rows it expects.
    WrongCall = 51,
    /// A host answered and isn't of the wanted role.
    WrongRole = 60,
    /// No host of the list could be used.
    NoHostFits = 61,
    /// The connection was lost.
    ConnectionLost = 70,
    /// The session's host was superseded by another primary.
    Superseded = 71,
    /// The session's host restarted, was demoted, or is down.
    HostGone = 72,
    /// The caller's deadline passed during a call.
    CallTimedOut = 73,
    /// COMMIT was answered ROLLBACK: nothing of the transaction was kept.
    RolledBack = 74,
    /// The caller's deadline passed before a session could be had.
    DeadlinePassed = 80,
    /// The connector is closed.
    Closed = 81,
    /// Refused at once: the caller could not have been served within its patience. `retry_after` says when to come back.
    Overloaded = 82,
    /// A closure of `run` ended its own transaction.
    TransactionControl = 90,
    /// Committed on this host, but the wait for a synchronous standby was broken off.
    ReplicationUnknown = 91,
    /// The closure of `run` gave up for a reason of its own (the error underneath).
    GaveUp = 92,
    /// An error of pgfollow itself: please report it.
    Internal = 99,
}

impl Code {
    /// The stable number.
    pub const fn number(self) -> i32 {
        self as i32
    }

    /// The name, as in the table.
    pub fn name(self) -> &'static str {
        Self::TABLE.iter().find(|r| r.0 == self).map_or("Internal", |r| r.1)
    }
}

impl Serialize for Code {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(self.name())
    }
}

/// What an error says about the work that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// Certainly not done: retry after a backoff.
    Transient,
    /// Repeating is wrong or useless.
    Permanent,
    /// May have been done: check, don't repeat.
    UnknownOutcome,
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Transient => "transient",
            Self::Permanent => "permanent",
            Self::UnknownOutcome => "unknown-outcome",
        })
    }
}

/// The part of a connection's life in which something happened: one vocabulary for errors, events and reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Reading the configuration.
    Configure,
    /// Waiting for a pool slot.
    Queue,
    /// Held back by the connect rate or a backoff.
    Pace,
    /// Looking a name up.
    Resolve,
    /// Opening a socket.
    Dial,
    /// TLS.
    Secure,
    /// Startup and login.
    Authenticate,
    /// Asking for the role.
    Role,
    /// Sent, and no byte comes back.
    Blocked,
    /// The server is at work.
    Work,
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Configure => "configure",
            Self::Queue => "queue",
            Self::Pace => "pace",
            Self::Resolve => "resolve",
            Self::Dial => "dial",
            Self::Secure => "secure",
            Self::Authenticate => "authenticate",
            Self::Role => "role",
            Self::Blocked => "blocked",
            Self::Work => "work",
        })
    }
}

/// How much of the request in question had been handed to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sent {
    /// Not a byte.
    None,
    /// Some of it.
    Partial,
    /// All of it.
    Complete,
}

/// A session's transaction status, as the last ReadyForQuery told it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TxStatus {
    /// Outside a transaction block (`I`).
    Idle,
    /// In a block (`T`).
    InTransaction,
    /// In a failed block (`E`).
    Failed,
}

/// A five-character SQLSTATE.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SqlState([u8; 5]);

impl SqlState {
    /// From text; `None` unless it is five digits or capital letters.
    pub fn new(text: &str) -> Option<Self> {
        let bytes: [u8; 5] = text.as_bytes().try_into().ok()?;
        bytes.iter().all(|b| b.is_ascii_digit() || b.is_ascii_uppercase()).then_some(Self(bytes))
    }

    /// The five characters.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or("XX000")
    }
}

impl Default for SqlState {
    /// Class XX, "internal error": what a server that gave no SQLSTATE is taken to have meant.
    fn default() -> Self {
        Self(*b"XX000")
    }
}

impl fmt::Display for SqlState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for SqlState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for SqlState {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(self.as_str())
    }
}

impl<'de> serde::Deserialize<'de> for SqlState {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = String::deserialize(d)?;
        Self::new(&text).ok_or_else(|| serde::de::Error::custom(format!("{text:?} is not an SQLSTATE")))
    }
}

/// One try at one address.
#[derive(Clone, Debug, Serialize)]
pub struct Attempt {
    /// The configured name.
    pub host: String,
    /// The address, once it was known (an IP address, or the path of a Unix socket).
    pub hostaddr: Option<String>,
    /// The port as configured; a number in JSON where it is one (70000 is none).
    #[serde(serialize_with = "as_number")]
    pub port: String,
    /// Where it ended (for the successful one: [`Stage::Role`]).
    pub stage: Stage,
    /// Why it ended; `None` for the successful one.
    pub code: Option<Code>,
    /// The server's SQLSTATE, if it gave one.
    pub sqlstate: Option<SqlState>,
    /// In words. The server's text before TLS is marked and cleaned.
    pub message: String,
    /// Its class; `None` for the successful one.
    #[serde(skip)]
    pub class: Option<Class>,
    /// Whether the walk through the hosts may go on after it.
    #[serde(skip)]
    pub next_host: bool,
    /// How long it took, in milliseconds.
    #[serde(serialize_with = "as_ms")]
    #[serde(rename = "ms")]
    pub took: Duration,
}

fn as_number<S: Serializer>(port: &str, s: S) -> Result<S::Ok, S::Error> {
    match port.parse::<u16>() {
        Ok(n) => s.serialize_u16(n),
        Err(_) => s.serialize_str(port),
    }
}

fn as_ms<S: Serializer>(d: &Duration, s: S) -> Result<S::Ok, S::Error> {
    // Microsecond digits are enough for a person and for a script.
    s.serialize_f64((d.as_secs_f64() * 1e6).round() / 1e3)
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, hostaddr, port, stage, message, took, sqlstate, .. } = self;
        match hostaddr {
            Some(a) if a != host => write!(f, "{host} ({a}) port {port}")?,
            _ => write!(f, "{host} port {port}")?,
        }
        write!(f, ": {message} (stage {stage}")?;
        if let Some(s) = sqlstate {
            write!(f, ", SQLSTATE {s}")?;
        }
        write!(f, ", {} ms)", took.as_millis())
    }
}

/// The error of everything that pgfollow does. Cheap to move; read it with the accessors.
///
/// ```
/// use pgfollow::{Class, Code, Error};
/// let e = Error::new(Code::InvalidOption, Class::Permanent, "sslmode=maybe: use disable, allow, prefer, …");
/// assert_eq!(e.code().number(), 2);
/// assert_eq!(e.class(), Class::Permanent);
/// ```
#[derive(Debug)]
pub struct Error(Box<Parts>);

#[derive(Debug)]
struct Parts {
    code: Code,
    class: Class,
    message: String,
    stage: Option<Stage>,
    sqlstate: Option<SqlState>,
    host: Option<String>,
    sent: Option<Sent>,
    transaction: Option<TxStatus>,
    retry_after: Option<Duration>,
    token: Option<Token>,
    attempts: Vec<Attempt>,
    /// It was recorded as one that a caller gets.
    told: Option<Told>,
    source: Option<Source>,
}

/// The error underneath. Printed for debugging it says no more than for people: the driver's own has the server's DETAIL,
/// which quotes the values of the row.
struct Source(Box<dyn std::error::Error + Send + Sync>);

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0.to_string(), f)
    }
}

macro_rules! with {
    ($($(#[doc = $doc:literal])+ $set:ident, $field:ident: $t:ty;)+) => {
        impl Error {
            $($(#[doc = $doc])+ #[must_use] pub fn $set(mut self, v: $t) -> Self { self.0.$field = Some(v); self })+
        }
    };
}

with! {
    /// Adds the stage.
    at_stage, stage: Stage;
    /// Adds the SQLSTATE.
    with_sqlstate, sqlstate: SqlState;
    /// Adds the host (name and address, for people).
    on_host, host: String;
    /// Adds how much of the request had left.
    with_sent, sent: Sent;
    /// Adds the transaction status.
    with_transaction, transaction: TxStatus;
    /// Adds the advice to wait that long before another try.
    with_retry_after, retry_after: Duration;
    /// Adds the token by which the outcome can be asked for.
    with_token, token: Token;
}

impl Error {
    /// Adds the error underneath.
    #[must_use]
    pub fn caused_by(mut self, source: Box<dyn std::error::Error + Send + Sync>) -> Self {
        self.0.source = Some(Source(source));
        self
    }

    /// The same with another class, where the caller of a diagnosis knows more.
    pub(crate) fn with_class(mut self, class: Class) -> Self {
        self.0.class = class;
        if let Some(told) = &mut self.0.told {
            told.is(class);
        }
        self
    }

    /// It was recorded as one that a caller gets.
    pub(crate) fn was_told(&mut self, told: Told) {
        self.0.told = Some(told);
    }

    /// What became of it, for the record.
    pub(crate) fn fate(&mut self, fate: Fate) {
        if let Some(told) = &mut self.0.told {
            told.fate(fate);
        }
    }

    /// The same with more words.
    pub(crate) fn noting(mut self, more: impl fmt::Display) -> Self {
        self.0.message = format!("{}; {more}", self.0.message);
        self
    }

    /// The driver's error underneath, where nobody has explained it yet.
    pub(crate) fn into_bare(mut self) -> Result<tokio_postgres::Error, Self> {
        if self.0.host.is_some() {
            return Err(self);
        }
        match self.0.source.take().map(|s| s.0.downcast::<tokio_postgres::Error>()) {
            Some(Ok(driver)) => Ok(*driver),
            Some(Err(other)) => {
                self.0.source = Some(Source(other));
                Err(self)
            }
            None => Err(self),
        }
    }

    /// A new error. The message names the parameter and the remedy, and never a secret.
    pub fn new(code: Code, class: Class, message: impl Into<String>) -> Self {
        Self(Box::new(Parts {
            code,
            class,
            message: message.into(),
            stage: None,
            sqlstate: None,
            host: None,
            sent: None,
            transaction: None,
            retry_after: None,
            token: None,
            attempts: Vec::new(),
            told: None,
            source: None,
        }))
    }

    /// The error of pgfollow that is among the causes of another one: of a driver's or a pool's.
    pub fn find<'a>(e: &'a (dyn std::error::Error + 'static)) -> Option<&'a Self> {
        let mut next = Some(e);
        while let Some(e) = next {
            if let Some(ours) = e.downcast_ref() {
                return Some(ours);
            }
            // An io::Error names the cause of what it wraps, not what it wraps.
            let wrapped = e.downcast_ref().and_then(std::io::Error::get_ref);
            next = wrapped.map(|w| w as _).or_else(|| e.source());
        }
        None
    }

    /// The same once more, without what lies underneath: for another caller, or a wrapper that keeps this one.
    pub(crate) fn copy(&self) -> Self {
        let Parts { code, class, stage, sqlstate, sent, transaction, retry_after, .. } = *self.0;
        let (message, host) = (self.0.message.clone(), self.0.host.clone());
        let (attempts, token, told) = (self.0.attempts.clone(), self.0.token, self.0.told.clone());
        Self(Box::new(Parts {
            code,
            class,
            message,
            stage,
            sqlstate,
            host,
            sent,
            transaction,
            retry_after,
            attempts,
            token,
            told,
            source: None,
        }))
    }

    /// Adds the attempts of a connect.
    #[must_use]
    pub fn with_attempts(mut self, attempts: Vec<Attempt>) -> Self {
        self.0.attempts = attempts;
        self
    }

    /// What went wrong.
    pub fn code(&self) -> Code {
        self.0.code
    }

    /// What it says about the work.
    pub fn class(&self) -> Class {
        self.0.class
    }

    /// The message alone, without the attempts.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// Where in a connection's life it happened.
    pub fn stage(&self) -> Option<Stage> {
        self.0.stage
    }

    /// The server's SQLSTATE.
    pub fn sqlstate(&self) -> Option<SqlState> {
        self.0.sqlstate
    }

    /// The host, for people: name and address.
    pub fn host(&self) -> Option<&str> {
        self.0.host.as_deref()
    }

    /// How much of the request had left.
    pub fn sent(&self) -> Option<Sent> {
        self.0.sent
    }

    /// The session's transaction status when it happened.
    pub fn transaction(&self) -> Option<TxStatus> {
        self.0.transaction
    }

    /// How long to wait before another try: what is predicted where a caller was refused, and a second while a primary is
    /// sought, for nobody knows how long that takes. `None` where nothing can be said.
    pub fn retry_after(&self) -> Option<Duration> {
        self.0.retry_after
    }

    /// Where a COMMIT was in question: what to ask [`crate::Connector::check_outcome`] with.
    pub fn token(&self) -> Option<&Token> {
        self.0.token.as_ref()
    }

    /// Every attempt of a connect, in the order in which they ended.
    pub fn attempts(&self) -> &[Attempt] {
        &self.0.attempts
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)?;
        // Each attempt prints its own, and some messages quote it.
        let quoted = |s: &SqlState| !self.0.attempts.is_empty() || self.0.message.contains(s.as_str());
        match (&self.0.host, self.0.sqlstate.filter(|s| !quoted(s))) {
            (Some(h), Some(s)) => write!(f, " [host {h}, SQLSTATE {s}]")?,
            (Some(h), None) => write!(f, " [host {h}]")?,
            (None, Some(s)) => write!(f, " [SQLSTATE {s}]")?,
            (None, None) => {}
        }
        for a in &self.0.attempts {
            write!(f, "\n  {a}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_ref().map(|s| &*s.0 as _)
    }
}
