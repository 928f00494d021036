//! When a listener asks whether its path still lives, and how long it pauses between two sessions.
//!
//! A socket that only reads is never told that its peer is gone: no keepalive fires while a kernel answers for a frozen
//! server, and none at all where a firewall forgot the connection. So a quiet listener asks, and an answer that doesn't
//! come ends the session. [`crate::listener`] carries it out.

use std::time::Duration;

use crate::clock::Moment;

/// A path that was quiet for this long is asked.
pub const QUIET: Duration = Duration::from_secs(2);
/// An answer that takes longer is none.
pub const REPLY: Duration = Duration::from_secs(3);
/// Asked at least this often, quiet or not: a change of role is told with an answer only, never with a notification.
pub const ROLE: Duration = Duration::from_secs(5);
/// While an answer is out, the shell looks this often, so that a stall of its own can be told from the server's silence.
const SLICE: Duration = Duration::from_millis(500);
/// Woken later than that, it is we who were away; the answer may have come meanwhile, so it gets that time as well.
const STALL: Duration = Duration::from_millis(200);

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beat {
    /// Look again then, or when something happens.
    Wait(Moment),
    /// Ask now, and look again.
    Ask,
    /// The path is dead, or the server hangs.
    Dead,
}

/// The heartbeat of one session.
#[derive(Debug)]
pub struct Pulse {
    /// When the shell was told to look again.
    next: Moment,
    /// A question is out, and its answer is due then.
    due: Option<Moment>,
    answered: Moment,
}

impl Pulse {
    /// Of a session that has answered now.
    pub fn new(now: Moment) -> Self {
        Self { next: now, due: None, answered: now }
    }

    /// Takes a look. `last_in`: when the last byte came; `doubted`: something speaks against the session.
    pub fn look(&mut self, last_in: Moment, doubted: bool, now: Moment) -> Beat {
        let overslept = now - self.next;
        let (wait, next) = match &mut self.due {
            Some(due) => {
                if overslept > STALL {
                    *due = *due + overslept;
                }
                // Notifications that come are as good a sign of life, and the answer follows them.
                *due = (*due).max(last_in + REPLY);
                if *due <= now {
                    return Beat::Dead;
                }
                (true, (*due).min(now + SLICE))
            }
            None => {
                let at = (last_in.max(self.answered) + QUIET).min(self.answered + ROLE);
                let wait = at > now && !doubted;
                (wait, if wait { at } else { now + SLICE })
            }
        };
        self.next = next;
        if wait {
            return Beat::Wait(next);
        }
        self.due = Some(now + REPLY);
        Beat::Ask
    }

    /// The answer came.
    pub fn answered(&mut self, now: Moment) {
        (self.due, self.answered) = (None, now);
    }
}

/// The pauses between a lost session and the next connect, before jitter.
#[derive(Debug)]
pub struct Backoff(Duration);

impl Default for Backoff {
    fn default() -> Self {
        Self(Self::FIRST)
    }
}

impl Backoff {
    /// The first pause: listeners of a whole fleet lose their sessions in one moment, and jitter needs room.
    const FIRST: Duration = Duration::from_millis(100);
    /// The longest: a server that is back is heard again within this.
    const MAX: Duration = Duration::from_secs(5);
    /// A session that listened for so long ends the row of failures.
    const CALM: Duration = Duration::from_secs(10);

    /// The pause after a session that listened for so long (zero: there was none).
    pub fn pause(&mut self, listened: Duration) -> Duration {
        if listened >= Self::CALM {
            *self = Self::default();
        }
        let pause = self.0;
        self.0 = pause.mul_f64(1.6).min(Self::MAX);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Moment {
        Moment::from_millis(ms)
    }

    #[test]
    fn a_quiet_path_is_asked_and_one_that_does_not_answer_is_dead() {
        let mut p = Pulse::new(at(0));
        assert_eq!(p.look(at(500), false, at(1_000)), Beat::Wait(at(2_500)));
        assert_eq!(p.look(at(500), false, at(2_500)), Beat::Ask);
        for ms in [2_500, 3_000, 3_500, 4_000, 4_500] {
            assert_eq!(p.look(at(500), false, at(ms)), Beat::Wait(at(ms + 500)));
        }
        assert_eq!(p.look(at(500), false, at(5_000)), Beat::Wait(at(5_500)));
        assert_eq!(p.look(at(500), false, at(5_500)), Beat::Dead);
    }

    #[test]
    fn an_answer_starts_the_quiet_anew() {
        let mut p = Pulse::new(at(0));
        assert_eq!(p.look(at(0), false, at(2_000)), Beat::Ask);
        p.answered(at(2_100));
        assert_eq!(p.look(at(2_100), false, at(2_100)), Beat::Wait(at(4_100)));
    }

    #[test]
    fn a_stall_of_our_own_is_not_taken_for_the_servers_silence() {
        let mut p = Pulse::new(at(0));
        assert_eq!(p.look(at(0), false, at(2_000)), Beat::Ask);
        assert_eq!(p.look(at(0), false, at(2_000)), Beat::Wait(at(2_500)));
        // Ten seconds away: the answer may lie in the socket, unread.
        assert_eq!(p.look(at(0), false, at(12_500)), Beat::Wait(at(13_000)));
        // From there on it is the server's time again.
        for ms in [13_000, 13_500, 14_000, 14_500] {
            assert_eq!(p.look(at(0), false, at(ms)), Beat::Wait(at(ms + 500)));
        }
        assert_eq!(p.look(at(0), false, at(15_000)), Beat::Dead);
    }

    #[test]
    fn a_stream_that_never_pauses_still_tells_of_its_role() {
        let mut p = Pulse::new(at(0));
        assert_eq!(p.look(at(4_999), false, at(4_999)), Beat::Wait(at(5_000)));
        assert_eq!(p.look(at(4_999), false, at(5_000)), Beat::Ask);
        // As long as it flows, the late answer is no evidence.
        assert_eq!(p.look(at(8_400), false, at(8_500)), Beat::Wait(at(9_000)));
    }

    #[test]
    fn a_doubted_session_is_asked_at_once() {
        let mut p = Pulse::new(at(0));
        assert_eq!(p.look(at(100), true, at(100)), Beat::Ask);
    }

    #[test]
    fn pauses_grow_to_a_bound_and_a_calm_session_ends_the_row() {
        let mut b = Backoff::default();
        let pauses: Vec<_> = (0..12).map(|_| b.pause(Duration::from_secs(1))).collect();
        assert_eq!((pauses[0], pauses[1]), (Duration::from_millis(100), Duration::from_millis(160)));
        assert_eq!(pauses[11], Duration::from_secs(5));
        assert_eq!(b.pause(Duration::from_secs(10)), Duration::from_millis(100));
    }
}
