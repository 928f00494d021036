//! The one table of options: it drives parsing, suggestions (`suggest.rs`), defaults, the environment and `docs/options.md`.
//!
//! Decides no value. [`super::build`] reads it to make a [`super::Config`]; [`crate::conninfo`] reads it to know
//! a keyword. The libpq part is libpq 18's own list (`fe-connect.c`, `PQconninfoOptions`).

use std::fmt::Write as _;

/// What pgfollow does with an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Support {
    /// It has its effect.
    Used,
    /// Accepted, and of no effect here; the text says why that is harmless.
    Ignored(&'static str),
    /// Refused whenever it has a value; the text is the remedy.
    Refused(&'static str),
}

/// One option.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct OptionRow {
    /// The keyword.
    pub name: &'static str,
    /// The environment variable below it.
    pub variable: Option<&'static str>,
    /// The value where nobody gave one, as it would be written in a connection string.
    pub default: Option<&'static str>,
    /// Permitted values, with the unit.
    pub values: &'static str,
    /// Whether it is pgfollow's own; else it is libpq's.
    pub own: bool,
    /// What pgfollow does with it.
    pub support: Support,
    /// What it is, and the hazard where there is one.
    pub about: &'static str,
}

impl OptionRow {
    /// Whether its value is a secret that is never shown.
    pub fn is_secret(&self) -> bool {
        matches!(
            self.name,
            "password" | "sslpassword" | "oauth_client_secret" | "scram_client_key" | "scram_server_key"
        )
    }
}

const fn libpq(
    name: &'static str,
    variable: Option<&'static str>,
    default: Option<&'static str>,
    values: &'static str,
    about: &'static str,
) -> OptionRow {
    OptionRow { name, variable, default, values, own: false, support: Support::Used, about }
}

const fn own(
    name: &'static str,
    variable: &'static str,
    default: Option<&'static str>,
    values: &'static str,
    about: &'static str,
) -> OptionRow {
    OptionRow { name, variable: Some(variable), default, values, own: true, support: Support::Used, about }
}

const fn ignored(mut row: OptionRow, why: &'static str) -> OptionRow {
    row.support = Support::Ignored(why);
    row
}

const fn refused(mut row: OptionRow, remedy: &'static str) -> OptionRow {
    row.support = Support::Refused(remedy);
    row
}

const NO_GSS: &str = "pgfollow has no GSSAPI, so there is nothing that it could change";
const NO_OAUTH: &str = "pgfollow can't log in with OAuth: remove it and use another method";
const NO_KEYS: &str = "pgfollow logs in with a password: remove it and give the password";

/// Every option, libpq's first, in libpq's order.
pub static OPTIONS: &[OptionRow] = &[
    libpq(
        "service",
        Some("PGSERVICE"),
        None,
        "name",
        "A section of the service file; what it holds ranks below the string.",
    ),
    libpq("user", Some("PGUSER"), None, "name", "Role to log in as. Default: the operating system's user."),
    libpq(
        "password",
        Some("PGPASSWORD"),
        None,
        "text",
        "One password for every host. Never shown. A password file gives each host its own.",
    ),
    libpq(
        "passfile",
        Some("PGPASSFILE"),
        None,
        "path",
        "Password file; default `~/.pgpass`. Ignored, with a warning, where group or others may read it.",
    ),
    libpq(
        "channel_binding",
        Some("PGCHANNELBINDING"),
        Some("prefer"),
        "disable, prefer, require",
        "Ties the login to the TLS connection. With `require`, a login without it fails.",
    ),
    libpq(
        "connect_timeout",
        Some("PGCONNECT_TIMEOUT"),
        Some("5"),
        "seconds; 0 or negative: no limit",
        "Bounds one address, from dial to role. libpq's default has no limit: a silent host would hold a connect for minutes.",
    ),
    libpq(
        "dbname",
        Some("PGDATABASE"),
        None,
        "name",
        "Database. Default: the user's name. A connection string in it is not expanded.",
    ),
    libpq(
        "host",
        Some("PGHOST"),
        None,
        "names, addresses or socket directories, comma-separated",
        "The candidates. An entry that begins with `/` or `@` is a Unix socket, an empty one the default local socket. `PGFOLLOW_HOSTS` replaces all of them.",
    ),
    libpq(
        "hostaddr",
        Some("PGHOSTADDR"),
        None,
        "addresses, comma-separated",
        "Addresses instead of a look-up; `host` then only names the hosts. As many entries as `host`.",
    ),
    libpq(
        "port",
        Some("PGPORT"),
        Some("5432"),
        "1 to 65535, comma-separated",
        "One for all hosts or one for each. A bad one fails its host only.",
    ),
    libpq(
        "client_encoding",
        Some("PGCLIENTENCODING"),
        None,
        "UTF8, auto",
        "Sessions speak UTF8 alone; any other encoding is refused.",
    ),
    libpq(
        "options",
        Some("PGOPTIONS"),
        Some(""),
        "command-line options of the server",
        "Sent at startup, e.g. `-c statement_timeout=5s`.",
    ),
    libpq("application_name", Some("PGAPPNAME"), None, "text", "Shown in `pg_stat_activity`."),
    libpq(
        "fallback_application_name",
        None,
        Some("pgfollow"),
        "text",
        "Used where `application_name` is not given.",
    ),
    libpq(
        "keepalives",
        None,
        Some("1"),
        "1 on, 0 off",
        "TCP keepalives. Without them a silent death of a host goes unseen between calls.",
    ),
    libpq(
        "keepalives_idle",
        None,
        Some("3"),
        "seconds; 0: the system's",
        "Quiet time before the first keepalive. The system's own is usually two hours.",
    ),
    libpq("keepalives_interval", None, Some("2"), "seconds; 0: the system's", "Time between keepalives."),
    libpq(
        "keepalives_count",
        None,
        Some("3"),
        "count; 0: the system's",
        "Missed keepalives until the connection is dead.",
    ),
    libpq(
        "tcp_user_timeout",
        None,
        Some("9000"),
        "milliseconds; 0: the system's",
        "How long sent data may stay unacknowledged. Default: keepalives_idle + keepalives_interval × keepalives_count. A larger value overrides keepalives_count. It would cut off a live server that reads nothing for so long (a bulk load behind a lock): while the monitor hears from that host, the limit rests.",
    ),
    libpq(
        "sslmode",
        Some("PGSSLMODE"),
        Some("prefer"),
        "disable, allow, prefer, require, verify-ca, verify-full",
        "Only `verify-full` proves that the server is the host that was meant. Default with `sslrootcert=system`: verify-full.",
    ),
    libpq(
        "sslnegotiation",
        Some("PGSSLNEGOTIATION"),
        Some("postgres"),
        "postgres, direct",
        "`direct` saves a round trip and needs PostgreSQL 17 and sslmode=require or stronger.",
    ),
    ignored(
        libpq("sslcompression", Some("PGSSLCOMPRESSION"), Some("0"), "0, 1", "TLS compression."),
        "TLS compression is unsafe and is never used; nothing is sent uncompressed that had to be compressed",
    ),
    libpq(
        "sslcert",
        Some("PGSSLCERT"),
        None,
        "path",
        "Client certificate; default `~/.postgresql/postgresql.crt`, if there.",
    ),
    libpq(
        "sslkey",
        Some("PGSSLKEY"),
        None,
        "path",
        "Its key; default `~/.postgresql/postgresql.key`. Keys in an OpenSSL engine are refused.",
    ),
    libpq(
        "sslcertmode",
        Some("PGSSLCERTMODE"),
        Some("allow"),
        "disable, allow, require",
        "Whether a client certificate is sent.",
    ),
    libpq("sslpassword", None, None, "text", "Passphrase of the key. Never shown."),
    libpq(
        "sslrootcert",
        Some("PGSSLROOTCERT"),
        None,
        "path, or system",
        "Trusted roots; default `~/.postgresql/root.crt`, if there. `system`: the system's.",
    ),
    libpq(
        "sslcrl",
        Some("PGSSLCRL"),
        None,
        "path",
        "Revocation list; default `~/.postgresql/root.crl`, if there.",
    ),
    libpq("sslcrldir", Some("PGSSLCRLDIR"), None, "path", "Folder of revocation lists."),
    libpq(
        "sslsni",
        Some("PGSSLSNI"),
        Some("1"),
        "0, 1",
        "Whether TLS tells the server's name in clear text.",
    ),
    refused(
        libpq(
            "requirepeer",
            Some("PGREQUIREPEER"),
            None,
            "user name",
            "Owner of the server process behind a Unix socket.",
        ),
        "pgfollow doesn't check the owner of a socket: remove it, or use TCP with sslmode=verify-full",
    ),
    libpq(
        "require_auth",
        Some("PGREQUIREAUTH"),
        None,
        "password, md5, scram-sha-256, none, comma-separated, or all of them with !",
        "Permitted authentication methods. A cleartext password is never sent over TCP without TLS, whatever this says. gss, sspi and oauth alone are refused.",
    ),
    libpq(
        "min_protocol_version",
        Some("PGMINPROTOCOLVERSION"),
        None,
        "3.0",
        "Lowest protocol version. pgfollow speaks 3.0; 3.2 and latest are refused here.",
    ),
    libpq(
        "max_protocol_version",
        Some("PGMAXPROTOCOLVERSION"),
        None,
        "3.0, 3.2, latest",
        "Highest protocol version. pgfollow speaks 3.0, which each of them permits.",
    ),
    libpq(
        "ssl_min_protocol_version",
        Some("PGSSLMINPROTOCOLVERSION"),
        Some("TLSv1.2"),
        "TLSv1.2, TLSv1.3",
        "TLSv1 and TLSv1.1 are accepted and mean TLSv1.2, the oldest that pgfollow speaks.",
    ),
    libpq(
        "ssl_max_protocol_version",
        Some("PGSSLMAXPROTOCOLVERSION"),
        None,
        "TLSv1.2, TLSv1.3",
        "Highest TLS version.",
    ),
    libpq(
        "gssencmode",
        Some("PGGSSENCMODE"),
        Some("disable"),
        "disable, prefer",
        "GSSAPI encryption; pgfollow has none, so prefer never finds any and require is refused.",
    ),
    ignored(libpq("krbsrvname", Some("PGKRBSRVNAME"), None, "name", "Kerberos service name."), NO_GSS),
    ignored(libpq("gsslib", Some("PGGSSLIB"), None, "name", "GSS library."), NO_GSS),
    ignored(
        libpq("gssdelegation", Some("PGGSSDELEGATION"), Some("0"), "0, 1", "Delegation of credentials."),
        NO_GSS,
    ),
    libpq("replication", None, None, "false", "Replication protocol; anything but false is refused."),
    libpq(
        "target_session_attrs",
        Some("PGTARGETSESSIONATTRS"),
        Some("any"),
        "any, read-write, read-only, primary, standby, prefer-standby",
        "Which role is wanted. Where it isn't given, pools and `run` over several hosts take read-write.",
    ),
    libpq(
        "load_balance_hosts",
        Some("PGLOADBALANCEHOSTS"),
        Some("disable"),
        "disable, random",
        "`random` shuffles hosts and their addresses.",
    ),
    refused(libpq("scram_client_key", None, None, "base64", "SCRAM key for pass-through."), NO_KEYS),
    refused(libpq("scram_server_key", None, None, "base64", "SCRAM key for pass-through."), NO_KEYS),
    refused(libpq("oauth_issuer", None, None, "URL", "OAuth."), NO_OAUTH),
    refused(libpq("oauth_client_id", None, None, "text", "OAuth."), NO_OAUTH),
    refused(libpq("oauth_client_secret", None, None, "text", "OAuth."), NO_OAUTH),
    refused(libpq("oauth_scope", None, None, "text", "OAuth."), NO_OAUTH),
    refused(
        libpq("sslkeylogfile", None, None, "path", "Writes TLS session keys to a file."),
        "pgfollow never writes TLS keys to a file: remove it",
    ),
    own(
        "host_walk",
        "PGFOLLOW_HOST_WALK",
        Some("follow"),
        "follow, strict",
        "Where the walk through the hosts stops. `strict`: where libpq stops, also where another host could help.",
    ),
    own(
        "resolver",
        "PGFOLLOW_RESOLVER",
        Some("auto"),
        "auto, dns, system",
        "Who looks names up. `system` is getaddrinfo, which may answer from a cache.",
    ),
    own(
        "dns_servers",
        "PGFOLLOW_DNS_SERVERS",
        None,
        "address[:port], comma-separated",
        "Name servers instead of the system's. Not with resolver=system.",
    ),
    own(
        "monitor",
        "PGFOLLOW_MONITOR",
        Some("auto"),
        "auto, on, while_busy, off",
        "Sessions that watch the hosts. `off`: a frozen host is found only by the calls that hang on it.",
    ),
    own(
        "probe_interval",
        "PGFOLLOW_PROBE_INTERVAL",
        Some("1s"),
        "10ms to 1h",
        "Time between two probes of a host.",
    ),
    own(
        "suspect_after",
        "PGFOLLOW_SUSPECT_AFTER",
        Some("500ms"),
        "10ms to 1h",
        "Silence in a call after which the host is doubted. Too short: needless probes.",
    ),
    own(
        "on_new_cluster",
        "PGFOLLOW_ON_NEW_CLUSTER",
        Some("adopt"),
        "adopt, pin, ignore",
        "What to do when another system identifier appears. `ignore` gives up the guard against a wrong cluster.",
    ),
    own(
        "endpoint",
        "PGFOLLOW_ENDPOINT",
        Some("direct"),
        "direct, indirect",
        "`indirect`: behind a pooler, a VIP or a load balancer.",
    ),
    own(
        "never_primary",
        "PGFOLLOW_NEVER_PRIMARY",
        None,
        "names or addresses, comma-separated",
        "Hosts that must never be taken for the primary.",
    ),
    own(
        "max_connect_rate",
        "PGFOLLOW_MAX_CONNECT_RATE",
        Some("10"),
        "per second, 0.1 to 100000",
        "New connections a second, of the whole connector. Too high: a fleet can knock a new primary over.",
    ),
    own(
        "pool_max_conns",
        "PGFOLLOW_POOL_MAX_CONNS",
        Some("10"),
        "1 to 100000",
        "Most sessions of the pool. The sum over all processes must fit the server's max_connections.",
    ),
    own("pool_min_conns", "PGFOLLOW_POOL_MIN_CONNS", Some("0"), "0 to pool_max_conns", "Sessions kept open."),
    own(
        "pool_acquire_timeout",
        "PGFOLLOW_POOL_ACQUIRE_TIMEOUT",
        Some("5s"),
        "1ms to 1h",
        "Longest wait for a session.",
    ),
    own(
        "pool_max_conn_lifetime",
        "PGFOLLOW_POOL_MAX_CONN_LIFETIME",
        Some("30min"),
        "1s to 365d",
        "Age at which a session is replaced.",
    ),
    own(
        "pool_validate_after",
        "PGFOLLOW_POOL_VALIDATE_AFTER",
        Some("1s"),
        "0ms to 1h",
        "Idle time after which a session is checked before it is handed out. Long: a dead one may be handed out.",
    ),
];

/// The row of a keyword.
pub fn find(name: &str) -> Option<&'static OptionRow> {
    OPTIONS.iter().find(|r| r.name == name)
}

/// `docs/options.md`, made from the table.
pub fn options_markdown() -> String {
    let mut out = String::from(
        "# Options\n\n<!-- Made from core/src/config/table.rs: UPDATE=1 cargo test -p pgfollow --test pure options_doc -->\n\n\
         One connection string configures everything: libpq's URI or keyword/value form. Each value is taken from the \
         first of these that has it: the string (or the builder), the service file, the environment, the default. \
         `PGFOLLOW_HOSTS` (`host[:port],…`, as in a URI) replaces the candidates of any string. \
         `pgfollow config CONNINFO` prints the value of each option and where it came from.\n",
    );
    for (own, title) in [(true, "pgfollow's own"), (false, "libpq's")] {
        let _ = write!(
            out,
            "\n## {title}\n\n| keyword | variable | default | values | |\n| --- | --- | --- | --- | --- |\n"
        );
        for r in OPTIONS.iter().filter(|r| r.own == own) {
            let note = match r.support {
                Support::Used => String::new(),
                Support::Ignored(why) => format!(" Accepted without effect: {why}."),
                Support::Refused(remedy) => format!(" Refused: {remedy}."),
            };
            let code =
                |v: Option<&str>| v.filter(|v| !v.is_empty()).map_or("–".to_owned(), |v| format!("`{v}`"));
            let (variable, default) = (code(r.variable), code(r.default));
            let _ =
                writeln!(out, "| `{}` | {variable} | {default} | {} | {}{note} |", r.name, r.values, r.about);
        }
    }
    out.push_str(
        "\nDurations of pgfollow's own options carry a unit (`ms`, `s`, `min`, `h`, `d`); libpq's options keep \
         libpq's units. A repeated keyword: the last one wins. `requiressl=1` and, in a URI, `ssl=true` mean \
         `sslmode=require`, as in libpq. `PGSERVICEFILE`, `PGSYSCONFDIR`, `PGREQUIRESSL`, `PGDATESTYLE`, `PGTZ` and \
         `PGGEQO` mean what they mean to libpq. Empty `PGFOLLOW_*` variables count as not set; unknown ones warn.\n",
    );
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_keyword_or_variable_stands_twice_in_the_table() {
        for (i, r) in OPTIONS.iter().enumerate() {
            for s in &OPTIONS[..i] {
                assert_ne!(r.name, s.name);
                assert!(r.variable.is_none() || r.variable != s.variable, "{}", r.name);
            }
            if r.own {
                assert_eq!(r.variable.unwrap(), format!("PGFOLLOW_{}", r.name.to_uppercase()));
            }
        }
    }
}
