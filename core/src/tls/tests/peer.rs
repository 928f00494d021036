//! The other side: a listener on loopback that answers the SSLRequest as scripted and does real TLS.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rcgen::{CertificateParams, IsCa, Issuer, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

use crate::Deadline;
use crate::config::{RootCert, SslCertMode, SslMode, SslNegotiation, TlsConfig, TlsVersion};
use crate::error::Stage;
use crate::failure::Failure;
use crate::host::{HostSpec, Port};
use crate::net::Io;
use crate::tls::{Secure, Secured, ServerNameFor, TlsContext, secure};

/// A directory that goes away with its test.
pub(super) struct Dir(PathBuf);

impl Dir {
    pub(super) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("pgf-tls-{}-{n}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// Writes a file that only its owner can read.
    pub(super) fn put(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, content).unwrap();
        self.mode(name, 0o600);
        path
    }

    pub(super) fn mode(&self, name: &str, mode: u32) {
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            std::fs::set_permissions(self.0.join(name), std::fs::Permissions::from_mode(mode)).unwrap();
        }
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A file of core/tests/fixtures/tls.
pub(super) fn fixture(name: &str) -> Vec<u8> {
    std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tls").join(name)).unwrap()
}

/// A root made for one test.
pub(super) struct Ca {
    pub(super) issuer: Issuer<'static, KeyPair>,
    pub(super) pem: String,
}

impl Ca {
    pub(super) fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, "test CA");
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(params, key), pem }
    }

    /// A certificate for these names.
    pub(super) fn issue(&self, names: &[&str]) -> Served {
        self.issue_with(names, |_| {})
    }

    pub(super) fn issue_with(&self, names: &[&str], change: impl FnOnce(&mut CertificateParams)) -> Served {
        let (params, key) = leaf(names, change);
        let cert = params.signed_by(&key, &self.issuer).unwrap();
        Served { chain: vec![cert.der().clone()], key: PrivateKeyDer::Pkcs8(key.serialize_der().into()) }
    }
}

fn leaf(names: &[&str], change: impl FnOnce(&mut CertificateParams)) -> (CertificateParams, KeyPair) {
    let names: Vec<String> = names.iter().map(|n| (*n).to_owned()).collect();
    let mut params = CertificateParams::new(names).unwrap();
    params.distinguished_name = rcgen::DistinguishedName::new();
    change(&mut params);
    (params, KeyPair::generate().unwrap())
}

/// A certificate and its key, as a server has them.
pub(super) struct Served {
    pub(super) chain: Vec<CertificateDer<'static>>,
    pub(super) key: PrivateKeyDer<'static>,
}

impl Served {
    pub(super) fn self_signed(names: &[&str]) -> Self {
        let (params, key) = leaf(names, |_| {});
        let cert = params.self_signed(&key).unwrap();
        Self { chain: vec![cert.der().clone()], key: PrivateKeyDer::Pkcs8(key.serialize_der().into()) }
    }

    pub(super) fn fixture(cert: &str, key: &str) -> Self {
        Self {
            chain: vec![CertificateDer::from_pem_slice(&fixture(cert)).unwrap()],
            key: PrivateKeyDer::from_pem_slice(&fixture(key)).unwrap(),
        }
    }

    pub(super) fn pem(&self) -> String {
        use std::fmt::Write as _;
        let mut out = String::new();
        for c in &self.chain {
            let b64 = x509_cert::der::pem::encode_string("CERTIFICATE", Default::default(), c).unwrap();
            writeln!(out, "{b64}").unwrap();
        }
        out
    }

    pub(super) fn key_pem(&self) -> String {
        x509_cert::der::pem::encode_string("PRIVATE KEY", Default::default(), self.key.secret_der()).unwrap()
    }

    /// A server's configuration: both versions, no client certificate asked, ALPN as PostgreSQL 17 has it.
    pub(super) fn server(self) -> ServerConfig {
        self.server_with(rustls::ALL_VERSIONS, None)
    }

    pub(super) fn server_with(
        self,
        versions: &[&'static rustls::SupportedProtocolVersion],
        clients: Option<&str>,
    ) -> ServerConfig {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        // Not with_single_cert: that refuses X.509 version 1, which OpenSSL serves.
        let key = provider.key_provider.load_private_key(self.key).unwrap();
        let fixed = Fixed(Arc::new(CertifiedKey::new(self.chain, key)));
        let builder =
            ServerConfig::builder_with_provider(provider.clone()).with_protocol_versions(versions).unwrap();
        let builder = match clients {
            None => builder.with_no_client_auth(),
            Some(ca) => {
                let mut roots = rustls::RootCertStore::empty();
                roots.add(CertificateDer::from_pem_slice(ca.as_bytes()).unwrap()).unwrap();
                let verifier =
                    rustls::server::WebPkiClientVerifier::builder_with_provider(roots.into(), provider)
                        .allow_unauthenticated();
                builder.with_client_cert_verifier(verifier.build().unwrap())
            }
        };
        let mut config = builder.with_cert_resolver(Arc::new(fixed));
        config.alpn_protocols = vec![b"postgresql".to_vec()];
        config
    }
}

#[derive(Debug)]
struct Fixed(Arc<CertifiedKey>);

impl ResolvesServerCert for Fixed {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.clone())
    }
}

/// What the server saw.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) request: Vec<u8>,
    pub(super) sni: Option<String>,
    pub(super) alpn: Option<Vec<u8>>,
    pub(super) client_certs: usize,
    pub(super) tls12: bool,
    /// The first byte of the session behind TLS, or in clear text.
    pub(super) session: Option<u8>,
}

/// A server for one connection.
pub(super) struct Peer {
    io: Box<dyn Io>,
    server: JoinHandle<Seen>,
}

impl Peer {
    /// Reads the SSLRequest (unless direct), answers with these bytes, then does TLS if there is a configuration.
    pub(super) async fn start(answer: &'static [u8], tls: Option<ServerConfig>) -> Self {
        Self::run(Some(answer), tls).await
    }

    pub(super) async fn direct(tls: ServerConfig) -> Self {
        Self::run(None, Some(tls)).await
    }

    async fn run(answer: Option<&'static [u8]>, tls: Option<ServerConfig>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let to = listener.local_addr().unwrap();
        let server = tokio::spawn(async move {
            let (mut s, _) = listener.accept().await.unwrap();
            let mut seen = Seen::default();
            if let Some(answer) = answer {
                let mut request = [0; 8];
                let n = s.read(&mut request).await.unwrap_or(0);
                seen.request = request[..n].to_vec();
                if n < 8 || s.write_all(answer).await.is_err() {
                    return seen;
                }
            }
            match tls {
                None if answer == Some(b"N") => seen.session = s.read_u8().await.ok(),
                None => {}
                Some(config) => {
                    let Ok(mut stream) = TlsAcceptor::from(Arc::new(config)).accept(s).await else {
                        return seen;
                    };
                    let session = stream.get_ref().1;
                    seen.sni = session.server_name().map(str::to_owned);
                    seen.alpn = session.alpn_protocol().map(<[_]>::to_vec);
                    seen.client_certs = session.peer_certificates().map_or(0, <[_]>::len);
                    seen.tls12 = session.protocol_version() == Some(rustls::ProtocolVersion::TLSv1_2);
                    seen.session = stream.read_u8().await.ok();
                }
            }
            seen
        });
        let io = Box::new(TcpStream::from_std(connected(to)).unwrap());
        Self { io, server }
    }

    /// Secures a connection to the server, sends one byte over what comes out, and says what both sides saw.
    pub(super) async fn secure(
        self,
        tls: &TlsContext,
        host: Option<&str>,
        mode: Secure,
    ) -> (Result<Secured, Failure>, Seen) {
        let name = ServerNameFor::of(&HostSpec::Tcp {
            host: host.map(str::to_owned),
            hostaddr: Some("127.0.0.1".to_owned()),
            port: Port::Number(5432),
        });
        let bound = Deadline::after(Duration::from_secs(20));
        let mut result = bound.bound(secure(self.io, tls, &name, mode)).await.expect("secure hangs");
        if let Ok(s) = &mut result {
            s.io.write_all(b"Q").await.unwrap();
            s.io.flush().await.unwrap();
        }
        let result = result.map_err(|f| {
            assert_eq!(f.stage, Stage::Secure);
            f.failure
        });
        (result, bound.bound(self.server).await.expect("the server hangs").unwrap())
    }
}

fn connected(to: std::net::SocketAddr) -> std::net::TcpStream {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.connect(&to.into()).unwrap();
    socket.set_nonblocking(true).unwrap();
    socket.into()
}

/// A configuration without any file.
pub(super) fn config(mode: SslMode) -> TlsConfig {
    let nowhere = || PathBuf::from("/nonexistent/pgf");
    TlsConfig {
        sslmode: mode,
        sslnegotiation: SslNegotiation::Postgres,
        sslrootcert: RootCert::Default(nowhere()),
        sslcert: (nowhere(), false),
        sslkey: (nowhere(), false),
        sslpassword: None,
        sslcertmode: SslCertMode::Allow,
        sslcrl: None,
        sslcrldir: None,
        sslsni: true,
        min_protocol: TlsVersion::V12,
        max_protocol: None,
    }
}
