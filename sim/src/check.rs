//! The judge of a run: what the clients were told against what the servers did.

mod outcomes;
mod rates;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use pgfollow::{Class, Error};

use crate::node::Entry;
use crate::workload::{Kind, Told, Try};
use crate::world::{Inner, World};

/// What is allowed.
#[derive(Clone, Debug)]
pub struct Bounds {
    /// The longest that a job may take, from asking for a session to the last answer.
    pub job: Duration,
    /// After everything is healed, each worker has done something within this.
    pub recovery: Duration,
    /// The most logins that one process's callers begin in any second, and in any ten: `max_connect_rate`, the bucket's
    /// burst, and what the connects after new primaries were lent.
    pub logins: (usize, usize),
    /// The same for its monitor.
    pub monitor_logins: (usize, usize),
    /// How long a process's callers may wait for their first write on a new primary, once it was possible.
    pub resumed: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            // A connect waits 30 s, and then a call may meet silence: three times tcp_user_timeout.
            job: Duration::from_secs(58),
            recovery: Duration::from_secs(12),
            logins: (15, 116),
            monitor_logins: (15, 150),
            // Where the old primary lives and answers nobody searches: a standby is asked each second, 1.2 s with jitter; and
            // what is harmless on the old one has a second to end. Everything else is sooner.
            resumed: Duration::from_millis(2_300),
        }
    }
}

/// What was seen in a run.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// Tries that were acknowledged.
    pub acknowledged: usize,
    /// Tries that failed and were certainly not done.
    pub transient: usize,
    /// Tries that failed for good.
    pub permanent: usize,
    /// Tries whose outcome is unknown.
    pub unknown: usize,
    /// … of which these were done.
    pub unknown_done: usize,
    /// Tokens of which a check has asked while the run lasted.
    pub asked: usize,
    /// Outcomes that stayed unknown though their transaction was marked.
    pub unsettled: usize,
    /// … under a deadline of the worker's own.
    pub unsettled_bounded: usize,
    /// … and still when all was well again.
    pub never_settled: usize,
    /// Acknowledged by a primary and lost by the failover: asynchronous replication only.
    pub lost_by_server: usize,
    /// Most logins that one process's callers began in a second, and in ten.
    pub logins: (usize, usize),
    /// The same of its monitor.
    pub monitor_logins: (usize, usize),
    /// The longest wait for a pool's session.
    pub waited: Duration,
    /// The most backends beyond its pool's size that a process had where commits waited for a standby.
    pub surplus: usize,
    /// The longest job.
    pub longest: Duration,
    /// How long each process waited for its first acknowledged write on each new primary, once that was possible.
    pub resumed: Vec<Duration>,
}

/// A rule that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Broken {
    /// Acknowledged, and not there.
    Lost(String),
    /// Done twice, or under two tries of one piece of work.
    Doubled(String),
    /// Said to be certainly not done, and done.
    DoneAfterAll(String),
    /// One row of a transaction without the other.
    Torn(String),
    /// A write went to an older primary by a process that knew a newer one.
    Stale(String),
    /// Something took longer than it may.
    TooLong(String),
    /// Too many logins.
    TooMany(String),
    /// Something is left after the end.
    Left(String),
    /// An outcome check said what isn't so, or nothing though it could.
    WrongAnswer(String),
    /// Logins in step, as those of all processes would be.
    InStep(String),
    /// An error in a run in which nothing went wrong.
    Unprovoked(String),
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost(s) => write!(f, "acknowledged and lost: {s}"),
            Self::Doubled(s) => write!(f, "done twice: {s}"),
            Self::DoneAfterAll(s) => write!(f, "said to be certainly not done, but it was: {s}"),
            Self::Torn(s) => write!(f, "half a transaction: {s}"),
            Self::Stale(s) => write!(f, "write to an older primary: {s}"),
            Self::TooLong(s) => write!(f, "took too long: {s}"),
            Self::TooMany(s) => write!(f, "too many logins: {s}"),
            Self::Left(s) => write!(f, "left behind: {s}"),
            Self::WrongAnswer(s) => write!(f, "an outcome check: {s}"),
            Self::InStep(s) => write!(f, "without jitter: {s}"),
            Self::Unprovoked(s) => write!(f, "an error without a cause: {s}"),
        }
    }
}

fn describe(t: &Try) -> String {
    let told = match &t.told {
        Some(Told::Error(e)) => format!("{}: {}", e.class(), e.message()),
        other => format!("{other:?}"),
    };
    format!(
        "{:?} {:?} of w{} (p{}), told at {:?}: {told}",
        t.job.kind, t.job.rows, t.worker, t.process, t.ended
    )
}

fn error(t: &Try) -> Option<&Error> {
    match &t.told {
        Some(Told::Error(e)) => Some(e),
        _ => None,
    }
}

/// Judges a run. `healed`: when everything was made well again; `calm`: nothing ever went wrong.
pub(crate) fn judge(
    world: &World,
    ledger: &[Try],
    healed: Duration,
    calm: bool,
    bounds: &Bounds,
) -> (Vec<Broken>, Counts) {
    world.with(|w| {
        let mut broken = Vec::new();
        let mut counts = Counts::default();
        rows(w, ledger, &mut broken, &mut counts);
        broken.extend(w.truth.stale.iter().cloned().map(Broken::Stale));
        times(ledger, healed, bounds, &mut broken, &mut counts);
        if calm {
            let may = [Kind::Sloppy, Kind::Bounded, Kind::Forbidden];
            let wrong = ledger.iter().filter(|t| !may.contains(&t.job.kind));
            broken.extend(wrong.filter(|t| error(t).is_some()).map(|t| Broken::Unprovoked(describe(t))));
        }
        outcomes::check(w, ledger, &mut broken, &mut counts);
        rates::check(w, ledger, bounds, &mut broken, &mut counts);
        if calm {
            rates::unprovoked(w, ledger, &mut broken);
        }
        resumed(w, ledger, &mut counts);
        let slow = counts.resumed.iter().filter(|d| **d > bounds.resumed);
        broken.extend(slow.map(|d| Broken::TooLong(format!("{d:?} until the first write on a new primary"))));
        (broken, counts)
    })
}

fn rows(w: &Inner, ledger: &[Try], broken: &mut Vec<Broken>, counts: &mut Counts) {
    let mut present: BTreeMap<i64, u32> = BTreeMap::new();
    for row in w.nodes[w.leader].wal.iter().flat_map(Entry::rows) {
        *present.entry(row).or_default() += 1;
    }
    let there = |row: &i64| present.get(row).copied().unwrap_or(0);
    let ever = |row: &i64| w.truth.committed.get(row).copied().unwrap_or(0);
    let mut done: BTreeMap<i64, usize> = BTreeMap::new();
    for t in ledger {
        let rows = &t.job.rows;
        // Who does the same again, after a check has said that it isn't there, may do it on two primaries.
        if rows.iter().any(|r| there(r) > 1 || (ever(r) > 1 && !t.repeats)) {
            broken.push(Broken::Doubled(describe(t)));
        }
        let kept = rows.iter().filter(|r| there(r) > 0).count();
        if kept > 0 && kept < rows.len() {
            broken.push(Broken::Torn(describe(t)));
        }
        if kept > 0 {
            *done.entry(t.op).or_default() += 1;
        }
        match &t.told {
            Some(Told::Acknowledged) => {
                counts.acknowledged += 1;
                let lost = kept < rows.len();
                if lost && !w.model.sync && rows.iter().all(|r| ever(r) > 0) {
                    counts.lost_by_server += 1;
                } else if lost {
                    broken.push(Broken::Lost(describe(t)));
                }
            }
            Some(Told::Error(e)) if e.class() == Class::UnknownOutcome => {
                counts.unknown += 1;
                counts.unknown_done += usize::from(kept > 0);
            }
            Some(told @ (Told::Error(_) | Told::Undone)) => {
                match told {
                    Told::Error(e) if e.class() == Class::Transient => counts.transient += 1,
                    Told::Error(_) => counts.permanent += 1,
                    _ => {}
                }
                if rows.iter().any(|r| there(r) > 0 || (ever(r) > 0 && !t.repeats)) {
                    broken.push(Broken::DoneAfterAll(describe(t)));
                }
            }
            Some(Told::Nothing) | None => {}
        }
    }
    let acknowledged: BTreeSet<i64> =
        ledger.iter().filter(|t| matches!(t.told, Some(Told::Acknowledged))).map(|t| t.op).collect();
    for (op, times) in done {
        if times > 1 {
            let which = if acknowledged.contains(&op) { "acknowledged" } else { "never acknowledged" };
            broken.push(Broken::Doubled(format!("work {op}, {which}, was done by {times} tries")));
        }
    }
}

fn times(ledger: &[Try], healed: Duration, bounds: &Bounds, broken: &mut Vec<Broken>, counts: &mut Counts) {
    let mut first: BTreeMap<usize, Option<Duration>> = BTreeMap::new();
    for t in ledger {
        let known = first.entry(t.worker).or_default();
        let Some(ended) = t.ended else {
            broken.push(Broken::TooLong(format!("never ended: {}", describe(t))));
            continue;
        };
        let took = ended - t.began;
        counts.longest = counts.longest.max(took);
        if took > t.longest.unwrap_or(bounds.job) {
            broken.push(Broken::TooLong(format!("{took:?}: {}", describe(t))));
        }
        if matches!(t.told, Some(Told::Acknowledged)) && ended >= healed && known.is_none() {
            *known = Some(ended);
        }
    }
    for (worker, first) in first {
        let late = first.is_none_or(|at| at - healed > bounds.recovery);
        if late {
            broken.push(Broken::TooLong(format!(
                "w{worker} after everything was well: first {first:?}, healed {healed:?}"
            )));
        }
    }
}

/// How long the callers of each process waited for the first write that was acknowledged on a new primary, from the
/// moment when it could be: the server ready for it, the path open, the caller there.
fn resumed(w: &Inner, ledger: &[Try], counts: &mut Counts) {
    for (at, node) in &w.truth.ready {
        for process in 0..w.processes.len() {
            let changes = w.truth.blackouts.iter().filter(|b| b.1 == process && b.2 == *node);
            let shut = changes.clone().rfind(|b| b.0 <= *at).is_some_and(|b| b.3);
            let open =
                if shut { changes.clone().find(|b| b.0 > *at && !b.3).map(|b| b.0) } else { Some(*at) };
            let Some(open) = open else { continue };
            // What is hit again before anyone has written says nothing.
            let hit =
                w.truth.hits.iter().find(|h| **h > *at).map_or(Duration::MAX, |h| Duration::from_micros(*h));
            let open = Duration::from_micros(open);
            let wrote = |t: &&Try| {
                t.process == process && matches!(t.told, Some(Told::Acknowledged)) && !t.job.rows.is_empty()
            };
            // Where there are fewer sessions than workers, one who holds one for long is waited for.
            let held = |t: &Try| {
                let ended = t.ended.unwrap_or(Duration::MAX);
                t.process == process && t.scarce && t.job.kind == Kind::Slow && ended >= open
            };
            if ledger.iter().any(|t| t.began < hit && held(t)) {
                continue;
            }
            let waits = ledger.iter().filter(wrote).filter(|t| t.job.kind != Kind::Slow).filter_map(|t| {
                let ended = t.ended.filter(|e| *e >= open && *e < hit)?;
                Some((ended, ended - open.max(t.began)))
            });
            if let Some((_, wait)) = waits.min() {
                counts.resumed.push(wait);
            }
        }
    }
}
