//! Checks a server's certificate as libpq does: roots, expiry, revocation, name. The handshake's own signature is
//! checked in every mode, so that the certificate in hand is the server's even where nobody checks whose it is.
//!
//! Two kinds of certificates that rustls refuses and libpq accepts are common with PostgreSQL and are accepted here:
//! - one that is itself a configured root (the manual's self-signed recipe, CN only, often with CA:TRUE);
//! - X.509 version 1, as `openssl x509 -req` makes it without extensions, issued by a configured root.
//!
//! Both are checked for expiry. With a revocation list they are refused: it can't be applied to them here.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{
    WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature,
    verify_tls13_signature_with_raw_key,
};
use rustls::pki_types::{
    CertificateDer, CertificateRevocationListDer, ServerName, SignatureVerificationAlgorithm,
    SubjectPublicKeyInfoDer, TrustAnchor, UnixTime,
};
use rustls::{CertificateError, DigitallySignedStruct, Error, SignatureScheme};
use webpki::{
    CertRevocationList, EndEntityCert, ExpirationPolicy, KeyUsage, OwnedCertRevocationList,
    RawPublicKeyEntity, RevocationCheckDepth, RevocationOptionsBuilder, UnknownStatusPolicy,
};
use x509_cert::Certificate;
use x509_cert::certificate::Version;
use x509_cert::der::{Decode, Encode, Reader, SliceReader};

use super::names::{Match, Names, clean};

/// Configured roots and revocation lists.
pub(super) struct Trust {
    /// The roots as they are, for a server certificate that is one of them.
    roots: Vec<CertificateDer<'static>>,
    anchors: Vec<TrustAnchor<'static>>,
    crls: Vec<CertRevocationList<'static>>,
    /// Where the roots come from, for messages.
    source: String,
}

impl Trust {
    pub(super) fn new(roots: Vec<CertificateDer<'static>>, source: String) -> Self {
        let mut anchors = Vec::new();
        for root in &roots {
            // One odd certificate must not spoil a bundle.
            match webpki::anchor_from_trusted_cert(root) {
                Ok(a) => anchors.push(a.to_owned()),
                Err(e) => tracing::debug!("a certificate in {source} can't serve as a root: {e}"),
            }
        }
        Self { roots, anchors, crls: Vec::new(), source }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.anchors.is_empty()
    }

    /// Adds a revocation list; false if it can't be read.
    pub(super) fn add_crl(&mut self, der: &CertificateRevocationListDer<'_>) -> bool {
        let list = OwnedCertRevocationList::from_der(der);
        list.map(|l| self.crls.push(l.into())).is_ok()
    }

    /// Whether the certificate is trusted; if not, why, in words.
    fn check(
        &self,
        der: &CertificateDer<'_>,
        cert: &Certificate,
        intermediates: &[CertificateDer<'_>],
        algs: &WebPkiSupportedAlgorithms,
        now: UnixTime,
    ) -> Result<(), String> {
        let is_root = self.roots.iter().any(|r| r == der);
        if is_root || cert.tbs_certificate.version == Version::V1 {
            if !self.crls.is_empty() {
                return Err("sslcrl and sslcrldir can't be applied to a self-signed or X.509 version 1 \
                            certificate: use one with version 3, issued by a root"
                    .to_owned());
            }
            if !is_root {
                self.issued_by_root(der, cert, algs)?;
            }
            return dates(cert, now);
        }
        let leaf = EndEntityCert::try_from(der).map_err(|e| self.words(&e, cert))?;
        let lists: Vec<_> = self.crls.iter().collect();
        // As OpenSSL's CRL_CHECK_ALL: every certificate of the chain, a list must be there and not outdated.
        let revocation = RevocationOptionsBuilder::new(&lists).ok().map(|b| {
            b.with_depth(RevocationCheckDepth::Chain)
                .with_status_policy(UnknownStatusPolicy::Deny)
                .with_expiration_policy(ExpirationPolicy::Enforce)
                .build()
        });
        leaf.verify_for_usage(
            algs.all,
            &self.anchors,
            intermediates,
            now,
            KeyUsage::server_auth(),
            revocation,
            None,
        )
        .map(|_| ())
        .map_err(|e| self.words(&e, cert))
    }

    /// Version 1 has no extensions and webpki doesn't read it. Only a configured root may be its issuer: version 1
    /// says of no certificate whether it may issue others.
    fn issued_by_root(
        &self,
        der: &CertificateDer<'_>,
        cert: &Certificate,
        algs: &WebPkiSupportedAlgorithms,
    ) -> Result<(), String> {
        let unknown = || self.words(&webpki::Error::UnknownIssuer, cert);
        let issuer = cert.tbs_certificate.issuer.to_der().map_err(|_| unknown())?;
        let signed = Signed::of(der).ok_or_else(unknown)?;
        let found = self.anchors.iter().any(|a| {
            // An anchor's subject is the content of the SEQUENCE.
            content(&issuer).is_some_and(|i| i == a.subject.as_ref())
                && signed.verify(&webpki::spki_for_anchor(a), algs.all)
        });
        if found { Ok(()) } else { Err(unknown()) }
    }

    fn words(&self, e: &webpki::Error, cert: &Certificate) -> String {
        use webpki::Error as E;
        let issuer = clean(cert.tbs_certificate.issuer.to_string().as_bytes());
        match e {
            E::UnknownIssuer if cert.tbs_certificate.version == Version::V1 => format!(
                "it has X.509 version 1, and its issuer ({issuer}) is not in {}: add the root, or issue it with version 3",
                self.source
            ),
            E::UnknownIssuer => format!("its issuer ({issuer}) is not in {} (sslrootcert)", self.source),
            E::CaUsedAsEndEntity => format!(
                "it is a self-signed or CA certificate that is not in {} (sslrootcert): add it there",
                self.source
            ),
            E::CertExpired { .. } => {
                format!(
                    "it or its issuer has expired (it is valid until {})",
                    cert.tbs_certificate.validity.not_after
                )
            }
            E::CertNotValidYet { .. } => {
                format!(
                    "it or its issuer is not valid yet (it is from {})",
                    cert.tbs_certificate.validity.not_before
                )
            }
            E::CertRevoked => "it or its issuer was revoked (sslcrl)".to_owned(),
            E::UnknownRevocationStatus => {
                "no revocation list of its issuer is in sslcrl or sslcrldir, so it can't be checked"
                    .to_owned()
            }
            E::CrlExpired { .. } => "the revocation list (sslcrl) is out of date".to_owned(),
            e => format!("it can't be verified ({e})"),
        }
    }
}

impl fmt::Debug for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (roots, crls) = (self.anchors.len(), self.crls.len());
        f.debug_struct("Trust")
            .field("source", &self.source)
            .field("roots", &roots)
            .field("crls", &crls)
            .finish()
    }
}

fn dates(cert: &Certificate, now: UnixTime) -> Result<(), String> {
    let v = &cert.tbs_certificate.validity;
    let now = now.as_secs();
    if now < v.not_before.to_unix_duration().as_secs() {
        return Err(format!("it is not valid before {}", v.not_before));
    }
    if now > v.not_after.to_unix_duration().as_secs() {
        return Err(format!("it expired on {}", v.not_after));
    }
    Ok(())
}

/// The value of a DER element, without tag and length.
fn content(der: &[u8]) -> Option<&[u8]> {
    let r = SliceReader::new(der).ok()?;
    let header = r.peek_header().ok()?;
    let len = usize::try_from(u32::from(header.length)).ok()?;
    der.get(der.len().checked_sub(len)?..)
}

/// A certificate's three parts as they were sent: re-encoding could differ from what was signed.
struct Signed<'a> {
    body: &'a [u8],
    algorithm: &'a [u8],
    signature: Vec<u8>,
}

impl<'a> Signed<'a> {
    fn of(der: &'a [u8]) -> Option<Self> {
        let mut parts = SliceReader::new(content(der)?).ok()?;
        let body = parts.tlv_bytes().ok()?;
        let algorithm = content(parts.tlv_bytes().ok()?)?;
        let signature = x509_cert::der::asn1::BitString::decode(&mut parts).ok()?;
        Some(Self { body, algorithm, signature: signature.as_bytes()?.to_vec() })
    }

    fn verify(
        &self,
        key: &SubjectPublicKeyInfoDer<'_>,
        algs: &[&dyn SignatureVerificationAlgorithm],
    ) -> bool {
        let Ok(key) = RawPublicKeyEntity::try_from(key) else { return false };
        (algs.iter())
            .filter(|a| a.signature_alg_id().as_ref() == self.algorithm)
            .any(|a| key.verify_signature(*a, self.body, &self.signature).is_ok())
    }
}

/// The verifier of one connection: it knows the configured host and keeps what it found.
pub(super) struct Verifier {
    pub(super) algs: WebPkiSupportedAlgorithms,
    /// `None`: whose certificate it is isn't checked.
    pub(super) trust: Option<Arc<Trust>>,
    /// The name that must be in the certificate, where the mode asks for it.
    pub(super) name: Option<String>,
    /// Why the certificate was refused: rustls's error has no room for words.
    pub(super) refusal: Mutex<Option<String>>,
}

impl Verifier {
    fn check(
        &self,
        der: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), String> {
        let Some(trust) = &self.trust else { return Ok(()) };
        let cert = Certificate::from_der(der).map_err(|e| format!("it can't be read ({e})"))?;
        trust.check(der, &cert, intermediates, &self.algs, now)?;
        let Some(name) = &self.name else { return Ok(()) };
        let names = Names::of(&cert).ok_or("its names can't be read")?;
        match names.compare(name) {
            Match::Yes => Ok(()),
            Match::No => Err(format!(
                "it is for another host ({}): use a name of the certificate as host, or issue one with the \
                 configured name",
                names.for_people()
            )),
            Match::ZeroByte => Err("a name in it has a zero byte".to_owned()),
        }
    }

    /// The reason of the refusal, if this verifier refused.
    pub(super) fn take_refusal(&self) -> Option<String> {
        self.refusal.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl fmt::Debug for Verifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Verifier").field("trust", &self.trust).field("name", &self.name).finish()
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        der: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(der, intermediates, now).map(|()| ServerCertVerified::assertion()).map_err(|why| {
            *self.refusal.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
            CertificateError::ApplicationVerificationFailure.into()
        })
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        der: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, der, signed, &self.algs).or_else(|e| {
            let key = v1_key(der).ok_or(e.clone())?;
            let raw = RawPublicKeyEntity::try_from(&key).map_err(|_| e.clone())?;
            let algs = self.algs.mapping.iter().find(|m| m.0 == signed.scheme).ok_or(e)?.1;
            if algs.iter().any(|a| raw.verify_signature(*a, message, signed.signature()).is_ok()) {
                return Ok(HandshakeSignatureValid::assertion());
            }
            Err(CertificateError::BadSignature.into())
        })
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        der: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, der, signed, &self.algs).or_else(|e| {
            let key = v1_key(der).ok_or(e)?;
            verify_tls13_signature_with_raw_key(message, &key, signed, &self.algs)
        })
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algs.supported_schemes()
    }
}

/// The key of a certificate with version 1, which rustls's own functions can't read.
fn v1_key(der: &[u8]) -> Option<SubjectPublicKeyInfoDer<'static>> {
    let tbs = Certificate::from_der(der).ok()?.tbs_certificate;
    let key = (tbs.version == Version::V1).then(|| tbs.subject_public_key_info.to_der())?;
    Some(key.ok()?.into())
}
