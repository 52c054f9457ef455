//! The database past Destage: for the tables, the first rows, the checks, and what a cached entry is computed from.

use crate::Result;
use rusqlite::types::ValueRef;
use tokio::runtime::{Builder, Runtime};
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

/// A connection.
pub(crate) enum Sql {
    Sqlite(rusqlite::Connection),
    Postgres(Runtime, Client),
}

impl Sql {
    /// Connects to `sqlite:FILE`, which is made if it is missing, or to a PostgreSQL URL.
    ///
    /// # Errors
    /// It cannot be reached.
    pub(crate) fn open(url: &str) -> Result<Self> {
        if let Some(path) = url.strip_prefix("sqlite:") {
            let connection = rusqlite::Connection::open(path)?;
            connection.busy_timeout(std::time::Duration::from_secs(60))?;
            return Ok(Self::Sqlite(connection));
        }
        let (runtime, client) = connect(url)?;
        Ok(Self::Postgres(runtime, client))
    }

    /// Runs statements.
    ///
    /// # Errors
    /// One of them was refused.
    pub(crate) fn run(&mut self, sql: &str) -> Result<()> {
        match self {
            Self::Sqlite(connection) => connection.execute_batch(sql)?,
            Self::Postgres(runtime, client) => runtime.block_on(client.batch_execute(sql))?,
        }
        Ok(())
    }

    /// A query's rows, every value as text.
    ///
    /// # Errors
    /// It was refused.
    pub(crate) fn rows(&mut self, sql: &str) -> Result<Vec<Vec<String>>> {
        match self {
            Self::Sqlite(connection) => {
                let mut statement = connection.prepare(sql)?;
                let count = statement.column_count();
                let text = |value: ValueRef<'_>| match value {
                    ValueRef::Integer(number) => number.to_string(),
                    ValueRef::Text(text) => String::from_utf8_lossy(text).into_owned(),
                    other => format!("{other:?}"),
                };
                let rows = statement.query_map([], |row| {
                    (0..count).map(|index| Ok(text(row.get_ref(index)?))).collect()
                })?;
                Ok(rows.collect::<std::result::Result<_, _>>()?)
            }
            Self::Postgres(runtime, client) => {
                let messages = runtime.block_on(client.simple_query(sql))?;
                let rows = messages.into_iter().filter_map(|message| match message {
                    SimpleQueryMessage::Row(row) => Some(row),
                    _ => None,
                });
                let text = |value: Option<&str>| value.unwrap_or("NULL").to_owned();
                Ok(rows.map(|row| (0..row.len()).map(|i| text(row.get(i))).collect()).collect())
            }
        }
    }

    /// As [`Sql::rows`], where all values are whole numbers.
    ///
    /// # Errors
    /// It was refused, or a value is no whole number.
    pub(crate) fn numbers(&mut self, sql: &str) -> Result<Vec<Vec<i64>>> {
        let number = |text: &String| {
            text.parse::<i64>().map_err(|_| format!("'{text}' is no number, in: {sql}").into())
        };
        self.rows(sql)?.iter().map(|row| row.iter().map(number).collect()).collect()
    }
}

/// A session with PostgreSQL, driven by the runtime beside it.
///
/// # Errors
/// It cannot be reached.
pub(crate) fn connect(url: &str) -> Result<(Runtime, Client)> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let client = runtime.block_on(async {
        let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
        tokio::spawn(connection);
        Ok::<_, tokio_postgres::Error>(client)
    })?;
    Ok((runtime, client))
}
