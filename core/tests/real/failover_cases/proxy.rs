//! A proxy that turns a primary into a standby under its clients' open sockets: at the switch each session gets another
//! server behind it, between two requests. Plain text and trust only.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

/// The longest message that a test sends or gets.
const LONGEST: usize = 1 << 20;

/// Where each open session is served from.
type Places = Arc<Mutex<HashMap<usize, SocketAddr>>>;

pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    target: watch::Sender<SocketAddr>,
    places: Places,
    _listening: JoinSet<()>,
}

impl Proxy {
    pub(crate) async fn start(target: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::new(127, 0, 0, 1), 0)).await?;
        let address = listener.local_addr()?;
        let (target, targets) = watch::channel(target);
        let places = Places::default();
        let shared = Arc::clone(&places);
        let mut listening = JoinSet::new();
        listening.spawn(async move {
            let mut clients = JoinSet::new();
            for n in 0.. {
                let Ok((client, _)) = listener.accept().await else { return };
                let (targets, places) = (targets.clone(), Arc::clone(&shared));
                clients.spawn(async move {
                    // Either side hung up: the other one sees it.
                    let _ = serve(client, targets, n, &places).await;
                    lock(&places).remove(&n);
                });
            }
        });
        Ok(Self { address, target, places, _listening: listening })
    }

    /// From now on every session is served from there; those in the midst of a request when that is done.
    pub(crate) fn switch(&self, target: SocketAddr) {
        self.target.send_replace(target);
    }

    /// Whether all sessions have changed over.
    pub(crate) fn switched(&self) -> bool {
        let target = *self.target.borrow();
        lock(&self.places).values().all(|p| *p == target)
    }
}

fn lock(places: &Places) -> MutexGuard<'_, HashMap<usize, SocketAddr>> {
    places.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn serve(
    client: TcpStream,
    mut targets: watch::Receiver<SocketAddr>,
    n: usize,
    places: &Places,
) -> io::Result<()> {
    let (mut from_client, mut to_client) = client.into_split();
    let startup = rest_of_message(&mut from_client, Vec::new()).await?;
    let mut client = messages(from_client);
    let at = *targets.borrow_and_update();
    let (mut server, mut to_server) = open(at, &startup).await?;
    lock(places).insert(n, at);
    // Requests without a ReadyForQuery yet (the login counts), and whether one is half sent or a block is open.
    let (mut out, mut amid) = (1_usize, false);
    let mut news: Vec<u8> = Vec::new();
    loop {
        tokio::select! {
            message = client.recv() => {
                let Some(message) = message else { return Ok(()) };
                let ends_request = matches!(message[0], b'Q' | b'S');
                out += usize::from(ends_request);
                amid = !ends_request;
                to_server.write_all(&message).await?;
            }
            message = server.recv() => {
                let Some(message) = message else { return Ok(()) };
                if message[0] == b'Z' {
                    out -= 1;
                    amid |= message.ends_with(b"T") || message.ends_with(b"E");
                    // As a server does: what has changed is told before the next ReadyForQuery.
                    to_client.write_all(&std::mem::take(&mut news)).await?;
                }
                to_client.write_all(&message).await?;
            }
            changed = targets.changed(), if out == 0 && !amid => {
                if changed.is_err() {
                    return Ok(());
                }
                let at = *targets.borrow();
                (server, to_server) = open(at, &startup).await?;
                loop {
                    match server.recv().await {
                        Some(m) if m[0] == b'Z' => break,
                        Some(m) if m[0] == b'S' && m[5..].starts_with(b"in_hot_standby\0") => news.extend(m),
                        Some(_) => {}
                        None => return Ok(()),
                    }
                }
                lock(places).insert(n, at);
            }
        }
    }
}

async fn open(at: SocketAddr, startup: &[u8]) -> io::Result<(mpsc::Receiver<Vec<u8>>, OwnedWriteHalf)> {
    let (from, mut to) = TcpStream::connect(at).await?.into_split();
    to.write_all(startup).await?;
    Ok((messages(from), to))
}

/// Whole messages with their type byte, until the peer hangs up or nobody listens.
fn messages(mut from: OwnedReadHalf) -> mpsc::Receiver<Vec<u8>> {
    let (tell, told) = mpsc::channel(64);
    tokio::spawn(async move {
        while let Ok(kind) = from.read_u8().await
            && let Ok(message) = rest_of_message(&mut from, vec![kind]).await
        {
            if tell.send(message).await.is_err() {
                return;
            }
        }
    });
    told
}

/// The length, which counts itself, and what it announces.
async fn rest_of_message(from: &mut OwnedReadHalf, mut message: Vec<u8>) -> io::Result<Vec<u8>> {
    let length = from.read_u32().await?;
    let body = usize::try_from(length).map_err(io::Error::other)?.saturating_sub(4);
    if body > LONGEST {
        return Err(io::Error::other("a message too long"));
    }
    message.extend(length.to_be_bytes());
    let start = message.len();
    message.resize(start + body, 0);
    from.read_exact(&mut message[start..]).await?;
    Ok(message)
}
