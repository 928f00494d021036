//! What happens to servers, and between them: replication, promotion, rewinding, and every fault.

use crate::node::{Entry, Power, WALL, Write};
use crate::wire;
use crate::world::{ConnId, Event, Inner, Truth};

/// How long the kernels of both ends bear silence (`tcp_user_timeout` and keepalives 3/2/3 on both sides).
const KERNEL_PATIENCE: u64 = 9_000_000;

impl Inner {
    // ---- history -----------------------------------------------------------------------------------------------

    /// Commits on a primary. Returns the length of its history with them.
    pub(crate) fn append(&mut self, node: usize, writes: Vec<Write>, xid: Option<u64>) -> usize {
        self.next_entry += 1;
        let entry = Entry { id: self.next_entry, xid, writes: writes.into() };
        for row in entry.rows() {
            *self.truth.committed.entry(row).or_default() += 1;
        }
        let now = self.now;
        self.log.line(now, format_args!("db-{node} commits {:?}", entry.writes));
        self.nodes[node].wal.push(entry);
        let lsn = self.nodes[node].wal.len();
        self.ship(node);
        lsn
    }

    /// Sends the history to the standbys that follow.
    fn ship(&mut self, from: usize) {
        let upto = self.nodes[from].flushed();
        for to in 0..self.nodes.len() {
            if self.nodes[to].upstream == Some(from) {
                let range = self.model.replication_us;
                let at = self.now + self.draw(range);
                let link = self.nodes[to].link;
                self.push(at, Event::Wal { from, to, link, upto });
            }
        }
    }

    fn linked(&self, a: usize, b: usize) -> bool {
        [a, b].iter().all(|n| self.nodes[*n].power == Power::Up && !self.nodes[*n].isolated)
    }

    pub(crate) fn wal(&mut self, from: usize, to: usize, link: u64, upto: usize) {
        if self.nodes[to].link != link || self.nodes[to].upstream != Some(from) || !self.linked(from, to) {
            return;
        }
        let have = self.nodes[to].wal.len();
        let new = self.nodes[from].wal.get(have..upto).map(<[Entry]>::to_vec).unwrap_or_default();
        self.nodes[to].wal.extend(new);
        self.nodes[to].timeline = self.nodes[from].timeline;
        if from == self.leader
            && let Some(promoted) = self.unready.take()
        {
            self.writable_at_last(from, promoted);
        }
        let range = self.model.replication_us;
        let at = self.now + self.draw(range);
        self.push(at, Event::Ack { from: to, to: from, link, upto });
    }

    pub(crate) fn ack(&mut self, from: usize, to: usize, link: u64, upto: usize) {
        if self.nodes[from].link != link || !self.linked(from, to) {
            return;
        }
        if to == self.leader {
            self.safe = self.safe.max(upto);
        }
        let n = &mut self.nodes[to];
        let waits = std::mem::take(&mut n.waits);
        let (done, still): (Vec<_>, Vec<_>) = waits.into_iter().partition(|(lsn, _)| *lsn <= upto);
        n.waits = still;
        for (_, conn) in done {
            self.released(conn);
        }
    }

    /// Forgets what only a judge needs, and the history that all servers share: a world may last.
    pub(crate) fn forget(&mut self) {
        self.truth = Truth::default();
        for p in &mut self.processes {
            p.dials.clear();
            p.logins.clear();
        }
        let shared = self.nodes.iter().map(|n| n.wal.len()).min().unwrap_or(0);
        let together = self.nodes.iter().all(|n| n.common(&self.nodes[0]) >= shared);
        let quiet = self.nodes.iter().all(|n| n.waits.is_empty() && n.wal.len() == shared);
        if together && quiet {
            self.safe = 0;
            for n in &mut self.nodes {
                n.dropped += n.wal.len();
                n.wal.clear();
            }
        }
    }

    // ---- the operator ------------------------------------------------------------------------------------------

    /// No standby follows anybody any more: what is acknowledged from now on is acknowledged by the next primary.
    fn cut_replication(&mut self) {
        for n in &mut self.nodes {
            n.upstream = None;
            n.link += 1;
        }
    }

    /// The standby that has most of the history, other than `not`: it has all that was ever acknowledged, if it
    /// followed, or follows, what a synchronous commit waited for.
    pub(crate) fn most_advanced(&self, not: usize) -> Option<usize> {
        let able = |i: &usize| {
            let n = &self.nodes[*i];
            *i != not && n.power == Power::Up && !n.frozen && !n.isolated && n.in_recovery
        };
        (0..self.nodes.len()).filter(able).max_by_key(|i| (self.nodes[*i].wal.len(), usize::MAX - i))
    }

    /// Whether promoting that standby keeps everything that was acknowledged.
    pub(crate) fn keeps_all(&self, node: usize) -> bool {
        self.nodes[node].common(&self.nodes[self.leader]) >= self.safe
    }

    /// Promotes a standby, which takes that long.
    pub(crate) fn promote(&mut self, node: usize, takes: u64) {
        self.truth.hits.push(self.now);
        self.say_fault(format_args!("db-{node} is being promoted, in {takes} us"));
        self.cut_replication();
        let incarnation = self.nodes[node].incarnation;
        self.push(self.now + takes, Event::Promoted { node, incarnation });
    }

    pub(crate) fn promoted(&mut self, node: usize, incarnation: u64) {
        let now = self.now;
        let n = &mut self.nodes[node];
        if n.incarnation != incarnation || !n.in_recovery {
            return;
        }
        n.in_recovery = false;
        n.timeline += 1;
        n.replayed = Some(n.dropped + n.wal.len());
        n.count_on();
        n.cools(now);
        let timeline = n.timeline;
        self.leader = node;
        self.unready = self.model.sync.then_some(now);
        if !self.model.sync {
            self.writable_at_last(node, now);
        }
        self.say_fault(format_args!("db-{node} is primary on timeline {timeline}"));
    }

    /// A promoted server can acknowledge a write. What was hit while it could not says nothing of what comes now.
    fn writable_at_last(&mut self, node: usize, promoted: u64) {
        if self.truth.hits.iter().all(|hit| *hit <= promoted) {
            self.truth.ready.push((self.now, node));
        }
    }

    /// Promotes a standby by a restart, as some services do: until it is up nobody is let in, and then it is cold.
    pub(crate) fn promote_by_restart(&mut self, node: usize, takes: u64) {
        self.say_fault(format_args!("db-{node} restarts as primary"));
        self.cut_replication();
        self.end_sessions(node, "57P01", "terminating connection due to administrator command", true);
        self.down_processes(node, Power::Starting);
        let (now, leader) = (self.now, node);
        let n = &mut self.nodes[node];
        (n.in_recovery, n.timeline) = (false, n.timeline + 1);
        n.cools(now + takes);
        self.leader = leader;
        self.start(node, takes);
    }

    /// Makes a running standby follow the primary, rewound if it has to be.
    pub(crate) fn follow(&mut self, node: usize, primary: usize) {
        if node == primary {
            return;
        }
        let common = self.nodes[node].common(&self.nodes[primary]);
        let n = &mut self.nodes[node];
        n.wal.truncate(common);
        n.link += 1;
        n.upstream = Some(primary);
        self.ship(primary);
    }

    /// Makes a server a standby of the primary, by a restart. Its history is rewound.
    pub(crate) fn rejoin(&mut self, node: usize, takes: u64) {
        let primary = self.leader;
        if node == primary {
            return;
        }
        self.say_fault(format_args!("db-{node} becomes a standby of db-{primary}"));
        self.end_sessions(node, "57P01", "terminating connection due to administrator command", true);
        self.down_processes(node, Power::Starting);
        let timeline = self.nodes[primary].timeline;
        let n = &mut self.nodes[node];
        (n.in_recovery, n.fenced, n.isolated, n.replayed) = (true, false, false, None);
        // Who is rewound gets the other's history of timelines with it.
        n.timeline = n.timeline.max(timeline);
        self.follow(node, primary);
        self.start(node, takes);
    }

    /// Starts a server, in the role that it has.
    pub(crate) fn start(&mut self, node: usize, takes: u64) {
        let now = self.now;
        let n = &mut self.nodes[node];
        if n.power == Power::Off {
            n.power = Power::Starting;
            self.host_returns(node);
        }
        let n = &mut self.nodes[node];
        n.power = Power::Starting;
        // No two servers start in the same microsecond.
        n.started = WALL + i64::try_from(now).unwrap_or(0) + i64::try_from(node).unwrap_or(0);
        n.idle(now);
        let incarnation = n.incarnation;
        self.push(now + takes, Event::Started { node, incarnation });
    }

    pub(crate) fn started(&mut self, node: usize, incarnation: u64) {
        if self.nodes[node].incarnation != incarnation {
            return;
        }
        self.nodes[node].power = Power::Up;
        self.say_fault(format_args!("db-{node} takes connections"));
        self.ship(node);
        if let Some(primary) = self.nodes[node].upstream {
            self.ship(primary);
        }
    }

    /// `default_transaction_read_only`, for everybody.
    pub(crate) fn fence(&mut self, node: usize, on: bool) {
        self.hit(node);
        self.say_fault(format_args!("db-{node} fenced: {on}"));
        self.nodes[node].fenced = on;
    }

    // ---- servers that end --------------------------------------------------------------------------------------

    /// The processes are gone, and all that they had begun.
    fn down_processes(&mut self, node: usize, power: Power) {
        let now = self.now;
        let n = &mut self.nodes[node];
        n.power = power;
        n.incarnation += 1;
        n.frozen = false;
        n.parked.clear();
        n.waits.clear();
        n.trap = None;
        n.idle(now);
    }

    fn sessions(&self, node: usize) -> Vec<ConnId> {
        let on =
            |(id, c): (&ConnId, &crate::world::Conn)| (c.node == node && c.server.is_some()).then_some(*id);
        self.conns.iter().filter_map(on).collect()
    }

    /// Says goodbye to every session: as an error or as a warning.
    fn end_sessions(&mut self, node: usize, code: &str, text: &str, error: bool) {
        let frozen = self.nodes[node].frozen;
        for id in self.sessions(node) {
            let mut out = bytes::BytesMut::new();
            if error {
                wire::error(&mut out, "FATAL", code, text);
            } else {
                wire::warning(&mut out, code, text, "quickdie");
            }
            if !frozen {
                self.flush(id, out, 0);
            }
            self.cut(id, frozen);
        }
    }

    /// Notes that whoever waits for a primary must wait anew.
    fn hit(&mut self, node: usize) {
        if node == self.leader {
            self.truth.hits.push(self.now);
        }
    }

    /// Everything takes so much longer, or as long as ever.
    pub(crate) fn slow_down(&mut self, extra_us: u64) {
        self.truth.hits.push(self.now);
        self.paths.iter_mut().flatten().for_each(|p| p.extra_us = extra_us);
    }

    /// A fast shutdown: every session hears of it, and the standbys get all that there is.
    pub(crate) fn stop(&mut self, node: usize) {
        self.hit(node);
        self.say_fault(format_args!("db-{node} is stopped"));
        self.end_sessions(node, "57P01", "terminating connection due to administrator command", true);
        for to in 0..self.nodes.len() {
            if self.nodes[to].upstream == Some(node) && self.linked(node, to) && !self.nodes[to].frozen {
                let have = self.nodes[to].wal.len();
                let new = self.nodes[node].wal.get(have..).map(<[Entry]>::to_vec).unwrap_or_default();
                self.nodes[to].wal.extend(new);
                self.nodes[to].timeline = self.nodes[node].timeline;
            }
        }
        self.down_processes(node, Power::Down);
        self.nodes[node].replayed = None;
    }

    /// SIGKILL: the kernel resets the sockets.
    pub(crate) fn kill(&mut self, node: usize) {
        self.hit(node);
        self.say_fault(format_args!("db-{node} is killed"));
        for id in self.sessions(node) {
            self.cut(id, true);
        }
        self.nodes[node].lose_unflushed();
        self.down_processes(node, Power::Down);
    }

    /// One backend crashed: all sessions end, and the server recovers.
    pub(crate) fn crash(&mut self, node: usize, takes: u64) {
        self.hit(node);
        self.say_fault(format_args!("db-{node} crashes and restarts"));
        let text = "terminating connection because of crash of another server process";
        self.end_sessions(node, "57P02", text, false);
        self.down_processes(node, Power::Starting);
        let n = &mut self.nodes[node];
        n.lose_unflushed();
        n.replayed = Some(n.dropped + n.wal.len());
        self.start(node, takes);
    }

    /// Nothing of the host is left, and nobody is told.
    pub(crate) fn power_off(&mut self, node: usize) {
        self.hit(node);
        self.say_fault(format_args!("db-{node} loses its power"));
        self.conns.retain(|_, c| c.node != node || !(c.orphan && c.client.closed));
        for c in self.conns.values_mut().filter(|c| c.node == node) {
            c.server = None;
        }
        self.down_processes(node, Power::Off);
        self.nodes[node].lose_unflushed();
        self.mind_silence();
    }

    /// SIGSTOP to every process: the kernel goes on acknowledging.
    pub(crate) fn freeze(&mut self, node: usize) {
        self.hit(node);
        self.say_fault(format_args!("db-{node} freezes"));
        self.nodes[node].frozen = true;
    }

    /// SIGCONT.
    pub(crate) fn thaw(&mut self, node: usize) {
        if !self.nodes[node].frozen {
            return;
        }
        self.say_fault(format_args!("db-{node} thaws"));
        self.nodes[node].frozen = false;
        let parked = std::mem::take(&mut self.nodes[node].parked);
        for event in parked {
            self.push(self.now, event);
        }
        for id in self.sessions(node) {
            self.turn(id);
        }
    }

    // ---- the network -------------------------------------------------------------------------------------------

    /// Packets between a process and a server get lost, or no more.
    pub(crate) fn black(&mut self, process: usize, node: usize, on: bool) {
        if self.paths[process][node].black != on {
            self.hit(node);
            self.say_fault(format_args!("path p{process} to db-{node} black: {on}"));
            self.paths[process][node].black = on;
            self.truth.blackouts.push((self.now, process, node, on));
            self.mind_silence();
        }
    }

    /// New connections of a process don't get to a server, or do again.
    pub(crate) fn no_syn(&mut self, process: usize, node: usize, on: bool) {
        self.say_fault(format_args!("path p{process} to db-{node} without new connections: {on}"));
        self.paths[process][node].no_syn = on;
        self.mind_silence();
    }

    /// The server's way to the other servers is cut, or no more.
    pub(crate) fn isolate(&mut self, node: usize, on: bool) {
        self.nodes[node].isolated = on;
        if !on {
            self.ship(node);
            if let Some(primary) = self.nodes[node].upstream {
                self.ship(primary);
            }
        }
    }

    /// One connection's packets get lost from now on.
    pub(crate) fn lose_flow(&mut self, id: ConnId) {
        if let Some(node) = self.conns.get(&id).map(|c| c.node) {
            self.hit(node);
        }
        if let Some(c) = self.conns.get_mut(&id) {
            c.black = true;
        }
        self.mind_silence();
    }

    /// The open connections to a server that a test picks.
    pub(crate) fn flows(&self, node: usize, monitors: bool) -> Vec<ConnId> {
        let is = |c: &crate::world::Conn| c.server.as_ref().is_some_and(|b| b.monitor == monitors);
        self.conns.iter().filter(|(_, c)| c.node == node && is(c)).map(|(id, _)| *id).collect()
    }

    fn host_returns(&mut self, node: usize) {
        self.say_fault(format_args!("db-{node} has power again"));
        self.mind_silence();
    }

    /// Starts the kernels' clocks where packets have begun to get lost, and sends again where they have ceased to.
    fn mind_silence(&mut self) {
        let now = self.now;
        let state: Vec<_> = self.conns.iter().map(|(id, c)| (*id, self.silent(c), c.silent_since)).collect();
        for (id, silent, since) in state {
            match (silent, since) {
                (true, None) => {
                    if let Some(c) = self.conns.get_mut(&id) {
                        c.silent_since = Some(now);
                    }
                    self.push(now + KERNEL_PATIENCE, Event::Silence { conn: id, since: now });
                }
                (false, Some(_)) => self.resend(id),
                (false, None) => {
                    // A SYN that was lost alone.
                    if self
                        .conns
                        .get(&id)
                        .is_some_and(|c| !c.held.is_empty() && !self.paths[c.process][c.node].no_syn)
                    {
                        self.resend(id);
                    }
                }
                (true, Some(_)) => {}
            }
        }
    }

    fn say_fault(&mut self, text: std::fmt::Arguments<'_>) {
        let now = self.now;
        self.log.line(now, text);
    }
}
