//! Rows that have ended: their keys, and the server's clock.

use super::reader::{PostgresReader, encoded_row, key_names, ordered, unnest};
use super::statements::{has_ended, key_arrays, key_types};
use super::wire::{Array, Form, casted, selected};
use crate::cells::Cell;
use crate::contract::{EndedAsk, EndedKeys, OriginError};
use crate::origins::quote::join;
use crate::schema::{Schema, Table};
use crate::ttl::{Ttl, cutoff_of, index_statement, is_referenced};
use destage_core::Fault;
use tokio_postgres::types::Type;

const CLOCK: &str = "SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::int8";

impl PostgresReader {
    pub(super) fn read_clock(&mut self) -> Result<i64, OriginError> {
        let rows = self.rows("read the clock", CLOCK, &[], &[], 1)?;
        let clock = rows.first().and_then(|row| row.try_get(0).ok());
        clock.ok_or_else(|| OriginError::new(Fault::Unavailable, "its clock told no time"))
    }

    pub(super) fn find_index(&mut self, table: &Table) -> Result<Option<String>, OriginError> {
        let Some(ttl) = &table.ttl else { return Ok(None) };
        let text = |text: &str| format!("E'{}'", text.replace('\\', "\\\\").replace('\'', "''"));
        let sql = format!(
            "SELECT 1 FROM pg_catalog.pg_index i JOIN pg_catalog.pg_attribute a \
             ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0] \
             WHERE i.indrelid = ({}::regclass)::oid AND a.attname = {} AND i.indisvalid LIMIT 1",
            text(&table.sql_name),
            text(&table.columns[ttl.column].name)
        );
        let found = self.rows("look for an index", &sql, &[], &[], 1)?;
        let create = "CREATE INDEX CONCURRENTLY";
        Ok(found.is_empty().then(|| index_statement(create, table, ttl)))
    }

    pub(super) fn read_ended(
        &mut self,
        schema: &Schema,
        ask: &EndedAsk,
    ) -> Result<EndedKeys, OriginError> {
        let (table, limit) = (schema.table(ask.table), ask.limit);
        let clock_ms = self.read_clock()?;
        let (ttl, cutoff_ms, cutoff) = cutoff_of(table, ask, clock_ms)?;
        let column = &table.columns[ttl.column];
        let form = Form::of(&column.ty, false);
        let mut types = vec![Type::INT8_ARRAY, form.array().0];
        let mut limited = Array::new(Form::Int8, 1);
        limited.push(Cell::Value(limit.to_string().as_bytes()), &table.columns[0])?;
        let mut until = Array::new(form, 1);
        until.push(Cell::Value(&cutoff), column)?;
        let mut params = vec![limited.finish(), until.finish()];
        if let Some(after) = ask.after.as_deref() {
            types.extend(key_types(table));
            params.extend(key_arrays(table, std::iter::once(after))?);
        }
        let sql = ended_sql(schema, table, ttl, ask.after.is_some());
        let what = format!("look for rows of {} that have ended", table.name);
        // An index over the column or over the key, or none: the server knows best.
        self.connection.prefer_indexes(false)?;
        let found = self.rows(&what, &sql, &types, &params, limit.max(1));
        let restored = self.connection.prefer_indexes(true);
        let found = found?;
        restored?;
        let mut keys = Vec::with_capacity(found.len());
        for row in &found {
            let referenced = row.get(0);
            keys.extend(encoded_row(row, 1, table.key(), table)?.map(|key| (key, referenced)));
        }
        Ok(EndedKeys { keys, clock_ms, cutoff_ms })
    }
}

fn ended_sql(schema: &Schema, table: &Table, ttl: &Ttl, after: bool) -> String {
    let key = table.key();
    let order = key.iter().map(|column| ordered(&format!("t.{}", column.sql_name), column));
    let order = join(order, ", ");
    let column = &table.columns[ttl.column];
    let time = format!("($2::{})[1]", Form::of(&column.ty, false).array().1);
    let mut from = format!("{} AS t", table.sql_name);
    let mut condition = has_ended(table, column, &time);
    if after {
        let bound = key.iter().enumerate();
        let bound = bound.map(|(at, column)| ordered(&casted(&format!("v.k{at}"), column), column));
        from.push_str(&format!(", {} AS v({})", unnest(table, 3), key_names(table, "")));
        condition.push_str(&format!(" AND ROW({order}) > ROW({})", join(bound, ", ")));
    }
    format!(
        "SELECT ({}), {} FROM {from} WHERE {condition} ORDER BY {order} LIMIT ($1::int8[])[1]",
        is_referenced(schema, table),
        join(key.iter().map(selected), ", "),
    )
}
