//! A web service that stays in rotation through a failover and says honestly what it can't do meanwhile.
//!
//! Readiness is about this process, not about the database: if every instance called itself unready at the same moment,
//! the load balancer would have nobody left, and would take its time to bring them back. So `/health/ready` stays true
//! once the first session was had (with the reason in its body while no primary answers), and each request that can't be
//! served is shed by itself: 503 with Retry-After.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use pgfollow::{Class, Connector, Error, Health, Pool};
use serde_json::json;

/// A caller of the service waits so long for a session, and no longer: his own time-out comes soon after.
const PATIENCE: Duration = Duration::from_secs(2);
/// What Retry-After says where the error doesn't know better.
const COME_BACK: Duration = Duration::from_secs(1);

#[derive(Clone)]
struct Service {
    pool: Pool,
    /// A primary was seen once: the configuration works.
    started: Arc<AtomicBool>,
}

/// The service's routes.
pub fn app(connector: &Connector) -> Router {
    let service = Service { pool: connector.pool(), started: Arc::default() };
    Router::new()
        .route("/health/live", get(|| async { "alive" }))
        .route("/health/ready", get(ready))
        .route("/orders", post(order))
        .with_state(service)
}

async fn ready(State(service): State<Service>) -> Response {
    let health = service.pool.connector().health();
    let started = service.started.fetch_or(health == Health::Ready, Ordering::Relaxed);
    match health {
        Health::Ready => Json(json!({"ready": true})).into_response(),
        Health::Degraded(why) if started => Json(json!({"ready": true, "degraded": why})).into_response(),
        Health::Degraded(why) => {
            (StatusCode::SERVICE_UNAVAILABLE, Json(json!({"ready": false, "degraded": why}))).into_response()
        }
    }
}

async fn order(State(service): State<Service>) -> Result<Response, Shed> {
    let session = service.pool.acquire_within(PATIENCE).await?;
    let done = session.query_one("INSERT INTO orders DEFAULT VALUES RETURNING id", &[]).await;
    let id: i64 = done.map_err(|e| session.why().diagnose(e))?.get(0);
    Ok((StatusCode::CREATED, Json(json!({"id": id}))).into_response())
}

/// An error of pgfollow as an answer.
struct Shed(Error);

impl From<Error> for Shed {
    fn from(e: Error) -> Self {
        Self(e)
    }
}

impl IntoResponse for Shed {
    fn into_response(self) -> Response {
        let e = self.0;
        // The text may name hosts: it is for the log. The caller gets what he can act on.
        match e.class() {
            // Certainly not done: no primary yet, or the pool is overloaded and says when to come back.
            Class::Transient => {
                let wait = e.retry_after().unwrap_or(COME_BACK).as_secs_f64().ceil().max(1.0);
                let body = Json(json!({"error": "try again", "done": false}));
                (StatusCode::SERVICE_UNAVAILABLE, [(header::RETRY_AFTER, wait.to_string())], body)
                    .into_response()
            }
            // It may have been done: never an invitation to repeat it.
            Class::UnknownOutcome => {
                let body = Json(
                    json!({"error": "look whether the order is there before you repeat it", "done": null}),
                );
                (StatusCode::INTERNAL_SERVER_ERROR, body).into_response()
            }
            Class::Permanent => {
                (StatusCode::INTERNAL_SERVER_ERROR, Json(json!({"error": "failed", "done": false})))
                    .into_response()
            }
        }
    }
}
