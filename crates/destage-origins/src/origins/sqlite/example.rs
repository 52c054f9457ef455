//! A small shop to try Destage on.

use super::error::unavailable_at;
use crate::contract::OriginError;
use rusqlite::Connection;
use std::path::Path;
use std::time::Duration;

/// Creates the example shop (customers, products, orders, order lines) in the file, or leaves it alone if it is there. Its
/// journal mode is WAL, so that reads and destaging do not wait for one another.
///
/// # Errors
/// [`destage_core::Fault::Denied`] or [`destage_core::Fault::Unavailable`] where the file cannot be written.
pub fn create_example(path: &Path) -> Result<(), OriginError> {
    let failed = unavailable_at("cannot create the example shop", path);
    let connection = Connection::open(path).map_err(&failed)?;
    connection.busy_timeout(BUSY_TIMEOUT).map_err(&failed)?;
    connection
        .query_row("PRAGMA journal_mode = WAL", [], |_| Ok(()))
        .and_then(|()| connection.execute_batch("PRAGMA foreign_keys = ON; BEGIN IMMEDIATE;"))
        .map_err(&failed)?;
    let there: bool = connection
        .query_row("SELECT count(*) FROM sqlite_master WHERE name = 'customers'", [], |r| r.get(0))
        .map_err(&failed)?;
    let script = if there { "COMMIT;" } else { SHOP };
    connection.execute_batch(script).map_err(&failed)
}

const SHOP: &str = include_str!("example.sql");

/// How long to wait for another process that creates the same file.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
