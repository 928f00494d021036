//! Waiting for a condition with a bound: the only place of the lab that sleeps.

use std::time::{Duration, Instant};

use crate::LabError;

/// Polls `done` every 2 ms until it says true; an error after `bound`.
pub async fn wait_for(what: &str, bound: Duration, mut done: impl FnMut() -> bool) -> Result<(), LabError> {
    wait_for_async(what, bound, || std::future::ready(if done() { Ok(()) } else { Err(String::new()) })).await
}

/// Polls `check` until it returns `Ok`; after `bound` an error with the last refusal.
///
/// The check itself is bounded too: one that hangs counts as a refusal when the time is up.
///
/// Takes a closure that returns a future, not an async closure: futures of those aren't `Send` for all lifetimes.
pub async fn wait_for_async<T, F: Future<Output = Result<T, String>>>(
    what: &str,
    bound: Duration,
    check: impl FnMut() -> F,
) -> Result<T, LabError> {
    poll(what, bound, Duration::from_millis(2), check).await
}

/// The same with a pace of one's own.
pub(crate) async fn poll<T, F: Future<Output = Result<T, String>>>(
    what: &str,
    bound: Duration,
    every: Duration,
    mut check: impl FnMut() -> F,
) -> Result<T, LabError> {
    let end = tokio::time::Instant::now() + bound;
    let mut last = None;
    let out_of_time = |last: Option<String>| LabError::Timeout { what: what.to_owned(), after: bound, last };
    loop {
        match tokio::time::timeout_at(end, check()).await {
            Ok(Ok(v)) => return Ok(v),
            Ok(Err(why)) => last = Some(why).filter(|w| !w.is_empty()),
            Err(_) => return Err(out_of_time(last)),
        }
        if tokio::time::Instant::now() >= end {
            return Err(out_of_time(last));
        }
        tokio::time::sleep(every).await;
    }
}

/// The same without a runtime, for `Drop` and signal paths. Says whether it came true.
pub(crate) fn wait_blocking(bound: Duration, mut done: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + bound;
    loop {
        if done() {
            return true;
        }
        if Instant::now() >= end {
            return false;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}
