//! The server refuses new sessions and keeps the old ones.

use std::time::Duration;

use pgfollow::{Class, Error};
use pgfollow_lab::StopMode;

use super::bench::{Bench, works};

/// The connect met this SQLSTATE at the first host, which is transient.
fn refused_with(sqlstate: &str, error: &Error) {
    let told: Vec<String> = error.attempts().iter().map(ToString::to_string).collect();
    let met = error.attempts().iter().any(|a| a.sqlstate.is_some_and(|s| s.as_str() == sqlstate));
    assert!(met, "{sqlstate} not met: {told:?}");
    assert_eq!(error.class(), Class::Transient, "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exhausted_connections_end_no_session_that_is_there() {
    let Some(bench) = Bench::start().await else { return };
    let idle = bench.session().await;
    let calls = bench.calls(Duration::from_secs(5)).await;
    let taken = bench.cluster.exhaust_connections(0).await.unwrap();
    refused_with("53300", &bench.refused().await);
    for session in calls.succeed().await {
        works(&session).await;
    }
    works(&idle).await;
    drop(taken);
    works(&bench.session().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_smart_shutdown_lets_every_session_finish_its_work() {
    let Some(bench) = Bench::start().await else { return };
    let idle = bench.session().await;
    let calls = bench.calls(Duration::from_secs(5)).await;
    bench.cluster.node(0).stop(StopMode::Smart).await.unwrap();
    refused_with("57P03", &bench.refused().await);
    for session in calls.succeed().await {
        works(&session).await;
    }
    works(&idle).await;
}
