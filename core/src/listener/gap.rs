//! A time in which notifications may have been missed, and why.

use std::fmt;

use crate::clock::Moment;
use crate::report::duration;
use crate::session::EndCause;

/// A time in which notifications may have been missed. It is told when the listener listens again: what is read from the
/// database after that is complete.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Gap {
    /// Its start: the last sign of life of the session that ended, or the first notification that was dropped.
    pub from: Moment,
    /// Its end: the new session listens, or the last notification that was dropped.
    pub to: Moment,
    /// Notifications that came and were dropped because nobody read them. Those that a lost session never got can't be
    /// counted.
    pub missed: u64,
    /// Why.
    pub cause: GapCause,
}

/// Why notifications were missed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GapCause {
    /// The session ended.
    SessionEnded {
        /// Its host, for people.
        host: String,
        /// Why it ended.
        cause: EndCause,
    },
    /// The buffer was full.
    SlowReader,
}

impl fmt::Display for Gap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "notifications of {} may be missing: {}", duration(self.to - self.from), self.cause)?;
        match self.missed {
            0 => Ok(()),
            n => write!(f, " ({n} dropped)"),
        }
    }
}

impl fmt::Display for GapCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SessionEnded { host, cause } => write!(f, "the session on {host} ended: {cause}"),
            Self::SlowReader => f.write_str("nobody read them, and the buffer was full"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_that_is_logged_says_how_long_it_was_where_and_why() {
        let gap = |missed, cause| Gap {
            from: Moment::from_millis(1_000),
            to: Moment::from_millis(2_500),
            missed,
            cause,
        };
        let ended =
            GapCause::SessionEnded { host: "db-a (10.0.0.11:5432)".to_owned(), cause: EndCause::Closed };
        let text = gap(0, ended).to_string();
        assert_eq!(
            text,
            "notifications of 1.50 s may be missing: the session on db-a (10.0.0.11:5432) ended: the session was closed"
        );
        let text = gap(7, GapCause::SlowReader).to_string();
        assert!(text.ends_with("nobody read them, and the buffer was full (7 dropped)"), "{text}");
    }
}
