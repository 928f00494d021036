//! Our own process stands still. One thread runs everything here, so a sleep of that thread stops the monitor, its timers
//! and all sockets' readers at once, as SIGSTOP would.

use std::time::Duration;

use super::bench::{Bench, works};

/// How long the process stands still: the machine was suspended, or something blocked the runtime.
const STALL: Duration = Duration::from_secs(2);

#[tokio::test]
async fn what_passed_while_we_stood_still_is_not_a_hosts_silence() {
    let Some(bench) = Bench::start().await else { return };
    let idle = bench.session().await;
    let calls = bench.calls(Duration::from_secs(3)).await;
    std::thread::sleep(STALL);
    let mut used = Vec::from(calls.succeed().await);
    works(&idle).await;
    // A machine that is starved as a whole: the host pauses, and so do we, three times within its pause. Each stall
    // shows us a deadline that has passed, and yet there was hardly a second in which an answer could have been seen.
    let calls = bench.calls(Duration::from_secs(3)).await;
    bench.cluster.node(0).freeze().await.unwrap();
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_millis(300)).await;
        std::thread::sleep(STALL);
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    bench.cluster.node(0).thaw().await.unwrap();
    used.extend(calls.succeed().await);
    for session in used.iter().chain([&idle]) {
        works(session).await;
    }
}
