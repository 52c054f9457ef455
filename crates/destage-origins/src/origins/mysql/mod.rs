//! MariaDB as the origin: version 10.6 and later, over TCP or a unix socket, through the MySQL protocol.
//!
//! Owns the connections, the catalogue, the statements and the classification of failures. The protocol has no pipeline, but
//! takes several statements in one packet and answers each: a transaction takes two round trips, everything up to the
//! commit, then, once the row counts are checked, the commit. So values stand in the statements as literals ([`literal`]).
//! Destage's own tables live in the database of the URL. Left to others: when to try again, and what to do with a rejected
//! group.

mod catalog;
mod connection;
mod ended;
mod error;
mod literal;
mod query;
mod reader;
mod settings;
mod statements;
mod tables;
mod writer;

use crate::contract::{Origin, OriginError, Reader, Writer};
use crate::origins::ledger::SqlWriter;
use crate::schema::Schema;
use connection::Connection;
use settings::Settings;
use std::time::Duration;

/// A MariaDB database.
pub struct Mysql {
    settings: Settings,
}

impl Mysql {
    /// The time that one operation may take by default.
    pub const TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);

    /// A database by its URL: `mysql://user:password@host:port/database` (or `mariadb://`), with `?socket=/file` for a unix
    /// socket. `sslmode` (disable, prefer, require, verify-full), `sslrootcert`, `sslcert` and `sslkey` mean what they mean
    /// for PostgreSQL; without them, connections that leave the machine are encrypted if the server can. Nothing is opened
    /// yet.
    ///
    /// # Errors
    /// [`destage_core::Fault::Denied`] if the URL is malformed, or asks for what there is not.
    pub fn new(url: &str) -> Result<Self, OriginError> {
        Ok(Self { settings: Settings::parse(url, Self::TIMEOUT_DEFAULT)? })
    }

    /// Limits the time of each operation, connecting included. At least a millisecond.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.settings.timeout = timeout.max(Duration::from_millis(1));
        self
    }

    /// Limits the groups that go to the database in one transaction: 1,000 by default, at least one. A larger batch becomes
    /// several, one after the other.
    #[must_use]
    pub fn transaction_groups(mut self, groups: usize) -> Self {
        self.settings.transaction_groups = groups.max(1);
        self
    }
}

/// Most writers at once, each with one connection: a server allows some hundred to all its users.
const WRITERS_MAX: usize = 8;

impl Origin for Mysql {
    fn describe(&self) -> String {
        self.settings.place.clone()
    }

    fn schema(&self) -> Result<Schema, OriginError> {
        catalog::read(&mut Connection::open(&self.settings.for_catalogue())?)
    }

    fn writers_max(&self) -> usize {
        WRITERS_MAX
    }

    fn has_domains(&self) -> bool {
        true
    }

    fn reader(&self) -> Result<Box<dyn Reader>, OriginError> {
        Ok(Box::new(reader::MysqlReader::new(Connection::open(&self.settings)?)))
    }

    fn writer(&self) -> Result<Box<dyn Writer>, OriginError> {
        let connection = Connection::open(&self.settings)?;
        let writer = writer::MysqlWriter::new(connection, self.settings.transaction_groups)?;
        Ok(Box::new(SqlWriter(writer)))
    }
}
