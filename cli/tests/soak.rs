//! One service process through many real failovers: memory, descriptors and tasks stay what they were. `RUNS=n` for
//! more of them (`make proof`). The cluster lives in a process of its own (`pgfollow lab`), so all that is counted here
//! is the library's and the service's.
#![expect(clippy::print_stderr, reason = "figures for people")]

use std::collections::BTreeMap;
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use pgfollow::{Class, Connector, Error, Heard, Pool};
use pgfollow_lab::{servers, wait_for};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::task::JoinSet;

const WORKERS: usize = 8;
/// Between two writes of a worker.
const PACE: Duration = Duration::from_millis(20);
/// Longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// What memory may grow by over all failovers: a leak of 64 kB in each would be more in a proof of fifty.
const MEMORY_KB: u64 = 3_000;

/// `pgfollow lab`.
struct Lab {
    _child: Child,
    commands: ChildStdin,
    replies: Lines<BufReader<ChildStdout>>,
}

impl Lab {
    async fn start() -> (Self, Value) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pgfollow"));
        command.args(["lab", "--nodes=3", "--async", "--json"]);
        if let Ok(major) = std::env::var("LAB_PG_MAJOR") {
            command.args(["--pg-version", &major]);
        }
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
        let (commands, replies) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let mut lab = Self { _child: child, commands, replies: BufReader::new(replies).lines() };
        let about = lab.reply().await;
        (lab, about)
    }

    async fn reply(&mut self) -> Value {
        let line = tokio::time::timeout(PATIENCE, self.replies.next_line()).await.expect("a reply in time");
        serde_json::from_str(&line.unwrap().expect("the lab lives")).unwrap()
    }

    async fn command(&mut self, line: String) {
        self.commands.write_all(format!("{line}\n").as_bytes()).await.unwrap();
        let reply = self.reply().await;
        assert_eq!(reply["ok"], true, "{line}: {reply}");
    }
}

/// What the workers did. Its size doesn't grow.
#[derive(Default)]
struct Done {
    written: AtomicU64,
    errors: Mutex<BTreeMap<String, u64>>,
    permanent: Mutex<Option<String>>,
    /// Where each worker wrote last.
    last: Mutex<[Option<String>; WORKERS]>,
    gaps: AtomicU64,
    heard: AtomicU64,
}

async fn write(pool: &Pool) -> Result<String, Error> {
    let session = pool.acquire_within(PATIENCE).await?;
    let why = session.why();
    let insert = session.prepare_cached("INSERT INTO soak VALUES (1)").await?;
    session.execute(&insert, &[]).await.map_err(|e| why.diagnose(e))?;
    Ok(session.address().to_string())
}

async fn work(pool: Pool, worker: usize, done: Arc<Done>) {
    loop {
        match write(&pool).await {
            Ok(at) => {
                done.written.fetch_add(1, Ordering::Relaxed);
                done.last.lock().unwrap()[worker] = Some(at);
            }
            Err(e) => {
                *done
                    .errors
                    .lock()
                    .unwrap()
                    .entry(format!("{} {}", e.class(), e.code().name()))
                    .or_default() += 1;
                if e.class() == Class::Permanent {
                    done.permanent.lock().unwrap().get_or_insert(e.to_string());
                }
            }
        }
        tokio::time::sleep(PACE).await;
    }
}

/// What this process holds.
#[derive(Clone, Copy, Debug)]
struct Held {
    memory_kb: u64,
    descriptors: usize,
    tasks: usize,
}

impl Held {
    fn now() -> Self {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let memory = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).unwrap();
        Self {
            memory_kb: memory.trim().trim_end_matches(" kB").parse().unwrap(),
            descriptors: std::fs::read_dir("/proc/self/fd").unwrap().count(),
            tasks: tokio::runtime::Handle::current().metrics().num_alive_tasks(),
        }
    }

    /// The least within a second: what a question under way holds for a moment doesn't count.
    async fn at_rest() -> Self {
        let mut least = Self::now();
        for _ in 0..20 {
            tokio::time::sleep(Duration::from_millis(50)).await;
            let now = Self::now();
            least = Self {
                memory_kb: least.memory_kb.min(now.memory_kb),
                descriptors: least.descriptors.min(now.descriptors),
                tasks: least.tasks.min(now.tasks),
            };
        }
        least
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_lives_through_failovers_holds_no_more_than_before_them() {
    if servers().is_none() {
        return;
    }
    let runs: usize = std::env::var("RUNS").ok().map_or(3, |n| n.parse().expect("RUNS is a number"));
    let (mut lab, about) = Lab::start().await;
    let connector = Connector::builder(about["conninfo"].as_str().unwrap())
        .set("pool_max_conns", WORKERS.to_string())
        .set("pool_min_conns", WORKERS.to_string())
        .build()
        .unwrap();
    let pool = connector.pool();
    pool.acquire().await.unwrap().batch_execute("CREATE TABLE soak (n int)").await.unwrap();
    let done = Arc::new(Done::default());
    let mut tasks = JoinSet::new();
    for worker in 0..WORKERS {
        tasks.spawn(work(pool.clone(), worker, Arc::clone(&done)));
    }
    let mut listener = connector.listener(["soak"]).unwrap();
    let (ear, channels) = (Arc::clone(&done), listener.channels());
    tasks.spawn(async move {
        while let Some(heard) = listener.next().await {
            let count = if matches!(heard, Ok(Heard::Gap(_))) { &ear.gaps } else { &ear.heard };
            count.fetch_add(1, Ordering::Relaxed);
        }
    });
    let address = |n: usize| {
        let node = &about["nodes"][n];
        format!("{}:{}", node["host"].as_str().unwrap(), node["port"])
    };
    let at_rest = async |primary: usize| {
        let there = address(primary);
        let all_there = || {
            let states = connector.topology();
            let known =
                states.hosts.iter().filter(|h| ["primary", "standby"].contains(&&*h.state.to_string()));
            let sessions = pool.stats().now;
            done.last.lock().unwrap().iter().all(|at| at.as_deref() == Some(&*there))
                && known.count() == 3
                && channels.is_listening()
                && sessions.idle + sessions.lent + sessions.settling == WORKERS
        };
        wait_for("the service and the cluster to be whole", PATIENCE, all_there).await.unwrap();
        Held::at_rest().await
    };
    let mut held = vec![at_rest(0).await];
    for run in 1..=runs {
        let began = Instant::now();
        let (old, new) = ((run - 1) % 3, run % 3);
        let fault = ["kill", "freeze", "stop", "demote"][(run - 1) % 4];
        lab.command(format!("{fault} n{}", old + 1)).await;
        if fault == "freeze" {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        lab.command(format!("promote n{}", new + 1)).await;
        lab.command(format!("restart n{}", old + 1)).await;
        held.push(at_rest(new).await);
        eprintln!("{run} {fault}: {:?} after {:?}", held[run], began.elapsed());
    }
    let last = done.heard.load(Ordering::Relaxed);
    let session = pool.acquire().await.unwrap();
    let again = async {
        // The listener may be on its way back.
        while done.heard.load(Ordering::Relaxed) == last {
            session.batch_execute("NOTIFY soak").await.unwrap();
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(PATIENCE, again).await.expect("the listener hears the last primary");
    drop(session);
    let (written, gaps) = (done.written.load(Ordering::Relaxed), done.gaps.load(Ordering::Relaxed));
    eprintln!("{written} writes, {gaps} gaps, errors: {:?}", done.errors.lock().unwrap());
    assert_eq!(*done.permanent.lock().unwrap(), None);
    assert!(gaps >= runs as u64, "{gaps} gaps in {runs} failovers");

    // From the fifth on everything that is kept has its size. Of few failovers the first ones must do.
    let (early, late) = held[runs.min(5).min(runs - 1)..].split_at((runs / 10).max(1));
    let late = &late[late.len() - (runs / 10).max(1)..];
    let most = |of: &[Held], what: fn(&Held) -> u64| of.iter().map(what).max().unwrap();
    let least = |of: &[Held], what: fn(&Held) -> u64| of.iter().map(what).min().unwrap();
    let flat = |name: &str, what: fn(&Held) -> u64, room: u64| {
        let (before, after) = (most(early, what), least(late, what));
        eprintln!("{name}: {before} early, {after} late");
        assert!(after <= before + room, "{name}: {before} early, {after} late: {held:#?}");
    };
    flat("memory, kB", |h| h.memory_kb, MEMORY_KB);
    flat("descriptors", |h| h.descriptors as u64, 0);
    flat("tasks", |h| h.tasks as u64, 0);
}
