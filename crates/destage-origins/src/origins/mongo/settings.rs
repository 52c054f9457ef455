//! Where the database is and how it is reached.

use super::collections::Collections;
use super::reachability::Reachability;
use crate::contract::OriginError;
use crate::origins::address::unambiguous;
use crate::origins::tls::is_loopback;
use destage_core::Fault;
use mongodb::options::{ConnectionString, HostInfo, ReadPreference, ServerAddress, Tls};
use std::sync::Arc;
use std::time::Duration;

#[derive(Clone)]
pub(super) struct Settings {
    pub(super) address: ConnectionString,
    pub(super) database: String,
    pub(super) timeout: Duration,
    /// Addresses and database, for people; without user and password.
    pub(super) place: String,
    /// What those who read know of it.
    pub(super) reachability: Arc<Reachability>,
    /// What is known of its collections.
    pub(super) collections: Arc<Collections>,
}

impl Settings {
    pub(super) fn parse(url: &str, timeout: Duration) -> Result<Self, OriginError> {
        if url.starts_with("mongodb+srv://") {
            return Err(denied(
                "mongodb+srv:// looks its servers up in the DNS, which Destage does not: name them, \
                 as mongodb://user:password@host1:port,host2:port/database?tls=true&replicaSet=NAME",
            ));
        }
        if !url.starts_with("mongodb://") {
            return Err(denied("a MongoDB URL begins with mongodb://"));
        }
        // The driver's own message may show parts of the URL.
        let address = ConnectionString::parse(unambiguous(url, EXPECTED)?)
            .map_err(|_| denied(format!("the MongoDB URL is malformed; expected {EXPECTED}")))?;
        let Some(database) = address.default_database.clone().filter(|name| !name.is_empty())
        else {
            return Err(denied(format!("the MongoDB URL names no database; expected {EXPECTED}")));
        };
        let is_decided_here = |name: &str| {
            denied(format!(
                "the MongoDB URL has the parameter {name}, which a URL may not set: Destage reads \
                 from the primary and writes durably, to a majority"
            ))
        };
        if address.write_concern.is_some() {
            return Err(is_decided_here("w, journal or wtimeoutMS"));
        }
        if !matches!(address.read_preference, None | Some(ReadPreference::Primary)) {
            return Err(is_decided_here("readPreference"));
        }
        let HostInfo::HostIdentifiers(hosts) = &address.host_info else {
            return Err(denied(format!("the MongoDB URL names no host; expected {EXPECTED}")));
        };
        let place = place(hosts, &database);
        let encrypts = matches!(address.tls, Some(Tls::Enabled(_)));
        if !encrypts && !hosts.iter().all(is_local) {
            tracing::warn!(
                origin = place,
                "the connection leaves this machine and is not encrypted: add tls=true to the URL"
            );
        }
        Ok(Self {
            address,
            database,
            timeout,
            place,
            reachability: Arc::default(),
            collections: Arc::default(),
        })
    }
}

fn is_local(host: &ServerAddress) -> bool {
    match host {
        ServerAddress::Tcp { host, .. } => is_loopback(host),
        _ => true,
    }
}

fn place(hosts: &[ServerAddress], database: &str) -> String {
    let hosts: Vec<String> = hosts.iter().map(ToString::to_string).collect();
    format!("mongodb://{}/{database}", hosts.join(","))
}

fn denied(message: impl std::fmt::Display) -> OriginError {
    OriginError::new(Fault::Denied, message)
}

const EXPECTED: &str = "mongodb://user:password@host:port/database, with ?tls=true for TLS";

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<Settings, OriginError> {
        Settings::parse(url, Duration::from_secs(1))
    }

    #[test]
    fn the_place_names_addresses_and_database_but_no_password() {
        for (url, place) in [
            ("mongodb://app:secret@db.example/shop", "mongodb://db.example:27017/shop"),
            ("mongodb://a:secret@h1:1,h2:2/shop?tls=true", "mongodb://h1:1,h2:2/shop"),
        ] {
            assert_eq!(parse(url).unwrap().place, place, "{url}");
        }
    }

    #[test]
    fn what_cannot_be_used_is_refused_without_showing_the_password() {
        for url in [
            "postgres://app:secret@h/db",
            "mongodb://app:secret@h",
            "mongodb://app:secret@h/",
            "mongodb://app:secret@h:port/db",
            "mongodb://app:secret@h/db?tls=perhaps",
            "mongodb://app:secret@h/db?w=0",
            "mongodb://app:secret@h/db?journal=false",
            "mongodb://app:secret@h/db?readPreference=secondary",
            "mongodb+srv://app:secret@h/db",
        ] {
            let error = parse(url).err().expect(url);
            assert_eq!(error.fault, Fault::Denied, "{url}");
            assert!(!error.message.contains("secret"), "{}", error.message);
        }
    }
}
