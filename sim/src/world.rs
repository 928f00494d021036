//! Everything that is simulated, and the queue of what comes next.
//!
//! One structure under one lock, and one task ([`World::drive`]) that lets due events happen in the order of their
//! times. The library's side is real and runs on tokio's paused clock; what it touches ([`crate::net`]) only puts
//! events into the queue. Everything is drawn from one seed, so a run can be repeated to the byte.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use pgfollow::clock::{self, Moment};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::sync::Notify;

use crate::backend::Backend;
use crate::net::ClientEnd;
use crate::node::{Node, Power};
use crate::service::Wait;
use crate::sql::Known;

/// A connection's number.
pub(crate) type ConnId = u64;

/// Longest wait of the driving task: it must also notice that the world has ended.
const IDLE: Duration = Duration::from_secs(60);

/// By what transactions can be found again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marks {
    /// The token table is installed.
    Table,
    /// Only their numbers can be asked for.
    Numbers,
    /// The role may see neither.
    Neither,
}

/// The sizes of a world.
#[derive(Clone, Debug)]
pub struct Model {
    /// Servers; the first is primary.
    pub nodes: usize,
    /// Client processes, each with a connector of its own.
    pub processes: usize,
    /// A commit is acknowledged once one standby has it.
    pub sync: bool,
    /// Processors of each server.
    pub cores: usize,
    /// What a login costs the server, in microseconds of processor time (SCRAM: 3.8 ms measured).
    pub login_us: u64,
    /// What a refused login costs (57P03, 53300: 2 to 3 ms measured).
    pub refusal_us: u64,
    /// What a statement costs.
    pub statement_us: u64,
    /// A server just promoted is so many times slower at first …
    pub cold_factor: u64,
    /// … and warm after this.
    pub cold_us: u64,
    /// `max_connections`.
    pub max_connections: u32,
    /// What an outcome check can go by.
    pub marks: Marks,
    /// One way between a process and a server: least and most, in microseconds.
    pub latency_us: (u64, u64),
    /// The same between servers.
    pub replication_us: (u64, u64),
    /// For so long after a newer term was read by a process, a write of it may still be on its way to be sent to the old
    /// primary.
    pub stale_grace: Duration,
}

impl Default for Model {
    fn default() -> Self {
        Self {
            nodes: 3,
            processes: 2,
            sync: true,
            cores: 4,
            login_us: 4_000,
            refusal_us: 2_500,
            statement_us: 100,
            cold_factor: 3,
            cold_us: 10_000_000,
            max_connections: 100,
            marks: Marks::Table,
            latency_us: (100, 500),
            replication_us: (200, 1_500),
            stale_grace: Duration::ZERO,
        }
    }
}

/// Something that happens at its time.
#[derive(Debug)]
pub(crate) enum Event {
    /// A SYN reaches the server.
    Syn { conn: ConnId },
    /// Its answer reaches the client.
    SynAck { conn: ConnId, refused: bool },
    /// Bytes reach the server.
    Up { conn: ConnId, bytes: Bytes, seen: u32 },
    /// Bytes reach the client. `tells`: the timeline of a writable primary that they tell of.
    Down { conn: ConnId, bytes: Bytes, tells: u32 },
    /// The client has closed.
    UpEnd { conn: ConnId },
    /// A backend looks whether its client is there.
    Unheard { conn: ConnId },
    /// The server's end is closed or reset.
    DownEnd { conn: ConnId, reset: bool },
    /// A request has had its processor time.
    Done { conn: ConnId, node: usize, incarnation: u64 },
    /// A standby gets the history up to here.
    Wal { from: usize, to: usize, link: u64, upto: usize },
    /// It has confirmed that.
    Ack { from: usize, to: usize, link: u64, upto: usize },
    /// The kernels' patience with a silent peer has ended.
    Silence { conn: ConnId, since: u64 },
    /// A server takes connections.
    Started { node: usize, incarnation: u64 },
    /// A promotion is done.
    Promoted { node: usize, incarnation: u64 },
}

/// What a client process has been told, and how it dialled.
#[derive(Default)]
pub(crate) struct Process {
    /// Timelines of writable primaries that were read by it, and when.
    told: Vec<(u32, u64)>,
    /// Startup packets that reached a server, in order: when, which server, whether the monitor's.
    pub(crate) logins: Vec<(u64, usize, bool)>,
    /// What it dialled.
    pub(crate) dials: BTreeMap<ConnId, Dialled>,
}

impl Process {
    pub(crate) fn told(&mut self, timeline: u32, at: u64) {
        if self.told.last().is_none_or(|(t, _)| *t < timeline) {
            self.told.push((timeline, at));
        }
    }

    /// The highest timeline that it had read before then.
    pub(crate) fn knew(&self, before: u64) -> u32 {
        self.told.iter().filter(|(_, at)| *at < before).map(|(t, _)| *t).max().unwrap_or(0)
    }
}

/// The way between a process and a server.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Path {
    /// Packets get lost.
    pub(crate) black: bool,
    /// SYNs of new connections get lost.
    pub(crate) no_syn: bool,
    /// So much slower than usual.
    pub(crate) extra_us: u64,
}

/// One connection, both ends.
pub(crate) struct Conn {
    pub(crate) process: usize,
    pub(crate) node: usize,
    pub(crate) client: ClientEnd,
    pub(crate) server: Option<Backend>,
    /// Its client is gone, and the backend has something to bring to an end.
    pub(crate) orphan: bool,
    /// Its own packets get lost (one flow of many).
    pub(crate) black: bool,
    /// Since when its packets get lost.
    pub(crate) silent_since: Option<u64>,
    /// Lost packets, until they are sent again.
    pub(crate) held: Vec<Event>,
    up_at: u64,
    down_at: u64,
}

/// The log of a run: its lines if wanted, and a checksum of them in any case.
#[derive(Default)]
pub(crate) struct Log {
    pub(crate) keep: bool,
    pub(crate) lines: Vec<String>,
    pub(crate) sum: u64,
    line: String,
}

impl Log {
    pub(crate) fn line(&mut self, at: u64, text: std::fmt::Arguments<'_>) {
        self.line.clear();
        // Writing to a String can't fail.
        let _ = write!(self.line, "{:>4}.{:06} {text}", at / 1_000_000, at % 1_000_000);
        // FNV-1a: one number to compare two runs by.
        for b in self.line.bytes() {
            self.sum = (self.sum ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3);
        }
        if self.keep {
            self.lines.push(self.line.clone());
        }
    }
}

/// A login of a process, seen from its own side.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dialled {
    pub(crate) at: u64,
    /// `None` until it has sent its startup packet: a cancel or a dial that came to nothing.
    pub(crate) monitor: Option<bool>,
}

/// What the checker needs to know beside the clients' own reports.
#[derive(Default)]
pub(crate) struct Truth {
    /// How often each row was committed, on whatever server.
    pub(crate) committed: BTreeMap<i64, u32>,
    /// Writes that were sent to an older primary by a process that had read of a newer one.
    pub(crate) stale: Vec<String>,
    /// When a promoted server could acknowledge its first write.
    pub(crate) ready: Vec<(u64, usize)>,
    /// When something happened to a primary.
    pub(crate) hits: Vec<u64>,
    /// Changes of the paths: when, which process, which server, whether packets get lost.
    pub(crate) blackouts: Vec<(u64, usize, usize, bool)>,
    /// Tokens that a check has asked for.
    pub(crate) asked: BTreeSet<String>,
    /// Waits for a session.
    pub(crate) waits: Vec<Wait>,
    /// The most backends that each process's callers had at one server while commits waited there for a standby, those that
    /// nobody hears of any more among them.
    pub(crate) backends: BTreeMap<usize, usize>,
}

pub(crate) struct Inner {
    pub(crate) model: Model,
    pub(crate) rng: StdRng,
    /// Microseconds since the run began.
    pub(crate) now: u64,
    queue: BTreeMap<(u64, u64), Event>,
    sequence: u64,
    pub(crate) nodes: Vec<Node>,
    pub(crate) processes: Vec<Process>,
    /// By process and server.
    pub(crate) paths: Vec<Vec<Path>>,
    pub(crate) conns: BTreeMap<ConnId, Conn>,
    next_conn: ConnId,
    pub(crate) next_entry: u64,
    /// The server that the operator takes for the primary.
    pub(crate) leader: usize,
    /// So much of its history was confirmed by a standby: whatever was acknowledged, if replication is synchronous.
    pub(crate) safe: usize,
    /// It was promoted then, and no standby follows yet.
    pub(crate) unready: Option<u64>,
    pub(crate) truth: Truth,
    pub(crate) log: Log,
    pub(crate) known: Known,
    /// Nobody resolves names just now.
    pub(crate) dns_silent: bool,
    ended: bool,
}

/// A modelled cluster, its network and the processes' view of it.
pub struct World {
    begin: Moment,
    inner: Mutex<Inner>,
    bell: Notify,
}

impl World {
    /// A world of that size. To be made inside a runtime whose clock is paused.
    pub fn new(model: Model, seed: u64, keep_log: bool) -> Arc<Self> {
        let nodes = (0..model.nodes).map(|i| Node::new(i, &model)).collect();
        let inner = Inner {
            rng: StdRng::seed_from_u64(seed),
            now: 0,
            queue: BTreeMap::new(),
            sequence: 0,
            nodes,
            processes: (0..model.processes).map(|_| Process::default()).collect(),
            paths: vec![vec![Path::default(); model.nodes]; model.processes],
            conns: BTreeMap::new(),
            next_conn: 0,
            next_entry: 0,
            leader: 0,
            safe: 0,
            unready: None,
            truth: Truth::default(),
            log: Log { keep: keep_log, ..Log::default() },
            known: Known::default(),
            dns_silent: false,
            ended: false,
            model,
        };
        Arc::new(Self { begin: clock::now(), inner: Mutex::new(inner), bell: Notify::new() })
    }

    /// Lets events happen until [`Self::end`].
    pub async fn drive(self: Arc<Self>) {
        loop {
            let next = {
                let mut inner = self.lock();
                if inner.ended {
                    return;
                }
                let next = inner.run(micros(self.elapsed()));
                next.map_or_else(|| clock::now() + IDLE, |at| self.begin + Duration::from_micros(at))
            };
            tokio::select! {
                biased;
                () = clock::sleep_until(next) => {}
                () = self.bell.notified() => {}
            }
        }
    }

    /// Ends [`Self::drive`].
    pub fn end(&self) {
        self.lock().ended = true;
        self.bell.notify_one();
    }

    /// Time since the world was made.
    pub fn elapsed(&self) -> Duration {
        clock::now() - self.begin
    }

    /// Does something at the present moment, and lets the queue be looked at again.
    pub(crate) fn with<T>(&self, act: impl FnOnce(&mut Inner) -> T) -> T {
        let mut inner = self.lock();
        let before = inner.next_at();
        inner.now = micros(self.elapsed());
        let result = act(&mut inner);
        if inner.next_at() < before {
            self.bell.notify_one();
        }
        result
    }

    /// Writes a line into the log.
    pub(crate) fn note(&self, text: std::fmt::Arguments<'_>) {
        let at = micros(self.elapsed());
        self.lock().log.line(at, text);
    }

    /// Writes down a caller's wait.
    pub(crate) fn waited(&self, wait: Wait) {
        self.lock().truth.waits.push(wait);
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) fn micros(d: Duration) -> u64 {
    u64::try_from(d.as_micros()).unwrap_or(u64::MAX)
}

impl Inner {
    pub(crate) fn push(&mut self, at: u64, event: Event) {
        self.sequence += 1;
        self.queue.insert((at.max(self.now), self.sequence), event);
    }

    fn next_at(&self) -> u64 {
        self.queue.first_key_value().map_or(u64::MAX, |((at, _), _)| *at)
    }

    /// Lets everything happen that is due by now; says when the next is.
    fn run(&mut self, until: u64) -> Option<u64> {
        while let Some(first) = self.queue.first_entry() {
            let (at, _) = *first.key();
            if at > until {
                return Some(at);
            }
            let event = first.remove();
            self.now = at;
            self.happen(event);
        }
        None
    }

    pub(crate) fn draw(&mut self, (least, most): (u64, u64)) -> u64 {
        self.rng.random_range(least..=most)
    }

    /// Whether packets of that connection get lost.
    pub(crate) fn silent(&self, conn: &Conn) -> bool {
        let path = self.paths[conn.process][conn.node];
        conn.black || path.black || self.nodes[conn.node].power == Power::Off
    }

    pub(crate) fn new_conn(&mut self, process: usize, node: usize) -> ConnId {
        self.next_conn += 1;
        let conn = Conn {
            process,
            node,
            client: ClientEnd::default(),
            server: None,
            orphan: false,
            black: false,
            silent_since: None,
            held: Vec::new(),
            up_at: 0,
            down_at: 0,
        };
        self.conns.insert(self.next_conn, conn);
        self.next_conn
    }

    fn latency(&mut self, process: usize, node: usize) -> u64 {
        let range = self.model.latency_us;
        self.draw(range) + self.paths[process][node].extra_us
    }

    /// Sends towards the server.
    pub(crate) fn up(&mut self, id: ConnId, event: Event) {
        let Some((process, node)) = self.conns.get(&id).map(|c| (c.process, c.node)) else { return };
        let at = self.now + self.latency(process, node);
        let Some(c) = self.conns.get_mut(&id) else { return };
        c.up_at = c.up_at.max(at);
        let at = c.up_at;
        self.push(at, event);
    }

    /// Sends towards the client.
    pub(crate) fn down(&mut self, id: ConnId, event: Event) {
        let Some((process, node)) = self.conns.get(&id).map(|c| (c.process, c.node)) else { return };
        let at = self.now + self.latency(process, node);
        let Some(c) = self.conns.get_mut(&id) else { return };
        c.down_at = c.down_at.max(at);
        let at = c.down_at;
        self.push(at, event);
    }

    /// Sends out what the server has said.
    pub(crate) fn flush(&mut self, id: ConnId, out: BytesMut, tells: u32) {
        if !out.is_empty() {
            self.down(id, Event::Down { conn: id, bytes: out.freeze(), tells });
        }
    }

    /// Lost packets are sent again, as the kernels' timers come to it.
    pub(crate) fn resend(&mut self, id: ConnId) {
        let at = self.now + self.draw((1_000, 400_000));
        let Some(c) = self.conns.get_mut(&id) else { return };
        c.silent_since = None;
        if c.held.is_empty() {
            return;
        }
        let held = std::mem::take(&mut c.held);
        (c.up_at, c.down_at) = (c.up_at.max(at), c.down_at.max(at));
        let at = c.up_at.max(c.down_at);
        for event in held {
            self.push(at, event);
        }
    }

    fn happen(&mut self, event: Event) {
        let event = match self.stopped_by(event) {
            Some(event) => event,
            None => return,
        };
        match event {
            Event::Syn { conn } => self.syn(conn),
            Event::SynAck { conn, refused } => self.syn_ack(conn, refused),
            Event::Up { conn, bytes, seen } => self.arrived(conn, &bytes, seen),
            Event::Down { conn, bytes, tells } => self.delivered(conn, bytes, tells),
            Event::UpEnd { conn } => self.client_gone(conn),
            Event::DownEnd { conn, reset } => self.server_gone(conn, reset),
            Event::Unheard { conn } => self.unheard(conn),
            Event::Done { conn, node, incarnation } => {
                if self.nodes[node].incarnation == incarnation {
                    self.done(conn);
                }
            }
            Event::Wal { from, to, link, upto } => self.wal(from, to, link, upto),
            Event::Ack { from, to, link, upto } => self.ack(from, to, link, upto),
            Event::Silence { conn, since } => self.silence(conn, since),
            Event::Started { node, incarnation } => self.started(node, incarnation),
            Event::Promoted { node, incarnation } => self.promoted(node, incarnation),
        }
    }

    /// Keeps back what a lost path or stopped processes don't let happen now.
    fn stopped_by(&mut self, event: Event) -> Option<Event> {
        match &event {
            Event::Syn { conn }
            | Event::SynAck { conn, .. }
            | Event::Up { conn, .. }
            | Event::Down { conn, .. }
            | Event::UpEnd { conn }
            | Event::DownEnd { conn, .. } => {
                let id = *conn;
                let c = self.conns.get(&id)?;
                let syn = matches!(event, Event::Syn { .. });
                let lost = self.silent(c) || (syn && self.paths[c.process][c.node].no_syn);
                if lost {
                    self.conns.get_mut(&id)?.held.push(event);
                    return None;
                }
            }
            Event::Done { node, .. }
            | Event::Wal { to: node, .. }
            | Event::Ack { to: node, .. }
            | Event::Started { node, .. }
            | Event::Promoted { node, .. } => {
                let node = &mut self.nodes[*node];
                if node.frozen {
                    node.parked.push(event);
                    return None;
                }
            }
            Event::Silence { .. } | Event::Unheard { .. } => {}
        }
        Some(event)
    }
}
