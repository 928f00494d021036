//! Order statistics of a few hundred figures.

use serde_json::{Value, json};

/// Median and spread of a set of figures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    pub(crate) p10: f64,
    pub(crate) median: f64,
    pub(crate) p90: f64,
    pub(crate) worst: f64,
}

impl Spread {
    /// Of at least one figure; the larger, the worse.
    pub(crate) fn of(figures: &[f64]) -> Self {
        let mut sorted = figures.to_vec();
        sorted.sort_by(f64::total_cmp);
        let at = |q| quantile(&sorted, q);
        Self { p10: at(0.1), median: at(0.5), p90: at(0.9), worst: at(1.0) }
    }

    /// With so many decimals as are worth reading.
    pub(crate) fn json(self) -> Value {
        let round = |x: f64| (x * 1e4).round() / 1e4;
        json!({"median": round(self.median), "p10": round(self.p10), "p90": round(self.p90), "worst": round(self.worst)})
    }
}

/// Between two neighbours in proportion; NaN of nothing.
fn quantile(sorted: &[f64], q: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return f64::NAN };
    let place = q * last as f64;
    let (low, share) = (place.floor(), place.fract());
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and the length")]
    let low = low as usize;
    sorted[low] + (sorted[(low + 1).min(last)] - sorted[low]) * share
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outlier_moves_the_worst_and_not_the_median() {
        let s = Spread::of(&[3.0, 1.0, 2.0, 100.0, 4.0]);
        assert_eq!((s.median, s.worst), (3.0, 100.0));
        assert!((s.p10 - 1.4).abs() < 1e-9 && (s.p90 - 61.6).abs() < 1e-9, "{s:?}");
        let one = Spread::of(&[7.0]);
        assert_eq!((one.p10, one.median, one.p90), (7.0, 7.0, 7.0));
    }
}
