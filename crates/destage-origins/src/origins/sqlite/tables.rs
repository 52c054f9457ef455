//! Destage's own tables: who owns the origin, how far each domain is, what was parked, which keys were handed out.

use super::error::{classify, refused};
use crate::contract::OriginError;
use destage_core::{DomainId, Fault, Lsn};
use rusqlite::{Connection, ffi};
use std::ffi::c_int;

/// Their names, which the catalogue leaves out.
pub(super) const TABLES: [&str; 4] =
    ["destage_owner", "destage_watermark", "destage_parked", "destage_sequence"];

/// The statements that create them. `heartbeat` and `parked_at` are seconds since 1970 by the database's clock; a heartbeat
/// of 0 says that the owner has released the origin.
const CREATE: &str = "\
CREATE TABLE IF NOT EXISTS destage_owner (
  one INTEGER PRIMARY KEY CHECK (one = 1), journal TEXT NOT NULL, epoch INTEGER NOT NULL,
  domain_map INTEGER NOT NULL, heartbeat REAL NOT NULL);
CREATE TABLE IF NOT EXISTS destage_watermark (
  domain INTEGER PRIMARY KEY, seq INTEGER NOT NULL, epoch INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS destage_parked (
  domain INTEGER NOT NULL, seq INTEGER NOT NULL, depends_on INTEGER, reason TEXT NOT NULL,
  payload TEXT NOT NULL, parked_at REAL NOT NULL, PRIMARY KEY (domain, seq)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS destage_sequence (
  name TEXT PRIMARY KEY, next INTEGER NOT NULL) WITHOUT ROWID;
";

/// Creates the tables that are missing.
pub(super) fn create(connection: &Connection) -> Result<(), OriginError> {
    connection.execute_batch(CREATE).map_err(|error| {
        let found = classify(&error, "cannot create Destage's own tables");
        match found.fault {
            Fault::Denied => refused(format!("{}; run these statements:\n{CREATE}", found.message)),
            _ => found,
        }
    })
}

/// Each domain's watermark; none where the tables do not exist yet.
pub(super) fn watermarks(connection: &Connection) -> Result<Vec<(DomainId, Lsn)>, OriginError> {
    let sql = "SELECT domain, seq FROM destage_watermark ORDER BY domain";
    let mut statement = match connection.prepare_cached(sql) {
        Ok(statement) => statement,
        Err(error) if error.to_string().contains("no such table") => return Ok(Vec::new()),
        Err(error) => return Err(classify(&error, READING)),
    };
    let rows = statement.query_map([], |row| {
        Ok((DomainId(row.get(0)?), Lsn(row.get::<_, i64>(1)?.cast_unsigned())))
    });
    rows.and_then(Iterator::collect).map_err(|error| classify(&error, READING))
}

/// Runs `work` in a transaction that holds the write lock from its start; undone if `work` fails.
pub(super) fn write<T>(
    connection: &Connection,
    work: impl FnOnce(&Connection) -> Result<T, OriginError>,
) -> Result<T, OriginError> {
    begin_write(connection)?;
    ended(connection, work(connection))
}

/// Begins a transaction that holds the write lock.
pub(super) fn begin_write(connection: &Connection) -> Result<(), OriginError> {
    check_place(connection)?;
    begin(connection, "BEGIN IMMEDIATE")
}

/// Whether whoever opens the database sees what is written here.
///
/// # Errors
/// [`Fault::Failed`] where the database's name is not the open file's any more.
pub(super) fn check_place(connection: &Connection) -> Result<(), OriginError> {
    if !has_moved(connection) {
        return Ok(());
    }
    let path = connection.path().unwrap_or_default();
    let message = format!(
        "the database {path} was removed or replaced while it was in use: what was written since is in the old file only"
    );
    Err(OriginError::new(Fault::Failed, message))
}

/// Whether the database's name is gone or another file's: whoever opens it sees nothing of what is written here.
fn has_moved(connection: &Connection) -> bool {
    let mut moved: c_int = 0;
    // SAFETY: the handle is that of an open connection that this thread owns; this operation takes a pointer to an int,
    // which outlives the call.
    let status = unsafe {
        ffi::sqlite3_file_control(
            connection.handle(),
            c"main".as_ptr(),
            ffi::SQLITE_FCNTL_HAS_MOVED,
            (&raw mut moved).cast(),
        )
    };
    status == ffi::SQLITE_OK && moved != 0
}

/// Runs `work` on one snapshot.
pub(super) fn snapshot<T>(
    connection: &Connection,
    work: impl FnOnce(&Connection) -> Result<T, OriginError>,
) -> Result<T, OriginError> {
    begin(connection, "BEGIN")?;
    ended(connection, work(connection))
}

fn begin(connection: &Connection, begin: &str) -> Result<(), OriginError> {
    run(connection, begin).map_err(|error| classify(&error, "cannot begin a transaction"))
}

/// Commits what has gone well, and undoes the rest.
fn ended<T>(connection: &Connection, result: Result<T, OriginError>) -> Result<T, OriginError> {
    let result = result.and_then(|value| commit(connection).map(|()| value));
    if result.is_err() {
        roll_back(connection);
    }
    result
}

pub(super) fn commit(connection: &Connection) -> Result<(), OriginError> {
    run(connection, "COMMIT").map_err(|error| classify(&error, "cannot commit"))
}

/// Some errors have ended the transaction already.
pub(super) fn roll_back(connection: &Connection) {
    if !connection.is_autocommit() {
        let _ = run(connection, "ROLLBACK");
    }
}

fn run(connection: &Connection, sql: &str) -> rusqlite::Result<()> {
    connection.prepare_cached(sql)?.raw_execute().map(drop)
}

const READING: &str = "cannot read destage_watermark";
