//! Distributions of durations: HDR histograms, in microseconds, two digits.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Longer than this counts as this: nothing here waits longer.
const LONGEST: u64 = 24 * 3_600 * 1_000_000;

/// A distribution. Takes memory only for the range that was seen.
#[derive(Debug)]
pub(super) struct Hist(Option<Histogram<u32>>);

impl Default for Hist {
    fn default() -> Self {
        // Two digits are always a valid precision.
        Self(Histogram::new(2).ok())
    }
}

impl Hist {
    pub(super) fn record(&mut self, d: Duration) {
        self.record_many(d, 1);
    }

    pub(super) fn record_many(&mut self, d: Duration, count: u32) {
        let us = u64::try_from(d.as_micros()).unwrap_or(LONGEST).clamp(1, LONGEST);
        if let Some(h) = &mut self.0 {
            // It grows by itself, so every value fits.
            let _ = h.record_n(us, count);
        }
    }

    pub(super) fn mean(&self) -> Option<Duration> {
        let h = self.0.as_ref().filter(|h| !h.is_empty())?;
        Some(Duration::from_secs_f64(h.mean() / 1e6))
    }

    /// What is told of it; `None` when nothing was recorded. `at_once`: so many more took no time at all.
    pub(super) fn quantiles(&self, at_once: u64) -> Option<Quantiles> {
        let h = self.0.as_ref()?;
        let count = h.len() + at_once;
        if count == 0 {
            return None;
        }
        let ms = |us: f64| (us / 1e3 * 1e3).round() / 1e3;
        let at = |q: f64| {
            // Those that took no time stand before all others.
            #[expect(clippy::cast_precision_loss, reason = "a rank among fewer than 2^52")]
            let (rank, before, rest) = (q * count as f64, at_once as f64, h.len() as f64);
            if rank <= before || rest == 0.0 {
                return 0.0;
            }
            #[expect(clippy::cast_precision_loss, reason = "a day in microseconds")]
            let us = h.value_at_quantile((rank - before) / rest) as f64;
            ms(us)
        };
        #[expect(clippy::cast_precision_loss, reason = "a mean of fewer than 2^52")]
        let mean = h.mean() * h.len() as f64 / count as f64;
        Some(Quantiles {
            count,
            mean_ms: ms(mean),
            p50_ms: at(0.50),
            p90_ms: at(0.90),
            p99_ms: at(0.99),
            p999_ms: at(0.999),
            max_ms: at(1.0),
        })
    }
}

/// A distribution of durations, in milliseconds. Each figure is within 1 % of the value recorded.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Quantiles {
    /// How many were recorded.
    pub count: u64,
    /// Their mean. Never read it alone.
    pub mean_ms: f64,
    /// Half were at most this.
    pub p50_ms: f64,
    /// Nine in ten.
    pub p90_ms: f64,
    /// 99 %.
    pub p99_ms: f64,
    /// 99.9 %.
    pub p999_ms: f64,
    /// The longest.
    pub max_ms: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_single_long_wait_is_not_hidden_behind_many_short_ones() {
        let mut h = Hist::default();
        for _ in 0..1_000 {
            h.record(Duration::from_millis(2));
        }
        h.record(Duration::from_secs(40));
        let q = h.quantiles(0).expect("values");
        assert!((q.p50_ms - 2.0).abs() < 0.05 && (q.max_ms - 40_000.0).abs() < 400.0, "{q:?}");
        assert_eq!(q.count, 1_001);
        // 99,000 more that took no time: the slow ones are the last hundredth.
        let q = h.quantiles(99_000).expect("values");
        assert_eq!((q.count, q.p50_ms, q.p90_ms), (100_001, 0.0, 0.0));
        assert!(q.p999_ms > 1.9 && q.max_ms > 39_000.0, "{q:?}");
    }

    #[test]
    fn nothing_recorded_is_not_zero_milliseconds() {
        assert_eq!(Hist::default().quantiles(0), None);
        let mut h = Hist::default();
        h.record(Duration::from_secs(10_000_000));
        assert!(h.quantiles(0).is_some_and(|q| q.max_ms >= 86_000_000.0));
    }
}
