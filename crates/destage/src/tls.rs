//! The flags that encrypt the connections of a server's clients.

use clap::Args;
use destage_runtime::tls::{Identity, ServerFiles};
use std::path::PathBuf;

/// Flags of all servers whose clients may come by TLS.
#[derive(Clone, Debug, Args)]
pub(crate) struct TlsArgs {
    /// PEM file of the certificate chain by which clients know this server; with it connections are encrypted.
    #[arg(long, requires = "tls_key", value_name = "FILE")]
    tls_certificate: Option<PathBuf>,

    /// PEM file of the certificate's private key.
    #[arg(long, requires = "tls_certificate", value_name = "FILE")]
    tls_key: Option<PathBuf>,

    /// PEM file of the authority that must have signed the clients' certificates.
    #[arg(long, requires = "tls_certificate", value_name = "FILE")]
    tls_client_ca: Option<PathBuf>,
}

impl TlsArgs {
    /// The files, if connections are encrypted.
    pub(crate) fn files(self) -> Option<ServerFiles> {
        let (certificate, key) = self.tls_certificate.zip(self.tls_key)?;
        let identity = Identity { certificate, key };
        Some(ServerFiles { identity, client_ca: self.tls_client_ca })
    }
}
