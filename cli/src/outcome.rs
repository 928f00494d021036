//! `pgfollow outcome`: the table by which unknown outcomes are settled.

use std::process::ExitCode;
use std::time::Duration;

use pgfollow::outcome::{Installed, PURGE_HORIZON, install, purge};
use pgfollow::{Code, Connector, Error};
use serde_json::json;

use crate::{connect, exit, output};

/// Make the table pgfollow.outcome, or remove its old rows
#[derive(clap::Args)]
#[command(
    before_help = "Example: pgfollow outcome install 'postgresql://owner@db-a,db-b/orders' --grant app"
)]
#[command(
    after_help = "The table settles what became of a transaction whose COMMIT was never answered: each writing transaction \
                        of `run` leaves one row there. Run purge daily, or let cron do it.\n\n\
                        Exit codes: 0 done, 1 the server refused, 2 a string that can't be used, 3 no session on the primary"
)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    /// Make the table in the database of the connection string, on the primary; harmless where it is there
    #[command(
        before_help = "Example: pgfollow outcome install 'postgresql://owner@db-a,db-b/orders' --grant app"
    )]
    Install {
        #[command(flatten)]
        common: Common,
        /// A role that may use it, besides the one that connects (again for each)
        #[arg(long, value_name = "ROLE")]
        grant: Vec<String>,
    },
    /// Remove the rows that nobody can ask for any more (older than 7 days)
    #[command(before_help = "Example: pgfollow outcome purge 'postgresql://owner@db-a,db-b/orders'")]
    Purge {
        #[command(flatten)]
        common: Common,
    },
}

#[derive(clap::Args)]
struct Common {
    /// A connection string (URI or keyword/value)
    conninfo: String,
    /// Wait that many seconds at most, for the primary and for the work
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0, allow_negative_numbers = true)]
    wait: f64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: &Args) -> ExitCode {
    let (What::Install { common, .. } | What::Purge { common }) = &args.what;
    let connector = match Connector::new(&common.conninfo) {
        Ok(c) => c,
        Err(e) => return output::unusable(&e),
    };
    let Some(patience) = Duration::try_from_secs_f64(common.wait).ok().filter(|d| !d.is_zero()) else {
        output::complain("--wait takes a number of seconds above 0");
        return ExitCode::from(exit::USAGE);
    };
    match &args.what {
        What::Install { grant, .. } => match install(&connector, grant, patience).await {
            Ok(done) => {
                let new = done == Installed::New;
                let text = if new {
                    "The table pgfollow.outcome is made"
                } else {
                    "The table pgfollow.outcome was there"
                };
                let roles = if grant.is_empty() {
                    String::new()
                } else {
                    format!("; granted to {}", grant.join(", "))
                };
                told(common, json!({"ok": true, "new": new, "granted": grant}), format!("{text}{roles}"))
            }
            Err(e) => failed(common, &e),
        },
        What::Purge { .. } => match purge(&connector, patience).await {
            Ok(rows) => {
                let days = PURGE_HORIZON.as_secs() / 86_400;
                let text = format!("Removed {rows} rows older than {days} days");
                told(common, json!({"ok": true, "removed": rows}), text)
            }
            Err(e) => failed(common, &e),
        },
    }
}

fn told(common: &Common, json: serde_json::Value, text: String) -> ExitCode {
    output::print(if common.json { json.to_string() } else { text })
}

fn failed(common: &Common, e: &Error) -> ExitCode {
    output::complain(output::worded(e));
    if common.json {
        output::print(connect::failed(e));
    }
    match e.code() {
        // Of the statement, on an open session; a refused login has its attempts.
        Code::Server if e.attempts().is_empty() => ExitCode::FAILURE,
        _ => ExitCode::from(exit::NO_SESSION),
    }
}
