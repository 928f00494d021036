//! Hazards of TLS: a certificate taken for another's, bytes from somebody in between, a check that is off in silence.

mod certificates;
mod files;
mod peer;

use std::time::Duration;

use self::peer::{Ca, Dir, Peer, Served, config};
use super::*;

/// Short words for results, for the tables.
fn word(r: &Result<Secured, Failure>) -> &'static str {
    match r {
        Ok(s) if s.encrypted => "tls",
        Ok(_) => "plain",
        Err(Failure::TlsNotOffered) => "not offered",
        Err(Failure::TlsIdentity(_)) => "identity",
        Err(Failure::TlsHandshake(_)) => "handshake",
        Err(Failure::TlsFile(_)) => "file",
        Err(Failure::EarlyData) => "early",
        Err(Failure::TlsRequestRefused) => "refused",
        Err(Failure::NotPostgres(_)) => "not postgres",
        Err(Failure::Lost(_)) => "lost",
        Err(Failure::AuthMethod(_)) => "policy",
        Err(other) => panic!("{other:?}"),
    }
}

fn message(r: Result<Secured, Failure>) -> String {
    r.err().expect("must fail").to_string()
}

fn first_try(mode: SslMode) -> Secure {
    match mode {
        SslMode::Disable => Secure::Plain,
        SslMode::Prefer => Secure::TlsOrPlain,
        // `allow` comes here for its second try only.
        _ => Secure::Tls,
    }
}

#[tokio::test]
async fn no_mode_accepts_what_libpq_refuses_nor_refuses_what_it_accepts() {
    use SslMode::{Allow, Disable, Prefer, Require, VerifyCa, VerifyFull};
    let ca = Ca::new();
    let dir = Dir::new();
    let root = dir.put("root.crt", &ca.pem);
    let servers = ["no tls", "self-signed", "right", "wrong name", "expired"];
    let table: &[(SslMode, bool, [&str; 5])] = &[
        (Disable, false, ["plain"; 5]),
        (Allow, false, ["not offered", "tls", "tls", "tls", "tls"]),
        (Prefer, false, ["plain", "tls", "tls", "tls", "tls"]),
        (Require, false, ["not offered", "tls", "tls", "tls", "tls"]),
        (VerifyCa, false, ["file"; 5]),
        (VerifyFull, false, ["file"; 5]),
        (Disable, true, ["plain"; 5]),
        (Allow, true, ["not offered", "identity", "tls", "tls", "identity"]),
        (Prefer, true, ["plain", "identity", "tls", "tls", "identity"]),
        (Require, true, ["not offered", "identity", "tls", "tls", "identity"]),
        (VerifyCa, true, ["not offered", "identity", "tls", "tls", "identity"]),
        (VerifyFull, true, ["not offered", "identity", "tls", "identity", "identity"]),
    ];
    for (mode, with_root, wanted) in table {
        for (server, want) in servers.iter().zip(wanted) {
            let mut config = config(*mode);
            if *with_root {
                config.sslrootcert = RootCert::Default(root.clone());
            }
            let case = format!("sslmode={mode}, root {with_root}, server {server}");
            let tls = match TlsContext::load(&config) {
                Ok(t) => t,
                Err(e) => {
                    assert_eq!((word(&Err(e)), *want), ("file", "file"), "{case}");
                    continue;
                }
            };
            let served = match *server {
                "self-signed" => Some(Served::self_signed(&["h1"])),
                "right" => Some(ca.issue(&["h1"])),
                "wrong name" => Some(ca.issue(&["h2"])),
                "expired" => Some(ca.issue_with(&["h1"], |p| p.not_after = rcgen::date_time_ymd(2020, 1, 1))),
                _ => None,
            };
            let answer: &[u8] = if served.is_some() { b"S" } else { b"N" };
            let peer = match mode {
                // In clear text nothing is asked: whatever the server would have answered.
                Disable => Peer::start(b"N", None).await,
                _ => Peer::start(answer, served.map(Served::server)).await,
            };
            let (got, seen) = peer.secure(&tls, Some("h1"), first_try(*mode)).await;
            assert_eq!(word(&got), *want, "{case}: {:?}", got.err());
            match *want {
                "tls" => assert_eq!((seen.session, seen.sni.as_deref()), (Some(b'Q'), Some("h1")), "{case}"),
                "plain" if *mode == Disable => assert_eq!(seen.request, b"Q", "{case}: no SSLRequest"),
                "plain" => assert_eq!(seen.session, Some(b'Q'), "{case}"),
                _ => assert_eq!(seen.session, None, "{case}: nothing of the session may have left"),
            }
        }
    }
}

#[tokio::test]
async fn only_the_byte_n_means_no_tls_and_nothing_behind_s_is_read() {
    let tls = TlsContext::load(&config(SslMode::Prefer)).unwrap();
    let error = b"E\0\0\0\x20SFATAL\0C57P03\0Mtext \x1b]0;owned\x07\0\0";
    let rows: &[(&'static [u8], &str)] = &[
        (b"N", "plain"),
        (error, "refused"),
        (b"E", "refused"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "not postgres"),
        (b"R\0\0\0\x08\0\0\0\0", "not postgres"),
        (b"\0", "not postgres"),
        (b"n", "not postgres"),
        (b"SR\0\0\0\x08\0\0\0\0", "early"),
        (b"SE", "early"),
        (b"", "lost"),
        // The server goes away right after the S.
        (b"S", "handshake"),
    ];
    for (answer, want) in rows {
        let (got, seen) = Peer::start(answer, None).await.secure(&tls, Some("h1"), Secure::TlsOrPlain).await;
        assert_eq!(word(&got), *want, "{}", answer.escape_ascii());
        assert_eq!(seen.request, SSL_REQUEST);
        if let Err(f) = got {
            assert!(!f.to_string().contains("owned"), "text of a stranger in {f}");
        }
    }
}

#[tokio::test]
async fn clear_text_that_comes_late_behind_s_never_becomes_the_session() {
    let (client, mut server) = tokio::io::duplex(4_096);
    let tls = TlsContext::load(&config(SslMode::Require)).unwrap();
    let name = ServerNameFor { host: Some("h1".to_owned()), label: "h1".to_owned() };
    let peer = tokio::spawn(async move {
        let mut request = [0; 8];
        server.read_exact(&mut request).await.unwrap();
        server.write_all(b"S").await.unwrap();
        let mut hello = [0; 5];
        server.read_exact(&mut hello).await.unwrap();
        server.write_all(b"R\0\0\0\x08\0\0\0\0Z\0\0\0\x05I").await.unwrap();
        let mut rest = Vec::new();
        server.read_to_end(&mut rest).await.unwrap();
    });
    let got = secure(Box::new(client), &tls, &name, Secure::Tls).await.map_err(|f| f.failure);
    assert_eq!(word(&got), "handshake");
    peer.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_silent_server_is_left_to_the_deadline_and_dropping_closes_the_stream() {
    for answer in [&b""[..], b"S"] {
        let (client, mut server) = tokio::io::duplex(4_096);
        let tls = TlsContext::load(&config(SslMode::Require)).unwrap();
        let name = ServerNameFor { host: Some("h1".to_owned()), label: "h1".to_owned() };
        server.write_all(answer).await.unwrap();
        let attempt = secure(Box::new(client), &tls, &name, Secure::Tls);
        assert!(crate::Deadline::after(Duration::from_secs(30)).bound(attempt).await.is_err());
        let mut all = Vec::new();
        server.read_to_end(&mut all).await.unwrap();
        assert_eq!(all[..8], SSL_REQUEST);
    }
}

#[tokio::test]
async fn verify_full_without_a_host_name_sends_nothing() {
    let dir = Dir::new();
    let ca = Ca::new();
    let mut config = config(SslMode::VerifyFull);
    config.sslrootcert = RootCert::File(dir.put("root.crt", &ca.pem));
    let tls = TlsContext::load(&config).unwrap();
    let peer = Peer::start(b"S", Some(ca.issue(&["127.0.0.1"]).server())).await;
    let (got, seen) = peer.secure(&tls, None, Secure::Tls).await;
    assert_eq!(word(&got), "identity");
    assert_eq!(seen.request, b"");
    let text = message(got);
    assert!(text.contains("127.0.0.1") && text.contains("host") && text.contains("verify-full"), "{text}");
}

#[tokio::test]
async fn sni_is_the_configured_name_and_never_an_address() {
    let rows = [
        (Some("db.example.com"), true, Some("db.example.com")),
        (Some("db.example.com"), false, None),
        (Some("db_1"), true, Some("db_1")),
        (Some("not a name"), true, None),
        (Some("127.0.0.1"), true, None),
        (Some("::1"), true, None),
        (None, true, None),
    ];
    for (host, sslsni, want) in rows {
        let tls = TlsContext::load(&TlsConfig { sslsni, ..config(SslMode::Require) }).unwrap();
        let peer = Peer::start(b"S", Some(Served::self_signed(&["x"]).server())).await;
        let (got, seen) = peer.secure(&tls, host, Secure::Tls).await;
        assert_eq!(word(&got), "tls", "{host:?}: {:?}", got.err());
        assert_eq!(seen.sni.as_deref(), want, "{host:?}, sslsni {sslsni}");
    }
}

#[tokio::test]
async fn direct_negotiation_needs_the_servers_word_that_it_speaks_postgresql() {
    let direct = TlsConfig { sslnegotiation: SslNegotiation::Direct, ..config(SslMode::Require) };
    let tls = TlsContext::load(&direct).unwrap();
    let server = |alpn: &[&str]| {
        let mut s = Served::self_signed(&["h1"]).server();
        s.alpn_protocols = alpn.iter().map(|p| p.as_bytes().to_vec()).collect();
        s
    };
    for (alpn, want) in [(&["postgresql"][..], "tls"), (&["h2"], "handshake"), (&[], "handshake")] {
        let (got, seen) = Peer::direct(server(alpn)).await.secure(&tls, Some("h1"), Secure::Tls).await;
        assert_eq!(word(&got), want, "{alpn:?}");
        if want == "tls" {
            assert_eq!(seen.alpn.as_deref(), Some(ALPN));
        } else {
            let text = message(got);
            assert!(text.contains("ALPN"), "{text}");
        }
    }
    // With an SSLRequest, servers before 17 answer without ALPN.
    let tls = TlsContext::load(&config(SslMode::Require)).unwrap();
    let (got, _) = Peer::start(b"S", Some(server(&[]))).await.secure(&tls, Some("h1"), Secure::Tls).await;
    assert_eq!(word(&got), "tls");
}

#[tokio::test]
async fn protocol_versions_outside_the_bounds_are_not_used() {
    use TlsVersion::{V12, V13};
    static OLD: &[&SupportedProtocolVersion] = &[&rustls::version::TLS12];
    static NEW: &[&SupportedProtocolVersion] = &[&rustls::version::TLS13];
    let rows = [
        (V12, None, OLD, "tls", true),
        (V12, None, rustls::ALL_VERSIONS, "tls", false),
        (V12, Some(V12), rustls::ALL_VERSIONS, "tls", true),
        (V13, None, OLD, "handshake", false),
        (V12, Some(V12), NEW, "handshake", false),
    ];
    for (min_protocol, max_protocol, versions, want, tls12) in rows {
        let c = TlsConfig { min_protocol, max_protocol, ..config(SslMode::Require) };
        let tls = TlsContext::load(&c).unwrap();
        let server = Served::self_signed(&["h1"]).server_with(versions, None);
        let (got, seen) = Peer::start(b"S", Some(server)).await.secure(&tls, Some("h1"), Secure::Tls).await;
        let case = format!("{min_protocol} to {max_protocol:?}: {:?}", got.as_ref().err());
        assert_eq!((word(&got), seen.tls12), (want, tls12), "{case}");
        if want == "handshake" {
            assert!(case.contains("ssl_min_protocol_version"), "{case}");
        }
    }
    let none = TlsConfig { min_protocol: V13, max_protocol: Some(V12), ..config(SslMode::Require) };
    assert!(
        matches!(TlsContext::load(&none), Err(Failure::TlsFile(m)) if m.contains("ssl_max_protocol_version"))
    );
}

#[tokio::test]
async fn a_client_certificate_goes_where_it_was_asked_for_and_nowhere_else() {
    let ca = Ca::new();
    let client = ca.issue(&["user"]);
    let dir = Dir::new();
    let cert = dir.put("postgresql.crt", client.pem());
    let key = dir.put("postgresql.key", client.key_pem());
    use SslCertMode::{Allow, Disable, Require};
    let rows = [
        // mode, files there, server asks -> result, certificates that the server got
        (Allow, true, true, "tls", 1),
        (Allow, true, false, "tls", 0),
        (Allow, false, true, "tls", 0),
        (Disable, true, true, "tls", 0),
        (Require, true, true, "tls", 1),
        (Require, true, false, "policy", 0),
    ];
    for (sslcertmode, there, asks, want, sent) in rows {
        for versions in [&[&rustls::version::TLS12][..], &[&rustls::version::TLS13]] {
            let mut c = TlsConfig { sslcertmode, ..config(SslMode::Require) };
            if there {
                (c.sslcert, c.sslkey) = ((cert.clone(), false), (key.clone(), false));
            }
            let tls = TlsContext::load(&c).unwrap();
            let server = ca.issue(&["h1"]).server_with(versions, asks.then_some(ca.pem.as_str()));
            let peer = Peer::start(b"S", Some(server)).await;
            let (got, seen) = peer.secure(&tls, Some("h1"), Secure::Tls).await;
            let case =
                format!("sslcertmode={sslcertmode}, files {there}, asked {asks}: {:?}", got.as_ref().err());
            assert_eq!((word(&got), seen.client_certs), (want, sent), "{case}");
        }
    }
}

#[tokio::test]
async fn a_client_certificate_that_the_server_refuses_is_an_error_before_or_at_the_first_read() {
    let (ca, other) = (Ca::new(), Ca::new());
    let client = other.issue(&["user"]);
    let dir = Dir::new();
    let mut c = config(SslMode::Require);
    c.sslcert = (dir.put("c.crt", client.pem()), true);
    c.sslkey = (dir.put("c.key", client.key_pem()), true);
    let tls = TlsContext::load(&c).unwrap();
    // TLS 1.2: within the handshake.
    let server = ca.issue(&["h1"]).server_with(&[&rustls::version::TLS12], Some(&ca.pem));
    let (got, _) = Peer::start(b"S", Some(server)).await.secure(&tls, Some("h1"), Secure::Tls).await;
    assert_eq!(word(&got), "handshake");
    // TLS 1.3: the client is done first, so the answer comes with the first read.
    let server = ca.issue(&["h1"]).server_with(&[&rustls::version::TLS13], Some(&ca.pem));
    let (got, seen) = Peer::start(b"S", Some(server)).await.secure(&tls, Some("h1"), Secure::Tls).await;
    let e = got.unwrap().io.read_u8().await.unwrap_err();
    assert!(e.to_string().contains("alert"), "{e}");
    assert_eq!(seen.session, None);
}
