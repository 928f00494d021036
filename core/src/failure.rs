//! What one attempt at one address ran into, as facts. What follows from it (class, next host or stop) is decided
//! in [`crate::decide::walk`]; the words for people are here.

use std::fmt;
use std::io;

use crate::config::SessionAttrs;
use crate::error::{Attempt, Code, SqlState, Stage};
use crate::net::ResolveError;

/// Why an attempt failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The port isn't one.
    BadPort(String),
    /// The address in `hostaddr`, or the socket directory, isn't one.
    BadAddress(String),
    /// The name gave no address.
    Resolve(ResolveError),
    /// `connect()` failed. The OS error number, where there is one, and its text.
    Dial {
        /// `errno`.
        os: Option<i32>,
        /// Its text.
        message: String,
    },
    /// `connect_timeout` (or the caller's deadline) passed.
    TimedOut,
    /// The server answered `N` and the configuration requires TLS.
    TlsNotOffered,
    /// The server answered the SSLRequest with an error. Its text is not trusted, so not kept.
    TlsRequestRefused,
    /// A certificate, key or root file of ours can't be used.
    TlsFile(String),
    /// The TLS handshake failed for another reason than the certificate's identity.
    TlsHandshake(String),
    /// The certificate isn't trusted, or isn't the configured host's.
    TlsIdentity(String),
    /// Bytes came in clear text behind the answer to the SSLRequest (CVE-2021-23222).
    EarlyData,
    /// What answered doesn't speak PostgreSQL's protocol.
    NotPostgres(String),
    /// A frame or the whole login was larger than permitted.
    TooLarge(String),
    /// The connection ended during startup or login (EOF, RST).
    Lost(String),
    /// An authentication that `require_auth`, `channel_binding` or our own rules forbid, or an unknown one.
    AuthMethod(String),
    /// No password for a server that wants one.
    NoPassword,
    /// The server reported an error.
    Server {
        /// Its SQLSTATE.
        sqlstate: SqlState,
        /// Its text, cleaned of control characters and cut; marked where it came in clear text.
        message: String,
        /// Whether AuthenticationOk had come before.
        after_auth: bool,
    },
    /// The host answered and isn't of the wanted role.
    WrongRole {
        /// What was wanted.
        wanted: SessionAttrs,
        /// What it is, in words ("in recovery", "read-only", "unknown").
        seen: &'static str,
    },
    /// The role question failed or gave no usable answer: not suitable, never taken for writable.
    RoleUnknown(String),
}

impl Failure {
    /// From an I/O error during `connect()`.
    pub fn dial(e: &io::Error) -> Self {
        Self::Dial { os: e.raw_os_error(), message: e.to_string() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadPort(p) => write!(f, "invalid port number {p:?}: a port is a number from 1 to 65535"),
            Self::BadAddress(a) => write!(f, "{a}"),
            Self::Resolve(e) => write!(f, "could not resolve the name: {e}"),
            Self::Dial { message, .. } => write!(f, "could not connect: {message}"),
            Self::TimedOut => f.write_str("no answer in time (connect_timeout)"),
            Self::TlsNotOffered => f.write_str("the server doesn't support TLS, but sslmode requires it"),
            Self::TlsRequestRefused => f.write_str("the server answered the TLS request with an error"),
            Self::TlsFile(m) | Self::TlsIdentity(m) | Self::AuthMethod(m) => f.write_str(m),
            Self::TlsHandshake(m) => write!(f, "the TLS handshake failed: {m}"),
            Self::EarlyData => f.write_str("unencrypted data came behind the answer to the TLS request"),
            Self::NotPostgres(m) => write!(f, "what answered doesn't speak PostgreSQL's protocol: {m}"),
            Self::TooLarge(m) => write!(f, "the server sent more than a login needs: {m}"),
            Self::Lost(m) => write!(f, "the connection ended during login: {m}"),
            Self::NoPassword => f.write_str("the server wants a password and none is configured: set password, PGPASSWORD or a password file"),
            Self::Server { message, .. } => f.write_str(message),
            Self::WrongRole { wanted, seen } => {
                write!(f, "the session is {seen}, but target_session_attrs={wanted} is wanted")
            }
            Self::RoleUnknown(m) => write!(f, "the role could not be read: {m}"),
        }
    }
}

/// What to do about an attempt that ended so, in words that name the parameter. `None` where its message says it.
pub(crate) fn remedy(a: &Attempt) -> Option<&'static str> {
    let local = a.hostaddr.as_deref().is_some_and(|p| p.starts_with(['/', '@']));
    // libpq's rule: an empty value without quotes takes the next word, here another pair.
    let swallowed = a.host.contains('=');
    Some(match a.code? {
        Code::NoSuchName | Code::ResolveFailed if swallowed => {
            "is the value of host empty? What follows was taken for it: write the name, or host='' where none is meant"
        }
        Code::NoSuchName => {
            "check the spelling in host, and which name servers are asked (resolver, dns_servers)"
        }
        Code::ResolveFailed => "check the name servers that are asked (resolver, dns_servers)",
        Code::DialFailed if local => "check host (the socket directory) and port, and that the server runs",
        Code::DialFailed => "check host and port, and that the server runs and is reachable from here",
        Code::ConnectTimedOut => {
            "check host and port, the server and what lies between (firewalls), or raise connect_timeout"
        }
        Code::TlsRefused => {
            "enable ssl on the server, or change sslmode (prefer takes a session without TLS)"
        }
        Code::TlsFailed => "check sslmode and the TLS versions and certificates of both sides",
        Code::TlsIdentity => "check that host is the certificate's name and sslrootcert its issuer",
        Code::ProtocolViolation => "check host and port: is it PostgreSQL that listens there?",
        Code::HandshakeLost => "check host and port, and the server's log",
        Code::WrongRole => {
            "wait for a host of that role (connect_within), add it to host, or change target_session_attrs"
        }
        Code::Server => match a.sqlstate?.as_str() {
            "28P01" => "check user and password (password, PGPASSWORD, the password file)",
            "28000" => "check user, dbname and sslmode against the server's pg_hba.conf",
            "3D000" => "check dbname",
            "42704" | "22023" | "42601" => "check the server settings in options (PGOPTIONS)",
            "42501" => "let the user connect to the database, or check user and dbname",
            "53300" => "use fewer sessions or raise the server's max_connections",
            "57P03" => "wait for the server (connect_within)",
            "08P01" if a.message.contains("startup parameter") => {
                "a pooler refuses that parameter: remove it (options, PGOPTIONS), or permit it there"
            }
            _ => return None,
        },
        _ => return None,
    })
}

/// A failure and the stage in which it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed {
    /// The stage.
    pub stage: Stage,
    /// The failure.
    pub failure: Failure,
}

impl Failed {
    /// A failure in a stage.
    pub fn new(stage: Stage, failure: Failure) -> Self {
        Self { stage, failure }
    }

    /// Whether the server has too much to do (53300), or starts or stops (57P03).
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(&self.failure, Failure::Server { sqlstate, .. } if ["53300", "57P03"].contains(&sqlstate.as_str()))
    }
}
