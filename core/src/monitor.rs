//! Watches every host, and carries out what [`crate::decide::topology`] decides.
//!
//! The shell around the state machine: facts come in through [`Monitor::feed`] from wherever they are seen (probe
//! sessions, callers' sessions, connects), and its actions are carried out at once, in order, under the same lock;
//! none of them waits. One task ([`watch`]) runs the timers, samples the sessions' taps and looks names up; it is
//! restarted should it die, and its last run is visible.

mod guards;
mod probes;
mod trouble;
mod watch;

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::runtime::Handle;
use tokio::sync::{Notify, broadcast};
use tokio::task::JoinHandle;

use crate::changes::{Changed, Changes};
use crate::clock::{self, Moment};
use crate::config::{Config, MonitorMode, SessionAttrs};
use crate::decide::outcome::{Promotion, Promotions};
use crate::decide::topology::{
    Action, Cause, ConnectKind, EndCause as Ended, InFlight, Input, MemberId, ProbeState, RoleFacts,
    Snapshot, Topology, TopologyEvent, TopologyOptions,
};
use crate::error::{Code, SqlState};
use crate::event::{Event, EventKind};
use crate::failure::{Failed, Failure};
use crate::guard::Guarded;
use crate::host::{Address, Candidate, HostId};
use crate::lock;
use crate::lookup::{self, LookUp};
use crate::open::{Opened, Opener};
use crate::pace::Governor;
use crate::report::Recorder;
use crate::session::cancel;
use crate::session::member::{EndCause, Member};
use crate::tap::News;

use probes::Probes;
use trouble::Troubles;

/// Events kept for readers that are slow; a reader that falls further behind is told how many it missed.
const EVENTS: usize = 1_024;
/// For this long after a host was healthy, 28000 is taken for a passing state: some managed services answer it while
/// they restart.
const HEALTHY_MEMORY: Duration = Duration::from_secs(60);

/// The watcher of one connector.
pub(crate) struct Monitor {
    pub(crate) config: Arc<Config>,
    pub(crate) opener: Arc<Opener>,
    pub(crate) look_up: Arc<LookUp>,
    pub(crate) recorder: Arc<Recorder>,
    /// The configured candidates' names, and whether each is looked up.
    labels: Vec<(Arc<str>, bool)>,
    topology: Mutex<Topology>,
    places: Mutex<Places>,
    promotions: Mutex<Promotions>,
    /// By number, so that those who are ended together are ended in one order.
    members: Mutex<BTreeMap<u64, Arc<Member>>>,
    /// Foreign drivers' sockets, by their numbers among the members.
    guards: Mutex<BTreeMap<u64, Arc<Guarded>>>,
    probes: Mutex<Probes>,
    snapshot: ArcSwap<Snapshot>,
    changes: Changes,
    events: broadcast::Sender<Event>,
    /// The watch task's timers may have changed.
    wake: Arc<Notify>,
    last_run: AtomicU64,
    waiting: AtomicU64,
    searching: AtomicBool,
    /// The connector is gone: nothing new is begun.
    closed: AtomicBool,
    /// How fast callers log in; the monitor's own dials have a limit of theirs.
    pub(crate) pace: Arc<Governor>,
    /// The runtime that was started in last, and the watch task there.
    running: Mutex<Option<Running>>,
}

struct Running {
    runtime: Handle,
    /// `None` with `monitor=off`.
    watch: Option<JoinHandle<()>>,
}

/// The numbers of addresses: the same for the same address and port for ever.
#[derive(Default)]
struct Places {
    ids: HashMap<Address, HostId>,
    candidates: Vec<Candidate>,
    healthy: HashMap<HostId, Moment>,
    /// Those that are servers themselves, with their major versions.
    proved: HashMap<HostId, u32>,
    troubles: Troubles,
}

impl Monitor {
    pub(crate) fn new(
        config: Arc<Config>,
        opener: Arc<Opener>,
        look_up: Arc<LookUp>,
        seed: u64,
    ) -> Arc<Self> {
        let pace =
            Governor::new(config.max_connect_rate, config.tuning.handshakes, config.tuning.jitter, seed);
        let topology = Topology::new(TopologyOptions::from_config(&config, seed));
        let labels = config.hosts.iter().map(|h| (Arc::from(h.label()), h.is_looked_up())).collect();
        let snapshot = ArcSwap::from_pointee(topology.snapshot(clock::now()));
        let monitor = Arc::new(Self {
            config,
            opener,
            look_up,
            recorder: Recorder::new(),
            labels,
            topology: Mutex::new(topology),
            places: Mutex::default(),
            promotions: Mutex::default(),
            members: Mutex::default(),
            guards: Mutex::default(),
            probes: Mutex::default(),
            snapshot,
            changes: Changes::default(),
            events: broadcast::Sender::new(EVENTS),
            wake: Arc::new(Notify::new()),
            last_run: AtomicU64::new(0),
            waiting: AtomicU64::new(0),
            searching: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            pace,
            running: Mutex::default(),
        });
        monitor.opener.watched_by(Arc::downgrade(&monitor));
        monitor
    }

    /// Starts the watch task (not with `monitor=off`), again if the runtime that it ran in is gone. It ends when the
    /// last other owner of the monitor is gone. Outside of a runtime nothing can run, so nothing is started.
    pub(crate) fn start(self: &Arc<Self>) {
        let Ok(runtime) = Handle::try_current() else { return };
        let mut running = lock(&self.running);
        let first = running.is_none();
        let over = |r: &Running| r.watch.as_ref().is_some_and(JoinHandle::is_finished);
        if !first && !running.as_ref().is_some_and(over) {
            return;
        }
        let watching = self.config.monitor != MonitorMode::Off;
        let watch = watching.then(|| runtime.spawn(watch::supervise(Arc::downgrade(self))));
        *running = Some(Running { runtime, watch });
        drop(running);
        if !first {
            return self.resume();
        }
        for c in lookup::fixed(&self.config) {
            self.known(&c);
        }
    }

    /// What ran in a runtime that is gone will never answer.
    fn resume(self: &Arc<Self>) {
        for h in &self.snapshot_now().hosts {
            match h.probe {
                ProbeState::Dialling => {
                    self.feed(Input::ProbeConnectFailed { host: h.id, kind: ConnectKind::Other });
                }
                ProbeState::Open | ProbeState::Asked => {
                    lock(&self.probes).close(h.id);
                    self.feed(Input::ProbeFailed { host: h.id, cause: Ended::Local });
                }
                ProbeState::None | ProbeState::Short => {}
            }
        }
    }

    /// Runs a task here, or where the monitor was started: a caller's future may be dropped outside of any runtime.
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> Option<JoinHandle<()>> {
        let runtime =
            Handle::try_current().ok().or_else(|| lock(&self.running).as_ref().map(|r| r.runtime.clone()));
        Some(runtime?.spawn(task))
    }

    /// Takes one fact and carries out what follows from it.
    pub(crate) fn feed(self: &Arc<Self>, input: Input) {
        match &input {
            Input::ProbeConnected { host, row, .. } | Input::ProbeAnswered { host, row, .. } => {
                lock(&self.promotions).note(*host, row);
            }
            Input::SessionOpened { host, facts: RoleFacts { row: Some(row), .. }, .. }
            | Input::SessionTerm { host, row, .. } => lock(&self.promotions).primary(*host, row),
            _ => {}
        }
        let mut topology = lock(&self.topology);
        let now = clock::now();
        self.recorder.input(&input, &self.labels, now);
        let actions = topology.input(input, now);
        self.carry_out(&topology, actions, now);
        drop(topology);
        self.wake.notify_one();
    }

    fn timer(self: &Arc<Self>) {
        let mut topology = lock(&self.topology);
        let now = clock::now();
        if topology.next_timer() <= now {
            let actions = topology.timer(now);
            self.carry_out(&topology, actions, now);
        }
    }

    fn carry_out(self: &Arc<Self>, topology: &Topology, actions: Vec<Action>, now: Moment) {
        let watching = self.config.monitor != MonitorMode::Off && !self.is_closed();
        for action in actions {
            match action {
                Action::Dial { host, connect_within, login_within } => {
                    if watching && let Some(to) = self.candidate(host) {
                        probes::dial(self, host, to, connect_within, login_within);
                    }
                }
                Action::Probe { host } => probes::ask(self, host),
                Action::CloseProbe { host } => lock(&self.probes).close(host),
                Action::Clear { host, generation, cause, idle, in_flight } => {
                    self.clear(host, generation, cause, idle, in_flight);
                }
                Action::PingIdle { host } => {
                    for m in self.members_of(host) {
                        m.doubt();
                    }
                }
                Action::Retire { member } => {
                    if let Some(m) = lock(&self.members).get(&member.0) {
                        m.retire();
                    }
                    self.guard_retired(member);
                }
                Action::Search { running } => {
                    self.searching.store(running, Ordering::Relaxed);
                    if watching {
                        self.recorder.search(running, now);
                    }
                    self.look_up.search(running, now);
                }
                Action::SuspectOurselves { .. } => {}
                Action::Publish => {
                    self.snapshot.store(Arc::new(topology.snapshot(now)));
                    self.changes.step();
                }
                Action::Event(event) => {
                    tracing::debug!(target: "pgfollow", ?event, "topology");
                    if matches!(event, TopologyEvent::NewPrimary { .. }) {
                        self.pace.new_primary();
                    }
                    self.tell(EventKind::Topology(event), now);
                }
            }
        }
    }

    /// Ends the members of a host that were born before `generation`, as far as the verdict permits.
    fn clear(self: &Arc<Self>, host: HostId, generation: u64, cause: Cause, idle: bool, in_flight: InFlight) {
        let verdict = self.verdict(host, cause);
        let replaced = matches!(
            cause,
            Cause::Superseded { .. }
                | Cause::Succeeded { .. }
                | Cause::TermAccepted { .. }
                | Cause::OtherCluster
        );
        self.clear_guards(host, generation, &verdict, in_flight, replaced);
        for m in self.members_of(host).into_iter().filter(|m| m.generation() < generation) {
            // Whatever becomes of what runs on it: it is not lent again.
            m.retire();
            if !m.tap.busy() {
                // A block between two statements is work under way: where calls may go on, so may it.
                let under_way = in_flight == InFlight::Leave && !replaced && m.tap.inside();
                if idle && !under_way {
                    m.end(verdict.clone());
                }
                continue;
            }
            let harmless = m.tap.harmless();
            match in_flight {
                InFlight::Close => m.end(verdict.clone()),
                InFlight::CloseUnlessHarmless { grace } if harmless && !grace.is_zero() => {
                    self.end_after(m, grace, verdict.clone());
                }
                InFlight::CloseUnlessHarmless { .. } => m.end(verdict.clone()),
                InFlight::CloseHarmless if harmless => m.end(verdict.clone()),
                // Another one is right: whoever gets the answer to his call here must not send a COMMIT behind it.
                InFlight::Leave | InFlight::CloseHarmless if replaced => m.condemn(verdict.clone()),
                InFlight::Leave | InFlight::CloseHarmless => {}
            }
        }
    }

    /// Gives a harmless request that long to finish, and nothing may follow it: then its session is ended, and what
    /// still runs is cancelled.
    fn end_after(self: &Arc<Self>, member: Arc<Member>, grace: Duration, verdict: EndCause) {
        member.condemn(verdict.clone());
        if !member.tap.harmless() {
            // Something left in that very moment.
            return member.end(verdict);
        }
        let opener = Arc::clone(&self.opener);
        self.spawn(async move {
            let until = clock::now() + grace;
            while member.tap.busy() && clock::now() < until && member.ended().is_none() {
                clock::sleep_until(clock::now() + Duration::from_millis(5)).await;
            }
            let runs = member.tap.busy() && member.ended().is_none() && member.tap.harmless();
            // The caller doesn't wait for the errand.
            member.end(verdict);
            if runs {
                // What can't be cancelled is closed all the same.
                let _ = cancel::send(&opener, &member).await;
            }
        });
    }

    fn verdict(&self, host: HostId, cause: Cause) -> EndCause {
        let name = |h: HostId| self.candidate(h).map_or_else(|| "another host".to_owned(), |c| c.to_string());
        let this = name(host);
        let (code, reason) = match cause {
            Cause::Superseded { by, timeline } => (
                Code::Superseded,
                format!("host {this} was superseded: {} is primary on timeline {timeline}", name(by)),
            ),
            Cause::Succeeded { by } => {
                (Code::Superseded, format!("host {this} was superseded: {} is primary now", name(by)))
            }
            Cause::TermAccepted { host: h } => {
                (Code::Superseded, format!("host {this} was superseded: the operator accepted {}", name(h)))
            }
            Cause::Restarted => (Code::HostGone, format!("host {this} was restarted")),
            Cause::Demoted => (Code::HostGone, format!("host {this} was demoted: it is in recovery now")),
            Cause::Fenced => (Code::HostGone, format!("host {this} was fenced: it is read-only now")),
            Cause::SocketsEnded => {
                (Code::HostGone, format!("host {this} ended its other sessions and doesn't answer"))
            }
            Cause::Silence => (Code::HostGone, format!("host {this} is silent")),
            other => (Code::HostGone, format!("host {this} is not to be used any more ({other:?})")),
        };
        EndCause::Verdict { code, reason }
    }

    /// The number of a candidate's address and its generation now. Tells the topology of an address that is new.
    pub(crate) fn place(self: &Arc<Self>, c: &Candidate) -> (HostId, u64) {
        let (id, new) = self.intern(c);
        if new {
            self.known(c);
        }
        (id, self.generation(id))
    }

    fn intern(&self, c: &Candidate) -> (HostId, bool) {
        let mut places = lock(&self.places);
        if let Some(id) = places.ids.get(&c.address) {
            return (*id, false);
        }
        let id = HostId(u32::try_from(places.candidates.len()).unwrap_or(u32::MAX));
        places.ids.insert(c.address.clone(), id);
        places.candidates.push(c.clone());
        (id, true)
    }

    /// A candidate's name gives this address.
    pub(crate) fn known(self: &Arc<Self>, c: &Candidate) {
        let host = self.intern(c).0;
        self.feed(Input::AddressKnown { host, spec: c.spec, address: c.address.clone() });
    }

    pub(crate) fn generation(&self, host: HostId) -> u64 {
        lock(&self.topology).generation(host)
    }

    pub(crate) fn candidate(&self, host: HostId) -> Option<Candidate> {
        lock(&self.places).candidates.get(usize::try_from(host.0).ok()?).cloned()
    }

    /// The host that takes writes, and whether that knowledge is fresh.
    pub(crate) fn primary(&self) -> Option<(Candidate, bool)> {
        let (id, fresh) = lock(&self.topology).primary(clock::now())?;
        Some((self.candidate(id)?, fresh))
    }

    /// What forbids a session that is to write on a host, writable or not: another one is known to be right.
    pub(crate) fn forbidden(&self, host: HostId, wanted: SessionAttrs) -> Option<Failure> {
        if !wanted.needs_primary() {
            return None;
        }
        lock(&self.topology).superseded(host).map(|seen| Failure::WrongRole { wanted, seen })
    }

    /// The promotions that the probes watched.
    pub(crate) fn promotions(&self) -> Vec<Promotion> {
        lock(&self.promotions).seen().to_vec()
    }

    /// Whether the process has looked around once.
    pub(crate) fn settled(&self) -> bool {
        lock(&self.topology).settled(clock::now())
    }

    /// The quickest round trip to any host.
    pub(crate) fn fastest_rtt(&self) -> Option<Duration> {
        self.snapshot.load().hosts.iter().filter_map(|h| h.rtt_us).min().map(Duration::from_micros)
    }

    /// A caller's connect opened a session (whether or not it wins).
    pub(crate) fn opened(self: &Arc<Self>, s: &Opened) {
        {
            let mut places = lock(&self.places);
            places.healthy.insert(s.member.host, clock::now());
            places.troubles.over(s.member.host);
        }
        lock(&self.members).insert(s.member.id, Arc::clone(&s.member));
        self.feed(Input::SessionOpened {
            member: MemberId(s.member.id),
            host: s.member.host,
            facts: RoleFacts {
                in_recovery: s.role.in_hot_standby,
                read_only: s.role.default_read_only,
                row: s.term,
            },
        });
        // It may have become an old one, or have ended, between its login and its registration.
        if s.member.generation() < self.generation(s.member.host) {
            s.member.retire();
        }
        if s.member.ended().is_some() {
            self.ended(&s.member);
        }
        self.wake.notify_one();
    }

    /// A caller's connect failed there. Says whether the host was healthy a short while ago.
    pub(crate) fn connect_failed(self: &Arc<Self>, c: &Candidate, failed: &Failed) -> bool {
        let (host, _) = self.place(c);
        self.troubled(host, failed);
        if let Some(kind) = ConnectKind::of(failed) {
            self.feed(Input::ConnectFailed { host, kind });
        } else if failed.stage == crate::error::Stage::Role {
            self.feed(Input::Connected { host });
        }
        let now = clock::now();
        lock(&self.places).healthy.get(&host).is_some_and(|t| now - *t < HEALTHY_MEMORY)
    }

    /// The driver of a session has ended.
    pub(crate) fn ended(self: &Arc<Self>, m: &Arc<Member>) {
        let cause = match m.ended().map(|e| &e.cause) {
            Some(EndCause::Server { sqlstate, .. }) => Ended::Sqlstate(*sqlstate),
            Some(EndCause::Lost { timed_out: true, .. }) => Ended::TimedOut,
            Some(EndCause::Lost { reset: true, .. }) => Ended::Reset,
            Some(EndCause::Lost { .. }) => Ended::Fin,
            _ => Ended::Local,
        };
        if lock(&self.members).remove(&m.id).is_some() {
            // Before the topology acts on it: the call is charged from where its host's last byte came.
            // A server's last words are no sign that it lived until then: not to those who waited meanwhile.
            let heard = |o: &Member| o.tap.fatal().map_or(o.tap.last_in(), |_| Moment::ZERO);
            let own = heard(m);
            self.recorder.drained(std::iter::once_with(|| (m.host, m.tap.take_done(), own)));
            let others = self.members_of(m.host);
            self.recorder.ended(m, others.iter().map(|o| heard(o)).fold(own, Moment::max));
            self.feed(Input::SessionEnded {
                member: MemberId(m.id),
                host: m.host,
                generation: m.generation(),
                cause,
            });
            self.tell(EventKind::session_ended(m), clock::now());
        } else if lock(&self.probes).ended(m.host, m.id) {
            self.feed(Input::ProbeFailed { host: m.host, cause });
        }
    }

    /// The tap of a session has news: a parameter changed, or an SQLSTATE passed that the session survived.
    pub(crate) fn news(self: &Arc<Self>, m: &Arc<Member>, news: News) {
        if !lock(&self.members).contains_key(&m.id) {
            return;
        }
        let (member, host) = (MemberId(m.id), m.host);
        if news.in_hot_standby.is_some() || news.default_read_only.is_some() {
            self.feed(Input::SessionParameter {
                member,
                host,
                in_hot_standby: news.in_hot_standby,
                default_read_only: news.default_read_only,
            });
        }
        if news.local_commits > 0 {
            tracing::warn!(target: "pgfollow", host = %m.candidate, "a commit is known to this host alone");
            self.tell(EventKind::CommitLocalOnly { session: m.id, host }, clock::now());
        }
        if news.read_only_refusals > 0
            && let Some(sqlstate) = SqlState::new("25006")
        {
            self.feed(Input::SessionSqlstate {
                member,
                host,
                sqlstate,
                in_hot_standby: m.tap.flag("in_hot_standby"),
                read_only_block: news.in_read_only_block,
            });
        }
    }

    fn members_of(&self, host: HostId) -> Vec<Arc<Member>> {
        lock(&self.members).values().filter(|m| m.host == host).cloned().collect()
    }

    fn tell(&self, kind: EventKind, at: Moment) {
        let event = Event::new(kind, at, &|h| self.candidate(h).map(|c| c.to_string()));
        self.recorder.event(&event);
        // Nobody listening is fine.
        let _ = self.events.send(event);
    }

    /// Reads what the sessions did, and lets an outage end that is over.
    pub(crate) fn reckon(&self, now: Moment) {
        let members: Vec<_> = lock(&self.members).values().cloned().collect();
        self.recorder.drained(members.iter().map(|m| (m.host, m.tap.take_done(), m.tap.last_in())));
        for (id, number, since) in self.recorder.blocked() {
            let waiting = members.iter().find(|m| m.id == id).and_then(|m| m.tap.waiting());
            // Another call waits there, or bytes came for this one.
            if waiting.is_none_or(|w| w.number != number || w.since > since) {
                self.recorder.answered(id, now);
            }
        }
        for outage in self.recorder.timer(now) {
            self.tell(EventKind::outage_ended(&outage), now);
        }
    }

    /// What is known now, ages and probe sessions included.
    pub(crate) fn snapshot_now(&self) -> Arc<Snapshot> {
        Arc::new(lock(&self.topology).snapshot(clock::now()))
    }

    /// What was known when it last changed: states and generations hold, ages don't.
    pub(crate) fn snapshot(&self) -> Arc<Snapshot> {
        self.snapshot.load_full()
    }

    pub(crate) fn events(&self) -> broadcast::Receiver<Event> {
        self.events.subscribe()
    }

    /// Tells when the snapshot changes.
    pub(crate) fn changes(&self) -> Changed {
        self.changes.subscribe()
    }

    /// When the watch task last ran.
    pub(crate) fn last_run(&self) -> Moment {
        Moment::from_micros(self.last_run.load(Ordering::Relaxed))
    }

    /// A caller begins (+1) or ends (-1) to wait for a session.
    pub(crate) fn wanted(self: &Arc<Self>, more: bool) {
        let before = if more {
            self.waiting.fetch_add(1, Ordering::Relaxed) + 1
        } else {
            self.waiting.fetch_sub(1, Ordering::Relaxed) - 1
        };
        self.feed(Input::SessionWanted { callers: u32::try_from(before).unwrap_or(u32::MAX) });
    }

    /// Whether [`Self::close`] was called.
    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Ends everything: probe sessions close, callers' sessions stay with their owners.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        self.wake.notify_one();
        lock(&self.probes).close_all();
    }

    /// Whether no host has ever said what it is: for health.
    pub(crate) fn knows_none(&self) -> bool {
        self.snapshot.load().hosts.iter().all(|h| h.role.is_none())
    }
}
