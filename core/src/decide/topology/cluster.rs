//! Who is the primary: terms within one system identifier (E5), equal terms, other clusters, and what an operator
//! accepts.

use std::time::Duration;

use crate::clock::Moment;
use crate::config::{MonitorMode, OnNewCluster};
use crate::host::HostId;

use super::Topology;
use super::actions::{Cause, InFlight, Role, TopologyEvent};
use super::host::{Host, Superseded};
use super::types::ConnectKind;

/// How long another system identifier must stand alone before it is followed, and a vanished address is kept.
const SETTLE: Duration = Duration::from_secs(10);
/// After a new primary everything is watched more closely for this long.
const WATCHFUL: Duration = Duration::from_secs(10);
/// Between two reminders that the term regressed.
const REMIND: Duration = Duration::from_secs(60);
/// How many system identifiers are remembered.
const IDENTIFIERS: usize = 8;

impl Topology {
    /// Puts a host that has just answered into its place.
    pub(super) fn place(&mut self, id: HostId, now: Moment) {
        if !self.same_cluster(id, now) {
            return;
        }
        let highest = self.highest;
        let Some(h) = self.hosts.get_mut(&id) else { return };
        match h.role {
            Some(Role::Standby) => {
                // It follows somebody again, so whatever was wrong with its own history is over.
                h.stale = false;
                h.contests = false;
                h.foreign = false;
                h.given_up = None;
            }
            Some(Role::PrimaryReadOnly) => {
                h.contests = false;
                h.stale = h.timeline.is_some() && h.timeline < highest;
            }
            Some(Role::Primary) if h.never_primary => {
                h.foreign = true;
                h.note = Cause::NeverPrimary;
            }
            Some(Role::Primary) => match (h.timeline, highest) {
                (Some(t), _) if h.given_up.is_some_and(|g| t <= g) => h.stale = true,
                (Some(t), Some(high)) if t < high => h.stale = true,
                (Some(t), Some(high)) if t > high => self.rise(id, t, now),
                (Some(t), None) if self.incumbent.is_none() => self.rise(id, t, now),
                // A term that can't be read any more doesn't make it right again.
                (None, _) if h.stale => {}
                (t, _) => {
                    h.stale = false;
                    if highest.is_none() {
                        self.highest = t;
                    }
                    self.contend(id, now);
                }
            },
            None => {}
        }
    }

    /// E5: one row is enough for the highest timeline and the incumbent; aborting on a host that answered a moment
    /// ago wants a second.
    fn rise(&mut self, id: HostId, timeline: u32, now: Moment) {
        self.highest = Some(timeline);
        let older: Vec<HostId> = self
            .hosts
            .iter()
            .filter(|&(&o, h)| {
                o != id
                    && h.same_as.is_none()
                    && !h.foreign
                    && !h.stale
                    && matches!(h.role, Some(Role::Primary | Role::PrimaryReadOnly))
                    && !self.shares_server(o, id)
            })
            .map(|(&o, _)| o)
            .collect();
        self.crown(id, now);
        for o in older {
            self.supersede(o, id, timeline, now);
        }
    }

    fn shares_server(&self, a: HostId, b: HostId) -> bool {
        match (self.hosts.get(&a), self.hosts.get(&b)) {
            (Some(a), Some(b)) => a.start.is_some() && a.start == b.start && a.system == b.system,
            _ => false,
        }
    }

    fn crown(&mut self, id: HostId, now: Moment) {
        let Some(h) = self.hosts.get_mut(&id) else { return };
        h.stale = false;
        h.contests = false;
        h.foreign = false;
        let timeline = h.timeline;
        // Elected without having been compared (no term was known then): what comes is compared with this one.
        self.highest = self.highest.or(timeline);
        let before = self.incumbent;
        if before == Some(id) {
            return;
        }
        self.incumbent = Some(id);
        self.incumbent_since = now;
        self.changed = true;
        if before.is_some() {
            self.watchful_until = now + WATCHFUL;
        }
        self.event(TopologyEvent::NewPrimary { host: id, timeline, before });
    }

    fn supersede(&mut self, old: HostId, by: HostId, timeline: u32, now: Moment) {
        let window = self.options.tuning.grace;
        let Some(h) = self.hosts.get_mut(&old) else { return };
        h.stale = true;
        let cause = Cause::Superseded { by, timeline };
        if h.heard_within(window, now) {
            h.superseded = Some(Superseded { by, timeline });
            self.clear(old, cause, true, InFlight::Leave, now);
            self.ask(by, now);
        } else {
            // All that silence could permit is done with this.
            h.silence_level = if h.misses > 0 { 2 } else { 0 };
            self.clear(old, cause, true, InFlight::CloseUnlessHarmless { grace: Duration::ZERO }, now);
        }
    }

    /// A host answered again: those that wait for its second word can go. (Called before the row is compared as a
    /// term, so the row that supersedes never confirms itself.)
    pub(super) fn confirm_superseded(&mut self, by: HostId, now: Moment) {
        let Some(h) = self.hosts.get(&by).filter(|h| h.writable()) else { return };
        let timeline = h.timeline;
        let grace = self.options.tuning.grace;
        let waiting: Vec<(HostId, Superseded)> = self
            .hosts
            .iter()
            .filter_map(|(&o, h)| Some((o, h.superseded?)))
            .filter(|(_, s)| s.by == by && timeline >= Some(s.timeline))
            .collect();
        for (old, s) in waiting {
            let heard = self.hosts.get(&old).is_some_and(|h| h.heard_within(grace, now));
            self.finish_supersede(old, s, if heard { grace } else { Duration::ZERO });
        }
    }

    /// Silence for a second settles it as well as a second word.
    pub(super) fn finish_supersedes(&mut self, now: Moment) {
        let window = self.options.tuning.grace;
        let silent: Vec<(HostId, Superseded)> = self
            .hosts
            .iter()
            .filter(|(_, h)| !h.heard_within(window, now))
            .filter_map(|(&o, h)| Some((o, h.superseded?)))
            .collect();
        for (old, s) in silent {
            self.finish_supersede(old, s, Duration::ZERO);
        }
    }

    fn finish_supersede(&mut self, old: HostId, s: Superseded, grace: Duration) {
        if let Some(h) = self.hosts.get_mut(&old) {
            h.superseded = None;
        }
        let cause = Cause::Superseded { by: s.by, timeline: s.timeline };
        self.clear_more(old, cause, InFlight::CloseUnlessHarmless { grace });
    }

    /// A writable host of the incumbent's timeline, or of none.
    fn contend(&mut self, id: HostId, now: Moment) {
        let Some(inc) = self.incumbent.filter(|i| self.hosts.contains_key(i)) else {
            return self.crown(id, now);
        };
        if inc == id {
            if let Some(h) = self.hosts.get_mut(&id) {
                h.contests = false;
            }
            return;
        }
        let (Some(h), Some(old)) = (self.hosts.get(&id), self.hosts.get(&inc)) else { return };
        let shared = self.shares_server(id, inc);
        if shared && old.well() {
            return;
        }
        // At the start nobody is incumbent by right: the first configured one is taken.
        let first_look = self.cold && h.spec < old.spec && old.writable();
        if shared || first_look || self.is_gone(inc, id) {
            // What was left on it when it was fenced must not commit beside another one.
            let writable = old.writable() || old.role == Some(Role::PrimaryReadOnly);
            let timeline = old.timeline;
            self.crown(id, now);
            if first_look && !shared {
                self.contest(inc, id, timeline);
            } else if writable && !shared {
                // Its calls may still be well (E1): they are left alone; what silence permits, silence says.
                self.clear(inc, Cause::Succeeded { by: id }, true, InFlight::Leave, now);
            }
        } else if old.well() {
            let timeline = h.timeline;
            self.contest(id, inc, timeline);
        }
    }

    fn contest(&mut self, other: HostId, incumbent: HostId, timeline: Option<u32>) {
        let Some(h) = self.hosts.get_mut(&other) else { return };
        if !std::mem::replace(&mut h.contests, true) {
            self.event(TopologyEvent::Conflict { incumbent, other, timeline });
        }
    }

    /// Whether the incumbent has left its place to an equal: down, refusing, or no longer primary. Where the name
    /// moved from it to the other one, doubt is enough: services that replicate blocks move the name and keep the
    /// timeline.
    fn is_gone(&self, inc: HostId, for_host: HostId) -> bool {
        let Some(h) = self.hosts.get(&inc) else { return true };
        let refuses = h.mark.is_some_and(|m| {
            !m.tentative
                && matches!(
                    m.kind,
                    ConnectKind::Refused
                        | ConnectKind::Unreachable
                        | ConnectKind::TimedOut
                        | ConnectKind::Lost
                        | ConnectKind::NotReady
                )
        });
        let moved = h.gone.is_some() && self.hosts.get(&for_host).is_some_and(|o| o.spec == h.spec);
        !h.writable() || refuses || h.misses >= self.options.tuning.probe_misses || (moved && h.misses > 0)
    }

    /// Among hosts that are writable and in waiting, the first configured one follows an incumbent that is gone.
    pub(super) fn elect(&mut self, now: Moment) {
        if self.system.is_none() && self.undecided.is_some() {
            return;
        }
        let fresh = self.options.tuning.fresh;
        let mut waiting: Vec<(usize, HostId)> = self
            .hosts
            .iter()
            .filter(|&(&id, h)| {
                Some(id) != self.incumbent
                    && h.same_as.is_none()
                    && h.writable()
                    && !h.never_primary
                    && h.well()
                    && h.answered_within(fresh, now)
                    && (h.timeline.is_none() || h.timeline >= self.highest)
            })
            .map(|(&id, h)| (h.spec, id))
            .collect();
        waiting.sort_unstable();
        if let Some(&(_, id)) = waiting.first() {
            self.contend(id, now);
        }
    }

    /// Terms compare within one system identifier only. Says whether the host is of our cluster.
    fn same_cluster(&mut self, id: HostId, now: Moment) -> bool {
        let Some(h) = self.hosts.get(&id) else { return false };
        let Some(system) = h.system else { return self.undecided.is_none() };
        let leads = h.role == Some(Role::Primary) && !h.never_primary;
        if leads {
            self.primaries_seen.insert(system, now);
            while self.primaries_seen.len() > IDENTIFIERS {
                let oldest = self.primaries_seen.iter().min_by_key(|(_, t)| **t).map(|(s, _)| *s);
                oldest.and_then(|s| self.primaries_seen.remove(&s));
            }
        }
        let others = self.hosts.values().any(|o| o.system.is_some_and(|s| s != system));
        match self.system {
            None if self.undecided.is_none() && !others => {
                if leads || h.role == Some(Role::PrimaryReadOnly) {
                    self.system = Some(system);
                }
                true
            }
            Some(ours) if ours == system => {
                if !h.never_primary
                    && let Some(h) = self.hosts.get_mut(&id)
                {
                    h.foreign = false;
                }
                true
            }
            ours => {
                // Two identifiers at the very start: no memory says which is ours.
                if ours.is_none() || self.cold {
                    self.undecided.get_or_insert(now);
                    self.forget_cluster();
                }
                self.estrange(id, system, leads);
                false
            }
        }
    }

    fn forget_cluster(&mut self) {
        self.system = None;
        self.highest = None;
        self.incumbent = None;
        for h in self.hosts.values_mut().filter(|h| h.system.is_some()) {
            h.foreign = true;
            h.note = Cause::OtherCluster;
        }
    }

    fn estrange(&mut self, id: HostId, system_identifier: u64, leads: bool) {
        let Some(h) = self.hosts.get_mut(&id) else { return };
        h.note = Cause::OtherCluster;
        h.stale = false;
        if !std::mem::replace(&mut h.foreign, true) && leads {
            self.event(TopologyEvent::OtherCluster { host: id, system_identifier });
        }
    }

    /// The other identifier whose primaries are fresh and agree, and since when it has stood alone.
    pub(super) fn adoptable(&self, now: Moment) -> Option<(HostId, u64, Moment)> {
        let cold = self.system.is_none() && self.undecided.is_some();
        if !cold && (self.system.is_none() || self.options.on_new_cluster != OnNewCluster::Adopt) {
            return None;
        }
        let fresh = self.options.tuning.fresh;
        let mut found: Option<(HostId, u64, usize)> = None;
        for (&id, h) in &self.hosts {
            let leads = h.role == Some(Role::Primary) && !h.never_primary && h.same_as.is_none();
            let (true, Some(system)) = (leads && h.answered_within(fresh, now), h.system) else { continue };
            match found {
                Some((_, s, _)) if s != system => return None,
                Some((_, _, spec)) if spec <= h.spec => {}
                _ => found = Some((id, system, h.spec)),
            }
        }
        let (id, system, _) = found?;
        if self.system == Some(system) {
            return None;
        }
        let others = self.primaries_seen.iter().filter(|(s, _)| **s != system).map(|(_, t)| *t).max();
        let since = others.max(self.undecided).unwrap_or(Moment::ZERO);
        Some((id, system, since + SETTLE))
    }

    pub(super) fn adopt(&mut self, now: Moment) {
        let Some((host, system_identifier, at)) = self.adoptable(now) else { return };
        if now < at {
            return;
        }
        let before = self.system.replace(system_identifier);
        self.undecided = None;
        self.highest = None;
        let old = self.incumbent.take();
        self.event(TopologyEvent::ClusterAdopted { system_identifier, host });
        for h in self.hosts.values_mut() {
            h.foreign = h.system.is_some_and(|s| s != system_identifier);
            h.stale = false;
            h.contests = false;
            h.superseded = None;
            h.note = if h.foreign { Cause::OtherCluster } else { Cause::Answered };
        }
        // Sessions of the old cluster write where nobody will look. No evidence class lets calls be aborted for it.
        if let (Some(_), Some(old)) = (before, old) {
            self.clear(old, Cause::OtherCluster, true, InFlight::Leave, now);
        }
        let ours: Vec<HostId> = self
            .hosts
            .iter()
            .filter(|(_, h)| h.system == self.system && h.role.is_some() && h.same_as.is_none())
            .map(|(&id, _)| id)
            .collect();
        for id in ours {
            self.place(id, now);
        }
    }

    /// The operator gave up the newer history and works on with this host.
    pub(super) fn accept_term(&mut self, id: HostId, now: Moment) {
        // While two clusters are in question there is no term to accept.
        let decided = self.system.is_some() || self.undecided.is_none();
        let stale = |h: &&Host| decided && h.stale && !h.foreign && h.role == Some(Role::Primary);
        let accepted = self.hosts.get(&id).filter(stale);
        let Some(timeline) = accepted.and_then(|h| h.timeline) else {
            self.event(TopologyEvent::TermNotAccepted { host: id });
            return;
        };
        let given_up = self.highest;
        self.highest = Some(timeline);
        if let Some(h) = self.hosts.get_mut(&id) {
            h.note = Cause::TermAccepted { host: id };
            h.superseded = None;
            h.given_up = None;
        }
        let before = self.incumbent;
        self.crown(id, now);
        self.event(TopologyEvent::TermAccepted { host: id, timeline });
        let newer: Vec<HostId> = self
            .hosts
            .iter()
            .filter(|&(&o, h)| {
                o != id && (h.timeline > Some(timeline) || before == Some(o)) && h.role != Some(Role::Standby)
            })
            .map(|(&o, _)| o)
            .collect();
        for o in newer {
            if let Some(h) = self.hosts.get_mut(&o) {
                h.given_up = h.timeline.max(given_up);
                h.stale = true;
            }
            let grace = self.options.tuning.grace;
            let cause = Cause::TermAccepted { host: id };
            self.clear(o, cause, true, InFlight::CloseUnlessHarmless { grace }, now);
        }
    }

    /// Says each minute that an older primary answers and none of the highest term does.
    pub(super) fn regress(&mut self, now: Moment) {
        let leads = |h: &Host| h.writable() && h.well();
        let led = self.incumbent.and_then(|i| self.hosts.get(&i)).is_some_and(leads);
        let stale = self
            .hosts
            .iter()
            .find(|(_, h)| h.stale && h.well() && !h.foreign && h.role == Some(Role::Primary))
            .map(|(&id, _)| id)
            .filter(|_| !led);
        let Some(id) = stale else {
            self.changed |= self.regressed.take().is_some();
            return;
        };
        let due = match self.regressed {
            Some((known, at)) if known == id => at,
            _ => now,
        };
        if now < due {
            return;
        }
        self.changed |= self.regressed.is_none();
        self.regressed = Some((id, now + REMIND));
        let stale_timeline = self.hosts.get(&id).and_then(|h| h.timeline);
        let (newer, newer_timeline) = (self.incumbent, self.highest);
        self.event(TopologyEvent::TermRegressed { stale: id, stale_timeline, newer, newer_timeline });
    }

    /// Finds another address of the same server and leaves the probing to one of the two.
    /// Says whether the other one now speaks for it.
    pub(super) fn join_addresses(&mut self, id: HostId, now: Moment) -> bool {
        let Some(h) = self.hosts.get(&id) else { return false };
        // Its own aliases have restarted with it.
        let (system, start) = (h.system, h.start);
        for other in self.hosts.values_mut().filter(|o| o.same_as == Some(id)) {
            other.system = system;
            other.start = start;
        }
        let Some(h) = self.hosts.get(&id) else { return false };
        let twin = self
            .hosts
            .iter()
            .find(|&(&o, other)| o != id && other.same_as.is_none() && other.well() && other.same_server(h));
        let Some((&twin, _)) = twin else { return false };
        // Whoever is known as the primary keeps its entry; else the one known first.
        let (kept, joined) = if self.incumbent == Some(id) { (id, twin) } else { (twin, id) };
        for h in self.hosts.values_mut().filter(|h| h.same_as == Some(joined)) {
            h.same_as = Some(kept);
        }
        if let Some(h) = self.hosts.get_mut(&joined) {
            h.same_as = Some(kept);
            h.contests = false;
        }
        self.changed = true;
        self.event(TopologyEvent::SameServer { host: joined, same_as: kept });
        if joined == id {
            // What it said is what its twin would have said.
            let said = self.hosts.get(&id).map(|h| (h.role, h.timeline));
            if let (Some((role, timeline)), Some(h)) = (said, self.hosts.get_mut(&kept)) {
                h.role = role;
                h.timeline = timeline;
                h.answered = Some(now);
            }
            self.place(kept, now);
        }
        joined == id
    }

    pub(super) fn split(&mut self, id: HostId, now: Moment) {
        let Some(canonical) = self.hosts.get(&id).and_then(|h| h.same_as) else { return };
        // What was held against the server holds at this address too, until it has spoken for itself: its own marks
        // are as old as the day on which the two were joined.
        let marks = self.hosts.get(&canonical).map(|c| (c.stale, c.foreign, c.given_up));
        let Some(h) = self.hosts.get_mut(&id) else { return };
        h.same_as = None;
        if let Some((stale, foreign, given_up)) = marks {
            (h.stale, h.foreign, h.given_up) = (stale, foreign, given_up);
        }
        h.probing.next_dial = now;
        self.changed = true;
    }

    /// An address speaks for itself again when the one that spoke for it is in doubt.
    pub(super) fn split_addresses(&mut self, now: Moment) {
        let doubtful: Vec<HostId> = self
            .hosts
            .iter()
            .filter(|(_, h)| h.same_as.is_some_and(|c| self.hosts.get(&c).is_none_or(|c| !c.well())))
            .map(|(&id, _)| id)
            .collect();
        for id in doubtful {
            self.split(id, now);
        }
    }

    /// When a vanished address is dropped: 10 s after it vanished and another one became primary.
    pub(super) fn dropped_at(&self, id: HostId) -> Option<Moment> {
        let gone = self.hosts.get(&id)?.gone?;
        let leader = self.incumbent.filter(|&i| i != id).and_then(|i| self.hosts.get(&i))?;
        (leader.writable() && leader.well()).then(|| gone.max(self.incumbent_since) + SETTLE)
    }

    pub(super) fn drop_gone(&mut self, now: Moment) {
        let due: Vec<HostId> =
            self.hosts.keys().copied().filter(|&id| self.dropped_at(id).is_some_and(|t| t <= now)).collect();
        for id in due {
            self.close_probe(id);
            let aliases: Vec<HostId> =
                self.hosts.iter().filter(|(_, h)| h.same_as == Some(id)).map(|(&o, _)| o).collect();
            for alias in aliases {
                self.split(alias, now);
            }
            self.hosts.remove(&id);
            self.changed = true;
            self.event(TopologyEvent::HostDropped { host: id });
        }
    }

    /// Whether a search is called for: the primary is in doubt or unknown, and somebody may need it.
    pub(super) fn search_wanted(&self) -> bool {
        use super::actions::State;
        if self.options.monitor == MonitorMode::Off || !self.awake() || self.hosts.is_empty() {
            return false;
        }
        match self.incumbent.and_then(|i| self.hosts.get(&i)) {
            None => self.busy(),
            // 53300 alone: the primary lives as long as our session there answers.
            Some(h) if h.state == State::Full => !(h.probing.open && h.misses == 0 && h.writable()),
            Some(h) => h.state != State::Primary,
        }
    }
}
