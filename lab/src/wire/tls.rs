//! Certificates for scripted servers, made on the spot.

use std::sync::Arc;

use ring::digest;
use rustls::ServerConfig;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

/// A server's certificate and key.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The certificate: what a client gives as `sslrootcert`, for it is self-signed.
    pub certificate_pem: String,
    /// Its SHA-256: the data of tls-server-end-point.
    pub end_point: Vec<u8>,
    pub(super) config: Arc<ServerConfig>,
}

/// A certificate could not be made.
#[derive(Debug, thiserror::Error)]
#[error("the certificate could not be made: {0}")]
pub struct IdentityError(String);

impl Identity {
    /// A self-signed certificate for these names and addresses.
    pub fn self_signed(names: &[&str]) -> Result<Self, IdentityError> {
        let failed = |e: &dyn std::fmt::Display| IdentityError(e.to_string());
        let names: Vec<String> = names.iter().map(|n| (*n).to_owned()).collect();
        let params = rcgen::CertificateParams::new(names).map_err(|e| failed(&e))?;
        let key = rcgen::KeyPair::generate().map_err(|e| failed(&e))?;
        let certificate = params.self_signed(&key).map_err(|e| failed(&e))?;
        let der = certificate.der().clone();
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let config = server_config(der.clone(), key).map_err(|e| failed(&e))?;
        Ok(Self {
            certificate_pem: certificate.pem(),
            end_point: digest::digest(&digest::SHA256, &der).as_ref().to_vec(),
            config: Arc::new(config),
        })
    }
}

fn server_config(
    certificate: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
) -> Result<ServerConfig, rustls::Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)?;
    // PostgreSQL 17 and later insist on this name in a direct handshake.
    config.alpn_protocols = vec![b"postgresql".to_vec()];
    Ok(config)
}
