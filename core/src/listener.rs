//! A LISTEN that follows the primary, across failovers.
//!
//! One task holds one session on a host that takes writes, listens there, and asks it now and then whether it still
//! lives ([`crate::decide::listener`]). When the session ends (by evidence of the monitor, by its heartbeat, by the
//! server) the task connects anew, and says with one [`Gap`] that notifications may have been missed.

mod buffer;
mod gap;

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::Stream;
use futures_util::future::OptionFuture;
use futures_util::task::AtomicWaker;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use buffer::Buffer;
pub use gap::{Gap, GapCause};

use crate::clock::{self, Moment};
use crate::config::SessionAttrs;
use crate::connect::Limit;
use crate::connector::Connector;
use crate::decide::accept::{Accept, Role, accept};
use crate::decide::listener::{Backoff, Beat, Pulse};
use crate::decide::outcome::is_lasting;
use crate::error::{Class, Code, Error};
use crate::lock;
use crate::role;
use crate::session::member::Member;
use crate::session::{EndCause, Message, Session};

/// What is kept for a slow reader. A payload has 8,000 bytes at most (PostgreSQL manual, NOTIFY).
const BUFFER: usize = 4 << 20;
/// One search for a primary; when it leads nowhere, the next follows.
const SEARCH: Duration = Duration::from_secs(30);
/// A server that doesn't answer LISTEN within this is left.
const LISTEN: Duration = Duration::from_secs(10);
/// The longest name of a channel (NAMEDATALEN − 1): the server cuts longer ones silently.
const NAME: usize = 63;

/// What a listener gives.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Heard {
    /// Somebody notified.
    Notification {
        /// The channel.
        channel: String,
        /// The payload; empty if there was none.
        payload: String,
        /// The backend that sent it.
        process_id: i32,
    },
    /// Some notifications may have been missed here.
    Gap(Gap),
}

/// Notifications of some channels, from whichever host is primary: a stream that goes on through failovers.
///
/// It gives an error only when going on is useless (a wrong password, an unknown database, a LISTEN that is refused), and
/// then ends. Dropping it closes its session. Needs a tokio runtime.
///
/// ```no_run
/// use pgfollow::{Connector, Heard};
///
/// async fn watch_orders(connector: &Connector) -> Result<(), pgfollow::Error> {
///     let mut listener = connector.listener(["orders"])?;
///     listener.channels().listening().await;
///     // Read the table here: from now on, every change is either told or lies in a gap.
///     while let Some(heard) = listener.next().await {
///         match heard? {
///             Heard::Notification { payload, .. } => println!("order {payload} changed"),
///             Heard::Gap(gap) => println!("read the table again: {:?}", gap.cause),
///             _ => {}
///         }
///     }
///     Ok(())
/// }
/// ```
pub struct Listener {
    outbox: Arc<Outbox>,
    channels: Channels,
    task: AbortHandle,
}

/// The channels of a [`Listener`]. Cheap to clone; lives on without effect when the listener is gone.
#[derive(Clone)]
pub struct Channels {
    wanted: Arc<watch::Sender<Wanted>>,
    applied: watch::Receiver<Option<u64>>,
}

#[derive(Clone, Default)]
struct Wanted {
    /// Counts the changes.
    revision: u64,
    names: BTreeSet<String>,
}

impl Listener {
    pub(crate) fn start(
        connector: Connector,
        channels: impl IntoIterator<Item = String>,
    ) -> Result<Self, Error> {
        let names: BTreeSet<String> = channels.into_iter().collect();
        for name in &names {
            check(name)?;
        }
        let (wanted, changes) = watch::channel(Wanted { revision: 0, names });
        let (apply, applied) = watch::channel(None);
        let outbox = Arc::new(Outbox {
            inner: Mutex::new(Inner { buffer: Buffer::new(BUFFER), lost: None, error: None, closed: false }),
            reader: AtomicWaker::new(),
        });
        let out = Closing(Arc::clone(&outbox));
        let task = Task { connector, wanted: changes, apply, out };
        let task = tokio::spawn(task.run()).abort_handle();
        Ok(Self { outbox, channels: Channels { wanted: Arc::new(wanted), applied }, task })
    }

    /// The next notification or gap; `None` once it has ended. Safe to drop and call again.
    ///
    /// # Errors
    /// Permanent ones; the next call gives `None`.
    pub async fn next(&mut self) -> Option<Result<Heard, Error>> {
        poll_fn(|cx| self.outbox.poll(cx)).await
    }

    /// The channels, to change them while the listener runs.
    pub fn channels(&self) -> Channels {
        self.channels.clone()
    }
}

impl Stream for Listener {
    type Item = Result<Heard, Error>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.outbox.poll(cx)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Channels {
    /// Listens to one more; takes effect on the running session, [`Self::listening`] tells when. The name is exact:
    /// `NOTIFY Orders` without quotes goes to `orders`.
    ///
    /// # Errors
    /// A name that PostgreSQL can't have: empty, over 63 bytes, or with a NUL.
    pub fn add(&self, name: impl Into<String>) -> Result<(), Error> {
        let name = name.into();
        check(&name)?;
        self.wanted.send_if_modified(|w| {
            let new = w.names.insert(name);
            w.revision += u64::from(new);
            new
        });
        Ok(())
    }

    /// Listens to one less. What came before may still be in the stream.
    pub fn remove(&self, name: &str) {
        self.wanted.send_if_modified(|w| {
            let known = w.names.remove(name);
            w.revision += u64::from(known);
            known
        });
    }

    /// Waits until all of them are listened to (as long as it takes to find a primary). False when the listener has
    /// ended.
    pub async fn listening(&self) -> bool {
        let wanted = self.wanted.borrow().revision;
        self.applied.clone().wait_for(|applied| *applied >= Some(wanted)).await.is_ok()
    }

    /// Whether all of them are listened to now, as far as is known.
    pub fn is_listening(&self) -> bool {
        *self.applied.borrow() >= Some(self.wanted.borrow().revision) && self.applied.has_changed().is_ok()
    }
}

fn check(name: &str) -> Result<(), Error> {
    let wrong = match name {
        "" => "is empty",
        _ if name.len() > NAME => "has more than 63 bytes",
        _ if name.contains('\0') => "contains a NUL",
        _ => return Ok(()),
    };
    let message = format!("the name of the channel {name:?} {wrong}");
    Err(Error::new(Code::InvalidOption, Class::Permanent, message))
}

/// What the task leaves for the reader.
struct Outbox {
    inner: Mutex<Inner>,
    reader: AtomicWaker,
}

struct Inner {
    buffer: Buffer,
    /// Since when nothing is heard, and why.
    lost: Option<(Moment, GapCause)>,
    error: Option<Error>,
    closed: bool,
}

impl Outbox {
    /// The session said something.
    fn take(&self, message: Message) {
        let Message::Notification { channel, payload, process_id } = message else { return };
        self.heard_again();
        let heard = Heard::Notification { channel, payload, process_id };
        lock(&self.inner).buffer.push(heard, clock::now());
        self.reader.wake();
    }

    /// A session that listened has ended.
    fn lost(&self, from: Moment, cause: GapCause) {
        lock(&self.inner).lost.get_or_insert((from, cause));
    }

    /// The next session listens: its first notification can come before the answer to LISTEN is seen.
    fn heard_again(&self) {
        let mut inner = lock(&self.inner);
        let Some((from, cause)) = inner.lost.take() else { return };
        let to = clock::now();
        inner.buffer.push(Heard::Gap(Gap { from, to, missed: 0, cause }), to);
        drop(inner);
        self.reader.wake();
    }

    fn close(&self, error: Error) {
        let mut inner = lock(&self.inner);
        if !std::mem::replace(&mut inner.closed, true) {
            inner.error = Some(error);
        }
        drop(inner);
        self.reader.wake();
    }

    fn poll(&self, cx: &Context<'_>) -> Poll<Option<Result<Heard, Error>>> {
        // Before the look, so that what comes in between rings.
        self.reader.register(cx.waker());
        let mut inner = lock(&self.inner);
        match inner.buffer.pop() {
            Some(heard) => Poll::Ready(Some(Ok(heard))),
            None if inner.closed => Poll::Ready(inner.error.take().map(Err)),
            None => Poll::Pending,
        }
    }
}

/// The task's end of the outbox: whatever ends the task, the reader hears of it.
struct Closing(Arc<Outbox>);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.close(Error::new(Code::Internal, Class::Transient, "the listener's task ended"));
    }
}

struct Task {
    connector: Connector,
    wanted: watch::Receiver<Wanted>,
    /// The revision that the session listens to; `None` without one.
    apply: watch::Sender<Option<u64>>,
    out: Closing,
}

impl Task {
    async fn run(mut self) {
        let mut backoff = Backoff::default();
        loop {
            let mut failed =
                |e: &Error| tracing::debug!(target: "pgfollow", error = %e, "listener: no session");
            let searched = self.connector.connect_told(SessionAttrs::ReadWrite, SEARCH, &mut failed).await;
            let began = clock::now();
            let heard = match searched {
                Ok(session) => self.on(&session).await,
                Err(unopened) => Err(unopened.told(Limit::of_call(SEARCH))),
            };
            self.apply.send_replace(None);
            let listened = match heard {
                Ok(()) => clock::now() - began,
                Err(e) if e.class() == Class::Permanent => return self.out.0.close(e),
                // A search that took its time; the next one goes on where it ended.
                Err(e) if e.code() == Code::DeadlinePassed => continue,
                Err(_) => Duration::ZERO,
            };
            let pause = self.connector.jittered(backoff.pause(listened));
            clock::sleep_until(clock::now() + pause).await;
        }
    }

    /// Listens on one session until it ends. An error: it never did, or is refused a channel.
    async fn on(&mut self, session: &Session) -> Result<(), Error> {
        let outbox = Arc::clone(&self.out.0);
        session.divert(Box::new(move |message| outbox.take(message)));
        let mut listened = BTreeSet::new();
        let heard = self.hear(session, &mut listened).await;
        let member = session.member();
        if heard.is_err() {
            leave(member, "the server didn't do what a change of the channels asked".to_owned());
        }
        if let Some(end) = member.ended()
            && !listened.is_empty()
        {
            let host = member.candidate.to_string();
            tracing::info!(target: "pgfollow", %host, cause = %end.cause, "a listener lost its session");
            let cause = GapCause::SessionEnded { host, cause: end.cause.clone() };
            self.out.0.lost(member.tap.last_in(), cause);
        }
        heard
    }

    /// `listened`: the channels that the session listens to.
    async fn hear(&mut self, session: &Session, listened: &mut BTreeSet<String>) -> Result<(), Error> {
        let member = session.member();
        let monitor = Arc::clone(self.connector.monitor());
        let mut changes = monitor.changes();
        let mut pulse = Pulse::new(clock::now());
        let mut asking = OptionFuture::default();
        self.follow(session, listened).await?;
        loop {
            // What the topology learned while a question was out ends no session by itself.
            if member.retired() || member.generation() < monitor.generation(member.host) {
                leave(member, format!("host {} is no longer what it was", member.candidate));
            }
            let next = match pulse.look(member.tap.last_in(), member.doubted(), clock::now()) {
                Beat::Wait(until) => until,
                Beat::Ask => {
                    asking = Some(Box::pin(session.simple_query(question(member)))).into();
                    continue;
                }
                Beat::Dead => {
                    leave(
                        member,
                        format!("host {} didn't answer the listener's heartbeat", member.candidate),
                    );
                    Moment::NEVER
                }
            };
            tokio::select! {
                biased;
                // Notices of its set-up may still be in there.
                message = session.message() => if message.is_none() {
                    return Ok(());
                },
                Some(answer) = &mut asking => {
                    asking = None.into();
                    pulse.answered(clock::now());
                    member.proved();
                    // An error is the session's end, or an answer like any other.
                    let asked = answer.ok().and_then(|a| role::question_answer(&a));
                    let now = Role { transaction_read_only: asked, ..told(member) };
                    if let Accept::Refuse { seen } = accept(now, SessionAttrs::ReadWrite) {
                        leave(member, format!("host {} is {seen} now", member.candidate));
                    }
                }
                // The listener is being dropped: so is this task, at once.
                Ok(()) = self.wanted.changed() => self.follow(session, listened).await?,
                Ok(()) = changes.changed() => {}
                () = clock::sleep_until(next) => {}
            }
        }
    }

    /// Makes the session listen to what is wanted.
    async fn follow(&mut self, session: &Session, listened: &mut BTreeSet<String>) -> Result<(), Error> {
        let wanted = self.wanted.borrow_and_update().clone();
        let more = wanted.names.difference(listened).map(|name| format!("LISTEN {}", quoted(name)));
        let less = listened.difference(&wanted.names).map(|name| format!("UNLISTEN {}", quoted(name)));
        let sql = more.chain(less).collect::<Vec<_>>().join("; ");
        if !sql.is_empty() {
            let sent = session.within(LISTEN, session.batch_execute(&sql)).await;
            if let Err(e) = sent {
                // Whatever a lost session's class is, or that of a cancel: LISTEN can be sent again.
                let over = session.member().ended().is_some() || !e.sqlstate().is_some_and(is_lasting);
                return Err(if over { e.with_class(Class::Transient) } else { e });
            }
        }
        *listened = wanted.names;
        // First, so that whoever reads of the gap's end finds that it listens.
        self.apply.send_replace(Some(wanted.revision));
        self.out.0.heard_again();
        Ok(())
    }
}

/// The role as the server reports it by itself, with every answer (PostgreSQL 14 and later).
fn told(member: &Member) -> Role {
    Role {
        in_hot_standby: member.tap.flag("in_hot_standby"),
        default_read_only: member.tap.flag("default_transaction_read_only"),
        transaction_read_only: None,
    }
}

/// The heartbeat: an empty query, whose answer brings any change of the role; older servers must be asked for it.
fn question(member: &Member) -> &'static str {
    told(member).question(SessionAttrs::ReadWrite).map_or("", role::question_sql)
}

fn leave(member: &Member, reason: String) {
    member.end(EndCause::Verdict { code: Code::HostGone, reason });
}

/// As an identifier that keeps its case and can't end early.
fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}
