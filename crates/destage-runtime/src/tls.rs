//! TLS for both sides of a connection, from PEM files. TLS 1.2 and 1.3.

mod stream;
mod verify;

use crate::serve_error::ServeError;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, ConfigBuilder, RootCertStore, WantsVerifier};
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use ureq::tls::{Certificate, ClientCert, PrivateKey, TlsConfig};
use verify::AnyName;

pub use rustls::ServerConfig;
pub use stream::{ServerTls, TlsStream, is_for_now};

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

impl From<TlsError> for ServeError {
    fn from(error: TlsError) -> Self {
        Self::usage(&error)
    }
}

/// What encrypts the connections of a server's clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerFiles {
    /// Who the server is.
    pub identity: Identity,
    /// A PEM file of the authorities, one of which must have signed the clients' certificates; `None` lets every client in.
    pub client_ca: Option<PathBuf>,
}

impl ServerFiles {
    /// Reads the files.
    ///
    /// # Errors
    /// As [`server_config`].
    pub fn config(&self) -> Result<Arc<ServerConfig>, TlsError> {
        server_config(&self.identity, self.client_ca.as_deref())
    }
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

/// Which servers a client believes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trust {
    /// Those that show a certificate for their name that one of those in the PEM file vouches for.
    Authorities(PathBuf),
    /// Those that show a certificate for their name that an authority known to the system vouches for.
    System,
    /// As [`Self::Authorities`], whatever the certificate's name.
    AuthoritiesForAnyName(PathBuf),
    /// As [`Self::System`], whatever the certificate's name.
    SystemForAnyName,
    /// All: nobody can listen, but anybody can pretend to be the server.
    Anyone,
}

/// The client's side.
///
/// # Errors
/// As [`server_config`]; and if the system knows no authority where it is to.
pub fn client_config(
    trust: &Trust,
    identity: Option<&Identity>,
) -> Result<Arc<ClientConfig>, TlsError> {
    let builder = with_versions(ClientConfig::builder_with_provider(provider()));
    let of_system = || verifier(system_authorities()?, Path::new(SYSTEM));
    let verifier: Arc<dyn ServerCertVerifier> = match trust {
        Trust::Authorities(path) => verifier(authorities(path)?, path)?,
        Trust::System => of_system()?,
        Trust::AuthoritiesForAnyName(path) => any_name(Some(verifier(authorities(path)?, path)?)),
        Trust::SystemForAnyName => any_name(Some(of_system()?)),
        Trust::Anyone => any_name(None),
    };
    let builder = builder.dangerous().with_custom_certificate_verifier(verifier);
    let Some(identity) = identity else {
        return Ok(Arc::new(builder.with_no_client_auth()));
    };
    let (chain, key) = load(identity)?;
    let config = builder.with_client_auth_cert(chain, key);
    config.map(Arc::new).map_err(|error| failure(CERTIFICATE, &identity.certificate, error))
}

/// The client's side of requests over HTTP: servers are believed that show a certificate for their name, for which one of
/// those in a PEM file vouches, or without one an authority known to the system.
///
/// # Errors
/// As [`client_config`].
pub fn http_config(
    authorities: Option<&Path>,
    identity: Option<&Identity>,
) -> Result<TlsConfig, TlsError> {
    let roots = match authorities {
        Some(path) => certificates(AUTHORITIES, path)?,
        None => system_certificates()?,
    };
    let client = match identity {
        Some(identity) => {
            let failed = |why: &dyn Display| failure(KEY, &identity.key, why);
            let chain = certificates(CERTIFICATE, &identity.certificate)?;
            let pem = std::fs::read(&identity.key).map_err(|error| failed(&error))?;
            let key = PrivateKey::from_pem(&pem).map_err(|error| failed(&error))?;
            Some(ClientCert::new_with_certs(&for_http(&chain), key))
        }
        None => None,
    };
    let config = TlsConfig::builder().unversioned_rustls_crypto_provider(provider());
    Ok(config.root_certs(for_http(&roots).into()).client_cert(client).build())
}

fn for_http(certificates: &[CertificateDer<'_>]) -> Vec<Certificate<'static>> {
    certificates.iter().map(|one| Certificate::from_der(one).to_owned()).collect()
}

fn any_name(authorities: Option<Arc<WebPkiServerVerifier>>) -> Arc<AnyName> {
    Arc::new(AnyName { authorities, provider: provider() })
}

fn verifier(roots: RootCertStore, path: &Path) -> Result<Arc<WebPkiServerVerifier>, TlsError> {
    WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider())
        .build()
        .map_err(|error| failure(AUTHORITIES, path, error))
}

const SYSTEM: &str = "the system";
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

fn system_authorities() -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    // Systems carry some that no library reads; the others count.
    let (read, _) = roots.add_parsable_certificates(system_certificates()?);
    if read == 0 {
        return Err(failure(AUTHORITIES, Path::new(SYSTEM), "none of them can be read"));
    }
    Ok(roots)
}

fn system_certificates() -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let found = rustls_native_certs::load_native_certs();
    if found.certs.is_empty() {
        let why = match found.errors.first() {
            Some(error) => error.to_string(),
            None => "there are none; install ca-certificates, or name a file".to_owned(),
        };
        return Err(failure(AUTHORITIES, Path::new(SYSTEM), why));
    }
    Ok(found.certs)
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
