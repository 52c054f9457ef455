//! Reads of cached rows against Redis.

use crate::Result;
use crate::bench::{Bench, Ours, cpu_us};
use crate::figure::{Run, Target};
use crate::redis_benchmark::RedisBenchmark;
use crate::servers::{Fsync, Redis, Transport};

const GROUP: &str = "Hits: HGETALL of 10 fields, redis-benchmark, against redis-server";

/// Field bytes and pipeline depth with their targets.
fn table() -> [(usize, usize, Target); 4] {
    let one = Target { ratio_min: Some(0.95), cpu_ratio_max: Some(0.9), ..Target::NONE };
    [(10, 1, one), (10, 16, Target::ratio(1.0)), (100, 1, one), (100, 16, Target::ratio(1.3))]
}

pub(super) fn run(bench: &mut Bench) -> Result<()> {
    for bytes in [10, 100] {
        let table_name = format!("bench{bytes}");
        let rows = bench.options.hot_rows;
        let origin = bench.sqlite_table(&table_name, rows, bytes)?;
        let ours = bench.ours(&format!("sqlite:{}", origin.display()), "0", Fsync::Off)?;
        ours.warm(&table_name, rows, bytes)?;
        let redis = Redis::start(&bench.dir, Fsync::Off, Transport::Tcp)?;
        // Redis gets the very fields that we answer with, so the replies are equally long.
        redis.preload(&table_name, rows, &ours.fields(&table_name)?)?;
        for (_, pipeline, target) in table().into_iter().filter(|row| row.0 == bytes) {
            let client = RedisBenchmark {
                connections: 50,
                pipeline,
                keys: rows,
                command: vec!["HGETALL".into(), format!("{table_name}:__rand_int__")],
            };
            compare(bench, &client, &ours, &redis, bytes, target)?;
        }
    }
    Ok(())
}

fn compare(
    bench: &mut Bench,
    client: &RedisBenchmark,
    ours: &Ours,
    redis: &Redis,
    bytes: usize,
    target: Target,
) -> Result<()> {
    let time = bench.options.time;
    let our_requests = client.requests_for(ours.address(), time)?;
    let their_requests = client.requests_for(&redis.address, time)?;
    let case = format!("{bytes}-byte fields, 50 connections, pipeline {}", client.pipeline);
    bench.pairs(
        GROUP,
        &case,
        Fsync::Off.settings(),
        target,
        |_| benchmark(client, ours.address(), our_requests, || ours.cpu()),
        |_| benchmark(client, &redis.address, their_requests, || redis.cpu()),
    );
    Ok(())
}

/// One `redis-benchmark` run with the server's CPU time around it.
pub(super) fn benchmark(
    client: &RedisBenchmark,
    address: &destage_runtime::sockets::Listen,
    requests: u64,
    cpu: impl Fn() -> Result<std::time::Duration>,
) -> Result<Run> {
    let before = cpu()?;
    let printed = client.run(address, requests)?;
    Ok(Run {
        requests: printed.requests,
        per_second: printed.per_second,
        cpu_us: cpu_us(before, cpu()?, printed.requests),
        p50_us: printed.p50_us,
        p99_us: printed.p99_us,
        ..Run::default()
    })
}
