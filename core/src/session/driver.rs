//! The task that owns a session's `Connection`: it moves the bytes, keeps the true error, and lets go of the socket
//! the moment the session's end is decided.
//!
//! Decides nothing. tokio-postgres shows callers a bare "closed"; what really happened (a reset, a time-out, the
//! server's dying words) is what the connection's own future returns, and it is kept in the [`Member`] before any
//! caller can see the end.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::sync::Notify;
use tokio_postgres::{AsyncMessage, Connection, Notification};

use crate::clock;
use crate::error::SqlState;
use crate::handshake::{LoginStream, LoginTls};
use crate::lock;
use crate::monitor::Monitor;
use crate::session::member::{EndCause, Member};
use crate::tap::report::clean;

/// Messages kept for [`crate::Session::message`] while nobody reads them; the oldest go first, and are counted.
const INBOX: usize = 256;

/// An owner who leaves while a request is out (an abandoned call, a connect that ran out of time) gives the server this
/// long to say something more: tokio-postgres would wait for its answer for ever, and a frozen server gives none.
const PARTING: Duration = Duration::from_secs(2);

/// What a server says unasked.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Message {
    /// A notice or warning.
    Notice {
        /// Its SQLSTATE.
        sqlstate: SqlState,
        /// Its severity.
        severity: String,
        /// Its text.
        message: String,
    },
    /// A notification of a channel that the session listens to.
    Notification {
        /// The channel.
        channel: String,
        /// The payload.
        payload: String,
        /// The backend that sent it.
        process_id: i32,
    },
    /// That many older messages were dropped because nobody read them.
    Missed(u64),
}

/// A session's inbox: bounded, and never in the way of the session's own work.
#[derive(Clone)]
pub(crate) struct Messages(Arc<Inbox>);

/// Who takes a session's messages in its driver's place; must not wait.
pub(crate) type Sink = Box<dyn Fn(Message) + Send + Sync>;

struct Inbox {
    state: Mutex<InboxState>,
    arrived: Notify,
    diverted: OnceLock<Sink>,
}

#[derive(Default)]
struct InboxState {
    queue: VecDeque<Message>,
    missed: u64,
    closed: bool,
}

impl Messages {
    fn new() -> Self {
        Self(Arc::new(Inbox { state: Mutex::default(), arrived: Notify::new(), diverted: OnceLock::new() }))
    }

    /// From now on all messages go there, and only the end comes to [`Self::next`].
    pub(crate) fn divert(&self, to: Sink) {
        // Once in a session's life.
        let _ = self.0.diverted.set(to);
    }

    fn push(&self, m: Message) {
        if let Some(sink) = self.0.diverted.get() {
            return sink(m);
        }
        let mut s = lock(&self.0.state);
        if s.queue.len() == INBOX {
            s.queue.pop_front();
            s.missed += 1;
        }
        s.queue.push_back(m);
        drop(s);
        self.0.arrived.notify_one();
    }

    /// Drops what nobody has read.
    pub(super) fn forget(&self) {
        let mut s = lock(&self.0.state);
        s.missed = 0;
        s.queue.clear();
    }

    fn close(&self) {
        lock(&self.0.state).closed = true;
        self.0.arrived.notify_one();
    }

    /// The next message; `None` once the session has ended and all were read.
    pub(crate) async fn next(&self) -> Option<Message> {
        loop {
            {
                let mut s = lock(&self.0.state);
                if s.missed > 0 {
                    return Some(Message::Missed(std::mem::take(&mut s.missed)));
                }
                if let Some(m) = s.queue.pop_front() {
                    // Two that came at once left one permit; whoever else waits is woken in turn.
                    if !s.queue.is_empty() || s.closed {
                        self.0.arrived.notify_one();
                    }
                    return Some(m);
                }
                if s.closed {
                    self.0.arrived.notify_one();
                    return None;
                }
            }
            self.0.arrived.notified().await;
        }
    }
}

/// Starts the driver of a connection. It ends when the client is dropped, the connection fails, or the member's
/// end is decided.
/// What happens is told to `watcher`.
pub(crate) fn spawn(
    mut connection: Connection<LoginStream, LoginTls>,
    member: Arc<Member>,
    watcher: Weak<Monitor>,
) -> Messages {
    let messages = Messages::new();
    let over = Over { member, inbox: messages.clone(), watcher };
    tokio::spawn(async move {
        drive(&mut connection, &over.member, &over.inbox, &over.watcher).await;
        drop(over);
        // This closes the socket and fails every call in flight; nothing is written.
        drop(connection);
    });
    messages
}

/// Tells everybody of the end, also when the task goes with its runtime.
struct Over {
    member: Arc<Member>,
    inbox: Messages,
    watcher: Weak<Monitor>,
}

impl Drop for Over {
    fn drop(&mut self) {
        self.member.end(EndCause::Closed);
        self.inbox.close();
        // The topology learns of it before any caller does, so that a caller who turns back at once meets a search
        // under way instead of trying every host himself.
        if let Some(m) = self.watcher.upgrade() {
            m.ended(&self.member);
        }
    }
}

async fn drive(
    connection: &mut Connection<LoginStream, LoginTls>,
    member: &Arc<Member>,
    inbox: &Messages,
    watcher: &Weak<Monitor>,
) {
    let mut parting = None;
    let calls = Waker::from(Arc::clone(member));
    let mut turn = |cx: &mut Context<'_>| {
        // Before the look, so that an end decided in between rings.
        member.bell.register(cx.waker());
        if member.ended().is_some() {
            return Poll::Ready(());
        }
        if member.left() {
            let silence = parting.get_or_insert_with(|| Box::pin(silence(Arc::clone(member))));
            if silence.as_mut().poll(cx).is_ready() {
                member.end(EndCause::Closed);
                return Poll::Ready(());
            }
        }
        loop {
            let step = connection.poll_message(&mut Context::from_waker(&calls));
            if let Some(news) = member.tap.take_news()
                && let Some(m) = watcher.upgrade()
            {
                m.news(member, news);
            }
            if step.is_pending()
                && let Some(cause) = member.closes_now()
            {
                member.end(cause);
                return Poll::Ready(());
            }
            match std::task::ready!(step) {
                Some(Ok(m)) => {
                    if let Some(m) = readable(m) {
                        inbox.push(m);
                    }
                }
                Some(Err(e)) => {
                    member.end(end_of(member, &e));
                    return Poll::Ready(());
                }
                // Our side ended it: the client is gone and Terminate was sent; or the server closed in silence.
                None => {
                    member.end(lost_or_closed(member));
                    return Poll::Ready(());
                }
            }
        }
    };
    poll_fn(|cx| {
        let number = member.turn_begins();
        let polled = turn(cx);
        member.turn_ends(number);
        member.mind_rest();
        polled
    })
    .await;
}

/// Until the server has said nothing for [`PARTING`]. Its answer may flow on: a stream of rows may outlive its session.
async fn silence(member: Arc<Member>) {
    let mut until = clock::now() + PARTING;
    while clock::now() < until {
        clock::sleep_until(until).await;
        until = member.tap.last_in() + PARTING;
    }
}

fn readable(m: AsyncMessage) -> Option<Message> {
    match m {
        AsyncMessage::Notice(n) => Some(Message::Notice {
            sqlstate: SqlState::new(n.code().code())?,
            severity: n.severity().to_owned(),
            message: n.message().to_owned(),
        }),
        AsyncMessage::Notification(n) => Some(notification(&n)),
        _ => None,
    }
}

fn notification(n: &Notification) -> Message {
    Message::Notification {
        channel: n.channel().to_owned(),
        payload: n.payload().to_owned(),
        process_id: n.process_id(),
    }
}

/// The cause behind the connection's error: the server's words where it said any, else the transport's.
fn end_of(member: &Member, e: &tokio_postgres::Error) -> EndCause {
    if let Some(db) = e.as_db_error()
        && let Some(sqlstate) = SqlState::new(db.code().code())
    {
        return EndCause::Server { sqlstate, message: clean(db.message()) };
    }
    last_words(member).unwrap_or_else(|| {
        let source = innermost(e);
        let kind = source.downcast_ref::<io::Error>().map(io::Error::kind);
        EndCause::Lost {
            message: clean(&source.to_string()),
            reset: kind == Some(io::ErrorKind::ConnectionReset),
            timed_out: kind == Some(io::ErrorKind::TimedOut),
        }
    })
}

fn lost_or_closed(member: &Member) -> EndCause {
    last_words(member).unwrap_or(EndCause::Closed)
}

/// A shutdown or crash that the server announced, perhaps as a mere notice, before the connection went.
fn last_words(member: &Member) -> Option<EndCause> {
    let fatal = member.tap.fatal()?;
    Some(EndCause::Server { sqlstate: fatal.sqlstate, message: fatal.message })
}

fn innermost<'a>(e: &'a (dyn std::error::Error + 'static)) -> &'a (dyn std::error::Error + 'static) {
    let mut source = e;
    while let Some(s) = source.source() {
        source = s;
    }
    source
}

/// What really ended the call that failed with `e`, in words.
pub(crate) fn true_error(member: &Member, e: &tokio_postgres::Error) -> String {
    match e.as_db_error() {
        Some(db) => format!("{} ({})", db.message(), db.code().code()),
        None => member.ended().map_or_else(|| innermost(e).to_string(), |end| end.cause.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn everyone_who_waits_for_a_message_hears_of_the_end() {
        let inbox = Messages::new();
        let waiting: Vec<_> =
            (0..3).map(|_| inbox.clone()).map(|m| tokio::spawn(async move { m.next().await })).collect();
        tokio::task::yield_now().await;
        inbox.push(Message::Missed(7));
        inbox.close();
        let mut none = 0;
        for w in waiting {
            let heard = Box::pin(tokio::time::timeout(Duration::from_secs(5), w)).await;
            none += u32::from(heard.expect("it waits for ever").expect("no panic").is_none());
        }
        assert_eq!(none, 2);
    }
}
