//! An outage and its parts, as plain data.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Errors;
use crate::clock::Moment;
use crate::host::HostId;

/// What an instant of an outage is charged to. The names are the same in every language and report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutageCause {
    /// Calls were blocked on a host that later proved gone, superseded or frozen, and nobody had dialled anew.
    DeadSocket,
    /// Attempts went to an address that wasn't the primary (any more), while another one, or the moved name, would
    /// have been.
    StaleName,
    /// Commits waited for a synchronous standby that was gone: the database's share.
    WaitingForStandby,
    /// No host took writes yet: the database's own share.
    NotWritableYet,
    /// The primary took writes, and callers waited in queue, pace or handshakes for longer than in health.
    OwnStorm,
    /// The primary took writes and nobody waited: other errors, or nobody asked.
    Application,
}

impl OutageCause {
    /// All of them, in the order of the table in the documentation.
    pub const ALL: [Self; 6] = [
        Self::DeadSocket,
        Self::StaleName,
        Self::WaitingForStandby,
        Self::NotWritableYet,
        Self::OwnStorm,
        Self::Application,
    ];

    /// The stable name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::DeadSocket => "dead_socket",
            Self::StaleName => "stale_name",
            Self::WaitingForStandby => "waiting_for_standby",
            Self::NotWritableYet => "not_writable_yet",
            Self::OwnStorm => "own_storm",
            Self::Application => "application",
        }
    }

    /// The same, in words for a sentence.
    pub const fn words(self) -> &'static str {
        match self {
            Self::DeadSocket => "calls waited on dead sockets",
            Self::StaleName => "attempts went to the wrong address",
            Self::WaitingForStandby => "commits waited for a standby",
            Self::NotWritableYet => "no host took writes",
            Self::OwnStorm => "callers queued at the new primary",
            Self::Application => "the application itself held things up",
        }
    }

    const fn index(self) -> usize {
        self as usize
    }
}

/// How much of an outage each cause has. The parts add up to the whole, to the microsecond.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parts([u64; 6]);

impl Parts {
    /// One cause's part.
    pub fn get(&self, cause: OutageCause) -> Duration {
        Duration::from_micros(self.0[cause.index()])
    }

    /// The whole.
    pub fn total(&self) -> Duration {
        Duration::from_micros(self.0.iter().sum())
    }

    /// Every cause with its part.
    pub fn iter(&self) -> impl Iterator<Item = (OutageCause, Duration)> + '_ {
        OutageCause::ALL.into_iter().map(|c| (c, self.get(c)))
    }

    /// The largest part's cause; `None` where there are no parts.
    pub fn main(&self) -> Option<OutageCause> {
        let (cause, part) = self.iter().max_by_key(|(_, d)| *d)?;
        (!part.is_zero()).then_some(cause)
    }

    pub(super) fn add(&mut self, cause: OutageCause, d: Duration) {
        self.0[cause.index()] += u64::try_from(d.as_micros()).unwrap_or(u64::MAX);
    }
}

/// A stretch of an outage with one cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// From then.
    pub from: Moment,
    /// Until then.
    pub until: Moment,
    /// Its cause.
    pub cause: OutageCause,
}

/// An outage, attributed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outage {
    /// When the first call that failed had begun to wait, or failed.
    pub from: Moment,
    /// Its end: the first write that succeeded after the last trouble. For one that is still open, the present.
    pub until: Moment,
    /// It goes on; what is said of it may change in hindsight.
    pub open: bool,
    /// What each cause has of it.
    pub parts: Parts,
    /// The same over time, without gaps. Very short stretches may have been joined to their neighbours.
    pub segments: Vec<Segment>,
    /// Where the first call was lost, or refused.
    pub lost: Option<HostId>,
    /// Where the write succeeded that ended it.
    pub back: Option<HostId>,
    /// When that host was first seen to take writes, if that was after the beginning: what the database's own team sees.
    pub ready: Option<Moment>,
    /// The first write that succeeded after the first trouble.
    pub first_success: Option<Moment>,
    /// A number of its own.
    pub number: u64,
    /// Errors meanwhile.
    pub errors: Errors,
}

impl Outage {
    /// How long it lasted, or has lasted.
    pub fn whole(&self) -> Duration {
        self.until - self.from
    }
}

/// Stretches of an outage that are kept; beyond that the shortest are joined to their neighbours.
const SEGMENTS: usize = 256;

/// Stretches laid end to end.
#[derive(Clone, Debug, Default)]
pub(super) struct Band {
    pub(super) parts: Parts,
    pub(super) segments: Vec<Segment>,
}

impl Band {
    pub(super) fn lay(&mut self, from: Moment, until: Moment, cause: OutageCause) {
        if until <= from {
            return;
        }
        self.parts.add(cause, until - from);
        match self.segments.last_mut() {
            Some(last) if last.cause == cause => last.until = until,
            _ => self.segments.push(Segment { from, until, cause }),
        }
    }

    /// Joins the shortest stretches to those before them until few enough are left.
    pub(super) fn shorten(&mut self) {
        while self.segments.len() > SEGMENTS {
            let shortest =
                (1..self.segments.len()).min_by_key(|&i| self.segments[i].until - self.segments[i].from);
            let Some(i) = shortest else { return };
            let gone = self.segments.remove(i);
            self.segments[i - 1].until = gone.until;
            // What lay on both sides of it may be of one cause now.
            if self.segments.get(i).is_some_and(|next| next.cause == self.segments[i - 1].cause) {
                let next = self.segments.remove(i);
                self.segments[i - 1].until = next.until;
            }
        }
    }
}
