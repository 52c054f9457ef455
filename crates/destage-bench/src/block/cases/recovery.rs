//! How long a start takes: on a log that a crash left, and on a full clean cache; and what such a cache takes of memory.

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{Advice, fadvise};

use crate::Result;
use crate::block::bench::{BlockBench, Disk, Sizes, Volume};
use crate::cpu::resident_bytes;
use crate::figure::{Memory, thousands};
use crate::fio::{Job, Place, Spread, Until};
use crate::report::Table;
use crate::stats::Spread as Times;

/// What one start measured.
struct Start {
    seconds: f64,
    bytes: u64,
}

/// What a start should reach.
enum Goal {
    BytesPerSecond(f64),
    Seconds(f64),
}

/// The design's goal: a log of 10 GiB in 2 s. What counts is the log's size: it lets go of what the origin has as soon as half
/// of it is taken, and writes wait before undestaged ones take half of it, so a start never finds it fuller than here by much.
const RECOVERY: Goal = Goal::BytesPerSecond(5.0 * (1u64 << 30) as f64);
/// The design's goal for a clean cache.
const CLEAN_START: Goal = Goal::Seconds(1.0);
/// The design's goal: bytes of memory for each clean block.
const BLOCK_BYTES_MAX: f64 = 24.0;

/// Times the start after a crash with undestaged writes in the log.
pub(super) fn run_recovery(bench: &mut BlockBench) -> Result<()> {
    let log = bench.options.recovery_log;
    let (mut starts, mut records) = (Vec::new(), 0);
    for _ in 0..bench.options.pairs.min(3) {
        // Half of a log at most is undecided, and writes slow down before: paused, they would never end.
        let burst = log / 8 * 3;
        let sizes = Sizes { log, ..Sizes::of(bench.options.region, burst) };
        let volume = Volume::start(bench, Disk::new("raid"), sizes, "journaled")?;
        // Nor would they once the oldest is as old as D.
        volume.server.set_policy(&["staleness=1h"])?;
        volume.server.control(&["pause"])?;
        let random = bench.random("randwrite");
        let time = Job::whole("write", log).until.time;
        let until = Until { time, bytes_max: Some(burst) };
        let job = Job { depth: 32, until, ..random };
        bench.fio(&Place::Nbd(volume.server.uri()), &job)?;
        bench.fio(&Place::Nbd(volume.server.uri()), &flush(&random))?;
        let found = volume.server.status()?.log_bytes;
        let restarted = volume.restart(true, forget)?;
        let dirty = restarted.server.status()?.dirty_writes;
        if dirty == 0 {
            return Err("nothing was left to recover".into());
        }
        let seconds = restarted.server.started_in.as_secs_f64();
        starts.push(Start { seconds, bytes: log });
        records = found;
    }
    let mebibytes = |bytes: u64| thousands(bytes as f64 / f64::from(1 << 20));
    let what = format!(
        "log of {} MiB after a kill, {} MiB of it undestaged random writes of 4 KiB",
        mebibytes(log),
        mebibytes(records)
    );
    add(bench, &what, &starts, &RECOVERY);
    Ok(())
}

/// One write with a flush, so that everything before it is in the log.
fn flush(random: &Job) -> Job {
    let until = Until { bytes_max: Some(random.block_bytes), ..random.until };
    Job { flush_every: 1, until, ..*random }
}

/// Times the start on a clean cache that is full, and weighs the process before and after.
pub(super) fn run_full(bench: &mut BlockBench) -> Result<()> {
    let (blocks, log) = (bench.options.full_cache, 64 << 20);
    let sizes = |bytes: u64| Sizes { volume: bytes, blocks: bytes, log, dirty: log / 2 };
    // The least cache under the same reads: what every server takes, buffers that its allocator keeps included.
    let least = filled(bench, Sizes { volume: blocks, ..sizes(32 << 20) }, blocks)?;
    let empty = resident_bytes(least.server.pid())?;
    let least = least.restart(false, forget)?;
    let started = resident_bytes(least.server.pid())?;
    drop(least);
    let mut volume = filled(bench, sizes(blocks), blocks)?;
    let status = volume.server.status()?;
    let full = resident_bytes(volume.server.pid())?;
    weigh(bench, "clean block of a full cache, after filling it", status.clean_blocks, empty, full);
    let mut starts = Vec::new();
    for _ in 0..bench.options.pairs.min(3) {
        volume = volume.restart(false, forget)?;
        let kept = volume.server.status()?.clean_blocks;
        if kept < status.clean_blocks / 10 * 9 {
            return Err(format!("only {kept} of {} blocks outlived it", status.clean_blocks).into());
        }
        let seconds = volume.server.started_in.as_secs_f64();
        starts.push(Start { seconds, bytes: kept * 4096 });
    }
    let full = resident_bytes(volume.server.pid())?;
    weigh(bench, "clean block of a full cache, after a start", status.clean_blocks, started, full);
    let what = format!("clean cache of {} blocks of 4 KiB", thousands(status.clean_blocks as f64));
    add(bench, &what, &starts, &CLEAN_START);
    Ok(())
}

/// A volume whose blocks were read one by one, in no order.
fn filled(bench: &BlockBench, sizes: Sizes, bytes: u64) -> Result<Volume> {
    let volume = Volume::start(bench, Disk::new("flash"), sizes, "journaled")?;
    let random = bench.random("randread");
    let until = Until { time: Duration::from_secs(600), bytes_max: Some(bytes) };
    let job = Job { depth: 32, region_bytes: sizes.volume, spread: Spread::Each, until, ..random };
    bench.fio(&Place::Nbd(volume.server.uri()), &job)?;
    Ok(volume)
}

fn weigh(bench: &mut BlockBench, what: &str, blocks: u64, empty: u64, full: u64) {
    bench.memory.push(Memory {
        what: what.into(),
        items: blocks,
        payload_bytes: 0.0,
        bytes: full.saturating_sub(empty) as f64 / blocks.max(1) as f64,
        limit_beyond: Some(BLOCK_BYTES_MAX),
    });
}

/// Drops the cache's file from the kernel's memory, so that a start reads the disk.
fn forget(cache: &Path) -> Result<()> {
    let file = File::open(cache)?;
    file.sync_all()?;
    Ok(fadvise(&file, 0, None, Advice::DontNeed)?)
}

/// Adds a row to the table of starts.
fn add(bench: &mut BlockBench, what: &str, starts: &[Start], goal: &Goal) {
    const TITLE: &str = "Starts: from the process to its ready line";
    let Some(seconds) = Times::of(starts.iter().map(|start| start.seconds)) else { return };
    let Some(rate) = Times::of(starts.iter().map(|it| it.bytes as f64 / it.seconds)) else {
        return;
    };
    let (goal, reached) = match goal {
        Goal::Seconds(most) => (format!("≤ {most} s"), seconds.median <= *most),
        Goal::BytesPerSecond(least) => {
            (format!("≥ {:.1} GiB/s", least / f64::from(1 << 30)), rate.median >= *least)
        }
    };
    let row = vec![
        what.to_owned(),
        format!("{:.3} s [{:.3}, {:.3}]", seconds.median, seconds.min, seconds.max),
        format!("{:.2} GiB/s", rate.median / f64::from(1 << 30)),
        goal,
        if reached { "yes" } else { "**no**" }.to_owned(),
    ];
    eprintln!("{}", row.join(", "));
    match bench.tables.iter_mut().find(|table| table.title == TITLE) {
        Some(table) => table.rows.push(row),
        None => bench.tables.push(Table {
            title: TITLE.into(),
            note: "The kernel holds nothing of the cache's file before. A start on a log reads its headers; payloads are \
                   checked when they are first read. The rate is that of the whole log, which is never much fuller: \
                   writes wait before undestaged ones take half of it, by default a quarter."
                .into(),
            columns: ["what", "time, median [min, max]", "rate", "target", "reached"]
                .map(str::to_owned)
                .into(),
            rows: vec![row],
        }),
    }
}
