//! Seeds: each is a cluster, its clients and its misfortunes. `SEED=n` repeats one and prints what happened,
//! `SEEDS=n` runs that many instead of the default, `FROM=n` begins there, `STORY=Kill` draws that one only.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pgfollow_sim::{Broken, Counts, Marks, Options, Report, Story, run, service};

/// In the default run.
const SEEDS: u64 = 1000;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|v| v.parse().unwrap_or_else(|_| panic!("{name}={v} is no number")))
}

/// As the environment wants it.
fn options() -> Options {
    let wanted = std::env::var("STORY").ok();
    let is = |s: &Story| wanted.as_ref().is_none_or(|w| format!("{s:?}") == *w);
    let stories: Vec<Story> = Story::ALL.into_iter().filter(is).collect();
    assert!(!stories.is_empty(), "STORY={wanted:?} is none of {:?}", Story::ALL);
    Options { stories, ..Options::default() }
}

/// Runs seeds on all processors, in the order of their numbers.
fn all(seeds: std::ops::Range<u64>, options: &Options) -> Vec<Report> {
    let next = Arc::new(AtomicU64::new(seeds.start));
    let reports = Arc::new(Mutex::new(Vec::new()));
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        return;
                    }
                    let report = run(seed, options);
                    reports.lock().expect("nobody panics").push(report);
                }
            });
        }
    });
    let mut reports = std::mem::take(&mut *reports.lock().expect("nobody panics"));
    reports.sort_by_key(|r| r.seed);
    reports
}

fn percentile(sorted: &[Duration], share: f64) -> Duration {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an index")]
    let at = (sorted.len().saturating_sub(1) as f64 * share) as usize;
    sorted.get(at).copied().unwrap_or_default()
}

#[expect(clippy::print_stdout, reason = "the figures of a run")]
fn print(reports: &[Report], took: Duration) {
    let sum = |of: fn(&Report) -> usize| reports.iter().map(of).sum::<usize>();
    let most = |of: fn(&Report) -> (usize, usize)| {
        let all = || reports.iter().map(of);
        (all().map(|n| n.0).max().unwrap_or(0), all().map(|n| n.1).max().unwrap_or(0))
    };
    let mut resumed: Vec<Duration> = reports.iter().flat_map(|r| r.counts.resumed.iter().copied()).collect();
    resumed.sort_unstable();
    let lasted: Duration = reports.iter().map(|r| r.lasted).sum();
    println!(
        "{} seeds, {} s simulated in {:.1} s: {} acknowledged, {} transient, {} permanent, {} unknown ({} of them done), \
         {} lost by asynchronous replication; service resumed after a promotion: median {:?}, 90 % {:?}, 99 % {:?}, \
         worst {:?} of {}; logins of one process in a second and in ten: {:?} callers', {:?} a monitor's; longest job {:?}, \
         longest wait for a pool's session {:?}",
        reports.len(),
        lasted.as_secs(),
        took.as_secs_f64(),
        sum(|r| r.counts.acknowledged),
        sum(|r| r.counts.transient),
        sum(|r| r.counts.permanent),
        sum(|r| r.counts.unknown),
        sum(|r| r.counts.unknown_done),
        sum(|r| r.counts.lost_by_server),
        percentile(&resumed, 0.5),
        percentile(&resumed, 0.9),
        percentile(&resumed, 0.99),
        percentile(&resumed, 1.0),
        resumed.len(),
        most(|r| r.counts.logins),
        most(|r| r.counts.monitor_logins),
        reports.iter().map(|r| r.counts.longest).max().unwrap_or_default(),
        reports.iter().map(|r| r.counts.waited).max().unwrap_or_default(),
    );
    for marks in [Marks::Table, Marks::Numbers, Marks::Neither] {
        let of = |what: fn(&Counts) -> usize| {
            reports.iter().filter(|r| r.drawn.marks == marks).map(|r| what(&r.counts)).sum::<usize>()
        };
        println!(
            "  outcomes by {marks:?}: {} tokens asked for, {} left unknown after 30 s, {} more under shorter deadlines; \
             {} still when all was well",
            of(|c| c.asked),
            of(|c| c.unsettled),
            of(|c| c.unsettled_bounded),
            of(|c| c.never_settled),
        );
    }
    for name in ["sessions", "pool", "run", "run_once"] {
        let of = |what: fn(&Counts) -> usize| {
            reports.iter().filter(|r| r.drawn.name == name).map(|r| what(&r.counts)).sum::<usize>()
        };
        println!(
            "  {name}: {} acknowledged, {} transient, {} permanent, {} unknown",
            of(|c| c.acknowledged),
            of(|c| c.transient),
            of(|c| c.permanent),
            of(|c| c.unknown),
        );
    }
    let surplus = |name| {
        let of = reports.iter().filter(|r| r.drawn.name == name).map(|r| r.counts.surplus);
        of.max().unwrap_or(0)
    };
    println!(
        "  backends beyond the pool's size where commits wait for a standby: pool {}, run {}",
        surplus("pool"),
        surplus("run"),
    );
    verdict(reports);
    let mut slowest: Vec<&Report> = reports.iter().collect();
    slowest.sort_by_key(|r| std::cmp::Reverse(r.counts.resumed.iter().max().copied()));
    for r in slowest.iter().take(5) {
        println!("  slow to resume: SEED={} {:?} {:?}", r.seed, r.stories, r.counts.resumed.iter().max());
    }
}

/// How often each rule was broken that the simulation is for.
#[expect(clippy::print_stdout, reason = "the figures of a run")]
fn verdict(reports: &[Report]) {
    let count = |is: fn(&Broken) -> bool| reports.iter().flat_map(|r| &r.broken).filter(|b| is(b)).count();
    println!(
        "  {} lost, {} doubled, {} unknown and not flagged, {} torn, {} written to an older primary, {} wrong answers of \
         checks, {} too many logins, {} in step, {} too long, {} left behind",
        count(|b| matches!(b, Broken::Lost(_))),
        count(|b| matches!(b, Broken::Doubled(_))),
        count(|b| matches!(b, Broken::DoneAfterAll(_))),
        count(|b| matches!(b, Broken::Torn(_))),
        count(|b| matches!(b, Broken::Stale(_))),
        count(|b| matches!(b, Broken::WrongAnswer(_))),
        count(|b| matches!(b, Broken::TooMany(_))),
        count(|b| matches!(b, Broken::InStep(_))),
        count(|b| matches!(b, Broken::TooLong(_))),
        count(|b| matches!(b, Broken::Left(_))),
    );
}

/// Fails with the seed, what was broken, and the end of what happened.
fn fail(report: &Report) -> ! {
    let again = run(report.seed, &Options { keep_log: true, ..options() });
    let broken: Vec<String> = again.broken.iter().map(|b| format!("  {b}")).collect();
    panic!(
        "SEED={} ({:?}, {:?}) broke:\n{}\n{}",
        report.seed,
        report.drawn,
        report.stories,
        broken.join("\n"),
        again.log.join("\n"),
    )
}

#[test]
fn whatever_goes_wrong_nothing_is_lost_doubled_or_said_wrongly() {
    let options = options();
    if let Some(seed) = number("SEED") {
        let report = run(seed, &options);
        fail_or_show(&report);
        return;
    }
    let begin = std::time::Instant::now();
    let from = number("FROM").unwrap_or(0);
    let reports = all(from..from + number("SEEDS").unwrap_or(SEEDS), &options);
    print(&reports, begin.elapsed());
    let bad: Vec<&Report> = reports.iter().filter(|r| !r.broken.is_empty()).collect();
    if let Some(first) = bad.first() {
        let which: Vec<String> = bad
            .iter()
            .map(|r| format!("SEED={} {:?} {:?}: {}", r.seed, r.drawn, r.stories, r.broken[0]))
            .collect();
        panic!(
            "{} of {} seeds broke a rule; SEED=n shows one\n{}\n(first: {})",
            bad.len(),
            reports.len(),
            which.join("\n"),
            first.seed
        );
    }
}

#[expect(clippy::print_stdout, reason = "asked for by SEED")]
fn fail_or_show(report: &Report) {
    if !report.broken.is_empty() {
        fail(report);
    }
    let again = run(report.seed, &Options { keep_log: true, ..options() });
    println!("{}\n{:?}", again.log.join("\n"), again.counts);
}

#[test]
fn a_seed_gives_the_same_run_to_the_last_byte() {
    for seed in 0..40 {
        let (a, b) = (run(seed, &Options::default()), run(seed, &Options::default()));
        if a.sum != b.sum {
            let keep = Options { keep_log: true, ..Options::default() };
            let (a, b) = (run(seed, &keep), run(seed, &keep));
            let at = a.log.iter().zip(&b.log).position(|(a, b)| a != b);
            let from = at.unwrap_or(0).saturating_sub(15);
            let part =
                |log: &[String]| log.iter().skip(from).take(20).cloned().collect::<Vec<_>>().join("\n");
            panic!("SEED={seed} differs at line {at:?}:\n{}\n---\n{}", part(&a.log), part(&b.log));
        }
    }
}

#[test]
fn a_crowd_on_a_small_pool_is_paced_and_bounded_in_its_queue_and_in_its_waits() {
    let stories: Vec<Story> = Story::ALL.into_iter().filter(|s| *s != Story::Calm).collect();
    let options = Options { stories, service: Some(service::pooled), workers: 20, ..Options::default() };
    for report in all(0..30, &options) {
        // Every worker must get through: a crowd that is shed fairly may take longer.
        let broken: Vec<_> =
            report.broken.iter().filter(|b| !matches!(b, Broken::TooLong(s) if s.starts_with('w'))).collect();
        assert!(broken.is_empty(), "SEED={} {:?} {broken:?}", report.seed, report.stories);
    }
}

#[test]
fn where_nothing_goes_wrong_nothing_fails() {
    let options = Options { stories: vec![Story::Calm], ..Options::default() };
    for report in all(0..20, &options) {
        assert!(report.broken.is_empty(), "SEED={} {:?}", report.seed, report.broken);
        assert!(report.counts.acknowledged > 50, "{:?}", report.counts);
    }
}
