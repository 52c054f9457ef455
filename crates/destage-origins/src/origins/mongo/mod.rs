//! MongoDB as the origin, through its wire protocol, with single-document updates and no transactions (Design 1 of the
//! write-back paper).
//!
//! Owns the connections, what collections hold, the commands and the classification of failures. What a transaction does for
//! other origins, order and guards do here: groups change one document each and are applied one after the other, and each
//! document carries the number of the last group that changed it ([`guard`]), so that a group that comes again changes
//! nothing. Destage's own state is one document, in which it changes atomically ([`owner`]). Left to others: when to try
//! again, and what to do with a rejected group.

mod catalog;
mod collections;
mod connection;
mod error;
mod fields;
mod guard;
mod owner;
mod reachability;
mod reader;
mod settings;
mod statements;
mod steps;
mod suggest;
mod tombstones;
mod types;
mod unpark;
mod validator;
mod writer;

use crate::contract::{Origin, OriginError, Reader, Writer};
use crate::schema::{Schema, Unreachable};
use crate::settings::TableSettings;
use connection::{Connection, Use};
use settings::Settings;
use std::collections::BTreeMap;
use std::time::Duration;

/// A MongoDB database.
pub struct Mongo {
    settings: Settings,
    declared: BTreeMap<String, TableSettings>,
}

impl Mongo {
    /// The time that one operation may take by default.
    pub const TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);

    /// A database by its URL: `mongodb://user:password@host:port/database`, several hosts with commas in between, and the
    /// driver's parameters for TLS, authentication and replica sets. Nothing is opened yet.
    ///
    /// # Errors
    /// [`destage_core::Fault::Denied`] if the URL is malformed, or asks for what there is not.
    pub fn new(url: &str) -> Result<Self, OriginError> {
        let settings = Settings::parse(url, Self::TIMEOUT_DEFAULT)?;
        Ok(Self { settings, declared: BTreeMap::new() })
    }

    /// Limits the time of each operation, connecting included. At least a millisecond.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.settings.timeout = timeout.max(Duration::from_millis(1));
        self
    }

    /// What collections without a validator hold, by their names; where there is a validator, this comes first.
    #[must_use]
    pub fn declared(mut self, tables: &BTreeMap<String, TableSettings>) -> Self {
        self.declared.clone_from(tables);
        self
    }
}

impl Origin for Mongo {
    fn describe(&self) -> String {
        self.settings.place.clone()
    }

    fn schema(&self) -> Result<Schema, OriginError> {
        catalog::read(&mut Connection::open(&self.settings, Use::Writing)?, &self.declared)
    }

    fn suggested_settings(&self, schema: &Schema) -> Result<Option<String>, OriginError> {
        let is_undeclared = |table: &&Unreachable| table.reason == catalog::undeclared(&table.name);
        let undeclared: Vec<_> = schema.unreachable.iter().filter(is_undeclared).collect();
        let names: Vec<&str> = undeclared.iter().map(|table| &table.name[..]).collect();
        if names.is_empty() && !(schema.reachable().is_empty() && schema.unreachable.is_empty()) {
            return Ok(None);
        }
        let mut connection = Connection::open(&self.settings, Use::Writing)?;
        suggest::sections(&mut connection, &names).map(Some)
    }

    fn has_domains(&self) -> bool {
        // A group changes one document, which is in one domain, and all watermarks are in one document.
        true
    }

    fn reader(&self) -> Result<Box<dyn Reader>, OriginError> {
        Ok(Box::new(reader::MongoReader::new(Connection::open(&self.settings, Use::Reading)?)))
    }

    fn writer(&self) -> Result<Box<dyn Writer>, OriginError> {
        Ok(Box::new(writer::MongoWriter::new(Connection::open(&self.settings, Use::Writing)?)))
    }
}
