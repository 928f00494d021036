//! A host as configured ([`HostSpec`], perhaps a name) and as dialled ([`Address`]): two types, so that a name is
//! never taken for a place and a place never checked as a name.
//!
//! Decides nothing. The resolver turns specs into addresses; everything that is remembered (roles, terms,
//! generations) hangs on the address, and the name stays attached as a hint for TLS and for messages.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use serde::Serialize;

use crate::decide::place::literal;

/// A port as written in the connection string. A bad one is that host's failure, not the string's: the other
/// hosts are still tried (libpq reports it when the host's turn comes, `fe-connect.c`, `parse_int_param`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Port {
    /// 1 to 65535.
    Number(u16),
    /// What was written instead.
    Invalid(String),
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(n) => n.fmt(f),
            Self::Invalid(s) => s.fmt(f),
        }
    }
}

/// One entry of the connection string's host list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostSpec {
    /// A name or an address over TCP. With `hostaddr` no look-up is made; `host` then only names the host.
    Tcp {
        /// The name (or address literal) as written; `None` where only `hostaddr` was given.
        host: Option<String>,
        /// The address as written in `hostaddr`.
        hostaddr: Option<String>,
        /// The port.
        port: Port,
    },
    /// A Unix socket: directory (or `@name`, abstract) and the port that its file name carries.
    Unix {
        /// The directory.
        dir: PathBuf,
        /// The port.
        port: Port,
    },
    /// An empty entry: the platform's default local socket (or localhost).
    DefaultLocal {
        /// The port.
        port: Port,
    },
}

impl HostSpec {
    /// The port as written.
    pub fn port(&self) -> &Port {
        match self {
            Self::Tcp { port, .. } | Self::Unix { port, .. } | Self::DefaultLocal { port } => port,
        }
    }

    /// What messages call this host: the name, else the address, else the directory.
    pub fn label(&self) -> String {
        match self {
            Self::Tcp { host: Some(h), .. } => h.clone(),
            Self::Tcp { host: None, hostaddr, .. } => hostaddr.clone().unwrap_or_default(),
            Self::Unix { dir, .. } => dir.display().to_string(),
            Self::DefaultLocal { .. } => "local socket".to_owned(),
        }
    }

    /// Whether it is a name that has to be looked up: what is an address already can't move.
    pub fn is_looked_up(&self) -> bool {
        matches!(self, Self::Tcp { host: Some(name), hostaddr: None, .. } if literal(name, 0).is_none())
    }
}

/// A place that can be dialled.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Address {
    /// Over TCP.
    Tcp(SocketAddr),
    /// The path of a Unix socket (`@…` is the abstract namespace).
    Unix(PathBuf),
}

impl Address {
    /// Whether it is a Unix socket: nothing of it crosses a network.
    pub fn is_unix(&self) -> bool {
        matches!(self, Self::Unix(_))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(a) => a.fmt(f),
            Self::Unix(p) => p.display().fmt(f),
        }
    }
}

impl Serialize for Address {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

/// A small number for an address within one connector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct HostId(pub u32);

/// One address to dial, with the entry of the host list that it came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Index into the configured host list.
    pub spec: usize,
    /// The configured name (for TLS, SNI and messages); never an alias.
    pub name: Arc<str>,
    /// Where to dial.
    pub address: Address,
}

impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.address {
            Address::Tcp(a) if *self.name != *a.ip().to_string() => write!(f, "{} ({a})", self.name),
            a => a.fmt(f),
        }
    }
}
