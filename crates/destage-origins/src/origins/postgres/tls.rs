//! Whether and how connections are encrypted, told by the URL's parameters as libpq's clients know them.

use super::settings::denied;
use crate::contract::OriginError;
use crate::origins::tls::{self, Parameters};
use destage_runtime::tls::{Identity, Trust, client_config};
use std::path::PathBuf;
use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres_rustls::MakeRustlsConnect;

impl Parameters {
    /// Sets the mode, and makes what is needed to encrypt. `None` if nothing is to be encrypted.
    ///
    /// # Errors
    /// A mode that there is not, parts that contradict one another, files that cannot be used.
    pub(super) fn apply(
        &self,
        config: &mut Config,
    ) -> Result<Option<MakeRustlsConnect>, OriginError> {
        let default = if is_local(config) { "disable" } else { "prefer" };
        let mode = self.mode.as_deref().unwrap_or(default);
        config.ssl_mode(match mode {
            "disable" => SslMode::Disable,
            "prefer" => SslMode::Prefer,
            _ => SslMode::Require,
        });
        if mode == "disable" {
            return Ok(None);
        }
        let trust = self.trust(mode)?;
        let identity = match (&self.certificate, &self.key) {
            (None, None) => None,
            (Some(certificate), Some(key)) => {
                Some(Identity { certificate: PathBuf::from(certificate), key: PathBuf::from(key) })
            }
            _ => return Err(denied("the PostgreSQL URL needs sslcert and sslkey both, or none")),
        };
        let tls = client_config(&trust, identity.as_ref()).map_err(denied)?;
        Ok(Some(MakeRustlsConnect::new((*tls).clone())))
    }

    /// Whom to believe: as libpq has it, a file of authorities is looked at wherever it is given.
    fn trust(&self, mode: &str) -> Result<Trust, OriginError> {
        let authorities = self.authorities.as_deref();
        let path = authorities.filter(|&path| path != "system").map(PathBuf::from);
        match (mode, path) {
            ("prefer" | "require", None) if authorities.is_none() => Ok(Trust::Anyone),
            ("prefer" | "require" | "verify-ca", Some(path)) => {
                Ok(Trust::AuthoritiesForAnyName(path))
            }
            ("verify-ca", None) if authorities.is_none() => Ok(Trust::SystemForAnyName),
            ("verify-full", Some(path)) => Ok(Trust::Authorities(path)),
            ("verify-full", None) => Ok(Trust::System),
            // Anybody can get a certificate from those for some name.
            ("prefer" | "require" | "verify-ca", None) => {
                Err(denied("sslrootcert=system proves nothing without sslmode=verify-full"))
            }
            _ => Err(denied(format!(
                "the PostgreSQL URL has the unknown sslmode={mode}: use disable, prefer, \
                 require, verify-ca or verify-full"
            ))),
        }
    }
}

/// Whether nothing leaves this machine.
fn is_local(config: &Config) -> bool {
    let is_loopback = |host: &Host| match host {
        Host::Tcp(name) => tls::is_loopback(name),
        #[cfg(unix)]
        Host::Unix(_) => true,
    };
    let addresses = config.get_hostaddrs();
    if addresses.is_empty() {
        config.get_hosts().iter().all(is_loopback)
    } else {
        addresses.iter().all(std::net::IpAddr::is_loopback)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn applied(url: &str) -> Result<(SslMode, bool), String> {
        let (rest, parameters) = Parameters::split(url);
        let mut config: Config = rest.parse().unwrap();
        let tls = parameters.apply(&mut config).map_err(|error| error.message)?;
        Ok((config.get_ssl_mode(), tls.is_some()))
    }

    #[test]
    fn what_leaves_the_machine_is_encrypted_if_the_server_can() {
        for (url, mode) in [
            ("postgres://app:pw@localhost/db", SslMode::Disable),
            ("postgres://app:pw@127.0.0.1:6000/db", SslMode::Disable),
            ("postgres:///db?host=/run/pg&user=app", SslMode::Disable),
            ("postgres://app:pw@db.example/db", SslMode::Prefer),
            ("postgres://app:pw@db.example/db?hostaddr=127.0.0.1", SslMode::Disable),
            ("postgres://app:pw@db.example/db?sslmode=disable", SslMode::Disable),
            ("postgres://app:pw@localhost/db?sslmode=prefer", SslMode::Prefer),
            ("postgres://app:pw@db.example/db?sslmode=require&user=app", SslMode::Require),
        ] {
            assert_eq!(applied(url), Ok((mode, mode != SslMode::Disable)), "{url}");
        }
    }

    #[test]
    fn contradictions_are_refused() {
        for (query, expected) in [
            ("sslmode=allow", "verify-full"),
            ("sslmode=require&sslcert=c.pem", "sslkey"),
            ("sslmode=require&sslrootcert=system", "verify-full"),
            ("sslmode=verify-ca&sslrootcert=/absent.pem", "/absent.pem"),
            ("sslmode=require&sslcert=/absent.pem&sslkey=/absent.key", "/absent.pem"),
        ] {
            let error = applied(&format!("postgres://u:secret@h/db?{query}")).unwrap_err();
            assert!(error.contains(expected) && !error.contains("secret"), "{query}: {error}");
        }
    }
}
