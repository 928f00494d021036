//! The candidates: `host`, `hostaddr` and `port` matched with each other, by libpq's rules (`pqConnectOptions2`).

use super::reader::Values;
use super::values::integer;
use crate::conninfo::failed;
use crate::error::{Code, Error};
use crate::host::{HostSpec, Port};

/// What every build of PostgreSQL uses unless told otherwise.
const DEFAULT_PORT: u16 = 5432;

/// A piece of a password that wasn't percent-encoded ends up in host, port or dbname. No host name and no port has an
/// `@` inside, so this is said at once, and the text, which later messages would show, is not kept. The same for a pair
/// that an empty value swallowed (`host= password=x`).
pub(super) fn check_for_stray_at_signs(v: &Values<'_>) -> Result<(), Error> {
    let inside = |name: &str| {
        v.0.non_empty(name)
            .is_some_and(|t| t.split(',').any(|one| !one.starts_with('/') && one.rfind('@') > Some(0)))
    };
    let stray = |advice: &str| Err(failed(Code::InvalidConninfo, advice));
    let password =
        |name: &str| v.0.non_empty(name).is_some_and(|t| t.to_ascii_lowercase().contains("password="));
    if password("host") || password("hostaddr") {
        return stray(
            "the value of host is empty, and the password behind it was taken for it: write the name, or host='' where \
             none is meant",
        );
    }
    let odd_port =
        v.0.non_empty("port").is_some_and(|t| t.split(',').any(|p| matches!(port(p), Port::Invalid(_))));
    if inside("host") || inside("port") {
        return stray(
            "host or port contains an \"@\" that can't be part of one: in a URI, write @ inside a user name or a password as %40",
        );
    }
    if odd_port && v.0.non_empty("dbname").is_some_and(|d| d.contains('@')) {
        return stray(
            "port is no number and dbname contains an \"@\": in a URI, write / inside a user name or a password as %2F",
        );
    }
    Ok(())
}

/// The candidates, in the order given.
pub(super) fn hosts(v: &Values<'_>) -> Result<Vec<HostSpec>, Error> {
    let list = |name: &str| v.0.non_empty(name).map(|t| t.split(',').collect::<Vec<_>>());
    let (names, addresses) = (list("host"), list("hostaddr"));
    let count = addresses.as_ref().or(names.as_ref()).map_or(1, Vec::len);
    if let (Some(names), Some(addresses)) = (&names, &addresses)
        && names.len() != addresses.len()
    {
        return Err(mismatch(
            v,
            ("host", names.len()),
            ("hostaddr", addresses.len()),
            "give each host one address",
        ));
    }
    let mut ports = list("port").unwrap_or_else(|| vec![""]);
    if ports.len() == 1 {
        ports = vec![ports[0]; count];
    }
    if ports.len() != count {
        let other = if addresses.is_some() { "hostaddr" } else { "host" };
        let remedy = "give one port for all hosts, or one for each";
        return Err(mismatch(v, ("port", ports.len()), (other, count), remedy));
    }
    let item =
        |list: &Option<Vec<&str>>, i: usize| list.as_ref().map(|l| l[i].to_owned()).filter(|s| !s.is_empty());
    let spec = |(i, text): (usize, &&str)| {
        let port = port(text);
        match (item(&names, i), item(&addresses, i)) {
            (host, hostaddr @ Some(_)) => HostSpec::Tcp { host, hostaddr, port },
            (Some(dir), None) if dir.starts_with(['/', '@']) => HostSpec::Unix { dir: dir.into(), port },
            (host @ Some(_), None) => HostSpec::Tcp { host, hostaddr: None, port },
            (None, None) => HostSpec::DefaultLocal { port },
        }
    };
    Ok(ports.iter().enumerate().map(spec).collect())
}

fn mismatch(v: &Values<'_>, one: (&str, usize), other: (&str, usize), remedy: &str) -> Error {
    let source = |name: &str| match v.0.origin(name) {
        crate::conninfo::Origin::Environment(variable) => format!("{name} ({variable})"),
        _ => name.to_owned(),
    };
    failed(
        Code::InvalidOption,
        format!("{} has {} entries and {} has {}: {remedy}", source(one.0), one.1, source(other.0), other.1),
    )
}

/// A port; a bad one stays as text, for its host's own failure.
fn port(text: &str) -> Port {
    if text.is_empty() {
        return Port::Number(DEFAULT_PORT);
    }
    match integer(text).and_then(|n| u16::try_from(n).ok()).filter(|&n| n > 0) {
        Some(n) => Port::Number(n),
        // A pair that was swallowed by an empty value ("port= password=x") must not come out in a message.
        None => Port::Invalid(super::values::shown(text)),
    }
}
