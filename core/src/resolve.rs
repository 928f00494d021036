//! A name's addresses: our own look-up over hickory-resolver, with no cache anywhere.
//!
//! Decides where an answer comes from: an address literal, `localhost`, the hosts file, the name servers, the
//! system's look-up (in this order). It doesn't decide when to ask or what an answer is worth:
//! [`crate::decide::names`] keeps that book, and the connector and the monitor ask when it says so.
//!
//! - The hosts file and resolv.conf are read for every look-up: both are rewritten under running processes.
//! - A and AAAA are asked apart, so a silent AAAA never holds back an A. A name that the hosts file has in one family
//!   only has no address in the other: the name servers are not asked for it (as glibc's "files dns").
//! - The search list and `ndots` work as in glibc's `res_search`: NXDOMAIN, no data and a server's failure go on to
//!   the next name, silence ends the look-up.
//! - `resolver=auto`: NXDOMAIN, or no configured name server, hands over to the system (mDNS, LDAP, containers'
//!   own modules). With `dns_servers` it never does: who names the servers wants their answer, not another's.
//!   `dns_servers` replaces the servers of resolv.conf; its search list and `ndots` stay, and so does the hosts file.
//! - `localhost` and names under it are loopback addresses whoever says otherwise (RFC 6761, 6.3).

mod ask;
mod files;
mod system;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::clock::{self, Deadline};
use crate::config::ResolverKind;
use crate::decide::place;
use crate::host::HostSpec;
use crate::net::{Answer, AnswerSource, BoxFuture, Family, Resolve, ResolveError};

pub use files::SystemFiles;
pub use system::SystemLookup;

/// Looks names up as [`ResolverKind`] says. One for each connector.
pub struct Resolver {
    kind: ResolverKind,
    dns_servers: Vec<SocketAddr>,
    timeout: Duration,
    files: SystemFiles,
    system: system::System,
    said_unknown: AtomicBool,
    said_unconfigured: AtomicBool,
}

impl Resolver {
    /// A resolver. Of `dns_servers` (and of resolv.conf's servers) the first three are asked, all at once. `timeout`
    /// bounds each look-up as a whole ([`crate::config::Tuning::resolve_timeout`]).
    pub fn new(kind: ResolverKind, dns_servers: Vec<SocketAddr>, timeout: Duration) -> Self {
        Self {
            kind,
            dns_servers,
            timeout,
            files: SystemFiles::default(),
            system: system::System::new(system::getaddrinfo()),
            said_unknown: AtomicBool::new(false),
            said_unconfigured: AtomicBool::new(false),
        }
    }

    /// With other files than the system's.
    #[must_use]
    pub fn with_files(mut self, files: SystemFiles) -> Self {
        self.files = files;
        self
    }

    /// With another look-up in the place of the system's.
    #[must_use]
    pub fn with_system_lookup(mut self, lookup: SystemLookup) -> Self {
        self.system = system::System::new(lookup);
        self
    }

    async fn look_up(&self, name: &str, family: Family, deadline: Deadline) -> Result<Answer, ResolveError> {
        if let Some(address) = literal(name, 0) {
            return of_family(vec![carried(name, address)?], family, AnswerSource::Literal);
        }
        if name.is_empty() || name.contains('\0') {
            return Err(ResolveError::NoSuchName);
        }
        let pinned = files::hosts_entry(&self.files.hosts, name);
        if is_localhost(name) {
            return of_family(loopback(pinned), family, AnswerSource::HostsFile);
        }
        if self.kind == ResolverKind::System {
            return self.ask_system(name, family).await;
        }
        if let Some(addresses) = pinned {
            return of_family(addresses, family, AnswerSource::HostsFile);
        }
        let may_hand_over = self.kind == ResolverKind::Auto && self.dns_servers.is_empty();
        let servers = match files::servers(&self.files, &self.dns_servers) {
            Ok(servers) => servers,
            Err(why) if may_hand_over => {
                if !self.said_unconfigured.swap(true, Ordering::Relaxed) {
                    tracing::info!(why, "no name server is configured: names are looked up by the system");
                }
                return self.ask_system(name, family).await;
            }
            Err(why) => {
                let remedy = "set dns_servers or resolver=system";
                return Err(ResolveError::ServerFailure(format!("none is configured ({why}): {remedy}")));
            }
        };
        match ask::ask(&servers, name, family, deadline).await {
            Ok(found) => {
                let answer = of_family(found.addresses, family, AnswerSource::Dns)?;
                Ok(Answer { ttl: Some(found.ttl), server: Some(found.server), ..answer })
            }
            Err(ResolveError::NoSuchName) if may_hand_over => {
                if !self.said_unknown.swap(true, Ordering::Relaxed) {
                    tracing::info!(
                        name,
                        "the name servers don't know the name: such names are looked up by the system too"
                    );
                }
                self.ask_system(name, family).await
            }
            Err(e) => Err(e),
        }
    }

    async fn ask_system(&self, name: &str, family: Family) -> Result<Answer, ResolveError> {
        let addresses = self.system.look_up(name).await?;
        of_family(addresses, family, AnswerSource::System)
    }
}

impl Resolve for Resolver {
    fn resolve<'a>(&'a self, name: &'a str, family: Family) -> BoxFuture<'a, Result<Answer, ResolveError>> {
        Box::pin(async move {
            let deadline = Deadline::after(self.timeout);
            deadline.bound(self.look_up(name, family, deadline)).await.unwrap_or(Err(ResolveError::TimedOut))
        })
    }
}

/// An address literal with a port: IPv4, IPv6, and IPv6 with a zone (`fe80::1%eth0`, `fe80::1%2`; RFC 4007, 11.2).
/// `None` for anything else. Who dials asks this first: a zone doesn't fit into a look-up's answer.
pub fn literal(text: &str, port: u16) -> Option<SocketAddr> {
    place::literal(text, port).or_else(|| {
        let (ip, zone) = text.split_once('%')?;
        Some(SocketAddrV6::new(ip.parse().ok()?, port, 0, files::interface_index(zone)?).into())
    })
}

/// The entry as the decisions take it: an address whose zone is an interface's name gets that interface's number.
pub(crate) fn numbered(spec: &HostSpec) -> HostSpec {
    let mut spec = spec.clone();
    if let HostSpec::Tcp { host, hostaddr, .. } = &mut spec
        && let Some(text) = hostaddr.as_ref().or(host.as_ref()).filter(|t| t.contains('%'))
        && let Some(SocketAddr::V6(a)) = literal(text, 0)
    {
        *hostaddr = Some(format!("{}%{}", a.ip(), a.scope_id()));
    }
    spec
}

/// The address alone; one with a zone would lose it and lead to another link.
fn carried(name: &str, address: SocketAddr) -> Result<IpAddr, ResolveError> {
    match address {
        SocketAddr::V6(a) if a.scope_id() != 0 => Err(ResolveError::ServerFailure(format!(
            "{name} has a zone: it is dialled as it is, not looked up"
        ))),
        a => Ok(a.ip()),
    }
}

fn is_localhost(name: &str) -> bool {
    let name = name.strip_suffix('.').unwrap_or(name);
    let last = name.rsplit('.').next().unwrap_or(name);
    last.eq_ignore_ascii_case("localhost")
}

/// The loopback addresses that the hosts file gives for a localhost name, else both of them.
fn loopback(pinned: Option<Vec<IpAddr>>) -> Vec<IpAddr> {
    let mut addresses = pinned.unwrap_or_default();
    addresses.retain(IpAddr::is_loopback);
    if addresses.is_empty() {
        addresses = vec![Ipv6Addr::LOCALHOST.into(), Ipv4Addr::LOCALHOST.into()];
    }
    addresses
}

fn of_family(
    mut addresses: Vec<IpAddr>,
    family: Family,
    source: AnswerSource,
) -> Result<Answer, ResolveError> {
    addresses.retain(|a| a.is_ipv4() == (family == Family::V4));
    if addresses.is_empty() {
        return Err(ResolveError::NoData);
    }
    Ok(Answer { addresses, ttl: None, source, server: None, at: clock::now() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::{Address, Port};

    #[test]
    fn a_zone_is_kept_for_the_dial_and_never_dropped_silently() {
        let a = literal("fe80::1%7", 5432);
        assert_eq!(a, Some(SocketAddrV6::new("fe80::1".parse().unwrap(), 5432, 0, 7).into()));
        assert!(matches!(carried("fe80::1%7", a.unwrap()), Err(ResolveError::ServerFailure(_))));
        assert_eq!(literal("fe80::1%no-such-interface", 1), None);
        assert_eq!(literal("fe80::1%../../x", 1), None);
        assert_eq!(literal("10.0.0.1%7", 1), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_zone_given_by_name_is_the_interface() {
        let Some(SocketAddr::V6(a)) = literal("fe80::1%lo", 1) else { panic!("no lo") };
        assert_eq!(a.scope_id(), 1);
    }

    /// The plan of a connect would else look such an address up as a name.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_zone_given_by_name_is_no_name_to_the_plan() {
        let tcp = |host: &str, hostaddr: Option<&str>| HostSpec::Tcp {
            host: Some(host.to_owned()),
            hostaddr: hostaddr.map(str::to_owned),
            port: Port::Number(5432),
        };
        let there = place::Place::Known(Address::Tcp("[fe80::1%1]:5432".parse().unwrap()));
        for spec in [tcp("fe80::1%lo", None), tcp("db", Some("fe80::1%lo")), tcp("fe80::1%1", None)] {
            let numbered = numbered(&spec);
            assert_eq!(place::of(&numbered, "/tmp".as_ref()), there);
            assert_eq!(numbered.label(), spec.label());
        }
        for other in [tcp("db", None), tcp("10.0.0.1", None), tcp("a%b", None)] {
            assert_eq!(numbered(&other), other);
        }
    }

    #[test]
    fn only_localhost_names_are_localhost() {
        for name in ["localhost", "LOCALHOST.", "db.localhost", "a.b.localhost."] {
            assert!(is_localhost(name), "{name}");
        }
        for name in ["localhost.test", "notlocalhost", "localhos", ""] {
            assert!(!is_localhost(name), "{name}");
        }
    }
}
