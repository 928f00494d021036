//! `pgfollow lab`: a cluster for other programs, driven by lines of text.
//!
//! The cluster and its commands are `pgfollow_lab`'s; here are the arguments, standard input and output, signals
//! and the exit code.

use std::ffi::OsString;
use std::io::{BufRead, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitCode, ExitStatus};
use std::sync::Arc;
use std::time::Duration;

use pgfollow_lab::{Cluster, Control, LabError, netns};
use serde_json::Value;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

use crate::servers::ServerArgs;

/// How long a program under --exec may take to end after a signal.
const GRACE: Duration = Duration::from_secs(5);

/// Start a real PostgreSQL cluster and break it on command
///
/// Prints where it is, then reads commands from standard input, one a line, one reply a line. End of input or Ctrl-C
/// ends it all and leaves nothing behind.
#[derive(clap::Args)]
#[command(before_help = "Examples: pgfollow lab --nodes 3 --json\n          \
                   pgfollow lab --exec -- bash -c 'psql \"$PGFOLLOW_LAB_CONNINFO\" -c \"select 1\"'")]
#[command(after_help = "\
Commands (NODE is n1, n2, … or `primary`, the one promoted last):
  status [NODE]   what runs, and as what
  stop NODE [fast|immediate|smart]
                  the server's own stop (default: fast)
  kill NODE       kill -9 of all its processes
  freeze NODE     stop all its processes (SIGSTOP): the sockets stay open and
                  nothing answers
  thaw NODE       let a frozen one run on
  demote NODE     make it read-only by default while it runs on
                  (default_transaction_read_only=on)
  undemote NODE   let a demoted one take writes again
  promote NODE    make a standby the primary; the other standbys follow it, the
                  old primary is left as it is
  start NODE      start one that is down as what it was: after a promotion an
                  old primary is a second primary then, a split brain (the reply
                  warns of it)
  restart NODE    start it anew (one that runs is killed first): the primary as
                  primary, any other node as a standby of the primary, rewound
                  or copied anew. So an old primary comes back into the cluster
  cut NODE        drop every packet to and from it without a word (under --exec
                  only)
  heal [NODE]     end that, for one or for all

Exit codes:
  0      the end of standard input
  N      under --exec: the program's own
  1      the lab failed: no servers, a cluster that doesn't start, no network
         namespace
  2      wrong usage
  128+N  ended by signal N (130: Ctrl-C)")]
pub(crate) struct LabArgs {
    #[command(flatten)]
    servers: ServerArgs,
    /// Print JSON, one object a line
    #[arg(long)]
    json: bool,
    /// Run a program with the cluster in a private network namespace, and end with its exit code. It finds the
    /// description in PGFOLLOW_LAB (JSON), the string in PGFOLLOW_LAB_CONNINFO, and in PGFOLLOW_LAB_CONTROL a
    /// Unix socket for the commands, `cut NODE` and `heal` among them. Port 53 and resolv.conf are its own.
    #[arg(long, value_name = "CMD", num_args = 1.., allow_hyphen_values = true)]
    exec: Vec<OsString>,
}

/// Runs the command. The exit code: 0, that of --exec's program, 1 if the lab failed, 128 + signal.
pub(crate) async fn run(args: LabArgs) -> ExitCode {
    match try_run(args).await {
        Ok(code) => code,
        Err(e) => {
            anstream::eprintln!("pgfollow lab: {e}");
            ExitCode::from(1)
        }
    }
}

async fn try_run(mut args: LabArgs) -> Result<ExitCode, LabError> {
    // Whoever writes `--exec -- CMD` means that no option follows; here none could anyway.
    if args.exec.len() > 1 && args.exec[0] == "--" {
        args.exec.remove(0);
    }
    let options = args.servers.cluster()?;
    if !args.exec.is_empty() {
        if !netns::is_rerun() {
            return netns::rerun(std::env::args_os().skip(1).collect()).await.map(code_of);
        }
        netns::set_up()?;
    }
    let mut signals = Signals::listen()?;
    let cluster = tokio::select! {
        started = Cluster::start(options) => Arc::new(started?),
        signal = signals.next() => return Ok(after_signal(signal)),
    };
    let control = Control::new(Arc::clone(&cluster));
    if args.exec.is_empty() {
        tokio::select! {
            done = converse(&control, args.json) => done.map(|()| ExitCode::SUCCESS),
            signal = signals.next() => Ok(after_signal(signal)),
        }
    } else {
        let socket = cluster.folder().join("control.sock");
        tokio::select! {
            failed = control.serve(&socket) => failed.map(|()| ExitCode::from(1)),
            done = execute(&args.exec, &control, &socket, &mut signals) => done.map(code_of),
        }
    }
    // The cluster is dropped here: processes, folder and socket go with it.
}

/// Describes the cluster, then answers standard input until it ends.
async fn converse(control: &Control, json: bool) -> Result<(), LabError> {
    let about = control.describe();
    say(&if json { about.to_string() } else { describe_as_text(&about) })?;
    let mut lines = stdin_lines();
    while let Some(line) = lines.recv().await {
        if line.trim().is_empty() {
            continue;
        }
        let reply = control.execute(&line).await;
        say(&if json { reply.to_string() } else { reply_as_text(&reply) })?;
    }
    Ok(())
}

/// One line to standard output, at once: a program is waiting for it.
fn say(line: &str) -> Result<(), LabError> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")
        .and_then(|()| out.flush())
        .map_err(|e| LabError::State(format!("standard output: {e}")))
}

/// Lines of standard input from a thread of their own: tokio's reader would keep the program from ending
/// while a read is under way.
fn stdin_lines() -> mpsc::Receiver<String> {
    let (tell, lines) = mpsc::channel(16);
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if tell.blocking_send(line).is_err() {
                return;
            }
        }
    });
    lines
}

fn describe_as_text(about: &Value) -> String {
    let text = |v: &Value| v.as_str().map_or_else(|| v.to_string(), str::to_owned);
    let mut lines = vec![format!("PostgreSQL {}", text(&about["server_version"]))];
    for n in about["nodes"].as_array().into_iter().flatten() {
        lines.push(format!("{} {}:{}", text(&n["name"]), text(&n["host"]), n["port"]));
    }
    lines.push(text(&about["conninfo"]));
    lines.join("\n")
}

fn reply_as_text(reply: &Value) -> String {
    if reply["ok"] != Value::Bool(true) {
        return format!("error: {}", reply["error"].as_str().unwrap_or_default());
    }
    let one = |n: &Value| {
        let field = |k: &str| n[k].as_str().unwrap_or_default().to_owned();
        let mark = |yes: bool, word| if yes { word } else { "" };
        let read_only = mark(n["role"] == "primary" && n["read_only"] == true, ", read-only");
        let cut = mark(n["cut"] == true, ", cut off");
        format!("{}: {} {}{read_only}{cut}", field("node"), field("state"), field("role"))
    };
    let warning = reply["warning"].as_str().map_or_else(String::new, |w| format!(" (warning: {w})"));
    match (reply["nodes"].as_array(), reply.get("node")) {
        (Some(all), _) => all.iter().map(one).collect::<Vec<_>>().join("\n"),
        (None, Some(_)) => format!("ok {}{warning}", one(reply)),
        (None, None) => "ok".to_owned(),
    }
}

/// Runs the program to its end. A signal to us is handed on to it; what doesn't heed it is killed.
async fn execute(
    program: &[OsString],
    control: &Control,
    socket: &std::path::Path,
    signals: &mut Signals,
) -> Result<ExitStatus, LabError> {
    let about = control.describe();
    let failed =
        |e: std::io::Error| LabError::State(format!("running {}: {e}", program[0].to_string_lossy()));
    let mut child = tokio::process::Command::new(&program[0])
        .args(&program[1..])
        .env("PGFOLLOW_LAB", about.to_string())
        .env("PGFOLLOW_LAB_CONNINFO", about["conninfo"].as_str().unwrap_or_default())
        .env("PGFOLLOW_LAB_CONTROL", socket)
        .kill_on_drop(true)
        .spawn()
        .map_err(failed)?;
    let signal = tokio::select! {
        ended = child.wait() => return ended.map_err(failed),
        signal = signals.next() => signal,
    };
    if let Some(pid) = child.id().and_then(|p| i32::try_from(p).ok()) {
        pgfollow_lab::send_signal(pid, signal).map_err(failed)?;
    }
    if let Ok(ended) = tokio::time::timeout(GRACE, child.wait()).await {
        return ended.map_err(failed);
    }
    child.kill().await.map_err(failed)?;
    child.wait().await.map_err(failed)
}

/// The signals that ask us to end.
pub(crate) struct Signals {
    int: Signal,
    term: Signal,
    hup: Signal,
}

impl Signals {
    pub(crate) fn listen() -> Result<Self, LabError> {
        let hear = |kind| signal(kind).map_err(|e| LabError::State(format!("listening for signals: {e}")));
        Ok(Self {
            int: hear(SignalKind::interrupt())?,
            term: hear(SignalKind::terminate())?,
            hup: hear(SignalKind::hangup())?,
        })
    }

    pub(crate) async fn next(&mut self) -> i32 {
        tokio::select! {
            _ = self.int.recv() => libc::SIGINT,
            _ = self.term.recv() => libc::SIGTERM,
            _ = self.hup.recv() => libc::SIGHUP,
        }
    }
}

pub(crate) fn after_signal(signal: i32) -> ExitCode {
    ExitCode::from(u8::try_from(128 + signal).unwrap_or(1))
}

pub(crate) fn code_of(status: ExitStatus) -> ExitCode {
    match (status.code(), status.signal()) {
        (Some(code), _) => ExitCode::from(u8::try_from(code).unwrap_or(1)),
        (None, Some(signal)) => after_signal(signal),
        (None, None) => ExitCode::from(1),
    }
}
