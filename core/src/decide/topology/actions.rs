//! What the topology asks for ([`Action`]), and the words in which it explains itself.

use std::fmt;
use std::time::Duration;

use serde::{Serialize, Serializer};

use crate::host::HostId;

use super::types::{ConnectKind, MemberId};

/// What a [`Action::Clear`] does to calls in flight on the members it concerns. Those it leaves end by themselves, and
/// their session is closed at return, for its generation is old.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum InFlight {
    /// All closed: their backends are gone, or nothing can be hoped for. Nothing is written on the socket.
    Close,
    /// Whatever may be writing or committing, and guarded sockets whose state isn't known: closed at once, never
    /// cancelled. Harmless requests: cancelled and closed after `grace` (at once, without a cancel, if it is zero:
    /// the host is silent).
    CloseUnlessHarmless {
        /// How long harmless requests get.
        grace: Duration,
    },
    /// Only harmless requests are closed, at once and without a cancel; whatever may be writing stays.
    CloseHarmless,
    /// None is touched; unless another host is right, blocks that stand between two statements neither.
    Leave,
}

/// What the topology asks for. Carry actions out in order.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Open a probe session; answer with ProbeConnected or ProbeConnectFailed.
    Dial {
        /// Where.
        host: HostId,
        /// Bound for the socket alone.
        connect_within: Duration,
        /// Bound for the whole, term row included.
        login_within: Duration,
    },
    /// Ask the term row on the open probe session; answer with ProbeAnswered or ProbeFailed, and never with a
    /// timeout: deadlines are kept here. Questions may be pipelined (three at most).
    Probe {
        /// Where.
        host: HostId,
    },
    /// Close the probe session (and give up a dial under way).
    CloseProbe {
        /// Where.
        host: HostId,
    },
    /// The members of that host born before `generation` go. Repeated with the same generation when more is
    /// permitted than before.
    Clear {
        /// Where.
        host: HostId,
        /// The host's generation from now on.
        generation: u64,
        /// Why: for the errors that callers get.
        cause: Cause,
        /// Idle members are closed.
        idle: bool,
        /// What happens to calls.
        in_flight: InFlight,
    },
    /// Idle members of that host must pass a ping before they are lent again.
    PingIdle {
        /// Where.
        host: HostId,
    },
    /// That session isn't to be used for writes again (25006 outside a READ ONLY transaction).
    Retire {
        /// The session.
        member: MemberId,
    },
    /// A search for the primary began or ended: look names up quickly while it runs.
    Search {
        /// It runs.
        running: bool,
    },
    /// Everything is silent, so the fault may be ours: shed new work while it is on.
    SuspectOurselves {
        /// It began (else it ended).
        on: bool,
    },
    /// The snapshot changed.
    Publish,
    /// Something to tell the world.
    Event(TopologyEvent),
}

/// Why a host is what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "why", rename_all = "snake_case")]
pub enum Cause {
    /// Nothing is known yet.
    Start,
    /// Its name gave the address.
    Named,
    /// It answered (role and term as it says).
    Answered,
    /// A new connection failed (E1).
    ConnectFailed {
        /// How.
        kind: ConnectKind,
    },
    /// A call saw no byte for too long.
    CallBlocked,
    /// It missed reply deadlines (E2).
    Silence,
    /// Sessions there ended (E3).
    SocketsEnded,
    /// The same address shows another start time (E4).
    Restarted,
    /// It is in recovery after it was primary (E4).
    Demoted,
    /// Another host has a higher timeline (E5).
    Superseded {
        /// That host.
        by: HostId,
        /// Its timeline.
        timeline: u32,
    },
    /// It refuses writes by setting (E6).
    Fenced,
    /// It is gone or refuses, and another host of the same timeline is primary now.
    Succeeded {
        /// That host.
        by: HostId,
    },
    /// It belongs to another cluster.
    OtherCluster,
    /// The configuration forbids it as primary.
    NeverPrimary,
    /// The operator accepted another host's term.
    TermAccepted {
        /// That host.
        host: HostId,
    },
}

/// What a host is, for new sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Nothing is known.
    Unknown,
    /// The primary.
    Primary,
    /// Not in recovery, but read-only by setting: fenced.
    PrimaryReadOnly,
    /// In recovery.
    Standby,
    /// Writable on a lower timeline than one seen elsewhere.
    StalePrimary,
    /// Writable on the incumbent's timeline, and another server.
    Conflict,
    /// 57P03.
    NotReady,
    /// 53300; its role is kept.
    Full,
    /// Our configuration doesn't get in.
    Denied,
    /// Another system identifier, or writable though it must never be primary.
    Foreign,
    /// Doubted, with so many missed reply deadlines.
    Suspect(u32),
    /// Silent, or nobody listens.
    Down,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unknown => "unknown",
            Self::Primary => "primary",
            Self::PrimaryReadOnly => "primary_read_only",
            Self::Standby => "standby",
            Self::StalePrimary => "stale_primary",
            Self::Conflict => "conflict",
            Self::NotReady => "not_ready",
            Self::Full => "full",
            Self::Denied => "denied",
            Self::Foreign => "foreign",
            Self::Suspect(n) => return write!(f, "suspect({n})"),
            Self::Down => "down",
        })
    }
}

impl Serialize for State {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

/// A host's role, as it last said itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Not in recovery and writable.
    Primary,
    /// Not in recovery, read-only by setting.
    PrimaryReadOnly,
    /// In recovery.
    Standby,
}

impl fmt::Display for Role {
    /// As in JSON.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Primary => "primary",
            Self::PrimaryReadOnly => "primary_read_only",
            Self::Standby => "standby",
        })
    }
}

/// What happened, for logs, reports and callers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum TopologyEvent {
    /// A host's state changed.
    StateChanged {
        /// The host.
        host: HostId,
        /// Before.
        from: State,
        /// Now.
        to: State,
        /// Why.
        cause: Cause,
    },
    /// A host's older sessions were cleared.
    Cleared {
        /// The host.
        host: HostId,
        /// Its generation from now on.
        generation: u64,
        /// Why.
        cause: Cause,
        /// What happened to calls in flight.
        in_flight: InFlight,
    },
    /// A search for the primary began.
    SearchStarted {
        /// The primary that is doubted, if one is known.
        incumbent: Option<HostId>,
    },
    /// The search ended: the primary is known.
    SearchEnded {
        /// The primary.
        primary: HostId,
        /// How long it took, in microseconds.
        took_us: u64,
    },
    /// Another host is primary now.
    NewPrimary {
        /// The host.
        host: HostId,
        /// Its timeline, where it can be read.
        timeline: Option<u32>,
        /// Who was primary before.
        before: Option<HostId>,
    },
    /// Two different servers are writable on the same timeline.
    Conflict {
        /// The one that is kept as primary.
        incumbent: HostId,
        /// The other one.
        other: HostId,
        /// Their timeline.
        timeline: Option<u32>,
    },
    /// A primary of an older term answers and none of the highest does. Raised each minute; accept_term ends it.
    TermRegressed {
        /// The one that answers.
        stale: HostId,
        /// Its timeline.
        stale_timeline: Option<u32>,
        /// The last known primary of the highest term.
        newer: Option<HostId>,
        /// The highest timeline.
        newer_timeline: Option<u32>,
    },
    /// The operator accepted a host's term.
    TermAccepted {
        /// The host.
        host: HostId,
        /// Its timeline.
        timeline: u32,
    },
    /// accept_term was asked for a host that doesn't say it is a writable primary of a lower timeline.
    TermNotAccepted {
        /// The host.
        host: HostId,
    },
    /// A host of another system identifier was seen as primary.
    OtherCluster {
        /// The host.
        host: HostId,
        /// Its system identifier.
        system_identifier: u64,
    },
    /// Another system identifier is followed from now on.
    ClusterAdopted {
        /// The identifier.
        system_identifier: u64,
        /// Its primary.
        host: HostId,
    },
    /// An address turned out to lead to more than one server: no abort on restart evidence there.
    EndpointIndirect {
        /// The host.
        host: HostId,
    },
    /// Two addresses lead to one server.
    SameServer {
        /// The address that needs no probe session of its own.
        host: HostId,
        /// The address it is the same as.
        same_as: HostId,
    },
    /// All is silent: the fault may be ours.
    SuspectOurselves,
    /// Something answered again.
    OurselvesCleared,
    /// Too many monitor sessions there: ours was closed, short ones ask instead.
    MonitorSessionShed {
        /// The host.
        host: HostId,
        /// How many there were.
        count: u32,
        /// How many are fair.
        limit: u32,
    },
    /// The monitor stopped dialling anywhere after a wrong password, until a caller's connect succeeds.
    MonitorHeld {
        /// The host that refused.
        host: HostId,
    },
    /// An address that its name no longer gives was dropped.
    HostDropped {
        /// The address.
        host: HostId,
    },
}
