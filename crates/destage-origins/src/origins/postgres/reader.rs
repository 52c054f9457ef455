//! Reads: rows with the watermarks of the same snapshot, keys in order, new keys.

use super::connection::Connection;
use super::statements::{key_arrays, key_types, matches};
use super::tables::WATERMARKS;
use super::wire::{Array, Form, Param, Raw, casted, push_read, refs, selected};
use crate::cells;
use crate::contract::{
    EndedAsk, EndedKeys, Keys, NextKeys, OriginError, Range, Reader, Snapshot, Watermarks,
};
use crate::derived::{Answer, Query, Statement, Uses};
use crate::origins::bound::Bound;
use crate::origins::ledger::parse_watermarks;
use crate::schema::{Column, Schema, Table};
use crate::value::ColumnType;
use destage_core::{DomainId, Fault, Lsn};
use std::time::Duration;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

pub(super) struct PostgresReader {
    pub(super) connection: Connection,
    /// Whether the watermark table was there when last looked for. A writer creates it.
    has_watermarks: bool,
}

impl PostgresReader {
    pub(super) fn new(mut connection: Connection) -> Result<Self, OriginError> {
        connection.prefer_indexes(true)?;
        Ok(Self { connection, has_watermarks: false })
    }

    /// The expression for all watermarks.
    pub(super) fn watermarks(&mut self) -> Result<&'static str, OriginError> {
        if !self.has_watermarks {
            self.has_watermarks =
                self.connection.run("look for the watermarks", async |client| {
                    let sql = "SELECT to_regclass('destage_watermark') IS NOT NULL";
                    client.query_one(sql, &[]).await?.try_get(0)
                })?;
        }
        Ok(if self.has_watermarks { WATERMARKS } else { "NULL::text" })
    }

    /// The rows of a query, of which there are at most so many.
    pub(super) fn rows(
        &mut self,
        what: &str,
        sql: &str,
        types: &[Type],
        params: &[Param],
        rows_max: usize,
    ) -> Result<Vec<Row>, OriginError> {
        match self.rows_once(what, sql, types, params, rows_max) {
            Err(_) if self.connection.take_outgrown() => {
                self.rows_once(what, sql, types, params, rows_max)
            }
            other => other,
        }
    }

    fn rows_once(
        &mut self,
        what: &str,
        sql: &str,
        types: &[Type],
        params: &[Param],
        rows_max: usize,
    ) -> Result<Vec<Row>, OriginError> {
        let statement = self.connection.prepared(what, sql, types)?;
        let params = refs(params);
        self.connection.expect(Bound::rows(rows_max));
        self.connection.run(what, async |client| client.query(&statement, &params).await)
    }
}

impl Reader for PostgresReader {
    fn fetch(&mut self, table: &Table, keys: &[&[u8]]) -> Result<Snapshot, OriginError> {
        let watermarks = self.watermarks()?;
        let what = format!("read {}", table.name);
        if keys.is_empty() {
            let rows = self.rows(&what, &format!("SELECT {watermarks}"), &[], &[], 1)?;
            let text: Option<&str> = rows.first().and_then(|row| row.get(0));
            return Ok(Snapshot { watermarks: parse_watermarks(text), ..Snapshot::default() });
        }
        let sql = fetch_sql(table, watermarks);
        let arrays = key_arrays(table, keys.iter().copied())?;
        let found = self.rows(&what, &sql, &key_types(table), &arrays, keys.len())?;
        let mut snapshot = Snapshot { rows: vec![None; keys.len()], ..Snapshot::default() };
        for row in &found {
            let place: i64 = row.get(0);
            if place == 1 {
                snapshot.watermarks = parse_watermarks(row.get(1));
            }
            let slot = usize::try_from(place - 1).ok().and_then(|at| snapshot.rows.get_mut(at));
            if let Some(slot) = slot {
                *slot = encoded_row(row, 2, &table.columns, table)?;
            }
        }
        Ok(snapshot)
    }

    fn scan(
        &mut self,
        table: &Table,
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<(Keys, Watermarks), OriginError> {
        let watermarks = self.watermarks()?;
        let what = format!("scan {}", table.name);
        let mut types = vec![Type::INT8_ARRAY];
        let mut limit_param = Array::new(Form::Int8, 1);
        limit_param.push(cells::Cell::Value(limit.to_string().as_bytes()), &table.columns[0])?;
        let mut params = vec![limit_param.finish()];
        if let Some(after) = after {
            types.extend(key_types(table));
            params.extend(key_arrays(table, std::iter::once(after))?);
        }
        let sql = scan_sql(table, watermarks, after.is_some());
        // Where no index has the order, reading the whole table beats reading it through one.
        self.connection.prefer_indexes(false)?;
        let found = self.rows(&what, &sql, &types, &params, limit.max(1));
        let restored = self.connection.prefer_indexes(true);
        let found = found?;
        restored?;
        let text: Option<&str> = found.first().and_then(|row| row.get(0));
        let watermarks = parse_watermarks(text);
        let mut keys = Vec::with_capacity(found.len());
        for row in &found {
            keys.extend(encoded_row(row, 1, table.key(), table)?);
        }
        Ok((keys, watermarks))
    }

    fn range(&mut self, table: &Table, range: &Range<'_>) -> Result<Snapshot, OriginError> {
        self.read_range(table, range)
    }

    fn count(
        &mut self,
        table: &Table,
        equal: &[(usize, cells::Cell<'_>)],
    ) -> Result<(u64, Vec<(DomainId, Lsn)>), OriginError> {
        self.count_rows(table, equal)
    }

    fn clock_ms(&mut self) -> Result<i64, OriginError> {
        self.read_clock()
    }

    fn missing_index(&mut self, table: &Table) -> Result<Option<String>, OriginError> {
        self.find_index(table)
    }

    fn ended(&mut self, schema: &Schema, ask: &EndedAsk) -> Result<EndedKeys, OriginError> {
        self.read_ended(schema, ask)
    }

    fn uses(&mut self, query: &Query, schema: &Schema) -> Result<Uses, OriginError> {
        self.query_uses(query, schema)
    }

    fn check_dml(
        &mut self,
        statement: &Statement,
        schema: &Schema,
    ) -> Result<Option<Vec<String>>, OriginError> {
        self.dml_writes(statement, schema).map(Some)
    }

    fn query(
        &mut self,
        query: &Query,
        values: &[u8],
        limit: Duration,
    ) -> Result<Answer, OriginError> {
        self.run_query(query, values, limit)
    }

    fn next_keys(&mut self, table: &Table, count: u32) -> Result<NextKeys, OriginError> {
        let Some(column) = table.generated_key else {
            let message = format!("table {} has no key column with a sequence", table.name);
            return Err(OriginError::new(Fault::Denied, message));
        };
        // The greatest key is that of the time before: a row of an earlier number that comes later is none of these. Of a key
        // of several columns an index may not find it.
        let greatest = match table.key_len {
            1 => format!("SELECT max({}) FROM {}", table.columns[column].sql_name, table.sql_name),
            _ => NO_GREATEST.to_owned(),
        };
        let next = self.reserve(table, column, count, &greatest)?;
        Ok(NextKeys { are_new: next.are_new && table.key_len == 1, ..next })
    }

    fn next_numbers(
        &mut self,
        table: &Table,
        column: usize,
        count: u32,
    ) -> Result<Vec<i64>, OriginError> {
        Ok(self.reserve(table, column, count, NO_GREATEST)?.keys)
    }
}

/// For who does not ask which number is the greatest of the table.
const NO_GREATEST: &str = "SELECT NULL";

impl PostgresReader {
    /// Takes numbers of the column's sequence: whether each is beyond what `greatest` selects.
    fn reserve(
        &mut self,
        table: &Table,
        column: usize,
        count: u32,
        greatest: &str,
    ) -> Result<NextKeys, OriginError> {
        let what = format!("reserve keys of {}", table.name);
        let (name, count) = (&table.columns[column].name, i64::from(count));
        let sql = format!(
            "SELECT nextval(s.name), ({greatest})::int8 FROM \
             (SELECT pg_get_serial_sequence($1, $2)::regclass AS name) s, generate_series(1, $3)"
        );
        let types = [Type::TEXT, Type::TEXT, Type::INT8];
        let statement = self.connection.prepared(&what, &sql, &types)?;
        let rows = self.connection.run(&what, async |client| {
            client.query(&statement, &[&table.sql_name, name, &count]).await
        })?;
        let mut next = NextKeys { keys: Vec::with_capacity(rows.len()), are_new: true };
        for row in &rows {
            let (key, greatest): (i64, Option<i64>) = (row.get(0), row.get(1));
            next.keys.push(key);
            next.are_new &= greatest.is_none_or(|greatest| key > greatest);
        }
        Ok(next)
    }
}

/// `unnest($1::int8[], ...)` over the key columns, from parameter `first` on.
pub(super) fn unnest(table: &Table, first: usize) -> String {
    let array = |(at, column): (usize, &Column)| {
        format!("${}::{}", first + at, Form::of(&column.ty, false).array().1)
    };
    format!("unnest({})", table.key().iter().enumerate().map(array).collect::<Vec<_>>().join(", "))
}

/// `k0, k1, ...`, each behind `prefix`.
pub(super) fn key_names(table: &Table, prefix: &str) -> String {
    (0..table.key_len).map(|at| format!("{prefix}k{at}")).collect::<Vec<_>>().join(", ")
}

fn fetch_sql(table: &Table, watermarks: &str) -> String {
    let columns = table.columns.iter().map(selected).collect::<Vec<_>>().join(", ");
    let matches = matches(table);
    format!(
        "SELECT v.place, CASE WHEN v.place = 1 THEN {watermarks} END, {columns} \
         FROM {} WITH ORDINALITY AS v({}, place) LEFT JOIN {} AS t ON {matches}",
        unnest(table, 1),
        key_names(table, ""),
        table.sql_name,
    )
}

/// One row even where no key is left, so that the watermarks arrive in any case.
fn scan_sql(table: &Table, watermarks: &str, after: bool) -> String {
    let order = table
        .key()
        .iter()
        .map(|column| ordered(&format!("t.{}", column.sql_name), column))
        .collect::<Vec<_>>()
        .join(", ");
    let named = table.key().iter().enumerate();
    let select = named
        .clone()
        .map(|(at, column)| format!("{} AS k{at}", selected(column)))
        .collect::<Vec<_>>()
        .join(", ");
    let (from, condition) = if after {
        let bound = named
            .map(|(at, column)| ordered(&casted(&format!("v.k{at}"), column), column))
            .collect::<Vec<_>>()
            .join(", ");
        (
            format!("{} AS v({})", unnest(table, 2), key_names(table, "")),
            format!("WHERE ROW({order}) > ROW({bound})"),
        )
    } else {
        ("(SELECT 1) AS v".to_owned(), String::new())
    };
    format!(
        "SELECT {watermarks}, {} FROM {from} LEFT JOIN LATERAL (SELECT {select} FROM {} AS t \
         {condition} ORDER BY {order} LIMIT ($1::int8[])[1]) AS s ON true",
        key_names(table, "s."),
        table.sql_name,
    )
}

/// An expression that sorts as keys do: numbers by value, everything else by the bytes of its canonical form.
pub(super) fn ordered(expression: &str, column: &Column) -> String {
    match column.ty {
        ColumnType::Text { .. } | ColumnType::Enum(_) => {
            format!("{expression}::text COLLATE \"C\"")
        }
        ColumnType::PaddedText { chars } => {
            format!("rpad({expression}::text, {chars}) COLLATE \"C\"")
        }
        _ => expression.to_owned(),
    }
}

/// The cells from result column `first` on; `None` where the first one, a key column, is NULL: there is no row.
pub(super) fn encoded_row(
    row: &Row,
    first: usize,
    columns: &[Column],
    table: &Table,
) -> Result<Option<Box<[u8]>>, OriginError> {
    let mut out = Vec::new();
    for (at, column) in columns.iter().enumerate() {
        let raw: Option<Raw<'_>> = row.get(first + at);
        if at == 0 && raw.is_none() {
            return Ok(None);
        }
        push_read(&mut out, &column.ty, raw).ok_or_else(|| {
            OriginError::new(
                Fault::Denied,
                format!("column {} of {} has changed its type; restart", column.name, table.name),
            )
        })?;
    }
    Ok(Some(out.into_boxed_slice()))
}
