//! Events: a bounded queue between the runtime and the program, and a descriptor that tells of it.

use std::collections::VecDeque;
use std::ffi::{CString, c_char, c_int};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pgfollow::{Class, Code, Error, Event};
use tokio::sync::broadcast::{Receiver, error::RecvError};
use tokio::task::JoinHandle;

use crate::barrier::{Out, call, read};
use crate::connector::{Held, pgf_connector};
use crate::error::pgf_error;
use crate::handle::{self, Opaque};
use crate::status::pgf_status;
use crate::text::c_string;

/// Events kept for a program that doesn't fetch them; older ones are dropped, and counted.
const KEPT: usize = 1_024;

/// Something that happened to the hosts or to the sessions. What its functions return belongs to it. Any thread may read
/// it.
pub struct pgf_event;

pub(crate) struct Happened {
    name: CString,
    text: CString,
    json: CString,
    missed: u64,
}

impl Opaque for Happened {
    type Handle = pgf_event;
    const NAME: &'static str = "pgf_event";
}

/// A connector's events on their way to the program.
#[derive(Default)]
pub(crate) struct Events {
    queue: Arc<Queue>,
    /// Carries events from the connector to the queue.
    pump: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct Queue {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Default)]
struct Waiting {
    events: VecDeque<Event>,
    missed: u64,
    /// An eventfd: readable while there are events.
    signal: Option<File>,
    closed: bool,
}

impl Waiting {
    fn raise(&self) {
        if let Some(mut signal) = self.signal.as_ref() {
            // It counts to 2⁶⁴ − 2, and is set back whenever the queue is empty.
            let _ = signal.write(&1_u64.to_ne_bytes());
        }
    }

    fn lower(&self) {
        if let Some(mut signal) = self.signal.as_ref() {
            // Nothing to read is what is wanted.
            let _ = signal.read(&mut [0; 8]);
        }
    }
}

impl Queue {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, event: Event) {
        let mut waiting = self.waiting();
        if waiting.events.len() == KEPT {
            waiting.events.pop_front();
            waiting.missed += 1;
        }
        waiting.events.push_back(event);
        waiting.raise();
        drop(waiting);
        self.changed.notify_one();
    }

    /// The next event, and how many were lost before it; `None`: none came in time.
    fn next(&self, within: Duration) -> Result<Option<(Event, u64)>, Error> {
        let idle = |w: &mut Waiting| w.events.is_empty() && !w.closed;
        let waited = self.changed.wait_timeout_while(self.waiting(), within, idle);
        let (mut waiting, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if waiting.closed {
            return Err(Error::new(Code::Closed, Class::Permanent, "the connector was freed meanwhile"));
        }
        let next = waiting.events.pop_front().map(|e| (e, std::mem::take(&mut waiting.missed)));
        if waiting.events.is_empty() {
            waiting.lower();
        }
        Ok(next)
    }

    fn signal(&self) -> Result<c_int, Error> {
        let mut waiting = self.waiting();
        if waiting.signal.is_none() {
            waiting.signal = Some(eventfd()?);
            if !waiting.events.is_empty() {
                waiting.raise();
            }
        }
        Ok(waiting.signal.as_ref().map_or(-1, AsRawFd::as_raw_fd))
    }
}

pub(crate) fn eventfd() -> Result<File, Error> {
    // SAFETY: takes two numbers and gives a descriptor.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    if fd < 0 {
        let message = format!("the system gave no descriptor: {}", io::Error::last_os_error());
        return Err(Error::new(Code::Internal, Class::Transient, message));
    }
    // SAFETY: it is new, and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) }.into())
}

async fn pump(queue: Arc<Queue>, mut events: Receiver<Event>) {
    loop {
        match events.recv().await {
            Ok(event) => queue.push(event),
            Err(RecvError::Lagged(n)) => queue.waiting().missed += n,
            Err(RecvError::Closed) => return,
        }
    }
}

impl Events {
    /// The queue, filled from now on; what ran in a runtime that is gone runs again.
    fn queue(&self, held: &Held) -> Result<Arc<Queue>, Error> {
        let mut running = self.pump.lock().unwrap_or_else(PoisonError::into_inner);
        if running.as_ref().is_none_or(JoinHandle::is_finished) {
            let (connector, runtime) = held.used()?;
            let _entered = runtime.enter();
            let events = connector.events();
            *running = Some(tokio::spawn(pump(Arc::clone(&self.queue), events)));
            // Without it nothing would ever happen.
            connector.topology();
        }
        Ok(Arc::clone(&self.queue))
    }

    pub(crate) fn close(&self) {
        self.queue.waiting().closed = true;
        self.queue.changed.notify_all();
        if let Some(pump) = self.pump.lock().unwrap_or_else(PoisonError::into_inner).take() {
            pump.abort();
        }
    }
}

/// Waits for the next event, at most that many milliseconds (0: not at all). The first call of this or of pgf_event_fd
/// starts the watching; events from before it are not kept. `event` gets NULL if none came in time. Of events that nobody
/// fetched, the last 1,024 are kept. Each event goes to one of the threads that wait.
#[unsafe(no_mangle)]
pub extern "C" fn pgf_next_event(
    connector: *mut pgf_connector,
    timeout_ms: u32,
    event: *mut *mut pgf_event,
    error: *mut *mut pgf_error,
) -> pgf_status {
    call(error, || {
        let out = Out::needed(event, "event")?;
        let held = handle::get::<Held>(connector)?;
        let next = held.events.queue(&held)?.next(Duration::from_millis(timeout_ms.into()))?;
        out.set(next.map_or(ptr::null_mut(), |(event, missed)| {
            handle::give(Happened {
                name: c_string(event.name()),
                text: c_string(event.text()),
                json: c_string(serde_json::to_string(&event).unwrap_or_default()),
                missed,
            })
        }));
        Ok(())
    })
}

/// A descriptor for poll, epoll or an event loop: readable while pgf_next_event has an event to give. Don't read from it
/// and don't close it: it is the connector's, and closed with it.
#[unsafe(no_mangle)]
pub extern "C" fn pgf_event_fd(
    connector: *mut pgf_connector,
    fd: *mut c_int,
    error: *mut *mut pgf_error,
) -> pgf_status {
    call(error, || {
        let out = Out::needed(fd, "fd")?;
        let held = handle::get::<Held>(connector)?;
        out.set(held.events.queue(&held)?.signal()?);
        Ok(())
    })
}

/// The name of its kind, such as new_primary. NULL if that isn't a pgf_event.
#[unsafe(no_mangle)]
pub extern "C" fn pgf_event_name(event: *const pgf_event) -> *const c_char {
    read(ptr::null(), || Some(handle::get::<Happened>(event).ok()?.name.as_ptr()))
}

/// In words. NULL if that isn't a pgf_event.
#[unsafe(no_mangle)]
pub extern "C" fn pgf_event_text(event: *const pgf_event) -> *const c_char {
    read(ptr::null(), || Some(handle::get::<Happened>(event).ok()?.text.as_ptr()))
}

/// As a JSON object. Keys may be added. NULL if that isn't a pgf_event.
#[unsafe(no_mangle)]
pub extern "C" fn pgf_event_json(event: *const pgf_event) -> *const c_char {
    read(ptr::null(), || Some(handle::get::<Happened>(event).ok()?.json.as_ptr()))
}

/// How many events were dropped just before it, because nobody fetched them.
#[unsafe(no_mangle)]
pub extern "C" fn pgf_event_missed(event: *const pgf_event) -> u64 {
    read(0, || Some(handle::get::<Happened>(event).ok()?.missed))
}

/// Frees it. NULL is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn pgf_event_free(event: *mut pgf_event) -> pgf_status {
    call(ptr::null_mut(), || handle::free::<Happened>(event))
}
