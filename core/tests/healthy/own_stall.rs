//! Our own process stands still. One thread runs everything here, so a sleep of that thread stops the monitor, its timers
//! and all sockets' readers at once, as SIGSTOP would.

use std::time::Duration;

use super::bench::{Bench, works};

/// How long the process stands still: the machine was suspended, or something blocked the runtime.
const STALL: Duration = Duration::from_secs(2);

#[tokio::test]
async fn our_own_stall_of_two_seconds_blames_nobody() {
    let Some(bench) = Bench::start().await else { return };
    let idle = bench.session().await;
    let calls = bench.calls(Duration::from_millis(3500)).await;
    std::thread::sleep(STALL);
    for session in calls.succeed().await {
        works(&session).await;
    }
    works(&idle).await;
}

/// A machine that is starved as a whole: the host pauses, and so do we, three times within its pause. Each stall makes
/// us see a missed deadline; there was hardly a second in which an answer could have been seen.
#[tokio::test]
async fn deadlines_that_passed_while_we_stood_still_are_not_counted() {
    let Some(bench) = Bench::start().await else { return };
    let idle = bench.session().await;
    let calls = bench.calls(Duration::from_secs(5)).await;
    bench.cluster.node(0).freeze().await.unwrap();
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_millis(300)).await;
        std::thread::sleep(STALL);
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    bench.cluster.node(0).thaw().await.unwrap();
    for session in calls.succeed().await {
        works(&session).await;
    }
    works(&idle).await;
}
