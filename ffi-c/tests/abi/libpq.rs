//! The service of `examples/c/inserts.c`, on libpq and pgfollow, through real failovers.
//!
//! `RUNS=n` plays each fault n times and the same program on libpq alone beside it, for figures.
#![expect(clippy::print_stderr, reason = "figures for people")]

use std::collections::BTreeSet;
use std::process::{Command, Stdio};
use std::time::Duration;

use pgfollow_lab::{Cluster, ClusterOptions, Prober, StopMode, servers, skipped};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Child;
use tokio::time::{sleep, timeout};

use crate::build::{COMPILERS, compile_in, has, libraries, run};

const THREADS: usize = 8;
/// Bounds what would hang.
const ENOUGH: Duration = Duration::from_secs(60);

/// What libpq needs to be compiled and linked; `None` where it isn't there.
fn libpq() -> Option<Vec<String>> {
    let out = Command::new("pkg-config").args(["--cflags", "--libs", "libpq"]).output();
    match out {
        Ok(out) if out.status.success() => {
            Some(String::from_utf8_lossy(&out.stdout).split_whitespace().map(str::to_owned).collect())
        }
        _ => {
            skipped("libpq's headers or pkg-config are not installed");
            None
        }
    }
}

/// A line of the program: whether the row was acknowledged, and when.
struct Line {
    done: bool,
    worker: usize,
    seq: i64,
    at: u64,
    why: String,
}

impl Line {
    fn read(text: &str) -> Self {
        let (facts, why) = text.split_once(": ").unwrap_or((text, ""));
        let mut words = facts.split(' ');
        let done = words.next() == Some("ok");
        let mut number = || words.next().and_then(|w| w.parse::<u64>().ok()).expect("a number");
        let (worker, seq, at) = (number(), number(), number());
        Self {
            done,
            worker: usize::try_from(worker).expect("small"),
            seq: i64::try_from(seq).expect("small"),
            at,
            why: why.to_owned(),
        }
    }
}

struct Service {
    child: Child,
    lines: tokio::task::JoinHandle<Vec<Line>>,
}

impl Service {
    fn start(program: &std::path::Path, conninfo: &str, plain: bool) -> Self {
        let mut command = tokio::process::Command::from(run(program));
        command.arg(conninfo).arg(THREADS.to_string()).args(plain.then_some("plain"));
        command.env("LD_LIBRARY_PATH", libraries()).kill_on_drop(true);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = command.spawn().expect("the program starts");
        let mut out = BufReader::new(child.stdout.take().expect("piped")).lines();
        let lines = tokio::spawn(async move {
            let mut all = Vec::new();
            while let Ok(Some(line)) = out.next_line().await {
                all.push(Line::read(&line));
            }
            all
        });
        Self { child, lines }
    }

    /// Ends it by its input; one that hangs is killed.
    async fn stop(mut self) -> Vec<Line> {
        drop(self.child.stdin.take());
        match timeout(Duration::from_secs(10), self.child.wait()).await {
            Ok(status) => assert!(status.expect("waited for").success(), "it failed"),
            Err(_) => self.child.kill().await.expect("killed"),
        }
        self.lines.await.expect("no panic")
    }
}

/// The first success of anybody, and the first of whoever was last, after the new primary's first accepted write (ms).
fn back(lines: &[Line], ready: u64) -> (Option<f64>, Option<f64>) {
    let mut first = [None::<u64>; THREADS];
    for l in lines.iter().filter(|l| l.done && l.at >= ready) {
        first[l.worker].get_or_insert(l.at);
    }
    let ms = |at: u64| Duration::from_nanos(at - ready).as_secs_f64() * 1e3;
    let all = first.iter().copied().collect::<Option<Vec<_>>>();
    (first.iter().flatten().min().map(|at| ms(*at)), all.and_then(|all| all.into_iter().max()).map(ms))
}

async fn failover(fault: &str, program: &std::path::Path, plain: bool) -> Option<(f64, f64)> {
    let binaries = servers()?;
    let cluster = Cluster::start(ClusterOptions::new(binaries)).await.expect("a cluster");
    let owner = cluster.node(0).session().await.expect("a session");
    owner
        .batch_execute("CREATE TABLE orders (worker int, seq int); GRANT ALL ON orders TO PUBLIC")
        .await
        .expect("a table");
    drop(owner);
    let conninfo = format!("{}?target_session_attrs=read-write", cluster.conninfo());
    let service = Service::start(program, &conninfo, plain);
    sleep(Duration::from_secs(3)).await;
    let prober = Prober::start(&cluster, 1).await.expect("a prober");
    match fault {
        "kill" => cluster.node(0).kill().await,
        "stop" => cluster.node(0).stop(StopMode::Fast).await,
        _ => cluster.node(0).freeze().await,
    }
    .expect("the fault");
    // A frozen host is noticed by nobody for a while.
    sleep(if fault == "freeze" { Duration::from_secs(3) } else { Duration::ZERO }).await;
    cluster.promote(1).await.expect("a promotion");
    let ready = prober.ready(ENOUGH).await.expect("the new primary writes");
    sleep(Duration::from_secs(3)).await;
    let lines = service.stop().await;
    let (first, all) = back(&lines, ready);
    if plain {
        eprintln!("{fault}, libpq alone: first {first:?} ms, all {all:?} ms");
        return None;
    }
    // Everything acknowledged is there, and once.
    let session = cluster.node(1).session().await.expect("a session");
    let rows = session.query("SELECT worker, seq FROM orders", &[]).await.expect("rows");
    let rows: Vec<(i32, i32)> = rows.iter().map(|r| (r.get(0), r.get(1))).collect();
    let kept: BTreeSet<_> = rows.iter().map(|(w, s)| (i64::from(*w), i64::from(*s))).collect();
    assert_eq!(kept.len(), rows.len(), "doubled");
    for l in lines.iter().filter(|l| l.done) {
        let row = (i64::try_from(l.worker).expect("small"), l.seq);
        assert!(kept.contains(&row), "{row:?} was acknowledged, and is lost");
    }
    let errors = lines.iter().filter(|l| !l.done);
    let (first, all) = (first.expect("it is back"), all.expect("all threads are"));
    eprintln!("{fault}, pgfollow: first {first:.0} ms, all {all:.0} ms, {} errors", errors.clone().count());
    if fault == "freeze" {
        let cut = errors.filter(|l| l.why.contains("superseded")).count();
        assert!(cut > 0, "who was blocked is told why");
    }
    Some((first, all))
}

fn middle(mut all: Vec<f64>) -> (f64, f64) {
    all.sort_by(f64::total_cmp);
    (all[all.len() / 2], all[all.len() - 1])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_libpq_service_of_eight_threads_is_back_when_the_new_primary_is() {
    let Some(other) = libpq().filter(|_| has("gcc")) else { return };
    let program = compile_in("../examples/c", "inserts", COMPILERS[0], &["-O1"], &other);
    let runs: Option<usize> = std::env::var("RUNS").ok().map(|n| n.parse().expect("RUNS is a number"));
    for fault in ["freeze", "kill", "stop"] {
        let mut figures = Vec::new();
        for _ in 0..runs.unwrap_or(1) {
            figures.extend(failover(fault, &program, false).await);
            if runs.is_some() {
                failover(fault, &program, true).await;
            }
        }
        if runs.is_some() && !figures.is_empty() {
            let ((first, worst), (all, last)) = (
                middle(figures.iter().map(|f| f.0).collect()),
                middle(figures.iter().map(|f| f.1).collect()),
            );
            eprintln!(
                "{fault}, {} runs: first {first:.0} / {worst:.0} ms, all {all:.0} / {last:.0} ms",
                figures.len()
            );
        }
    }
}

/// Under the address sanitizer: connect by a poll loop, a query, and everything is freed.
#[tokio::test]
async fn a_program_with_a_loop_of_its_own_is_led_to_the_primary_and_leaks_nothing() {
    let Some(other) = libpq().filter(|_| has("gcc")) else { return };
    let Some(binaries) = servers() else { return };
    let program = compile_in("../examples/c", "loop", COMPILERS[0], &["-fsanitize=address"], &other);
    let cluster = Cluster::start(ClusterOptions::new(binaries)).await.expect("a cluster");
    let (first, third) = (cluster.node(0).host(), cluster.node(2).host());
    // The standby stands first in the list.
    let hosts = format!("{third}:{port},{first}:{port}", port = cluster.node(0).port());
    let mut command = tokio::process::Command::from(run(&program));
    command
        .arg(format!("{}?target_session_attrs=read-write", cluster.conninfo_to(&hosts)))
        .kill_on_drop(true);
    let out = timeout(ENOUGH, command.output()).await.expect("ends in time").expect("runs");
    let (text, errors) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{text} {errors}");
    assert_eq!(text.trim(), first.to_string(), "{errors}");
}

/// The glue compiles as both languages, with every compiler.
#[test]
fn the_glue_is_c_and_cpp() {
    let Some(other) = libpq() else { return };
    for compiler in COMPILERS {
        if has(compiler.0) {
            for program in ["inserts", "loop"] {
                compile_in("../examples/c", program, compiler, &[], &other);
            }
        }
    }
}
