//! A small real name server (UDP and TCP on one port) whose zone can change, fail and lie at run time.
//!
//! It decides nothing about resolving: `zone` holds what is answered, `script` changes it by the clock of a dns
//! case, and this file moves packets. Tests start one server for each name server they need, on loopback addresses.

mod script;
mod zone;

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hickory_proto::op::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

pub use script::ZoneScript;
pub use zone::{Forgery, Kind, Reply, Rule};
use zone::{Plan, Zone};

/// Questions answered at the same time; further ones wait. Far above what a test asks, and still a bound.
const AT_ONCE: usize = 256;
/// The log of questions keeps this many; later ones are counted, not listed.
const LOGGED: usize = 100_000;
/// A TCP peer that sends nothing for this long is closed.
const TCP_IDLE: Duration = Duration::from_secs(10);
/// Over UDP an answer to a question without EDNS is at most this long (RFC 1035, 2.3.4).
const UDP_SIZE: usize = 512;

/// One question that arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// When, counted from the server's start.
    pub at: Duration,
    /// The name, in lower case, without the final dot.
    pub name: String,
    /// The record type's name: `A`, `AAAA`, ….
    pub record: String,
    /// Whether it came over TCP.
    pub tcp: bool,
}

/// A running name server. Dropping it closes its sockets.
pub struct DnsServer {
    address: SocketAddr,
    shared: Arc<Shared>,
    tasks: JoinSet<()>,
}

struct Shared {
    zone: Mutex<Zone>,
    log: Mutex<Vec<Asked>>,
    started: Instant,
    at_once: Arc<Semaphore>,
}

impl DnsServer {
    /// Starts a server. Port 0 takes any port that is free for both UDP and TCP.
    ///
    /// # Errors
    /// The address can't be bound.
    pub async fn start(at: SocketAddr) -> io::Result<Self> {
        let (udp, tcp) = bind(at).await?;
        let address = udp.local_addr()?;
        let shared = Arc::new(Shared {
            zone: Mutex::default(),
            log: Mutex::default(),
            started: Instant::now(),
            at_once: Arc::new(Semaphore::new(AT_ONCE)),
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(serve_udp(Arc::new(udp), Arc::clone(&shared)));
        tasks.spawn(serve_tcp(tcp, Arc::clone(&shared)));
        Ok(Self { address, shared, tasks })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sets what is answered for a name and a kind of record, in place of what was there. The other kinds of that
    /// name are then answered "no data", names without any rule NXDOMAIN.
    pub fn set(&self, name: &str, kind: Kind, rule: impl Into<Rule>) {
        self.zone().set(name, kind, rule.into());
    }

    /// Forgets a name: NXDOMAIN from now on.
    pub fn remove(&self, name: &str) {
        self.zone().remove(name);
    }

    /// Answers nothing at all (true), or answers again.
    pub fn silent(&self, silent: bool) {
        self.zone().silent = silent;
    }

    /// Sets the zone to what the script says at a moment of its clock (all steps up to then).
    pub fn apply(&self, script: &ZoneScript, at: Duration) {
        script.apply(&mut self.zone(), at);
    }

    /// Plays a script from now on, `speed` times as fast as it is written. It ends with the server.
    pub fn play(&mut self, script: ZoneScript, speed: f64) {
        let shared = Arc::clone(&self.shared);
        let start = tokio::time::Instant::now();
        self.tasks.spawn(async move {
            for at in script.moments() {
                tokio::time::sleep_until(start + at.div_f64(speed)).await;
                script.apply(&mut lock(&shared.zone), at);
            }
        });
    }

    /// The questions so far, in order of arrival.
    pub fn asked(&self) -> Vec<Asked> {
        lock(&self.shared.log).clone()
    }

    /// How many questions for a name and record type (`A`, `AAAA`) came so far.
    pub fn count(&self, name: &str, record: &str) -> usize {
        lock(&self.shared.log).iter().filter(|a| a.name == name && a.record == record).count()
    }

    /// Forgets the questions so far.
    pub fn forget_asked(&self) {
        lock(&self.shared.log).clear();
    }

    /// Stops the server: its sockets are closed when this returns.
    pub async fn stop(mut self) {
        self.tasks.shutdown().await;
    }

    fn zone(&self) -> MutexGuard<'_, Zone> {
        lock(&self.shared.zone)
    }
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Binds both protocols to one port.
async fn bind(at: SocketAddr) -> io::Result<(UdpSocket, TcpListener)> {
    let mut tries = 20;
    loop {
        let udp = UdpSocket::bind(at).await?;
        match TcpListener::bind(udp.local_addr()?).await {
            Ok(tcp) => return Ok((udp, tcp)),
            // The kernel chose a port for UDP that another has for TCP: choose again.
            Err(e) if at.port() == 0 && e.kind() == io::ErrorKind::AddrInUse && tries > 0 => tries -= 1,
            Err(e) => return Err(e),
        }
    }
}

async fn serve_udp(socket: Arc<UdpSocket>, shared: Arc<Shared>) {
    let mut answers = JoinSet::new();
    let mut buffer = vec![0; 4096];
    loop {
        let Ok((n, from)) = socket.recv_from(&mut buffer).await else { continue };
        let Some((question, plan)) = shared.take(&buffer[..n], false) else { continue };
        let Ok(permit) = Arc::clone(&shared.at_once).acquire_owned().await else { return };
        while answers.try_join_next().is_some() {}
        let socket = Arc::clone(&socket);
        answers.spawn(async move {
            let _permit = permit;
            answer_udp(&socket, from, &question, plan).await;
        });
    }
}

async fn answer_udp(socket: &UdpSocket, to: SocketAddr, question: &Message, plan: Plan) {
    for lie in plan.lies(question) {
        let Ok(bytes) = lie.message.to_vec() else { continue };
        // A packet that can't be sent is a lost packet: that is what the asker must live with anyway.
        if lie.other_port {
            let mut from = socket.local_addr().unwrap_or(to);
            from.set_port(0);
            if let Ok(other) = UdpSocket::bind(from).await {
                let _ = other.send_to(&bytes, to).await;
            }
        } else {
            let _ = socket.send_to(&bytes, to).await;
        }
    }
    plan.wait().await;
    let Some(mut answer) = plan.answer(question) else { return };
    let too_long = answer.to_vec().is_ok_and(|b| b.len() > UDP_SIZE) && question.edns.is_none();
    if plan.truncate || too_long {
        answer.answers.clear();
        answer.metadata.truncation = true;
    }
    if let Ok(bytes) = answer.to_vec() {
        let _ = socket.send_to(&bytes, to).await;
    }
}

async fn serve_tcp(listener: TcpListener, shared: Arc<Shared>) {
    let mut peers = JoinSet::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        let Ok(permit) = Arc::clone(&shared.at_once).acquire_owned().await else { return };
        while peers.try_join_next().is_some() {}
        let shared = Arc::clone(&shared);
        peers.spawn(async move {
            let _permit = permit;
            // The peer hung up or sent nonsense: it is done either way.
            let _ = serve_peer(stream, &shared).await;
        });
    }
}

async fn serve_peer(mut stream: TcpStream, shared: &Shared) -> io::Result<()> {
    loop {
        let length = tokio::time::timeout(TCP_IDLE, stream.read_u16()).await??;
        let mut bytes = vec![0; usize::from(length)];
        tokio::time::timeout(TCP_IDLE, stream.read_exact(&mut bytes)).await??;
        let Some((question, plan)) = shared.take(&bytes, true) else { continue };
        plan.wait().await;
        let Some(answer) = plan.answer(&question) else { continue };
        let bytes = answer.to_vec().map_err(io::Error::other)?;
        stream.write_u16(u16::try_from(bytes.len()).map_err(io::Error::other)?).await?;
        stream.write_all(&bytes).await?;
    }
}

impl Shared {
    /// Reads a question, notes it, and looks up what the zone says at this moment.
    fn take(&self, bytes: &[u8], tcp: bool) -> Option<(Message, Plan)> {
        let question = Message::from_vec(bytes).ok()?;
        let query = question.queries.first()?;
        let name = zone::key(&query.name().to_ascii());
        let record = query.query_type().to_string();
        let mut log = lock(&self.log);
        if log.len() < LOGGED {
            log.push(Asked { at: self.started.elapsed(), name: name.clone(), record: record.clone(), tcp });
        }
        drop(log);
        let plan = lock(&self.zone).plan(&name, &record);
        Some((question, plan))
    }
}
