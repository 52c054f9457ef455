//! Updates through Destage against SQLite in the client's own process, synchronous=FULL.
//!
//! The peer pays for no socket and no server; that is what a program without a cache would do.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rusqlite::Connection;

use super::update::{Client, DATA_BYTES, through_destage};
use crate::Result;
use crate::bench::{Bench, cpu_us, warm};
use crate::cpu::own_cpu;
use crate::figure::{Run, Target};
use crate::keys::Keys;

const GROUP: &str = "SQLite, synchronous=FULL: one-field updates, counted to the end of the drain";
const TABLE: &str = "bench";

pub(super) fn run(bench: &mut Bench) -> Result<()> {
    let rows = bench.options.rows;
    let origin = bench.sqlite_table(TABLE, rows, 100)?;
    let direct = bench.dir.join("direct.db");
    if !direct.exists() {
        std::fs::copy(&origin, &direct)?;
    }
    for commit in ["0", "1s"] {
        let server = bench.destage(&format!("sqlite:{}", origin.display()), commit)?;
        warm(&server.address, TABLE, rows)?;
        for (connections, pipeline) in [(1, 1), (16, 1), (16, 16)] {
            let client = Client::uniform(connections, pipeline);
            bench.pairs(
                GROUP,
                &format!("d = {commit}, {}", client.text()),
                &format!("rusqlite, WAL, one transaction per update, {connections} threads"),
                Target::ratio(5.0),
                |bench| {
                    let changed = |tag: &str| changed(&origin, tag);
                    through_destage(bench, &server, TABLE, client, || Ok(None), changed)
                },
                |bench| directly(bench, &direct, client),
            );
        }
    }
    Ok(())
}

fn changed(path: &Path, tag: &str) -> Result<u64> {
    let connection = Connection::open(path)?;
    connection.busy_timeout(Duration::from_secs(60))?;
    let sql = format!("SELECT count(*) FROM {TABLE} WHERE substr(f0, 1, ?2) = ?1");
    Ok(connection.query_row(&sql, (tag, tag.len()), |row| row.get(0))?)
}

fn directly(bench: &mut Bench, path: &Path, client: Client) -> Result<Run> {
    let options = bench.options.clone();
    let before = own_cpu()?;
    let start = Instant::now();
    let counts = thread::scope(|scope| {
        let writers: Vec<_> = (0..client.connections)
            .map(|lane| {
                let lanes = client.connections as u64;
                let shape = client.shape;
                let keys = Keys::new(shape, options.rows, options.seed, lane as u64, lanes);
                scope.spawn(move || write(path, keys, start + options.time))
            })
            .collect();
        writers
            .into_iter()
            .map(|t| t.join().map_err(|_| "a writer panicked".into()).flatten())
            .collect::<Result<Vec<u64>>>()
    })?;
    let elapsed = start.elapsed();
    let requests: u64 = counts.iter().sum();
    Ok(Run {
        requests,
        per_second: requests as f64 / elapsed.as_secs_f64(),
        cpu_us: cpu_us(before, own_cpu()?, requests),
        ..Run::default()
    })
}

/// One connection's updates until `deadline`.
fn write(path: &Path, mut keys: Keys, deadline: Instant) -> Result<u64> {
    let connection = Connection::open(path)?;
    connection.busy_timeout(Duration::from_secs(60))?;
    connection.pragma_update(None, "journal_mode", "wal")?;
    connection.pragma_update(None, "synchronous", "full")?;
    let mut update = connection.prepare(&format!("UPDATE {TABLE} SET f0 = ?1 WHERE id = ?2"))?;
    let mut count = 0u64;
    while Instant::now() < deadline {
        update.execute((format!("{count:x>DATA_BYTES$}"), keys.next() as i64))?;
        count += 1;
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::Shape;
    use crate::origins::fill_sqlite;

    #[test]
    fn direct_writers_share_one_file() {
        let dir = tempfile::tempdir().expect("temp folder");
        let path = dir.path().join("t.db");
        fill_sqlite(&path, TABLE, 100, 10).expect("filled");
        let deadline = Instant::now() + Duration::from_millis(200);
        thread::scope(|scope| {
            for lane in 0..2 {
                let path = &path;
                scope.spawn(move || {
                    let keys = Keys::new(Shape::Uniform, 100, 1, lane, 2);
                    assert!(write(path, keys, deadline).expect("writes") > 0);
                });
            }
        });
        assert!(changed(&path, "xxx").expect("counts") > 0);
        assert_eq!(changed(&path, "run00001.").expect("counts"), 0);
    }
}
