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
    format!(
        "{FACTS}\nWithin signal, request and session you may add what nothing depends on:\n{}.\nAny other key is refused.\n\n{VERDICT}",
        notes()
    )
}

/// In lines for eighty columns: what a terminal breaks by itself stands below the keys.
fn notes() -> String {
    keys::NOTES.chunks(4).map(|some| format!("  {}", some.join(", "))).collect::<Vec<_>>().join(",\n")
}

const FACTS: &str = "\
Facts: {phase, signal, request, session}; the first two are needed.
  phase    resolve | connect | handshake | idle | acquire | statement | commit
           (commit: a request that may end the transaction)
  signal   one of
           {type: io}             refused, reset, end of file
           {type: deadline}       the caller's, or connect_timeout
           {type: tls}            certificate, version, no TLS at all
           {type: role-mismatch}  not the wanted role
           {type: dns, rcode, resolved_before}
             rcode: NXDOMAIN, SERVFAIL, NODATA, …
             resolved_before: true if this process had an address of the name
           {type: sqlstate, code, severity, as, then, routine}
             severity: ERROR | FATAL | PANIC | WARNING | NOTICE | INFO | LOG
                       | DEBUG
             as: error | notice (which of the two messages it was)
             then: EOF, if the connection ended behind it
             routine: the message's own field of that name
           {type: rolled-back, cause}
             COMMIT was answered ROLLBACK; cause: the SQLSTATE that had failed
             the transaction
           {type: pool, event}
             event: acquire-timeout | overloaded | pool-closed
  request  {effect, sent, in_transaction, may_commit_inside}
             effect: read | write | none | copy-in | listen
             sent: none | partial | complete (to the kernel)
             in_transaction: true | false (a block was open when it was sent)
             may_commit_inside: true for CALL, DO, CREATE INDEX CONCURRENTLY
  session  {application_opened, healthy_lately}
             application_opened: the text that opened the transaction, such as
               BEGIN READ ONLY
             healthy_lately: true if the host was well within the last minute

What is left out counts so: a write, completely sent; it may have committed by
itself, and it may be part of a transaction, so that only the whole may be
repeated. severity is ERROR, as is error, the connection goes on, and neither
resolved_before nor healthy_lately is true. One is not the careful answer:
may_commit_inside is false, so say it where it is true.
";

const VERDICT: &str = "\
Prints JSON:
  class            transient (certainly not done) | permanent (repeating is
                   useless) | unknown-outcome (may have been done: check first)
  retry_unit       what may be repeated: connect | statement | transaction
                   | outcome-check (nothing before the outcome is known) | none
  discard          whether this connection must not be used again
  siblings         other connections to the host: recheck (hand none out
                   untested) | leave (they are well)
  next_host        whether another host may do better
  backoff          required: wait, with jitter, before another try
                   (else the key is missing)
  shown_to_caller  false where nobody was using the connection

Exit codes:
  0  printed
  2  the facts can't be read; the reason is on standard error";

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
