//! How many log in and wait at once, and whether they do so in step.

use std::time::Duration;

use super::{Bounds, Broken, Counts};
use crate::service::Wait;
use crate::workload::{Kind, Try};
use crate::world::{Inner, Process};

const SECOND: u64 = 1_000_000;
/// So many logins, one as long after the other as the one before, are no chance.
const IN_STEP: usize = 10;
/// Gaps that differ by no more than this are the same: simulated time goes in milliseconds.
const SAME: u64 = 2_000;
/// Shorter gaps are regular by chance too often.
const SHORT: u64 = 50_000;
/// A session that was ended is replaced when somebody needs one again.
const LATER: Duration = Duration::from_secs(3);

pub(super) fn check(
    w: &Inner,
    ledger: &[Try],
    bounds: &Bounds,
    broken: &mut Vec<Broken>,
    counts: &mut Counts,
) {
    for (number, p) in w.processes.iter().enumerate() {
        for (monitor, bound, most) in [
            (false, bounds.logins, &mut counts.logins),
            (true, bounds.monitor_logins, &mut counts.monitor_logins),
        ] {
            let who = if monitor { "monitor" } else { "callers" };
            let at = p.logins_begun(monitor);
            let (one, ten) = (within(&at, SECOND), within(&at, 10 * SECOND));
            *most = (most.0.max(one), most.1.max(ten));
            if one > bound.0 || ten > bound.1 {
                let text = format!("p{number}'s {who}: {one} within a second, {ten} within ten");
                broken.push(Broken::TooMany(text));
            }
            if let Some(since) = in_step(&at) {
                let since = Duration::from_micros(since);
                broken
                    .push(Broken::InStep(format!("p{number}'s {who} log in like a clock from {since:?} on")));
            }
        }
    }
    for (process, backends) in &w.truth.backends {
        let sessions = ledger.iter().filter(|t| t.process == *process).find_map(|t| t.sessions);
        counts.surplus = counts.surplus.max(backends.saturating_sub(sessions.unwrap_or(usize::MAX)));
    }
    let waits = &w.truth.waits;
    for wait in waits {
        let took = wait.until - wait.from;
        counts.waited = counts.waited.max(took);
        if took > wait.bound {
            broken.push(Broken::TooLong(format!("p{}'s caller waited {took:?} for a session", wait.process)));
        }
    }
    // Who waited already when that one began to.
    let crowd = |wait: &Wait| waits.iter().filter(|o| side_by_side(wait, o)).count();
    if let Some(wait) = waits.iter().find(|wait| crowd(wait) > wait.crowd) {
        let text = format!("p{}: {} callers wait, {} may", wait.process, crowd(wait), wait.crowd);
        broken.push(Broken::TooMany(text));
    }
}

/// Logins of a process to which nothing happened, beyond those that fill its pool: its session was ended, for nothing. An
/// abandoned or late call ends its own, and may be asked for later.
pub(super) fn unprovoked(w: &Inner, ledger: &[Try], broken: &mut Vec<Broken>) {
    for (number, p) in w.processes.iter().enumerate() {
        let mine = || ledger.iter().filter(|t| t.process == number);
        let Some(sessions) = mine().find_map(|t| t.sessions) else { continue };
        let ends: Vec<Duration> = mine()
            .filter(|t| matches!(t.job.kind, Kind::Abandoned | Kind::Bounded))
            .filter_map(|t| t.ended)
            .collect();
        // The first look asks every host.
        for at in p.logins_begun(false).into_iter().skip(sessions + w.nodes.len()) {
            let at = Duration::from_micros(at);
            if !ends.iter().any(|end| *end <= at && at - *end < LATER) {
                broken.push(Broken::TooMany(format!("p{number} logs in without a cause at {at:?}")));
            }
        }
    }
}

fn side_by_side(wait: &Wait, other: &Wait) -> bool {
    other.process == wait.process && other.from <= wait.from && other.until > wait.from
}

impl Process {
    /// When it began its logins, in order.
    fn logins_begun(&self, monitor: bool) -> Vec<u64> {
        self.dials.values().filter(|d| d.monitor == Some(monitor)).map(|d| d.at).collect()
    }
}

/// The most in any window of that length.
fn within(at: &[u64], window: u64) -> usize {
    (0..at.len()).map(|i| at[i..].iter().take_while(|t| **t < at[i] + window).count()).max().unwrap_or(0)
}

/// Since when they come like a clock, if they ever do.
fn in_step(at: &[u64]) -> Option<u64> {
    let gaps: Vec<u64> = at.windows(2).map(|two| two[1] - two[0]).collect();
    let like_a_clock = |some: &[u64]| {
        let (least, most) = (some.iter().min().copied(), some.iter().max().copied());
        least.zip(most).is_some_and(|(least, most)| least >= SHORT && most - least <= SAME)
    };
    gaps.windows(IN_STEP).position(like_a_clock).map(|i| at[i])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logins_like_a_clock_are_told_from_those_with_jitter() {
        let clock: Vec<u64> = (0..12).map(|i| i * 100_000 + i % 2 * 1_000).collect();
        assert_eq!(in_step(&clock), Some(0));
        let jitter: Vec<u64> = (0..100).map(|i| i * 100_000 + i * i % 7 * 3_000).collect();
        assert_eq!(in_step(&jitter), None);
        assert_eq!(within(&clock, SECOND), 10);
    }
}
