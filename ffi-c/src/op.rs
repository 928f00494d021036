//! A wait that a program's own event loop watches: one descriptor, readable once.

use std::ffi::c_int;
use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pgfollow::{Error, Target};
use tokio::task::AbortHandle;

use crate::barrier::{Out, call, read, wrong_call};
use crate::connector::{Held, pgf_connector};
use crate::error::pgf_error;
use crate::event::eventfd;
use crate::handle::{self, Opaque};
use crate::status::pgf_status;
use crate::target::{Located, gone, pgf_target};

/// A pgf_locate under way. Any thread may ask it.
pub struct pgf_op;

pub(crate) struct Op {
    ending: Arc<Ending>,
    task: AbortHandle,
}

struct Ending {
    result: Mutex<Option<Result<Target, Error>>>,
    signal: File,
}

impl Ending {
    fn put(&self, result: Result<Target, Error>) {
        let mut place = self.result.lock().unwrap_or_else(PoisonError::into_inner);
        if place.is_none() {
            *place = Some(result);
            // It is new, so it takes one.
            let _ = (&self.signal).write(&1_u64.to_ne_bytes());
        }
    }
}

/// Tells the end also when the task goes with its runtime.
struct Last(Arc<Ending>);

impl Drop for Last {
    fn drop(&mut self) {
        self.0.put(Err(gone()));
    }
}

impl Opaque for Op {
    type Handle = pgf_op;
    const NAME: &'static str = "pgf_op";

    fn freed(&self) {
        self.task.abort();
    }
}

/// As pgf_locate, without waiting: poll pgf_op_fd, then take the target. Free the op in any case; one that is freed
/// before its end is given up.
#[unsafe(no_mangle)]
pub extern "C" fn pgf_locate_start(
    connector: *mut pgf_connector,
    timeout_ms: u32,
    op: *mut *mut pgf_op,
    error: *mut *mut pgf_error,
) -> pgf_status {
    call(error, || {
        let out = Out::needed(op, "op")?;
        let (connector, runtime) = handle::get::<Held>(connector)?.used()?;
        let ending = Arc::new(Ending { result: Mutex::new(None), signal: eventfd()? });
        let last = Last(Arc::clone(&ending));
        let _entered = runtime.enter();
        let task = tokio::spawn(async move {
            let located = connector.locate(Duration::from_millis(timeout_ms.into())).await;
            last.0.put(located);
        });
        out.set(handle::give(Op { ending, task: task.abort_handle() }));
        Ok(())
    })
}

/// A descriptor for poll, epoll or an event loop: it turns readable once, when the op is done or its time is over, and
/// stays so. There is no timer to keep beside it. Don't read from it and don't close it: it is the op's. -1 if that isn't
/// a pgf_op.
#[unsafe(no_mangle)]
pub extern "C" fn pgf_op_fd(op: *const pgf_op) -> c_int {
    read(-1, || Some(handle::get::<Op>(op).ok()?.ending.signal.as_raw_fd()))
}

/// Takes the target, once the op is done; the second time there is none. Fails with what pgf_locate would have.
///
/// PGF_WRONG_CALL: it isn't done yet, or its result was taken.
#[unsafe(no_mangle)]
pub extern "C" fn pgf_op_target(
    op: *mut pgf_op,
    target: *mut *mut pgf_target,
    error: *mut *mut pgf_error,
) -> pgf_status {
    call(error, || {
        let out = Out::needed(target, "target")?;
        let op = handle::get::<Op>(op)?;
        let mut result = op.ending.result.lock().unwrap_or_else(PoisonError::into_inner);
        match result.take() {
            Some(located) => {
                // What comes after it is no second end.
                *result = Some(Err(wrong_call("the result was taken already")));
                out.set(handle::give(Located::new(located?)));
                Ok(())
            }
            None => Err(wrong_call("the op isn't done: wait until pgf_op_fd is readable")),
        }
    })
}

/// Frees it, and gives it up if it isn't done. NULL is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn pgf_op_free(op: *mut pgf_op) -> pgf_status {
    call(ptr::null_mut(), || handle::free::<Op>(op))
}
