//! A dialled TCP stream, and a hold on its options for somebody who doesn't own it.
//!
//! The stream belongs to the session's driver, inside TLS and the tap; the monitor looks at its backlog and changes an
//! option now and then. A second descriptor would keep a dropped connection open and cost every session one more, so
//! the hold has the number alone, and only for as long as the stream lives.

use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::lock;
use crate::net::{Backlog, SocketControl};

/// The stream.
pub(super) struct Held {
    stream: TcpStream,
    number: Arc<Number>,
}

/// The descriptor's number, until the stream is dropped.
struct Number(Mutex<Option<RawFd>>);

impl Held {
    pub(super) fn new(stream: TcpStream) -> (Self, Arc<dyn SocketControl>) {
        let number = Arc::new(Number(Mutex::new(Some(stream.as_raw_fd()))));
        (Self { stream, number: Arc::clone(&number) }, number)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // Before the stream itself goes: the number may be somebody else's the next moment.
        *lock(&self.number.0) = None;
    }
}

impl Number {
    #[expect(unsafe_code, reason = "a descriptor that another struct owns")]
    fn with<R>(&self, f: impl FnOnce(BorrowedFd<'_>) -> io::Result<R>) -> io::Result<R> {
        let number = lock(&self.0);
        let raw = number.ok_or(io::ErrorKind::NotConnected)?;
        // SAFETY: Held owns the stream and takes the number away, under this lock, before it drops the stream; so the
        // descriptor is open for as long as the lock is held.
        f(unsafe { BorrowedFd::borrow_raw(raw) })
    }
}

impl SocketControl for Number {
    fn backlog(&self) -> io::Result<Backlog> {
        self.with(tcp_info)
    }

    fn user_timeout(&self) -> io::Result<Option<Duration>> {
        self.with(|fd| SockRef::from(&fd).tcp_user_timeout())
    }

    fn set_user_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        self.with(|fd| SockRef::from(&fd).set_tcp_user_timeout(limit))
    }
}

/// The start of the kernel's `struct tcp_info` (`linux/tcp.h`), up to tcpi_notsent_bytes (since Linux 4.6), which the
/// C library's headers lack.
#[expect(unsafe_code, reason = "TCP_INFO has no safe interface")]
fn tcp_info(fd: BorrowedFd<'_>) -> io::Result<Backlog> {
    const RETRANSMITS: usize = 2;
    const PROBES: usize = 3;
    const NOTSENT: usize = 144;
    let mut info = [0_u8; NOTSENT + 4];
    let mut len = libc::socklen_t::try_from(info.len()).unwrap_or(0);
    // SAFETY: the descriptor is open, and the kernel writes at most `len` bytes, which `info` has.
    let rc = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    if rc != 0 {
        return Err(io::Error::last_os_error());
    }
    match info.last_chunk::<4>() {
        Some(unsent) if usize::try_from(len).is_ok_and(|n| n == info.len()) => Ok(Backlog {
            unsent: u32::from_ne_bytes(*unsent),
            unanswered: info[RETRANSMITS].max(info[PROBES]),
        }),
        _ => Err(io::ErrorKind::Unsupported.into()),
    }
}

impl AsyncRead for Held {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Held {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
