//! Time as a plain number, so that every decision can be replayed from a file.
//!
//! Decides nothing. [`Moment`] counts microseconds since the process first asked; the pure state machines
//! in [`crate::decide`] take it as an argument. [`now`] is the only place that reads a clock, and it reads
//! tokio's, so paused time in tests moves it too.

use std::fmt;
use std::ops::{Add, Sub};
use std::sync::OnceLock;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

/// A point in time: microseconds since the process's first use of the clock.
///
/// ```
/// use pgfollow::Moment;
/// use std::time::Duration;
/// let t = Moment::from_micros(1_500);
/// assert_eq!(t + Duration::from_millis(1), Moment::from_micros(2_500));
/// assert_eq!(Moment::ZERO - t, Duration::ZERO); // never negative
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Moment(u64);

impl Moment {
    /// The start of time.
    pub const ZERO: Self = Self(0);
    /// Later than every other moment: "never".
    pub const NEVER: Self = Self(u64::MAX);

    /// A moment from its count of microseconds.
    pub const fn from_micros(us: u64) -> Self {
        Self(us)
    }

    /// A moment from a count of milliseconds.
    pub const fn from_millis(ms: u64) -> Self {
        Self(ms * 1_000)
    }

    /// The moment so long before this one; not before the start of time.
    #[must_use]
    pub fn before(self, d: Duration) -> Self {
        Self(self.0.saturating_sub(u64::try_from(d.as_micros()).unwrap_or(u64::MAX)))
    }

    /// The count of microseconds.
    pub const fn as_micros(self) -> u64 {
        self.0
    }
}

impl Add<Duration> for Moment {
    type Output = Self;
    fn add(self, d: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(d.as_micros()).unwrap_or(u64::MAX)))
    }
}

impl Sub for Moment {
    type Output = Duration;
    /// How long after `other` this is; zero if it is before.
    fn sub(self, other: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(other.0))
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:06}s", self.0 / 1_000_000, self.0 % 1_000_000)
    }
}

fn epoch() -> Instant {
    static EPOCH: OnceLock<Instant> = OnceLock::new();
    #[expect(clippy::disallowed_methods, reason = "the one place where the clock is read")]
    *EPOCH.get_or_init(Instant::now)
}

/// The present moment, by tokio's clock (which tests can pause).
pub fn now() -> Moment {
    let epoch = epoch();
    #[expect(clippy::disallowed_methods, reason = "the one place where the clock is read")]
    let d = Instant::now().saturating_duration_since(epoch);
    Moment::ZERO + d
}

/// The time by the wall clock, since 1970, UTC: for people only, nothing is decided by it.
pub(crate) fn unix() -> Duration {
    #[expect(clippy::disallowed_methods, reason = "the one place where the wall clock is read")]
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default()
}

/// The end of a wait. `None` inside means that nobody set a bound (only a plain `connect()` has none of its own:
/// there each attempt's `connect_timeout` bounds the walk).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline(Option<Moment>);

impl Deadline {
    /// No bound of its own.
    pub const NONE: Self = Self(None);

    /// At a moment.
    pub const fn at(m: Moment) -> Self {
        Self(Some(m))
    }

    /// That long from now.
    pub fn after(d: Duration) -> Self {
        Self(Some(now() + d))
    }

    /// The moment, if there is one.
    pub const fn moment(self) -> Option<Moment> {
        self.0
    }

    /// Whichever of the two comes first.
    #[must_use]
    pub fn min(self, other: Self) -> Self {
        match (self.0, other.0) {
            (Some(a), Some(b)) => Self(Some(a.min(b))),
            (a, b) => Self(a.or(b)),
        }
    }

    /// Whether it has passed at `now`.
    pub fn passed(self, now: Moment) -> bool {
        self.0.is_some_and(|m| m <= now)
    }

    /// How long is left at `now`; `None` without a bound.
    pub fn left(self, now: Moment) -> Option<Duration> {
        self.0.map(|m| m - now)
    }

    /// Runs a future under this deadline. `Err(Elapsed)` when time ran out.
    pub async fn bound<F: Future>(self, fut: F) -> Result<F::Output, Elapsed> {
        match self.0 {
            None => Ok(fut.await),
            Some(m) => tokio::time::timeout_at(to_instant(m), fut).await.map_err(|_| Elapsed),
        }
    }
}

/// A deadline passed before the work was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the deadline passed")]
pub struct Elapsed;

/// Waits until a moment (for ever for [`Moment::NEVER`]).
pub async fn sleep_until(m: Moment) {
    if m == Moment::NEVER {
        std::future::pending::<()>().await;
    }
    #[expect(clippy::disallowed_methods, reason = "the one place that sleeps")]
    tokio::time::sleep_until(to_instant(m)).await;
}

fn to_instant(m: Moment) -> Instant {
    // A century from now is as good as never and can't overflow tokio's wheel.
    let us = m.as_micros().min(100 * 365 * 86_400 * 1_000_000);
    epoch() + Duration::from_micros(us)
}
