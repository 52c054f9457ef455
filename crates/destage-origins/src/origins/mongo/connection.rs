//! Connections that block: a small runtime for each, and a limit on every operation.

use super::collections::Collections;
use super::error::{classified, command_failed};
use super::settings::Settings;
use crate::contract::OriginError;
use crate::origins::bound::{Bound, exceeded};
use destage_core::Fault;
use futures_util::future::{Either, select};
use mongodb::bson::{Document, doc};
use mongodb::error::ErrorKind;
use mongodb::options::{ClientOptions, FindOptions, SelectionCriteria};
use mongodb::{Client, Database, ServerInfo};
use std::future::IntoFuture;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};

pub(super) struct Connection {
    // Before the runtime, on which its tasks run.
    database: Database,
    runtime: Runtime,
    settings: Settings,
    usage: Use,
    /// An operation was given up half way: it may still be under way.
    given_up: bool,
}

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// Somebody waits for an answer: a server that is away is told soon, and at once where that is known.
    Reading,
    /// There is time.
    Writing,
    /// As for reading, but to find out whether the servers are there again.
    Finding,
}

impl Connection {
    pub(super) fn open(settings: &Settings, usage: Use) -> Result<Self, OriginError> {
        if usage == Use::Reading {
            settings.reachability.check()?;
        }
        let runtime = Builder::new_current_thread().enable_all().build().map_err(|error| {
            OriginError::new(Fault::Unavailable, format!("failed to start a runtime: {error}"))
        })?;
        let connected = runtime.block_on(connect(settings, usage));
        let client = connected.map_err(|error| classified("connect", &settings.place, &error))?;
        let database = client.database(&settings.database);
        let settings = settings.clone();
        let mut connection = Self { database, runtime, settings, usage, given_up: false };
        connection.check_message_size()?;
        connection.command("connect", doc! { "ping": 1 })?;
        Ok(connection)
    }

    /// Asks whichever server is there first for a sign of life, but none that names larger messages than there are: the driver
    /// would take in one of as many bytes.
    fn check_message_size(&mut self) -> Result<(), OriginError> {
        let (unusual, mut found) = tokio::sync::watch::channel(0);
        let tell = unusual.clone();
        let is_usual = move |server: &ServerInfo<'_>| {
            let named = message_bytes_max(server);
            let is_usual = named <= MESSAGE_BYTES_MAX;
            if !is_usual {
                tell.send_replace(named);
            }
            is_usual
        };
        let criteria = SelectionCriteria::Predicate(Arc::new(is_usual));
        let answer = self.run("connect", async |database| {
            let ping = database.run_command(doc! { "ping": 1 }).selection_criteria(criteria);
            Ok(match select(pin!(ping.into_future()), pin!(found.changed())).await {
                Either::Left((answer, _)) => Some(answer?),
                Either::Right(_) => None,
            })
        })?;
        if answer.is_some() {
            return Ok(());
        }
        let named = *unusual.borrow();
        let message = format!(
            "failed to connect at {}: it announces messages of {named} bytes, which is longer than any that Destage expects (at \
             most {MESSAGE_BYTES_MAX}): look at what answers there",
            self.place()
        );
        Err(OriginError::new(Fault::Denied, message))
    }

    /// Runs a command; a reply that reports a failure of any part of it but single documents is an error.
    pub(super) fn command(
        &mut self,
        what: &str,
        command: Document,
    ) -> Result<Document, OriginError> {
        let reply = self.run(what, async |database| database.run_command(command).await)?;
        match reply.get_document("writeConcernError") {
            Ok(error) => Err(command_failed(what, self.place(), error)),
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
        options.max_time = Some(self.timeout());
        let mut bound = match (query.bound, usize::try_from(query.limit)) {
            (Some(bound), _) => bound,
            (None, Ok(0) | Err(_)) => Bound::rows(usize::MAX),
            (None, Ok(limit)) => Bound::rows(limit),
        };
        let documents = self.run(what, async |database| {
            let collection = database.collection::<Document>(collection);
            let mut cursor = collection.find(query.filter).with_options(options).await?;
            let mut found = Vec::new();
            while cursor.advance().await? {
                if !bound.takes(cursor.current().as_bytes().len()) {
                    return Ok(None);
                }
                // Not by serde, which takes the stack of a thread for documents that are nested deep.
                found.push(Document::try_from(cursor.current())?);
            }
            Ok(Some(found))
        })?;
        let documents = self.in_bounds(what, documents)?;
        if !documents.is_empty() {
            self.collections().note(collection);
        }
        Ok(documents)
    }

    /// All documents of a command that returns a cursor.
    pub(super) fn cursor(
        &mut self,
        what: &str,
        command: Document,
    ) -> Result<Vec<Document>, OriginError> {
        let mut bound = Bound::default();
        let documents = self.run(what, async |database| {
            let mut cursor = database.run_cursor_command(command).await?;
            let mut found = Vec::new();
            while cursor.advance().await? {
                if !bound.takes(cursor.current().as_bytes().len()) {
                    return Ok(None);
                }
                found.push(cursor.deserialize_current()?);
            }
            Ok(Some(found))
        })?;
        self.in_bounds(what, documents)
    }

    /// What was found, unless it was too much.
    fn in_bounds<T>(&mut self, what: &str, found: Option<T>) -> Result<T, OriginError> {
        found.ok_or_else(|| {
            self.given_up = true;
            exceeded(what, self.place())
        })
    }

    /// Whether there is such a collection.
    pub(super) fn has_collection(&mut self, what: &str, name: &str) -> Result<bool, OriginError> {
        let command = doc! { "listCollections": 1, "filter": { "name": name }, "nameOnly": true };
        let found = self.cursor(what, command)?;
        let is_there = found.iter().any(|found| found.get_str("name").is_ok_and(|n| n == name));
        if is_there {
            self.collections().note(name);
        }
        Ok(is_there)
    }

    /// What is known of the database's collections.
    pub(super) fn collections(&self) -> &Collections {
        &self.settings.collections
    }

    /// Runs an operation to its end, or gives the connection up when the time is over.
    pub(super) fn run<T>(
        &mut self,
        what: &str,
        operation: impl AsyncFnOnce(&Database) -> mongodb::error::Result<T>,
    ) -> Result<T, OriginError> {
        if self.given_up {
            let message = format!("the connection to {} is closed", self.place());
            return Err(OriginError::new(Fault::Unavailable, message));
        }
        if self.usage == Use::Reading {
            self.settings.reachability.check()?;
        }
        let (timeout, database) = (self.timeout(), &self.database);
        let outcome = self
            .runtime
            .block_on(async { tokio::time::timeout(timeout, operation(database)).await });
        let Ok(outcome) = outcome else {
            self.given_up = true;
            let message =
                format!("failed to {what} at {}: no answer within {timeout:?}", self.place());
            return Err(OriginError::new(Fault::Unavailable, message));
        };
        outcome.inspect(|_| self.settings.reachability.end()).map_err(|error| {
            let failed = classified(what, self.place(), &error);
            let is_away = matches!(&*error.kind, ErrorKind::ServerSelection { .. });
            // Who looks for a server needs nobody to look for one.
            if is_away && self.usage != Use::Finding {
                self.settings.reachability.begin(&self.settings, &failed);
            }
            failed
        })
    }

    pub(super) fn place(&self) -> &str {
        &self.settings.place
    }

    /// The time that one operation may take.
    pub(super) fn timeout(&self) -> Duration {
        self.settings.timeout
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
    /// What may come, if that is not so many documents, each as large as it is.
    pub(super) bound: Option<Bound>,
}

async fn connect(settings: &Settings, usage: Use) -> mongodb::error::Result<Client> {
    let mut options = ClientOptions::parse(settings.address.clone()).await?;
    options.app_name = Some("destage".to_owned());
    let patience = if usage == Use::Writing { settings.timeout } else { FINDING_MAX };
    options.server_selection_timeout = Some(settings.timeout.min(patience));
    options.connect_timeout = Some(settings.timeout);
    // One thing at a time; the core decides what is tried again.
    options.max_pool_size = Some(1);
    options.retry_reads = Some(false);
    options.retry_writes = Some(false);
    Client::with_options(options)
}

/// How large a message a server says that it sends at most, bytes; 0 where it does not say.
fn message_bytes_max(server: &ServerInfo<'_>) -> i64 {
    // The driver shows it in this way alone.
    let Ok(shown) = serde_json::to_value(server) else { return i64::MAX };
    let named = shown.pointer("/reply/Ok/command_response/maxMessageSizeBytes");
    named.and_then(serde_json::Value::as_i64).unwrap_or(0)
}

/// Servers say 48,000,000.
const MESSAGE_BYTES_MAX: i64 = 64 << 20;

/// How long a read waits for a server to be found. Where one is there, this takes as long as connecting.
const FINDING_MAX: Duration = Duration::from_secs(3);

#[cfg(test)]
mod tests {
    use super::*;

    /// A connection to where nothing answers, which finds that out soon; nobody has looked yet.
    fn to_nowhere(usage: Use) -> Connection {
        let url = "mongodb://127.0.0.1:1/nowhere";
        let settings = Settings::parse(url, Duration::from_secs(60)).unwrap();
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let client = runtime.block_on(async {
            let mut options = ClientOptions::parse(settings.address.clone()).await?;
            options.server_selection_timeout = Some(Duration::from_millis(1));
            Client::with_options(options)
        });
        let database = client.unwrap().database(&settings.database);
        Connection { database, runtime, settings, usage, given_up: false }
    }

    #[test]
    fn who_looks_for_a_server_has_no_other_thread_look_for_one() {
        for usage in [Use::Reading, Use::Writing, Use::Finding] {
            let mut connection = to_nowhere(usage);
            assert!(connection.command("connect", doc! { "ping": 1 }).is_err());
            let is_looked_for = connection.settings.reachability.check().is_err();
            assert_eq!(is_looked_for, usage != Use::Finding, "{usage:?}");
        }
    }
}
