//! The dns cases of `tests/vectors/dns`, as far as they concern the resolver: what it answers at each step of the
//! zone script, and how fast. What happens behind the addresses is the connector's.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use pgfollow::net::{Resolve, ResolveError};
use pgfollow_lab::dns::{DnsServer, ZoneScript};
use serde_json::Value;

use super::bench::{Bench, Looked, TIMEOUT, error, ip, ok, server, timed, two_servers};
use super::{MS, V4, V6};

const NAME: &str = "db.test";

fn cases() -> Vec<Value> {
    let text = include_str!("../../../../tests/vectors/dns/hand.jsonl");
    text.lines().map(|l| serde_json::from_str(l).expect("a case")).collect()
}

fn case(id: &str) -> Value {
    cases().into_iter().find(|c| c["id"] == id).expect("the case")
}

fn places() -> HashMap<&'static str, IpAddr> {
    let all = [("A1", "127.9.0.1"), ("A2", "127.9.0.2"), ("A3", "127.9.0.3"), ("black hole", "100::1")];
    all.into_iter().map(|(k, v)| (k, ip(v))).collect()
}

fn script(case: &Value) -> ZoneScript {
    ZoneScript::read(&case["input"]["zone"], &places()).expect("a zone script")
}

/// Starts the case's zone, as it is at its beginning.
fn begin(s: &DnsServer, id: &str) {
    s.apply(&script(&case(id)), Duration::ZERO);
}

#[track_caller]
fn gives(looked: Looked, addresses: &[&str]) {
    let wanted: Vec<_> = addresses.iter().map(|a| ip(a)).collect();
    assert_eq!(ok(looked).addresses, wanted);
}

/// Every case with a zone: one resolver lives through all of its steps.
#[tokio::test]
async fn a_name_that_moves_flickers_or_vanishes_is_told_as_it_is_at_that_moment() {
    let mut steps = 0;
    let (moving, other): (Vec<_>, Vec<_>) = cases().into_iter().partition(|c| c["input"]["zone"].is_array());
    assert_eq!(
        other.iter().map(|c| &c["id"]).collect::<Vec<_>>(),
        ["dn-h06"],
        "that one has a test of its own"
    );
    for case in moving {
        let s = server().await;
        let b = Bench::with_servers(&[&s]);
        let resolver = b.resolver(TIMEOUT);
        let zone = script(&case);
        let list = case["input"]["zone"].as_array();
        for (step, at) in list.into_iter().flatten().zip(zone.moments()) {
            s.apply(&zone, at);
            let (looked, took) = timed(resolver.resolve(NAME, V4)).await;
            assert!(took < MS(500), "{}: {took:?}", case["id"]);
            match step[NAME]["A"].as_array() {
                Some(wanted) => {
                    let words = wanted.iter().filter_map(Value::as_str);
                    let wanted: Vec<_> = words.map(|w| places()[w]).collect();
                    assert_eq!(ok(looked).addresses, wanted, "{} at {at:?}", case["id"]);
                }
                None => assert_eq!(error(looked), ResolveError::NoSuchName, "{} at {at:?}", case["id"]),
            }
            steps += 1;
        }
    }
    assert_eq!(steps, 16, "steps of all cases");
}

#[tokio::test]
async fn dn_h04_a_name_replaced_is_found_again_at_once_whatever_the_soa_says() {
    let mut s = server().await;
    let b = Bench::with_servers(&[&s]);
    let resolver = b.resolver(TIMEOUT);
    // The script by its own clock, fifty times as fast: gone at 200 ms, back at 260 ms.
    s.play(script(&case("dn-h04")), 50.0);
    let (mut gone, mut back) = (false, false);
    let search = async {
        while !back {
            match resolver.resolve(NAME, V4).await {
                Err(ResolveError::NoSuchName) => gone = true,
                Ok(a) => back = a.addresses == [ip("127.9.0.2")],
                Err(e) => panic!("{e}"),
            }
            pgfollow::clock::sleep_until(pgfollow::clock::now() + MS(5)).await;
        }
    };
    let ((), took) = timed(search).await;
    assert!(gone, "the gap was seen");
    assert!(took < MS(1_500), "{took:?}");
}

#[tokio::test]
async fn dn_h05_a_dead_name_server_of_resolv_conf_costs_no_look_up_its_timeout() {
    let (n1, n2) = two_servers().await;
    n1.silent(true);
    begin(&n2, "dn-h05");
    let text = "nameserver 127.0.0.1\nnameserver 127.0.0.2\nsearch .\n";
    let b = Bench::with_resolv_conf(text, n1.address().port());
    let resolver = b.resolver(TIMEOUT);
    for _ in 0..2 {
        let (looked, took) = timed(resolver.resolve(NAME, V4)).await;
        gives(looked, &["127.9.0.1"]);
        assert!(took < MS(500), "{took:?}");
    }
}

#[tokio::test]
async fn dn_h06_a_resolv_conf_rewritten_under_us_is_obeyed() {
    let (n1, n2) = two_servers().await;
    for n in [&n1, &n2] {
        n.set(NAME, pgfollow_lab::dns::Kind::A, super::a("127.9.0.1"));
    }
    let b = Bench::with_resolv_conf("nameserver 127.0.0.1\nsearch .\n", n1.address().port());
    let resolver = b.resolver(TIMEOUT);
    gives(resolver.resolve(NAME, V4).await, &["127.9.0.1"]);
    assert_eq!((n1.asked().len(), n2.asked().len()), (1, 0));
    b.write("resolv.conf", "nameserver 127.0.0.2\nsearch .\n");
    n1.stop().await;
    let (looked, took) = timed(resolver.resolve(NAME, V4)).await;
    gives(looked, &["127.9.0.1"]);
    assert!(took < MS(500), "{took:?}");
    assert_eq!(n2.asked().len(), 1);
}

#[tokio::test]
async fn dn_h07_both_families_are_known_so_that_the_other_gets_its_turn() {
    let s = server().await;
    begin(&s, "dn-h07");
    let b = Bench::with_servers(&[&s]);
    gives(b.ask(NAME, V6).await, &["100::1"]);
    gives(b.ask(NAME, V4).await, &["127.9.0.1"]);
}

#[tokio::test]
async fn dn_h08_a_question_for_aaaa_that_is_lost_does_not_hold_back_the_a() {
    let s = server().await;
    begin(&s, "dn-h08");
    let b = Bench::with_servers(&[&s]);
    let resolver = b.resolver(TIMEOUT);
    let (v6, v4) = tokio::join!(timed(resolver.resolve(NAME, V6)), timed(resolver.resolve(NAME, V4)));
    gives(v4.0, &["127.9.0.1"]);
    assert!(v4.1 < MS(500), "{:?}", v4.1);
    assert_eq!(error(v6.0), ResolveError::TimedOut);
    assert!((MS(1_950)..MS(3_000)).contains(&v6.1), "its own deadline: {:?}", v6.1);
}

#[tokio::test]
async fn dn_h10_the_hosts_file_comes_before_the_name_servers() {
    let s = server().await;
    begin(&s, "dn-h10");
    let b = Bench::with_servers(&[&s]);
    let pinned = case("dn-h10")["input"]["hosts_file"][NAME].as_str().map(str::to_owned);
    b.write("hosts", &format!("{} {NAME}\n", pinned.expect("an address")));
    gives(b.ask(NAME, V4).await, &["127.9.0.1"]);
    assert!(s.asked().is_empty());
}
