//! Destage's own tables at the origin.

use super::connection::Connection;
use crate::contract::OriginError;
use crate::origins::quote::join;
use destage_core::Fault;

/// Creates what is missing.
pub(super) fn ensure(connection: &mut Connection) -> Result<(), OriginError> {
    if are_there(connection)? {
        return Ok(());
    }
    connection.script("create Destage's tables", &CREATE).map(drop).map_err(|error| {
        match error.fault {
            Fault::Denied => OriginError::new(
                Fault::Denied,
                format!(
                    "{error}; run this as a user who may, and grant access to it: {}",
                    join(CREATE, "; ")
                ),
            ),
            _ => error,
        }
    })
}

/// Whether all of them exist.
pub(super) fn are_there(connection: &mut Connection) -> Result<bool, OriginError> {
    let found = connection.rows("look for Destage's tables", FOUND)?;
    Ok(found.first().is_some_and(|row| row[0].as_deref() == Some(b"3")))
}

/// All watermarks as [`crate::origins::ledger::parse_watermarks`] reads them.
pub(super) const WATERMARKS: &str = "(SELECT group_concat(domain, ' ', seq ORDER BY domain SEPARATOR ',') \
     FROM destage_watermark)";

const FOUND: &str = "SELECT count(*) FROM information_schema.TABLES WHERE TABLE_SCHEMA = database() \
     AND TABLE_NAME IN ('destage_owner', 'destage_watermark', 'destage_parked')";

/// Times are in UTC; a heartbeat of 1970 says that the owner has released the origin.
const CREATE: [&str; 3] = [
    "CREATE TABLE IF NOT EXISTS destage_owner (id int PRIMARY KEY CHECK (id = 1), \
     journal varchar(255) NOT NULL, epoch bigint NOT NULL, domain_map bigint unsigned NOT NULL, \
     heartbeat datetime(6) NOT NULL) ENGINE = InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
    "CREATE TABLE IF NOT EXISTS destage_watermark (domain int PRIMARY KEY, seq bigint NOT NULL, \
     epoch bigint NOT NULL) ENGINE = InnoDB",
    "CREATE TABLE IF NOT EXISTS destage_parked (domain int NOT NULL, seq bigint NOT NULL, \
     depends_on bigint, reason longtext NOT NULL, payload longtext NOT NULL, \
     parked_at datetime(6) NOT NULL, PRIMARY KEY (domain, seq)) ENGINE = InnoDB \
     CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
];
