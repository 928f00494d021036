//! One connect: asks [`crate::decide::attempt`] what to do next, does it, feeds the answers back.
//!
//! Decides nothing. Everything runs inside the caller's future, so dropping it closes every socket of the connect.
//! [`crate::connector`] calls [`walk`], once for a plain `connect()` and again and again for one with a deadline.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::{AbortHandle, Abortable};
use futures_util::stream::{FuturesUnordered, StreamExt};
use rand::SeedableRng;
use rand::rngs::StdRng;

use crate::clock::{self, Deadline, Moment};
use crate::config::HostWalk;
use crate::decide::attempt::{self, Action, Attempt, DialId, Finish, Input};
use crate::decide::pace::{Ended, Price};
use crate::decide::walk::TlsTry;
use crate::error::{Attempt as Record, Class, Code, Error, Stage};
use crate::failure::{self, Failed, Failure};
use crate::host::{Address, Candidate, HostId};
use crate::lock;
use crate::lookup::LookUp;
use crate::monitor::Monitor;
use crate::net::{BoxFuture, Family, ResolveError};
use crate::open::{Opened, Opener, Progress, Purpose};
use crate::pace::Turn;
use crate::report::By;
use crate::resolve::numbered;

/// What a connect works with.
pub(crate) struct Tools<'a> {
    pub(crate) opener: &'a Opener,
    pub(crate) look_up: &'a LookUp,
    pub(crate) monitor: &'a Arc<Monitor>,
    pub(crate) purpose: Purpose,
    pub(crate) seed: u64,
    /// Waited for before the walk began, that long, so that no candidate's head start passes in a queue; for its first
    /// dial.
    pub(crate) turn: Mutex<Option<(Turn, Duration)>>,
}

impl Tools<'_> {
    /// Whether a session that is to write must not be on this host, writable or not.
    pub(crate) fn forbidden(&self, host: HostId) -> Option<Failure> {
        let Purpose::Caller(wanted) = self.purpose else { return None };
        self.monitor.forbidden(host, wanted)
    }

    /// Whether the primary is known by now, and is none of those that the walk was sent to or waits for: then the
    /// walk waits in vain, on a host that doesn't answer for as long as `connect_timeout`.
    fn in_vain(&self, sent_to: Option<&Address>, under_way: &BTreeMap<DialId, Dialling>) -> bool {
        let Purpose::Caller(wanted) = self.purpose else { return false };
        let Some((known, true)) = self.monitor.primary().filter(|_| wanted.needs_primary()) else {
            return false;
        };
        let mut aims = sent_to.into_iter().chain(under_way.values().map(|d| &d.candidate.address));
        aims.all(|a| *a != known.address)
    }
}

/// A session and how it was come by.
pub(crate) struct Arrived {
    pub(crate) opened: Opened,
    /// Every attempt, the successful one last.
    pub(crate) attempts: Vec<Record>,
}

impl Arrived {
    /// With a session that was opened ahead ([`crate::spare`]).
    pub(crate) fn ahead(opened: Opened) -> Self {
        let attempts = vec![success(&opened.member.candidate, Duration::ZERO)];
        Self { opened, attempts }
    }
}

enum Done {
    Dial { dial: DialId, result: Box<Result<Opened, Failed>>, encrypted: bool },
    Abandoned,
    LookUp { spec: usize, family: Family, result: Result<Vec<std::net::IpAddr>, ResolveError> },
}

struct Dialling {
    candidate: Candidate,
    started: Moment,
    progress: Arc<Progress>,
    abort: AbortHandle,
}

/// Walks the host list once.
pub(crate) async fn walk(
    tools: &Tools<'_>,
    options: attempt::Options,
    hosts: &[crate::host::HostSpec],
    deadline: Deadline,
) -> Result<Arrived, Error> {
    let mut rng = StdRng::seed_from_u64(tools.seed);
    // Addresses that were good, for when the name servers are slow or silent.
    let last_good = hosts.iter().map(|h| {
        let name = h.label();
        [Family::V4, Family::V6].into_iter().flat_map(|f| tools.look_up.last_good(&name, f)).collect()
    });
    let specs: Vec<_> = hosts.iter().map(numbered).collect();
    let follows = options.walk == HostWalk::Follow;
    let sent_to = options.prefer.as_ref().map(|c| c.address.clone());
    let mut changes = tools.monitor.changes();
    let mut machine = Attempt::new(&specs, options).with_last_good(last_good.collect());
    let mut work: FuturesUnordered<BoxFuture<'_, Done>> = FuturesUnordered::new();
    let mut dialling: BTreeMap<DialId, Dialling> = BTreeMap::new();
    let mut opened: BTreeMap<DialId, (Opened, Record)> = BTreeMap::new();

    let mut actions = machine.start(clock::now(), &mut rng);
    loop {
        for action in actions {
            match action {
                Action::Resolve { spec, name } => {
                    for family in [Family::V4, Family::V6] {
                        let name = name.clone();
                        work.push(Box::pin(async move {
                            let asked = clock::now();
                            let result = tools.look_up.now(&name, family).await;
                            tools.monitor.recorder.stage(Stage::Resolve, clock::now() - asked);
                            Done::LookUp { spec, family, result }
                        }));
                    }
                }
                Action::Dial { dial, candidate, tls, deadline: until } => {
                    let (d, future) = start(tools, dial, candidate, tls, Deadline::at(until).min(deadline));
                    dialling.insert(dial, d);
                    work.push(future);
                }
                Action::Abandon { dial } => {
                    if let Some(d) = dialling.remove(&dial) {
                        d.abort.abort();
                    }
                    // Dropping an open session's client says goodbye and closes.
                    opened.remove(&dial);
                }
                Action::Finish(Finish::Winner { dial, second_choice }) => {
                    let Some((mut winner, record)) = opened.remove(&dial) else {
                        return Err(internal(machine.attempts()));
                    };
                    winner.second_choice = second_choice;
                    let mut attempts = machine.attempts().to_vec();
                    attempts.push(record);
                    return Ok(Arrived { opened: winner, attempts });
                }
                Action::Finish(Finish::Failed { code, class }) => {
                    return Err(whole(code, class, machine.attempts().to_vec()));
                }
            }
        }
        let timer = machine.poll_timeout();
        let input = tokio::select! {
            biased;
            Some(done) = work.next(), if !work.is_empty() => {
                match done {
                    Done::Abandoned => { actions = Vec::new(); continue; }
                    Done::LookUp { spec, family, result } => match result {
                        Ok(addresses) => Input::Resolved { spec, family, addresses },
                        Err(error) => {
                            let name = hosts[spec].label();
                            Input::ResolveFailed {
                                spec, family, error,
                                resolved_before: tools.look_up.known_before(&name),
                                last_good: tools.look_up.last_good(&name, family),
                            }
                        }
                    },
                    Done::Dial { dial, result, encrypted } => {
                        let Some(d) = dialling.remove(&dial) else { actions = Vec::new(); continue };
                        match *result {
                            Ok(session) => {
                                let term = session.term.as_ref().and_then(|t| t.timeline).map_or(0, u64::from);
                                let input = if session.second_choice {
                                    Input::SecondChoice { dial }
                                } else {
                                    Input::Accepted { dial, term }
                                };
                                // Whatever it says of itself: the process may know better, by its row or before it.
                                let place = session.member.host;
                                tools.monitor.opened(&session);
                                match tools.forbidden(place) {
                                    Some(failure) => Input::Failed {
                                        dial,
                                        failed: Failed::new(Stage::Role, failure),
                                        encrypted,
                                        healthy_lately: false,
                                    },
                                    None => {
                                        let record = success(&d.candidate, clock::now() - d.started);
                                        opened.insert(dial, (session, record));
                                        input
                                    }
                                }
                            }
                            Err(failed) => {
                                let healthy_lately = tools.monitor.connect_failed(&d.candidate, &failed);
                                Input::Failed { dial, failed, encrypted, healthy_lately }
                            }
                        }
                    }
                }
            }
            _ = changes.changed(), if follows && opened.is_empty() => {
                if tools.in_vain(sent_to.as_ref(), &dialling) {
                    return Err(in_vain(machine.attempts().to_vec(), &dialling));
                }
                actions = Vec::new();
                continue;
            }
            () = clock::sleep_until(timer) => Input::Timer,
            () = clock::sleep_until(deadline.moment().unwrap_or(Moment::NEVER)) => {
                return Err(out_of_time(machine.attempts().to_vec(), &dialling));
            }
        };
        actions = machine.step(input, clock::now(), &mut rng);
    }
}

fn start<'a>(
    tools: &'a Tools<'_>,
    dial: DialId,
    candidate: Candidate,
    tls: TlsTry,
    until: Deadline,
) -> (Dialling, BoxFuture<'a, Done>) {
    let waited = lock(&tools.turn).take();
    let progress = Arc::new(Progress::after(waited.as_ref().map_or(Duration::ZERO, |(_, d)| *d)));
    let (abort, registration) = AbortHandle::new_pair();
    // The generation is read before the dial: what is learned of the host meanwhile makes the session an old one.
    let place = tools.monitor.place(&candidate);
    let (p, to) = (Arc::clone(&progress), candidate.clone());
    let seen = tools.monitor.recorder.attempt(place.0, By::Caller);
    let attempt = async move {
        let open = async {
            let pace = &tools.monitor.pace;
            let turn = match waited {
                Some((turn, _)) if turn.is_for(place.0) => turn,
                Some((other, _)) => {
                    drop(other);
                    pace.turn(Some(place.0), Price::Paid).await
                }
                None => pace.turn(Some(place.0), Price::Later).await,
            };
            let began = clock::now();
            let result = tools.opener.open(&to, place, tls, tools.purpose, &p).await;
            turn.done(match &result {
                Ok(_) => Ended::LoggedIn(clock::now() - began),
                Err(failed) if failed.is_refusal() => Ended::Refused,
                Err(_) => Ended::Otherwise,
            });
            result
        };
        let result = match until.bound(open).await {
            Ok(result) => result,
            Err(clock::Elapsed) => Err(Failed::new(p.stage(), Failure::TimedOut)),
        };
        seen.over(&result, &p);
        Done::Dial { dial, result: Box::new(result), encrypted: p.encrypted() }
    };
    let future = async move { Abortable::new(attempt, registration).await.unwrap_or(Done::Abandoned) };
    (Dialling { candidate, started: clock::now(), progress, abort }, Box::pin(future))
}

fn record(c: &Candidate, stage: Stage, took: Duration) -> Record {
    let (hostaddr, port) = match &c.address {
        Address::Tcp(a) => (a.ip().to_string(), a.port().to_string()),
        Address::Unix(p) => (p.display().to_string(), String::new()),
    };
    Record {
        host: c.name.to_string(),
        hostaddr: Some(hostaddr),
        port,
        stage,
        code: None,
        sqlstate: None,
        message: String::new(),
        class: None,
        next_host: true,
        took,
    }
}

fn success(c: &Candidate, took: Duration) -> Record {
    Record { message: "connected".to_owned(), ..record(c, Stage::Role, took) }
}

/// The caller's deadline passed before its login's turn came, or will before the login is over. `to`: where it would have gone.
pub(crate) fn never_began(to: Option<&Candidate>, waited: Duration) -> Error {
    let attempt = to.map(|c| Record {
        code: Some(Code::DeadlinePassed),
        class: Some(Class::Transient),
        message: "its turn to log in (max_connect_rate) had not come when the caller's deadline passed, or too late for a \
            login, by how long the last ones took there"
            .to_owned(),
        ..record(c, Stage::Pace, waited)
    });
    out_of_time(attempt.into_iter().collect(), &BTreeMap::new()).at_stage(Stage::Pace)
}

/// The attempts that are given up, and why.
fn given_up<'a>(
    under_way: &'a BTreeMap<DialId, Dialling>,
    code: Code,
    why: &'a str,
) -> impl Iterator<Item = Record> + 'a {
    let now = clock::now();
    under_way.values().map(move |d| Record {
        code: Some(code),
        class: Some(Class::Transient),
        message: why.to_owned(),
        ..record(&d.candidate, d.progress.stage(), now - d.started)
    })
}

fn in_vain(mut attempts: Vec<Record>, under_way: &BTreeMap<DialId, Dialling>) -> Error {
    attempts.extend(given_up(under_way, Code::Superseded, "given up: another host is primary"));
    let message = "another host became primary while this connect was under way: try again";
    Error::new(Code::Superseded, Class::Transient, message).with_attempts(attempts)
}

fn out_of_time(mut attempts: Vec<Record>, under_way: &BTreeMap<DialId, Dialling>) -> Error {
    let why = "still under way when the caller's deadline passed";
    attempts.extend(given_up(under_way, Code::DeadlinePassed, why));
    Error::new(
        Code::DeadlinePassed,
        Class::Transient,
        "no session could be had before the caller's deadline: try again later, or give it more time",
    )
    .with_attempts(attempts)
}

/// How long somebody waits, and by whose word: for the message that tells that it is over.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit {
    pub(crate) length: Duration,
    pub(crate) whose: &'static str,
}

impl Limit {
    /// Given with the call.
    pub(crate) const fn of_call(length: Duration) -> Self {
        Self { length, whose: "the caller's deadline" }
    }

    /// For an attempt of a run.
    pub(crate) const fn of_run(length: Duration) -> Self {
        Self { length, whose: "what was left of the run's deadline" }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", rounded(self.length), self.whose)
    }
}

/// A length of time for a message: what is left of a deadline is never a round number.
pub(crate) fn rounded(d: Duration) -> String {
    match (d.as_secs_f64() * 1e3).round() {
        ms if ms < 1e3 => format!("{ms} ms"),
        ms => format!("{} s", (ms / 100.0).round() / 10.0),
    }
}

/// Why no session was had.
pub(crate) struct Unopened {
    pub(crate) error: Error,
    /// There was no time for another walk.
    pub(crate) late: bool,
}

impl Unopened {
    /// For whoever waited so long.
    pub(crate) fn told(self, limit: Limit) -> Error {
        if self.late { too_late(self.error, limit) } else { self.error }
    }
}

/// A walk failed, and there is no time for another one.
fn too_late(e: Error, limit: Limit) -> Error {
    let message = format!("no session within {limit}; at last: {}", e.message());
    let mut late = Error::new(Code::DeadlinePassed, Class::Transient, message);
    if let Some(stage) = e.stage() {
        late = late.at_stage(stage);
    }
    if let Some(sqlstate) = e.sqlstate() {
        late = late.with_sqlstate(sqlstate);
    }
    late.with_attempts(e.attempts().to_vec())
}

fn internal(attempts: &[Record]) -> Error {
    Error::new(Code::Internal, Class::Transient, "the winning session is gone")
        .with_attempts(attempts.to_vec())
}

/// The error of the whole connect: one sentence with the remedy, then every attempt.
fn whole(code: Code, class: Class, attempts: Vec<Record>) -> Error {
    let last = attempts.last();
    let mut message = match (code, last) {
        (Code::NoHostFits, _) | (_, None) => "no host of the list could be used".to_owned(),
        // The name is the thing itself here; elsewhere the address below says which host.
        (_, Some(a)) if a.stage == Stage::Resolve => format!("host {:?}: {}", a.host, a.message),
        (_, Some(a)) => a.message.clone(),
    };
    let to_blame = |a: &&Record| code == Code::NoHostFits || a.code == Some(code);
    let mut remedies: Vec<&str> = attempts.iter().filter(to_blame).filter_map(failure::remedy).collect();
    remedies.sort_unstable();
    remedies.dedup();
    for (i, remedy) in remedies.into_iter().enumerate() {
        message.push_str(if i == 0 { ": " } else { "; " });
        message.push_str(remedy);
    }
    let mut e = Error::new(code, class, message);
    if let Some(a) = last {
        e = e.at_stage(a.stage);
        if let Some(s) = a.sqlstate {
            e = e.with_sqlstate(s);
        }
    }
    e.with_attempts(attempts)
}
