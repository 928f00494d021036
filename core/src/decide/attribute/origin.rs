//! Whose fault an error is, as far as an outage is concerned.

use crate::error::{Class, Code, SqlState};

/// Whose fault an error is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Of failover: a lost connection, no host that fits, a host that refuses writes. It opens an outage.
    Failover,
    /// Of our own limits: overloaded, no session in time. It keeps an outage open, and opens one only where no host
    /// takes writes.
    Own,
    /// The application's own: neither.
    Application,
}

impl Origin {
    /// From what an error says of itself.
    pub fn of(code: Code, class: Class, sqlstate: Option<SqlState>) -> Self {
        if class == Class::Permanent {
            return Self::Application;
        }
        match (code, sqlstate) {
            // The server answered, and the session lives: only some words speak of a failover.
            (Code::Server | Code::RolledBack, Some(s)) if of_failover(s) => Self::Failover,
            (Code::Server | Code::RolledBack | Code::WrongCall, _) => Self::Application,
            // A slow call or a dead host: the call itself tells, once it is known what became of the host.
            (Code::CallTimedOut | Code::Internal, _) => Self::Application,
            // The server ended this session alone (a timeout of its own, an operator's cancel).
            (Code::ConnectionLost, Some(s)) if !of_failover(s) => Self::Application,
            // Too little patience, or nothing to be had: that depends on the hosts, not on the error.
            (Code::DeadlinePassed, _) => Self::Own,
            (code, _) if code.number() < Code::Closed.number() => Self::Failover,
            _ => Self::Own,
        }
    }
}

/// SQLSTATEs that a failover brings about: shutdown and crash, starting up, full, read-only, a lost connection.
pub(crate) fn of_failover(s: SqlState) -> bool {
    matches!(s.as_str(), "57P01" | "57P02" | "57P03" | "53300" | "25006" | "58P01")
        || s.as_str().starts_with("08")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(code: Code, class: Class, sqlstate: Option<&str>) -> Origin {
        Origin::of(code, class, sqlstate.and_then(SqlState::new))
    }

    #[test]
    fn an_error_of_the_application_opens_no_outage() {
        assert_eq!(of(Code::Server, Class::Permanent, Some("23505")), Origin::Application);
        assert_eq!(of(Code::Server, Class::Transient, Some("40001")), Origin::Application);
        assert_eq!(of(Code::Server, Class::Permanent, Some("25006")), Origin::Application);
        assert_eq!(of(Code::ConnectionLost, Class::Transient, Some("57P05")), Origin::Application);
        assert_eq!(of(Code::RolledBack, Class::Transient, None), Origin::Application);
        assert_eq!(of(Code::Server, Class::Permanent, Some("28P01")), Origin::Application);
        assert_eq!(of(Code::DeadlinePassed, Class::Transient, None), Origin::Own);
    }

    #[test]
    fn what_a_failover_brings_about_opens_one() {
        for (code, class, state) in [
            (Code::ConnectionLost, Class::UnknownOutcome, None),
            (Code::ConnectionLost, Class::Transient, Some("57P01")),
            (Code::Superseded, Class::UnknownOutcome, None),
            (Code::HostGone, Class::Transient, None),
            (Code::Server, Class::Transient, Some("25006")),
            (Code::NoHostFits, Class::Transient, None),
        ] {
            assert_eq!(of(code, class, state), Origin::Failover, "{code:?} {state:?}");
        }
    }
}
