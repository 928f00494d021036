//! `pgfollow drill`: a failover of a real cluster, measured through pgfollow and through a plain pool beside it.
//!
//! Here are the arguments, the network namespace, signals and the exit code. [`scene`] plays it, [`fault`] breaks
//! things, [`client`] is what each client process does, [`figures`] and [`report`] tell what was seen.

pub(crate) mod client;
mod fault;
mod figures;
mod ours;
mod plain;
mod process;
mod progress;
mod record;
mod report;
mod scene;

use std::process::ExitCode;
use std::time::Duration;

use pgfollow_lab::{LabError, netns};

use crate::lab::{Signals, after_signal, code_of};
use crate::servers::ServerArgs;
use crate::{exit, output, units};
use fault::Fault;
use progress::Progress;
use report::{Report, Verdict};
use scene::Plan;

/// Measure a failover: pgfollow, and a plain pool beside it
///
/// Starts a primary and its standbys, lets two services write to them (one through pgfollow, one through
/// tokio-postgres and deadpool), breaks the primary, and reports what each service saw.
#[derive(clap::Args)]
#[command(before_help = "Example: pgfollow drill --fault freeze")]
#[command(
    after_help = "Exit codes:\n  0  the service was back within the budget\n  1  the drill itself failed\n  \
                        2  wrong usage\n  5  over the budget\n  6  pgfollow's client has lost or doubled writes, or \
                        called a write not done that was done"
)]
pub(crate) struct Args {
    /// What happens to the primary
    #[arg(long, value_name = "FAULT", default_value = "kill")]
    fault: Fault,
    /// The fault comes this many seconds after every worker has written
    #[arg(long, value_name = "SECONDS", default_value = "3", value_parser = units::seconds)]
    after: Duration,
    #[command(flatten)]
    servers: ServerArgs,
    /// Workers of each client, each with a session of its own
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=40))]
    workers: u16,
    /// Writes a second of each worker
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rate: u16,
    /// What the first success through pgfollow may take once the new primary accepts writes [default: 250ms;
    /// 1500ms for split-brain, where it also bounds writes to the old primary]
    #[arg(long, value_name = "DURATION", value_parser = units::duration)]
    budget: Option<Duration>,
    /// Only pgfollow, no plain pool beside it
    #[arg(long)]
    no_plain: bool,
    /// How long to go on watching for the plain pool once pgfollow's client is back
    #[arg(long, value_name = "SECONDS", default_value = "20", value_parser = units::seconds)]
    plain_wait: Duration,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: Args) -> ExitCode {
    if args.servers.nodes < args.fault.nodes() {
        output::complain(format_args!("--fault {} takes --nodes {} or more", args.fault, args.fault.nodes()));
        return ExitCode::from(exit::USAGE);
    }
    match try_run(args).await {
        Ok(code) => code,
        Err(e) => {
            output::complain(e);
            ExitCode::FAILURE
        }
    }
}

async fn try_run(args: Args) -> Result<ExitCode, LabError> {
    let options = args.servers.cluster()?;
    if args.fault == Fault::Blackhole {
        if !netns::is_rerun() {
            return netns::rerun(std::env::args_os().skip(1).collect()).await.map(code_of);
        }
        netns::set_up()?;
    }
    let plan = Plan {
        fault: args.fault,
        after: args.after,
        workers: args.workers,
        rate: args.rate,
        plain: !args.no_plain,
        plain_wait: args.plain_wait,
    };
    let progress = Progress::new();
    let mut signals = Signals::listen()?;
    let seen = tokio::select! {
        seen = scene::play(options, &plan, &progress) => seen?,
        // What the scene holds ends with it: clients, servers, files.
        signal = signals.next() => return Ok(after_signal(signal)),
    };
    drop(progress);
    let workers = usize::from(args.workers);
    let report = Report {
        plan: &plan,
        seen: &seen,
        budget: args.budget.unwrap_or(args.fault.budget()),
        figures: seen.clients.iter().map(|c| figures::figures(&seen, c, workers)).collect(),
    };
    let printed = if args.json {
        output::print(format_args!("{:#}", report.json()))
    } else {
        output::print(report.text())
    };
    Ok(match report.verdict() {
        Verdict::Good => printed,
        Verdict::OverBudget => ExitCode::from(exit::OVER_BUDGET),
        Verdict::WrongWrites => ExitCode::from(exit::WRONG_WRITES),
    })
}
