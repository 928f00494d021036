//! What a connect must never do, one hazard a test, under virtual time.

use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use super::attempt_world::{Does, MS, PRIMARY, STANDBY, World, ip, says, serves};
use pgfollow::config::{HostWalk, SessionAttrs, SslMode};
use pgfollow::decide::attempt::Finish;
use pgfollow::decide::walk::TlsTry;
use pgfollow::failure::Failure;
use pgfollow::host::{HostSpec, Port};
use pgfollow::net::ResolveError;
use pgfollow::{Class, Code, SqlState, Stage};
use proptest::prelude::*;

const FOLLOW: HostWalk = HostWalk::Follow;
const STRICT: HostWalk = HostWalk::Strict;

fn failed(code: Code, class: Class) -> Finish {
    Finish::Failed { code, class }
}

fn at_term(term: u64) -> Does {
    Does::Serves { standby: false, read_only: false, reports: true, term }
}

#[test]
fn a_dead_first_host_costs_one_stagger_and_two_round_trips_once_the_network_is_known() {
    let mut world = World::new(FOLLOW, &[&[("dead", Does::Silent)], &[("P", PRIMARY)]]);
    let run = world.run();
    assert_eq!((run.winner.as_deref(), run.at), (Some("P"), 253 * MS));
    for (rtt_us, stagger) in [(100, 10), (5_000, 10), (40_000, 80)] {
        world.options.fastest_rtt = Some(Duration::from_micros(rtt_us));
        assert_eq!(world.run().at, MS * (1 + stagger + 2), "rtt {rtt_us} µs");
    }
}

#[test]
fn a_failure_starts_the_next_at_once_and_strict_never_dials_side_by_side() {
    let hosts: &[&[(&str, Does)]] =
        &[&[("1", Does::Refuses)], &[("2", says("57P03"))], &[("3", Does::Silent)], &[("P", PRIMARY)]];
    let run = World::new(FOLLOW, hosts).run();
    let times: Vec<_> = run.dials.iter().map(|d| d.1).collect();
    assert_eq!(times, [MS, 3 * MS, 5 * MS, 255 * MS]);
    let run = World::new(STRICT, hosts).run();
    assert_eq!(run.at, 4 * MS + 2 * 2 * MS + Duration::from_secs(5) + 2 * MS);
    assert!(run.abandoned.is_empty());
}

#[test]
fn a_stop_rule_ends_the_attempts_under_way_with_it() {
    let run =
        World::new(FOLLOW, &[&[("slow", Does::Silent)], &[("2", says("28P01"))], &[("P", PRIMARY)]]).run();
    assert_eq!(run.finish, failed(Code::Server, Class::Permanent));
    assert_eq!((run.dialled(), run.abandoned.len()), (vec!["slow", "2"], 1));
    assert_eq!(run.records.last().unwrap().sqlstate.unwrap().as_str(), "28P01");
}

#[test]
fn in_a_fresh_outage_28000_moves_on_and_otherwise_stops() {
    let mut world = World::new(FOLLOW, &[&[("1", says("28000"))], &[("P", PRIMARY)]]);
    assert_eq!(world.run().finish, failed(Code::Server, Class::Permanent));
    world.healthy_lately = true;
    assert_eq!(world.run().winner.as_deref(), Some("P"));
    let mut alone = World::new(FOLLOW, &[&[("1", says("28000"))]]);
    alone.healthy_lately = true;
    assert_eq!(alone.run().finish, failed(Code::Server, Class::Transient));
}

#[test]
fn prefer_goes_to_clear_text_after_28000_or_a_refused_handshake_and_never_after_a_forgeable_answer() {
    let only_plain = |code| Does::Says { code, after_auth: false, encrypted: true, plain: false };
    let refuses_tls = |failure| Does::Fails(Stage::Secure, failure);
    for (does, modes) in [
        (only_plain("28000"), vec![TlsTry::TlsOrPlain, TlsTry::Plain]),
        (refuses_tls(Failure::TlsHandshake("version".into())), vec![TlsTry::TlsOrPlain, TlsTry::Plain]),
        (refuses_tls(Failure::TlsRequestRefused), vec![TlsTry::TlsOrPlain]),
        (refuses_tls(Failure::TlsIdentity("other name".into())), vec![TlsTry::TlsOrPlain]),
        (refuses_tls(Failure::EarlyData), vec![TlsTry::TlsOrPlain]),
        (refuses_tls(Failure::Lost("EOF".into())), vec![TlsTry::TlsOrPlain]),
        (Does::Silent, vec![TlsTry::TlsOrPlain]),
        (only_plain("53300"), vec![TlsTry::TlsOrPlain]),
        (only_plain("28P01"), vec![TlsTry::TlsOrPlain]),
    ] {
        let mut world = World::new(FOLLOW, &[&[("1", does.clone())]]);
        world.options.sslmode = SslMode::Prefer;
        let run = world.run();
        assert_eq!(run.dials.iter().map(|d| d.2).collect::<Vec<_>>(), modes, "{does:?}");
        assert!(run.deadlines.iter().all(|d| *d == run.deadlines[0]), "an address's time is granted once");
    }
}

#[test]
fn a_server_without_tls_is_not_asked_twice_in_clear_text() {
    for walk in [FOLLOW, STRICT] {
        let mut world = World::new(walk, &[&[("1", says("28000"))]]);
        world.options.sslmode = SslMode::Prefer;
        world.has_tls = false;
        assert_eq!(world.run().dials.len(), 1, "{walk}: the login ran in clear text already");
    }
}

#[test]
fn allow_tries_tls_only_where_clear_text_is_not_permitted() {
    let only_tls = |code| Does::Says { code, after_auth: false, encrypted: false, plain: true };
    for (walk, code, modes) in [
        (FOLLOW, "28000", vec![TlsTry::Plain, TlsTry::Tls]),
        (FOLLOW, "28P01", vec![TlsTry::Plain]),
        (STRICT, "28000", vec![TlsTry::Plain, TlsTry::Tls]),
        // libpq tries the other way after any error before AuthenticationOk but 57P03.
        (STRICT, "53300", vec![TlsTry::Plain, TlsTry::Tls]),
        (STRICT, "57P03", vec![TlsTry::Plain]),
    ] {
        let mut world = World::new(walk, &[&[("1", only_tls(code))]]);
        world.options.sslmode = SslMode::Allow;
        let run = world.run();
        assert_eq!(run.dials.iter().map(|d| d.2).collect::<Vec<_>>(), modes, "{walk} {code}");
        assert_eq!(run.winner.is_some(), modes.len() == 2, "{walk} {code}");
    }
}

#[test]
fn required_tls_is_never_given_up() {
    for walk in [FOLLOW, STRICT] {
        for sslmode in [SslMode::Require, SslMode::VerifyCa, SslMode::VerifyFull] {
            for does in
                [says("28000"), Does::Fails(Stage::Secure, Failure::TlsHandshake("no".into())), PRIMARY]
            {
                let mut world = World::new(walk, &[&[("1", does)]]);
                world.options.sslmode = sslmode;
                world.has_tls = false;
                let run = world.run();
                assert!(run.winner.is_none() && run.dials.iter().all(|d| d.2 == TlsTry::Tls), "{run:?}");
                assert!(matches!(run.finish, Finish::Failed { class: Class::Permanent, .. }));
            }
        }
    }
}

#[test]
fn the_known_primary_is_dialled_alone_and_nobody_looks_names_up() {
    let mut world = World::new(FOLLOW, &[&[("S", STANDBY)], &[("P", PRIMARY)]]);
    world.options.prefer = Some(world.candidate(1, 0));
    let run = world.run();
    assert_eq!((run.dialled(), run.look_ups, run.at), (vec!["P"], 0, 2 * MS));
    // Over a slow network a login takes longer than the stagger, and the standby is still left alone.
    world.options.fastest_rtt = Some(50 * MS);
    world.place(1, 0).takes = 350 * MS;
    assert_eq!(world.run().dialled(), ["P"]);
}

/// A fleet logs in there: each dial to another host would cost a login of the rate, so the next callers would wait.
#[test]
fn a_primary_that_suffers_under_logins_is_left_alone_for_twice_what_the_last_one_took() {
    let mut world = World::new(FOLLOW, &[&[("S", STANDBY)], &[("P", PRIMARY)]]);
    world.options.prefer = Some(world.candidate(1, 0));
    world.place(1, 0).takes = 900 * MS;
    assert_eq!(world.run().dialled(), ["P", "S"], "slow for no reason that is known");
    world.options.slow_login = 640 * MS;
    assert_eq!(world.run().dialled(), ["P"]);
    world.place(1, 0).takes = 1_300 * MS;
    assert_eq!(world.run().dialled(), ["P", "S"]);
}

#[test]
fn a_known_primary_that_fails_or_is_silent_is_no_dead_end_and_is_not_dialled_again() {
    let mut world = World::new(FOLLOW, &[&[("old", Does::Refuses)], &[("new", PRIMARY)]]);
    world.options.prefer = Some(world.candidate(0, 0));
    let run = world.run();
    assert_eq!((run.dialled(), run.winner.as_deref(), run.at), (vec!["old", "new"], Some("new"), 5 * MS));
    world.place(0, 0).does = Does::Silent;
    let run = world.run();
    assert_eq!((run.dialled(), run.winner.as_deref(), run.at), (vec!["old", "new"], Some("new"), 253 * MS));
    world.options.walk = STRICT;
    assert_eq!(world.run().dialled(), ["old", "new"], "strict keeps the order of the list");
}

#[test]
fn a_first_write_takes_the_highest_term_not_the_first_answer() {
    let mut world =
        World::new(FOLLOW, &[&[("stale", at_term(3))], &[("new", at_term(4))], &[("S", STANDBY)]]);
    world.options.attrs = SessionAttrs::ReadWrite;
    world.options.first_write = Some(150 * MS);
    world.place(1, 0).takes = 100 * MS;
    let run = world.run();
    assert_eq!((run.winner.as_deref(), run.at), (Some("new"), 101 * MS));
    assert!(run.dials.iter().all(|d| d.1 <= MS), "all at once: {run:?}");
    // Equal terms: the order of the list.
    world.place(1, 0).does = at_term(3);
    world.place(0, 0).takes = 120 * MS;
    assert_eq!(world.run().winner.as_deref(), Some("stale"));
}

#[test]
fn a_first_write_waits_150_ms_for_a_silent_host_and_no_longer() {
    let mut world = World::new(FOLLOW, &[&[("dead", Does::Silent)], &[("P", PRIMARY)]]);
    world.options.first_write = Some(150 * MS);
    let run = world.run();
    assert_eq!((run.winner.as_deref(), run.at), (Some("P"), 150 * MS));
    world.place(1, 0).takes = 400 * MS;
    assert_eq!(world.run().at, 401 * MS, "after the wait the first answer counts");
    // A name that doesn't answer is a candidate too.
    world.place(1, 0).takes = 2 * MS;
    world.hosts[0].v4_takes = Duration::from_secs(2);
    assert_eq!(world.run().at, 150 * MS);
    world.hosts[0].v4_takes = MS;
    world.place(0, 0).does = Does::Refuses;
    assert_eq!(world.run().at, 3 * MS, "everybody has answered");
}

#[test]
fn a_second_choice_waits_for_everybody_and_not_beyond_connect_timeout() {
    let mut world = World::new(FOLLOW, &[&[("P", PRIMARY)], &[("P2", PRIMARY)], &[("S", STANDBY)]]);
    world.options.attrs = SessionAttrs::PreferStandby;
    world.place(2, 0).takes = Duration::from_secs(2);
    let run = world.run();
    assert_eq!(run.winner.as_deref(), Some("S"));
    world.place(2, 0).does = Does::Silent;
    world.place(2, 0).takes = MS;
    let run = world.run();
    assert_eq!(run.winner.as_deref(), Some("P"));
    assert!(matches!(run.finish, Finish::Winner { second_choice: true, .. }));
    assert_eq!(run.at, Duration::from_secs(5) + 3 * MS, "the bound counts from the second choice");
    world.place(2, 0).does = says("28P01");
    assert_eq!(world.run().winner.as_deref(), Some("P"), "a session in hand is worth more than the rule");
}

#[test]
fn an_address_that_is_listed_twice_is_dialled_once() {
    for walk in [FOLLOW, STRICT] {
        let mut world = World::new(walk, &[&[("1", Does::Refuses)], &[("2", says("57P03"))]]);
        world.hosts[1].v4 = Ok(vec![ip(0, 0), ip(1, 0), ip(1, 0)]);
        let run = world.run();
        assert_eq!(run.dialled(), ["1", "2"], "{walk}");
        let mut busy = World::new(walk, &[&[("1", Does::Silent)], &[]]);
        busy.hosts[1].v4 = Ok(vec![ip(0, 0)]);
        assert_eq!(busy.run().dialled(), ["1"], "{walk}");
    }
}

#[test]
fn an_address_whose_certificate_fits_its_other_name_is_reached_by_that_name() {
    let identity = Does::Fails(Stage::Secure, Failure::TlsIdentity("not for alias".into()));
    let mut world = World::new(FOLLOW, &[&[("1", identity)], &[]]);
    world.options.sslmode = SslMode::VerifyFull;
    world.hosts[1].v4 = Ok(vec![ip(0, 0)]);
    let run = world.run();
    let names: Vec<_> = run.records.iter().map(|r| r.host.as_str()).collect();
    assert_eq!(names, ["h1", "h2"], "the same address is worth a second look under its own name");
    // But not a third time under the first one.
    world.hosts[1].spec = world.hosts[0].spec.clone();
    assert_eq!(world.run().dials.len(), 1);
}

#[test]
fn a_silent_aaaa_never_delays_the_a() {
    for walk in [FOLLOW, STRICT] {
        let mut world = World::new(walk, &[&[("P", PRIMARY)]]);
        world.hosts[0].v6_takes = Duration::from_secs(2);
        assert_eq!(world.run().at, 3 * MS, "{walk}");
        // A look-up that comes late still brings its addresses in.
        world.place(0, 0).does = Does::Refuses;
        world.hosts[0].v6 = Ok(vec![ip(9, 0)]);
        world.places.insert(
            ip(9, 0),
            super::attempt_world::Place { label: "late".into(), does: PRIMARY, takes: 2 * MS },
        );
        assert_eq!(world.run().winner.as_deref(), Some("late"), "{walk}");
    }
}

#[test]
fn a_faster_name_server_does_not_reorder_the_list_and_a_slow_one_does_not_stop_it() {
    let mut world = World::new(FOLLOW, &[&[("1", PRIMARY)], &[("2", PRIMARY)]]);
    world.hosts[0].v4_takes = 30 * MS;
    assert_eq!(world.run().dialled(), ["1"]);
    world.hosts[0].v4_takes = Duration::from_secs(2);
    let run = world.run();
    assert_eq!((run.winner.as_deref(), run.at), (Some("2"), 52 * MS));
}

#[test]
fn silent_name_servers_do_not_keep_it_from_addresses_that_were_good() {
    let mut world = World::new(FOLLOW, &[&[("P", PRIMARY)]]);
    world.last_good = vec![vec![ip(0, 0)]];
    for answer in [Err(ResolveError::TimedOut), Err(ResolveError::NoSuchName)] {
        world.hosts[0].v4 = answer.clone();
        world.hosts[0].v6 = answer.map(|_: Vec<IpAddr>| Vec::new());
        (world.hosts[0].v4_takes, world.hosts[0].v6_takes) = (Duration::from_secs(2), Duration::from_secs(2));
        assert_eq!(world.run().at, 52 * MS);
    }
}

#[test]
fn a_name_that_gave_a_fresh_address_has_no_stale_ones() {
    let mut world = World::new(FOLLOW, &[&[("moved", Does::Refuses)], &[("stale", PRIMARY)]]);
    world.last_good = vec![vec![ip(1, 0)]];
    world.hosts.truncate(1);
    let run = world.run();
    assert_eq!((run.dialled(), run.winner.as_deref()), (vec!["moved"], None));
}

#[test]
fn a_role_question_that_fails_is_no_dead_end() {
    let sqlstate = SqlState::new("42501").unwrap();
    for failure in [
        Failure::RoleUnknown("no row".into()),
        Failure::Server { sqlstate, message: "permission denied".into(), after_auth: true },
    ] {
        let hosts: &[&[(&str, Does)]] = &[&[("1", Does::Fails(Stage::Role, failure))], &[("P", PRIMARY)]];
        for walk in [FOLLOW, STRICT] {
            assert_eq!(World::new(walk, hosts).run().winner.as_deref(), Some("P"), "{walk}");
        }
    }
}

#[test]
fn the_families_of_one_name_take_turns() {
    let mut world =
        World::new(FOLLOW, &[&[("4a", Does::Refuses), ("4b", Does::Refuses), ("4c", Does::Refuses)]]);
    let v6: Vec<IpAddr> = (1..=2u16).map(|n| Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, n).into()).collect();
    for (ip, label) in v6.iter().zip(["6a", "6b"]) {
        let place = super::attempt_world::Place { label: label.into(), does: Does::Refuses, takes: 2 * MS };
        world.places.insert(*ip, place);
    }
    world.hosts[0].v6 = Ok(v6);
    assert_eq!(world.run().dialled(), ["4a", "6a", "4b", "6b", "4c"]);
}

#[test]
fn of_two_look_ups_the_less_final_failure_counts() {
    for (v4, v6, code, class) in [
        (ResolveError::NoSuchName, ResolveError::NoSuchName, Code::NoSuchName, Class::Permanent),
        (
            ResolveError::ServerFailure("SERVFAIL".into()),
            ResolveError::NoSuchName,
            Code::ResolveFailed,
            Class::Transient,
        ),
        (ResolveError::NoSuchName, ResolveError::TimedOut, Code::ResolveFailed, Class::Transient),
        (ResolveError::NoData, ResolveError::NoSuchName, Code::ResolveFailed, Class::Transient),
    ] {
        for walk in [FOLLOW, STRICT] {
            let mut world = World::new(walk, &[&[]]);
            (world.hosts[0].v4, world.hosts[0].v6) = (Err(v4.clone()), Err(v6.clone()));
            let run = world.run();
            assert_eq!((run.finish, run.records.len()), (failed(code, class), 1), "{v4} {v6}");
        }
    }
}

#[test]
fn one_hopeless_host_does_not_make_a_passing_outage_permanent() {
    let plain = Does::Fails(Stage::Secure, Failure::TlsNotOffered);
    let run = World::new(FOLLOW, &[&[("1", plain.clone())], &[("2", Does::Refuses)]]).run();
    assert_eq!(run.finish, failed(Code::NoHostFits, Class::Transient));
    let run = World::new(FOLLOW, &[&[("1", plain.clone())], &[("2", plain)]]).run();
    assert_eq!(run.finish, failed(Code::TlsRefused, Class::Permanent));
    let mut world = World::new(FOLLOW, &[&[("1", STANDBY)], &[("2", STANDBY)]]);
    world.options.attrs = SessionAttrs::ReadWrite;
    assert_eq!(world.run().finish, failed(Code::WrongRole, Class::Transient), "the minute of a promotion");
}

#[test]
fn a_bad_entry_is_that_hosts_failure_alone_and_names_the_parameter() {
    let bad = [
        (
            HostSpec::Tcp { host: Some("h".into()), hostaddr: None, port: Port::Invalid("70000".into()) },
            "70000",
        ),
        (
            HostSpec::Tcp { host: None, hostaddr: Some("db-a".into()), port: Port::Number(5432) },
            "hostaddr=db-a",
        ),
        (HostSpec::Unix { dir: "/x".repeat(60).into(), port: Port::Number(5432) }, "host"),
    ];
    for (spec, names) in bad {
        for walk in [FOLLOW, STRICT] {
            let mut world = World::new(walk, &[&[("1", PRIMARY)], &[("2", PRIMARY)]]);
            world.hosts[0].spec = spec.clone();
            let run = world.run();
            assert_eq!(run.winner.as_deref(), Some("2"), "{walk} {spec:?}");
            assert!(run.records[0].message.contains(names), "{}", run.records[0].message);
            world.hosts.truncate(1);
            assert_eq!(world.run().finish, failed(Code::InvalidOption, Class::Permanent));
        }
    }
    // What is no number at all ends libpq's walk.
    let mut world = World::new(STRICT, &[&[("1", PRIMARY)], &[("2", PRIMARY)]]);
    world.hosts[0].spec =
        HostSpec::Tcp { host: Some("h".into()), hostaddr: None, port: Port::Invalid("x".into()) };
    assert!(world.run().winner.is_none());
}

fn any_behaviour() -> impl Strategy<Value = Does> {
    let codes = ["57P03", "53300", "57P01", "28000", "28P01", "3D000", "XX000", "ZZ999"];
    prop_oneof![
        4 => (any::<[bool; 3]>(), 0..5u64).prop_map(|([standby, read_only, reports], term)| {
            Does::Serves { standby, read_only, reports, term }
        }),
        1 => Just(Does::Refuses),
        1 => Just(Does::Silent),
        1 => (0..codes.len(), any::<[bool; 3]>()).prop_map(move |(n, [after_auth, encrypted, plain])| {
            Does::Says { code: codes[n], after_auth, encrypted, plain }
        }),
        1 => Just(Does::Fails(Stage::Secure, Failure::TlsHandshake("no".into()))),
        1 => Just(Does::Fails(Stage::Secure, Failure::TlsIdentity("no".into()))),
        1 => Just(Does::Fails(Stage::Authenticate, Failure::Lost("EOF".into()))),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    /// The world itself checks that the connect ends, that no socket is left open and that no timer stands still.
    #[test]
    fn no_connect_hangs_leaks_or_hammers_a_host(
        hosts in prop::collection::vec(prop::collection::vec((any_behaviour(), 1..600u64), 0..3), 1..4),
        walk in prop_oneof![Just(FOLLOW), Just(STRICT)],
        attrs in prop::sample::select(SessionAttrs::VALUES),
        sslmode in prop::sample::select(SslMode::VALUES),
        flags in any::<[bool; 6]>(),
        seed in any::<u64>(),
        delays in prop::collection::vec((1..100u64, 1..3_000u64), 4),
    ) {
        let [random, prefer, first_write, has_tls, healthy_lately, known_rtt] = flags;
        let mut world = World::new(walk, &[]);
        for (n, places) in hosts.iter().enumerate() {
            let labels: Vec<String> = (0..places.len()).map(|i| format!("{n}/{i}")).collect();
            let places_: Vec<_> = labels.iter().zip(places).map(|(l, (d, _))| (l.as_str(), d.clone())).collect();
            world.add(&places_);
            for (i, (_, takes)) in places.iter().enumerate() {
                world.place(n, i).takes = MS * u32::try_from(*takes).unwrap();
            }
            (world.hosts[n].v4_takes, world.hosts[n].v6_takes) =
                (Duration::from_millis(delays[n].0), Duration::from_millis(delays[n].1));
        }
        world.options.attrs = SessionAttrs::from_keyword(attrs).unwrap();
        world.options.sslmode = SslMode::from_keyword(sslmode).unwrap();
        world.options.prefer = (prefer && !hosts[0].is_empty()).then(|| world.candidate(0, 0));
        world.options.first_write = first_write.then_some(150 * MS);
        world.options.fastest_rtt = known_rtt.then_some(MS);
        if random {
            world.options.load_balance = pgfollow::config::LoadBalanceHosts::Random;
        }
        (world.has_tls, world.healthy_lately, world.seed) = (has_tls, healthy_lately, seed);
        let run = world.run();

        let passes = if walk == STRICT && world.options.attrs == SessionAttrs::PreferStandby { 2 } else { 1 };
        for label in run.dialled() {
            let times = run.dials.iter().filter(|d| d.0 == label).count();
            prop_assert!(times <= 2 * passes, "{label} was dialled {times} times: {run:?}");
        }
        if walk == STRICT {
            prop_assert!(run.dials.iter().all(|d| d.1 <= run.at));
            prop_assert!(run.abandoned.is_empty() || passes == 2, "side by side: {run:?}");
        }
        let usable = |does: &Does| match does {
            Does::Serves { standby, read_only, .. } => match world.options.attrs {
                SessionAttrs::Any | SessionAttrs::PreferStandby => true,
                SessionAttrs::ReadWrite => !standby && !read_only,
                SessionAttrs::ReadOnly => *standby || *read_only,
                SessionAttrs::Primary => !standby,
                SessionAttrs::Standby => *standby,
            },
            _ => false,
        };
        let tls_fits = has_tls || !matches!(
            world.options.sslmode, SslMode::Require | SslMode::VerifyCa | SslMode::VerifyFull
        );
        let stopped = run.records.iter().any(|r| !r.next_host);
        let reachable = tls_fits && world.places.values().any(|p| usable(&p.does));
        if walk == FOLLOW && reachable && !stopped {
            prop_assert!(run.winner.is_some(), "a usable host was missed: {run:?}");
        }
        if let Some(winner) = &run.winner {
            let does = &world.places.values().find(|p| p.label == *winner).unwrap().does;
            prop_assert!(usable(does) || matches!(does, Does::Says { .. }), "{run:?}");
        }
    }
}

/// In pass one of `strict` a second choice is closed, so that the second pass may dial it again.
#[test]
fn strict_prefer_standby_makes_two_passes_like_libpq() {
    let mut world = World::new(STRICT, &[&[("P", serves(false, false, false))], &[("1", Does::Refuses)]]);
    world.options.attrs = SessionAttrs::PreferStandby;
    let run = world.run();
    assert_eq!(run.dialled(), ["P", "1", "P"]);
    assert_eq!(run.abandoned.len(), 1);
    assert!(matches!(run.finish, Finish::Winner { second_choice: true, .. }));
}
