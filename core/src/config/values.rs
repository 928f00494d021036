//! Small readers of values.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// A whole number as libpq reads one (`pqParseIntParam`): blanks around it and a sign are permitted.
pub(super) fn integer(text: &str) -> Option<i32> {
    text.trim_matches(|c: char| c.is_ascii_whitespace() || c == '\x0b').parse().ok()
}

/// A duration with its unit.
pub(super) fn durations(text: &str) -> Option<Duration> {
    let text = text.trim();
    let unit = text.find(|c: char| !c.is_ascii_digit())?;
    let number: u64 = text[..unit].parse().ok()?;
    let ms = match text[unit..].trim_start() {
        "ms" => 1,
        "s" => 1_000,
        "min" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return None,
    };
    number.checked_mul(ms).map(Duration::from_millis)
}

/// The entries of a comma-separated list, without blanks around them and without empty ones.
pub(super) fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|w| !w.is_empty())
}

/// `address[:port]`; an IPv6 address with a port stands in brackets.
pub(super) fn address(text: &str, port: u16) -> Option<SocketAddr> {
    let bare = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(text);
    let whole = bare.parse::<IpAddr>().ok().map(|ip| SocketAddr::new(ip, port));
    whole.or_else(|| text.parse().ok()).filter(|a| a.port() != 0)
}

/// A value for a message or a table: cut, without control characters, and without what looks like a password that
/// an unquoted empty value swallowed (`sslmode= password=x`).
pub(super) fn shown(value: &str) -> String {
    const LONGEST: usize = 200;
    let lower = value.to_ascii_lowercase();
    let swallowed = lower.find("password").map(|at| at + "password".len());
    let end = swallowed.into_iter().chain([LONGEST]).min().unwrap_or(LONGEST);
    let end = (0..=end.min(value.len())).rev().find(|&i| value.is_char_boundary(i)).unwrap_or(0);
    let mut out: String = value[..end].chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    if end < value.len() {
        out.push('…');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_without_its_unit_is_refused() {
        let ms = |n| Some(Duration::from_millis(n));
        assert_eq!(durations("250ms"), ms(250));
        assert_eq!(durations("5 s"), ms(5_000));
        assert_eq!(durations("2min"), ms(120_000));
        assert_eq!(durations("1d"), ms(86_400_000));
        for bad in ["", "5", "ms", "-5s", "1.5s", "5S", "5sec", "99999999999999999999s", "9999999999999999h"]
        {
            assert_eq!(durations(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_name_server_is_an_address_with_or_without_a_port() {
        let a = |t| address(t, 53).map(|a| a.to_string());
        assert_eq!(a("10.0.0.1").as_deref(), Some("10.0.0.1:53"));
        assert_eq!(a("10.0.0.1:5353").as_deref(), Some("10.0.0.1:5353"));
        assert_eq!(a("::1").as_deref(), Some("[::1]:53"));
        assert_eq!(a("[::1]:5353").as_deref(), Some("[::1]:5353"));
        assert_eq!(a("[::1]").as_deref(), Some("[::1]:53"));
        assert_eq!((a("dns.example"), a("10.0.0.1:0"), a("10.0.0.1:")), (None, None, None));
    }

    #[test]
    fn a_swallowed_password_is_cut_from_a_value() {
        assert_eq!(shown("prefer"), "prefer");
        assert_eq!(shown("password=s3cret"), "password…");
        assert_eq!(shown("a\u{1b}b"), "a\u{fffd}b");
        assert_eq!(shown(&"é".repeat(200)).chars().count(), 101);
    }
}
