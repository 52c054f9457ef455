//! The statements of a batch: one for each bucket, its rows as arrays that `unnest` turns into a table `v`.

use super::wire::{Array, Form, Param, casted};
use crate::cells;
use crate::change::Op;
use crate::contract::OriginError;
use crate::origins::quote::on_conflict;
use crate::plan::{Bucket, Target};
use crate::schema::{Column, Table};
use crate::ttl::least_number;
use destage_core::Fault;
use tokio_postgres::types::Type;

/// The statement of a bucket, with the types of its parameters: an array for each key column and each target.
pub(super) fn bucket_sql(table: &Table, bucket: &Bucket<'_>) -> (String, Vec<Type>) {
    let mut types = key_types(table);
    let mut arrays = Vec::with_capacity(types.len() + bucket.columns.len());
    let mut names = Vec::with_capacity(arrays.capacity());
    for (at, column) in table.key().iter().enumerate() {
        arrays.push(format!("${}::{}", at + 1, Form::of(&column.ty, false).array().1));
        names.push(format!("k{at}"));
    }
    for (at, target) in bucket.columns.iter().enumerate() {
        let column = &table.columns[usize::from(target.column)];
        let (ty, name) = Form::of(&column.ty, target.increment).array();
        types.push(ty);
        arrays.push(format!("${}::{name}", arrays.len() + 1));
        names.push(format!("c{at}"));
    }
    let source = format!("unnest({}) AS v({})", arrays.join(", "), names.join(", "));
    let sql = match bucket.op {
        Op::Insert => insert_sql(table, bucket, &source),
        Op::Update => update_sql(table, bucket, &source),
        Op::Delete => {
            format!("DELETE FROM {} AS t USING {source} WHERE {}", table.sql_name, matches(table))
        }
        Op::End => {
            let mut sql = format!(
                "DELETE FROM {} AS t USING {source} WHERE {}",
                table.sql_name,
                matches(table)
            );
            for (at, column) in targets(table, bucket) {
                sql.push_str(" AND ");
                sql.push_str(&has_ended(table, column, &format!("v.c{at}")));
            }
            sql
        }
    };
    (sql, types)
}

/// The condition that the time in a column of the table `t` has come, which is compared with an expression. A number that is
/// too small is none.
pub(super) fn has_ended(table: &Table, column: &Column, time: &str) -> String {
    let name = &column.sql_name;
    let least = least_number(table, column);
    let least = least.map(|least| format!(" AND t.{name} >= {least}")).unwrap_or_default();
    format!("t.{name} <= {}{least}", casted(time, column))
}

fn insert_sql(table: &Table, bucket: &Bucket<'_>, source: &str) -> String {
    let mut columns = Vec::new();
    let mut values = Vec::new();
    for (at, column) in table.key().iter().enumerate() {
        columns.push(column.sql_name.as_str());
        values.push(casted(&format!("v.k{at}"), column));
    }
    for (at, column) in targets(table, bucket) {
        columns.push(&column.sql_name);
        values.push(casted(&format!("v.c{at}"), column));
    }
    format!(
        "INSERT INTO {} ({}) OVERRIDING SYSTEM VALUE SELECT {} FROM {source}{}",
        table.sql_name,
        columns.join(", "),
        values.join(", "),
        on_conflict(table, bucket)
    )
}

fn update_sql(table: &Table, bucket: &Bucket<'_>, source: &str) -> String {
    let mut condition = matches(table);
    if bucket.columns.is_empty() {
        return format!(
            "SELECT 1 FROM {} AS t, {source} WHERE {condition} FOR KEY SHARE OF t",
            table.sql_name
        );
    }
    let mut sets = Vec::with_capacity(bucket.columns.len());
    for (at, column) in targets(table, bucket) {
        let name = &column.sql_name;
        let value = casted(&format!("v.c{at}"), column);
        if bucket.columns[at].increment {
            sets.push(format!("{name} = t.{name} + {value}"));
            // NULL plus an amount is NULL: the increment would vanish without a word.
            condition.push_str(&format!(" AND t.{name} IS NOT NULL"));
        } else {
            sets.push(format!("{name} = {value}"));
        }
    }
    format!(
        "UPDATE {} AS t SET {} FROM {source} WHERE {condition}",
        table.sql_name,
        sets.join(", ")
    )
}

fn targets<'a>(
    table: &'a Table,
    bucket: &'a Bucket<'_>,
) -> impl Iterator<Item = (usize, &'a Column)> {
    let column = |target: &Target| &table.columns[usize::from(target.column)];
    bucket.columns.iter().map(column).enumerate()
}

/// Finds the rows of `t` by the keys of `v`.
pub(super) fn matches(table: &Table) -> String {
    let equal = |(at, column): (usize, &Column)| {
        format!("t.{} = {}", column.sql_name, casted(&format!("v.k{at}"), column))
    };
    table.key().iter().enumerate().map(equal).collect::<Vec<_>>().join(" AND ")
}

/// The parameters of that statement for some of the bucket's rows.
pub(super) fn bucket_params(
    table: &Table,
    bucket: &Bucket<'_>,
    rows: &[usize],
) -> Result<Vec<Param>, OriginError> {
    let mut params = key_arrays(table, rows.iter().map(|&row| bucket.key(row)))?;
    for (at, column) in targets(table, bucket) {
        let form = Form::of(&column.ty, bucket.columns[at].increment);
        let mut array = Array::new(form, rows.len());
        for &row in rows {
            array.push(bucket.value(row, at), column)?;
        }
        params.push(array.finish());
    }
    Ok(params)
}

/// One array for each key column.
pub(super) fn key_arrays<'k>(
    table: &Table,
    keys: impl ExactSizeIterator<Item = &'k [u8]>,
) -> Result<Vec<Param>, OriginError> {
    let new_array = |column: &Column| Array::new(Form::of(&column.ty, false), keys.len());
    let mut arrays: Vec<_> = table.key().iter().map(new_array).collect();
    for key in keys {
        let mut reader = cells::Reader::new(key);
        for (array, column) in arrays.iter_mut().zip(table.key()) {
            let cell = reader.cell().ok_or_else(|| malformed_key(table))?;
            array.push(cell, column)?;
        }
    }
    Ok(arrays.into_iter().map(Array::finish).collect())
}

pub(super) fn key_types(table: &Table) -> Vec<Type> {
    table.key().iter().map(|column| Form::of(&column.ty, false).array().0).collect()
}

fn malformed_key(table: &Table) -> OriginError {
    OriginError::new(Fault::Failed, format!("a key of {} has too few columns", table.name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ttl::tests::ended_table;
    use crate::value::ColumnType;

    #[test]
    fn what_is_no_time_has_not_ended() {
        let int = ColumnType::Int { min: i64::MIN, max: i64::MAX };
        let zoned = ColumnType::Timestamp { zone: true, precision: 6 };
        for (ty, ttl, least) in [
            (int.clone(), "column ends", Some("1")),
            (int, "column ends ms", Some("100000000000")),
            (zoned, "column ends", None),
        ] {
            let table = ended_table(ty, ttl);
            let sql = has_ended(&table, &table.columns[1], "v.c0");
            assert!(sql.starts_with("t.ends <= "), "{sql}");
            assert_eq!(sql.split_once(" AND t.ends >= ").map(|(_, least)| least), least, "{sql}");
        }
    }
}
