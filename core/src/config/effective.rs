//! What a configuration came out as: every option with its origin, as rows, as JSON, and as a plain libpq string.

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::values::shown;
use super::{Config, OPTIONS};
use crate::conninfo::{Origin, keyword_value::quote};
use crate::host::{HostSpec, Port};

/// One option as it came out.
#[derive(Clone, Debug, Serialize)]
pub struct EffectiveOption {
    /// The keyword (or the session default that a `PG…` variable set).
    pub name: &'static str,
    /// The value as it would be written in a string; `None` where there is none, and for secrets always.
    pub value: Option<String>,
    /// Where it came from.
    pub origin: Origin,
    /// Whether it is pgfollow's own.
    #[serde(skip)]
    pub own: bool,
}

/// One candidate as configured, for people and scripts.
#[derive(Clone, Debug, Serialize)]
pub struct ConfiguredHost {
    /// `tcp`, `unix` or `default-local`.
    pub kind: &'static str,
    /// The name as written.
    pub host: Option<String>,
    /// The address as written.
    pub hostaddr: Option<String>,
    /// The socket directory as written.
    pub dir: Option<String>,
    /// The port: a number, or the text where it is none.
    pub port: Value,
    /// Where its password comes from; never the password.
    pub password_source: Option<Origin>,
}

impl Config {
    /// Every option with its value and origin, in the table's order. Secrets have no value here, only an origin.
    pub fn effective(&self) -> Vec<EffectiveOption> {
        let mut rows: Vec<_> = OPTIONS
            .iter()
            .map(|row| {
                let given = self.settings.get(row.name);
                let value = given.or(row.default).filter(|_| !row.is_secret()).map(shown);
                EffectiveOption {
                    name: row.name,
                    value,
                    origin: self.settings.origin(row.name),
                    own: row.own,
                }
            })
            .collect();
        if let Some(row) = rows.iter_mut().find(|r| r.name == "password" && r.origin == Origin::Default)
            && let Some(origin) = self.password_origins.iter().flatten().next()
        {
            row.origin = origin.clone();
        }
        for name in ["datestyle", "timezone", "geqo"] {
            if let Some(value) = self.settings.get(name) {
                let (value, origin) = (Some(shown(value)), self.settings.origin(name));
                rows.push(EffectiveOption { name, value, origin, own: false });
            }
        }
        rows
    }

    /// The candidates in their order.
    pub fn configured_hosts(&self) -> Vec<ConfiguredHost> {
        let one = |(i, spec): (usize, &HostSpec)| {
            let (kind, host, hostaddr, dir) = match spec {
                HostSpec::Tcp { host, hostaddr, .. } => ("tcp", host.clone(), hostaddr.clone(), None),
                HostSpec::Unix { dir, .. } => ("unix", None, None, Some(dir.display().to_string())),
                HostSpec::DefaultLocal { .. } => ("default-local", None, None, None),
            };
            let port = match spec.port() {
                Port::Number(n) => json!(n),
                Port::Invalid(text) => json!(text),
            };
            let password_source = self.password_origins.get(i).cloned().flatten();
            ConfiguredHost { kind, host, hostaddr, dir, port, password_source }
        };
        self.hosts.iter().enumerate().map(one).collect()
    }

    /// All of it as JSON: `{candidates: […], options: {NAME: {value, origin}}, warnings: […]}`. No secret is in it.
    pub fn to_json(&self) -> Value {
        let options: Map<_, _> = self
            .effective()
            .into_iter()
            .map(|o| (o.name.to_owned(), json!({ "value": o.value, "origin": o.origin })))
            .collect();
        json!({ "candidates": self.configured_hosts(), "options": options, "warnings": self.warnings })
    }

    /// A plain libpq string in keyword/value form for other tools (psql, migrations). It has what was given, our
    /// defaults where libpq's are endless, and none of our own options. It has no password: the tool takes it from
    /// `PGPASSWORD` or the password file.
    pub fn libpq_string(&self) -> String {
        let pair = |(name, value): (&str, &str)| format!("{name}={}", quote(value));
        self.libpq_keywords().into_iter().map(pair).collect::<Vec<_>>().join(" ")
    }

    /// The same as pairs.
    pub(crate) fn libpq_keywords(&self) -> Vec<(&'static str, &str)> {
        const ALWAYS: [&str; 7] = [
            "user",
            "dbname",
            "connect_timeout",
            "keepalives_idle",
            "keepalives_interval",
            "keepalives_count",
            "tcp_user_timeout",
        ];
        let mut out: Vec<(&'static str, &str)> = Vec::new();
        // A service was read already; the tool would take what it says a second time, below PGFOLLOW_HOSTS or not.
        for row in OPTIONS.iter().filter(|r| !r.own && !r.is_secret() && r.name != "service") {
            let value = match self.settings.get(row.name) {
                // Written even if empty: an empty value keeps the tool's own environment out.
                Some(value)
                    if ALWAYS.contains(&row.name) || self.settings.origin(row.name) != Origin::Default =>
                {
                    Some(value)
                }
                None if ALWAYS.contains(&row.name) => row.default,
                _ => None,
            };
            if let Some(value) = value {
                out.push((row.name, value));
            }
        }
        out
    }
}
