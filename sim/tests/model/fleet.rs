//! A fleet that falls upon one cold node.

use std::time::Duration;

use pgfollow_sim::fleet::{Fleet, Pace, fail_over};

#[test]
fn a_fleet_is_back_soon_after_the_cold_node_can_have_taken_it() {
    let fleet = Fleet { lasts: Duration::from_secs(30), ..Fleet::new(10, 10, Pace::On, 1) };
    let curve = fail_over(&fleet);
    let back = curve.back.expect("everybody is back");
    assert!(
        back < curve.ideal * 4 + Duration::from_secs(3),
        "{back:?}, the node alone needs {:?}",
        curve.ideal
    );
    let successes: u32 = curve.tenths.iter().map(|t| t.successes).sum();
    assert!(successes > 1_000, "{successes}");
    assert_eq!(curve.csv().lines().count(), 301);
}

/// The figures of docs/fleet.md.
#[test]
fn forty_times_twenty_are_back_without_a_relapse_and_without_pace_they_relapse() {
    let fleet = |pace| Fleet { lasts: Duration::from_secs(20), ..Fleet::new(40, 20, pace, 1) };
    let (paced, unpaced) = (fail_over(&fleet(Pace::On)), fail_over(&fleet(Pace::Off)));
    let back = paced.back.expect("everybody is back");
    assert!(back <= paced.ideal.mul_f64(1.5), "{back:?}, the node alone needs {:?}", paced.ideal);
    assert_eq!(paced.relapses, 0);
    for other in [unpaced, fail_over(&fleet(Pace::Plain))] {
        assert!(other.relapses > 20, "{}", other.relapses);
        assert!(other.back.is_none_or(|b| b > paced.ideal * 2), "{:?}", other.back);
    }
}

/// A run of some minutes (`make proof`).
#[test]
#[ignore = "takes minutes unoptimised; make proof runs it"]
#[expect(clippy::print_stdout, reason = "the figures of a run")]
fn ten_fleets_are_back_without_a_relapse() {
    for seed in 1..=10 {
        let fleet = Fleet { lasts: Duration::from_secs(20), ..Fleet::new(40, 20, Pace::On, seed) };
        let curve = fail_over(&fleet);
        let back = curve.back.expect("everybody is back");
        let times = back.as_secs_f64() / curve.ideal.as_secs_f64();
        println!(
            "seed {seed}: back after {back:?}, {times:.2} x what the node alone needs, {} relapses",
            curve.relapses
        );
        assert!(
            times <= 1.5 && curve.relapses == 0,
            "seed {seed}: {times:.2} x, {} relapses",
            curve.relapses
        );
    }
}

#[test]
fn a_curve_can_be_drawn_again() {
    let fleet = Fleet { lasts: Duration::from_secs(10), ..Fleet::new(4, 5, Pace::On, 7) };
    assert_eq!(fail_over(&fleet).tenths, fail_over(&fleet).tenths);
}
