//! What a connector does, for Prometheus. pgfollow speaks to the `metrics` facade, so it is enough to install a recorder
//! before the first connect; here its figures are a route of the service itself.

use axum::Router;
use axum::routing::get;
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};

/// Seconds: from a query on a good day to an outage of ten minutes.
const BUCKETS: [f64; 12] = [0.001, 0.005, 0.02, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 120.0, 600.0];

/// Installs the recorder of this process.
///
/// # Errors
/// When there is one already.
pub fn install() -> Result<PrometheusHandle, BuildError> {
    let histograms = ["_time", "_duration", "_cause"].map(|s| Matcher::Suffix(s.to_owned()));
    let mut builder = PrometheusBuilder::new();
    for name in histograms {
        builder = builder.set_buckets_for_metric(name, &BUCKETS)?;
    }
    builder.install_recorder()
}

/// GET /metrics.
pub fn app(figures: PrometheusHandle) -> Router {
    let render = move || {
        // What was recorded since is put into the buckets here; without a scraper it would pile up.
        figures.run_upkeep();
        std::future::ready(figures.render())
    };
    Router::new().route("/metrics", get(render))
}
