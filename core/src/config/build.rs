//! Settings (text with origins) -> [`Config`] (valid values): every check of a value and of values against each other.
//!
//! Reads the password file and looks whether default files exist; opens nothing else. libpq makes the same checks in
//! `pqConnectOptions2` (`fe-connect.c`).

use std::fmt::Display;
use std::path::PathBuf;
use std::time::Duration;

use super::hosts::{check_for_stray_at_signs, hosts};
use super::values::{address, durations, integer, shown, words};
use super::{
    AuthMethod, Config, RootCert, Secret, SslMode, SslNegotiation, Support, TlsConfig, TlsVersion, Tuning,
    find,
};
use crate::conninfo::files::PasswordFile;
use crate::conninfo::{Environment, Origin, Settings, failed};
use crate::error::{Code, Error};
use crate::host::HostSpec;
use crate::net::SocketOptions;

/// A value that its option can't have.
fn invalid(message: impl Into<String>) -> Error {
    failed(Code::InvalidOption, message)
}

fn unsupported(message: impl Into<String>) -> Error {
    failed(Code::UnsupportedOption, message)
}

/// The settings with the table's defaults below them.
pub(super) struct Values<'a>(pub(super) &'a Settings);

impl Values<'_> {
    /// The value, or the table's default.
    fn text(&self, name: &str) -> &str {
        self.0.get(name).or_else(|| find(name).and_then(|r| r.default)).unwrap_or_default()
    }

    fn owned(&self, name: &str) -> Option<String> {
        self.0.non_empty(name).map(str::to_owned)
    }

    /// `NAME=VALUE`, with where it came from unless it was the string: how a message begins.
    pub(super) fn blame(&self, name: &str) -> String {
        let value = match find(name) {
            Some(r) if r.is_secret() => "…".to_owned(),
            _ => shown(self.text(name)),
        };
        match self.0.origin(name) {
            Origin::Conninfo | Origin::Code => format!("{name}={value}"),
            other => format!("{name}={value} ({other})"),
        }
    }

    fn bad(&self, name: &str, remedy: impl Display) -> Error {
        invalid(format!("{}: {remedy}", self.blame(name)))
    }

    fn keyword<T>(&self, name: &str, read: impl Fn(&str) -> Option<T>, values: &[&str]) -> Result<T, Error> {
        read(self.text(name)).ok_or_else(|| self.bad(name, format_args!("use one of {}", values.join(", "))))
    }

    fn integer(&self, name: &str) -> Result<i32, Error> {
        integer(self.text(name)).ok_or_else(|| {
            let unit = find(name).map_or("", |r| r.values);
            self.bad(name, format_args!("it must be a whole number ({unit})"))
        })
    }

    /// A whole number; libpq takes 0 and less as "leave it to the system".
    fn positive(&self, name: &str) -> Result<Option<u32>, Error> {
        Ok(u32::try_from(self.integer(name)?).ok().filter(|&n| n > 0))
    }

    fn seconds(&self, name: &str) -> Result<Option<Duration>, Error> {
        Ok(self.positive(name)?.map(|s| Duration::from_secs(s.into())))
    }

    fn flag(&self, name: &str) -> Result<bool, Error> {
        // Stricter than libpq, to which sslsni=true means off.
        match self.text(name) {
            "1" => Ok(true),
            "0" => Ok(false),
            _ => Err(self.bad(name, "use 1 (on) or 0 (off)")),
        }
    }

    fn duration(&self, name: &str, least: Duration, most: Duration) -> Result<Duration, Error> {
        let range = find(name).map_or("", |r| r.values);
        let value = durations(self.text(name)).ok_or_else(|| {
            self.bad(
                name,
                format_args!("write a whole number and its unit, such as 250ms, 5s or 2min ({range})"),
            )
        })?;
        if value < least || value > most {
            return Err(self.bad(name, format_args!("it must be {range}")));
        }
        Ok(value)
    }

    fn count(&self, name: &str, least: i32) -> Result<usize, Error> {
        let range = find(name).map_or("", |r| r.values);
        match integer(self.text(name)).filter(|n| (least..=100_000).contains(n)) {
            Some(n) => Ok(usize::try_from(n).unwrap_or_default()),
            None => Err(self.bad(name, format_args!("it must be a whole number, {range}"))),
        }
    }
}

/// Makes the configuration.
pub(super) fn build(
    mut settings: Settings,
    env: &Environment,
    tuning: Tuning,
    mut warnings: Vec<String>,
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
    let resolver = super::ResolverKind::from_keyword;
    let config = Config {
        hosts: specs,
        passwords,
        user: v.text("user").to_owned(),
        dbname: v.text("dbname").to_owned(),
        options: startup_options(&v),
        application_name: v
            .owned("application_name")
            .unwrap_or_else(|| v.text("fallback_application_name").to_owned()),
        client_encoding: v.owned("client_encoding"),
        connect_timeout: v.seconds("connect_timeout")?,
        socket,
        tls,
        channel_binding: v.keyword(
            "channel_binding",
            super::ChannelBinding::from_keyword,
            super::ChannelBinding::VALUES,
        )?,
        require_auth: require_auth(&v)?,
        target_session_attrs: match v.0.get("target_session_attrs") {
            None => None,
            Some(_) => Some(v.keyword(
                "target_session_attrs",
                super::SessionAttrs::from_keyword,
                super::SessionAttrs::VALUES,
            )?),
        },
        load_balance_hosts: v.keyword(
            "load_balance_hosts",
            super::LoadBalanceHosts::from_keyword,
            super::LoadBalanceHosts::VALUES,
        )?,
        host_walk: v.keyword("host_walk", super::HostWalk::from_keyword, super::HostWalk::VALUES)?,
        resolver: v.keyword("resolver", resolver, super::ResolverKind::VALUES)?,
        dns_servers,
        monitor: v.keyword("monitor", super::MonitorMode::from_keyword, super::MonitorMode::VALUES)?,
        probe_interval: v.duration("probe_interval", MS * 10, HOUR)?,
        suspect_after: v.duration("suspect_after", MS * 10, HOUR)?,
        on_new_cluster: v.keyword(
            "on_new_cluster",
            super::OnNewCluster::from_keyword,
            super::OnNewCluster::VALUES,
        )?,
        endpoint: v.keyword("endpoint", super::Endpoint::from_keyword, super::Endpoint::VALUES)?,
        never_primary: words(v.text("never_primary")).map(str::to_owned).collect(),
        max_connect_rate: rate(&v)?,
        pool_max_conns: v.count("pool_max_conns", 1)?,
        pool_min_conns: v.count("pool_min_conns", 0)?,
        pool_acquire_timeout: v.duration("pool_acquire_timeout", MS, HOUR)?,
        pool_max_conn_lifetime: v.duration("pool_max_conn_lifetime", MS * 1000, HOUR * 24 * 365)?,
        pool_validate_after: v.duration("pool_validate_after", Duration::ZERO, HOUR)?,
        tuning,
        local_socket_dir: env.socket_dir().to_owned(),
        warnings,
        password_origins,
        settings: Settings::default(),
    };
    if config.resolver == super::ResolverKind::System && !config.dns_servers.is_empty() {
        return Err(v.bad(
            "dns_servers",
            "it contradicts resolver=system, which asks no server of ours: remove one of the two",
        ));
    }
    if config.pool_min_conns > config.pool_max_conns {
        let (min, max) = (v.blame("pool_min_conns"), v.blame("pool_max_conns"));
        return Err(invalid(format!("{min} is more than {max}: lower the one or raise the other")));
    }
    let mut config = Config { settings, ..config };
    config.note_hazards();
    Ok(config)
}

const MS: Duration = Duration::from_millis(1);
const HOUR: Duration = Duration::from_secs(3600);

impl Config {
    fn note_hazards(&mut self) {
        let v = Values(&self.settings);
        let mut notes = Vec::new();
        if self.client_encoding.as_deref().is_some_and(|e| {
            !e.eq_ignore_ascii_case("utf8") && !e.eq_ignore_ascii_case("utf-8") && e != "auto"
        }) {
            notes.push(format!(
                "{}: sessions in Rust speak UTF8; only foreign drivers get this encoding",
                v.blame("client_encoding")
            ));
        }
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
        self.warnings.extend(notes);
    }
}

/// Without any sslmode, the system's roots mean verify-full: a public certificate proves nothing but a name.
fn strengthen_sslmode(settings: &mut Settings) {
    if settings.get("sslrootcert") == Some("system") && settings.get("sslmode").is_none() {
        settings.put("sslmode", SslMode::VerifyFull.keyword(), Origin::Default);
    }
}

/// What can't be honoured fails here, by name, before anything is sent.
fn refuse(v: &Values<'_>) -> Result<(), Error> {
    for row in super::OPTIONS {
        if let (Support::Refused(remedy), true) = (row.support, v.0.non_empty(row.name).is_some()) {
            return Err(unsupported(format!("{}: {remedy}", v.blame(row.name))));
        }
    }
    let gssencmode = v.text("gssencmode");
    match gssencmode {
        "disable" | "prefer" => {}
        "require" => {
            return Err(unsupported(format!(
                "{}: pgfollow has no GSSAPI encryption; use sslmode=require or stronger instead",
                v.blame("gssencmode")
            )));
        }
        _ => return Err(v.bad("gssencmode", "use disable or prefer")),
    }
    match v.text("replication").to_ascii_lowercase().as_str() {
        "" | "false" | "off" | "no" | "0" => {}
        _ => {
            return Err(unsupported(format!(
                "{}: pgfollow makes no replication connections: remove it",
                v.blame("replication")
            )));
        }
    }
    protocol_versions(v)
}

fn protocol_versions(v: &Values<'_>) -> Result<(), Error> {
    let rank = |name: &str| match v.0.get(name) {
        None => Ok(None),
        Some("3.0") => Ok(Some(0)),
        Some("3.2" | "latest") => Ok(Some(2)),
        Some(_) => Err(v.bad(name, "use 3.0, 3.2 or latest")),
    };
    let (min, max) = (rank("min_protocol_version")?, rank("max_protocol_version")?);
    if let (Some(low), Some(high)) = (min, max)
        && low > high
    {
        let (min, max) = (v.blame("min_protocol_version"), v.blame("max_protocol_version"));
        return Err(invalid(format!("{min} is above {max}: lower the one or raise the other")));
    }
    if min == Some(2) {
        return Err(unsupported(format!(
            "{}: pgfollow speaks protocol 3.0; remove it or use 3.0",
            v.blame("min_protocol_version")
        )));
    }
    Ok(())
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

fn tls(v: &Values<'_>, env: &Environment, warnings: &mut Vec<String>) -> Result<TlsConfig, Error> {
    let sslmode = v.keyword("sslmode", SslMode::from_keyword, SslMode::VALUES)?;
    let sslnegotiation = v.keyword("sslnegotiation", SslNegotiation::from_keyword, SslNegotiation::VALUES)?;
    let weak = matches!(sslmode, SslMode::Disable | SslMode::Allow | SslMode::Prefer);
    if sslnegotiation == SslNegotiation::Direct && weak {
        return Err(invalid(format!(
            "{} may not be used with {}: use sslmode=require, verify-ca or verify-full",
            v.blame("sslnegotiation"),
            v.blame("sslmode")
        )));
    }
    if v.text("sslrootcert") == "system" && sslmode != SslMode::VerifyFull {
        return Err(invalid(format!(
            "{} may not be used with {}: use sslmode=verify-full",
            v.blame("sslrootcert"),
            v.blame("sslmode")
        )));
    }
    let folder = env.home().map(|h| h.join(".postgresql")).unwrap_or_default();
    let file = |name: &str, default: &str| match v.0.non_empty(name) {
        Some(path) => (PathBuf::from(path), true),
        None => (folder.join(default), false),
    };
    let sslkey = file("sslkey", "postgresql.key");
    if v.text("sslkey").split_once(':').is_some_and(|(engine, _)| !engine.contains('/')) && !sslkey.0.exists()
    {
        return Err(unsupported(format!(
            "{}: keys in an OpenSSL engine are not supported; name a file",
            v.blame("sslkey")
        )));
    }
    let sslcrldir = v.0.non_empty("sslcrldir").map(PathBuf::from);
    let sslcrl = match file("sslcrl", "root.crl") {
        (path, true) => Some(path),
        (path, false) => Some(path).filter(|p| sslcrldir.is_none() && p.exists()),
    };
    let (min_protocol, max_protocol) = tls_versions(v, warnings)?;
    Ok(TlsConfig {
        sslmode,
        sslnegotiation,
        sslrootcert: match v.0.non_empty("sslrootcert") {
            Some("system") => RootCert::System,
            Some(path) => RootCert::File(path.into()),
            None => RootCert::Default(folder.join("root.crt")),
        },
        sslcert: file("sslcert", "postgresql.crt"),
        sslkey,
        sslpassword: v.0.non_empty("sslpassword").map(Secret::new),
        sslcertmode: v.keyword(
            "sslcertmode",
            super::SslCertMode::from_keyword,
            super::SslCertMode::VALUES,
        )?,
        sslcrl,
        sslcrldir,
        sslsni: v.flag("sslsni")?,
        min_protocol,
        max_protocol,
    })
}

fn tls_versions(
    v: &Values<'_>,
    warnings: &mut Vec<String>,
) -> Result<(TlsVersion, Option<TlsVersion>), Error> {
    const KNOWN: [&str; 4] = ["TLSv1", "TLSv1.1", "TLSv1.2", "TLSv1.3"];
    let rank = |name: &str| match v.text(name) {
        "" => Ok(None),
        text => match KNOWN.iter().position(|k| k.eq_ignore_ascii_case(text)) {
            Some(rank) => Ok(Some(rank)),
            None => Err(v.bad(name, "use TLSv1.2 or TLSv1.3")),
        },
    };
    let (low, high) = (rank("ssl_min_protocol_version")?, rank("ssl_max_protocol_version")?);
    let (min, max) = ("ssl_min_protocol_version", "ssl_max_protocol_version");
    if high.is_some_and(|h| h < 2) {
        return Err(unsupported(format!(
            "{}: pgfollow speaks TLSv1.2 and TLSv1.3; raise or remove it",
            v.blame(max)
        )));
    }
    if high.is_some_and(|h| low.is_some_and(|l| l > h)) {
        return Err(invalid(format!(
            "{} is above {}: lower the one or raise the other",
            v.blame(min),
            v.blame(max)
        )));
    }
    if low.is_some_and(|l| l < 2) {
        warnings.push(format!("{}: TLSv1.2 is the oldest that is used", v.blame(min)));
    }
    let version = |rank| if rank == 3 { TlsVersion::V13 } else { TlsVersion::V12 };
    Ok((low.map_or(TlsVersion::V12, version), high.map(version)))
}

/// The permitted methods. A list with `!` permits all but those (libpq manual, `require_auth`).
fn require_auth(v: &Values<'_>) -> Result<Option<Vec<AuthMethod>>, Error> {
    const NAMES: [(&str, Option<AuthMethod>); 7] = [
        ("password", Some(AuthMethod::Password)),
        ("md5", Some(AuthMethod::Md5)),
        ("scram-sha-256", Some(AuthMethod::ScramSha256)),
        ("none", Some(AuthMethod::None)),
        ("gss", None),
        ("sspi", None),
        ("oauth", None),
    ];
    let name = "require_auth";
    let Some(text) = v.0.non_empty(name) else { return Ok(None) };
    let negated = text.starts_with('!');
    let mut listed = Vec::new();
    for word in text.split(',') {
        let (minus, method) = word.strip_prefix('!').map_or((false, word), |m| (true, m));
        if minus != negated {
            return Err(v.bad(name, "methods with and without ! can't be mixed"));
        }
        if !NAMES.iter().any(|n| n.0 == method) {
            let names = NAMES.map(|n| n.0).join(", ");
            return Err(v.bad(name, format_args!("use a comma-separated list of {names}")));
        }
        // As in libpq: a method named twice is probably a slip, where slips are dangerous.
        if listed.contains(&method) {
            return Err(v.bad(name, format_args!("{method} stands there twice: remove one")));
        }
        listed.push(method);
    }
    let allowed: Vec<_> =
        NAMES.iter().filter(|n| listed.contains(&n.0) != negated).filter_map(|n| n.1).collect();
    if allowed.is_empty() {
        return Err(unsupported(format!(
            "{}: no method is left that pgfollow knows (it has no gss, sspi or oauth); permit one of password, md5, scram-sha-256 or none",
            v.blame(name)
        )));
    }
    Ok(Some(allowed))
}

fn rate(v: &Values<'_>) -> Result<f64, Error> {
    let text = v.text("max_connect_rate").trim_end_matches("/s").trim();
    match text.parse::<f64>() {
        Ok(rate) if (0.1..=100_000.0).contains(&rate) => Ok(rate),
        _ => Err(v.bad("max_connect_rate", "it must be a number of connections per second, 0.1 to 100000")),
    }
}
