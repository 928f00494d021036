//! What succeeded on a session, counted where the tap has its lock anyway.

use std::time::Duration;

/// Steps of the durations: two for each doubling of a microsecond.
const STEPS: usize = 64;

/// Requests that succeeded, and how long each took from its sending to its ReadyForQuery.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Done {
    pub(crate) writes: u64,
    pub(crate) others: u64,
    steps: [u32; STEPS],
}

impl Default for Done {
    fn default() -> Self {
        Self { writes: 0, others: 0, steps: [0; STEPS] }
    }
}

impl Done {
    pub(super) fn count(&mut self, write: bool, took: Duration) {
        if write {
            self.writes += 1;
        } else {
            self.others += 1;
        }
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX).max(2);
        let doublings = us.ilog2();
        let half = us >> (doublings - 1) & 1;
        let step = usize::try_from(2 * u64::from(doublings) + half).unwrap_or(STEPS);
        self.steps[step.min(STEPS - 1)] += 1;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.writes + self.others == 0
    }

    /// Durations, each within a fifth, and how often.
    pub(crate) fn times(&self) -> impl Iterator<Item = (Duration, u32)> + '_ {
        self.steps.iter().enumerate().filter(|(_, n)| **n > 0).map(|(step, n)| {
            let low = 1_u64 << (step / 2);
            let low = if step % 2 == 1 { low + low / 2 } else { low };
            // The middle of the step.
            (Duration::from_micros(low + low / 5), *n)
        })
    }
}

/// Whether a command of that tag writes. (A SELECT may call a function that does: nobody sees that from here.)
pub(super) fn is_write(tag: &[u8]) -> bool {
    const OTHERS: [&[u8]; 20] = [
        b"",
        b"SELECT",
        b"SHOW",
        b"SET",
        b"RESET",
        b"BEGIN",
        b"START",
        b"ROLLBACK",
        b"FETCH",
        b"MOVE",
        b"DECLARE",
        b"CLOSE",
        b"EXPLAIN",
        b"PREPARE",
        b"DEALLOCATE",
        b"LISTEN",
        b"UNLISTEN",
        b"DISCARD",
        b"SAVEPOINT",
        b"RELEASE",
    ];
    // The most frequent by far.
    if tag.starts_with(b"SELECT ") {
        return false;
    }
    let word = tag.split(|b| *b == b' ').next().unwrap_or_default();
    // PREPARE TRANSACTION ends a block; PREPARE of a statement writes nothing.
    !OTHERS.contains(&word) || tag == b"PREPARE TRANSACTION"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_found_again_within_a_fifth() {
        for us in [2_u64, 3, 10, 999, 1_000, 1_500, 123_456, 60_000_000] {
            let mut d = Done::default();
            d.count(true, Duration::from_micros(us));
            let (found, n) = d.times().next().expect("one");
            let share = found.as_secs_f64() / Duration::from_micros(us).as_secs_f64();
            assert!(n == 1 && (0.79..=1.3).contains(&share), "{us} us became {found:?}");
        }
        let mut d = Done::default();
        d.count(false, Duration::ZERO);
        d.count(false, Duration::from_secs(1_000_000));
        assert_eq!(d.times().map(|(_, n)| n).sum::<u32>(), 2);
    }

    #[test]
    fn a_read_does_not_pass_for_a_write() {
        for tag in [
            "INSERT 0 1",
            "UPDATE 3",
            "DELETE 0",
            "MERGE 1",
            "COPY 5",
            "COMMIT",
            "CREATE TABLE",
            "PREPARE TRANSACTION",
        ] {
            assert!(is_write(tag.as_bytes()), "{tag}");
        }
        for tag in ["", "SELECT 1", "SHOW", "SET", "BEGIN", "ROLLBACK", "FETCH 3", "PREPARE"] {
            assert!(!is_write(tag.as_bytes()), "{tag}");
        }
    }
}
