//! How the topology is configured, and what it is told ([`Input`]).

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

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
    /// A dialled probe session is open. It replaces an older one to the same host, which the shell then closes; what
    /// that one still answers isn't told.
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
    /// A call in flight has seen no byte for `suspect_after`. Tell the host's last byte first, and tell this again
    /// each `suspect_after` while it lasts: it counts once, but not while other bytes come from the host.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Stage;

    fn kind(failure: Failure) -> Option<ConnectKind> {
        ConnectKind::of(&Failed::new(Stage::Authenticate, failure))
    }

    fn server(sqlstate: &str) -> Option<ConnectKind> {
        let sqlstate = SqlState::new(sqlstate).expect("a state");
        kind(Failure::Server { sqlstate, message: String::new(), after_auth: false })
    }

    #[test]
    fn what_never_reached_the_host_is_no_evidence_against_it() {
        assert_eq!(kind(Failure::BadPort("0".into())), None);
        assert_eq!(kind(Failure::Resolve(crate::net::ResolveError::TimedOut)), None);
        assert_eq!(kind(Failure::TlsFile("no such file".into())), None);
        assert_eq!(kind(Failure::RoleUnknown("cancelled".into())), None);
    }

    #[test]
    fn a_host_that_speaks_is_never_taken_for_a_silent_one() {
        for state in ["57P03", "53300", "28P01", "28000", "3D000", "42501", "XX000"] {
            assert!(server(state).is_some_and(ConnectKind::is_reply), "{state}");
        }
        let refused = Failure::Dial { os: Some(libc::ECONNREFUSED), message: String::new() };
        assert_eq!(kind(refused), Some(ConnectKind::Refused));
        for silent in [Failure::TimedOut, Failure::Lost("RST".into())] {
            assert!(kind(silent).is_some_and(|k| !k.is_reply()));
        }
        // The backend that was told to die proves no server that lives on.
        assert_eq!(server("57P01"), Some(ConnectKind::Lost));
    }
}
