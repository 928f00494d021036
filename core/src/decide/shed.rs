//! Refusing in time a caller who can't be served within its patience.
//!
//! Decides by the queue alone: how many wait, how long a session is kept, how many sessions there are. While a primary
//! is sought nothing is predicted: it may be there in a moment, so only the limit of waiters sheds.

use std::time::Duration;

/// Waiters that a pool takes for each connection it may have.
pub const WAITERS_PER_CONNECTION: usize = 10;
/// Told to callers who are refused where nothing can be predicted.
pub const LATER: Duration = Duration::from_secs(1);

/// The queue as a new caller finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queue {
    /// Who waits already.
    pub ahead: usize,
    /// Most that may.
    pub limit: usize,
    /// How long a session is kept, lately; `None` until one came back.
    pub mean_hold: Option<Duration>,
    /// Sessions that can come back or are at hand.
    pub usable: usize,
    /// No session can be had at present: the wanted host is sought.
    pub searching: bool,
    /// None can be had at all: every place belongs to a commit that was given up and waits for a standby.
    pub standby: bool,
}

/// Why a caller is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shed {
    /// As many wait as may; come back after.
    Full(Duration),
    /// It would wait for about `predicted`.
    TooSlow {
        /// The wait that is to be expected.
        predicted: Duration,
        /// When it may fit.
        retry_after: Duration,
    },
    /// Commits that were given up fill the pool, and wait for a synchronous standby; come back after.
    Standby(Duration),
}

/// How long a caller would wait, as far as can be told.
pub fn predicted(q: &Queue) -> Option<Duration> {
    let hold = q.mean_hold.filter(|_| !q.searching && q.usable > 0)?;
    // The one at the head waits for the next to come back, which is a share of a hold itself.
    let turns = u32::try_from(q.ahead + 1).unwrap_or(u32::MAX);
    Some(hold.saturating_mul(turns) / u32::try_from(q.usable).unwrap_or(u32::MAX))
}

/// Whether a caller with that patience is refused.
pub fn shed(q: &Queue, patience: Duration) -> Option<Shed> {
    if q.standby {
        return Some(Shed::Standby(LATER));
    }
    let predicted = predicted(q);
    if q.ahead >= q.limit {
        return Some(Shed::Full(predicted.unwrap_or(LATER)));
    }
    let predicted = predicted.filter(|p| *p > patience)?;
    Some(Shed::TooSlow { predicted, retry_after: predicted - patience })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn queue(ahead: usize) -> Queue {
        Queue { ahead, limit: 100, mean_hold: Some(MS * 100), usable: 10, searching: false, standby: false }
    }

    #[test]
    fn a_caller_who_would_wait_beyond_its_patience_is_refused_at_once() {
        assert_eq!(shed(&queue(49), MS * 500), None);
        let late = Shed::TooSlow { predicted: MS * 600, retry_after: MS * 100 };
        assert_eq!(shed(&queue(59), MS * 500), Some(late));
    }

    #[test]
    fn nothing_is_predicted_while_a_primary_is_sought() {
        let q = Queue { searching: true, ..queue(99) };
        assert_eq!(shed(&q, MS), None);
        assert_eq!(shed(&Queue { ahead: 100, ..q }, MS * 60_000), Some(Shed::Full(LATER)));
    }

    #[test]
    fn a_pool_that_has_lent_nothing_yet_sheds_by_its_limit_alone() {
        let q = Queue { mean_hold: None, ..queue(99) };
        assert_eq!(shed(&q, Duration::ZERO), None);
        assert!(shed(&Queue { ahead: 100, ..q }, MS).is_some());
    }
}
