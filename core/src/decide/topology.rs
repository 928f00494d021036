//! What is known of each host, and what that permits: states, terms, generations, evidence, vetoes, probe times.
//!
//! A pure state machine: [`Topology::input`] takes one fact, [`Topology::timer`] the passing of time; both return what
//! is to be done. It decides which host is the primary, which sessions must go and when to ask whom. It doesn't decide
//! how a session is closed, nor where a caller's connect goes ([`crate::decide`]'s attempt and accept do). The monitor
//! calls it and carries its actions out.
//!
//! Two things hold whatever comes in: the highest timeline never falls within one system identifier (only
//! [`Input::AcceptTerm`] lowers it), and a call in flight is aborted on the evidence classes E2, E4 and E5 alone
//! (`evidence.rs`, `term.rs`): a wrong guess costs a probe, never somebody's work.
//!
//! - `types.rs` what goes in · `actions.rs` what comes out · `host.rs` facts and state of one address · `snapshot.rs` what others see
//! - `term.rs` rows: incarnation and term (E4, E5, E6) · `cluster.rs` who is primary, other clusters, accepted terms
//! - `evidence.rs` failures and silence (E1, E2, E3) and the vetoes · `timing.rs` whom to ask and dial, and when

mod actions;
mod cluster;
mod evidence;
mod host;
mod snapshot;
mod term;
mod timing;
mod types;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::clock::Moment;
use crate::config::{Endpoint, MonitorMode};
use crate::host::{Address, HostId};

use host::Host;
use term::Via;

pub use actions::{Action, Cause, InFlight, Role, State, TopologyEvent};
pub use snapshot::{ClusterSnapshot, HostSnapshot, ProbeState, Snapshot};
pub use types::{ConnectKind, EndCause, Input, MemberId, RoleFacts, TermRow, TopologyOptions};

/// What is known of each host. See the module's head.
#[derive(Debug)]
pub struct Topology {
    options: TopologyOptions,
    rng: StdRng,
    hosts: BTreeMap<HostId, Host>,
    out: Vec<Action>,
    changed: bool,
    /// Generations are counted for all hosts together, so that an address that was dropped and comes back never
    /// repeats one.
    last_generation: u64,

    /// The system identifier that terms are compared within.
    system: Option<u64>,
    highest: Option<u32>,
    incumbent: Option<HostId>,
    incumbent_since: Moment,
    /// When a primary of each system identifier was last seen (a few at most).
    primaries_seen: BTreeMap<u64, Moment>,
    /// Two system identifiers were there at the start: since when, nobody is primary until one has it alone.
    undecided: Option<Moment>,
    /// When the first host became known.
    began: Option<Moment>,
    /// The first look around isn't over: what answers now is no memory yet. Kept apart from [`Self::settled`], for
    /// the last answer of the first look still belongs to it.
    cold: bool,
    search: Option<Moment>,
    watchful_until: Moment,
    /// A primary of an older term answers and none of the highest: which, and when to say so again.
    regressed: Option<(HostId, Moment)>,
    ourselves: bool,
    /// The last answer of a name server that isn't on this machine.
    name_server: Option<Moment>,
    calls: u32,
    callers: u32,
    /// A wrong password: the monitor dials nobody until a caller's connect succeeds.
    held: bool,
}

impl Topology {
    /// Nothing is known. Tell it the addresses, then run [`Self::timer`] whenever [`Self::next_timer`] is reached.
    pub fn new(options: TopologyOptions) -> Self {
        let rng = StdRng::seed_from_u64(options.seed);
        Self {
            options,
            rng,
            hosts: BTreeMap::new(),
            out: Vec::new(),
            changed: false,
            last_generation: 0,
            system: None,
            highest: None,
            incumbent: None,
            incumbent_since: Moment::ZERO,
            primaries_seen: BTreeMap::new(),
            undecided: None,
            began: None,
            cold: true,
            search: None,
            watchful_until: Moment::ZERO,
            regressed: None,
            ourselves: false,
            name_server: None,
            calls: 0,
            callers: 0,
            held: false,
        }
    }

    /// Takes one fact.
    pub fn input(&mut self, input: Input, now: Moment) -> Vec<Action> {
        self.mind_stall(now);
        self.cold &= !self.settled(now);
        self.take(input, now);
        self.step(now)
    }

    /// Takes the passing of time. Calling it too early does no harm; too late means that our own runtime stalled,
    /// and silence in that window is then no evidence.
    pub fn timer(&mut self, now: Moment) -> Vec<Action> {
        self.mind_stall(now);
        self.missed_deadlines(now);
        self.step(now)
    }

    /// A timer that is overdue by much shows that our own runtime stood still.
    fn mind_stall(&mut self, now: Moment) {
        if now - self.next_timer() > self.options.tuning.stall {
            self.stalled(now);
        }
    }

    /// The host that takes writes, and whether that is fresh: answered within the last 2 s (then a connect may go
    /// there alone). `None` when no host is known to.
    pub fn primary(&self, now: Moment) -> Option<(HostId, bool)> {
        let id = self.incumbent?;
        let h = self.hosts.get(&id)?;
        if !h.writable() {
            return None;
        }
        match h.state {
            State::Primary => {
                let heard = h.heard_within(self.options.tuning.fresh, now);
                Some((id, heard && self.settled(now)))
            }
            State::Full | State::Suspect(_) => Some((id, false)),
            _ => None,
        }
    }

    /// Why nobody may write there, whatever the host says of itself: it is an older primary, or another cluster's.
    pub fn superseded(&self, host: HostId) -> Option<&'static str> {
        let h = self.hosts.get(&host)?;
        let h = h.same_as.and_then(|c| self.hosts.get(&c)).unwrap_or(h);
        match h {
            _ if h.stale => Some("on an older primary"),
            _ if h.never_primary && h.foreign => Some("on a host of never_primary"),
            _ if h.foreign => Some("on another cluster"),
            _ => None,
        }
    }

    /// Whether the host's server has been heard as lately as its probes would make it: one may be late by its deadline.
    pub fn answers(&self, host: HostId, now: Moment) -> bool {
        let o = &self.options;
        let window = o.probe_interval.mul_f64(1.0 + o.tuning.jitter) + o.tuning.probe_deadline;
        let server = |id: HostId| self.hosts.get(&id).and_then(|h| h.same_as).unwrap_or(id);
        self.hosts.iter().any(|(&id, h)| server(id) == server(host) && h.heard_within(window, now))
    }

    /// Whether the process has looked around once: every candidate answered or failed, or 150 ms have passed. The
    /// first write session is not handed out before.
    pub fn settled(&self, now: Moment) -> bool {
        let Some(began) = self.began else { return false };
        now >= began + self.options.tuning.first_write_wait
            || (self.hosts.len() >= self.options.hosts.len() && self.hosts.values().all(|h| h.tried))
    }

    /// The generation of a host's sessions from now on. Read it when a dial begins: what happens to the host while
    /// the session is being opened then counts against that session.
    pub fn generation(&self, host: HostId) -> u64 {
        self.hosts.get(&host).map_or(self.last_generation, |h| h.generation)
    }

    fn take(&mut self, input: Input, now: Moment) {
        match input {
            Input::AddressKnown { host, spec, address } => self.address_known(host, spec, address, now),
            Input::AddressGone { host } => {
                if let Some(h) = self.hosts.get_mut(&host) {
                    h.gone.get_or_insert(now);
                    // E0 asks, and does nothing else.
                    self.ask(host, now);
                }
            }
            Input::NameServerAnswered { local } => self.name_server_answered(local, now),
            Input::ProbeConnected { host, row, rtt } => self.probe_connected(host, row, rtt, now),
            Input::ProbeConnectFailed { host, kind } => self.probe_connect_failed(host, kind, now),
            Input::ProbeAnswered { host, row, rtt } => self.probe_answered(host, row, rtt, now),
            Input::ProbeFailed { host, cause } => self.probe_failed(host, cause, now),
            Input::SessionOpened { host, facts, .. } => {
                self.connected(host, now);
                self.session_facts(host, facts, now);
            }
            Input::SessionTerm { host, row, .. } => {
                if let Some(h) = self.hosts.get_mut(&host) {
                    h.carried = Some(now);
                }
                self.learn(host, row, Via::Session, now);
            }
            Input::SessionEnded { member, host, generation, cause } => {
                self.session_ended(member, host, generation, cause, now);
            }
            Input::SessionSqlstate { member, host, sqlstate, in_hot_standby, read_only_block } => {
                self.session_sqlstate(member, host, sqlstate, in_hot_standby, read_only_block, now);
            }
            Input::SessionParameter { host, in_hot_standby, default_read_only, .. } => {
                self.session_parameter(host, in_hot_standby, default_read_only, now);
            }
            Input::PingFailed { host, generation } => self.ping_failed(host, generation, now),
            Input::ByteSeen { host, at } => self.byte_seen(host, at.min(now), now),
            Input::CallBlocked { host, member, call, since } => {
                self.call_blocked(host, member, call, since, now);
            }
            Input::CallsInFlight { count } => self.calls = count,
            Input::SessionWanted { callers } => self.callers = callers,
            Input::RuntimeStalled { lasted } => {
                if lasted > self.options.tuning.stall {
                    self.stalled(now);
                }
            }
            Input::Connected { host } => self.connected(host, now),
            Input::ConnectFailed { host, kind } => self.connect_failed(host, kind, now),
            Input::AcceptTerm { host } => self.accept_term(host, now),
        }
    }

    fn address_known(&mut self, id: HostId, spec: usize, address: Address, now: Moment) {
        self.began.get_or_insert(now);
        if let Some(h) = self.hosts.get_mut(&id) {
            h.gone = None;
            return;
        }
        let name = self.options.hosts.get(spec).map_or_else(|| Arc::from(""), Arc::clone);
        let mut h = Host::new(spec, Arc::clone(&name), address, now);
        h.never_primary = self.options.never_primary.iter().any(|n| names(n, &name, &h.address));
        h.indirect = self.options.endpoint == Endpoint::Indirect;
        h.note = Cause::Named;
        h.generation = self.last_generation;
        self.hosts.insert(id, h);
        self.changed = true;
        // A new address is worth a look at the others too: a moved name is an opinion that something happened.
        if !self.cold {
            let others: Vec<HostId> = self.hosts.keys().copied().filter(|&o| o != id).collect();
            for other in others {
                self.ask(other, now);
            }
        }
    }

    /// Everything that follows from what is known, in the order in which one thing leads to the next. Run after each
    /// input and each timer; running it again changes nothing.
    fn step(&mut self, now: Moment) -> Vec<Action> {
        self.drop_gone(now);
        self.split_addresses(now);
        self.adopt(now);
        self.elect(now);
        self.refresh_states(now);
        self.finish_supersedes(now);
        self.silence(now);
        self.refresh_states(now);
        self.regress(now);
        self.steer_search(now);
        self.schedule(now);
        if std::mem::take(&mut self.changed) {
            self.out.push(Action::Publish);
        }
        std::mem::take(&mut self.out)
    }

    fn refresh_states(&mut self, now: Moment) {
        let down = self.options.tuning.probe_misses;
        let ids: Vec<HostId> = self.hosts.keys().copied().collect();
        for id in ids {
            let Some(h) = self.hosts.get(&id) else { continue };
            let (of, of_id) = match h.same_as.and_then(|c| Some((self.hosts.get(&c)?, c))) {
                Some((canonical, c)) => (canonical, c),
                None => (h, id),
            };
            let leads = self.incumbent == Some(of_id) || self.shares_server_with_incumbent(of_id);
            let to = of.state_now(leads, down);
            let Some(h) = self.hosts.get_mut(&id) else { continue };
            if h.state == to {
                continue;
            }
            let from = std::mem::replace(&mut h.state, to);
            h.cause = h.note;
            h.changed = now;
            let cause = h.cause;
            self.changed = true;
            self.event(TopologyEvent::StateChanged { host: id, from, to, cause });
        }
    }

    /// An indirect address may lead to the incumbent itself.
    fn shares_server_with_incumbent(&self, id: HostId) -> bool {
        let (Some(h), Some(inc)) = (self.hosts.get(&id), self.incumbent.and_then(|i| self.hosts.get(&i)))
        else {
            return false;
        };
        h.start.is_some() && h.start == inc.start && h.system == inc.system
    }

    /// Sessions of that host born before now are old: the one place where a generation grows. All addresses of one
    /// server go together.
    fn clear(&mut self, id: HostId, cause: Cause, idle: bool, in_flight: InFlight, now: Moment) {
        self.last_generation += 1;
        let next = self.last_generation;
        for id in self.addresses_of(id) {
            if let Some(h) = self.hosts.get_mut(&id) {
                h.generation = next;
                h.cause = cause;
                h.note = cause;
                h.changed = now;
                h.sockets_ended = false;
            }
            self.emit_clear(id, cause, idle, in_flight);
        }
    }

    /// More is permitted against the sessions that are old already.
    fn clear_more(&mut self, id: HostId, cause: Cause, in_flight: InFlight) {
        for id in self.addresses_of(id) {
            self.emit_clear(id, cause, true, in_flight);
        }
    }

    fn emit_clear(&mut self, host: HostId, cause: Cause, idle: bool, in_flight: InFlight) {
        let generation = self.generation(host);
        self.changed = true;
        self.out.push(Action::Clear { host, generation, cause, idle, in_flight });
        self.event(TopologyEvent::Cleared { host, generation, cause, in_flight });
    }

    fn addresses_of(&self, id: HostId) -> Vec<HostId> {
        let canonical = self.hosts.get(&id).and_then(|h| h.same_as).unwrap_or(id);
        let mut all = vec![canonical];
        all.extend(self.hosts.iter().filter(|(_, h)| h.same_as == Some(canonical)).map(|(&i, _)| i));
        all
    }

    fn event(&mut self, e: TopologyEvent) {
        self.out.push(Action::Event(e));
    }

    /// Shortens or lengthens by the jitter, so that processes don't march in step.
    fn jitter(&mut self, d: Duration) -> Duration {
        let j = self.options.tuning.jitter;
        if j <= 0.0 { d } else { d.mul_f64(self.rng.random_range(1.0 - j..=1.0 + j)) }
    }

    fn busy(&self) -> bool {
        self.calls > 0 || self.callers > 0
    }

    /// Whether the monitor may act at all just now.
    fn awake(&self) -> bool {
        match self.options.monitor {
            MonitorMode::Off => false,
            MonitorMode::WhileBusy => self.busy(),
            MonitorMode::Auto | MonitorMode::On => true,
        }
    }
}

/// Whether an entry of `never_primary` means this host: its name, its address, or either with the port.
fn names(entry: &str, name: &str, address: &Address) -> bool {
    if entry == name || entry == address.to_string() {
        return true;
    }
    match address {
        Address::Tcp(a) => entry == a.ip().to_string() || entry == format!("{name}:{}", a.port()),
        Address::Unix(_) => false,
    }
}
