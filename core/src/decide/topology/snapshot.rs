//! What is known, as plain data for people, scripts and the rest of the library.

use std::sync::Arc;
use std::time::Duration;

use serde::{Serialize, Serializer};

use crate::clock::Moment;
use crate::host::{Address, HostId};

use super::Topology;
use super::actions::{Cause, Role, State};

/// Everything that the topology knows at one moment.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Snapshot {
    /// When it was taken.
    pub at: Moment,
    /// The addresses, in the order of the configured candidates.
    pub hosts: Vec<HostSnapshot>,
    /// The cluster.
    pub cluster: ClusterSnapshot,
}

impl Snapshot {
    /// One host.
    pub fn host(&self, id: HostId) -> Option<&HostSnapshot> {
        self.hosts.iter().find(|h| h.id == id)
    }
}

/// One address.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HostSnapshot {
    /// Its number.
    pub id: HostId,
    /// Index into the configured candidates.
    pub spec: usize,
    /// The configured name.
    #[serde(serialize_with = "text")]
    pub name: Arc<str>,
    /// The address.
    pub address: Address,
    /// What it is, for new sessions.
    pub state: State,
    /// What it last said of itself.
    pub role: Option<Role>,
    /// Its timeline, if it is not in recovery and it may be read.
    pub timeline: Option<u32>,
    /// Sessions born before this generation are gone or going.
    pub generation: u64,
    /// Why the state or the generation last changed.
    pub cause: Cause,
    /// When.
    pub changed: Moment,
    /// Its system identifier.
    pub system_identifier: Option<u64>,
    /// Age of its last row in milliseconds.
    pub answer_age_ms: Option<u64>,
    /// Round trip of the last question, in microseconds.
    pub rtt_us: Option<u64>,
    /// The monitor's session there.
    pub probe: ProbeState,
    /// The address that leads to the same server and is probed in its place.
    pub same_as: Option<HostId>,
    /// It leads to more than one server (pooler, virtual address, load balancer).
    pub indirect: bool,
    /// Its name doesn't give it any more.
    pub gone: bool,
}

/// A monitor session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ProbeState {
    /// None is wanted, or none is open yet.
    None,
    /// Being opened.
    Dialling,
    /// Open and quiet.
    Open,
    /// A question is out.
    Asked,
    /// Over the budget: short sessions now and then.
    Short,
}

/// The cluster.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ClusterSnapshot {
    /// Its system identifier, once a primary gave one.
    pub system_identifier: Option<u64>,
    /// The highest timeline seen.
    pub highest_timeline: Option<u32>,
    /// Its primary, or the last one.
    pub incumbent: Option<HostId>,
    /// The incumbent gives no timeline: its role alone decided.
    pub by_role_alone: bool,
    /// Since when a search for the primary runs.
    pub search_since: Option<Moment>,
    /// The other server that is writable on the incumbent's timeline.
    pub conflict: Option<HostId>,
    /// The host of an older term that answers while none of the highest does.
    pub term_regressed: Option<HostId>,
    /// All is silent: the fault may be ours.
    pub suspect_ourselves: bool,
}

fn text<S: Serializer>(t: &Arc<str>, s: S) -> Result<S::Ok, S::Error> {
    s.serialize_str(t)
}

fn millis(d: Duration) -> u64 {
    u64::try_from(d.as_millis()).unwrap_or(u64::MAX)
}

impl Topology {
    /// Everything that is known now.
    pub fn snapshot(&self, now: Moment) -> Snapshot {
        let mut hosts: Vec<HostSnapshot> = self
            .hosts
            .iter()
            .map(|(&id, h)| HostSnapshot {
                id,
                spec: h.spec,
                name: Arc::clone(&h.name),
                address: h.address.clone(),
                state: h.state,
                role: h.role,
                timeline: h.timeline,
                generation: h.generation,
                cause: h.cause,
                changed: h.changed,
                system_identifier: h.system,
                answer_age_ms: h.answered.map(|t| millis(now - t)),
                rtt_us: h.probing.rtt.map(|d| u64::try_from(d.as_micros()).unwrap_or(u64::MAX)),
                probe: match &h.probing {
                    p if p.open && p.outstanding > 0 => ProbeState::Asked,
                    p if p.open => ProbeState::Open,
                    p if p.dialling.is_some() => ProbeState::Dialling,
                    p if p.short => ProbeState::Short,
                    _ => ProbeState::None,
                },
                same_as: h.same_as,
                indirect: h.indirect,
                gone: h.gone.is_some(),
            })
            .collect();
        hosts.sort_by_key(|h| (h.spec, h.id));
        let incumbent = self.incumbent.and_then(|id| self.hosts.get(&id));
        Snapshot {
            at: now,
            hosts,
            cluster: ClusterSnapshot {
                system_identifier: self.system,
                highest_timeline: self.highest,
                incumbent: self.incumbent,
                by_role_alone: incumbent.is_some_and(|h| h.writable() && h.timeline.is_none()),
                search_since: self.search,
                conflict: self.hosts.iter().find(|(_, h)| h.state == State::Conflict).map(|(&id, _)| id),
                term_regressed: self.regressed.map(|(id, _)| id),
                suspect_ourselves: self.ourselves,
            },
        }
    }
}
