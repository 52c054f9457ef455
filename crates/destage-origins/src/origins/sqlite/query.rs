//! The queries of derived keys.

use super::error::{classify, classify_row, refused};
use super::tables;
use crate::cells::{Cell, Reader};
use crate::contract::OriginError;
use crate::derived::{Answer, Json, Kind, ParameterType, Query, ROWS_MAX, Uses};
use crate::derived::{check_columns, too_large};
use crate::schema::Schema;
use crate::value::format_sqlite_real;
use destage_core::Fault;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, Statement};
use std::convert::Infallible;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

fn sql(query: &Query) -> String {
    query.statement.render(|out, number| out.push_str(&format!("?{}", number + 1)))
}

/// What the compiled statement opens: views are gone by then, indexes stand for their tables.
pub(super) fn uses(
    connection: &Connection,
    query: &Query,
    schema: &Schema,
) -> Result<Uses, OriginError> {
    let doing = "cannot prepare the SQL";
    let sql = sql(query);
    let statement = connection.prepare(&sql).map_err(|error| classify(&error, doing))?;
    if !statement.readonly() {
        return Err(refused("the SQL writes, and queries of derived keys only read"));
    }
    if statement.parameter_count() > query.parameters.len() {
        return Err(refused("the SQL has other parameters than those of the key, written $name"));
    }
    check_columns(statement.column_names().into_iter())?;
    let tables = touched(connection, &sql, &["OpenRead", "ReopenIdx"]);
    let mut tables = tables.map_err(|error| classify(&error, doing))?;
    as_keys_have_them(&mut tables, schema);
    Ok(Uses { tables, is_exact: true })
}

/// Raw SQL with its parameters as SQLite writes them.
pub(super) fn dml_sql(statement: &crate::derived::Statement) -> String {
    statement.render(|out, number| out.push_str(&format!("?{}", number + 1)))
}

/// The tables that raw SQL writes, those that cascades and triggers write included.
pub(super) fn written(
    connection: &Connection,
    statement: &crate::derived::Statement,
    schema: &Schema,
) -> Result<Vec<String>, OriginError> {
    let doing = "cannot prepare the SQL";
    let sql = dml_sql(statement);
    let prepared = connection.prepare(&sql).map_err(|error| classify(&error, doing))?;
    if prepared.readonly() {
        return Err(refused("the SQL writes no row"));
    }
    let tables = touched(connection, &sql, &["OpenWrite", "Clear"]);
    let mut tables = tables.map_err(|error| classify(&error, doing))?;
    as_keys_have_them(&mut tables, schema);
    Ok(tables)
}

/// Names each table once, as keys do.
fn as_keys_have_them(tables: &mut Vec<String>, schema: &Schema) {
    tables.retain(|name| !tables::TABLES.contains(&name.as_str()));
    tables.sort();
    tables.dedup();
    for name in tables {
        let known = schema.tables.iter().find(|table| table.name.eq_ignore_ascii_case(name));
        known.into_iter().for_each(|table| name.clone_from(&table.name));
    }
}

/// The tables that a compiled statement opens by these instructions.
fn touched(
    connection: &Connection,
    sql: &str,
    instructions: &[&str],
) -> rusqlite::Result<Vec<String>> {
    let mut explain = connection.prepare(&format!("EXPLAIN {sql}"))?;
    let mut rows = explain.raw_query();
    let mut roots: Vec<i64> = Vec::new();
    while let Some(row) = rows.next()? {
        let opcode: String = row.get(1)?;
        // DELETE without WHERE opens nothing: it empties the table.
        let (root, database) = if opcode == "Clear" { (2, 3) } else { (3, 4) };
        // Databases other than the main one are not the origin's.
        if instructions.contains(&opcode.as_str()) && row.get::<_, i64>(database)? == 0 {
            roots.push(row.get(root)?);
        }
    }
    let mut name = connection.prepare("SELECT tbl_name FROM sqlite_master WHERE rootpage = ?1")?;
    let mut tables = Vec::new();
    for root in roots {
        let mut found = name.query([root])?;
        if let Some(row) = found.next()? {
            tables.push(row.get(0)?);
        }
    }
    Ok(tables)
}

/// Runs the query in a read transaction; what takes longer than `limit` is interrupted.
pub(super) fn run(
    connection: &Connection,
    query: &Query,
    values: &[u8],
    limit: Duration,
) -> Result<Answer, OriginError> {
    let interrupt = connection.get_interrupt_handle();
    let (ended, ends) = mpsc::channel::<Infallible>();
    thread::scope(|scope| {
        let watching =
            thread::Builder::new().name("query limit".into()).spawn_scoped(scope, move || {
                let is_late = ends.recv_timeout(limit) == Err(RecvTimeoutError::Timeout);
                if is_late {
                    interrupt.interrupt();
                }
                is_late
            });
        let watching = watching.map_err(|error| {
            let message = format!("cannot limit the time of the query of {}: {error}", query.key);
            OriginError::new(Fault::Unavailable, message)
        })?;
        let answer = answer(connection, query, values);
        drop(ended);
        let is_late = watching.join().unwrap_or(false);
        answer.map_err(|error| match error.fault {
            Fault::Unavailable if is_late => error.late(),
            _ => error,
        })
    })
}

fn answer(connection: &Connection, query: &Query, values: &[u8]) -> Result<Answer, OriginError> {
    let doing = || format!("cannot run the query of {}", query.key);
    tables::snapshot(connection, |connection| {
        let watermarks = tables::watermarks(connection)?;
        let sql = sql(query);
        let run = (connection, sql.as_str());
        let mut statement =
            connection.prepare_cached(&sql).map_err(|error| classify(&error, &doing()))?;
        if !statement.readonly() {
            return Err(refused(format!("the query of {} writes", query.key)));
        }
        bind(&mut statement, query, values).map_err(|error| classify(&error, &doing()))?;
        let mut json = Json::new(statement.column_names().into_iter());
        let columns = statement.column_count();
        let mut rows = statement.raw_query();
        let mut count = 0;
        while let Some(row) = rows.next().map_err(|error| classify_row(&error, run, &doing()))? {
            count += 1;
            for column in 0..columns {
                let value =
                    row.get_ref(column).map_err(|error| classify_row(&error, run, &doing()))?;
                push(&mut json, value);
            }
            json.check_size()?;
            if count > ROWS_MAX {
                return Err(too_large());
            }
        }
        Ok(Answer { json: json.finish(), watermarks })
    })
}

fn bind(statement: &mut Statement<'_>, query: &Query, values: &[u8]) -> rusqlite::Result<()> {
    let values = Reader::new(values).map(|cell| Cell::value(cell).unwrap_or_default());
    for (at, (parameter, value)) in query.parameters.iter().zip(values).enumerate() {
        let text = String::from_utf8_lossy(value);
        match parameter.ty {
            ParameterType::Integer if let Ok(number) = text.parse::<i64>() => {
                statement.raw_bind_parameter(at + 1, number)?;
            }
            ParameterType::Number if let Ok(number) = text.parse::<i64>() => {
                statement.raw_bind_parameter(at + 1, number)?;
            }
            ParameterType::Number if let Ok(number) = text.parse::<f64>() => {
                statement.raw_bind_parameter(at + 1, number)?;
            }
            _ => statement.raw_bind_parameter(at + 1, text.as_ref())?,
        }
    }
    Ok(())
}

fn push(json: &mut Json, value: ValueRef<'_>) {
    match value {
        ValueRef::Null => json.push(Kind::Text, None),
        ValueRef::Integer(value) => json.push(Kind::Number, Some(value.to_string().as_bytes())),
        ValueRef::Real(value) => {
            json.push(Kind::Number, Some(format_sqlite_real(value).as_bytes()))
        }
        ValueRef::Text(value) => json.push(Kind::Text, Some(value)),
        ValueRef::Blob(value) => json.push_bytes(value),
    }
}
