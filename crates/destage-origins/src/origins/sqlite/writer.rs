//! Batches together with their watermark, exactly once.

use super::error::{classify, classify_row};
use super::query::dml_sql;
use super::reader::key_condition;
use super::{PAGE_CACHE_KIB, ledger, set_page_cache, types};
use crate::cells;
use crate::change::Op;
use crate::contract::{
    AcrossClaim, Applied, Claim, GroupRef, OriginError, Owner, ParkedGroup, Watermarks, WriteClaim,
    Writer,
};
use crate::origins::ledger::{WHOLE, missed, still_ours, take_parked, unmoved};
use crate::origins::quote::{join, shown_key};
use crate::plan::{Bucket, Plan, Raw, Step, plan};
use crate::schema::{Schema, Table};
use crate::value::ColumnType;
use destage_core::{DomainId, Fault, Lsn};
use rusqlite::{Connection, OptionalExtension, Statement, ffi, params};
use std::time::Duration;

/// The page cache while batches are applied, in KiB: they touch many pages again.
const BATCH_PAGE_CACHE_KIB: i64 = 32 << 10;

pub(super) struct SqliteWriter {
    connection: Connection,
    /// Whether the page cache is as large as batches need it.
    is_large: bool,
    /// Whether a batch was applied since the last heartbeat.
    is_busy: bool,
}

impl SqliteWriter {
    pub(super) fn new(connection: Connection) -> Self {
        Self { connection, is_large: false, is_busy: false }
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

    /// Moves the watermarks by `advance` and does what is planned, in one transaction.
    fn apply_planned(
        &mut self,
        schema: &Schema,
        plan: &Plan<'_>,
        advance: impl FnOnce(&Connection) -> Result<Advance, OriginError>,
    ) -> Result<Applied, OriginError> {
        self.is_busy = true;
        self.size_page_cache(true)?;
        ledger::write(&self.connection, |connection| match advance(connection)? {
            Advance::Landed => Ok(Applied::default()),
            Advance::Moved => {
                apply_plan(connection, schema, plan)?;
                Ok(Applied { changes: plan.changes as u64, rows: plan.rows() as u64 })
            }
        })
    }
}

/// Keeps a group as parked, unless an earlier attempt has done so.
fn park_moved(
    connection: &Connection,
    moved: Advance,
    parked: Option<&ParkedGroup>,
) -> Result<(), OriginError> {
    let (Advance::Moved, Some(group)) = (moved, parked) else { return Ok(()) };
    store_parked(connection, group)
        .map_err(|error| classify(&error, &format!("cannot park group {}", group.lsn.0)))
}

impl Writer for SqliteWriter {
    fn owner(&mut self) -> Result<Option<Owner>, OriginError> {
        ledger::snapshot(&self.connection, |connection| {
            let owner = connection
                .query_row(
                    "SELECT journal, epoch, domain_map, \
                     max(0.0, unixepoch('subsec') - heartbeat), heartbeat = 0 FROM destage_owner",
                    [],
                    |row| {
                        Ok(Owner {
                            journal: row.get(0)?,
                            epoch: row.get::<_, i64>(1)?.cast_unsigned(),
                            domain_map: row.get::<_, i64>(2)?.cast_unsigned(),
                            heartbeat_age: Duration::try_from_secs_f64(row.get(3)?)
                                .unwrap_or(Duration::MAX),
                            released: row.get(4)?,
                            watermarks: Vec::new(),
                            is_whole: true,
                        })
                    },
                )
                .optional()
                .map_err(|error| classify(&error, "cannot read destage_owner"))?;
            let watermarks = ledger::watermarks(connection)?;
            let Some(owner) = owner else { return Ok(None) };
            let is_whole = watermarks.is_empty()
                || connection
                    .query_row(&format!("SELECT {WHOLE} FROM destage_owner"), [], |row| row.get(0))
                    .map_err(|error| classify(&error, "cannot read destage_watermark"))?;
            Ok(Some(Owner { watermarks, is_whole, ..owner }))
        })
    }

    fn claim(&mut self, claim: &Claim) -> Result<(), OriginError> {
        ledger::write(&self.connection, |connection| {
            let claimed = store_claim(connection, claim)
                .map_err(|error| classify(&error, "cannot claim the origin"))?;
            if claimed { Ok(()) } else { Err(crate::origins::ledger::outrun("the origin")) }
        })
    }

    fn apply(
        &mut self,
        schema: &Schema,
        claim: &WriteClaim,
        groups: &[GroupRef<'_>],
    ) -> Result<Applied, OriginError> {
        let Some(last) = groups.last() else { return Ok(Applied::default()) };
        let plan = plan(schema, groups.iter().map(|group| group.bytes))
            .map_err(|error| OriginError::new(Fault::Rejected, error))?;
        self.apply_planned(schema, &plan, |connection| advance(connection, claim, last.lsn))
    }

    fn apply_across(
        &mut self,
        schema: &Schema,
        claim: &AcrossClaim<'_>,
        groups: &[GroupRef<'_>],
    ) -> Result<Applied, OriginError> {
        let plan = plan(schema, groups.iter().map(|group| group.bytes))
            .map_err(|error| OriginError::new(Fault::Rejected, error))?;
        self.apply_planned(schema, &plan, |connection| advance_all(connection, claim))
    }

    fn park(
        &mut self,
        claim: &WriteClaim,
        lsn: Lsn,
        parked: Option<&ParkedGroup>,
    ) -> Result<(), OriginError> {
        ledger::write(&self.connection, |connection| {
            let moved = advance(connection, claim, lsn)?;
            park_moved(connection, moved, parked)
        })
    }

    fn unpark(
        &mut self,
        schema: &Schema,
        claim: &WriteClaim,
        parked: &[Lsn],
        groups: &[GroupRef<'_>],
    ) -> Result<Applied, OriginError> {
        let plan = plan(schema, groups.iter().map(|group| group.bytes))
            .map_err(|error| OriginError::new(Fault::Rejected, error))?;
        let run = |connection: &Connection, sql: &str| {
            connection
                .execute(sql, [])
                .map_err(|error| classify(&error, "cannot take back a parked group"))
        };
        ledger::write(&self.connection, |connection| {
            if run(connection, &still_ours(claim))? != 1 {
                return Err(fenced(connection, claim.epoch));
            }
            for &lsn in parked {
                let rows = run(connection, &take_parked(lsn))?;
                if rows != 1 {
                    return Err(OriginError::new(Fault::Rejected, missed(None, 1, rows as u64)));
                }
            }
            apply_plan(connection, schema, &plan)?;
            Ok(Applied { changes: plan.changes as u64, rows: plan.rows() as u64 })
        })
    }

    fn park_across(
        &mut self,
        claim: &AcrossClaim<'_>,
        parked: Option<&ParkedGroup>,
    ) -> Result<(), OriginError> {
        ledger::write(&self.connection, |connection| {
            let moved = advance_all(connection, claim)?;
            park_moved(connection, moved, parked)
        })
    }

    fn mark_all(
        &mut self,
        claim: &WriteClaim,
        upto: Lsn,
        floors: &[(DomainId, Lsn)],
    ) -> Result<(), OriginError> {
        ledger::write(&self.connection, |connection| {
            advance(connection, claim, upto)?;
            let found = ledger::watermarks(connection)?;
            // Undone with the transaction.
            crate::origins::ledger::check_floors("the database", &found, floors)
        })
    }

    fn heartbeat(&mut self, epoch: u64) -> Result<Watermarks, OriginError> {
        if !std::mem::take(&mut self.is_busy) {
            self.size_page_cache(false)?;
        }
        ledger::write(&self.connection, |connection| {
            let renewed = connection
                .prepare_cached(
                    "UPDATE destage_owner SET heartbeat = unixepoch('subsec') WHERE epoch = ?1",
                )
                .and_then(|mut s| s.execute([epoch.cast_signed()]))
                .map_err(|error| classify(&error, "cannot renew the heartbeat"))?;
            if renewed == 1 {
                return ledger::watermarks(connection);
            }
            Err(fenced(connection, epoch))
        })
    }

    fn release(&mut self, epoch: u64) -> Result<(), OriginError> {
        ledger::write(&self.connection, |connection| {
            let released = connection
                .execute(
                    "UPDATE destage_owner SET heartbeat = 0 WHERE epoch = ?1",
                    [epoch.cast_signed()],
                )
                .map_err(|error| classify(&error, "cannot release the origin"))?;
            if released == 1 { Ok(()) } else { Err(fenced(connection, epoch)) }
        })
    }

    fn parked(&mut self) -> Result<Vec<ParkedGroup>, OriginError> {
        let read = || {
            let mut statement = self.connection.prepare(
                "SELECT domain, seq, depends_on, reason, payload FROM destage_parked \
                 ORDER BY seq, domain",
            )?;
            let rows = statement.query_map([], |row| {
                Ok(ParkedGroup {
                    domain: DomainId(row.get(0)?),
                    lsn: Lsn(row.get::<_, i64>(1)?.cast_unsigned()),
                    depends_on: row.get::<_, Option<i64>>(2)?.map(|n| Lsn(n.cast_unsigned())),
                    reason: row.get(3)?,
                    payload: row.get(4)?,
                })
            })?;
            rows.collect::<rusqlite::Result<_>>()
        };
        read().map_err(|error: rusqlite::Error| classify(&error, "cannot read destage_parked"))
    }
}

/// Whether the owner still was the expected one.
fn store_claim(connection: &Connection, claim: &Claim) -> rusqlite::Result<bool> {
    let (epoch, map) = (claim.epoch.cast_signed(), claim.domain_map.cast_signed());
    let stored = match claim.expected {
        None => connection.execute(
            "INSERT INTO destage_owner (one, journal, epoch, domain_map, heartbeat) \
             VALUES (1, ?1, ?2, ?3, unixepoch('subsec')) ON CONFLICT DO NOTHING",
            params![claim.journal, epoch, map],
        )?,
        Some(expected) => connection.execute(
            "UPDATE destage_owner SET journal = ?1, epoch = ?2, domain_map = ?3, \
             heartbeat = unixepoch('subsec') WHERE epoch = ?4",
            params![claim.journal, epoch, map, expected.cast_signed()],
        )?,
    };
    if stored != 1 {
        return Ok(false);
    }
    connection.execute("UPDATE destage_watermark SET epoch = ?1", [epoch])?;
    for domain in &claim.domains {
        connection.execute(
            "INSERT INTO destage_watermark (domain, seq, epoch) VALUES (?1, 0, ?2) \
             ON CONFLICT DO NOTHING",
            params![domain.0, epoch],
        )?;
    }
    Ok(true)
}

fn store_parked(connection: &Connection, group: &ParkedGroup) -> rusqlite::Result<()> {
    connection.execute(
        "INSERT INTO destage_parked (domain, seq, depends_on, reason, payload, parked_at) \
         VALUES (?1, ?2, ?3, ?4, ?5, unixepoch('subsec'))",
        params![
            group.domain.0,
            group.lsn.0.cast_signed(),
            group.depends_on.map(|lsn| lsn.0.cast_signed()),
            group.reason,
            group.payload
        ],
    )?;
    Ok(())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Advance {
    /// The watermark stands at the new place; the transaction goes on.
    Moved,
    /// It was there or beyond already: an earlier attempt had landed.
    Landed,
}

/// Compares and sets the watermarks of several domains: all of them, or none.
fn advance_all(connection: &Connection, claim: &AcrossClaim<'_>) -> Result<Advance, OriginError> {
    let mut all = None;
    for mark in claim.marks {
        let moved = advance(connection, &claim.of(mark), mark.upto)?;
        if all.is_some_and(|all| all != moved) {
            return Err(OriginError::new(
                Fault::Failed,
                format_args!(
                    "the watermark of domain {} does not go with those of the other domains of write {}: the origin was \
                     changed by hand",
                    mark.domain.0, mark.upto.0
                ),
            ));
        }
        all = Some(moved);
    }
    Ok(all.unwrap_or(Advance::Landed))
}

/// Compares and sets the domain's watermark.
fn advance(connection: &Connection, claim: &WriteClaim, upto: Lsn) -> Result<Advance, OriginError> {
    let doing = |error| classify(&error, "cannot move the watermark");
    let domain = claim.domain.0;
    let moved = if claim.unsafe_no_watermark {
        connection
            .prepare_cached("UPDATE destage_watermark SET seq = ?1 WHERE domain = ?2")
            .and_then(|mut s| s.execute(params![upto.0.cast_signed(), domain]))
    } else {
        connection
            .prepare_cached(
                "UPDATE destage_watermark SET seq = ?1 WHERE domain = ?2 AND seq = ?3 AND epoch = ?4",
            )
            .and_then(|mut s| {
                let expected = claim.expected.0.cast_signed();
                s.execute(params![upto.0.cast_signed(), domain, expected, claim.epoch.cast_signed()])
            })
    };
    if moved.map_err(doing)? == 1 {
        return Ok(Advance::Moved);
    }
    let found: Option<(i64, i64)> = connection
        .query_row("SELECT seq, epoch FROM destage_watermark WHERE domain = ?1", [domain], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })
        .optional()
        .map_err(doing)?;
    match found {
        Some((_, epoch)) if epoch.cast_unsigned() != claim.epoch => {
            Err(fenced(connection, claim.epoch))
        }
        Some((seq, _)) if seq.cast_unsigned() >= upto.0 => Ok(Advance::Landed),
        Some((seq, _)) if seq.cast_unsigned() == claim.expected.0 => {
            Err(unmoved("the database", claim))
        }
        Some((seq, _)) => Err(OriginError::new(
            Fault::Failed,
            format_args!(
                "the watermark of domain {domain} stands at {seq}, not at {}: the origin was \
                 restored or changed by hand",
                claim.expected.0
            ),
        )),
        None => Err(OriginError::new(
            Fault::Failed,
            format_args!("domain {domain} has no row in destage_watermark: it was removed by hand"),
        )),
    }
}

fn fenced(connection: &Connection, epoch: u64) -> OriginError {
    let found = connection
        .query_row("SELECT epoch FROM destage_owner", [], |row| row.get::<_, i64>(0))
        .optional()
        .map_err(|error| classify(&error, "cannot read destage_owner"));
    match found {
        Ok(found) => {
            crate::origins::ledger::fenced("the database", epoch, found.map(i64::cast_unsigned))
        }
        Err(error) => error,
    }
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
        let mut statement = connection
            .prepare_cached(&statement_text(table, bucket))
            .map_err(|error| classify(&error, &format!("cannot write to table {}", table.name)))?;
        for row in 0..bucket.len() {
            write_row(&mut statement, table, bucket, row)?;
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
    run(&mut statement).map_err(|error| classify_row(&error, doing))?;
    match raw.check_after && deferred_violations(connection) {
        true => Err(rejected("a deferred foreign key is violated after it".into())),
        false => Ok(()),
    }
}

fn write_row(
    statement: &mut Statement<'_>,
    table: &Table,
    bucket: &Bucket<'_>,
    row: usize,
) -> Result<(), OriginError> {
    let changed = execute_row(statement, table, bucket, row);
    if matches!(changed, Ok(1)) {
        return Ok(());
    }
    let key = shown_key(bucket.key(row));
    let what = match bucket.op {
        Op::Insert => "insert",
        Op::Update => "update",
        Op::Delete => "delete",
    };
    let doing = format!("cannot {what} {}:{key}", table.name);
    match changed {
        Err(error) => Err(classify_row(&error, &doing)),
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
            format!("INSERT INTO {name} ({columns}) VALUES ({places})")
        }
        Op::Delete => format!("DELETE FROM {name} WHERE {}", key_condition(table, 1)),
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
    use crate::contract::Origin;
    use crate::origins::Sqlite;

    #[test]
    fn pages_are_kept_while_there_are_batches_and_given_back_after_them() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.db");
        let script = "CREATE TABLE t (id INTEGER PRIMARY KEY, v); INSERT INTO t VALUES (1, 1)";
        Connection::open(&path).unwrap().execute_batch(script).unwrap();
        let origin = Sqlite::open(&path, Duration::from_secs(60)).unwrap();
        let schema = origin.schema().unwrap();
        let connection = origin.connect().unwrap();
        ledger::create(&connection).unwrap();
        let mut writer = SqliteWriter::new(connection);
        let (domain, epoch) = (DomainId(0), 3);
        let (journal, domains) = ("journal-a".to_owned(), vec![domain]);
        let claim = Claim { journal, expected: None, epoch, domain_map: 0, domains };
        writer.claim(&claim).unwrap();
        let kib = |writer: &SqliteWriter| {
            let query = |row: &rusqlite::Row<'_>| row.get::<_, i64>(0);
            -writer.connection.query_row("PRAGMA cache_size", [], query).unwrap()
        };
        assert_eq!(kib(&writer), PAGE_CACHE_KIB);

        let mut group = GroupWriter::new();
        group.begin(schema.tables[0].id, Op::Update, &[3, b'1']);
        group.set(1, Set::To(cells::Cell::Value(b"2")));
        let batch = [GroupRef { lsn: Lsn(1), bytes: group.finish() }];
        let claim = WriteClaim { domain, epoch, expected: Lsn::ZERO, unsafe_no_watermark: false };
        writer.apply(&schema, &claim, &batch).unwrap();
        assert_eq!(kib(&writer), BATCH_PAGE_CACHE_KIB);
        writer.heartbeat(epoch).unwrap();
        assert_eq!(kib(&writer), BATCH_PAGE_CACHE_KIB);
        writer.heartbeat(epoch).unwrap();
        assert_eq!(kib(&writer), PAGE_CACHE_KIB);
    }
}
