//! `pgfollow probe`: every candidate looked at once, side by side. One connect each, all at the same time; nothing is
//! written and nothing is decided for a service.
//!
//! Here are the arguments, the exit code and the looking; [`view`] tells what was found.

mod view;

use std::net::IpAddr;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use pgfollow::config::{MonitorMode, SessionAttrs};
use pgfollow::net::{AnswerSource, Family, Resolve, ResolveError};
use pgfollow::{Config, Connector, HostSpec, Resolver, Session, Stage};

use crate::{exit, output};
use view::{Found, Live, Trouble, View};

/// What a string without a bound of its own gets: a probe must end.
const PATIENCE: Duration = Duration::from_secs(5);
/// Pause between two looks of --watch.
const EVERY: Duration = Duration::from_secs(1);
/// Round trips measured; the shortest counts.
const PINGS: usize = 3;

/// Look at every candidate: role, timeline, lag, TLS, round trip, and who is writable
///
/// Hazards of the string come first. Writes nothing.
#[derive(clap::Args)]
#[command(before_help = "Example: pgfollow probe 'postgresql://app@db-a,db-b,db-c/orders'")]
#[command(
    after_help = "Exit codes:\n  0  one host is writable\n  1  the output can't be written\n  2  wrong usage, or a string that can't be used\n  \
                  3  none is\n  4  more than one is, or one that was replaced (a higher timeline exists elsewhere)"
)]
pub(crate) struct Args {
    /// A connection string (URI or keyword/value)
    conninfo: String,
    /// Look again every second, until Ctrl-C
    #[arg(long)]
    watch: bool,
    /// Print JSON (with --watch one object a line)
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: &Args) -> ExitCode {
    // What the log would warn of is among the hazards.
    let silent = tracing::subscriber::NoSubscriber::default();
    let config = match tracing::subscriber::with_default(silent, || Config::parse(&args.conninfo)) {
        Ok(c) => c,
        Err(e) => return output::unusable(&e),
    };
    loop {
        let view = look(&config).await;
        let printed = match (args.json, args.watch) {
            (true, true) => output::print(view.json()),
            (true, false) => output::print(format_args!("{:#}", view.json())),
            (false, watch) => output::print(view.text(watch)),
        };
        if !args.watch || printed != ExitCode::SUCCESS {
            return match view.writable() {
                _ if printed != ExitCode::SUCCESS => printed,
                0 if view.unusable() => ExitCode::from(exit::USAGE),
                0 => ExitCode::from(exit::NO_SESSION),
                _ if view.unsafe_to_write() => ExitCode::from(exit::UNSAFE_TO_WRITE),
                _ => printed,
            };
        }
        tokio::time::sleep(EVERY).await;
    }
}

async fn look(config: &Config) -> View {
    let resolver = Resolver::new(config.resolver, config.dns_servers.clone(), config.tuning.resolve_timeout);
    let specs = (0..config.hosts.len()).map(|n| addresses(config, n, &resolver));
    let places: Vec<_> = join_all(specs).await.into_iter().flatten().collect();
    let found = join_all(places.into_iter().map(|p| visit(config, p))).await;
    View::new(config, found)
}

/// One address of a candidate, or why it has none.
struct Place {
    /// Index into the configured hosts.
    spec: usize,
    /// `None`: as configured, nothing to look up.
    address: Option<IpAddr>,
    ttl: Option<Duration>,
    source: Option<AnswerSource>,
    failed: Option<ResolveError>,
}

/// A name's addresses, each a place of its own: a name may stand for several servers.
async fn addresses(config: &Config, spec: usize, resolver: &Resolver) -> Vec<Place> {
    let whole = Place { spec, address: None, ttl: None, source: None, failed: None };
    let HostSpec::Tcp { host: Some(name), hostaddr: None, .. } = &config.hosts[spec] else {
        return vec![whole];
    };
    let (v4, v6) = tokio::join!(resolver.resolve(name, Family::V4), resolver.resolve(name, Family::V6));
    let mut places = Vec::new();
    let mut failed = None;
    for result in [v4, v6] {
        match result {
            Ok(answer) => places.extend(answer.addresses.iter().map(|a| Place {
                address: Some(*a),
                ttl: answer.ttl,
                source: Some(answer.source.clone()),
                ..Place { spec, address: None, ttl: None, source: None, failed: None }
            })),
            // "None of this kind" says less than any other reason.
            Err(e) if failed.is_none() || failed == Some(ResolveError::NoData) => failed = Some(e),
            Err(_) => {}
        }
    }
    if places.is_empty() { vec![Place { failed, ..whole }] } else { places }
}

/// Connects to one address alone and asks it.
async fn visit(config: &Config, place: Place) -> Found {
    let spec = &config.hosts[place.spec];
    let mut found = Found {
        spec: place.spec,
        host: spec.label(),
        hostaddr: place.address.map(|a| a.to_string()),
        port: spec.port().to_string(),
        ttl: place.ttl,
        source: place.source.clone(),
        result: Err(Trouble::default()),
    };
    if let Some(e) = place.failed {
        let message = format!("{:?}: {e}", found.host);
        found.result = Err(Trouble { stage: Some(Stage::Resolve), message, ..Trouble::default() });
        return found;
    }
    let connector = match Connector::from_config(alone(config, &place)) {
        Ok(c) => c,
        Err(e) => {
            found.result = Err(Trouble::of(&e));
            return found;
        }
    };
    let started = Instant::now();
    found.result = match connector.connect().await {
        Ok(session) => {
            let connect = started.elapsed();
            if found.hostaddr.is_none() {
                found.hostaddr = session.attempts().last().and_then(|a| a.hostaddr.clone());
            }
            Ok(ask(&session, connect).await)
        }
        Err(e) => Err(Trouble::of(&e)),
    };
    found
}

/// The same configuration for one address: any role will do, and nothing is watched.
fn alone(config: &Config, place: &Place) -> Config {
    let mut c = config.clone();
    let mut spec = c.hosts[place.spec].clone();
    if let (HostSpec::Tcp { hostaddr, .. }, Some(a)) = (&mut spec, place.address) {
        *hostaddr = Some(a.to_string());
    }
    c.hosts = vec![spec];
    c.passwords = vec![c.passwords[place.spec].clone()];
    c.password_origins = vec![c.password_origins[place.spec].clone()];
    c.target_session_attrs = Some(SessionAttrs::Any);
    c.monitor = MonitorMode::Off;
    c.connect_timeout = Some(c.connect_timeout.map_or(PATIENCE, |t| t.min(PATIENCE)));
    // Said once, by the probe itself.
    c.warnings.clear();
    c
}

async fn ask(session: &Session, connect: Duration) -> Live {
    let term = session.term();
    let role = session.role();
    let mut rtt: Option<Duration> = None;
    for _ in 0..PINGS {
        let started = Instant::now();
        if session.within(PATIENCE, session.simple_query("")).await.is_err() {
            break;
        }
        let took = started.elapsed();
        rtt = Some(rtt.map_or(took, |best| best.min(took)));
    }
    Live {
        in_recovery: term.map(|t| t.in_recovery).or(role.in_hot_standby),
        read_only: term.map(|t| t.read_only).or(role.default_read_only),
        timeline: term.and_then(|t| t.timeline),
        server: term.and_then(|t| Some((t.system_identifier?, t.start_time?))),
        position: position(session).await,
        version: version(session).await,
        encrypted: session.is_encrypted(),
        rtt,
        connect,
    }
}

/// How far its log is, written or replayed, in bytes; `None` where the login may not ask.
async fn position(session: &Session) -> Option<u64> {
    let sql = "select case when pg_catalog.pg_is_in_recovery() then pg_catalog.pg_last_wal_replay_lsn() \
               else pg_catalog.pg_current_wal_lsn() end - '0/0'::pg_catalog.pg_lsn";
    first_value(session, sql).await?.parse().ok()
}

async fn version(session: &Session) -> Option<String> {
    first_value(session, "show server_version").await
}

async fn first_value(session: &Session, sql: &str) -> Option<String> {
    let answer = session.within(PATIENCE, session.simple_query(sql)).await.ok()?;
    answer.iter().find_map(|m| match m {
        tokio_postgres::SimpleQueryMessage::Row(r) => r.get(0).map(str::to_owned),
        _ => None,
    })
}
