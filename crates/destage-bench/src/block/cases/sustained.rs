//! Sustained load: three times the log and more, counted until everything is at the origin.

use std::cell::RefCell;
use std::time::Instant;

use crate::Result;
use crate::block::bench::{BlockBench, Comparison, Disk, POLICIES, Sizes, Volume};
use crate::figure::{Run, Target};
use crate::fio::{Job, Spread, Until};

const GROUP: &str = "Sustained: three times the log, 4 KiB, depth 32, a flush after 32, disk flash, counted to the end of the drain";

/// How often the log is written.
const ROUNDS: u64 = 3;
/// The least there is, so that a slow disk can keep up with the benchmark's patience.
const LOG_BYTES: u64 = 32 << 20;

pub(super) fn run(bench: &mut BlockBench) -> Result<()> {
    let sizes = Sizes { log: LOG_BYTES, ..Sizes::of(bench.options.region, LOG_BYTES / 5 * 2) };
    let mut volume = Volume::start(bench, Disk::new("flash"), sizes, "journaled")?;
    volume.lay_out(bench)?;
    let volume = RefCell::new(volume);
    // A quick run does not wait for what it shows nothing of.
    let bytes = if bench.options.is_quick { LOG_BYTES / 8 } else { LOG_BYTES * ROUNDS };
    for (spread, name) in [(Spread::Zipfian, "zipfian"), (Spread::Uniform, "uniform")] {
        let random = bench.random("randwrite");
        let until =
            Until { time: Job::whole("write", LOG_BYTES).until.time, bytes_max: Some(bytes) };
        let job = Job { depth: 32, flush_every: 32, spread, until, ..random };
        let side = |policy: &'static str| {
            let volume = &volume;
            move |bench: &mut BlockBench| sustain(bench, &mut volume.borrow_mut(), policy, &job)
        };
        let [mut through, mut back, mut ordered, mut journaled] = POLICIES.map(side);
        let is_zipfian = spread == Spread::Zipfian;
        let target =
            |ratio: Option<f64>| ratio.filter(|_| is_zipfian).map_or(Target::NONE, Target::ratio);
        let comparison = |ours: usize, theirs: usize, ratio: Option<f64>| Comparison {
            group: GROUP,
            case: format!("{name} overwrites: {} against {}", POLICIES[ours], POLICIES[theirs]),
            peer: format!("{}, the same disk", POLICIES[theirs]),
            ours,
            theirs,
            target: target(ratio),
        };
        let comparisons = vec![
            comparison(1, 0, None),
            comparison(2, 0, Some(0.95)),
            comparison(3, 0, Some(1.5)),
            comparison(3, 1, Some(0.95)),
        ];
        bench.rounds(
            &format!("sustained, {name}"),
            comparisons,
            [&mut through, &mut back, &mut ordered, &mut journaled],
        );
    }
    Ok(())
}

/// A run and its drain.
fn sustain(bench: &mut BlockBench, volume: &mut Volume, policy: &str, job: &Job) -> Result<Run> {
    volume.rest_with(&[policy])?;
    let before = volume.device.counts()?;
    let run = volume.burst(bench, job)?;
    let fio_seconds = run.requests as f64 / run.per_second;
    let start = Instant::now();
    volume.server.drain()?;
    let seconds = fio_seconds + start.elapsed().as_secs_f64();
    let written = volume.device.counts()?.written_bytes - before.written_bytes;
    let staleness = volume.server.status()?.staleness_max_seconds;
    Ok(Run {
        per_second: run.requests as f64 / seconds,
        staleness_max_seconds: Some(staleness),
        origin_writes: Some(written as f64 / (run.requests * job.block_bytes).max(1) as f64),
        ..run
    })
}
