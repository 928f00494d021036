//! Settings (text with origins) -> [`Config`] (valid values): every check of a value and of values against each other.
//!
//! Reads the password file and looks whether default files exist; opens nothing else. libpq makes the same checks in
//! `pqConnectOptions2` (`fe-connect.c`).

use std::path::PathBuf;

use super::hosts::{check_for_stray_at_signs, hosts};
use super::ranges::{self, HOUR, MS};
use super::reader::{Values, invalid};
use super::security::{refuse, require_auth, tls};
use super::values::{address, words};
use super::{
    ChannelBinding, Config, Endpoint, HostWalk, LoadBalanceHosts, MonitorMode, OnNewCluster, ResolverKind,
    RootCert, Secret, SessionAttrs, SslMode, TlsConfig, Tuning,
};
use crate::conninfo::files::PasswordFile;
use crate::conninfo::{Environment, Origin, Settings};
use crate::error::Error;
use crate::host::HostSpec;
use crate::net::SocketOptions;

/// Makes the configuration.
pub(super) fn build(
    mut settings: Settings,
    env: &Environment,
    tuning: Tuning,
    mut warnings: Vec<String>,
    for_work: bool,
) -> Result<Config, Error> {
    strengthen_sslmode(&mut settings);
    check_for_stray_at_signs(&Values(&settings))?;
    refuse(&Values(&settings))?;
    fill_in_user(&mut settings, env)?;
    let specs = hosts(&Values(&settings))?;
    let socket = socket(&mut settings, &mut warnings)?;
    add_session_defaults(&mut settings, env)?;
    let v = Values(&settings);

    let (passwords, password_origins) = passwords(&v, &specs, env, &mut warnings)?;
    let tls = tls(&v, env, &mut warnings)?;
    let dns_servers = words(v.text("dns_servers"))
        .map(|w| {
            address(w, 53).ok_or_else(|| {
                v.bad("dns_servers", "write address[:port],… (an IPv6 address with a port in brackets)")
            })
        })
        .collect::<Result<Vec<_>, _>>()?;
    let config = Config {
        hosts: specs,
        passwords,
        user: v.text("user").to_owned(),
        dbname: v.text("dbname").to_owned(),
        options: startup_options(&v),
        // Given empty, it stays empty, as in libpq.
        application_name: v
            .0
            .get("application_name")
            .unwrap_or_else(|| v.text("fallback_application_name"))
            .to_owned(),
        client_encoding: v.owned("client_encoding"),
        connect_timeout: v.seconds("connect_timeout")?,
        socket,
        tls,
        channel_binding: v.keyword(
            "channel_binding",
            ChannelBinding::from_keyword,
            ChannelBinding::VALUES,
        )?,
        require_auth: require_auth(&v)?,
        target_session_attrs: match v.0.get("target_session_attrs") {
            None => None,
            Some(_) => {
                Some(v.keyword("target_session_attrs", SessionAttrs::from_keyword, SessionAttrs::VALUES)?)
            }
        },
        load_balance_hosts: v.keyword(
            "load_balance_hosts",
            LoadBalanceHosts::from_keyword,
            LoadBalanceHosts::VALUES,
        )?,
        host_walk: v.keyword("host_walk", HostWalk::from_keyword, HostWalk::VALUES)?,
        resolver: v.keyword("resolver", ResolverKind::from_keyword, ResolverKind::VALUES)?,
        dns_servers,
        monitor: v.keyword("monitor", MonitorMode::from_keyword, MonitorMode::VALUES)?,
        probe_interval: v.duration("probe_interval", MS * 10..=HOUR)?,
        suspect_after: v.duration("suspect_after", MS * 10..=HOUR)?,
        on_new_cluster: v.keyword("on_new_cluster", OnNewCluster::from_keyword, OnNewCluster::VALUES)?,
        endpoint: v.keyword("endpoint", Endpoint::from_keyword, Endpoint::VALUES)?,
        never_primary: words(v.text("never_primary")).map(str::to_owned).collect(),
        max_connect_rate: rate(&v)?,
        pool_max_conns: v.count("pool_max_conns", &ranges::POOL_MAX_CONNS)?,
        pool_min_conns: v.count("pool_min_conns", &ranges::POOL_MIN_CONNS)?,
        pool_acquire_timeout: v.duration("pool_acquire_timeout", ranges::POOL_ACQUIRE_TIMEOUT)?,
        pool_max_conn_lifetime: v.duration("pool_max_conn_lifetime", ranges::POOL_MAX_CONN_LIFETIME)?,
        pool_validate_after: v.duration("pool_validate_after", ranges::POOL_VALIDATE_AFTER)?,
        tuning,
        local_socket_dir: env.socket_dir().to_owned(),
        warnings,
        password_origins,
        settings: Settings::default(),
    };
    if config.resolver == ResolverKind::System && !config.dns_servers.is_empty() {
        return Err(v.bad(
            "dns_servers",
            "it contradicts resolver=system, which asks no server of ours: remove one of the two",
        ));
    }
    if config.pool_min_conns > config.pool_max_conns {
        let (min, max) = (v.blame("pool_min_conns"), v.blame("pool_max_conns"));
        return Err(invalid(format!("{min} is more than {max}: lower the one or raise the other")));
    }
    record_default_files(&mut settings, &config.tls, env);
    let mut config = Config { settings, ..config };
    config.note_hazards(for_work);
    Ok(config)
}

impl Config {
    fn note_hazards(&mut self, for_work: bool) {
        let v = Values(&self.settings);
        let mut notes = Vec::new();
        if v.0.get("sslcompression").is_some_and(|c| c.starts_with('1')) {
            notes.push(format!("{}: TLS compression is never used", v.blame("sslcompression")));
        }
        if v.0.get("dbname").is_some_and(|d| {
            d.contains('=') || d.starts_with("postgres://") || d.starts_with("postgresql://")
        }) {
            notes.push(
                "dbname looks like a connection string and is taken as the name of a database: give the string itself \
                 instead, and quote an empty value ('') in front of it"
                    .to_owned(),
            );
        }
        if v.0.origin("dbname") == Origin::Conninfo && v.0.get("dbname").is_some_and(|d| d.contains('@')) {
            notes.push(
                "dbname contains an \"@\": if it belongs to a password in a URI, write / inside the password as %2F"
                    .to_owned(),
            );
        }
        if self.hosts.len() > 1 && self.target_session_attrs.is_none() && !for_work {
            notes.push(
                "target_session_attrs isn't set: for connect any of the hosts will do, a standby too (pools and \
                 run take read-write); a service that writes wants target_session_attrs=read-write"
                    .to_owned(),
            );
        }
        self.warnings.extend(notes);
    }
}

/// Without any sslmode, the system's roots mean verify-full: a public certificate proves nothing but a name.
fn strengthen_sslmode(settings: &mut Settings) {
    if settings.get("sslrootcert") == Some("system") && settings.get("sslmode").is_none() {
        settings.put("sslmode", SslMode::VerifyFull.keyword(), Origin::Default);
    }
}

fn fill_in_user(settings: &mut Settings, env: &Environment) -> Result<(), Error> {
    if settings.non_empty("user").is_none() {
        let user = env.user().filter(|u| !u.is_empty()).ok_or_else(|| {
            invalid("user: none is given and the operating system's user is unknown; set user or PGUSER")
        })?;
        settings.put("user", user, Origin::Default);
    }
    if settings.non_empty("dbname").is_none() {
        let user = settings.get("user").unwrap_or_default().to_owned();
        settings.put("dbname", user, Origin::Default);
    }
    Ok(())
}

fn socket(settings: &mut Settings, warnings: &mut Vec<String>) -> Result<SocketOptions, Error> {
    let v = Values(settings);
    let keepalive = v.integer("keepalives")? != 0;
    let (idle, interval) = (v.seconds("keepalives_idle")?, v.seconds("keepalives_interval")?);
    let count = v.positive("keepalives_count")?;
    let dead_after = idle.zip(interval).zip(count).map(|((idle, gap), n)| idle + gap * n);
    if let Some(sum) = dead_after
        && settings.get("tcp_user_timeout").is_none()
    {
        // Any other value would override the keepalives' own count while a reply is awaited.
        settings.put("tcp_user_timeout", sum.as_millis().to_string(), Origin::Default);
    }
    let v = Values(settings);
    let user_timeout = v.positive("tcp_user_timeout")?.map(|ms| MS * ms);
    if keepalive && let Some(sum) = dead_after {
        let advice = format!("about {} fits these keepalives (idle + interval × count)", sum.as_millis());
        match user_timeout {
            Some(t) if t > sum => warnings.push(format!(
                "{}: while a reply is awaited this overrides keepalives_count, so a dead host is noticed only after it; {advice}",
                v.blame("tcp_user_timeout")
            )),
            None => warnings.push(format!(
                "{}: a host that dies while data is on its way is noticed only after minutes; {advice}",
                v.blame("tcp_user_timeout")
            )),
            Some(_) => {}
        }
    }
    Ok(SocketOptions {
        keepalive,
        keepalive_idle: idle,
        keepalive_interval: interval,
        keepalive_count: count,
        user_timeout,
    })
}

/// What libpq reads from the environment for the session, besides its options (`EnvironmentOptions`).
const SESSION: [(&str, &str); 3] = [("PGDATESTYLE", "datestyle"), ("PGTZ", "timezone"), ("PGGEQO", "geqo")];

fn add_session_defaults(settings: &mut Settings, env: &Environment) -> Result<(), Error> {
    for (variable, name) in SESSION {
        let value = env.variable(variable).map_err(invalid)?;
        if let Some(value) = value.filter(|v| !v.eq_ignore_ascii_case("default")) {
            settings.put(name, value, Origin::Environment(variable.to_owned()));
        }
    }
    Ok(())
}

/// `options`, and behind them the session defaults: libpq sends these apart, and the server applies them last.
fn startup_options(v: &Values<'_>) -> Option<String> {
    let mut options = v.text("options").to_owned();
    for (_, name) in SESSION {
        let Some(value) = v.0.get(name) else { continue };
        if !options.is_empty() {
            options.push(' ');
        }
        options.push_str(&format!("-c {name}="));
        for c in value.chars() {
            // The server splits at blanks without a backslash (pg_split_opts in postinit.c).
            if c.is_ascii_whitespace() || c == '\\' {
                options.push('\\');
            }
            options.push(c);
        }
    }
    Some(options).filter(|o| !o.is_empty())
}

type Passwords = (Vec<Option<Secret>>, Vec<Option<Origin>>);

fn passwords(
    v: &Values<'_>,
    hosts: &[HostSpec],
    env: &Environment,
    warnings: &mut Vec<String>,
) -> Result<Passwords, Error> {
    if let Some(one) = v.0.non_empty("password") {
        let (secret, origin) = (Secret::new(one), v.0.origin("password"));
        return Ok((vec![Some(secret); hosts.len()], vec![Some(origin); hosts.len()]));
    }
    let path = match v.0.non_empty("passfile") {
        Some(path) => Some((PathBuf::from(path), true)),
        None => env.home().map(|h| (h.join(".pgpass"), false)),
    };
    let Some(file) = path.and_then(|(path, named)| PasswordFile::load(path, named, warnings)) else {
        return Ok((vec![None; hosts.len()], vec![None; hosts.len()]));
    };
    let mut found = Passwords::default();
    for host in hosts {
        let key = match host {
            HostSpec::Tcp { host: Some(h), .. } => h.clone(),
            HostSpec::Tcp { host: None, hostaddr, .. } => hostaddr.clone().unwrap_or_default(),
            HostSpec::Unix { dir, .. } if dir != env.socket_dir() => dir.display().to_string(),
            HostSpec::Unix { .. } | HostSpec::DefaultLocal { .. } => "localhost".to_owned(),
        };
        let port = host.port().to_string();
        let password = file.lookup([&key, &port, v.text("dbname"), v.text("user")])?;
        found.1.push(password.as_ref().map(|_| Origin::PasswordFile));
        found.0.push(password.map(Secret::new));
    }
    Ok(found)
}

/// The default files that are there and so take part, for [`Config::effective`].
fn record_default_files(settings: &mut Settings, tls: &TlsConfig, env: &Environment) {
    let root = match &tls.sslrootcert {
        RootCert::Default(path) => Some(path.clone()),
        RootCert::File(_) | RootCert::System => None,
    };
    let files = [
        ("passfile", env.home().map(|h| h.join(".pgpass"))),
        ("sslcert", Some(tls.sslcert.0.clone())),
        ("sslkey", Some(tls.sslkey.0.clone())),
        ("sslrootcert", root),
        ("sslcrl", tls.sslcrl.clone()),
    ];
    for (name, path) in files {
        if let (None, Some(path)) = (settings.non_empty(name), path.filter(|p| p.exists())) {
            settings.put(name, path.display().to_string(), Origin::Default);
        }
    }
}

fn rate(v: &Values<'_>) -> Result<f64, Error> {
    let text = v.text("max_connect_rate").trim_end_matches("/s").trim();
    match text.parse::<f64>() {
        Ok(rate) if (0.1..=100_000.0).contains(&rate) => Ok(rate),
        _ => Err(v.bad("max_connect_rate", "it must be a number of connections per second, 0.1 to 100000")),
    }
}
