//! A dialled TCP stream, and a hold on its options for somebody who doesn't own it.
//!
//! The stream belongs to the session's driver, inside TLS and the tap; the monitor looks at its backlog and changes an
//! option now and then. A second descriptor would keep a dropped connection open and cost every session one more, so
//! the hold has the number alone, and only for as long as the stream lives.

use std::collections::BTreeSet;
use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::tcp_info::TcpInfo;
use crate::lock;
use crate::net::{Backlog, SocketControl};

/// The stream.
pub(super) struct Held {
    stream: TcpStream,
    number: Arc<Number>,
}

/// The numbers of all of them in this process: whoever looks for other libraries' sockets must not take them for such.
static OURS: Mutex<BTreeSet<RawFd>> = Mutex::new(BTreeSet::new());

/// Whether a session of ours has that descriptor.
pub(crate) fn is_ours(raw: RawFd) -> bool {
    lock(&OURS).contains(&raw)
}

/// The descriptor's number, until the stream is dropped.
struct Number(Mutex<Option<RawFd>>);

impl Held {
    pub(super) fn new(stream: TcpStream) -> (Self, Arc<dyn SocketControl>) {
        let raw = stream.as_raw_fd();
        lock(&OURS).insert(raw);
        let number = Arc::new(Number(Mutex::new(Some(raw))));
        (Self { stream, number: Arc::clone(&number) }, number)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // Before the stream itself goes: the number may be somebody else's the next moment.
        if let Some(raw) = lock(&self.number.0).take() {
            lock(&OURS).remove(&raw);
        }
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
        self.with(|fd| {
            let TcpInfo { unsent, unanswered, .. } = TcpInfo::of(fd)?;
            Ok(Backlog { unsent, unanswered })
        })
    }

    fn user_timeout(&self) -> io::Result<Option<Duration>> {
        self.with(|fd| SockRef::from(&fd).tcp_user_timeout())
    }

    fn set_user_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        self.with(|fd| SockRef::from(&fd).set_tcp_user_timeout(limit))
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
