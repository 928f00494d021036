use rand::SeedableRng;
use rand::rngs::StdRng;

use super::*;

const DB: &str = "db.test";

fn ms(n: u64) -> Moment {
    Moment::from_millis(n)
}

fn ip(s: &str) -> IpAddr {
    s.parse().unwrap()
}

fn rng() -> StdRng {
    StdRng::seed_from_u64(7)
}

fn answer(addresses: &[&str], at: Moment) -> Answer {
    Answer {
        addresses: addresses.iter().map(|a| ip(a)).collect(),
        ttl: Some(Duration::from_secs(5)),
        source: AnswerSource::Dns,
        server: None,
        at,
    }
}

fn book() -> Names {
    Names::new([DB.to_owned()], Moment::ZERO)
}

/// A book whose IPv4 side has been answered so at 0.
fn with(addresses: &[&str]) -> Names {
    let mut n = book();
    n.due(Moment::ZERO, &mut rng());
    n.failed(DB, Family::V6, ResolveError::NoData, Moment::ZERO);
    n.answered(DB, Family::V4, answer(addresses, Moment::ZERO), Moment::ZERO);
    n
}

fn seen(n: &Names) -> Vec<(String, bool)> {
    n.candidates(DB).into_iter().map(|(a, f)| (a.to_string(), f)).collect()
}

fn fresh(a: &str) -> (String, bool) {
    (a.to_owned(), true)
}

fn stale(a: &str) -> (String, bool) {
    (a.to_owned(), false)
}

/// Plays a schedule in which each question is answered at once, and returns the times of the A questions.
fn asked_at(n: &mut Names, from: Moment, until: Moment) -> Vec<u64> {
    let mut rng = rng();
    let mut now = from;
    let mut times = Vec::new();
    while now <= until {
        for q in n.due(now, &mut rng) {
            n.answered(&q.name, q.family, answer(&["10.0.0.1"], now), now);
            if q.family == Family::V4 {
                times.push(now.as_micros() / 1_000);
            }
        }
        now = n.next_due();
    }
    times
}

#[test]
fn a_search_asks_at_once_then_ever_slower_and_never_in_step_with_other_processes() {
    let mut n = with(&["10.0.0.1"]);
    n.search_started(ms(5_000));
    let times = asked_at(&mut n, ms(5_000), ms(10_000));
    assert_eq!(times[0], 5_000);
    let gaps: Vec<_> = times.windows(2).map(|w| (w[1] - w[0]) as f64).collect();
    for (gap, wanted) in gaps.iter().zip([100.0, 160.0, 256.0, 409.6, 500.0, 500.0]) {
        assert!((wanted * 0.79..=wanted * 1.21).contains(gap), "{gap} for {wanted} in {gaps:?}");
    }
    let shares: Vec<_> = gaps.iter().skip(4).map(|g| (g / 5.0).round()).collect();
    assert!(shares.iter().any(|s| *s != shares[0]), "no jitter: {gaps:?}");
}

#[test]
fn a_second_search_starts_fast_again_and_one_already_on_is_not_restarted() {
    let mut n = with(&["10.0.0.1"]);
    n.search_started(ms(1_000));
    asked_at(&mut n, ms(1_000), ms(4_000));
    n.search_started(ms(4_000));
    assert_eq!(n.search, Some(SEARCH_MAX), "told twice");
    n.search_ended(ms(4_000), &mut rng());
    assert!(n.next_due() >= ms(4_000 + 24_000));
    n.search_started(ms(5_000));
    let times = asked_at(&mut n, ms(5_000), ms(5_300));
    assert!(times.len() >= 2, "{times:?}");
}

#[test]
fn in_quiet_a_name_is_asked_every_half_minute() {
    let mut n = book();
    let times = asked_at(&mut n, Moment::ZERO, ms(600_000));
    assert!((16..=25).contains(&times.len()), "{times:?}");
}

#[test]
fn a_name_server_that_is_silent_gets_one_question_at_a_time() {
    let mut n = with(&["10.0.0.1"]);
    n.search_started(ms(0));
    let mut rng = rng();
    assert_eq!(n.due(ms(0), &mut rng).len(), 2);
    n.answered(DB, Family::V4, answer(&["10.0.0.1"], ms(1)), ms(1));
    let next = n.due(ms(150), &mut rng);
    assert_eq!(next, [Question { name: DB.into(), family: Family::V4 }], "AAAA is still out");
    assert!(n.for_connect(DB, ms(151)).is_empty(), "a connect joins what is out");
    // The task that asked for AAAA died: its question doesn't block the family for ever.
    assert_eq!(n.for_connect(DB, ms(4_149)).len(), 1);
    assert!(n.for_connect("other.test", ms(0)).is_empty());
}

#[test]
fn a_name_that_stops_resolving_keeps_its_addresses() {
    for error in [
        ResolveError::NoSuchName,
        ResolveError::NoData,
        ResolveError::ServerFailure("SERVFAIL".into()),
        ResolveError::TimedOut,
    ] {
        let mut n = with(&["10.0.0.1", "10.0.0.2"]);
        n.failed(DB, Family::V4, error, ms(100));
        n.primary_is(ip("10.0.0.9"), ms(200));
        n.tidy(ms(3_600_000));
        assert_eq!(seen(&n), [stale("10.0.0.1"), stale("10.0.0.2")]);
        let r = n.report(ms(1_000)).remove(0);
        assert!(r.stale && r.error.is_some(), "{r:?}");
        assert!(n.known_before(DB));
    }
}

#[test]
fn an_unknown_name_is_not_known_before() {
    let mut n = book();
    n.failed(DB, Family::V4, ResolveError::NoSuchName, ms(1));
    assert!(!n.known_before(DB));
    assert!(!n.report(ms(2))[0].stale, "there is nothing to be stale");
    assert!(!with(&["10.0.0.1"]).known_before("other.test"));
}

#[test]
fn the_old_address_of_a_moved_name_goes_ten_seconds_after_the_new_primary() {
    let mut n = with(&["10.0.0.1"]);
    n.primary_is(ip("10.0.0.1"), ms(0));
    n.answered(DB, Family::V4, answer(&["10.0.0.2"], ms(60_000)), ms(60_000));
    assert_eq!(seen(&n), [fresh("10.0.0.2"), stale("10.0.0.1")], "the old primary stays a candidate");
    n.primary_is(ip("10.0.0.2"), ms(61_000));
    n.primary_is(ip("10.0.0.2"), ms(70_000));
    n.tidy(ms(70_999));
    assert_eq!(n.candidates(DB).len(), 2);
    n.tidy(ms(71_000));
    assert_eq!(seen(&n), [fresh("10.0.0.2")], "told again isn't a change");
}

#[test]
fn a_name_that_flickers_forgets_neither_address_while_it_does() {
    let mut n = with(&["10.0.0.1"]);
    n.primary_is(ip("10.0.0.1"), ms(0));
    for (at, address) in [(1_000, "10.0.0.2"), (4_000, "10.0.0.1"), (7_000, "10.0.0.2")] {
        n.answered(DB, Family::V4, answer(&[address], ms(at)), ms(at));
        n.primary_is(ip("10.0.0.2"), ms(at));
        assert_eq!(n.candidates(DB).len(), 2, "at {at}");
        assert_eq!(seen(&n)[0], fresh(address));
    }
}

#[test]
fn the_primary_stays_even_if_its_name_no_longer_gives_it() {
    let mut n = with(&["10.0.0.1"]);
    n.primary_is(ip("10.0.0.1"), ms(0));
    n.answered(DB, Family::V4, answer(&["10.0.0.2"], ms(50_000)), ms(50_000));
    n.tidy(ms(90_000));
    assert_eq!(seen(&n), [fresh("10.0.0.2"), stale("10.0.0.1")]);
}

#[test]
fn a_family_that_is_withdrawn_goes_only_when_the_other_one_answers() {
    let mut n = book();
    n.answered(DB, Family::V6, answer(&["fd00::1"], ms(0)), ms(0));
    n.answered(DB, Family::V4, answer(&["10.0.0.1"], ms(0)), ms(0));
    assert_eq!(seen(&n), [fresh("fd00::1"), fresh("10.0.0.1")]);
    n.primary_is(ip("10.0.0.1"), ms(0));
    n.failed(DB, Family::V6, ResolveError::NoData, ms(60_000));
    assert_eq!(seen(&n), [fresh("10.0.0.1")]);
}

#[test]
fn a_name_with_ever_new_addresses_does_not_fill_the_memory() {
    let mut n = book();
    for i in 0..1_000_u64 {
        let a = format!("10.0.{}.{}", i / 250, i % 250);
        n.answered(DB, Family::V4, answer(&[&a], ms(i)), ms(i));
    }
    assert_eq!(n.candidates(DB).len(), ADDRESSES);
    assert_eq!(seen(&n)[0], fresh("10.0.3.249"));
    let many: Vec<_> = (0..200).map(|i| format!("10.1.0.{i}")).collect();
    let many: Vec<_> = many.iter().map(String::as_str).collect();
    n.answered(DB, Family::V4, answer(&many, ms(2_000)), ms(2_000));
    assert_eq!(n.candidates(DB).len(), ADDRESSES);
}

#[test]
fn the_report_tells_age_and_time_to_live() {
    let n = with(&["10.0.0.1"]);
    let r = n.report(ms(1_500)).remove(0);
    assert_eq!((r.ttl_s, r.age_ms, r.stale, r.error.clone()), (Some(5), Some(1_500), false, None), "{r:?}");
    assert_eq!(r.source, Some(AnswerSource::Dns));
    assert_eq!(r.addresses, [ip("10.0.0.1")]);
}
