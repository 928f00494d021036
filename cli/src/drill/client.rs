//! The workload: one process for each client, so that neither's runtime touches the other's. Each worker writes rows
//! with an id of their own, never twice, and says what became of each on standard output, one JSON object a line.

mod ours;
mod plain;

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pgfollow::Class;
use pgfollow_lab::{LabError, monotonic_ns};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use super::tally::Log;

/// The connection string of a client process: not an argument, for it holds a password.
const CONNINFO: &str = "DRILL_CONNINFO";

/// The statement: the answer says which node took the row.
pub(super) const INSERT: &str =
    "INSERT INTO drill (client, worker, seq) VALUES ($1, $2, $3) RETURNING host(inet_server_addr())";

/// Which client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Kind {
    /// This library.
    Pgfollow,
    /// tokio-postgres behind deadpool, a multi-host string with target_session_attrs=read-write, defaults otherwise.
    Plain,
}

impl Kind {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Pgfollow => "pgfollow",
            Self::Plain => "plain",
        }
    }
}

/// (internal) the workload of a drill
#[derive(clap::Args)]
pub(crate) struct Args {
    #[arg(long, value_enum)]
    client: Kind,
    #[arg(long)]
    workers: u16,
    #[arg(long)]
    rate: u16,
}

/// What became of one write. Times are CLOCK_MONOTONIC in nanoseconds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Write {
    pub(super) worker: i32,
    pub(super) seq: i64,
    pub(super) start: u64,
    pub(super) end: u64,
    /// The node that acknowledged it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) node: Option<String>,
    /// Why it wasn't.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<(Class, String)>,
    /// Still out when the drill ended.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) unfinished: bool,
}

/// One worker's side of the log.
pub(super) struct Scribe {
    worker: i32,
    seq: i64,
    open: Arc<AtomicU64>,
    lines: mpsc::Sender<Write>,
    tick: tokio::time::Interval,
}

impl Scribe {
    /// Waits for the next tick and gives the next id.
    pub(super) async fn next(&mut self) -> (i32, i64) {
        self.tick.tick().await;
        self.seq += 1;
        self.open.store(monotonic_ns(), Ordering::Relaxed);
        (self.worker, self.seq)
    }

    /// Notes what became of the write whose id was given last.
    pub(super) async fn note(&self, result: Result<String, (Class, String)>) {
        let start = self.open.swap(0, Ordering::Relaxed);
        let (node, error) = match result {
            Ok(node) => (Some(node), None),
            Err(e) => (None, Some(e)),
        };
        let (worker, seq, end) = (self.worker, self.seq, monotonic_ns());
        // The process ends when its reader does.
        let _ = self.lines.send(Write { worker, seq, start, end, node, error, unfinished: false }).await;
    }
}

/// The client process: works until its standard input ends.
pub(crate) async fn run(args: &Args) -> ExitCode {
    let Ok(conninfo) = std::env::var(CONNINFO) else {
        crate::output::complain("drill-client is a part of drill: run that");
        return ExitCode::from(crate::exit::USAGE);
    };
    let (lines, mut written) = mpsc::channel::<Write>(1_024);
    let mut open = Vec::new();
    let mut scribes = Vec::new();
    for worker in 0..args.workers {
        let mut tick = tokio::time::interval(Duration::from_secs_f64(1.0 / f64::from(args.rate)));
        // A blocked worker doesn't catch up in a burst afterwards.
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mine = Arc::new(AtomicU64::new(0));
        open.push(Arc::clone(&mine));
        scribes.push(Scribe { worker: i32::from(worker), seq: 0, open: mine, lines: lines.clone(), tick });
    }
    drop(lines);
    let work = async {
        match args.client {
            Kind::Pgfollow => ours::run(&conninfo, scribes).await,
            Kind::Plain => plain::run(&conninfo, scribes).await,
        }
    };
    let printer = async {
        while let Some(w) = written.recv().await {
            print(&w);
        }
    };
    tokio::select! {
        Err(e) = work => {
            crate::output::complain(e);
            return ExitCode::FAILURE;
        }
        () = printer => {}
        () = end_of_input() => {}
    }
    let now = monotonic_ns();
    for (worker, start) in (0..).zip(open.iter().map(|o| o.load(Ordering::Relaxed))) {
        if start != 0 {
            print(&Write { worker, seq: 0, start, end: now, node: None, error: None, unfinished: true });
        }
    }
    ExitCode::SUCCESS
}

fn print(w: &Write) {
    if let Ok(line) = serde_json::to_string(w) {
        crate::output::print(line);
    }
}

async fn end_of_input() {
    let wait = || {
        let mut rest = Vec::new();
        let _ = std::io::stdin().read_to_end(&mut rest);
    };
    let _ = tokio::task::spawn_blocking(wait).await;
}

/// A client process, as the drill sees it.
pub(super) struct Running {
    kind: Kind,
    child: Child,
    input: Option<ChildStdin>,
    log: Arc<Mutex<Log>>,
    reader: Option<std::thread::JoinHandle<()>>,
}

impl Running {
    pub(super) fn start(kind: Kind, conninfo: &str, workers: u16, rate: u16) -> Result<Self, LabError> {
        let failed = |e: std::io::Error| super::failed("starting the client process", e);
        let mut child = Command::new(std::env::current_exe().map_err(failed)?)
            .args(["drill-client", "--client", kind.name()])
            .args(["--workers", &workers.to_string(), "--rate", &rate.to_string()])
            .env(CONNINFO, format!("{conninfo}?target_session_attrs=read-write&application_name=drill-{}", kind.name()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let log = Arc::new(Mutex::new(Log::default()));
        let (input, out, mine) = (child.stdin.take(), child.stdout.take(), Arc::clone(&log));
        let reader = std::thread::spawn(move || {
            let Some(out) = out else { return };
            for line in BufReader::new(out).lines() {
                let Ok(line) = line else { return };
                if let Ok(w) = serde_json::from_str(&line) {
                    lock(&mine).add(w);
                }
            }
        });
        Ok(Self { kind, child, input, log, reader: Some(reader) })
    }

    pub(super) fn kind(&self) -> Kind {
        self.kind
    }

    pub(super) fn log(&self) -> MutexGuard<'_, Log> {
        lock(&self.log)
    }

    /// Ends the process and gives its whole log.
    pub(super) async fn stop(mut self) -> Log {
        drop(self.input.take());
        for _ in 0..200 {
            if matches!(self.child.try_wait(), Ok(Some(_))) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(r) = self.reader.take() {
            let _ = tokio::task::spawn_blocking(move || r.join()).await;
        }
        std::mem::take(&mut *lock(&self.log))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn lock(m: &Mutex<Log>) -> MutexGuard<'_, Log> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}
