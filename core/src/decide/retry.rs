//! Whether work that failed is done again, and when.
//!
//! Attempts, a jittered backoff, and a budget over all calls of a connector: repeats may be a tenth of the recent calls,
//! so that a service whose database is in trouble doesn't add to it by asking everything several times. What a class is,
//! [`crate::decide::classify`] has said before; [`crate::retry`] acts.

use std::collections::VecDeque;
use std::time::Duration;

use crate::clock::Moment;
use crate::error::SqlState;

/// "Recent" is this long: longer than most failovers, so that the calls before one pay for the repeats after it.
pub const WINDOW: Duration = Duration::from_secs(30);
/// Counts are kept by the second.
const SLOT: Duration = Duration::from_secs(1);
/// Repeats that are always allowed within the window.
pub const LEAST: u32 = 3;
/// One repeat for so many calls.
const CALLS_PER_REPEAT: u32 = 10;
/// The first pause, before jitter. A new session is waited for elsewhere; this only parts those that collided.
const FIRST: Duration = Duration::from_millis(20);
/// The longest.
const LONGEST: Duration = Duration::from_secs(1);

/// How many calls and repeats there were lately.
#[derive(Debug, Default)]
pub struct Budget {
    slots: VecDeque<Slot>,
    calls: u32,
    repeats: u32,
}

#[derive(Debug)]
struct Slot {
    since: Moment,
    calls: u32,
    repeats: u32,
}

impl Budget {
    /// A call is made (its repeats don't count as calls).
    pub fn call(&mut self, now: Moment) {
        self.slot(now).calls += 1;
        self.calls += 1;
    }

    /// Whether one may be repeated; counts it if so.
    pub fn repeat(&mut self, now: Moment) -> bool {
        self.forget(now);
        if self.repeats >= LEAST.max(self.calls / CALLS_PER_REPEAT) {
            return false;
        }
        self.slot(now).repeats += 1;
        self.repeats += 1;
        true
    }

    fn slot(&mut self, now: Moment) -> &mut Slot {
        self.forget(now);
        if self.slots.back().is_none_or(|s| now - s.since >= SLOT) {
            self.slots.push_back(Slot { since: now, calls: 0, repeats: 0 });
        }
        let last = self.slots.len() - 1;
        &mut self.slots[last]
    }

    fn forget(&mut self, now: Moment) {
        while self.slots.front().is_some_and(|s| now - s.since >= WINDOW)
            && let Some(old) = self.slots.pop_front()
        {
            self.calls -= old.calls;
            self.repeats -= old.repeats;
        }
    }
}

/// Whether a repeat is the database's own way of ordering transactions: then it says nothing about the database's health
/// and costs no budget.
pub fn is_collision(sqlstate: Option<SqlState>) -> bool {
    sqlstate.is_some_and(|s| matches!(s.as_str(), "40001" | "40P01"))
}

/// How long to wait before the repeat number `n` (from 1). `chance` is from 0 to 1; the pause lies between a half and the
/// whole of what doubles each time, and is never shorter than what the error asked for.
pub fn pause(n: u32, asked: Option<Duration>, chance: f64) -> Duration {
    let whole = FIRST.saturating_mul(1 << n.saturating_sub(1).min(16)).min(LONGEST);
    whole.mul_f64(0.5 + chance.clamp(0.0, 1.0) / 2.0).max(asked.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(s: u64) -> Moment {
        Moment::from_millis(s * 1_000)
    }

    #[test]
    fn repeats_never_exceed_a_tenth_of_the_recent_calls_nor_stop_before_three() {
        let mut b = Budget::default();
        b.call(at(0));
        assert_eq!((0..10).filter(|_| b.repeat(at(0))).count(), 3);
        for _ in 0..999 {
            b.call(at(10));
        }
        assert_eq!((0..1_000).filter(|_| b.repeat(at(10))).count(), 97);
    }

    #[test]
    fn calls_of_long_ago_pay_for_nothing() {
        let mut b = Budget::default();
        for s in 0..10 {
            for _ in 0..100 {
                b.call(at(s));
            }
        }
        assert_eq!((0..200).filter(|_| b.repeat(at(100))).count(), 3);
        assert!(b.repeat(at(200)), "its own repeats are forgotten as well");
        assert!(b.slots.len() <= 2, "{:?}", b.slots);
    }

    #[test]
    fn repeats_of_a_crowd_spread_and_never_come_before_the_time_that_the_error_asked_for() {
        assert_eq!(pause(1, None, 0.0), Duration::from_millis(10));
        assert_eq!(pause(1, None, 1.0), Duration::from_millis(20));
        assert_eq!(pause(3, None, 1.0), Duration::from_millis(80));
        assert_eq!(pause(60, None, 1.0), LONGEST);
        assert_eq!(pause(1, Some(Duration::from_secs(3)), 0.0), Duration::from_secs(3));
    }
}
