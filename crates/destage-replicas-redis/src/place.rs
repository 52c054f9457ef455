//! Where the servers are, as users write it, and how they are reached.

use destage_replicas::Address;
use redis::io::tcp::TcpSettings;
use redis::{Client, ConnectionInfo, IntoConnectionInfo, TlsCertificates};
use std::collections::BTreeMap;
use std::path::Path;
use url::Url;

/// An address that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("--replicas: {0}")]
pub struct PlaceError(String);

/// The servers that users name, with what reaching them takes.
#[derive(Clone)]
pub struct Places {
    known: BTreeMap<Address, Url>,
    order: Vec<Address>,
}

// By hand: passwords stay out of logs.
impl std::fmt::Debug for Places {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(&self.order).finish()
    }
}

impl Places {
    /// Servers as `redis://[USER]:PASSWORD@HOST:PORT` or `rediss://`, separated by commas. With `sslrootcert=FILE`, and
    /// `sslcert=FILE&sslkey=FILE` for a certificate of one's own, as for origins.
    ///
    /// # Errors
    /// Which address it is, and why it cannot be used.
    pub fn parse(text: &str) -> Result<Self, PlaceError> {
        let mut places = Self { known: BTreeMap::new(), order: Vec::new() };
        for one in text.split(',').map(str::trim).filter(|one| !one.is_empty()) {
            let (address, url) = parse_one(one)?;
            if places.known.insert(address.clone(), url).is_some() {
                return Err(PlaceError(format!("{address} is named twice")));
            }
            places.order.push(address);
        }
        if places.order.is_empty() {
            return Err(PlaceError("name at least one server: redis://HOST:PORT".into()));
        }
        Ok(places)
    }

    /// The servers, in the order in which they were named.
    pub fn addresses(&self) -> &[Address] {
        &self.order
    }

    /// Adds another server.
    ///
    /// # Errors
    /// As [`Places::parse`].
    pub fn add(&mut self, text: &str) -> Result<Address, PlaceError> {
        let (address, url) = parse_one(text)?;
        if self.known.insert(address.clone(), url).is_none() {
            self.order.push(address.clone());
        }
        Ok(address)
    }

    /// How a server is reached. One that only the log's configuration names is reached as the first one is.
    pub(crate) fn client(&self, address: &Address) -> Result<Client, PlaceError> {
        let first = self.order.first().and_then(|first| self.known.get(first));
        let url = self.known.get(address).or(first);
        let Some(url) = url else { return Err(PlaceError("no server is named".into())) };
        let mut url = url.clone();
        let (host, port) = address.rsplit_once(':').unwrap_or((address, "6379"));
        let failed = |why: &dyn std::fmt::Display| PlaceError(format!("{address}: {why}"));
        url.set_host(Some(host)).map_err(|error| failed(&error))?;
        let port = port.parse().map_err(|error| failed(&error))?;
        url.set_port(Some(port)).map_err(|()| failed(&"the port cannot be set"))?;
        let parameter = |name: &str| {
            let found = url.query_pairs().find(|(key, _)| key == name);
            found.map(|(_, value)| value.into_owned())
        };
        let read = |name: &str| -> Result<Option<Vec<u8>>, PlaceError> {
            let Some(path) = parameter(name) else { return Ok(None) };
            let bytes = std::fs::read(Path::new(&path));
            bytes.map(Some).map_err(|error| failed(&format_args!("{name}={path}: {error}")))
        };
        let (root_cert, cert, key) = (read("sslrootcert")?, read("sslcert")?, read("sslkey")?);
        url.set_query(None);
        let is_tls = url.scheme() == "rediss";
        let info: ConnectionInfo = url.into_connection_info().map_err(|error| failed(&error))?;
        let info = info.set_tcp_settings(TcpSettings::default().set_nodelay(true));
        let client = if is_tls {
            let client_tls = cert.zip(key).map(|(client_cert, client_key)| {
                redis::ClientTlsConfig { client_cert, client_key }
            });
            Client::build_with_tls(info, TlsCertificates { client_tls, root_cert })
        } else {
            Client::open(info)
        };
        client.map_err(|error| failed(&error))
    }
}

fn parse_one(text: &str) -> Result<(Address, Url), PlaceError> {
    // What is wrong is said without the password that may be in it.
    let url =
        Url::parse(text).map_err(|error| PlaceError(format!("an address is no URL: {error}")))?;
    if !matches!(url.scheme(), "redis" | "rediss") {
        return Err(PlaceError(format!("'{}://' is neither redis:// nor rediss://", url.scheme())));
    }
    let Some(host) = url.host_str().filter(|host| !host.is_empty()) else {
        return Err(PlaceError("an address has no host: redis://HOST:PORT".into()));
    };
    if !matches!(url.path(), "" | "/" | "/0") {
        return Err(PlaceError(format!("{host}: the log is kept in database 0")));
    }
    for (name, _) in url.query_pairs() {
        if !matches!(&*name, "sslrootcert" | "sslcert" | "sslkey") {
            return Err(PlaceError(format!("{host}: unknown parameter '{name}'")));
        }
    }
    let address = format!("{host}:{}", url.port().unwrap_or(6379));
    Ok((address.into(), url))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_named_without_what_is_secret() {
        let places = Places::parse("redis://:pw@a:7000, rediss://u:pw@b").unwrap();
        assert_eq!(places.addresses(), [Address::from("a:7000"), "b:6379".into()]);
        assert!(!format!("{places:?}").contains("pw"));
        for wrong in
            ["", "http://a", "redis://", "redis://a,redis://a", "redis://a/3", "redis://a?x=1"]
        {
            Places::parse(wrong).unwrap_err();
        }
        assert!(!Places::parse("redis://:geheim@[").unwrap_err().to_string().contains("geheim"));
    }
}
