//! A world for the pure connect: hosts with a behaviour each, virtual time, and a log of what was dialled.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use pgfollow::config::{HostWalk, LoadBalanceHosts, SessionAttrs, SslMode};
use pgfollow::decide::accept::{Accept, Question, Role, accept};
use pgfollow::decide::attempt::{Action, Attempt, DialId, Finish, Input, Options};
use pgfollow::decide::walk::TlsTry;
use pgfollow::error::Attempt as Record;
use pgfollow::failure::{Failed, Failure};
use pgfollow::host::{Candidate, HostSpec, Port};
use pgfollow::net::{Family, ResolveError};
use pgfollow::{Address, Moment, SqlState, Stage};
use rand::SeedableRng;
use rand::rngs::StdRng;

/// What is behind an address.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Does {
    /// A server: in recovery, read-only by default, whether it reports both (14 and later), its term.
    Serves { standby: bool, read_only: bool, reports: bool, term: u64 },
    /// Refuses the connection.
    Refuses,
    /// Drops everything silently, or accepts and says nothing.
    Silent,
    /// The kernel gives the socket up after that long (tcp_user_timeout).
    GivenUpAfter(Duration),
    /// Fails so, whatever is tried.
    Fails(Stage, Failure),
    /// Fails with this SQLSTATE in the login; with TLS, without, or in both.
    Says { code: &'static str, after_auth: bool, encrypted: bool, plain: bool },
}

pub(crate) const PRIMARY: Does = serves(false, false, true);
pub(crate) const STANDBY: Does = serves(true, false, true);
pub(crate) const FENCED: Does = serves(false, true, true);

pub(crate) const fn serves(standby: bool, read_only: bool, reports: bool) -> Does {
    Does::Serves { standby, read_only, reports, term: 0 }
}

pub(crate) fn says(code: &'static str) -> Does {
    Does::Says { code, after_auth: false, encrypted: true, plain: true }
}

/// An address of a host.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) label: String,
    pub(crate) does: Does,
    /// How long it takes to answer.
    pub(crate) takes: Duration,
}

/// An entry of the host list and what its name server says.
#[derive(Clone, Debug)]
pub(crate) struct Host {
    pub(crate) spec: HostSpec,
    pub(crate) v4: Result<Vec<IpAddr>, ResolveError>,
    pub(crate) v4_takes: Duration,
    pub(crate) v6: Result<Vec<IpAddr>, ResolveError>,
    pub(crate) v6_takes: Duration,
}

pub(crate) const MS: Duration = Duration::from_millis(1);

#[derive(Clone, Debug)]
pub(crate) struct World {
    pub(crate) hosts: Vec<Host>,
    pub(crate) places: HashMap<IpAddr, Place>,
    pub(crate) options: Options,
    pub(crate) last_good: Vec<Vec<IpAddr>>,
    pub(crate) healthy_lately: bool,
    /// Whether the servers have TLS (else they answer `N`).
    pub(crate) has_tls: bool,
    pub(crate) seed: u64,
}

/// How a connect went.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) finish: Finish,
    pub(crate) at: Duration,
    /// The labels dialled, in order, each with its time and TLS mode.
    pub(crate) dials: Vec<(String, Duration, TlsTry)>,
    pub(crate) deadlines: Vec<Moment>,
    pub(crate) winner: Option<String>,
    pub(crate) records: Vec<Record>,
    pub(crate) abandoned: Vec<DialId>,
    pub(crate) questions: HashMap<String, u32>,
    pub(crate) look_ups: usize,
}

impl Run {
    pub(crate) fn dialled(&self) -> Vec<&str> {
        self.dials.iter().map(|d| d.0.as_str()).collect()
    }
}

pub(crate) fn options(walk: HostWalk) -> Options {
    Options {
        walk,
        sslmode: SslMode::Disable,
        attrs: SessionAttrs::Any,
        load_balance: LoadBalanceHosts::Disable,
        connect_timeout: Some(Duration::from_secs(5)),
        stagger: 250 * MS,
        stagger_min: 10 * MS,
        fastest_rtt: None,
        slow_login: Duration::ZERO,
        prefer: None,
        first_write: None,
        local_dir: "/nowhere".into(),
    }
}

impl World {
    /// Hosts by name, each with its addresses' labels and behaviours. Names resolve in 1 ms, servers answer in 2.
    pub(crate) fn new(walk: HostWalk, hosts: &[&[(&str, Does)]]) -> Self {
        let mut world = Self {
            hosts: Vec::new(),
            places: HashMap::new(),
            options: options(walk),
            last_good: Vec::new(),
            healthy_lately: false,
            has_tls: true,
            seed: 7,
        };
        for places in hosts {
            world.add(places);
        }
        world
    }

    pub(crate) fn add(&mut self, places: &[(&str, Does)]) {
        let n = self.hosts.len();
        let mut addresses = Vec::new();
        for (i, (label, does)) in places.iter().enumerate() {
            let ip = ip(n, i);
            addresses.push(ip);
            self.places.insert(ip, Place { label: (*label).to_owned(), does: does.clone(), takes: 2 * MS });
        }
        let spec =
            HostSpec::Tcp { host: Some(format!("h{}", n + 1)), hostaddr: None, port: Port::Number(5432) };
        let v4 = if places.is_empty() { Err(ResolveError::NoSuchName) } else { Ok(addresses) };
        let v6 = Err(if places.is_empty() { ResolveError::NoSuchName } else { ResolveError::NoData });
        self.hosts.push(Host { spec, v4, v4_takes: MS, v6, v6_takes: MS });
    }

    pub(crate) fn place(&mut self, host: usize, address: usize) -> &mut Place {
        self.places.get_mut(&ip(host, address)).unwrap()
    }

    pub(crate) fn candidate(&self, host: usize, address: usize) -> Candidate {
        Candidate {
            spec: host,
            name: self.hosts[host].spec.label().into(),
            address: Address::Tcp(SocketAddr::new(ip(host, address), 5432)),
        }
    }

    /// Runs one connect to its end, or panics: for no end within a minute, for a timer in the past, for a broken
    /// promise of [`Action::Finish`].
    pub(crate) fn run(&self) -> Run {
        let specs: Vec<HostSpec> = self.hosts.iter().map(|h| h.spec.clone()).collect();
        let mut rng = StdRng::seed_from_u64(self.seed);
        let mut machine = Attempt::new(&specs, self.options.clone()).with_last_good(self.last_good.clone());
        let start = Moment::from_millis(1_000);
        let mut now = start;
        let mut queue: Vec<(Moment, usize, Input)> = Vec::new();
        let mut open: HashMap<DialId, String> = HashMap::new();
        let mut run = Run {
            finish: Finish::Failed { code: pgfollow::Code::Internal, class: pgfollow::Class::Permanent },
            at: Duration::ZERO,
            dials: Vec::new(),
            deadlines: Vec::new(),
            winner: None,
            records: Vec::new(),
            abandoned: Vec::new(),
            questions: HashMap::new(),
            look_ups: 0,
        };
        let (mut serial, mut timers_here) = (0, 0);
        let mut actions = machine.start(now, &mut rng);
        loop {
            for action in actions {
                match action {
                    Action::Resolve { spec, name } => {
                        run.look_ups += 1;
                        assert_eq!(name, self.hosts[spec].spec.label());
                        for (at, input) in self.look_up(spec, now) {
                            serial += 1;
                            queue.push((at, serial, input));
                        }
                    }
                    Action::Dial { dial, candidate, tls, deadline } => {
                        let Address::Tcp(a) = &candidate.address else { panic!("no Unix sockets here") };
                        let place = &self.places[&a.ip()];
                        run.dials.push((place.label.clone(), now - start, tls));
                        run.deadlines.push(deadline);
                        open.insert(dial, place.label.clone());
                        let (at, input) = self.dial(dial, place, tls, deadline, now, &mut run);
                        serial += 1;
                        queue.push((at, serial, input));
                    }
                    Action::Abandon { dial } => {
                        assert!(open.remove(&dial).is_some(), "{dial:?} was abandoned and isn't open");
                        queue.retain(|(_, _, input)| about(input) != Some(dial));
                        run.abandoned.push(dial);
                    }
                    Action::Finish(finish) => {
                        if let Finish::Winner { dial, .. } = finish {
                            run.winner = Some(open.remove(&dial).expect("the winner's socket is open"));
                        }
                        assert!(open.is_empty(), "left open at the end: {open:?}");
                        assert_eq!(machine.poll_timeout(), Moment::NEVER, "a timer after the end");
                        assert!(
                            machine.step(Input::Timer, now, &mut rng).is_empty(),
                            "actions after the end"
                        );
                        run.finish = finish;
                        run.at = now - start;
                        run.records = machine.attempts().to_vec();
                        assert_eq!(run.records.len(), machine.steps().len());
                        return run;
                    }
                }
            }
            queue.sort_by_key(|(at, serial, _)| (*at, *serial));
            let timer = machine.poll_timeout();
            let next = queue.first().map_or(Moment::NEVER, |e| e.0);
            assert!(timer.min(next) != Moment::NEVER, "nothing moves this connect any more: {run:?}");
            let (at, input) = if timer < next {
                (timer, Input::Timer)
            } else {
                let (at, _, input) = queue.remove(0);
                (at, input)
            };
            timers_here = if at == now && matches!(input, Input::Timer) { timers_here + 1 } else { 0 };
            assert!(timers_here < 2, "the timer doesn't move: {run:?}");
            now = now.max(at);
            assert!(now - start < Duration::from_secs(60), "no end: {run:?}");
            if let Input::Failed { dial, .. } = &input {
                open.remove(dial);
            }
            actions = machine.step(input, now, &mut rng);
        }
    }

    fn look_up(&self, spec: usize, now: Moment) -> [(Moment, Input); 2] {
        let h = &self.hosts[spec];
        [(Family::V4, &h.v4, h.v4_takes), (Family::V6, &h.v6, h.v6_takes)].map(|(family, answer, takes)| {
            let input = match answer.clone() {
                Ok(addresses) => Input::Resolved { spec, family, addresses },
                Err(error) => Input::ResolveFailed {
                    spec,
                    family,
                    error,
                    resolved_before: false,
                    last_good: Vec::new(),
                },
            };
            (now + takes, input)
        })
    }

    fn dial(
        &self,
        dial: DialId,
        place: &Place,
        tls: TlsTry,
        deadline: Moment,
        now: Moment,
        run: &mut Run,
    ) -> (Moment, Input) {
        let encrypted = tls != TlsTry::Plain && self.has_tls;
        let healthy_lately = self.healthy_lately;
        let fail = |at, stage, failure| {
            let failed = Failed::new(stage, failure);
            (at, Input::Failed { dial, failed, encrypted, healthy_lately })
        };
        let at = now + place.takes;
        if at > deadline {
            return fail(deadline, Stage::Dial, Failure::TimedOut);
        }
        let refused = Failure::Dial { os: Some(111), message: "connection refused".to_owned() };
        match &place.does {
            Does::Refuses => fail(at, Stage::Dial, refused),
            Does::Silent => fail(deadline, Stage::Dial, Failure::TimedOut),
            Does::GivenUpAfter(d) => {
                let failure = Failure::Dial { os: Some(110), message: "timed out".to_owned() };
                fail(now + *d, Stage::Dial, failure)
            }
            Does::Fails(stage, failure) => fail(at, *stage, failure.clone()),
            Does::Says { code, after_auth, encrypted: with, plain: without }
                if if encrypted { *with } else { *without } =>
            {
                let failure = Failure::Server {
                    sqlstate: SqlState::new(code).unwrap(),
                    message: format!("FATAL {code}"),
                    after_auth: *after_auth,
                };
                fail(at, Stage::Authenticate, failure)
            }
            Does::Says { .. } => (at, Input::Accepted { dial, term: 0 }),
            Does::Serves { .. } if tls == TlsTry::Tls && !encrypted => {
                fail(at, Stage::Secure, Failure::TlsNotOffered)
            }
            Does::Serves { standby, read_only, reports, term } => {
                let mut role = Role::default();
                if *reports {
                    (role.in_hot_standby, role.default_read_only) = (Some(*standby), Some(*read_only));
                }
                if let Some(question) = role.question(self.options.attrs) {
                    *run.questions.entry(place.label.clone()).or_default() += 1;
                    match question {
                        Question::TransactionReadOnly => {
                            role.transaction_read_only = Some(*standby || *read_only);
                        }
                        Question::InRecovery => role.in_hot_standby = Some(*standby),
                    }
                }
                match accept(role, self.options.attrs) {
                    Accept::Take => (at, Input::Accepted { dial, term: *term }),
                    Accept::SecondChoice => (at, Input::SecondChoice { dial }),
                    other => fail(at, Stage::Role, other.failure(self.options.attrs).unwrap()),
                }
            }
        }
    }
}

fn about(input: &Input) -> Option<DialId> {
    match input {
        Input::Failed { dial, .. } | Input::Accepted { dial, .. } | Input::SecondChoice { dial } => {
            Some(*dial)
        }
        _ => None,
    }
}

pub(crate) fn ip(host: usize, address: usize) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 0, u8::try_from(host).unwrap(), u8::try_from(address).unwrap() + 1))
}
