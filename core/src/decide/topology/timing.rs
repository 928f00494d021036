//! Whom to ask and whom to dial, and when: regular probes, the search, back-off, the monitor's budget.

use std::time::Duration;

use rand::RngExt;

use crate::clock::Moment;
use crate::config::MonitorMode;
use crate::host::HostId;

use super::Topology;
use super::actions::{Action, State, TopologyEvent};
use super::host::{Host, Probing};
use super::types::{ConnectKind, TermRow};

/// Each dial's gap is so much longer than the last.
const GROWTH: f64 = 1.6;
/// A search that has lasted this long slows down, to the gap below.
const PATIENCE: Duration = Duration::from_secs(30);
const SLOWEST: Duration = Duration::from_secs(2);
/// After 53300 or 57P03 a dial costs the server CPU time that it lacks: two a second, one after ten seconds.
const REFUSED_GAP: Duration = Duration::from_millis(500);
const REFUSED_LONG_GAP: Duration = Duration::from_secs(1);
const REFUSED_LONG: Duration = Duration::from_secs(10);
/// A host that refused our name or password is asked again this seldom: accounts lock.
const DENIED_GAP: Duration = Duration::from_secs(60);
/// Between short monitor sessions where lasting ones are too many, in quiet and during a search.
const SHORT_GAP: Duration = Duration::from_secs(10);
const SHORT_SEARCH_GAP: Duration = Duration::from_secs(1);
/// The share of max_connections that monitors may hold in all, and the least they may hold.
const BUDGET: f64 = 0.05;
const BUDGET_LEAST: u32 = 3;
/// During a search a question on an open session that waits this long is joined by a dial: a retransmission on the
/// old socket may be long in coming.
const SEARCH_PATIENCE: Duration = Duration::from_millis(250);
/// A lost SYN is sent again after a second, too late for us: during a search the dial is given up and repeated
/// sooner, but never before four round trips.
const SEARCH_CONNECT: Duration = Duration::from_millis(200);
const CONNECT: Duration = Duration::from_secs(1);
/// TLS, login and the row may take longer than one reply.
const LOGIN: Duration = Duration::from_secs(2);

impl Probing {
    /// Whether a reply deadline runs. After the last miss nothing more is asked there, so nothing more is counted.
    pub(super) fn waits(&self, k: u32) -> bool {
        self.open && self.outstanding > 0 && self.missed < k
    }
}

impl Topology {
    /// A question at once, by whatever session there is. Bounds and budgets hold.
    pub(super) fn ask(&mut self, id: HostId, now: Moment) {
        if !self.awake() {
            return;
        }
        let Some(h) = self.hosts.get_mut(&id) else { return };
        // What callers' sessions carry doesn't settle it.
        h.carried = None;
        if h.probing.open {
            h.probing.next_probe = h.probing.next_probe.min(now);
            h.probing.ask_now = true;
        } else {
            self.redial(id, now);
        }
    }

    /// A dial as soon as the host's back-off permits.
    pub(super) fn redial(&mut self, id: HostId, now: Moment) {
        let Some(h) = self.hosts.get_mut(&id) else { return };
        let p = &mut h.probing;
        let floor = match p.failing {
            Some((kind, since)) => p.last_dial + least_gap(kind, since, now).unwrap_or(p.gap),
            None => now,
        };
        p.next_dial = p.next_dial.min(floor.max(now));
    }

    pub(super) fn plan_next_probe(&mut self, id: HostId, now: Moment) {
        let searching = self.search.is_some_and(|since| now - since >= PATIENCE);
        let interval = if self.search.is_some() {
            let Some(h) = self.hosts.get_mut(&id) else { return };
            if searching {
                h.probing.search_gap = grown(h.probing.search_gap, SLOWEST);
            }
            h.probing.search_gap
        } else if now < self.watchful_until {
            self.options.tuning.watchful_interval.min(self.options.probe_interval)
        } else {
            self.options.probe_interval
        };
        let gap = self.jitter(interval);
        let Some(h) = self.hosts.get_mut(&id) else { return };
        let p = &mut h.probing;
        p.missed = 0;
        p.next_probe = if p.ask_now { now } else { (p.asked + gap).max(now) };
    }

    /// After a dial failed.
    pub(super) fn back_off(&mut self, id: HostId, kind: ConnectKind, now: Moment) {
        let t = &self.options.tuning;
        let (first, max) = (t.search_dial_first, t.search_dial_max);
        let long = self.search.is_some_and(|since| now - since >= PATIENCE);
        let (search, watchful) = (self.search.is_some(), now < self.watchful_until);
        let (quiet, watch) = (self.options.probe_interval, t.watchful_interval);
        let Some(h) = self.hosts.get_mut(&id) else { return };
        let p = &mut h.probing;
        let same = p.failing.is_some_and(|(k, _)| k == kind);
        let since = match p.failing {
            Some((k, since)) if k == kind => since,
            _ => now,
        };
        p.failing = Some((kind, since));
        let gap =
            if same && !p.gap.is_zero() { grown(p.gap, if long { SLOWEST } else { max }) } else { first };
        p.gap = match least_gap(kind, since, now) {
            Some(least) => least,
            None if search => gap,
            None if watchful => watch,
            None if now - since >= PATIENCE => grown(p.gap.max(quiet), SLOWEST.max(quiet)),
            None => quiet,
        };
        let (gap, last) = (p.gap, p.last_dial);
        let gap = match least_gap(kind, since, now) {
            // "At most": only ever later.
            Some(least) => self.jitter(gap.mul_f64(1.0 + self.options.tuning.jitter)).max(least),
            None => self.jitter(gap),
        };
        if let Some(h) = self.hosts.get_mut(&id) {
            h.probing.next_dial = (last + gap).max(now);
        }
    }

    /// A caller was refused: our dials heed that as if it had been one of them.
    pub(super) fn learn_gap(&mut self, id: HostId, kind: ConnectKind, now: Moment) {
        let Some(h) = self.hosts.get_mut(&id) else { return };
        let p = &mut h.probing;
        let since = p.failing.filter(|&(k, _)| k == kind).map_or(now, |(_, since)| since);
        if let Some(least) = least_gap(kind, since, now) {
            p.failing = Some((kind, since));
            p.gap = least;
            p.last_dial = now;
            p.next_dial = p.next_dial.max(now + least);
        }
    }

    /// Whether a lasting probe session is wanted there.
    fn monitored(&self, id: HostId, h: &Host) -> bool {
        if !self.awake() || h.same_as.is_some() {
            return false;
        }
        // Where callers' sessions carry the term row to the primary, another session would only cost.
        let carried = self.options.monitor == MonitorMode::Auto
            && self.incumbent == Some(id)
            && h.state == State::Primary
            && h.carried.is_some();
        !carried
    }

    /// Whether a dial is wanted there: for want of a session, or because the open one is in doubt.
    fn dial_wanted(&self, id: HostId, h: &Host, now: Moment) -> bool {
        if self.held || h.probing.dialling.is_some() || !self.monitored(id, h) {
            return false;
        }
        let p = &h.probing;
        let waiting = self.search.is_some() && p.outstanding > 0 && now >= p.asked + SEARCH_PATIENCE;
        !p.open || h.misses > 0 || h.mark.is_some() || p.doubtful || waiting
    }

    /// Keeps one process's share: above the budget each closes its session by a draw, and asks by short ones.
    pub(super) fn mind_budget(&mut self, id: HostId, row: &TermRow, now: Moment) {
        let (Some(max), Some(count)) = (row.max_connections, row.own_sessions) else { return };
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of a u32 fits")]
        let limit = ((f64::from(max) * BUDGET) as u32).max(BUDGET_LEAST);
        let draw: f64 = self.rng.random_range(0.0..1.0);
        let Some(h) = self.hosts.get_mut(&id) else { return };
        let shed = if h.probing.short {
            // Come back only into free room, and not all at once.
            draw >= f64::from(limit.saturating_sub(count)) / f64::from(limit)
        } else {
            count > limit && draw < 1.0 - f64::from(limit) / f64::from(count)
        };
        let began = shed && !h.probing.short;
        h.probing.short = shed;
        if !shed {
            return;
        }
        self.close_probe(id);
        let gap = if self.search.is_some() { SHORT_SEARCH_GAP } else { SHORT_GAP };
        let gap = self.jitter(gap);
        if let Some(h) = self.hosts.get_mut(&id) {
            h.probing.next_dial = now + gap;
        }
        if began {
            self.event(TopologyEvent::MonitorSessionShed { host: id, count, limit });
        }
    }

    pub(super) fn close_probe(&mut self, id: HostId) {
        let Some(h) = self.hosts.get_mut(&id) else { return };
        let p = &mut h.probing;
        if p.open || p.dialling.is_some() {
            p.open = false;
            p.outstanding = 0;
            p.missed = 0;
            p.dialling = None;
            self.out.push(Action::CloseProbe { host: id });
        }
    }

    /// Begins or ends the search.
    pub(super) fn steer_search(&mut self, now: Moment) {
        let wanted = self.search_wanted();
        match (self.search, wanted) {
            (None, true) => {
                self.search = Some(now);
                let first = self.options.tuning.search_interval;
                for h in self.hosts.values_mut() {
                    h.probing.search_gap = first;
                    h.probing.next_probe = h.probing.next_probe.min(now);
                    h.probing.gap = Duration::ZERO;
                }
                let ids: Vec<HostId> = self.hosts.keys().copied().collect();
                for id in ids {
                    self.redial(id, now);
                }
                self.out.push(Action::Search { running: true });
                let incumbent = self.incumbent;
                self.event(TopologyEvent::SearchStarted { incumbent });
            }
            (Some(since), false) => {
                self.search = None;
                self.out.push(Action::Search { running: false });
                if let Some(primary) = self.incumbent {
                    let took_us = u64::try_from((now - since).as_micros()).unwrap_or(u64::MAX);
                    self.event(TopologyEvent::SearchEnded { primary, took_us });
                }
                let idle: Vec<HostId> = self
                    .hosts
                    .iter()
                    .filter(|(_, h)| h.probing.open && h.probing.outstanding == 0 && !h.probing.ask_now)
                    .map(|(&id, _)| id)
                    .collect();
                for id in idle {
                    self.plan_next_probe(id, now);
                }
            }
            _ => return,
        }
        self.changed = true;
    }

    /// Asks and dials what is due.
    pub(super) fn schedule(&mut self, now: Moment) {
        let ids: Vec<HostId> = self.hosts.keys().copied().collect();
        for id in ids {
            let lapsed = self.options.tuning.term_read_every;
            let Some(h) = self.hosts.get_mut(&id) else { continue };
            h.carried = h.carried.filter(|&t| now - t < lapsed);
            let Some(h) = self.hosts.get(&id) else { continue };
            if !self.monitored(id, h) {
                if h.misses == 0 && !h.suspect {
                    self.close_probe(id);
                }
                continue;
            }
            if self.dial_wanted(id, h, now) && h.probing.next_dial <= now {
                self.dial(id, now);
            }
            if self.hosts.get(&id).is_some_and(|h| h.probing.open && h.probing.outstanding == 0) {
                self.probe_if_due(id, now);
            }
        }
    }

    fn probe_if_due(&mut self, id: HostId, now: Moment) {
        let Some(due) = self.probe_due(id) else { return };
        if due > now {
            return;
        }
        let deadline = self.options.tuning.probe_deadline;
        let Some(h) = self.hosts.get_mut(&id) else { return };
        let p = &mut h.probing;
        p.ask_now = false;
        p.outstanding = 1;
        p.asked = now;
        p.deadline = now + deadline;
        self.out.push(Action::Probe { host: id });
    }

    /// When the next question is due. Bytes of its own put the primary's off, up to the reading of its term; the
    /// others are asked regularly however busy they are, for one of them may have been promoted beside a primary
    /// that lives.
    fn probe_due(&self, id: HostId) -> Option<Moment> {
        let h = self.hosts.get(&id)?;
        let p = &h.probing;
        let passive = !p.ask_now
            && self.search.is_none()
            && self.incumbent == Some(id)
            && h.state == State::Primary
            && h.superseded.is_none()
            && h.heard > h.answered;
        if !passive {
            return Some(p.next_probe);
        }
        let quiet = h.heard.map_or(p.next_probe, |t| t + self.options.probe_interval);
        let term = h.answered.map_or(p.next_probe, |t| t + self.options.tuning.term_read_every);
        Some(p.next_probe.max(quiet.min(term)))
    }

    fn dial(&mut self, id: HostId, now: Moment) {
        let rtt = self.hosts.values().filter_map(|h| h.probing.rtt).max();
        let connect_within = match (self.search, rtt) {
            (Some(_), Some(rtt)) => (rtt * 4).max(SEARCH_CONNECT).min(CONNECT),
            _ => CONNECT,
        };
        let Some(h) = self.hosts.get_mut(&id) else { return };
        h.probing.dialling = Some(now);
        h.probing.last_dial = now;
        self.out.push(Action::Dial { host: id, connect_within, login_within: LOGIN });
    }

    /// When [`Self::timer`] is wanted next; [`Moment::NEVER`] if only an input can change anything.
    pub fn next_timer(&self) -> Moment {
        let mut at = Moment::NEVER;
        let mut due = |t: Option<Moment>| at = at.min(t.unwrap_or(Moment::NEVER));
        let k = self.options.tuning.probe_misses;
        for (&id, h) in &self.hosts {
            let p = &h.probing;
            due(Some(p.deadline).filter(|_| p.waits(k)));
            due(h.superseded.and(h.heard).map(|t| t + self.options.tuning.grace));
            due(self.silence_due(id));
            due(self.dropped_at(id));
            due(h.carried.map(|t| t + self.options.tuning.term_read_every));
            if !self.monitored(id, h) {
                continue;
            }
            if p.open && p.outstanding == 0 {
                due(self.probe_due(id));
            }
            if p.dialling.is_none() && !self.held {
                let in_doubt = !p.open || h.misses > 0 || h.mark.is_some() || p.doubtful;
                let waiting = (self.search.is_some() && p.outstanding > 0).then(|| p.asked + SEARCH_PATIENCE);
                due(if in_doubt { Some(p.next_dial) } else { waiting.map(|t| t.max(p.next_dial)) });
            }
        }
        due(self.regressed.map(|(_, t)| t));
        at
    }
}

/// The gap that an answer of this kind asks for, whatever the haste.
fn least_gap(kind: ConnectKind, since: Moment, now: Moment) -> Option<Duration> {
    match kind {
        ConnectKind::NotReady | ConnectKind::Full if now - since >= REFUSED_LONG => Some(REFUSED_LONG_GAP),
        ConnectKind::NotReady | ConnectKind::Full => Some(REFUSED_GAP),
        // 42501 and TLS identity lock nothing, but nothing changes within seconds either.
        k if k.is_denied() => Some(DENIED_GAP),
        _ => None,
    }
}

fn grown(gap: Duration, max: Duration) -> Duration {
    gap.mul_f64(GROWTH).min(max)
}
