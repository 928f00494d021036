//! Rows and what they prove: a new incarnation (E4), a fence (E6), and the facts that `cluster.rs` compares as terms
//! (E5). What a caller's session says in passing (E6) only ever leads to a question.

use std::time::Duration;

use crate::clock::Moment;
use crate::config::{MonitorMode, OnNewCluster};
use crate::error::SqlState;
use crate::host::HostId;

use super::Topology;
use super::actions::{Action, Cause, InFlight, Role, TopologyEvent};
use super::types::{MemberId, RoleFacts, TermRow};

/// On which session a row came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Via {
    /// The monitor's open session.
    Probe,
    /// A monitor session just opened.
    FreshProbe,
    /// A caller's session: it may have settings of its own, and be any age.
    Session,
}

fn role_of(row: &TermRow) -> Role {
    match (row.in_recovery, row.read_only) {
        (true, _) => Role::Standby,
        (false, true) => Role::PrimaryReadOnly,
        (false, false) => Role::Primary,
    }
}

impl Topology {
    pub(super) fn probe_connected(&mut self, id: HostId, row: TermRow, rtt: Duration, now: Moment) {
        if let Some(h) = self.hosts.get_mut(&id) {
            h.mark = None;
            let p = &mut h.probing;
            p.open = true;
            p.outstanding = 0;
            p.dialling = None;
            p.failing = None;
            p.rtt = Some(rtt);
            // The round trip: connects space their attempts by the quickest one.
            self.changed = true;
        }
        self.learn(id, row, Via::FreshProbe, now);
        self.plan_next_probe(id, now);
        self.mind_budget(id, &row, now);
    }

    pub(super) fn probe_answered(&mut self, id: HostId, row: TermRow, rtt: Duration, now: Moment) {
        let deadline = self.options.tuning.probe_deadline;
        if let Some(h) = self.hosts.get_mut(&id) {
            let p = &mut h.probing;
            p.rtt = Some(rtt);
            p.outstanding = p.outstanding.saturating_sub(1);
            if p.outstanding > 0 {
                // Questions behind this one in the pipe: their time starts now.
                p.asked = now;
                p.deadline = now + deadline;
            }
        }
        self.learn(id, row, Via::Probe, now);
        self.plan_next_probe(id, now);
    }

    /// A row is the truth about the host at this moment.
    pub(super) fn learn(&mut self, id: HostId, mut row: TermRow, via: Via, now: Moment) {
        if self.options.on_new_cluster == OnNewCluster::Ignore {
            row.system_identifier = None;
        }
        let Some(id) = self.speaks_for(id, &row, now) else { return };
        // Without a monitor, what sessions say is all there is.
        let trusted = via != Via::Session || self.options.monitor == MonitorMode::Off;
        let role = role_of(&row);
        let restarted = self.restarted(id, &row);
        self.mind_indirect(id, &row, via, restarted);
        let rises = role == Role::Primary && row.timeline.is_some_and(|t| self.highest.is_none_or(|h| t > h));
        self.heard(id, now);
        let awake = self.awake();
        let Some(h) = self.hosts.get_mut(&id) else { return };
        h.tried = true;
        h.answered = Some(now);

        if via == Via::Session && restarted && !h.indirect && (h.probing.open || (awake && !rises)) {
            // Two sessions, two identities: our own session there knows which of them is past, or will.
            h.disagrees = row.start_time;
            self.ask(id, now);
            return;
        }
        if !trusted && h.role.is_some_and(|known| known != role) && !rises {
            // Its settings may be the session's own. Only a session without any may change a role.
            self.ask(id, now);
            return;
        }
        let was = h.role;
        let was_primary = matches!(was, Some(Role::Primary | Role::PrimaryReadOnly));
        let indirect = h.indirect;
        h.suspect = false;
        h.sockets_ended = false;
        h.note = Cause::Answered;

        // E4 and E6: what these sessions were opened to is no more.
        if restarted && !indirect {
            // Sessions alone can't tell a restart from a balancer that leads to another server: calls end by themselves.
            let in_flight = if via == Via::Session { InFlight::Leave } else { InFlight::Close };
            self.clear(id, Cause::Restarted, true, in_flight, now);
        } else if was_primary && role == Role::Standby {
            // Behind a pooler the old server may live on with its calls.
            let in_flight = if indirect { InFlight::Leave } else { InFlight::Close };
            self.clear(id, Cause::Demoted, true, in_flight, now);
        } else if was == Some(Role::Primary) && role == Role::PrimaryReadOnly {
            // Fenced: calls end by themselves, and an open transaction may still commit.
            self.clear(id, Cause::Fenced, true, InFlight::Leave, now);
        }

        let Some(h) = self.hosts.get_mut(&id) else { return };
        h.remember_identity(row.system_identifier, row.start_time);
        if was != Some(role) || h.timeline != row.timeline {
            self.changed = true;
        }
        h.role = Some(role);
        h.timeline = row.timeline;
        h.system = row.system_identifier.or(h.system);
        h.start = row.start_time.or(h.start);
        h.superseded = h.superseded.filter(|_| role == Role::Primary);
        self.confirm_superseded(id, now);
        if !self.join_addresses(id, now) {
            self.place(id, now);
        }
    }

    /// Which entry a row is about: an address that shares a server speaks for the shared entry, as long as it still
    /// shows the same server.
    fn speaks_for(&mut self, id: HostId, row: &TermRow, now: Moment) -> Option<HostId> {
        let h = self.hosts.get_mut(&id)?;
        let Some(canonical) = h.same_as else { return Some(id) };
        let start = h.start;
        if row.start_time != start {
            self.split(id, now);
            return Some(id);
        }
        if let Some(h) = self.hosts.get_mut(&id) {
            h.answered = Some(now);
            h.heard = Some(now);
        }
        Some(canonical)
    }

    fn restarted(&self, id: HostId, row: &TermRow) -> bool {
        self.hosts
            .get(&id)
            .is_some_and(|h| h.start.is_some() && row.start_time.is_some() && h.start != row.start_time)
    }

    /// An address that leads to several servers gives itself away: an identity returns, two sessions disagree, it
    /// shows the server that is known at another address, or an open session shows another server than before (no
    /// backend outlives its postmaster).
    fn mind_indirect(&mut self, id: HostId, row: &TermRow, via: Via, restarted: bool) {
        let elsewhere = restarted
            && self.hosts.iter().any(|(&o, h)| {
                o != id
                    && h.same_as.is_none()
                    && h.start == row.start_time
                    && h.system == row.system_identifier
            });
        let Some(h) = self.hosts.get_mut(&id) else { return };
        let other_system =
            h.system.is_some() && row.system_identifier.is_some() && h.system != row.system_identifier;
        let handed_on = via == Via::Probe && (restarted || other_system);
        let returns = (restarted && row.start_time.is_some_and(|s| h.past_starts.contains(&s)))
            || (h.system != row.system_identifier
                && row.system_identifier.is_some_and(|s| h.past_systems.contains(&s)));
        let disagree = via != Via::Session && h.disagrees.is_some() && !restarted;
        if via != Via::Session {
            h.disagrees = None;
        }
        if !h.indirect && (returns || disagree || elsewhere || handed_on) {
            h.indirect = true;
            self.changed = true;
            self.event(TopologyEvent::EndpointIndirect { host: id });
        }
    }

    /// What an opened session learned without a row of its own.
    pub(super) fn session_facts(&mut self, id: HostId, facts: RoleFacts, now: Moment) {
        if let Some(row) = facts.row {
            return self.learn(id, row, Via::Session, now);
        }
        self.heard(id, now);
        let off = self.options.monitor == MonitorMode::Off;
        let Some(h) = self.hosts.get_mut(&id) else { return };
        let Some(in_recovery) = facts.in_recovery else { return };
        let read_only = facts.read_only.unwrap_or(false);
        let row = TermRow { in_recovery, read_only, ..TermRow::default() };
        // A role without a term proves no primary while the term can be asked for.
        if off || (h.role.is_none() && in_recovery) {
            let kept = TermRow {
                timeline: if in_recovery { None } else { h.timeline },
                system_identifier: h.system,
                start_time: h.start,
                ..row
            };
            return self.learn(id, kept, Via::Session, now);
        }
        if h.role != Some(role_of(&row)) {
            self.ask(id, now);
        }
    }

    /// 25006 on a session that goes on (E6).
    pub(super) fn session_sqlstate(
        &mut self,
        member: MemberId,
        id: HostId,
        sqlstate: SqlState,
        in_hot_standby: Option<bool>,
        read_only_block: bool,
        now: Moment,
    ) {
        self.heard(id, now);
        // In a transaction begun READ ONLY it is the caller's own doing.
        if sqlstate.as_str() != "25006" || read_only_block {
            return;
        }
        // A standby refuses writes for as long as it is one, and its sessions were opened for reading; but a session of
        // a host that is known as the primary would only refuse the next write as well.
        let known = self.hosts.get(&id).and_then(|h| h.role);
        if in_hot_standby != Some(true) || known == Some(Role::Primary) {
            self.out.push(Action::Retire { member });
        }
        self.doubt_role(id, now);
    }

    /// A parameter flipped on a live session (E6).
    pub(super) fn session_parameter(
        &mut self,
        id: HostId,
        in_hot_standby: Option<bool>,
        read_only: Option<bool>,
        now: Moment,
    ) {
        self.heard(id, now);
        let Some(h) = self.hosts.get(&id) else { return };
        let contradicts = in_hot_standby
            .is_some_and(|s| h.role != Some(if s { Role::Standby } else { Role::Primary }))
            || read_only.is_some_and(|r| r == (h.role == Some(Role::Primary)));
        if contradicts {
            self.doubt_role(id, now);
        }
    }

    /// Sessions say that the role changed: ask at once, change nothing.
    fn doubt_role(&mut self, id: HostId, now: Moment) {
        if self.options.monitor == MonitorMode::Off {
            // Nobody can ask. The next session that opens says what it sees.
            return;
        }
        self.ask(id, now);
    }
}
