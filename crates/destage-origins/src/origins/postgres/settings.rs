//! Where the database is and how it is reached.

use crate::contract::OriginError;
use crate::origins::address::unambiguous;
use crate::origins::tls::Parameters;
use destage_core::Fault;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode, SslNegotiation, TargetSessionAttrs};
use tokio_postgres_rustls::MakeRustlsConnect;

#[derive(Clone)]
pub(super) struct Settings {
    pub(super) config: Config,
    /// Whether to encrypt, which [`Framed`](super::framed::Framed) negotiates.
    pub(super) mode: SslMode,
    /// `None` if nothing is to be encrypted.
    pub(super) tls: Option<MakeRustlsConnect>,
    pub(super) timeout: Duration,
    /// Address and database, for people; without user and password.
    pub(super) place: String,
    /// Most groups in one transaction.
    pub(super) transaction_groups: usize,
}

impl Settings {
    pub(super) fn parse(url: &str, timeout: Duration) -> Result<Self, OriginError> {
        if !["postgres://", "postgresql://"].iter().any(|scheme| url.starts_with(scheme)) {
            return Err(denied("a PostgreSQL URL begins with postgres:// or postgresql://"));
        }
        let (url, encryption) = Parameters::split(&unambiguous(url, EXPECTED)?);
        let mut config: Config = url.parse().map_err(|error| {
            denied(match other_parameter(&url) {
                Some(other) => format!(
                    "the PostgreSQL URL has the unknown parameter {other}: use sslmode, sslrootcert, sslcert, sslkey \
                     or {}",
                    PARAMETERS.join(", ")
                ),
                None => format!("the PostgreSQL URL is malformed: {error}; expected {EXPECTED}"),
            })
        })?;
        if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
            config.host("localhost");
        }
        if socket(&config).is_some()
            && (config.get_hosts().len() + config.get_hostaddrs().len() > 1
                || config.get_target_session_attrs() != TargetSessionAttrs::Any)
        {
            return Err(denied(
                "the PostgreSQL URL has a socket's folder as a host, which goes with no other host, no hostaddr and no \
                 target_session_attrs",
            ));
        }
        let tls = encryption.apply(&mut config)?;
        let mode = config.get_ssl_mode();
        if config.get_hosts().is_empty() {
            // Without names, certificates are looked at for the addresses.
            for address in config.get_hostaddrs().to_vec() {
                config.host(address.to_string());
            }
        }
        // What the client takes for encryption at once asks for it itself.
        config.ssl_mode(SslMode::Require).ssl_negotiation(SslNegotiation::Direct);
        if config.get_application_name().is_none() {
            config.application_name("destage");
        }
        config.keepalives(true);
        config.keepalives_idle(KEEPALIVE_IDLE);
        config.keepalives_interval(KEEPALIVE_INTERVAL);
        config.keepalives_retries(KEEPALIVE_RETRIES);
        let place = place(&config);
        let mut settings =
            Self { config, mode, tls, timeout, place, transaction_groups: TRANSACTION_GROUPS };
        settings.set_timeout(timeout);
        Ok(settings)
    }

    /// The file of the server's socket, where it is reached by one.
    pub(super) fn socket(&self) -> Option<PathBuf> {
        let port = self.config.get_ports().first().copied().unwrap_or(PORT);
        socket(&self.config).map(|folder| folder.join(format!(".s.PGSQL.{port}")))
    }

    pub(super) fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout.max(Duration::from_millis(1));
        self.config.connect_timeout(self.timeout);
        self.config.tcp_user_timeout(self.timeout);
    }
}

/// The name of a parameter that there is not. Behind a password, a part of which may have been read as one, nothing is
/// named.
fn other_parameter(url: &str) -> Option<&str> {
    let (_, query) = url.split_once('?')?;
    let names = query.split('&').map(|pair| pair.split_once('=').map_or(pair, |(name, _)| name));
    let mut names = names.take_while(|name| *name != "password");
    names.find(|name| !PARAMETERS.contains(name) && !name.is_empty())
}

fn socket(config: &Config) -> Option<&Path> {
    config.get_hosts().iter().find_map(|host| match host {
        Host::Unix(folder) => Some(folder.as_path()),
        Host::Tcp(_) => None,
    })
}

fn place(config: &Config) -> String {
    let port = config.get_ports().first().copied().unwrap_or(PORT);
    let host = match config.get_hosts().first() {
        Some(Host::Tcp(name)) if name.contains(':') => format!("[{name}]:{port}"),
        Some(Host::Tcp(name)) => format!("{name}:{port}"),
        #[cfg(unix)]
        Some(Host::Unix(directory)) => format!("{}:{port}", directory.display()),
        None => config
            .get_hostaddrs()
            .first()
            .map_or_else(|| format!("localhost:{port}"), |addr| format!("{addr}:{port}")),
    };
    let database = config.get_dbname().or_else(|| config.get_user()).unwrap_or("");
    format!("postgres://{host}/{database}")
}

pub(super) fn denied(message: impl std::fmt::Display) -> OriginError {
    OriginError::new(Fault::Denied, message)
}

const PORT: u16 = 5_432;
const EXPECTED: &str =
    "postgres://user:password@host:port/database, with ?sslmode=verify-full for TLS";
/// What the client knows beside encryption.
const PARAMETERS: [&str; 16] = [
    "user",
    "password",
    "dbname",
    "options",
    "application_name",
    "host",
    "hostaddr",
    "port",
    "connect_timeout",
    "tcp_user_timeout",
    "keepalives",
    "keepalives_idle",
    "keepalives_interval",
    "keepalives_retries",
    "target_session_attrs",
    "load_balance_hosts",
];
/// Fewer cost more per row; more hold the locks of more rows for longer and gain little.
const TRANSACTION_GROUPS: usize = 1_000;
const KEEPALIVE_IDLE: Duration = Duration::from_secs(15);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_RETRIES: u32 = 3;

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<Settings, OriginError> {
        Settings::parse(url, Duration::from_secs(1))
    }

    #[test]
    fn the_place_names_address_and_database_but_no_password() {
        for (url, place) in [
            ("postgres://app:secret@db.example:6000/shop", "postgres://db.example:6000/shop"),
            ("postgresql://app:secret@db.example/shop", "postgres://db.example:5432/shop"),
            ("postgres:///shop?host=/run/pg&user=app", "postgres:///run/pg:5432/shop"),
            ("postgres://app@localhost", "postgres://localhost:5432/app"),
        ] {
            assert_eq!(parse(url).unwrap().place, place, "{url}");
        }
    }

    #[test]
    fn what_cannot_be_used_is_refused_without_showing_the_password() {
        for url in [
            "mysql://app:secret@h/db",
            "postgres://app:secret@h/db?sslmode=allow",
            "postgres://app:secret@h/db?sslmode=verify-full&sslrootcert=/absent.pem",
            "postgres://app:secret@h:port/db",
            "postgres://app:secret@h/db?nonsense=1",
            "postgres://app:secret@h/db?host=/run/pg",
            "postgres:///db?host=/run/pg&password=secret&hostaddr=127.0.0.1",
            "postgres:///db?host=/run/pg&password=secret&target_session_attrs=read-write",
        ] {
            let error = parse(url).err().expect(url);
            assert_eq!(error.fault, Fault::Denied, "{url}");
            assert!(!error.message.contains("secret"), "{}", error.message);
        }
    }

    #[test]
    fn an_unknown_parameter_is_named_and_no_part_of_a_password_is() {
        let message = |url: &str| parse(url).err().expect(url).message;
        let named = message("postgres://app:secret@h/db?connect_timeout=1&nonsense=secret");
        assert!(named.contains("the unknown parameter nonsense:"), "{named}");
        assert!(!named.contains("secret"), "{named}");
        for url in [
            "postgres://app:a?secret=1&b@h/db?x=2@",
            "postgres://app:a@b?secret=1@h/db",
            "postgres://h/db?user=app&password=se&secret=t",
        ] {
            let malformed = message(url);
            assert!(!malformed.contains("secret"), "{malformed}");
        }
    }
}
