//! Every option: name, unit, default, range and hazard.
//!
//! [`Config`] holds values that are already valid; [`crate::conninfo`] reads text, `build.rs` makes the values. What
//! is not an option of the string is a named constant in [`Tuning`], with its reason.

mod build;
mod builder;
mod doubts;
mod effective;
mod hosts;
pub(crate) mod ranges;
mod reader;
mod security;
pub(crate) mod suggest;
mod table;
mod values;

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;

pub use builder::ConfigBuilder;
pub use effective::{ConfiguredHost, EffectiveOption};
pub(crate) use suggest::remedy;
pub use table::{OPTIONS, OptionRow, Support, find, options_markdown};

use crate::conninfo::{Environment, Origin, Settings};
use crate::decide::pace::HANDSHAKES;
use crate::error::Error;
use crate::host::HostSpec;
use crate::net::SocketOptions;

/// A secret: never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps a secret.
    pub fn new(s: impl Into<String>) -> Self {
        Self(s.into())
    }

    /// The text itself: for the login exchange only.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

macro_rules! keyword_enum {
    ($(#[doc = $doc:literal])+ $name:ident { $($(#[doc = $vdoc:literal])+ $v:ident = $text:literal,)+ }) => {
        $(#[doc = $doc])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, serde::Deserialize)]
        pub enum $name { $($(#[doc = $vdoc])+ #[serde(rename = $text)] $v,)+ }

        impl $name {
            /// Every value as it is written in a connection string.
            pub const VALUES: &'static [&'static str] = &[$($text),+];

            /// From the written form.
            pub fn from_keyword(s: &str) -> Option<Self> {
                match s { $($text => Some(Self::$v),)+ _ => None }
            }

            /// The written form.
            pub const fn keyword(self) -> &'static str {
                match self { $(Self::$v => $text,)+ }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { f.write_str(self.keyword()) }
        }
    };
}

keyword_enum! {
    /// `target_session_attrs`, with libpq's exact meaning (libpq manual, "Connection Parameters").
    SessionAttrs {
        /// Any host.
        Any = "any",
        /// Not in recovery and not read-only by default.
        ReadWrite = "read-write",
        /// In recovery, or read-only by default.
        ReadOnly = "read-only",
        /// Not in recovery.
        Primary = "primary",
        /// In recovery.
        Standby = "standby",
        /// In recovery if there is one, else any.
        PreferStandby = "prefer-standby",
    }
}

impl SessionAttrs {
    /// Whether only the primary will do: of that role there is one host.
    pub(crate) fn needs_primary(self) -> bool {
        matches!(self, Self::ReadWrite | Self::Primary)
    }
}

keyword_enum! {
    /// `sslmode` (libpq manual, "SSL Support").
    SslMode {
        /// Never TLS.
        Disable = "disable",
        /// Plain first, TLS if the server refuses that.
        Allow = "allow",
        /// TLS first, plain if the server has none.
        Prefer = "prefer",
        /// TLS, the certificate unchecked unless a root is configured.
        Require = "require",
        /// TLS with a trusted certificate.
        VerifyCa = "verify-ca",
        /// TLS with a trusted certificate of that very host.
        VerifyFull = "verify-full",
    }
}

keyword_enum! {
    /// `sslnegotiation`.
    SslNegotiation {
        /// An SSLRequest first.
        Postgres = "postgres",
        /// TLS at once, with ALPN (PostgreSQL 17 and later).
        Direct = "direct",
    }
}

keyword_enum! {
    /// `sslcertmode`.
    SslCertMode {
        /// Never send a client certificate.
        Disable = "disable",
        /// Send one if there is one and the server asks.
        Allow = "allow",
        /// The server must ask for one.
        Require = "require",
    }
}

keyword_enum! {
    /// `channel_binding`.
    ChannelBinding {
        /// Never.
        Disable = "disable",
        /// Where the server offers it.
        Prefer = "prefer",
        /// A -PLUS mechanism was used, or the login fails.
        Require = "require",
    }
}

keyword_enum! {
    /// `load_balance_hosts`.
    LoadBalanceHosts {
        /// In the configured order.
        Disable = "disable",
        /// Hosts shuffled, then the addresses of each.
        Random = "random",
    }
}

keyword_enum! {
    /// `host_walk`: where the walk through the host list stops.
    HostWalk {
        /// Goes on wherever another host may help.
        Follow = "follow",
        /// Stops where libpq stops, one dial after another.
        Strict = "strict",
    }
}

keyword_enum! {
    /// `resolver`.
    ResolverKind {
        /// Our own; the system's where the name doesn't exist there or nothing is configured.
        Auto = "auto",
        /// Our own alone.
        Dns = "dns",
        /// The system's (getaddrinfo).
        System = "system",
    }
}

keyword_enum! {
    /// `monitor`.
    MonitorMode {
        /// Sessions to the standbys; the primary is watched through the traffic itself where there is any.
        Auto = "auto",
        /// A session to every host at all times.
        On = "on",
        /// None while no call is in flight.
        WhileBusy = "while_busy",
        /// Only what sessions learn themselves.
        Off = "off",
    }
}

keyword_enum! {
    /// `on_new_cluster`: what to do when another system identifier appears.
    OnNewCluster {
        /// Follow it once the old one has not been seen as primary for 10 s and all fresh primaries agree.
        Adopt = "adopt",
        /// Stay with the old one.
        Pin = "pin",
        /// Don't look at system identifiers.
        Ignore = "ignore",
    }
}

keyword_enum! {
    /// `endpoint`.
    Endpoint {
        /// The address is the server itself (until it is seen not to be).
        Direct = "direct",
        /// The address is a pooler, a VIP or a load balancer.
        Indirect = "indirect",
    }
}

/// One authentication method of `require_auth`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum AuthMethod {
    /// Cleartext password.
    Password,
    /// MD5.
    Md5,
    /// SCRAM-SHA-256, with or without channel binding.
    ScramSha256,
    /// No authentication exchange at all.
    None,
}

/// `sslrootcert`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RootCert {
    /// The default file (`~/.postgresql/root.crt`) if it is there.
    Default(PathBuf),
    /// That file; it must be there.
    File(PathBuf),
    /// The system's trusted roots.
    System,
}

/// Everything about TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each field is the libpq keyword of its name")]
pub struct TlsConfig {
    pub sslmode: SslMode,
    pub sslnegotiation: SslNegotiation,
    pub sslrootcert: RootCert,
    /// Client certificate; the flag says that it was configured (else it is the default file, used if there).
    pub sslcert: (PathBuf, bool),
    pub sslkey: (PathBuf, bool),
    pub sslpassword: Option<Secret>,
    pub sslcertmode: SslCertMode,
    pub sslcrl: Option<PathBuf>,
    pub sslcrldir: Option<PathBuf>,
    pub sslsni: bool,
    /// Lowest and highest protocol version: `TLSv1.2` or `TLSv1.3`.
    pub min_protocol: TlsVersion,
    pub max_protocol: Option<TlsVersion>,
}

keyword_enum! {
    /// A TLS protocol version.
    TlsVersion {
        /// 1.2
        V12 = "TLSv1.2",
        /// 1.3
        V13 = "TLSv1.3",
    }
}

/// A connector's configuration: valid, complete, and the same for every language.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "each field is the keyword of its name; the table of options describes them")]
pub struct Config {
    pub hosts: Vec<HostSpec>,
    /// The password for each host of `hosts` (from the string, the environment or the password file).
    pub passwords: Vec<Option<Secret>>,
    pub user: String,
    pub dbname: String,
    /// `options` for the startup packet.
    pub options: Option<String>,
    pub application_name: String,
    pub client_encoding: Option<String>,
    /// `None`: no limit (libpq: 0 or negative). Bounds one address, from dial to role.
    pub connect_timeout: Option<Duration>,
    pub socket: SocketOptions,
    pub tls: TlsConfig,
    pub channel_binding: ChannelBinding,
    /// Permitted methods; `None` permits all (but a cleartext password never without TLS).
    pub require_auth: Option<Vec<AuthMethod>>,
    /// `None`: not given anywhere (libpq's any for `connect`; over several hosts, pools and runs take read-write).
    pub target_session_attrs: Option<SessionAttrs>,
    pub load_balance_hosts: LoadBalanceHosts,
    pub host_walk: HostWalk,
    pub resolver: ResolverKind,
    pub dns_servers: Vec<SocketAddr>,
    pub monitor: MonitorMode,
    pub probe_interval: Duration,
    pub suspect_after: Duration,
    pub on_new_cluster: OnNewCluster,
    pub endpoint: Endpoint,
    /// Names or addresses of hosts that must never be taken for the primary.
    pub never_primary: Vec<String>,
    pub max_connect_rate: f64,
    pub pool_max_conns: usize,
    pub pool_min_conns: usize,
    pub pool_acquire_timeout: Duration,
    pub pool_max_conn_lifetime: Duration,
    pub pool_validate_after: Duration,
    pub tuning: Tuning,
    /// The directory that [`HostSpec::DefaultLocal`] means.
    pub local_socket_dir: PathBuf,
    /// Hazards of this configuration that are no errors; already logged.
    pub warnings: Vec<String>,
    /// Where the password of each host of `hosts` came from.
    pub password_origins: Vec<Option<Origin>>,
    pub(crate) settings: Settings,
}

impl Config {
    /// Reads a connection string in the process's own surroundings: its environment, service and password files.
    ///
    /// # Errors
    /// As [`ConfigBuilder::build`].
    pub fn parse(text: &str) -> Result<Self, Error> {
        Self::builder().conninfo(text).build()
    }

    /// Reads a connection string in given surroundings.
    ///
    /// # Errors
    /// As [`ConfigBuilder::build`].
    pub fn parse_in(text: &str, environment: &Environment) -> Result<Self, Error> {
        Self::builder().conninfo(text).environment(environment.clone()).build()
    }

    /// Starts a configuration in code.
    pub fn builder() -> ConfigBuilder {
        ConfigBuilder::default()
    }

    /// The role that pools and runs want. Whoever hands over work, and not a session to look around with, means to write
    /// unless he says otherwise; libpq's `any` would keep him on a standby for good.
    pub(crate) fn work_attrs(&self) -> SessionAttrs {
        let usual = if self.hosts.len() > 1 { SessionAttrs::ReadWrite } else { SessionAttrs::Any };
        self.target_session_attrs.unwrap_or(usual)
    }
}

impl std::str::FromStr for Config {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Self::parse(text)
    }
}

/// The named constants: not options, for nobody should need to turn them. Settable through the builder only.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Tuning {
    /// Head start of one candidate over the next while nothing is known of the network. libpq has none; RFC 8305
    /// (Happy Eyeballs, section 5) recommends 250 ms.
    pub stagger: Duration,
    /// Never start candidates closer together than this: below it a stagger is no courtesy any more.
    pub stagger_min: Duration,
    /// A topology answer younger than this lets a connect go to the known primary alone.
    pub fresh: Duration,
    /// How long the process's first write session waits for all candidates to answer.
    pub first_write_wait: Duration,
    /// A look-up's own deadline.
    pub resolve_timeout: Duration,
    /// Reply deadline of one probe.
    pub probe_deadline: Duration,
    /// Missed probes until a host is Down.
    pub probe_misses: u32,
    /// Role and term are read at least this often, even where traffic proves that the host lives.
    pub term_read_every: Duration,
    /// Between two questions on an open probe session while a primary is sought. Short, because half of it is added to
    /// every failover; the question is as cheap as one can be (0.1 ms, "in recovery?") for as long as it is a standby.
    pub search_interval: Duration,
    /// First gap between two dials of a probe session during a search.
    pub search_dial_first: Duration,
    /// Longest gap between two dials of a probe session in the first 30 s of a search.
    pub search_dial_max: Duration,
    /// What a search or probe timer is multiplied by (± this share) so that processes don't march in step.
    pub jitter: f64,
    /// Logins at once to one host, beside `max_connect_rate`. A login costs the server CPU (SCRAM: 4 ms); done side by
    /// side by a whole process, all would end late together, the first one too.
    pub handshakes: usize,
    /// The interval after a new primary was found, for ten seconds: the old one returns, a second failover comes.
    pub watchful_interval: Duration,
    /// A host that sent a byte within this is alive; harmless requests there get this long to finish.
    pub grace: Duration,
    /// Our own runtime stalled when a timer came this late: silence in that window proves nothing.
    pub stall: Duration,
    /// Tokens of outcome checks are drawn from the connector's seed, so that a simulation can be played again. Never in
    /// service: two connectors with one seed would take each other's commits for their own.
    pub seeded_tokens: bool,
}

impl Default for Tuning {
    fn default() -> Self {
        let ms = Duration::from_millis;
        Self {
            stagger: ms(250),
            stagger_min: ms(10),
            fresh: ms(2_000),
            first_write_wait: ms(150),
            resolve_timeout: ms(2_000),
            probe_deadline: ms(1_000),
            probe_misses: 3,
            term_read_every: ms(5_000),
            search_interval: ms(20),
            search_dial_first: ms(100),
            search_dial_max: ms(500),
            jitter: 0.2,
            handshakes: HANDSHAKES,
            watchful_interval: ms(250),
            grace: ms(1_000),
            stall: ms(200),
            seeded_tokens: false,
        }
    }
}
