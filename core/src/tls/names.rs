//! Whether a certificate is the configured host's: libpq's rules, not the web's.
//!
//! Source: PostgreSQL `fe-secure-common.c` and `fe-secure-openssl.c` (15 and later), and the libpq manual, "SSL
//! Client Certificate Verification". They differ from the web's rules: a certificate without a suitable SAN is
//! matched by its Common Name. The host is always the configured one, never an alias and never the address that a
//! name resolved to.

use std::net::IpAddr;

use x509_cert::Certificate;
use x509_cert::der::asn1::ObjectIdentifier;
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;

/// id-at-commonName (RFC 5280, appendix A).
const COMMON_NAME: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.4.3");

/// Names in a certificate that a host can be matched with.
#[derive(Debug, Default)]
pub(super) struct Names {
    /// dNSName entries, as bytes: what is in them was written by a stranger.
    dns: Vec<Vec<u8>>,
    /// iPAddress entries.
    ip: Vec<Vec<u8>>,
    /// The first Common Name.
    common: Option<Vec<u8>>,
}

/// The result of a comparison.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Match {
    /// The certificate is this host's.
    Yes,
    /// It isn't.
    No,
    /// A name has a zero byte in it: a known way to fool checks, so nothing in the certificate is believed.
    ZeroByte,
}

impl Names {
    /// Reads the names. `None` when the SAN extension can't be read: then nothing is believed, the CN neither.
    pub(super) fn of(cert: &Certificate) -> Option<Self> {
        let mut names = Self::default();
        for san in cert.tbs_certificate.filter::<SubjectAltName>() {
            for name in san.ok()?.1.0 {
                match name {
                    GeneralName::DnsName(n) => names.dns.push(n.as_bytes().to_vec()),
                    GeneralName::IpAddress(a) => names.ip.push(a.as_bytes().to_vec()),
                    _ => {}
                }
            }
        }
        names.common = (cert.tbs_certificate.subject.0.iter())
            .flat_map(|rdn| rdn.0.iter())
            .find(|a| a.oid == COMMON_NAME)
            .map(|a| a.value.value().to_vec());
        Some(names)
    }

    /// Compares with the configured host. A SAN of the host's own kind (name or address) rules the CN out.
    pub(super) fn compare(&self, host: &str) -> Match {
        let ip = host.parse::<IpAddr>().ok();
        let use_common = if ip.is_some() { self.ip.is_empty() } else { self.dns.is_empty() };
        for name in self.dns.iter().chain(self.common.iter().filter(|_| use_common)) {
            if name.contains(&0) {
                return Match::ZeroByte;
            }
            if matches(name, host.as_bytes()) {
                return Match::Yes;
            }
        }
        let octets = match ip {
            Some(IpAddr::V4(a)) => a.octets().to_vec(),
            Some(IpAddr::V6(a)) => a.octets().to_vec(),
            None => return Match::No,
        };
        if self.ip.contains(&octets) { Match::Yes } else { Match::No }
    }

    /// The names for a message, cut and cleaned: they come from a server that nobody has verified yet.
    pub(super) fn for_people(&self) -> String {
        const SHOWN: usize = 5;
        let ips = self.ip.iter().map(|a| match a.len() {
            4 => <[u8; 4]>::try_from(&a[..]).map_or_else(|_| String::new(), |b| IpAddr::from(b).to_string()),
            16 => {
                <[u8; 16]>::try_from(&a[..]).map_or_else(|_| String::new(), |b| IpAddr::from(b).to_string())
            }
            _ => "a malformed address".to_owned(),
        });
        let all: Vec<String> = (self.dns.iter().map(|n| clean(n)))
            .chain(ips)
            .chain(self.common.iter().map(|n| format!("CN={}", clean(n))))
            .collect();
        match all.len() {
            0 => "no name at all".to_owned(),
            n if n > SHOWN => format!("{} and {} more", all[..SHOWN].join(", "), n - SHOWN),
            _ => all.join(", "),
        }
    }
}

/// A name of the certificate against the host: letter case aside, or a wildcard in place of the left-most label.
fn matches(name: &[u8], host: &[u8]) -> bool {
    if name.eq_ignore_ascii_case(host) {
        return true;
    }
    // "*.x" at least, and the wildcard stands for one label: nothing with a dot in it.
    let Some(rest) = name.strip_prefix(b"*").filter(|r| r.len() >= 2 && r[0] == b'.') else { return false };
    let Some(label) = host.len().checked_sub(rest.len()) else { return false };
    host[label..].eq_ignore_ascii_case(rest) && label > 0 && !host[..label].contains(&b'.')
}

/// Printable ASCII only, 64 bytes at most.
pub(super) fn clean(bytes: &[u8]) -> String {
    let text =
        bytes.iter().take(64).map(|&b| if b.is_ascii_graphic() || b == b' ' { char::from(b) } else { '?' });
    let mut out: String = text.collect();
    if bytes.len() > 64 {
        out.push('…');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(dns: &[&str], ip: &[&[u8]], common: Option<&str>) -> Names {
        Names {
            dns: dns.iter().map(|n| n.as_bytes().to_vec()).collect(),
            ip: ip.iter().map(|a| a.to_vec()).collect(),
            common: common.map(|n| n.as_bytes().to_vec()),
        }
    }

    #[test]
    fn a_certificate_counts_for_its_own_names_only() {
        use Match::{No, Yes, ZeroByte};
        type Row =
            (&'static [&'static str], &'static [&'static [u8]], Option<&'static str>, &'static str, Match);
        const LOOP: &[u8] = &[127, 0, 0, 1];
        let rows: &[Row] = &[
            (&["db.example.com"], &[], None, "db.example.com", Yes),
            (&["DB.Example.COM"], &[], None, "db.example.com", Yes),
            (&["db.example.com"], &[], None, "db.example.com.", No),
            (&["db.example.com"], &[], None, "example.com", No),
            // Wildcards: one left-most label, no more and no less.
            (&["*.example.com"], &[], None, "db.example.com", Yes),
            (&["*.example.com"], &[], None, "a.db.example.com", No),
            (&["*.example.com"], &[], None, "example.com", No),
            (&["*.example.com"], &[], None, ".example.com", No),
            (&["d*.example.com"], &[], None, "db.example.com", No),
            (&["db.*.com"], &[], None, "db.example.com", No),
            (&["*"], &[], None, "db", No),
            (&["*."], &[], None, "db.", No),
            (&["*.com"], &[], None, "example.com", Yes),
            // The CN counts only where no SAN of the host's kind exists.
            (&[], &[], Some("db"), "db", Yes),
            (&[], &[], Some("*.example.com"), "db.example.com", Yes),
            (&["other"], &[], Some("db"), "db", No),
            (&[], &[LOOP], Some("db"), "db", Yes),
            (&["db"], &[], Some("127.0.0.1"), "127.0.0.1", Yes),
            (&[], &[LOOP], Some("127.0.0.2"), "127.0.0.2", No),
            // Addresses.
            (&[], &[LOOP], None, "127.0.0.1", Yes),
            (&[], &[LOOP], None, "127.0.0.2", No),
            (&["127.0.0.1"], &[], None, "127.0.0.1", Yes),
            (&[], &[&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]], None, "::1", Yes),
            (&[], &[&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]], None, "0:0:0::1", Yes),
            (&[], &[&[127, 0, 0]], None, "127.0.0.1", No),
            // A zero byte: nothing is believed.
            (&["db\0.evil.com"], &[], None, "db", ZeroByte),
            (&[], &[], Some("db\0"), "db", ZeroByte),
            (&[], &[], None, "db", No),
        ];
        for (dns, ip, common, host, want) in rows {
            let got = names(dns, ip, *common).compare(host);
            assert_eq!(&got, want, "host {host}: dns {dns:?}, ip {ip:?}, CN {common:?}");
        }
    }

    #[test]
    fn names_of_a_stranger_do_not_reach_the_terminal_raw() {
        let n = names(&["a\u{1b}]0;owned\u{7}", "b", "c", "d", "e", "f"], &[&[10, 0, 0, 1]], Some("x"));
        let text = n.for_people();
        assert_eq!(text, "a?]0;owned?, b, c, d, e and 3 more");
        assert!(names(&[&"n".repeat(5_000)], &[], None).for_people().len() < 100);
        assert_eq!(names(&[], &[], None).for_people(), "no name at all");
    }
}
