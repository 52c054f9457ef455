//! TLS for both sides; see [`destage_runtime::tls`].

use rustls::ClientConfig;
use std::path::Path;
use std::sync::Arc;

pub use destage_runtime::tls::{Identity, TlsError, Trust, server_config};

/// The client's side: servers must show a certificate for their name that one of those in the PEM file `ca` vouches for.
///
/// # Errors
/// As [`server_config`].
pub fn client_config(
    ca: &Path,
    identity: Option<&Identity>,
) -> Result<Arc<ClientConfig>, TlsError> {
    destage_runtime::tls::client_config(&Trust::Authorities(ca.to_owned()), identity)
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
