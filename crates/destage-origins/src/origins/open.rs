//! From an origin's address to the origin.

use super::{Mongo, Mysql, Postgres, Sqlite};
use crate::contract::{Origin, OriginError, Stage};
use crate::settings::TableSettings;
use destage_core::Fault;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// The addresses that [`open`] takes, for help and messages.
pub const ADDRESSES: &str = "sqlite:FILE, postgres://USER:PASSWORD@HOST[:PORT]/DATABASE, \
     mysql://USER:PASSWORD@HOST[:PORT]/DATABASE (MariaDB) or \
     mongodb://USER:PASSWORD@HOST[:PORT]/DATABASE";

/// The origin at `url`. Nothing is connected yet, except that a SQLite file must exist. `timeout` bounds connecting and each
/// request; `tables` are the settings of single tables, which say what the collections of a MongoDB hold.
///
/// # Errors
/// [`Fault::Denied`] if the address cannot be read or names a store that is not supported; otherwise as the origin says.
pub fn open(
    url: &str,
    timeout: Duration,
    tables: &BTreeMap<String, TableSettings>,
) -> Result<Arc<dyn Origin>, OriginError> {
    named(url, timeout, tables).map_err(|error| error.at(Stage::Address))
}

fn named(
    url: &str,
    timeout: Duration,
    tables: &BTreeMap<String, TableSettings>,
) -> Result<Arc<dyn Origin>, OriginError> {
    let denied = |message: String| OriginError::new(Fault::Denied, message);
    let Some((scheme, rest)) = url.split_once(':') else {
        // Without a scheme there is no place for a password, so the text may be shown.
        return Err(denied(format!("'{url}' is not the address of an origin: use {ADDRESSES}")));
    };
    let declared = tables.iter().find(|(_, settings)| settings.document.is_some());
    if let Some((name, _)) = declared.filter(|_| !scheme.starts_with("mongodb")) {
        return Err(denied(format!(
            "[table.{name}] says what documents hold (id, fields, required): that is for mongodb:// only"
        )));
    }
    match scheme {
        "sqlite" => {
            let path = rest.strip_prefix("//").unwrap_or(rest);
            if path.is_empty() {
                return Err(denied("'sqlite:' names no file: use sqlite:FILE".into()));
            }
            Ok(Arc::new(Sqlite::open(Path::new(path), timeout)?))
        }
        "postgres" | "postgresql" => Ok(Arc::new(Postgres::new(url)?.timeout(timeout))),
        "mongodb" | "mongodb+srv" => {
            Ok(Arc::new(Mongo::new(url)?.timeout(timeout).declared(tables)))
        }
        "mysql" | "mariadb" => Ok(Arc::new(Mysql::new(url)?.timeout(timeout))),
        _ => Err(denied(format!("'{scheme}:' is not an origin that works: use {ADDRESSES}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(url: &str) -> OriginError {
        open(url, Duration::from_secs(1), &BTreeMap::new()).err().expect("the address is wrong")
    }

    #[test]
    fn addresses_that_do_not_work_are_told_those_that_do() {
        for url in ["shop.db", "oracle://h/db", "sqlite:", ""] {
            let error = refusal(url);
            assert_eq!(error.fault, Fault::Denied, "{url}");
            assert_eq!(error.exit_code(), destage_runtime::exit::USAGE, "{url}");
            assert!(error.message.contains("sqlite:FILE"), "{url}: {error}");
        }
        assert!(!refusal("oracle://u:hush@h/db").message.contains("hush"));
    }

    #[test]
    fn a_missing_database_file_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("missing.db");
        let error = refusal(&format!("sqlite:{}", path.display()));
        assert!(error.message.contains("missing.db"), "{error}");
    }
}
