//! Runs `tests/vectors/topology/*.jsonl`: each line is a small world of hosts, what happens to it, and what the
//! topology must and must not ask for. `tests/vectors/topology/README.md` describes the format.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::time::Duration;

use pgfollow::clock::Moment;
use pgfollow::config::{Endpoint, MonitorMode, OnNewCluster, Tuning};
use pgfollow::decide::topology::{
    Action, ConnectKind, EndCause, InFlight, Input, MemberId, RoleFacts, TermRow, Topology, TopologyOptions,
};
use pgfollow::error::SqlState;
use pgfollow::host::{Address, HostId};
use serde::Deserialize;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Scenario {
    id: String,
    #[expect(dead_code, reason = "for readers of the file; its presence is required")]
    why: String,
    hosts: Vec<String>,
    #[serde(default)]
    options: Options,
    #[serde(default)]
    world: BTreeMap<String, String>,
    steps: Vec<Step>,
    /// Actions that must not come at any time.
    #[serde(default)]
    never: Vec<String>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Options {
    monitor: Option<MonitorMode>,
    on_new_cluster: Option<OnNewCluster>,
    endpoint: Option<Endpoint>,
    never_primary: Vec<String>,
    rtt_ms: Option<u64>,
    user_timeout_ms: Option<u64>,
    /// Candidates whose names give no address at the start.
    unresolved: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Step {
    at: u64,
    /// Our own runtime doesn't run until `at`.
    #[serde(default)]
    asleep: bool,
    #[serde(default)]
    world: BTreeMap<String, String>,
    #[serde(default, rename = "in")]
    inputs: Vec<String>,
    /// Since the step before: must have come.
    #[serde(default, rename = "do")]
    must: Vec<String>,
    /// Since the step before: must not have come.
    #[serde(default)]
    not: Vec<String>,
    /// Since the step before: how often, from and to.
    #[serde(default)]
    count: BTreeMap<String, (usize, usize)>,
    /// Since the step before: when first, from and to.
    #[serde(default)]
    when: BTreeMap<String, (u64, u64)>,
    #[serde(default)]
    state: BTreeMap<String, String>,
    /// `primary()`: a letter with `!` if fresh, or `none`.
    primary: Option<String>,
    highest: Option<u32>,
}

/// How a host behaves: what its open sessions answer, and what a new connection meets.
#[derive(Clone)]
struct Behaviour {
    row: Option<TermRow>,
    refuse: Option<ConnectKind>,
    dead: bool,
}

fn kind(word: &str) -> Option<ConnectKind> {
    Some(match word {
        "refused" => ConnectKind::Refused,
        "unreachable" => ConnectKind::Unreachable,
        "timeout" => ConnectKind::TimedOut,
        "lost" => ConnectKind::Lost,
        "tls" => ConnectKind::Tls,
        "tls_identity" => ConnectKind::TlsIdentity,
        state => ConnectKind::of_sqlstate(SqlState::new(state)?),
    })
}

/// `rw tl=1 start=1 sys=9`, `ro start=2`, `fenced tl=1`.
fn row(text: &str) -> Option<TermRow> {
    let mut row = TermRow { system_identifier: Some(1), ..TermRow::default() };
    let mut known = false;
    for word in text.split_whitespace() {
        match word.split_once('=') {
            None => {
                known = true;
                match word {
                    "rw" => {}
                    "ro" => row.in_recovery = true,
                    "fenced" => row.read_only = true,
                    "nosys" => row.system_identifier = None,
                    _ => return None,
                }
            }
            Some(("tl", v)) => row.timeline = v.parse().ok(),
            Some(("start", v)) => row.start_time = v.parse().ok(),
            Some(("sys", v)) => row.system_identifier = v.parse().ok(),
            Some(("max", v)) => row.max_connections = v.parse().ok(),
            Some(("own", v)) => row.own_sessions = v.parse().ok(),
            Some(_) => return None,
        }
    }
    known.then_some(row)
}

fn behaviour(text: &str) -> Behaviour {
    if text == "silent" {
        return Behaviour { row: None, refuse: None, dead: false };
    }
    if let Some(rest) = text.strip_prefix("dead") {
        let refuse = if rest.is_empty() { Some(ConnectKind::Refused) } else { kind(rest.trim()) };
        return Behaviour {
            row: None,
            refuse: Some(refuse.unwrap_or_else(|| panic!("{text:?}"))),
            dead: true,
        };
    }
    let (sessions, new) = text.split_once(" | ").unwrap_or((text, ""));
    let row = row(sessions);
    let refuse = if row.is_none() && new.is_empty() { kind(sessions) } else { kind(new) };
    assert!(row.is_some() || refuse.is_some() || new == "silent", "a behaviour of no kind: {text:?}");
    assert!(new.is_empty() || refuse.is_some() || new == "silent", "a behaviour of no kind: {text:?}");
    // "x | silent": sessions answer, and a new connection hears nothing.
    let refuse = if new == "silent" { Some(ConnectKind::TimedOut) } else { refuse };
    Behaviour { row, refuse, dead: false }
}

fn letter(id: HostId) -> char {
    char::from(b'a' + u8::try_from(id.0).expect("few hosts"))
}

fn host(name: &str) -> HostId {
    assert!(name.len() == 1, "a host is one letter, not {name:?}");
    HostId(u32::from(name.as_bytes()[0] - b'a'))
}

fn render(action: &Action) -> String {
    match action {
        Action::Dial { host, .. } => format!("dial {}", letter(*host)),
        Action::Probe { host } => format!("probe {}", letter(*host)),
        Action::CloseProbe { host } => format!("close_probe {}", letter(*host)),
        Action::Clear { host, idle, in_flight, .. } => {
            let how = match in_flight {
                InFlight::Close => "close".to_owned(),
                InFlight::CloseUnlessHarmless { grace } => format!("unless_harmless {}", grace.as_millis()),
                InFlight::CloseHarmless => "harmless".to_owned(),
                InFlight::Leave => "leave".to_owned(),
            };
            assert!(idle, "idle sessions of an old generation always go");
            format!("clear {} {how}", letter(*host))
        }
        Action::PingIdle { host } => format!("ping_idle {}", letter(*host)),
        Action::Retire { member } => format!("retire m{}", member.0),
        Action::Search { running } => format!("search {}", if *running { "on" } else { "off" }),
        Action::SuspectOurselves { on } => format!("ourselves {}", if *on { "on" } else { "off" }),
        Action::Publish => "publish".to_owned(),
        Action::Event(e) => {
            let v = serde_json::to_value(e).expect("events serialize");
            let name = v["event"].as_str().expect("events are tagged");
            let mut text = format!("event {name}");
            for key in ["host", "incumbent", "other", "stale", "newer", "same_as", "primary", "to"] {
                match &v[key] {
                    serde_json::Value::Number(n) => {
                        let id = HostId(u32::try_from(n.as_u64().unwrap_or(0)).unwrap_or(0));
                        text.push_str(&format!(" {}", letter(id)));
                    }
                    serde_json::Value::String(s) => text.push_str(&format!(" {s}")),
                    _ => {}
                }
            }
            text
        }
    }
}

/// `clear a` is met by `clear a close`; words must match as a whole.
fn matches(action: &str, wanted: &str) -> bool {
    action.strip_prefix(wanted).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
}

enum Delivery {
    Answer(HostId),
    Dialled(HostId, u64),
    Ended(HostId),
}

struct Sim {
    topology: Topology,
    now: u64,
    rtt: u64,
    world: BTreeMap<HostId, Behaviour>,
    /// Open probe sessions and the questions that a silent host still owes.
    open: BTreeMap<HostId, u32>,
    dials: BTreeMap<HostId, u64>,
    queue: BTreeMap<(u64, u64), Delivery>,
    seq: u64,
    log: Vec<(u64, String)>,
}

impl Sim {
    fn new(s: &Scenario) -> Self {
        let o = &s.options;
        let options = TopologyOptions {
            hosts: s.hosts.iter().map(|h| h.as_str().into()).collect(),
            monitor: o.monitor.unwrap_or(MonitorMode::Auto),
            probe_interval: Duration::from_secs(1),
            suspect_after: Duration::from_millis(500),
            on_new_cluster: o.on_new_cluster.unwrap_or(OnNewCluster::Adopt),
            endpoint: o.endpoint.unwrap_or(Endpoint::Direct),
            never_primary: o.never_primary.clone(),
            user_timeout: Duration::from_millis(o.user_timeout_ms.unwrap_or(9_000)),
            tuning: Tuning::default(),
            seed: 7,
        };
        Self {
            topology: Topology::new(options),
            now: 0,
            rtt: o.rtt_ms.unwrap_or(1) * 1_000,
            world: s.world.iter().map(|(h, b)| (host(h), behaviour(b))).collect(),
            open: BTreeMap::new(),
            dials: BTreeMap::new(),
            queue: BTreeMap::new(),
            seq: 0,
            log: Vec::new(),
        }
    }

    fn moment(&self) -> Moment {
        Moment::from_micros(self.now)
    }

    fn later(&mut self, delay: u64, d: Delivery) {
        self.seq += 1;
        self.queue.insert((self.now + delay, self.seq), d);
    }

    fn input(&mut self, input: Input) {
        let now = self.moment();
        let actions = self.topology.input(input, now);
        self.carry_out(actions);
    }

    fn behaviour(&self, id: HostId) -> Behaviour {
        self.world.get(&id).cloned().unwrap_or(Behaviour { row: None, refuse: None, dead: false })
    }

    fn carry_out(&mut self, actions: Vec<Action>) {
        for action in actions {
            self.log.push((self.now / 1_000, render(&action)));
            match action {
                Action::Dial { host, login_within, .. } => {
                    self.seq += 1;
                    let ticket = self.seq;
                    self.dials.insert(host, ticket);
                    let b = self.behaviour(host);
                    let quiet =
                        b.row.is_none() && b.refuse.is_none() || b.refuse == Some(ConnectKind::TimedOut);
                    let login = u64::try_from(login_within.as_micros()).expect("short");
                    let delay = if quiet { login } else { self.rtt * 2 };
                    self.later(delay, Delivery::Dialled(host, ticket));
                }
                Action::Probe { host } => {
                    if self.behaviour(host).row.is_some() {
                        self.later(self.rtt, Delivery::Answer(host));
                    } else {
                        *self.open.get_mut(&host).expect("a question needs an open session") += 1;
                    }
                }
                Action::CloseProbe { host } => {
                    self.open.remove(&host);
                    self.dials.remove(&host);
                }
                _ => {}
            }
        }
    }

    fn deliver(&mut self, d: Delivery) {
        match d {
            Delivery::Answer(host) => {
                if !self.open.contains_key(&host) {
                    return;
                }
                match self.behaviour(host).row {
                    Some(row) => {
                        let rtt = Duration::from_micros(self.rtt);
                        self.input(Input::ProbeAnswered { host, row, rtt });
                    }
                    None => *self.open.get_mut(&host).expect("open") += 1,
                }
            }
            Delivery::Dialled(host, ticket) => {
                if self.dials.get(&host) != Some(&ticket) {
                    return;
                }
                self.dials.remove(&host);
                let b = self.behaviour(host);
                let input = match (b.refuse, b.row) {
                    (Some(kind), _) => Input::ProbeConnectFailed { host, kind },
                    (None, Some(row)) => {
                        self.open.insert(host, 0);
                        Input::ProbeConnected { host, row, rtt: Duration::from_micros(self.rtt) }
                    }
                    (None, None) => Input::ProbeConnectFailed { host, kind: ConnectKind::TimedOut },
                };
                self.input(input);
            }
            Delivery::Ended(host) => {
                if self.open.remove(&host).is_some() {
                    self.input(Input::ProbeFailed { host, cause: EndCause::Fin });
                }
            }
        }
    }

    fn run_until(&mut self, end: u64) {
        for _ in 0..100_000 {
            let timer = self.topology.next_timer().as_micros();
            let queued = self.queue.first_key_value().map_or(u64::MAX, |(&(t, _), _)| t);
            let next = timer.min(queued);
            if next > end {
                self.now = end;
                return;
            }
            self.now = self.now.max(next);
            if queued <= timer {
                let (_, d) = self.queue.pop_first().expect("something is queued");
                self.deliver(d);
            } else {
                let now = self.moment();
                let actions = self.topology.timer(now);
                self.carry_out(actions);
            }
        }
        panic!("timers without an end at {} ms", self.now / 1_000);
    }

    fn sleep_until(&mut self, end: u64) {
        self.now = end;
        let now = self.moment();
        let actions = self.topology.timer(now);
        self.carry_out(actions);
        self.run_until(end);
    }

    fn change_world(&mut self, changes: &BTreeMap<String, String>) {
        for (name, text) in changes {
            let (id, b) = (host(name), behaviour(text));
            if b.dead {
                self.later(self.rtt, Delivery::Ended(id));
            } else if b.row.is_some()
                && let Some(owed) = self.open.get_mut(&id)
            {
                for _ in 0..std::mem::take(owed) {
                    self.later(self.rtt, Delivery::Answer(id));
                }
            }
            self.world.insert(id, b);
        }
    }

    fn known(&mut self, id: HostId, spec: usize) {
        let ip = [10, 0, 0, u8::try_from(id.0 + 1).expect("few hosts")];
        let address = Address::Tcp((ip, 5432).into());
        self.input(Input::AddressKnown { host: id, spec, address });
    }

    fn say(&mut self, text: &str) {
        let words: Vec<&str> = text.split_whitespace().collect();
        let option = |key: &str| {
            words
                .iter()
                .find_map(|w| w.strip_prefix(key).and_then(|r| r.strip_prefix('=')).map(str::to_owned))
        };
        let number =
            |w: &str| w.trim_start_matches(|c: char| c.is_ascii_alphabetic()).parse::<u64>().expect(text);
        let at = self.moment();
        let input = match *words.first().expect("an input") {
            "known" => {
                let spec = option("spec").map_or(host(words[1]).0 as usize, |s| s.parse().expect(text));
                return self.known(host(words[1]), spec);
            }
            "gone" => Input::AddressGone { host: host(words[1]) },
            "dns" => Input::NameServerAnswered { local: words.get(1) == Some(&"local") },
            "blocked" => Input::CallBlocked {
                host: host(words[1]),
                member: MemberId(number(words[2])),
                call: number(words[3]),
                since: Moment::from_micros(self.now.saturating_sub(500_000)),
            },
            "ended" => Input::SessionEnded {
                host: host(words[1]),
                member: MemberId(number(words[2])),
                generation: option("gen")
                    .map_or_else(|| self.topology.generation(host(words[1])), |g| g.parse().expect(text)),
                cause: match words[3] {
                    "rst" => EndCause::Reset,
                    "fin" => EndCause::Fin,
                    "etimedout" => EndCause::TimedOut,
                    "local" => EndCause::Local,
                    s => EndCause::Sqlstate(SqlState::new(s).expect(text)),
                },
            },
            "sqlstate" => Input::SessionSqlstate {
                host: host(words[1]),
                member: MemberId(number(words[2])),
                sqlstate: SqlState::new(words[3]).expect(text),
                in_hot_standby: option("hot").map(|v| v == "on"),
                read_only_block: words.contains(&"read_only_block"),
            },
            "param" => Input::SessionParameter {
                host: host(words[1]),
                member: MemberId(number(words[2])),
                in_hot_standby: option("hot").map(|v| v == "on"),
                default_read_only: option("ro").map(|v| v == "on"),
            },
            "opened" => {
                let rest = words[3..].join(" ");
                let full = row(&rest).expect(text);
                let bare = full.start_time.is_none() && full.timeline.is_none();
                Input::SessionOpened {
                    host: host(words[1]),
                    member: MemberId(number(words[2])),
                    facts: RoleFacts {
                        in_recovery: Some(full.in_recovery),
                        read_only: Some(full.read_only),
                        row: (!bare).then_some(full),
                    },
                }
            }
            "term" => Input::SessionTerm {
                host: host(words[1]),
                member: MemberId(number(words[2])),
                row: row(&words[3..].join(" ")).expect(text),
            },
            "ping_failed" => Input::PingFailed {
                host: host(words[1]),
                generation: option("gen")
                    .map_or_else(|| self.topology.generation(host(words[1])), |g| g.parse().expect(text)),
            },
            "probe_failed" => {
                self.open.remove(&host(words[1]));
                Input::ProbeFailed {
                    host: host(words[1]),
                    cause: match words[2] {
                        "rst" => EndCause::Reset,
                        "fin" => EndCause::Fin,
                        "etimedout" => EndCause::TimedOut,
                        s => EndCause::Sqlstate(SqlState::new(s).expect(text)),
                    },
                }
            }
            "byte" => Input::ByteSeen { host: host(words[1]), at },
            "calls" => Input::CallsInFlight { count: words[1].parse().expect(text) },
            "callers" => Input::SessionWanted { callers: words[1].parse().expect(text) },
            "stall" => Input::RuntimeStalled { lasted: Duration::from_millis(words[1].parse().expect(text)) },
            "connected" => Input::Connected { host: host(words[1]) },
            "failed" => Input::ConnectFailed { host: host(words[1]), kind: kind(words[2]).expect(text) },
            "accept" => Input::AcceptTerm { host: host(words[1]) },
            other => panic!("an unknown input {other:?}"),
        };
        self.input(input);
    }
}

fn run(s: &Scenario) -> Result<(), String> {
    let mut sim = Sim::new(s);
    for (i, name) in s.hosts.iter().enumerate() {
        if !s.options.unresolved.contains(name) {
            sim.known(HostId(u32::try_from(i).expect("few")), i);
        }
    }
    let mut seen = 0;
    for step in &s.steps {
        let end = step.at * 1_000;
        if step.asleep {
            sim.sleep_until(end)
        } else {
            sim.run_until(end)
        }
        sim.change_world(&step.world);
        for input in &step.inputs {
            sim.say(input);
        }
        let log = &sim.log[seen..];
        let fail = |what: String| {
            let log: Vec<String> =
                log.iter().filter(|(_, a)| a != "publish").map(|(t, a)| format!("{t} {a}")).collect();
            // The end of it: a search fills pages.
            let log = &log[log.len().saturating_sub(25)..];
            Err(format!("at {}: {what}\n    {}", step.at, log.join("\n    ")))
        };
        for wanted in &step.must {
            if !log.iter().any(|(_, a)| matches(a, wanted)) {
                return fail(format!("{wanted:?} didn't come"));
            }
        }
        for unwanted in &step.not {
            if log.iter().any(|(_, a)| matches(a, unwanted)) {
                return fail(format!("{unwanted:?} came"));
            }
        }
        for (wanted, &(from, to)) in &step.count {
            let n = log.iter().filter(|(_, a)| matches(a, wanted)).count();
            if !(from..=to).contains(&n) {
                return fail(format!("{wanted:?} came {n} times, not {from} to {to}"));
            }
        }
        for (wanted, &(from, to)) in &step.when {
            match log.iter().find(|(_, a)| matches(a, wanted)) {
                Some((t, _)) if (from..=to).contains(t) => {}
                other => {
                    return fail(format!("{wanted:?} came at {:?}, not {from} to {to}", other.map(|o| o.0)));
                }
            }
        }
        let snapshot = sim.topology.snapshot(sim.moment());
        for (name, wanted) in &step.state {
            let state = snapshot.host(host(name)).map_or("dropped".to_owned(), |h| h.state.to_string());
            if state != *wanted {
                return fail(format!("{name} is {state}, not {wanted}"));
            }
        }
        if let Some(wanted) = &step.primary {
            let primary = match sim.topology.primary(sim.moment()) {
                None => "none".to_owned(),
                Some((id, fresh)) => format!("{}{}", letter(id), if fresh { "!" } else { "" }),
            };
            if primary != *wanted {
                return fail(format!("the primary is {primary}, not {wanted}"));
            }
        }
        if step.highest.is_some() && snapshot.cluster.highest_timeline != step.highest {
            return fail(format!("the highest timeline is {:?}", snapshot.cluster.highest_timeline));
        }
        seen = sim.log.len();
    }
    for unwanted in &s.never {
        if let Some((t, a)) = sim.log.iter().find(|(_, a)| matches(a, unwanted)) {
            return Err(format!("at {t}: {a:?} came, and {unwanted:?} must never"));
        }
    }
    Ok(())
}

#[test]
fn every_scenario_gets_its_actions_and_none_of_the_forbidden_ones() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/vectors/topology");
    let mut ids = HashSet::new();
    let mut failures = Vec::new();
    let mut files: Vec<_> =
        std::fs::read_dir(&dir).expect("the vectors").map(|e| e.expect("entry").path()).collect();
    files.sort();
    for file in files.iter().filter(|f| f.extension().is_some_and(|e| e == "jsonl")) {
        let text = std::fs::read_to_string(file).expect("readable");
        for (n, line) in text.lines().enumerate().filter(|(_, l)| !l.trim().is_empty()) {
            let s: Scenario =
                serde_json::from_str(line).unwrap_or_else(|e| panic!("{}:{}: {e}", file.display(), n + 1));
            assert!(ids.insert(s.id.clone()), "the id {} is there twice", s.id);
            if std::env::var("SCENARIO").is_ok_and(|only| only != s.id) {
                continue;
            }
            if let Err(e) = run(&s) {
                failures.push(format!("{}: {e}", s.id));
            }
        }
    }
    assert!(failures.is_empty(), "{} of {} failed\n{}", failures.len(), ids.len(), failures.join("\n"));
    assert!(ids.len() >= 80, "only {} scenarios", ids.len());
}
