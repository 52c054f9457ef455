//! The paper's figures 12 to 14: throughput of the four policies by workload, by size of the cache, by size of the
//! journal.
//!
//! As in the paper the rates are those of a steady state. The cache is warm, and the stream runs before anything is
//! counted: until two thirds of the blocks that may be dirty are, or for twice a run's length, since a slow stream never
//! gets there. The journal is bounded by dirty pages, which is our dirty limit. Figure 15 compares file systems, which a
//! block stream does not have.

mod tolerance;

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use self::tolerance::Measured;
use crate::Result;
use crate::block::bench::{BlockBench, POLICIES, Sizes, Volume};
use crate::block::streams::{self, MIXES, Mix};
use crate::figure::thousands;
use crate::report::Table;
use crate::stats::Spread;

/// The sizes of the cache in figure 13, GB.
const FIGURE_13_GB: [f64; 5] = [0.5, 1.0, 1.5, 2.0, 2.5];
/// What the blocks of figure 13's file server take, GB: its largest cache holds them.
const FIGURE_13_SET_GB: f64 = 2.5;
/// The sizes of the journal in figure 14, MB.
const FIGURE_14_MB: [u64; 5] = [25, 50, 100, 250, 500];
/// What PostMark's blocks take ("2GB in this case"), MB, and the cache before them.
const POSTMARK_SET_MB: u64 = 2_048;
const POSTMARK_CACHE_MB: u64 = 1_536;
/// The paper's journal where it says no other, MB.
const JOURNAL_MB: u64 = 100;

/// Operations that a rate is of at least, unless they take ten times as long as a run.
const OPERATIONS_MIN: u64 = 50;

/// What one steady state gave.
#[derive(Clone, Copy, Debug)]
struct Sample {
    per_second: f64,
    /// Bytes written at the origin for each operation.
    written: f64,
}

/// All of a figure: by point, then by policy.
#[derive(Debug, Default)]
struct Samples(BTreeMap<String, BTreeMap<String, Vec<Sample>>>);

impl Samples {
    fn add(&mut self, point: &str, policy: &str, sample: Sample) {
        let at = self.0.entry(point.to_owned()).or_default();
        at.entry(policy.to_owned()).or_default().push(sample);
    }

    fn of(&self, point: &str, policy: &str) -> &[Sample] {
        self.0.get(point).and_then(|at| at.get(policy)).map_or(&[], Vec::as_slice)
    }

    fn median(&self, point: &str, policy: &str, measured: Measured) -> Option<f64> {
        let value = |sample: &Sample| match measured {
            Measured::Rate => sample.per_second,
            Measured::Written => sample.written,
        };
        Spread::of(self.of(point, policy).iter().map(value)).map(|spread| spread.median)
    }

    /// Rate over that of write-through of the same round, percent.
    fn normalised(&self, point: &str, policy: &str) -> String {
        let through = self.of(point, POLICIES[0]);
        let pairs = self.of(point, policy).iter().zip(through);
        match Spread::of(pairs.map(|(own, through)| own.per_second / through.per_second * 100.0)) {
            None => "-".into(),
            Some(it) => format!("{:.0} [{:.0}, {:.0}]", it.median, it.min, it.max),
        }
    }

    fn rate(&self, point: &str, policy: &str) -> String {
        let rate = self.median(point, policy, Measured::Rate);
        rate.map_or_else(|| "-".into(), thousands)
    }

    fn written(&self, point: &str, policy: &str) -> String {
        let written = self.median(point, policy, Measured::Written);
        written.map_or_else(|| "-".into(), |bytes| format!("{:.1}", bytes / 1024.0))
    }
}

/// The sizes of a volume whose cache holds a part of it.
fn sizes(region: u64, blocks: u64) -> Sizes {
    // A cache of less has no room for a log.
    let blocks = blocks.max(32 << 20);
    let log = blocks.max(32 << 20);
    Sizes { volume: region, blocks, log, dirty: log }
}

/// Before the paper's disks, which have no write cache in its table 1.
fn warm_volume(bench: &BlockBench, sizes: Sizes) -> Result<Volume> {
    let mut volume = Volume::start(bench, "raid", Some(0), sizes, "journaled")?;
    volume.lay_out(bench)?;
    volume.warm(bench)?;
    Ok(volume)
}

/// Figure 12.
pub(in crate::block) fn run_policies(bench: &mut BlockBench) -> Result<()> {
    let region = bench.options.region;
    let mut samples = Samples::default();
    for mix in MIXES {
        let sizes = sizes(region, region / POSTMARK_SET_MB * POSTMARK_CACHE_MB);
        let journal = sizes.blocks / POSTMARK_CACHE_MB * JOURNAL_MB;
        let mut volume = warm_volume(bench, sizes)?;
        for _ in 0..bench.options.pairs.min(3) {
            for policy in POLICIES {
                let dirty = if policy == "journaled" { journal } else { sizes.dirty / 4 };
                let sample = steady(bench, &mut volume, mix, policy, dirty)?;
                samples.add(mix.name, policy, sample);
            }
        }
    }
    let columns = ["workload", "write-through, operations/s"]
        .into_iter()
        .chain(POLICIES[1..].iter().copied());
    let row = |mix: &Mix| {
        let mut row = vec![mix.name.to_owned(), samples.rate(mix.name, POLICIES[0])];
        row.extend(POLICIES[1..].iter().map(|policy| samples.normalised(mix.name, policy)));
        row
    };
    let mixes: Vec<String> =
        MIXES.iter().map(|mix| format!("{}: {}.", mix.name, mix.what)).collect();
    bench.tables.push(Table {
        title: "Figure 12: throughput by workload, write-through = 100, median [min, max]".into(),
        note: format!(
            "Block streams sent by our own client, with the mix of each workload; no file system is between. Three \
             quarters of the volume are cached, a fifteenth of the cache may be dirty under journaled, a quarter of the \
             log under the others. The disk is `raid` without a write cache. {}",
            mixes.join(" ")
        ),
        columns: columns.map(str::to_owned).collect(),
        rows: MIXES.iter().map(row).collect(),
    });
    bench.tables.push(tolerance::table(12, &samples)?);
    Ok(())
}

/// Figure 13.
pub(in crate::block) fn run_cache_sizes(bench: &mut BlockBench) -> Result<()> {
    let region = bench.options.region;
    let mut samples = Samples::default();
    for gb in FIGURE_13_GB {
        let blocks = (region as f64 * gb / FIGURE_13_SET_GB) as u64 / 4096 * 4096;
        let sizes = sizes(region, blocks);
        let journal = (region as f64 / FIGURE_13_SET_GB / 1000.0 * JOURNAL_MB as f64) as u64;
        let mut volume = warm_volume(bench, sizes)?;
        for policy in POLICIES {
            let dirty = if policy == "journaled" { journal } else { sizes.dirty / 4 };
            let sample = steady(bench, &mut volume, MIXES[0], policy, dirty)?;
            samples.add(&gb.to_string(), policy, sample);
        }
    }
    bench.tables.push(swept(
        "Figure 13: the file server by size of the cache",
        "The cache in the paper's GB, in proportion to the volume. Operations a second, and KiB written at the origin for \
         each operation (redo store included). Dirty blocks are bounded by a quarter of the log, which is as long as the \
         cache of blocks is large; under journaled by the paper's journal of 100 MB, in proportion.",
        "cache, GB",
        &FIGURE_13_GB.map(|gb| gb.to_string()),
        &samples,
    ));
    bench.tables.push(tolerance::table(13, &samples)?);
    Ok(())
}

/// Figure 14.
pub(in crate::block) fn run_journal_sizes(bench: &mut BlockBench) -> Result<()> {
    let region = bench.options.region;
    let mix = MIXES.into_iter().find(|mix| mix.name == "PostMark").ok_or("PostMark is gone")?;
    let sizes = sizes(region, region / POSTMARK_SET_MB * POSTMARK_CACHE_MB);
    let mut volume = warm_volume(bench, sizes)?;
    let mut samples = Samples::default();
    let mut rest = Vec::new();
    for policy in ["write-through", "write-back"] {
        rest.push((policy, steady(bench, &mut volume, mix, policy, sizes.dirty / 4)?));
    }
    for mb in FIGURE_14_MB {
        let journal = region / POSTMARK_SET_MB * mb;
        let sample = steady(bench, &mut volume, mix, "journaled", journal.min(sizes.dirty / 4))?;
        samples.add(&mb.to_string(), "journaled", sample);
        // The others have no journal to bound: one measurement stands beside each.
        rest.iter().for_each(|(policy, sample)| samples.add(&mb.to_string(), policy, *sample));
    }
    bench.tables.push(swept(
        "Figure 14: PostMark by size of the journal",
        "The journal in the paper's MB, in proportion to the volume: the most dirty blocks under journaled.",
        "journal, MB",
        &FIGURE_14_MB.map(|mb| mb.to_string()),
        &samples,
    ));
    bench.tables.push(tolerance::table(14, &samples)?);
    Ok(())
}

/// A table with a row for each point and a column for each policy that was measured.
fn swept(title: &str, note: &str, axis: &str, points: &[String], samples: &Samples) -> Table {
    let measured: Vec<&str> = POLICIES
        .into_iter()
        .filter(|policy| points.iter().any(|point| !samples.of(point, policy).is_empty()))
        .collect();
    let row = |point: &String| {
        let cells = measured.iter().map(|policy| {
            format!("{} ({})", samples.rate(point, policy), samples.written(point, policy))
        });
        std::iter::once(point.clone()).chain(cells).collect()
    };
    Table {
        title: title.into(),
        note: note.into(),
        columns: std::iter::once(axis).chain(measured.iter().copied()).map(str::to_owned).collect(),
        rows: points.iter().map(row).collect(),
    }
}

/// The rate of a stream once as much is dirty as may be.
fn steady(
    bench: &BlockBench,
    volume: &mut Volume,
    mix: Mix,
    policy: &str,
    dirty_bytes_max: u64,
) -> Result<Sample> {
    // The limit counts undestaged writes and dirty blocks.
    let limit = format!("dirty-limit={}", (dirty_bytes_max * 2).max(64 << 10));
    volume.rest_with(&[policy, &limit])?;
    let time = bench.options.time.mul_f64(0.6);
    let uri = volume.server.uri();
    let (region, seed) = (bench.options.region, bench.options.seed);
    let sample = streams::send(&uri, mix, region, seed, |done| {
        if policy != POLICIES[0] {
            wait_until_dirty(volume, dirty_bytes_max / 3 * 2, time * 2)?;
        }
        thread::sleep(time / 2);
        let (before, start) = (done.load(Ordering::Relaxed), Instant::now());
        let written = volume.device.counts()?.written_bytes;
        thread::sleep(time);
        // A slow stream is given more time, so that a few operations are counted.
        while done.load(Ordering::Relaxed) < before + OPERATIONS_MIN && start.elapsed() < time * 10
        {
            thread::sleep(time / 10);
        }
        let operations = done.load(Ordering::Relaxed) - before;
        let seconds = start.elapsed().as_secs_f64();
        let written = volume.device.counts()?.written_bytes - written;
        if operations == 0 {
            return Err(format!("{}: no operation within {seconds:.1} s", mix.name).into());
        }
        // What is under way is to end soon.
        volume.device.instant()?;
        Ok(Sample {
            per_second: operations as f64 / seconds,
            written: written as f64 / operations as f64,
        })
    })?;
    eprintln!(
        "{}, {policy}, {} MiB dirty at most: {:.0}/s, {:.1} KiB at the origin per operation",
        mix.name,
        dirty_bytes_max >> 20,
        sample.per_second,
        sample.written / 1024.0
    );
    Ok(sample)
}

/// Waits until so much is dirty, or the time is over.
fn wait_until_dirty(volume: &Volume, bytes: u64, most: Duration) -> Result<()> {
    let deadline = Instant::now() + most;
    while Instant::now() < deadline && volume.server.status()?.dirty_bytes < bytes {
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}
