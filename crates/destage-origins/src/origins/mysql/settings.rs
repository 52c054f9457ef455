//! Where the database is and how it is reached.

use crate::contract::OriginError;
use crate::origins::address::unambiguous;
use crate::origins::bound::{MESSAGE_BYTES_MAX, ROW_BYTES_MAX};
use crate::origins::tls::{Parameters, is_loopback};
use destage_core::Fault;
use mysql_async::{ClientIdentity, Opts, OptsBuilder, SslOpts};
use std::path::PathBuf;
use std::time::Duration;

#[derive(Clone)]
pub(super) struct Settings {
    pub(super) opts: Opts,
    /// To be used where the server cannot encrypt, if that is allowed.
    pub(super) plain: Option<Opts>,
    pub(super) timeout: Duration,
    /// Address and database, for people; without user and password.
    pub(super) place: String,
    /// Most groups in one transaction.
    pub(super) transaction_groups: usize,
}

impl Settings {
    pub(super) fn parse(url: &str, timeout: Duration) -> Result<Self, OriginError> {
        let rest = ["mysql://", "mariadb://"].iter().find_map(|scheme| url.strip_prefix(scheme));
        let rest =
            rest.ok_or_else(|| denied("a MariaDB URL begins with mysql:// or mariadb://"))?;
        let url = unambiguous(&format!("mysql://{rest}"), EXPECTED)?;
        let (url, encryption) = Parameters::split(&url);
        if let Some(other) = other_parameter(&url) {
            return Err(denied(format!(
                "the MariaDB URL has the unknown parameter {other}: use socket, sslmode, \
                 sslrootcert, sslcert or sslkey"
            )));
        }
        let opts = Opts::from_url(&url).map_err(|error| {
            denied(format!("the MariaDB URL is malformed: {error}; expected {EXPECTED}"))
        })?;
        if opts.db_name().is_none_or(str::is_empty) {
            return Err(denied(format!("the MariaDB URL names no database; expected {EXPECTED}")));
        }
        let place = place(&opts);
        let is_local = opts.socket().is_some() || is_loopback(opts.ip_or_hostname());
        let (ssl, may_be_plain) = encrypted(&encryption, is_local)?;
        let plain = OptsBuilder::from_opts(opts)
            // Its own choice of the server's socket would pass a proxy by.
            .prefer_socket(false)
            .client_found_rows(true)
            .stmt_cache_size(0)
            .tcp_keepalive(Some(KEEPALIVE))
            // These are known or looked up elsewhere; unset, the client asks the server. What is sent has the server's
            // limit.
            .wait_timeout(Some(IDLE_SECONDS))
            .max_allowed_packet(Some(ROW_BYTES_MAX));
        let encrypting = ssl.is_some();
        let opts = Opts::from(plain.clone().ssl_opts(ssl));
        let plain = (encrypting && may_be_plain).then(|| Opts::from(plain));
        Ok(Self { opts, plain, timeout, place, transaction_groups: TRANSACTION_GROUPS })
    }
}

impl Settings {
    /// As these, for a connection on which no row of a table comes.
    pub(super) fn for_catalogue(&self) -> Self {
        let bounded = |opts: &Opts| {
            let opts = OptsBuilder::from_opts(opts.clone());
            Opts::from(opts.max_allowed_packet(Some(MESSAGE_BYTES_MAX)))
        };
        let plain = self.plain.as_ref().map(bounded);
        Self { opts: bounded(&self.opts), plain, ..self.clone() }
    }
}

/// The name of a parameter that is not `socket`.
fn other_parameter(url: &str) -> Option<&str> {
    let (_, query) = url.split_once('?')?;
    let names = query.split('&').filter_map(|pair| pair.split('=').next());
    names.into_iter().find(|name| !["socket", ""].contains(name))
}

/// How to encrypt, if at all, and whether a server that cannot is taken as it is.
fn encrypted(
    parameters: &Parameters,
    is_local: bool,
) -> Result<(Option<SslOpts>, bool), OriginError> {
    let default = if is_local { "disable" } else { "prefer" };
    let mode = parameters.mode.as_deref().unwrap_or(default);
    let authorities = parameters.authorities.as_deref().filter(|path| *path != "system");
    let ssl = match (mode, authorities) {
        ("disable", _) => return Ok((None, true)),
        ("prefer" | "require", None) if parameters.authorities.is_none() => SslOpts::default()
            .with_danger_accept_invalid_certs(true)
            .with_danger_skip_domain_validation(true),
        ("prefer" | "require", _) => {
            return Err(denied("sslrootcert proves nothing without sslmode=verify-full"));
        }
        ("verify-full", None) => SslOpts::default(),
        ("verify-full", Some(path)) => {
            let path = PathBuf::from(path);
            if let Err(error) = std::fs::File::open(&path) {
                let path = path.display();
                return Err(denied(format!("failed to read the certificates in {path}: {error}")));
            }
            SslOpts::default().with_root_certs(vec![path.into()]).with_disable_built_in_roots(true)
        }
        _ => {
            return Err(denied(format!(
                "the MariaDB URL has the unknown sslmode={mode}: use disable, prefer, \
                 require or verify-full"
            )));
        }
    };
    let identity = match (&parameters.certificate, &parameters.key) {
        (None, None) => None,
        (Some(certificate), Some(key)) => {
            let path = |path: &String| PathBuf::from(path).into();
            Some(ClientIdentity::new(path(certificate), path(key)))
        }
        _ => return Err(denied("the MariaDB URL needs sslcert and sslkey both, or none")),
    };
    Ok((Some(ssl.with_client_identity(identity)), mode == "prefer"))
}

fn place(opts: &Opts) -> String {
    let database = opts.db_name().unwrap_or_default();
    let port = opts.tcp_port();
    match (opts.socket(), opts.ip_or_hostname()) {
        (Some(socket), _) => format!("mysql://{socket}/{database}"),
        (None, host) if host.contains(':') && !host.starts_with('[') => {
            format!("mysql://[{host}]:{port}/{database}")
        }
        (None, host) => format!("mysql://{host}:{port}/{database}"),
    }
}

fn denied(message: impl std::fmt::Display) -> OriginError {
    OriginError::new(Fault::Denied, message)
}

const EXPECTED: &str =
    "mysql://user:password@host:port/database, with ?sslmode=verify-full for TLS";
/// Fewer cost more per row; more hold the locks of more rows for longer and gain little.
const TRANSACTION_GROUPS: usize = 1_000;
const KEEPALIVE: Duration = Duration::from_secs(15);
const IDLE_SECONDS: usize = 28_800;

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<Settings, OriginError> {
        Settings::parse(url, Duration::from_secs(1))
    }

    #[test]
    fn the_place_names_address_and_database_but_no_password() {
        for (url, place) in [
            ("mysql://app:secret@db.example:3307/shop", "mysql://db.example:3307/shop"),
            ("mariadb://app:secret@db.example/shop", "mysql://db.example:3306/shop"),
            ("mysql://app@localhost/shop?socket=/run/db.sock", "mysql:///run/db.sock/shop"),
        ] {
            assert_eq!(parse(url).unwrap().place, place, "{url}");
        }
    }

    #[test]
    fn what_leaves_the_machine_is_encrypted_if_the_server_can() {
        for (url, encrypts, may_be_plain) in [
            ("mysql://app:pw@127.0.0.1:3307/db", false, false),
            ("mysql://app:pw@localhost/db", false, false),
            ("mysql://app:pw@db.example/db", true, true),
            ("mysql://app:pw@db.example/db?sslmode=disable", false, false),
            ("mysql://app:pw@127.0.0.1/db?sslmode=require", true, false),
            ("mysql://app:pw@db.example/db?sslmode=verify-full", true, false),
        ] {
            let settings = parse(url).unwrap();
            assert_eq!(settings.opts.ssl_opts().is_some(), encrypts, "{url}");
            assert_eq!(settings.plain.is_some(), may_be_plain, "{url}");
        }
    }

    #[test]
    fn what_cannot_be_used_is_refused_without_showing_the_password() {
        for url in [
            "postgres://app:secret@h/db",
            "mysql://app:secret@h",
            "mysql://app:secret@h:port/db",
            "mysql://app:secret@h/db?nonsense=1",
            "mysql://app:secret@h/db?pool_min=1",
            "mysql://app:secret@h/db?sslmode=allow",
            "mysql://app:secret@h/db?sslmode=require&sslrootcert=/ca.pem",
            "mysql://app:secret@h/db?sslmode=verify-full&sslrootcert=/absent.pem",
            "mysql://app:secret@h/db?sslmode=require&sslcert=c.pem",
        ] {
            let error = parse(url).err().expect(url);
            assert_eq!(error.fault, Fault::Denied, "{url}");
            assert!(!error.message.contains("secret"), "{}", error.message);
        }
    }
}
