//! Facts about one address, and the state that they add up to. Facts are stored, the state is computed: two facts can
//! never disagree about it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Moment;
use crate::host::{Address, HostId};

use super::actions::{Cause, Role, State};
use super::types::{ConnectKind, MemberId};

/// How many earlier identities of an address are kept to recognise one that returns.
const PAST: usize = 4;

/// A failure to open new connections, as it stands.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    pub(super) kind: ConnectKind,
    /// One caller said so while our own session there answers: our own dial decides.
    pub(super) tentative: bool,
}

impl Mark {
    fn is_silence(self) -> bool {
        matches!(self.kind, ConnectKind::TimedOut | ConnectKind::Unreachable)
    }
}

/// A host that was superseded and answered within the last second: its calls wait for a second row of the new one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Superseded {
    pub(super) by: HostId,
    pub(super) timeline: u32,
}

/// The probe session to a host, and when to ask or dial.
#[derive(Debug)]
pub(super) struct Probing {
    pub(super) open: bool,
    /// Questions without an answer, and since when the oldest waits.
    pub(super) outstanding: u32,
    pub(super) asked: Moment,
    /// When the last question counts as missed.
    pub(super) deadline: Moment,
    /// Missed deadlines of this session's questions.
    pub(super) missed: u32,
    /// The session is stuck though the host is heard: another one is to replace it.
    pub(super) doubtful: bool,
    /// A question is wanted as soon as none is out, whatever else would put it off.
    pub(super) ask_now: bool,
    pub(super) next_probe: Moment,
    /// Between two questions during a search; grows once it has lasted.
    pub(super) search_gap: Duration,
    /// A dial under way, since when.
    pub(super) dialling: Option<Moment>,
    pub(super) last_dial: Moment,
    pub(super) next_dial: Moment,
    pub(super) gap: Duration,
    /// The last dial's failure and since when it has been of that kind.
    pub(super) failing: Option<(ConnectKind, Moment)>,
    /// Over the monitor's budget: short sessions instead of a lasting one.
    pub(super) short: bool,
    pub(super) rtt: Option<Duration>,
}

#[derive(Debug)]
pub(super) struct Host {
    pub(super) spec: usize,
    pub(super) name: Arc<str>,
    pub(super) address: Address,
    pub(super) never_primary: bool,
    pub(super) indirect: bool,
    /// Since when its name doesn't give it any more.
    pub(super) gone: Option<Moment>,

    pub(super) role: Option<Role>,
    pub(super) timeline: Option<u32>,
    pub(super) system: Option<u64>,
    pub(super) start: Option<i64>,
    pub(super) past_systems: VecDeque<u64>,
    pub(super) past_starts: VecDeque<i64>,
    /// A caller's session showed this start time while our probe session still shows another.
    pub(super) disagrees: Option<i64>,
    /// It answered or failed at least once.
    pub(super) tried: bool,
    /// The last row.
    pub(super) answered: Option<Moment>,
    /// The last byte on any socket, rows included.
    pub(super) heard: Option<Moment>,
    /// The last row that a caller's own traffic carried.
    pub(super) carried: Option<Moment>,

    pub(super) stale: bool,
    pub(super) foreign: bool,
    pub(super) contests: bool,
    /// The operator gave up this host's history up to this timeline.
    pub(super) given_up: Option<u32>,
    pub(super) same_as: Option<HostId>,
    pub(super) superseded: Option<Superseded>,

    pub(super) mark: Option<Mark>,
    pub(super) suspect: bool,
    pub(super) misses: u32,
    /// When the first missed question was asked.
    pub(super) first_miss: Option<Moment>,
    /// A fresh connection got no reply since the first miss.
    pub(super) fresh_silent: bool,
    /// What silence has been permitted so far: 0 nothing, 1 harmless calls, 2 all.
    pub(super) silence_level: u8,
    /// Sessions ended there by themselves: the idle ones go when the next probe fails.
    pub(super) sockets_ended: bool,
    /// The last call of each member that made the host suspect.
    pub(super) blocked: BTreeMap<MemberId, u64>,

    pub(super) generation: u64,
    /// Why the state is going to change, if it does.
    pub(super) note: Cause,
    pub(super) state: State,
    pub(super) cause: Cause,
    pub(super) changed: Moment,
    pub(super) probing: Probing,
}

impl Host {
    pub(super) fn new(spec: usize, name: Arc<str>, address: Address, now: Moment) -> Self {
        Self {
            spec,
            name,
            address,
            never_primary: false,
            indirect: false,
            gone: None,
            role: None,
            timeline: None,
            system: None,
            start: None,
            past_systems: VecDeque::new(),
            past_starts: VecDeque::new(),
            disagrees: None,
            tried: false,
            answered: None,
            heard: None,
            carried: None,
            stale: false,
            foreign: false,
            contests: false,
            given_up: None,
            same_as: None,
            superseded: None,
            mark: None,
            suspect: false,
            misses: 0,
            first_miss: None,
            fresh_silent: false,
            silence_level: 0,
            sockets_ended: false,
            blocked: BTreeMap::new(),
            generation: 0,
            note: Cause::Start,
            state: State::Unknown,
            cause: Cause::Start,
            changed: now,
            probing: Probing {
                open: false,
                outstanding: 0,
                asked: now,
                deadline: now,
                missed: 0,
                doubtful: false,
                ask_now: false,
                next_probe: now,
                search_gap: Duration::ZERO,
                dialling: None,
                last_dial: Moment::ZERO,
                next_dial: now,
                gap: Duration::ZERO,
                failing: None,
                short: false,
                rtt: None,
            },
        }
    }

    /// The state that the facts add up to. What a new connection met outranks the rest: states are for new sessions.
    pub(super) fn state_now(&self, primary: bool, misses_down: u32) -> State {
        if self.foreign {
            return State::Foreign;
        }
        match self.mark {
            Some(m) if m.tentative => return State::Suspect(self.misses),
            Some(m) if m.kind.is_denied() => return State::Denied,
            Some(Mark { kind: ConnectKind::NotReady, .. }) => return State::NotReady,
            Some(Mark { kind: ConnectKind::Full, .. }) => return State::Full,
            // A superseded host stays that, however silent: nobody waits for it to come back.
            Some(m) if !(self.stale && m.is_silence()) => return State::Down,
            _ => {}
        }
        if self.stale {
            return State::StalePrimary;
        }
        if self.misses >= misses_down {
            return State::Down;
        }
        if (self.suspect || self.misses > 0) && self.role.is_some() {
            return State::Suspect(self.misses);
        }
        match self.role {
            None => State::Unknown,
            Some(Role::Standby) => State::Standby,
            Some(Role::PrimaryReadOnly) => State::PrimaryReadOnly,
            Some(Role::Primary) if primary => State::Primary,
            Some(Role::Primary) => State::Conflict,
        }
    }

    /// Whether nothing speaks against it: it answers, and takes connections as far as is known.
    pub(super) fn well(&self) -> bool {
        self.answered.is_some() && self.mark.is_none() && !self.suspect && self.misses == 0
    }

    /// Whether it says that it takes writes, and may be believed.
    pub(super) fn writable(&self) -> bool {
        self.role == Some(Role::Primary) && !self.stale && !self.foreign
    }

    /// Whether it has been heard within `window`.
    pub(super) fn heard_within(&self, window: Duration, now: Moment) -> bool {
        self.heard.is_some_and(|t| now - t < window)
    }

    /// Whether it gave a row within `window`.
    pub(super) fn answered_within(&self, window: Duration, now: Moment) -> bool {
        self.answered.is_some_and(|t| now - t <= window)
    }

    /// Whether the same server answers at both addresses, as far as both say.
    pub(super) fn same_server(&self, other: &Self) -> bool {
        self.start.is_some()
            && self.start == other.start
            && self.system == other.system
            && !self.indirect
            && !other.indirect
    }

    /// Remembers the identity that is about to be replaced.
    pub(super) fn remember_identity(&mut self, system: Option<u64>, start: Option<i64>) {
        fn push<T: PartialEq>(past: &mut VecDeque<T>, old: Option<T>, new: Option<T>) {
            if new.is_none() || old == new {
                return;
            }
            if let Some(old) = old
                && !past.contains(&old)
            {
                past.push_back(old);
            }
            while past.len() > PAST {
                past.pop_front();
            }
        }
        push(&mut self.past_systems, self.system, system);
        push(&mut self.past_starts, self.start, start);
    }
}
