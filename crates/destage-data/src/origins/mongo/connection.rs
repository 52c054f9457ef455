//! Connections that block: a small runtime for each, and a limit on every operation.

use super::error::{classified, command_failed};
use super::settings::Settings;
use crate::origins::OriginError;
use destage_core::Fault;
use mongodb::bson::{Document, doc};
use mongodb::options::{ClientOptions, FindOptions};
use mongodb::{Client, Database};
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};

pub(super) struct Connection {
    // Before the runtime, on which its tasks run.
    database: Database,
    runtime: Runtime,
    timeout: Duration,
    place: String,
    /// An operation was given up half way: it may still be under way.
    given_up: bool,
}

impl Connection {
    pub(super) fn open(settings: &Settings) -> Result<Self, OriginError> {
        let (timeout, place) = (settings.timeout, settings.place.clone());
        let runtime = Builder::new_current_thread().enable_all().build().map_err(|error| {
            OriginError::new(Fault::Unavailable, format!("failed to start a runtime: {error}"))
        })?;
        let connected = runtime.block_on(connect(settings));
        let client = connected.map_err(|error| classified("connect", &place, &error))?;
        let database = client.database(&settings.database);
        let mut connection = Self { database, runtime, timeout, place, given_up: false };
        connection.command("connect", doc! { "ping": 1 })?;
        Ok(connection)
    }

    /// Runs a command; a reply that reports a failure of any part of it but single documents is an error.
    pub(super) fn command(
        &mut self,
        what: &str,
        command: Document,
    ) -> Result<Document, OriginError> {
        let reply = self.run(what, async |database| database.run_command(command).await)?;
        match reply.get_document("writeConcernError") {
            Ok(error) => Err(command_failed(what, &self.place, error)),
            Err(_) => Ok(reply),
        }
    }

    /// The documents that a query finds.
    pub(super) fn find(
        &mut self,
        what: &str,
        collection: &str,
        query: Query,
    ) -> Result<Vec<Document>, OriginError> {
        let mut options = FindOptions::default();
        options.projection = query.projection;
        options.sort = query.sorted.then(|| doc! { "_id": 1 });
        options.limit = Some(query.limit);
        options.max_time = Some(self.timeout);
        self.run(what, async |database| {
            let collection = database.collection::<Document>(collection);
            let mut cursor = collection.find(query.filter).with_options(options).await?;
            let mut found = Vec::new();
            while cursor.advance().await? {
                found.push(cursor.deserialize_current()?);
            }
            Ok(found)
        })
    }

    /// Runs an operation to its end, or gives the connection up when the time is over.
    pub(super) fn run<T>(
        &mut self,
        what: &str,
        operation: impl AsyncFnOnce(&Database) -> mongodb::error::Result<T>,
    ) -> Result<T, OriginError> {
        if self.given_up {
            let message = format!("the connection to {} is closed", self.place);
            return Err(OriginError::new(Fault::Unavailable, message));
        }
        let (timeout, database) = (self.timeout, &self.database);
        let outcome = self
            .runtime
            .block_on(async { tokio::time::timeout(timeout, operation(database)).await });
        let Ok(outcome) = outcome else {
            self.given_up = true;
            let message =
                format!("failed to {what} at {}: no answer within {timeout:?}", self.place);
            return Err(OriginError::new(Fault::Unavailable, message));
        };
        outcome.map_err(|error| classified(what, &self.place, &error))
    }

    pub(super) fn place(&self) -> &str {
        &self.place
    }

    /// The time that one operation may take.
    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }
}

/// What to look for.
#[derive(Default)]
pub(super) struct Query {
    pub(super) filter: Document,
    pub(super) projection: Option<Document>,
    /// In the order of `_id`.
    pub(super) sorted: bool,
    /// Most documents; 0 for all.
    pub(super) limit: i64,
}

async fn connect(settings: &Settings) -> mongodb::error::Result<Client> {
    let mut options = ClientOptions::parse(settings.address.clone()).await?;
    options.app_name = Some("destage".to_owned());
    options.server_selection_timeout = Some(settings.timeout);
    options.connect_timeout = Some(settings.timeout);
    // One thing at a time; the core decides what is tried again.
    options.max_pool_size = Some(1);
    options.retry_reads = Some(false);
    options.retry_writes = Some(false);
    Client::with_options(options)
}
