//! The pool's book: which session is lent, idle, opened or settled, who waits, and what happens next.
//!
//! Decides who gets a session, when one must be proved first, when one is opened, tested or closed, and who is refused.
//! It holds no session and no caller, only their numbers: [`crate::pool`] does. Rules: waiters are served in their order;
//! whoever comes while somebody waits, waits too. The session that came back last is lent first, so the others can be
//! proved or given up. Two are opened at a time: more logins at once would only end later, all of them. A session's
//! lifetime is drawn once, at its birth: drawn anew at each look, all would die at the earliest moment. A session that was
//! closed over a commit keeps its place while its backend waits for a synchronous standby ([`Seen`]).

mod kept;

use std::collections::VecDeque;
use std::time::Duration;

use rand::{Rng, RngExt};

use crate::clock::Moment;
use crate::decide::shed::{Queue, Shed, WAITERS_PER_CONNECTION, shed};
use crate::host::HostId;

use kept::Kept;
pub use kept::Seen;

/// Sessions that are opened at once.
const OPEN_AT_ONCE: usize = 2;
/// Holds that the mean is made of, and that a prediction needs.
const HOLDS: u32 = 20;
/// Pauses between attempts to refill after one that failed for good, first and longest.
const REFILL_PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// The pause after one that failed otherwise: a refusal that comes at once would be asked for again at once, for ever.
const PAUSE: Duration = Duration::from_millis(100);

/// The number of a session's place in the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotId(pub usize);

/// The number of a caller who waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WaiterId(pub u64);

/// What a pool is to be.
#[derive(Clone, Debug)]
pub struct PoolRules {
    /// Most sessions (`pool_max_conns`).
    pub max: usize,
    /// Sessions kept open (`pool_min_conns`).
    pub min: usize,
    /// A session that was silent for this long is proved before it is lent (`pool_validate_after`).
    pub validate_after: Duration,
    /// Longest life of a session (`pool_max_conn_lifetime`); zero: no end.
    pub lifetime: Duration,
    /// Share of the lifetime that chance takes away.
    pub lifetime_jitter: f64,
    /// A session that nobody wanted for this long is closed, down to `min`.
    pub idle_max: Duration,
    /// An idle session is tested this often.
    pub test_every: Duration,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    host: HostId,
    /// The last proof that it lives.
    alive: Moment,
    expires: Moment,
    /// When it was lent last, or came back, or was opened.
    wanted: Moment,
}

/// A session for a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lend {
    /// Which.
    pub slot: SlotId,
    /// It has been silent for long: a ping must prove it first.
    pub prove: bool,
}

/// What becomes of a session that came free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// It goes to that caller.
    To {
        /// Who has waited for longest.
        waiter: WaiterId,
        /// It has been silent for long in its last caller's hands: a ping must prove it first.
        prove: bool,
    },
    /// It waits for a caller.
    Keep,
    /// It is closed. Its place is free, unless it was abandoned.
    Close,
}

/// How a session came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Back {
    /// Usable; a byte of the server proved it alive then.
    Good(Moment),
    /// Not to be used again.
    Bad,
    /// Not to be used again; a commit of it may still be under way at the server. It was closed then.
    Abandoned(Moment),
}

/// Why no session was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotOpened {
    /// Another try at once is useless.
    ForGood,
    /// Another try may do, after that if it was said.
    ForNow(Option<Duration>),
}

/// What an idle session is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// Nothing speaks against it; its last byte came then.
    Good(Moment),
    /// A sibling died: only a ping can tell.
    Doubted,
    /// It has ended, or its host isn't right any more.
    Bad,
}

/// What a look at the idle sessions leads to.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Sweep {
    /// To be closed; their places are free.
    pub close: Vec<SlotId>,
    /// To be tested; they come back as [`Back`].
    pub test: Vec<SlotId>,
}

/// What a look at abandoned sessions leads to.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Looked {
    /// Places that are free again.
    pub free: Vec<SlotId>,
    /// Callers who waited: they can't be served before the standby is back.
    pub refused: Vec<WaiterId>,
}

/// How many sessions are in which state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[expect(missing_docs, reason = "the words say it")]
pub struct Counts {
    pub idle: usize,
    pub lent: usize,
    pub opening: usize,
    pub settling: usize,
    pub waiting: usize,
    /// Places of sessions that are gone, while their commits may wait for a synchronous standby.
    #[serde(skip_serializing_if = "none")]
    pub kept: usize,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
fn none(count: &usize) -> bool {
    *count == 0
}

/// How long sessions were kept, lately. What came back unusable doesn't count: a hold that an outage made long says
/// nothing of the next ones, and would have callers refused after it.
#[derive(Debug, Default)]
struct Holds {
    mean: Duration,
    count: u32,
}

impl Holds {
    fn add(&mut self, hold: Duration) {
        self.count = (self.count + 1).min(HOLDS);
        self.mean = (self.mean * (self.count - 1) + hold) / self.count;
    }

    /// Nothing before there were enough: a few (the first ones, mostly) don't tell how the next ones will be.
    fn mean(&self) -> Option<Duration> {
        (self.count == HOLDS).then_some(self.mean)
    }
}

/// The book of one pool.
#[derive(Debug)]
pub struct Pool {
    rules: PoolRules,
    slots: Vec<Slot>,
    free: Vec<SlotId>,
    /// The one that came back last is at the end.
    idle: Vec<SlotId>,
    opening: usize,
    settling: usize,
    kept: Kept,
    waiters: VecDeque<WaiterId>,
    next_waiter: u64,
    holds: Holds,
    refill: Option<(Moment, Duration)>,
    /// Nothing is opened before.
    paused: Moment,
}

impl Pool {
    /// An empty pool.
    pub fn new(rules: PoolRules) -> Self {
        Self {
            slots: Vec::with_capacity(rules.max),
            free: Vec::new(),
            idle: Vec::with_capacity(rules.max),
            opening: 0,
            settling: 0,
            kept: Kept::default(),
            waiters: VecDeque::new(),
            next_waiter: 0,
            holds: Holds::default(),
            refill: None,
            paused: Moment::ZERO,
            rules,
        }
    }

    /// Sessions, those that are being opened, and places that are kept.
    pub fn size(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// How many are in which state.
    pub fn counts(&self) -> Counts {
        let (idle, opening, settling, kept) = (self.idle.len(), self.opening, self.settling, self.kept.len());
        let lent = self.size() - idle - opening - settling - kept;
        Counts { idle, lent, opening, settling, waiting: self.waiters.len(), kept }
    }

    /// A session for a caller who has come now, if he need not wait.
    pub fn acquire(&mut self, now: Moment) -> Option<Lend> {
        if !self.waiters.is_empty() {
            return None;
        }
        let slot = self.idle.pop()?;
        let s = &mut self.slots[slot.0];
        s.wanted = now;
        Some(Lend { slot, prove: now - s.alive >= self.rules.validate_after })
    }

    /// A caller begins to wait; `again`: it was given a session that failed, and keeps its place.
    ///
    /// # Errors
    /// It is refused: it could not be served within its patience.
    pub fn wait(&mut self, again: bool, patience: Duration, searching: bool) -> Result<WaiterId, Shed> {
        if !again && let Some(refused) = shed(&self.queue(searching), patience) {
            return Err(refused);
        }
        let id = WaiterId(self.next_waiter);
        self.next_waiter += 1;
        if again {
            self.waiters.push_front(id);
        } else {
            self.waiters.push_back(id);
        }
        Ok(id)
    }

    fn queue(&self, searching: bool) -> Queue {
        Queue {
            ahead: self.waiters.len(),
            limit: self.rules.max * WAITERS_PER_CONNECTION,
            mean_hold: self.holds.mean(),
            usable: self.size() - self.opening - self.kept.len(),
            searching,
            standby: self.all_wait(),
        }
    }

    /// A caller waits no longer. (One to whom a session is on its way gives that back.)
    pub fn leave(&mut self, waiter: WaiterId) {
        self.waiters.retain(|w| *w != waiter);
    }

    /// All who wait, to be told why they can't be served.
    pub fn turn_away(&mut self) -> Vec<WaiterId> {
        self.waiters.drain(..).collect()
    }

    /// A place for a session to be opened now, if one is wanted.
    pub fn open(&mut self, now: Moment) -> Option<SlotId> {
        if self.opens_next().is_none_or(|due| now < due) {
            return None;
        }
        self.opening += 1;
        let slot = Slot { host: HostId(0), alive: now, expires: Moment::NEVER, wanted: now };
        Some(match self.free.pop() {
            Some(id) => {
                self.slots[id.0] = slot;
                id
            }
            None => {
                self.slots.push(slot);
                SlotId(self.slots.len() - 1)
            }
        })
    }

    /// A session was opened.
    pub fn opened(&mut self, slot: SlotId, host: HostId, now: Moment, rng: &mut impl Rng) -> Next {
        self.opening -= 1;
        self.refill = None;
        self.paused = Moment::ZERO;
        let PoolRules { lifetime, lifetime_jitter, .. } = self.rules;
        let s = &mut self.slots[slot.0];
        s.host = host;
        s.alive = now;
        if !lifetime.is_zero() {
            s.expires = now + lifetime.mul_f64(1.0 - rng.random_range(0.0..=lifetime_jitter));
        }
        self.place(slot, now)
    }

    /// None could be opened.
    pub fn not_opened(&mut self, slot: SlotId, why: NotOpened, now: Moment, rng: &mut impl Rng) {
        self.opening -= 1;
        self.release(slot);
        let chance = rng.random_range(0.8..=1.2);
        match why {
            NotOpened::ForGood => {
                let (first, most) = REFILL_PAUSE;
                let pause = self.refill.map_or(first, |(_, p)| (p * 2).min(most));
                self.refill = Some((now + pause.mul_f64(chance), pause));
            }
            NotOpened::ForNow(after) => {
                self.paused = now + after.unwrap_or(PAUSE).max(PAUSE).mul_f64(chance);
            }
        }
    }

    /// A caller gave a session back.
    pub fn back(&mut self, slot: SlotId, how: Back, now: Moment) -> Next {
        let s = &mut self.slots[slot.0];
        let Back::Good(alive) = how else { return self.end(slot, how) };
        self.holds.add(now - s.wanted);
        s.wanted = now;
        self.good(slot, alive, now)
    }

    /// A session that a caller gave back is brought out of its transaction first; it comes back by [`Self::settled`].
    pub fn settle(&mut self) {
        self.settling += 1;
    }

    /// A session was settled or tested.
    pub fn settled(&mut self, slot: SlotId, how: Back, now: Moment) -> Next {
        self.settling -= 1;
        match how {
            Back::Good(alive) => self.good(slot, alive, now),
            ended => self.end(slot, ended),
        }
    }

    /// A session that was lent failed its ping: its silent siblings on that host, silent for as long, are as dead. They
    /// are closed; nobody loses work by it.
    pub fn silent(&mut self, slot: SlotId) -> Vec<SlotId> {
        let Slot { host, alive, .. } = self.slots[slot.0];
        let dead: Vec<SlotId> = self
            .idle
            .iter()
            .copied()
            .filter(|s| self.slots[s.0].host == host && self.slots[s.0].alive <= alive)
            .collect();
        self.idle.retain(|s| !dead.contains(s));
        for s in &dead {
            self.release(*s);
        }
        dead
    }

    /// Looks at the idle sessions.
    pub fn sweep(&mut self, now: Moment, mut look: impl FnMut(SlotId) -> Look) -> Sweep {
        let mut sweep = Sweep::default();
        let mut kept = Vec::with_capacity(self.idle.len());
        for id in std::mem::take(&mut self.idle) {
            let s = &mut self.slots[id.0];
            let looked = look(id);
            if let Look::Good(alive) = looked {
                s.alive = s.alive.max(alive);
            }
            let Slot { alive, expires, wanted, .. } = *s;
            let superfluous = now - wanted >= self.rules.idle_max && self.size() > self.rules.min;
            if looked == Look::Bad || now >= expires || superfluous {
                self.release(id);
                sweep.close.push(id);
            } else if looked == Look::Doubted || now - alive >= self.rules.test_every {
                self.settling += 1;
                sweep.test.push(id);
            } else {
                kept.push(id);
            }
        }
        self.idle = kept;
        sweep
    }

    /// The abandoned sessions whose backends are to be looked at now; then comes [`Self::looked`].
    pub fn look(&mut self, now: Moment) -> Vec<SlotId> {
        self.kept.look(now)
    }

    /// What that look saw of them; `None` where nobody could look.
    pub fn looked(&mut self, seen: impl Fn(SlotId) -> Option<Seen>, now: Moment) -> Looked {
        let free = self.kept.looked(seen, now);
        self.free.extend(&free);
        let refused = if self.all_wait() { self.turn_away() } else { Vec::new() };
        Looked { free, refused }
    }

    /// Frees what was kept for as long as may be, and the places of these: their host isn't what it was.
    pub fn forget(&mut self, gone: &[SlotId], now: Moment) {
        self.free.extend(self.kept.forget(gone));
        self.free.extend(self.kept.overdue(now));
    }

    /// Whether the place of an abandoned session is kept.
    pub fn keeps(&self, slot: SlotId) -> bool {
        self.kept.has(slot)
    }

    /// Whether no place is left beside those of commits that wait for a standby.
    fn all_wait(&self) -> bool {
        self.kept.waiting() >= self.rules.max
    }

    /// When [`Self::sweep`], [`Self::open`] or [`Self::look`] may have something to do, if nothing happens before.
    pub fn next(&self) -> Moment {
        let PoolRules { idle_max, test_every, min, .. } = self.rules;
        let of = |s: &SlotId| {
            let s = &self.slots[s.0];
            let superfluous = if self.size() > min { s.wanted + idle_max } else { Moment::NEVER };
            s.expires.min(s.alive + test_every).min(superfluous)
        };
        let due = self.opens_next().into_iter().chain(self.kept.next());
        self.idle.iter().map(of).chain(due).min().unwrap_or(Moment::NEVER)
    }

    /// From when on another one is to be opened, if any is.
    fn opens_next(&self) -> Option<Moment> {
        if self.opening >= OPEN_AT_ONCE || self.size() >= self.rules.max {
            return None;
        }
        if self.waiters.len() > self.opening {
            return Some(self.paused);
        }
        let refill = self.refill.map_or(Moment::ZERO, |(due, _)| due);
        (self.size() < self.rules.min).then_some(refill.max(self.paused))
    }

    /// Gives up all idle sessions, and what is kept: the pool is closed, and none is opened any more.
    pub fn drain(&mut self) -> Vec<SlotId> {
        self.rules.min = 0;
        self.free.extend(self.kept.forget_all());
        let all = std::mem::take(&mut self.idle);
        for s in &all {
            self.release(*s);
        }
        all
    }

    /// A session is taken out of the pool for good, by its caller.
    pub fn detach(&mut self, slot: SlotId) {
        self.release(slot);
    }

    /// A session is free again, unless it has lived long enough.
    fn good(&mut self, slot: SlotId, alive: Moment, now: Moment) -> Next {
        let s = &mut self.slots[slot.0];
        s.alive = alive;
        if now >= s.expires {
            return self.close(slot);
        }
        self.place(slot, now)
    }

    fn place(&mut self, slot: SlotId, now: Moment) -> Next {
        match self.waiters.pop_front() {
            Some(waiter) => {
                let s = &mut self.slots[slot.0];
                s.wanted = now;
                Next::To { waiter, prove: now - s.alive >= self.rules.validate_after }
            }
            None => {
                self.idle.push(slot);
                Next::Keep
            }
        }
    }

    fn end(&mut self, slot: SlotId, how: Back) -> Next {
        if let Back::Abandoned(at) = how {
            self.kept.add(slot, at);
            return Next::Close;
        }
        self.close(slot)
    }

    fn close(&mut self, slot: SlotId) -> Next {
        self.release(slot);
        Next::Close
    }

    fn release(&mut self, slot: SlotId) {
        self.free.push(slot);
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    /// The pool's task asks when to look again: "at once" without anything to do would be for ever.
    #[test]
    fn a_closed_pool_that_was_to_keep_sessions_open_has_nothing_more_to_do() {
        let second = Duration::from_secs(1);
        let mut book = Pool::new(PoolRules {
            max: 2,
            min: 2,
            validate_after: second,
            lifetime: 60 * second,
            lifetime_jitter: 0.0,
            idle_max: 600 * second,
            test_every: 30 * second,
        });
        assert!(book.open(Moment::ZERO).is_some());
        let slot = SlotId(0);
        book.drain();
        let mut rng = rand::rngs::StdRng::seed_from_u64(1);
        book.not_opened(slot, NotOpened::ForNow(None), Moment::ZERO, &mut rng);
        assert_eq!((book.size(), book.next(), book.open(Moment::NEVER)), (0, Moment::NEVER, None));
    }
}
