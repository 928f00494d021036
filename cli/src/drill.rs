//! `pgfollow drill`: a failover of a real cluster, measured through pgfollow and through a plain pool beside it.
//!
//! Here are the arguments, the network namespace, signals and the exit code. [`scene`] plays it, [`fault`] breaks
//! things on a cluster of ours, [`yours`] plays it on a cluster of the user's, [`client`] is what each client process does, [`figures`] and [`report`] tell what was seen.

pub(crate) mod client;
mod fault;
mod figures;
mod fleet;
mod legend;
mod logins;
mod ours;
mod outage;
mod plain;
mod prober;
mod process;
mod progress;
mod record;
mod report;
mod scene;
mod yours;

use std::process::ExitCode;
use std::time::Duration;

use pgfollow_lab::{LabError, netns};

use crate::lab::{Signals, after_signal, code_of};
use crate::servers::ServerArgs;
use crate::{exit, output, units};
use fault::Fault;
use fleet::Fleet;
use progress::Progress;
use report::{Report, Verdict};
use scene::{Plan, Seen};
use yours::{Played, Yours};

/// Measure a failover: pgfollow, and a plain pool beside it
///
/// Starts a primary and its standbys, lets two services write to them (one through pgfollow, one through
/// tokio-postgres and deadpool), breaks the primary, and reports what each service saw. With --dsn and --trigger it does
/// the same on a cluster of yours: your command makes the failover, nothing is broken from here.
#[derive(clap::Args)]
#[command(before_help = "Examples: pgfollow drill --fault freeze\n          \
                   pgfollow drill --dsn 'postgresql://app@db-a,db-b/orders' --trigger 'patronictl switchover --force'")]
#[command(after_help = "Exit codes:\n  \
                  0      the service was back within the budget\n  \
                  1      the drill itself failed\n  \
                  2      wrong usage\n  \
                  5      over the budget\n  \
                  6      pgfollow's client has lost or doubled writes, or called a write not done that was done\n  \
                  128+N  ended by signal N (130: Ctrl-C)\n\
                  Lost writes that are the servers' own doing don't count for 6: with --async those that the old primary \
                  acknowledged, and where two primaries ran (split-brain, --dsn) those that the old one acknowledged \
                  after the promotion was asked for. The report counts them apart.\n\n\
                  The keys of --json: docs/drill.md")]
pub(crate) struct Args {
    /// What happens to the primary
    #[arg(long, value_name = "FAULT", default_value = "kill")]
    fault: Fault,
    /// The fault comes this many seconds after every worker has written
    #[arg(long, value_name = "SECONDS", default_value = "3", allow_hyphen_values = true, value_parser = units::seconds)]
    after: Duration,
    /// Your own cluster instead of one of the drill's: a connection string (the password is better off in PGPASSWORD
    /// or a password file). The drill creates the table pgfollow_drill there, and drops it at the end
    #[arg(long, value_name = "CONNINFO", requires = "trigger")]
    #[arg(conflicts_with_all = ["fault", "nodes", "asynchronous", "pg_version", "pg_bin"])]
    dsn: Option<String>,
    /// The shell command that starts the failover of your cluster
    #[arg(long, value_name = "CMD", requires = "dsn")]
    trigger: Option<String>,
    /// How long to wait for another server to take writes once the trigger was started
    #[arg(long, value_name = "SECONDS", default_value = "120", allow_hyphen_values = true, value_parser = units::seconds, requires = "dsn")]
    patience: Duration,
    /// Start the failover of your cluster without asking
    #[arg(long, requires = "dsn")]
    yes: bool,
    #[command(flatten)]
    servers: ServerArgs,
    /// Service processes of each kind, each with a connector and a pool of its own: a fleet that reconnects
    #[arg(long, default_value_t = 1, allow_negative_numbers = true, value_parser = clap::value_parser!(u16).range(1..=64))]
    instances: u16,
    /// Workers of each process, each with a session of its own
    #[arg(long, default_value_t = 8, allow_negative_numbers = true, value_parser = clap::value_parser!(u16).range(1..=40))]
    workers: u16,
    /// Writes a second of each worker
    #[arg(long, default_value_t = 20, allow_negative_numbers = true, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rate: u16,
    /// From its promotion on, the new primary may run for this percentage of the time only: a cold, loaded server. All
    /// its processes are stopped and let run in turns
    #[arg(long, value_name = "PERCENT", allow_negative_numbers = true, value_parser = clap::value_parser!(u8).range(1..=100))]
    #[arg(conflicts_with = "dsn")]
    slow_node: Option<u8>,
    /// Let pgfollow's client log in as fast as it wants, to see what the pace is good for: no pool, no max_connect_rate, no
    /// bound on logins at once
    #[arg(long)]
    no_pace: bool,
    /// What the first success through pgfollow may take once the new primary accepts writes [default: 250ms;
    /// 1500ms for split-brain, where it also bounds writes to the old primary]
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, value_parser = units::duration)]
    budget: Option<Duration>,
    /// Only pgfollow, no plain pool beside it
    #[arg(long)]
    no_plain: bool,
    /// How long to go on watching for the plain pool once pgfollow's client is back. A split-brain is watched for 20
    /// seconds in any case
    #[arg(long, value_name = "SECONDS", default_value = "20", allow_hyphen_values = true, value_parser = units::seconds)]
    plain_wait: Duration,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: Args) -> ExitCode {
    if let Err(e) = args.fleet().check() {
        output::complain(e);
        return ExitCode::from(exit::USAGE);
    }
    if let (Some(dsn), Some(trigger)) = (&args.dsn, &args.trigger) {
        return match Yours::new(dsn, trigger, args.patience) {
            Err(e) => output::unusable(&e),
            Ok(yours) => code(on_yours(&args, yours).await),
        };
    }
    if args.servers.nodes < args.fault.nodes() {
        output::complain(format_args!("--fault {} takes --nodes {} or more", args.fault, args.fault.nodes()));
        return ExitCode::from(exit::USAGE);
    }
    code(on_ours(args).await)
}

fn code(done: Result<ExitCode, LabError>) -> ExitCode {
    done.unwrap_or_else(|e| {
        output::complain(e);
        ExitCode::FAILURE
    })
}

/// On a cluster of the user's.
async fn on_yours(args: &Args, yours: Yours) -> Result<ExitCode, LabError> {
    let mut plan = args.plan(Fault::Trigger);
    let ready = yours.look(&mut plan).await?;
    if !args.yes && !ready.ask()? {
        output::complain("nothing was done: a real failover takes a yes, on a terminal or as --yes");
        return Ok(ExitCode::from(exit::USAGE));
    }
    let progress = Progress::new();
    let mut signals = Signals::listen()?;
    match ready.play(&plan, &progress, &mut signals).await? {
        Played::Seen(seen) => {
            drop(progress);
            Ok(args.report(&plan, &seen))
        }
        Played::Stopped(signal) => Ok(after_signal(signal)),
    }
}

/// On a cluster of the drill's own.
async fn on_ours(args: Args) -> Result<ExitCode, LabError> {
    let mut options = args.servers.cluster()?;
    options.settings.extend(args.fleet().settings());
    if args.fault == Fault::Blackhole {
        if !netns::is_rerun() {
            return netns::rerun(std::env::args_os().skip(1).collect()).await.map(code_of);
        }
        netns::set_up()?;
    }
    let plan = args.plan(args.fault);
    let progress = Progress::new();
    let mut signals = Signals::listen()?;
    let seen = tokio::select! {
        seen = scene::play(options, &plan, &progress) => seen?,
        // What the scene holds ends with it: clients, servers, files.
        signal = signals.next() => return Ok(after_signal(signal)),
    };
    drop(progress);
    Ok(args.report(&plan, &seen))
}

impl Args {
    fn plan(&self, fault: Fault) -> Plan {
        Plan {
            fault,
            after: self.after,
            workers: self.workers,
            rate: self.rate,
            plain: !self.no_plain,
            plain_wait: self.plain_wait,
            instances: self.instances,
            slow_node: self.slow_node,
            pace: !self.no_pace,
        }
    }

    fn fleet(&self) -> Fleet {
        Fleet { instances: self.instances, workers: self.workers, kinds: if self.no_plain { 1 } else { 2 } }
    }

    /// Prints the report; the verdict is the exit code.
    fn report(&self, plan: &Plan, seen: &Seen) -> ExitCode {
        let report = Report {
            plan,
            seen,
            budget: self.budget.unwrap_or(plan.fault.budget()),
            figures: seen.clients.iter().map(|c| figures::figures(seen, c, plan)).collect(),
        };
        let printed = if self.json {
            output::print(format_args!("{:#}", report.json()))
        } else {
            output::print(report.text())
        };
        match report.verdict() {
            Verdict::Good => printed,
            Verdict::OverBudget => ExitCode::from(exit::OVER_BUDGET),
            Verdict::WrongWrites => ExitCode::from(exit::WRONG_WRITES),
        }
    }
}
