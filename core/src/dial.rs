//! Opens one socket: options first, `connect()` after, then what the kernel took.
//!
//! Decides nothing: not which address, not for how long. Whoever calls it bounds the time and may drop the future,
//! which closes the socket. An option that a platform lacks is a line in the log and a name in the report, never an
//! error: a service must start everywhere. `tls.rs` is next.
//!
//! The options come before `connect()` because TCP_USER_TIMEOUT bounds the SYN as well: set later, a dial into a
//! black hole would last as long as the system's SYN retries.

#[cfg(any(target_os = "linux", target_os = "android"))]
mod held;
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) mod tcp_info;
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) use held::is_ours;

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use socket2::{Domain, Protocol, SockRef, TcpKeepalive, Type};
use tokio::net::{TcpSocket, TcpStream};

use crate::host::Address;
use crate::net::{BoxFuture, Dial, Io, Socket, SocketControl, SocketOptions, SocketReport};

/// The real network.
#[derive(Clone, Copy, Debug, Default)]
pub struct TcpDial;

impl Dial for TcpDial {
    fn dial<'a>(&'a self, to: &'a Address, options: &'a SocketOptions) -> BoxFuture<'a, io::Result<Socket>> {
        Box::pin(async move {
            match to {
                Address::Tcp(addr) => tcp(*addr, options).await,
                Address::Unix(path) => unix(path).await,
            }
        })
    }
}

async fn tcp(to: SocketAddr, options: &SocketOptions) -> io::Result<Socket> {
    let socket = socket2::Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    let mut unsupported = Vec::new();
    apply(&SockRef::from(&socket), options, &mut unsupported);
    if !unsupported.is_empty() {
        tracing::debug!(%to, options = ?unsupported, "this system doesn't take some socket options");
    }
    // from_std_stream takes the descriptor as it is, so the options stay.
    let stream = TcpSocket::from_std_stream(socket.into()).connect(to).await?;
    let local = stream.local_addr()?;
    if local == stream.peer_addr()? {
        // TCP's simultaneous open: a dial to a free port in the ephemeral range can meet itself (loopback only).
        return Err(io::Error::new(
            io::ErrorKind::ConnectionRefused,
            "nobody listens there (the socket met itself)",
        ));
    }
    let report = SocketReport { local: Some(local), unsupported, ..read_back(&SockRef::from(&stream)) };
    let (io, control) = held(stream);
    Ok(Socket { io, report, control })
}

type Hold = Option<Arc<dyn SocketControl>>;

#[cfg(any(target_os = "linux", target_os = "android"))]
fn held(stream: TcpStream) -> (Box<dyn Io>, Hold) {
    let (held, control) = held::Held::new(stream);
    (Box::new(held), Some(control))
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn held(stream: TcpStream) -> (Box<dyn Io>, Hold) {
    (Box::new(stream), None)
}

/// Sets each option by itself, so that one refusal hides no other. `refused` gets libpq's names of those refused.
pub(crate) fn apply(socket: &SockRef<'_>, o: &SocketOptions, refused: &mut Vec<&'static str>) {
    let mut note = |name, result: io::Result<()>| {
        if result.is_err() {
            refused.push(name);
        }
    };
    note("tcp_nodelay", socket.set_tcp_nodelay(true));
    note("keepalives", socket.set_keepalive(o.keepalive));
    if o.keepalive {
        keepalive(socket, o, &mut note);
    }
    if let Some(timeout) = o.user_timeout {
        note("tcp_user_timeout", set_user_timeout(socket, timeout));
    }
}

#[cfg(not(windows))]
fn keepalive(socket: &SockRef<'_>, o: &SocketOptions, note: &mut impl FnMut(&'static str, io::Result<()>)) {
    let none = TcpKeepalive::new;
    if let Some(d) = o.keepalive_idle {
        note("keepalives_idle", socket.set_tcp_keepalive(&none().with_time(d)));
    }
    if let Some(d) = o.keepalive_interval {
        note("keepalives_interval", socket.set_tcp_keepalive(&none().with_interval(d)));
    }
    if let Some(n) = o.keepalive_count {
        note("keepalives_count", socket.set_tcp_keepalive(&none().with_retries(n)));
    }
}

/// Windows takes idle and interval in one call only (SIO_KEEPALIVE_VALS); what is missing there is the system's
/// default, 2 hours and 1 second.
#[cfg(windows)]
fn keepalive(socket: &SockRef<'_>, o: &SocketOptions, note: &mut impl FnMut(&'static str, io::Result<()>)) {
    if o.keepalive_idle.is_some() || o.keepalive_interval.is_some() {
        let both = TcpKeepalive::new()
            .with_time(o.keepalive_idle.unwrap_or(Duration::from_secs(7_200)))
            .with_interval(o.keepalive_interval.unwrap_or(Duration::from_secs(1)));
        note("keepalives_idle", socket.set_tcp_keepalive(&both));
    }
    if let Some(n) = o.keepalive_count {
        note("keepalives_count", socket.set_tcp_keepalive(&TcpKeepalive::new().with_retries(n)));
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn set_user_timeout(socket: &SockRef<'_>, timeout: Duration) -> io::Result<()> {
    socket.set_tcp_user_timeout(Some(timeout))
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(crate) fn set_user_timeout(_: &SockRef<'_>, _: Duration) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(not(windows))]
pub(crate) fn read_back(socket: &SockRef<'_>) -> SocketReport {
    SocketReport {
        keepalive: socket.keepalive().unwrap_or(false),
        keepalive_idle_s: socket.tcp_keepalive_time().ok().map(|d| d.as_secs()),
        keepalive_interval_s: socket.tcp_keepalive_interval().ok().map(|d| d.as_secs()),
        keepalive_count: socket.tcp_keepalive_retries().ok(),
        user_timeout_ms: user_timeout(socket),
        local: None,
        unsupported: Vec::new(),
    }
}

#[cfg(windows)]
pub(crate) fn read_back(socket: &SockRef<'_>) -> SocketReport {
    SocketReport {
        keepalive: socket.keepalive().unwrap_or(false),
        keepalive_count: socket.tcp_keepalive_retries().ok(),
        ..SocketReport::default()
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn user_timeout(socket: &SockRef<'_>) -> Option<u64> {
    let set = socket.tcp_user_timeout().ok()?;
    // The kernel's 0 (the system's value) comes back as None.
    set.and_then(|d| u64::try_from(d.as_millis()).ok())
}

#[cfg(all(not(windows), not(any(target_os = "linux", target_os = "android"))))]
fn user_timeout(_: &SockRef<'_>) -> Option<u64> {
    None
}

/// A Unix socket; `@name` is Linux's abstract namespace, as in libpq.
#[cfg(unix)]
async fn unix(path: &Path) -> io::Result<Socket> {
    use std::os::unix::ffi::{OsStrExt, OsStringExt};

    let mut raw = path.as_os_str().as_bytes().to_vec();
    if raw.first() == Some(&b'@') {
        if !cfg!(any(target_os = "linux", target_os = "android")) {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "abstract Unix sockets (@name) exist on Linux only",
            ));
        }
        raw[0] = 0;
    }
    let to = socket2::SockAddr::unix(std::ffi::OsString::from_vec(raw))?;
    loop {
        let socket = socket2::Socket::new(Domain::UNIX, Type::STREAM, None)?;
        socket.set_nonblocking(true)?;
        match socket.connect(&to) {
            Ok(()) => {
                let stream = tokio::net::UnixStream::from_std(socket.into())?;
                return Ok(Socket { io: Box::new(stream), report: SocketReport::default(), control: None });
            }
            // Linux answers EAGAIN while the listener's queue is full, and nothing tells when there is room again.
            // The caller's deadline ends this wait.
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                crate::clock::sleep_until(crate::clock::now() + QUEUE_FULL_PAUSE).await;
            }
            Err(e) => return Err(e),
        }
    }
}

/// Between two dials of a local socket whose queue is full: long enough to cost nothing, too short to be felt.
#[cfg(unix)]
const QUEUE_FULL_PAUSE: Duration = Duration::from_millis(10);

#[cfg(not(unix))]
async fn unix(_: &Path) -> io::Result<Socket> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "Unix sockets are not available on this system"))
}
