//! `pgfollow classify`: what a failure means for the work, from plain facts. For drivers and languages that bring their
//! own exceptions, and for whoever wants to know.

mod keys;

use std::path::PathBuf;
use std::process::ExitCode;

use pgfollow::{Facts, classify};
use serde_json::Value;

use crate::{exit, output};

#[derive(clap::Args)]
#[command(about = "Say what a failure means: class, what may be repeated, what becomes of the connection")]
#[command(
    before_help = "Example:\n  echo '{\"phase\": \"commit\", \"signal\": {\"type\": \"io\"}}' | pgfollow classify -"
)]
#[command(after_help = help())]
pub(crate) struct Args {
    /// A file with the facts as JSON, or - for standard input
    #[arg(value_name = "FACTS")]
    facts: PathBuf,
    /// Accepted for symmetry: the output is always JSON
    #[arg(long, hide = true)]
    json: bool,
}

fn help() -> String {
    let notes = keys::NOTES.join(", ");
    format!(
        "Facts: {{phase, signal, request, session}}; only the first two are needed, and whatever is left out \
counts as the careful answer. phase is resolve, connect, handshake, idle, acquire, statement or commit. signal is \
{{type: io | tls | deadline | role-mismatch}}, {{type: dns, rcode, resolved_before}}, {{type: pool, event}}, \
{{type: sqlstate, code, severity, as: error | notice, then: EOF, routine}} or {{type: rolled-back, cause}}. request is \
{{effect: read | write | none | copy-in | listen, sent: none | partial | complete, in_transaction, may_commit_inside}}. \
session is {{application_opened, healthy_lately}}. \
Drivers may add what nothing depends on ({notes}); any other key is refused.\n\n\
Prints JSON: {{class, retry_unit, discard, siblings, next_host, …}}.\n\n\
Exit codes:\n  0  printed\n  2  the facts can't be read; the reason is on standard error"
    )
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let unusable = |problem: String| {
        output::complain(format_args!("{}: {problem}", args.facts.display()));
        ExitCode::from(exit::USAGE)
    };
    let text = match output::read(&args.facts) {
        Ok(text) => text,
        Err(e) => return unusable(e.to_string()),
    };
    let whole: Value = match serde_json::from_str(&text) {
        Ok(whole) => whole,
        Err(e) => return unusable(e.to_string()),
    };
    // Before what is missing: a misspelt key is often the one that is missed.
    if let Some(problem) = keys::unknown(&whole) {
        return unusable(problem);
    }
    // From the text, for it gives the place of what is wrong.
    match serde_json::from_str::<Facts>(&text).and_then(|facts| serde_json::to_string(&classify(&facts))) {
        Ok(verdict) => output::print(verdict),
        Err(e) => unusable(e.to_string()),
    }
}
