//! The figures that Prometheus gets of a failover. A program of its own: they are those of the whole process.
#![allow(clippy::print_stderr, reason = "words for people")]

mod common;

use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use common::{Fault, PATIENCE, bb8_survives, start};
use pgfollow_lab::wait_for_async;
use tower::ServiceExt;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outage_and_its_causes_reach_prometheus() {
    // Before the connector, or its first figures are lost.
    let app = pgfollow_examples::metrics::app(pgfollow_examples::metrics::install().expect("the first one"));
    let Some((cluster, connector)) = start().await else { return };
    let pool = pgfollow_examples::bb8::pool(&connector).await.expect("a pool");
    bb8_survives(&cluster, Fault::Kill, pool).await;
    let wanted = [
        "pgfollow_outage_duration_count 1".to_owned(),
        "pgfollow_outage_cause_bucket{cause=".to_owned(),
        "db_client_connection_wait_time_bucket{db_system_name=\"postgresql\",le=\"1\"}".to_owned(),
        format!("pgfollow_evictions{{server_address=\"{}", cluster.node(0).host()),
        format!("server_address=\"{}", cluster.node(1).host()),
    ];
    // An outage is over when nothing has failed for some seconds.
    wait_for_async("the figures", PATIENCE, || async {
        let request = Request::get("/metrics").body(Body::empty()).expect("a request");
        let response = app.clone().oneshot(request).await.map_err(|e| e.to_string())?;
        let text = axum::body::to_bytes(response.into_body(), 1 << 20).await.map_err(|e| e.to_string())?;
        let text = String::from_utf8_lossy(&text).into_owned();
        tokio::time::sleep(Duration::from_millis(200)).await;
        match wanted.iter().find(|w| !text.contains(*w)) {
            None => Ok(()),
            Some(missing) => Err(format!("{missing} is not in\n{text}")),
        }
    })
    .await
    .expect("all are there");
}
