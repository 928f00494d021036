//! What may happen, as far as an outage is concerned.

use std::time::Duration;

use super::{Fate, Origin, Says};
use crate::clock::Moment;
use crate::host::HostId;

/// What happened. Give facts in the order in which they become known; those about the past carry its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fact {
    /// An address became known.
    Known {
        /// The address.
        host: HostId,
        /// A name gave it. One that is configured itself can't be stale.
        named: bool,
    },
    /// What a host says of itself changed. (Repeat it freely.)
    Says {
        /// The host.
        host: HostId,
        /// What.
        says: Says,
    },
    /// A byte came from a host, on any socket.
    Heard {
        /// The host.
        host: HostId,
        /// When.
        when: Moment,
    },
    /// A call has waited for a byte for over 500 ms. (Repeat it freely.)
    Blocked {
        /// Its session.
        member: u64,
        /// Its number within the session.
        call: u64,
        /// Its host.
        host: HostId,
        /// When it was sent, or its session's last byte came.
        since: Moment,
    },
    /// Such a call was answered.
    Answered {
        /// Its session.
        member: u64,
    },
    /// A session ended under a call.
    Lost {
        /// The session.
        member: u64,
        /// Its host.
        host: HostId,
        /// When the call was sent, or the session's last byte came.
        since: Moment,
        /// Its own socket timed out: nothing came on it since then, whatever came on others.
        timed_out: bool,
    },
    /// A caller gave a call up, by a deadline of its own.
    GivenUp {
        /// The session.
        member: u64,
        /// Its host.
        host: HostId,
        /// When the call was sent, or the session's last byte came.
        since: Moment,
    },
    /// A caller got an error, or `run` met it for one.
    Failed {
        /// Where, if anywhere.
        host: Option<HostId>,
        /// Whose fault.
        origin: Origin,
        /// It is an unknown outcome.
        unknown: bool,
    },
    /// What became of an error that a caller was told to get.
    Fate {
        /// Where it counted: [`super::Attribution::number`] right after it was told.
        outage: u64,
        /// Its origin, as it was told.
        origin: Origin,
        /// It counted as an unknown outcome until now.
        unknown: bool,
        /// What.
        fate: Fate,
    },
    /// A request succeeded.
    Done {
        /// Where.
        host: HostId,
        /// It was a write, by its command tag.
        write: bool,
    },
    /// A caller begins to wait for a session.
    WaitBegan {
        /// A number for it.
        id: u64,
    },
    /// It has one, or waits no more.
    WaitEnded {
        /// Its number.
        id: u64,
    },
    /// A caller's attempt at an address begins, or ends.
    Attempt {
        /// The address.
        host: HostId,
        /// It begins.
        begins: bool,
    },
    /// The monitor looks for the primary, or looks no more.
    Search {
        /// It does.
        running: bool,
    },
    /// Commits wait on that host for a synchronous standby, or wait no more.
    SyncWait {
        /// The host.
        host: HostId,
        /// They do.
        waiting: bool,
        /// Since when, where no call that waits tells: its caller has given it up.
        since: Option<Moment>,
    },
    /// How long a caller waits for a session in health.
    Healthy {
        /// The mean.
        wait: Duration,
    },
}
