//! The runtime behind interfaces that block (feature `blocking`): the C ABI and the languages above it.
//!
//! One for the whole process, made when it is first needed. A fork leaves the child with the memory of a runtime and none
//! of its threads, so everything here is kept under the process's number: a child finds nothing of its own, and makes it
//! anew. What was the parent's is leaked there, for its destructors would wait for threads that don't exist.
//!
//! Decides nothing and knows no connector: who keeps handles (`ffi-c/src/handle.rs`) keeps them in a [`PerProcess`] too.

use std::convert::Infallible;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use tokio::runtime::{Builder, EnterGuard, Handle};

use crate::error::{Class, Code, Error};

/// Threads of the runtime. The work is waiting; the second one lets a probe's answer through while the first computes a
/// login.
const THREADS: usize = 2;
/// How long [`before_fork`] waits for calls of other threads, and then for the runtime's own threads.
const QUIET: Duration = Duration::from_secs(1);

/// One value in each process: a forked child gets its own, and leaks the parent's.
///
/// ```
/// use pgfollow::runtime::PerProcess;
/// static NAMES: PerProcess<String> = PerProcess::new();
/// assert_eq!(*NAMES.get_or(|| "first".to_owned()), "first");
/// assert_eq!(*NAMES.get_or(|| "second".to_owned()), "first");
/// ```
pub struct PerProcess<T>(ArcSwapOption<(u32, Arc<T>)>);

impl<T> Default for PerProcess<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> PerProcess<T> {
    /// Nothing yet.
    pub const fn new() -> Self {
        Self(ArcSwapOption::const_empty())
    }

    /// This process's value, made now if there is none. Takes no lock, so a fork can't leave one held.
    pub fn get_or(&self, make: impl FnOnce() -> T) -> Arc<T> {
        match self.get_or_try(|| Ok::<_, Infallible>(make())) {
            Ok(value) => value,
            Err(never) => match never {},
        }
    }

    /// The same where making it may fail.
    ///
    /// # Errors
    /// What `make` says.
    pub fn get_or_try<E>(&self, make: impl FnOnce() -> Result<T, E>) -> Result<Arc<T>, E> {
        let process = std::process::id();
        let found = self.0.load_full();
        match &found {
            Some(slot) if slot.0 == process => return Ok(Arc::clone(&slot.1)),
            // The parent's.
            Some(slot) => mem::forget(Arc::clone(slot)),
            None => {}
        }
        let made = Arc::new(make()?);
        let slot = Some(Arc::new((process, Arc::clone(&made))));
        let before = self.0.compare_and_swap(&found, slot);
        // Another thread was faster: its value is everybody's.
        let ours = |s: &Arc<(u32, Arc<T>)>| s.0 == process;
        Ok(before.as_ref().filter(|s| ours(s)).map_or(made, |s| Arc::clone(&s.1)))
    }

    /// Takes this process's value out.
    fn take(&self) -> Option<Arc<T>> {
        let slot = self.0.load_full().filter(|s| s.0 == std::process::id())?;
        self.0.store(None);
        Some(Arc::clone(&slot.1))
    }

    /// Puts it back, unless another one was made meanwhile.
    fn put_back(&self, value: Arc<T>) {
        let slot = Some(Arc::new((std::process::id(), value)));
        self.0.compare_and_swap(&None::<Arc<(u32, Arc<T>)>>, slot);
    }
}

static SHARED: PerProcess<Runtime> = PerProcess::new();

/// The runtime of this process.
pub struct Runtime(tokio::runtime::Runtime);

/// The runtime of this process; its threads start now if there are none.
///
/// # Errors
/// [`Code::Internal`] where the system gives no thread.
pub fn shared() -> Result<Arc<Runtime>, Error> {
    SHARED.get_or_try(|| {
        let built = Builder::new_multi_thread()
            .worker_threads(THREADS)
            .thread_name("pgfollow")
            .on_thread_start(leave_signals_alone)
            .enable_all()
            .build();
        built.map(Runtime).map_err(|e| {
            Error::new(Code::Internal, Class::Transient, format!("the system gave no thread: {e}"))
        })
    })
}

impl Runtime {
    /// Waits for a future on the calling thread.
    ///
    /// # Errors
    /// [`Code::WrongCall`] inside of an asynchronous task: the wait would stop everything that runs there.
    pub fn block_on<F: Future>(&self, future: F) -> Result<F::Output, Error> {
        if Handle::try_current().is_ok() {
            let message =
                "a call that waits was made inside of an asynchronous task: use the asynchronous interface";
            return Err(Error::new(Code::WrongCall, Class::Permanent, message));
        }
        Ok(self.0.block_on(future))
    }

    /// Whatever is started before the guard is dropped runs in this runtime.
    pub fn enter(&self) -> EnterGuard<'_> {
        self.0.enter()
    }
}

/// Ends the runtime and its threads, and with them every socket that it holds, so that a fork copies neither. Whatever
/// lived there starts again with the next call.
///
/// # Errors
/// [`Code::WrongCall`] where another thread is still in a call after a second: nothing was ended then.
pub fn before_fork() -> Result<(), Error> {
    let Some(mut runtime) = SHARED.take() else { return Ok(()) };
    let mut waited = Duration::ZERO;
    loop {
        match Arc::try_unwrap(runtime) {
            Ok(Runtime(runtime)) => {
                runtime.shutdown_timeout(QUIET);
                return Ok(());
            }
            Err(used) if waited >= QUIET => {
                SHARED.put_back(used);
                let message = "another thread is in a call of pgfollow: fork when it has returned";
                return Err(Error::new(Code::WrongCall, Class::Transient, message));
            }
            Err(used) => runtime = used,
        }
        let pause = Duration::from_millis(1);
        #[expect(
            clippy::disallowed_methods,
            reason = "the caller is to be blocked, and no runtime is left to wait in"
        )]
        std::thread::sleep(pause);
        waited += pause;
    }
}

/// The program's signal handlers run in the program's own threads. What a fault of the thread itself raises stays: crash
/// reporters and sanitizers catch it; so does what a profiler sends.
#[cfg(unix)]
fn leave_signals_alone() {
    const KEPT: [libc::c_int; 7] = [
        libc::SIGSEGV,
        libc::SIGBUS,
        libc::SIGFPE,
        libc::SIGILL,
        libc::SIGTRAP,
        libc::SIGABRT,
        libc::SIGPROF,
    ];
    #[expect(unsafe_code, reason = "no safe interface to the signal mask")]
    // SAFETY: the set is initialised by sigfillset before it is read, and lives until the calls return.
    unsafe {
        let mut set: libc::sigset_t = mem::zeroed();
        libc::sigfillset(&raw mut set);
        for signal in KEPT {
            libc::sigdelset(&raw mut set, signal);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
    }
}

#[cfg(not(unix))]
fn leave_signals_alone() {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_race_for_the_first_call_share_one_value() {
        let cell = PerProcess::new();
        let seen: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|n| {
                    scope.spawn({
                        let cell = &cell;
                        move || *cell.get_or(|| n)
                    })
                })
                .collect();
            threads.into_iter().map(|t| t.join().expect("no panic")).collect()
        });
        assert!(seen.iter().all(|n| *n == seen[0]), "{seen:?}");
    }

    /// The tests that need the one runtime of this process, one after another.
    static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

    #[test]
    fn a_wait_inside_of_a_task_is_refused_and_one_outside_works() {
        let _alone = crate::lock(&ALONE);
        let runtime = shared().expect("threads");
        let inside =
            runtime.block_on(async { shared().expect("threads").block_on(async {}).map_err(|e| e.code()) });
        assert_eq!(inside.expect("outside"), Err(Code::WrongCall));
    }

    #[test]
    fn the_runtime_is_not_ended_under_a_call_and_is_made_anew_after_its_end() {
        let _alone = crate::lock(&ALONE);
        let used = shared().expect("threads");
        assert_eq!(before_fork().map_err(|e| e.code()), Err(Code::WrongCall));
        let still = shared().expect("threads");
        assert!(Arc::ptr_eq(&used, &still), "the call would go on in another runtime than the next one");
        let gone = Arc::downgrade(&used);
        drop((used, still));
        assert!(before_fork().is_ok() && gone.upgrade().is_none());
        assert!(shared().expect("threads").block_on(async { 7 }).is_ok_and(|n| n == 7));
    }
}
