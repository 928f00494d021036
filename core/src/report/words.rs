//! What the recorder calls things by: hosts, states, failed connects, ends of sessions.

use std::sync::Arc;

use crate::decide::attribute::Says;
use crate::decide::topology::{ConnectKind, State};
use crate::host::Address;
use crate::session::member::EndCause;

/// As [`crate::host::Candidate`] shows itself.
pub(super) fn label(name: Option<&Arc<str>>, address: &Address) -> Arc<str> {
    match (name, address) {
        (Some(name), Address::Tcp(a)) if **name != *a.ip().to_string() => format!("{name} ({a})").into(),
        _ => address.to_string().into(),
    }
}

/// What a state says about writes; `None` where it says nothing new.
pub(super) fn says(state: State) -> Option<Says> {
    Some(match state {
        State::Unknown => Says::Unknown,
        State::Primary => Says::Accepts,
        // Its slots are taken; it takes writes, or takes none, as before.
        State::Full => return None,
        State::PrimaryReadOnly | State::Standby | State::NotReady | State::Denied => Says::Refuses,
        State::StalePrimary | State::Conflict | State::Foreign => Says::Superseded,
        // One answer may be late.
        State::Suspect(0 | 1) => return None,
        State::Suspect(_) => Says::Silent,
        State::Down => Says::Gone,
    })
}

pub(super) fn kind_name(kind: ConnectKind) -> &'static str {
    match kind {
        ConnectKind::Refused => "refused",
        ConnectKind::Unreachable => "unreachable",
        ConnectKind::TimedOut => "timed_out",
        ConnectKind::Lost => "lost",
        ConnectKind::NotReady => "not_ready",
        ConnectKind::Full => "full",
        ConnectKind::BadPassword => "bad_password",
        ConnectKind::NotAuthorized => "not_authorized",
        ConnectKind::NoDatabase => "no_database",
        ConnectKind::Forbidden => "forbidden",
        ConnectKind::TlsIdentity => "tls_identity",
        ConnectKind::Tls => "tls",
        ConnectKind::Other => "other",
    }
}

/// Why a session ended, if not by its owner's wish.
pub(super) fn eviction(cause: &EndCause) -> Option<String> {
    Some(match cause {
        EndCause::Verdict { code, .. } if *code == crate::error::Code::Superseded => "superseded".to_owned(),
        EndCause::Verdict { .. } => "host_gone".to_owned(),
        EndCause::Server { sqlstate, .. } => format!("server {sqlstate}"),
        EndCause::Lost { timed_out: true, .. } => "timed_out".to_owned(),
        EndCause::Lost { reset: true, .. } => "reset".to_owned(),
        EndCause::Lost { .. } => "end_of_file".to_owned(),
        EndCause::CallTimedOut => "call_timed_out".to_owned(),
        EndCause::Closed => return None,
    })
}
