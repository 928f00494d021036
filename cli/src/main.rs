//! The pgfollow command. One file per subcommand; this one only reads the arguments and hands over.

mod classify;
mod config;
mod connect;
mod drill;
mod lab;
mod outcome;
mod output;
mod probe;
mod report;
mod servers;
mod units;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Exit codes that more than one command uses.
mod exit {
    /// Wrong usage, or a connection string that can't be used.
    pub(crate) const USAGE: u8 = 2;
    /// No session could be had, or no host is writable.
    pub(crate) const NO_SESSION: u8 = 3;
    /// More than one server is writable, or one that a promotion elsewhere has replaced.
    pub(crate) const UNSAFE_TO_WRITE: u8 = 4;
    /// The service was back later than the budget allows.
    pub(crate) const OVER_BUDGET: u8 = 5;
    /// Lost, doubled or misjudged writes.
    pub(crate) const WRONG_WRITES: u8 = 6;
}

#[derive(Parser)]
#[command(name = "pgfollow", version, about = "Follow the PostgreSQL primary through a failover")]
#[command(before_help = "Example:\n  pgfollow config 'postgresql://app@db-a,db-b,db-c/orders'")]
#[command(after_help = "Exit codes:\n  \
                  0      done\n  \
                  1      the command itself failed (servers that don't start, output that can't be written)\n  \
                  2      wrong usage, or a connection string that can't be used\n  \
                  3      connect: no session; probe: no host is writable\n  \
                  4      probe: more than one host is writable, or one that a promotion elsewhere has replaced\n  \
                  5      drill: the service was back later than the budget allows\n  \
                  6      drill: lost, doubled or misjudged writes\n  \
                  128+N  lab, drill: ended by signal N (130: Ctrl-C)\n\
                  lab --exec ends with its program's own code.\n\n\
                  Data goes to standard output, everything else to standard error. RUST_LOG sets the log level.")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Classify(classify::Args),
    Config(config::Args),
    Connect(connect::Args),
    Drill(drill::Args),
    /// A client process of the drill
    #[command(hide = true)]
    DrillClient(drill::client::Args),
    Lab(lab::LabArgs),
    Outcome(outcome::Args),
    Probe(probe::Args),
    Report(report::Args),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    output::start_log();
    match cli.command {
        Command::Classify(args) => classify::run(&args),
        Command::Config(args) => config::run(&args),
        Command::Connect(args) => wait(connect::run(&args)),
        Command::Drill(args) => wait(drill::run(args)),
        Command::DrillClient(args) => wait(drill::client::run(args)),
        Command::Lab(args) => wait(lab::run(args)),
        Command::Outcome(args) => wait(outcome::run(&args)),
        Command::Probe(args) => wait(probe::run(&args)),
        Command::Report(args) => report::run(&args),
    }
}

/// Runs a command that waits for servers.
fn wait(command: impl Future<Output = ExitCode>) -> ExitCode {
    match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime.block_on(command),
        Err(e) => {
            output::complain(format_args!("no runtime: {e}"));
            ExitCode::FAILURE
        }
    }
}
