//! What a foreign driver's socket tells: whether a request is out on it, since when, and that its host lives.
//!
//! The bytes are the driver's, so only the kernel's counters are seen, now and then. Decides nothing about the host:
//! that is [`crate::decide::topology`]'s. [`crate::guard`] reads the counters.

use std::time::Duration;

use crate::clock::Moment;

/// A socket's counters at one moment. Times are in the kernel's ticks (1 to 10 ms): two that are equal have no order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// How long ago data left last.
    pub sent: Duration,
    /// How long ago data came last.
    pub received: Duration,
    /// How long ago an acknowledgement came last.
    pub acked: Duration,
    /// Something sent isn't acknowledged, or not even out.
    pub unacked: bool,
    /// Bytes that came in all.
    pub bytes_received: u64,
}

/// A request that nothing has come for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Its number on this socket: another wait has another one.
    pub number: u64,
    /// Since when.
    pub since: Moment,
}

/// What a look at a socket shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// When its host's last byte came, if one came since the look before.
    pub heard: Option<Moment>,
    /// The request that is out.
    pub call: Option<Call>,
}

/// What is remembered of a socket between two looks.
#[derive(Clone, Debug, Default)]
pub struct Pulse {
    bytes_received: u64,
    call: Option<Call>,
    calls: u64,
}

impl Pulse {
    /// Takes a look.
    ///
    /// ```
    /// use pgfollow::decide::guard::{Counters, Pulse};
    /// use pgfollow::Moment;
    /// use std::time::Duration;
    ///
    /// let mut pulse = Pulse::default();
    /// let ms = Duration::from_millis;
    /// let asked = Counters { sent: ms(40), received: ms(90), acked: ms(40), bytes_received: 300, ..Counters::default() };
    /// let seen = pulse.look(asked, Moment::from_millis(1_000));
    /// assert_eq!(seen.heard, Some(Moment::from_millis(910)));
    /// assert_eq!(seen.call.map(|c| c.since), Some(Moment::from_millis(960)));
    /// ```
    pub fn look(&mut self, c: Counters, now: Moment) -> Seen {
        let heard = (c.bytes_received > self.bytes_received).then(|| now.before(c.received));
        self.bytes_received = c.bytes_received;
        // In one tick: the answer came and the next request left, or the other way round. An acknowledgement that came
        // behind the answer was for a request.
        let out = c.unacked || c.sent < c.received || (c.sent == c.received && c.acked < c.received);
        // What left last may be the same request once more (a retransmission): the wait began with the first.
        let waiting = self.call.filter(|_| out && heard.is_none());
        self.call = out.then(|| {
            waiting.unwrap_or_else(|| {
                self.calls += 1;
                Call { number: self.calls, since: now.before(c.sent) }
            })
        });
        Seen { heard, call: self.call }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    fn counters(sent: u64, received: u64, acked: u64, bytes_received: u64) -> Counters {
        Counters { sent: ms(sent), received: ms(received), acked: ms(acked), unacked: false, bytes_received }
    }

    fn at(n: u64) -> Moment {
        Moment::from_millis(n)
    }

    #[test]
    fn a_session_that_has_its_answer_waits_for_nothing() {
        let mut pulse = Pulse::default();
        let seen = pulse.look(counters(500, 490, 490, 80), at(1_000));
        assert_eq!(seen, Seen { heard: Some(at(510)), call: None });
        // The answer came in the tick in which its request left.
        assert_eq!(pulse.look(counters(4, 4, 4, 160), at(1_100)).call, None);
        // Long after.
        assert_eq!(pulse.look(counters(904, 904, 904, 160), at(2_000)), Seen::default());
    }

    #[test]
    fn a_request_that_is_sent_again_and_again_has_waited_since_the_first() {
        let mut pulse = Pulse::default();
        pulse.look(counters(500, 490, 490, 80), at(1_000));
        let lost = |sent| Counters { unacked: true, ..counters(sent, 590, 590, 80) };
        let first = pulse.look(lost(30), at(1_100)).call;
        assert_eq!(first, Some(Call { number: 1, since: at(1_070) }));
        // 200 ms later the kernel tried once more.
        assert_eq!(pulse.look(lost(5), at(1_300)).call, first);
        // Its answer, and another request at once.
        let next = pulse.look(counters(10, 12, 10, 99), at(1_400));
        assert_eq!(next.heard, Some(at(1_388)));
        assert_eq!(next.call, Some(Call { number: 2, since: at(1_390) }));
    }

    #[test]
    fn a_frozen_server_whose_kernel_takes_the_request_leaves_it_waiting() {
        let mut pulse = Pulse::default();
        // The answer and the next request in one tick, and the kernel's word for the request behind both.
        let seen = pulse.look(counters(100, 100, 60, 80), at(1_000));
        assert_eq!(seen.call.map(|c| c.since), Some(at(900)));
        let later = pulse.look(counters(600, 600, 560, 80), at(1_500));
        assert_eq!(later, Seen { heard: None, call: seen.call });
    }

    #[test]
    fn rows_that_flow_are_no_wait() {
        let mut pulse = Pulse::default();
        let mut numbers = Vec::new();
        for n in 1..6 {
            let seen = pulse.look(counters(n * 100, 1, 1, n * 8_192), at(1_000 + n * 100));
            assert!(seen.heard.is_some());
            numbers.extend(seen.call);
        }
        assert_eq!(numbers, [], "the host sent after the request, so nobody knows whether more is to come");
    }
}
