//! The URI form, by the rules of libpq's `conninfo_uri_parse_options` (libpq 18: blanks around a part are dropped,
//! blanks inside one are an error).

use super::{Pairs, invalid};
use crate::error::Error;

/// What follows `postgresql://` or `postgres://`.
pub(super) fn strip_scheme(text: &str) -> Option<&str> {
    text.strip_prefix("postgresql://").or_else(|| text.strip_prefix("postgres://"))
}

/// Reads a URI without its scheme into `pairs`.
pub(super) fn parse(text: &str, pairs: &mut Pairs) -> Result<(), Error> {
    let mut rest = text;
    if let Some(at) = text.find(['@', '/']).filter(|&at| text.as_bytes()[at] == b'@') {
        let (credentials, behind) = (&text[..at], &text[at + 1..]);
        let (user, password) = credentials.split_once(':').unwrap_or((credentials, ""));
        for (name, raw) in [("user", user), ("password", password)] {
            if !raw.is_empty() {
                pairs.put(name, decode(raw, name)?, 0)?;
            }
        }
        rest = behind;
    }
    let list = hosts(rest)?;
    rest = list.rest;
    for (name, raw) in [("host", &list.hosts), ("port", &list.ports)] {
        if !raw.is_empty() {
            pairs.put(name, decode(raw, name)?, 0)?;
        }
    }
    if let Some(path) = rest.strip_prefix('/') {
        let end = path.find('?').unwrap_or(path.len());
        if end > 0 {
            pairs.put("dbname", decode(&path[..end], "dbname")?, 0)?;
        }
        rest = &path[end..];
    }
    parameters(rest.strip_prefix('?').unwrap_or(rest), pairs)
}

/// `host[:port],…`, still encoded: the two lists, and what follows them.
pub(super) struct HostList<'a> {
    pub(super) hosts: String,
    /// As many commas as `hosts`; empty where one host has no port.
    pub(super) ports: String,
    pub(super) rest: &'a str,
}

/// Reads the host list of a URI.
pub(super) fn hosts(text: &str) -> Result<HostList<'_>, Error> {
    let mut list = HostList { hosts: String::new(), ports: String::new(), rest: text };
    loop {
        let end = if let Some(inner) = list.rest.strip_prefix('[') {
            let len = inner.find(']').ok_or_else(|| {
                invalid("the URI has a \"[\" without its \"]\": write an IPv6 address as [address]")
            })?;
            if len == 0 {
                return Err(invalid("the URI has an empty IPv6 address: write it between \"[\" and \"]\""));
            }
            list.hosts.push_str(&inner[..len]);
            let behind = &inner[len + 1..];
            if !behind.is_empty() && !behind.starts_with([':', '/', '?', ',']) {
                return Err(invalid(
                    "the URI has an unexpected character behind \"]\": a port (\":5432\"), \",\", \"/\" or \"?\" may follow",
                ));
            }
            len + 2
        } else {
            let end = list.rest.find([':', '/', '?', ',']).unwrap_or(list.rest.len());
            list.hosts.push_str(&list.rest[..end]);
            end
        };
        list.rest = &list.rest[end..];
        if let Some(port) = list.rest.strip_prefix(':') {
            let end = port.find(['/', '?', ',']).unwrap_or(port.len());
            list.ports.push_str(&port[..end]);
            list.rest = &port[end..];
        }
        match list.rest.strip_prefix(',') {
            Some(more) => list.rest = more,
            None => return Ok(list),
        }
        list.hosts.push(',');
        list.ports.push(',');
    }
}

fn parameters(mut text: &str, pairs: &mut Pairs) -> Result<(), Error> {
    while !text.is_empty() {
        let (one, rest) = text.split_once('&').unwrap_or((text, ""));
        text = rest;
        // Neither text is shown: either may be the rest of a password that needed encoding.
        let Some((name, value)) = one.split_once('=') else {
            let behind = pairs.last().map_or(String::new(), |k| format!(" (behind {k})"));
            return Err(invalid(format!(
                "a parameter of the URI{behind} has no \"=\": write keyword=value, with & inside a value as %26"
            )));
        };
        let name = decode(name, "the name of a parameter")?;
        if value.contains('=') {
            let which = super::shown_keyword(&name, pairs.last_is_secret()).unwrap_or_default();
            return Err(invalid(format!(
                "the URI's parameter {which} has two \"=\": write one inside a value as %3D"
            )));
        }
        let value = decode(value, if crate::config::find(&name).is_some() { &name } else { "a parameter" })?;
        if name == "ssl" && value == "true" {
            // Kept by libpq for those who come from JDBC.
            pairs.put("sslmode", "require".to_owned(), 0)?;
        } else {
            pairs.put(&name, value, 0)?;
        }
    }
    Ok(())
}

/// Percent-decodes one part. `part` names it in an error; its text is never shown.
pub(super) fn decode(raw: &str, part: &str) -> Result<String, Error> {
    let raw = raw.trim_matches(' ');
    let mut out = Vec::with_capacity(raw.len());
    let mut bytes = raw.bytes();
    let hex = |b: Option<u8>| b.and_then(|b| char::from(b).to_digit(16));
    while let Some(b) = bytes.next() {
        match b {
            b' ' => return Err(invalid(format!("the URI has a blank inside {part}: write it as %20"))),
            b'%' => match hex(bytes.next()).zip(hex(bytes.next())) {
                None => {
                    return Err(invalid(format!(
                        "the URI has a broken percent escape in {part}: two hex digits must follow, and a percent sign itself is %25"
                    )));
                }
                Some((0, 0)) => {
                    return Err(invalid(format!(
                        "the URI has %00 in {part}: no value may contain a zero byte"
                    )));
                }
                #[expect(clippy::cast_possible_truncation, reason = "two hex digits fit a byte")]
                Some((hi, lo)) => out.push((hi * 16 + lo) as u8),
            },
            b => out.push(b),
        }
    }
    String::from_utf8(out)
        .map_err(|_| invalid(format!("{part} of the URI is not UTF-8 once its escapes are decoded")))
}
