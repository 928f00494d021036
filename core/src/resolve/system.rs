//! The system's own look-up (getaddrinfo), which blocks for as long as it likes.
//!
//! It runs on threads of its own, at most [`THREADS`] for a resolver, one for a name: whoever asks for a name that is
//! being looked up waits for that answer. So a system that hangs costs a few threads, never more. They are not the
//! runtime's blocking threads, because a runtime waits for those when it is dropped.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use crate::net::ResolveError;

/// Look-ups by the system at the same time.
const THREADS: usize = 4;

/// A blocking look-up of both families.
pub type SystemLookup = Arc<dyn Fn(&str) -> io::Result<Vec<IpAddr>> + Send + Sync>;

type Outcome = Result<Vec<IpAddr>, ResolveError>;
type Waiting = watch::Receiver<Option<Outcome>>;
type Running = Arc<Mutex<HashMap<String, Waiting>>>;

/// The system's look-up, bounded.
pub(super) struct System {
    lookup: SystemLookup,
    running: Running,
    threads: Arc<Semaphore>,
}

/// The real one.
pub(super) fn getaddrinfo() -> SystemLookup {
    Arc::new(|name| {
        use std::net::ToSocketAddrs;
        #[expect(clippy::disallowed_methods, reason = "the one place where the system looks names up")]
        let all = (name, 0).to_socket_addrs()?;
        Ok(all.map(|a| a.ip()).collect())
    })
}

impl System {
    pub(super) fn new(lookup: SystemLookup) -> Self {
        Self { lookup, running: Running::default(), threads: Arc::new(Semaphore::new(THREADS)) }
    }

    /// Looks a name up. Cancel-safe; the caller bounds the time.
    pub(super) async fn look_up(&self, name: &str) -> Outcome {
        let joined = lock(&self.running).get(name).cloned();
        let mut waiting = match joined {
            Some(waiting) => waiting,
            None => {
                let thread = Arc::clone(&self.threads).acquire_owned().await;
                self.join_or_start(name, thread.map_err(|e| ResolveError::ServerFailure(e.to_string()))?)?
            }
        };
        let outcome = waiting.wait_for(Option::is_some).await.ok().and_then(|o| o.clone());
        outcome.unwrap_or_else(|| Err(ResolveError::ServerFailure("the system's look-up failed".to_owned())))
    }

    fn join_or_start(&self, name: &str, thread: OwnedSemaphorePermit) -> Result<Waiting, ResolveError> {
        let mut running = lock(&self.running);
        if let Some(waiting) = running.get(name) {
            return Ok(waiting.clone());
        }
        let (tell, waiting) = watch::channel(None);
        let (lookup, all, wanted) = (Arc::clone(&self.lookup), Arc::clone(&self.running), name.to_owned());
        std::thread::Builder::new()
            .name("pgfollow-names".to_owned())
            .spawn(move || {
                let _thread = thread;
                // Removed even if the look-up panics: a name must not stay "being looked up" for ever.
                let _gone = Gone { all, name: wanted.clone() };
                let outcome = unique(lookup(&wanted));
                tell.send_replace(Some(outcome));
            })
            .map_err(|e| ResolveError::ServerFailure(format!("no thread for the system's look-up: {e}")))?;
        running.insert(name.to_owned(), waiting.clone());
        Ok(waiting)
    }
}

struct Gone {
    all: Running,
    name: String,
}

impl Drop for Gone {
    fn drop(&mut self) {
        lock(&self.all).remove(&self.name);
    }
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// getaddrinfo gives an address once for each socket type.
fn unique(answer: io::Result<Vec<IpAddr>>) -> Outcome {
    let mut addresses = Vec::new();
    for address in answer.map_err(|e| failure(&e))? {
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    if addresses.is_empty() { Err(ResolveError::NoSuchName) } else { Ok(addresses) }
}

/// The standard library hides getaddrinfo's code, so its text decides (glibc, musl, macOS; Rust programs don't set a
/// locale, so it stays English). What isn't recognised as "no such name" is taken for a failure, which is transient.
fn failure(e: &io::Error) -> ResolveError {
    let text = e.to_string();
    let unknown = [
        "Name or service not known",
        "No address associated with hostname",
        "Name does not resolve",
        "Name has no usable address",
        "nodename nor servname provided",
        "No such host is known",
    ];
    if unknown.iter().any(|u| text.contains(u)) {
        ResolveError::NoSuchName
    } else {
        ResolveError::ServerFailure(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;
    use std::time::Duration;

    async fn within<F: Future>(ms: u64, f: F) -> Option<F::Output> {
        crate::clock::Deadline::after(Duration::from_millis(ms)).bound(f).await.ok()
    }

    #[tokio::test]
    async fn a_system_that_hangs_costs_four_threads_and_never_more() {
        let started = Arc::new(AtomicUsize::new(0));
        let (release, gate) = mpsc::channel::<()>();
        let gate = Mutex::new(gate);
        let count = Arc::clone(&started);
        let system = System::new(Arc::new(move |_| {
            count.fetch_add(1, Ordering::SeqCst);
            // Until the sender is dropped.
            let _ = lock(&gate).recv();
            Ok(vec![IpAddr::from([10, 0, 0, 1])])
        }));
        for i in 0..50 {
            // Each name twice: the second must join the first.
            assert!(within(1, system.look_up(&format!("h{}", i / 2))).await.is_none());
        }
        assert!(started.load(Ordering::SeqCst) <= THREADS);
        assert_eq!(lock(&system.running).len(), THREADS);
        drop(release);
        let late = within(5_000, system.look_up("h30")).await.expect("a free thread again");
        assert_eq!(late, Ok(vec![IpAddr::from([10, 0, 0, 1])]));
    }

    #[tokio::test]
    async fn a_look_up_that_panics_does_not_block_its_name_for_ever() {
        let calls = AtomicUsize::new(0);
        let system = System::new(Arc::new(move |_| {
            assert!(calls.fetch_add(1, Ordering::SeqCst) > 0, "planted: the first call panics");
            Ok(vec![IpAddr::from([10, 0, 0, 1]); 3])
        }));
        let first = within(5_000, system.look_up("db")).await.expect("an end");
        assert!(matches!(first, Err(ResolveError::ServerFailure(_))), "{first:?}");
        let second = within(5_000, system.look_up("db")).await.expect("an end");
        assert_eq!(second.map(|a| a.len()), Ok(1), "and doubles are dropped");
    }

    #[test]
    fn a_failure_of_the_system_is_not_taken_for_a_name_that_does_not_exist() {
        let e = |t: &str| failure(&io::Error::other(format!("failed to lookup address information: {t}")));
        assert_eq!(e("Name or service not known"), ResolveError::NoSuchName);
        assert!(matches!(e("Temporary failure in name resolution"), ResolveError::ServerFailure(_)));
        assert!(matches!(e("Unknown error"), ResolveError::ServerFailure(_)));
    }
}
