//! Keeps logins waiting until [`crate::decide::pace`] lets them begin.
//!
//! Decides nothing. A [`Turn`] is a login that may be under way; dropped without a word, it ended somehow.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::StdRng;
use tokio::sync::Notify;

use crate::clock;
use crate::decide::pace::{Ended, Pace, Price, Ticket};
use crate::error::{Class, Code, Error, Stage};
use crate::host::HostId;
use crate::lock;

/// The governor of one connector's logins.
pub(crate) struct Governor {
    state: Mutex<State>,
}

struct State {
    pace: Pace,
    rng: StdRng,
    waiting: HashMap<Ticket, Arc<Notify>>,
}

impl State {
    /// Wakes those who may begin, and the one whose token is next: it sleeps until there is one, for all behind it.
    fn poll(&mut self) {
        for ticket in self.pace.poll(clock::now(), &mut self.rng) {
            if let Some(bell) = self.waiting.remove(&ticket) {
                bell.notify_one();
            }
        }
        if let Some(bell) = self.pace.first_in_line().and_then(|t| self.waiting.get(&t)) {
            bell.notify_one();
        }
    }
}

/// A login under way.
pub(crate) struct Turn {
    governor: Arc<Governor>,
    ticket: Ticket,
    host: Option<HostId>,
    ended: Ended,
}

impl Turn {
    /// How the login ended.
    pub(crate) fn done(mut self, how: Ended) {
        self.ended = how;
    }

    /// Whether it is one to that host.
    pub(crate) fn is_for(&self, host: HostId) -> bool {
        self.host == Some(host)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut state = lock(&self.governor.state);
        state.waiting.remove(&self.ticket);
        state.pace.ended(self.ticket, self.ended, clock::now());
        state.poll();
    }
}

impl Governor {
    /// `at_once`: logins to one host.
    pub(crate) fn new(most: f64, at_once: usize, jitter: f64, seed: u64) -> Arc<Self> {
        let pace = Pace::new(most, jitter, clock::now()).handshakes(at_once);
        let state = State { pace, rng: StdRng::seed_from_u64(seed), waiting: HashMap::new() };
        Arc::new(Self { state: Mutex::new(state) })
    }

    /// Waits until a login may begin. Safe to drop.
    pub(crate) async fn turn(self: &Arc<Self>, host: Option<HostId>, price: Price) -> Turn {
        let bell = Arc::new(Notify::new());
        let ticket = {
            let mut state = lock(&self.state);
            let ticket = state.pace.ask(host, price);
            state.waiting.insert(ticket, Arc::clone(&bell));
            state.poll();
            ticket
        };
        // From here on a dropped future gives its place back.
        let turn = Turn { governor: Arc::clone(self), ticket, host, ended: Ended::Otherwise };
        loop {
            let next = {
                let mut state = lock(&self.state);
                if state.pace.taken(ticket) {
                    return turn;
                }
                state.pace.next()
            };
            tokio::select! {
                biased;
                () = bell.notified() => {}
                () = clock::sleep_until(next) => lock(&self.state).poll(),
            }
        }
    }

    /// Whether a connect that may wait that long for its turn would get it; the refusal else, at once.
    pub(crate) fn admit(&self, patience: Duration) -> Result<(), Error> {
        let predicted = lock(&self.state).pace.predicted();
        if predicted <= patience {
            return Ok(());
        }
        let message = format!(
            "too many connects wait for their turn (max_connect_rate): this one would begin in {:.1} s, later than its \
             deadline",
            predicted.as_secs_f64()
        );
        Err(Error::new(Code::Overloaded, Class::Transient, message)
            .at_stage(Stage::Pace)
            .with_retry_after(predicted - patience))
    }

    /// How long a login to `host` takes, where it suffers under logins just now.
    pub(crate) fn takes(&self, host: Option<HostId>) -> Duration {
        host.map_or(Duration::ZERO, |h| lock(&self.state).pace.takes(h, clock::now()))
    }

    /// Another host is primary now.
    pub(crate) fn new_primary(&self) {
        let mut state = lock(&self.state);
        state.pace.new_primary(clock::now());
        state.poll();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Deadline;

    /// Whoever found the host busy, and then no token, must be woken when there is one.
    #[tokio::test(start_paused = true)]
    async fn everyone_gets_a_turn_though_both_the_host_and_the_rate_held_them_back() {
        let governor = Governor::new(10.0, 2, 0.2, 1);
        let mut callers = tokio::task::JoinSet::new();
        for n in 0..40_u64 {
            let governor = Arc::clone(&governor);
            callers.spawn(async move {
                let turn = governor.turn(Some(HostId(0)), Price::Token).await;
                // Slower than the rate, now and then.
                clock::sleep_until(clock::now() + Duration::from_millis(5 + n % 7 * 60)).await;
                turn.done(Ended::Otherwise);
            });
        }
        let all = Deadline::after(Duration::from_secs(20)).bound(callers.join_all()).await;
        all.expect("some waited for ever");
    }
}
