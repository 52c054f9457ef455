//! A connection that blocks: its own small runtime, a limit on every operation, prepared statements.

use super::error::classified;
use super::settings::Settings;
use crate::origins::OriginError;
use destage_core::Fault;
use std::collections::HashMap;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Error, NoTls, Statement};

pub(super) struct Connection {
    runtime: Runtime,
    client: Client,
    statements: HashMap<String, Statement>,
    timeout: Duration,
    place: String,
    /// An operation was given up half way: what the session is doing is unknown.
    given_up: bool,
}

impl Connection {
    pub(super) fn open(settings: &Settings) -> Result<Self, OriginError> {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|e| unavailable(format!("failed to start a runtime: {e}")))?;
        let place = settings.place.clone();
        let connected = runtime.block_on(async {
            tokio::time::timeout(settings.timeout, settings.config.connect(NoTls)).await
        });
        let (client, task) = connected
            .map_err(|_| late("connect", &place, settings.timeout))?
            .map_err(|error| classified("connect", &place, &error))?;
        runtime.spawn(async move {
            if let Err(error) = task.await {
                tracing::debug!(%error, "the connection to PostgreSQL ended");
            }
        });
        let statements = HashMap::new();
        let timeout = settings.timeout;
        let mut connection = Self { runtime, client, statements, timeout, place, given_up: false };
        let session = session(timeout);
        connection
            .run("set up the session", async |client| client.batch_execute(&session).await)?;
        Ok(connection)
    }

    /// Runs an operation to its end, or gives the connection up when the time is over.
    pub(super) fn run<T>(
        &mut self,
        what: &str,
        operation: impl AsyncFnOnce(&Client) -> Result<T, Error>,
    ) -> Result<T, OriginError> {
        if self.given_up || self.client.is_closed() {
            return Err(unavailable(format!("the connection to {} is closed", self.place)));
        }
        let outcome = self
            .runtime
            .block_on(async { tokio::time::timeout(self.timeout, operation(&self.client)).await });
        match outcome {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => Err(self.failed(what, &error)),
            Err(_) => {
                self.given_up = true;
                Err(late(what, &self.place, self.timeout))
            }
        }
    }

    /// The error in words, with what it means for this connection.
    pub(super) fn failed(&mut self, what: &str, error: &Error) -> OriginError {
        let state = error.code().map_or("", |code| code.code());
        if matches!(state, "0A000" | "26000") {
            // A prepared statement that the table's definition has outgrown: prepare it anew next time.
            self.statements.clear();
        }
        classified(what, &self.place, error)
    }

    /// The prepared statement of that text, from the cache where it is known.
    pub(super) fn prepared(
        &mut self,
        what: &str,
        sql: &str,
        types: &[Type],
    ) -> Result<Statement, OriginError> {
        if let Some(statement) = self.statements.get(sql) {
            return Ok(statement.clone());
        }
        let statement = self.run(what, async |client| client.prepare_typed(sql, types).await)?;
        if self.statements.len() >= STATEMENTS_MAX {
            self.statements.clear();
        }
        self.statements.insert(sql.to_owned(), statement.clone());
        Ok(statement)
    }

    pub(super) fn place(&self) -> &str {
        &self.place
    }
}

/// Polls all of them in order, so that their requests are sent in this order without waiting for one another.
pub(super) async fn pipelined<T>(futures: Vec<Pin<Box<dyn Future<Output = T> + '_>>>) -> Vec<T> {
    let mut pending: Vec<_> = futures.into_iter().map(Some).collect();
    let mut results: Vec<Option<T>> = pending.iter().map(|_| None).collect();
    std::future::poll_fn(|context| {
        let mut open = false;
        for (future, result) in pending.iter_mut().zip(&mut results) {
            let Some(running) = future else { continue };
            match running.as_mut().poll(context) {
                Poll::Ready(value) => {
                    *result = Some(value);
                    *future = None;
                }
                Poll::Pending => open = true,
            }
        }
        if open { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
    results.into_iter().flatten().collect()
}

/// Fixed forms of values; durable commits; plans that fit any number of rows; nothing of ours lingers at the server.
fn session(timeout: Duration) -> String {
    let limit = timeout.as_millis().clamp(1, i32::MAX as u128);
    let lock_limit = (limit / 2).max(1);
    format!(
        "SET DateStyle = 'ISO, MDY'; SET TimeZone = 'UTC'; SET IntervalStyle = 'postgres'; \
         SET extra_float_digits = 1; SET bytea_output = 'hex'; \
         SET standard_conforming_strings = on; SET xmloption = 'content'; \
         SET default_transaction_isolation = 'read committed'; \
         SET default_transaction_read_only = off; SET default_transaction_deferrable = off; \
         SELECT set_config('synchronous_commit', CASE current_setting('synchronous_commit') \
             WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, false); \
         SET plan_cache_mode = force_generic_plan; SET jit = off; \
         SET enable_hashjoin = off; SET enable_mergejoin = off; \
         SET statement_timeout = {limit}; SET lock_timeout = {lock_limit}; \
         SET idle_in_transaction_session_timeout = {limit}; \
         SET tcp_keepalives_idle = 15; SET tcp_keepalives_interval = 5; \
         SET tcp_keepalives_count = 3"
    )
}

fn late(what: &str, place: &str, timeout: Duration) -> OriginError {
    unavailable(format!("failed to {what} at {place}: no answer within {timeout:?}"))
}

fn unavailable(message: String) -> OriginError {
    OriginError::new(Fault::Unavailable, message)
}

/// Prepared statements kept per connection; past it all are prepared anew.
const STATEMENTS_MAX: usize = 256;
