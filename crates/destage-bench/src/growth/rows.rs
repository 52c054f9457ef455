//! Rows that are cached, and writes that the origin has not decided.

use std::time::Instant;

use super::curve::{Curve, Point, sizes};
use super::{EACH, FLAT, FREE, Growth, KEPT, LINEAR, MIB, measure};
use crate::Result;
use crate::bench::{cpu_us, warm};
use crate::cpu::resident_bytes;
use crate::keys::Shape;
use crate::load::{Bound, Load};
use crate::origins::{fill_postgres, fill_sqlite};
use crate::servers::{DestageConfig, Postgres, Transport};

const TABLE: &str = "grown";
/// Of each of the ten fields.
const FIELD_BYTES: usize = 10;
/// Of a value that is written: what tells the size it belongs to, and a number.
const VALUE_BYTES: usize = 24;
const CONNECTIONS: usize = 16;

/// Memory for each cached row, and what a hit costs.
pub(super) fn cached(growth: &Growth, largest: u64) -> Result<Vec<Curve>> {
    let path = growth.dir.join("rows.db");
    fill_sqlite(&path, TABLE, largest, FIELD_BYTES)?;
    let origin = format!("sqlite:{}", path.display());
    let mut points = Vec::new();
    for rows in sizes(10_000.min(largest / 10), largest, 10) {
        let server = growth.start(&growth.config(origin.clone(), &[]))?;
        warm(&server.address, TABLE, 1)?;
        let empty = resident_bytes(server.pid())?;
        warm(&server.address, TABLE, rows)?;
        let full = resident_bytes(server.pid())?;
        let status = server.status()?;
        if status.cached_units < rows {
            return Err(format!("only {} of {rows} rows are cached", status.cached_units).into());
        }
        let key = format!("{TABLE}:__rand_int__");
        let mut load = Load::resp(server.address.clone(), &["HGET", &key, "f0"], 0)?;
        (load.connections, load.pipeline, load.seed) = (CONNECTIONS, 16, growth.seed);
        (load.key_space, load.bound) = (rows, Bound::Time(growth.time));
        let before = server.cpu()?;
        let hits = load.run()?.without_errors()?;
        let cost = cpu_us(before, server.cpu()?, hits.requests);
        let bytes = full.saturating_sub(empty) as f64;
        points.push(Point::new(
            rows,
            vec![bytes / MIB, bytes / rows as f64, hits.per_second(), cost],
        ));
    }
    std::fs::remove_file(&path)?;
    Ok(vec![Curve {
        title: "cached rows",
        note: format!(
            "Rows of 10 x {FIELD_BYTES} bytes from SQLite, each read once. Then uniform HGETs of them, {CONNECTIONS} \
             connections with 16 under way on each; the time is the server's."
        ),
        axis: "rows",
        measures: vec![
            measure("memory, MiB", 1, LINEAR),
            measure("memory for each row, bytes", 0, EACH),
            measure("hits/s", 0, FREE),
            measure("CPU for each hit, µs", 2, FLAT),
        ],
        points,
    }])
}

/// Memory for each undecided write, the start after a kill, and the drain.
pub(super) fn undecided(growth: &Growth, largest: u64) -> Result<Vec<Curve>> {
    let origin = Postgres::start(&growth.dir, Transport::Tcp)?;
    fill_postgres(&mut origin.query()?, TABLE, largest, FIELD_BYTES)?;
    let config = growth.config(Postgres::url(origin.address), &KEPT);
    // All of them must outlive the kill.
    let config = DestageConfig { commit: "0".into(), ..config };
    let mut points = Vec::new();
    for writes in sizes(1_000.min(largest / 10), largest, 10) {
        let server = growth.start(&config)?;
        warm(&server.address, TABLE, writes)?;
        let before = resident_bytes(server.pid())?;
        let key = format!("{TABLE}:__rand_int__");
        let mut load =
            Load::resp(server.address.clone(), &["HSET", &key, "f0", "__data__"], VALUE_BYTES)?;
        (load.connections, load.pipeline, load.shape) = (CONNECTIONS, 16, Shape::Each);
        (load.key_space, load.bound) = (writes, Bound::Requests(writes));
        let tag = format!("{writes}-");
        load.template.tag(&tag);
        load.run()?.without_errors()?;
        let full = resident_bytes(server.pid())?;
        let server = server.start_again(&growth.dir, &config)?;
        let status = server.status()?;
        if status.last - status.decided < writes {
            return Err(format!("{writes} writes were not kept over a kill: {status:?}").into());
        }
        let again = resident_bytes(server.pid())?;
        let cpu = server.cpu()?.as_secs_f64();
        let start = Instant::now();
        server.drain()?;
        let drained = start.elapsed().as_secs_f64();
        let sql = format!("SELECT count(*) FROM {TABLE} WHERE f0 LIKE '{tag}%'");
        let found = origin.query()?.run(&sql)?;
        if found != Some(writes.to_string()) {
            return Err(format!("the origin holds {found:?} of {writes} writes").into());
        }
        let bytes = full.saturating_sub(before) as f64;
        points.push(Point::new(
            writes,
            vec![
                bytes / writes as f64,
                server.started_in.as_secs_f64(),
                cpu,
                again as f64 / MIB,
                drained,
                writes as f64 / drained,
            ],
        ));
    }
    Ok(vec![Curve {
        title: "undecided writes",
        note: format!(
            "One field of {VALUE_BYTES} bytes of each of so many cached rows; nothing is destaged meanwhile. Then kill -9, a start \
             over the same journal, and a drain. PostgreSQL held each write afterwards."
        ),
        axis: "undecided writes",
        measures: vec![
            measure("memory for each, bytes", 0, EACH),
            measure("start, s", 3, LINEAR),
            measure("CPU of it, s", 2, LINEAR),
            measure("memory after it, MiB", 1, LINEAR),
            measure("drain, s", 2, LINEAR),
            measure("drained/s", 0, FREE),
        ],
        points,
    }])
}
