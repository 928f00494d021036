//! A resolver with files of its own, and short names for what the tests say often.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use pgfollow::clock;
use pgfollow::config::ResolverKind;
use pgfollow::net::{Answer, Family, Resolve, ResolveError};
use pgfollow::resolve::{Resolver, SystemFiles, SystemLookup};
use pgfollow_lab::dns::DnsServer;

/// The look-up's own deadline in these tests, and by default.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(2);

pub(crate) type Looked = Result<Answer, ResolveError>;

pub(crate) struct Bench {
    pub(crate) kind: ResolverKind,
    pub(crate) servers: Vec<SocketAddr>,
    pub(crate) port: u16,
    pub(crate) system: Option<SystemLookup>,
    folder: PathBuf,
}

impl Bench {
    /// `dns_servers` are these; the hosts file is empty and there is no resolv.conf.
    pub(crate) fn with_servers(servers: &[&DnsServer]) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = format!("{}/resolve-{}-{n}", env!("CARGO_TARGET_TMPDIR"), std::process::id());
        std::fs::create_dir_all(&folder).expect("a folder");
        let servers = servers.iter().map(|s| s.address()).collect();
        Self { kind: ResolverKind::Auto, servers, port: 53, system: None, folder: folder.into() }
    }

    /// With a resolv.conf instead of `dns_servers`; its servers listen at that port.
    pub(crate) fn with_resolv_conf(text: &str, port: u16) -> Self {
        let mut b = Self::with_servers(&[]);
        b.port = port;
        b.write("resolv.conf", text);
        b
    }

    /// Writes `hosts` or `resolv.conf`.
    pub(crate) fn write(&self, file: &str, text: &str) {
        std::fs::write(self.folder.join(file), text).expect("a file");
    }

    pub(crate) fn resolver(&self, timeout: Duration) -> Resolver {
        let files = SystemFiles {
            hosts: self.folder.join("hosts"),
            resolv_conf: self.folder.join("resolv.conf"),
            port: self.port,
        };
        let r = Resolver::new(self.kind, self.servers.clone(), timeout).with_files(files);
        match &self.system {
            Some(s) => r.with_system_lookup(s.clone()),
            None => r.with_system_lookup(std::sync::Arc::new(|name| {
                panic!("the system was asked for {name}");
            })),
        }
    }

    pub(crate) async fn ask(&self, name: &str, family: Family) -> Looked {
        self.ask_within(name, family, TIMEOUT).await
    }

    pub(crate) async fn ask_within(&self, name: &str, family: Family, timeout: Duration) -> Looked {
        self.resolver(timeout).resolve(name, family).await
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

pub(crate) async fn server() -> DnsServer {
    DnsServer::start("127.0.0.1:0".parse().expect("an address")).await.expect("a name server")
}

/// Two servers at one port of two addresses: resolv.conf can't give a port to each.
pub(crate) async fn two_servers() -> (DnsServer, DnsServer) {
    let first = server().await;
    let second = SocketAddr::new(ip("127.0.0.2"), first.address().port());
    (first, DnsServer::start(second).await.expect("a name server"))
}

pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

#[track_caller]
pub(crate) fn ok(looked: Looked) -> Answer {
    looked.expect("an answer")
}

#[track_caller]
pub(crate) fn error(looked: Looked) -> ResolveError {
    looked.expect_err("an error")
}

pub(crate) async fn timed<F: Future>(f: F) -> (F::Output, Duration) {
    let start = clock::now();
    let output = f.await;
    (output, clock::now() - start)
}
