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
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use ring::rand::{SecureRandom, SystemRandom};

use crate::clock::{self, Deadline};
use crate::connector::Connector;
use crate::decide::retry::Budget;
use crate::error::Error;
use crate::lock;

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

/// What a connector keeps for [`crate::retry`]: chance, and how much was repeated lately.
pub(crate) struct Settling {
    /// Keys must differ from those of every other process: seeded by the system, unless the caller wants a run that can
    /// be repeated.
    chance: Mutex<StdRng>,
    budget: Mutex<Budget>,
}

impl Settling {
    pub(crate) fn new(seed: Option<u64>) -> Self {
        let mut key = [0; 32];
        let chance = match (seed, SystemRandom::new().fill(&mut key)) {
            (None, Ok(())) => StdRng::from_seed(key),
            // A system without randomness has no TLS either.
            (seed, _) => StdRng::seed_from_u64(seed.unwrap_or_else(crate::connector::process_seed)),
        };
        Self { chance: Mutex::new(chance), budget: Mutex::default() }
    }

    /// A token's key.
    pub(crate) fn id(&self) -> u128 {
        lock(&self.chance).random()
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
