//! Memory per cached row and per buffered write, beyond their payload.
//!
//! The payload of a row is its key, as the canonical text, and its field values; that of a buffered
//! write is the key and the value written. Names of fields are not payload.

use crate::Result;
use crate::bench::{Bench, warm};
use crate::cpu::resident_bytes;
use crate::figure::Memory;
use crate::keys::Shape;
use crate::load::{Bound, Load};
use crate::origins::FIELDS;
use crate::servers::{Destage, Fsync, Redis, Transport};

const TABLE: &str = "bench";
const FIELD_BYTES: usize = 100;

pub(super) fn run(bench: &mut Bench) -> Result<()> {
    let rows = bench.options.rows;
    let origin = bench.sqlite_table(TABLE, rows, FIELD_BYTES)?;
    let server = bench.destage(&format!("sqlite:{}", origin.display()), "1s")?;
    // One row first, so that what every process needs anyway is there before the count begins.
    warm(&server.address, TABLE, 1)?;
    let empty = resident_bytes(server.pid())?;
    warm(&server.address, TABLE, rows)?;
    let full = resident_bytes(server.pid())?;
    let status = server.status()?;
    if status.cached_units < rows {
        let cached = status.cached_units;
        return Err(format!("only {cached} of {rows} rows are cached: raise the limit").into());
    }
    let key = key_bytes(rows);
    bench.memory.push(Memory {
        what: "cached row of 10 x 100 bytes".into(),
        items: rows,
        payload_bytes: key + (FIELDS * FIELD_BYTES) as f64,
        bytes: per_item(empty, full, rows),
        limit_beyond: Some(64.0),
    });
    buffered(bench, &server, full, key)?;
    redis(bench, key)
}

fn buffered(bench: &mut Bench, server: &Destage, before: u64, key: f64) -> Result<()> {
    let rows = bench.options.rows;
    let name = format!("{TABLE}:__rand_int__");
    let mut load =
        Load::resp(server.address.clone(), &["HSET", &name, "f0", "__data__"], FIELD_BYTES)?;
    (load.connections, load.pipeline, load.shape) = (16, 16, Shape::Each);
    (load.key_space, load.bound) = (rows, Bound::Requests(rows));
    server.control(&["PAUSE"])?;
    let written = load.run().and_then(|outcome| outcome.without_errors());
    let after = resident_bytes(server.pid());
    let status = server.status();
    server.control(&["RESUME"])?;
    written?;
    server.drain()?;
    let payload_bytes = key + FIELD_BYTES as f64;
    let what = "buffered write of one field of 100 bytes".to_owned();
    bench.memory.push(Memory {
        what: format!("{what}, resident"),
        items: rows,
        payload_bytes,
        bytes: per_item(before, after?, rows),
        limit_beyond: Some(160.0),
    });
    bench.memory.push(Memory {
        what: format!("{what}, as accounted"),
        items: rows,
        payload_bytes,
        bytes: per_item(0, status?.dirty_bytes, rows),
        limit_beyond: None,
    });
    Ok(())
}

/// The same rows in Redis, for comparison.
fn redis(bench: &mut Bench, key: f64) -> Result<()> {
    let rows = bench.options.rows;
    let redis = Redis::start(&bench.dir, Fsync::Off, Transport::Tcp)?;
    let empty = resident_bytes(redis.pid())?;
    let fields: Vec<_> =
        (0..FIELDS).map(|at| (format!("f{at}"), "x".repeat(FIELD_BYTES))).collect();
    redis.preload(TABLE, rows, &fields)?;
    bench.memory.push(Memory {
        what: "the same row as a hash in redis-server".into(),
        items: rows,
        payload_bytes: key + (FIELDS * FIELD_BYTES) as f64,
        bytes: per_item(empty, resident_bytes(redis.pid())?, rows),
        limit_beyond: None,
    });
    Ok(())
}

/// Mean length of `bench:0` to `bench:rows-1`.
fn key_bytes(rows: u64) -> f64 {
    let mut digits = 0u64;
    let (mut from, mut width) = (0u64, 1u64);
    while from < rows {
        let to = 10u64.pow(width as u32).min(rows);
        digits += (to - from) * width;
        (from, width) = (to, width + 1);
    }
    TABLE.len() as f64 + 1.0 + digits as f64 / rows as f64
}

fn per_item(before: u64, after: u64, items: u64) -> f64 {
    after.saturating_sub(before) as f64 / items as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mean_key_length_counts_every_digit() {
        for rows in [1u64, 10, 11, 1234] {
            let sum: usize = (0..rows).map(|id| format!("{TABLE}:{id}").len()).sum();
            assert!((key_bytes(rows) - sum as f64 / rows as f64).abs() < 1e-9, "{rows}");
        }
    }
}
