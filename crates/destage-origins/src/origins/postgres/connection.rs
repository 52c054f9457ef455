//! Connections that block: a small runtime for one or several, a limit on every operation, prepared statements.

use super::error::classified;
use super::framed::{Framed, Limit};
use super::settings::Settings;
use crate::contract::OriginError;
use crate::origins::bound::{Bound, exceeded};
use destage_core::Fault;
use futures_util::TryStreamExt;
use std::cell::Cell;
use std::collections::HashMap;
use std::future::{pending, poll_fn};
use std::ops::Deref;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Notify;
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{AsyncMessage, Client, Error, Row, Statement, ToStatement};

pub(super) struct Connection {
    driver: Arc<Driver>,
    session: Session,
    /// Of what the server may say at once.
    limit: Arc<Limit>,
    timeout: Duration,
    place: String,
    /// An operation was given up half way: what the session is doing is unknown.
    given_up: bool,
    /// Prepared statements have been forgotten since the tables have outgrown one.
    outgrown: bool,
}

/// What drives one connection or several.
struct Driver {
    runtime: Runtime,
    /// The operation under way is answered with more than is taken in.
    exceeded: Notify,
}

/// A client that takes in no more rows than the operation under way may be answered with.
pub(super) struct Bounded {
    client: Client,
    driver: Arc<Driver>,
    left: Cell<Bound>,
}

impl Deref for Bounded {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl Bounded {
    /// The rows of a query, each as `read` makes of it. Where there are too many, the operation ends here, as where its time
    /// is over.
    pub(super) async fn read<S: ?Sized + ToStatement, T>(
        &self,
        statement: &S,
        params: &[&(dyn ToSql + Sync)],
        mut read: impl FnMut(Row) -> T,
    ) -> Result<Vec<T>, Error> {
        let params = params.iter().copied();
        let mut rows = pin!(self.client.query_raw(statement, params).await?);
        let mut found = Vec::new();
        while let Some(row) = rows.try_next().await? {
            let mut left = self.left.get();
            if !left.takes(row.raw_size_bytes()) {
                self.driver.exceeded.notify_one();
                return pending().await;
            }
            self.left.set(left);
            found.push(read(row));
        }
        Ok(found)
    }

    /// The rows of a query.
    pub(super) async fn query<S: ?Sized + ToStatement>(
        &self,
        statement: &S,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, Error> {
        self.read(statement, params, |row| row).await
    }
}

/// The session behind a connection, for operations that await.
pub(super) struct Session {
    pub(super) client: Bounded,
    statements: HashMap<String, Statement>,
    /// The database's encoding has no place for some characters.
    pub(super) lacks_characters: bool,
}

impl Session {
    /// The prepared statement of that text, from the cache where it is known.
    pub(super) async fn statement(
        &mut self,
        sql: &str,
        types: &[Type],
    ) -> Result<Statement, Error> {
        if let Some(statement) = self.statements.get(sql) {
            return Ok(statement.clone());
        }
        let statement = self.client.prepare_typed(sql, types).await?;
        if self.statements.len() >= STATEMENTS_MAX {
            self.statements.clear();
        }
        self.statements.insert(sql.to_owned(), statement.clone());
        Ok(statement)
    }
}

impl Connection {
    pub(super) fn open(settings: &Settings) -> Result<Self, OriginError> {
        Self::open_beside(settings, new_driver()?, None)
    }

    /// A connection that is told of others' notifications, of each its text, while one of its operations runs, or
    /// [`Self::wait_for`].
    pub(super) fn open_notified(settings: &Settings, hear: Hear) -> Result<Self, OriginError> {
        Self::open_beside(settings, new_driver()?, Some(hear))
    }

    /// Another connection like this one, on the same runtime: [`run_all`] drives both at once.
    pub(super) fn open_another(&self, settings: &Settings) -> Result<Self, OriginError> {
        Self::open_beside(settings, self.driver.clone(), None)
    }

    fn open_beside(
        settings: &Settings,
        driver: Arc<Driver>,
        hear: Option<Hear>,
    ) -> Result<Self, OriginError> {
        let place = settings.place.clone();
        let limit = Arc::<Limit>::default();
        let connecting = connect(settings, &limit, hear);
        let limited = async { tokio::time::timeout(settings.timeout, connecting).await };
        let connected = driver.runtime.block_on(limited);
        let client = connected.map_err(|_| late("connect", &place, settings.timeout))??;
        let client = Bounded { client, driver: driver.clone(), left: Cell::default() };
        let session = Session { client, statements: HashMap::new(), lacks_characters: false };
        let timeout = settings.timeout;
        let mut connection =
            Self { driver, session, limit, timeout, place, given_up: false, outgrown: false };
        let setup = setup(timeout);
        connection.run("set up the session", async |client| client.batch_execute(&setup).await)?;
        Ok(connection)
    }

    /// Runs an operation to its end, or gives the connection up when the time is over.
    pub(super) fn run<T>(
        &mut self,
        what: &str,
        operation: impl AsyncFnOnce(&Bounded) -> Result<T, Error>,
    ) -> Result<T, OriginError> {
        self.run_session(what, async |session| operation(&session.client).await)
    }

    /// As [`Self::run`], for what needs the session's statements.
    pub(super) fn run_session<T>(
        &mut self,
        what: &str,
        operation: impl AsyncFnOnce(&mut Session) -> Result<T, Error>,
    ) -> Result<T, OriginError> {
        let connections = std::slice::from_mut(self);
        let outcome = run_all(connections, what, async |mut sessions| {
            operation(sessions.pop().expect("one connection has one session")).await
        })?;
        outcome.map_err(|error| self.failed(what, &error))
    }

    /// The next operation may be answered with so much.
    pub(super) fn expect(&mut self, bound: Bound) {
        self.session.client.left.set(bound);
        self.limit.set_row_bytes_max(bound.row_bytes_max());
    }

    /// The error in words, with what it means for this connection.
    pub(super) fn failed(&mut self, what: &str, error: &Error) -> OriginError {
        let state = error.code().map_or("", |code| code.code());
        if matches!(state, "0A000" | "26000") {
            // A prepared statement that the table's definition has outgrown: prepare it anew next time.
            self.session.statements.clear();
            self.outgrown = true;
        }
        failed(what, &self.place, &self.limit, error)
    }

    /// The prepared statement of that text, from the cache where it is known.
    pub(super) fn prepared(
        &mut self,
        what: &str,
        sql: &str,
        types: &[Type],
    ) -> Result<Statement, OriginError> {
        self.run_session(what, async |session| session.statement(sql, types).await)
    }

    /// Whether rows are found by their keys from now on, however small a table seems. A plan lives as long as the
    /// connection, and the table may have had a handful of rows when it was made: read whole for each key, it would take
    /// forever once it has grown.
    pub(super) fn prefer_indexes(&mut self, prefer: bool) -> Result<(), OriginError> {
        let sql = if prefer { "SET enable_seqscan = off" } else { "SET enable_seqscan = on" };
        self.run("set up the session", async |client| client.batch_execute(sql).await)
    }

    /// What the ledger stores holds no other characters than those of ASCII from now on, if so.
    pub(super) fn note_encoding(&mut self, lacks_characters: bool) {
        self.session.lacks_characters = lacks_characters;
    }

    /// Waits for something else than an answer, at most that long.
    pub(super) fn wait_for<T>(&self, limit: Duration, what: impl Future<Output = T>) -> Option<T> {
        self.driver.runtime.block_on(async { tokio::time::timeout(limit, what).await }).ok()
    }

    /// Whether what failed last did so for a prepared statement that was out of date, and may do better now.
    pub(super) fn take_outgrown(&mut self) -> bool {
        std::mem::take(&mut self.outgrown) && !self.is_closed()
    }

    /// Whether it can be used no more.
    pub(super) fn is_closed(&self) -> bool {
        self.given_up || self.session.client.is_closed()
    }

    /// Whether the server announced a message that is longer than it may be.
    pub(super) fn is_exceeded(&self) -> bool {
        self.limit.is_exceeded()
    }

    /// The time that one operation may take.
    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    pub(super) fn place(&self) -> &str {
        &self.place
    }
}

/// Takes in the text of a notification; dropped when the connection has ended.
pub(super) type Hear = Box<dyn FnMut(&str) + Send>;

/// Connects, encrypted or not, and leaves the connection to the runtime.
async fn connect(
    settings: &Settings,
    limit: &Arc<Limit>,
    hear: Option<Hear>,
) -> Result<Client, OriginError> {
    let (config, place) = (&settings.config, &settings.place);
    let mut framed = Framed::new(settings, limit.clone());
    let connected = match settings.socket() {
        None => config.connect(framed).await.map(|pair| driven(pair, hear)),
        Some(path) => {
            let opened = UnixStream::connect(path).await;
            let opened = opened.and_then(|socket| Ok((socket, framed.make_tls_connect("")?)));
            let (socket, connecting) =
                opened.map_err(|e| unavailable(format!("failed to connect at {place}: {e}")))?;
            config.connect_raw(socket, connecting).await.map(|pair| driven(pair, hear))
        }
    };
    connected.map_err(|error| failed("connect", place, limit, &error))
}

/// The error in words: of an answer that was given up, that and not how it ended.
fn failed(what: &str, place: &str, limit: &Limit, error: &Error) -> OriginError {
    if limit.is_exceeded() { exceeded(what, place) } else { classified(what, place, error) }
}

fn driven<S, T>(
    (client, mut connection): (Client, tokio_postgres::Connection<S, T>),
    mut hear: Option<Hear>,
) -> Client
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    tokio::spawn(async move {
        loop {
            match poll_fn(|context| connection.poll_message(context)).await {
                None => return,
                Some(Ok(AsyncMessage::Notification(notification))) => {
                    if let Some(hear) = &mut hear {
                        hear(notification.payload());
                    }
                }
                Some(Ok(AsyncMessage::Notice(notice))) => {
                    tracing::debug!(%notice, "PostgreSQL says");
                }
                Some(Ok(_)) => {}
                Some(Err(error)) => {
                    tracing::debug!(%error, "the connection to PostgreSQL ended");
                    return;
                }
            }
        }
    });
    client
}

fn new_driver() -> Result<Arc<Driver>, OriginError> {
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|e| unavailable(format!("failed to start a runtime: {e}")))?;
    Ok(Arc::new(Driver { runtime, exceeded: Notify::new() }))
}

/// Runs an operation that uses several connections of one driver to its end, or gives all of them up when the time is over,
/// or the answer longer than it may be.
///
/// # Panics
/// There is no connection.
pub(super) fn run_all<T>(
    connections: &mut [Connection],
    what: &str,
    operation: impl AsyncFnOnce(Vec<&mut Session>) -> T,
) -> Result<T, OriginError> {
    if let Some(closed) = connections.iter().find(|connection| connection.is_closed()) {
        return Err(unavailable(format!("the connection to {} is closed", closed.place)));
    }
    let (driver, timeout) = (connections[0].driver.clone(), connections[0].timeout);
    let place = connections[0].place.clone();
    let sessions = connections.iter_mut().map(|connection| &mut connection.session).collect();
    let outcome = driver.runtime.block_on(async {
        tokio::select! {
            done = tokio::time::timeout(timeout, operation(sessions)) => {
                done.map_err(|_| late(what, &place, timeout).late())
            }
            () = driver.exceeded.notified() => Err(exceeded(what, &place)),
        }
    });
    for connection in connections {
        connection.expect(Bound::default());
        connection.given_up |= outcome.is_err();
    }
    outcome
}

/// Polls all of them in order, so that their requests are sent in this order without waiting for one another.
pub(super) async fn pipelined<T>(futures: Vec<Pin<Box<dyn Future<Output = T> + '_>>>) -> Vec<T> {
    let mut pending: Vec<_> = futures.into_iter().map(Some).collect();
    let mut results: Vec<Option<T>> = pending.iter().map(|_| None).collect();
    poll_fn(|context| {
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
fn setup(timeout: Duration) -> String {
    let limit = timeout.as_millis().clamp(1, i32::MAX as u128);
    let lock_limit = (limit / 2).max(1);
    format!(
        "SET DateStyle = 'ISO, MDY'; SET TimeZone = 'UTC'; SET IntervalStyle = 'postgres'; \
         SET extra_float_digits = 1; SET bytea_output = 'hex'; \
         SET standard_conforming_strings = on; SET xmloption = 'content'; SET array_nulls = on; \
         SET default_transaction_isolation = 'read committed'; \
         SET default_transaction_deferrable = off; \
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
