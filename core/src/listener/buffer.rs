//! What is kept for a reader who is slow: bounded by its bytes. Pure.

use std::collections::VecDeque;

use super::{Gap, GapCause, Heard};
use crate::clock::Moment;

/// What one entry costs beside its texts.
const ENTRY: usize = 128;

/// A queue that lets its oldest entries go when it is full, and leaves a [`Gap`] in their place.
pub(super) struct Buffer {
    queue: VecDeque<(Moment, Heard)>,
    bytes: usize,
    limit: usize,
}

impl Buffer {
    /// That keeps so many bytes at most.
    pub(super) fn new(limit: usize) -> Self {
        Self { queue: VecDeque::new(), bytes: 0, limit }
    }

    /// Adds what was heard at that moment.
    pub(super) fn push(&mut self, heard: Heard, at: Moment) {
        self.bytes += cost(&heard);
        self.queue.push_back((at, heard));
        while self.bytes > self.limit && self.queue.len() > 1 {
            self.fold();
        }
    }

    /// The next one for the reader.
    pub(super) fn pop(&mut self) -> Option<Heard> {
        let (_, heard) = self.queue.pop_front()?;
        self.bytes -= cost(&heard);
        Some(heard)
    }

    /// Makes one gap of the two oldest entries.
    fn fold(&mut self) {
        let mut whole: Option<Gap> = None;
        for (at, heard) in self.queue.drain(..2) {
            self.bytes -= cost(&heard);
            let gap = match heard {
                Heard::Gap(gap) => gap,
                Heard::Notification { .. } => {
                    Gap { from: at, to: at, missed: 1, cause: GapCause::SlowReader }
                }
            };
            whole = Some(match whole {
                None => gap,
                Some(first) => first.and(gap),
            });
        }
        // There were two: nothing else calls this.
        let Some(gap) = whole else { return };
        let at = gap.from;
        let heard = Heard::Gap(gap);
        self.bytes += cost(&heard);
        self.queue.push_front((at, heard));
    }
}

impl Gap {
    /// This one and a later one, as one. The loss of a session says more than a slow reader.
    fn and(self, later: Self) -> Self {
        let cause = if later.cause == GapCause::SlowReader { self.cause } else { later.cause };
        Self {
            from: self.from.min(later.from),
            to: self.to.max(later.to),
            missed: self.missed + later.missed,
            cause,
        }
    }
}

fn cost(heard: &Heard) -> usize {
    match heard {
        Heard::Notification { channel, payload, .. } => ENTRY + channel.len() + payload.len(),
        Heard::Gap(_) => ENTRY,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::EndCause;

    fn said(n: u64) -> Heard {
        Heard::Notification { channel: "c".into(), payload: format!("{n:099}"), process_id: 1 }
    }

    /// One of [`said`] costs this much.
    const ONE: usize = ENTRY + 100;

    fn drain(b: &mut Buffer) -> Vec<Heard> {
        std::iter::from_fn(|| b.pop()).collect()
    }

    #[test]
    fn a_reader_who_never_reads_costs_no_more_than_the_limit_and_every_loss_is_counted() {
        let mut b = Buffer::new(10 * ONE);
        for n in 1..=1_000 {
            b.push(said(n), Moment::from_millis(n));
            assert!(b.bytes <= 10 * ONE);
        }
        let all = drain(&mut b);
        let (first, rest) = all.split_first().unwrap();
        let Heard::Gap(gap) = first else { panic!("{first:?}") };
        assert_eq!(usize::try_from(gap.missed).unwrap() + rest.len(), 1_000);
        assert_eq!((gap.from, gap.to), (Moment::from_millis(1), Moment::from_millis(gap.missed)));
        assert_eq!(gap.cause, GapCause::SlowReader);
        assert!(rest.len() >= 9, "{}", rest.len());
        assert_eq!(rest.last(), Some(&said(1_000)));
        assert_eq!(b.bytes, 0);
    }

    #[test]
    fn a_lost_session_stays_told_when_the_buffer_overflows_behind_it() {
        let mut b = Buffer::new(3 * ONE);
        let cause = GapCause::SessionEnded { host: "a".into(), cause: EndCause::Closed };
        b.push(said(1), Moment::from_millis(1));
        let (from, to) = (Moment::from_millis(1), Moment::from_millis(5));
        b.push(Heard::Gap(Gap { from, to, missed: 0, cause: cause.clone() }), to);
        for n in 6..=20 {
            b.push(said(n), Moment::from_millis(n));
        }
        let all = drain(&mut b);
        let Some(Heard::Gap(gap)) = all.first() else { panic!("{all:?}") };
        assert_eq!(gap.cause, cause);
        assert_eq!(gap.missed + all.len() as u64 - 1, 16);
        assert!(gap.from == from && gap.to > to);
    }

    #[test]
    fn one_that_is_larger_than_the_limit_is_kept_all_the_same() {
        let mut b = Buffer::new(10);
        b.push(said(1), Moment::ZERO);
        assert_eq!(drain(&mut b), [said(1)]);
    }
}
