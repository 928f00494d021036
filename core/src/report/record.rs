//! What the rest of the library tells: each method is called once for what its name says.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tracing::{Instrument, field};

use super::book::{BlockedCall, Book, By, HostBook};
use super::compose::ms;
use super::held::{Attempt, Waiting};
use super::words::{eviction, kind_name, label, says};
use super::{SessionsSeen, export};
use crate::clock::{self, Moment};
use crate::config::SessionAttrs;
use crate::decide::attribute::{Fact, Outage, Says, of_failover};
use crate::decide::outcome::Outcome;
use crate::decide::pool::Counts;
use crate::decide::topology::{Input, TopologyEvent};
use crate::error::{Error, Stage};
use crate::event::{Event, EventKind};
use crate::host::HostId;
use crate::lock;
use crate::session::member::{EndCause, Member};
use crate::tap::Done;

/// Between two looks at whether an outage is over.
const TICK: Duration = Duration::from_millis(100);
/// Outages that wait to be told as events.
const UNTOLD: usize = 15;
/// Between two counts of a host's sessions in quiet.
const COUNT: Duration = Duration::from_secs(10);
/// The same for a new primary's first [`COUNT`]: that is when a fleet reconnects.
const COUNT_OFTEN: Duration = Duration::from_secs(1);
/// The same for one that refused.
const REFUSED: Duration = Duration::from_secs(600);
/// The same while calls are blocked there: are they commits that wait for a standby?
const COUNT_BLOCKED: Duration = Duration::from_millis(500);

/// Records what a connector does and meets.
pub(crate) struct Recorder {
    pub(super) born: Moment,
    /// An outage is open, or may be: each success is of interest.
    pub(super) armed: Arc<AtomicBool>,
    /// Acquisitions that took no time.
    pub(super) at_once: AtomicU64,
    next_wait: AtomicU64,
    book: Mutex<Book>,
}

impl Recorder {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            born: clock::now(),
            armed: Arc::default(),
            at_once: AtomicU64::new(0),
            next_wait: AtomicU64::new(0),
            book: Mutex::new(Book::new()),
        })
    }

    pub(super) fn book(&self) -> MutexGuard<'_, Book> {
        lock(&self.book)
    }

    pub(super) fn take(&self, book: &mut Book, fact: Fact, now: Moment) {
        book.attribution.fact(fact, now);
        self.armed.store(book.attribution.is_watching(), Ordering::Relaxed);
    }

    // What the topology is told, and says.

    /// An input of the topology. `names`: the configured hosts', and whether each is looked up.
    pub(crate) fn input(&self, input: &Input, names: &[(Arc<str>, bool)], now: Moment) {
        let fact = match input {
            Input::AddressKnown { host, spec, address } => {
                let mut book = self.book();
                if !book.hosts.contains_key(host) {
                    let label = label(names.get(*spec).map(|(name, _)| name), address);
                    book.hosts.insert(*host, HostBook::new(label, now + COUNT));
                    let named = names.get(*spec).is_none_or(|(_, looked_up)| *looked_up);
                    self.take(&mut book, Fact::Known { host: *host, named }, now);
                }
                return;
            }
            Input::ByteSeen { host, at } => Fact::Heard { host: *host, when: *at },
            Input::ProbeAnswered { host, .. } | Input::SessionOpened { host, .. } => {
                Fact::Heard { host: *host, when: now }
            }
            Input::ProbeConnected { host, rtt, .. } => {
                self.dialled(*host, By::Monitor, "connected", *rtt);
                Fact::Heard { host: *host, when: now }
            }
            Input::ProbeConnectFailed { host, kind } => {
                return self.dialled(*host, By::Monitor, kind_name(*kind), Duration::ZERO);
            }
            Input::CallBlocked { host, member, call, since } => {
                let mut book = self.book();
                let blocked = BlockedCall { host: *host, number: *call, since: *since };
                book.blocked.insert(member.0, blocked);
                let fact = Fact::Blocked { member: member.0, call: *call, host: *host, since: *since };
                return self.take(&mut book, fact, now);
            }
            _ => return,
        };
        self.take(&mut self.book(), fact, now);
    }

    /// The monitor looks for the primary, or no more.
    pub(crate) fn search(&self, running: bool, now: Moment) {
        self.take(&mut self.book(), Fact::Search { running }, now);
    }

    /// Something observable.
    pub(crate) fn event(&self, event: &Event) {
        let mut book = self.book();
        let now = event.at;
        match &event.kind {
            EventKind::Topology(TopologyEvent::StateChanged { host, to, .. }) => {
                if let Some(h) = book.hosts.get_mut(host) {
                    h.states.push((now, *to));
                }
                if let Some(says) = says(*to) {
                    self.take(&mut book, Fact::Says { host: *host, says }, now);
                }
            }
            EventKind::Topology(TopologyEvent::NewPrimary { host, .. }) => {
                // Its state may tell something else (all its slots are taken), and it takes writes all the same.
                self.take(&mut book, Fact::Says { host: *host, says: Says::Accepts }, now);
                if let Some(h) = book.hosts.get_mut(host) {
                    h.count_often_until = now + COUNT;
                    h.count_due = now + COUNT_OFTEN;
                }
            }
            _ => {}
        }
        book.events.push((now, event.name().to_owned(), event.text()));
    }

    // Sessions and their calls.

    /// A request succeeded. Only told while [`Self::is_armed`].
    pub(super) fn done(&self, host: HostId, write: bool, now: Moment) {
        let mut book = self.book();
        self.take(&mut book, Fact::Done { host, write }, now);
        // Where no monitor's task keeps time, successes do.
        let line = if now - book.ticked >= TICK { self.tick(&mut book, now) } else { None };
        drop(book);
        say(line);
    }

    /// What each session did since it was asked last, and when its last byte came. They are asked under the lock, so that
    /// nobody who reads the book meanwhile misses what is on its way into it.
    pub(crate) fn drained(&self, sessions: impl Iterator<Item = (HostId, Done, Moment)>) {
        let mut book = self.book();
        for (host, done, now) in sessions.filter(|(_, done, _)| !done.is_empty()) {
            book.calls.writes += done.writes;
            book.calls.others += done.others;
            if done.writes > 0 && !book.attribution.is_watching() {
                // That this service writes must be known before its writes are waited for.
                self.take(&mut book, Fact::Done { host, write: true }, now);
            }
            let label = book.label(host);
            let work = book.stages.entry(Stage::Work).or_default();
            for (took, count) in done.times() {
                work.record_many(took, count);
                export::operations(&label, took, usize::try_from(count).unwrap_or(0));
            }
        }
    }

    /// The sessions with a call that was told to be blocked.
    pub(crate) fn blocked(&self) -> Vec<(u64, u64, Moment)> {
        self.book().blocked.iter().map(|(m, c)| (*m, c.number, c.since)).collect()
    }

    /// Such a call was answered, or its session has nothing out any more.
    pub(crate) fn answered(&self, member: u64, now: Moment) {
        let mut book = self.book();
        if let Some(call) = book.blocked.remove(&member) {
            blocked_for(&mut book, now - call.since);
            self.take(&mut book, Fact::Answered { member }, now);
        }
    }

    /// A session's driver has ended. `heard`: the last byte from its host on any socket.
    pub(crate) fn ended(&self, m: &Member, heard: Moment) {
        let Some(end) = m.ended() else { return };
        let (at, host, member) = (end.at, m.host, m.id);
        let mut book = self.book();
        let blocked = book.blocked.remove(&member);
        // The server's last words answer nobody.
        let waiting = || m.tap.waiting().map(|w| w.since);
        let since = if m.tap.fatal().is_some() { m.tap.asked_at() } else { waiting() };
        let since = since.unwrap_or_else(|| m.tap.last_out());
        let since = blocked.map_or(since, |b| b.since).min(at);
        if blocked.is_some() {
            blocked_for(&mut book, at - since);
        }
        // A pool's ping is nobody's call: whoever waits for what it proves is seen to wait.
        let busy = m.tap.busy() && !m.is_pinged();
        self.take(&mut book, Fact::Heard { host, when: heard.min(at) }, at);
        let fact = match &end.cause {
            EndCause::Verdict { .. } if busy => Some(Fact::Lost { member, host, since, timed_out: false }),
            EndCause::Lost { timed_out, .. } if busy => {
                Some(Fact::Lost { member, host, since, timed_out: *timed_out })
            }
            EndCause::Server { sqlstate, .. } if busy && of_failover(*sqlstate) => {
                Some(Fact::Lost { member, host, since, timed_out: false })
            }
            EndCause::CallTimedOut => Some(Fact::GivenUp { member, host, since }),
            _ if blocked.is_some() => Some(Fact::Answered { member }),
            _ => None,
        };
        if let Some(fact) = fact {
            self.take(&mut book, fact, at);
        }
        if let Some(cause) = eviction(&end.cause) {
            export::evicted(&book.label(host), &cause);
            book.evictions.add((host, cause));
        }
    }

    // Ways to a session.

    /// A caller begins to wait for a session. Not to be called where one is had at once.
    pub(crate) fn wait(self: &Arc<Self>) -> Waiting {
        let id = self.next_wait.fetch_add(1, Ordering::Relaxed);
        let since = clock::now();
        self.take(&mut self.book(), Fact::WaitBegan { id }, since);
        Waiting::new(self, id, since)
    }

    /// A caller waits for a session of that role by this future: how long, and what came of it. The span is made here and
    /// not where a pool has an idle session: that costs less than a span would.
    pub(crate) async fn waited<T>(
        self: &Arc<Self>,
        attrs: SessionAttrs,
        session: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let span = tracing::info_span!(
            target: "pgfollow",
            "pgfollow.acquire",
            attrs = attrs.keyword(),
            outcome = field::Empty,
            waited_ms = field::Empty
        );
        let waiting = self.wait();
        let mut result = session.instrument(span.clone()).await;
        let waited = waiting.so_far();
        let outcome = match &mut result {
            Ok(_) => {
                self.acquired(waited);
                "acquired"
            }
            Err(e) => {
                self.acquire_failed(e);
                e.code().name()
            }
        };
        span.record("outcome", outcome).record("waited_ms", waited.as_secs_f64() * 1e3);
        result
    }

    /// A caller has a session after waiting for it: from a pool, or from a connect.
    pub(crate) fn acquired(&self, wait: Duration) {
        let mut book = self.book();
        book.acquire.record(wait);
        if !book.attribution.is_watching() {
            book.healthy.record(wait);
            if let Some(mean) = book.healthy.mean() {
                self.take(&mut book, Fact::Healthy { wait: mean }, clock::now());
            }
        }
        export::acquired(wait, 1);
    }

    /// A caller has a session without waiting.
    pub(crate) fn acquired_at_once(&self) {
        self.at_once.fetch_add(1, Ordering::Relaxed);
    }

    /// A caller who waited for a session gets an error instead.
    pub(crate) fn acquire_failed(self: &Arc<Self>, e: &mut Error) {
        if e.code() == crate::error::Code::DeadlinePassed {
            self.book().timeouts += 1;
            export::timeout();
        }
        self.failed(e, None);
    }

    /// A caller was refused at once. [`Self::acquire_failed`] is told too.
    pub(crate) fn shed(&self) {
        self.book().sheds += 1;
        export::shed();
    }

    /// It was asked what became of a transaction: by which mark, and the answer.
    pub(crate) fn asked_outcome(&self, way: &'static str, outcome: Option<Outcome>) {
        let result = match outcome {
            Some(Outcome::Committed) => "committed",
            Some(Outcome::NotCommitted) => "not_committed",
            Some(Outcome::Unknown(_)) | None => "unknown",
        };
        self.book().outcomes.add((way, result));
        export::outcome(way, result);
    }

    /// A session was lent for that long.
    pub(crate) fn used(&self, time: Duration) {
        export::used(time);
    }

    /// A pool's sessions and waiters now.
    pub(crate) fn pool(&self, name: &str, counts: Counts) {
        export::pool(name, counts);
    }

    /// A name for a new pool, by what it wants; the second of a kind gets a number.
    pub(crate) fn pool_name(&self, wants: &'static str) -> String {
        let mut book = self.book();
        let count = book.pools.entry(wants).or_default();
        *count += 1;
        if *count == 1 { wants.to_owned() } else { format!("{wants}-{count}") }
    }

    /// A stage of somebody's way to a session lasted that long.
    pub(crate) fn stage(&self, stage: Stage, took: Duration) {
        self.book().stages.entry(stage).or_default().record(took);
        export::stage(stage, took);
    }

    /// A caller's attempt at an address begins.
    pub(crate) fn attempt(self: &Arc<Self>, host: HostId, by: By) -> Attempt {
        if by == By::Caller {
            self.take(&mut self.book(), Fact::Attempt { host, begins: true }, clock::now());
        }
        Attempt::new(self, host, by)
    }

    pub(super) fn dialled(&self, host: HostId, by: By, result: &'static str, took: Duration) {
        let mut book = self.book();
        book.dials.add((host, by, result));
        export::dialled(&book.label(host), by, result, took);
    }

    // The database's own view.

    /// Whether a host's sessions should be counted now. The next count is due later then.
    pub(crate) fn count_due(&self, host: HostId, now: Moment) -> bool {
        let mut book = self.book();
        let blocked = book.held_up(host);
        let Some(h) = book.hosts.get_mut(&host) else { return false };
        let blocked = blocked || h.sync_wait;
        let last = h.sessions.map_or(Moment::ZERO, |(at, _)| at);
        if now < h.no_count_before || now < h.count_due && !(blocked && now - last >= COUNT_BLOCKED) {
            return false;
        }
        let gap = if now < h.count_often_until { COUNT_OFTEN } else { COUNT };
        h.count_due = now + if blocked { COUNT_BLOCKED } else { gap };
        true
    }

    /// A host refuses to count its sessions: asking again soon would only fill its log.
    pub(crate) fn count_refused(&self, host: HostId, now: Moment) {
        if let Some(h) = self.book().hosts.get_mut(&host) {
            h.no_count_before = now + REFUSED;
        }
    }

    /// A host's sessions were counted.
    pub(crate) fn counted(&self, host: HostId, seen: SessionsSeen, now: Moment) {
        let mut book = self.book();
        // Commits that wait no longer than a network's round trip are no sign of anything.
        let waiting = seen.waiting_for_standby > 0 && book.held_up(host);
        let Some(h) = book.hosts.get_mut(&host) else { return };
        h.sessions = Some((now, seen));
        export::sessions(&book.label(host), seen.application, seen.monitors);
        self.sync_wait(&mut book, host, waiting, None, now);
    }

    /// A commit was given up and still waits for a standby, so that its place in a pool is kept.
    pub(crate) fn kept(&self, m: &Member, now: Moment) {
        let mut book = self.book();
        if book.kept.insert(m.id, m.host).is_none() {
            let since = m.tap.waiting().map(|w| w.since);
            self.sync_wait(&mut book, m.host, true, since, now);
        }
    }

    /// That place isn't kept any more.
    pub(crate) fn let_go(&self, member: u64) {
        self.book().kept.remove(&member);
    }

    fn sync_wait(&self, book: &mut Book, host: HostId, waiting: bool, since: Option<Moment>, now: Moment) {
        let Some(h) = book.hosts.get_mut(&host) else { return };
        let before = std::mem::replace(&mut h.sync_wait, waiting);
        if waiting || before {
            self.take(book, Fact::SyncWait { host, waiting, since }, now);
        }
    }

    // Time.

    /// The passing of time: gives the outages that are over, once.
    pub(crate) fn timer(&self, now: Moment) -> Vec<Outage> {
        let at_once = self.at_once.load(Ordering::Relaxed);
        let mut book = self.book();
        let fresh = at_once - book.told_at_once;
        if fresh > 0 {
            book.told_at_once = at_once;
            export::acquired(Duration::ZERO, usize::try_from(fresh).unwrap_or(0));
        }
        let line = self.tick(&mut book, now);
        let untold = std::mem::take(&mut book.untold);
        drop(book);
        say(line);
        untold
    }

    /// Gives the line to be said of an outage that is over, once the lock is free.
    fn tick(&self, book: &mut Book, now: Moment) -> Option<String> {
        book.ticked = now;
        let outage = book.attribution.timer(now);
        self.armed.store(book.attribution.is_watching(), Ordering::Relaxed);
        let outage = outage?;
        export::outage(&outage);
        let (since, label) = (|m| ms(m - self.born), |h| book.label(h).to_string());
        let line = super::text::outage_line(&super::compose::outage(&outage, &since, &label));
        book.outages.push(outage.clone());
        // Without a monitor's task only a report asks for them.
        book.untold.truncate(UNTOLD);
        book.untold.push(outage);
        Some(line)
    }
}

fn say(outage: Option<String>) {
    if let Some(line) = outage {
        tracing::info!(target: "pgfollow", "{line}");
    }
}

fn blocked_for(book: &mut Book, d: Duration) {
    book.stages.entry(Stage::Blocked).or_default().record(d);
    export::stage(Stage::Blocked, d);
}

impl std::fmt::Debug for Recorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recorder").finish_non_exhaustive()
    }
}
