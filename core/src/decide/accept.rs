//! Role answer × `target_session_attrs` → take, refuse, second choice.
//!
//! Decides with libpq's exact meaning (`fe-connect.c`, CONNECTION_CHECK_TARGET). Doesn't ask: `role.rs` reads the
//! role from ParameterStatus or asks one question (see [`Question`]), calls [`accept`], and hands the result to
//! [`crate::decide::attempt`].

use crate::config::SessionAttrs;
use crate::failure::Failure;

/// What is known of a session's role. `None`: not reported, not asked, or the answer made no sense.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Role {
    /// `in_hot_standby` (reported since PostgreSQL 14), or `pg_is_in_recovery()`.
    pub in_hot_standby: Option<bool>,
    /// `default_transaction_read_only` (reported since 14).
    pub default_read_only: Option<bool>,
    /// The answer to `SHOW transaction_read_only`, which covers both (before 14).
    pub transaction_read_only: Option<bool>,
}

/// What must be asked before [`accept`] can decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// `SHOW transaction_read_only`.
    TransactionReadOnly,
    /// `SELECT pg_catalog.pg_is_in_recovery()`.
    InRecovery,
}

/// The decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accept {
    /// The wanted role.
    Take,
    /// Usable if nothing better is found (prefer-standby only).
    SecondChoice,
    /// Not the wanted role; what it is instead.
    Refuse {
        /// In words, for the message.
        seen: &'static str,
    },
    /// The role isn't known: not suitable, never taken for writable.
    Unknown,
}

impl Role {
    /// Whether writes would be refused, if that is known: one yes is enough, a no needs the question or both reports.
    fn read_only(self) -> Option<bool> {
        match (self.in_hot_standby, self.default_read_only, self.transaction_read_only) {
            (Some(true), _, _) | (_, Some(true), _) | (_, _, Some(true)) => Some(true),
            (Some(false), Some(false), _) | (_, _, Some(false)) => Some(false),
            _ => None,
        }
    }

    /// The one question that is still needed for these attributes.
    pub fn question(self, wanted: SessionAttrs) -> Option<Question> {
        match wanted {
            SessionAttrs::Any => None,
            // libpq asks unless both were reported; one yes is enough for the same answer, without the round trip.
            SessionAttrs::ReadWrite | SessionAttrs::ReadOnly => {
                self.read_only().is_none().then_some(Question::TransactionReadOnly)
            }
            SessionAttrs::Primary | SessionAttrs::Standby | SessionAttrs::PreferStandby => {
                self.in_hot_standby.is_none().then_some(Question::InRecovery)
            }
        }
    }
}

/// Decides about a session whose role is as known as it will be.
pub fn accept(role: Role, wanted: SessionAttrs) -> Accept {
    let (fits, otherwise) = match wanted {
        SessionAttrs::Any => return Accept::Take,
        SessionAttrs::ReadWrite => (role.read_only().map(|r| !r), read_only_as(role)),
        SessionAttrs::ReadOnly => (role.read_only(), "writable"),
        SessionAttrs::Primary => (role.in_hot_standby.map(|s| !s), "in recovery"),
        SessionAttrs::Standby => (role.in_hot_standby, "not in recovery"),
        // The second pass takes whatever there is, so a role that can't be read is no obstacle then either.
        SessionAttrs::PreferStandby if role.in_hot_standby != Some(true) => return Accept::SecondChoice,
        SessionAttrs::PreferStandby => return Accept::Take,
    };
    match fits {
        Some(true) => Accept::Take,
        Some(false) => Accept::Refuse { seen: otherwise },
        None => Accept::Unknown,
    }
}

fn read_only_as(role: Role) -> &'static str {
    if role.in_hot_standby == Some(true) { "in recovery" } else { "read-only" }
}

impl Accept {
    /// The failure that a refusal is, for the list of attempts; `None` where the session may be used.
    pub fn failure(self, wanted: SessionAttrs) -> Option<Failure> {
        match self {
            Self::Take | Self::SecondChoice => None,
            Self::Refuse { seen } => Some(Failure::WrongRole { wanted, seen }),
            Self::Unknown => Some(Failure::RoleUnknown("no usable answer to the role question".to_owned())),
        }
    }
}
