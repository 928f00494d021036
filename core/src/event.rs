//! All that is observable, as one enum.

use serde::Serialize;

use crate::clock::Moment;
use crate::decide::topology::TopologyEvent;
use crate::host::HostId;
use crate::session::member::Member;

/// Something happened.
#[derive(Clone, Debug, Serialize)]
pub struct Event {
    /// When.
    pub at: Moment,
    /// What.
    #[serde(flatten)]
    pub kind: EventKind,
}

/// What happened.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum EventKind {
    /// The picture of the hosts changed.
    Topology(TopologyEvent),
    /// A caller's session ended.
    SessionEnded {
        /// Its number.
        session: u64,
        /// Its host.
        host: HostId,
        /// Why, in words.
        cause: String,
        /// When the end was decided.
        decided: Moment,
    },
}

impl EventKind {
    pub(crate) fn session_ended(m: &Member) -> Self {
        let (cause, decided) =
            m.ended().map_or((String::new(), Moment::ZERO), |e| (e.cause.to_string(), e.at));
        Self::SessionEnded { session: m.id, host: m.host, cause, decided }
    }
}
