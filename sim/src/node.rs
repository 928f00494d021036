//! One server of the modelled cluster: its processes, its role, its history, its processors.

use std::net::Ipv4Addr;
use std::sync::Arc;

use crate::world::{ConnId, Event, Model};

/// The servers' wall clock when a run begins, in microseconds.
pub(crate) const WALL: i64 = 1_767_225_600_000_000;

/// The first transaction's number.
pub(crate) const FIRST_XID: u64 = 700;

/// What of a host is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Power {
    /// The server runs.
    Up,
    /// It runs and takes nobody yet (57P03).
    Starting,
    /// The host answers, no server listens.
    Down,
    /// The host is gone: nothing answers.
    Off,
}

/// What a transaction leaves behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Write {
    /// A row of the workload's table.
    Row(i64),
    /// A row of the token table, and its state.
    Token(Arc<str>, char),
    /// A row that was there, written again.
    Touch,
}

/// One committed transaction. Two histories agree as far as their entries' numbers do.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) id: u64,
    /// The transaction's number, where the model counts them. An entry without writes is the one that took it.
    pub(crate) xid: Option<u64>,
    pub(crate) writes: Arc<[Write]>,
}

impl Entry {
    /// Its rows of the workload's table.
    pub(crate) fn rows(&self) -> impl Iterator<Item = i64> {
        self.writes.iter().filter_map(|w| if let Write::Row(r) = w { Some(*r) } else { None })
    }
}

/// Something that is to go wrong at a frame to come.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trap {
    /// Frames that pass unharmed before it.
    pub(crate) after: u32,
    /// Only frames that commit count.
    pub(crate) commits: bool,
    /// The frame is executed first; only its answer is lost.
    pub(crate) executed: bool,
    /// What happens.
    pub(crate) what: Mishap,
}

/// What a [`Trap`] does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mishap {
    /// The connection is reset.
    Reset,
    /// Its packets get lost from now on.
    Black,
    /// The server's processes stop.
    Freeze,
    /// The server's processes are killed.
    Kill,
    /// The host loses its power.
    PowerOff,
}

/// A server and its host.
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) ip: Ipv4Addr,
    pub(crate) power: Power,
    pub(crate) frozen: bool,
    /// What came while the processes stood still.
    pub(crate) parked: Vec<Event>,
    /// Counts starts and ends: what was begun in an older one comes to nothing.
    pub(crate) incarnation: u64,
    pub(crate) in_recovery: bool,
    /// `default_transaction_read_only=on` for everybody.
    pub(crate) fenced: bool,
    pub(crate) timeline: u32,
    /// `pg_postmaster_start_time()` in microseconds.
    pub(crate) started: i64,
    /// `pg_last_wal_replay_lsn()` as an index into the history; `None` on a primary that was cleanly started.
    pub(crate) replayed: Option<usize>,
    pub(crate) wal: Vec<Entry>,
    /// Entries before these, which nobody needs any more.
    pub(crate) dropped: usize,
    /// Whom a standby follows.
    pub(crate) upstream: Option<usize>,
    /// Counts the standby's replication links: what an older one carried doesn't arrive.
    pub(crate) link: u64,
    /// Commits that wait for a standby.
    pub(crate) waits: Vec<(usize, ConnId)>,
    /// The host's network to the other hosts is cut.
    pub(crate) isolated: bool,
    pub(crate) trap: Option<Trap>,
    pub(crate) pids: i32,
    /// The next transaction's number.
    pub(crate) next_xid: u64,
    /// When each core is free.
    cores: Vec<u64>,
    cold_from: u64,
}

impl Node {
    pub(crate) fn new(index: usize, model: &Model) -> Self {
        Self {
            name: format!("db-{index}"),
            ip: Ipv4Addr::new(10, 0, 0, u8::try_from(index + 1).unwrap_or(u8::MAX)),
            power: Power::Up,
            frozen: false,
            parked: Vec::new(),
            incarnation: 0,
            in_recovery: index > 0,
            fenced: false,
            timeline: 1,
            // Each server was started by itself, some hours ago.
            started: WALL - 3_600_000_000 * i64::try_from(index + 1).unwrap_or(1),
            replayed: None,
            wal: Vec::new(),
            dropped: 0,
            upstream: (index > 0).then_some(0),
            link: 0,
            waits: Vec::new(),
            isolated: false,
            trap: None,
            pids: 0,
            next_xid: FIRST_XID,
            cores: vec![0; model.cores],
            cold_from: u64::MAX,
        }
    }

    /// Whether it takes writes.
    pub(crate) fn writable(&self) -> bool {
        self.power == Power::Up && !self.in_recovery && !self.fenced
    }

    /// The state of a token that was committed here.
    pub(crate) fn token(&self, token: &str) -> Option<char> {
        let is = |w: &Write| match w {
            Write::Token(t, state) if **t == *token => Some(*state),
            _ => None,
        };
        self.wal.iter().rev().flat_map(|e| e.writes.iter()).find_map(is)
    }

    /// How many entries two histories have in common.
    pub(crate) fn common(&self, other: &Self) -> usize {
        self.wal.iter().zip(&other.wal).take_while(|(a, b)| a.id == b.id).count()
    }

    /// Its caches are empty: work costs more at first.
    pub(crate) fn cools(&mut self, now: u64) {
        self.cold_from = now;
    }

    /// Gives work to the core that is free first; says when it will be done. First come, first served: in the sum
    /// as long as time-sharing would take.
    pub(crate) fn work(&mut self, cost: u64, now: u64, model: &Model) -> u64 {
        let cold = now.saturating_sub(self.cold_from);
        let cost = if self.cold_from <= now && cold < model.cold_us {
            // From the full factor down to one.
            let left = model.cold_us - cold;
            cost + cost * (model.cold_factor - 1) * left / model.cold_us
        } else {
            cost
        };
        let Some(core) = self.cores.iter_mut().min() else { return now };
        *core = (*core).max(now) + cost;
        *core
    }

    /// When the first of its cores is free.
    pub(crate) fn free_at(&self) -> u64 {
        self.cores.iter().min().copied().unwrap_or(0)
    }

    /// Work that was queued is gone with the processes.
    pub(crate) fn idle(&mut self, now: u64) {
        self.cores.fill(now);
    }
}
