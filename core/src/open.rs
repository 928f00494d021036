//! One address, from dial to role: the steps of one attempt in their order.
//!
//! Dial ([`crate::dial`]), TLS ([`crate::tls`]), login ([`crate::handshake`]), then one question at most
//! ([`crate::role`]), and the verdict of [`crate::decide::accept`]. Decides nothing and bounds no time itself:
//! [`crate::connect`] (for callers) and [`crate::monitor`] (for probe sessions) do both.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use tokio_postgres::Client;

use crate::clock::{self, Moment};
use crate::config::{Config, Endpoint, SessionAttrs};
use crate::decide::accept::{self, Accept, Question, Role};
use crate::decide::topology::{Role as HostRole, TermRow};
use crate::decide::walk::TlsTry;
use crate::error::Stage;
use crate::failure::{Failed, Failure};
use crate::handshake::{self, LoginParams};
use crate::host::{Address, Candidate, HostId};
use crate::lock;
use crate::monitor::Monitor;
use crate::net::{Dial, SocketControl, SocketReport};
use crate::report::Ear;
use crate::role::{self, Readable};
use crate::session::Session;
use crate::session::driver::{self, Messages};
use crate::session::member::{Leash, Limit, Member};
use crate::tap::report::clean;
use crate::tls::{self, Secure, Secured, ServerNameFor, TlsContext};

/// Who will use the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A caller who wants this role.
    Caller(SessionAttrs),
    /// The monitor: takes what there is, with an application name of its own and none of the caller's settings.
    Monitor,
}

/// How far an attempt has come; read when its time runs out.
#[derive(Debug)]
pub(crate) struct Progress {
    stage: AtomicU8,
    encrypted: AtomicBool,
    /// When each stage began; 0 if it has not.
    began: [AtomicU64; 5],
}

impl Progress {
    const STAGES: [Stage; 5] = [Stage::Pace, Stage::Dial, Stage::Secure, Stage::Authenticate, Stage::Role];

    pub(crate) fn new() -> Self {
        Self::after(Duration::ZERO)
    }

    /// Of an attempt that has waited that long for its turn already.
    pub(crate) fn after(pace: Duration) -> Self {
        // "Encrypted" means: clear text is not what failed. It is false only for a login without TLS.
        let progress =
            Self { stage: AtomicU8::new(0), encrypted: AtomicBool::new(true), began: Default::default() };
        let began = clock::now().before(pace).as_micros();
        progress.began[0].store(began, Ordering::Relaxed);
        progress
    }

    fn at(&self, stage: Stage) {
        let i = Self::STAGES.iter().position(|s| *s == stage).unwrap_or(0);
        self.stage.store(u8::try_from(i).unwrap_or(0), Ordering::Relaxed);
        self.began[i].store(clock::now().as_micros(), Ordering::Relaxed);
    }

    /// How long each stage lasted, if the last one ends now.
    pub(crate) fn stages(&self, now: Moment) -> Vec<(Stage, Duration)> {
        let last = usize::from(self.stage.load(Ordering::Relaxed));
        let began = |i: usize| Moment::from_micros(self.began[i].load(Ordering::Relaxed));
        let end = |i: usize| if i < last { began(i + 1) } else { now };
        (0..=last).map(|i| (Self::STAGES[i], end(i) - began(i))).collect()
    }

    pub(crate) fn stage(&self) -> Stage {
        Self::STAGES[usize::from(self.stage.load(Ordering::Relaxed))]
    }

    pub(crate) fn encrypted(&self) -> bool {
        self.encrypted.load(Ordering::Relaxed)
    }
}

/// A session that was opened and fits.
pub(crate) struct Opened {
    pub(crate) client: Client,
    pub(crate) member: Arc<Member>,
    pub(crate) messages: Messages,
    pub(crate) leash: Leash,
    pub(crate) role: Role,
    /// What the host said of its term, where it was asked.
    pub(crate) term: Option<TermRow>,
    pub(crate) socket: SocketReport,
    pub(crate) encrypted: bool,
    /// Only the second choice of prefer-standby.
    pub(crate) second_choice: bool,
}

/// Opens sessions by one configuration.
pub(crate) struct Opener {
    config: Arc<Config>,
    tls: TlsContext,
    dial: Arc<dyn Dial>,
    /// What each host lets us read; read once, because it costs a round trip.
    readable: Mutex<HashMap<Address, Readable>>,
    /// Who is told what happens on the sessions.
    watcher: OnceLock<Weak<Monitor>>,
}

impl Opener {
    pub(crate) fn new(config: Arc<Config>, dial: Arc<dyn Dial>) -> Result<Self, Failure> {
        let tls = TlsContext::load(&config.tls)?;
        Ok(Self { config, tls, dial, readable: Mutex::default(), watcher: OnceLock::new() })
    }

    pub(crate) fn watched_by(&self, monitor: Weak<Monitor>) {
        // Set once, right after both are made.
        let _ = self.watcher.set(monitor);
    }

    pub(crate) fn sslmode(&self) -> crate::config::SslMode {
        self.config.tls.sslmode
    }

    /// Dials an address and brings it up to its TLS.
    pub(crate) async fn secured(
        &self,
        to: &Candidate,
        tls: TlsTry,
        progress: &Progress,
    ) -> Result<(Secured, SocketReport, Option<Arc<dyn SocketControl>>), Failed> {
        progress.at(Stage::Dial);
        let socket = self
            .dial
            .dial(&to.address, &self.config.socket)
            .await
            .map_err(|e| Failed::new(Stage::Dial, Failure::dial(&e)))?;
        progress.at(Stage::Secure);
        let how = match tls {
            TlsTry::Plain => Secure::Plain,
            TlsTry::TlsOrPlain => Secure::TlsOrPlain,
            TlsTry::Tls => Secure::Tls,
        };
        let secured =
            tls::secure(socket.io, &self.tls, &ServerNameFor::of(&self.config.hosts[to.spec]), how).await?;
        progress.encrypted.store(secured.encrypted, Ordering::Relaxed);
        Ok((secured, socket.report, socket.control))
    }

    /// Opens a session on one address. `host` and `generation` are what the topology knew of it before the dial.
    pub(crate) async fn open(
        &self,
        to: &Candidate,
        (host, generation): (HostId, u64),
        tls: TlsTry,
        purpose: Purpose,
        progress: &Progress,
    ) -> Result<Opened, Failed> {
        let (secured, socket, control) = self.secured(to, tls, progress).await?;
        let encrypted = secured.encrypted;
        progress.at(Stage::Authenticate);
        tracing::trace!(target: "pgfollow", %to, ?purpose, "dialled");
        let login = handshake::login(secured, &self.login_params(to, purpose)).await?;
        progress.at(Stage::Role);
        tracing::trace!(target: "pgfollow", %to, ?purpose, "logged in");
        let limit = control.zip(self.config.socket.user_timeout).map(|(c, t)| Limit::new(c, t));
        let member = Arc::new(Member::new(host, to.clone(), generation, login.tap, limit));
        let watcher = self.watcher.get().cloned().unwrap_or_default();
        if let Some(m) = watcher.upgrade().filter(|_| purpose != Purpose::Monitor) {
            member.tap.listen(Ear::new(&m.recorder, host));
            member.recorded_by(&m.recorder);
        }
        let messages = driver::spawn(login.connection, Arc::clone(&member), watcher);
        let mut opened = Opened {
            client: login.client,
            role: role_told(&member),
            leash: Leash::new(&member),
            member,
            messages,
            term: None,
            socket,
            encrypted,
            second_choice: false,
        };
        if let Purpose::Caller(wanted) = purpose {
            self.fit(&mut opened, wanted).await?;
            self.set_up(&mut opened).await?;
            tracing::trace!(target: "pgfollow", %to, "set up");
            compare(&mut opened, wanted)?;
        }
        Ok(opened)
    }

    /// Makes a session that was opened ahead ready for its caller: what it told then may be long past.
    pub(crate) async fn renew(&self, opened: &mut Opened, wanted: SessionAttrs) -> Result<(), Failed> {
        let at = opened.member.candidate.address.clone();
        opened.term = self.ask_term(&opened.client, &at, false).await;
        opened.role = role_told(&opened.member);
        self.fit(opened, wanted).await?;
        compare(opened, wanted)
    }

    /// Whether the host's greeting says another role than its last answer to the monitor. A pooler greets with what its
    /// first server connection was told, however long ago; a promotion just now looks the same.
    fn greeting_in_doubt(&self, opened: &Opened) -> bool {
        let monitor = self.watcher.get().and_then(Weak::upgrade);
        let known = monitor.and_then(|m| m.snapshot().host(opened.member.host)?.role);
        opened.role.in_hot_standby.zip(known).is_some_and(|(told, r)| told != (r == HostRole::Standby))
    }

    /// Checks the role against the wanted one, asking where ParameterStatus told nothing.
    async fn fit(&self, opened: &mut Opened, wanted: SessionAttrs) -> Result<(), Failed> {
        if self.greeting_in_doubt(opened) {
            opened.role = Role::default();
        }
        if let Some(q) = opened.role.question(wanted) {
            let answer = opened.client.simple_query(role::question_sql(q)).await.map_err(|e| {
                let why = clean(&driver::true_error(&opened.member, &e));
                Failed::new(Stage::Role, Failure::RoleUnknown(why))
            })?;
            let answer = role::question_answer(&answer);
            match q {
                Question::TransactionReadOnly => opened.role.transaction_read_only = answer,
                Question::InRecovery => opened.role.in_hot_standby = answer,
            }
        }
        let verdict = accept::accept(opened.role, wanted);
        opened.second_choice = verdict == Accept::SecondChoice;
        match verdict.failure(wanted) {
            Some(failure) => Err(Failed::new(Stage::Role, failure)),
            None => Ok(()),
        }
    }

    /// The term and the session's own settings, in one round trip. What goes wrong here costs knowledge, never the
    /// session, unless the connection itself went.
    async fn set_up(&self, opened: &mut Opened) -> Result<(), Failed> {
        let at = opened.member.candidate.address.clone();
        let settings = self.settings(&opened.member);
        let mut sql = self.readable(&at).term_query(false);
        for set in &settings {
            sql.push_str("; ");
            sql.push_str(set);
        }
        match opened.client.simple_query(&sql).await {
            Ok(answer) => opened.term = role::term_row(&answer),
            Err(_) if !opened.client.is_closed() => {
                opened.term = self.ask_term(&opened.client, &at, false).await;
                for set in settings {
                    // What this server doesn't have, it does without.
                    let _ = opened.client.simple_query(set).await;
                }
            }
            Err(_) => {}
        }
        match opened.member.ended() {
            Some(end) => Err(Failed::new(Stage::Role, Failure::Lost(end.cause.to_string()))),
            None => Ok(()),
        }
    }

    fn settings(&self, member: &Member) -> Vec<&'static str> {
        let version = member.tap.parameter("server_version").map_or(0, |v| role::major(&v));
        role::setup_sql(self.config.endpoint == Endpoint::Direct, version)
    }

    /// Sets the session's own settings once more: somebody has reset them all.
    pub(crate) async fn set_again(&self, session: &Session) {
        let settings = self.settings(session.member());
        if session.simple_query(&settings.join("; ")).await.is_err() {
            for set in settings {
                // What this server doesn't have, it does without.
                let _ = session.simple_query(set).await;
            }
        }
    }

    /// Asks the term row on an open session; learns first what may be read where a full question was refused.
    /// `None` when the session gave no answer. `count`: see [`Readable::term_query`].
    pub(crate) async fn ask_term(&self, client: &Client, at: &Address, count: bool) -> Option<TermRow> {
        let readable = self.readable(at);
        match client.simple_query(&readable.term_query(count)).await {
            Ok(answer) => return role::term_row(&answer),
            Err(e) if e.as_db_error().is_none() => return None,
            Err(_) => {}
        }
        // The server refused the statement (42501, or a server too old): ask what is permitted, then ask that.
        let learned = match client.simple_query(Readable::QUESTION).await {
            Ok(answer) => Readable::from_answer(&answer),
            Err(e) if e.as_db_error().is_none() => return None,
            Err(_) => Readable::NOTHING,
        };
        lock(&self.readable).insert(at.clone(), learned);
        client.simple_query(&learned.term_query(count)).await.ok().and_then(|answer| role::term_row(&answer))
    }

    fn readable(&self, at: &Address) -> Readable {
        lock(&self.readable).get(at).copied().unwrap_or(Readable::ALL)
    }

    fn login_params<'a>(&'a self, to: &Candidate, purpose: Purpose) -> LoginParams<'a> {
        let c = &*self.config;
        let caller = purpose != Purpose::Monitor;
        LoginParams {
            user: &c.user,
            dbname: &c.dbname,
            password: c.passwords[to.spec].as_ref(),
            options: c.options.as_deref().filter(|_| caller),
            application_name: if caller { &c.application_name } else { role::MONITOR_NAME },
            require_auth: c.require_auth.as_deref(),
            channel_binding: c.channel_binding,
            unix: to.address.is_unix(),
        }
    }
}

/// Holds the term row, which the server itself answered now, against the role that let the session in.
fn compare(opened: &mut Opened, wanted: SessionAttrs) -> Result<(), Failed> {
    let Some(row) = opened.term else { return Ok(()) };
    let told = role_told(&opened.member).in_hot_standby;
    if told.or(opened.role.in_hot_standby).is_none_or(|told| told == row.in_recovery) {
        return Ok(());
    }
    opened.member.tap.set_flag("in_hot_standby", row.in_recovery);
    opened.member.tap.set_flag("default_transaction_read_only", row.read_only);
    opened.role = role_told(&opened.member);
    let verdict = accept::accept(opened.role, wanted);
    opened.second_choice = verdict == Accept::SecondChoice;
    verdict.failure(wanted).map_or(Ok(()), |failure| Err(Failed::new(Stage::Role, failure)))
}

/// The role as ParameterStatus told it (PostgreSQL 14 and later), without a round trip.
fn role_told(member: &Member) -> Role {
    Role {
        in_hot_standby: member.tap.flag("in_hot_standby"),
        default_read_only: member.tap.flag("default_transaction_read_only"),
        transaction_read_only: None,
    }
}
