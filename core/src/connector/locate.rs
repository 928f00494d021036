//! For drivers that dial by themselves: where the wanted host is, and their sockets under guard.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use super::{Connector, Wanted};
use crate::changes::Changed;
use crate::clock::{self, Deadline, Moment};
use crate::config::{Config, LoadBalanceHosts, SessionAttrs};
use crate::connect::{Limit, Unopened};
use crate::decide::locate::pick;
use crate::decide::pace::Ended;
use crate::decide::topology::{ConnectKind, EndCause, Input, MemberId, Role};
use crate::error::{Class, Code, Error, SqlState};
use crate::guard::{self, Descriptor, Guard, Guarded};
use crate::host::{Address, Candidate, HostId};
use crate::lock;
use crate::pace::Turn;
use crate::role::startup_options;

/// Where a driver is to dial: one address, for one session. It carries a login's turn ([`crate::config`],
/// `max_connect_rate`), which [`Connector::guard`] gives back, else `connect_timeout`, or the last clone's end.
#[derive(Clone)]
pub struct Target {
    config: Arc<Config>,
    place: Place,
    /// The login that it stands for.
    ticket: Arc<Mutex<Option<(Turn, Moment)>>>,
    /// The guarded socket of that session, once there is one.
    guard: Arc<Mutex<Option<Guard>>>,
}

/// One host, as it was known when it was chosen.
#[derive(Clone, Debug)]
struct Place {
    candidate: Candidate,
    host: HostId,
    generation: u64,
    role: Option<Role>,
    timeline: Option<u32>,
    /// It is to be written to.
    writes: bool,
    /// Its major version, if it is known to be a server itself.
    proved: Option<u32>,
}

impl std::fmt::Debug for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.place.fmt(f)
    }
}

impl Target {
    /// The name as configured: what a certificate is checked against.
    pub fn host(&self) -> &str {
        &self.place.candidate.name
    }

    /// Where to dial.
    pub fn address(&self) -> &Address {
        &self.place.candidate.address
    }

    /// The IP address; `None` for a Unix socket.
    pub fn hostaddr(&self) -> Option<IpAddr> {
        match self.address() {
            Address::Tcp(a) => Some(a.ip()),
            Address::Unix(_) => None,
        }
    }

    /// The port; for a Unix socket the one in its file's name.
    pub fn port(&self) -> u16 {
        match self.address() {
            Address::Tcp(a) => a.port(),
            Address::Unix(path) => path.extension().and_then(|e| e.to_str()?.parse().ok()).unwrap_or(5432),
        }
    }

    /// What the host last said of itself.
    pub fn role(&self) -> Option<Role> {
        self.place.role
    }

    /// Its timeline, if it is not in recovery and may be read.
    pub fn timeline(&self) -> Option<u32> {
        self.place.timeline
    }

    /// The guard of the socket that was last guarded with this target: it stays when the driver closes the socket.
    pub fn guard(&self) -> Option<Guard> {
        lock(&self.guard).clone()
    }

    /// The keywords for libpq that lead there (`PQconnectdbParams`): host and hostaddr, so that `verify-full` stays right,
    /// and whatever else the connection string has that libpq knows, the password of this host included. Where the host is
    /// known to be a server itself, `options` make it drop an orphaned session within seconds.
    pub fn keywords(&self) -> Vec<(String, String)> {
        let candidate = &self.place.candidate;
        let mut out: Vec<(String, String)> = Vec::new();
        let mut put = |key: &str, value: String| out.push((key.to_owned(), value));
        match self.address() {
            Address::Tcp(a) => {
                put("host", candidate.name.to_string());
                put("hostaddr", a.ip().to_string());
            }
            Address::Unix(path) => {
                let dir = path.parent().map_or_else(String::new, |d| d.display().to_string());
                put("host", dir);
            }
        }
        put("port", self.port().to_string());
        if let Some(Some(password)) = self.config.passwords.get(candidate.spec) {
            put("password", password.reveal().to_owned());
        }
        if self.place.writes {
            // What became of the host since it was chosen the server says at login.
            put("target_session_attrs", SessionAttrs::ReadWrite.keyword().to_owned());
        }
        let ours = self.place.proved.map(startup_options);
        // What the string says itself comes behind, and so wins.
        let options = ours.into_iter().chain(self.config.options.clone()).collect::<Vec<_>>().join(" ");
        if !options.is_empty() {
            put("options", options);
        }
        const OURS: [&str; 7] =
            ["host", "hostaddr", "port", "passfile", "target_session_attrs", "load_balance_hosts", "options"];
        let rest = self.config.libpq_keywords();
        out.extend(
            rest.into_iter().filter(|(k, _)| !OURS.contains(k)).map(|(k, v)| (k.to_owned(), v.to_owned())),
        );
        out
    }
}

impl Connector {
    /// Where the wanted host is, for a driver that dials by itself; the role is that of [`Connector::pool`]. Waits for it
    /// like [`Connector::connect_within`], and for its turn to log in.
    ///
    /// ```no_run
    /// # async fn f(connector: &pgfollow::Connector) -> Result<(), pgfollow::Error> {
    /// let target = connector.locate(std::time::Duration::from_secs(30)).await?;
    /// // The driver dials target.hostaddr(), port(), and logs in; then:
    /// # let fd = 3;
    /// let guard = connector.guard(fd, &target)?;
    /// # let _ = guard; Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Connector::connect_within`].
    pub async fn locate(&self, patience: Duration) -> Result<Target, Error> {
        self.locate_as(self.inner.config.work_attrs(), patience).await
    }

    /// The same for a role of its own.
    ///
    /// # Errors
    /// As [`Connector::connect_within`].
    pub async fn locate_as(&self, attrs: SessionAttrs, patience: Duration) -> Result<Target, Error> {
        let limit = Limit::of_call(patience);
        let located = self.inner.monitor.recorder.waited(attrs, async {
            let target = self.located(attrs, Deadline::after(patience)).await;
            target.map_err(|unopened| unopened.told(limit))
        });
        located.await.map_err(|e| self.advised(e, attrs))
    }

    async fn located(&self, attrs: SessionAttrs, deadline: Deadline) -> Result<Target, Unopened> {
        self.start();
        let monitor = &self.inner.monitor;
        monitor.wanted(true);
        let _done = Wanted(Arc::clone(monitor));
        let mut changes = monitor.changes();
        let mut nobody = |_: &Error| {};
        loop {
            let Some(place) = self.known(attrs) else {
                let left = deadline.left(clock::now()).unwrap_or(Duration::MAX);
                let asked = tokio::select! {
                    biased;
                    () = self.until_known(attrs, &mut changes) => continue,
                    session = self.connect_told(attrs, left, &mut nobody) => session?,
                };
                // Its login was somebody's turn; the driver's own is another one.
                let place = self.place_of(asked.member().host, attrs);
                let Some(place) = place else { continue };
                drop(asked);
                return self.target(place, deadline).await;
            };
            let target = self.target(place, deadline).await?;
            // The queue may have been long.
            if self.known(attrs).is_none_or(|now| now.host == target.place.host) {
                return Ok(target);
            }
            if let Some((turn, _)) = lock(&target.ticket).take() {
                turn.done(Ended::NotBegun);
            }
        }
    }

    /// The host that fits, as far as that is known.
    fn known(&self, attrs: SessionAttrs) -> Option<Place> {
        let monitor = &self.inner.monitor;
        let host = if attrs.needs_primary() {
            let (candidate, _) = monitor.primary().filter(|(_, fresh)| *fresh)?;
            monitor.place(&candidate).0
        } else {
            let balanced = self.inner.config.load_balance_hosts == LoadBalanceHosts::Random;
            let first = if balanced { usize::try_from(self.inner.next_seed()).unwrap_or(0) } else { 0 };
            pick(&monitor.snapshot_now().hosts, attrs, first)?
        };
        self.place_of(host, attrs)
    }

    fn place_of(&self, host: HostId, attrs: SessionAttrs) -> Option<Place> {
        let monitor = &self.inner.monitor;
        let candidate = monitor.candidate(host)?;
        let snapshot = monitor.snapshot_now();
        let seen = snapshot.host(host)?;
        Some(Place {
            candidate,
            host,
            generation: seen.generation,
            role: seen.role,
            timeline: seen.timeline,
            writes: attrs == SessionAttrs::ReadWrite,
            proved: monitor.proved_version(host),
        })
    }

    async fn until_known(&self, attrs: SessionAttrs, changes: &mut Changed) {
        loop {
            changes.mark_unchanged();
            if self.known(attrs).is_some() {
                return;
            }
            if changes.changed().await.is_err() {
                // The monitor is gone, and nothing changes any more.
                return std::future::pending().await;
            }
        }
    }

    /// Waits for a login's turn there.
    async fn target(&self, place: Place, deadline: Deadline) -> Result<Target, Unopened> {
        let (turn, _) = self.turn(Some(&place.candidate), deadline).await.map_err(|error| {
            let late = error.code() == Code::DeadlinePassed;
            Unopened { error, late }
        })?;
        let ticket = Arc::new(Mutex::new(Some((turn, clock::now()))));
        let target = Target { config: Arc::clone(&self.inner.config), place, ticket, guard: Arc::default() };
        if let Some(length) = self.inner.config.connect_timeout {
            self.inner.monitor.expire(Arc::downgrade(&target.ticket), length);
        }
        Ok(target)
    }

    /// Puts a driver's socket under guard: its options are set, its silence makes the host suspect, and it is cut the
    /// moment its host is no longer the right one. `fd` is the descriptor of an established connection to the target; it
    /// stays the driver's own, is never closed here, and nothing has to be freed. To be called after each login.
    ///
    /// # Errors
    /// [`Code::WrongCall`] where the descriptor is no socket, or leads elsewhere.
    pub fn guard(&self, fd: i32, target: &Target) -> Result<Guard, Error> {
        self.start();
        let descriptor = Descriptor::open(fd)
            .map_err(|e| wrong(format!("guard: descriptor {fd} can't be guarded: {e}")))?;
        if let Address::Tcp(to) = target.address()
            && descriptor.peer().map(plain) != Some(plain(*to))
        {
            let peer = descriptor.peer().map_or_else(|| "no TCP peer".to_owned(), |p| p.to_string());
            return Err(wrong(format!(
                "guard: descriptor {fd} leads to {peer}, and its target is {to}: guard each socket with the target that \
                 it was dialled to"
            )));
        }
        let guard = self.guarded(&descriptor, target.place.candidate.clone(), target.place.host, || {
            target.place.generation
        });
        if let Some((turn, since)) = lock(&target.ticket).take() {
            turn.done(Ended::LoggedIn(clock::now() - since));
        }
        *lock(&target.guard) = Some(guard.clone());
        Ok(guard)
    }

    fn guarded(
        &self,
        descriptor: &Descriptor,
        candidate: Candidate,
        host: HostId,
        generation: impl FnOnce() -> u64,
    ) -> Guard {
        let monitor = &self.inner.monitor;
        if let Some(known) = monitor.guarded(&descriptor.number()) {
            return Guard(known);
        }
        let options = &self.inner.config.socket;
        let guarded = Arc::new(Guarded::new(descriptor, host, candidate, generation(), options));
        monitor.guard(&guarded);
        Guard(guarded)
    }

    /// The guard of a descriptor that was guarded before.
    pub fn guard_of(&self, fd: i32) -> Option<Guard> {
        self.inner.monitor.guarded(&Descriptor::open(fd).ok()?.number()).map(Guard)
    }

    /// Guards this process's TCP sockets to known hosts that aren't guarded yet, for drivers that tell no descriptor.
    /// Sockets of pgfollow's own sessions are none of them. Says how many are new.
    ///
    /// # Errors
    /// [`Code::WrongCall`] on a system that doesn't list descriptors (other than Linux).
    pub fn guard_peers(&self) -> Result<usize, Error> {
        self.start();
        let monitor = &self.inner.monitor;
        let peers = guard::peers().map_err(|e| wrong(format!("guard_peers: {e}")))?;
        let mut new = 0;
        for (descriptor, peer) in peers {
            let Some((host, candidate)) = monitor.place_at(plain(peer)) else { continue };
            if monitor.guarded(&descriptor.number()).is_none() {
                self.guarded(&descriptor, candidate, host, || monitor.generation(host));
                new += 1;
            }
        }
        Ok(new)
    }

    /// An SQLSTATE that a driver met, on a session to that target or while it logged in there.
    pub fn feed(&self, target: &Target, sqlstate: SqlState) {
        let monitor = &self.inner.monitor;
        let Place { host, generation, .. } = target.place;
        let member = MemberId(lock(&target.guard).as_ref().map_or(0, |g| g.0.id));
        let state = sqlstate.as_str();
        match state {
            "25006" => monitor.feed(Input::SessionSqlstate {
                member,
                host,
                sqlstate,
                in_hot_standby: None,
                read_only_block: false,
            }),
            "57P01" | "57P02" => {
                let cause = EndCause::Sqlstate(sqlstate);
                monitor.feed(Input::SessionEnded { member, host, generation, cause });
            }
            "57P03" | "53300" | "28P01" | "3D000" | "28000" => {
                monitor.feed(Input::ConnectFailed { host, kind: ConnectKind::of_sqlstate(sqlstate) });
            }
            _ => {}
        }
    }
}

/// An IPv4 address in IPv6 clothes is that address.
fn plain(a: SocketAddr) -> SocketAddr {
    SocketAddr::new(a.ip().to_canonical(), a.port())
}

fn wrong(message: String) -> Error {
    Error::new(Code::WrongCall, Class::Permanent, message)
}

/// What a turn is kept in until somebody gives it back.
pub(crate) type Ticket = Weak<Mutex<Option<(Turn, Moment)>>>;
