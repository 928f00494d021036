//! Where did the time of an outage go? Every instant of it is charged to exactly one cause, the one on the critical path
//! to the next successful write, so the parts add up to the whole.
//!
//! A pure state machine: [`Attribution::fact`] takes what happened, [`Attribution::timer`] gives the outage when it is
//! over. An outage opens with the first call that fails for a reason of failover origin, or is blocked for over 500 ms
//! (a caller that waits that long for a session while no host takes writes is blocked too). It closes when writes
//! succeed again and no error came for 3 s, and it lasted until the first of those writes.
//!
//! Most of it can only be told looking back: a blocked call was on a dead socket if its host proves gone later, and was
//! merely slow if it is answered. So a bounded log of what was true when ([`tracks`](self)) is kept while an outage is
//! open, and judged at its end ([`charge`](self)); the view before that is provisional. Blocked calls that were all
//! answered were no outage, unless they were commits that waited for a standby.
//!
//! Doesn't watch anything itself: [`crate::report`] feeds it and tells its results.

mod charge;
mod errors;
mod fact;
mod origin;
mod outage;
mod tracks;

use std::collections::BTreeMap;
use std::time::Duration;

use crate::clock::Moment;
use crate::host::HostId;

use charge::{Carry, Stretch};
use outage::Band;
use tracks::{Call, CallEnd, Tracks};

pub use errors::{Asked, Errors, Fate};
pub use fact::Fact;
pub use origin::Origin;
pub(crate) use origin::of_failover;
pub use outage::{Outage, OutageCause, Parts, Segment};
pub use tracks::Says;

/// A caller that waits for a session this long is blocked, if no host takes writes.
const BLOCKED: Duration = Duration::from_millis(500);
/// No error for this long: the outage is over.
const QUIET: Duration = Duration::from_secs(3);
/// Nobody asks for anything for this long, and a primary takes writes: it is over too, with the last trouble.
const IDLE: Duration = Duration::from_secs(30);
/// What is kept from before an outage: its first call may have waited for long when it is noticed.
const MEMORY: Duration = Duration::from_secs(30);
/// Intervals in the log. In an outage with more, the oldest are judged by what is known then.
const LOG: usize = 1_024;
/// Callers that are told apart while they wait; more are not.
const WAITS: usize = 4_096;
/// Calls that are told apart; of more, only their ends are noted.
const CALLS: usize = LOG / 2;
/// How long the present trusts a host's last sign of life: a probe's interval and its lateness.
const TRUST: Duration = Duration::from_millis(1_500);
/// Reaching a primary takes at least this long in health, whatever was measured.
const HEALTHY_LEAST: Duration = Duration::from_millis(5);
/// And no longer than this: what a fleet's own start cost, all of it at once, is no measure of health.
const HEALTHY_MOST: Duration = Duration::from_millis(250);

#[derive(Clone, Copy, Debug)]
struct Wait {
    since: Moment,
    /// It began before writes succeeded again: whoever got through later was still held up by the outage.
    late: bool,
    /// No host took writes for a while of it: what it waits for later is the way back.
    doubted: bool,
}

/// An outage that is open, or may be one.
#[derive(Clone, Debug)]
struct Candidate {
    /// It is one, whatever becomes known later.
    confirmed: bool,
    /// The first error, or the beginning of the wait that opened it.
    first: Option<Moment>,
    last_trouble: Moment,
    /// The first success after the last trouble.
    success: Option<(Moment, HostId)>,
    /// The first success after the last error.
    success_after_error: bool,
    first_success: Option<(Moment, HostId)>,
    initial: OutageCause,
    lost: Option<HostId>,
    errors: Errors,
    /// Which one: see [`Outage::number`].
    number: u64,
    /// What was judged already, because the log was full: until when, and how.
    settled: Option<(Moment, Moment, Band, Carry)>,
}

/// Attributes outages. See the module's head.
#[derive(Clone, Debug)]
pub struct Attribution {
    tracks: Tracks,
    candidate: Option<Candidate>,
    /// Candidates so far.
    candidates: u64,
    waits: BTreeMap<u64, Wait>,
    /// Writes have been seen by their tags: only they end an outage.
    writes_known: bool,
    /// The host that last took writes: who looks for the first one is starting up, and not coming back.
    primary: Option<HostId>,
    /// Since when it is another one, until a write succeeds there.
    moved: Option<Moment>,
    healthy: Duration,
    /// The end of the outage before: no instant belongs to two.
    floor: Moment,
}

impl Default for Attribution {
    fn default() -> Self {
        Self {
            tracks: Tracks::default(),
            candidate: None,
            candidates: 0,
            waits: BTreeMap::new(),
            writes_known: false,
            primary: None,
            moved: None,
            healthy: HEALTHY_LEAST,
            floor: Moment::ZERO,
        }
    }
}

impl Attribution {
    /// Whether successes are of interest now: an outage is open. (A call that is merely slow is none.)
    pub fn is_watching(&self) -> bool {
        let doubted = || self.waits.values().any(|w| w.doubted);
        self.candidate.as_ref().is_some_and(|c| c.confirmed || self.any_dead() || doubted())
    }

    /// What is or may become an outage now, by its [`Outage::number`]: where an error that was just told counts.
    pub fn number(&self) -> Option<u64> {
        self.candidate.as_ref().map(|c| c.number)
    }

    /// Whether a call still waits on a dead socket.
    fn hangs(&self) -> bool {
        self.tracks.calls.iter().any(|c| c.end == CallEnd::Open && self.tracks.is_dead(c))
    }

    fn any_dead(&self) -> bool {
        self.tracks.calls.iter().any(|c| self.tracks.is_dead(c))
    }

    /// Takes one fact.
    pub fn fact(&mut self, fact: Fact, at: Moment) {
        match fact {
            Fact::Known { host, named } => self.tracks.host(host, at).named = named,
            Fact::Says { host, says } => {
                if says == Says::Accepts && self.primary.replace(host).is_some_and(|before| before != host) {
                    self.moved = Some(at);
                    self.doubt(at);
                }
                if self.tracks.host(host, at).says(says, at) {
                    self.went(host, at);
                }
            }
            Fact::Heard { host, when } => self.tracks.host(host, at).heard(when.min(at)),
            Fact::Blocked { member, call, host, since } => self.blocked(member, call, host, since, at),
            Fact::Answered { member } => self.answered(member),
            Fact::Lost { member, host, since, timed_out } => {
                self.call_ended(member, host, since, timed_out, CallEnd::Lost, at);
                let c = self.trouble(at, OutageCause::DeadSocket);
                c.confirmed = true;
                c.lost.get_or_insert(host);
                self.last_words();
            }
            Fact::GivenUp { member, host, since } => {
                self.call_ended(member, host, since, false, CallEnd::GivenUp, at);
                // A slow call of a healthy host keeps nothing open.
                let dead = self.tracks.calls.iter().any(|c| c.member == member && self.tracks.is_dead(c));
                if self.candidate.is_none() || dead || self.tracks.host(host, at).now() != Says::Accepts {
                    self.trouble(at, OutageCause::DeadSocket);
                }
            }
            Fact::Failed { host, origin, unknown } => self.failed(host, origin, unknown, at),
            Fact::Fate { outage, origin, unknown, fate } => {
                if let Some(c) = self.candidate.as_mut().filter(|c| c.number == outage) {
                    c.errors.fate(origin, unknown, fate);
                }
            }
            Fact::Done { host, write } => self.done(host, write, at),
            Fact::WaitBegan { id } => self.wait_began(id, at),
            Fact::WaitEnded { id } => self.wait_ended(id, at),
            Fact::Attempt { host, begins } => {
                let h = self.tracks.host(host, at);
                h.under_way = if begins { h.under_way + 1 } else { h.under_way.saturating_sub(1) };
                let any = h.under_way > 0;
                h.attempts.set(any, at);
            }
            Fact::Search { running } => {
                self.tracks.search.set(running, at);
                self.doubt(at);
            }
            Fact::SyncWait { host, waiting, since } => self.sync_wait(host, waiting, since, at),
            Fact::Healthy { wait } => self.healthy = wait.clamp(HEALTHY_LEAST, HEALTHY_MOST),
        }
        if self.tracks.len() > LOG {
            self.shorten(at);
        }
    }

    /// Gives the outage that is over by now, if one is. To be called every 100 ms or so while [`Self::is_watching`], or
    /// while callers wait; later does no harm.
    pub fn timer(&mut self, now: Moment) -> Option<Outage> {
        self.open_by_waiting(now);
        let c = self.candidate.as_ref()?;
        let open_calls = self.tracks.calls.iter().any(|c| c.end == CallEnd::Open);
        let confirmed = c.confirmed || self.any_dead();
        let (trouble, success, settled) = (c.last_trouble, c.success, c.settled.is_some());
        if !confirmed {
            if !open_calls && now - trouble >= QUIET {
                self.candidate = None;
                self.tracks.calls.clear();
            }
            return None;
        }
        let held_up = self.waits.values().any(|w| w.late)
            || self.tracks.hosts.values().any(|h| h.sync.is_on())
            || self.hangs();
        let end = match success {
            Some((at, _)) if now - at >= QUIET => at,
            // A session was got, and nothing was ever asked of it.
            None if now - trouble >= IDLE
                && self.waits.is_empty()
                && !open_calls
                && self.tracks.accepting(now, now, TRUST).is_some() =>
            {
                trouble
            }
            _ => return None,
        };
        if held_up {
            return None;
        }
        let outage = self.judge(end, false, now);
        self.candidate = None;
        self.tracks.calls.retain(|c| c.end == CallEnd::Open);
        self.tracks.prune(end);
        let outage = outage?;
        self.floor = outage.until;
        // One that did not last, and in which nobody met an error, was none.
        let e = &outage.errors;
        (e.failed + e.spared + e.asked.under_way > 0 || settled || !outage.whole().is_zero())
            .then_some(outage)
    }

    /// The outage that is open, as it looks now.
    pub fn open(&self, now: Moment) -> Option<Outage> {
        let c = self.candidate.as_ref()?;
        let proved = c.confirmed || self.any_dead();
        // Writes succeed again: it may be over, and then it was over then. Not while a call hangs on a dead socket.
        let over = c.success.filter(|_| !self.hangs());
        let until = over.map_or(now, |(at, _)| at);
        if proved { self.judge(until, true, now) } else { None }
    }

    fn blocked(&mut self, member: u64, number: u64, host: HostId, since: Moment, at: Moment) {
        if self
            .tracks
            .calls
            .iter()
            .any(|c| c.member == member && c.number == number && c.end == CallEnd::Open)
        {
            return;
        }
        // Another call of that session waits: the one before was answered.
        self.answered(member);
        let from = since.max(self.tracks.host(host, at).heard);
        if self.tracks.calls.len() >= CALLS {
            return;
        }
        let call = Call { member, number, host, since, from, until: Moment::NEVER, end: CallEnd::Open };
        self.tracks.calls.push(call);
        self.candidate(since, OutageCause::DeadSocket);
    }

    /// A host went: calls that still wait there are held against it from its last sign of life on.
    fn went(&mut self, host: HostId, at: Moment) {
        let h = self.tracks.host(host, at);
        let heard = h.heard.min(at);
        // Nobody will count there that the waits for a standby are over.
        h.sync.set(false, heard);
        let open = |c: &&mut Call| c.host == host && c.end == CallEnd::Open;
        let began = self.tracks.calls.iter_mut().filter(open).map(|c| {
            c.from = c.from.max(heard);
            c.from
        });
        if let Some(began) = began.min() {
            // No trouble yet: the host may only be slow, and answer them. If it isn't, they end as lost.
            self.candidate(began, OutageCause::DeadSocket);
        }
        if self.candidate.as_ref().is_some_and(|c| c.lost == Some(host)) {
            self.last_words();
        }
    }

    /// A host that dies takes a moment: the last answer that the lost one still gave was no return.
    fn last_words(&mut self) {
        let Some(c) = self.candidate.as_mut() else { return };
        c.first_success.take_if(|(_, on)| c.lost == Some(*on));
        if c.success.take_if(|(_, on)| c.lost == Some(*on)).is_some() {
            c.success_after_error = false;
            self.waits.values_mut().for_each(|w| w.late = true);
        }
    }

    /// Whatever was answered in the end was on no dead socket: it is forgotten.
    fn answered(&mut self, member: u64) {
        self.tracks.calls.retain(|c| c.member != member || c.end != CallEnd::Open);
    }

    /// A call ended without an answer. What came from its host on other sockets meanwhile speaks for the host until then,
    /// but not for a socket that timed out.
    fn call_ended(
        &mut self,
        member: u64,
        host: HostId,
        since: Moment,
        timed_out: bool,
        end: CallEnd,
        at: Moment,
    ) {
        let heard = self.tracks.host(host, at).heard.min(at);
        let known = self.tracks.calls.iter().any(|c| c.member == member && c.end == CallEnd::Open);
        if !known && self.tracks.calls.len() < CALLS {
            let call = Call { member, number: 0, host, since, from: since, until: at, end: CallEnd::Open };
            self.tracks.calls.push(call);
        }
        for c in self.tracks.calls.iter_mut().filter(|c| c.member == member && c.end == CallEnd::Open) {
            c.from = if timed_out { c.since } else { c.since.max(heard) }.min(at);
            (c.end, c.until) = (end, at);
        }
    }

    /// Something speaks against a host, and none takes writes.
    fn nobody_accepts(&self, now: Moment) -> bool {
        let doubt = self.tracks.search.is_on() || self.tracks.hosts.values().any(|h| h.now().takes_none());
        doubt && self.tracks.accepting(now, now, TRUST).is_none()
    }

    fn failed(&mut self, host: Option<HostId>, origin: Origin, unknown: bool, at: Moment) {
        let open = self.candidate.is_some();
        let confirmed = self.candidate.as_ref().is_some_and(|c| c.confirmed);
        let nobody = origin == Origin::Own && !confirmed && self.nobody_accepts(at);
        let origin = if nobody { Origin::Failover } else { origin };
        match origin {
            Origin::Failover => {
                let c = self.trouble(at, OutageCause::NotWritableYet);
                c.confirmed = true;
                c.first = Some(c.first.map_or(at, |f| f.min(at)));
                c.lost = c.lost.or(host);
            }
            Origin::Own if open => {
                self.trouble(at, OutageCause::OwnStorm);
            }
            Origin::Own | Origin::Application => {}
        }
        if let Some(c) = &mut self.candidate {
            c.errors.met(origin, unknown);
        }
    }

    fn done(&mut self, host: HostId, write: bool, at: Moment) {
        self.tracks.host(host, at).heard(at);
        self.writes_known |= write;
        if !write && self.writes_known {
            return;
        }
        self.moved.take_if(|_| self.primary == Some(host));
        let Some(c) = &mut self.candidate else { return };
        c.first_success.get_or_insert((at, host));
        if at >= c.last_trouble {
            c.success.get_or_insert((at, host));
            c.success_after_error = true;
        }
    }

    fn wait_began(&mut self, id: u64, at: Moment) {
        if self.waits.len() >= WAITS {
            return;
        }
        let late = self.candidate.as_ref().is_some_and(|c| !c.success_after_error);
        self.waits.insert(id, Wait { since: at, late, doubted: false });
        self.tracks.waiting.set(true, at);
        self.doubt(at);
    }

    fn wait_ended(&mut self, id: u64, at: Moment) {
        // Time may not have been told for a while.
        self.open_by_waiting(at);
        let Some(wait) = self.waits.remove(&id) else { return };
        if self.waits.is_empty() {
            self.tracks.waiting.set(false, at);
        }
        if let Some(c) = &mut self.candidate
            && wait.late
        {
            // Somebody was still held up, though others got through before.
            c.last_trouble = c.last_trouble.max(at);
            c.success = None;
        }
    }

    fn sync_wait(&mut self, host: HostId, waiting: bool, since: Option<Moment>, at: Moment) {
        let open = self.tracks.calls.iter().filter(|c| c.host == host && c.end == CallEnd::Open);
        // It is noticed once calls are blocked: they have waited since they were sent.
        let since = open.map(|c| c.since).chain(since).min().unwrap_or(at).min(at);
        let h = self.tracks.host(host, at);
        if !waiting {
            h.sync.set(false, at);
            return;
        }
        if !h.sync.is_on() {
            h.sync.set(true, since);
        }
        let c = self.trouble(at, OutageCause::WaitingForStandby);
        c.confirmed = true;
        c.first = Some(c.first.map_or(since, |f| f.min(since)));
    }

    /// Who waits while no host takes writes may be held up by an outage: what succeeds meanwhile is of interest.
    fn doubt(&mut self, now: Moment) {
        // Without anything that speaks against a host, a slow connect is a slow connect.
        let Some(oldest) = self.waits.values().map(|w| w.since).min() else { return };
        // One that was so quickly succeeded that this process never saw nobody there has moved all the same.
        let moved = self.moved.is_some_and(|t| now - t < QUIET);
        if moved || (self.primary.is_some() && self.nobody_accepts(now)) {
            self.waits.values_mut().for_each(|w| w.doubted = true);
            self.candidate(oldest, OutageCause::NotWritableYet);
        }
    }

    /// Who has waited for too long by now, be a primary there again or not, is blocked: since the beginning of that wait.
    fn open_by_waiting(&mut self, now: Moment) {
        self.doubt(now);
        let nobody = self.nobody_accepts(now);
        let oldest = self.waits.values().filter(|w| w.doubted || nobody).map(|w| w.since).min();
        if let Some(since) = oldest.filter(|s| now - *s >= BLOCKED) {
            // No call was lost: the primary went while its sessions rested.
            let gone = self.tracks.hosts.iter().filter(|(_, h)| h.now().takes_none());
            let gone =
                gone.filter_map(|(id, h)| Some((h.accepting_since(now)?, *id))).max().map(|(_, id)| id);
            let c = self.candidate(since, OutageCause::NotWritableYet);
            c.confirmed = true;
            c.lost = c.lost.or(gone);
            c.first = Some(c.first.map_or(since, |f| f.min(since)));
        }
    }

    /// The present candidate, or a new one.
    fn candidate(&mut self, at: Moment, initial: OutageCause) -> &mut Candidate {
        if self.candidate.is_none() {
            // Who waits already is held up by it.
            self.waits.values_mut().for_each(|w| w.late = true);
        }
        let (candidates, open) = (&mut self.candidates, &mut self.candidate);
        open.get_or_insert_with(|| {
            *candidates += 1;
            Candidate {
                confirmed: false,
                first: None,
                last_trouble: at,
                success: None,
                success_after_error: false,
                first_success: None,
                initial,
                lost: None,
                errors: Errors::default(),
                number: *candidates,
                settled: None,
            }
        })
    }

    fn trouble(&mut self, at: Moment, initial: OutageCause) -> &mut Candidate {
        let c = self.candidate(at, initial);
        c.last_trouble = c.last_trouble.max(at);
        c.success = None;
        c.success_after_error = false;
        if !c.confirmed {
            // What succeeded before was no return.
            c.first_success = None;
        }
        c
    }

    /// When it began, as far as is known by now.
    fn began(&self, c: &Candidate) -> Option<Moment> {
        let dead = self.tracks.calls.iter().filter(|c| self.tracks.is_dead(c)).map(|c| c.from).min();
        let first = dead.into_iter().chain(c.first).min()?;
        Some(first.max(self.floor))
    }

    fn judge(&self, until: Moment, open: bool, now: Moment) -> Option<Outage> {
        let c = self.candidate.as_ref()?;
        let (began, from, mut band, mut carry) = match &c.settled {
            Some((began, from, band, carry)) => (*began, *from, band.clone(), *carry),
            None => {
                let began = self.began(c)?;
                (began, began, Band::default(), Carry { cause: c.initial, late: None })
            }
        };
        let until = until.max(from);
        let trust = if open { TRUST } else { Duration::ZERO };
        let stretch = Stretch { from, until, now, trust, healthy: self.healthy, began };
        charge::lay(&self.tracks, &stretch, &mut carry, &mut band);
        band.shorten();
        let back = c.success.map(|(_, host)| host);
        let ready = back.and_then(|h| self.tracks.hosts.get(&h)?.accepting_since(until));
        Some(Outage {
            from: began,
            until,
            open,
            parts: band.parts,
            segments: band.segments,
            lost: c.lost,
            back,
            ready: ready.filter(|r| *r > began),
            first_success: c.first_success.map(|(at, _)| at).filter(|s| *s >= began && *s <= until),
            number: c.number,
            errors: c.errors,
        })
    }

    /// The log is full. In quiet the past is forgotten; in an outage its first half is judged by what is known now.
    fn shorten(&mut self, now: Moment) {
        if self.candidate.as_ref().is_some_and(|c| c.confirmed) {
            self.settle(now);
        } else {
            self.tracks.prune(Moment::ZERO + (now - (Moment::ZERO + MEMORY)));
        }
        if self.tracks.len() > 2 * LOG {
            // Much within little time: better a short memory than a long list.
            self.tracks.prune(now);
        }
    }

    fn settle(&mut self, now: Moment) {
        let Some(c) = &self.candidate else { return };
        let (began, from, mut band, mut carry) = match &c.settled {
            Some((began, from, band, carry)) => (*began, *from, band.clone(), *carry),
            None => {
                let Some(began) = self.began(c) else { return };
                (began, began, Band::default(), Carry { cause: c.initial, late: None })
            }
        };
        let half = from + (now - from) / 2;
        // The end may turn out to lie before now: only what certainly belongs to it is judged.
        let cut = c.success.map_or(half, |(at, _)| half.min(at)).max(from);
        let stretch = Stretch { from, until: cut, now, trust: TRUST, healthy: self.healthy, began };
        charge::lay(&self.tracks, &stretch, &mut carry, &mut band);
        band.shorten();
        self.tracks.prune(cut);
        if let Some(c) = self.candidate.as_mut() {
            c.settled = Some((began, cut, band, carry));
        }
    }
}
