//! The connector: what a service makes once and asks for sessions ever after.
//!
//! Owns the monitor, the names and the opener. Starts nothing until its first connect or topology call. Decides only
//! when a connect is tried again: what a connect is, is [`crate::connect`]'s.

mod health;
pub(crate) mod locate;

use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::changes::Changed;
use crate::clock::{self, Deadline, Moment};
use crate::config::{Config, ConfigBuilder, MonitorMode, SessionAttrs};
use crate::connect::{self, Limit, Tools, Unopened};
use crate::decide::attempt::Options;
use crate::decide::names::NameReport;
use crate::decide::outcome::Promotion;
use crate::decide::pace::{Ended, Price};
use crate::decide::shed::LATER;
use crate::decide::topology::{Input, Snapshot};
use crate::dial::TcpDial;
use crate::error::{Class, Code, Error, Stage};
use crate::event::Event;
use crate::host::{Address, Candidate, HostId};
use crate::listener::Listener;
use crate::lock;
use crate::lookup::LookUp;
use crate::monitor::Monitor;
use crate::net::{Dial, Resolve};
use crate::open::{Opener, Purpose};
use crate::outcome::Settling;
use crate::pace::Turn;
use crate::pool::{Pool, PoolOptions};
use crate::report::Report;
use crate::resolve::Resolver;
use crate::session::Session;
use crate::spare::Spares;
use tokio::sync::broadcast;

pub use health::Health;
pub use locate::Target;

/// First pause between two walks of a connect that waits.
const PAUSE_FIRST: Duration = Duration::from_millis(100);
/// Longest pause between two walks: an answer of the topology ends any pause at once.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// A plain connect whose turn wouldn't come within this is refused.
const TURN: Duration = Duration::from_secs(30);

/// Finds the wanted host, and opens sessions there. Cheap to clone; all clones share one monitor.
///
/// ```no_run
/// # async fn f() -> Result<(), pgfollow::Error> {
/// let connector = pgfollow::Connector::new("postgresql://app@db-a,db-b,db-c/orders?target_session_attrs=read-write")?;
/// let session = connector.connect_within(std::time::Duration::from_secs(30)).await?;
/// session.execute("INSERT INTO orders DEFAULT VALUES", &[]).await.map_err(|e| session.why().diagnose(e))?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Connector {
    inner: Arc<Inner>,
}

struct Inner {
    config: Arc<Config>,
    opener: Arc<Opener>,
    look_up: Arc<LookUp>,
    monitor: Arc<Monitor>,
    spares: Arc<Spares>,
    /// Somebody is having the first look around.
    looking: AtomicBool,
    seed: AtomicU64,
    /// When the last walk during a search began, and how the last one of all failed.
    last_walk: Mutex<(Option<Moment>, Option<Error>)>,
    settling: Settling,
}

impl Inner {
    /// A number that is another one each time.
    fn next_seed(&self) -> u64 {
        self.seed.fetch_add(1, Ordering::Relaxed)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.monitor.close();
    }
}

/// Makes a connector with parts of one's own.
pub struct ConnectorBuilder {
    config: ConfigBuilder,
    resolver: Option<Arc<dyn Resolve>>,
    dial: Option<Arc<dyn Dial>>,
    seed: Option<u64>,
}

impl ConnectorBuilder {
    /// Sets one option, as a connection string would.
    #[must_use]
    pub fn set(mut self, keyword: impl Into<String>, value: impl Into<String>) -> Self {
        self.config = self.config.set(keyword, value);
        self
    }

    /// Changes the configuration's builder.
    #[must_use]
    pub fn config(mut self, change: impl FnOnce(ConfigBuilder) -> ConfigBuilder) -> Self {
        self.config = change(self.config);
        self
    }

    /// Looks names up in another way.
    #[must_use]
    pub fn resolver(mut self, resolver: Arc<dyn Resolve>) -> Self {
        self.resolver = Some(resolver);
        self
    }

    /// Dials in another way.
    #[must_use]
    pub fn dial(mut self, dial: Arc<dyn Dial>) -> Self {
        self.dial = Some(dial);
        self
    }

    /// Seeds everything that is left to chance (jitter, shuffles), for a run that can be repeated.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Makes the connector.
    ///
    /// # Errors
    /// An option that can't be used, or a file that it names.
    pub fn build(self) -> Result<Connector, Error> {
        let config = Arc::new(self.config.build()?);
        Connector::assemble(config, self.resolver, self.dial, self.seed)
    }
}

impl Connector {
    /// From a connection string (URI or keyword/value), with environment, service and password files.
    ///
    /// # Errors
    /// [`Class::Permanent`], naming the option and the remedy.
    pub fn new(conninfo: &str) -> Result<Self, Error> {
        Self::builder(conninfo).build()
    }

    /// A builder over a connection string.
    pub fn builder(conninfo: &str) -> ConnectorBuilder {
        ConnectorBuilder {
            config: Config::builder().conninfo(conninfo),
            resolver: None,
            dial: None,
            seed: None,
        }
    }

    /// From a configuration.
    ///
    /// # Errors
    /// A file that an option names can't be used.
    pub fn from_config(config: Config) -> Result<Self, Error> {
        Self::assemble(Arc::new(config), None, None, None)
    }

    fn assemble(
        config: Arc<Config>,
        resolver: Option<Arc<dyn Resolve>>,
        dial: Option<Arc<dyn Dial>>,
        seed: Option<u64>,
    ) -> Result<Self, Error> {
        let settling = Settling::new(seed, config.tuning.seeded_tokens);
        let seed = seed.unwrap_or_else(process_seed);
        let resolver = resolver.unwrap_or_else(|| {
            Arc::new(Resolver::new(
                config.resolver,
                config.dns_servers.clone(),
                config.tuning.resolve_timeout,
            ))
        });
        let opener = Opener::new(Arc::clone(&config), dial.unwrap_or_else(|| Arc::new(TcpDial)));
        let opener = Arc::new(opener.map_err(|f| {
            Error::new(Code::UnusableFile, Class::Permanent, f.to_string()).at_stage(Stage::Configure)
        })?);
        let look_up = Arc::new(LookUp::new(&config, resolver, seed));
        let monitor = Monitor::new(Arc::clone(&config), Arc::clone(&opener), Arc::clone(&look_up), seed);
        let inner = Inner {
            config,
            opener,
            look_up,
            monitor,
            spares: Arc::default(),
            looking: AtomicBool::new(false),
            seed: AtomicU64::new(seed),
            last_walk: Mutex::default(),
            settling,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.inner.config
    }

    fn start(&self) {
        self.inner.monitor.start();
    }

    /// One walk through the hosts: a session on the first that fits, or the error with every attempt. Each address is
    /// bounded by `connect_timeout`. The wanted role is libpq's `any` unless `target_session_attrs` says otherwise: a
    /// standby will do, so a service that writes must ask for `read-write`.
    ///
    /// # Errors
    /// Permanent where no other try can help; else transient. [`Error::attempts`] has every attempt.
    pub async fn connect(&self) -> Result<Session, Error> {
        self.start();
        let session = self.inner.monitor.recorder.waited(self.attrs(), async {
            self.first_look(self.attrs(), Deadline::NONE).await;
            match self.walk(self.attrs(), Deadline::NONE).await {
                // The primary became known meanwhile: the walk to it is what this one would have been.
                Err(e) if e.code() == Code::Superseded => self.walk(self.attrs(), Deadline::NONE).await,
                result => result,
            }
        });
        session.await.map_err(|e| self.advised(e, self.attrs()))
    }

    /// Like [`Self::connect`], but waits for a host that fits: recovery, a promotion or a full server are waited out
    /// until the time is over.
    ///
    /// # Errors
    /// Permanent ones at once; [`Code::DeadlinePassed`] with the last walk's attempts.
    pub async fn connect_within(&self, patience: Duration) -> Result<Session, Error> {
        self.connect_for(self.attrs(), Limit::of_call(patience)).await
    }

    /// The same for a caller who wants that role.
    async fn connect_for(&self, attrs: SessionAttrs, limit: Limit) -> Result<Session, Error> {
        let session = self.inner.monitor.recorder.waited(attrs, async {
            let session = self.connect_told(attrs, limit.length, &mut |_| {}).await;
            session.map_err(|unopened| unopened.told(limit))
        });
        session.await.map_err(|e| self.advised(e, attrs))
    }

    /// A session for an attempt of a run.
    pub(crate) async fn connect_to_run(&self, writes: bool, deadline: Deadline) -> Result<Session, Error> {
        let attrs = if writes { self.inner.config.work_attrs() } else { self.attrs() };
        let left = deadline.left(clock::now()).unwrap_or(Duration::MAX);
        self.connect_for(attrs, Limit::of_run(left)).await
    }

    /// With the advice to come back later, if that is all that can be said: the wanted host is sought.
    pub(crate) fn advised(&self, e: Error, attrs: SessionAttrs) -> Error {
        if e.class() == Class::Transient && e.retry_after().is_none() && self.searching(attrs) {
            e.with_retry_after(LATER)
        } else {
            e
        }
    }

    /// The same for a role of its own, on no caller's account.
    pub(crate) async fn connect_as(&self, attrs: SessionAttrs, patience: Duration) -> Result<Session, Error> {
        let session = self.connect_told(attrs, patience, &mut |_| {}).await;
        session.map_err(|unopened| unopened.told(Limit::of_call(patience)))
    }

    /// The same; `failed` hears of every walk that led nowhere.
    pub(crate) async fn connect_told(
        &self,
        attrs: SessionAttrs,
        patience: Duration,
        failed: &mut (dyn FnMut(&Error) + Send),
    ) -> Result<Session, Unopened> {
        self.start();
        let deadline = Deadline::after(patience);
        self.inner.monitor.wanted(true);
        let _done = Wanted(Arc::clone(&self.inner.monitor));
        let mut changes = self.inner.monitor.changes();
        let mut pause = PAUSE_FIRST;
        // The monitor asks every host many times a second while it searches. Walking the list beside it would only
        // load hosts that are busy being promoted.
        if self.searching(attrs) {
            self.until_fits(attrs, &mut changes, Deadline::after(self.jittered(PAUSE_MAX)).min(deadline))
                .await;
        }
        self.first_look(attrs, deadline).await;
        let mut before: Option<Error> = None;
        loop {
            let e = match self.told(attrs) {
                Some(e) => e,
                None => match self.walk(attrs, deadline).await {
                    Ok(s) => return Ok(s),
                    Err(e) => e,
                },
            };
            lock(&self.inner.last_walk).1 = Some(e.copy());
            failed(&e);
            let now = clock::now();
            if let (Code::DeadlinePassed | Code::Overloaded, Some(whole)) = (e.code(), before) {
                // A walk that was cut off, or never had its turn, says nothing; the one before it does.
                let attempts = [whole.attempts(), e.attempts()].concat();
                return Err(Unopened { error: whole.with_attempts(attempts), late: true });
            }
            let over = matches!(e.code(), Code::DeadlinePassed | Code::Overloaded);
            if e.class() != Class::Transient || over {
                return Err(Unopened { error: e, late: false });
            }
            if deadline.passed(now) {
                return Err(Unopened { error: e, late: true });
            }
            let wait = if self.searching(attrs) { PAUSE_MAX } else { pause };
            pause = pause.mul_f64(1.6).min(PAUSE_MAX);
            let again = Deadline::after(self.jittered(wait)).min(deadline);
            self.until_fits(attrs, &mut changes, again).await;
            if deadline.passed(clock::now()) {
                return Err(Unopened { error: e, late: true });
            }
            before = Some(e);
        }
    }

    /// A pool of sessions by the connection string's options (`pool_max_conns`, …).
    ///
    /// ```
    /// # fn f() -> Result<(), pgfollow::Error> {
    /// let connector = pgfollow::Connector::new("host=db-a,db-b dbname=orders user=app pool_max_conns=20")?;
    /// let writes = connector.pool();
    /// let reads = connector.pool_with(|o| o.attrs(pgfollow::SessionAttrs::PreferStandby))?;
    /// # let _ = (writes, reads); Ok(()) }
    /// # f().unwrap();
    /// ```
    pub fn pool(&self) -> Pool {
        self.pool_with(|o| o).expect("the configuration's own options were checked when it was built")
    }

    /// A pool whose options differ from the connection string's.
    ///
    /// # Errors
    /// Options out of their ranges ([`PoolOptions`] has them), or that contradict each other.
    pub fn pool_with(&self, change: impl FnOnce(PoolOptions) -> PoolOptions) -> Result<Pool, Error> {
        let seed = self.inner.next_seed();
        Pool::new(self.clone(), change(PoolOptions::of(&self.inner.config)), seed)
    }

    /// What another caller's walk ended with, a moment ago: while a primary is sought, one walks for all. Walks of all
    /// callers would load hosts that are busy being promoted, and their logins would be missing from the rate when the
    /// primary is there.
    fn told(&self, attrs: SessionAttrs) -> Option<Error> {
        if !self.searching(attrs) {
            return None;
        }
        let mut last = lock(&self.inner.last_walk);
        let now = clock::now();
        if last.0.is_none_or(|began| now - began >= PAUSE_MAX) {
            last.0 = Some(now);
            return None;
        }
        let none =
            || Error::new(Code::NoHostFits, Class::Transient, "no host is known to be primary, it is sought");
        Some(last.1.as_ref().map_or_else(none, Error::copy))
    }

    /// Whether the monitor is looking for the only host that would do.
    pub(crate) fn searching(&self, attrs: SessionAttrs) -> bool {
        attrs.needs_primary()
            && self.inner.config.monitor != MonitorMode::Off
            && self.inner.monitor.settled()
            && self.inner.monitor.snapshot().cluster.search_since.is_some()
    }

    /// Waits until the topology knows a host that fits, at most until then.
    async fn until_fits(&self, attrs: SessionAttrs, changes: &mut Changed, until: Deadline) {
        if self.searching(attrs) {
            self.inner.spares.start(&self.inner.monitor);
        }
        loop {
            changes.mark_unchanged();
            if self.fits(attrs) || until.bound(changes.changed()).await.is_err() {
                return;
            }
        }
    }

    /// Whether the topology knows, freshly, a host of a role that only one host has.
    fn fits(&self, attrs: SessionAttrs) -> bool {
        attrs.needs_primary() && self.inner.monitor.primary().is_some_and(|(_, fresh)| fresh)
    }

    /// The process's first write session asks every host. Those that are wanted meanwhile wait for what is seen then;
    /// each asking for itself would be a storm of logins (workers × hosts) at every start of a service.
    async fn first_look(&self, attrs: SessionAttrs, deadline: Deadline) {
        let Some(wait) = self.first_write(attrs) else { return };
        if !self.inner.looking.swap(true, Ordering::Relaxed) {
            return;
        }
        let until = Deadline::after(wait).min(deadline);
        let mut changes = self.inner.monitor.changes();
        while !self.inner.monitor.settled() && until.bound(changes.changed()).await.is_ok() {}
    }

    /// How long a session that is to write waits for all hosts, as long as nothing is known of them.
    fn first_write(&self, attrs: SessionAttrs) -> Option<Duration> {
        let Inner { config, monitor, .. } = &*self.inner;
        let writes = attrs.needs_primary();
        let wanted = writes && config.monitor != MonitorMode::Off && config.hosts.len() > 1;
        (wanted && !monitor.settled()).then_some(config.tuning.first_write_wait)
    }

    async fn walk(&self, attrs: SessionAttrs, deadline: Deadline) -> Result<Session, Error> {
        let Inner { config, opener, look_up, monitor, .. } = &*self.inner;
        let writes = attrs.needs_primary();
        let tuning = &config.tuning;
        let known = || monitor.primary().filter(|(_, fresh)| writes && *fresh).map(|(c, _)| c);
        if let Some(host) = known().map(|c| monitor.place(&c).0)
            && let Some(opened) = self.inner.spares.take(host, attrs, monitor, deadline).await
        {
            monitor.opened(&opened);
            // Its own answer can be what shows that another one is right.
            if monitor.forbidden(host, attrs).is_none() {
                return Ok(Session::new(connect::Arrived::ahead(opened), Arc::clone(opener)));
            }
        }
        let to = known();
        let host = to.as_ref().map(|c| monitor.place(c).0);
        let turn = self.turn(to.as_ref(), deadline).await?;
        let options = Options {
            walk: config.host_walk,
            sslmode: config.tls.sslmode,
            attrs,
            load_balance: config.load_balance_hosts,
            connect_timeout: config.connect_timeout,
            stagger: tuning.stagger,
            stagger_min: tuning.stagger_min,
            fastest_rtt: monitor.fastest_rtt(),
            prefer: known(),
            slow_login: monitor.pace.takes(host),
            first_write: self.first_write(attrs),
            local_dir: config.local_socket_dir.clone(),
        };
        let tools = Tools {
            opener,
            look_up,
            monitor,
            purpose: Purpose::Caller(attrs),
            seed: self.inner.next_seed(),
            turn: Mutex::new(Some(turn)),
        };
        let arrived = Box::pin(connect::walk(&tools, options, &config.hosts, deadline)).await?;
        Ok(Session::new(arrived, Arc::clone(opener)))
    }

    /// Waits until a login there may begin, and says how long that took.
    async fn turn(&self, to: Option<&Candidate>, deadline: Deadline) -> Result<(Turn, Duration), Error> {
        let monitor = &self.inner.monitor;
        monitor.pace.admit(deadline.left(clock::now()).unwrap_or(TURN))?;
        let host = to.map(|c| monitor.place(c).0);
        let asked = clock::now();
        let turn = deadline.bound(monitor.pace.turn(host, Price::Token)).await;
        let waited = clock::now() - asked;
        let turn = turn.map_err(|clock::Elapsed| {
            monitor.recorder.stage(Stage::Pace, waited);
            connect::never_began(to, waited)
        })?;
        if deadline.left(clock::now()).is_some_and(|left| left < monitor.pace.takes(host)) {
            turn.done(Ended::NotBegun);
            monitor.recorder.stage(Stage::Pace, waited);
            return Err(connect::never_began(to, waited));
        }
        Ok((turn, waited))
    }

    fn attrs(&self) -> SessionAttrs {
        self.inner.config.target_session_attrs.unwrap_or(SessionAttrs::Any)
    }

    pub(crate) fn settling(&self) -> &Settling {
        &self.inner.settling
    }

    /// Whether a session's host must not be written to any more, though it may take writes.
    pub(crate) fn is_superseded(&self, session: &Session) -> bool {
        self.inner.monitor.forbidden(session.member().host, SessionAttrs::ReadWrite).is_some()
    }

    /// The promotions that the monitor watched.
    pub(crate) fn promotions(&self) -> Vec<Promotion> {
        self.inner.monitor.promotions()
    }

    pub(crate) fn jittered(&self, d: Duration) -> Duration {
        use rand::{RngExt, SeedableRng};
        let seed = self.inner.next_seed();
        let share = self.inner.config.tuning.jitter;
        d.mul_f64(rand::rngs::StdRng::seed_from_u64(seed).random_range(1.0 - share..=1.0 + share))
    }

    /// Listens to these channels on whichever host takes writes, whatever `target_session_attrs` says. The names are
    /// exact: `NOTIFY Orders` without quotes goes to `orders`.
    ///
    /// # Errors
    /// A name that PostgreSQL can't have: empty, over 63 bytes, or with a NUL.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn listener<C: Into<String>>(
        &self,
        channels: impl IntoIterator<Item = C>,
    ) -> Result<Listener, Error> {
        Listener::start(self.clone(), channels.into_iter().map(Into::into))
    }

    pub(crate) fn monitor(&self) -> &Arc<Monitor> {
        &self.inner.monitor
    }

    /// What is known of every host now.
    pub fn topology(&self) -> Arc<Snapshot> {
        self.start();
        self.inner.monitor.snapshot_now()
    }

    /// What is known of every name: addresses, TTL, age.
    pub fn names(&self) -> Vec<NameReport> {
        self.inner.look_up.report()
    }

    /// What this connector did and met since it was made, and where the time of each outage went. Text by
    /// [`Report::to_text`], JSON by serde (`docs/report.schema.json`), a page by `pgfollow report FILE --html OUT`.
    pub fn report(&self) -> Report {
        Report::compose(&self.inner.monitor, self.names())
    }

    /// Everything observable, from now on. A reader that falls 1,024 events behind is told how many it missed.
    pub fn events(&self) -> broadcast::Receiver<Event> {
        self.inner.monitor.events()
    }

    /// When the monitor's task last ran: it runs at least each second.
    pub fn monitor_last_run(&self) -> Moment {
        self.inner.monitor.last_run()
    }

    /// Says that a host of a lower timeline is the right primary: the operator gave up the newer one.
    ///
    /// # Errors
    /// When no host of that name or address is known.
    pub fn accept_term(&self, host: &str) -> Result<(), Error> {
        self.start();
        let snapshot = self.inner.monitor.snapshot();
        let id: Option<HostId> =
            snapshot.hosts.iter().find(|h| named(host, &h.name, &h.address)).map(|h| h.id);
        let Some(host_id) = id else {
            return Err(Error::new(
                Code::InvalidOption,
                Class::Permanent,
                format!("accept_term({host:?}): no host of that name or address is known"),
            ));
        };
        self.inner.monitor.feed(Input::AcceptTerm { host: host_id });
        Ok(())
    }
}

fn named(wanted: &str, name: &str, address: &Address) -> bool {
    match address {
        Address::Tcp(a) => wanted == name || wanted == a.to_string() || wanted == a.ip().to_string(),
        Address::Unix(p) => wanted == name || p.to_str() == Some(wanted),
    }
}

impl FromStr for Connector {
    type Err = Error;
    fn from_str(s: &str) -> Result<Self, Error> {
        Self::new(s)
    }
}

/// A caller that waits for a session, until it is dropped.
struct Wanted(Arc<Monitor>);

impl Drop for Wanted {
    fn drop(&mut self) {
        self.0.wanted(false);
    }
}

/// Differs from process to process and from connector to connector, so that a fleet doesn't march in step.
pub(crate) fn process_seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::hash::RandomState::new().build_hasher().finish()
}
