//! What a pool is asked to be, and what it tells of itself.

use std::time::Duration;

use serde::Serialize;

use crate::config::{Config, SessionAttrs, find, ranges};
use crate::decide::pool::{Counts, PoolRules};
use crate::error::{Class, Code, Error, Stage};

/// An idle session is closed after this, down to `pool_min_conns`: the server's slots are not ours to keep.
const IDLE_MAX: Duration = Duration::from_secs(600);
/// Between two tests of an idle session.
const TEST_EVERY: Duration = Duration::from_secs(30);
/// Share of a lifetime that chance takes away, so that sessions born together don't die together.
const LIFETIME_JITTER: f64 = 0.1;

/// The options of one pool; those that aren't set are the connection string's, and the same ranges hold for both. What is
/// beyond is refused, by name, where the pool is made ([`crate::Connector::pool_with`]).
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

    /// Most sessions (`pool_max_conns`): 1 to 100000.
    #[must_use]
    pub fn max_conns(mut self, n: usize) -> Self {
        self.max = n;
        self
    }

    /// Sessions that are kept open (`pool_min_conns`): 0 to as many as there may be.
    #[must_use]
    pub fn min_conns(mut self, n: usize) -> Self {
        self.min = n;
        self
    }

    /// How long [`crate::Pool::acquire`] waits (`pool_acquire_timeout`): 1 ms to 1 h.
    #[must_use]
    pub fn acquire_timeout(mut self, d: Duration) -> Self {
        self.acquire_timeout = d;
        self
    }

    /// Longest life of a session (`pool_max_conn_lifetime`): 1 s to 365 days.
    #[must_use]
    pub fn max_conn_lifetime(mut self, d: Duration) -> Self {
        self.lifetime = d;
        self
    }

    /// A session that was silent for this long is proved by a ping before it is lent (`pool_validate_after`): 0 (always) to
    /// 1 h.
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
        if !ranges::POOL_MAX_CONNS.contains(&self.max) {
            let values = find("pool_max_conns").map_or("", |r| r.values);
            return wrong(format!("pool_max_conns={}: it must be {values}", self.max));
        }
        for (name, value, permitted) in [
            ("pool_acquire_timeout", self.acquire_timeout, ranges::POOL_ACQUIRE_TIMEOUT),
            ("pool_max_conn_lifetime", self.lifetime, ranges::POOL_MAX_CONN_LIFETIME),
            ("pool_validate_after", self.validate_after, ranges::POOL_VALIDATE_AFTER),
        ] {
            if !permitted.contains(&value) {
                let values = find(name).map_or("", |r| r.values);
                return wrong(format!("{name}={value:?}: it must be {values}"));
            }
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

#[cfg(test)]
mod tests {
    use super::*;

    type Change = fn(PoolOptions) -> PoolOptions;

    #[test]
    fn what_the_string_refuses_is_refused_in_code_too() {
        let config = Config::parse("host=a user=u").expect("a string");
        let rules = |change: Change| change(PoolOptions::of(&config)).rules();
        let s = Duration::from_secs;
        for (name, wrong) in [
            ("pool_acquire_timeout", (|o| o.acquire_timeout(Duration::ZERO)) as Change),
            ("pool_acquire_timeout", |o| o.acquire_timeout(Duration::from_secs(2 * 86_400))),
            ("pool_max_conn_lifetime", |o| o.max_conn_lifetime(Duration::from_millis(1))),
            ("pool_max_conn_lifetime", |o| o.max_conn_lifetime(Duration::ZERO)),
            ("pool_validate_after", |o| o.validate_after(Duration::from_secs(3_601))),
            ("pool_max_conns", |o| o.max_conns(0)),
            ("pool_max_conns", |o| o.max_conns(100_001)),
            ("pool_min_conns", |o| o.min_conns(11)),
        ] {
            let e = rules(wrong).map(|_| ()).expect_err(name);
            assert!(e.code() == Code::InvalidOption && e.message().starts_with(name), "{name}: {e}");
        }
        let ends =
            PoolOptions::of(&config).acquire_timeout(s(3_600)).max_conn_lifetime(s(1)).validate_after(s(0));
        assert!(ends.rules().is_ok(), "the ends are permitted");
    }
}
