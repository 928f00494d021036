//! A descriptor that somebody else owns: its number and inode, and what is done with it.

use std::fs::File;
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::time::Duration;

use socket2::{SockRef, Socket};

use super::Kernel;
use crate::decide::guard::Counters;
use crate::decide::topology::EndCause;
use crate::dial;
use crate::net::{Backlog, SocketOptions, SocketReport};

/// Which socket it is: two that live at the same time differ, and the kernel gives an inode's number out again only
/// after billions of others (20,000 sockets on one descriptor number were measured, no inode twice).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Inode {
    device: u64,
    number: u64,
}

/// A descriptor's number, and the socket that it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Number {
    raw: RawFd,
    inode: Inode,
}

/// A second descriptor of such a socket, for a moment.
pub(crate) struct Descriptor {
    raw: RawFd,
    inode: Inode,
    socket: Socket,
}

impl Number {
    /// The socket, if it is still that one.
    pub(crate) fn open(&self) -> io::Result<Descriptor> {
        let found = Descriptor::open(self.raw)?;
        if found.inode == self.inode { Ok(found) } else { Err(io::ErrorKind::NotConnected.into()) }
    }
}

impl Descriptor {
    /// The socket of that number.
    #[expect(unsafe_code, reason = "the number of a descriptor that another library owns")]
    pub(crate) fn open(raw: RawFd) -> io::Result<Self> {
        // SAFETY: fcntl reads no memory of ours, and takes any number: one that isn't open is an error.
        let second = unsafe { libc::fcntl(raw, libc::F_DUPFD_CLOEXEC, 3) };
        if second < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just made this descriptor, and nobody else knows of it.
        let second = File::from(unsafe { OwnedFd::from_raw_fd(second) });
        let found = second.metadata()?;
        if !found.file_type().is_socket() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no socket"));
        }
        let inode = Inode { device: found.dev(), number: found.ino() };
        Ok(Self { raw, inode, socket: Socket::from(OwnedFd::from(second)) })
    }

    pub(crate) fn number(&self) -> Number {
        Number { raw: self.raw, inode: self.inode }
    }

    /// Where it leads; `None` for what isn't TCP.
    pub(crate) fn peer(&self) -> Option<SocketAddr> {
        self.socket.peer_addr().ok()?.as_socket()
    }

    /// Sets a TCP socket's options, and reads back what the kernel took.
    pub(crate) fn tune(&self, options: &SocketOptions) -> SocketReport {
        let local = self.socket.local_addr().ok().and_then(|a| a.as_socket());
        if local.is_none() {
            return SocketReport::default();
        }
        let socket = SockRef::from(&self.socket);
        let mut unsupported = Vec::new();
        dial::apply(&socket, options, &mut unsupported);
        SocketReport { local, unsupported, ..dial::read_back(&socket) }
    }

    pub(crate) fn set_user_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        dial::set_user_timeout(&SockRef::from(&self.socket), limit.unwrap_or_default())
    }

    /// Ends both directions. A thread that blocks in a read there gets the end of the stream.
    pub(crate) fn shut_down(&self) -> io::Result<()> {
        self.socket.shutdown(Shutdown::Both)
    }

    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub(super) fn counters(&self) -> Option<Kernel> {
        const TCP_CLOSE: u8 = 7;
        const TCP_CLOSE_WAIT: u8 = 8;
        const TCP_LAST_ACK: u8 = 9;
        let info = dial::tcp_info::TcpInfo::of(self.socket.as_fd()).ok()?;
        let ended = match info.state {
            // A reset or a timeout: which one only SO_ERROR says, and to read it would take it from the driver.
            TCP_CLOSE => Some(EndCause::Reset),
            TCP_CLOSE_WAIT | TCP_LAST_ACK => Some(EndCause::Fin),
            _ => None,
        };
        Some(Kernel {
            counters: Counters {
                sent: info.sent,
                received: info.received,
                acked: info.acked,
                unacked: info.unacked > 0 || info.unsent > 0,
                bytes_received: info.bytes_received,
            },
            backlog: Backlog { unsent: info.unsent, unanswered: info.unanswered },
            ended,
        })
    }

    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    pub(super) fn counters(&self) -> Option<Kernel> {
        None
    }
}

/// This process's TCP sockets that lead somewhere and are none of our own.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn peers() -> io::Result<Vec<(Descriptor, SocketAddr)>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc/self/fd")? {
        // One that was closed meanwhile, or is no socket, is none of them.
        let Ok(Some(raw)) = entry.map(|e| e.file_name().to_str().and_then(|n| n.parse().ok())) else {
            continue;
        };
        let Ok(descriptor) = Descriptor::open(raw) else { continue };
        if let Some(peer) = descriptor.peer().filter(|_| !dial::is_ours(raw)) {
            found.push((descriptor, peer));
        }
    }
    Ok(found)
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(crate) fn peers() -> io::Result<Vec<(Descriptor, SocketAddr)>> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "this system doesn't list a process's descriptors"))
}

impl std::fmt::Debug for Descriptor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Descriptor")
            .field("raw", &self.raw)
            .field("inode", &self.inode)
            .finish_non_exhaustive()
    }
}
