//! A live connection: the caller's side of it.
//!
//! Dereferences to [`tokio_postgres::Client`] for everything that a driver does. What it adds: `transaction()` whose
//! commit minds the tag, [`Session::why`] for the true error and its class, [`Session::within`] for a call under a
//! deadline, a cancel that reaches the very address of the session. It is ended on evidence: [`member`] is what the
//! connector holds of it, [`driver`] the task that owns the socket.

pub(crate) mod cancel;
pub(crate) mod driver;
mod ending;
pub(crate) mod member;
mod statements;
mod transaction;
mod why;

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::{Client, Statement};

use crate::connect::Arrived;
use crate::decide::accept::Role;
use crate::decide::topology::TermRow;
use crate::error::{Attempt, Error};
use crate::host::{Address, Candidate};
use crate::net::SocketReport;
use crate::open::Opener;
use crate::outcome::Ability;

pub use driver::Message;
pub use ending::Ending;
pub use member::EndCause;
pub use transaction::{Transaction, TransactionBuilder};
pub use why::Why;

use driver::Messages;
use member::{Leash, Member};
use statements::Statements;

/// A session on the wanted host. Dropping it closes the connection politely.
///
/// ```no_run
/// # async fn f() -> Result<(), pgfollow::Error> {
/// let connector = pgfollow::Connector::new("postgresql://app@db-a,db-b/orders?target_session_attrs=read-write")?;
/// let mut session = connector.connect().await?;
/// let tx = session.transaction().await?;
/// let why = tx.why();
/// tx.execute("UPDATE stock SET n = n - 1 WHERE id = $1", &[&7_i32]).await.map_err(|e| why.diagnose(e))?;
/// tx.commit().await?; // an error if the server rolled back instead
/// # Ok(()) }
/// ```
///
/// A bare `?` on a call of tokio-postgres works too, but knows only the SQLSTATE: a lost connection is then always an
/// unknown outcome, the error names no host, and a CALL, DO or CREATE INDEX CONCURRENTLY that failed half way may be
/// called transient though a part of it is committed.
///
/// Before a synchronous standby, ask [`Why::confirmed`] behind a write outside a transaction: the driver alone returns
/// `Ok` also where the server gave up waiting for the standby.
///
/// Drop a session that [`Self::is_usable`] calls unusable, and after an error that ended it: a call that is begun on an
/// ended session can't be told from one that was cut, so it is an unknown outcome again ([`Self::transaction`] says that
/// nothing was sent).
pub struct Session {
    client: Client,
    member: Arc<Member>,
    opener: Arc<Opener>,
    messages: Messages,
    statements: Arc<Statements>,
    /// Dropped with it: its driver then waits no longer than a moment for an abandoned call.
    leash: Leash,
    role: Role,
    term: Option<TermRow>,
    socket: SocketReport,
    encrypted: bool,
    attempts: Vec<Attempt>,
    /// How its transactions can be marked, once somebody wanted to know; `Some(None)`: not at all.
    pub(crate) ability: Option<Option<Ability>>,
}

impl Session {
    pub(crate) fn new(arrived: Arrived, opener: Arc<Opener>) -> Self {
        let o = arrived.opened;
        Self {
            client: o.client,
            member: o.member,
            opener,
            messages: o.messages,
            statements: Arc::default(),
            leash: o.leash,
            role: o.role,
            term: o.term,
            socket: o.socket,
            encrypted: o.encrypted,
            attempts: arrived.attempts,
            ability: None,
        }
    }

    pub(crate) fn member(&self) -> &Arc<Member> {
        &self.member
    }

    /// Where it landed: the configured name and the address.
    pub fn candidate(&self) -> &Candidate {
        &self.member.candidate
    }

    /// The address.
    pub fn address(&self) -> &Address {
        &self.member.candidate.address
    }

    /// The host's role as this session sees it now: told at login (or asked then), and changed by the server's
    /// reports since. A promotion shows with the next answer, not while idle.
    pub fn role(&self) -> Role {
        Role {
            in_hot_standby: self.member.tap.flag("in_hot_standby").or(self.role.in_hot_standby),
            default_read_only: self
                .member
                .tap
                .flag("default_transaction_read_only")
                .or(self.role.default_read_only),
            transaction_read_only: self.role.transaction_read_only,
        }
    }

    /// The host's term as it was when the session was opened, if it could be read.
    pub fn term(&self) -> Option<TermRow> {
        self.term
    }

    /// Every attempt of the connect that led here, the successful one last.
    pub fn attempts(&self) -> &[Attempt] {
        &self.attempts
    }

    /// The socket's options as the kernel took them.
    pub fn socket(&self) -> &SocketReport {
        &self.socket
    }

    /// Whether it runs inside TLS.
    pub fn is_encrypted(&self) -> bool {
        self.encrypted
    }

    /// Why and when it ended; `None` while it lives.
    pub fn ended(&self) -> Option<EndCause> {
        self.member.ended().map(|e| e.cause.clone())
    }

    /// Whether it may be used on: it lives, and it is still what it was opened as (a primary that now refuses writes
    /// isn't; a standby always did).
    pub fn is_usable(&self) -> bool {
        self.member.ended().is_none() && !self.member.retired() && !self.client.is_closed()
    }

    /// Whether a sibling on the same host died, so that only a ping can tell whether this one still lives.
    pub fn is_doubted(&self) -> bool {
        self.member.doubted()
    }

    /// Explains the errors of this session's calls. Borrows nothing: take it before the session is borrowed.
    pub fn why(&self) -> Why {
        Why::new(Arc::clone(&self.member))
    }

    /// Declares that what is done here until the next call of this only reads: a lost request is then transient, not
    /// unknown, so that it can simply be sent again. Nothing checks it: a SELECT may call a function that writes. (A
    /// transaction begun READ ONLY declares that for itself, and the server holds it to it.)
    ///
    /// ```no_run
    /// # async fn f(session: &pgfollow::Session) -> Result<(), pgfollow::Error> {
    /// session.declare_read_only(true);
    /// let found = session.query_opt("SELECT 1 FROM orders WHERE id = 7", &[]).await;
    /// let found = found.map_err(|e| session.why().diagnose(e)); // transient, should the host go away in between
    /// session.declare_read_only(false);
    /// found?;
    /// # Ok(()) }
    /// ```
    pub fn declare_read_only(&self, yes: bool) {
        self.member.declare_read_only(yes);
    }

    /// Begins a transaction whose commit minds the tag.
    ///
    /// # Errors
    /// What the server says to BEGIN, or the loss of the connection, with its class.
    pub async fn transaction(&mut self) -> Result<Transaction<'_>, Error> {
        self.build_transaction().start().await
    }

    /// A transaction with settings of its own (isolation, READ ONLY, DEFERRABLE).
    pub fn build_transaction(&mut self) -> TransactionBuilder<'_> {
        TransactionBuilder::new(self.why(), Arc::clone(&self.statements), self.client.build_transaction())
    }

    /// The bare client, for code that needs it. Its transactions' commits don't mind the tag.
    pub fn client_mut(&mut self) -> &mut Client {
        &mut self.client
    }

    /// Runs a call under a deadline. When it passes, the session is ended (nothing can tell what the server still does
    /// with it) and the error has its class: unknown if the call may have written.
    ///
    /// # Errors
    /// The call's own, explained, or [`crate::Code::CallTimedOut`]. [`crate::Code::ReplicationUnknown`] if a commit of it
    /// was answered, but is on its host alone ([`Why::confirmed`]).
    pub async fn within<T>(
        &self,
        limit: Duration,
        call: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, Error> {
        self.why().within(limit, call).await
    }

    /// Asks the server to cancel what runs on this session: over a connection of its own to the very same address,
    /// under the same TLS rules.
    ///
    /// # Errors
    /// When that connection fails. That it succeeded doesn't say that anything was cancelled.
    pub async fn cancel(&self) -> Result<(), Error> {
        cancel::send(&self.opener, &self.member).await
    }

    /// The next notice or notification; `None` once the session has ended. The last 256 are kept for a slow reader.
    pub async fn message(&self) -> Option<Message> {
        self.messages.next().await
    }

    /// Closes it and waits for nothing.
    pub fn close(self) {}

    /// The statement of that text, prepared on this session once. The 256 used last are kept. (In a block:
    /// [`Transaction::prepare_cached`], with the same cache.)
    ///
    /// A statement can go stale: 26000 (somebody ran DEALLOCATE or DISCARD), or 0A000 "cached plan must not change result
    /// type" after a change of its tables. The execution that failed did nothing, but it has failed the block that it stood
    /// in; both are transient, and this again gives a good one, for the session forgets all of them then.
    ///
    /// ```no_run
    /// # async fn f(session: &pgfollow::Session) -> Result<(), pgfollow::Error> {
    /// let by_id = session.prepare_cached("SELECT n FROM stock WHERE id = $1").await?;
    /// let row = session.query_one(&by_id, &[&7_i32]).await.map_err(|e| session.why().diagnose(e))?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// What the server says to the text, or the loss of the connection: transient, for nothing was executed.
    pub async fn prepare_cached(&self, sql: &str) -> Result<Statement, Error> {
        self.statements.get_or(sql, &self.why(), || self.client.prepare(sql)).await
    }

    /// Whether nobody but its owner can ask anything of it: the statements that it was asked to name are all at hand here,
    /// so no last handle of one is dropped elsewhere.
    pub(crate) fn asks_alone(&self) -> bool {
        self.statements.account_for(self.member.tap.named())
    }

    /// Forgets the statement of that text, so that [`Self::prepare_cached`] prepares it anew.
    pub fn forget_cached(&self, sql: &str) {
        self.statements.forget(sql);
    }

    /// The bare client, and what must be kept beside it: for pools and layers that own a client themselves. The
    /// transactions of the bare client don't mind the tag of COMMIT.
    pub fn into_parts(self) -> (Client, Ending) {
        (self.client, Ending::new(self.member, self.messages, self.leash))
    }

    /// Drops the messages that nobody has read.
    pub(crate) fn forget_messages(&self) {
        self.messages.forget();
    }

    /// From now on all messages go there, and [`Self::message`] tells of the end alone.
    pub(crate) fn divert(&self, to: driver::Sink) {
        self.messages.divert(to);
    }
}

impl Deref for Session {
    type Target = Client;
    fn deref(&self) -> &Client {
        &self.client
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("host", &self.member.candidate).field("ended", &self.ended()).finish()
    }
}
