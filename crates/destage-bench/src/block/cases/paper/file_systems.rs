//! Loads of files on mounted volumes, and figure 15: PostMark on several file systems.

use super::{JOURNAL_MB, POSTMARK_SET_MB, dirty_max, sizes, tolerance};
use crate::Result;
use crate::block::bench::{BlockBench, Disk, POLICIES, Sizes};
use crate::block::files::{FileLoad, FileSystem, FileVolume, LOADS, check};
use crate::block::steady::{Sample, Samples, Steady, side_by_side};
use crate::report::Table;

/// The sizes of the cache in figure 15, GB: half and all of what PostMark's files take.
pub(super) const FIGURE_15_GB: [f64; 2] = [1.0, 2.0];
/// What these files take in the paper, GB.
const FIGURE_15_SET_GB: f64 = 2.0;
/// The loads' files take this share of the volume: the file systems' own structures and the holes of deleted files want room.
const SET_DIVISOR: u64 = 4;
/// So many, that syncs are counted with what they sync.
const OPERATIONS_MIN: u64 = 96;

/// Five loads over ext4.
pub(in crate::block) fn run_files(bench: &mut BlockBench) -> Result<()> {
    check()?;
    let set = bench.options.region / SET_DIVISOR;
    let cached = set / POSTMARK_SET_MB * super::POSTMARK_CACHE_MB;
    let mut samples = Samples::default();
    for load in LOADS {
        for (policy, sample) in measure(bench, load, FileSystem::EXT4, set, cached)? {
            samples.add(load.name, policy, sample);
        }
    }
    let loads: Vec<String> = LOADS.iter().map(|it| format!("{}: {}.", it.name, it.what)).collect();
    bench.tables.push(samples.normalised_table(
        "Figure 12 with a file system: throughput over a mounted ext4, write-through = 100",
        format!(
            "The volume as a file, a loop device on it and ext4 on that; the files take a quarter of the volume, three \
             quarters of them fit into the cache, and what may be dirty is in the same proportion as above. What is read \
             is dropped from the page cache before. {}",
            loads.join(" ")
        ),
        "load",
        &LOADS.map(|load| load.name.to_owned()),
    ));
    Ok(())
}

/// Figure 15.
pub(in crate::block) fn run_file_systems(bench: &mut BlockBench) -> Result<()> {
    check()?;
    let load = FileLoad::named("PostMark").ok_or("PostMark is gone")?;
    let set = bench.options.region / SET_DIVISOR;
    let mut samples = Samples::default();
    let mut missing = Vec::new();
    for file_system in FileSystem::PAPER {
        if !file_system.is_known() {
            eprintln!("left out: the kernel does not know {}", file_system.name);
            missing.extend(FIGURE_15_GB.map(|gb| point(file_system, gb)));
            continue;
        }
        // What the paper says in words is about the largest one.
        let skipped = if bench.options.is_quick { FIGURE_15_GB.len() - 1 } else { 0 };
        for &gb in &FIGURE_15_GB[skipped..] {
            let cached = (set as f64 * gb / FIGURE_15_SET_GB) as u64;
            for (policy, sample) in measure(bench, load, file_system, set, cached)? {
                samples.add(&point(file_system, gb), policy, sample);
            }
        }
    }
    bench.tables.push(figure_15(&samples));
    bench.tables.push(tolerance::table(15, &samples, &missing)?);
    Ok(())
}

/// A file system with a size of the cache.
pub(super) fn point(file_system: FileSystem, gb: f64) -> String {
    format!("{}, {gb} GB", file_system.name)
}

fn figure_15(samples: &Samples) -> Table {
    let all = FileSystem::PAPER;
    let mut points: Vec<String> =
        all.iter().flat_map(|&it| FIGURE_15_GB.map(|gb| point(it, gb))).collect();
    points.retain(|point| !samples.of(point, POLICIES[0]).is_empty());
    samples.swept_table(
        "Figure 15: PostMark by file system and size of the cache",
        "PostMark's own operations on mounted files. The cache in the paper's GB, in proportion to the files.",
        "file system, cache",
        &points,
    )
}

/// A load under each policy, side by side.
fn measure(
    bench: &BlockBench,
    load: FileLoad,
    file_system: FileSystem,
    set: u64,
    cached: u64,
) -> Result<Vec<(&'static str, Sample)>> {
    let volume = bench.options.region.max(FileSystem::VOLUME_MIN);
    let sizes = Sizes { volume, ..sizes(volume, cached) };
    let journal = (set / POSTMARK_SET_MB * JOURNAL_MB).max(1 << 20);
    let samples = side_by_side(&POLICIES, |policy| {
        let mut files = FileVolume::start(bench, Disk::PAPER, sizes, file_system)?;
        let prepared = load.prepare(files.folder(), set, bench.options.seed)?;
        files.sync()?;
        let name = format!("{} on {}", load.name, file_system.name);
        let dirty_bytes_max = dirty_max(policy, sizes, journal);
        let steady =
            Steady { name: &name, policy, dirty_bytes_max, operations_min: OPERATIONS_MIN };
        steady.measure(bench, &mut files.volume, |_, watch| prepared.work(watch))
    })?;
    Ok(POLICIES.into_iter().zip(samples).collect())
}
