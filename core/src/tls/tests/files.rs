//! Files that are missing, wrong or open to others.

use std::path::PathBuf;

use super::peer::{Ca, Dir, config, fixture};
use super::*;
use crate::config::Secret;

fn refusal(c: &TlsConfig) -> String {
    match TlsContext::load(c) {
        Err(Failure::TlsFile(m)) => m,
        Err(other) => panic!("{other:?}"),
        Ok(_) => panic!("loaded"),
    }
}

#[test]
fn a_named_root_file_that_is_missing_never_turns_the_check_off_in_silence() {
    use SslMode::{Allow, Disable, Prefer, Require, VerifyCa, VerifyFull};
    let path = || PathBuf::from("/nonexistent/root.crt");
    let rows = [
        // mode, missing file was named, must fail
        (Disable, true, false),
        (Allow, true, false),
        (Prefer, true, false),
        (Require, true, true),
        (VerifyCa, true, true),
        (VerifyFull, true, true),
        (Prefer, false, false),
        (Require, false, false),
        (VerifyCa, false, true),
        (VerifyFull, false, true),
    ];
    for (mode, named, fails) in rows {
        let sslrootcert = if named { RootCert::File(path()) } else { RootCert::Default(path()) };
        let c = TlsConfig { sslrootcert, ..config(mode) };
        let got = TlsContext::load(&c);
        assert_eq!(got.is_err(), fails, "sslmode={mode}, named {named}");
        if fails {
            let text = refusal(&c);
            let all = ["sslrootcert", "/nonexistent/root.crt", "sslrootcert=system"];
            assert!(all.iter().all(|w| text.contains(w)), "{text}");
        }
    }
}

#[test]
fn files_that_are_not_what_they_should_be_are_named() {
    let dir = Dir::new();
    let ca = Ca::new();
    let root = |path| TlsConfig { sslrootcert: RootCert::File(path), ..config(SslMode::VerifyCa) };
    let good = dir.put("root.crt", &ca.pem);
    let junk = dir.put("junk", "junk");
    let broken = dir.put("broken", "-----BEGIN CERTIFICATE-----\n!!!\n-----END CERTIFICATE-----\n");
    let empty = dir.put("empty", "");
    let not_cert = dir.put("notcert", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
    for path in [&junk, &broken, &empty, &not_cert, &dir.path("")] {
        let text = refusal(&root(path.clone()));
        assert!(text.contains("sslrootcert") && text.contains(&*path.to_string_lossy()), "{text}");
    }
    assert!(TlsContext::load(&root(good.clone())).is_ok());
    let crl = TlsConfig { sslcrl: Some(junk), ..root(good.clone()) };
    assert!(refusal(&crl).contains("sslcrl"));
    let absent = Some(PathBuf::from("/nonexistent/crl"));
    let none = TlsConfig { sslcrl: absent.clone(), sslcrldir: absent, ..root(good) };
    assert!(TlsContext::load(&none).is_ok(), "a list counts if it exists (libpq manual)");
}

#[test]
fn a_client_certificate_without_a_usable_key_is_refused_with_the_reason() {
    let dir = Dir::new();
    let cert = dir.put("v1.crt", fixture("v1.crt"));
    let with = |key: PathBuf, password: Option<&str>| TlsConfig {
        sslcert: (cert.clone(), true),
        sslkey: (key, true),
        sslpassword: password.map(Secret::new),
        ..config(SslMode::Require)
    };
    let key = |name: &str| dir.put(name, fixture(name));
    // The forms that work.
    for (name, password) in [
        ("v1.key", None),
        ("v1-sec1.key", None),
        ("v1.der", None),
        ("v1-pbes2.key", Some("secret")),
        ("v1-scrypt.key", Some("secret")),
    ] {
        let got = TlsContext::load(&with(key(name), password));
        assert!(got.as_ref().is_ok_and(|t| t.identity.is_some()), "{name}: {:?}", got.err());
    }
    // And those that don't, each with its reason.
    for (name, password, says) in [
        ("v1-pbes2.key", None, "set sslpassword"),
        ("v1-pbes2.key", Some("s3cr3t"), "is sslpassword right"),
        ("v1-old.key", Some("secret"), "openssl pkcs8 -topk8"),
        ("manual.key", None, "isn't that of the certificate"),
        ("manual.crt", None, "no readable private key"),
        ("binding.txt", None, "no readable private key"),
    ] {
        let text = refusal(&with(key(name), password));
        assert!(text.contains("sslkey") && text.contains(says), "{name}: {text}");
        assert!(!text.contains("s3cr3t"), "{text}");
    }
    let text = refusal(&with(dir.path("nothing.key"), None));
    assert!(text.contains("no private key file") && text.contains("nothing.key"), "{text}");
    assert!(refusal(&with("engine:key".into(), None)).contains("engine"));
    let missing = TlsConfig { sslcert: (dir.path("nothing.crt"), true), ..with(key("v1.key"), None) };
    assert!(refusal(&missing).contains("sslcert"));
    let ignored = TlsConfig { sslcertmode: SslCertMode::Disable, ..missing };
    assert!(TlsContext::load(&ignored).unwrap().identity.is_none());
    let required = TlsConfig { sslcertmode: SslCertMode::Require, ..config(SslMode::Require) };
    assert!(refusal(&required).contains("sslcert"));
}

#[cfg(unix)]
#[test]
fn a_private_key_that_others_can_read_is_not_used() {
    use std::os::unix::fs::MetadataExt;

    let dir = Dir::new();
    let c = TlsConfig {
        sslcert: (dir.put("v1.crt", fixture("v1.crt")), true),
        sslkey: (dir.put("v1.key", fixture("v1.key")), true),
        ..config(SslMode::Require)
    };
    let of_root = std::fs::metadata(&c.sslkey.0).unwrap().uid() == 0;
    for (mode, ok) in
        [(0o600, true), (0o400, true), (0o640, of_root), (0o660, false), (0o604, false), (0o644, false)]
    {
        dir.mode("v1.key", mode);
        let got = TlsContext::load(&c);
        assert_eq!(got.is_ok(), ok, "{mode:o}: {:?}", got.err());
        if let Err(e) = got {
            assert!(e.to_string().contains("0600"), "{e}");
        }
    }
}

#[test]
fn disable_reads_no_file_at_all() {
    let dir = Dir::new();
    let bad = dir.put("bad", "bad");
    let c = TlsConfig {
        sslrootcert: RootCert::File(bad.clone()),
        sslcert: (bad.clone(), true),
        sslkey: (bad, true),
        ..config(SslMode::Disable)
    };
    assert!(TlsContext::load(&c).is_ok());
}
