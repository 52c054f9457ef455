//! What the database holds, against what was acknowledged.

use std::collections::HashMap;
use std::path::Path;

use crate::Result;
use crate::servers::Postgres;
use crate::tpcc::Sql;

/// How many records were written, and of how many the database does not hold the last acknowledged write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Verdict {
    pub(super) acknowledged: u64,
    /// The row is missing, or holds an earlier write.
    pub(super) lost: u64,
    /// The row is there, although its deletion was acknowledged after it was written.
    pub(super) back: u64,
}

impl Verdict {
    pub(super) fn is_clean(self) -> bool {
        self.lost + self.back == 0
    }

    /// `last` has the serial number of each record's last acknowledged write, below zero if that was a deletion; `found` has
    /// those of the table. A write that nobody was told of may be there or not. `except` is left out.
    fn of(last: &[i64], found: &HashMap<i64, i64>, except: Option<u64>) -> Self {
        let mut verdict = Self::default();
        for (key, &last) in (0_u64..).zip(last) {
            if last == 0 || except == Some(key) {
                continue;
            }
            verdict.acknowledged += 1;
            let there = found.get(&key.cast_signed()).copied();
            if last > 0 {
                verdict.lost += u64::from(there.is_none_or(|serial| serial < last));
            } else {
                verdict.back += u64::from(there.is_some_and(|serial| serial < -last));
            }
        }
        verdict
    }
}

/// The numbers in the file that the clients keep, one for each record.
fn numbers(acknowledged: &Path) -> Result<Vec<i64>> {
    let bytes = std::fs::read(acknowledged)?;
    let (numbers, rest) = bytes.as_chunks::<8>();
    assert!(rest.is_empty(), "the file holds whole numbers");
    Ok(numbers.iter().map(|number| i64::from_le_bytes(*number)).collect())
}

/// Records of which a write was acknowledged.
///
/// # Errors
///
/// The file cannot be read.
pub(super) fn written(acknowledged: &Path) -> Result<usize> {
    Ok(numbers(acknowledged)?.iter().filter(|&&last| last != 0).count())
}

/// Compares a table with the file that the clients keep.
///
/// # Errors
///
/// Either cannot be read.
pub(super) fn judge(
    origin: &Postgres,
    table: &str,
    acknowledged: &Path,
    except: Option<u64>,
) -> Result<Verdict> {
    let last = numbers(acknowledged)?;
    let mut session = Sql::open(&Postgres::url(origin.address))?;
    // What was written after the first digits of a refused value is no number of ours either.
    let rows = session.numbers(&format!("SELECT id, left(v, 12)::bigint FROM {table}"))?;
    let found = rows.iter().map(|row| (row[0], row[1])).collect();
    Ok(Verdict::of(&last, &found, except))
}

/// The order in which a table's rows were written, from the database's own log.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Order {
    /// Writes that came once more.
    pub(super) twice: i64,
    /// Writes that came after a later one of the same record.
    pub(super) late: i64,
}

/// Follows what is written from now on.
pub(super) fn follow(origin: &Postgres) -> Result<()> {
    let sql = format!("SELECT pg_create_logical_replication_slot('{SLOT}', 'test_decoding')");
    origin.query()?.run(&sql).map(drop)
}

/// What was written to `table` since [`follow`], which ends.
pub(super) fn followed(origin: &Postgres, table: &str) -> Result<Order> {
    let mut session = Sql::open(&Postgres::url(origin.address))?;
    let rows = session.numbers(&format!(
        "WITH written AS (
           SELECT number, substring(data from 'id.bigint.:(\\d+)')::bigint AS id,
             substring(data from 'v.text.:.(\\d{{12}})')::bigint AS serial
           FROM pg_logical_slot_get_changes('{SLOT}', NULL, NULL) WITH ORDINALITY AS change(lsn, xid, data, number)
           WHERE data ~ '^table public.{table}: (INSERT|UPDATE):'
         ), placed AS (
           SELECT id, serial, max(serial) OVER (PARTITION BY id ORDER BY number
             ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before FROM written
         )
         SELECT count(*) - count(DISTINCT (id, serial)), count(*) FILTER (WHERE serial < before) FROM placed"
    ))?;
    session.run(&format!("SELECT pg_drop_replication_slot('{SLOT}')"))?;
    let row = rows.first().ok_or("no row of counts")?;
    Ok(Order { twice: row[0], late: row[1] })
}

const SLOT: &str = "followed";

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(last: &[i64], found: &[(i64, i64)], except: Option<u64>) -> (u64, u64, u64) {
        let verdict = Verdict::of(last, &found.iter().copied().collect(), except);
        (verdict.acknowledged, verdict.lost, verdict.back)
    }

    #[test]
    fn what_is_there_as_it_was_acknowledged_is_clean() {
        assert_eq!(verdict(&[3, 0, -5], &[(0, 3)], None), (2, 0, 0));
        // One that nobody was told of may have come after it.
        assert_eq!(verdict(&[3, 0, -5], &[(0, 4), (1, 1), (2, 6)], None), (2, 0, 0));
    }

    #[test]
    fn missing_and_old_rows_and_such_that_came_back_are_counted() {
        assert_eq!(verdict(&[3, 7, -5, 9], &[(1, 6), (2, 4), (3, 9)], None), (4, 2, 1));
        assert_eq!(verdict(&[3, 7], &[(1, 7)], Some(0)), (1, 0, 0));
    }
}
