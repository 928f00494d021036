//! When a socket's TCP_USER_TIMEOUT is lifted, and when it is set again.
//!
//! The option ends a connection whose data isn't taken for so long, and Linux doesn't ask why: it counts window probes
//! that a live kernel answers just as it counts silence (`tcp_timer.c`, `tcp_probe_timer`). So a bulk load dies whose
//! backend waits for a lock and reads nothing. Decides only whether the limit may rest; [`crate::monitor`] looks, and
//! carries it out.

use std::time::Duration;

use crate::clock::Moment;
use crate::net::Backlog;

/// The peer has taken nothing for this long. Of a short limit a third: the rest must be left to see it and act.
const STUCK: Duration = Duration::from_secs(1);

/// So many probes or retransmissions in a row without an answer: this very path is dead, whatever the host says
/// elsewhere. As many as keepalives may miss by default.
const UNANSWERED: u8 = 3;

/// What is seen of one socket.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    /// What the kernel says.
    pub backlog: Backlog,
    /// When we last handed bytes to it.
    pub last_out: Moment,
    /// Whether some socket of the same host has heard from it lately.
    pub host_answers: bool,
}

/// The state of one socket.
#[derive(Debug)]
pub struct Patience {
    stuck: Duration,
    /// Since when every look found bytes that could not be sent.
    full: Option<Moment>,
    lifted: bool,
}

impl Patience {
    /// For a socket with this TCP_USER_TIMEOUT, which is in force.
    pub fn new(user_timeout: Duration) -> Self {
        Self { stuck: STUCK.min(user_timeout / 3), full: None, lifted: false }
    }

    /// Whether the limit rests.
    pub fn lifted(&self) -> bool {
        self.lifted
    }

    /// Takes a look. `Some(true)`: the limit is to be lifted now. `Some(false)`: it is to be set again.
    pub fn look(&mut self, seen: Seen, now: Moment) -> Option<bool> {
        self.full = (seen.backlog.unsent > 0).then(|| self.full.unwrap_or(now));
        let stuck = self.full.is_some_and(|t| now - t.max(seen.last_out) >= self.stuck);
        let lift = stuck && seen.host_answers && seen.backlog.unanswered < UNANSWERED;
        (std::mem::replace(&mut self.lifted, lift) != lift).then_some(lift)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(9);

    fn at(ms: u64) -> Moment {
        Moment::ZERO + Duration::from_millis(ms)
    }

    /// A full buffer, last fed at 0, behind a path that answers.
    fn full() -> Seen {
        Seen { backlog: Backlog { unsent: 1, unanswered: 0 }, last_out: at(0), host_answers: true }
    }

    fn drained() -> Seen {
        Seen { backlog: Backlog { unsent: 0, unanswered: 0 }, ..full() }
    }

    fn lifted() -> Patience {
        let mut p = Patience::new(LIMIT);
        assert_eq!(p.look(full(), at(0)), None);
        assert_eq!(p.look(full(), at(1_000)), Some(true));
        p
    }

    #[test]
    fn a_live_peer_that_reads_nothing_is_given_time_and_only_once_told_so() {
        let mut p = Patience::new(LIMIT);
        assert_eq!(p.look(full(), at(0)), None);
        assert_eq!(p.look(full(), at(999)), None);
        assert_eq!(p.look(full(), at(1_000)), Some(true));
        assert_eq!(p.look(full(), at(600_000)), None);
        assert!(p.lifted());
    }

    #[test]
    fn the_limit_is_back_when_the_buffer_has_drained() {
        let mut p = lifted();
        assert_eq!(p.look(drained(), at(1_100)), Some(false));
        assert_eq!(p.look(full(), at(1_200)), None, "the next second is counted anew");
        assert_eq!(p.look(full(), at(2_199)), None);
        assert_eq!(p.look(full(), at(2_200)), Some(true));
    }

    #[test]
    fn a_slow_reader_that_still_takes_bytes_keeps_its_limit() {
        let mut p = Patience::new(LIMIT);
        for ms in (0..10_000).step_by(100) {
            let fed = Seen { last_out: at(ms / 500 * 500), ..full() };
            assert_eq!(p.look(fed, at(ms)), None, "{ms}");
        }
        let mut p = lifted();
        assert_eq!(p.look(Seen { last_out: at(1_050), ..full() }, at(1_100)), Some(false));
    }

    #[test]
    fn a_silent_host_gets_no_time_and_loses_what_it_had() {
        let dead = Seen { host_answers: false, ..full() };
        let mut p = Patience::new(LIMIT);
        for ms in (0..60_000).step_by(100) {
            assert_eq!(p.look(dead, at(ms)), None);
        }
        let mut p = lifted();
        assert_eq!(p.look(dead, at(1_100)), Some(false));
        assert_eq!(p.look(full(), at(1_200)), Some(true), "it was alive after all");
    }

    #[test]
    fn a_path_that_died_alone_gets_no_time_though_the_host_lives() {
        let dead = Seen { backlog: Backlog { unsent: 1, unanswered: UNANSWERED }, ..full() };
        let mut p = Patience::new(LIMIT);
        for ms in (0..60_000).step_by(100) {
            assert_eq!(p.look(dead, at(ms)), None);
        }
        assert_eq!(lifted().look(dead, at(1_100)), Some(false));
        let one_lost = Seen { backlog: Backlog { unsent: 1, unanswered: 2 }, ..full() };
        assert_eq!(lifted().look(one_lost, at(1_100)), None);
    }

    #[test]
    fn a_limit_of_a_second_is_lifted_before_it_strikes() {
        let mut p = Patience::new(Duration::from_millis(900));
        assert_eq!(p.look(full(), at(0)), None);
        assert_eq!(p.look(full(), at(299)), None);
        assert_eq!(p.look(full(), at(300)), Some(true));
    }
}
