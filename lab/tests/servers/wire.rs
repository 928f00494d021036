//! The scripted server itself, with tokio-postgres as the client that knows nothing of us.

use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pgfollow_lab::wire::{
    BlackHole, End, Identity, Login, Method, Options, Own, Role, Script, Seen, WireServer, canned,
    closed_port,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_postgres::config::{ChannelBinding, SslMode, SslNegotiation};
use tokio_postgres::tls::{self, NoTls, TlsConnect};
use tokio_postgres::{Client, Config, SimpleQueryMessage};

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const BOUND: Duration = Duration::from_secs(10);

async fn start(script: Script) -> WireServer {
    start_with(script, Options::default()).await
}

async fn start_with(script: Script, options: Options) -> WireServer {
    WireServer::start(SocketAddr::new(LOOPBACK, 0), script, options).await.expect("a loopback port")
}

fn config(password: &str) -> Config {
    let mut config = Config::new();
    config.user("u").dbname("d").password(password);
    config
}

async fn connect(server: &WireServer, config: &Config) -> Result<Client, tokio_postgres::Error> {
    let stream = TcpStream::connect(server.address()).await.expect("the scripted server listens");
    let connect = tokio::time::timeout(BOUND, config.connect_raw(stream, NoTls));
    let (client, connection) = connect.await.expect("a login in time")?;
    tokio::spawn(connection);
    Ok(client)
}

/// The TLS client: trusts one certificate and hands over the data that channel binding needs.
struct Tls {
    config: Arc<rustls::ClientConfig>,
    end_point: Vec<u8>,
}

impl Tls {
    fn trusting(identity: &Identity) -> Self {
        use rustls_pki_types::pem::PemObject;
        let der = rustls_pki_types::CertificateDer::from_pem_slice(identity.certificate_pem.as_bytes());
        let mut roots = rustls::RootCertStore::empty();
        roots.add(der.expect("our own PEM")).expect("our own certificate");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("ring has the default versions")
            .with_root_certificates(roots)
            .with_no_client_auth();
        Self { config: Arc::new(config), end_point: identity.end_point.clone() }
    }
}

struct TlsIo(tokio_rustls::client::TlsStream<TcpStream>, Vec<u8>);

impl tokio::io::AsyncRead for TlsIo {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
        buf: &mut tokio::io::ReadBuf<'_>,
    ) -> std::task::Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl tokio::io::AsyncWrite for TlsIo {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
        buf: &[u8],
    ) -> std::task::Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }
    fn poll_flush(
        mut self: Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }
    fn poll_shutdown(
        mut self: Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

impl tls::TlsStream for TlsIo {
    fn channel_binding(&self) -> tls::ChannelBinding {
        tls::ChannelBinding::tls_server_end_point(self.1.clone())
    }
}

impl TlsConnect<TcpStream> for Tls {
    type Stream = TlsIo;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<TlsIo>> + Send>>;

    fn connect(self, stream: TcpStream) -> Self::Future {
        Box::pin(async move {
            let name = rustls_pki_types::ServerName::try_from("h1").expect("a name");
            let stream = tokio_rustls::TlsConnector::from(self.config).connect(name, stream).await?;
            Ok(TlsIo(stream, self.end_point))
        })
    }
}

async fn connect_tls(
    server: &WireServer,
    identity: &Identity,
    config: &Config,
) -> Result<Client, tokio_postgres::Error> {
    let stream = TcpStream::connect(server.address()).await.expect("the scripted server listens");
    let connect = tokio::time::timeout(BOUND, config.connect_raw(stream, Tls::trusting(identity)));
    let (client, connection) = connect.await.expect("a login in time")?;
    tokio::spawn(connection);
    Ok(client)
}

fn sqlstate(error: &tokio_postgres::Error) -> &str {
    error.code().expect("an error of the server").code()
}

async fn rows(client: &Client, text: &str) -> Vec<Vec<Option<String>>> {
    let messages = client.simple_query(text).await.expect("an answer");
    let rows = messages.into_iter().filter_map(|m| match m {
        SimpleQueryMessage::Row(row) => Some((0..row.len()).map(|i| row.get(i).map(str::to_owned)).collect()),
        _ => None,
    });
    rows.collect()
}

#[tokio::test]
async fn a_driver_can_query_prepare_and_run_transactions() {
    let server = start(canned::server("15.18", Role::Primary)).await;
    let mut client = connect(&server, &config("")).await.expect("trust");
    let one: i32 = client.query_one("select 1", &[]).await.expect("a row").get(0);
    assert_eq!(one, 1);
    let recovery: bool = client.query_one("SELECT pg_is_in_recovery()", &[]).await.expect("a row").get(0);
    assert!(!recovery);
    let read_only: String = client.query_one("SHOW transaction_read_only", &[]).await.expect("a row").get(0);
    assert_eq!(read_only, "off");
    assert_eq!(client.execute("INSERT INTO t VALUES ($1)", &[&"x"]).await.expect("a tag"), 1);
    let tx = client.transaction().await.expect("BEGIN");
    tx.execute("UPDATE t SET a = 1", &[]).await.expect("a tag");
    tx.commit().await.expect("COMMIT");
    assert_eq!(rows(&client, "select 1; show transaction_read_only").await.len(), 2);
    assert_eq!(rows(&client, "").await.len(), 0);
    drop(client);
    let left = |s: &[Seen]| s[0].end == Some(End::ClientClosed);
    assert!(server.wait_until(BOUND, left).await, "the server sees the client leave");
    let seen = server.stop().await;
    let texts = seen[0].texts();
    assert!(texts.contains(&"START TRANSACTION") || texts.contains(&"BEGIN"), "{texts:?}");
    assert!(texts.contains(&"COMMIT") && seen[0].has("Terminate"));
    let startup = seen[0].startup().expect("a startup message");
    assert!(startup.contains(&("user".to_owned(), "u".to_owned())));
}

#[tokio::test]
async fn the_role_is_told_the_way_the_version_tells_it() {
    let server = start(canned::server("13.9", Role::Standby)).await;
    let client = connect(&server, &config("")).await.expect("trust");
    let answer = rows(&client, "SELECT pg_is_in_recovery(), current_setting('transaction_read_only')").await;
    assert_eq!(answer, [[Some("t".to_owned()), Some("on".to_owned())]]);
    server.stop().await;
    let options = Options { own: Own::OneRow, ..Options::default() };
    let server = start_with(canned::server("15.18", Role::Primary), options).await;
    let client = connect(&server, &config("")).await.expect("trust");
    let term = rows(&client, "SELECT system_identifier FROM pg_control_system()").await;
    assert_eq!(term, [[Some("1".to_owned())]], "an answer that makes no sense, on purpose");
    server.stop().await;
}

#[tokio::test]
async fn a_login_needs_the_right_password_by_every_method() {
    let identity = Identity::self_signed(&["h1"]).expect("a certificate");
    for method in [Method::Password, Method::Md5, Method::Scram, Method::ScramPlus] {
        let server = start(canned::login_server(Login::new(method, "right"))).await;
        let client = connect(&server, &config("right")).await.expect("the right password");
        assert_eq!(rows(&client, "select 1").await.len(), 1, "{method:?}");
        let wrong = connect(&server, &config("wrong")).await.expect_err("the wrong password");
        assert_eq!(sqlstate(&wrong), "28P01", "{method:?}");
        server.stop().await;

        let mut script = canned::behind_tls();
        script.0.extend(canned::login_server(Login::new(method, "right")).0);
        let options = Options { tls: Some(identity.clone()), ..Options::default() };
        let server = start_with(script, options).await;
        let mut config = config("right");
        config.ssl_mode(SslMode::Require);
        if method == Method::ScramPlus {
            config.channel_binding(ChannelBinding::Require);
        }
        let client = connect_tls(&server, &identity, &config).await.expect("the right password over TLS");
        assert_eq!(rows(&client, "select 1").await.len(), 1, "{method:?}");
        let seen = server.stop().await;
        let tls = seen[0].tls.as_ref().expect("a handshake");
        assert_eq!(tls.sni.as_deref(), Some("h1"));
        assert_eq!(seen[0].kinds().first(), Some(&"SSLRequest"));
    }
}

#[tokio::test]
async fn a_binding_to_another_certificate_is_refused() {
    let (mine, other) = (Identity::self_signed(&["h1"]).unwrap(), Identity::self_signed(&["h1"]).unwrap());
    let mut script = canned::behind_tls();
    script.0.extend(canned::login_server(Login::new(Method::ScramPlus, "right")).0);
    let server = start_with(script, Options { tls: Some(mine.clone()), ..Options::default() }).await;
    // A man in the middle: the client saw another certificate than the server's own.
    let mut tls = Tls::trusting(&mine);
    tls.end_point = other.end_point;
    let stream = TcpStream::connect(server.address()).await.unwrap();
    let mut config = config("right");
    config.ssl_mode(SslMode::Require);
    let Err(error) = config.connect_raw(stream, tls).await else { panic!("bound to another certificate") };
    assert_eq!(sqlstate(&error), "28P01");
    server.stop().await;
}

#[tokio::test]
async fn direct_tls_needs_no_request() {
    let identity = Identity::self_signed(&["h1"]).expect("a certificate");
    let script = Script(canned::tls_server("17.2", Role::Primary).0[1..].to_vec());
    let server = start_with(script, Options { tls: Some(identity.clone()), ..Options::default() }).await;
    let mut config = config("");
    config.ssl_mode(SslMode::Require).ssl_negotiation(SslNegotiation::Direct);
    let client = connect_tls(&server, &identity, &config).await.expect("a session");
    assert_eq!(rows(&client, "select 1").await.len(), 1);
    assert!(!server.stop().await[0].has("SSLRequest"));
}

#[tokio::test]
async fn a_deferred_failure_after_the_tag_looks_like_one() {
    let script = r#"[["startup"], ["send", [["auth", 0], ["ready", "I"]]],
        ["on-sync-after", ["Parse", "Bind", "Execute"], [["raw", "31000000043200000004"], ["cmd", "INSERT 0 1"]]],
        ["fin"]]"#;
    let server = start(Script::parse(script).expect("a script")).await;
    let client = connect(&server, &config("")).await.expect("trust");
    assert_eq!(rows(&client, "select pg_is_in_recovery()").await.len(), 1, "ours are answered meanwhile");
    let error = client.execute_typed("INSERT INTO t VALUES (1)", &[]).await.expect_err("no ReadyForQuery");
    assert!(error.is_closed() || error.to_string().contains("closed"), "{error}");
    server.stop().await;
}

#[tokio::test]
async fn answers_given_by_text_and_the_second_query_are_taken() {
    let script = r#"[["startup"], ["send", [["auth", 0], ["ready", "I"]]],
        ["serve", {"COMMIT": [["cmd", "ROLLBACK"], ["ready", "I"]],
                   "*second*": [["rows", "c", ["7"]], ["cmd", "SELECT 1"], ["ready", "I"]]}]]"#;
    let server = start(Script::parse(script).expect("a script")).await;
    let client = connect(&server, &config("")).await.expect("trust");
    let first: i32 = client.query_one("SELECT 1", &[]).await.expect("a row").get(0);
    assert_eq!(rows(&client, "").await.len(), 0, "a ping isn't counted");
    assert_eq!(rows(&client, "SELECT 1").await, [[Some("7".to_owned())]]);
    assert_eq!(first, 1);
    assert!(rows(&client, "commit;").await.is_empty());
    server.stop().await;
}

#[tokio::test]
async fn unreadable_scripts_are_refused_by_name() {
    for text in [r#"[["sned"]]"#, r#"[["send", [["auth"]]]]"#, r#"[["send", [["raw", "0"]]]]"#, "{}"] {
        assert!(Script::parse(text).is_err(), "{text}");
    }
}

/// Reads until the end: what came and how it ended.
async fn read_all(address: SocketAddr, first: &[u8]) -> (Vec<u8>, io::Result<()>) {
    let mut stream = TcpStream::connect(address).await.expect("accepted");
    stream.write_all(first).await.expect("room in the buffer");
    let (mut all, mut some) = (Vec::new(), [0; 4096]);
    loop {
        match tokio::time::timeout(BOUND, stream.read(&mut some)).await.expect("an end in time") {
            Ok(0) => return (all, Ok(())),
            Ok(n) => all.extend_from_slice(&some[..n]),
            Err(e) => return (all, Err(e)),
        }
    }
}

fn startup_packet() -> Vec<u8> {
    let body = b"user\0u\0\0";
    let mut packet = u32::try_from(body.len() + 8).unwrap().to_be_bytes().to_vec();
    packet.extend_from_slice(&0x0003_0000_u32.to_be_bytes());
    packet.extend_from_slice(body);
    packet
}

#[tokio::test]
async fn ends_of_connections_are_what_the_script_says() {
    let server = start(Script::parse(r#"[["startup"], ["rst"]]"#).unwrap()).await;
    let (_, end) = read_all(server.address(), &startup_packet()).await;
    assert_eq!(end.expect_err("a reset").kind(), io::ErrorKind::ConnectionReset);
    server.stop().await;

    let server = start(canned::end_of_file(true)).await;
    let (all, end) = read_all(server.address(), &startup_packet()).await;
    assert!(all.is_empty() && end.is_ok());
    server.stop().await;

    let server = start(Script::parse(r#"[["startup"], ["drip", [["ready", "I"]], 0.005]]"#).unwrap()).await;
    let began = Instant::now();
    let (all, _) = read_all(server.address(), &startup_packet()).await;
    assert_eq!(all, b"Z\0\0\0\x05I");
    assert!(began.elapsed() >= Duration::from_millis(30), "six bytes with pauses");
    server.stop().await;

    let server =
        start(Script::parse(r#"[["startup"], ["send", [["error_big", 1000000]]], ["fin"]]"#).unwrap()).await;
    let (all, _) = read_all(server.address(), &startup_packet()).await;
    assert!(all.len() > 1_000_000);
    server.stop().await;
}

#[tokio::test]
async fn stray_bytes_come_in_one_packet_with_the_answer() {
    let server = start(Script::parse(r#"[["ssl-reply-then-stray", "S"], ["record"]]"#).unwrap()).await;
    let mut stream = TcpStream::connect(server.address()).await.unwrap();
    stream.write_all(&[0, 0, 0, 8, 4, 0xd2, 0x16, 0x2f]).await.unwrap();
    let mut some = [0; 512];
    let n = stream.read(&mut some).await.unwrap();
    assert!(n > 10 && some[..2] == *b"SR", "{:?}", &some[..n]);
    // What isn't the protocol is recorded as bytes, not guessed at.
    stream.write_all(b"\x16\x03\x01\x02\x00hello").await.unwrap();
    assert!(server.wait_until(BOUND, |s| s[0].has("Bytes")).await);
    assert_eq!(server.stop().await[0].kinds(), ["SSLRequest", "Bytes"]);
}

#[tokio::test]
async fn a_stopped_server_leaves_no_connection_open() {
    let server = start(canned::mute()).await;
    let mut stream = TcpStream::connect(server.address()).await.unwrap();
    assert!(server.wait_until(BOUND, |s| s.len() == 1).await);
    let address = server.address();
    server.stop().await;
    let end = tokio::time::timeout(BOUND, stream.read(&mut [0; 1])).await.expect("an end in time");
    assert!(matches!(end, Ok(0) | Err(_)));
    let refused = TcpStream::connect(address).await.expect_err("nobody listens any more");
    assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
}

#[tokio::test]
async fn nobody_answers_at_a_closed_port_and_in_a_black_hole() {
    let closed = closed_port(LOOPBACK).expect("a port");
    let refused = TcpStream::connect(closed).await.expect_err("closed");
    assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    let hole = BlackHole::open(SocketAddr::new(LOOPBACK, 0)).await.expect("a black hole");
    // Longer than the first repetition of a SYN (1 s): still nothing.
    let silent = tokio::time::timeout(Duration::from_millis(1_500), TcpStream::connect(hole.address())).await;
    assert!(silent.is_err(), "{silent:?}");
}
