//! The attribute vectors: what happened, as lines of words; then each outage and its parts. See the README beside them.

use std::collections::BTreeSet;
use std::time::Duration;

use pgfollow::decide::attribute::{Attribution, Fact, Fate, Origin, Outage, OutageCause, Says};
use pgfollow::{HostId, Moment};
use serde_json::{Map, Value, json};

fn vectors() -> Vec<Value> {
    let folder = format!("{}/../tests/vectors/attribute", env!("CARGO_MANIFEST_DIR"));
    let mut files: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|f| f.unwrap().path()).collect();
    files.retain(|f| f.extension().is_some_and(|e| e == "jsonl"));
    files.sort();
    let text = files.iter().map(|f| std::fs::read_to_string(f).unwrap()).collect::<String>();
    text.lines().map(|l| serde_json::from_str(l).unwrap_or_else(|e| panic!("{e} in {l}"))).collect()
}

fn ms(m: &str) -> Moment {
    Moment::from_millis(m.parse().unwrap_or_else(|_| panic!("{m:?} is no time")))
}

fn host(name: &str) -> HostId {
    let [letter @ b'a'..=b'z'] = name.as_bytes() else { panic!("{name:?} is no host") };
    HostId(u32::from(letter - b'a'))
}

fn number(name: &str) -> u64 {
    name.trim_start_matches(char::is_alphabetic).parse().unwrap_or_else(|_| panic!("{name:?} has no number"))
}

fn fact(text: &str) -> Fact {
    let words: Vec<_> = text.split_whitespace().collect();
    let given_since = words.iter().find_map(|w| w.strip_prefix("since=")).map(ms);
    let since = || given_since.unwrap_or_else(|| panic!("{text:?} lacks since="));
    let has = |word: &str| words.contains(&word);
    match words[..] {
        ["known", h, ..] => Fact::Known { host: host(h), named: !has("literal") },
        ["heard", h, at] => Fact::Heard { host: host(h), when: ms(at) },
        ["blocked", m, h, ..] => Fact::Blocked { member: number(m), call: 1, host: host(h), since: since() },
        ["answered", m] => Fact::Answered { member: number(m) },
        ["lost", m, h, ..] => {
            Fact::Lost { member: number(m), host: host(h), since: since(), timed_out: has("timed_out") }
        }
        ["given_up", m, h, ..] => Fact::GivenUp { member: number(m), host: host(h), since: since() },
        ["failed", origin, ..] => Fact::Failed {
            host: words.iter().find_map(|w| w.strip_prefix("on=")).map(host),
            origin: match origin {
                "failover" => Origin::Failover,
                "own" => Origin::Own,
                "application" => Origin::Application,
                _ => panic!("{text:?}"),
            },
            unknown: has("unknown"),
        },
        // Of the first outage.
        ["fate", fate, ..] => Fact::Fate {
            outage: 1,
            origin: Origin::Failover,
            unknown: has("unknown"),
            fate: match fate {
                "repeated" => Fate::Repeated,
                "asked" => Fate::Asked,
                "committed" => Fate::Committed,
                "not_committed" => Fate::NotCommitted,
                "unanswered" => Fate::Unanswered,
                _ => panic!("{text:?}"),
            },
        },
        ["wrote", h] => Fact::Done { host: host(h), write: true },
        ["read", h] => Fact::Done { host: host(h), write: false },
        ["wait", id] => Fact::WaitBegan { id: number(id) },
        ["got", id] => Fact::WaitEnded { id: number(id) },
        ["dial", h] => Fact::Attempt { host: host(h), begins: true },
        ["dialled", h] => Fact::Attempt { host: host(h), begins: false },
        ["search", on] => Fact::Search { running: on == "on" },
        ["sync", h, on, ..] => Fact::SyncWait { host: host(h), waiting: on == "on", since: given_since },
        ["healthy", wait] => Fact::Healthy { wait: ms(wait) - Moment::ZERO },
        [h, says] => Fact::Says {
            host: host(h),
            says: serde_json::from_value(json!(says)).unwrap_or_else(|_| panic!("{text:?}")),
        },
        _ => panic!("{text:?} is no fact"),
    }
}

/// Whatever it is charged to: the parts are the whole, and so are the stretches, end to end.
fn adds_up(o: &Outage) -> Result<(), String> {
    if o.parts.total() != o.whole() {
        return Err(format!("{:?} of {:?}: {o:?}", o.parts.total(), o.whole()));
    }
    let mut at = o.from;
    for s in &o.segments {
        if s.from != at || s.until <= s.from {
            return Err(format!("a gap or an overlap at {at}: {o:?}"));
        }
        at = s.until;
    }
    if at == o.until { Ok(()) } else { Err(format!("the last stretch ends at {at}: {o:?}")) }
}

fn told(o: &Outage) -> Value {
    let name = |h: HostId| char::from(b'a' + u8::try_from(h.0).unwrap()).to_string();
    let at = |m: Moment| m.as_micros() / 1_000;
    let parts = o.parts.iter().filter(|(_, d)| !d.is_zero());
    let parts: Map<_, _> = parts.map(|(c, d)| (c.name().to_owned(), json!(d.as_millis()))).collect();
    json!({
        "from": at(o.from),
        "until": at(o.until),
        "parts": parts,
        "lost": o.lost.map(name),
        "back": o.back.map(name),
        "ready": o.ready.map(at),
        "first": o.first_success.map(at),
        "failed": o.errors.failed,
        "other": o.errors.other,
        "unknown": o.errors.unknown,
        "spared": o.errors.spared,
        "asked": serde_json::to_value(o.errors.asked).unwrap(),
    })
}

fn differs(what: &str, want: &Value, got: &Value) -> Vec<String> {
    let keys = want.as_object().unwrap().iter().filter(|(k, v)| got.get(*k) != Some(*v));
    keys.map(|(k, v)| format!("{what}: {k} is {}, not {v}", got[k])).collect()
}

fn run(case: &Value) -> Vec<String> {
    let mut machine = Attribution::default();
    let (mut now, mut closed, mut wrong) = (Moment::ZERO, Vec::new(), Vec::new());
    let mut pass = |machine: &mut Attribution, until: Moment, closed: &mut Vec<Outage>| {
        while now < until {
            now = (now + Duration::from_millis(100)).min(until);
            if let Some(o) = machine.timer(now) {
                wrong.extend(adds_up(&o).err());
                closed.push(o);
            }
            wrong.extend(machine.open(now).and_then(|o| adds_up(&o).err()));
        }
    };
    for step in case["facts"].as_array().unwrap() {
        let at = Moment::from_millis(step[0].as_u64().unwrap());
        pass(&mut machine, at, &mut closed);
        for text in step.as_array().unwrap()[1..].iter().map(|t| t.as_str().unwrap()) {
            machine.fact(fact(text), at);
        }
    }
    let end = Moment::from_millis(case["end"].as_u64().unwrap());
    pass(&mut machine, end, &mut closed);
    let expected = case["outages"].as_array().unwrap();
    if closed.len() != expected.len() {
        wrong.push(format!("{} outages, not {}: {closed:?}", closed.len(), expected.len()));
    }
    for (n, (o, want)) in closed.iter().zip(expected).enumerate() {
        wrong.extend(differs(&format!("outage {n}"), want, &told(o)));
    }
    match (machine.open(end), &case["open"]) {
        (None, Value::Null) => {}
        (Some(o), want @ Value::Object(_)) => wrong.extend(differs("the open one", want, &told(&o))),
        (got, want) => wrong.push(format!("open is {got:?}, not {want}")),
    }
    wrong
}

#[test]
fn every_instant_of_an_outage_is_charged_to_the_cause_that_held_it_up() {
    let only = std::env::var("SCENARIO").ok();
    let (mut ids, mut causes, mut wrong) = (BTreeSet::new(), BTreeSet::new(), Vec::new());
    for case in vectors() {
        let id = case["id"].as_str().unwrap().to_owned();
        for o in case["outages"].as_array().unwrap() {
            causes.extend(o["parts"].as_object().into_iter().flat_map(|p| p.keys().cloned()));
        }
        if only.as_ref().is_none_or(|o| *o == id) {
            wrong.extend(run(&case).into_iter().map(|w| format!("{id} ({}): {w}", case["why"])));
        }
        assert!(ids.insert(id.clone()), "{id} is there twice");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(ids.len() >= 30, "only {} vectors", ids.len());
    let all: BTreeSet<_> = OutageCause::ALL.iter().map(|c| c.name().to_owned()).collect();
    assert_eq!(causes, all, "each cause is charged in some vector");
}

mod chance {
    use super::*;
    use proptest::prelude::*;

    fn any_fact() -> impl Strategy<Value = (u64, Fact)> {
        let host = (0_u32..3).prop_map(HostId);
        let back = 0_u64..12_000;
        let says = prop_oneof![
            Just(Says::Unknown),
            Just(Says::Accepts),
            Just(Says::Accepts),
            Just(Says::Refuses),
            Just(Says::Gone),
            Just(Says::Silent),
            Just(Says::Superseded)
        ];
        let origin = prop_oneof![Just(Origin::Failover), Just(Origin::Own), Just(Origin::Application)];
        // A past moment is written as a distance here and turned round when the time is known.
        let past = |d: u64| Moment::from_millis(d);
        let fact = prop_oneof![
            host.clone().prop_map(|host| Fact::Known { host, named: true }),
            (host.clone(), says).prop_map(|(host, says)| Fact::Says { host, says }),
            (host.clone(), back.clone()).prop_map(move |(host, d)| Fact::Heard { host, when: past(d) }),
            (0_u64..4, 0_u64..3, host.clone(), back.clone()).prop_map(move |(member, call, host, d)| {
                Fact::Blocked { member, call, host, since: past(d) }
            }),
            (0_u64..4).prop_map(|member| Fact::Answered { member }),
            (0_u64..4, host.clone(), back.clone(), any::<bool>()).prop_map(
                move |(member, host, d, timed_out)| {
                    Fact::Lost { member, host, since: past(d), timed_out }
                }
            ),
            (0_u64..4, host.clone(), back).prop_map(move |(member, host, d)| Fact::GivenUp {
                member,
                host,
                since: past(d)
            }),
            (origin, any::<bool>()).prop_map(|(origin, unknown)| Fact::Failed {
                host: None,
                origin,
                unknown
            }),
            (host.clone(), any::<bool>()).prop_map(|(host, write)| Fact::Done { host, write }),
            (0_u64..4).prop_map(|id| Fact::WaitBegan { id }),
            (0_u64..4).prop_map(|id| Fact::WaitEnded { id }),
            (host.clone(), any::<bool>()).prop_map(|(host, begins)| Fact::Attempt { host, begins }),
            any::<bool>().prop_map(|running| Fact::Search { running }),
            (host, any::<bool>()).prop_map(|(host, waiting)| Fact::SyncWait { host, waiting, since: None }),
            (0_u64..300).prop_map(|d| Fact::Healthy { wait: Duration::from_millis(d) }),
        ];
        (prop_oneof![0_u64..50, 0_u64..900, 2_000_u64..5_000], fact)
    }

    fn turned(fact: Fact, now: Moment) -> Fact {
        let ago = |d: Moment| Moment::ZERO + (now - d);
        match fact {
            Fact::Heard { host, when } => Fact::Heard { host, when: ago(when) },
            Fact::Blocked { member, call, host, since } => {
                Fact::Blocked { member, call, host, since: ago(since) }
            }
            Fact::Lost { member, host, since, timed_out } => {
                Fact::Lost { member, host, since: ago(since), timed_out }
            }
            Fact::GivenUp { member, host, since } => Fact::GivenUp { member, host, since: ago(since) },
            other => other,
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn whatever_happens_the_parts_are_the_whole_and_no_instant_is_charged_twice(
            facts in proptest::collection::vec(any_fact(), 1..300),
        ) {
            let mut machine = Attribution::default();
            let (mut now, mut before) = (Moment::ZERO, Moment::ZERO);
            let mut check = |o: &Outage| -> Result<(), TestCaseError> {
                adds_up(o).map_err(TestCaseError::fail)?;
                prop_assert!(o.from >= before, "{} begins before {before}", o.from);
                if !o.open {
                    before = o.until;
                }
                Ok(())
            };
            for (gap, fact) in facts {
                now = now + Duration::from_millis(gap);
                if let Some(o) = machine.timer(now) {
                    check(&o)?;
                }
                machine.fact(turned(fact, now), now);
                if let Some(o) = machine.open(now) {
                    prop_assert!(o.until <= now);
                    check(&o)?;
                }
            }
            // Nothing goes on for ever once all is well again.
            for id in 0..4 {
                machine.fact(Fact::WaitEnded { id }, now);
                machine.fact(Fact::Answered { member: id }, now);
            }
            for host in (0..3).map(HostId) {
                machine.fact(Fact::SyncWait { host, waiting: false, since: None }, now);
                machine.fact(Fact::Says { host, says: Says::Accepts }, now);
            }
            for _ in 0..40 {
                now = now + Duration::from_millis(100);
                machine.fact(Fact::Done { host: HostId(0), write: true }, now);
                if let Some(o) = machine.timer(now) {
                    check(&o)?;
                }
            }
            prop_assert!(machine.open(now).is_none(), "{:?}", machine.open(now));
        }
    }

    /// Slow queries are daily business: after any number of them a dead socket is still seen.
    #[test]
    fn many_slow_queries_hide_no_dead_socket() {
        let mut machine = Attribution::default();
        let (a, at) = (HostId(0), Moment::from_millis);
        machine.fact(Fact::Says { host: a, says: Says::Accepts }, at(0));
        // One of them all the time, so that there is never a quiet moment.
        machine.fact(Fact::Blocked { member: 100, call: 1, host: a, since: at(100) }, at(600));
        for n in 1..3_000_u64 {
            machine.fact(
                Fact::Blocked { member: n % 7, call: n, host: a, since: at(n * 1_000) },
                at(n * 1_000 + 500),
            );
            machine.fact(Fact::Answered { member: n % 7 }, at(n * 1_000 + 700));
            assert!(machine.timer(at(n * 1_000 + 800)).is_none());
            assert!(!machine.is_watching(), "each query would pay for it");
        }
        machine.fact(Fact::Answered { member: 100 }, at(3_900_000));
        let since = at(4_000_000);
        machine.fact(Fact::Done { host: a, write: true }, since);
        machine.fact(Fact::Blocked { member: 1, call: 9_999, host: a, since }, at(4_000_500));
        machine.fact(Fact::Says { host: a, says: Says::Gone }, at(4_002_000));
        let open = machine.open(at(4_003_000)).expect("an outage");
        assert_eq!((open.from, open.parts.main()), (since, Some(OutageCause::DeadSocket)));
    }

    /// An outage that never ends, with everything going up and down: the log stays short, and the parts whole.
    #[test]
    fn an_endless_outage_neither_grows_nor_forgets() {
        let mut machine = Attribution::default();
        let at = |ms: u64| Moment::from_millis(1_000 + ms);
        let a = HostId(0);
        machine.fact(Fact::Says { host: a, says: Says::Refuses }, Moment::ZERO);
        machine.fact(Fact::Failed { host: Some(a), origin: Origin::Failover, unknown: false }, at(0));
        for n in 0..20_000_u64 {
            machine.fact(Fact::Attempt { host: a, begins: n % 2 == 0 }, at(n * 50));
            machine.fact(Fact::Search { running: n % 4 < 2 }, at(n * 50));
            let blocked = Fact::Blocked { member: n, call: 1, host: a, since: at(n * 50) };
            machine.fact(blocked, at(n * 50));
            machine.fact(Fact::Answered { member: n }, at(n * 50 + 10));
            assert!(machine.timer(at(n * 50 + 20)).is_none());
        }
        let size = format!("{machine:?}").len();
        assert!(size < 1_000_000, "{size} characters");
        let open = machine.open(at(1_000_000)).expect("it goes on");
        adds_up(&open).unwrap();
        assert_eq!((open.from, open.parts.main()), (at(0), Some(OutageCause::NotWritableYet)));
        assert_eq!(open.whole(), Duration::from_secs(1_000));
    }
}
