//! What the pool's options may be, in a string and in code alike. The table of options says the same in words
//! (`values`), and a test compares the two.

use std::ops::RangeInclusive;
use std::time::Duration;

pub(super) const MS: Duration = Duration::from_millis(1);
pub(super) const HOUR: Duration = Duration::from_secs(3600);

pub(crate) const POOL_MAX_CONNS: RangeInclusive<usize> = 1..=100_000;
pub(crate) const POOL_MIN_CONNS: RangeInclusive<usize> = 0..=100_000;
pub(crate) const POOL_ACQUIRE_TIMEOUT: RangeInclusive<Duration> = MS..=HOUR;
pub(crate) const POOL_MAX_CONN_LIFETIME: RangeInclusive<Duration> =
    Duration::from_secs(1)..=Duration::from_secs(365 * 24 * 3600);
pub(crate) const POOL_VALIDATE_AFTER: RangeInclusive<Duration> = Duration::ZERO..=HOUR;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::find;
    use crate::config::values::durations;

    #[test]
    fn the_ranges_are_those_of_the_documentation() {
        for (name, range) in [
            ("pool_acquire_timeout", POOL_ACQUIRE_TIMEOUT),
            ("pool_max_conn_lifetime", POOL_MAX_CONN_LIFETIME),
            ("pool_validate_after", POOL_VALIDATE_AFTER),
        ] {
            let (least, most) = find(name).and_then(|r| r.values.split_once(" to ")).expect("two ends");
            assert_eq!(
                (durations(least), durations(most)),
                (Some(*range.start()), Some(*range.end())),
                "{name}"
            );
        }
    }
}
