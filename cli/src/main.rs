//! The pgfollow command.

mod lab;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "pgfollow", version, about = "Follow the PostgreSQL primary through a failover")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Lab(lab::LabArgs),
}

#[tokio::main]
async fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Lab(args) => lab::run(args).await,
    }
}
