//! `cargo run -p pgfollow-sim --example fleet -- 40 20 on`: a fleet of 40 processes with 20 sessions each fails over
//! onto a cold node; the curve goes to standard output as CSV, what it means to standard error.
//! The third word is `on`, `off` (no limit to the connect rate, no jitter) or `plain` (the driver without the library).

use std::io::Write;

use pgfollow_sim::fleet::{Fleet, Pace, fail_over};

fn main() -> std::io::Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let number = |i: usize, default: usize| words.get(i).and_then(|w| w.parse().ok()).unwrap_or(default);
    let pace = match words.get(2).map(String::as_str) {
        Some("off") => Pace::Off,
        Some("plain") => Pace::Plain,
        _ => Pace::On,
    };
    let fleet = Fleet::new(number(0, 40), number(1, 20), pace, number(3, 1) as u64);
    let begin = std::time::Instant::now();
    let curve = fail_over(&fleet);
    std::io::stdout().write_all(curve.csv().as_bytes())?;
    writeln!(
        std::io::stderr(),
        "{} x {}, pace {:?}: all back after {:?} (the node alone needs {:?}), {} calls failed after that worker was back; \
         simulated in {:.1} s",
        fleet.instances,
        fleet.sessions,
        fleet.pace,
        curve.back,
        curve.ideal,
        curve.relapses,
        begin.elapsed().as_secs_f64(),
    )
}
