//! SQLite as the origin: one file, one writer at a time, shared with whoever else opens it.

mod catalog;
mod checks;
mod ended;
mod error;
mod example;
mod query;
mod reader;
mod tables;
mod turns;
mod types;
mod writer;

pub use example::create_example;

use self::error::{refused, unavailable_at};
use crate::contract::{Origin, OriginError, Reader, Writer};
use crate::origins::ledger::SqlWriter;
use crate::schema::Schema;
use rusqlite::{Connection, OpenFlags};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use turns::Turns;

/// A SQLite database file.
#[derive(Clone, Debug)]
pub struct Sqlite {
    path: PathBuf,
    timeout: Duration,
    turns: Arc<Turns>,
}

impl Sqlite {
    /// The database in the file at `path`, which must exist. `timeout` bounds the wait for another process's lock.
    ///
    /// # Errors
    /// [`destage_core::Fault::Denied`] where there is no such file, it is no database or not encoded in UTF-8;
    /// [`destage_core::Fault::Unavailable`] where another process keeps it locked.
    pub fn open(path: &Path, timeout: Duration) -> Result<Self, OriginError> {
        let shown = path.display();
        match std::fs::metadata(path) {
            Ok(found) if found.is_file() => {}
            Ok(_) => return Err(refused(format!("{shown} is not a file but a database must be"))),
            Err(error) => {
                return Err(refused(format!(
                    "cannot open the database {shown}: {error}; create it first, for example by \
                     `sqlite3 {shown} < schema.sql`, or leave the origin out to get an example shop"
                )));
            }
        }
        let sqlite = Self { path: path.to_owned(), timeout, turns: Arc::default() };
        let connection = sqlite.connect()?;
        let encoding: String = connection
            .query_row("PRAGMA encoding", [], |row| row.get(0))
            .map_err(|e| error::classify(&e, &format!("cannot read the database {shown}")))?;
        if encoding != "UTF-8" {
            return Err(refused(format!(
                "the database {shown} is encoded in {encoding}, whose text sorts in another order; \
                 copy it into one created with `PRAGMA encoding = 'UTF-8'`"
            )));
        }
        Ok(sqlite)
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn connect(&self) -> Result<Connection, OriginError> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let opening = unavailable_at("cannot open the database", &self.path);
        let connection = Connection::open_with_flags(&self.path, flags).map_err(&opening)?;
        connection.busy_timeout(self.timeout).map_err(&opening)?;
        // EXTRA is FULL and, where a rollback journal is in use, also syncs its folder: without that a power loss could
        // bring the journal back and take a committed transaction away. The journal mode stays as it was found.
        connection
            .execute_batch(
                "PRAGMA foreign_keys = ON; PRAGMA synchronous = EXTRA; PRAGMA fullfsync = ON;",
            )
            .and_then(|()| set_page_cache(&connection, PAGE_CACHE_KIB))
            .map_err(&opening)?;
        connection.set_prepared_statement_cache_capacity(STATEMENTS_MAX);
        Ok(connection)
    }

    /// Turns for reads and commits, where a commit keeps reads out: not with a write-ahead log.
    fn turns(&self, connection: &Connection) -> Result<Option<Arc<Turns>>, OriginError> {
        let mode: String = connection
            .query_row("PRAGMA journal_mode", [], |row| row.get(0))
            .map_err(unavailable_at("cannot open the database", &self.path))?;
        Ok((!mode.eq_ignore_ascii_case("wal")).then(|| self.turns.clone()))
    }
}

impl Origin for Sqlite {
    fn describe(&self) -> String {
        format!("sqlite:{}", self.path.display())
    }

    fn schema(&self) -> Result<Schema, OriginError> {
        catalog::read(&self.connect()?)
    }

    /// One writer at a time, as SQLite has it: domains are kept in order apart, and destaged in turn.
    fn has_domains(&self) -> bool {
        true
    }

    fn reader(&self) -> Result<Box<dyn Reader>, OriginError> {
        let connection = self.connect()?;
        let turns = self.turns(&connection)?;
        Ok(Box::new(reader::SqliteReader::new(connection, turns)))
    }

    fn writer(&self) -> Result<Box<dyn Writer>, OriginError> {
        let connection = self.connect()?;
        tables::create(&connection)?;
        let turns = self.turns(&connection)?;
        Ok(Box::new(SqlWriter(writer::SqliteWriter::new(connection, turns))))
    }
}

/// Memory for the pages that a connection has read, in KiB: little, since the system's cache is behind it. SQLite lends one
/// connection's share to the others of the process, so that together they take up to the sum.
const PAGE_CACHE_KIB: i64 = 512;

fn set_page_cache(connection: &Connection, kib: i64) -> rusqlite::Result<()> {
    connection.pragma_update(None, "cache_size", -kib)
}

/// Prepared statements kept per connection.
const STATEMENTS_MAX: usize = 256;
