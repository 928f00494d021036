//! Whose certificate it is.

use rcgen::{DnType, ExtendedKeyUsagePurpose, SanType};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use super::peer::{Ca, Dir, Peer, Served, config, fixture};
use super::{message, word};
use crate::config::{RootCert, SslMode, TlsConfig};
use crate::tls::{Secure, TlsContext, binding};

fn checking(mode: SslMode, root: std::path::PathBuf) -> TlsContext {
    TlsContext::load(&TlsConfig { sslrootcert: RootCert::File(root), ..config(mode) }).unwrap()
}

/// The certificates that PostgreSQL's manual and the openssl command make, in both protocol versions.
#[tokio::test]
async fn certificates_that_rustls_refuses_and_libpq_accepts_work() {
    use SslMode::{Require, VerifyCa, VerifyFull};
    let rows = [
        // server's certificate, key, configured root, mode, host -> result
        ("manual.crt", "manual.key", "manual.crt", VerifyFull, "host", "tls"),
        ("manual.crt", "manual.key", "manual.crt", VerifyFull, "other", "identity"),
        ("manual.crt", "manual.key", "manual.crt", VerifyCa, "other", "tls"),
        ("manual.crt", "manual.key", "root.crt", VerifyCa, "host", "identity"),
        ("v1.crt", "v1.key", "root.crt", VerifyFull, "host", "tls"),
        ("v1.crt", "v1.key", "root.crt", VerifyFull, "other", "identity"),
        ("v1.crt", "v1.key", "manual.crt", VerifyCa, "host", "identity"),
        ("v1-self.crt", "v1.key", "v1-self.crt", VerifyFull, "host", "tls"),
        ("v1-self.crt", "v1.key", "root.crt", VerifyCa, "host", "identity"),
        // The same issuer name and key owner, another issuer key.
        ("v1-forged.crt", "v1.key", "root.crt", VerifyCa, "host", "identity"),
        // A stranger's certificate with the key of the right one's name: require checks nothing but the key.
        ("v1-forged.crt", "v1.key", "", Require, "host", "tls"),
    ];
    let dir = Dir::new();
    for (cert, key, root, mode, host, want) in rows {
        for versions in [&[&rustls::version::TLS12][..], &[&rustls::version::TLS13]] {
            let tls = match root {
                "" => TlsContext::load(&config(mode)).unwrap(),
                root => checking(mode, dir.put(root, fixture(root))),
            };
            let server = Served::fixture(cert, key).server_with(versions, None);
            let peer = Peer::start(b"S", Some(server)).await;
            let (got, _) = peer.secure(&tls, Some(host), Secure::Tls).await;
            assert_eq!(word(&got), want, "{cert} for {host} under {mode} with {root}: {:?}", got.err());
        }
    }
}

/// The certificate is public: whoever shows it must also have its key. Unchecked modes are no exception.
#[tokio::test]
async fn a_copied_certificate_without_its_key_fails_in_every_mode() {
    let dir = Dir::new();
    for (cert, wrong_key) in
        [("manual.crt", "v1.key"), ("v1.crt", "manual.key"), ("v1-self.crt", "manual.key")]
    {
        let root = dir.put(cert, fixture(cert));
        for versions in [&[&rustls::version::TLS12][..], &[&rustls::version::TLS13]] {
            for tls in [
                checking(SslMode::VerifyCa, root.clone()),
                TlsContext::load(&config(SslMode::Require)).unwrap(),
            ] {
                let server = Served::fixture(cert, wrong_key).server_with(versions, None);
                let peer = Peer::start(b"S", Some(server)).await;
                let (got, seen) = peer.secure(&tls, Some("host"), Secure::Tls).await;
                assert_eq!(word(&got), "handshake", "{cert}: {:?}", got.err());
                assert_eq!(seen.session, None);
            }
        }
    }
}

#[tokio::test]
async fn verify_full_matches_names_as_libpq_does() {
    let ca = Ca::new();
    let dir = Dir::new();
    let root = dir.put("root.crt", &ca.pem);
    type Row = (&'static [&'static str], Option<&'static str>, &'static str, &'static str);
    let rows: &[Row] = &[
        (&["h1"], None, "h1", "tls"),
        (&["h1"], None, "H1", "tls"),
        (&["*.example.com"], None, "db.example.com", "tls"),
        (&["*.example.com"], None, "a.db.example.com", "identity"),
        (&["127.0.0.1"], None, "127.0.0.1", "tls"),
        (&["127.0.0.1"], None, "127.0.0.2", "identity"),
        (&["::1"], None, "::1", "tls"),
        (&[], Some("h1"), "h1", "tls"),
        (&["h2"], Some("h1"), "h1", "identity"),
        // The address that was dialled doesn't count, the configured name does.
        (&["127.0.0.1"], None, "h1", "identity"),
    ];
    for (san, common, host, want) in rows {
        let served = ca.issue_with(san, |p| {
            if let Some(cn) = common {
                p.distinguished_name.push(DnType::CommonName, *cn);
            }
        });
        let tls = checking(SslMode::VerifyFull, root.clone());
        let (got, _) =
            Peer::start(b"S", Some(served.server())).await.secure(&tls, Some(host), Secure::Tls).await;
        assert_eq!(word(&got), *want, "{san:?} CN {common:?} for {host}: {:?}", got.err());
    }
}

#[tokio::test]
async fn a_refused_certificate_says_whose_it_is_and_what_to_do() {
    let ca = Ca::new();
    let dir = Dir::new();
    let tls = checking(SslMode::VerifyFull, dir.put("root.crt", &ca.pem));
    let say = async |served: Served| {
        let peer = Peer::start(b"S", Some(served.server())).await;
        message(peer.secure(&tls, Some("h1"), Secure::Tls).await.0)
    };
    let text = say(ca.issue(&["h2", "h3"])).await;
    assert!(["\"h1\"", "h2, h3", "verify-full"].iter().all(|w| text.contains(w)), "{text}");
    let text = say(Served::self_signed(&["h1"])).await;
    assert!(text.contains("sslrootcert") && text.contains("root.crt"), "{text}");
    let text = say(ca.issue_with(&["h1"], |p| p.not_after = rcgen::date_time_ymd(2020, 1, 1))).await;
    assert!(text.contains("expired") && text.contains("2020"), "{text}");
    let text = say(ca.issue_with(&["h1"], |p| p.not_before = rcgen::date_time_ymd(2090, 1, 1))).await;
    assert!(text.contains("not valid yet") && text.contains("2090"), "{text}");
    let text =
        say(ca.issue_with(&["h1"], |p| p.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth]))
            .await;
    assert!(text.contains("can't be verified"), "{text}");
    // A name is written by a stranger: control characters must not reach a terminal.
    let nasty = |p: &mut rcgen::CertificateParams| {
        p.subject_alt_names.push(SanType::DnsName("x\u{1b}]0;owned\u{7}".try_into().unwrap()));
    };
    let text = say(ca.issue_with(&["h2"], nasty)).await;
    assert!(!text.contains('\u{1b}') && !text.contains('\u{7}'), "{text:?}");
}

/// Expiry counts for a certificate that is itself a configured root, too.
#[tokio::test]
async fn an_expired_root_of_its_own_is_not_accepted() {
    let dir = Dir::new();
    let (mut params, key) =
        (rcgen::CertificateParams::new(vec!["h1".to_owned()]).unwrap(), rcgen::KeyPair::generate().unwrap());
    params.not_after = rcgen::date_time_ymd(2020, 1, 1);
    let cert = params.self_signed(&key).unwrap();
    let tls = checking(SslMode::VerifyCa, dir.put("root.crt", cert.pem()));
    let served = Served {
        chain: vec![cert.der().clone()],
        key: rustls::pki_types::PrivateKeyDer::Pkcs8(key.serialize_der().into()),
    };
    let (got, _) = Peer::start(b"S", Some(served.server())).await.secure(&tls, Some("h1"), Secure::Tls).await;
    assert_eq!(word(&got), "identity");
    assert!(message(got).contains("expired on 2020-01-01"));
}

#[tokio::test]
async fn a_chain_over_an_intermediate_is_followed() {
    let ca = Ca::new();
    let dir = Dir::new();
    let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, "intermediate");
    let key = rcgen::KeyPair::generate().unwrap();
    let between = params.signed_by(&key, &ca.issuer).unwrap();
    let sub = Ca { issuer: rcgen::Issuer::new(params, key), pem: between.pem() };
    let tls = checking(SslMode::VerifyFull, dir.put("root.crt", &ca.pem));
    for (send, want) in [(true, "tls"), (false, "identity")] {
        let mut served = sub.issue(&["h1"]);
        if send {
            served.chain.push(between.der().clone());
        }
        let (got, _) =
            Peer::start(b"S", Some(served.server())).await.secure(&tls, Some("h1"), Secure::Tls).await;
        assert_eq!(word(&got), want, "intermediate sent: {send}");
    }
}

#[tokio::test]
async fn the_systems_roots_do_not_vouch_for_a_private_ca_and_need_a_name() {
    let c = TlsConfig { sslrootcert: RootCert::System, ..config(SslMode::VerifyFull) };
    // Without roots on this machine, load must say so; with them, our own CA must not pass.
    match TlsContext::load(&c) {
        Err(e) => assert!(e.to_string().contains("sslrootcert=system"), "{e}"),
        Ok(tls) => {
            let peer = Peer::start(b"S", Some(Ca::new().issue(&["h1"]).server())).await;
            assert_eq!(word(&peer.secure(&tls, Some("h1"), Secure::Tls).await.0), "identity");
            let peer = Peer::start(b"S", Some(Ca::new().issue(&["h1"]).server())).await;
            let (got, seen) = peer.secure(&tls, None, Secure::Tls).await;
            assert_eq!((word(&got), seen.request.len()), ("identity", 0));
        }
    }
}

#[tokio::test]
async fn a_revoked_certificate_and_one_without_a_list_are_refused() {
    let (ca, dir) = (Ca::new(), Dir::new());
    let list = |ca: &Ca, revoked: u64, until: i32| {
        rcgen::CertificateRevocationListParams {
            this_update: rcgen::date_time_ymd(2024, 1, 1),
            next_update: rcgen::date_time_ymd(until, 1, 1),
            crl_number: 1.into(),
            issuing_distribution_point: None,
            revoked_certs: vec![rcgen::RevokedCertParams {
                serial_number: revoked.into(),
                revocation_time: rcgen::date_time_ymd(2024, 1, 1),
                reason_code: None,
                invalidity_date: None,
            }],
            key_identifier_method: rcgen::KeyIdMethod::Sha256,
        }
        .signed_by(&ca.issuer)
        .unwrap()
        .pem()
        .unwrap()
    };
    let root = dir.put("root.crt", &ca.pem);
    let rows = [
        (list(&ca, 8, 2090), "tls", ""),
        (list(&ca, 7, 2090), "identity", "revoked"),
        (list(&ca, 8, 2025), "identity", "out of date"),
        (list(&Ca::new(), 8, 2090), "identity", ""),
    ];
    for (pem, want, says) in rows {
        for as_dir in [false, true] {
            let mut c = TlsConfig { sslrootcert: RootCert::File(root.clone()), ..config(SslMode::VerifyCa) };
            if as_dir {
                let sub = dir.path("crls");
                std::fs::create_dir_all(&sub).unwrap();
                std::fs::write(sub.join("0.r0"), &pem).unwrap();
                c.sslcrldir = Some(sub);
            } else {
                c.sslcrl = Some(dir.put("crl.pem", &pem));
            }
            let tls = TlsContext::load(&c).unwrap();
            let served = ca.issue_with(&["h1"], |p| p.serial_number = Some(7u64.into()));
            let (got, _) =
                Peer::start(b"S", Some(served.server())).await.secure(&tls, Some("h1"), Secure::Tls).await;
            assert_eq!(word(&got), want, "{says}: {:?}", got.err());
            if let Err(f) = got {
                assert!(f.to_string().contains(says), "{f}");
            }
        }
    }
}

/// The expected values were computed by the openssl command (tests/fixtures/tls/make.sh).
#[test]
fn the_channel_binding_value_is_the_one_that_openssl_computes() {
    let table = String::from_utf8(fixture("binding.txt")).unwrap();
    assert_eq!(table.lines().count(), 14);
    for line in table.lines() {
        let (name, want) = line.split_once(' ').unwrap();
        let der = CertificateDer::from_pem_slice(&fixture(&format!("binding-{name}.crt"))).unwrap();
        let got = binding::server_end_point(&der);
        let hex = got.map(|b| b.iter().map(|x| format!("{x:02x}")).collect::<String>());
        assert_eq!(hex.as_deref().unwrap_or("none"), want, "{name}");
    }
    assert_eq!(binding::server_end_point(b"junk"), None);
}

#[tokio::test]
async fn the_binding_comes_from_the_certificate_that_the_server_showed() {
    let served = Served::fixture("manual.crt", "manual.key");
    let want = binding::server_end_point(&served.chain[0]);
    assert!(want.is_some());
    let tls = TlsContext::load(&config(SslMode::Require)).unwrap();
    let (got, _) =
        Peer::start(b"S", Some(served.server())).await.secure(&tls, Some("host"), Secure::Tls).await;
    assert_eq!(got.unwrap().channel_binding, want);
    let (got, _) = Peer::start(b"N", None).await.secure(&tls, Some("host"), Secure::TlsOrPlain).await;
    assert_eq!(got.unwrap().channel_binding, None, "clear text has nothing to bind to");
}
