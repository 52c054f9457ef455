//! Connections that block: a small runtime for each, a limit on every operation, a session whose settings are ours.

use super::error::{READ_ONLY_TRANSACTION, classified};
use super::settings::Settings;
use crate::contract::OriginError;
use crate::derived::{Json, ROWS_MAX, only_reads, too_large};
use crate::origins::bound::{Bound, exceeded};
use destage_core::Fault;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, DriverError, Error, Params, QueryResult, Row, TextProtocol, Value};
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};

pub(super) struct Connection {
    runtime: Runtime,
    conn: Conn,
    timeout: Duration,
    place: String,
    /// An operation was given up half way: what the session is doing is unknown.
    given_up: bool,
    /// Most bytes that the server takes in one packet.
    packet_bytes_max: usize,
}

/// A row as the server sends it: texts, or NULL.
pub(super) type Texts = Vec<Option<Vec<u8>>>;

/// The results of several statements, one after the other.
type Answers<'c> = QueryResult<'c, 'static, TextProtocol>;

impl Connection {
    pub(super) fn open(settings: &Settings) -> Result<Self, OriginError> {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| unavailable(format!("failed to start a runtime: {error}")))?;
        let (timeout, place) = (settings.timeout, settings.place.clone());
        let connected =
            runtime.block_on(async { tokio::time::timeout(timeout, connect(settings)).await });
        let conn = connected
            .map_err(|_| late("connect", &place, timeout))?
            .map_err(|error| classified("connect", &place, &error))?;
        let mut connection =
            Self { runtime, conn, timeout, place, given_up: false, packet_bytes_max: 0 };
        connection.set_up()?;
        Ok(connection)
    }

    fn set_up(&mut self) -> Result<(), OriginError> {
        let what = "set up the session";
        let found = self.rows(what, "SELECT version(), @@max_allowed_packet")?;
        let text = |at: usize| {
            let value = found.first().and_then(|row| row.get(at)?.as_deref());
            String::from_utf8_lossy(value.unwrap_or_default()).into_owned()
        };
        let version = text(0);
        if !version.contains("MariaDB") {
            let place = &self.place;
            let message = format!("{place} is MySQL {version}: Destage works with MariaDB");
            return Err(OriginError::new(Fault::Denied, message));
        }
        self.packet_bytes_max = text(1).parse().unwrap_or(PACKET_BYTES_DEFAULT);
        self.script(what, &[&setup(self.timeout)]).map(drop)
    }

    /// The rows of a query.
    pub(super) fn rows(&mut self, what: &str, sql: &str) -> Result<Vec<Texts>, OriginError> {
        self.rows_within(what, sql, &mut Bound::default())
    }

    /// As [`Self::rows`], up to this bound.
    pub(super) fn rows_within(
        &mut self,
        what: &str,
        sql: &str,
        bound: &mut Bound,
    ) -> Result<Vec<Texts>, OriginError> {
        let found = self.run(what, async |conn| {
            let mut result = conn.query_iter(sql).await?;
            let mut found = Vec::new();
            while let Some(row) = result.next().await? {
                let row = texts(row);
                if !bound.takes(row.iter().flatten().map(Vec::len).sum()) {
                    return Ok(None);
                }
                found.push(row);
            }
            result.drop_result().await?;
            Ok(Some(found))
        })?;
        found.ok_or_else(|| {
            self.given_up = true;
            exceeded(what, &self.place)
        })
    }

    /// A query's rows as JSON.
    pub(super) fn json(&mut self, what: &str, sql: &str) -> Result<Vec<u8>, OriginError> {
        self.run(what, async |conn| {
            let mut result = match conn.query_iter(sql).await {
                // The query's own fault, where the origin would be thought to take no writes.
                Err(Error::Server(error)) if error.code == READ_ONLY_TRANSACTION => {
                    return Ok(Err(only_reads(what)));
                }
                result => result?,
            };
            let columns = result.columns().unwrap_or_default();
            let mut json = Json::new(columns.iter().map(|column| shown(column.name_ref())));
            let mut count = 0;
            while let Some(row) = result.next().await? {
                super::query::push_row(&mut json, &columns, row.unwrap());
                count += 1;
                if count > ROWS_MAX {
                    return Ok(Err(too_large()));
                }
                if let Err(error) = json.check_size() {
                    return Ok(Err(error));
                }
            }
            result.drop_result().await?;
            Ok(Ok(json.finish()))
        })?
    }

    /// Runs statements that return no rows, in one packet; how many rows each of them met.
    pub(super) fn script<S: AsRef<str>>(
        &mut self,
        what: &str,
        statements: &[S],
    ) -> Result<Vec<u64>, OriginError> {
        let mut met = Vec::new();
        self.script_until(what, statements, &mut met).map(|()| met)
    }

    /// As [`Self::script`]; where one of them fails, the rows that those before it met are told all the same, but nothing of
    /// it.
    pub(super) fn script_until<S: AsRef<str>>(
        &mut self,
        what: &str,
        statements: &[S],
        met: &mut Vec<u64>,
    ) -> Result<(), OriginError> {
        self.answers(what, statements, met, |result| result.affected_rows())
    }

    /// As [`Self::script`], but the key that the server gave to the row of each.
    pub(super) fn keys_given(
        &mut self,
        what: &str,
        statements: &[&str],
    ) -> Result<Vec<u64>, OriginError> {
        let mut given = Vec::new();
        let key = |result: &Answers<'_>| result.last_insert_id().unwrap_or(0);
        self.answers(what, statements, &mut given, key).map(|()| given)
    }

    /// Runs a single statement, whatever it returns, by the protocol that takes no more than one.
    pub(super) fn execute(
        &mut self,
        what: &str,
        sql: &str,
        parameters: &[Value],
    ) -> Result<(), OriginError> {
        let parameters = match parameters {
            [] => Params::Empty,
            some => Params::Positional(some.to_vec()),
        };
        self.run(what, async |conn| conn.exec_drop(sql, parameters).await)
    }

    /// Prepares a single statement and forgets it again; how many columns it returns.
    pub(super) fn prepare(&mut self, what: &str, sql: &str) -> Result<usize, OriginError> {
        self.run(what, async |conn| {
            let statement = conn.prep(sql).await?;
            let columns = statement.num_columns();
            conn.close(statement).await?;
            Ok(usize::from(columns))
        })
    }

    fn answers<S: AsRef<str>>(
        &mut self,
        what: &str,
        statements: &[S],
        answers: &mut Vec<u64>,
        answer: fn(&Answers<'_>) -> u64,
    ) -> Result<(), OriginError> {
        let text = crate::origins::quote::join(statements, ";");
        self.run(what, async |conn| {
            let mut result = conn.query_iter(text).await?;
            // What became of a statement is told when its result is left: one that failed looks as if it had met no row.
            for _ in 1..statements.len() {
                let given = answer(&result);
                result.next().await?;
                answers.push(given);
            }
            let given = answer(&result);
            result.drop_result().await?;
            answers.push(given);
            Ok(())
        })
    }

    /// Runs an operation to its end, or gives the connection up when the time is over.
    fn run<T>(
        &mut self,
        what: &str,
        operation: impl AsyncFnOnce(&mut Conn) -> Result<T, Error>,
    ) -> Result<T, OriginError> {
        if self.given_up {
            return Err(unavailable(format!("the connection to {} is closed", self.place)));
        }
        let (timeout, conn) = (self.timeout, &mut self.conn);
        let outcome =
            self.runtime.block_on(async { tokio::time::timeout(timeout, operation(conn)).await });
        let Ok(outcome) = outcome else {
            self.given_up = true;
            return Err(late(what, &self.place, timeout).late());
        };
        outcome.map_err(|error| {
            self.given_up |= error.is_fatal();
            classified(what, &self.place, &error)
        })
    }

    pub(super) fn place(&self) -> &str {
        &self.place
    }

    /// The time that one operation may take.
    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Most bytes that one packet of statements may have.
    pub(super) fn packet_bytes_max(&self) -> usize {
        self.packet_bytes_max.saturating_sub(PACKET_BYTES_SPARE)
    }
}

async fn connect(settings: &Settings) -> Result<Conn, Error> {
    match (Conn::new(settings.opts.clone()).await, &settings.plain) {
        (Err(Error::Driver(DriverError::NoClientSslFlagFromServer)), Some(plain)) => {
            Conn::new(plain.clone()).await
        }
        (connected, _) => connected,
    }
}

/// A name of a result's column; names are UTF-8 in this session.
fn shown(name: &[u8]) -> &str {
    std::str::from_utf8(name).unwrap_or("?")
}

fn texts(row: Row) -> Texts {
    let text = |value| match value {
        Value::Bytes(bytes) => Some(bytes),
        _ => None,
    };
    row.unwrap().into_iter().map(text).collect()
}

/// Values refused rather than cut; a 0 that stays one; literals that mean the same everywhere; times in UTC; statements and
/// transactions that end when we have given them up. READ COMMITTED, since a batch reads nothing that it did not lock.
fn setup(timeout: Duration) -> String {
    let seconds = timeout.as_secs_f64();
    let whole = timeout.as_secs().max(1);
    let lock = (whole / 2).max(1);
    format!(
        "SET SESSION sql_mode = {SQL_MODE}, time_zone = '+00:00', character_set_client = utf8mb4, character_set_results = utf8mb4, \
         collation_connection = utf8mb4_bin, tx_isolation = 'READ-COMMITTED', \
         autocommit = 1, completion_type = 0, foreign_key_checks = 1, unique_checks = 1, \
         check_constraint_checks = 1, sql_safe_updates = 0, sql_select_limit = 18446744073709551615, \
         group_concat_max_len = 1048576, in_predicate_conversion_threshold = 0, \
         innodb_lock_wait_timeout = {lock}, lock_wait_timeout = {lock}, \
         max_statement_time = {seconds}, idle_transaction_timeout = {whole}, \
         wait_timeout = 28800"
    )
}

fn late(what: &str, place: &str, timeout: Duration) -> OriginError {
    unavailable(format!("failed to {what} at {place}: no answer within {timeout:?}"))
}

fn unavailable(message: String) -> OriginError {
    OriginError::new(Fault::Unavailable, message)
}

/// Names in double quotes, no escapes in texts, nothing cut or rounded into a column without an error.
pub(super) const SQL_MODE: &str = "'ANSI_QUOTES,NO_BACKSLASH_ESCAPES,STRICT_ALL_TABLES,\
     ERROR_FOR_DIVISION_BY_ZERO,NO_AUTO_VALUE_ON_ZERO,NO_ENGINE_SUBSTITUTION'";
const PACKET_BYTES_DEFAULT: usize = 1 << 20;
/// For what surrounds the statements.
const PACKET_BYTES_SPARE: usize = 1 << 10;
