//! The books of one connect, whichever walk it takes: the dials, what failed, and the actions to hand out.
//!
//! Keeps to one rule: a finished connect has abandoned every dial but the winner's. [`super::race`] and [`super::strict`] decide the rest.

use rand::{Rng, RngExt};

use super::lookup::LookUp;
use super::{Action, DialId, Finish, Options};
use crate::clock::Moment;
use crate::config::LoadBalanceHosts;
use crate::decide::place::{self, Place};
use crate::decide::walk::{self, Context, Next, Step, TlsTry};
use crate::error::{Attempt as Record, Stage};
use crate::failure::{Failed, Failure};
use crate::host::{Address, Candidate, HostSpec, Port};
use crate::net::{Family, ResolveError};

#[derive(Debug)]
pub(super) struct Dial {
    pub(super) candidate: Candidate,
    pub(super) tls: TlsTry,
    pub(super) deadline: Moment,
    pub(super) started: Moment,
    pub(super) state: State,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum State {
    UnderWay,
    /// A session of the wanted role that waits for the others' answers.
    Winner {
        term: u64,
    },
    /// A second choice in hand.
    Second,
    /// Failed; whether it was the certificate's name that didn't fit.
    Failed {
        identity: bool,
    },
    /// Given up by us.
    Abandoned,
}

impl State {
    /// Whether the shell still holds a socket for it.
    fn open(&self) -> bool {
        matches!(self, Self::UnderWay | Self::Winner { .. } | Self::Second)
    }
}

#[derive(Debug)]
pub(super) struct Book {
    pub(super) options: Options,
    pub(super) specs: Vec<HostSpec>,
    /// The order in which the entries are visited.
    pub(super) order: Vec<usize>,
    pub(super) dials: Vec<Dial>,
    records: Vec<Record>,
    steps: Vec<Step>,
    actions: Vec<Action>,
    finished: bool,
}

impl Book {
    pub(super) fn new(specs: &[HostSpec], options: Options) -> Self {
        Self {
            options,
            specs: specs.to_vec(),
            order: (0..specs.len()).collect(),
            dials: Vec::new(),
            records: Vec::new(),
            steps: Vec::new(),
            actions: Vec::new(),
            finished: false,
        }
    }

    pub(super) fn finished(&self) -> bool {
        self.finished
    }

    pub(super) fn records(&self) -> &[Record] {
        &self.records
    }

    pub(super) fn steps(&self) -> &[Step] {
        &self.steps
    }

    pub(super) fn take_actions(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }

    pub(super) fn random(&self) -> bool {
        self.options.load_balance == LoadBalanceHosts::Random
    }

    /// The hosts in a random order, where that is asked for: each equally often first, however many addresses it has.
    pub(super) fn shuffle(&mut self, rng: &mut dyn Rng) {
        if self.random() {
            for i in (1..self.order.len()).rev() {
                self.order.swap(i, rng.random_range(0..=i));
            }
        }
    }

    /// Where an entry leads.
    pub(super) fn place(&self, spec: usize) -> Place {
        place::of(&self.specs[spec], &self.options.local_dir)
    }

    /// The port of an entry whose name was looked up.
    pub(super) fn port(&self, spec: usize) -> u16 {
        match self.specs[spec].port() {
            Port::Number(n) => *n,
            // `place` has refused it before any look-up.
            Port::Invalid(_) => 0,
        }
    }

    pub(super) fn candidate(&self, spec: usize, address: Address) -> Candidate {
        Candidate { spec, name: self.specs[spec].label().into(), address }
    }

    pub(super) fn resolve(&mut self, spec: usize, name: String) {
        self.actions.push(Action::Resolve { spec, name });
    }

    /// Dials an address for the first time.
    pub(super) fn dial(&mut self, candidate: Candidate, now: Moment) -> DialId {
        let local = candidate.address.is_unix();
        let tls = TlsTry::first(self.options.sslmode, local);
        let deadline = self.options.connect_timeout.map_or(Moment::NEVER, |d| now + d);
        self.open(candidate, tls, deadline, now)
    }

    /// Dials an address once more, in the other way. The address's time isn't granted twice (libpq restarts its
    /// clock with the address, not with the retry).
    pub(super) fn redial(&mut self, dial: DialId, tls: TlsTry, now: Moment) -> DialId {
        let (candidate, deadline) = (self.get(dial).candidate.clone(), self.get(dial).deadline);
        self.open(candidate, tls, deadline, now)
    }

    fn open(&mut self, candidate: Candidate, tls: TlsTry, deadline: Moment, now: Moment) -> DialId {
        let dial = DialId(u32::try_from(self.dials.len()).unwrap_or(u32::MAX));
        self.actions.push(Action::Dial { dial, candidate: candidate.clone(), tls, deadline });
        self.dials.push(Dial { candidate, tls, deadline, started: now, state: State::UnderWay });
        dial
    }

    /// A dial by its number.
    pub(super) fn get(&self, dial: DialId) -> &Dial {
        &self.dials[dial.0 as usize]
    }

    pub(super) fn set(&mut self, dial: DialId, state: State) {
        self.dials[dial.0 as usize].state = state;
    }

    /// Whether an answer about this dial still counts.
    pub(super) fn awaited(&self, dial: DialId) -> bool {
        self.dials.get(dial.0 as usize).is_some_and(|d| d.state == State::UnderWay)
    }

    pub(super) fn under_way(&self) -> bool {
        self.dials.iter().any(|d| d.state == State::UnderWay)
    }

    pub(super) fn abandon(&mut self, dial: DialId) {
        if self.get(dial).state.open() {
            self.set(dial, State::Abandoned);
            self.actions.push(Action::Abandon { dial });
        }
    }

    /// A dial failed: its record and what it means.
    pub(super) fn dial_failed(
        &mut self,
        dial: DialId,
        failed: &Failed,
        encrypted: bool,
        healthy_lately: bool,
        now: Moment,
    ) -> Step {
        let Dial { candidate, tls, started, .. } = self.get(dial);
        let (candidate, tried, took) = (candidate.clone(), *tls, now - *started);
        let local = candidate.address.is_unix();
        let cx = Context { tried, encrypted, local, healthy_lately, ..self.context() };
        let step = walk::step(failed, &cx);
        let identity = matches!(failed.failure, Failure::TlsIdentity(_));
        self.set(dial, State::Failed { identity });
        let record = Record { took, ..self.record(candidate.spec, Some(&candidate.address), failed, step) };
        self.note(record, step);
        step
    }

    /// One question about an entry's name failed. True if the name has failed with it.
    pub(super) fn resolve_failed(
        &mut self,
        spec: usize,
        look_up: &mut LookUp,
        family: Family,
        error: ResolveError,
        resolved_before: bool,
        now: Moment,
    ) -> bool {
        let since = look_up.started;
        let failed = look_up.failed(family, error, resolved_before);
        if let Some(name) = &failed {
            self.spec_failed(spec, Failure::Resolve(name.error.clone()), name.resolved_before, since, now);
        }
        failed.is_some()
    }

    /// An entry failed before there was anything to dial.
    pub(super) fn spec_failed(
        &mut self,
        spec: usize,
        failure: Failure,
        resolved_before: bool,
        since: Moment,
        now: Moment,
    ) -> Step {
        let stage = if matches!(failure, Failure::Resolve(_)) { Stage::Resolve } else { Stage::Configure };
        let failed = Failed::new(stage, failure);
        let step = walk::step(&failed, &Context { resolved_before, ..self.context() });
        let record = Record { took: now - since, ..self.record(spec, None, &failed, step) };
        self.note(record, step);
        step
    }

    fn context(&self) -> Context {
        Context {
            walk: self.options.walk,
            sslmode: self.options.sslmode,
            tried: TlsTry::first(self.options.sslmode, false),
            encrypted: false,
            local: false,
            healthy_lately: false,
            resolved_before: false,
        }
    }

    fn record(&self, spec: usize, address: Option<&Address>, failed: &Failed, step: Step) -> Record {
        let sqlstate = match &failed.failure {
            Failure::Server { sqlstate, .. } => Some(*sqlstate),
            _ => None,
        };
        Record {
            host: self.specs[spec].label(),
            hostaddr: address.map(|a| match a {
                Address::Tcp(a) => a.ip().to_string(),
                Address::Unix(path) => path.display().to_string(),
            }),
            port: self.specs[spec].port().to_string(),
            stage: failed.stage,
            code: Some(step.code),
            sqlstate,
            message: failed.failure.to_string(),
            class: Some(step.class),
            next_host: step.next != Next::Stop,
            took: std::time::Duration::ZERO,
        }
    }

    fn note(&mut self, record: Record, step: Step) {
        self.records.push(record);
        self.steps.push(step);
    }

    /// Ends the connect without a session.
    pub(super) fn fail(&mut self, stopped: Option<Step>) {
        let (code, class) = walk::whole(&self.steps, stopped);
        self.finish(None, Finish::Failed { code, class });
    }

    /// Ends the connect with a session.
    pub(super) fn win(&mut self, dial: DialId, second_choice: bool) {
        self.finish(Some(dial), Finish::Winner { dial, second_choice });
    }

    fn finish(&mut self, keep: Option<DialId>, finish: Finish) {
        for n in 0..self.dials.len() {
            let dial = DialId(u32::try_from(n).unwrap_or(u32::MAX));
            if Some(dial) != keep {
                self.abandon(dial);
            }
        }
        self.finished = true;
        self.actions.push(Action::Finish(finish));
    }
}
