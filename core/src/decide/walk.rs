//! What one failed attempt means: its code, its class, and where the walk through the hosts goes next.
//!
//! Decides for both walks. `strict` is libpq 18 (`fe-connect.c`, PQconnectPoll; measured results in
//! `tests/vectors/walk`): it leaves a host only after a failed connect(), a timeout, a failed look-up, 57P03 or a
//! role mismatch. `follow` goes on wherever another host may help. Doesn't dial and keeps no list:
//! [`crate::decide::attempt`] calls this for each failure and carries the step out.

use crate::config::{HostWalk, SslMode};
use crate::error::{Class, Code, Stage};
use crate::failure::{Failed, Failure};
use crate::net::ResolveError;
use crate::sqlstate;

/// How one dial treats TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TlsTry {
    /// No TLS is asked for.
    Plain,
    /// TLS is asked for; after the answer `N` the login goes on in clear text on the same socket (sslmode=prefer).
    TlsOrPlain,
    /// TLS or nothing.
    Tls,
}

impl TlsTry {
    /// The first try at a host. A Unix socket never has TLS, whatever sslmode says (libpq manual, `sslmode`).
    pub fn first(sslmode: SslMode, local: bool) -> Self {
        match sslmode {
            _ if local => Self::Plain,
            SslMode::Disable | SslMode::Allow => Self::Plain,
            SslMode::Prefer => Self::TlsOrPlain,
            SslMode::Require | SslMode::VerifyCa | SslMode::VerifyFull => Self::Tls,
        }
    }
}

/// The circumstances of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Context {
    /// Whose rules.
    pub walk: HostWalk,
    /// The configured mode.
    pub sslmode: SslMode,
    /// What this dial tried.
    pub tried: TlsTry,
    /// Whether the login ran inside TLS. False also where the server answered `N` and the login went on without.
    pub encrypted: bool,
    /// Whether the address is a Unix socket.
    pub local: bool,
    /// Whether the host was healthy within the last 60 s: then 28000 is the sign of a restart, not of a wrong user.
    pub healthy_lately: bool,
    /// Whether this process has resolved the name before: then NXDOMAIN is the name server's passing trouble.
    pub resolved_before: bool,
}

/// Where the walk goes after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// To the next candidate, another address of the same name included.
    NextAddress,
    /// To the next host of the list, past the other addresses of this one (strict only).
    NextHost,
    /// To the same address once more, in clear text (sslmode=prefer).
    PlainSameHost,
    /// To the same address once more, with TLS (sslmode=allow).
    TlsSameHost,
    /// Nowhere: the whole connect ends.
    Stop,
}

/// What a failure means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Its number.
    pub code: Code,
    /// Its class.
    pub class: Class,
    /// Where to go.
    pub next: Next,
}

/// Decides what a failure means.
pub fn step(failed: &Failed, cx: &Context) -> Step {
    let (code, class) = meaning(&failed.failure, cx);
    let next = match cx.walk {
        HostWalk::Strict => strict(failed, cx),
        HostWalk::Follow => follow(failed, cx),
    };
    Step { code, class, next }
}

fn meaning(failure: &Failure, cx: &Context) -> (Code, Class) {
    use Class::{Permanent, Transient};
    match failure {
        Failure::BadPort(_) | Failure::BadAddress(_) => (Code::InvalidOption, Permanent),
        Failure::Resolve(ResolveError::NoSuchName) => {
            (Code::NoSuchName, if cx.resolved_before { Transient } else { Permanent })
        }
        // The name exists, or nobody could tell: worth another try.
        Failure::Resolve(_) => (Code::ResolveFailed, Transient),
        Failure::Dial { .. } => (Code::DialFailed, Transient),
        Failure::TimedOut => (Code::ConnectTimedOut, Transient),
        Failure::TlsNotOffered => (Code::TlsRefused, Permanent),
        // A server that couldn't fork answers so: it may be able to a moment later.
        Failure::TlsRequestRefused => (Code::TlsFailed, Transient),
        Failure::TlsFile(_) => (Code::UnusableFile, Permanent),
        Failure::TlsHandshake(_) => (Code::TlsFailed, Permanent),
        Failure::TlsIdentity(_) => (Code::TlsIdentity, Permanent),
        Failure::EarlyData | Failure::NotPostgres(_) | Failure::TooLarge(_) => {
            (Code::ProtocolViolation, Permanent)
        }
        Failure::Lost(_) => (Code::HandshakeLost, Transient),
        Failure::AuthMethod(_) | Failure::NoPassword => (Code::AuthenticationMethod, Permanent),
        Failure::Server { sqlstate, .. } if cx.healthy_lately && sqlstate.as_str() == "28000" => {
            (Code::Server, Transient)
        }
        Failure::Server { sqlstate, .. } => (Code::Server, sqlstate::meaning(*sqlstate).at_connect),
        Failure::WrongRole { .. } | Failure::RoleUnknown(_) => (Code::WrongRole, Transient),
    }
}

/// The same address in the other way, where sslmode has one left.
fn other_way(cx: &Context) -> Option<Next> {
    match (cx.tried, cx.sslmode) {
        (TlsTry::TlsOrPlain, _) if cx.encrypted => Some(Next::PlainSameHost),
        (TlsTry::Plain, SslMode::Allow) if !cx.local => Some(Next::TlsSameHost),
        _ => None,
    }
}

fn strict(failed: &Failed, cx: &Context) -> Next {
    let or_stop = |next: Option<Next>| next.unwrap_or(Next::Stop);
    match &failed.failure {
        Failure::TimedOut | Failure::Dial { .. } => Next::NextAddress,
        Failure::Resolve(_) | Failure::BadAddress(_) => Next::NextHost,
        // A number out of range is that host's failure; what is no number ends libpq's walk.
        Failure::BadPort(text) if text.trim().parse::<i32>().is_ok() => Next::NextHost,
        Failure::BadPort(_) => Next::Stop,
        Failure::WrongRole { .. } | Failure::RoleUnknown(_) => Next::NextHost,
        // The role question was answered with an error.
        Failure::Server { .. } if failed.stage == Stage::Role => Next::NextHost,
        Failure::Server { sqlstate, after_auth: false, .. } if sqlstate.as_str() == "57P03" => Next::NextHost,
        // Any other error before AuthenticationOk: libpq tries what sslmode has left on that host, and no other host.
        Failure::Server { after_auth: false, .. } => or_stop(other_way(cx)),
        Failure::TlsHandshake(_) => or_stop(other_way(&Context { encrypted: true, ..*cx })),
        // libpq would fall back to clear text under prefer when a root certificate is there and doesn't fit. We
        // don't: who configured a root wants it heard.
        Failure::TlsIdentity(_)
        | Failure::Server { .. }
        | Failure::TlsNotOffered
        | Failure::TlsRequestRefused
        | Failure::TlsFile(_)
        | Failure::EarlyData
        | Failure::NotPostgres(_)
        | Failure::TooLarge(_)
        | Failure::Lost(_)
        | Failure::AuthMethod(_)
        | Failure::NoPassword => Next::Stop,
    }
}

fn follow(failed: &Failed, cx: &Context) -> Next {
    match &failed.failure {
        // The role question was answered with an error: that host isn't suitable, the login was in order.
        Failure::Server { .. } if failed.stage == Stage::Role => Next::NextAddress,
        Failure::Server { sqlstate, after_auth, .. } => {
            let no_entry = sqlstate.as_str() == "28000";
            match other_way(cx) {
                // pg_hba.conf may permit the user in the other way only.
                Some(other) if no_entry && !after_auth => other,
                _ if no_entry && cx.healthy_lately => Next::NextAddress,
                _ if sqlstate::meaning(*sqlstate).stops_walk => Next::Stop,
                _ => Next::NextAddress,
            }
        }
        Failure::TlsHandshake(_) => {
            other_way(&Context { encrypted: true, ..*cx }).unwrap_or(Next::NextAddress)
        }
        // Ours or every host's alike: none can help.
        Failure::TlsFile(_) | Failure::AuthMethod(_) | Failure::NoPassword => Next::Stop,
        Failure::BadPort(_)
        | Failure::BadAddress(_)
        | Failure::Resolve(_)
        | Failure::Dial { .. }
        | Failure::TimedOut
        | Failure::TlsNotOffered
        | Failure::TlsRequestRefused
        | Failure::TlsIdentity(_)
        | Failure::EarlyData
        | Failure::NotPostgres(_)
        | Failure::TooLarge(_)
        | Failure::Lost(_)
        | Failure::WrongRole { .. }
        | Failure::RoleUnknown(_) => Next::NextAddress,
    }
}

/// The code and class of a whole connect. `stopped` is the step that ended it, if one did.
///
/// A stop gives its own; else permanent only if every attempt is, and the code is the attempts' where they agree.
pub fn whole(attempts: &[Step], stopped: Option<Step>) -> (Code, Class) {
    if let Some(s) = stopped {
        return (s.code, s.class);
    }
    let all_permanent = !attempts.is_empty() && attempts.iter().all(|s| s.class == Class::Permanent);
    let class = if all_permanent { Class::Permanent } else { Class::Transient };
    let code = match attempts {
        [first, rest @ ..] if rest.iter().all(|s| s.code == first.code) => first.code,
        _ => Code::NoHostFits,
    };
    (code, class)
}
