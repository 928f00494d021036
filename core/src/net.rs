//! The two doors to the outside: dialling and resolving, as traits, so that a simulation can stand behind them.

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::clock::Moment;
use crate::host::Address;

/// A boxed future, as the traits below return it.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A byte stream: a TCP or Unix socket, a TLS stream over one, or an in-memory pipe.
pub trait Io: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Io for T {}

/// What is asked of the kernel for a socket, before `connect()`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketOptions {
    /// SO_KEEPALIVE (libpq `keepalives`).
    pub keepalive: bool,
    /// TCP_KEEPIDLE; `None` leaves the system's value.
    pub keepalive_idle: Option<Duration>,
    /// TCP_KEEPINTVL; `None` leaves the system's value.
    pub keepalive_interval: Option<Duration>,
    /// TCP_KEEPCNT; `None` leaves the system's value.
    pub keepalive_count: Option<u32>,
    /// TCP_USER_TIMEOUT; `None` leaves the system's value.
    pub user_timeout: Option<Duration>,
}

/// What the kernel took, read back after setting.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SocketReport {
    /// Whether keepalives are on.
    pub keepalive: bool,
    /// TCP_KEEPIDLE in seconds.
    pub keepalive_idle_s: Option<u64>,
    /// TCP_KEEPINTVL in seconds.
    pub keepalive_interval_s: Option<u64>,
    /// TCP_KEEPCNT.
    pub keepalive_count: Option<u32>,
    /// TCP_USER_TIMEOUT in milliseconds.
    pub user_timeout_ms: Option<u64>,
    /// The local end.
    pub local: Option<SocketAddr>,
    /// Options that this platform doesn't have or refused, by name.
    pub unsupported: Vec<&'static str>,
}

/// A dialled stream and what is known of it.
pub struct Socket {
    /// The stream.
    pub io: Box<dyn Io>,
    /// The options as the kernel took them.
    pub report: SocketReport,
    /// A hold on the socket while its stream is somebody else's; `None` for what isn't TCP, or on a system without
    /// TCP_USER_TIMEOUT.
    pub control: Option<Arc<dyn SocketControl>>,
}

/// What waits in a socket's send buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Bytes that the peer's window, or the network, hasn't let out yet.
    pub unsent: u32,
    /// Retransmissions or window probes in a row that the peer's kernel hasn't answered.
    pub unanswered: u8,
}

/// Looks at a socket, and changes one option, while its stream is somebody else's. Doesn't keep the socket open; once
/// it is closed every call is an error.
pub trait SocketControl: Send + Sync {
    /// What waits to be sent.
    fn backlog(&self) -> io::Result<Backlog>;
    /// TCP_USER_TIMEOUT as the kernel has it now; `None` is the system's.
    fn user_timeout(&self) -> io::Result<Option<Duration>>;
    /// Sets TCP_USER_TIMEOUT; `None` is the system's.
    fn set_user_timeout(&self, limit: Option<Duration>) -> io::Result<()>;
}

/// Opens sockets.
pub trait Dial: Send + Sync {
    /// Opens one socket. The caller bounds the time.
    fn dial<'a>(&'a self, to: &'a Address, options: &'a SocketOptions) -> BoxFuture<'a, io::Result<Socket>>;
}

/// Which kind of address is asked for; the two are asked apart, so that a silent AAAA never delays an A.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum Family {
    /// A records.
    V4,
    /// AAAA records.
    V6,
}

/// Where an answer came from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AnswerSource {
    /// The name was an address literal.
    Literal,
    /// The hosts file.
    HostsFile,
    /// A name server.
    Dns,
    /// The system's own look-up.
    System,
}

/// A look-up's answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Answer {
    /// The addresses, in the order given.
    pub addresses: Vec<IpAddr>,
    /// The record's remaining time to live, where a name server gave one. Reported, never obeyed as a cache would.
    pub ttl: Option<Duration>,
    /// Where it came from.
    pub source: AnswerSource,
    /// The name server that gave it, where one did. An answer from another machine shows that our own network works.
    pub server: Option<SocketAddr>,
    /// When it arrived.
    pub at: Moment,
}

/// Why a name gave no address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResolveError {
    /// The name doesn't exist (NXDOMAIN).
    #[error("the name doesn't exist (NXDOMAIN)")]
    NoSuchName,
    /// The name exists and has no address of this family.
    #[error("the name has no address of this kind")]
    NoData,
    /// A name server failed or refused (SERVFAIL, REFUSED, …).
    #[error("the name server failed: {0}")]
    ServerFailure(String),
    /// No name server answered in time.
    #[error("no name server answered in time")]
    TimedOut,
}

/// Looks names up.
pub trait Resolve: Send + Sync {
    /// Looks up one name for one family. The implementation bounds its own time.
    fn resolve<'a>(&'a self, name: &'a str, family: Family) -> BoxFuture<'a, Result<Answer, ResolveError>>;
}
