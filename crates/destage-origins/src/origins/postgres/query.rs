//! The queries of derived keys.

use super::reader::PostgresReader;
use crate::cells::{Cell, Reader};
use crate::contract::OriginError;
use crate::derived::{self, Answer, Json, Kind, Query, ROWS_MAX, Statement, Uses};
use crate::derived::{check_columns, too_large};
use crate::origins::ledger::{NAMES, parse_watermarks};
use crate::schema::Schema;
use destage_core::Fault;
use futures_util::TryStreamExt;
use std::error::Error;
use std::pin::pin;
use std::time::Duration;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::private::BytesMut;
use tokio_postgres::types::{Format, IsNull, ToSql, Type, to_sql_checked};
use tokio_postgres::{Client, Column, Row};

/// Plans for the values at hand, with joins of every kind: what suits the lookup of rows by their keys does not suit
/// queries.
const BEGIN: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; \
     SET LOCAL plan_cache_mode = auto; SET LOCAL enable_seqscan = on; \
     SET LOCAL enable_hashjoin = on; SET LOCAL enable_mergejoin = on";

/// The tables that this transaction has locked for reading, those behind views included: each statement locks what it
/// names when it is parsed and its views are expanded.
const LOCKED: &str = "\
SELECT DISTINCT t.name, c.relname::text, n.nspname::text \
FROM pg_catalog.pg_locks l \
JOIN pg_catalog.pg_class c ON c.oid = l.relation \
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
LEFT JOIN unnest($1::text[], $2::text[]) AS t (name, sql) ON to_regclass(t.sql) = c.oid \
WHERE l.pid = pg_backend_pid() AND l.locktype = 'relation' AND c.relkind IN ('r', 'p', 'f', 'm') \
  AND l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database()) \
  AND n.nspname NOT IN ('pg_catalog', 'information_schema')";

/// The tables that this transaction has locked for writing, by the names that keys have or their own.
const WRITTEN: &str = "\
SELECT DISTINCT coalesce(t.name, c.relname::text) \
FROM pg_catalog.pg_locks l \
JOIN pg_catalog.pg_class c ON c.oid = l.relation \
LEFT JOIN unnest($1::text[], $2::text[]) AS t (name, sql) ON to_regclass(t.sql) = c.oid \
WHERE l.pid = pg_backend_pid() AND l.locktype = 'relation' AND l.mode = 'RowExclusiveLock' \
  AND c.relkind IN ('r', 'p', 'f', 'v') \
  AND l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())";

/// Whether this transaction has come to lock rows, by FOR UPDATE for example.
const LOCKS_ROWS: &str = "\
SELECT EXISTS (SELECT FROM pg_catalog.pg_locks \
WHERE pid = pg_backend_pid() AND locktype = 'relation' AND mode = 'RowShareLock')";

impl PostgresReader {
    /// Has the server parse raw SQL, and looks at what it would write.
    pub(super) fn dml_writes(
        &mut self,
        statement: &Statement,
        schema: &Schema,
    ) -> Result<Vec<String>, OriginError> {
        let sql = dml_sql(statement);
        let tables = schema.reachable();
        let names: Vec<&str> = tables.iter().map(|table| table.name.as_str()).collect();
        let sql_names: Vec<&str> = tables.iter().map(|table| table.sql_name.as_str()).collect();
        let parsed = self.connection.run("prepare the SQL", async |client| {
            client.batch_execute("BEGIN READ ONLY").await?;
            client.prepare(&sql).await?;
            client.query(WRITTEN, &[&names, &sql_names]).await
        });
        let ended = self.rollback();
        let rows = parsed?;
        ended?;
        if rows.is_empty() {
            return Err(OriginError::new(Fault::Denied, "the SQL writes no row"));
        }
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    /// Has the server parse the statement, and looks at what that took hold of.
    pub(super) fn query_uses(
        &mut self,
        query: &Query,
        schema: &Schema,
    ) -> Result<Uses, OriginError> {
        let what = "prepare the SQL";
        let sql = sql(query);
        let tables = schema.reachable();
        let names: Vec<&str> = tables.iter().map(|table| table.name.as_str()).collect();
        let sql_names: Vec<&str> = tables.iter().map(|table| table.sql_name.as_str()).collect();
        let parsed = self.connection.run(what, async |client| {
            client.batch_execute("BEGIN READ ONLY").await?;
            let statement = client.prepare(&sql).await?;
            // As it is run, which takes fewer statements: none that writes in a WITH, or makes a table.
            client.prepare(&wrapped(&sql, statement.columns().len())).await?;
            let locked = client.query(LOCKED, &[&names, &sql_names]).await?;
            let locks_rows: bool = client.query_one(LOCKS_ROWS, &[]).await?.get(0);
            Ok((statement, locked, locks_rows))
        });
        let ended = self.rollback();
        let (statement, locked, locks_rows) = parsed?;
        ended?;
        if locks_rows {
            return Err(OriginError::new(Fault::Denied, derived::ONLY_READS));
        }
        check_columns(statement.columns().iter().map(Column::name))?;
        let mut tables: Vec<String> =
            locked.iter().filter_map(|row| table_name(row, query)).collect();
        tables.sort();
        Ok(Uses { tables, is_exact: true })
    }

    /// Runs the query in a transaction that cannot write.
    pub(super) fn run_query(
        &mut self,
        query: &Query,
        values: &[u8],
        limit: Duration,
    ) -> Result<Answer, OriginError> {
        let what = format!("run the query of {}", query.key);
        let watermarks = format!("SELECT {}", self.watermarks()?);
        // Rounded up: what is given up before its time would be the origin's failure.
        let milliseconds = limit.min(self.connection.timeout()).as_millis() + 1;
        let begin = format!("{BEGIN}; SET LOCAL statement_timeout = {milliseconds}");
        self.connection.run(&what, async |client| client.batch_execute(&begin).await)?;
        let answer = self.run_in_transaction(&what, &watermarks, query, values);
        let ended = self.rollback();
        let answer = answer?;
        ended.map(|()| answer)
    }

    /// Nothing was written.
    fn rollback(&mut self) -> Result<(), OriginError> {
        self.connection.run("end a query", async |client| client.batch_execute("ROLLBACK").await)
    }

    fn run_in_transaction(
        &mut self,
        what: &str,
        watermarks: &str,
        query: &Query,
        values: &[u8],
    ) -> Result<Answer, OriginError> {
        let inner = sql(query);
        let columns = self.connection.prepared(what, &inner, &[])?;
        let kinds: Vec<Kind> =
            columns.columns().iter().map(|column| kind(column.type_())).collect();
        let wrapped = wrapped(&inner, kinds.len());
        let statement = self.connection.prepared(what, &wrapped, columns.params())?;
        let values = Reader::new(values).map(|cell| Cell::value(cell).unwrap_or_default());
        let params: Vec<Text> = values.map(|value| Text(value.to_vec())).collect();
        let params: Vec<&(dyn ToSql + Sync)> =
            params.iter().map(|param| param as &(dyn ToSql + Sync)).collect();
        let (watermarks, json) = self.connection.run(what, async |client| {
            let watermarks = client.query_one(watermarks, &[]).await?;
            let json = Json::new(columns.columns().iter().map(Column::name));
            match written(client, &statement, &params, json, &kinds).await {
                // The query's own fault, where the origin would be thought to take no writes.
                Err(error) if error.code() == Some(&SqlState::READ_ONLY_SQL_TRANSACTION) => {
                    Ok(Err(derived::only_reads(what)))
                }
                json => Ok(json?.map(|json| (watermarks, json))),
            }
        })??;
        Ok(Answer { json, watermarks: parse_watermarks(watermarks.get(0)) })
    }
}

/// The rows of a query as JSON, as far as they are few enough.
async fn written(
    client: &Client,
    statement: &tokio_postgres::Statement,
    params: &[&(dyn ToSql + Sync)],
    mut json: Json,
    kinds: &[Kind],
) -> Result<Result<Vec<u8>, OriginError>, tokio_postgres::Error> {
    let mut rows = pin!(client.query_raw(statement, params.iter().copied()).await?);
    let mut count = 0;
    while let Some(row) = rows.try_next().await? {
        for (at, kind) in kinds.iter().enumerate() {
            json.push(*kind, row.get::<_, Option<&str>>(at).map(str::as_bytes));
        }
        count += 1;
        if count > ROWS_MAX {
            return Ok(Err(too_large()));
        }
        if let Err(error) = json.check_size() {
            return Ok(Err(error));
        }
    }
    Ok(Ok(json.finish()))
}

fn sql(query: &Query) -> String {
    dml_sql(&query.statement)
}

/// A statement with its parameters as PostgreSQL writes them.
pub(super) fn dml_sql(statement: &Statement) -> String {
    statement.render(|out, number| out.push_str(&format!("${}", number + 1)))
}

/// The query with each column as text, and with a limit.
fn wrapped(inner: &str, columns: usize) -> String {
    let list = |suffix: &str| {
        let names: Vec<String> = (0..columns).map(|at| format!("c{at}{suffix}")).collect();
        names.join(", ")
    };
    // A comment at the end of the query ends with its line.
    format!(
        "SELECT {} FROM ({inner}\n) AS destage_q ({}) LIMIT {}",
        list("::text"),
        list(""),
        ROWS_MAX + 1
    )
}

/// The name by which keys or the query's declaration know a locked table; `None` for Destage's own.
fn table_name(row: &Row, query: &Query) -> Option<String> {
    if let Some(name) = row.get::<_, Option<String>>(0) {
        return Some(name);
    }
    let (name, schema): (String, String) = (row.get(1), row.get(2));
    if NAMES.contains(&name.as_str()) {
        return None;
    }
    let qualified = format!("{schema}.{name}");
    Some(if query.depends_on.contains(&qualified) { qualified } else { name })
}

fn kind(ty: &Type) -> Kind {
    match *ty {
        Type::INT2 | Type::INT4 | Type::INT8 | Type::OID => Kind::Number,
        Type::FLOAT4 | Type::FLOAT8 | Type::NUMERIC => Kind::Number,
        Type::BOOL => Kind::Bool,
        Type::JSON | Type::JSONB => Kind::Json,
        _ => Kind::Text,
    }
}

/// A parameter as the text that the server reads by the type it has found for it.
#[derive(Debug)]
struct Text(Vec<u8>);

impl ToSql for Text {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        out.extend_from_slice(&self.0);
        Ok(IsNull::No)
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    fn encode_format(&self, _: &Type) -> Format {
        Format::Text
    }

    to_sql_checked!();
}
