//! The files of the configuration: roots, revocation lists, client certificate and key. Read once, when the context
//! is loaded; every problem names the parameter, the file and the remedy.
//!
//! Which files must be there is libpq's rule (`fe-secure-openssl.c`, `initialize_SSL`), stricter in one point: a root
//! or client certificate that was *named* must be there from `sslmode=require` on. libpq goes on without it, so that
//! a typing error in the path turns the check off in silence.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use x509_cert::Certificate;
use x509_cert::der::{Decode, Encode};

use super::verify::Trust;
use crate::config::{RootCert, SslCertMode, SslMode, TlsConfig};
use crate::failure::Failure;

/// Larger than any real bundle of roots (Debian's is 0.25 MB), small enough to never hurt.
const MAX_FILE: u64 = 16 * 1024 * 1024;

fn fail<T>(message: impl Into<String>) -> Result<T, Failure> {
    Err(Failure::TlsFile(message.into()))
}

/// Whether the mode promises TLS: below `require` a missing file takes nothing away.
fn promised(mode: SslMode) -> bool {
    matches!(mode, SslMode::Require | SslMode::VerifyCa | SslMode::VerifyFull)
}

/// A whole file, or `None` if it isn't there.
fn read(parameter: &str, path: &Path) -> Result<Option<Vec<u8>>, Failure> {
    let bytes = File::open(path).and_then(|f| {
        if f.metadata()?.is_dir() {
            return Err(io::Error::other("it is a directory"));
        }
        // Not by its length: a pipe or a device tells none.
        let mut bytes = Vec::new();
        let mut rest = f.take(MAX_FILE + 1);
        rest.read_to_end(&mut bytes)?;
        if rest.limit() == 0 { Err(io::Error::other("it is larger than 16 MB")) } else { Ok(bytes) }
    });
    match bytes {
        Ok(b) => Ok(Some(b)),
        Err(e) if absent(&e) => Ok(None),
        Err(e) => fail(format!("{parameter}: can't read the file \"{}\": {e}", path.display())),
    }
}

fn absent(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// The roots and revocation lists; `None` where nothing is to be checked (libpq's `require` without a root file).
pub(super) fn trust(config: &TlsConfig) -> Result<Option<Trust>, Failure> {
    let (path, named) = match &config.sslrootcert {
        RootCert::System => return system().map(Some),
        RootCert::File(p) => (p, true),
        RootCert::Default(p) => (p, false),
    };
    let Some(bytes) = read("sslrootcert", path)? else {
        let mode = config.sslmode;
        if matches!(mode, SslMode::VerifyCa | SslMode::VerifyFull) || (named && promised(mode)) {
            return fail(format!(
                "sslrootcert: the root certificate file \"{}\" doesn't exist: provide it, use the system's roots \
                 with sslrootcert=system, or change sslmode={mode} to one that doesn't check the server's certificate",
                path.display()
            ));
        }
        if named {
            tracing::warn!(file = %path.display(), "sslrootcert doesn't exist: the server's certificate isn't checked");
        }
        return Ok(None);
    };
    let roots = certificates("sslrootcert", path, &bytes)?;
    let mut trust = Trust::new(roots, format!("\"{}\"", path.display()));
    if trust.is_empty() {
        return fail(format!("sslrootcert: no certificate in \"{}\" can serve as a root", path.display()));
    }
    revocation(config, &mut trust)?;
    Ok(Some(trust))
}

fn system() -> Result<Trust, Failure> {
    let found = rustls_native_certs::load_native_certs();
    for e in &found.errors {
        tracing::debug!("a root of the system can't be read: {e}");
    }
    let trust = Trust::new(found.certs, "the system's roots".to_owned());
    if trust.is_empty() {
        return fail(
            "sslrootcert=system: no trusted root was found on this system: install its certificates \
             (package ca-certificates) or name a file",
        );
    }
    Ok(trust)
}

/// `sslcrl` and `sslcrldir`. As the libpq manual says, a list counts if it exists; one that exists must be readable.
fn revocation(config: &TlsConfig, trust: &mut Trust) -> Result<(), Failure> {
    let mut files: Vec<(&str, PathBuf)> = config.sslcrl.iter().map(|p| ("sslcrl", p.clone())).collect();
    if let Some(dir) = &config.sslcrldir {
        match std::fs::read_dir(dir) {
            Ok(entries) => {
                for e in entries {
                    let e = e.map_err(|e| Failure::TlsFile(format!("sslcrldir: {}: {e}", dir.display())))?;
                    if e.path().is_file() {
                        files.push(("sslcrldir", e.path()));
                    }
                }
            }
            Err(e) if absent(&e) => {}
            Err(e) => return fail(format!("sslcrldir: can't read the directory \"{}\": {e}", dir.display())),
        }
    }
    for (parameter, path) in files {
        let Some(bytes) = read(parameter, &path)? else { continue };
        let lists: Result<Vec<_>, _> = CertificateRevocationListDer::pem_slice_iter(&bytes).collect();
        let usable = lists.is_ok_and(|l| !l.is_empty() && l.iter().all(|der| trust.add_crl(der)));
        if !usable {
            return fail(format!(
                "{parameter}: \"{}\" holds no readable revocation list (PEM): without it a revoked certificate would pass",
                path.display()
            ));
        }
    }
    Ok(())
}

/// The client's certificate and key, if there are any to send.
pub(super) fn identity(
    config: &TlsConfig,
    provider: &CryptoProvider,
) -> Result<Option<Arc<CertifiedKey>>, Failure> {
    if config.sslcertmode == SslCertMode::Disable {
        return Ok(None);
    }
    let (path, named) = &config.sslcert;
    let Some(bytes) = read("sslcert", path)? else {
        let wanted = config.sslcertmode == SslCertMode::Require || (*named && promised(config.sslmode));
        if wanted {
            return fail(format!(
                "sslcert: the client certificate file \"{}\" doesn't exist: provide it, or set sslcertmode=disable",
                path.display()
            ));
        }
        if *named {
            tracing::warn!(file = %path.display(), "sslcert doesn't exist: no client certificate is sent");
        }
        return Ok(None);
    };
    let chain = certificates("sslcert", path, &bytes)?;
    let key_path = &config.sslkey.0;
    let key = key(config, key_path, path)?;
    let signer = match provider.key_provider.load_private_key(key) {
        Ok(k) => k,
        Err(e) => {
            return fail(format!("sslkey: the private key \"{}\" can't be used: {e}", key_path.display()));
        }
    };
    // Without this the server would only say "bad signature".
    let of_cert = chain.first().and_then(|c| Certificate::from_der(c).ok());
    let of_cert = of_cert.and_then(|c| c.tbs_certificate.subject_public_key_info.to_der().ok());
    match (of_cert, signer.public_key()) {
        (Some(a), Some(b)) if a != b.as_ref() => fail(format!(
            "sslkey: the private key \"{}\" isn't that of the certificate \"{}\"",
            key_path.display(),
            path.display()
        )),
        _ => Ok(Some(Arc::new(CertifiedKey::new(chain, signer)))),
    }
}

fn certificates(parameter: &str, path: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, Failure> {
    match CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>() {
        Ok(all) if !all.is_empty() => Ok(all),
        Ok(_) => fail(format!("{parameter}: \"{}\" holds no certificate in PEM form", path.display())),
        Err(e) => fail(format!("{parameter}: \"{}\" isn't a readable PEM file: {e}", path.display())),
    }
}

fn key(config: &TlsConfig, path: &Path, cert: &Path) -> Result<PrivateKeyDer<'static>, Failure> {
    let shown = path.display();
    if !config.sslkey.0.is_absolute() && shown.to_string().contains(':') && !path.exists() {
        return fail(format!("sslkey={shown}: keys in an OpenSSL engine are not supported: use a key file"));
    }
    let Some(bytes) = read("sslkey", path)? else {
        return fail(format!(
            "sslkey: there is a client certificate \"{}\", but no private key file \"{shown}\": provide it, or set \
             sslcertmode=disable",
            cert.display()
        ));
    };
    private(path)?;
    let text = String::from_utf8_lossy(&bytes);
    if text.contains("Proc-Type: 4,ENCRYPTED") {
        return fail(format!(
            "sslkey: \"{shown}\" is encrypted in OpenSSL's old form, which is not supported: convert it with \
             openssl pkcs8 -topk8 -in {shown} -out NEW"
        ));
    }
    if let Some(block) = encrypted(&text) {
        return decrypt(config, path, block);
    }
    let found = if text.contains("-----BEGIN ") {
        PrivateKeyDer::from_pem_slice(&bytes).ok()
    } else {
        PrivateKeyDer::try_from(bytes).ok()
    };
    match found {
        Some(k) => Ok(k),
        None => fail(format!("sslkey: \"{shown}\" holds no readable private key (PEM or DER)")),
    }
}

/// The PEM block of an encrypted PKCS #8 key.
fn encrypted(text: &str) -> Option<&str> {
    const BEGIN: &str = "-----BEGIN ENCRYPTED PRIVATE KEY-----";
    const END: &str = "-----END ENCRYPTED PRIVATE KEY-----";
    let from = text.find(BEGIN)?;
    let to = text[from..].find(END)? + from + END.len();
    text.get(from..to)
}

fn decrypt(config: &TlsConfig, path: &Path, block: &str) -> Result<PrivateKeyDer<'static>, Failure> {
    let shown = path.display();
    let Some(password) = &config.sslpassword else {
        return fail(format!(
            "sslkey: \"{shown}\" is encrypted and no password is configured: set sslpassword"
        ));
    };
    let document = match pkcs8::SecretDocument::from_pem(block) {
        Ok((_, d)) => d,
        Err(e) => return fail(format!("sslkey: \"{shown}\" isn't a readable PEM file: {e}")),
    };
    let info = match pkcs8::EncryptedPrivateKeyInfo::try_from(document.as_bytes()) {
        Ok(i) => i,
        Err(e) => {
            return fail(format!(
                "sslkey: the encryption of \"{shown}\" isn't supported ({e}): use PBES2 with AES"
            ));
        }
    };
    match info.decrypt(password.reveal()) {
        Ok(plain) => Ok(PrivateKeyDer::Pkcs8(plain.as_bytes().to_vec().into())),
        Err(_) => fail(format!("sslkey: \"{shown}\" can't be decrypted: is sslpassword right?")),
    }
}

/// libpq's rule: nobody but the owner, or for a key that belongs to root also a group that may read it.
#[cfg(unix)]
fn private(path: &Path) -> Result<(), Failure> {
    use std::os::unix::fs::MetadataExt;

    let Ok(meta) = std::fs::metadata(path) else { return Ok(()) };
    if !meta.is_file() {
        return fail(format!("sslkey: the private key \"{}\" isn't a regular file", path.display()));
    }
    let forbidden = if meta.uid() == 0 { 0o037 } else { 0o077 };
    if meta.mode() & forbidden != 0 {
        return fail(format!(
            "sslkey: others can read the private key \"{}\": make it 0600, or 0640 if it belongs to root (chmod 600)",
            path.display()
        ));
    }
    Ok(())
}

#[cfg(not(unix))]
fn private(_: &Path) -> Result<(), Failure> {
    Ok(())
}
