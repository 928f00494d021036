//! The resolver against a real name server of our own on loopback addresses. Nothing here reads the machine's
//! resolv.conf or hosts file, and nothing leaves the machine.

mod bench;
mod cases;
mod sources;

use std::time::Duration;

use bench::{Bench, error, ip, ok, server, timed};
use pgfollow::net::{AnswerSource, Family, ResolveError};
use pgfollow_lab::dns::{Forgery, Kind, Reply, Rule};

const V4: Family = Family::V4;
const V6: Family = Family::V6;
const MS: fn(u64) -> Duration = Duration::from_millis;

fn a(address: &str) -> Rule {
    Rule::addresses([ip(address)], 5)
}

#[tokio::test]
async fn an_answer_keeps_its_time_to_live_and_each_family_is_asked_alone() {
    let s = server().await;
    s.set("db.test", Kind::A, Rule::addresses([ip("127.9.0.2"), ip("127.9.0.1")], 17));
    s.set("db.test", Kind::Aaaa, Rule::addresses([ip("fd00::1")], 9));
    let b = Bench::with_servers(&[&s]);
    let answer = ok(b.ask("db.test", V4).await);
    assert_eq!(answer.addresses, [ip("127.9.0.2"), ip("127.9.0.1")], "in the server's order");
    assert_eq!((answer.ttl, answer.source), (Some(Duration::from_secs(17)), AnswerSource::Dns));
    assert_eq!((s.count("db.test", "A"), s.count("db.test", "AAAA")), (1, 0));
    assert_eq!(ok(b.ask("db.test", V6).await).addresses, [ip("fd00::1")]);
    assert!(s.asked().iter().all(|q| !q.tcp));
}

#[tokio::test]
async fn a_long_time_to_live_or_an_old_no_never_hides_a_moved_name() {
    let s = server().await;
    let b = Bench::with_servers(&[&s]);
    for _ in 0..3 {
        s.set("db.test", Kind::A, Rule::addresses([ip("127.9.0.1")], 86_400));
        assert_eq!(ok(b.ask("db.test", V4).await).addresses, [ip("127.9.0.1")]);
        s.set("db.test", Kind::A, Reply::NxDomain(300));
        assert_eq!(error(b.ask("db.test", V4).await), ResolveError::NoSuchName);
        s.set("db.test", Kind::A, a("127.9.0.2"));
        assert_eq!(ok(b.ask("db.test", V4).await).addresses, [ip("127.9.0.2")]);
    }
    assert_eq!(s.count("db.test", "A"), 9, "one question each");
}

#[tokio::test]
async fn every_kind_of_failure_has_an_error_of_its_own() {
    let s = server().await;
    s.set("servfail.test", Kind::Any, Reply::ServFail);
    s.set("refused.test", Kind::Any, Reply::Refused);
    s.set("silent.test", Kind::Any, Reply::Silence);
    s.set("v4.test", Kind::A, a("127.9.0.1"));
    let b = Bench::with_servers(&[&s]);
    assert_eq!(error(b.ask("nowhere.test", V4).await), ResolveError::NoSuchName);
    assert_eq!(error(b.ask("v4.test", V6).await), ResolveError::NoData);
    for (name, word) in [("servfail.test", "Server Failure"), ("refused.test", "Refused")] {
        let e = error(b.ask(name, V4).await);
        let ResolveError::ServerFailure(text) = &e else { panic!("{name}: {e:?}") };
        assert!(text.contains(word) && text.contains(&s.address().to_string()), "{text}");
    }
    let (e, took) = timed(b.ask_within("silent.test", V4, MS(400))).await;
    assert_eq!(error(e), ResolveError::TimedOut);
    assert!((MS(390)..MS(1_000)).contains(&took), "{took:?}");
    for bad in ["", "a..b", "a b", "x\0y"] {
        assert_eq!(error(b.ask(bad, V4).await), ResolveError::NoSuchName, "{bad:?}");
    }
}

#[tokio::test]
async fn a_dead_name_server_costs_nothing_wherever_it_stands_in_the_list() {
    let (dead, live) = (server().await, server().await);
    dead.silent(true);
    live.set("db.test", Kind::A, a("127.9.0.1"));
    for list in [[&dead, &live], [&live, &dead]] {
        let b = Bench::with_servers(&list);
        for _ in 0..3 {
            let (answer, took) = timed(b.ask("db.test", V4)).await;
            assert_eq!(ok(answer).addresses, [ip("127.9.0.1")]);
            assert!(took < MS(500), "{took:?}");
        }
    }
    assert_eq!(dead.count("db.test", "A"), 6, "asked each time: nothing is remembered");
}

#[tokio::test]
async fn a_name_server_that_fails_does_not_overrule_one_that_answers() {
    let (bad, good) = (server().await, server().await);
    good.set("db.test", Kind::A, a("127.9.0.1").delayed(MS(50)));
    for reply in [Reply::ServFail, Reply::Refused] {
        bad.set("db.test", Kind::Any, reply);
        for list in [[&bad, &good], [&good, &bad]] {
            let answer = Bench::with_servers(&list).ask("db.test", V4).await;
            assert_eq!(ok(answer).addresses, [ip("127.9.0.1")]);
        }
    }
}

#[tokio::test]
async fn a_public_name_server_does_not_deny_what_the_private_one_knows() {
    let (private, public) = (server().await, server().await);
    private.set("db.test", Kind::A, a("127.9.0.1").delayed(MS(60)));
    let b = Bench::with_servers(&[&private, &public]);
    assert_eq!(ok(b.ask("db.test", V4).await).addresses, [ip("127.9.0.1")]);
    // And the other way round: what the first server denies is denied, as by the C library.
    let b = Bench::with_servers(&[&public, &private]);
    assert_eq!(error(b.ask("db.test", V4).await), ResolveError::NoSuchName);
    // A dead first server holds the "no" of the second back for a moment only.
    private.silent(true);
    let b = Bench::with_servers(&[&private, &public]);
    let (answer, took) = timed(b.ask("db.test", V4)).await;
    assert_eq!(error(answer), ResolveError::NoSuchName);
    assert!(took < MS(700), "{took:?}");
}

#[tokio::test]
async fn a_cut_answer_is_fetched_over_tcp_without_waiting_for_a_dead_server() {
    let (dead, live) = (server().await, server().await);
    dead.silent(true);
    live.set("db.test", Kind::A, a("127.9.0.1").truncated());
    let many: Vec<_> = (1..=60).map(|i| ip(&format!("127.9.1.{i}"))).collect();
    live.set("many.test", Kind::A, Rule::addresses(many.clone(), 5));
    let b = Bench::with_servers(&[&dead, &live]);
    let (answer, took) = timed(b.ask("db.test", V4)).await;
    assert_eq!(ok(answer).addresses, [ip("127.9.0.1")]);
    assert!(took < MS(500), "{took:?}");
    assert_eq!(ok(b.ask("many.test", V4).await).addresses, many, "too long for UDP");
    assert_eq!(live.asked().iter().filter(|q| q.tcp).count(), 2);
}

#[tokio::test]
async fn a_lost_packet_is_sent_again() {
    let s = server().await;
    s.set("db.test", Kind::A, Reply::Silence);
    let b = Bench::with_servers(&[&s]);
    let look_up = timed(b.ask("db.test", V4));
    let heal = async {
        while s.asked().is_empty() {
            tokio::task::yield_now().await;
        }
        s.set("db.test", Kind::A, a("127.9.0.1"));
    };
    let ((answer, took), ()) = tokio::join!(look_up, heal);
    assert_eq!(ok(answer).addresses, [ip("127.9.0.1")]);
    assert!(took < MS(1_000), "{took:?}");
    assert!(s.count("db.test", "A") >= 2);
}

#[tokio::test]
async fn an_alias_is_followed_and_the_shortest_time_to_live_counts() {
    let s = server().await;
    s.set("db.test", Kind::Any, Reply::Alias("B.test".into(), 30));
    s.set("b.test", Kind::Any, Reply::Alias("c.test".into(), 3));
    s.set("c.test", Kind::A, Rule::addresses([ip("127.9.0.1")], 60));
    let b = Bench::with_servers(&[&s]);
    let answer = ok(b.ask("db.test", V4).await);
    assert_eq!((answer.addresses, answer.ttl), (vec![ip("127.9.0.1")], Some(Duration::from_secs(3))));
    assert_eq!(error(b.ask("db.test", V6).await), ResolveError::NoData, "the target has no AAAA");
    s.remove("c.test");
    assert_eq!(error(b.ask("db.test", V4).await), ResolveError::NoSuchName, "the target is gone");
}

#[tokio::test]
async fn an_alias_that_leads_in_a_circle_ends_in_an_error() {
    let s = server().await;
    s.set("db.test", Kind::Any, Reply::Alias("b.test".into(), 5));
    s.set("b.test", Kind::Any, Reply::Alias("db.test".into(), 5));
    s.set("self.test", Kind::Any, Reply::Alias("self.test".into(), 5));
    let b = Bench::with_servers(&[&s]);
    for name in ["db.test", "self.test"] {
        let (answer, took) = timed(b.ask(name, V4)).await;
        let e = error(answer);
        assert!(took < MS(1_500), "{name}: {e:?} after {took:?}");
        assert!(matches!(e, ResolveError::NoData | ResolveError::ServerFailure(_)), "{name}: {e:?}");
    }
    assert!(s.asked().len() < 40, "{} questions", s.asked().len());
}

#[tokio::test]
async fn a_forged_answer_is_not_believed() {
    let s = server().await;
    let b = Bench::with_servers(&[&s]);
    let liar = ip("127.6.6.6");
    for how in [Forgery::WrongId, Forgery::WrongQuestion, Forgery::OtherPort] {
        s.set("db.test", Kind::A, a("127.9.0.1").delayed(MS(30)).forged(how, liar));
        assert_eq!(ok(b.ask("db.test", V4).await).addresses, [ip("127.9.0.1")], "{how:?}");
        s.set("db.test", Kind::A, Rule::from(Reply::Silence).forged(how, liar));
        let answer = b.ask_within("db.test", V4, MS(200)).await;
        assert_eq!(error(answer), ResolveError::TimedOut, "{how:?}");
    }
}

#[tokio::test]
async fn a_late_answer_counts_until_the_deadline_and_not_after() {
    let s = server().await;
    s.set("db.test", Kind::A, a("127.9.0.1").delayed(MS(300)));
    let b = Bench::with_servers(&[&s]);
    assert_eq!(ok(b.ask("db.test", V4).await).addresses, [ip("127.9.0.1")]);
    assert_eq!(error(b.ask_within("db.test", V4, MS(150)).await), ResolveError::TimedOut);
}
