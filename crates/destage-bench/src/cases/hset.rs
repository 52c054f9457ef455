//! Acknowledged writes against Redis with its append-only file.
//!
//! The rate is that of the acknowledgements; destaging to the origin goes on meanwhile unless the
//! case says that it is paused. What the origin has not taken by then is drained between the runs.

use super::hits::benchmark;
use crate::Result;
use crate::bench::{Bench, Ours, cpu_us};
use crate::figure::Target;
use crate::redis_benchmark::RedisBenchmark;
use crate::servers::{Fsync, Postgres, Redis, Transport};

const GROUP: &str = "HSET, redis-benchmark, against redis-server with an append-only file";
const TABLE: &str = "bench10";

/// One combination of origin, work and destaging.
struct Variant {
    postgres: bool,
    fields: usize,
    paused: bool,
}

const VARIANTS: [Variant; 4] = [
    Variant { postgres: true, fields: 1, paused: false },
    Variant { postgres: true, fields: 1, paused: true },
    Variant { postgres: true, fields: 10, paused: false },
    Variant { postgres: false, fields: 1, paused: false },
];

/// Connections, pipeline and target.
type Depth = (usize, usize, f64);

/// `d` and what Redis does for as much.
const DEPTHS: [(&str, Fsync, &[Depth]); 2] = [
    ("1s", Fsync::EverySecond, &[(50, 1, 0.95), (50, 16, 1.2)]),
    ("0", Fsync::Always, &[(50, 1, 0.9), (50, 16, 1.2), (1, 1, 1.0)]),
];

pub(super) fn run(bench: &mut Bench) -> Result<()> {
    for postgres in [true, false] {
        let origin = origin(bench, postgres)?;
        for (commit, fsync, depths) in DEPTHS {
            let rows = bench.options.hot_rows;
            let ours = bench.ours(&origin, commit, fsync)?;
            ours.warm(TABLE, rows, 10)?;
            let redis = Redis::start(&bench.dir, fsync, Transport::Tcp)?;
            redis.preload(TABLE, rows, &ours.fields(TABLE)?)?;
            for variant in VARIANTS.iter().filter(|v| v.postgres == postgres) {
                for &(connections, pipeline, target) in depths {
                    let client = client(connections, pipeline, rows, variant.fields);
                    let sides = Sides { ours: &ours, redis: &redis, commit, fsync };
                    compare(bench, &client, variant, &sides, target)?;
                }
            }
        }
    }
    Ok(())
}

fn origin(bench: &mut Bench, postgres: bool) -> Result<String> {
    let rows = bench.options.hot_rows;
    if bench.options.control {
        return Ok(String::new());
    }
    if postgres {
        bench.postgres_table(TABLE, rows, 10)?;
        return Ok(Postgres::url(bench.postgres()?.address));
    }
    Ok(format!("sqlite:{}", bench.sqlite_table(TABLE, rows, 10)?.display()))
}

fn client(connections: usize, pipeline: usize, keys: u64, fields: usize) -> RedisBenchmark {
    let mut command = vec!["HSET".to_owned(), format!("{TABLE}:__rand_int__")];
    for field in 0..fields {
        command.extend([format!("f{field}"), "__rand_int__".to_owned()]);
    }
    RedisBenchmark { connections, pipeline, keys, command }
}

struct Sides<'a> {
    ours: &'a Ours,
    redis: &'a Redis,
    commit: &'static str,
    fsync: Fsync,
}

fn compare(
    bench: &mut Bench,
    client: &RedisBenchmark,
    variant: &Variant,
    sides: &Sides<'_>,
    target: f64,
) -> Result<()> {
    let time = bench.options.time;
    let (ours, redis) = (sides.ours, sides.redis);
    let our_requests = client.requests_for(ours.address(), time)?;
    ours.drain()?;
    let their_requests = client.requests_for(&redis.address, time)?;
    let case = format!(
        "d = {} against {}: {} field{}, {} connection{}, pipeline {}, {} origin, {}",
        sides.commit,
        if sides.fsync == Fsync::Always { "always" } else { "everysec" },
        variant.fields,
        if variant.fields == 1 { "" } else { "s" },
        client.connections,
        if client.connections == 1 { "" } else { "s" },
        client.pipeline,
        if variant.postgres { "PostgreSQL" } else { "SQLite" },
        if variant.paused { "destaging paused" } else { "destaging" },
    );
    bench.pairs(
        GROUP,
        &case,
        sides.fsync.settings(),
        Target::ratio(target),
        |bench| our_run(bench, client, variant, ours, our_requests),
        |_| benchmark(client, &redis.address, their_requests, || redis.cpu()),
    );
    Ok(())
}

fn our_run(
    bench: &mut Bench,
    client: &RedisBenchmark,
    variant: &Variant,
    ours: &Ours,
    requests: u64,
) -> Result<crate::figure::Run> {
    let with_origin = variant.postgres && !bench.options.control;
    let origin_before = if with_origin { Some(bench.postgres()?.cpu()?) } else { None };
    if variant.paused {
        ours.control("PAUSE")?;
    }
    let run = benchmark(client, ours.address(), requests, || ours.cpu());
    let origin_after = if with_origin { Some(bench.postgres()?.cpu()?) } else { None };
    if variant.paused {
        ours.control("RESUME")?;
    }
    let mut run = run?;
    run.origin_cpu_us =
        origin_before.zip(origin_after).map(|(before, after)| cpu_us(before, after, run.requests));
    ours.drain()?;
    Ok(run)
}
