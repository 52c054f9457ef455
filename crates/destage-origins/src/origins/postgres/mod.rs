//! PostgreSQL as the origin: version 12 and later, over TCP or a unix socket.
//!
//! Owns the connections, the catalogue, the statements and the classification of failures. A transaction takes two round
//! trips: everything up to the commit is sent at once, then the row counts are checked, then it is committed. A large batch
//! is several transactions, two of them at once ([`parts`]). Destage's own tables live in the first schema of the search
//! path. Left to others: when to try again, and what to do with a rejected group.

mod catalog;
mod connection;
mod ended;
mod error;
mod framed;
mod invalidation;
mod listener;
mod parts;
mod query;
mod range;
mod reader;
mod server;
mod settings;
mod statements;
mod tables;
mod tls;
mod transaction;
mod wire;
mod writer;

use crate::contract::{InvalidationChange, Listener, Origin, OriginError, Reader, Writer};
use crate::origins::ledger::SqlWriter;
use crate::schema::{Schema, Table};
use connection::Connection;
use listener::PostgresListener;
use settings::Settings;
use std::sync::Arc;
use std::time::Duration;

/// Most writers at once, each with up to two connections: a server allows some hundred to all its users.
const WRITERS_MAX: usize = 8;

/// A PostgreSQL database.
pub struct Postgres {
    settings: Settings,
}

impl Postgres {
    /// The time that one operation may take by default.
    pub const TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);

    /// A database by its URL: `postgres://user:password@host:port/database`, or `?host=/directory` for a unix socket.
    /// `sslmode` (disable, prefer, require, verify-ca, verify-full), `sslrootcert`, `sslcert` and `sslkey` mean what they
    /// mean to libpq; without them, connections that leave the machine are encrypted if the server can. Nothing is opened
    /// yet.
    ///
    /// # Errors
    /// [`destage_core::Fault::Denied`] if the URL is malformed, or names files for TLS that cannot be used.
    pub fn new(url: &str) -> Result<Self, OriginError> {
        Ok(Self { settings: Settings::parse(url, Self::TIMEOUT_DEFAULT)? })
    }

    /// Limits the time of each operation, connecting included. At least a millisecond.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.settings.set_timeout(timeout);
        self
    }

    /// Limits the groups that go to the database in one transaction: 1,000 by default, at least one. A larger batch becomes
    /// several, of which two may be under way at once on two connections; they are committed in order.
    #[must_use]
    pub fn transaction_groups(mut self, groups: usize) -> Self {
        self.settings.transaction_groups = groups.max(1);
        self
    }
}

impl Origin for Postgres {
    fn describe(&self) -> String {
        self.settings.place.clone()
    }

    fn schema(&self) -> Result<Schema, OriginError> {
        catalog::read(&mut Connection::open(&self.settings)?)
    }

    fn writers_max(&self) -> usize {
        WRITERS_MAX
    }

    fn has_domains(&self) -> bool {
        true
    }

    fn reader(&self) -> Result<Box<dyn Reader>, OriginError> {
        Ok(Box::new(reader::PostgresReader::new(Connection::open(&self.settings)?)?))
    }

    fn writer(&self) -> Result<Box<dyn Writer>, OriginError> {
        let connection = Connection::open(&self.settings)?;
        let writer = writer::PostgresWriter::new(connection, self.settings.clone())?;
        Ok(Box::new(SqlWriter(writer)))
    }

    fn listener(&self, schema: &Arc<Schema>) -> Result<Option<Box<dyn Listener>>, OriginError> {
        let listener = PostgresListener::open(&self.settings, schema)?;
        Ok(listener.map(|listener| Box::new(listener) as _))
    }

    fn install_invalidation(
        &self,
        tables: &[&Table],
        is_dry: bool,
    ) -> Result<InvalidationChange, OriginError> {
        invalidation::install(&mut Connection::open(&self.settings)?, tables, is_dry)
    }

    fn remove_invalidation(&self, is_dry: bool) -> Result<InvalidationChange, OriginError> {
        invalidation::remove(&mut Connection::open(&self.settings)?, is_dry)
    }
}
