//! The paper's figures 12 to 15: throughput of the four policies by workload, by size of the cache, by size of the
//! journal, by file system.
//!
//! As in the paper the rates are those of a steady state. The cache is warm, and the load runs before anything is counted:
//! until two thirds of the blocks that may be dirty are, or for a while if it is slow. The journal is bounded by dirty
//! pages, which is our dirty limit.

mod file_systems;
mod tolerance;

pub(in crate::block) use self::file_systems::{run_file_systems, run_files};
use crate::Result;
use crate::block::bench::{BlockBench, Disk, POLICIES, Sizes, Volume};
use crate::block::steady::{Sample, Samples, Steady, side_by_side};
use crate::block::streams::{self, MIXES, Mix};

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
/// Operations that a rate is of at least.
const OPERATIONS_MIN: u64 = 50;

/// The sizes of a volume whose cache holds a part of it.
fn sizes(region: u64, blocks: u64) -> Sizes {
    // A cache of less has no room for a log.
    let blocks = blocks.max(32 << 20);
    let log = blocks.max(32 << 20);
    Sizes { volume: region, blocks, log, dirty: log }
}

/// The most that may be dirty under a policy, bytes: under journaled the paper's journal.
fn dirty_max(policy: &str, sizes: Sizes, journal: u64) -> u64 {
    if policy == "journaled" { journal } else { sizes.dirty / 4 }
}

fn warm_volume(bench: &BlockBench, sizes: Sizes, further: &[String]) -> Result<Volume> {
    let mut volume = Volume::start_with(bench, Disk::PAPER, sizes, "journaled", further)?;
    volume.lay_out(bench)?;
    volume.warm(bench)?;
    Ok(volume)
}

/// The rate of a stream.
fn stream(
    bench: &BlockBench,
    volume: &mut Volume,
    mix: Mix,
    policy: &str,
    dirty_bytes_max: u64,
) -> Result<Sample> {
    let (region, seed) = (bench.options.region, bench.options.seed);
    let steady = Steady { name: mix.name, policy, dirty_bytes_max, operations_min: OPERATIONS_MIN };
    steady.measure(bench, volume, |uri, watch| streams::send(uri, mix, region, seed, watch))
}

/// Figure 12.
pub(in crate::block) fn run_policies(bench: &mut BlockBench) -> Result<()> {
    let region = bench.options.region;
    let mut samples = Samples::default();
    for mix in MIXES {
        let sizes = sizes(region, region / POSTMARK_SET_MB * POSTMARK_CACHE_MB);
        let journal = sizes.blocks / POSTMARK_CACHE_MB * JOURNAL_MB;
        let mut volume = warm_volume(bench, sizes, &[])?;
        // Rates of a steady state differ little from round to round, and take long.
        for _ in 0..(bench.options.pairs / 2).clamp(1, 3) {
            for policy in POLICIES {
                let dirty = dirty_max(policy, sizes, journal);
                let sample = stream(bench, &mut volume, mix, policy, dirty)?;
                samples.add(mix.name, policy, sample);
            }
        }
    }
    let mixes: Vec<String> =
        MIXES.iter().map(|mix| format!("{}: {}.", mix.name, mix.what)).collect();
    bench.tables.push(samples.normalised_table(
        "Figure 12: throughput by workload, write-through = 100, median [min, max]",
        format!(
            "Block streams sent by our own client, with the mix of each workload; no file system is between. Three \
             quarters of the volume are cached, a fifteenth of the cache may be dirty under journaled, a quarter of the \
             log under the others. The disk is `raid` without a write cache. {}",
            mixes.join(" ")
        ),
        "workload",
        &MIXES.map(|mix| mix.name.to_owned()),
    ));
    bench.tables.push(tolerance::table(12, &samples, &[])?);
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
        let measured = side_by_side(&POLICIES, |policy| {
            let mut volume = warm_volume(bench, sizes, &[])?;
            stream(bench, &mut volume, MIXES[0], policy, dirty_max(policy, sizes, journal))
        })?;
        POLICIES.iter().zip(measured).for_each(|(policy, it)| {
            samples.add(&gb.to_string(), policy, it);
        });
    }
    bench.tables.push(samples.swept_table(
        "Figure 13: the file server by size of the cache",
        "The cache in the paper's GB, in proportion to the volume. Dirty blocks are bounded by a quarter of the log, which \
         is as long as the cache of blocks is large; under journaled by the paper's journal of 100 MB, in proportion.",
        "cache, GB",
        &FIGURE_13_GB.map(|gb| gb.to_string()),
    ));
    bench.tables.push(tolerance::table(13, &samples, &[])?);
    Ok(())
}

/// Figure 14.
pub(in crate::block) fn run_journal_sizes(bench: &mut BlockBench) -> Result<()> {
    let region = bench.options.region;
    let mix = MIXES.into_iter().find(|mix| mix.name == "PostMark").ok_or("PostMark is gone")?;
    let sizes = sizes(region, region / POSTMARK_SET_MB * POSTMARK_CACHE_MB);
    let mut all = vec![("write-through", None), ("write-back", None)];
    all.extend(FIGURE_14_MB.map(|mb| ("journaled", Some(mb))));
    let mut samples = Samples::default();
    let mut measured = Vec::new();
    for some in all.chunks(POLICIES.len()) {
        measured.extend(side_by_side(some, |&(policy, mb)| {
            let journal = mb.map_or(sizes.dirty / 4, |mb| region / POSTMARK_SET_MB * mb);
            let journal = journal.min(sizes.dirty / 4);
            // What the paper's journal holds is checkpointed at once.
            let group = mb.map(|_| format!("--batch-size={}", journal.max(64 << 10)));
            let mut volume = warm_volume(bench, sizes, group.as_slice())?;
            stream(bench, &mut volume, mix, policy, journal)
        })?);
    }
    for ((policy, mb), sample) in all.into_iter().zip(measured) {
        match mb {
            Some(mb) => samples.add(&mb.to_string(), policy, sample),
            // The others have no journal to bound: one measurement stands beside each.
            None => FIGURE_14_MB.iter().for_each(|mb| samples.add(&mb.to_string(), policy, sample)),
        }
    }
    bench.tables.push(samples.swept_table(
        "Figure 14: PostMark by size of the journal",
        "The journal in the paper's MB, in proportion to the volume: the most dirty blocks under journaled, and the largest \
         atomic group.",
        "journal, MB",
        &FIGURE_14_MB.map(|mb| mb.to_string()),
    ));
    bench.tables.push(tolerance::table(14, &samples, &[])?);
    Ok(())
}
