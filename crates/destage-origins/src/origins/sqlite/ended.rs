//! Rows that have ended: their keys, and the clock.

use super::error::classify;
use super::reader::{bind_key, key_of, names};
use super::types;
use crate::cells::Cell;
use crate::contract::{EndedAsk, EndedKeys, OriginError};
use crate::origins::quote::join;
use crate::schema::{Column, Schema, Table};
use crate::ttl::{Ttl, cutoff_of, index_statement, is_referenced, least_number};
use rusqlite::Connection;

/// Rounded, for half of all milliseconds come out a little too small.
const CLOCK: &str = "SELECT CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER)";

/// The condition that the time in a column has come, which is compared with a parameter. What is no such time is none that
/// ever comes.
pub(super) fn has_ended(table: &Table, column: &Column, parameter: usize) -> String {
    let name = &column.sql_name;
    match least_number(table, column) {
        Some(least) => {
            format!("(typeof({name}) = 'integer' AND {name} <= ?{parameter} AND {name} >= {least})")
        }
        // The first two comparisons are of texts, for which an index on the column will do: a text begins with its date, which
        // a zone moves by 14 hours at most. Neither bound may look like a number.
        None => format!(
            "({name} >= '0000-' AND {name} < date(?{parameter}, '+2 days') \
             AND {name} GLOB '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]*' \
             AND julianday({name}) <= julianday(?{parameter}))"
        ),
    }
}

pub(super) fn clock_ms(connection: &Connection) -> Result<i64, OriginError> {
    connection
        .query_row(CLOCK, [], |row| row.get(0))
        .map_err(|error| classify(&error, "cannot read the clock"))
}

pub(super) fn missing_index(
    connection: &Connection,
    table: &Table,
) -> Result<Option<String>, OriginError> {
    const SQL: &str = "SELECT EXISTS (SELECT 1 FROM pragma_index_list(?1) AS l, pragma_index_info(l.name) AS x \
                       WHERE x.seqno = 0 AND x.name = ?2 COLLATE NOCASE)";
    let Some(ttl) = &table.ttl else { return Ok(None) };
    let names = [&table.name, &table.columns[ttl.column].name];
    let found: bool = connection
        .query_row(SQL, names, |row| row.get(0))
        .map_err(|error| classify(&error, "cannot look for an index"))?;
    Ok((!found).then(|| index_statement("CREATE INDEX", table, ttl)))
}

pub(super) fn read(
    connection: &Connection,
    schema: &Schema,
    ask: &EndedAsk,
) -> Result<EndedKeys, OriginError> {
    let table = schema.table(ask.table);
    let clock_ms = clock_ms(connection)?;
    let (ttl, cutoff_ms, cutoff) = cutoff_of(table, ask, clock_ms)?;
    let keys = read_keys(connection, schema, (ttl, &cutoff), ask);
    let doing = || format!("cannot look for rows of {} that have ended", table.name);
    let keys = keys.map_err(|error| classify(&error, &doing()))?;
    Ok(EndedKeys { keys, clock_ms, cutoff_ms })
}

fn read_keys(
    connection: &Connection,
    schema: &Schema,
    (ttl, cutoff): (&Ttl, &[u8]),
    ask: &EndedAsk,
) -> rusqlite::Result<Vec<(Box<[u8]>, bool)>> {
    let (table, after) = (schema.table(ask.table), ask.after.as_deref());
    let (key, column) = (names(table.key()), &table.columns[ttl.column]);
    // Old tables may hold NULL in their keys; no key reaches those rows.
    let present = table.key().iter().map(|c| format!(" AND {} IS NOT NULL", c.sql_name));
    let mut condition = has_ended(table, column, 2) + &join(present, "");
    if after.is_some() {
        let places = join((0..table.key_len).map(|i| format!("?{}", i + 3)), ", ");
        condition.push_str(&format!(" AND ({key}) > ({places})"));
    }
    let sql = format!(
        "SELECT {key}, ({}) FROM {} AS t WHERE {condition} ORDER BY {key} LIMIT ?1",
        is_referenced(schema, table),
        table.sql_name
    );
    let mut statement = connection.prepare_cached(&sql)?;
    statement.raw_bind_parameter(1, i64::try_from(ask.limit).unwrap_or(i64::MAX))?;
    types::bind(&mut statement, 2, &column.ty, Cell::Value(cutoff))?;
    bind_key(&mut statement, 3, table, after)?;
    let mut keys = Vec::new();
    let mut rows = statement.raw_query();
    while let Some(row) = rows.next()? {
        keys.push((key_of(row, table)?, row.get(table.key_len)?));
    }
    Ok(keys)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ttl::tests::ended_table;
    use crate::value::ColumnType;
    use proptest::prelude::*;
    use rusqlite::types::Value;

    /// Whether SQLite takes a value for a time that came at the cutoff.
    fn ended(connection: &Connection, table: &Table, value: &Value, cutoff: &Value) -> bool {
        let condition = has_ended(table, &table.columns[1], 2);
        let sql = format!("SELECT coalesce({condition}, 0) FROM (SELECT ?1 AS ends)");
        connection.query_row(&sql, [value, cutoff], |row| row.get(0)).unwrap()
    }

    /// Texts near to those that SQLite takes for a time.
    fn texts() -> impl Strategy<Value = String> {
        let space = || "[ \\t\\n\\x0b\\x0c\\rT]{0,2}";
        let zone = "|Z|z|[+-](0[0-9]|1[0-6]):[0-6][0-9]|[+-]0[0-9]";
        let time = "([01][0-9]|2[0-5]):[0-6][0-9](:[0-6][0-9](\\.[0-9]{0,4})?)?";
        let date = "(19[0-9]{2}|20[0-3][0-9])-(0[0-9]|1[0-3])-[0-3][0-9]";
        (date, space(), proptest::option::of((time, space(), zone, space()))).prop_map(
            |(date, space, time)| match time {
                Some((time, before, zone, after)) => {
                    format!("{date}{space}{time}{before}{zone}{after}")
                }
                None => date + &space,
            },
        )
    }

    proptest! {
        #[test]
        fn texts_end_as_they_do_in_the_cache(text in texts()) {
            let connection = Connection::open_in_memory().unwrap();
            let table = ended_table(ColumnType::SqliteNumeric, "column ends");
            let ttl = table.ttl.as_ref().unwrap();
            let here = ttl.end_of(text.as_bytes());
            let read = "SELECT (julianday(?1) - 2440587.5) * 86400000";
            let there: Option<f64> =
                connection.query_row(read, [&text], |row| row.get(0)).unwrap();
            // SQLite rounds to the nearest millisecond.
            let is_same = match (here, there) {
                (Some(here), Some(there)) => (-0.5..1.5).contains(&(here as f64 - there)),
                (here, there) => here.is_none() && there.is_none(),
            };
            prop_assert!(is_same, "{text:?}: {here:?} {there:?}");
            let Some(here) = here else { return Ok(()) };
            for (cutoff, is_ended) in [(here + 1, true), (here - 2, false)] {
                let cutoff = String::from_utf8(ttl.cutoff(cutoff).unwrap()).unwrap();
                let told = ended(&connection, &table, &text.clone().into(), &cutoff.into());
                // No time before 1970 is given.
                prop_assert!(told == is_ended || here < 3, "{text:?}");
            }
        }
    }

    #[test]
    fn numbers_end_as_they_do_in_the_cache() {
        let connection = Connection::open_in_memory().unwrap();
        let now = 1_769_866_620;
        for (text, now) in [("column ends", now), ("column ends ms", now * 1_000)] {
            let table = ended_table(ColumnType::Int { min: i64::MIN, max: i64::MAX }, text);
            let ttl = table.ttl.as_ref().unwrap();
            let now_ms = ttl.end_of(now.to_string().as_bytes()).unwrap();
            let mut count = 0;
            for number in [
                i64::MIN,
                -1,
                0,
                1,
                99_999_999_999,
                100_000_000_000,
                now - 1,
                now,
                now + 1,
                i64::MAX,
            ] {
                let here =
                    ttl.end_of(number.to_string().as_bytes()).is_some_and(|end| end <= now_ms);
                let there = ended(&connection, &table, &number.into(), &now.into());
                assert_eq!(here, there, "{text}: {number}");
                count += u32::from(here);
            }
            assert_eq!(count, 3, "{text}");
        }
    }
}
