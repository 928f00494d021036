//! What a probe found: hazards, JSON, text. Pure.

use std::collections::HashSet;
use std::time::Duration;

use pgfollow::config::{RootCert, SslMode};
use pgfollow::net::AnswerSource;
use pgfollow::{Code, Config, Error, HostSpec, SqlState, Stage};
use serde_json::{Value, json};

use crate::output;

/// One address of a candidate.
pub(super) struct Found {
    pub(super) spec: usize,
    pub(super) host: String,
    pub(super) hostaddr: Option<String>,
    pub(super) port: String,
    pub(super) ttl: Option<Duration>,
    pub(super) source: Option<AnswerSource>,
    pub(super) result: Result<Live, Trouble>,
}

/// A host that answered.
pub(super) struct Live {
    pub(super) in_recovery: Option<bool>,
    pub(super) read_only: Option<bool>,
    pub(super) timeline: Option<u32>,
    /// System identifier and start: the same for every address of one server.
    pub(super) server: Option<(u64, i64)>,
    pub(super) position: Option<u64>,
    pub(super) version: Option<String>,
    pub(super) encrypted: bool,
    pub(super) rtt: Option<Duration>,
    pub(super) connect: Duration,
}

impl Live {
    const fn role(&self) -> &'static str {
        match (self.in_recovery, self.read_only) {
            (Some(true), _) => "standby",
            (Some(false), Some(true)) => "primary_read_only",
            (Some(false), _) => "primary",
            (None, _) => "unknown",
        }
    }

    fn writable(&self) -> bool {
        self.in_recovery == Some(false) && self.read_only != Some(true)
    }
}

/// Why a host gave no session.
#[derive(Default)]
pub(super) struct Trouble {
    pub(super) stage: Option<Stage>,
    pub(super) code: Option<Code>,
    pub(super) sqlstate: Option<SqlState>,
    pub(super) message: String,
}

impl Trouble {
    pub(super) fn of(e: &Error) -> Self {
        // The last attempt says it; around it the whole only says that no host was left.
        match e.attempts().last() {
            Some(a) => {
                Self { stage: Some(a.stage), code: a.code, sqlstate: a.sqlstate, message: a.message.clone() }
            }
            None => Self {
                stage: e.stage(),
                code: Some(e.code()),
                sqlstate: e.sqlstate(),
                message: e.message().to_owned(),
            },
        }
    }
}

/// Everything that one look found.
pub(super) struct View {
    found: Vec<Found>,
    hazards: Vec<String>,
}

impl View {
    pub(super) fn new(config: &Config, found: Vec<Found>) -> Self {
        let mut view = Self { found, hazards: Vec::new() };
        view.hazards = view.dangers(config);
        view
    }

    fn live(&self) -> impl Iterator<Item = (&Found, &Live)> {
        self.found.iter().filter_map(|f| f.result.as_ref().ok().map(|l| (f, l)))
    }

    /// How many servers are writable. A server with several addresses or names is one.
    pub(super) fn writable(&self) -> usize {
        let mut known = HashSet::new();
        let mut unknown = HashSet::new();
        for (f, l) in self.live().filter(|(_, l)| l.writable()) {
            match l.server {
                Some(s) => known.insert(s),
                None => unknown.insert((&f.hostaddr, &f.port)),
            };
        }
        known.len() + unknown.len()
    }

    /// Writable servers beside which a newer timeline of the same cluster is known, with that timeline: each was
    /// replaced by a promotion that it knows nothing of, so what it takes will be thrown away.
    fn superseded(&self) -> impl Iterator<Item = (&Found, u32, u32)> {
        self.live().filter(|(_, l)| l.writable()).filter_map(|(f, l)| {
            let own = l.timeline?;
            // Timelines of two clusters say nothing about each other.
            let related = |o: &Live| match (l.server, o.server) {
                (Some((ours, _)), Some((theirs, _))) => ours == theirs,
                _ => true,
            };
            let newest = self.live().filter(|(_, o)| related(o)).filter_map(|(_, o)| o.timeline).max()?;
            (newest > own).then_some((f, own, newest))
        })
    }

    /// Whether the string itself leads to no host at all: it is wrong for every candidate.
    pub(super) fn unusable(&self) -> bool {
        self.found.iter().all(|f| f.result.as_ref().is_err_and(|t| t.stage == Some(Stage::Configure)))
    }

    /// Whether writing goes wrong although a host is writable: several are, or one that was replaced.
    pub(super) fn unsafe_to_write(&self) -> bool {
        self.writable() > 1 || self.superseded().next().is_some()
    }

    /// How far a standby is behind the writable host, in bytes.
    fn lag(&self, l: &Live) -> Option<u64> {
        let head = self.live().filter(|(_, l)| l.writable()).filter_map(|(_, l)| l.position).max()?;
        // The two were asked at about the same time, not at the same instant.
        (l.in_recovery == Some(true)).then_some(head.saturating_sub(l.position?))
    }

    /// Nobody knows what a host is that couldn't be asked.
    fn none_writable(&self) -> &'static str {
        match self.live().count() {
            0 => "no host could be asked: whether one is writable is not known",
            n if n < self.found.len() => "no host is writable now, of those that could be asked",
            _ => "no host is writable now",
        }
    }

    fn dangers(&self, config: &Config) -> Vec<String> {
        let mut all = Vec::new();
        match self.writable() {
            0 => all.push(self.none_writable().to_owned()),
            1 => {}
            n => all.push(format!(
                "{n} servers are writable at the same time: a split brain, or two clusters in one list"
            )),
        }
        all.extend(self.superseded().map(|(f, own, newest)| {
            format!(
                "{} is writable on timeline {own}, but timeline {newest} exists elsewhere: it was replaced by a \
                 promotion, and what is written to it will be lost; stop it",
                place(f)
            )
        }));
        if let [only] = &config.hosts[..] {
            let ttl = self.found.iter().filter_map(|f| f.ttl).max();
            let named = matches!(only, HostSpec::Tcp { host: Some(_), hostaddr: None, .. })
                && self.found.iter().any(|f| f.source.as_ref().is_some_and(|s| *s != AnswerSource::Literal));
            all.push(match ttl {
                Some(t) => format!(
                    "one name, TTL {} s: up to {} of stale name after a failover that moves it; list all hosts instead",
                    t.as_secs(),
                    long(t)
                ),
                None if named => "one name only: a failover that moves it is seen as late as the name; list all \
                                  hosts instead"
                    .to_owned(),
                None => "one host only: nowhere to go when it is lost; list all hosts".to_owned(),
            });
        }
        let tcp = config.hosts.iter().any(|h| matches!(h, HostSpec::Tcp { .. }));
        let password = config.passwords.iter().any(Option::is_some);
        match config.tls.sslmode {
            _ if !tcp => {}
            mode @ (SslMode::Prefer | SslMode::Allow) if password => all.push(format!(
                "sslmode={mode} with a password: whoever is in between can keep TLS out; use verify-full"
            )),
            SslMode::Disable if password => {
                all.push(
                    "sslmode=disable with a password: all of the session can be read on its way".to_owned(),
                );
            }
            SslMode::Require if matches!(&config.tls.sslrootcert, RootCert::Default(p) if !p.exists()) => {
                all.push("sslmode=require without sslrootcert: the server's identity isn't checked; use verify-full".to_owned());
            }
            _ => {}
        }
        all.extend(config.warnings.iter().cloned());
        all
    }

    pub(super) fn json(&self) -> Value {
        let writable: Vec<String> =
            self.live().filter(|(_, l)| l.writable()).map(|(f, _)| place(f)).collect();
        let candidates: Vec<Value> = self.found.iter().map(|f| self.candidate(f)).collect();
        json!({"writable": writable, "hazards": self.hazards, "candidates": candidates})
    }

    fn candidate(&self, f: &Found) -> Value {
        let mut row = json!({
            "host": f.host, "hostaddr": f.hostaddr, "port": f.port.parse::<u16>().map_or(json!(f.port), |p| json!(p)),
            "ttl_s": f.ttl.map(|t| t.as_secs()), "resolved_by": f.source,
        });
        let more = match &f.result {
            Ok(l) => json!({
                "ok": true, "role": l.role(), "writable": l.writable(), "timeline": l.timeline,
                "lag_bytes": self.lag(l), "tls": l.encrypted, "server_version": l.version,
                "rtt_ms": l.rtt.map(ms), "connect_ms": ms(l.connect),
            }),
            Err(t) => json!({
                "ok": false, "stage": t.stage, "code": t.code, "sqlstate": t.sqlstate, "message": t.message,
            }),
        };
        if let (Value::Object(row), Value::Object(more)) = (&mut row, more) {
            row.extend(more);
        }
        row
    }

    /// With `clear`, what a terminal shows is replaced.
    pub(super) fn text(&self, clear: bool) -> String {
        use std::io::IsTerminal;
        let mut out = String::new();
        if clear && std::io::stdout().is_terminal() {
            out.push_str("\x1b[H\x1b[2J");
        }
        for h in &self.hazards {
            out.push_str(&format!("! {h}\n"));
        }
        let head = ["candidate", "address", "ttl", "role", "timeline", "lag", "tls", "round trip", "connect"];
        let mut rows = vec![head.map(str::to_owned).to_vec()];
        let mut failures = Vec::new();
        let mut last = None;
        for f in &self.found {
            let host = if last == Some(f.spec) { String::new() } else { f.host.clone() };
            last = Some(f.spec);
            let address = f.hostaddr.as_ref().map_or_else(dash, |a| address(a, &f.port));
            let ttl = f.ttl.map_or_else(dash, |t| format!("{} s", t.as_secs()));
            let mut row = vec![host, address, ttl];
            match &f.result {
                Ok(l) => {
                    row.push(if l.writable() {
                        "primary, writable".to_owned()
                    } else {
                        l.role().replace('_', " ")
                    });
                    row.push(l.timeline.map_or_else(dash, |t| t.to_string()));
                    row.push(self.lag(l).map_or_else(dash, |b| format!("{b} bytes")));
                    row.push(if l.encrypted { "yes" } else { "no" }.to_owned());
                    row.push(l.rtt.map_or_else(dash, |d| format!("{:.2} ms", ms(d))));
                    row.push(format!("{:.1} ms", ms(l.connect)));
                }
                Err(t) => {
                    let stage = t.stage.map_or_else(dash, |s| s.to_string());
                    row.push(format!("failed: {stage}"));
                    row.extend((0..5).map(|_| dash()));
                    failures.push(format!("{}: {}", place(f), t.message));
                }
            }
            rows.push(row);
        }
        out.push_str(&output::table(&rows));
        out.push_str(&failures.join("\n"));
        out.trim_end().to_owned()
    }
}

fn dash() -> String {
    "–".to_owned()
}

fn address(a: &str, port: &str) -> String {
    match a {
        path if path.starts_with(['/', '@']) => path.to_owned(),
        v6 if v6.contains(':') => format!("[{v6}]:{port}"),
        v4 => format!("{v4}:{port}"),
    }
}

fn place(f: &Found) -> String {
    match &f.hostaddr {
        Some(a) if *a != f.host => format!("{} ({})", f.host, address(a, &f.port)),
        Some(a) => address(a, &f.port),
        None => format!("{} port {}", f.host, f.port),
    }
}

fn ms(d: Duration) -> f64 {
    (d.as_secs_f64() * 1e6).round() / 1e3
}

fn long(d: Duration) -> String {
    match d.as_secs() {
        s if s >= 120 => format!("{} min", s.div_ceil(60)),
        s => format!("{s} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(spec: usize, cluster: u64, timeline: u32, read_only: bool) -> Found {
        let live = Live {
            in_recovery: Some(false),
            read_only: Some(read_only),
            timeline: Some(timeline),
            server: Some((cluster, i64::try_from(spec).unwrap())),
            position: None,
            version: None,
            encrypted: false,
            rtt: None,
            connect: Duration::ZERO,
        };
        let (host, port) = (format!("n{spec}"), "5432".to_owned());
        Found { spec, host, hostaddr: None, port, ttl: None, source: None, result: Ok(live) }
    }

    fn view(found: Vec<Found>) -> View {
        View::new(&Config::parse("host=n0,n1 user=app target_session_attrs=read-write").unwrap(), found)
    }

    #[test]
    fn hosts_that_could_not_be_asked_are_not_called_read_only() {
        let refused = |spec| Found { result: Err(Trouble::default()), ..found(spec, 7, 1, true) };
        for (seen, says) in [
            (vec![refused(0), refused(1)], "no host could be asked: whether one is writable is not known"),
            (vec![found(0, 7, 1, true), refused(1)], "no host is writable now, of those that could be asked"),
            (vec![found(0, 7, 1, true), found(1, 7, 1, true)], "no host is writable now"),
        ] {
            assert_eq!(view(seen).hazards[0], says);
        }
    }

    #[test]
    fn only_writable_host_that_was_replaced_is_a_hazard_not_a_success() {
        let stale = view(vec![found(0, 7, 1, false), found(1, 7, 2, true)]);
        assert_eq!(stale.writable(), 1);
        assert!(stale.unsafe_to_write());
        assert!(stale.hazards[0].contains("timeline 2 exists elsewhere"), "{:?}", stale.hazards);
        for fine in [
            vec![found(0, 7, 2, false), found(1, 7, 1, true)],
            vec![found(0, 7, 2, false), found(1, 7, 2, true)],
            // Another cluster's.
            vec![found(0, 7, 1, false), found(1, 8, 2, true)],
        ] {
            assert!(!view(fine).unsafe_to_write());
        }
    }
}
