//! Which cause each instant is charged to, looking back.

use std::time::Duration;

use super::outage::{Band, OutageCause};
use super::tracks::Tracks;
use crate::clock::Moment;

/// A stretch of time to be charged.
pub(super) struct Stretch {
    pub(super) from: Moment,
    pub(super) until: Moment,
    /// The present: a host heard a moment ago is taken to be still there.
    pub(super) now: Moment,
    /// How long the present may trust a host's last sign of life; zero when looking back at what is over.
    pub(super) trust: Duration,
    /// How long reaching a primary that takes writes lasts in health.
    pub(super) healthy: Duration,
    /// When the outage began.
    pub(super) began: Moment,
}

/// What reached from one stretch to the next.
#[derive(Clone, Copy, Debug)]
pub(super) struct Carry {
    /// The cause before: reaching the new primary is its doing for as long as it would take in health.
    pub(super) cause: OutageCause,
    /// Since when a primary takes writes.
    pub(super) late: Option<Moment>,
}

enum Charge {
    To(OutageCause),
    /// A primary takes writes, and the next success isn't there yet.
    Late {
        waiting: bool,
    },
}

/// Charges every instant of the stretch to exactly one cause.
pub(super) fn lay(tracks: &Tracks, s: &Stretch, carry: &mut Carry, band: &mut Band) {
    let inside = tracks.edges().into_iter().filter(|t| s.from < *t && *t < s.until);
    let mut edges = vec![s.from];
    edges.extend(inside);
    edges.push(s.until);
    for pair in edges.windows(2) {
        let (a, b) = (pair[0], pair[1]);
        match charge(tracks, s, a) {
            Charge::To(cause) => {
                carry.late = None;
                carry.cause = cause;
                band.lay(a, b, cause);
            }
            Charge::Late { waiting } => {
                let patience = *carry.late.get_or_insert(a) + s.healthy;
                band.lay(a, b.min(patience), carry.cause);
                let cause = if waiting { OutageCause::OwnStorm } else { OutageCause::Application };
                band.lay(a.max(patience), b, cause);
            }
        }
    }
}

fn charge(tracks: &Tracks, s: &Stretch, t: Moment) -> Charge {
    if tracks.hosts.values().any(|h| h.sync.at(t)) {
        return Charge::To(OutageCause::WaitingForStandby);
    }
    let accepting = tracks.accepting(t, s.now, s.trust);
    let waiting = tracks.waiting.at(t);
    let dead = tracks.calls.iter().any(|c| c.from <= t && t < c.until && tracks.is_dead(c));
    // Once somebody looks elsewhere, what is missing is a primary, not a glance.
    let dialled_anew = waiting || (tracks.search.at(t) && accepting.is_none());
    if dead && !dialled_anew {
        return Charge::To(OutageCause::DeadSocket);
    }
    let Some(primary) = accepting else {
        let cause =
            if name_is_stale(tracks, s, t) { OutageCause::StaleName } else { OutageCause::NotWritableYet };
        return Charge::To(cause);
    };
    let attempts = || tracks.hosts.iter().filter(|(_, h)| h.attempts.at(t));
    if waiting && attempts().any(|(_, h)| h.named) && attempts().all(|(id, _)| *id != primary) {
        return Charge::To(OutageCause::StaleName);
    }
    Charge::Late { waiting: waiting || dead }
}

/// Whether the next host to take writes wasn't known by its address yet when this outage began, and took them as soon as
/// it was known.
fn name_is_stale(tracks: &Tracks, s: &Stretch, t: Moment) -> bool {
    let next = tracks.hosts.values().filter_map(|h| Some((h.accepted_after(t)?, h)));
    let next = next.filter(|((from, _), _)| *from <= s.until.max(s.now)).min_by_key(|((from, _), _)| *from);
    next.is_some_and(|((_, refused), h)| h.named && h.known > s.began && !refused)
}
