//! How many requests and block accesses per second of processor time one thread simulates with devices, and what that is in
//! services of devices, with the trace in memory. The same blocks in hit-ratio mode stand beside it.
//!
//! `cargo run --release -p destage-sim --example event_rate -- TRACE`

use destage_core::When;
use destage_runtime::units::{Bytes, Interval};
use destage_sim::hits::{Hits, Replacements, Setup};
use destage_sim::machine::{Settings, Start, Tier, WritePolicy, run};
use destage_sim::trace::{Options, Request, Trace};
use rustix::time::{ClockId, clock_gettime};
use std::convert::Infallible;
use std::error::Error;
use std::path::Path;

/// The best of so many runs counts, since others use the machine too.
const RUNS: u32 = 5;
/// The flash, bytes.
const FLASH: u64 = 256 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("name a trace")?;
    let only = std::env::args().nth(2);
    let trace = Trace::open(Path::new(&path), &Options::default())?;
    let requests: Vec<Request> = trace.collect::<Result<_, _>>()?;
    let hit_nanos = hit_nanos(&requests)?;
    println!("hit ratios only: {hit_nanos:.0} ns/block");
    for (name, policy, when, staleness) in [
        ("write-through", WritePolicy::WriteThrough, When::Async, Interval::NONE),
        ("write-back", WritePolicy::WriteBack, When::Async, Interval::NONE),
        (
            "write-back, 30 s",
            WritePolicy::WriteBack,
            When::Periodic { every: "30s".parse::<Interval>()?.span() },
            Interval::NONE,
        ),
        ("ordered", WritePolicy::Ordered, When::Adaptive, "30s".parse()?),
        ("journaled", WritePolicy::Journaled, When::Adaptive, "30s".parse()?),
    ] {
        if only.as_ref().is_some_and(|only| only != name) {
            continue;
        }
        let tier = Tier { size: Bytes(FLASH), policy, when, staleness, ..Tier::default() };
        let settings = Settings { flash: tier, start: Start::Warm, ..Settings::default() };
        let mut best = f64::MAX;
        let (mut blocks, mut services, mut hash) = (0, 0, String::new());
        for _ in 0..RUNS {
            let started = processor_seconds();
            let report = run(requests.iter().map(|&r| Ok::<_, Infallible>(r)), &settings)?;
            best = best.min(processor_seconds() - started);
            blocks = report.reads.counts.blocks.all + report.writes.counts.blocks.all;
            services = report.stations.iter().map(|load| load.served).sum();
            hash = report.hash;
        }
        let per_block = best * 1e9 / blocks as f64;
        println!(
            "{name:<17} {:>5.2} M requests/s, {:>5.1} M blocks/s; {:.1} services a request; {:.0} ns/service, {per_block:.0} \
             ns/block: {:.1} times hit-ratio mode; {hash}",
            requests.len() as f64 / best / 1e6,
            blocks as f64 / best / 1e6,
            services as f64 / requests.len() as f64,
            best * 1e9 / services as f64,
            per_block / hit_nanos,
        );
    }
    Ok(())
}

/// The same blocks through the same policy without times, nanoseconds each.
fn hit_nanos(requests: &[Request]) -> Result<f64, Box<dyn Error>> {
    let setup = Setup {
        replacement: Replacements::S3Fifo,
        ram_replacement: Replacements::Lru,
        ram_blocks: 0,
        flash_blocks: FLASH / 4_096,
    };
    let mut best = f64::MAX;
    for _ in 0..RUNS {
        let mut hits = Hits::new(4_096, &[setup])?;
        let started = processor_seconds();
        for request in requests {
            hits.request(request)?;
        }
        let blocks = hits.finish()[0].1.total().blocks.all;
        best = best.min((processor_seconds() - started) * 1e9 / blocks as f64);
    }
    Ok(best)
}

/// What this thread has used: others use the machine too.
fn processor_seconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
