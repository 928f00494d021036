//! The web service in a failover.
#![allow(clippy::print_stderr, reason = "words for people")]

use std::time::{Duration, Instant};

use super::common::{PATIENCE, start};
use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use pgfollow::Connector;
use tower::ServiceExt;

struct Reply {
    status: StatusCode,
    retry_after: Option<u64>,
    body: serde_json::Value,
}

async fn ask(app: &Router, method: &str, path: &str) -> Reply {
    let request = Request::builder().method(method).uri(path).body(Body::empty()).expect("a request");
    let answered = tokio::time::timeout(PATIENCE, app.clone().oneshot(request)).await;
    let response = answered.expect("an answer within patience").expect("no error");
    let status = response.status();
    let retry_after = response.headers().get("retry-after").map(|v| v.to_str().expect("text").parse());
    let body = axum::body::to_bytes(response.into_body(), 10_000).await.expect("a body");
    Reply {
        status,
        retry_after: retry_after.map(|n| n.expect("seconds")),
        body: serde_json::from_slice(&body).unwrap_or_default(),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_sheds_requests_and_stays_ready_until_the_new_primary_takes_orders() {
    let Some((cluster, connector)) = start().await else { return };
    let app = pgfollow_examples::axum::app(&connector);
    assert_eq!(ask(&app, "GET", "/health/live").await.status, StatusCode::OK);
    assert_eq!(ask(&app, "GET", "/health/ready").await.status, StatusCode::OK);
    let done = ask(&app, "POST", "/orders").await;
    assert_eq!((done.status, done.body["id"].as_i64()), (StatusCode::CREATED, Some(1)));
    cluster.node(0).kill().await.expect("killed");
    let killed = Instant::now();
    loop {
        let ready = ask(&app, "GET", "/health/ready").await;
        assert_eq!(ready.status, StatusCode::OK);
        if ready.body["degraded"].is_string() {
            break;
        }
        assert!(killed.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // No primary: each is refused with the time to come back.
    for _ in 0..2 {
        let shed = ask(&app, "POST", "/orders").await;
        assert_eq!(shed.status, StatusCode::SERVICE_UNAVAILABLE, "{}", shed.body);
        assert!(shed.retry_after >= Some(1), "{:?}", shed.retry_after);
        assert_eq!(shed.body["done"], false);
        let ready = ask(&app, "GET", "/health/ready").await;
        assert_eq!(ready.status, StatusCode::OK);
        assert!(ready.body["degraded"].is_string(), "{}", ready.body);
    }
    cluster.promote(1).await.expect("promoted");
    let promoted = Instant::now();
    let mut tries = 0;
    loop {
        let reply = ask(&app, "POST", "/orders").await;
        tries += 1;
        assert_eq!(ask(&app, "GET", "/health/ready").await.status, StatusCode::OK);
        if reply.status == StatusCode::CREATED {
            break;
        }
        assert_eq!(reply.status, StatusCode::SERVICE_UNAVAILABLE, "{}", reply.body);
        assert!(promoted.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    eprintln!("takes orders again {:?} after the promotion, at try {tries}", promoted.elapsed());
}

#[tokio::test]
async fn a_service_that_never_saw_its_database_is_not_ready() {
    let connector = Connector::new("postgresql://u@127.0.0.1:1/d").expect("a connector");
    let app = pgfollow_examples::axum::app(&connector);
    assert_eq!(ask(&app, "GET", "/health/live").await.status, StatusCode::OK);
    let ready = ask(&app, "GET", "/health/ready").await;
    assert_eq!((ready.status, &ready.body["ready"]), (StatusCode::SERVICE_UNAVAILABLE, &false.into()));
}
