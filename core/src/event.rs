//! All that is observable, as one enum.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use crate::clock::Moment;
use crate::decide::attribute::{Outage, OutageCause};
use crate::decide::topology::{Cause, TopologyEvent};
use crate::host::HostId;
use crate::report::duration;
use crate::session::member::Member;

/// Something happened.
#[derive(Clone, Debug, Serialize)]
pub struct Event {
    /// When.
    pub at: Moment,
    /// What.
    #[serde(flatten)]
    pub kind: EventKind,
    /// The name and address of every host that it speaks of by number.
    pub hosts: Vec<NamedHost>,
}

/// A host's number and what people call it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NamedHost {
    /// Its number.
    pub id: HostId,
    /// Name and address.
    pub name: String,
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
    /// The server stopped waiting for a synchronous standby and said that the commit went well: a failover may lose it.
    CommitLocalOnly {
        /// The session's number.
        session: u64,
        /// Its host.
        host: HostId,
    },
    /// An outage is over. [`crate::Connector::report`] has all of it.
    OutageEnded {
        /// When it began.
        from: Moment,
        /// How long it lasted, in microseconds.
        lasted_us: u64,
        /// The cause with the largest part.
        main_cause: Option<OutageCause>,
        /// Unknown outcomes among the errors that callers got.
        unknown: u64,
    },
}

impl EventKind {
    pub(crate) fn session_ended(m: &Member) -> Self {
        let (cause, decided) =
            m.ended().map_or((String::new(), Moment::ZERO), |e| (e.cause.to_string(), e.at));
        Self::SessionEnded { session: m.id, host: m.host, cause, decided }
    }

    pub(crate) fn outage_ended(o: &Outage) -> Self {
        Self::OutageEnded {
            from: o.from,
            lasted_us: u64::try_from(o.whole().as_micros()).unwrap_or(u64::MAX),
            main_cause: o.parts.main(),
            unknown: o.errors.unknown,
        }
    }
}

impl Event {
    pub(crate) fn new(kind: EventKind, at: Moment, name: &dyn Fn(HostId) -> Option<String>) -> Self {
        let mut ids = match &kind {
            EventKind::Topology(e) => hosts_of(e),
            EventKind::SessionEnded { host, .. } | EventKind::CommitLocalOnly { host, .. } => vec![*host],
            EventKind::OutageEnded { .. } => Vec::new(),
        };
        ids.sort_unstable();
        ids.dedup();
        let named = |id: HostId| NamedHost { id, name: name(id).unwrap_or_else(|| format!("host {}", id.0)) };
        Self { at, kind, hosts: ids.into_iter().map(named).collect() }
    }

    /// The name of its kind.
    pub fn name(&self) -> &'static str {
        match &self.kind {
            EventKind::SessionEnded { .. } => "session_ended",
            EventKind::CommitLocalOnly { .. } => "commit_local_only",
            EventKind::OutageEnded { .. } => "outage_ended",
            EventKind::Topology(e) => match e {
                TopologyEvent::StateChanged { .. } => "state_changed",
                TopologyEvent::Cleared { .. } => "cleared",
                TopologyEvent::SearchStarted { .. } => "search_started",
                TopologyEvent::SearchEnded { .. } => "search_ended",
                TopologyEvent::NewPrimary { .. } => "new_primary",
                TopologyEvent::Conflict { .. } => "conflict",
                TopologyEvent::TermRegressed { .. } => "term_regressed",
                TopologyEvent::TermAccepted { .. } => "term_accepted",
                TopologyEvent::TermNotAccepted { .. } => "term_not_accepted",
                TopologyEvent::OtherCluster { .. } => "other_cluster",
                TopologyEvent::ClusterAdopted { .. } => "cluster_adopted",
                TopologyEvent::EndpointIndirect { .. } => "endpoint_indirect",
                TopologyEvent::SameServer { .. } => "same_server",
                TopologyEvent::SuspectOurselves => "suspect_ourselves",
                TopologyEvent::OurselvesCleared => "ourselves_cleared",
                TopologyEvent::MonitorSessionShed { .. } => "monitor_session_shed",
                TopologyEvent::MonitorHeld { .. } => "monitor_held",
                TopologyEvent::HostDropped { .. } => "host_dropped",
            },
        }
    }

    /// In words, with the hosts' names.
    pub fn text(&self) -> String {
        let name = |id: &HostId| {
            self.hosts
                .iter()
                .find(|h| h.id == *id)
                .map_or_else(|| format!("host {}", id.0), |h| h.name.clone())
        };
        match &self.kind {
            EventKind::SessionEnded { session, host, cause, .. } => {
                format!("session {session} on {} ended: {cause}", name(host))
            }
            EventKind::CommitLocalOnly { session, host } => format!(
                "a commit of session {session} is on {} alone: its wait for a synchronous standby was broken off",
                name(host)
            ),
            EventKind::OutageEnded { lasted_us, main_cause, .. } => {
                let cause = main_cause.map_or(String::new(), |c| format!(", mostly {}", c.name()));
                format!("an outage of {} is over{cause}", duration(Duration::from_micros(*lasted_us)))
            }
            EventKind::Topology(e) => topology(e, &name),
        }
    }
}

impl fmt::Display for Event {
    /// As [`Event::text`].
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text())
    }
}

fn hosts_of(e: &TopologyEvent) -> Vec<HostId> {
    let cause = |c: &Cause| match c {
        Cause::Superseded { by, .. } | Cause::Succeeded { by } => Some(*by),
        Cause::TermAccepted { host } => Some(*host),
        _ => None,
    };
    let all: Vec<Option<HostId>> = match e {
        TopologyEvent::StateChanged { host, cause: c, .. }
        | TopologyEvent::Cleared { host, cause: c, .. } => {
            vec![Some(*host), cause(c)]
        }
        TopologyEvent::SearchStarted { incumbent } => vec![*incumbent],
        TopologyEvent::SearchEnded { primary, .. } => vec![Some(*primary)],
        TopologyEvent::NewPrimary { host, before, .. } => vec![Some(*host), *before],
        TopologyEvent::Conflict { incumbent, other, .. } => vec![Some(*incumbent), Some(*other)],
        TopologyEvent::TermRegressed { stale, newer, .. } => vec![Some(*stale), *newer],
        TopologyEvent::SameServer { host, same_as } => vec![Some(*host), Some(*same_as)],
        TopologyEvent::TermAccepted { host, .. }
        | TopologyEvent::TermNotAccepted { host }
        | TopologyEvent::OtherCluster { host, .. }
        | TopologyEvent::ClusterAdopted { host, .. }
        | TopologyEvent::EndpointIndirect { host }
        | TopologyEvent::MonitorSessionShed { host, .. }
        | TopologyEvent::MonitorHeld { host }
        | TopologyEvent::HostDropped { host } => vec![Some(*host)],
        TopologyEvent::SuspectOurselves | TopologyEvent::OurselvesCleared => Vec::new(),
    };
    all.into_iter().flatten().collect()
}

fn why(cause: &Cause, name: &dyn Fn(&HostId) -> String) -> String {
    match cause {
        Cause::Start => "nothing was known".to_owned(),
        Cause::Named => "its name gave the address".to_owned(),
        Cause::Answered => "it says so".to_owned(),
        Cause::ConnectFailed { kind } => format!("a new connection failed: {kind:?}"),
        Cause::CallBlocked => "a call there got no byte".to_owned(),
        Cause::Silence => "it is silent".to_owned(),
        Cause::SocketsEnded => "sessions there ended".to_owned(),
        Cause::Restarted => "it was restarted".to_owned(),
        Cause::Demoted => "it was demoted".to_owned(),
        Cause::Superseded { by, timeline } => format!("{} is primary on timeline {timeline}", name(by)),
        Cause::Fenced => "it is read-only".to_owned(),
        Cause::Succeeded { by } => format!("{} is primary now", name(by)),
        Cause::OtherCluster => "it belongs to another cluster".to_owned(),
        Cause::NeverPrimary => "never_primary forbids it".to_owned(),
        Cause::TermAccepted { host } => format!("the operator accepted {}", name(host)),
    }
}

fn topology(e: &TopologyEvent, name: &dyn Fn(&HostId) -> String) -> String {
    let line = |t: &Option<u32>| t.map_or(String::new(), |t| format!(" on timeline {t}"));
    match e {
        TopologyEvent::StateChanged { host, from, to, cause } => {
            format!("{}: {from} → {to} ({})", name(host), why(cause, name))
        }
        TopologyEvent::Cleared { host, cause, .. } => {
            format!("older sessions on {} are closed ({})", name(host), why(cause, name))
        }
        TopologyEvent::SearchStarted { incumbent: Some(h) } => {
            format!("looking for the primary: {} is doubted", name(h))
        }
        TopologyEvent::SearchStarted { incumbent: None } => "looking for the primary".to_owned(),
        TopologyEvent::SearchEnded { primary, took_us } => {
            format!(
                "the primary is known: {}, after {}",
                name(primary),
                duration(Duration::from_micros(*took_us))
            )
        }
        TopologyEvent::NewPrimary { host, timeline, before } => {
            let before = before.as_ref().map_or(String::new(), |b| format!(", before it was {}", name(b)));
            format!("{} is primary{}{before}", name(host), line(timeline))
        }
        TopologyEvent::Conflict { incumbent, other, timeline } => {
            format!(
                "{} takes writes{} beside {}, which is kept",
                name(other),
                line(timeline),
                name(incumbent)
            )
        }
        TopologyEvent::TermRegressed { stale, stale_timeline, newer, newer_timeline } => {
            let newer = newer.as_ref().map_or("the newer primary".to_owned(), name);
            format!(
                "only {}{} answers, and not {newer}{}",
                name(stale),
                line(stale_timeline),
                line(newer_timeline)
            )
        }
        TopologyEvent::TermAccepted { host, timeline } => {
            format!("the operator accepted {} on timeline {timeline}", name(host))
        }
        TopologyEvent::TermNotAccepted { host } => {
            format!("{} is no writable primary of a lower timeline: not accepted", name(host))
        }
        TopologyEvent::OtherCluster { host, system_identifier } => {
            format!("{} belongs to another cluster ({system_identifier})", name(host))
        }
        TopologyEvent::ClusterAdopted { host, system_identifier } => {
            format!("the cluster of {} is followed from now on ({system_identifier})", name(host))
        }
        TopologyEvent::EndpointIndirect { host } => format!("{} leads to more than one server", name(host)),
        TopologyEvent::SameServer { host, same_as } => {
            format!("{} and {} are one server", name(host), name(same_as))
        }
        TopologyEvent::SuspectOurselves => "all hosts are silent: the fault may be here".to_owned(),
        TopologyEvent::OurselvesCleared => "a host answers again".to_owned(),
        TopologyEvent::MonitorSessionShed { host, count, limit } => {
            format!(
                "the monitor closed its session on {}: {count} monitors there, {limit} are fair",
                name(host)
            )
        }
        TopologyEvent::MonitorHeld { host } => {
            format!("the monitor dials nobody: {} refused the password", name(host))
        }
        TopologyEvent::HostDropped { host } => format!("{} is no candidate any more", name(host)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_that_is_logged_names_its_hosts() {
        let kind = EventKind::CommitLocalOnly { session: 7, host: HostId(3) };
        let event = Event::new(kind, Moment::ZERO, &|_| Some("db-a (10.0.0.11:5432)".to_owned()));
        assert_eq!(event.to_string(), event.text());
        assert!(event.to_string().contains("session 7 is on db-a (10.0.0.11:5432) alone"), "{event}");
    }
}
