//! The library's two doors to the outside, as the simulation fills them: dialling and names.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::{Buf, Bytes};
use pgfollow::clock;
use pgfollow::host::Address;
use pgfollow::net::{
    Answer, AnswerSource, BoxFuture, Dial, Family, Resolve, ResolveError, Socket, SocketOptions, SocketReport,
};
use pgfollow::tokio_postgres::{self, Client, NoTls};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::backend::Backend;
use crate::node::Power;
use crate::world::{ConnId, Dialled, Event, Inner, World};

/// How often a server at work looks whether its client is there (`client_connection_check_interval`, as the library sets it).
const CONNECTION_CHECK: u64 = 500_000;

/// How a stream ended for its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamEnd {
    Closed,
    Reset,
    TimedOut,
}

/// The client's end of a connection.
#[derive(Default)]
pub(crate) struct ClientEnd {
    /// `None` while the dial is under way.
    pub(crate) connected: Option<Result<(), i32>>,
    /// Dropped by the library.
    pub(crate) closed: bool,
    inbox: VecDeque<(Bytes, u32)>,
    pub(crate) end: Option<StreamEnd>,
    waker: Option<Waker>,
}

impl ClientEnd {
    fn wake(&mut self) {
        if let Some(w) = self.waker.take() {
            w.wake();
        }
    }

    /// The stream has ended; what came before can still be read, but for a reset.
    pub(crate) fn finish(&mut self, end: StreamEnd) {
        if self.end.is_none() {
            self.end = Some(end);
            if end != StreamEnd::Closed {
                self.inbox.clear();
            }
        }
        self.wake();
    }
}

impl Inner {
    pub(crate) fn syn(&mut self, id: ConnId) {
        let Some(c) = self.conns.get_mut(&id) else { return };
        let refused = self.nodes[c.node].power == Power::Down;
        if !refused {
            c.server = Some(Backend::default());
        }
        self.down(id, Event::SynAck { conn: id, refused });
    }

    pub(crate) fn syn_ack(&mut self, id: ConnId, refused: bool) {
        let Some(c) = self.conns.get_mut(&id) else { return };
        c.client.connected = Some(if refused { Err(libc::ECONNREFUSED) } else { Ok(()) });
        c.client.wake();
    }

    pub(crate) fn delivered(&mut self, id: ConnId, bytes: Bytes, tells: u32) {
        let Some(c) = self.conns.get_mut(&id) else { return };
        if c.client.closed || c.client.end.is_some() {
            return;
        }
        c.client.inbox.push_back((bytes, tells));
        c.client.wake();
    }

    /// The client's end is closed. Its backend brings to an end what came before that, a commit too, and a commit waits for
    /// its standby whoever hears of it.
    pub(crate) fn client_gone(&mut self, id: ConnId) {
        let now = self.now;
        let Some(c) = self.conns.get_mut(&id) else { return };
        let busy = c.server.as_ref().is_some_and(|b| b.at_work(self.nodes[c.node].frozen));
        if !busy {
            self.conns.remove(&id);
            return;
        }
        c.orphan = true;
        self.push(now + CONNECTION_CHECK, Event::Unheard { conn: id });
    }

    /// `client_connection_check_interval`: a statement that nobody waits for is broken off, but for a commit's wait.
    pub(crate) fn unheard(&mut self, id: ConnId) {
        let Some(c) = self.conns.get(&id) else { return };
        if self.nodes[c.node].frozen {
            self.push(self.now + CONNECTION_CHECK, Event::Unheard { conn: id });
        } else if c.server.as_ref().is_none_or(|b| !b.in_sync_wait()) {
            self.conns.remove(&id);
        }
    }

    pub(crate) fn server_gone(&mut self, id: ConnId, reset: bool) {
        let Some(c) = self.conns.get_mut(&id) else { return };
        c.client.finish(if reset { StreamEnd::Reset } else { StreamEnd::Closed });
    }

    /// Nothing got through for as long as the kernels wait (`tcp_user_timeout`, keepalives: 9 s with the defaults).
    pub(crate) fn silence(&mut self, id: ConnId, since: u64) {
        let Some(c) = self.conns.get_mut(&id) else { return };
        if c.silent_since != Some(since) {
            return;
        }
        c.client.finish(StreamEnd::TimedOut);
        c.held.clear();
        let closed = c.client.closed;
        if c.server.as_ref().is_some_and(Backend::in_sync_wait) {
            // It looks at nothing but its standby.
            c.orphan = true;
            return;
        }
        c.server = None;
        if closed {
            self.conns.remove(&id);
        }
    }

    /// How many connections the library holds or dials.
    pub(crate) fn open_pipes(&self) -> usize {
        self.conns.values().filter(|c| !c.client.closed).count()
    }
}

/// Dials into the world, as one of its processes.
pub struct SimDial {
    world: Arc<World>,
    process: usize,
}

impl SimDial {
    /// As that process.
    pub fn new(world: &Arc<World>, process: usize) -> Self {
        Self { world: Arc::clone(world), process }
    }

    /// A session on a node by the bare driver, without the library. `None` where there was none to be had.
    pub async fn bare_client(&self, node: u8) -> Option<Client> {
        let stream = self.open(&Address::Tcp(([10, 0, 0, node + 1], 5432).into())).await.ok()?;
        let mut config = tokio_postgres::Config::new();
        config.user("app");
        let (client, connection) = config.connect_raw(stream, NoTls).await.ok()?;
        tokio::spawn(connection);
        Some(client)
    }

    async fn open(&self, to: &Address) -> io::Result<Stream> {
        let refused = || io::Error::from_raw_os_error(libc::EHOSTUNREACH);
        let Address::Tcp(SocketAddr::V4(to)) = to else { return Err(refused()) };
        let process = self.process;
        let found = self.world.with(|w| {
            let node = w.nodes.iter().position(|n| n.ip == *to.ip())?;
            let id = w.new_conn(process, node);
            let now = w.now;
            w.log.line(now, format_args!("p{process} dials db-{node}: #{id}"));
            w.processes[process].dials.insert(id, Dialled { at: now, monitor: None });
            w.up(id, Event::Syn { conn: id });
            Some(id)
        });
        // From here on a dropped dial closes the connection.
        let stream = Stream { world: Arc::clone(&self.world), id: found.ok_or_else(refused)?, process };
        poll_fn(|cx| {
            self.world.with(|w| {
                let Some(c) = w.conns.get_mut(&stream.id) else { return Poll::Ready(Err(refused())) };
                match c.client.connected {
                    None => {
                        c.client.waker = Some(cx.waker().clone());
                        Poll::Pending
                    }
                    Some(Ok(())) => Poll::Ready(Ok(())),
                    Some(Err(os)) => Poll::Ready(Err(io::Error::from_raw_os_error(os))),
                }
            })
        })
        .await?;
        Ok(stream)
    }
}

impl Dial for SimDial {
    fn dial<'a>(&'a self, to: &'a Address, _: &'a SocketOptions) -> BoxFuture<'a, io::Result<Socket>> {
        Box::pin(async move {
            let io: Box<dyn pgfollow::net::Io> = Box::new(self.open(to).await?);
            Ok(Socket { io, report: SocketReport::default(), control: None })
        })
    }
}

/// The client's end of a connection, as a stream.
pub struct Stream {
    world: Arc<World>,
    id: ConnId,
    process: usize,
}

impl Drop for Stream {
    fn drop(&mut self) {
        let id = self.id;
        self.world.with(|w| {
            let Some(c) = w.conns.get_mut(&id) else { return };
            c.client.closed = true;
            w.up(id, Event::UpEnd { conn: id });
        });
    }
}

fn failed(end: StreamEnd) -> io::Error {
    io::Error::from(match end {
        StreamEnd::Closed => io::ErrorKind::BrokenPipe,
        StreamEnd::Reset => io::ErrorKind::ConnectionReset,
        StreamEnd::TimedOut => io::ErrorKind::TimedOut,
    })
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let (id, process) = (self.id, self.process);
        self.world.with(|w| {
            let now = w.now;
            let Some(c) = w.conns.get_mut(&id) else { return Poll::Ready(Ok(())) };
            if let Some((bytes, tells)) = c.client.inbox.front_mut() {
                let n = bytes.len().min(buf.remaining());
                buf.put_slice(&bytes[..n]);
                bytes.advance(n);
                if bytes.is_empty() {
                    if *tells > 0 {
                        w.processes[process].told(*tells, now);
                    }
                    c.client.inbox.pop_front();
                }
                return Poll::Ready(Ok(()));
            }
            match c.client.end {
                Some(StreamEnd::Closed) => Poll::Ready(Ok(())),
                Some(end) => Poll::Ready(Err(failed(end))),
                None => {
                    c.client.waker = Some(cx.waker().clone());
                    Poll::Pending
                }
            }
        })
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let (id, process) = (self.id, self.process);
        self.world.with(|w| {
            let end = w.conns.get(&id).map_or(Some(StreamEnd::Reset), |c| c.client.end);
            if let Some(end @ (StreamEnd::Reset | StreamEnd::TimedOut)) = end {
                return Poll::Ready(Err(failed(end)));
            }
            let grace = crate::world::micros(w.model.stale_grace);
            let seen = w.processes[process].knew(w.now.saturating_sub(grace));
            let bytes = Bytes::copy_from_slice(buf);
            w.up(id, Event::Up { conn: id, bytes, seen });
            Poll::Ready(Ok(buf.len()))
        })
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // What remains to be said is said when the stream is dropped.
        Poll::Ready(Ok(()))
    }
}

/// Resolves the servers' names, `db-0` and so on, and `primary`, which moves with the operator's choice.
pub struct SimResolve(pub Arc<World>);

impl Resolve for SimResolve {
    fn resolve<'a>(&'a self, name: &'a str, family: Family) -> BoxFuture<'a, Result<Answer, ResolveError>> {
        Box::pin(async move {
            clock::sleep_until(clock::now() + Duration::from_millis(1)).await;
            if self.0.with(|w| w.dns_silent) {
                clock::sleep_until(clock::now() + Duration::from_secs(2)).await;
                return Err(ResolveError::TimedOut);
            }
            let ip = self.0.with(|w| match name {
                "primary" => w.nodes.get(w.leader).map(|n| n.ip),
                _ => w.nodes.iter().find(|n| n.name == name).map(|n| n.ip),
            });
            let ip = ip.ok_or(ResolveError::NoSuchName)?;
            if family == Family::V6 {
                return Err(ResolveError::NoData);
            }
            Ok(Answer {
                addresses: vec![IpAddr::V4(ip)],
                ttl: Some(Duration::from_secs(5)),
                source: AnswerSource::Dns,
                server: Some(([10, 0, 9, 9], 53).into()),
                at: clock::now(),
            })
        })
    }
}
