//! A primary and its standbys on loopback addresses: start, who follows whom, the end.
//!
//! Faults of one server are in [`Node`]. The drill, `pgfollow lab` and the tests call this.

mod conf;
mod exhaust;
mod home;
mod network;
mod node;
mod pooler;
mod replication;
mod slow;
mod start;
mod template;

use std::collections::BTreeSet;
use std::fmt;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

pub use exhaust::Exhausted;
use home::Home;
pub use node::{Node, StopMode};
pub use pooler::{PoolMode, Pooler};
pub use slow::Slowed;

use crate::{Binaries, LabError};

/// The service's user, with a password, not a superuser.
const APP_USER: &str = "app";
/// The service's database; [`APP_USER`] owns it.
const APP_DATABASE: &str = "app";
/// The prober's table. The lab owns it; a service has no business in it.
pub(crate) const PROBE_TABLE: &str = "pgfollow_lab_probe";

/// A server certificate for all nodes, as PEM texts.
#[derive(Clone)]
pub struct Tls {
    /// The certificate (chain).
    pub certificate: String,
    /// Its private key.
    pub key: String,
    /// Who signs client certificates, if any are asked for.
    pub client_ca: Option<String>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls { .. }")
    }
}

/// What cluster to start.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ClusterOptions {
    /// The servers.
    pub binaries: Binaries,
    /// How many nodes: one primary, the others standbys. 1 to 9.
    pub nodes: usize,
    /// Whether a commit waits for the first standby (`FIRST 1 (n2, n3)`).
    pub sync: bool,
    /// The first node's address; the others follow. All on one port.
    pub first_address: Ipv4Addr,
    /// The port; without it a free one.
    pub port: Option<u16>,
    /// Server settings on top of the lab's, on every node.
    pub settings: Vec<(String, String)>,
    /// TLS; needs binaries that have it.
    pub tls: Option<Tls>,
    /// The whole pg_hba.conf; without it SCRAM for everybody on 127.0.0.0/8. Must let user postgres in from
    /// there by password or trust, for replication too: those are the lab's own sessions.
    pub hba: Option<String>,
}

impl ClusterOptions {
    /// Three nodes, synchronous, from 127.0.0.2, on a free port.
    pub fn new(binaries: Binaries) -> Self {
        Self {
            binaries,
            nodes: 3,
            sync: true,
            first_address: Ipv4Addr::new(127, 0, 0, 2),
            port: None,
            settings: Vec::new(),
            tls: None,
            hba: None,
        }
    }
}

/// Random passwords, for this cluster alone.
#[derive(Clone)]
pub(crate) struct Secrets {
    pub(crate) superuser: String,
    pub(crate) app: String,
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secrets { .. }")
    }
}

/// A running cluster. Dropping it kills every process and removes every file of it; if this process is killed
/// first, the keeper does both.
#[derive(Debug)]
pub struct Cluster {
    home: Home,
    nodes: Vec<Arc<Node>>,
    sync: bool,
    primary: AtomicUsize,
    binaries: Binaries,
    secrets: Secrets,
    /// What goes on after a promotion: standbys brought back, the primary made synchronous again.
    after_promotion: Mutex<Vec<tokio::task::JoinHandle<()>>>,
    /// Held while a node is turned into a standby, so that two don't do it at once.
    rejoin: Arc<tokio::sync::Mutex<()>>,
    /// The nodes behind a black hole.
    cut: Mutex<BTreeSet<usize>>,
}

impl Cluster {
    /// Starts it: about two seconds. Replication streams, and the standbys have all of the set-up, when it returns.
    pub async fn start(options: ClusterOptions) -> Result<Self, LabError> {
        start::start(options).await
    }

    /// All nodes; the first was the first primary.
    pub fn nodes(&self) -> &[Arc<Node>] {
        &self.nodes
    }

    /// One node, from 0.
    ///
    /// # Panics
    /// If there is no such node: a mistake of the caller.
    pub fn node(&self, index: usize) -> &Node {
        &self.nodes[index]
    }

    /// The node of that name, number or address (`n2`, `2`, `127.0.0.3`); `primary` is the one promoted last.
    pub fn index_of(&self, name: &str) -> Option<usize> {
        if name == "primary" {
            return Some(self.primary());
        }
        let called = |n: &Node| {
            n.name() == name || n.name().strip_prefix('n') == Some(name) || n.host().to_string() == name
        };
        self.nodes.iter().position(|n| called(n))
    }

    /// The node that was made primary last.
    pub fn primary(&self) -> usize {
        self.primary.load(Ordering::Relaxed)
    }

    /// Whether commits wait for a standby.
    pub fn is_sync(&self) -> bool {
        self.sync
    }

    /// The servers' version, such as `15.18`.
    pub fn server_version(&self) -> &str {
        self.binaries.version()
    }

    /// The service's multi-host URI, all nodes in order, password included.
    pub fn conninfo(&self) -> String {
        let hosts: Vec<String> = self.nodes.iter().map(|n| format!("{}:{}", n.host(), n.port())).collect();
        self.conninfo_to(&hosts.join(","))
    }

    /// The same with other hosts (`host[:port],…`), for names and proxies.
    pub fn conninfo_to(&self, hosts: &str) -> String {
        format!("postgresql://{APP_USER}:{}@{hosts}/{APP_DATABASE}", self.secrets.app)
    }

    /// The service's user.
    pub fn user(&self) -> &'static str {
        APP_USER
    }

    /// The service's database.
    pub fn database(&self) -> &'static str {
        APP_DATABASE
    }

    /// The service's password. Random for each cluster.
    pub fn password(&self) -> &str {
        &self.secrets.app
    }

    /// The cluster's temporary folder.
    pub fn folder(&self) -> &Path {
        self.home.path()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for task in self.after_promotion.get_mut().map(std::mem::take).unwrap_or_default() {
            task.abort();
        }
        // The postmasters are our children, so we reap them; all else is the folder's Drop, which comes next.
        for node in &self.nodes {
            node.reap();
        }
    }
}
