//! Sessions that are lent and come back: acquire, release, close.
//!
//! Decides nothing: [`crate::decide::pool`] has the book and says who gets what. Everything here is done under one short
//! lock that is never held across a wait. Sessions are opened by tasks of the pool ([`keeper`]), never by a caller: one
//! who leaves early loses its place in the queue and nothing else. What a caller holds is a [`PoolSession`] ([`lent`]).

mod keeper;
mod kept;
mod lent;
mod options;
mod run;

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::StdRng;
use tokio::sync::{Notify, oneshot};

use crate::alone::Alone;
use crate::clock::{self, Deadline, Moment};
use crate::config::{ConfigBuilder, SessionAttrs};
use crate::connect::Limit;
use crate::connector::Connector;
use crate::decide::pool::{self as book, Back, Next, SlotId, WaiterId};
use crate::decide::shed::Shed;
use crate::error::{Class, Code, Error, Stage};
use crate::lock;
use crate::report::Recorder;
use crate::session::Session;

pub use lent::PoolSession;
pub use options::{PoolOptions, PoolStats};

/// A bounded pool of sessions on the wanted host. Cheap to clone; all clones are the same pool. Several pools (one
/// read-write, one prefer-standby) may share one [`Connector`].
///
/// ```no_run
/// # async fn f() -> Result<(), pgfollow::Error> {
/// let pool = pgfollow::Pool::connect("postgresql://app@db-a,db-b,db-c/orders")?;
/// let session = pool.acquire().await?;
/// let row = session.query_one("SELECT count(*) FROM orders", &[]).await.map_err(|e| session.why().diagnose(e))?;
/// # let _: i64 = row.get(0);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Pool {
    shared: Arc<Shared>,
}

/// What all handles, lent sessions and tasks of a pool share.
pub(crate) struct Shared {
    connector: Connector,
    recorder: Arc<Recorder>,
    attrs: SessionAttrs,
    /// For the metrics.
    name: String,
    options: PoolOptions,
    state: Mutex<State>,
    /// The keeper has something to do.
    work: Arc<Notify>,
    keeper: Alone,
}

struct State {
    book: book::Pool,
    /// The idle sessions, by the numbers of their places.
    idle: Vec<Option<Box<Held>>>,
    waiters: HashMap<WaiterId, oneshot::Sender<Grant>>,
    /// Came back inside a transaction, or with a request out: the keeper brings them out of it.
    #[expect(clippy::vec_box, reason = "they are boxed before and after")]
    unsettled: Vec<Box<Held>>,
    /// Sessions that are gone and whose places are kept.
    kept: Vec<kept::KeptPlace>,
    rng: StdRng,
    stats: PoolStats,
    /// Why the last session could not be opened, for callers whose patience ends.
    last_failure: Option<Error>,
    closed: bool,
    /// Told when the last session has gone.
    empty: Arc<Notify>,
}

/// A session and its place.
pub(crate) struct Held {
    session: Session,
    slot: SlotId,
    /// It was used: what its last caller dropped may still be in the driver's queue, until the driver's turn after this
    /// mark is over.
    mark: Option<u64>,
    /// Its caller took the session's own settings away (RESET ALL, DISCARD ALL).
    bare: bool,
    /// When it was lent.
    since: Moment,
}

/// What a waiter gets.
enum Grant {
    /// And whether a ping must prove it first.
    Session(Box<Held>, bool),
    Failed(Error),
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.recorder.pool(&self.name, book::Counts::default());
        self.work.notify_one();
    }
}

impl Pool {
    /// From a connection string, with a connector of its own. Opens nothing until the first [`Self::acquire`]. A string
    /// with several hosts and no `target_session_attrs` means read-write here.
    ///
    /// # Errors
    /// [`Class::Permanent`], naming the option and the remedy.
    pub fn connect(conninfo: &str) -> Result<Self, Error> {
        Ok(Connector::builder(conninfo).config(ConfigBuilder::for_work).build()?.pool())
    }

    pub(crate) fn new(connector: Connector, options: PoolOptions, seed: u64) -> Result<Self, Error> {
        let rules = options.rules()?;
        let attrs = options.attrs.unwrap_or_else(|| connector.config().work_attrs());
        let state = State {
            idle: (0..rules.max).map(|_| None).collect(),
            book: book::Pool::new(rules),
            waiters: HashMap::new(),
            unsettled: Vec::new(),
            kept: Vec::new(),
            rng: StdRng::seed_from_u64(seed),
            stats: PoolStats { max_conns: options.max, ..PoolStats::default() },
            last_failure: None,
            closed: false,
            empty: Arc::default(),
        };
        let recorder = Arc::clone(&connector.monitor().recorder);
        let shared = Shared {
            name: recorder.pool_name(attrs.keyword()),
            recorder,
            connector,
            attrs,
            options,
            state: Mutex::new(state),
            work: Arc::default(),
            keeper: Alone::default(),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// The connector behind it.
    pub fn connector(&self) -> &Connector {
        &self.shared.connector
    }

    /// A session on the wanted host, within `pool_acquire_timeout`. Dropping the future leaves nothing behind.
    ///
    /// # Errors
    /// [`Code::Overloaded`] at once, where it could not be had in time; [`Code::DeadlinePassed`]; what is permanently
    /// wrong with the connection (a wrong password, say); [`Code::Closed`].
    pub async fn acquire(&self) -> Result<PoolSession, Error> {
        let length = self.shared.options.acquire_timeout;
        self.acquire_until(Limit { length, whose: "pool_acquire_timeout" }).await
    }

    /// [`Self::acquire`] with a patience of the caller's.
    ///
    /// # Errors
    /// As of [`Self::acquire`]: [`Code::Overloaded`], [`Code::DeadlinePassed`] after `patience`, what is permanently wrong,
    /// [`Code::Closed`].
    pub async fn acquire_within(&self, patience: Duration) -> Result<PoolSession, Error> {
        self.acquire_until(Limit::of_call(patience)).await
    }

    async fn acquire_until(&self, limit: Limit) -> Result<PoolSession, Error> {
        let shared = &self.shared;
        let now = clock::now();
        let deadline = Deadline::at(now + limit.length);
        if let Some((held, prove)) = shared.take(now)? {
            let session = PoolSession::new(Arc::clone(shared), held);
            if let Some(session) = session.checked(prove, deadline).await {
                shared.recorder.acquired_at_once();
                return Ok(session);
            }
            return self.wait(true, limit, deadline).await;
        }
        self.wait(false, limit, deadline).await
    }

    async fn wait(&self, again: bool, limit: Limit, deadline: Deadline) -> Result<PoolSession, Error> {
        let shared = &self.shared;
        shared.recorder.waited(shared.attrs, self.wait_for_one(again, limit, deadline)).await
    }

    /// `again`: a session was given and failed; the caller keeps its place at the head.
    async fn wait_for_one(
        &self,
        mut again: bool,
        limit: Limit,
        deadline: Deadline,
    ) -> Result<PoolSession, Error> {
        let shared = &self.shared;
        // Here and not on the way of a caller who finds an idle session: there has been a keeper, then.
        keeper::start(shared);
        loop {
            let now = clock::now();
            if deadline.passed(now) {
                return Err(shared.too_late(limit));
            }
            let (granted, prove) =
                match shared.queue_up(again, deadline.left(now).unwrap_or(limit.length), now)? {
                    Place::Session(held, prove) => (held, prove),
                    Place::Queue(mut waiting) => {
                        keeper::open_wanted(shared);
                        match deadline.bound(waiting.granted()).await {
                            Err(clock::Elapsed) => return Err(shared.too_late(limit)),
                            Ok(granted) => granted?,
                        }
                    }
                };
            let session = PoolSession::new(Arc::clone(shared), granted);
            if let Some(session) = session.checked(prove, deadline).await {
                return Ok(session);
            }
            again = true;
        }
    }

    /// What it has now and did since its start.
    pub fn stats(&self) -> PoolStats {
        let state = lock(&self.shared.state);
        PoolStats { now: state.book.counts(), ..state.stats }
    }

    /// Refuses new callers, closes what is idle, and waits for lent sessions to come back, at most that long; those that
    /// don't are closed when they do. Whether all were back.
    pub async fn close(&self, patience: Duration) -> bool {
        let deadline = Deadline::after(patience);
        let empty = self.shared.shut();
        loop {
            let all_back = empty.notified();
            if lock(&self.shared.state).book.size() == 0 {
                return true;
            }
            if deadline.bound(all_back).await.is_err() {
                return false;
            }
        }
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("attrs", &self.shared.attrs).field("stats", &self.stats()).finish()
    }
}

impl Shared {
    /// An idle session for a caller, and whether a ping must prove it.
    fn take(&self, now: Moment) -> Result<Option<(Box<Held>, bool)>, Error> {
        let mut state = lock(&self.state);
        if state.closed {
            return Err(closed());
        }
        Ok(state.lend(now))
    }

    /// A place in the queue; or a session that came back since the caller looked, for nobody may wait beside an idle one.
    fn queue_up(self: &Arc<Self>, again: bool, patience: Duration, now: Moment) -> Result<Place, Error> {
        let searching = self.connector.searching(self.attrs);
        let mut state = lock(&self.state);
        if state.closed {
            return Err(closed());
        }
        if let Some((held, prove)) = state.lend(now) {
            return Ok(Place::Session(held, prove));
        }
        let waiter = match state.book.wait(again, patience, searching) {
            Ok(waiter) => waiter,
            Err(refused) => {
                state.stats.shed += 1;
                self.recorder.shed();
                return Err(overloaded(refused));
            }
        };
        state.stats.waited += u64::from(!again);
        let (sender, granted) = oneshot::channel();
        state.waiters.insert(waiter, sender);
        Ok(Place::Queue(Waiting { shared: Arc::clone(self), waiter, granted }))
    }

    /// A caller is done with a session. `used`: it may have asked something of it.
    fn give_back(&self, mut held: Box<Held>, used: bool) {
        let member = held.session.member();
        let usable = held.session.is_usable();
        if usable && used {
            // What its caller declared was of that caller's work.
            member.declare_read_only(false);
            held.bare |= member.tap.take_reset();
            // From here on the driver tells of what it still finds.
            member.rest();
            if held.bare || member.tap.inside() {
                return self.settle(held);
            }
            held.mark = Some(member.mark(held.session.asks_alone()));
        }
        let now = clock::now();
        let back =
            if usable { Back::Good(held.session.member().tap.last_in()) } else { self.ended(&held, now) };
        self.recorder.used(now - held.since);
        let mut state = lock(&self.state);
        let back = self.keep(&mut state, &held, back);
        let next = state.book.back(held.slot, back, now);
        self.place(state, held, next);
    }

    fn settle(&self, held: Box<Held>) {
        let mut state = lock(&self.state);
        state.book.settle();
        state.unsettled.push(held);
        drop(state);
        self.work.notify_one();
    }

    /// Carries out what the book says of a session that is free.
    fn place(&self, mut state: MutexGuard<'_, State>, mut held: Box<Held>, mut next: Next) {
        if state.closed && next == Next::Keep {
            state.book.drain();
            next = Next::Close;
        }
        loop {
            match next {
                Next::Keep => {
                    let slot = held.slot;
                    state.idle[slot.0] = Some(held);
                    return;
                }
                Next::To { waiter, prove } => {
                    let sender = state.waiters.remove(&waiter);
                    state.stats.acquired += 1;
                    held.since = clock::now();
                    match sender.map_or(Err(None), |s| {
                        s.send(Grant::Session(held, prove)).map_err(|grant| match grant {
                            Grant::Session(held, _) => Some(held),
                            Grant::Failed(_) => None,
                        })
                    }) {
                        Ok(()) => return,
                        // Waiters leave under this lock, so this doesn't happen; if it did, the next one gets it.
                        Err(Some(back)) => {
                            held = back;
                            let alive = held.session.member().tap.last_in();
                            next = state.book.back(held.slot, Back::Good(alive), clock::now());
                        }
                        Err(None) => return,
                    }
                }
                Next::Close => {
                    state.stats.closed += 1;
                    if state.closed {
                        state.empty.notify_waiters();
                    }
                    drop(state);
                    // Its goodbye needs no lock, and somebody may want another one.
                    drop(held);
                    self.work.notify_one();
                    return;
                }
            }
        }
    }

    /// Closes the pool. The bell rings whenever a session has gone.
    fn shut(&self) -> Arc<Notify> {
        let mut state = lock(&self.state);
        state.closed = true;
        let gone: Vec<_> = state.book.drain().into_iter().map(|s| state.idle[s.0].take()).collect();
        self.tidy(&mut state);
        state.stats.closed += gone.len() as u64;
        for waiter in state.book.turn_away() {
            if let Some(sender) = state.waiters.remove(&waiter) {
                // A waiter that has just left needs no answer.
                let _ = sender.send(Grant::Failed(closed()));
            }
        }
        let empty = Arc::clone(&state.empty);
        drop(state);
        drop(gone);
        self.work.notify_one();
        empty
    }

    fn too_late(&self, limit: Limit) -> Error {
        let mut state = lock(&self.state);
        state.stats.timed_out += 1;
        let counts = state.book.counts();
        let mut message = format!(
            "no session within {limit}: {} in use, {} being opened, {} waiting, pool_max_conns={}",
            counts.lent, counts.opening, counts.waiting, self.options.max
        );
        if counts.kept > 0 {
            let _ = write!(
                message,
                ", {} places of commits that may wait for a synchronous standby",
                counts.kept
            );
        }
        let mut attempts = Vec::new();
        if let Some(e) = &state.last_failure {
            message.push_str("; the last one could not be opened: ");
            message.push_str(e.message());
            attempts = e.attempts().to_vec();
        }
        let e = Error::new(Code::DeadlinePassed, Class::Transient, message)
            .at_stage(Stage::Queue)
            .with_attempts(attempts);
        self.connector.advised(e, self.attrs)
    }
}

impl State {
    /// One that never had its turn to log in says nothing of the hosts: what the one before it met is the cause.
    fn note_failure(&mut self, e: Error) {
        let began =
            e.code() != Code::Overloaded && !(e.code() == Code::DeadlinePassed && e.attempts().is_empty());
        if began || self.last_failure.is_none() {
            self.last_failure = Some(e);
        }
    }

    /// An idle session for a caller, and whether a ping must prove it.
    fn lend(&mut self, now: Moment) -> Option<(Box<Held>, bool)> {
        let lend = self.book.acquire(now)?;
        self.stats.acquired += 1;
        let mut held = self.idle[lend.slot.0].take()?;
        held.since = now;
        Some((held, lend.prove))
    }
}

/// What a caller gets who has just come.
enum Place {
    Session(Box<Held>, bool),
    Queue(Waiting),
}

/// A caller in the queue. Dropped, it leaves; what was given to it meanwhile goes back.
struct Waiting {
    shared: Arc<Shared>,
    waiter: WaiterId,
    granted: oneshot::Receiver<Grant>,
}

impl Waiting {
    async fn granted(&mut self) -> Result<(Box<Held>, bool), Error> {
        match (&mut self.granted).await {
            Ok(Grant::Session(held, prove)) => Ok((held, prove)),
            Ok(Grant::Failed(e)) => Err(e),
            // The pool itself is gone.
            Err(_) => Err(closed()),
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut state = lock(&self.shared.state);
        state.book.leave(self.waiter);
        state.waiters.remove(&self.waiter);
        drop(state);
        if let Ok(Grant::Session(held, _)) = self.granted.try_recv() {
            self.shared.give_back(held, false);
        }
    }
}

fn closed() -> Error {
    Error::new(Code::Closed, Class::Permanent, "the pool is closed").at_stage(Stage::Queue)
}

fn overloaded(refused: Shed) -> Error {
    let (message, retry_after) = match refused {
        Shed::Full(retry_after) => (
            "too many callers wait for a session already: send fewer, or raise pool_max_conns".to_owned(),
            retry_after,
        ),
        Shed::TooSlow { predicted, retry_after } => {
            let wait = predicted.as_secs_f64();
            (
                format!("a session could be had in about {wait:.1} s, later than the caller would wait"),
                retry_after,
            )
        }
        Shed::Standby(retry_after) => (
            "commits that callers gave up wait for a synchronous standby, and fill the pool: new ones would wait as \
             well (see synchronous_standby_names)"
                .to_owned(),
            retry_after,
        ),
    };
    Error::new(Code::Overloaded, Class::Transient, message)
        .at_stage(Stage::Queue)
        .with_retry_after(retry_after)
}
