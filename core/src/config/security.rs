//! TLS, authentication, and everything that is refused because pgfollow can't honour it.

use std::path::PathBuf;

use super::reader::{Values, invalid, unsupported};
use super::{
    AuthMethod, RootCert, Secret, SslCertMode, SslMode, SslNegotiation, Support, TlsConfig, TlsVersion,
};
use crate::conninfo::Environment;
use crate::error::Error;

/// What can't be honoured fails here, by name, before anything is sent.
pub(super) fn refuse(v: &Values<'_>) -> Result<(), Error> {
    for row in super::OPTIONS {
        if let (Support::Refused(remedy), true) = (row.support, v.0.non_empty(row.name).is_some()) {
            return Err(unsupported(format!("{}: {remedy}", v.blame(row.name))));
        }
    }
    let gssencmode = v.text("gssencmode");
    match gssencmode {
        "disable" | "prefer" => {}
        "require" => {
            return Err(unsupported(format!(
                "{}: pgfollow has no GSSAPI encryption; use sslmode=require or stronger instead",
                v.blame("gssencmode")
            )));
        }
        _ => return Err(v.bad("gssencmode", "use disable or prefer")),
    }
    match v.text("replication").to_ascii_lowercase().as_str() {
        "" | "false" | "off" | "no" | "0" => {}
        _ => {
            return Err(unsupported(format!(
                "{}: pgfollow makes no replication connections: remove it",
                v.blame("replication")
            )));
        }
    }
    encoding(v)?;
    protocol_versions(v)
}

/// Sessions speak UTF8 and nothing else: tokio-postgres reads all text as that.
fn encoding(v: &Values<'_>) -> Result<(), Error> {
    let utf8 = |e: &str| {
        let bare: String = e.chars().filter(char::is_ascii_alphanumeric).collect();
        ["utf8", "unicode", "auto"].iter().any(|known| bare.eq_ignore_ascii_case(known))
    };
    let remedy = "sessions speak UTF8 alone: remove it, the server converts by itself";
    if v.0.non_empty("client_encoding").is_some_and(|e| !utf8(e)) {
        return Err(unsupported(format!("{}: {remedy}", v.blame("client_encoding"))));
    }
    // The server would take it from there, and then be told UTF8 at startup: what was asked for never happens.
    let options = v.text("options").to_ascii_lowercase().replace('-', "_");
    let given =
        options.split("client_encoding").skip(1).filter_map(|rest| rest.trim_start().strip_prefix('='));
    match given.map(|rest| rest.split_whitespace().next().unwrap_or_default()).find(|e| !utf8(e)) {
        Some(_) => Err(unsupported(format!("{} sets client_encoding: {remedy}", v.blame("options")))),
        None => Ok(()),
    }
}

fn protocol_versions(v: &Values<'_>) -> Result<(), Error> {
    let rank = |name: &str| match v.0.get(name) {
        None => Ok(None),
        Some("3.0") => Ok(Some(0)),
        Some("3.2" | "latest") => Ok(Some(2)),
        Some(_) => Err(v.bad(name, "use 3.0, 3.2 or latest")),
    };
    let (min, max) = (rank("min_protocol_version")?, rank("max_protocol_version")?);
    if let (Some(low), Some(high)) = (min, max)
        && low > high
    {
        let (min, max) = (v.blame("min_protocol_version"), v.blame("max_protocol_version"));
        return Err(invalid(format!("{min} is above {max}: lower the one or raise the other")));
    }
    if min == Some(2) {
        return Err(unsupported(format!(
            "{}: pgfollow speaks protocol 3.0; remove it or use 3.0",
            v.blame("min_protocol_version")
        )));
    }
    Ok(())
}

pub(super) fn tls(v: &Values<'_>, env: &Environment, warnings: &mut Vec<String>) -> Result<TlsConfig, Error> {
    let sslmode = v.keyword("sslmode", SslMode::from_keyword, SslMode::VALUES)?;
    let sslnegotiation = v.keyword("sslnegotiation", SslNegotiation::from_keyword, SslNegotiation::VALUES)?;
    let weak = matches!(sslmode, SslMode::Disable | SslMode::Allow | SslMode::Prefer);
    if sslnegotiation == SslNegotiation::Direct && weak {
        return Err(invalid(format!(
            "{} may not be used with {}: use sslmode=require, verify-ca or verify-full",
            v.blame("sslnegotiation"),
            v.blame("sslmode")
        )));
    }
    if v.text("sslrootcert") == "system" && sslmode != SslMode::VerifyFull {
        return Err(invalid(format!(
            "{} may not be used with {}: use sslmode=verify-full",
            v.blame("sslrootcert"),
            v.blame("sslmode")
        )));
    }
    let folder = env.home().map(|h| h.join(".postgresql")).unwrap_or_default();
    let file = |name: &str, default: &str| match v.0.non_empty(name) {
        Some(path) => (PathBuf::from(path), true),
        None => (folder.join(default), false),
    };
    let sslkey = file("sslkey", "postgresql.key");
    if v.text("sslkey").split_once(':').is_some_and(|(engine, _)| !engine.contains('/')) && !sslkey.0.exists()
    {
        return Err(unsupported(format!(
            "{}: keys in an OpenSSL engine are not supported; name a file",
            v.blame("sslkey")
        )));
    }
    let sslcrldir = v.0.non_empty("sslcrldir").map(PathBuf::from);
    let sslcrl = match file("sslcrl", "root.crl") {
        (path, true) => Some(path),
        (path, false) => Some(path).filter(|p| sslcrldir.is_none() && p.exists()),
    };
    let (min_protocol, max_protocol) = tls_versions(v, warnings)?;
    Ok(TlsConfig {
        sslmode,
        sslnegotiation,
        sslrootcert: match v.0.non_empty("sslrootcert") {
            Some("system") => RootCert::System,
            Some(path) => RootCert::File(path.into()),
            None => RootCert::Default(folder.join("root.crt")),
        },
        sslcert: file("sslcert", "postgresql.crt"),
        sslkey,
        sslpassword: v.0.non_empty("sslpassword").map(Secret::new),
        sslcertmode: v.keyword("sslcertmode", SslCertMode::from_keyword, SslCertMode::VALUES)?,
        sslcrl,
        sslcrldir,
        sslsni: v.flag("sslsni")?,
        min_protocol,
        max_protocol,
    })
}

fn tls_versions(
    v: &Values<'_>,
    warnings: &mut Vec<String>,
) -> Result<(TlsVersion, Option<TlsVersion>), Error> {
    const KNOWN: [&str; 4] = ["TLSv1", "TLSv1.1", "TLSv1.2", "TLSv1.3"];
    let rank = |name: &str| match v.text(name) {
        "" => Ok(None),
        text => match KNOWN.iter().position(|k| k.eq_ignore_ascii_case(text)) {
            Some(rank) => Ok(Some(rank)),
            None => Err(v.bad(name, "use TLSv1.2 or TLSv1.3")),
        },
    };
    let (low, high) = (rank("ssl_min_protocol_version")?, rank("ssl_max_protocol_version")?);
    let (min, max) = ("ssl_min_protocol_version", "ssl_max_protocol_version");
    if high.is_some_and(|h| h < 2) {
        return Err(unsupported(format!(
            "{}: pgfollow speaks TLSv1.2 and TLSv1.3; raise or remove it",
            v.blame(max)
        )));
    }
    if high.is_some_and(|h| low.is_some_and(|l| l > h)) {
        return Err(invalid(format!(
            "{} is above {}: lower the one or raise the other",
            v.blame(min),
            v.blame(max)
        )));
    }
    if low.is_some_and(|l| l < 2) {
        warnings.push(format!("{}: TLSv1.2 is the oldest that is used", v.blame(min)));
    }
    let version = |rank| if rank == 3 { TlsVersion::V13 } else { TlsVersion::V12 };
    Ok((low.map_or(TlsVersion::V12, version), high.map(version)))
}

/// The permitted methods. A list with `!` permits all but those (libpq manual, `require_auth`).
pub(super) fn require_auth(v: &Values<'_>) -> Result<Option<Vec<AuthMethod>>, Error> {
    const NAMES: [(&str, Option<AuthMethod>); 7] = [
        ("password", Some(AuthMethod::Password)),
        ("md5", Some(AuthMethod::Md5)),
        ("scram-sha-256", Some(AuthMethod::ScramSha256)),
        ("none", Some(AuthMethod::None)),
        ("gss", None),
        ("sspi", None),
        ("oauth", None),
    ];
    let name = "require_auth";
    let Some(text) = v.0.non_empty(name) else { return Ok(None) };
    let negated = text.starts_with('!');
    let mut listed = Vec::new();
    for word in text.split(',') {
        let (minus, method) = word.strip_prefix('!').map_or((false, word), |m| (true, m));
        if minus != negated {
            return Err(v.bad(name, "methods with and without ! can't be mixed"));
        }
        if !NAMES.iter().any(|n| n.0 == method) {
            let names = NAMES.map(|n| n.0).join(", ");
            return Err(v.bad(name, format_args!("use a comma-separated list of {names}")));
        }
        // As in libpq: a method named twice is probably a slip, where slips are dangerous.
        if listed.contains(&method) {
            return Err(v.bad(name, format_args!("{method} stands there twice: remove one")));
        }
        listed.push(method);
    }
    let allowed: Vec<_> =
        NAMES.iter().filter(|n| listed.contains(&n.0) != negated).filter_map(|n| n.1).collect();
    if allowed.is_empty() {
        return Err(unsupported(format!(
            "{}: no method is left that pgfollow knows (it has no gss, sspi or oauth); permit one of password, md5, scram-sha-256 or none",
            v.blame(name)
        )));
    }
    Ok(Some(allowed))
}
