//! How many block accesses per second of processor time one thread simulates, per policy and cache size, with the trace in
//! memory; and how many times as long that takes as to count the same accesses in a hash map of blocks.
//!
//! `cargo run --release -p destage-sim --example hit_rate -- TRACE`

use destage_sim::hits::{Hits, Replacements, Setup};
use destage_sim::trace::{Extent, Options, Request, Trace};
use hashbrown::HashMap;
use rustix::time::{ClockId, clock_gettime};
use std::error::Error;
use std::path::Path;

/// The best of so many runs counts, since others use the machine too.
const RUNS: u32 = 5;

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("name a trace")?;
    let started = processor_seconds();
    let trace = Trace::open(Path::new(&path), &Options::default())?;
    let requests: Vec<Request> = trace.collect::<Result<_, _>>()?;
    let seconds = processor_seconds() - started;
    println!(
        "read {} requests, {:.1} million/s",
        requests.len(),
        requests.len() as f64 / seconds / 1e6
    );
    let plain = (0..RUNS).map(|_| plain_rate(&requests)).fold(0.0, f64::max);
    println!("a hash map of blocks: {:.1} million block accesses/s", plain / 1e6);
    for (name, replacement) in Replacements::ALL {
        for flash_blocks in [1 << 13, 1 << 16, 1 << 18] {
            let ram_replacement = Replacements::Lru;
            let setup = Setup { replacement, ram_replacement, ram_blocks: 0, flash_blocks };
            let mut best = 0.0f64;
            let mut ratio = 0.0;
            for _ in 0..RUNS {
                let mut hits = Hits::new(4_096, &[setup])?;
                let started = processor_seconds();
                hits.requests(&requests)?;
                let outcome = hits.finish()[0].1.total().blocks;
                best = best.max(outcome.all as f64 / (processor_seconds() - started));
                ratio = outcome.ratio();
            }
            println!(
                "{name:<8} {flash_blocks:>7} blocks: {:>6.1} million block accesses/s, {:.2} times as long, {:.2} % hits",
                best / 1e6,
                plain / best,
                ratio * 100.0
            );
        }
    }
    Ok(())
}

/// Block accesses per second, counted by block.
fn plain_rate(requests: &[Request]) -> f64 {
    let started = processor_seconds();
    let mut counts: HashMap<u64, u32> = HashMap::new();
    let mut all = 0u64;
    for request in requests {
        let Extent::Range { offset, bytes, .. } = request.extent else { continue };
        for block in offset / 4_096..(offset + bytes).div_ceil(4_096) {
            *counts.entry(block).or_default() += 1;
            all += 1;
        }
    }
    std::hint::black_box(&counts);
    all as f64 / (processor_seconds() - started)
}

/// What this thread has used: others use the machine too.
fn processor_seconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
