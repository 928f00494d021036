//! What the system's files say: the hosts file, resolv.conf, and an interface's number. Read anew each time.

use std::fs::File;
use std::io::Read;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use super::ask::Servers;

/// Files longer than this are read up to here: a hosts file of half a million lines is no list of databases.
const LONGEST: u64 = 16 << 20;
/// Name servers taken (glibc's MAXNS): all of them are asked at once, so the number has to stay small.
const SERVERS: usize = 3;

/// Where the system keeps its configuration.
#[derive(Clone, Debug)]
pub struct SystemFiles {
    /// The hosts file.
    pub hosts: PathBuf,
    /// resolv.conf. Where the platform has none (Windows, Apple's), the system's own store is read instead.
    pub resolv_conf: PathBuf,
    /// The port of resolv.conf's servers, which name none.
    pub port: u16,
}

impl Default for SystemFiles {
    fn default() -> Self {
        let hosts = if cfg!(windows) { r"C:\Windows\System32\drivers\etc\hosts" } else { "/etc/hosts" };
        Self { hosts: hosts.into(), resolv_conf: "/etc/resolv.conf".into(), port: 53 }
    }
}

fn read(path: &Path) -> std::io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?.take(LONGEST).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The addresses that the hosts file gives for a name, both families; `None` if it doesn't have the name. The last
/// dot and the case don't matter. Lines that can't be read are skipped, as by everybody (hosts(5)).
pub(super) fn hosts_entry(path: &Path, name: &str) -> Option<Vec<IpAddr>> {
    hosts_lines(&read(path).ok()?, name)
}

fn hosts_lines(text: &str, name: &str) -> Option<Vec<IpAddr>> {
    let name = name.strip_suffix('.').unwrap_or(name);
    let mut found: Vec<IpAddr> = Vec::new();
    for line in text.trim_start_matches('\u{feff}').lines() {
        let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
        let Some(address) = words.next() else { continue };
        if !words.any(|w| w.strip_suffix('.').unwrap_or(w).eq_ignore_ascii_case(name)) {
            continue;
        }
        if let Ok(address) = address.parse()
            && !found.contains(&address)
        {
            found.push(address);
        }
    }
    (!found.is_empty()).then_some(found)
}

/// The name servers and how names are completed. `explicit` servers replace the system's. The error says why there
/// is none.
pub(super) fn servers(files: &SystemFiles, explicit: &[SocketAddr]) -> Result<Servers, String> {
    let system = system_conf(files);
    let mut servers = match system {
        Ok(servers) => servers,
        // The servers are known; without a search list and with one dot names are asked as they are.
        Err(_) if !explicit.is_empty() => {
            Servers { addresses: vec![], search: vec![], ndots: 1, edns: false }
        }
        Err(why) => return Err(why),
    };
    if !explicit.is_empty() {
        servers.addresses = explicit.to_vec();
    }
    servers.addresses.truncate(SERVERS);
    if servers.addresses.is_empty() {
        return Err("the system's configuration has no name server".to_owned());
    }
    Ok(servers)
}

fn system_conf(files: &SystemFiles) -> Result<Servers, String> {
    #[cfg(all(unix, not(any(target_os = "android", target_vendor = "apple"))))]
    let (config, options) = {
        let path = &files.resolv_conf;
        let text = read(path).map_err(|e| format!("{}: {e}", path.display()))?;
        hickory_resolver::system_conf::parse_resolv_conf(text)
            .map_err(|e| format!("{}: {e}", path.display()))?
    };
    #[cfg(not(all(unix, not(any(target_os = "android", target_vendor = "apple")))))]
    let (config, options) = hickory_resolver::system_conf::read_system_conf().map_err(|e| e.to_string())?;
    let (domain, search, name_servers) = config.into_parts();
    // `search` and `domain` exclude each other (resolv.conf(5)); the domain of the host's own name comes last.
    let search = if search.is_empty() { domain.into_iter().collect() } else { search };
    Ok(Servers {
        addresses: name_servers.iter().map(|s| SocketAddr::new(s.ip, files.port)).collect(),
        search,
        ndots: options.ndots,
        edns: options.edns0,
    })
}

/// The number of a network interface, where the system shows it as a file.
pub(super) fn interface_index(name: &str) -> Option<u32> {
    if name.is_empty() || name.starts_with('.') || name.contains('/') {
        return None;
    }
    read(&Path::new("/sys/class/net").join(name).join("ifindex")).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(text: &str, name: &str) -> Option<Vec<String>> {
        hosts_lines(text, name).map(|a| a.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn a_hosts_file_written_by_many_hands_is_read_as_the_c_library_reads_it() {
        let text = "\u{feff}# comment\n10.0.0.1\tdb.test DB2.test # db3.test\nnonsense db.test\n\n\
                    fe80::1%lo0 db.test\n::1 db.test.\n10.0.0.1 db.test\n10.0.0.9\n";
        assert_eq!(entry(text, "db.test"), Some(vec!["10.0.0.1".into(), "::1".into()]));
        assert_eq!(entry(text, "db2.TEST."), Some(vec!["10.0.0.1".into()]));
        assert_eq!(entry(text, "db3.test"), None, "it stands in a comment");
        assert_eq!(entry(text, "b.test"), None, "a part of a name is no name");
        assert_eq!(entry("", "db.test"), None);
    }
}
