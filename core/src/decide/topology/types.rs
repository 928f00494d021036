//! What the topology is told ([`Input`]) and what it asks for ([`Action`]).

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize, Serializer};

use crate::clock::Moment;
use crate::config::{Config, Endpoint, MonitorMode, OnNewCluster, Tuning};
use crate::error::SqlState;
use crate::failure::{Failed, Failure};
use crate::host::{Address, HostId};

/// How the topology is to behave: the part of the configuration that it reads.
#[derive(Clone, Debug)]
pub struct TopologyOptions {
    /// The configured candidates' labels, in order. An address names its candidate by the index here.
    pub hosts: Vec<Arc<str>>,
    /// Whether and where the monitor keeps sessions.
    pub monitor: MonitorMode,
    /// Between two probes of a quiet host.
    pub probe_interval: Duration,
    /// A call without a byte for this long makes its host suspect (the shell measures it).
    pub suspect_after: Duration,
    /// What another system identifier means.
    pub on_new_cluster: OnNewCluster,
    /// Whether addresses are servers, or poolers and the like.
    pub endpoint: Endpoint,
    /// Names or addresses that must never be taken for the primary.
    pub never_primary: Vec<String>,
    /// `tcp_user_timeout`: how long silence lasts before writes may be given up without a successor.
    pub user_timeout: Duration,
    /// The named constants.
    pub tuning: Tuning,
    /// Seeds the jitter and the draw for the monitor's budget. Differs from process to process.
    pub seed: u64,
}

impl TopologyOptions {
    /// From a configuration.
    pub fn from_config(config: &Config, seed: u64) -> Self {
        Self {
            hosts: config.hosts.iter().map(|h| Arc::from(h.label())).collect(),
            monitor: config.monitor,
            probe_interval: config.probe_interval,
            suspect_after: config.suspect_after,
            on_new_cluster: config.on_new_cluster,
            endpoint: config.endpoint,
            never_primary: config.never_primary.clone(),
            // Without a user timeout in the string, the kernel's own end of a dead socket is minutes away: 9 s is
            // what our default would have been.
            user_timeout: config.socket.user_timeout.unwrap_or(Duration::from_secs(9)),
            tuning: config.tuning.clone(),
            seed,
        }
    }
}

/// A number for a session or a guarded socket within one connector; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct MemberId(pub u64);

/// A host's truth, as one statement tells it. What the role may not read is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TermRow {
    /// `pg_is_in_recovery()`.
    pub in_recovery: bool,
    /// `default_transaction_read_only`, as a session without settings of its own sees it.
    pub read_only: bool,
    /// First eight hex digits of `pg_walfile_name(pg_current_wal_lsn())`; `None` in recovery.
    pub timeline: Option<u32>,
    /// `pg_control_system().system_identifier`.
    pub system_identifier: Option<u64>,
    /// `pg_postmaster_start_time()` in microseconds.
    pub start_time: Option<i64>,
    /// `pg_last_wal_replay_lsn()`.
    pub replay_lsn: Option<u64>,
    /// `max_connections`.
    pub max_connections: Option<u32>,
    /// Sessions of the monitor's own application_name, this one included. Read at login.
    pub own_sessions: Option<u32>,
}

/// Why a connection attempt failed, as far as the topology cares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConnectKind {
    /// Nobody listens (ECONNREFUSED, or the socket file isn't there).
    Refused,
    /// No way there (EHOSTUNREACH, ENETUNREACH, …).
    Unreachable,
    /// No answer in time.
    TimedOut,
    /// The connection ended during TLS or login.
    Lost,
    /// 57P03: starting up, shutting down, or in recovery without hot standby.
    NotReady,
    /// 53300: no connection slot free.
    Full,
    /// 28P01: wrong password.
    BadPassword,
    /// 28000 and the rest of class 28, or an authentication that our rules forbid.
    NotAuthorized,
    /// 3D000: no such database.
    NoDatabase,
    /// 42501 at login: no right to connect.
    Forbidden,
    /// The certificate isn't that host's.
    TlsIdentity,
    /// Another failure of TLS.
    Tls,
    /// It answered, with something else.
    Other,
}

impl ConnectKind {
    /// From an attempt's failure. `None` where the host itself was never asked (a bad port, a name that doesn't
    /// resolve): that is no evidence about it.
    pub fn of(failed: &Failed) -> Option<Self> {
        Some(match &failed.failure {
            Failure::BadPort(_) | Failure::BadAddress(_) | Failure::Resolve(_) => return None,
            // The role was read, or the session is fine otherwise: the login itself succeeded.
            Failure::WrongRole { .. } | Failure::RoleUnknown(_) => return None,
            // Ours to set right, and nothing was sent.
            Failure::TlsFile(_) => return None,
            Failure::Dial { os: Some(libc::ECONNREFUSED | libc::ENOENT), .. } => Self::Refused,
            Failure::Dial { os: Some(libc::ETIMEDOUT), .. } | Failure::TimedOut => Self::TimedOut,
            Failure::Dial { .. } => Self::Unreachable,
            Failure::Lost(_) => Self::Lost,
            Failure::TlsIdentity(_) => Self::TlsIdentity,
            Failure::TlsNotOffered | Failure::TlsRequestRefused | Failure::TlsHandshake(_) => Self::Tls,
            Failure::AuthMethod(_) | Failure::NoPassword => Self::NotAuthorized,
            Failure::EarlyData | Failure::NotPostgres(_) | Failure::TooLarge(_) => Self::Other,
            Failure::Server { sqlstate, .. } => Self::of_sqlstate(*sqlstate),
        })
    }

    /// From an SQLSTATE at login (PostgreSQL manual, appendix A).
    pub fn of_sqlstate(sqlstate: SqlState) -> Self {
        match sqlstate.as_str() {
            "57P03" => Self::NotReady,
            "53300" => Self::Full,
            "28P01" => Self::BadPassword,
            "3D000" => Self::NoDatabase,
            "42501" => Self::Forbidden,
            // The backend that took us was told to die: the same as a lost connection.
            "57P01" | "57P02" => Self::Lost,
            s if s.starts_with("28") => Self::NotAuthorized,
            _ => Self::Other,
        }
    }

    /// The configuration is wrong there; the host lives.
    pub const fn is_denied(self) -> bool {
        matches!(
            self,
            Self::BadPassword | Self::NotAuthorized | Self::NoDatabase | Self::Forbidden | Self::TlsIdentity
        )
    }

    /// The server spoke: proof of life (veto b).
    pub const fn is_reply(self) -> bool {
        !matches!(self, Self::Refused | Self::Unreachable | Self::TimedOut | Self::Lost)
    }
}

/// How a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndCause {
    /// RST.
    Reset,
    /// FIN (an end of the stream that we didn't ask for).
    Fin,
    /// ETIMEDOUT: keepalives or TCP_USER_TIMEOUT.
    TimedOut,
    /// The server said why, as an error or as a notice.
    Sqlstate(SqlState),
    /// We, or the caller, closed it: evidence of nothing.
    Local,
}

/// What an opened session learned of its host, without asking more than it does anyway.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoleFacts {
    /// In recovery (ParameterStatus `in_hot_standby`, or by query).
    pub in_recovery: Option<bool>,
    /// `default_transaction_read_only` of that session.
    pub read_only: Option<bool>,
    /// The whole term row, where the session read it.
    pub row: Option<TermRow>,
}

/// What the topology is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// A name gave this address (or it was configured as one). Repeat it freely.
    AddressKnown {
        /// Its number, chosen by the shell, the same for the same address and port for ever.
        host: HostId,
        /// The index of the configured candidate.
        spec: usize,
        /// The address.
        address: Address,
    },
    /// A good answer for its name doesn't hold this address any more (E0). A failed look-up is not told.
    AddressGone {
        /// The address's number.
        host: HostId,
    },
    /// A name server answered, uncached.
    NameServerAnswered {
        /// It sits at a loopback address or one of this machine: proves nothing of the network.
        local: bool,
    },
    /// A dialled probe session is open. It replaces an older one to the same host, which the shell then closes.
    ProbeConnected {
        /// The host.
        host: HostId,
        /// Its first row.
        row: TermRow,
        /// Round trip of the row's query.
        rtt: Duration,
    },
    /// A dial of a probe session failed. An older session that is still open stays open.
    ProbeConnectFailed {
        /// The host.
        host: HostId,
        /// Why.
        kind: ConnectKind,
    },
    /// A probe session answered one question (however late).
    ProbeAnswered {
        /// The host.
        host: HostId,
        /// The row.
        row: TermRow,
        /// Round trip.
        rtt: Duration,
    },
    /// An open probe session ended, or its question failed; the shell has closed it.
    ProbeFailed {
        /// The host.
        host: HostId,
        /// How.
        cause: EndCause,
    },
    /// A session was opened by a caller (a connect that succeeded needs no [`Input::Connected`] beside it).
    SessionOpened {
        /// The session.
        member: MemberId,
        /// Its host.
        host: HostId,
        /// What it learned.
        facts: RoleFacts,
    },
    /// A caller's session carried the term row along with its own traffic.
    SessionTerm {
        /// The session.
        member: MemberId,
        /// Its host.
        host: HostId,
        /// The row.
        row: TermRow,
    },
    /// A caller's session ended.
    SessionEnded {
        /// The session.
        member: MemberId,
        /// Its host.
        host: HostId,
        /// The generation it was born in.
        generation: u64,
        /// How.
        cause: EndCause,
    },
    /// An SQLSTATE passed on a caller's session that goes on. Only 25006 is evidence.
    SessionSqlstate {
        /// The session.
        member: MemberId,
        /// Its host.
        host: HostId,
        /// The SQLSTATE.
        sqlstate: SqlState,
        /// The session's `in_hot_standby`, if the server reports it.
        in_hot_standby: Option<bool>,
        /// It came in a transaction that the caller began READ ONLY.
        read_only_block: bool,
    },
    /// A parameter changed on a caller's live session.
    SessionParameter {
        /// The session.
        member: MemberId,
        /// Its host.
        host: HostId,
        /// `in_hot_standby`, if that changed.
        in_hot_standby: Option<bool>,
        /// `default_transaction_read_only`, if that changed.
        default_read_only: Option<bool>,
    },
    /// The ping of an idle session failed.
    PingFailed {
        /// Its host.
        host: HostId,
        /// The generation it was born in.
        generation: u64,
    },
    /// A byte came from that address on some socket (tell it at most every 100 ms or so, and when asked by a block).
    ByteSeen {
        /// The host.
        host: HostId,
        /// When the last one came.
        at: Moment,
    },
    /// A call in flight has seen no byte for `suspect_after`. Repeats for the same call are ignored.
    CallBlocked {
        /// Its host.
        host: HostId,
        /// Its session.
        member: MemberId,
        /// The call's number within the session.
        call: u64,
        /// When its last byte came, or it was sent.
        since: Moment,
    },
    /// How many calls are in flight (tell when it leaves or reaches 0; more is not needed).
    CallsInFlight {
        /// The count.
        count: u32,
    },
    /// How many callers wait for a session.
    SessionWanted {
        /// The count.
        callers: u32,
    },
    /// Our own runtime did not run for that long.
    RuntimeStalled {
        /// How long.
        lasted: Duration,
    },
    /// A caller's connect succeeded.
    Connected {
        /// Where.
        host: HostId,
    },
    /// A caller's connect failed (E1).
    ConnectFailed {
        /// Where.
        host: HostId,
        /// Why.
        kind: ConnectKind,
    },
    /// The operator says that this host, though of a lower timeline, is right.
    AcceptTerm {
        /// The host.
        host: HostId,
    },
}

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
    /// None is touched.
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
