//! Failures and silence: E1 (a new connection failed), E2 (reply deadlines missed, and the vetoes before that may
//! abort anything), E3 (a socket of ours ended).

use std::time::Duration;

use crate::clock::Moment;
use crate::config::MonitorMode;
use crate::host::HostId;

use super::Topology;
use super::actions::{Action, Cause, InFlight, TopologyEvent};
use super::host::Mark;
use super::types::{ConnectKind, EndCause, MemberId};

/// Some managed services answer 28000 while they restart: within this long after the host was healthy it isn't taken
/// for a wrong configuration.
const AFTER_HEALTHY: Duration = Duration::from_secs(60);
/// The last blocked call is remembered for so many members of one host; the oldest are forgotten first.
const BLOCKED: usize = 4_096;

impl Topology {
    /// The server itself said something: it lives, and whatever silence had counted is over.
    pub(super) fn heard(&mut self, id: HostId, now: Moment) {
        if let Some(h) = self.hosts.get_mut(&id) {
            h.heard = h.heard.max(Some(now));
            h.misses = 0;
            h.first_miss = None;
            h.fresh_silent = false;
            h.silence_level = 0;
            h.probing.missed = 0;
            h.probing.doubtful = false;
        }
        self.suspect_ourselves(false, now);
    }

    /// A byte came on some socket: alive, though the probe session may be stuck.
    pub(super) fn byte_seen(&mut self, id: HostId, at: Moment, now: Moment) {
        let deadline = self.options.tuning.probe_deadline;
        let Some(h) = self.hosts.get_mut(&id) else { return };
        if h.heard >= Some(at) {
            return;
        }
        let missed = h.misses > 0 && h.first_miss < Some(at);
        if !missed {
            h.heard = Some(at);
            return self.suspect_ourselves(false, now);
        }
        self.heard(id, at);
        let Some(h) = self.hosts.get_mut(&id) else { return };
        h.suspect = true;
        h.probing.asked = now;
        h.probing.deadline = now + deadline;
        self.redial(id, now);
    }

    // ---- E1: that host, for new connections; never a call ----

    pub(super) fn connected(&mut self, id: HostId, now: Moment) {
        self.held = false;
        self.heard(id, now);
        let Some(h) = self.hosts.get_mut(&id) else { return };
        h.tried = true;
        h.note = Cause::Answered;
        if h.mark.take().is_some() || h.probing.failing.is_some() {
            h.probing.failing = None;
            h.probing.gap = Duration::ZERO;
            h.probing.next_dial = now;
        }
    }

    pub(super) fn connect_failed(&mut self, id: HostId, kind: ConnectKind, now: Moment) {
        self.split(id, now);
        let kind = self.new_connection_failed(id, kind, now);
        let fresh = self.options.tuning.fresh;
        let Some(h) = self.hosts.get_mut(&id) else { return };
        // Our own session there has answered a moment ago: our own dial is to confirm it first.
        let sound = h.probing.open && h.misses == 0 && h.answered_within(fresh, now);
        let confirmed = h.mark.is_some_and(|m| !m.tentative);
        h.mark = Some(Mark { kind, tentative: !kind.is_reply() && sound && !confirmed });
        self.learn_gap(id, kind, now);
        self.redial(id, now);
    }

    pub(super) fn probe_connect_failed(&mut self, id: HostId, kind: ConnectKind, now: Moment) {
        let kind = self.new_connection_failed(id, kind, now);
        let Some(h) = self.hosts.get_mut(&id) else { return };
        h.probing.dialling = None;
        h.mark = Some(Mark { kind, tentative: false });
        if h.sockets_ended && !kind.is_reply() {
            // Sessions ended, and nobody takes new ones: the idle rest is not worth a ping.
            self.clear(id, Cause::SocketsEnded, true, InFlight::Leave, now);
        }
        self.back_off(id, kind, now);
    }

    fn new_connection_failed(&mut self, id: HostId, kind: ConnectKind, now: Moment) -> ConnectKind {
        let Some(h) = self.hosts.get_mut(&id) else { return kind };
        let healthy = h.answered_within(AFTER_HEALTHY, now);
        let kind = if kind == ConnectKind::NotAuthorized && healthy { ConnectKind::NotReady } else { kind };
        h.tried = true;
        h.note = Cause::ConnectFailed { kind };
        if kind.is_reply() {
            // 57P03 and 53300 too are proof of life (veto b).
            if h.probing.outstanding > 0 {
                h.probing.asked = now;
                h.probing.deadline = now + self.options.tuning.probe_deadline;
            }
            self.heard(id, now);
        } else if h.first_miss.is_some() {
            h.fresh_silent = true;
        }
        if kind == ConnectKind::BadPassword && !std::mem::replace(&mut self.held, true) {
            self.event(TopologyEvent::MonitorHeld { host: id });
        }
        kind
    }

    // ---- E2: silence ----

    /// A call has seen no byte for long. That makes its host worth a question, once.
    pub(super) fn call_blocked(
        &mut self,
        id: HostId,
        member: MemberId,
        call: u64,
        since: Moment,
        now: Moment,
    ) {
        if self.options.monitor == MonitorMode::Off {
            return;
        }
        self.split(id, now);
        let window = self.options.suspect_after.min(now - since);
        let Some(h) = self.hosts.get_mut(&id) else { return };
        if h.heard_within(window, now) || h.blocked.get(&member) == Some(&call) {
            return;
        }
        h.blocked.insert(member, call);
        while h.blocked.len() > BLOCKED {
            h.blocked.pop_first();
        }
        h.suspect = true;
        h.note = Cause::CallBlocked;
        self.ask(id, now);
    }

    /// Reply deadlines that have passed.
    pub(super) fn missed_deadlines(&mut self, now: Moment) {
        let (k, deadline) = (self.options.tuning.probe_misses, self.options.tuning.probe_deadline);
        let late: Vec<HostId> = self
            .hosts
            .iter()
            .filter(|(_, h)| h.probing.waits(k) && h.probing.deadline <= now)
            .map(|(&id, _)| id)
            .collect();
        for id in late {
            let Some(h) = self.hosts.get_mut(&id) else { continue };
            h.probing.deadline = now + deadline;
            if h.heard > Some(h.probing.asked) {
                // Others hear from it: this one session is stuck, the host isn't. A new one is to answer.
                h.probing.doubtful = true;
                h.probing.asked = now;
                self.redial(id, now);
                continue;
            }
            h.misses += 1;
            h.probing.missed += 1;
            h.note = Cause::Silence;
            let first = h.first_miss.is_none();
            h.first_miss.get_or_insert(h.probing.asked);
            if h.misses < k && h.probing.outstanding < k {
                h.probing.outstanding += 1;
                self.out.push(Action::Probe { host: id });
            }
            self.redial(id, now);
            if first {
                // Veto d needs to know whether anybody else is heard.
                let others: Vec<HostId> = self.hosts.keys().copied().filter(|&o| o != id).collect();
                for o in others {
                    self.ask(o, now);
                }
            }
        }
    }

    /// Our own runtime stood still: nobody else's silence counts (veto c).
    pub(super) fn stalled(&mut self, now: Moment) {
        let deadline = self.options.tuning.probe_deadline;
        for h in self.hosts.values_mut() {
            if h.misses > 0 {
                h.suspect = true;
                h.probing.doubtful = true;
            }
            h.misses = 0;
            h.first_miss = None;
            h.fresh_silent = false;
            h.silence_level = 0;
            h.probing.missed = 0;
            if h.probing.outstanding > 0 {
                h.probing.asked = now;
                h.probing.deadline = now + deadline;
            }
            if h.probing.dialling.is_some() {
                h.probing.dialling = Some(now);
            }
        }
    }

    /// When the silence of a host that is down began, counted from its last byte.
    fn silent_since(&self, id: HostId) -> Option<Moment> {
        let h = self.hosts.get(&id)?;
        let first = h.first_miss?;
        (h.misses >= self.options.tuning.probe_misses).then(|| h.heard.map_or(first, |t| t.max(first)))
    }

    /// When a host that is down will have been silent for so long that more is permitted.
    pub(super) fn silence_due(&self, id: HostId) -> Option<Moment> {
        let h = self.hosts.get(&id)?;
        let since = self.silent_since(id)?;
        let patience = self.options.user_timeout;
        let dial =
            h.probing.dialling.filter(|_| !h.fresh_silent).map(|t| t + self.options.tuning.probe_deadline);
        let next = match h.silence_level {
            2 => None,
            _ if self.ourselves => Some(since + patience * 3),
            1 => Some(since + patience),
            _ => None,
        };
        match (dial.filter(|_| h.silence_level == 0), next) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// What silence permits. Each veto that holds keeps the calls alive.
    pub(super) fn silence(&mut self, now: Moment) {
        let ids: Vec<HostId> = self.hosts.keys().copied().collect();
        for id in ids {
            let Some(since) = self.silent_since(id) else { continue };
            let Some(h) = self.hosts.get(&id) else { continue };
            if h.silence_level == 2 {
                continue;
            }
            // (a) A byte would have reset the count; (c) so would a stall. (b) A fresh connection got no reply either:
            let pending = h.probing.dialling.is_some_and(|t| now - t >= self.options.tuning.probe_deadline);
            if !(h.fresh_silent || pending) {
                continue;
            }
            let first = h.first_miss;
            if let Some(h) = self.hosts.get_mut(&id) {
                h.fresh_silent = true;
            }
            // (d) Somebody else was heard since.
            let others = self.hosts.iter().any(|(&o, other)| o != id && other.heard > first);
            let silent_for = now - since;
            if !others && self.name_server <= first {
                self.suspect_ourselves(true, now);
                if silent_for >= self.options.user_timeout * 3 {
                    self.permit(id, 2, now);
                }
                continue;
            }
            // (e) Writes wait until another host takes writes, or the kernel would have given up.
            let successor = self.incumbent.filter(|&i| i != id).and_then(|i| self.hosts.get(&i));
            let succeeded = successor.is_some_and(|s| s.writable() && s.answered > first);
            let all = succeeded || silent_for >= self.options.user_timeout;
            self.permit(id, if all { 2 } else { 1 }, now);
        }
    }

    fn permit(&mut self, id: HostId, level: u8, now: Moment) {
        let Some(h) = self.hosts.get_mut(&id) else { return };
        let before = h.silence_level;
        if level <= before {
            return;
        }
        h.silence_level = level;
        let in_flight = if level == 2 { InFlight::Close } else { InFlight::CloseHarmless };
        if before == 0 {
            self.clear(id, Cause::Silence, true, in_flight, now);
        } else {
            self.clear_more(id, Cause::Silence, in_flight);
        }
    }

    fn suspect_ourselves(&mut self, on: bool, now: Moment) {
        if self.ourselves == on {
            return;
        }
        self.ourselves = on;
        self.changed = true;
        if !on {
            // The silence was ours: whoever hasn't been heard yet gets its three deadlines anew.
            self.stalled(now);
        }
        self.out.push(Action::SuspectOurselves { on });
        self.event(if on { TopologyEvent::SuspectOurselves } else { TopologyEvent::OurselvesCleared });
    }

    /// A name server that isn't on this machine answered: the network is there.
    pub(super) fn name_server_answered(&mut self, local: bool, now: Moment) {
        if !local {
            self.name_server = Some(now);
            self.suspect_ourselves(false, now);
        }
    }

    // ---- E3: sockets of ours ----

    pub(super) fn session_ended(
        &mut self,
        member: MemberId,
        id: HostId,
        generation: u64,
        cause: EndCause,
        now: Moment,
    ) {
        let Some(h) = self.hosts.get_mut(&id) else { return };
        h.blocked.remove(&member);
        if generation < h.generation || alone(cause) {
            return;
        }
        self.split(id, now);
        self.sockets_ended(id, now);
    }

    pub(super) fn probe_failed(&mut self, id: HostId, cause: EndCause, now: Moment) {
        let k = self.options.tuning.probe_misses;
        let Some(h) = self.hosts.get_mut(&id) else { return };
        let p = &mut h.probing;
        p.open = false;
        p.outstanding = 0;
        p.missed = 0;
        p.next_dial = p.next_dial.min(now);
        if alone(cause) {
            return;
        }
        if cause == EndCause::TimedOut {
            // The kernel has waited longer than our own deadlines do.
            h.misses = h.misses.max(k);
            h.first_miss = h.first_miss.or(h.heard).or(Some(now));
            h.note = Cause::Silence;
            return;
        }
        self.sockets_ended(id, now);
    }

    fn sockets_ended(&mut self, id: HostId, now: Moment) {
        let Some(h) = self.hosts.get_mut(&id) else { return };
        h.sockets_ended = true;
        h.suspect = self.options.monitor != MonitorMode::Off;
        h.note = Cause::SocketsEnded;
        self.out.push(Action::PingIdle { host: id });
        self.ask(id, now);
    }

    pub(super) fn ping_failed(&mut self, id: HostId, generation: u64, now: Moment) {
        if self.hosts.get(&id).is_some_and(|h| generation >= h.generation) {
            self.clear(id, Cause::SocketsEnded, true, InFlight::Leave, now);
            self.ask(id, now);
        }
    }
}

/// Ends that say nothing about the host or its other sessions: ours, and the two timeouts of one session (57P05
/// idle_session_timeout, 25P03 idle_in_transaction_session_timeout).
fn alone(cause: EndCause) -> bool {
    match cause {
        EndCause::Local => true,
        EndCause::Sqlstate(s) => matches!(s.as_str(), "57P05" | "25P03"),
        EndCause::Reset | EndCause::Fin | EndCause::TimedOut => false,
    }
}
