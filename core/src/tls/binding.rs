//! The channel binding value `tls-server-end-point` (RFC 5929, section 4.1) of a server's certificate.
//!
//! Both sides hash the certificate with the hash of its own signature; MD5 and SHA-1 become SHA-256 (there and in
//! PostgreSQL's `fe-secure-openssl.c`, `pgtls_get_peer_certificate_hash`). Where the signature has no hash of its own
//! (Ed25519), or one that the library here doesn't have, there is no value: RFC 5929 leaves it undefined and the
//! server fails too. `handshake.rs` is next: it logs in without -PLUS, or refuses if that is required.

use ring::digest;
use x509_cert::Certificate;
use x509_cert::der::asn1::{ContextSpecific, ObjectIdentifier};
use x509_cert::der::{Decode, Encode, TagNumber};
use x509_cert::spki::{AlgorithmIdentifierOwned, AlgorithmIdentifierRef};

const fn oid(s: &str) -> ObjectIdentifier {
    ObjectIdentifier::new_unwrap(s)
}

/// id-RSASSA-PSS (RFC 4055): the hash is in the parameters.
const RSA_PSS: ObjectIdentifier = oid("1.2.840.113549.1.1.10");

/// Signature or hash algorithm → the hash for the binding.
static HASHES: &[(ObjectIdentifier, &digest::Algorithm)] = &[
    (oid("1.2.840.113549.1.1.4"), &digest::SHA256), // md5WithRSAEncryption
    (oid("1.2.840.113549.1.1.5"), &digest::SHA256), // sha1WithRSAEncryption
    (oid("1.2.840.113549.1.1.11"), &digest::SHA256), // sha256WithRSAEncryption
    (oid("1.2.840.113549.1.1.12"), &digest::SHA384), // sha384WithRSAEncryption
    (oid("1.2.840.113549.1.1.13"), &digest::SHA512), // sha512WithRSAEncryption
    (oid("1.2.840.10045.4.1"), &digest::SHA256),    // ecdsa-with-SHA1
    (oid("1.2.840.10045.4.3.2"), &digest::SHA256),  // ecdsa-with-SHA256
    (oid("1.2.840.10045.4.3.3"), &digest::SHA384),  // ecdsa-with-SHA384
    (oid("1.2.840.10045.4.3.4"), &digest::SHA512),  // ecdsa-with-SHA512
    (oid("1.3.14.3.2.26"), &digest::SHA256),        // id-sha1, in PSS parameters
    (oid("2.16.840.1.101.3.4.2.1"), &digest::SHA256),
    (oid("2.16.840.1.101.3.4.2.2"), &digest::SHA384),
    (oid("2.16.840.1.101.3.4.2.3"), &digest::SHA512),
];

/// The value for a certificate (DER).
pub(super) fn server_end_point(der: &[u8]) -> Option<Vec<u8>> {
    let cert = Certificate::from_der(der).ok()?;
    let signature = &cert.signature_algorithm;
    let id = if signature.oid == RSA_PSS { pss_hash(signature)? } else { signature.oid };
    let (_, hash) = HASHES.iter().find(|(o, _)| *o == id)?;
    Some(digest::digest(hash, der).as_ref().to_vec())
}

/// The hash of RSASSA-PSS-params: field 0, SHA-1 where it is left out (RFC 4055, section 3.1).
fn pss_hash(signature: &AlgorithmIdentifierOwned) -> Option<ObjectIdentifier> {
    let params = signature.parameters.as_ref()?.to_der().ok()?;
    let mut rest = x509_cert::der::SliceReader::new(&params).ok()?;
    let body = x509_cert::der::asn1::AnyRef::decode(&mut rest).ok()?;
    let mut fields = x509_cert::der::SliceReader::new(body.value()).ok()?;
    match ContextSpecific::<AlgorithmIdentifierRef<'_>>::decode_explicit(&mut fields, TagNumber::N0).ok()? {
        Some(field) => Some(field.value.oid),
        None => Some(oid("1.3.14.3.2.26")),
    }
}
