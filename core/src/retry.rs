//! Work in a transaction, done again where that is right, and settled where nobody knows.
//!
//! [`Connector::run`] and its kin (a pool has the same): transient → again, after a jittered backoff, within attempts,
//! deadline and the connector's retry budget; permanent → returned at once; unknown → the outcome check first
//! ([`crate::outcome`]), then success, or a repeat with a fresh token. Whether and when is [`crate::decide::retry`]'s.

use std::ops::DerefMut;
use std::time::Duration;

use tokio_postgres::IsolationLevel;

use crate::clock::{self, Deadline};
use crate::connect::rounded;
use crate::connector::Connector;
use crate::decide::attribute::Fate;
use crate::decide::outcome::{Outcome, Unsettled};
use crate::decide::retry;
use crate::error::{Class, Code, Error, TxStatus};
use crate::outcome::{self, Ability, Token, Way};
use crate::session::{EndCause, Session, Transaction, Why};

/// The part of the deadline that is kept for the outcome check, at most.
const FOR_THE_CHECK: Duration = Duration::from_secs(5);

/// How [`Connector::run_with`] runs.
///
/// Three things end the repeats of a call: its attempts (10), its deadline (30 s), and the connector's retry budget, which
/// no option changes. Within any 30 s, all runs of a connector and of its pools together repeat at most 3 times or a tenth
/// of the calls that were made meanwhile, whichever is more: a service whose database is in trouble mustn't ask everything
/// several times. So of a lone service's first calls that fail at the same time, one may be repeated three times and the
/// others not at all; they return their transient error, which says so, and whoever called may try later. What costs
/// nothing: waiting for a session (a failover is waited out within one attempt), and repeats after a collision of
/// transactions (40001, 40P01), for such a collision says nothing about the database's health.
///
/// ```
/// use pgfollow::retry::RunOptions;
/// use std::time::Duration;
/// let reading = RunOptions::new().read_only(true).deadline(Duration::from_secs(2));
/// # let _ = reading;
/// ```
#[derive(Clone, Debug)]
pub struct RunOptions {
    attempts: u32,
    deadline: Duration,
    isolation: Option<IsolationLevel>,
    read_only: bool,
    deferrable: bool,
}

impl Default for RunOptions {
    fn default() -> Self {
        Self {
            attempts: 10,
            deadline: Duration::from_secs(30),
            isolation: None,
            read_only: false,
            deferrable: false,
        }
    }
}

impl RunOptions {
    /// At most 10 attempts within 30 s; the transaction as the session makes them by default.
    pub fn new() -> Self {
        Self::default()
    }

    /// How often the work is done at most (at least once).
    #[must_use]
    pub fn attempts(mut self, most: u32) -> Self {
        self.attempts = most.max(1);
        self
    }

    /// How long everything may take: waiting for a session, the work, its repeats, the outcome check. A COMMIT is waited for
    /// a little less, so that the check has its time.
    #[must_use]
    pub fn deadline(mut self, whole: Duration) -> Self {
        self.deadline = whole;
        self
    }

    /// The isolation level.
    #[must_use]
    pub fn isolation_level(mut self, level: IsolationLevel) -> Self {
        self.isolation = Some(level);
        self
    }

    /// READ ONLY: such work needs no outcome check, for it may be repeated whatever became of it.
    #[must_use]
    pub fn read_only(mut self, yes: bool) -> Self {
        self.read_only = yes;
        self
    }

    /// DEFERRABLE.
    #[must_use]
    pub fn deferrable(mut self, yes: bool) -> Self {
        self.deferrable = yes;
        self
    }
}

/// Where [`run_with`] gets its sessions from: a connector opens one each time, a pool lends.
pub trait Sessions: Sync {
    /// A session for one attempt. After an unknown outcome it comes back ended.
    type Lent: DerefMut<Target = Session> + Send;

    /// Waits for a session, until the deadline. `writes`: unless the run is [`RunOptions::read_only`].
    ///
    /// # Errors
    /// Permanent ones are returned to the caller of the run at once.
    fn acquire(
        &self,
        writes: bool,
        deadline: Deadline,
    ) -> impl Future<Output = Result<Self::Lent, Error>> + Send;

    /// Whose outcome checks and whose retry budget are used.
    fn connector(&self) -> &Connector;
}

impl Sessions for Connector {
    type Lent = Box<Session>;

    async fn acquire(&self, writes: bool, deadline: Deadline) -> Result<Box<Session>, Error> {
        self.connect_to_run(writes, deadline).await.map(Box::new)
    }

    fn connector(&self) -> &Connector {
        self
    }
}

impl Connector {
    /// Does the work in a transaction of a session of its own, and commits. Transient failures are repeated, unknown
    /// outcomes are settled, permanent errors are returned. At most 10 attempts within 30 s, and within
    /// any 30 s the connector repeats no more than 3 times or a tenth of its calls: [`RunOptions`] tells of these bounds.
    ///
    /// It runs on a host of the role that `target_session_attrs` says. Where nobody said, and over several hosts, that is
    /// read-write, as with a pool (a plain [`Self::connect`] would take any host, a standby too); with
    /// [`RunOptions::read_only`] any host will do then.
    ///
    /// The work may run several times: what it does outside the database must bear that. Each time it begins with a fresh
    /// clone of what it captured (so it can be `Clone`: captures by reference are, and `async move` with what can be
    /// cloned). It must not end the transaction; to refuse for a reason of its own it returns [`give_up`].
    ///
    /// ```no_run
    /// # async fn f(connector: pgfollow::Connector, id: i64) -> Result<(), pgfollow::Error> {
    /// let left: i64 = connector
    ///     .run(async |tx| {
    ///         tx.execute("INSERT INTO orders (id) VALUES ($1)", &[&id]).await?;
    ///         Ok(tx.query_one("UPDATE stock SET n = n - 1 RETURNING n", &[]).await?.get(0))
    ///     })
    ///     .await?;
    /// # let _ = left; Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The last attempt's: a permanent one at once, a transient one once attempts, deadline or budget are used up (its message
    /// says which), one of class unknown where the check couldn't settle it ([`Error::token`] then asks later).
    pub async fn run<T, F>(&self, work: F) -> Result<T, Error>
    where
        F: Clone + AsyncFnOnce(&mut Transaction<'_>) -> Result<T, Error>,
    {
        run_with(self, &RunOptions::new(), work).await
    }

    /// The same with options.
    ///
    /// # Errors
    /// The last attempt's, as of [`Self::run`].
    pub async fn run_with<T, F>(&self, options: &RunOptions, work: F) -> Result<T, Error>
    where
        F: Clone + AsyncFnOnce(&mut Transaction<'_>) -> Result<T, Error>,
    {
        run_with(self, options, work).await
    }

    /// Does the work once and never repeats it. An unknown outcome is settled all the same: then it is success, or an error
    /// of class transient that says that nothing was committed. On which host, [`Self::run`] says.
    ///
    /// # Errors
    /// The attempt's; of class unknown only where the check couldn't settle it.
    pub async fn run_once<T, F>(&self, options: &RunOptions, work: F) -> Result<T, Error>
    where
        F: AsyncFnOnce(&mut Transaction<'_>) -> Result<T, Error>,
    {
        run_once(self, options, work).await
    }
}

/// The error of work that refuses for a reason of its own: permanent, and the reason is its source.
///
/// ```no_run
/// # async fn f(connector: pgfollow::Connector) -> Result<(), pgfollow::Error> {
/// connector
///     .run(async |tx| match tx.query_opt("SELECT 1 FROM stock WHERE n > 0", &[]).await? {
///         Some(_) => Ok(()),
///         None => Err(pgfollow::retry::give_up("sold out")),
///     })
///     .await
/// # }
/// ```
pub fn give_up(why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    let why = why.into();
    Error::new(Code::GaveUp, Class::Permanent, why.to_string()).caused_by(why)
}

/// [`Connector::run_with`] over any source of sessions.
///
/// # Errors
/// The last attempt's.
pub async fn run_with<S, T, F>(source: &S, options: &RunOptions, work: F) -> Result<T, Error>
where
    S: Sessions,
    F: Clone + AsyncFnOnce(&mut Transaction<'_>) -> Result<T, Error>,
{
    let mut call = Call::new(source.connector(), options);
    loop {
        let error = match attempt(source, &mut call, work.clone()).await {
            Ok(value) => return Ok(value),
            Err(failed) => match call.settled(failed).await {
                Ok(value) => return Ok(value),
                Err(error) => error,
            },
        };
        let until = call.again(error)?;
        clock::sleep_until(until).await;
    }
}

/// [`Connector::run_once`] over any source of sessions.
///
/// # Errors
/// The attempt's.
pub async fn run_once<S, T, F>(source: &S, options: &RunOptions, work: F) -> Result<T, Error>
where
    S: Sessions,
    F: AsyncFnOnce(&mut Transaction<'_>) -> Result<T, Error>,
{
    let mut call = Call::new(source.connector(), options);
    match attempt(source, &mut call, work).await {
        Ok(value) => Ok(value),
        Err(failed) => call.settled(failed).await,
    }
}

/// An attempt that failed; what it would have returned, if only its COMMIT is in question.
struct Failed<T> {
    error: Error,
    in_question: Option<(T, Option<Token>)>,
}

impl<T> From<Error> for Failed<T> {
    fn from(error: Error) -> Self {
        Self { error, in_question: None }
    }
}

/// An error whose outcome is asked for; without an answer when it is dropped.
struct AskedFor<'a> {
    error: &'a mut Error,
    fate: Fate,
}

impl<'a> AskedFor<'a> {
    fn new(error: &'a mut Error) -> Self {
        error.fate(Fate::Asked);
        Self { error, fate: Fate::Unanswered }
    }

    fn answered(mut self, answer: &Result<Outcome, Error>) {
        self.fate = match answer {
            Ok(Outcome::Committed) => Fate::Committed,
            Ok(Outcome::NotCommitted) => Fate::NotCommitted,
            Ok(Outcome::Unknown(_)) | Err(_) => Fate::Unanswered,
        };
    }
}

impl Drop for AskedFor<'_> {
    fn drop(&mut self) {
        self.error.fate(self.fate);
    }
}

/// One call, over all its attempts.
struct Call<'a> {
    connector: &'a Connector,
    options: &'a RunOptions,
    deadline: Deadline,
    made: u32,
    /// The token table may be used: it has refused no row lately.
    table: bool,
    /// The last attempt failed by our own doing: its repeat isn't charged to the caller.
    ours: bool,
}

impl<'a> Call<'a> {
    fn new(connector: &'a Connector, options: &'a RunOptions) -> Self {
        let settling = connector.settling();
        settling.call();
        let deadline = Deadline::after(options.deadline);
        Self { connector, options, deadline, made: 0, table: settling.tries_table(), ours: false }
    }

    /// Until when to wait for the next attempt.
    fn again(&mut self, mut error: Error) -> Result<clock::Moment, Error> {
        if error.class() != Class::Transient {
            return Err(error);
        }
        if self.made >= self.options.attempts {
            return Err(error.noting(format_args!("given up after {} attempts", self.made)));
        }
        let settling = self.connector.settling();
        // Where a primary is sought the advice is for whoever gives up: the next attempt itself waits for one, and hears
        // of it at once.
        let asked = error.retry_after().filter(|_| error.code() == Code::Overloaded);
        let until = clock::now() + retry::pause(self.made, asked, settling.chance());
        if self.deadline.passed(until) {
            let (whole, next) = (rounded(self.options.deadline), self.made + 1);
            return Err(
                error.noting(format_args!("the run's deadline of {whole} leaves no time for attempt {next}"))
            );
        }
        let free = std::mem::take(&mut self.ours) || retry::is_collision(error.sqlstate());
        if !free && !settling.repeat() {
            return Err(error.noting(format_args!(
                "not repeated (attempt {}): within {} s this connector may repeat {} times or a tenth of its calls, \
                 whichever is more, and has done so",
                self.made,
                retry::WINDOW.as_secs(),
                retry::LEAST
            )));
        }
        tracing::debug!(target: "pgfollow", attempt = self.made, %error, "run: again");
        error.fate(Fate::Repeated);
        Ok(until)
    }

    /// Asks what became of a COMMIT that is in question.
    async fn settled<T>(&self, failed: Failed<T>) -> Result<T, Error> {
        let Failed { mut error, in_question } = failed;
        let (Class::UnknownOutcome, Some((value, token))) = (error.class(), in_question) else {
            return Err(error);
        };
        let Some(token) = token else {
            return Err(error.noting(format_args!("the outcome can't be asked for: {}", Unsettled::NoToken)));
        };
        let asked = AskedFor::new(&mut error);
        let answer = Box::pin(outcome::settle(self.connector, &token, self.deadline)).await;
        asked.answered(&answer);
        match answer {
            Ok(Outcome::Committed) => Ok(value),
            Ok(Outcome::NotCommitted) => {
                let error = error.with_class(Class::Transient).with_token(token);
                Err(error.noting("the outcome check says: not committed"))
            }
            Ok(Outcome::Unknown(why)) => {
                Err(error.with_token(token).noting(format_args!("the outcome stays unknown: {why}")))
            }
            Err(e) => Err(error.with_token(token).noting(format_args!("the outcome check failed: {e}"))),
        }
    }

    /// How the session's transactions can be marked. `None`: not at all, or no need.
    async fn ability(&self, session: &mut Session) -> Result<Option<Ability>, Error> {
        if self.options.read_only {
            return Ok(None);
        }
        if let Some(known) = session.ability {
            return Ok(known);
        }
        let (why, before) = (session.why(), session.member().tap.writes());
        let read = self.deadline.bound(Ability::read(session)).await;
        let read = match read {
            // A refusal of this moment: this transaction stays unmarked, the next one asks again.
            Ok(Err(e)) if e.as_db_error().is_some() && session.is_usable() => return Ok(None),
            Ok(read) => read.map_err(|e| why.diagnose(e)),
            Err(_) => Err(why.told(why.give_up(before))),
        };
        // Nothing but a question was asked.
        let known = read.map_err(|e| e.with_class(Class::Transient))?;
        session.ability = Some(known);
        if known.is_some_and(|a| a.lacks_table()) {
            self.connector.settling().no_table();
        }
        Ok(known)
    }

    async fn begin<'s>(&self, session: &'s mut Session) -> Result<Transaction<'s>, Error> {
        let (why, before) = (session.why(), session.member().tap.writes());
        let mut builder = session.build_transaction();
        if let Some(level) = self.options.isolation {
            builder = builder.isolation_level(level);
        }
        if self.options.read_only {
            builder = builder.read_only(true);
        }
        if self.options.deferrable {
            builder = builder.deferrable(true);
        }
        match self.deadline.bound(builder.start()).await {
            Ok(begun) => begun,
            // A BEGIN does nothing.
            Err(_) => Err(why.told(why.give_up(before).with_class(Class::Transient))),
        }
    }

    /// How long a COMMIT may take.
    fn commit_limit(&self) -> Duration {
        let left = self.deadline.left(clock::now()).unwrap_or(Duration::MAX);
        left.saturating_sub(FOR_THE_CHECK.min(self.options.deadline / 4))
    }
}

/// One attempt.
async fn attempt<S, T, F>(source: &S, call: &mut Call<'_>, work: F) -> Result<T, Failed<T>>
where
    S: Sessions,
    F: AsyncFnOnce(&mut Transaction<'_>) -> Result<T, Error>,
{
    call.made += 1;
    let mut lent = source.acquire(!call.options.read_only, call.deadline).await?;
    let session: &mut Session = &mut lent;
    let ability = call.ability(session).await?;
    let why = session.why();
    let mut tx = call.begin(session).await?;
    let (ends, before) = (why.member().tap.ends(), why.member().tap.writes());
    let value = match call.deadline.bound(work(&mut tx)).await {
        Ok(Ok(value)) => value,
        Ok(Err(error)) => return Err(refused(&why, ends, error, call.deadline).await.into()),
        Err(_) => {
            let late = why.give_up(before);
            return Err(if why.member().tap.ends() == ends { why.told(late) } else { control(&why) }.into());
        }
    };
    if why.member().tap.ends() != ends {
        return Err(control(&why).into());
    }
    let (token, last_act) = marked(call, &tx, ability).await?;
    let result = tx.commit_within(last_act.as_deref(), call.commit_limit()).await;
    match result {
        // A COMMIT that the closure sent and didn't wait for came before ours.
        Ok(()) if why.member().tap.ends() != ends + 1 => Err(control(&why).into()),
        Ok(()) => Ok(value),
        Err(failed) if failed.last_act_refused => {
            // The fault isn't the transaction's. What the session may do has changed since it was read.
            call.table = false;
            call.ours = true;
            call.connector.settling().table_refused();
            session.ability = None;
            let error = failed.error;
            tracing::warn!(target: "pgfollow", %error, "the table pgfollow.outcome refused a row");
            // COMMIT stood behind it, and was never reached.
            Err(error.with_class(Class::Transient).into())
        }
        Err(failed) => {
            let error = failed.error;
            if error.class() == Class::UnknownOutcome {
                // Its fate is asked for elsewhere; nothing more is to happen here.
                why.member().end(EndCause::Closed);
            }
            Err(Failed { error, in_question: Some((value, token)) })
        }
    }
}

/// A token for the transaction, and its last act where there is one.
async fn marked(
    call: &Call<'_>,
    tx: &Transaction<'_>,
    ability: Option<Ability>,
) -> Result<(Option<Token>, Option<String>), Error> {
    let Some(ability) = ability else { return Ok((None, None)) };
    let why = tx.why();
    // Of a failed block there is nothing to ask for: its COMMIT is a ROLLBACK.
    if why.member().tap.status() == TxStatus::Failed {
        return Ok((None, None));
    }
    let Some(id) = call.connector.settling().id() else { return Ok((None, None)) };
    match ability.way(call.table) {
        Some(Way::Row(table)) => {
            let token = ability.token(table, id);
            Ok((token, token.map(|t| t.last_act())))
        }
        Some(Way::Number) => {
            match why.within(call.commit_limit(), tx.simple_query(&Ability::marks())).await {
                Ok(answer) => Ok((ability.token_by_number(&answer, id), None)),
                // The block had failed, and the closure said nothing of it.
                Err(e) if e.sqlstate().is_some_and(|s| s.as_str() == "25P02") => Ok((None, None)),
                Err(e) => Err(e),
            }
        }
        None => Ok((None, None)),
    }
}

/// The work returned an error: nothing was committed, unless it did so itself.
async fn refused(why: &Why, ends: u64, error: Error, deadline: Deadline) -> Error {
    let member = why.member();
    // What it asked and didn't wait for may not have reached the driver yet. A deadline that passes here leaves the
    // question below its doubt.
    let mark = member.mark(false);
    let seen = member.taken_up(mark) || deadline.bound(member.take_up(mark)).await.is_ok();
    if member.tap.ends() != ends {
        return control(why).noting(format_args!("it returned: {error}"));
    }
    let in_doubt = !seen || (member.tap.busy() && !member.tap.harmless());
    // A bare `?` knows only the SQLSTATE, and calls every lost connection an unknown outcome.
    let error = error.into_bare().map_or_else(|e| e, |bare| why.diagnose(bare));
    if in_doubt {
        return error
            .with_class(Class::UnknownOutcome)
            .noting("what the closure sent and didn't wait for may have ended the transaction");
    }
    error
}

/// The closure ended its transaction: what it did before may be committed, and what it did after was in none.
fn control(why: &Why) -> Error {
    Error::new(
        Code::TransactionControl,
        Class::Permanent,
        "transaction control in closure: the work of a run must not end its transaction (COMMIT, ROLLBACK, PREPARE \
         TRANSACTION); return Ok to commit and an error to roll back",
    )
    .on_host(why.member().candidate.to_string())
}
