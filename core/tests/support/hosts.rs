//! The hosts of a case: scripted servers, black holes and closed ports, each on a loopback address of its own and all
//! on one port, so that a name can have several of them.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU32, Ordering};

use pgfollow::Address;
use pgfollow_lab::wire::{BlackHole, Options, Script, Seen, WireServer};

/// What stands behind an address.
#[derive(Clone, Debug)]
pub(crate) enum Kind {
    /// A scripted server, with a script for each connection in turn (the last one repeats).
    Scripts(Vec<Script>),
    /// Nobody listens.
    Refuses,
    /// The packets vanish.
    BlackHole,
}

/// One address of a name.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// What the case calls it: "h1", or "multi/2" for a name's second address.
    pub(crate) label: String,
    pub(crate) kind: Kind,
}

enum Running {
    Server(WireServer),
    Hole(#[expect(dead_code, reason = "held, not read")] BlackHole),
    Nobody,
}

/// The running hosts of one case.
pub(crate) struct Hosts {
    pub(crate) names: HashMap<String, Vec<IpAddr>>,
    pub(crate) port: u16,
    running: Vec<(String, IpAddr, Running)>,
}

impl Hosts {
    /// Starts them. A port that another process has on one of the addresses costs another try.
    pub(crate) async fn start(hosts: &[(String, Vec<Place>)], options: &Options) -> io::Result<Self> {
        let mut tries = 0;
        loop {
            match Self::start_once(hosts, options).await {
                Err(e) if e.kind() == io::ErrorKind::AddrInUse && tries < 20 => tries += 1,
                done => return done,
            }
        }
    }

    async fn start_once(hosts: &[(String, Vec<Place>)], options: &Options) -> io::Result<Self> {
        let addresses = fresh_network();
        // Reserves the port on an address that no host has.
        let reserved = std::net::TcpListener::bind((addresses(1), 0))?;
        let port = reserved.local_addr()?.port();
        let mut this = Self { names: HashMap::new(), port, running: Vec::new() };
        for (name, places) in hosts {
            for place in places {
                let last = u8::try_from(this.running.len() + 2).map_err(io::Error::other)?;
                let ip = addresses(last);
                this.names.entry(name.clone()).or_default().push(ip);
                let at = SocketAddr::new(ip, port);
                let running = match &place.kind {
                    Kind::Scripts(scripts) => {
                        Running::Server(WireServer::start_each(at, scripts.clone(), options.clone()).await?)
                    }
                    Kind::BlackHole => Running::Hole(BlackHole::open(at).await?),
                    Kind::Refuses => Running::Nobody,
                };
                this.running.push((place.label.clone(), ip, running));
            }
        }
        Ok(this)
    }

    /// The first address of a label.
    pub(crate) fn ip(&self, label: &str) -> IpAddr {
        let found = self.running.iter().find(|(l, ..)| l == label);
        found.unwrap_or_else(|| panic!("no host {label}")).1
    }

    /// What the case calls the host at an address.
    pub(crate) fn label_at(&self, address: &Address) -> String {
        let Address::Tcp(a) = address else { return address.to_string() };
        self.label_of(&a.ip().to_string()).unwrap_or_else(|| a.to_string())
    }

    /// The same for an address in text form.
    pub(crate) fn label_of(&self, ip: &str) -> Option<String> {
        self.running.iter().find(|(_, a, _)| a.to_string() == ip).map(|(l, ..)| l.clone())
    }

    /// What the scripted server of this label has seen so far; nothing for other kinds of hosts.
    pub(crate) fn seen(&self, label: &str) -> Vec<Seen> {
        let server = self.running.iter().find_map(|(l, _, r)| match r {
            Running::Server(s) if l == label => Some(s),
            _ => None,
        });
        server.map(WireServer::seen).unwrap_or_default()
    }

    /// The labels of all scripted servers that were contacted.
    pub(crate) fn contacted(&self) -> Vec<String> {
        let labels = self.running.iter().filter_map(|(l, _, r)| match r {
            Running::Server(s) if s.connections() > 0 => Some(l.clone()),
            _ => None,
        });
        labels.collect()
    }

    /// Ends all servers.
    pub(crate) async fn stop(self) {
        for (_, _, running) in self.running {
            if let Running::Server(server) = running {
                server.stop().await;
            }
        }
    }
}

/// A /24 of the loopback network that no other case of this process uses, and few of other processes.
fn fresh_network() -> impl Fn(u8) -> IpAddr {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let n = NEXT.fetch_add(1, Ordering::Relaxed) + std::process::id().wrapping_mul(977);
    let [_, _, high, low] = n.to_be_bytes();
    move |last| IpAddr::V4(Ipv4Addr::new(127, 64 | (high & 0x3f), low, last))
}
