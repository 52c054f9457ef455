//! TLS for both sides, from PEM files. TLS 1.2 and 1.3.

use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, ConfigBuilder, RootCertStore, ServerConfig, WantsVerifier};
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Who one is: a certificate, with those that vouch for it, and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// A PEM file; one's own certificate is the first.
    pub certificate: PathBuf,
    /// A PEM file with the private key, without a passphrase.
    pub key: PathBuf,
}

/// Why TLS cannot be set up.
#[derive(Clone, Debug, thiserror::Error)]
#[error("failed to use {role} {}: {why}", path.display())]
pub struct TlsError {
    role: &'static str,
    path: PathBuf,
    why: String,
}

/// The server's side. With `client_ca`, clients must show a certificate that one of those in that PEM file vouches for.
///
/// # Errors
/// Files that cannot be read, are no PEM, or do not belong together.
pub fn server_config(
    identity: &Identity,
    client_ca: Option<&Path>,
) -> Result<Arc<ServerConfig>, TlsError> {
    let (chain, key) = load(identity)?;
    let builder = ServerConfig::builder_with_provider(provider());
    let builder = with_versions(builder);
    let builder = match client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let roots = Arc::new(authorities(path)?);
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider())
                .build()
                .map_err(|error| failure(AUTHORITIES, path, error))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let config = builder.with_single_cert(chain, key);
    config.map(Arc::new).map_err(|error| failure(CERTIFICATE, &identity.certificate, error))
}

/// The client's side: servers must show a certificate for their name that one of those in the PEM file `ca` vouches for.
///
/// # Errors
/// As [`server_config`].
pub fn client_config(
    ca: &Path,
    identity: Option<&Identity>,
) -> Result<Arc<ClientConfig>, TlsError> {
    let builder = ClientConfig::builder_with_provider(provider());
    let builder = with_versions(builder).with_root_certificates(authorities(ca)?);
    let Some(identity) = identity else {
        return Ok(Arc::new(builder.with_no_client_auth()));
    };
    let (chain, key) = load(identity)?;
    let config = builder.with_client_auth_cert(chain, key);
    config.map(Arc::new).map_err(|error| failure(CERTIFICATE, &identity.certificate, error))
}

const AUTHORITIES: &str = "the certificate authorities in";
const CERTIFICATE: &str = "the certificate";
const KEY: &str = "the private key";

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn with_versions<S: rustls::ConfigSide>(
    builder: ConfigBuilder<S, rustls::WantsVersions>,
) -> ConfigBuilder<S, WantsVerifier> {
    builder
        .with_safe_default_protocol_versions()
        .expect("the provider has suites for TLS 1.2 and 1.3")
}

fn load(
    identity: &Identity,
) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), TlsError> {
    let chain = certificates(CERTIFICATE, &identity.certificate)?;
    let key = PrivateKeyDer::from_pem_file(&identity.key)
        .map_err(|error| failure(KEY, &identity.key, error))?;
    Ok((chain, key))
}

fn authorities(path: &Path) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(AUTHORITIES, path)? {
        roots.add(certificate).map_err(|error| failure(AUTHORITIES, path, error))?;
    }
    Ok(roots)
}

fn certificates(role: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let certificates: Result<Vec<_>, _> =
        CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    let certificates = certificates.map_err(|error| failure(role, path, error))?;
    if certificates.is_empty() {
        return Err(failure(role, path, "the file holds no certificate in PEM"));
    }
    Ok(certificates)
}

fn failure(role: &'static str, path: &Path, why: impl Display) -> TlsError {
    TlsError { role, path: path.to_owned(), why: why.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nbd::testing::Certificates;
    use std::fs;

    #[test]
    fn configurations_are_built_from_what_belongs_together() {
        let made = Certificates::make();
        server_config(&made.server, None).expect("a server");
        server_config(&made.server, Some(&made.authority)).expect("a server that asks for names");
        client_config(&made.authority, None).expect("a client");
        client_config(&made.authority, Some(&made.client)).expect("a client with a name");
    }

    #[test]
    fn what_cannot_be_used_is_named() {
        let made = Certificates::make();
        let missing = made.server.certificate.with_file_name("missing.pem");
        let swapped =
            Identity { certificate: made.server.key.clone(), key: made.server.key.clone() };
        let strange =
            Identity { certificate: made.server.certificate.clone(), key: made.client.key.clone() };
        let keyless = Identity { key: made.authority.clone(), ..made.server.clone() };
        let broken = missing.with_file_name("broken.pem");
        fs::write(&broken, "-----BEGIN CERTIFICATE-----\n!!!\n-----END CERTIFICATE-----\n")
            .unwrap();
        let errors = [
            (client_config(&missing, None).map(drop), "missing.pem"),
            (client_config(&broken, None).map(drop), "broken.pem"),
            (server_config(&swapped, None).map(drop), "no certificate"),
            (server_config(&strange, None).map(drop), "server.pem"),
            (server_config(&keyless, None).map(drop), "private key"),
            (server_config(&made.server, Some(&missing)).map(drop), "missing.pem"),
        ];
        for (result, expected) in errors {
            let error = result.expect_err(expected).to_string();
            assert!(error.contains(expected), "{expected}: {error}");
        }
    }
}
