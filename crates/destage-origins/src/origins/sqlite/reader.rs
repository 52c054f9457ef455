//! Reads on a miss, scans and key reservation.

use super::error::{classify, refused};
use super::turns::Turns;
use super::{ended, query, tables, types};
use crate::cells::{self, Cell};
use crate::contract::{
    EndedAsk, EndedKeys, Keys, NextKeys, OriginError, Range, Reader, Snapshot, Watermarks,
};
use crate::derived::{Answer, Query, Statement, Uses};
use crate::origins::quote::join;
use crate::schema::{Column, Schema, Table};
use crate::value::ColumnType;
use destage_core::{DomainId, Lsn};
use rusqlite::{Connection, Row};
use std::sync::Arc;
use std::time::Duration;

pub(super) struct SqliteReader {
    connection: Connection,
    turns: Option<Arc<Turns>>,
}

impl SqliteReader {
    pub(super) fn new(connection: Connection, turns: Option<Arc<Turns>>) -> Self {
        Self { connection, turns }
    }

    /// Runs a read when it is its turn.
    fn read<T>(&self, read: impl FnOnce(&Connection) -> T) -> T {
        let read = || read(&self.connection);
        match &self.turns {
            Some(turns) => turns.read(read),
            None => read(),
        }
    }

    /// Runs a read on one snapshot.
    fn snapshot<T>(
        &self,
        read: impl FnOnce(&Connection) -> Result<T, OriginError>,
    ) -> Result<T, OriginError> {
        self.read(|connection| tables::snapshot(connection, read))
    }
}

impl Reader for SqliteReader {
    /// One prepared statement per key inside one read transaction: within a process that is faster than one statement over a
    /// list of keys, and it is one snapshot all the same.
    fn fetch(&mut self, table: &Table, keys: &[&[u8]]) -> Result<Snapshot, OriginError> {
        let doing = || format!("cannot read table {}", table.name);
        self.snapshot(|connection| {
            let watermarks = tables::watermarks(connection)?;
            let mut statement = connection
                .prepare_cached(&select_row(table))
                .map_err(|error| classify(&error, &doing()))?;
            let mut rows = Vec::with_capacity(keys.len());
            let mut row = Vec::new();
            for key in keys {
                let found = fetch_row(&mut statement, table, key, &mut row)
                    .map_err(|error| classify(&error, &doing()))?;
                rows.push(found.then(|| row.as_slice().into()));
            }
            Ok(Snapshot { rows, watermarks, ..Snapshot::default() })
        })
    }

    fn scan(
        &mut self,
        table: &Table,
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<(Keys, Watermarks), OriginError> {
        let doing = || format!("cannot scan table {}", table.name);
        self.snapshot(|connection| {
            let watermarks = tables::watermarks(connection)?;
            let keys = scan_keys(connection, table, after, limit)
                .map_err(|error| classify(&error, &doing()))?;
            Ok((keys, watermarks))
        })
    }

    fn range(&mut self, table: &Table, range: &Range<'_>) -> Result<Snapshot, OriginError> {
        let doing = || format!("cannot read a range of table {}", table.name);
        self.snapshot(|connection| {
            let watermarks = tables::watermarks(connection)?;
            let rows =
                range_rows(connection, table, range).map_err(|error| classify(&error, &doing()))?;
            Ok(Snapshot { rows, watermarks, ..Snapshot::default() })
        })
    }

    fn count(
        &mut self,
        table: &Table,
        equal: &[(usize, Cell<'_>)],
    ) -> Result<(u64, Vec<(DomainId, Lsn)>), OriginError> {
        let doing = || format!("cannot count rows of table {}", table.name);
        self.snapshot(|connection| {
            let watermarks = tables::watermarks(connection)?;
            let count =
                count_rows(connection, table, equal).map_err(|error| classify(&error, &doing()))?;
            Ok((count, watermarks))
        })
    }

    fn clock_ms(&mut self) -> Result<i64, OriginError> {
        self.read(ended::clock_ms)
    }

    fn missing_index(&mut self, table: &Table) -> Result<Option<String>, OriginError> {
        self.read(|connection| ended::missing_index(connection, table))
    }

    fn ended(&mut self, schema: &Schema, ask: &EndedAsk) -> Result<EndedKeys, OriginError> {
        self.read(|connection| ended::read(connection, schema, ask))
    }

    fn uses(&mut self, query: &Query, schema: &Schema) -> Result<Uses, OriginError> {
        self.read(|connection| query::uses(connection, query, schema))
    }

    fn check_dml(
        &mut self,
        statement: &Statement,
        schema: &Schema,
    ) -> Result<Option<Vec<String>>, OriginError> {
        self.read(|connection| query::written(connection, statement, schema)).map(Some)
    }

    fn query(
        &mut self,
        query: &Query,
        values: &[u8],
        limit: Duration,
    ) -> Result<Answer, OriginError> {
        self.read(|connection| query::run(connection, query, values, limit))
    }

    fn next_keys(&mut self, table: &Table, count: u32) -> Result<NextKeys, OriginError> {
        let Some(key) = table.generated_key else {
            return Err(refused(format!(
                "table {} has no INTEGER PRIMARY KEY to take numbers from: choose the keys yourself",
                table.name
            )));
        };
        let column = &table.columns[key].sql_name;
        tables::create(&self.connection)?;
        tables::write(&self.connection, |connection| {
            let first = reserve(connection, table, column, count)
                .map_err(|e| classify(&e, &format!("cannot reserve keys of {}", table.name)))?;
            // SQLite gives another program's rows the same numbers.
            let next = |first| NextKeys {
                keys: (first..first + i64::from(count)).collect(),
                are_new: false,
            };
            first.map(next).ok_or_else(|| {
                refused(format!(
                    "the keys of table {} are used up: its largest is the largest integer",
                    table.name
                ))
            })
        })
    }
}

fn fetch_row(
    statement: &mut rusqlite::Statement<'_>,
    table: &Table,
    key: &[u8],
    row: &mut Vec<u8>,
) -> rusqlite::Result<bool> {
    for (i, (column, cell)) in table.key().iter().zip(cells::Reader::new(key)).enumerate() {
        types::bind(statement, i + 1, &column.ty, cell)?;
    }
    let mut rows = statement.raw_query();
    let Some(found) = rows.next()? else { return Ok(false) };
    row.clear();
    row.extend_from_slice(key);
    for column in 0..table.columns.len() - table.key_len {
        types::push_value(row, found.get_ref(column)?);
    }
    Ok(true)
}

/// The columns outside the key, by key. A table may have none; then one column says that the row is there.
fn select_row(table: &Table) -> String {
    let columns = match &table.columns[table.key_len..] {
        [] => "1".to_owned(),
        columns => names(columns),
    };
    format!("SELECT {columns} FROM {} WHERE {}", table.sql_name, key_condition(table, 1))
}

/// `key = ?` for all key columns, the parameters numbered from `first`.
pub(super) fn key_condition(table: &Table, first: usize) -> String {
    let terms = table.key().iter().enumerate();
    join(terms.map(|(i, column)| format!("{} = ?{}", column.sql_name, first + i)), " AND ")
}

fn scan_keys(
    connection: &Connection,
    table: &Table,
    after: Option<&[u8]>,
    limit: usize,
) -> rusqlite::Result<Vec<Box<[u8]>>> {
    let key = names(table.key());
    // Old tables may hold NULL in their keys; no key reaches those rows.
    let present = join(table.key().iter().map(|c| format!("{} IS NOT NULL", c.sql_name)), " AND ");
    let from = match after {
        None => String::new(),
        Some(_) => {
            let places = join((0..table.key_len).map(|i| format!("?{}", i + 2)), ", ");
            format!(" AND ({key}) > ({places})")
        }
    };
    let sql = format!(
        "SELECT {key} FROM {} WHERE {present}{from} ORDER BY {key} LIMIT ?1",
        table.sql_name
    );
    let mut statement = connection.prepare_cached(&sql)?;
    statement.raw_bind_parameter(1, i64::try_from(limit).unwrap_or(i64::MAX))?;
    bind_key(&mut statement, 2, table, after)?;
    let mut keys = Vec::new();
    let mut rows = statement.raw_query();
    while let Some(row) = rows.next()? {
        keys.push(key_of(row, table)?);
    }
    Ok(keys)
}

/// Binds the columns of a key, if there is one, from this parameter on.
pub(super) fn bind_key(
    statement: &mut rusqlite::Statement<'_>,
    first: usize,
    table: &Table,
    key: Option<&[u8]>,
) -> rusqlite::Result<()> {
    let cells = key.into_iter().flat_map(cells::Reader::new);
    for (i, (column, cell)) in table.key().iter().zip(cells).enumerate() {
        types::bind(statement, first + i, &column.ty, cell)?;
    }
    Ok(())
}

/// The key that a row begins with.
pub(super) fn key_of(row: &Row<'_>, table: &Table) -> rusqlite::Result<Box<[u8]>> {
    let mut key = Vec::new();
    for column in 0..table.key_len {
        types::push_value(&mut key, row.get_ref(column)?);
    }
    Ok(key.into_boxed_slice())
}

fn range_rows(
    connection: &Connection,
    table: &Table,
    range: &Range<'_>,
) -> rusqlite::Result<Vec<Option<Box<[u8]>>>> {
    let order = |index: usize| {
        let column = &table.columns[index];
        match (range.is_number(index), &column.ty) {
            // By its text, as members sort.
            (false, ColumnType::Int { .. }) => format!("CAST({} AS TEXT)", column.sql_name),
            _ => column.sql_name.clone(),
        }
    };
    let first = range.order[0];
    let mut conditions = conditions(table, &range.equal);
    for (at, (operator, _)) in range.edges().enumerate() {
        let place = range.equal.len() + at + 1;
        conditions.push(format!("{} {operator} ?{place}", order(first)));
    }
    let direction = range.direction();
    let sql = format!(
        "SELECT {} FROM {} WHERE {} ORDER BY {} LIMIT {}",
        names(&table.columns),
        table.sql_name,
        join(conditions.iter(), " AND "),
        join(range.order.iter().map(|&index| order(index) + direction), ", "),
        range.limit
    );
    let mut statement = connection.prepare_cached(&sql)?;
    bind_all(&mut statement, table, &range.equal)?;
    let text = ColumnType::Text { chars_max: None };
    let ty = match (range.is_number(first), &table.columns[first].ty) {
        (false, ColumnType::Int { .. }) => &text,
        (_, ty) => ty,
    };
    for (at, (_, edge)) in range.edges().enumerate() {
        types::bind(&mut statement, range.equal.len() + at + 1, ty, Cell::Value(&edge.value))?;
    }
    let mut found = Vec::new();
    let mut rows = statement.raw_query();
    while let Some(row) = rows.next()? {
        let mut cells = Vec::new();
        for column in 0..table.columns.len() {
            types::push_value(&mut cells, row.get_ref(column)?);
        }
        found.push(Some(cells.into_boxed_slice()));
    }
    Ok(found)
}

/// `column = ?` for each; true where there is none.
fn conditions(table: &Table, equal: &[(usize, Cell<'_>)]) -> Vec<String> {
    let terms = equal.iter().enumerate();
    let equal =
        terms.map(|(i, (column, _))| format!("{} = ?{}", table.columns[*column].sql_name, i + 1));
    // Old tables may hold NULL in their keys; no key reaches those rows.
    let present = table.key().iter().map(|column| format!("{} IS NOT NULL", column.sql_name));
    equal.chain(present).collect()
}

fn bind_all(
    statement: &mut rusqlite::Statement<'_>,
    table: &Table,
    equal: &[(usize, Cell<'_>)],
) -> rusqlite::Result<()> {
    for (i, (column, cell)) in equal.iter().enumerate() {
        types::bind(statement, i + 1, &table.columns[*column].ty, *cell)?;
    }
    Ok(())
}

fn count_rows(
    connection: &Connection,
    table: &Table,
    equal: &[(usize, Cell<'_>)],
) -> rusqlite::Result<u64> {
    let conditions = conditions(table, equal);
    let sql = format!(
        "SELECT count(*) FROM {} WHERE {}",
        table.sql_name,
        join(conditions.iter(), " AND ")
    );
    let mut statement = connection.prepare_cached(&sql)?;
    bind_all(&mut statement, table, equal)?;
    let mut rows = statement.raw_query();
    let count: i64 = match rows.next()? {
        Some(row) => row.get(0)?,
        None => 0,
    };
    Ok(count.cast_unsigned())
}

pub(super) fn names(columns: &[Column]) -> String {
    join(columns.iter().map(|c| &c.sql_name), ", ")
}

/// Takes `count` numbers after everything used or handed out so far; `None` where too few are left.
fn reserve(
    connection: &Connection,
    table: &Table,
    column: &str,
    count: u32,
) -> rusqlite::Result<Option<i64>> {
    let used: Option<i64> = connection.query_row(
        &format!("SELECT max({column}) FROM {}", table.sql_name),
        [],
        |row| row.get(0),
    )?;
    // With AUTOINCREMENT a number is never used again, even after its row is gone.
    let has_sequence: bool = connection.query_row(
        "SELECT count(*) FROM sqlite_master WHERE name = 'sqlite_sequence'",
        [],
        |row| row.get(0),
    )?;
    let sequence = if has_sequence {
        connection.query_row(
            "SELECT max(seq) FROM sqlite_sequence WHERE name = ?1",
            [&table.name],
            |row| row.get::<_, Option<i64>>(0),
        )?
    } else {
        None
    };
    let reserved: Option<i64> = connection.query_row(
        "SELECT max(next) - 1 FROM destage_sequence WHERE name = ?1",
        [&table.name],
        |row| row.get(0),
    )?;
    let last = [used, sequence, reserved].into_iter().flatten().fold(0, i64::max);
    let Some(next) = last.checked_add(1).and_then(|n| n.checked_add(i64::from(count))) else {
        return Ok(None);
    };
    connection.execute(
        "INSERT INTO destage_sequence (name, next) VALUES (?1, ?2) \
         ON CONFLICT (name) DO UPDATE SET next = excluded.next",
        rusqlite::params![table.name, next],
    )?;
    Ok(Some(last + 1))
}
