//! `pgfollow connect`: one session by all the rules, and how it was come by.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use pgfollow::{Address, Attempt, Connector, Error, Session, Stage};
use serde_json::{Value, json};

use crate::{exit, output, units};

/// Open one session by all the rules, print where it landed and every attempt, and close it
#[derive(clap::Args)]
#[command(
    before_help = "Example: pgfollow connect 'postgresql://app@db-a,db-b/orders?target_session_attrs=read-write'"
)]
#[command(
    after_help = "Exit codes:\n  0  connected\n  1  the output can't be written\n  2  wrong usage, or a string that can't be used\n  \
                  3  no session (the error says why)"
)]
pub(crate) struct Args {
    /// A connection string (URI or keyword/value)
    conninfo: String,
    /// Wait that many seconds for a host that fits (default: one walk through the hosts)
    #[arg(long, value_name = "SECONDS", allow_hyphen_values = true, value_parser = units::some_seconds)]
    wait: Option<Duration>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: &Args) -> ExitCode {
    let connector = match Connector::new(&args.conninfo) {
        Ok(c) => c,
        Err(e) => return output::unusable(&e),
    };
    let started = Instant::now();
    let result = match args.wait {
        Some(patience) => connector.connect_within(patience).await,
        None => connector.connect().await,
    };
    let ms = started.elapsed().as_secs_f64() * 1e3;
    match result {
        Ok(s) => {
            let text = if args.json { connected(&s, ms).to_string() } else { told(&s, ms) };
            output::print(text)
        }
        Err(e) => {
            let json = args.json.then(|| failed(&e).to_string());
            output::complain(output::worded(&e));
            if let Some(json) = json {
                output::print(json);
            }
            ExitCode::from(if leads_nowhere(&e) { exit::USAGE } else { exit::NO_SESSION })
        }
    }
}

/// Whether the string itself is wrong for every host, such as a port beyond 65535: that shows when a host's turn comes.
fn leads_nowhere(e: &Error) -> bool {
    !e.attempts().is_empty() && e.attempts().iter().all(|a| a.stage == Stage::Configure)
}

fn role(s: &Session) -> &'static str {
    let r = s.role();
    match (r.in_hot_standby, r.default_read_only) {
        (Some(true), _) => "standby",
        (Some(false), Some(true)) => "primary_read_only",
        (Some(false), _) => "primary",
        (None, _) => "unknown",
    }
}

fn place(a: &Address) -> (String, Value) {
    match a {
        Address::Tcp(a) => (a.ip().to_string(), json!(a.port())),
        Address::Unix(p) => (p.display().to_string(), Value::Null),
    }
}

fn connected(s: &Session, ms: f64) -> Value {
    let c = s.candidate();
    let (hostaddr, port) = place(&c.address);
    json!({
        "ok": true, "host": *c.name, "hostaddr": hostaddr, "port": port, "role": role(s),
        "timeline": s.term().and_then(|t| t.timeline), "attempts": s.attempts(), "ms": units::round_ms(ms),
    })
}

/// The error as `connect --json` and others print it.
pub(crate) fn failed(e: &Error) -> Value {
    let mut whole = e.to_json();
    whole["message"] = output::worded(e.message()).into();
    whole
}

fn told(s: &Session, ms: f64) -> String {
    let timeline = s.term().and_then(|t| t.timeline).map_or("unknown".to_owned(), |t| t.to_string());
    let tls = if s.is_encrypted() { "TLS" } else { "no TLS" };
    let attempts: Vec<String> = s.attempts().iter().map(|a: &Attempt| format!("  {a}")).collect();
    format!(
        "Connected to {} in {ms:.1} ms: {}, timeline {timeline}, {tls}\n{}",
        s.candidate(),
        role(s),
        attempts.join("\n")
    )
}
