//! What a pool is asked to be, and what it tells of itself.

use std::time::Duration;

use serde::Serialize;

use crate::config::{Config, SessionAttrs};
use crate::decide::pool::{Counts, PoolRules};
use crate::error::{Class, Code, Error, Stage};

/// An idle session is closed after this, down to `pool_min_conns`: the server's slots are not ours to keep.
const IDLE_MAX: Duration = Duration::from_secs(600);
/// Between two tests of an idle session.
const TEST_EVERY: Duration = Duration::from_secs(30);
/// Share of a lifetime that chance takes away, so that sessions born together don't die together.
const LIFETIME_JITTER: f64 = 0.1;

/// The options of one pool; those that aren't set are the connection string's.
#[derive(Clone, Debug)]
pub struct PoolOptions {
    pub(crate) max: usize,
    pub(crate) min: usize,
    pub(crate) acquire_timeout: Duration,
    pub(crate) lifetime: Duration,
    pub(crate) validate_after: Duration,
    pub(crate) attrs: Option<SessionAttrs>,
}

impl PoolOptions {
    pub(crate) fn of(config: &Config) -> Self {
        Self {
            max: config.pool_max_conns,
            min: config.pool_min_conns,
            acquire_timeout: config.pool_acquire_timeout,
            lifetime: config.pool_max_conn_lifetime,
            validate_after: config.pool_validate_after,
            attrs: config.target_session_attrs,
        }
    }

    /// Most sessions (`pool_max_conns`).
    #[must_use]
    pub fn max_conns(mut self, n: usize) -> Self {
        self.max = n;
        self
    }

    /// Sessions that are kept open (`pool_min_conns`).
    #[must_use]
    pub fn min_conns(mut self, n: usize) -> Self {
        self.min = n;
        self
    }

    /// How long [`crate::Pool::acquire`] waits (`pool_acquire_timeout`).
    #[must_use]
    pub fn acquire_timeout(mut self, d: Duration) -> Self {
        self.acquire_timeout = d;
        self
    }

    /// Longest life of a session (`pool_max_conn_lifetime`); zero: no end.
    #[must_use]
    pub fn max_conn_lifetime(mut self, d: Duration) -> Self {
        self.lifetime = d;
        self
    }

    /// A session that was silent for this long is proved by a ping before it is lent (`pool_validate_after`).
    #[must_use]
    pub fn validate_after(mut self, d: Duration) -> Self {
        self.validate_after = d;
        self
    }

    /// The wanted role (`target_session_attrs`).
    #[must_use]
    pub fn attrs(mut self, attrs: SessionAttrs) -> Self {
        self.attrs = Some(attrs);
        self
    }

    pub(crate) fn rules(&self) -> Result<PoolRules, Error> {
        let wrong = |message: String| {
            Err(Error::new(Code::InvalidOption, Class::Permanent, message).at_stage(Stage::Configure))
        };
        if self.max == 0 {
            return wrong("pool_max_conns=0: a pool needs at least one connection".to_owned());
        }
        if self.max > MOST {
            return wrong(format!("pool_max_conns={}: at most {MOST}", self.max));
        }
        if self.min > self.max {
            let Self { min, max, .. } = self;
            return wrong(format!(
                "pool_min_conns={min} is more than pool_max_conns={max}: lower one or raise the other"
            ));
        }
        Ok(PoolRules {
            max: self.max,
            min: self.min,
            validate_after: self.validate_after,
            lifetime: self.lifetime,
            lifetime_jitter: LIFETIME_JITTER,
            idle_max: IDLE_MAX,
            test_every: TEST_EVERY,
        })
    }
}

/// The most that `pool_max_conns` may say, in a string or here.
const MOST: usize = 100_000;

/// A pool at one moment, and what it did since its start.
#[derive(Clone, Copy, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct PoolStats {
    /// Sessions and callers now.
    #[serde(flatten)]
    pub now: Counts,
    /// Most sessions.
    pub max_conns: usize,
    /// Sessions that were lent.
    pub acquired: u64,
    /// Callers who had to wait.
    pub waited: u64,
    /// Callers who were refused at once ([`Code::Overloaded`]).
    pub shed: u64,
    /// Callers whose patience ended.
    pub timed_out: u64,
    /// Sessions that were opened.
    pub opened: u64,
    /// Openings that failed.
    pub failed: u64,
    /// Sessions that were closed, whoever ended them.
    pub closed: u64,
}
