//! A scripted wire server: a listener that runs a list of steps for every connection it accepts and records what
//! the client sent, so that a test can say to the byte what a server does and what must not leave the client.
//!
//! [`script`] holds the steps and their JSON form (the one of `tests/vectors/wire`), [`message`] what is sent,
//! `conn` carries the steps out, `serve` answers queries, `auth` is the server's side of a login, [`tls`] makes
//! certificates, [`hole`] has the addresses where nobody answers, [`canned`] the scripts that come up again and again.
//!
//! It decides nothing about what is right: tests do. Every wait is bounded by [`Options::patience`]; a server ends
//! with [`WireServer::stop`] or when it is dropped, its connections with it. It runs in the caller's tokio runtime and
//! has no thread of its own.

mod auth;
pub mod canned;
mod conn;
pub mod hole;
pub mod message;
mod own;
pub mod record;
pub mod script;
mod serve;
pub mod tls;

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::{Notify, oneshot};
use tokio::task::{JoinHandle, JoinSet};

pub use hole::{BlackHole, closed_port};
pub use message::Message;
pub use own::{cut, is_ours};
pub use record::{End, Received, Seen, TlsSeen};
pub use script::{Answers, Hold, Login, Method, Role, Script, ScriptError, Step};
pub use serve::Own;
pub use tls::{Identity, IdentityError};

/// What all connections of a server have in common.
#[derive(Clone, Debug)]
pub struct Options {
    /// How pgfollow's own questions are answered.
    pub own: Own,
    /// The certificate for `tls-handshake` and for channel binding.
    pub tls: Option<Identity>,
    /// The longest that a read or a write waits where the script has no time of its own.
    pub patience: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self { own: Own::Sensible, tls: None, patience: Duration::from_secs(60) }
    }
}

/// What was seen, and the bell that rings when it changes.
#[derive(Debug, Default)]
struct Shared {
    seen: Mutex<Vec<Seen>>,
    changed: Notify,
}

impl Shared {
    fn seen(&self) -> MutexGuard<'_, Vec<Seen>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, index: usize, change: impl FnOnce(&mut Seen)) {
        if let Some(seen) = self.seen().get_mut(index) {
            change(seen);
        }
        self.changed.notify_waiters();
    }
}

/// A running server.
#[derive(Debug)]
pub struct WireServer {
    address: SocketAddr,
    shared: Arc<Shared>,
    /// Dropping it ends the listener and every connection.
    stop: Option<oneshot::Sender<()>>,
    listener: Option<JoinHandle<()>>,
}

impl WireServer {
    /// Listens at this address (port 0: any free one) and runs the script for every connection.
    pub async fn start(address: SocketAddr, script: Script, options: Options) -> io::Result<Self> {
        Self::start_each(address, vec![script], options).await
    }

    /// The same with a script for each connection in turn; the last one serves all that come later.
    pub async fn start_each(address: SocketAddr, scripts: Vec<Script>, options: Options) -> io::Result<Self> {
        let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        let listener = socket.listen(1024)?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared::default());
        let (stop, stopped) = oneshot::channel();
        let accept = accept(listener, scripts, Arc::new(options), Arc::clone(&shared));
        let listener = tokio::spawn(async move {
            tokio::select! {
                () = accept => {}
                _ = stopped => {}
            }
        });
        Ok(Self { address, shared, stop: Some(stop), listener: Some(listener) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Every connection so far, in the order in which they were accepted.
    pub fn seen(&self) -> Vec<Seen> {
        self.shared.seen().clone()
    }

    /// How many connections were accepted so far.
    pub fn connections(&self) -> usize {
        self.shared.seen().len()
    }

    /// Waits until what was seen satisfies a condition; `false` if it still doesn't when the time is over.
    pub async fn wait_until(&self, within: Duration, condition: impl Fn(&[Seen]) -> bool) -> bool {
        let wait = async {
            loop {
                let changed = self.shared.changed.notified();
                tokio::pin!(changed);
                changed.as_mut().enable(); // before looking: nothing is missed in between
                if condition(&self.shared.seen()) {
                    return;
                }
                changed.await;
            }
        };
        tokio::time::timeout(within, wait).await.is_ok()
    }

    /// Ends the listener and its connections, waits for them, and returns what was seen.
    pub async fn stop(mut self) -> Vec<Seen> {
        drop(self.stop.take());
        if let Some(listener) = self.listener.take() {
            // It can only have been cancelled with its runtime, and then there is nothing to wait for.
            let _ = listener.await;
        }
        self.seen()
    }
}

async fn accept(listener: TcpListener, scripts: Vec<Script>, options: Arc<Options>, shared: Arc<Shared>) {
    // Dropped with this future, and the connections with it.
    let mut connections = JoinSet::new();
    loop {
        let Ok((stream, peer)) = listener.accept().await else {
            // Out of descriptors, or the client left before it was accepted: a moment later it may work again.
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        let index = {
            let mut seen = shared.seen();
            seen.push(Seen::new(peer));
            seen.len() - 1
        };
        shared.changed.notify_waiters();
        // Not for speed: a dripped byte must leave as a packet of its own. A failure only makes it slower.
        let _ = stream.set_nodelay(true);
        let script = scripts.get(index).or(scripts.last()).cloned().unwrap_or_default();
        connections
            .spawn(conn::Conn::new(stream, Arc::clone(&options), Arc::clone(&shared), index).run(script));
        while connections.try_join_next().is_some() {}
    }
}
