//! Writes: what the ledger asks of a database, and the statements of a batch.

use super::ended::has_ended;
use super::error::{classify, classify_row};
use super::query::dml_sql;
use super::reader::key_condition;
use super::turns::Turns;
use super::{PAGE_CACHE_KIB, set_page_cache, tables, types};
use crate::cells;
use crate::change::Op;
use crate::contract::OriginError;
use crate::contract::verdict::missed;
use crate::origins::bound::{Bound, exceeded};
use crate::origins::ledger::{
    self, Database, Dialect, End, Field, Transaction, Value, push_number,
};
use crate::origins::quote::{join, on_conflict, shown_key};
use crate::plan::{Bucket, Plan, Raw, Step};
use crate::schema::{Schema, Table};
use crate::value::ColumnType;
use destage_core::Fault;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, Statement, ffi};
use std::sync::Arc;
use std::time::Duration;

/// The page cache while batches are applied, in KiB: they touch many pages again.
const BATCH_PAGE_CACHE_KIB: i64 = 32 << 10;

pub(super) struct SqliteWriter {
    connection: Connection,
    turns: Option<Arc<Turns>>,
    /// Whether the page cache is as large as batches need it.
    is_large: bool,
    /// Whether a batch was applied since the last heartbeat.
    is_busy: bool,
}

impl SqliteWriter {
    pub(super) fn new(connection: Connection, turns: Option<Arc<Turns>>) -> Self {
        Self { connection, turns, is_large: false, is_busy: false }
    }

    /// Takes memory for batches, or gives it back.
    fn size_page_cache(&mut self, is_large: bool) -> Result<(), OriginError> {
        if self.is_large == is_large {
            return Ok(());
        }
        let kib = if is_large { BATCH_PAGE_CACHE_KIB } else { PAGE_CACHE_KIB };
        set_page_cache(&self.connection, kib)
            .map_err(|error| classify(&error, "cannot size the page cache"))?;
        self.is_large = is_large;
        Ok(())
    }

    /// Everything of a transaction but its end.
    fn body(&self, transaction: &Transaction<'_>) -> Result<End, OriginError> {
        let what = transaction.what;
        for statement in &transaction.watermarks {
            if run(&self.connection, what, statement)? != 1 && transaction.compares {
                return Ok(End::Moved);
            }
        }
        for statement in &transaction.parked {
            let rows = run(&self.connection, what, statement)?;
            if rows != 1 {
                let message = format!("cannot {what}: {}", missed(None, 1, rows));
                return Err(OriginError::new(Fault::Rejected, message));
            }
        }
        apply_plan(&self.connection, transaction.schema, transaction.plan)?;
        Ok(End::Committed)
    }
}

impl Database for SqliteWriter {
    const DIALECT: Dialect = Dialect {
        push_value: |out, number, _| push_number(out, format_args!("?{number}")),
        now: "unixepoch('subsec')",
        released: "0",
        heartbeat_age: "unixepoch('subsec') - heartbeat",
        owner_key: "one",
        domain_map: "domain_map",
        watermarks: "(SELECT group_concat(domain || ' ' || seq, ',' ORDER BY domain) FROM destage_watermark)",
        insert_missing: ["INSERT OR IGNORE INTO", ""],
        returns: false,
    };

    fn place(&self) -> &str {
        "the database"
    }

    /// Its operations do not wait for anybody but another writer, and are not limited.
    fn timeout(&self) -> Duration {
        Duration::MAX
    }

    fn execute(&mut self, what: &str, statement: &ledger::Statement) -> Result<u64, OriginError> {
        if self.connection.is_autocommit() {
            tables::check_place(&self.connection)?;
        }
        run(&self.connection, what, statement)
    }

    fn query(
        &mut self,
        what: &str,
        statement: &ledger::Statement,
        mut bound: Bound,
    ) -> Result<Vec<Vec<Field>>, OriginError> {
        let mut read = || {
            let mut prepared = self.connection.prepare_cached(&statement.sql)?;
            let width = prepared.column_count();
            bind(&mut prepared, statement)?;
            let mut rows = prepared.raw_query();
            let mut found = Vec::new();
            while let Some(row) = rows.next()? {
                let fields: Vec<Field> =
                    (0..width).map(|at| field(row, at)).collect::<rusqlite::Result<_>>()?;
                if !bound.takes(fields.iter().flatten().map(String::len).sum()) {
                    return Ok(None);
                }
                found.push(fields);
            }
            Ok(Some(found))
        };
        let found =
            read().map_err(|error: rusqlite::Error| classify(&error, &format!("cannot {what}")))?;
        found.ok_or_else(|| exceeded(what, "the database"))
    }

    fn begin(&mut self, _what: &str) -> Result<(), OriginError> {
        tables::begin_write(&self.connection)
    }

    fn commit(&mut self, _what: &str) -> Result<(), OriginError> {
        let commit = || tables::commit(&self.connection);
        match &self.turns {
            Some(turns) => turns.commit(commit),
            None => commit(),
        }
    }

    fn roll_back(&mut self) {
        tables::roll_back(&self.connection);
    }

    fn transact(&mut self, transaction: &Transaction<'_>) -> Result<End, OriginError> {
        self.is_busy = true;
        self.size_page_cache(true)?;
        self.begin(transaction.what)?;
        let end = match self.body(transaction) {
            Ok(End::Committed) => self.commit(transaction.what).map(|()| End::Committed),
            other => other,
        };
        if !matches!(end, Ok(End::Committed)) {
            self.roll_back();
        }
        end
    }

    fn at_heartbeat(&mut self) {
        if !std::mem::take(&mut self.is_busy)
            && let Err(error) = self.size_page_cache(false)
        {
            tracing::debug!(%error, "the page cache stays large");
        }
    }
}

/// Runs a statement of the ledger; how many rows it met.
fn run(
    connection: &Connection,
    what: &str,
    statement: &ledger::Statement,
) -> Result<u64, OriginError> {
    let run = || {
        let mut prepared = connection.prepare_cached(&statement.sql)?;
        bind(&mut prepared, statement)?;
        prepared.raw_execute()
    };
    run().map(|rows| rows as u64).map_err(|error| classify(&error, &format!("cannot {what}")))
}

fn bind(prepared: &mut Statement<'_>, statement: &ledger::Statement) -> rusqlite::Result<()> {
    for (at, value) in (1..).zip(&statement.values) {
        match value {
            Value::Null => prepared.raw_bind_parameter(at, None::<i64>)?,
            Value::Integer(number) => prepared.raw_bind_parameter(at, number)?,
            Value::Unsigned(number) => prepared.raw_bind_parameter(at, number.cast_signed())?,
            Value::Text(text) => prepared.raw_bind_parameter(at, text)?,
        }
    }
    Ok(())
}

fn field(row: &rusqlite::Row<'_>, at: usize) -> rusqlite::Result<Field> {
    Ok(match row.get_ref(at)? {
        ValueRef::Null => None,
        ValueRef::Integer(number) => Some(number.to_string()),
        ValueRef::Real(number) => Some(number.to_string()),
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => {
            Some(String::from_utf8_lossy(bytes).into_owned())
        }
    })
}

fn apply_plan(
    connection: &Connection,
    schema: &Schema,
    plan: &Plan<'_>,
) -> Result<(), OriginError> {
    for step in plan.steps() {
        let bucket = match step {
            Step::Bucket(bucket) => bucket,
            Step::Raw(raw) => {
                run_raw(connection, raw)?;
                continue;
            }
        };
        let table = schema.table(bucket.table);
        let sql = statement_text(table, bucket);
        let mut statement = connection
            .prepare_cached(&sql)
            .map_err(|error| classify(&error, &format!("cannot write to table {}", table.name)))?;
        for row in 0..bucket.len() {
            write_row((connection, &sql), &mut statement, table, bucket, row)?;
        }
        if bucket.check_after && deferred_violations(connection) {
            return Err(OriginError::new(
                Fault::Rejected,
                format_args!("a deferred foreign key is violated after changing {}", table.name),
            ));
        }
    }
    Ok(())
}

/// Runs raw SQL, whatever number of rows it meets.
fn run_raw(connection: &Connection, raw: &Raw<'_>) -> Result<(), OriginError> {
    let doing = "cannot run raw SQL";
    let rejected = |why: String| OriginError::new(Fault::Rejected, format_args!("{doing}: {why}"));
    let sql = dml_sql(&raw.dml.statement().map_err(rejected)?);
    let mut statement = connection.prepare_cached(&sql).map_err(|error| classify(&error, doing))?;
    let run = |statement: &mut Statement<'_>| -> rusqlite::Result<()> {
        for (at, parameter) in raw.dml.parameters().enumerate() {
            types::bind_parameter(statement, at + 1, parameter)?;
        }
        let mut rows = statement.raw_query();
        // What RETURNING returns is nobody's.
        while rows.next()?.is_some() {}
        Ok(())
    };
    let ran = run(&mut statement);
    ran.map_err(|error| classify_row(&error, (connection, &sql), doing))?;
    if raw.check_after && deferred_violations(connection) {
        Err(rejected("a deferred foreign key is violated after it".into()))
    } else {
        Ok(())
    }
}

fn write_row(
    run: (&Connection, &str),
    statement: &mut Statement<'_>,
    table: &Table,
    bucket: &Bucket<'_>,
    row: usize,
) -> Result<(), OriginError> {
    let changed = execute_row(statement, table, bucket, row);
    if matches!(&changed, Ok(1)) || matches!(&changed, Ok(0) if !bucket.meets_all(table)) {
        return Ok(());
    }
    let key = shown_key(bucket.key(row));
    let what = match bucket.op {
        Op::Insert => "insert",
        Op::Update => "update",
        Op::Delete => "delete",
        Op::End => "end",
    };
    let doing = format!("cannot {what} {}:{key}", table.name);
    match changed {
        Err(error) => Err(classify_row(&error, run, &doing)),
        Ok(_) if bucket.columns.iter().any(|t| t.increment) => Err(OriginError::new(
            Fault::Rejected,
            format_args!("{doing}: there is no such row, or a column to increment is no number"),
        )),
        Ok(rows) => Err(OriginError::new(
            Fault::Rejected,
            format_args!("{doing}: it changed {rows} rows instead of one"),
        )),
    }
}

/// Parameters are the bucket's columns, then the key.
fn execute_row(
    statement: &mut Statement<'_>,
    table: &Table,
    bucket: &Bucket<'_>,
    row: usize,
) -> rusqlite::Result<usize> {
    let mut parameter = 1;
    for (target, cell) in bucket.columns.iter().zip(bucket.values(row)) {
        let ty = &table.columns[usize::from(target.column)].ty;
        types::bind(statement, parameter, ty, cell)?;
        parameter += 1;
    }
    for (column, cell) in table.key().iter().zip(cells::Reader::new(bucket.key(row))) {
        types::bind(statement, parameter, &column.ty, cell)?;
        parameter += 1;
    }
    statement.raw_execute()
}

fn statement_text(table: &Table, bucket: &Bucket<'_>) -> String {
    let name = &table.sql_name;
    let width = bucket.columns.len();
    let column = |index: u16| &table.columns[usize::from(index)];
    match bucket.op {
        Op::Insert => {
            let given = bucket.columns.iter().map(|t| &column(t.column).sql_name);
            let columns = join(given.chain(table.key().iter().map(|c| &c.sql_name)), ", ");
            let places = join((1..=width + table.key_len).map(|i| format!("?{i}")), ", ");
            format!(
                "INSERT INTO {name} ({columns}) VALUES ({places}){}",
                on_conflict(table, bucket)
            )
        }
        Op::Delete => format!("DELETE FROM {name} WHERE {}", key_condition(table, 1)),
        Op::End => {
            let ended = bucket.columns.iter().enumerate();
            let ended = ended.map(|(i, t)| has_ended(table, column(t.column), i + 1));
            let key = key_condition(table, width + 1);
            format!("DELETE FROM {name} WHERE {key} AND {}", join(ended, " AND "))
        }
        Op::Update => {
            let mut guards = String::new();
            let mut sets = Vec::with_capacity(width.max(1));
            for (i, target) in bucket.columns.iter().enumerate() {
                let (column, place) = (column(target.column), i + 1);
                let target_name = &column.sql_name;
                if target.increment {
                    sets.push(format!("{target_name} = {target_name} + ?{place}"));
                    let classes = sum_classes(&column.ty);
                    guards
                        .push_str(&format!(" AND typeof({target_name} + ?{place}) IN ({classes})"));
                } else {
                    sets.push(format!("{target_name} = ?{place}"));
                }
            }
            if sets.is_empty() {
                let key = &table.columns[0].sql_name;
                sets.push(format!("{key} = {key}"));
            }
            let (sets, key) = (join(sets, ", "), key_condition(table, width + 1));
            format!("UPDATE {name} SET {sets} WHERE {key}{guards}")
        }
    }
}

/// What an incremented value may be: SQLite would turn an overflow into a REAL, and NULL + 1 into NULL, without an error.
fn sum_classes(ty: &ColumnType) -> &'static str {
    match ty {
        ColumnType::Int { .. } => "'integer'",
        ColumnType::SqliteReal => "'real'",
        _ => "'integer', 'real'",
    }
}

/// Whether a deferred foreign key is violated right now.
fn deferred_violations(connection: &Connection) -> bool {
    let (mut current, mut highest) = (0, 0);
    // SAFETY: the handle is that of an open connection that this thread owns, and both results outlive the call.
    let status = unsafe {
        ffi::sqlite3_db_status(
            connection.handle(),
            ffi::SQLITE_DBSTATUS_DEFERRED_FKS,
            &raw mut current,
            &raw mut highest,
            0,
        )
    };
    status != ffi::SQLITE_OK || current != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::change::{GroupWriter, Set};
    use crate::contract::{Claim, GroupRef, Mark, Origin, WriteClaim, Writer};
    use crate::origins::Sqlite;
    use crate::origins::ledger::SqlWriter;
    use destage_core::{DomainId, Lsn};

    #[test]
    fn pages_are_kept_while_there_are_batches_and_given_back_after_them() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.db");
        let script = "CREATE TABLE t (id INTEGER PRIMARY KEY, v); INSERT INTO t VALUES (1, 1)";
        Connection::open(&path).unwrap().execute_batch(script).unwrap();
        let origin = Sqlite::open(&path, Duration::from_secs(60)).unwrap();
        let schema = origin.schema().unwrap();
        let connection = origin.connect().unwrap();
        tables::create(&connection).unwrap();
        let mut writer = SqlWriter(SqliteWriter::new(connection, None));
        let epoch = 3;
        let (journal, domains) = ("journal-a".to_owned(), vec![DomainId(0)]);
        let claim = Claim { journal, expected: None, epoch, domain_map: 0, domains };
        writer.claim(&claim).unwrap();
        let kib = |writer: &SqlWriter<SqliteWriter>| {
            let query = |row: &rusqlite::Row<'_>| row.get::<_, i64>(0);
            -writer.0.connection.query_row("PRAGMA cache_size", [], query).unwrap()
        };
        assert_eq!(kib(&writer), PAGE_CACHE_KIB);

        let mut group = GroupWriter::new();
        group.begin(schema.tables[0].id, Op::Update, &[3, b'1']);
        group.set(1, Set::To(cells::Cell::Value(b"2")));
        let batch = [GroupRef { lsn: Lsn(1), bytes: group.finish() }];
        let marks = [Mark { domain: DomainId(0), expected: Lsn::ZERO, upto: Lsn(1) }];
        let claim = WriteClaim { epoch, marks: &marks, unsafe_no_watermark: false };
        writer.apply(&schema, &claim, &batch).unwrap();
        assert_eq!(kib(&writer), BATCH_PAGE_CACHE_KIB);
        writer.heartbeat(epoch).unwrap();
        assert_eq!(kib(&writer), BATCH_PAGE_CACHE_KIB);
        writer.heartbeat(epoch).unwrap();
        assert_eq!(kib(&writer), PAGE_CACHE_KIB);
    }
}
