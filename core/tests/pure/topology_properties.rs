//! Whatever comes in: healthy work is never aborted, the highest timeline never falls, generations never fall, and
//! the timers never spin.

use std::collections::BTreeMap;
use std::time::Duration;

use pgfollow::clock::Moment;
use pgfollow::config::{Endpoint, MonitorMode, OnNewCluster, Tuning};
use pgfollow::decide::topology::{
    Action, ConnectKind, EndCause, InFlight, Input, MemberId, RoleFacts, TermRow, Topology, TopologyOptions,
};
use pgfollow::error::SqlState;
use pgfollow::host::{Address, HostId};
use proptest::prelude::*;

const HOSTS: u32 = 3;
const RTT: Duration = Duration::from_millis(1);

fn options(monitor: MonitorMode, on_new_cluster: OnNewCluster, seed: u64) -> TopologyOptions {
    TopologyOptions {
        hosts: (0..HOSTS).map(|i| format!("h{i}").as_str().into()).collect(),
        monitor,
        probe_interval: Duration::from_secs(1),
        suspect_after: Duration::from_millis(500),
        on_new_cluster,
        endpoint: Endpoint::Direct,
        never_primary: Vec::new(),
        user_timeout: Duration::from_secs(9),
        tuning: Tuning::default(),
        seed,
    }
}

fn known(id: u32) -> Input {
    let ip = [10, 0, 0, u8::try_from(id + 1).expect("few")];
    Input::AddressKnown { host: HostId(id), spec: id as usize, address: Address::Tcp((ip, 5432).into()) }
}

fn host() -> impl Strategy<Value = HostId> {
    (0..HOSTS).prop_map(HostId)
}

fn connect_kind() -> impl Strategy<Value = ConnectKind> {
    prop::sample::select(vec![
        ConnectKind::Refused,
        ConnectKind::Unreachable,
        ConnectKind::TimedOut,
        ConnectKind::Lost,
        ConnectKind::NotReady,
        ConnectKind::Full,
        ConnectKind::BadPassword,
        ConnectKind::NotAuthorized,
        ConnectKind::NoDatabase,
        ConnectKind::TlsIdentity,
        ConnectKind::Other,
    ])
}

fn end_cause() -> impl Strategy<Value = EndCause> {
    let state = |s: &str| EndCause::Sqlstate(SqlState::new(s).expect("a state"));
    prop::sample::select(vec![
        EndCause::Reset,
        EndCause::Fin,
        EndCause::TimedOut,
        EndCause::Local,
        state("57P01"),
        state("57P02"),
        state("57P05"),
        state("25P03"),
    ])
}

fn row() -> impl Strategy<Value = TermRow> {
    let optional = |n: u32| prop::option::weighted(0.9, 1..n);
    (any::<bool>(), any::<bool>(), optional(5), optional(3), optional(4), 0..300u32).prop_map(
        |(in_recovery, read_only, timeline, system, start, own)| TermRow {
            in_recovery,
            read_only,
            timeline: timeline.filter(|_| !in_recovery),
            system_identifier: system.map(u64::from),
            start_time: start.map(i64::from),
            replay_lsn: None,
            max_connections: Some(100),
            own_sessions: Some(own),
        },
    )
}

/// Facts that callers and names bring in. None of them says anything of the server's own answers.
fn noise() -> impl Strategy<Value = Input> {
    let member = || (1..6u64).prop_map(MemberId);
    let flag = || prop::option::of(any::<bool>());
    prop_oneof![
        host().prop_map(|host| Input::AddressGone { host }),
        (0..HOSTS).prop_map(known),
        any::<bool>().prop_map(|local| Input::NameServerAnswered { local }),
        (member(), host(), 0..20u64, end_cause()).prop_map(|(member, host, generation, cause)| {
            Input::SessionEnded { member, host, generation, cause }
        }),
        (member(), host(), flag(), any::<bool>()).prop_map(|(member, host, in_hot_standby, block)| {
            let sqlstate = SqlState::new("25006").expect("a state");
            Input::SessionSqlstate { member, host, sqlstate, in_hot_standby, read_only_block: block }
        }),
        (member(), host(), flag(), flag()).prop_map(|(member, host, in_hot_standby, default_read_only)| {
            Input::SessionParameter { member, host, in_hot_standby, default_read_only }
        }),
        (host(), 0..20u64).prop_map(|(host, generation)| Input::PingFailed { host, generation }),
        (host(), member(), 0..4u64).prop_map(|(host, member, call)| Input::CallBlocked {
            host,
            member,
            call,
            since: Moment::ZERO
        }),
        (0..3u32).prop_map(|count| Input::CallsInFlight { count }),
        (0..3u32).prop_map(|callers| Input::SessionWanted { callers }),
        (0..3_000u64).prop_map(|ms| Input::RuntimeStalled { lasted: Duration::from_millis(ms) }),
        (host(), connect_kind()).prop_map(|(host, kind)| Input::ConnectFailed { host, kind }),
        host().prop_map(|host| Input::Connected { host }),
    ]
}

/// Anything at all, answers of servers included, in any order.
fn anything() -> impl Strategy<Value = Input> {
    let member = || (1..6u64).prop_map(MemberId);
    prop_oneof![
        3 => noise(),
        1 => (host(), row()).prop_map(|(host, row)| Input::ProbeConnected { host, row, rtt: RTT }),
        1 => (host(), connect_kind()).prop_map(|(host, kind)| Input::ProbeConnectFailed { host, kind }),
        2 => (host(), row()).prop_map(|(host, row)| Input::ProbeAnswered { host, row, rtt: RTT }),
        1 => (host(), end_cause()).prop_map(|(host, cause)| Input::ProbeFailed { host, cause }),
        1 => (member(), host(), row()).prop_map(|(member, host, row)| Input::SessionTerm { member, host, row }),
        1 => (member(), host(), row(), any::<bool>()).prop_map(|(member, host, row, whole)| {
            let (in_recovery, read_only) = (Some(row.in_recovery), Some(row.read_only));
            let facts = RoleFacts { in_recovery, read_only, row: whole.then_some(row) };
            Input::SessionOpened { member, host, facts }
        }),
        1 => (host(), 0..100_000u64).prop_map(|(host, ms)| Input::ByteSeen { host, at: Moment::from_millis(ms) }),
        1 => host().prop_map(|host| Input::AcceptTerm { host }),
    ]
}

fn modes() -> impl Strategy<Value = MonitorMode> {
    prop::sample::select(vec![MonitorMode::Auto, MonitorMode::On, MonitorMode::WhileBusy, MonitorMode::Off])
}

fn policies() -> impl Strategy<Value = OnNewCluster> {
    prop::sample::select(vec![OnNewCluster::Adopt, OnNewCluster::Pin, OnNewCluster::Ignore])
}

/// A server that answers as `rows` says, at once or never.
struct Shell {
    topology: Topology,
    now: Moment,
    rows: BTreeMap<HostId, Option<TermRow>>,
    due: BTreeMap<(Moment, u64), Input>,
    seq: u64,
    cleared: Vec<(HostId, InFlight)>,
}

impl Shell {
    fn input(&mut self, input: Input) {
        let actions = self.topology.input(input, self.now);
        self.carry_out(actions);
    }

    fn later(&mut self, input: Input) {
        self.seq += 1;
        self.due.insert((self.now + RTT, self.seq), input);
    }

    fn carry_out(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Dial { host, .. } => {
                    let row = self.rows.get(&host).copied().flatten();
                    self.later(match row {
                        Some(row) => Input::ProbeConnected { host, row, rtt: RTT },
                        None => Input::ProbeConnectFailed { host, kind: ConnectKind::TimedOut },
                    });
                }
                Action::Probe { host } => {
                    if let Some(row) = self.rows.get(&host).copied().flatten() {
                        self.later(Input::ProbeAnswered { host, row, rtt: RTT });
                    }
                }
                Action::Clear { host, in_flight, .. } => self.cleared.push((host, in_flight)),
                _ => {}
            }
        }
    }

    fn run_for(&mut self, d: Duration) {
        let end = self.now + d;
        loop {
            let timer = self.topology.next_timer();
            let queued = self.due.first_key_value().map_or(Moment::NEVER, |(&(t, _), _)| t);
            if timer.min(queued) > end {
                self.now = end;
                return;
            }
            self.now = self.now.max(timer.min(queued));
            if queued <= timer {
                let (_, input) = self.due.pop_first().expect("queued");
                self.input(input);
            } else {
                let actions = self.topology.timer(self.now);
                self.carry_out(actions);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_healthy_primary_of_the_highest_term_never_loses_a_call(
        seed in any::<u64>(),
        monitor in prop::sample::select(vec![MonitorMode::Auto, MonitorMode::On]),
        standbys_answer in any::<[bool; 2]>(),
        steps in prop::collection::vec((noise(), 0..1_500u64), 1..60),
    ) {
        let healthy = TermRow {
            timeline: Some(3),
            system_identifier: Some(1),
            start_time: Some(1),
            ..TermRow::default()
        };
        let standby = |start, on: bool| {
            on.then_some(TermRow { in_recovery: true, timeline: None, start_time: Some(start), ..healthy })
        };
        let rows = BTreeMap::from([
            (HostId(0), Some(healthy)),
            (HostId(1), standby(2, standbys_answer[0])),
            (HostId(2), standby(3, standbys_answer[1])),
        ]);
        let topology = Topology::new(options(monitor, OnNewCluster::Adopt, seed));
        let mut shell =
            Shell { topology, now: Moment::ZERO, rows, due: BTreeMap::new(), seq: 0, cleared: Vec::new() };
        (0..HOSTS).for_each(|id| shell.input(known(id)));
        shell.run_for(Duration::from_millis(500));
        let mut pings = false;
        for (input, wait) in steps {
            pings |= matches!(input, Input::PingFailed { host: HostId(0), .. });
            shell.input(input);
            shell.run_for(Duration::from_millis(wait));
        }
        for (host, in_flight) in &shell.cleared {
            if *host == HostId(0) {
                prop_assert!(pings, "sessions of a healthy primary were cleared");
                prop_assert_eq!(*in_flight, InFlight::Leave);
            }
        }
    }

    #[test]
    fn neither_timelines_nor_generations_fall_and_timers_never_spin(
        seed in any::<u64>(),
        monitor in modes(),
        policy in policies(),
        steps in prop::collection::vec((anything(), 0..2_000u64), 1..80),
    ) {
        let mut topology = Topology::new(options(monitor, policy, seed));
        let mut now = Moment::ZERO;
        for id in 0..HOSTS {
            topology.input(known(id), now);
        }
        let mut before = topology.snapshot(now);
        let mut generations = BTreeMap::new();
        for (input, wait) in steps {
            let accepts = matches!(input, Input::AcceptTerm { .. });
            topology.input(input, now);
            let end = now + Duration::from_millis(wait);
            for turn in 0.. {
                let due = topology.next_timer();
                if due > end {
                    break;
                }
                prop_assert!(turn < 2_000, "the timers spin at {}", now);
                now = now.max(due);
                topology.timer(now);
            }
            now = end;
            let snapshot = topology.snapshot(now);
            let (old, new) = (&before.cluster, &snapshot.cluster);
            if old.system_identifier == new.system_identifier && old.system_identifier.is_some() && !accepts {
                prop_assert!(new.highest_timeline >= old.highest_timeline, "the highest timeline fell");
            }
            for h in &snapshot.hosts {
                let known = generations.insert(h.id, h.generation).unwrap_or(0);
                prop_assert!(h.generation >= known, "a generation fell");
            }
            if let Some((id, _)) = topology.primary(now) {
                let h = snapshot.host(id).expect("the primary is known");
                prop_assert!(h.timeline.is_none() || h.timeline >= new.highest_timeline, "a stale primary is named");
            }
            before = snapshot;
        }
    }
}

/// The address that is never asked is heard through its twin; what was heard counts for as long as a probe may take.
#[test]
fn a_server_with_two_addresses_answers_at_both_and_only_for_a_while() {
    let row =
        TermRow { timeline: Some(3), system_identifier: Some(1), start_time: Some(1), ..TermRow::default() };
    let mut topology = Topology::new(options(MonitorMode::Auto, OnNewCluster::Adopt, 1));
    for id in 0..HOSTS {
        topology.input(known(id), Moment::ZERO);
    }
    for id in 0..2 {
        topology.input(Input::ProbeConnected { host: HostId(id), row, rtt: RTT }, Moment::ZERO);
    }
    topology.input(Input::ProbeAnswered { host: HostId(0), row, rtt: RTT }, Moment::from_millis(3_000));
    let answers = |id, ms| topology.answers(HostId(id), Moment::from_millis(ms));
    assert!(answers(0, 5_199) && answers(1, 5_199));
    assert!(!answers(0, 5_200) && !answers(1, 5_200));
    assert!(!answers(2, 3_000), "another server");
    assert!(!answers(9, 3_000), "nobody");
}

/// A row of a primary.
fn primary(timeline: Option<u32>, system: Option<u64>, start: Option<i64>) -> TermRow {
    TermRow { timeline, system_identifier: system, start_time: start, ..TermRow::default() }
}

fn answered(topology: &mut Topology, host: u32, row: TermRow, at_ms: u64) {
    let input = Input::ProbeConnected { host: HostId(host), row, rtt: RTT };
    topology.input(input, Moment::from_millis(at_ms));
}

fn three(policy: OnNewCluster) -> Topology {
    let mut topology = Topology::new(options(MonitorMode::Auto, policy, 7));
    (0..HOSTS).for_each(|id| drop(topology.input(known(id), Moment::ZERO)));
    topology
}

/// Found by the property above, one case in many thousands.
#[test]
fn a_second_address_of_another_cluster_is_no_primary_when_it_speaks_for_itself_again() {
    let mut topology = three(OnNewCluster::Pin);
    answered(&mut topology, 0, TermRow { read_only: true, ..primary(None, Some(1), None) }, 0);
    // Another cluster's primary, at two addresses.
    answered(&mut topology, 1, primary(None, Some(2), Some(2)), 150);
    answered(&mut topology, 2, primary(Some(1), Some(2), Some(2)), 150);
    assert_eq!(topology.primary(Moment::from_millis(150)), None);
    // It restarts, and its second address is asked alone.
    answered(&mut topology, 1, primary(None, None, Some(3)), 150);
    let row = TermRow { read_only: true, ..primary(None, None, None) };
    let facts = RoleFacts { in_recovery: Some(false), read_only: Some(true), row: Some(row) };
    let input = Input::SessionOpened { member: MemberId(1), host: HostId(2), facts };
    topology.input(input, Moment::from_millis(150));
    assert_eq!(topology.primary(Moment::from_millis(150)), None, "another cluster's host is named");
}

#[test]
fn an_incumbent_whose_term_was_never_compared_gives_way_to_a_higher_one() {
    let mut topology = three(OnNewCluster::Adopt);
    // Its own role is all that the new cluster's primary tells, and a host of none answers beside it.
    answered(&mut topology, 0, primary(Some(9), Some(1), Some(1)), 0);
    answered(&mut topology, 0, TermRow { in_recovery: true, ..primary(None, Some(1), Some(1)) }, 1_000);
    answered(&mut topology, 2, primary(Some(2), None, Some(3)), 10_900);
    answered(&mut topology, 1, primary(None, Some(2), Some(2)), 11_000);
    assert_eq!(topology.snapshot(Moment::from_millis(11_000)).cluster.system_identifier, Some(2));
    let gone = Input::ProbeConnectFailed { host: HostId(1), kind: ConnectKind::Refused };
    topology.input(gone, Moment::from_millis(11_600));
    assert_eq!(topology.primary(Moment::from_millis(11_600)).map(|p| p.0), Some(HostId(2)));
    answered(&mut topology, 1, primary(Some(3), Some(2), Some(4)), 11_700);
    let snapshot = topology.snapshot(Moment::from_millis(11_700));
    assert_eq!(snapshot.cluster.highest_timeline, Some(3));
    assert_eq!(topology.primary(Moment::from_millis(11_700)).map(|p| p.0), Some(HostId(1)));
}
