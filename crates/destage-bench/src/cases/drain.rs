//! Destaging alone: updates are buffered while it is paused, then counted from the resumption to
//! the end of the drain. Each row is written once, so coalescing cannot help.

use std::time::Instant;

use super::update::{DATA_BYTES, changed_in_postgres};
use crate::Result;
use crate::bench::{Bench, cpu_us, warm};
use crate::cpu::tree_cpu;
use crate::figure::{Figure, Run, Target};
use crate::keys::Shape;
use crate::load::{Bound, Load};
use crate::servers::{Destage, Postgres, Query};

const GROUP: &str = "PostgreSQL: destaging alone";
const TABLE: &str = "bench";
const BATCH_ROWS: u64 = 1000;

pub(super) fn run(bench: &mut Bench) -> Result<()> {
    let rows = bench.options.rows;
    bench.postgres_table(TABLE, rows, 100)?;
    bench.postgres_table("direct", rows, 100)?;
    let origin = Postgres::url(bench.postgres()?.address);
    let server = bench.destage(&origin, "1s")?;
    warm(&server.address, TABLE, rows)?;
    // Buffered before the staleness bound stops the writes, with room to spare.
    let count = rows.min(1_000_000);
    let case = format!("{count} rows buffered, then destaged");
    let target = Target { per_second_min: Some(100_000.0), ..Target::NONE };
    let before = bench.figures.len();
    bench.pairs(
        GROUP,
        &case,
        "one direct connection, one UPDATE of 1,000 rows per transaction",
        target,
        |bench| drained(bench, &server, count),
        |bench| by_hand(bench, count.min(100_000)),
    );
    let note = |figure: &Figure| figure.ours.iter().filter_map(|run| run.batch_groups).collect();
    let batches: Vec<f64> =
        bench.figures[before..].iter().flat_map(note as fn(&_) -> Vec<_>).collect();
    eprintln!("groups per batch: {batches:.0?}");
    Ok(())
}

fn drained(bench: &mut Bench, server: &Destage, count: u64) -> Result<Run> {
    let tag = bench.next_tag();
    let key = format!("{TABLE}:__rand_int__");
    let mut load =
        Load::resp(server.address.clone(), &["HSET", &key, "f0", "__data__"], DATA_BYTES)?;
    (load.connections, load.pipeline, load.shape) = (16, 16, Shape::Each);
    (load.key_space, load.bound) = (count, Bound::Requests(count));
    load.template.tag(&tag);
    server.control(&["PAUSE"])?;
    let buffered = load.run().and_then(|outcome| outcome.without_errors());
    let pid = bench.postgres()?.pid();
    let (status, cpu, origin) = (server.status()?, server.cpu()?, tree_cpu(pid)?);
    let start = Instant::now();
    server.control(&["RESUME"])?;
    server.drain()?;
    let elapsed = start.elapsed();
    buffered?;
    let after = server.status()?;
    let batches = after.batches.saturating_sub(status.batches).max(1);
    let changed = changed_in_postgres(bench.postgres()?.address, TABLE, &tag)?;
    if changed != count {
        return Err(format!("{count} rows were buffered, but {changed} changed").into());
    }
    Ok(Run {
        requests: count,
        per_second: count as f64 / elapsed.as_secs_f64(),
        cpu_us: cpu_us(cpu, server.cpu()?, count),
        origin_cpu_us: Some(cpu_us(origin, tree_cpu(pid)?, count)),
        batch_groups: Some((after.destaged - status.destaged) as f64 / batches as f64),
        ..Run::default()
    })
}

/// What the same batches cost without a cache: the database's own limit.
fn by_hand(bench: &mut Bench, count: u64) -> Result<Run> {
    let server = bench.postgres()?;
    let mut session = Query::connect(server.address)?;
    let mut keys = crate::keys::Keys::new(Shape::Each, bench.options.rows, 1, 0, 1);
    let mut values = Vec::with_capacity(BATCH_ROWS as usize);
    let pid = bench.postgres()?.pid();
    let cpu = tree_cpu(pid)?;
    let start = Instant::now();
    for _ in 0..count / BATCH_ROWS {
        values.clear();
        values.extend((0..BATCH_ROWS).map(|at| format!("({},'{at:x>DATA_BYTES$}')", keys.next())));
        session.run(&format!(
            "UPDATE direct SET f0 = v.f0 FROM (VALUES {}) v(id, f0) WHERE direct.id = v.id",
            values.join(",")
        ))?;
    }
    let done = count / BATCH_ROWS * BATCH_ROWS;
    Ok(Run {
        requests: done,
        per_second: done as f64 / start.elapsed().as_secs_f64(),
        cpu_us: cpu_us(cpu, tree_cpu(pid)?, done),
        ..Run::default()
    })
}
