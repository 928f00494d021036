//! Where an entry of the host list leads without a look-up.
//!
//! Decides what is an address, what a name and what neither. An address's zone must be a number here: what an
//! interface's name stands for, the system knows ([`crate::resolve`]).

use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::path::Path;

use crate::failure::Failure;
use crate::host::{Address, HostSpec, Port};

/// `sockaddr_un.sun_path` holds 108 bytes on Linux, the closing zero among them (`unix(7)`).
const SOCKET_PATH_MAX: usize = 107;

/// Where an entry of the host list leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// Here.
    Known(Address),
    /// Wherever this name leads, at this port.
    Name(String, u16),
    /// Nowhere.
    Bad(Failure),
}

/// Where this entry leads. `local_dir`: of the platform's default socket.
pub fn of(spec: &HostSpec, local_dir: &Path) -> Place {
    let port = match spec.port() {
        Port::Number(n) => *n,
        Port::Invalid(text) => return Place::Bad(Failure::BadPort(text.clone())),
    };
    match spec {
        HostSpec::Tcp { hostaddr: Some(text), .. } => match literal(text, port) {
            Some(a) => Place::Known(Address::Tcp(a)),
            None => Place::Bad(Failure::BadAddress(format!(
                "hostaddr={text} is not an IP address: put a name into host instead"
            ))),
        },
        HostSpec::Tcp { host: Some(name), hostaddr: None, .. } => match literal(name, port) {
            Some(a) => Place::Known(Address::Tcp(a)),
            None => Place::Name(name.clone(), port),
        },
        HostSpec::Tcp { host: None, hostaddr: None, .. } => {
            Place::Bad(Failure::BadAddress("neither host nor hostaddr is given".to_owned()))
        }
        HostSpec::Unix { dir, .. } => socket(dir, port),
        HostSpec::DefaultLocal { .. } => socket(local_dir, port),
    }
}

/// An address literal, perhaps with a numeric zone (`fe80::1%2`), and a port.
pub fn literal(text: &str, port: u16) -> Option<SocketAddr> {
    match text.parse::<IpAddr>() {
        Ok(ip) => Some(SocketAddr::new(ip, port)),
        Err(_) => format!("[{text}]:{port}").parse::<SocketAddrV6>().ok().map(SocketAddr::V6),
    }
}

/// The socket file in a directory (`@name`: in the abstract namespace); PostgreSQL's `pqcomm.h`, UNIXSOCK_PATH.
fn socket(dir: &Path, port: u16) -> Place {
    let path = dir.join(format!(".s.PGSQL.{port}"));
    if path.as_os_str().len() > SOCKET_PATH_MAX {
        return Place::Bad(Failure::BadAddress(format!(
            "the socket's path {} is longer than {SOCKET_PATH_MAX} bytes: use a shorter directory in host",
            path.display()
        )));
    }
    Place::Known(Address::Unix(path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;

    #[test]
    fn a_host_that_is_an_address_already_is_never_taken_for_a_name_that_may_move() {
        let looked_up = |conninfo: &str| {
            let config = Config::parse(&format!("{conninfo} user=u")).expect("a configuration");
            let spec = &config.hosts[0];
            // Both who looks it up and who says what an outage was ask this.
            assert_eq!(
                spec.is_looked_up(),
                matches!(of(spec, Path::new("/tmp")), Place::Name(..)),
                "{conninfo}"
            );
            spec.is_looked_up()
        };
        assert!(looked_up("host=db-a"));
        for address in
            ["host=10.0.0.1", "host=::0001", "host=fe80::1%2", "host=db-a hostaddr=10.0.0.1", "host=/tmp"]
        {
            assert!(!looked_up(address), "{address}");
        }
    }
}
