//! The server's side of one connection: startup, simple and extended protocol, transactions, the wait of a commit.

pub(crate) mod marks;
mod statement;

use std::collections::{BTreeMap, VecDeque};

use bytes::{Buf, Bytes, BytesMut};
use pgfollow_lab::wire::message::Message;

use crate::node::{Mishap, Power, Write};
use crate::sql::Sql;
use crate::wire::{self, Frame};
use crate::world::{ConnId, Event, Inner};

/// The monitor's application name: its logins and dials are counted apart.
const MONITOR: &str = "pgfollow monitor";
/// Stands for a message that is taken up again.
const BLOCKED: u8 = 1;
/// How long a statement waits for a row (`lock_timeout`).
const LOCK_TIMEOUT: u64 = 1_000_000;
/// Between two looks whether it is free.
const LOCK_LOOK: u64 = 10_000;
/// The version that the servers say they are.
const VERSION: &str = "15.18";

/// One backend.
#[derive(Default)]
pub(crate) struct Backend {
    inbuf: BytesMut,
    /// The highest timeline that the client's process knew when it sent what is here.
    seen: u32,
    started: bool,
    logged_in: bool,
    pub(crate) monitor: bool,
    pid: i32,
    /// When it was started, by the server's clock.
    born: i64,
    current: Option<Frame>,
    /// What is left of a simple query.
    todo: VecDeque<Sql>,
    block: bool,
    failed: bool,
    read_only: bool,
    writes: Vec<Write>,
    /// Its transaction's number, once it has written.
    xid: Option<u64>,
    /// Since when a statement waits for another transaction's row.
    blocked: Option<u64>,
    statements: BTreeMap<String, String>,
    portal: Option<(Sql, Vec<i64>)>,
    /// After an error in the extended protocol, until Sync.
    skip: bool,
    /// The commit waits for a standby; then this tag is said (none where it has been).
    waiting: Option<Option<&'static str>>,
    /// The token that its commit wrote, while that waits.
    holds: Option<String>,
    out: BytesMut,
    /// A writable primary's timeline that `out` tells of.
    tells: u32,
    /// `in_hot_standby` and `default_transaction_read_only` as they were told.
    told: (bool, bool),
    /// Its answers are lost.
    mute: bool,
}

impl Backend {
    fn status(&self) -> u8 {
        match (self.block, self.failed) {
            (false, _) => b'I',
            (true, false) => b'T',
            (true, true) => b'E',
        }
    }

    fn fail(&mut self, code: &str, text: &str) {
        wire::error(&mut self.out, "ERROR", code, text);
        self.failed = self.block;
        self.writes.clear();
        self.xid = None;
        self.todo.clear();
    }

    fn end_block(&mut self) {
        (self.block, self.failed, self.read_only) = (false, false, false);
        self.writes.clear();
        self.xid = None;
    }

    /// Whether the commit of this backend waits for a standby.
    pub(crate) fn in_sync_wait(&self) -> bool {
        self.waiting.is_some()
    }

    /// Whether it has something to do: what stopped processes haven't read yet, too.
    pub(crate) fn at_work(&self, stopped: bool) -> bool {
        self.current.is_some() || self.waiting.is_some() || (stopped && !self.inbuf.is_empty())
    }
}

/// What became of a statement.
enum Did {
    /// Done: say this.
    Tag(&'static str),
    /// Its transaction is to be made durable; then say this.
    Commit(&'static str),
    /// An error was said.
    Failed,
    /// A ping.
    Nothing,
    /// It waits for another transaction.
    Blocked,
}

impl Inner {
    fn backend(&mut self, id: ConnId) -> Option<&mut Backend> {
        self.conns.get_mut(&id)?.server.as_mut()
    }

    /// Bytes have come to a server.
    pub(crate) fn arrived(&mut self, id: ConnId, bytes: &Bytes, seen: u32) {
        let Some(b) = self.backend(id) else {
            self.down(id, Event::DownEnd { conn: id, reset: true });
            return;
        };
        b.inbuf.extend_from_slice(bytes);
        b.seen = b.seen.max(seen);
        self.turn(id);
    }

    /// Takes up the next message, unless the backend is at work.
    pub(crate) fn turn(&mut self, id: ConnId) {
        loop {
            let Some(c) = self.conns.get_mut(&id) else { return };
            let node = c.node;
            let Some(b) = c.server.as_mut() else { return };
            if self.nodes[node].frozen || b.current.is_some() || b.waiting.is_some() {
                return;
            }
            let Some(frame) = wire::next_frame(&mut b.inbuf, b.started) else {
                if c.orphan {
                    self.cut(id, false);
                }
                return;
            };
            let refused = frame.kind == 0 && self.refuses(node).is_some();
            let Some(c) = self.conns.get_mut(&id) else { return };
            let Some(b) = c.server.as_mut() else { return };
            let mut pause = 0;
            let cost = match frame.kind {
                0 if frame.body.first_chunk() == Some(&80_877_103_u32.to_be_bytes()) => {
                    let out = BytesMut::from(&b"N"[..]);
                    self.flush(id, out, 0);
                    continue;
                }
                0 if refused => self.model.refusal_us,
                0 => self.model.login_us,
                b'Q' => {
                    b.todo = self.known.statements(&wire::text(&mut frame.body.clone()));
                    let naps =
                        b.todo.iter().filter_map(|s| if let Sql::Sleep(us) = s { Some(us) } else { None });
                    pause = naps.sum();
                    self.model.statement_us
                }
                b'S' => self.model.statement_us,
                b'X' => {
                    self.cut(id, false);
                    return;
                }
                _ => {
                    self.extended(id, frame);
                    continue;
                }
            };
            b.current = Some(frame);
            let (now, model) = (self.now, &self.model);
            let at = self.nodes[node].work(cost, now, model) + pause;
            let incarnation = self.nodes[node].incarnation;
            self.push(at, Event::Done { conn: id, node, incarnation });
            return;
        }
    }

    fn refuses(&self, node: usize) -> Option<(&'static str, &'static str)> {
        if self.nodes[node].power == Power::Starting {
            return Some(("57P03", "the database system is starting up"));
        }
        // Counting is for those who are near the limit.
        if self.conns.len() < self.model.max_connections as usize {
            return None;
        }
        let on = |c: &&crate::world::Conn| c.node == node && c.server.as_ref().is_some_and(|b| b.logged_in);
        let full = self.conns.values().filter(on).count() >= self.model.max_connections as usize;
        full.then_some(("53300", "sorry, too many clients already"))
    }

    /// A request has had its processor time: now it takes effect.
    pub(crate) fn done(&mut self, id: ConnId) {
        let Some(node) = self.conns.get(&id).map(|c| c.node) else { return };
        let Some(frame) = self.backend(id).and_then(|b| b.current.take()) else { return };
        let mishap = self.sprung(id, node, &frame);
        if let Some((what, executed)) = mishap {
            let now = self.now;
            self.log.line(now, format_args!("trap on db-{node}: {what:?} at #{id}, executed {executed}"));
            if what == Mishap::Freeze {
                // The request is there when the processes go on.
                if let Some(b) = self.backend(id) {
                    b.current = Some(frame);
                }
                self.freeze(node);
                let incarnation = self.nodes[node].incarnation;
                self.nodes[node].parked.push(Event::Done { conn: id, node, incarnation });
                return;
            }
            if !executed {
                self.mishap(id, node, what);
                return;
            }
            if let Some(b) = self.backend(id) {
                b.mute = true;
            }
        }
        match frame.kind {
            0 => self.start_up(id, node, frame.body),
            b'Q' | BLOCKED => self.simple(id),
            _ => self.sync(id),
        }
        if let Some((what, _)) = mishap {
            self.mishap(id, node, what);
            return;
        }
        self.turn(id);
    }

    fn sprung(&mut self, id: ConnId, node: usize, frame: &Frame) -> Option<(Mishap, bool)> {
        let commits = self.backend(id).is_some_and(|b| match frame.kind {
            b'Q' if b.block => b.todo.contains(&Sql::Commit) && !b.writes.is_empty(),
            b'Q' => b.todo.iter().any(|s| matches!(s, Sql::Insert(_))),
            b'S' => !b.block && !b.writes.is_empty(),
            _ => false,
        });
        let trap = self.nodes[node].trap.as_mut()?;
        if trap.commits && !commits {
            return None;
        }
        if trap.after > 0 {
            trap.after -= 1;
            return None;
        }
        let sprung = (trap.what, trap.executed);
        self.nodes[node].trap = None;
        Some(sprung)
    }

    fn mishap(&mut self, id: ConnId, node: usize, what: Mishap) {
        match what {
            Mishap::Reset => self.cut(id, true),
            Mishap::Black => self.lose_flow(id),
            Mishap::Freeze => self.freeze(node),
            Mishap::Kill => self.kill(node),
            Mishap::PowerOff => self.power_off(node),
        }
    }

    /// The server's end goes.
    pub(crate) fn cut(&mut self, id: ConnId, reset: bool) {
        let Some(c) = self.conns.get_mut(&id) else { return };
        if c.orphan && c.client.closed {
            self.conns.remove(&id);
        } else if c.server.take().is_some() {
            self.down(id, Event::DownEnd { conn: id, reset });
        }
    }

    /// Says what is to be said, unless it is lost.
    fn say(&mut self, id: ConnId) {
        let Some(b) = self.backend(id) else { return };
        let (out, tells) = (std::mem::take(&mut b.out), std::mem::take(&mut b.tells));
        if !b.mute {
            self.flush(id, out, tells);
        }
    }

    fn start_up(&mut self, id: ConnId, node: usize, mut body: Bytes) {
        if body.get_u32() == 80_877_102 {
            let (pid, secret) = (body.get_i32(), body.get_i32());
            self.cancel(node, pid, secret);
            self.cut(id, false);
            return;
        }
        let mut monitor = false;
        while body.has_remaining() && body[0] != 0 {
            let (name, value) = (wire::text(&mut body), wire::text(&mut body));
            monitor |= name == "application_name" && value == MONITOR;
        }
        let (now, refused) = (self.now, self.refuses(node));
        let process = self.conns.get(&id).map_or(0, |c| c.process);
        self.processes[process].logins.push((now, node, monitor));
        if let Some(dial) = self.processes[process].dials.get_mut(&id) {
            dial.monitor = Some(monitor);
        }
        let n = &mut self.nodes[node];
        n.pids += 1;
        let (pid, told) = (n.pids, (n.in_recovery, n.fenced));
        let born = self.wall();
        let Some(b) = self.backend(id) else { return };
        (b.started, b.monitor, b.pid, b.born, b.told) = (true, monitor, pid, born, told);
        if let Some((code, text)) = refused {
            wire::error(&mut b.out, "FATAL", code, text);
            self.say(id);
            self.cut(id, false);
            return;
        }
        b.logged_in = true;
        self.count_backends(process, node);
        let Some(b) = self.backend(id) else { return };
        Message::Auth(0).encode(&mut b.out);
        Message::param("server_version", VERSION).encode(&mut b.out);
        Message::param("client_encoding", "UTF8").encode(&mut b.out);
        b.report("in_hot_standby", told.0);
        b.report("default_transaction_read_only", told.1);
        Message::Key { pid, secret: secret(pid) }.encode(&mut b.out);
        Message::Ready(b'I').encode(&mut b.out);
        self.say(id);
    }

    /// Where commits wait, what callers gave up takes a server's slots.
    fn count_backends(&mut self, process: usize, node: usize) {
        if self.nodes[node].waits.is_empty() {
            return;
        }
        let callers = |c: &&crate::world::Conn| {
            let of = |b: &Backend| b.logged_in && !b.monitor;
            c.process == process && c.node == node && c.server.as_ref().is_some_and(of)
        };
        let count = self.conns.values().filter(callers).count();
        let most = self.truth.backends.entry(process).or_default();
        *most = count.max(*most);
    }

    fn cancel(&mut self, node: usize, pid: i32, key: i32) {
        let of = |b: &Backend| b.pid == pid && secret(pid) == key;
        let found = self.conns.iter().find(|(_, c)| c.node == node && c.server.as_ref().is_some_and(of));
        let Some(id) = found.map(|(id, _)| *id) else { return };
        let Some(b) = self.backend(id) else { return };
        if b.in_sync_wait() {
            let text = "canceling wait for synchronous replication due to user request";
            wire::warning(&mut b.out, "57014", text, "SyncRepWaitForLSN");
            self.released(id);
        }
    }

    /// Goes on with a simple query.
    fn simple(&mut self, id: ConnId) {
        loop {
            let Some(b) = self.backend(id) else { return };
            let Some(statement) = b.todo.pop_front() else {
                self.ready(id);
                return;
            };
            let last = b.todo.is_empty();
            match self.execute(id, &statement, &[], true) {
                Did::Failed => {}
                Did::Blocked => {
                    let (now, at) = (self.now, self.now + LOCK_LOOK);
                    let Some(c) = self.conns.get_mut(&id) else { return };
                    let Some(b) = c.server.as_mut() else { return };
                    b.blocked.get_or_insert(now);
                    b.todo.push_front(statement);
                    b.current = Some(Frame { kind: BLOCKED, body: Bytes::new() });
                    let (node, incarnation) = (c.node, self.nodes[c.node].incarnation);
                    self.push(at, Event::Done { conn: id, node, incarnation });
                    return;
                }
                Did::Nothing => {
                    if let Some(b) = self.backend(id) {
                        wire::bare(&mut b.out, b'I');
                    }
                }
                Did::Tag(tag) => {
                    let Some(b) = self.backend(id) else { return };
                    if last && !b.block && !b.writes.is_empty() {
                        if self.commit(id, Some(tag)) {
                            return;
                        }
                    } else {
                        wire::complete(&mut b.out, tag);
                    }
                }
                Did::Commit(tag) => {
                    if self.commit(id, Some(tag)) {
                        return;
                    }
                }
            }
        }
    }

    /// Makes the transaction durable. `true` if its backend now waits for a standby.
    fn commit(&mut self, id: ConnId, tag: Option<&'static str>) -> bool {
        let Some(node) = self.conns.get(&id).map(|c| c.node) else { return true };
        let Some(b) = self.backend(id) else { return true };
        let (writes, seen, xid) = (std::mem::take(&mut b.writes), b.seen, b.xid);
        b.end_block();
        let mut waits = false;
        if !writes.is_empty() {
            self.stale_write(id, node, seen, "COMMIT");
            waits = self.model.sync;
            let token = writes.iter().find_map(|w| match w {
                Write::Token(t, _) if waits => Some(t.to_string()),
                _ => None,
            });
            let lsn = self.append(node, writes, xid);
            if let Some(b) = self.backend(id) {
                b.holds = token;
                // Under way until it is told.
                b.xid = xid.filter(|_| waits);
            }
            if waits {
                self.nodes[node].waits.push((lsn, id));
            }
        }
        let Some(b) = self.backend(id) else { return true };
        if waits {
            b.waiting = Some(tag);
        } else if let Some(tag) = tag {
            wire::complete(&mut b.out, tag);
        }
        waits
    }

    /// A standby has confirmed the commit that this backend waits for.
    pub(crate) fn released(&mut self, id: ConnId) {
        let Some(b) = self.backend(id) else { return };
        let Some(tag) = b.waiting.take() else { return };
        (b.holds, b.xid) = (None, None);
        match tag {
            Some(tag) => {
                wire::complete(&mut b.out, tag);
                self.simple(id);
            }
            None => self.ready(id),
        }
        self.turn(id);
    }

    fn sync(&mut self, id: ConnId) {
        let Some(b) = self.backend(id) else { return };
        b.skip = false;
        if !b.block && !b.writes.is_empty() && self.commit(id, None) {
            return;
        }
        self.ready(id);
    }

    fn ready(&mut self, id: ConnId) {
        let Some(c) = self.conns.get_mut(&id) else { return };
        let (n, Some(b)) = (&self.nodes[c.node], c.server.as_mut()) else { return };
        let told = (n.in_recovery, n.fenced);
        if told.0 != b.told.0 {
            b.report("in_hot_standby", told.0);
        }
        if told.1 != b.told.1 {
            b.report("default_transaction_read_only", told.1);
        }
        b.told = told;
        Message::Ready(b.status()).encode(&mut b.out);
        self.say(id);
    }

    /// Parse, Bind, Describe, Execute, Close, Flush.
    fn extended(&mut self, id: ConnId, frame: Frame) {
        let Some(b) = self.backend(id) else { return };
        if b.skip {
            return;
        }
        let mut body = frame.body;
        match frame.kind {
            b'P' => {
                let name = wire::text(&mut body);
                b.statements.insert(name, wire::text(&mut body));
                wire::bare(&mut b.out, b'1');
            }
            b'B' => {
                let (statement, values) = wire::bound(body);
                let text = b.statements.get(&statement).map_or("?", String::as_str);
                b.portal = Some((Sql::read(text), values));
                wire::bare(&mut b.out, b'2');
            }
            b'D' => {
                let statement = body.get_u8() == b'S';
                let name = wire::text(&mut body);
                let text = b.statements.get(&name).map_or("?", String::as_str);
                let parsed = if statement {
                    wire::parameters(&mut b.out, text.matches('$').count());
                    Some(Sql::read(text))
                } else {
                    b.portal.as_ref().map(|(s, _)| s.clone())
                };
                match parsed.map(|s| s.columns()).unwrap_or_default() {
                    none if none.is_empty() => wire::bare(&mut b.out, b'n'),
                    columns => wire::describe(&mut b.out, &columns),
                }
            }
            b'E' => {
                let Some((statement, values)) = b.portal.clone() else { return };
                if matches!(statement, Sql::Commit | Sql::Token { .. }) {
                    b.fail("0A000", "the simulation knows this as a simple query only");
                    b.skip = true;
                    return;
                }
                match self.execute(id, &statement, &values, false) {
                    Did::Tag(tag) | Did::Commit(tag) => {
                        if let Some(b) = self.backend(id) {
                            wire::complete(&mut b.out, tag);
                        }
                    }
                    Did::Nothing => {
                        if let Some(b) = self.backend(id) {
                            wire::bare(&mut b.out, b'I');
                        }
                    }
                    Did::Failed | Did::Blocked => {
                        if let Some(b) = self.backend(id) {
                            b.skip = true;
                        }
                    }
                }
            }
            b'C' => {
                body.advance(1);
                b.statements.remove(&wire::text(&mut body));
                wire::bare(&mut b.out, b'3');
            }
            _ => self.say(id),
        }
    }

    /// Notes a write that went to a primary older than the one its process had read of.
    fn stale_write(&mut self, id: ConnId, node: usize, seen: u32, what: &str) {
        let timeline = self.nodes[node].timeline;
        if seen > timeline {
            let now = self.now;
            let process = self.conns.get(&id).map_or(0, |c| c.process);
            let text = format!(
                "{what} of p{process} on #{id} reached db-{node} on timeline {timeline}, though p{process} had read of {seen}"
            );
            self.log.line(now, format_args!("{text}"));
            self.truth.stale.push(text);
        }
    }
}

impl Backend {
    fn report(&mut self, name: &str, on: bool) {
        Message::param(name, if on { "on" } else { "off" }).encode(&mut self.out);
    }
}

fn secret(pid: i32) -> i32 {
    pid.wrapping_mul(7_919) ^ 0x5bd1
}
