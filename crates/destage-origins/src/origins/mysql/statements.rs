//! The statements of a batch, each with the rows that it must meet: inserts many rows at once, updates and deletes one each.

use super::literal::push;
use crate::cells::{self, Cell};
use crate::change::Op;
use crate::contract::OriginError;
use crate::contract::verdict::missed;
use crate::origins::quote::shown_key;
use crate::plan::Bucket;
use crate::schema::{Column, Table};
use crate::ttl::least_number;
use destage_core::Fault;

/// Of rows that end nobody knows whether they are left to delete, nor of the pieces of a parked group.
pub(super) const ANY: u64 = u64::MAX;
/// A parked group that is given up is stored in one row or more.
pub(super) const SOME: u64 = u64::MAX - 1;

/// One statement of a transaction.
pub(super) struct Statement<'a> {
    pub(super) sql: String,
    /// How many rows it must meet; [`ANY`]: it may be any number; [`SOME`]: one at least.
    pub(super) rows: u64,
    pub(super) target: Option<(&'a Table, Op)>,
}

impl Statement<'_> {
    /// What is wrong with the number of rows that it has met, if anything is.
    pub(super) fn missed(&self, rows: u64) -> Option<String> {
        let expected = match self.rows {
            ANY => return None,
            SOME => rows.max(1),
            exact => exact,
        };
        (rows != expected).then(|| missed(self.target, expected, rows))
    }
}

/// Appends the statements of a bucket, none of them larger than `bytes_max`.
///
/// # Errors
/// [`Fault::Rejected`] if a value does not fit its column, or a row no statement.
pub(super) fn push_bucket<'a>(
    out: &mut Vec<Statement<'a>>,
    table: &'a Table,
    bucket: &Bucket<'_>,
    bytes_max: usize,
) -> Result<(), OriginError> {
    let from = out.len();
    if bucket.op == Op::Insert {
        push_inserts(out, table, bucket, bytes_max)?;
    } else {
        for row in 0..bucket.len() {
            let mut sql = match bucket.op {
                Op::Delete | Op::End => format!("DELETE FROM {}", table.sql_name),
                _ => format!("UPDATE {} SET ", table.sql_name),
            };
            let guard = match bucket.op {
                Op::Delete => String::new(),
                Op::End => has_ended(table, bucket, row)?,
                _ => push_sets(&mut sql, table, bucket, row)?,
            };
            sql.push_str(" WHERE ");
            push_match(&mut sql, table, bucket.key(row))?;
            sql.push_str(&guard);
            let rows = if bucket.op == Op::End { ANY } else { 1 };
            out.push(Statement { sql, rows, target: Some((table, bucket.op)) });
        }
    }
    if out[from..].iter().any(|statement| statement.sql.len() > bytes_max) {
        Err(OriginError::new(
            Fault::Rejected,
            format!(
                "a row of {} is larger than the server's max_allowed_packet allows ({bytes_max} \
                 bytes of SQL)",
                table.name
            ),
        ))
    } else {
        Ok(())
    }
}

fn push_inserts<'a>(
    out: &mut Vec<Statement<'a>>,
    table: &'a Table,
    bucket: &Bucket<'_>,
    bytes_max: usize,
) -> Result<(), OriginError> {
    let given = bucket.columns.iter().map(|target| &table.columns[usize::from(target.column)]);
    let columns: Vec<&Column> = table.key().iter().chain(given).collect();
    let names = crate::origins::quote::join(columns.iter().map(|c| &c.sql_name), ", ");
    let head = format!("INSERT INTO {} ({names}) VALUES ", table.sql_name);
    let tail = if table.merges_new { on_duplicate(table, bucket) } else { String::new() };
    let bytes_max = bytes_max.min(INSERT_BYTES_MAX);
    let close = |mut open: Statement<'a>| {
        open.sql.push_str(&tail);
        // A row that is merged counts as two, or as one that was alike before.
        open.rows = if table.merges_new { ANY } else { open.rows };
        open
    };
    let mut open = Statement { sql: head.clone(), rows: 0, target: Some((table, Op::Insert)) };
    let mut values = String::new();
    for row in 0..bucket.len() {
        values.clear();
        let cells = cells::Reader::new(bucket.key(row)).chain(bucket.values(row));
        push_list(&mut values, cells, &columns)?;
        if open.rows > 0 && open.sql.len() + values.len() + tail.len() + 1 > bytes_max {
            let next = Statement { sql: head.clone(), rows: 0, ..open };
            out.push(close(std::mem::replace(&mut open, next)));
        }
        if open.rows > 0 {
            open.sql.push(',');
        }
        open.sql.push_str(&values);
        open.rows += 1;
    }
    out.push(close(open));
    Ok(())
}

/// What becomes of new rows that are merged with what they meet. MariaDB merges by any unique index. So a row that was found
/// by another one than the primary key has the statement fail: its key is not the new row's, and the query that is evaluated
/// then alone has two rows where one may be. (To assign NULL to the key fails in most tables, and makes it 0 in one with
/// AUTO_INCREMENT.)
fn on_duplicate(table: &Table, bucket: &Bucket<'_>) -> String {
    let equal = |column: &Column| format!("{0} = VALUES({0})", column.sql_name);
    let is_same = crate::origins::quote::join(table.key().iter().map(equal), " AND ");
    let key = &table.columns[0].sql_name;
    let mut sql = format!(
        " ON DUPLICATE KEY UPDATE {key} = IF(({is_same}) OR (SELECT 1 UNION ALL SELECT 2) = 1, {key}, {key})"
    );
    for target in &bucket.columns {
        let name = &table.columns[usize::from(target.column)].sql_name;
        sql.push_str(&format!(", {name} = VALUES({name})"));
    }
    sql
}

fn push_list<'c>(
    out: &mut String,
    cells: impl Iterator<Item = Cell<'c>>,
    columns: &[&Column],
) -> Result<(), OriginError> {
    for (at, (cell, column)) in cells.zip(columns).enumerate() {
        out.push(if at == 0 { '(' } else { ',' });
        push(out, cell, column)?;
    }
    out.push(')');
    Ok(())
}

/// Appends the assignments of an update; what must hold besides the key is returned.
fn push_sets(
    out: &mut String,
    table: &Table,
    bucket: &Bucket<'_>,
    row: usize,
) -> Result<String, OriginError> {
    let mut guard = String::new();
    if bucket.columns.is_empty() {
        let key = &table.columns[0].sql_name;
        out.push_str(&format!("{key} = {key}"));
    }
    for (at, target) in bucket.columns.iter().enumerate() {
        let column = &table.columns[usize::from(target.column)];
        let name = &column.sql_name;
        out.push_str(if at == 0 { "" } else { ", " });
        out.push_str(name);
        out.push_str(" = ");
        if target.increment {
            // NULL plus an amount is NULL: the increment would vanish without a word.
            guard.push_str(&format!(" AND {name} IS NOT NULL"));
            out.push_str(&format!("{name} + "));
        }
        push(out, bucket.value(row, at), column)?;
    }
    Ok(guard)
}

/// What must hold for a row to have ended, besides its key.
fn has_ended(table: &Table, bucket: &Bucket<'_>, row: usize) -> Result<String, OriginError> {
    let mut guard = String::new();
    for (at, target) in bucket.columns.iter().enumerate() {
        let column = &table.columns[usize::from(target.column)];
        guard.push_str(" AND ");
        push_ended(&mut guard, &column.sql_name, (table, column), bucket.value(row, at))?;
    }
    Ok(guard)
}

/// Appends the condition that a time has come. A date of zeros is none, nor is a number that is too small.
pub(super) fn push_ended(
    out: &mut String,
    name: &str,
    (table, column): (&Table, &Column),
    cutoff: Cell<'_>,
) -> Result<(), OriginError> {
    out.push_str(&format!("{name} <= "));
    push(out, cutoff, column)?;
    out.push_str(&match least_number(table, column) {
        Some(least) => format!(" AND {name} >= {least}"),
        None => format!(" AND month({name}) > 0 AND dayofmonth({name}) > 0"),
    });
    Ok(())
}

/// Appends the condition that finds the row of a key.
pub(super) fn push_match(out: &mut String, table: &Table, key: &[u8]) -> Result<(), OriginError> {
    let mut cells = cells::Reader::new(key);
    for (at, column) in table.key().iter().enumerate() {
        let cell = cells.cell().ok_or_else(|| malformed_key(table, key))?;
        out.push_str(if at == 0 { "" } else { " AND " });
        out.push_str(&column.sql_name);
        out.push_str(" = ");
        push(out, cell, column)?;
    }
    Ok(())
}

/// Appends the condition that finds the rows of all those keys.
pub(super) fn push_matches(
    out: &mut String,
    table: &Table,
    keys: &[&[u8]],
) -> Result<(), OriginError> {
    let [column] = table.key() else {
        for (at, key) in keys.iter().enumerate() {
            out.push_str(if at == 0 { "(" } else { " OR (" });
            push_match(out, table, key)?;
            out.push(')');
        }
        return Ok(());
    };
    out.push_str(&format!("{} IN (", column.sql_name));
    for (at, key) in keys.iter().enumerate() {
        let cell = cells::Reader::new(key).cell().ok_or_else(|| malformed_key(table, key))?;
        out.push_str(if at == 0 { "" } else { "," });
        push(out, cell, column)?;
    }
    out.push(')');
    Ok(())
}

fn malformed_key(table: &Table, key: &[u8]) -> OriginError {
    let message = format!("the key {} of {} has too few columns", shown_key(key), table.name);
    OriginError::new(Fault::Failed, message)
}

/// Past this, one insert of many rows gains nothing more.
const INSERT_BYTES_MAX: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ttl::tests::ended_table;
    use crate::value::{ColumnType, MysqlType};

    #[test]
    fn what_is_no_time_has_not_ended() {
        let int = ColumnType::Int { min: i64::MIN, max: i64::MAX };
        let date = ColumnType::Mysql(MysqlType::Timestamp { precision: 0 });
        for (ty, ttl, cutoff, expected) in [
            (int.clone(), "column ends", "12", "ends <= 12 AND ends >= 1"),
            (
                int,
                "column ends ms",
                "200000000000",
                "ends <= 200000000000 AND ends >= 100000000000",
            ),
            (
                date,
                "column ends",
                "2026-01-31 13:37:00+00",
                "ends <= '2026-01-31 13:37:00' AND month(ends) > 0 AND dayofmonth(ends) > 0",
            ),
        ] {
            let (table, mut sql) = (ended_table(ty, ttl), String::new());
            let column = (&table, &table.columns[1]);
            push_ended(&mut sql, "ends", column, Cell::Value(cutoff.as_bytes())).unwrap();
            assert_eq!(sql, expected);
        }
    }
}
