//! What is kept: counts, distributions, the last events and outages. All of it bounded.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::hist::Hist;
use super::{Calls, SessionsSeen};
use crate::clock::Moment;
use crate::decide::attribute::{Attribution, Outage};
use crate::decide::topology::State;
use crate::error::{Class, Code, SqlState, Stage};
use crate::host::HostId;

/// Outages kept.
const OUTAGES: usize = 16;
/// Events kept.
const EVENTS: usize = 256;
/// States kept of one host.
const STATES: usize = 64;
/// Kinds told apart in one count; what is more is counted together.
const KINDS: usize = 256;

/// Counts by kind, with an end: what comes after [`KINDS`] of them is counted as `rest`.
#[derive(Debug)]
pub(super) struct Tally<K> {
    pub(super) counts: BTreeMap<K, u64>,
    pub(super) rest: u64,
}

impl<K> Default for Tally<K> {
    fn default() -> Self {
        Self { counts: BTreeMap::new(), rest: 0 }
    }
}

impl<K: Ord> Tally<K> {
    /// Whether it is counted by its own kind.
    pub(super) fn add(&mut self, kind: K) -> bool {
        let full = self.counts.len() >= KINDS;
        match self.counts.get_mut(&kind) {
            Some(n) => *n += 1,
            None if full => {
                self.rest += 1;
                return false;
            }
            None => drop(self.counts.insert(kind, 1)),
        }
        true
    }

    /// One less.
    pub(super) fn take(&mut self, kind: &K) {
        let n = self.counts.get_mut(kind).unwrap_or(&mut self.rest);
        *n = n.saturating_sub(1);
    }
}

/// A bounded list that counts what it dropped.
#[derive(Debug)]
pub(super) struct Latest<T> {
    pub(super) kept: VecDeque<T>,
    pub(super) dropped: u64,
    limit: usize,
}

impl<T> Latest<T> {
    fn new(limit: usize) -> Self {
        Self { kept: VecDeque::new(), dropped: 0, limit }
    }

    pub(super) fn push(&mut self, t: T) {
        if self.kept.len() == self.limit {
            self.kept.pop_front();
            self.dropped += 1;
        }
        self.kept.push_back(t);
    }
}

/// Who dialled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum By {
    Caller,
    Monitor,
    Ahead,
}

impl By {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Caller => "caller",
            Self::Monitor => "monitor",
            Self::Ahead => "ahead",
        }
    }
}

/// Errors of one kind. The class is kept as its number, which sorts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ErrorKind {
    pub(super) host: Option<String>,
    pub(super) code: i32,
    pub(super) class: u8,
    pub(super) sqlstate: Option<SqlState>,
}

const CLASSES: [Class; 3] = [Class::Transient, Class::Permanent, Class::UnknownOutcome];

fn number_of(class: Class) -> u8 {
    CLASSES.iter().position(|c| *c == class).and_then(|i| u8::try_from(i).ok()).unwrap_or(0)
}

impl ErrorKind {
    pub(super) fn new(host: Option<String>, code: Code, class: Class, sqlstate: Option<SqlState>) -> Self {
        Self { host, code: code.number(), class: number_of(class), sqlstate }
    }

    /// The same as of another class.
    pub(super) fn as_class(&self, class: Class) -> Self {
        Self { class: number_of(class), ..self.clone() }
    }

    pub(super) fn class(&self) -> Class {
        CLASSES[usize::from(self.class)]
    }

    pub(super) fn code(&self) -> &'static str {
        Code::TABLE.iter().find(|r| r.0.number() == self.code).map_or("Internal", |r| r.1)
    }
}

/// An address.
#[derive(Debug)]
pub(super) struct HostBook {
    /// For people: name and address.
    pub(super) label: Arc<str>,
    pub(super) states: Latest<(Moment, State)>,
    /// The last count of its sessions, and when.
    pub(super) sessions: Option<(Moment, SessionsSeen)>,
    /// When the next count is due.
    pub(super) count_due: Moment,
    /// Count every second until then: a new primary.
    pub(super) count_often_until: Moment,
    /// It refused to count.
    pub(super) no_count_before: Moment,
    /// Commits were told to wait there for a standby.
    pub(super) sync_wait: bool,
}

impl HostBook {
    pub(super) fn new(label: Arc<str>, count_due: Moment) -> Self {
        Self {
            label,
            states: Latest::new(STATES),
            sessions: None,
            count_due,
            count_often_until: Moment::ZERO,
            no_count_before: Moment::ZERO,
            sync_wait: false,
        }
    }
}

/// A call that waits for a byte.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockedCall {
    pub(super) host: HostId,
    pub(super) number: u64,
    pub(super) since: Moment,
}

/// Everything.
#[derive(Debug)]
pub(super) struct Book {
    pub(super) attribution: Attribution,
    pub(super) outages: Latest<Outage>,
    /// Of these, those that no event has told yet.
    pub(super) untold: Vec<Outage>,
    pub(super) ticked: Moment,
    pub(super) hosts: BTreeMap<HostId, HostBook>,
    /// Errors that callers got.
    pub(super) errors: Tally<ErrorKind>,
    /// Errors that `run` kept from its callers, as they were met.
    pub(super) spared: Tally<ErrorKind>,
    pub(super) dials: Tally<(HostId, By, &'static str)>,
    pub(super) evictions: Tally<(HostId, String)>,
    /// Outcomes asked for, by way and answer.
    pub(super) outcomes: Tally<(&'static str, &'static str)>,
    pub(super) acquire: Hist,
    /// Sessions had while nothing was wrong.
    pub(super) healthy: Hist,
    pub(super) stages: BTreeMap<Stage, Hist>,
    pub(super) events: Latest<(Moment, String, String)>,
    pub(super) calls: Calls,
    /// By session. As many as sessions at most.
    pub(super) blocked: BTreeMap<u64, BlockedCall>,
    /// Pools made so far, by what they want.
    pub(super) pools: BTreeMap<&'static str, u32>,
    /// Hosts of sessions that are gone while their commits wait there for a standby. As many as places of pools at most.
    pub(super) kept: BTreeMap<u64, HostId>,
    pub(super) sheds: u64,
    pub(super) timeouts: u64,
    /// Of the acquisitions that took no time, how many were told to the metrics.
    pub(super) told_at_once: u64,
}

impl Book {
    pub(super) fn new() -> Self {
        Self {
            attribution: Attribution::default(),
            outages: Latest::new(OUTAGES),
            untold: Vec::new(),
            ticked: Moment::ZERO,
            hosts: BTreeMap::new(),
            errors: Tally::default(),
            spared: Tally::default(),
            dials: Tally::default(),
            evictions: Tally::default(),
            outcomes: Tally::default(),
            acquire: Hist::default(),
            healthy: Hist::default(),
            stages: BTreeMap::new(),
            events: Latest::new(EVENTS),
            calls: Calls::default(),
            blocked: BTreeMap::new(),
            kept: BTreeMap::new(),
            sheds: 0,
            pools: BTreeMap::new(),
            timeouts: 0,
            told_at_once: 0,
        }
    }

    /// Whether calls there have waited for long.
    pub(super) fn held_up(&self, host: HostId) -> bool {
        self.blocked.values().any(|b| b.host == host) || self.kept.values().any(|h| *h == host)
    }

    pub(super) fn label(&self, host: HostId) -> Arc<str> {
        self.hosts.get(&host).map_or_else(|| format!("host {}", host.0).into(), |h| Arc::clone(&h.label))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_with_ever_new_errors_fills_no_memory() {
        let mut t = Tally::default();
        for n in 0..10_000 {
            t.add(n % 5_000);
        }
        assert_eq!(t.counts.len(), KINDS);
        assert_eq!(t.counts.values().sum::<u64>() + t.rest, 10_000);
        let mut l = Latest::new(3);
        (0..10).for_each(|n| l.push(n));
        assert_eq!((l.kept.iter().copied().collect::<Vec<_>>(), l.dropped), (vec![7, 8, 9], 7));
    }
}
