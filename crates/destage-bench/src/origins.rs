//! Tables to measure on: `id` and ten text fields, `f0` to `f9`.

use std::path::Path;

use rusqlite::Connection;

use crate::Result;
use crate::servers::Query;

/// Fields per row.
pub(crate) const FIELDS: usize = 10;

/// Creates and fills `table` in the SQLite file at `path`.
pub(crate) fn fill_sqlite(path: &Path, table: &str, rows: u64, bytes: usize) -> Result<()> {
    let mut connection = Connection::open(path)?;
    connection.pragma_update(None, "journal_mode", "wal")?;
    let columns = columns("TEXT");
    let marks = ["?"; FIELDS + 1].join(", ");
    connection
        .execute_batch(&format!("CREATE TABLE {table} (id INTEGER PRIMARY KEY, {columns})"))?;
    let transaction = connection.transaction()?;
    let mut insert = transaction.prepare(&format!("INSERT INTO {table} VALUES ({marks})"))?;
    let mut row: Vec<String> = vec![String::new(); FIELDS + 1];
    for id in 0..rows {
        row[0] = id.to_string();
        for (field, value) in row[1..].iter_mut().enumerate() {
            *value = format!("{:x<bytes$.bytes$}", format!("{field}{id}"));
        }
        insert.execute(rusqlite::params_from_iter(&row))?;
    }
    drop(insert);
    transaction.commit()?;
    connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?;
    Ok(())
}

/// Creates and fills `table`, then cleans up after it, so that the runs do not pay for the load.
pub(crate) fn fill_postgres(
    session: &mut Query,
    table: &str,
    rows: u64,
    bytes: usize,
) -> Result<()> {
    let columns = columns("text");
    let values: Vec<String> =
        (0..FIELDS).map(|field| format!("rpad('{field}' || g, {bytes}, 'x')")).collect();
    session.run(&format!("CREATE TABLE {table} (id bigint PRIMARY KEY, {columns})"))?;
    session.run(&format!(
        "INSERT INTO {table} SELECT g, {} FROM generate_series(0, {rows}::bigint - 1) g",
        values.join(", ")
    ))?;
    session.run(&format!("VACUUM ANALYZE {table}"))?;
    session.run("CHECKPOINT")?;
    Ok(())
}

fn columns(kind: &str) -> String {
    (0..FIELDS).map(|field| format!("f{field} {kind}")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filled_table_has_its_rows_and_widths() {
        let dir = tempfile::tempdir().expect("temp folder");
        let path = dir.path().join("t.db");
        fill_sqlite(&path, "t", 50, 10).expect("filled");
        let connection = Connection::open(&path).expect("opens");
        let sql = "SELECT count(*), min(length(f0)), max(length(f9)), max(id) FROM t";
        let row: (u64, u64, u64, u64) = connection
            .query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))
            .expect("one row");
        assert_eq!(row, (50, 10, 10, 49));
    }
}
