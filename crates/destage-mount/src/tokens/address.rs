//! Where etcd is, as users write it.

use destage_runtime::tls::{Identity, TlsError, http_config};
use std::fmt;
use std::path::PathBuf;

/// Where it is, who asks, and what encrypts that.
#[derive(Clone, PartialEq, Eq)]
pub struct EtcdAddress {
    /// `HOST:PORT` of each server.
    pub servers: Vec<String>,
    /// A user of it, with a password.
    pub user: Option<(String, String)>,
    /// Connections are encrypted.
    pub tls: Option<EtcdTls>,
}

/// Whom to believe, and who one is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EtcdTls {
    /// A PEM file of the authorities that vouch for the servers; without one, those that the system knows.
    pub authorities: Option<PathBuf>,
    /// A certificate of one's own.
    pub identity: Option<Identity>,
}

impl EtcdAddress {
    /// From `etcd://[USER:PASSWORD@]HOST:PORT[,HOST:PORT...]`, or `etcds://` for TLS, with `?sslrootcert=FILE` and
    /// `sslcert=FILE&sslkey=FILE` as for origins.
    ///
    /// # Errors
    /// What is wrong with it, without the password that may be in it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (rest, is_tls) = match (text.strip_prefix("etcd://"), text.strip_prefix("etcds://")) {
            (Some(rest), _) => (rest, false),
            (_, Some(rest)) => (rest, true),
            _ => return Err(format!("use {FORM}")),
        };
        let (user, place) = match rest.rsplit_once('@') {
            Some((user, place)) => (Some(user), place),
            None => (None, rest),
        };
        let user = match user.map(|user| user.split_once(':')) {
            None => None,
            Some(Some((name, password))) => Some((decode(name)?, decode(password)?)),
            Some(None) => return Err(format!("a user comes with a password: use {FORM}")),
        };
        let (servers, parameters) = match place.split_once('?') {
            Some((servers, parameters)) => (servers, Some(parameters)),
            None => (place, None),
        };
        let servers: Vec<String> =
            servers.trim_end_matches('/').split(',').map(str::to_owned).collect();
        let is_place = |server: &String| {
            let port = server.rsplit_once(':').map(|(host, port)| (host, port.parse::<u16>()));
            matches!(port, Some((host, Ok(1..))) if !host.is_empty() && !host.contains('/'))
        };
        // What is wrong may hold a password.
        if let Some(wrong) = servers.iter().position(|server| !is_place(server)) {
            return Err(format!("server {} is no HOST:PORT: use {FORM}", wrong + 1));
        }
        let tls = match (is_tls, parameters) {
            (true, parameters) => Some(EtcdTls::parse(parameters)?),
            (false, None) => None,
            (false, Some(_)) => {
                return Err("parameters are for etcds://, which is encrypted".into());
            }
        };
        Ok(Self { servers, user, tls })
    }
}

impl EtcdTls {
    fn parse(parameters: Option<&str>) -> Result<Self, String> {
        let (mut authorities, mut certificate, mut key) = (None, None, None);
        let named = parameters.into_iter().flat_map(|text| text.split('&'));
        for one in named.filter(|one| !one.is_empty()) {
            let (name, file) = one.split_once('=').unwrap_or((one, ""));
            let place = match name {
                "sslrootcert" => &mut authorities,
                "sslcert" => &mut certificate,
                "sslkey" => &mut key,
                _ => return Err("a parameter is none of sslrootcert, sslcert and sslkey".into()),
            };
            *place = Some(PathBuf::from(decode(file)?));
        }
        let identity = match (certificate, key) {
            (Some(certificate), Some(key)) => Some(Identity { certificate, key }),
            (None, None) => None,
            _ => return Err("sslcert and sslkey come together".into()),
        };
        Ok(Self { authorities, identity })
    }

    pub(super) fn config(&self) -> Result<ureq::tls::TlsConfig, TlsError> {
        http_config(self.authorities.as_deref(), self.identity.as_ref())
    }
}

// By hand: the password stays out of logs.
impl fmt::Debug for EtcdAddress {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, out)
    }
}

impl fmt::Display for EtcdAddress {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls.is_some() { "etcds" } else { "etcd" };
        write!(out, "{scheme}://{}", self.servers.join(","))
    }
}

fn decode(text: &str) -> Result<String, String> {
    let decoded = percent_encoding::percent_decode_str(text).decode_utf8();
    decoded
        .map(std::borrow::Cow::into_owned)
        .map_err(|_| "user, password and files are UTF-8".to_owned())
}

const FORM: &str = "etcd://[USER:PASSWORD@]HOST:PORT[,HOST:PORT...], or etcds://";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_wrong_ones_are_told_without_what_is_secret() {
        let address = EtcdAddress::parse("etcd://me:p%40ss@10.0.0.5:2379,db:2379").unwrap();
        assert_eq!(address.servers, ["10.0.0.5:2379", "db:2379"]);
        assert_eq!(address.user, Some(("me".into(), "p@ss".into())));
        assert_eq!(address.tls, None);
        assert_eq!(format!("{address} {address:?}"), ["etcd://10.0.0.5:2379,db:2379"; 2].join(" "));
        let address =
            EtcdAddress::parse("etcds://a:1?sslrootcert=/ca%20.pem&sslcert=c&sslkey=k").unwrap();
        let (certificate, key) = ("c".into(), "k".into());
        let identity = Some(Identity { certificate, key });
        assert_eq!(address.tls, Some(EtcdTls { authorities: Some("/ca .pem".into()), identity }));
        assert_eq!(EtcdAddress::parse("etcds://a:1").unwrap().tls, Some(EtcdTls::default()));
        for wrong in [
            "geheim",
            "etcd://me:geheim",
            "etcd://geheim@h:1",
            "etcd://me:geheim@host",
            "etcd://me:geheim@host:0",
            "etcd://me:geheim@h:1/x",
            "etcd://me:geheim@h:1?sslrootcert=x",
            "etcds://me:geheim@h:1?sslcert=x",
            "etcds://me:geheim@h:1?geheim=x",
        ] {
            let said = EtcdAddress::parse(wrong).unwrap_err();
            assert!(!said.contains("geheim"), "{wrong}: {said}");
        }
    }
}
