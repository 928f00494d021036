//! Generated from the table of `core/src/error.rs`: make gen

use pgfollow::Code;

/// What a call came to. The numbers are the same in every language, and are never used for anything else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum pgf_status {
    /// It went well.
    PGF_OK = 0,
    /// The connection string can't be read.
    PGF_INVALID_CONNINFO = 1,
    /// An option has a value that it can't have, or two options contradict each other.
    PGF_INVALID_OPTION = 2,
    /// An option asks for something that pgfollow can't do.
    PGF_UNSUPPORTED_OPTION = 3,
    /// A file that an option names can't be read or used (certificate, key, password or service file).
    PGF_UNUSABLE_FILE = 4,
    /// The name doesn't exist.
    PGF_NO_SUCH_NAME = 10,
    /// No answer, or a failure, from the name servers.
    PGF_RESOLVE_FAILED = 11,
    /// The host refused, is unreachable, or the socket failed.
    PGF_DIAL_FAILED = 20,
    /// The host didn't finish its part in time (dial, TLS, login or role).
    PGF_CONNECT_TIMED_OUT = 21,
    /// The server has no TLS and the configuration requires it.
    PGF_TLS_REFUSED = 30,
    /// The TLS handshake failed.
    PGF_TLS_FAILED = 31,
    /// The certificate isn't the configured host's.
    PGF_TLS_IDENTITY = 32,
    /// What answered doesn't speak PostgreSQL's protocol, or broke its limits.
    PGF_PROTOCOL_VIOLATION = 40,
    /// The connection ended during login.
    PGF_HANDSHAKE_LOST = 41,
    /// The server asks for an authentication that the configuration or pgfollow doesn't allow.
    PGF_AUTHENTICATION_METHOD = 42,
    /// The server reported an error (see the SQLSTATE).
    PGF_SERVER = 50,
    /// The call itself doesn't fit: its parameters, the columns it reads, or the number of rows it expects.
    PGF_WRONG_CALL = 51,
    /// A host answered and isn't of the wanted role.
    PGF_WRONG_ROLE = 60,
    /// No host of the list could be used.
    PGF_NO_HOST_FITS = 61,
    /// The connection was lost.
    PGF_CONNECTION_LOST = 70,
    /// The session's host was superseded by another primary.
    PGF_SUPERSEDED = 71,
    /// The session's host restarted, was demoted, or is down.
    PGF_HOST_GONE = 72,
    /// The caller's deadline passed during a call.
    PGF_CALL_TIMED_OUT = 73,
    /// COMMIT was answered ROLLBACK: nothing of the transaction was kept.
    PGF_ROLLED_BACK = 74,
    /// The caller's deadline passed before a session could be had.
    PGF_DEADLINE_PASSED = 80,
    /// The connector is closed.
    PGF_CLOSED = 81,
    /// Refused at once: the caller could not have been served within its patience. `retry_after` says when to come back.
    PGF_OVERLOADED = 82,
    /// A closure of `run` ended its own transaction.
    PGF_TRANSACTION_CONTROL = 90,
    /// Committed on this host, but the wait for a synchronous standby was broken off.
    PGF_REPLICATION_UNKNOWN = 91,
    /// The closure of `run` gave up for a reason of its own (the error underneath).
    PGF_GAVE_UP = 92,
    /// An error of pgfollow itself: please report it.
    PGF_INTERNAL = 99,
}

impl pgf_status {
    pub(crate) fn of(code: Code) -> Self {
        match code {
            Code::InvalidConninfo => Self::PGF_INVALID_CONNINFO,
            Code::InvalidOption => Self::PGF_INVALID_OPTION,
            Code::UnsupportedOption => Self::PGF_UNSUPPORTED_OPTION,
            Code::UnusableFile => Self::PGF_UNUSABLE_FILE,
            Code::NoSuchName => Self::PGF_NO_SUCH_NAME,
            Code::ResolveFailed => Self::PGF_RESOLVE_FAILED,
            Code::DialFailed => Self::PGF_DIAL_FAILED,
            Code::ConnectTimedOut => Self::PGF_CONNECT_TIMED_OUT,
            Code::TlsRefused => Self::PGF_TLS_REFUSED,
            Code::TlsFailed => Self::PGF_TLS_FAILED,
            Code::TlsIdentity => Self::PGF_TLS_IDENTITY,
            Code::ProtocolViolation => Self::PGF_PROTOCOL_VIOLATION,
            Code::HandshakeLost => Self::PGF_HANDSHAKE_LOST,
            Code::AuthenticationMethod => Self::PGF_AUTHENTICATION_METHOD,
            Code::Server => Self::PGF_SERVER,
            Code::WrongCall => Self::PGF_WRONG_CALL,
            Code::WrongRole => Self::PGF_WRONG_ROLE,
            Code::NoHostFits => Self::PGF_NO_HOST_FITS,
            Code::ConnectionLost => Self::PGF_CONNECTION_LOST,
            Code::Superseded => Self::PGF_SUPERSEDED,
            Code::HostGone => Self::PGF_HOST_GONE,
            Code::CallTimedOut => Self::PGF_CALL_TIMED_OUT,
            Code::RolledBack => Self::PGF_ROLLED_BACK,
            Code::DeadlinePassed => Self::PGF_DEADLINE_PASSED,
            Code::Closed => Self::PGF_CLOSED,
            Code::Overloaded => Self::PGF_OVERLOADED,
            Code::TransactionControl => Self::PGF_TRANSACTION_CONTROL,
            Code::ReplicationUnknown => Self::PGF_REPLICATION_UNKNOWN,
            Code::GaveUp => Self::PGF_GAVE_UP,
            Code::Internal => Self::PGF_INTERNAL,
            // `Code` may grow; the test that made this file then fails.
            _ => Self::PGF_INTERNAL,
        }
    }
}
