//! The pure connect under virtual time: the walk vectors (both columns), and what the race must never do.

use std::time::Duration;

use super::attempt_world::{Does, FENCED, MS, PRIMARY, Run, STANDBY, World, says, serves};
use pgfollow::config::{HostWalk, LoadBalanceHosts, SessionAttrs, SslMode};
use pgfollow::decide::accept::{Accept, Question, Role, accept};
use pgfollow::decide::attempt::Finish;
use pgfollow::failure::Failure;
use pgfollow::host::{HostSpec, Port};
use pgfollow::{Class, Stage};
use serde_json::Value;

fn vectors(path: &str) -> Vec<Value> {
    let path = format!("{}/../tests/vectors/{path}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    text.lines().map(|l| serde_json::from_str(l).unwrap()).collect()
}

#[test]
fn no_role_answer_is_taken_for_another_and_an_unknown_one_never_for_writable() {
    let on_off = |v: &Value| v.as_str().map(|s| s == "on");
    let cases = vectors("target/roles.jsonl");
    assert_eq!(cases.len(), 162, "every combination");
    for case in cases {
        let (input, expect) = (&case["input"], &case["expect"]);
        let wanted = SessionAttrs::from_keyword(input["target_session_attrs"].as_str().unwrap()).unwrap();
        let role = Role {
            in_hot_standby: on_off(&input["in_hot_standby"]),
            default_read_only: on_off(&input["default_transaction_read_only"]),
            transaction_read_only: on_off(&input["transaction_read_only"]),
        };
        let (got, seen) = match accept(role, wanted) {
            Accept::Take => ("take", None),
            Accept::SecondChoice => ("second-choice", None),
            Accept::Refuse { seen } => ("refuse", Some(seen)),
            Accept::Unknown => ("unknown", None),
        };
        assert_eq!(got, expect["accept"], "{case}");
        assert_eq!(seen, expect["seen"].as_str(), "{case}");
        let question = role.question(wanted).map(|q| match q {
            Question::TransactionReadOnly => "SHOW transaction_read_only",
            Question::InRecovery => "SELECT pg_catalog.pg_is_in_recovery()",
        });
        assert_eq!(question, expect["question"].as_str(), "{case}");
    }
}

/// One word of a walk vector's `hosts`.
fn behaviour(word: &str) -> Does {
    let fails = |stage, failure| Does::Fails(stage, failure);
    match word {
        "P" | "P'" | "P1" | "P2" | "a" | "b" | "c" | "d" => PRIMARY,
        "S" => STANDBY,
        "R" => FENCED,
        "oP" => serves(false, false, false),
        "oS" => serves(true, false, false),
        "REF" => Does::Refuses,
        "BH" | "MUTE" => Does::Silent,
        "53300 before auth" => says("53300"),
        "53300 after auth" => Does::Says { code: "53300", after_auth: true, encrypted: true, plain: true },
        "57P03" => says("57P03"),
        "53300" => says("53300"),
        "58P01" => says("58P01"),
        "28P01" => says("28P01"),
        "28000" => says("28000"),
        "EOF at accept or after startup" => fails(Stage::Authenticate, Failure::Lost("EOF".to_owned())),
        "non-PostgreSQL answer" => fails(Stage::Authenticate, Failure::NotPostgres("HTTP/1.1".to_owned())),
        "answers 'N'" => fails(Stage::Secure, Failure::TlsNotOffered),
        "answers 'E' to SSLRequest" => fails(Stage::Secure, Failure::TlsRequestRefused),
        "trust" => fails(Stage::Authenticate, Failure::AuthMethod("not permitted".to_owned())),
        other => panic!("unknown behaviour {other:?}"),
    }
}

/// Splits at the commas outside braces.
fn split(hosts: &str) -> Vec<&str> {
    let (mut depth, mut from, mut parts) = (0, 0, Vec::new());
    for (i, c) in hosts.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&hosts[from..i]);
                from = i + 1;
            }
            _ => {}
        }
    }
    parts.push(&hosts[from..]);
    parts
}

fn world(case: &Value, walk: HostWalk) -> World {
    let (id, conninfo) = (case["id"].as_str().unwrap(), case["conninfo"].as_str().unwrap());
    let mut world = World::new(walk, &[]);
    match id {
        "walk-47" => {
            world.add(&[("host 1", PRIMARY)]);
            world.add(&[("host 2", PRIMARY)]);
            world.hosts[0].spec = HostSpec::Tcp {
                host: Some("h1".to_owned()),
                hostaddr: None,
                port: Port::Invalid("0".to_owned()),
            };
        }
        "walk-49" => {
            for (n, does) in [Does::Refuses, PRIMARY].into_iter().enumerate() {
                world.add(&[(if n == 0 { "REF" } else { "P" }, does)]);
                world.hosts[n].spec = HostSpec::Tcp {
                    host: Some(format!("nx{n}")),
                    hostaddr: Some(super::attempt_world::ip(n, 0).to_string()),
                    port: Port::Number(5432),
                };
            }
        }
        _ => {
            for part in split(case["hosts"].as_str().unwrap()) {
                let words = part.trim_matches(['{', '}']).split(',').filter(|w| *w != "NX");
                let trust = conninfo.contains("channel_binding=require");
                let places: Vec<_> = words.map(|w| (w, behaviour(if trust { "trust" } else { w }))).collect();
                world.add(&places);
            }
        }
    }
    let o = &mut world.options;
    for word in conninfo.split([' ', ',']) {
        if let Some(attrs) = SessionAttrs::from_keyword(word) {
            o.attrs = attrs;
        } else if let Some(t) = word.strip_prefix("t=") {
            let seconds: i64 = t.parse().unwrap();
            o.connect_timeout = u64::try_from(seconds).ok().filter(|s| *s > 0).map(Duration::from_secs);
        } else if let Some(mode) = word.strip_prefix("sslmode=") {
            o.sslmode = SslMode::from_keyword(mode).unwrap();
        } else if word == "load_balance_hosts=random" {
            o.load_balance = LoadBalanceHosts::Random;
        }
    }
    if conninfo == "tcp_user_timeout=1500" {
        world.place(0, 0).does = Does::GivenUpAfter(1_500 * MS);
    }
    world
}

/// Holds a run against the `strict` column; times and counts are strict's only.
fn judge(id: &str, want: &str, run: &Run, exact: bool) {
    let about = format!("{id}: wanted {want}, got {run:?}");
    let host = want.split([' ', ',']).next().unwrap();
    if host.starts_with('E') {
        assert!(run.winner.is_none(), "{about}");
        let named: Vec<&str> = run.records.iter().map(|r| r.host.as_str()).collect();
        match want {
            "E" | "E(1)" | "E(S)" => assert!(named.iter().all(|h| *h == "h1"), "{about}"),
            "E(1,2), both named" => assert_eq!(named, ["h1", "h2"], "{about}"),
            "E after 2 logins on 1" => assert_eq!(named, ["h1", "h1"], "{about}"),
            _ => panic!("{about}"),
        }
        if exact && want == "E(1)" {
            assert_eq!(run.dials.len(), 1, "{about}");
        }
        return;
    }
    let label = if host == "host" { want } else { host };
    assert_eq!(run.winner.as_deref(), Some(label), "{about}");
    if !exact {
        return;
    }
    if let Some((_, at)) = want.split_once(" at ") {
        let at: f64 = at.trim_end_matches(" s").parse().unwrap();
        assert!((run.at.as_secs_f64() - at).abs() < 0.05, "{about}");
    }
    match want.split_once([',', '(']).map(|x| x.1.trim()) {
        Some("0 queries") => assert!(run.questions.is_empty(), "{about}"),
        Some("1 query each") => {
            assert!(run.questions.len() == 2 && run.questions.values().all(|n| *n == 1), "{about}");
        }
        Some("dials P1,P2,P1)") => {
            let reached: Vec<_> = run.dialled().into_iter().filter(|l| *l != "REF").collect();
            assert_eq!(reached, ["P1", "P2", "P1"], "{about}");
        }
        None | Some("no limit") => {}
        Some(other) => panic!("{about}: {other}"),
    }
}

#[test]
fn every_measured_walk_ends_at_the_same_host_in_strict_and_moves_on_where_that_helps_in_follow() {
    let mut judged = 0;
    for mut case in vectors("walk/walk.jsonl") {
        let id = case["id"].as_str().unwrap().to_owned();
        let strict = case["strict"].as_str().unwrap().to_owned();
        match id.as_str() {
            // The string itself is wrong: nothing to walk.
            "walk-46" => continue,
            // A share of many runs: below.
            "walk-53" => continue,
            _ => {}
        }
        let conninfos: Vec<String> =
            case["conninfo"].as_str().unwrap().split(" / ").map(str::to_owned).collect();
        for conninfo in conninfos {
            case["conninfo"] = conninfo.into();
            judge(&id, &strict, &world(&case, HostWalk::Strict).run(), true);
            let run = world(&case, HostWalk::Follow).run();
            match case["follow"].as_str().unwrap() {
                "as strict" => judge(&id, &strict, &run, false),
                "moves on to the next candidate that fits" => {
                    assert!(run.winner.as_deref().is_some_and(|w| w.starts_with('P')), "{id}: {run:?}");
                    assert_eq!(run.records.len(), 1, "{id}: {run:?}");
                }
                "stops there, with the reason kept" => {
                    assert!(
                        matches!(run.finish, Finish::Failed { class: Class::Permanent, .. }),
                        "{id}: {run:?}"
                    );
                    assert_eq!(run.dials.len(), 1, "{id}: {run:?}");
                    assert!(!run.records[0].next_host && !run.records[0].message.is_empty(), "{id}: {run:?}");
                }
                other => panic!("{id}: {other}"),
            }
            judged += 1;
        }
    }
    assert_eq!(judged, vectors("walk/walk.jsonl").len() + 1 - 2, "walks judged (one has two strings)");
}

#[test]
fn a_name_with_many_addresses_gets_no_larger_share_of_a_random_list() {
    for walk in [HostWalk::Strict, HostWalk::Follow] {
        let case = vectors("walk/walk.jsonl").into_iter().find(|c| c["id"] == "walk-53").unwrap();
        let mut world = world(&case, walk);
        let mut won = std::collections::BTreeMap::<String, u32>::new();
        for seed in 0..2_000 {
            world.seed = seed;
            *won.entry(world.run().winner.unwrap()).or_default() += 1;
        }
        assert!((900..1_100).contains(&won["d"]), "{walk}: {won:?}");
        for label in ["a", "b", "c"] {
            assert!((250..420).contains(&won[label]), "{walk}: {won:?}");
        }
    }
}
