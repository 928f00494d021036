//! The benches: what a session and a pool cost and how quickly a verdict reaches its caller. Figures are ratios or spans of one
//! run; a run on another machine, or beside other work, can't be compared with it.
//!
//! `cargo run --release -p pgfollow-bench` runs all; one file a bench.

mod acquire;
mod pairs;
mod pool_cost;
mod query_cost;
mod stats;
mod verdict;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use pgfollow_lab::{Binaries, BinaryOptions};
use serde_json::Value;

/// What a bench fails with.
pub(crate) type Failed = Box<dyn std::error::Error + Send + Sync>;

/// Exit code when a bound is missed.
const OVER_BOUND: u8 = 5;

#[derive(Parser)]
#[command(
    name = "pgfollow-bench",
    about = "What pgfollow costs and how quick it is, beside its peers",
    before_help = "Example: cargo run --release -p pgfollow-bench -- query-cost --json",
    after_help = "Exit codes:\n  0  within the bounds, or undecided for noise\n  1  a bench failed\n  2  wrong usage\n  5  a bound was missed"
)]
struct Cli {
    /// Which bench; all with default settings without one
    #[command(subcommand)]
    bench: Option<Bench>,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
    /// Major version of the servers, such as 15 or 18 (18 is fetched if missing)
    #[arg(long, value_name = "MAJOR", global = true)]
    pg_version: Option<u32>,
    /// Folder of the server binaries
    #[arg(long, value_name = "DIR", global = true)]
    pg_bin: Option<PathBuf>,
}

#[derive(Subcommand)]
enum Bench {
    Acquire(acquire::Args),
    PoolCost(pool_cost::Args),
    QueryCost(query_cost::Args),
    Verdict(verdict::Args),
}

/// What a bench found.
pub(crate) struct Found {
    pub(crate) text: String,
    pub(crate) json: Value,
    /// `None`: noise hides the answer.
    pub(crate) within_bounds: Option<bool>,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(&cli) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(OVER_BOUND),
        Err(e) => {
            anstream::eprintln!("pgfollow-bench: {e}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: &Cli) -> Result<bool, Failed> {
    if cfg!(debug_assertions) {
        anstream::eprintln!("built without --release: these figures say nothing");
    }
    let wanted = BinaryOptions { pg_bin: cli.pg_bin.clone(), major: cli.pg_version };
    let binaries = Binaries::find(&wanted, &mut |line| anstream::eprintln!("{line}"))?;
    let defaults = [
        Bench::QueryCost(query_cost::Args::default()),
        Bench::PoolCost(pool_cost::Args::default()),
        Bench::Verdict(verdict::Args::default()),
        Bench::Acquire(acquire::Args::default()),
    ];
    let benches = cli.bench.as_ref().map_or(&defaults[..], std::slice::from_ref);
    let mut within_bounds = true;
    for bench in benches {
        let found = match bench {
            Bench::Acquire(args) => acquire::run(args, &binaries)?,
            Bench::PoolCost(args) => pool_cost::run(args, &binaries)?,
            Bench::QueryCost(args) => query_cost::run(args, &binaries)?,
            Bench::Verdict(args) => verdict::run(args, &binaries)?,
        };
        within_bounds &= found.within_bounds != Some(false);
        let text = if cli.json { found.json.to_string() } else { found.text };
        writeln!(anstream::stdout(), "{text}")?;
    }
    Ok(within_bounds)
}
