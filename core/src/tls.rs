//! TLS as libpq does it: the SSLRequest, the handshake, the certificate, the channel binding value.
//!
//! Decides nothing about the next step: whether to try TLS at all, and what follows a failure, is
//! `decide/walk.rs`'s. Here is only one attempt on one stream. The caller bounds the time and may drop the
//! future. Invariants: before the handshake one byte is read and only `N` means "no TLS"; whatever follows the `S` in
//! clear text ends the attempt (CVE-2021-23222); with a name to check, nothing is sent until there is one.
//! `handshake.rs` logs in over what comes out. A cancel request goes through the same door.

mod binding;
mod files;
mod names;
mod verify;

use std::future::poll_fn;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;

use rustls::client::{ResolvesClientCert, Resumption};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::ServerName;
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, SignatureScheme, SupportedProtocolVersion};
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadBuf};
use tokio_rustls::TlsConnector;

use self::verify::{Trust, Verifier};
use crate::config::{RootCert, SslCertMode, SslMode, SslNegotiation, TlsConfig, TlsVersion};
use crate::error::Stage;
use crate::failure::{Failed, Failure};
use crate::host::HostSpec;
use crate::net::Io;

/// SSLRequest: length 8, code 80877103 (PostgreSQL manual, "Message Formats").
const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f];
/// PostgreSQL's ALPN protocol (IANA registry; PostgreSQL `pqcomm.h`, PG_ALPN_PROTOCOL).
const ALPN: &[u8] = b"postgresql";

/// What to try on this stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Secure {
    /// Clear text.
    Plain,
    /// TLS, or the attempt fails.
    Tls,
    /// TLS, or clear text on this very stream if the server answers `N` (sslmode=prefer).
    TlsOrPlain,
}

/// A stream that is ready for the startup packet.
pub(crate) struct Secured {
    /// The stream.
    pub(crate) io: Box<dyn Io>,
    /// Whether it is TLS.
    pub(crate) encrypted: bool,
    /// `tls-server-end-point`; `None` in clear text, or where the certificate's signature has no such value.
    pub(crate) channel_binding: Option<Vec<u8>>,
}

/// Whose certificate is expected: the configured host, as written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServerNameFor {
    /// `host` as written, a name or an address; `None` where only `hostaddr` or a socket directory was given.
    pub(crate) host: Option<String>,
    /// What messages call it.
    label: String,
}

impl ServerNameFor {
    /// For an entry of the host list.
    pub(crate) fn of(spec: &HostSpec) -> Self {
        let host = match spec {
            HostSpec::Tcp { host, .. } => host.clone().filter(|h| !h.is_empty()),
            HostSpec::Unix { .. } | HostSpec::DefaultLocal { .. } => None,
        };
        Self { host, label: spec.label() }
    }

    /// The name for SNI: never an address (RFC 6066, section 3), nor what isn't a DNS name.
    fn sni(&self) -> Option<ServerName<'static>> {
        let host = self.host.as_deref()?;
        if host.parse::<IpAddr>().is_ok() {
            return None;
        }
        ServerName::try_from(host.to_owned()).ok().filter(|n| matches!(n, ServerName::DnsName(_)))
    }
}

/// Everything about TLS that is the same for all connections of a connector. Files are read here, once.
#[derive(Debug)]
pub(crate) struct TlsContext {
    provider: Arc<CryptoProvider>,
    versions: Vec<&'static SupportedProtocolVersion>,
    trust: Option<Arc<Trust>>,
    check_name: bool,
    mode: SslMode,
    identity: Option<Arc<CertifiedKey>>,
    cert_mode: SslCertMode,
    send_sni: bool,
    direct: bool,
}

impl TlsContext {
    /// Reads the files and checks that they can be used together.
    ///
    /// # Errors
    /// [`Failure::TlsFile`] with the parameter, the file and the remedy.
    pub(crate) fn load(config: &TlsConfig) -> Result<Self, Failure> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let max = config.max_protocol.unwrap_or(TlsVersion::V13);
        let versions: Vec<_> =
            [(TlsVersion::V12, &rustls::version::TLS12), (TlsVersion::V13, &rustls::version::TLS13)]
                .into_iter()
                .filter(|(v, _)| (config.min_protocol as u8..=max as u8).contains(&(*v as u8)))
                .map(|(_, supported)| supported)
                .collect();
        if versions.is_empty() {
            return Err(Failure::TlsFile(format!(
                "ssl_min_protocol_version={} is above ssl_max_protocol_version={max}: no version is left",
                config.min_protocol
            )));
        }
        let (trust, identity) = match config.sslmode {
            SslMode::Disable => (None, None),
            _ => (files::trust(config)?.map(Arc::new), files::identity(config, &provider)?),
        };
        Ok(Self {
            provider,
            versions,
            trust,
            // The system's roots vouch for the whole internet: without the name they would prove nothing.
            check_name: config.sslmode == SslMode::VerifyFull || config.sslrootcert == RootCert::System,
            mode: config.sslmode,
            identity,
            cert_mode: config.sslcertmode,
            send_sni: config.sslsni,
            direct: config.sslnegotiation == SslNegotiation::Direct,
        })
    }

    /// The rustls configuration of one connection, with its two observers.
    fn client(&self, name: &ServerNameFor) -> Result<(ClientConfig, Arc<Verifier>, Arc<Identity>), Failure> {
        let verifier = Arc::new(Verifier {
            algs: self.provider.signature_verification_algorithms,
            trust: self.trust.clone(),
            name: if self.check_name { name.host.clone() } else { None },
            refusal: Mutex::new(None),
        });
        let identity = Arc::new(Identity { key: self.identity.clone(), asked: AtomicBool::new(false) });
        let mut client = ClientConfig::builder_with_provider(self.provider.clone())
            .with_protocol_versions(&self.versions)
            .map_err(|e| Failure::TlsHandshake(e.to_string()))?
            .dangerous()
            .with_custom_certificate_verifier(verifier.clone())
            .with_client_cert_resolver(identity.clone());
        client.alpn_protocols = vec![ALPN.to_vec()];
        // The server offers no resumption, and a resumed session would skip the certificate.
        client.resumption = Resumption::disabled();
        client.enable_sni = self.send_sni;
        Ok((client, verifier, identity))
    }
}

/// Brings a fresh stream to the point where the startup packet can be sent.
///
/// # Errors
/// [`Failure::TlsIdentity`] if the certificate isn't trusted or isn't the host's (with [`Secure::Plain`] never);
/// [`Failure::TlsNotOffered`], [`Failure::TlsRequestRefused`], [`Failure::EarlyData`], [`Failure::NotPostgres`] by the
/// answer to the SSLRequest; [`Failure::Lost`] if the stream ended before that answer, [`Failure::TlsHandshake`] if it
/// ended or failed after it; [`Failure::AuthMethod`] if `sslcertmode=require` and the server didn't ask.
pub(crate) async fn secure(
    mut io: Box<dyn Io>,
    tls: &TlsContext,
    name: &ServerNameFor,
    mode: Secure,
) -> Result<Secured, Failed> {
    let failed = |f| Failed::new(Stage::Secure, f);
    if mode == Secure::Plain {
        return Ok(Secured { io, encrypted: false, channel_binding: None });
    }
    if tls.check_name && name.host.is_none() {
        return Err(failed(Failure::TlsIdentity(format!(
            "sslmode={} needs a name to check, and \"{}\" has none: set host (hostaddr may stay)",
            tls.mode, name.label
        ))));
    }
    if !tls.direct && !offered(&mut io).await.map_err(failed)? {
        return match mode {
            Secure::TlsOrPlain => Ok(Secured { io, encrypted: false, channel_binding: None }),
            _ => Err(failed(Failure::TlsNotOffered)),
        };
    }
    handshake(io, tls, name).await.map_err(failed)
}

/// Asks for TLS. True for `S` with nothing behind it, false for `N`.
async fn offered(io: &mut Box<dyn Io>) -> Result<bool, Failure> {
    let lost = |e: io::Error| Failure::Lost(format!("no answer to the TLS request: {e}"));
    io.write_all(&SSL_REQUEST).await.map_err(lost)?;
    io.flush().await.map_err(lost)?;
    match io.read_u8().await.map_err(lost)? {
        b'S' if stray(io).await? => Err(Failure::EarlyData),
        b'S' => Ok(true),
        b'N' => Ok(false),
        b'E' => Err(Failure::TlsRequestRefused),
        other => Err(Failure::NotPostgres(format!("it answered the TLS request with byte 0x{other:02x}"))),
    }
}

/// Whether bytes wait behind the `S`: the server must be silent until the ClientHello, so they are someone's in between.
/// One look, no waiting; what comes later meets the handshake, which takes no clear text.
async fn stray(io: &mut Box<dyn Io>) -> Result<bool, Failure> {
    let mut byte = [0; 1];
    let mut buf = ReadBuf::new(&mut byte);
    // Unconstrained: tokio's budget must not make a full socket look empty.
    let look = poll_fn(|cx| match Pin::new(&mut **io).poll_read(cx, &mut buf) {
        Poll::Ready(r) => Poll::Ready(Some(r.map(|()| buf.filled().len()))),
        Poll::Pending => Poll::Ready(None),
    });
    match tokio::task::unconstrained(look).await {
        None => Ok(false),
        Some(Ok(0)) => Err(Failure::TlsHandshake("the server closed the connection".to_owned())),
        Some(Ok(_)) => Ok(true),
        Some(Err(e)) => Err(Failure::TlsHandshake(e.to_string())),
    }
}

async fn handshake(io: Box<dyn Io>, tls: &TlsContext, name: &ServerNameFor) -> Result<Secured, Failure> {
    let (mut client, verifier, identity) = tls.client(name)?;
    let sni = name.sni().unwrap_or_else(|| {
        client.enable_sni = false;
        // rustls wants some name; our verifier doesn't look at it, and an address is never sent.
        ServerName::IpAddress(rustls::pki_types::IpAddr::V4(rustls::pki_types::Ipv4Addr::from([0; 4])))
    });
    // Boxed: the state of a handshake is large, and each caller's future would carry it.
    let stream = match Box::pin(TlsConnector::from(Arc::new(client)).connect(sni, io)).await {
        Ok(s) => s,
        Err(e) => {
            return Err(match verifier.take_refusal() {
                Some(why) => Failure::TlsIdentity(format!(
                    "the certificate of \"{}\" is not accepted (sslmode={}): {why}",
                    name.label, tls.mode
                )),
                None => Failure::TlsHandshake(handshake_words(&e)),
            });
        }
    };
    let session = stream.get_ref().1;
    if tls.direct && session.alpn_protocol() != Some(ALPN) {
        return Err(Failure::TlsHandshake(
            "sslnegotiation=direct, but the server didn't agree on the protocol (ALPN): it needs PostgreSQL 17 or later"
                .to_owned(),
        ));
    }
    if tls.cert_mode == SslCertMode::Require && !identity.asked.load(Ordering::Relaxed) {
        return Err(Failure::AuthMethod(
            "sslcertmode=require, but the server didn't ask for a client certificate".to_owned(),
        ));
    }
    let leaf = session.peer_certificates().and_then(<[_]>::first);
    let channel_binding = leaf.and_then(|der| binding::server_end_point(der));
    Ok(Secured { io: Box::new(stream), encrypted: true, channel_binding })
}

fn handshake_words(e: &io::Error) -> String {
    use rustls::{AlertDescription as A, Error as E};
    match e.get_ref().and_then(|inner| inner.downcast_ref::<E>()) {
        Some(E::AlertReceived(A::ProtocolVersion) | E::PeerIncompatible(_)) => format!(
            "{e}: the server and the client have no version or cipher in common \
             (ssl_min_protocol_version, ssl_max_protocol_version)"
        ),
        // What PostgreSQL says to a client that can't use its key; the text must not leave the reader in the dark.
        Some(E::AlertReceived(A::HandshakeFailure)) => {
            format!(
                "{e}: perhaps the server's key is of a kind not supported here (EC P-521, RSA under 2048 bits)"
            )
        }
        Some(E::AlertReceived(A::NoApplicationProtocol)) => {
            format!("{e}: the server doesn't speak PostgreSQL's protocol (ALPN)")
        }
        _ if e.kind() == io::ErrorKind::UnexpectedEof => "the server closed the connection".to_owned(),
        _ => e.to_string(),
    }
}

/// The client's certificate, and whether the server asked for one.
#[derive(Debug)]
struct Identity {
    key: Option<Arc<CertifiedKey>>,
    asked: AtomicBool,
}

impl ResolvesClientCert for Identity {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.asked.store(true, Ordering::Relaxed);
        // As libpq: sent whatever issuers the server names; it will say what it doesn't like.
        self.key.clone()
    }

    fn has_certs(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests;
