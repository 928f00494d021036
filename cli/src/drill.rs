//! `pgfollow drill`: a failover, measured, with pgfollow and with what people use today side by side.
//!
//! This file reads the arguments and runs the drill; [`faults`] breaks the cluster, [`client`] is the workload (a process
//! of its own for each client), [`tally`] counts what came back, [`report`] says it.

pub(crate) mod client;
mod faults;
mod report;
mod tally;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use pgfollow_lab::{Binaries, BinaryOptions, Cluster, ClusterOptions, LabError, monotonic_ns, netns, wait_for};

use crate::{exit, output};
use client::{Kind, Running};
use faults::{Fault, Phase};
use tally::Tally;

/// How long the workload goes on after both clients are back: an error shortly after is part of the outage.
const AFTERGLOW: Duration = Duration::from_secs(2);

/// Measure a failover: fault → database ready → service back, with pgfollow and with a plain pool
///
/// Starts its own primary and standbys, writes through pgfollow and, beside it, through tokio-postgres + deadpool,
/// injects the fault, promotes a standby, and checks every write afterwards.
#[derive(clap::Args)]
#[command(before_help = "Example: pgfollow drill --fault freeze --json")]
#[command(after_help = "Exit codes: 0 pgfollow's service was back within --budget of the database, 1 the lab failed, \
                        2 wrong usage, 5 over the budget, 6 lost or doubled writes through pgfollow")]
pub(crate) struct Args {
    /// What goes wrong
    #[arg(long, value_enum, default_value_t = Fault::Kill)]
    fault: Fault,
    /// Seconds of steady work before the fault
    #[arg(long, value_name = "SECONDS", default_value_t = 3, value_parser = clap::value_parser!(u64).range(0..=600))]
    after: u64,
    /// Asynchronous replication (default: a commit waits for the first standby)
    #[arg(long = "async")]
    asynchronous: bool,
    /// How many nodes: one primary, the others standbys
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(2..=9))]
    nodes: u8,
    /// Workers of each client, with one session each
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=40))]
    workers: u16,
    /// Writes a second and worker
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=200))]
    rate: u16,
    /// How soon after the new primary's first write the service must be back, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 250)]
    budget: u64,
    /// Longest wait for the plain client after the database is ready, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=1200))]
    plain_wait: u64,
    /// Leave the plain client out
    #[arg(long)]
    no_plain: bool,
    /// Major version of the servers, such as 15 or 18 (18 is fetched if missing)
    #[arg(long, value_name = "MAJOR")]
    pg_version: Option<u32>,
    /// Folder of the server binaries
    #[arg(long, value_name = "DIR")]
    pg_bin: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: &Args) -> ExitCode {
    if args.fault == Fault::SecondFailover && args.nodes < 3 {
        output::complain("--fault second-failover needs --nodes 3 or more: the second standby is promoted too");
        return ExitCode::from(exit::USAGE);
    }
    let interrupted = async {
        // Without a handler for it the wait for Ctrl-C never ends, and the default action does.
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    let outcome = tokio::select! {
        outcome = drill(args) => outcome,
        () = interrupted => return ExitCode::from(130),
    };
    match outcome {
        Ok(code) => code,
        Err(e) => {
            output::complain(format_args!("the drill could not be run: {e}"));
            ExitCode::FAILURE
        }
    }
}

async fn drill(args: &Args) -> Result<ExitCode, LabError> {
    // Before the namespace: inside there is no network to fetch anything from.
    let wanted = BinaryOptions { pg_bin: args.pg_bin.clone(), major: args.pg_version };
    let binaries = Binaries::find(&wanted, &mut |line| say(line))?;
    if args.fault == Fault::Blackhole {
        if !netns::is_rerun() {
            let status = netns::rerun(std::env::args_os().skip(1).collect()).await?;
            return Ok(status.code().and_then(|c| u8::try_from(c).ok()).map_or(ExitCode::FAILURE, ExitCode::from));
        }
        netns::set_up()?;
    }
    let mut options = ClusterOptions::new(binaries);
    options.nodes = usize::from(args.nodes);
    options.sync = !args.asynchronous;
    say(&format!("starting {} nodes of PostgreSQL …", args.nodes));
    let cluster = Arc::new(Cluster::start(options).await?);
    let db = cluster.node(0).session().await?;
    tally::make_table(&db, cluster.user()).await?;
    drop(db);

    let mut clients = Vec::new();
    for kind in [Kind::Pgfollow, Kind::Plain] {
        if kind == Kind::Pgfollow || !args.no_plain {
            clients.push(Running::start(kind, &cluster.conninfo(), args.workers, args.rate)?);
        }
    }
    say("waiting until every worker writes …");
    let workers = usize::from(args.workers);
    wait_for("every worker to write", Duration::from_secs(20), || {
        clients.iter().all(|c| c.log().workers_on(None, 0) >= workers)
    })
    .await?;
    pause(Duration::from_secs(args.after)).await;

    say(&format!("fault: {}", args.fault.name()));
    let phases = faults::inject(args.fault, &cluster).await?;
    let last = phases.last().ok_or_else(|| failed("the fault", "no failover"))?;
    say("waiting for the clients …");
    let counted = tally::connections_first_second(&cluster, last).await?;
    for c in &clients {
        let patience = match c.kind() {
            Kind::Pgfollow => Duration::from_secs(30),
            Kind::Plain => Duration::from_secs(args.plain_wait),
        };
        back(c, last, patience, workers).await;
    }
    pause(args.fault.watch().max(AFTERGLOW)).await;

    let mut tallies = Vec::new();
    let judge = cluster.node(last.node).session().await?;
    for c in clients {
        let kind = c.kind();
        let log = c.stop().await;
        let stored = tally::stored(&judge, kind.name()).await?;
        tallies.push(Tally::new(kind, &log, &stored, &phases, workers, counted.of(kind)));
    }
    let report = report::Report::new(args.fault, &cluster, args.asynchronous, args.budget, &phases, tallies);
    let printed = output::print(if args.json { report.json().to_string() } else { report.text() });
    Ok(if printed == ExitCode::SUCCESS { report.exit_code() } else { printed })
}

/// Waits until every worker of a client has written to the new primary, or its time is over.
async fn back(c: &Running, phase: &Phase, patience: Duration, workers: usize) {
    let until = phase.ready + u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX);
    let left = Duration::from_nanos(until.saturating_sub(monotonic_ns()));
    // Not being back is a result, not a failure of the drill.
    let _ = wait_for("the client to be back", left, || {
        c.log().workers_on(Some(&phase.address), phase.fault) >= workers
    })
    .await;
}

fn failed(what: &str, detail: impl ToString) -> LabError {
    LabError::Command { what: what.to_owned(), detail: detail.to_string() }
}

async fn pause(d: Duration) {
    tokio::time::sleep(d).await;
}

/// Progress, for people who watch.
fn say(line: &str) {
    use std::io::IsTerminal;
    if std::io::stderr().is_terminal() || line.contains("fetch") {
        anstream::eprintln!("{line}");
    }
}
