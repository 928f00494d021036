//! What became of a transaction whose COMMIT was never answered.
//!
//! [`Connector::run`] marks each writing transaction with a [`Token`] and asks by itself; an error that is still unknown
//! carries the token ([`Error::token`]), for [`Connector::check_outcome`] later and elsewhere.
//!
//! With the table `pgfollow.outcome` (made by [`install`], or `pgfollow outcome install`) the transaction's last act is a
//! row of its token, in one request with COMMIT: no round trip more, and nothing in the transaction can undo it. The check
//! tries to take the token itself: if it gets it, the transaction has not committed and never can. Without the table the
//! transaction's number is asked for, which proves something only as long as no crash and no unwatched failover lay
//! between. What happens is decided in [`crate::decide::outcome`].
//!
//! The outcome of a COMMIT PREPARED needs no token: the transaction is still in `pg_prepared_xacts`, or it isn't.

mod ability;
mod check;
mod table;
mod token;

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use ring::rand::{SecureRandom, SystemRandom};
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::clock::{self, Deadline, Moment};
use crate::connector::Connector;
use crate::decide::retry::Budget;
use crate::error::Error;
use crate::lock;
use crate::session::Session;

pub use crate::decide::outcome::{Outcome, PURGE_HORIZON, Unsettled};
pub use table::{Installed, install, purge};
pub use token::Token;

pub(crate) use ability::{Ability, Way};
pub(crate) use check::settle;

impl Connector {
    /// Asks the primary what became of the transaction that left this token, until there is an answer or that long. Any
    /// number of checks, side by side and in different processes, get the same answer.
    ///
    /// After [`Outcome::NotCommitted`] the work may be done again; the transaction can't commit any more.
    ///
    /// # Errors
    /// Only where no other try can help (a wrong password); no primary in time is [`Unsettled::NoPrimary`].
    pub async fn check_outcome(&self, token: &Token, patience: Duration) -> Result<Outcome, Error> {
        Box::pin(settle(self, token, Deadline::after(patience))).await
    }
}

/// Outcome checks of one connector at once: each wants a session, and a failover may leave as many commits in question as
/// a service has callers.
const AT_ONCE: usize = 4;
/// How long the token table isn't tried again after it has refused a row: work that takes another role, say, would be done
/// twice each time.
const TABLE_REST: Duration = Duration::from_secs(60);

/// What a connector keeps for [`crate::retry`]: chance, how much was repeated lately, and the checks' sessions.
pub(crate) struct Settling {
    chance: Mutex<StdRng>,
    /// `None`: keys are drawn from `chance`.
    system: Option<SystemRandom>,
    budget: Mutex<Budget>,
    table_rests: Mutex<Moment>,
    /// It was said that there is no token table.
    table_missed: AtomicBool,
    turns: Semaphore,
    checks: Mutex<Checks>,
}

/// The checks under way, and the sessions that some of them have left to the next.
#[derive(Default)]
struct Checks {
    count: usize,
    sessions: Vec<(Session, Ability)>,
}

impl Settling {
    pub(crate) fn new(seed: Option<u64>, seeded_tokens: bool) -> Self {
        Self {
            chance: Mutex::new(StdRng::seed_from_u64(seed.unwrap_or_else(crate::connector::process_seed))),
            system: (!seeded_tokens).then(SystemRandom::new),
            budget: Mutex::default(),
            table_rests: Mutex::new(Moment::ZERO),
            table_missed: AtomicBool::new(false),
            turns: Semaphore::new(AT_ONCE),
            checks: Mutex::default(),
        }
    }

    /// A token's key. From the system each time: keys must differ from those of every other process, also of one that was
    /// forked, restored or given the same seed. `None` where the system has no randomness.
    pub(crate) fn id(&self) -> Option<u128> {
        let Some(system) = &self.system else { return Some(lock(&self.chance).random()) };
        let mut id = [0; 16];
        system.fill(&mut id).ok()?;
        Some(u128::from_ne_bytes(id))
    }

    /// The token table refused a row.
    pub(crate) fn table_refused(&self) {
        *lock(&self.table_rests) = clock::now() + TABLE_REST;
    }

    /// A session found no token table; said once for all.
    pub(crate) fn no_table(&self) {
        if !self.table_missed.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                target: "pgfollow",
                "there is no table pgfollow.outcome that this login may use: after a crash or a failover the outcome of a \
                 commit may stay unknown; pgfollow outcome install STRING --grant ROLE makes it"
            );
        }
    }

    /// Whether the token table is to be tried.
    pub(crate) fn tries_table(&self) -> bool {
        *lock(&self.table_rests) <= clock::now()
    }

    /// A turn for a check, in the order in which they came.
    async fn turn(&self) -> Turn<'_> {
        lock(&self.checks).count += 1;
        let mut turn = Turn { settling: self, permit: None };
        // It is never closed.
        turn.permit = self.turns.acquire().await.ok();
        turn
    }

    /// From 0 to 1.
    pub(crate) fn chance(&self) -> f64 {
        lock(&self.chance).random()
    }

    /// A call is made.
    pub(crate) fn call(&self) {
        lock(&self.budget).call(clock::now());
    }

    /// Whether a call may be repeated.
    pub(crate) fn repeat(&self) -> bool {
        lock(&self.budget).repeat(clock::now())
    }
}

/// One check's turn.
struct Turn<'a> {
    settling: &'a Settling,
    permit: Option<SemaphorePermit<'a>>,
}

impl Turn<'_> {
    /// A session that an earlier check has left.
    fn session(&self) -> Option<(Session, Ability)> {
        lock(&self.settling.checks).sessions.pop()
    }

    /// Leaves a session to the next check, if one waits.
    fn leave(&self, session: (Session, Ability)) {
        let mut checks = lock(&self.settling.checks);
        if checks.count > AT_ONCE {
            checks.sessions.push(session);
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut checks = lock(&self.settling.checks);
        checks.count -= 1;
        let left = if checks.count == 0 { std::mem::take(&mut checks.sessions) } else { Vec::new() };
        drop(checks);
        drop(left);
        // The next one finds what was left to it.
        drop(self.permit.take());
    }
}
