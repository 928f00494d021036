//! A count that only grows, and those who wait for its next step.
//!
//! Like tokio's `watch`, but whoever waits is woken in the order in which he came: there it is left to chance, and a
//! simulated run could not be repeated from its seed.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::sync::Notify;

#[derive(Default)]
struct Shared {
    count: AtomicU64,
    gone: AtomicBool,
    bell: Notify,
}

/// The side that counts.
#[derive(Default)]
pub(crate) struct Changes(Arc<Shared>);

/// The side that waits. It has seen all that was before it was made.
pub(crate) struct Changed {
    shared: Arc<Shared>,
    seen: u64,
}

/// Nobody counts any more.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Gone;

impl Changes {
    /// One step.
    pub(crate) fn step(&self) {
        self.0.count.fetch_add(1, Ordering::Release);
        self.0.bell.notify_waiters();
    }

    pub(crate) fn subscribe(&self) -> Changed {
        Changed { shared: Arc::clone(&self.0), seen: self.0.count.load(Ordering::Acquire) }
    }
}

impl Drop for Changes {
    fn drop(&mut self) {
        self.0.gone.store(true, Ordering::Release);
        self.0.bell.notify_waiters();
    }
}

impl Changed {
    /// Only what comes from now on counts.
    pub(crate) fn mark_unchanged(&mut self) {
        self.seen = self.shared.count.load(Ordering::Acquire);
    }

    /// Waits for a step that hasn't been seen.
    pub(crate) async fn changed(&mut self) -> Result<(), Gone> {
        let mut rung = pin!(self.shared.bell.notified());
        loop {
            // It waits before it looks, so that no step comes in between.
            rung.as_mut().enable();
            let count = self.shared.count.load(Ordering::Acquire);
            if count != self.seen {
                self.seen = count;
                return Ok(());
            }
            if self.shared.gone.load(Ordering::Acquire) {
                return Err(Gone);
            }
            rung.as_mut().await;
            rung.set(self.shared.bell.notified());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[tokio::test]
    async fn a_step_between_two_waits_is_not_missed() {
        let changes = Changes::default();
        let mut seen = changes.subscribe();
        changes.step();
        changes.step();
        assert_eq!(seen.changed().await, Ok(()));
        changes.step();
        seen.mark_unchanged();
        drop(changes);
        assert_eq!(seen.changed().await, Err(Gone));
    }

    #[tokio::test]
    async fn those_who_wait_go_on_in_the_order_in_which_they_came() {
        let changes = Changes::default();
        let order = Arc::new(Mutex::new(Vec::new()));
        let tasks: Vec<_> = (0..20)
            .map(|i| {
                let (mut seen, order) = (changes.subscribe(), Arc::clone(&order));
                tokio::spawn(async move {
                    assert_eq!(seen.changed().await, Ok(()));
                    crate::lock(&order).push(i);
                })
            })
            .collect();
        tokio::task::yield_now().await;
        changes.step();
        for t in tasks {
            t.await.expect("it ends");
        }
        assert_eq!(*crate::lock(&order), (0..20).collect::<Vec<_>>());
    }
}
