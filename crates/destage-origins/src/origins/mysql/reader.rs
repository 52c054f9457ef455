//! Reads: rows with the watermarks of the same snapshot, keys in order, new keys.

use super::connection::{Connection, SQL_MODE, Texts};
use super::literal::{push, push_binary, push_read, selected};
use super::statements::push_matches;
use super::tables::{self, WATERMARKS};
use crate::cells;
use crate::contract::{
    EndedAsk, EndedKeys, Keys, NextKeys, OriginError, Range, Reader, Snapshot, Watermarks,
};
use crate::derived::{Answer, Query, Statement, Uses};
use crate::origins::bound::Bound;
use crate::origins::ledger::parse_watermarks;
use crate::origins::quote::join;
use crate::schema::{Column, Schema, Table};
use crate::value::{ColumnType, MysqlType};
use destage_core::{DomainId, Fault, Lsn};
use hashbrown::HashMap;
use std::time::Duration;

pub(super) struct MysqlReader {
    pub(super) connection: Connection,
    /// Whether the watermark table was there when last looked for. A writer creates it.
    has_watermarks: bool,
}

impl MysqlReader {
    pub(super) fn new(connection: Connection) -> Self {
        Self { connection, has_watermarks: false }
    }

    /// The table of one row that holds all watermarks.
    pub(super) fn watermarks(&mut self) -> Result<String, OriginError> {
        if !self.has_watermarks {
            self.has_watermarks = tables::are_there(&mut self.connection)?;
        }
        let watermarks = if self.has_watermarks { WATERMARKS } else { "NULL" };
        Ok(format!("(SELECT {watermarks} AS destage_w) AS destage_w"))
    }

    /// Values of a key that the database hands out to inserts only: it does so to inserts that are undone, since what it has
    /// handed out it does not take back. Nothing of them is checked; of tables with triggers there are none.
    fn reserve(
        &mut self,
        what: &str,
        table: &Table,
        key: &Column,
        count: u32,
    ) -> Result<Vec<i64>, OriginError> {
        let insert = format!("INSERT INTO {} ({}) VALUES (NULL)", table.sql_name, key.sql_name);
        let delete = format!("DELETE FROM {} WHERE {} = ", table.sql_name, key.sql_name);
        let mut keys = Vec::with_capacity(count as usize);
        self.connection.script(what, &RELAX)?;
        let reserved = self.reserve_all(what, [&insert, &delete], count, &mut keys);
        let mode = format!(
            "SET SESSION sql_mode = {SQL_MODE}, foreign_key_checks = 1, check_constraint_checks = 1"
        );
        let restored = self.connection.script(what, &["ROLLBACK", &mode]);
        reserved.and_then(|()| restored.map(drop)).map(|()| keys).map_err(|error| {
            if error.fault != Fault::Rejected {
                return error;
            }
            let why = format!(
                "{}; AUTO_INCREMENT values are taken by inserts that are undone, whose other columns are 0 or empty: no row of \
                 the table may have these in a unique column",
                error.message
            );
            OriginError { message: why, ..error }
        })
    }

    fn reserve_all(
        &mut self,
        what: &str,
        [insert, delete]: [&str; 2],
        count: u32,
        keys: &mut Vec<i64>,
    ) -> Result<(), OriginError> {
        // One at a time, so that a unique column's equal values do not meet.
        let one = [insert, "ROLLBACK", "START TRANSACTION"];
        while keys.len() + 1 < count as usize {
            let script = one.repeat((count as usize - 1 - keys.len()).min(RESERVED_AT_ONCE));
            let given = self.connection.keys_given(what, &script)?;
            keys.extend(given.iter().step_by(one.len()).map(|&key| key.cast_signed()));
        }
        // The last one is inserted, deleted and committed: what is undone need not survive a crash of the server, but
        // whatever came before a commit does.
        let last = self.connection.keys_given(what, &[insert])?[0];
        let met = self.connection.script(what, &[format!("{delete}{last}")])?;
        if met != [1] {
            let message = format!("failed to {what}: the row inserted for it is not there");
            return Err(OriginError::new(Fault::Failed, message));
        }
        self.connection.script(what, &["COMMIT"])?;
        keys.push(last.cast_signed());
        Ok(())
    }
}

impl Reader for MysqlReader {
    fn fetch(&mut self, table: &Table, keys: &[&[u8]]) -> Result<Snapshot, OriginError> {
        let what = format!("read {}", table.name);
        let watermarks = self.watermarks()?;
        if keys.is_empty() {
            let rows = self.connection.rows(&what, &format!("SELECT * FROM {watermarks}"))?;
            return Ok(Snapshot { watermarks: parsed(&rows), ..Snapshot::default() });
        }
        let columns = join(table.columns.iter().map(|c| qualified(selected(c))), ", ");
        let mut sql = format!(
            "SELECT destage_w.destage_w, {columns} FROM {watermarks} LEFT JOIN {} AS t ON ",
            table.sql_name
        );
        push_matches(&mut sql, table, keys)?;
        self.check_size(&what, &sql)?;
        let found = self.connection.rows_within(&what, &sql, &mut Bound::rows(keys.len()))?;
        let watermarks = parsed(&found);
        let mut rows = HashMap::with_capacity(found.len());
        for row in &found {
            if let Some(encoded) = encoded_row(row, &table.columns) {
                let key_len =
                    cells::Reader::new(&encoded).cells(table.key_len).map_or(0, <[u8]>::len);
                rows.insert(encoded[..key_len].to_vec(), encoded);
            }
        }
        let rows = keys.iter().map(|key| rows.get(*key).cloned()).collect();
        Ok(Snapshot { rows, watermarks, ..Snapshot::default() })
    }

    fn scan(
        &mut self,
        table: &Table,
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<(Keys, Watermarks), OriginError> {
        let what = format!("scan {}", table.name);
        let watermarks = self.watermarks()?;
        let sql = scan_sql(table, &watermarks, after, limit)?;
        self.check_size(&what, &sql)?;
        let found = self.connection.rows_within(&what, &sql, &mut Bound::rows(limit.max(1)))?;
        let watermarks = parsed(&found);
        let keys = found.iter().filter_map(|row| encoded_row(row, table.key())).collect();
        Ok((keys, watermarks))
    }

    fn range(&mut self, table: &Table, range: &Range<'_>) -> Result<Snapshot, OriginError> {
        let what = format!("read a range of {}", table.name);
        let sql = range_sql(table, &self.watermarks()?, range)?;
        self.check_size(&what, &sql)?;
        let found =
            self.connection.rows_within(&what, &sql, &mut Bound::rows(range.limit.max(1)))?;
        let rows = found.iter().filter_map(|row| encoded_row(row, &table.columns)).map(Some);
        let (rows, watermarks) = (rows.collect(), parsed(&found));
        Ok(Snapshot { rows, watermarks, ..Snapshot::default() })
    }

    fn count(
        &mut self,
        table: &Table,
        equal: &[(usize, cells::Cell<'_>)],
    ) -> Result<(u64, Vec<(DomainId, Lsn)>), OriginError> {
        let what = format!("count rows of {}", table.name);
        let watermarks = self.watermarks()?;
        let conditions = conditions(table, equal)?;
        let sql = format!(
            "SELECT destage_w.destage_w, (SELECT count(*) FROM {} AS t WHERE {}) FROM {watermarks}",
            table.sql_name,
            join(&conditions, " AND ")
        );
        self.check_size(&what, &sql)?;
        let found = self.connection.rows(&what, &sql)?;
        let count = found.first().and_then(|row| row.get(1)?.as_deref());
        let count = count.and_then(|text| std::str::from_utf8(text).ok()?.parse().ok());
        Ok((count.unwrap_or(0), parsed(&found)))
    }

    fn clock_ms(&mut self) -> Result<i64, OriginError> {
        self.read_clock()
    }

    fn may_delete(&mut self, table: &Table) -> Result<(), OriginError> {
        self.try_deletion(table)
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
        _schema: &Schema,
    ) -> Result<Option<Vec<String>>, OriginError> {
        self.prepare_dml(statement).map(|()| None)
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
        let what = format!("reserve keys of {}", table.name);
        let Some(key) = table.generated_key.map(|column| &table.columns[column]) else {
            let message = format!("table {} has no AUTO_INCREMENT key", table.name);
            return Err(OriginError::new(Fault::Denied, message));
        };
        if let Some(reason) = &table.class.opaque {
            let message = format!(
                "failed to {what}: MariaDB hands out AUTO_INCREMENT values to inserts only, and {reason}"
            );
            return Err(OriginError::new(Fault::Denied, message));
        }
        if count == 0 {
            return Ok(NextKeys::default());
        }
        // Each was inserted, behind the greatest one.
        self.reserve(&what, table, key, count).map(|keys| NextKeys { keys, are_new: true })
    }
}

impl MysqlReader {
    pub(super) fn check_size(&self, what: &str, sql: &str) -> Result<(), OriginError> {
        let bytes_max = self.connection.packet_bytes_max();
        if sql.len() <= bytes_max {
            return Ok(());
        }
        let message = format!(
            "failed to {what} at {}: its keys take more than the server's max_allowed_packet \
             ({bytes_max} bytes)",
            self.connection.place()
        );
        Err(OriginError::new(Fault::Denied, message))
    }
}

/// One row even where no key is left, so that the watermarks arrive in any case.
fn scan_sql(
    table: &Table,
    watermarks: &str,
    after: Option<&[u8]>,
    limit: usize,
) -> Result<String, OriginError> {
    let key = table.key();
    let orders: Vec<String> =
        key.iter().map(|c| ordered(&qualified(c.sql_name.clone()), c)).collect();
    let named = |prefix: char| {
        let name = move |at: usize| format!("{prefix}{at}");
        (0..key.len()).map(name).collect::<Vec<_>>()
    };
    let values =
        key.iter().zip(named('k')).map(|(c, k)| format!("{} AS {k}", qualified(selected(c))));
    let sorted = orders.iter().zip(named('o')).map(|(order, o)| format!("{order} AS {o}"));
    let mut sql = format!(
        "SELECT destage_w.destage_w, {} FROM {watermarks} LEFT JOIN (SELECT {} FROM {} AS t",
        join(named('k'), ", "),
        join(values.chain(sorted), ", "),
        table.sql_name
    );
    if let Some(after) = after {
        sql.push_str(" WHERE ");
        push_after(&mut sql, &orders, key, after)?;
    }
    sql.push_str(&format!(
        " ORDER BY {} LIMIT {limit}) AS s ON true ORDER BY {}",
        join(&orders, ", "),
        join(named('o'), ", ")
    ));
    Ok(sql)
}

/// One row even where the range is empty, so that the watermarks arrive in any case.
fn range_sql(table: &Table, watermarks: &str, range: &Range<'_>) -> Result<String, OriginError> {
    let order = |index: usize| {
        let column = &table.columns[index];
        let name = qualified(column.sql_name.clone());
        match (range.is_number(index), &column.ty) {
            (true, _) => name,
            (false, ColumnType::Int { .. }) => {
                format!("CAST(CAST({name} AS CHAR CHARACTER SET utf8mb4) AS BINARY)")
            }
            (false, _) => ordered(&name, column),
        }
    };
    let first = range.order[0];
    let mut conditions = conditions(table, &range.equal)?;
    for (operator, edge) in range.edges() {
        let mut condition = format!("{} {operator} ", order(first));
        let cell = cells::Cell::Value(&edge.value);
        if range.is_number(first) {
            push(&mut condition, cell, &table.columns[first])?
        } else {
            push_binary(&mut condition, cell)
        }
        conditions.push(condition);
    }
    let columns = table.columns.iter().enumerate();
    let values = columns.map(|(at, column)| format!("{} AS k{at}", qualified(selected(column))));
    let direction = range.direction();
    let orders = range.order.iter().map(|&index| order(index) + direction);
    Ok(format!(
        "SELECT destage_w.destage_w, s.* FROM {watermarks} LEFT JOIN (SELECT {} FROM {} AS t WHERE {} ORDER BY {} \
         LIMIT {}) AS s ON true",
        join(values, ", "),
        table.sql_name,
        join(&conditions, " AND "),
        join(orders, ", "),
        range.limit
    ))
}

/// `column = value` for each; true where there is none.
fn conditions(
    table: &Table,
    equal: &[(usize, cells::Cell<'_>)],
) -> Result<Vec<String>, OriginError> {
    let mut conditions = vec!["true".to_owned()];
    for &(index, cell) in equal {
        let column = &table.columns[index];
        let mut condition = format!("{} = ", qualified(column.sql_name.clone()));
        push(&mut condition, cell, column)?;
        conditions.push(condition);
    }
    Ok(conditions)
}

/// Greater in the first column, or equal there and greater in the next one; the first alone may use an index.
pub(super) fn push_after(
    out: &mut String,
    orders: &[String],
    key: &[Column],
    after: &[u8],
) -> Result<(), OriginError> {
    let mut bounds = Vec::with_capacity(key.len());
    for (cell, column) in cells::Reader::new(after).zip(key) {
        let mut bound = String::new();
        match column.ty {
            _ if is_ordered(column) => push(&mut bound, cell, column)?,
            _ => push_binary(&mut bound, cell),
        }
        bounds.push(bound);
    }
    let pairs: Vec<_> = orders.iter().zip(&bounds).collect();
    if let [(order, bound), _, ..] = pairs[..] {
        out.push_str(&format!("{order} >= {bound} AND "));
    }
    let last = pairs.len().saturating_sub(1);
    for (at, (order, bound)) in pairs.iter().enumerate() {
        out.push_str(&format!("({order} > {bound}"));
        if at < last {
            out.push_str(&format!(" OR {order} = {bound} AND "));
        }
    }
    out.push_str(&")".repeat(pairs.len()));
    Ok(())
}

/// Whether the database sorts the column as keys sort: numbers by value, everything else by the bytes of its canonical form.
fn is_ordered(column: &Column) -> bool {
    matches!(
        column.ty,
        ColumnType::Int { .. }
            | ColumnType::Bytes
            | ColumnType::Date
            | ColumnType::Time { .. }
            | ColumnType::Timestamp { .. }
            | ColumnType::Mysql(
                MysqlType::Bytes { .. }
                    | MysqlType::PaddedBytes { .. }
                    | MysqlType::Timestamp { .. }
            )
    )
}

/// An expression that sorts as keys do.
pub(super) fn ordered(name: &str, column: &Column) -> String {
    if is_ordered(column) {
        return name.to_owned();
    }
    match column.ty {
        ColumnType::Mysql(MysqlType::Trimmed { .. }) => format!("CAST(rtrim({name}) AS BINARY)"),
        _ => format!("CAST(CAST({name} AS CHAR CHARACTER SET utf8mb4) AS BINARY)"),
    }
}

/// A column of the table's alias.
pub(super) fn qualified(expression: String) -> String {
    format!("t.{expression}")
}

pub(super) fn parsed(rows: &[Texts]) -> Vec<(DomainId, Lsn)> {
    let text = rows.first().and_then(|row| row.first()?.as_deref());
    parse_watermarks(text.and_then(|text| std::str::from_utf8(text).ok()))
}

/// The cells behind the watermarks; `None` where the first one, a key column, is NULL: there is no row.
pub(super) fn encoded_row(row: &Texts, columns: &[Column]) -> Option<Box<[u8]>> {
    let mut out = Vec::new();
    for (at, column) in columns.iter().enumerate() {
        let raw = row.get(at + 1).and_then(|value| value.as_deref());
        if at == 0 && raw.is_none() {
            return None;
        }
        push_read(&mut out, &column.ty, raw);
    }
    Some(out.into_boxed_slice())
}

/// Lets an insert that will be undone give every other column what the type has for nothing.
const RELAX: [&str; 2] = [
    "SET SESSION sql_mode = 'ANSI_QUOTES,NO_BACKSLASH_ESCAPES', foreign_key_checks = 0, \
     check_constraint_checks = 0",
    "START TRANSACTION",
];
/// Keys reserved in one packet.
const RESERVED_AT_ONCE: usize = 100;
