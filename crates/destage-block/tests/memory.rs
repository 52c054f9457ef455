//! What a cached block costs in memory, counted at the allocator: requested bytes, so that every run counts the same.
#![allow(clippy::unwrap_used, reason = "a test ends where it fails")]

use allocation_counter::measure;
use destage_block::block::{BLOCK, Lba};
use destage_block::cache::{CacheDevice, Creation, FileMedia, Index, OriginId, Sizing};
use destage_block::engine::{Context, Parts, Volume, VolumeOptions};
use destage_block::origin::FileOrigin;
use destage_block::request::Request;
use destage_core::{Order, Policy, Time, When};
use destage_journal::{Journal, Options};
use std::fs::File;
use std::sync::Arc;
use std::time::Instant;

/// Caches of two sizes: what the larger one takes beyond the smaller is what its further blocks cost; what both take, such as
/// buffers of the log and slots in reserve, is what every volume costs.
const BLOCKS: [u64; 2] =
    if cfg!(debug_assertions) { [200_000, 1_100_000] } else { [600_000, 5_200_000] };
const LOG_BYTES: u64 = 32 << 20;
/// The bound that the documents give: index, replacement and its ghosts.
const BLOCK_BYTES_MAX: f64 = 24.0;
/// The same of a block that is dirty by a write of its own, where only the log holds its bytes.
const DIRTY_BLOCK_BYTES_MAX: f64 = 700.0;
/// What a volume takes besides, with a log of this size.
const VOLUME_BYTES_MAX: i64 = 16 << 20;

#[test]
fn a_clean_block_costs_less_than_13_bytes_of_index() {
    let slots = 1_000_000;
    let mut held = None;
    let taken = measure(|| held = Some(filled(slots, slots)));
    let each = taken.bytes_current as f64 / f64::from(slots);
    assert!(each < 13.0, "{each} bytes a block");
    assert!(each > 8.0, "{each} bytes a block: less than block number and checksum take");
    assert_eq!(held.map(|index| index.used()), Some(slots));
}

/// So many slots, the first of which hold clean blocks.
fn filled(slots: u32, clean: u32) -> Index {
    let mut index = Index::new(slots);
    for block in 0..u64::from(clean) {
        let handle = index.insert(Lba(block * 3)).unwrap();
        index.set_clean(handle, block as u32);
    }
    index
}

/// A cache for so many blocks whose slots but the reserve hold clean ones; no space of the file is really taken.
fn cache(folder: &std::path::Path, blocks: u64, origin: &OriginId) -> Arc<CacheDevice> {
    let path = folder.join(format!("cache-{blocks}"));
    let total_bytes = blocks * (BLOCK as u64 + 16) + LOG_BYTES + (8 << 20);
    File::create(&path).unwrap().set_len(total_bytes).unwrap();
    let sizing = Sizing { total_bytes, log_bytes: Some(LOG_BYTES), segment_bytes: None };
    let creation = Creation { sizing, origin: origin.clone(), created_ns: 0, overwrite: true };
    let cache = CacheDevice::create(Box::new(FileMedia::open(&path).unwrap()), &creation).unwrap();
    let slots = cache.slots();
    // As full as it gets: the rest are handles of what is under way.
    let index = filled(slots, slots - (slots / 8).min(1 << 16));
    let mut writer = cache.begin_checkpoint(0);
    while let Some(chunk) = writer.next_chunk() {
        writer.write(&index.chunk(chunk)).unwrap();
    }
    writer.commit().unwrap();
    Arc::new(cache)
}

fn open(cache: &Arc<CacheDevice>, size: u64) -> Volume {
    let log = Options { background: false, ..cache.log_options() };
    let (journal, recovery) = Journal::open(cache.log(), log).unwrap();
    let mut policy = Policy { order: Order::Epoch, ..Policy::default() };
    // What is reserved for dirty blocks is not for clean ones.
    (policy.limits.dirty_bytes_max, policy.limits.dirty_bytes_low) = (1 << 20, 1 << 19);
    policy.limits.cache_bytes_max = u64::MAX;
    let parts = Parts {
        cache: cache.clone(),
        journal,
        recovery,
        size,
        policy,
        options: VolumeOptions::default(),
        applied: None,
        atomic_bytes_max: None,
    };
    Volume::open(parts, Time::from_secs(1)).unwrap()
}

/// Reads blocks that are not cached, so that others leave and are remembered.
fn read_others(volume: &mut Volume, context: &Context, first: u64) {
    for block in 0..64 {
        let offset = (first + block) * BLOCK as u64;
        volume.submit(Time::from_secs(2), block, Request::Read { offset, len: BLOCK as u32 });
        while let Some(job) = volume.poll_job() {
            let done = job.run(context);
            volume.finished(Time::from_secs(2), done);
        }
        while volume.poll_reply().is_some() {}
    }
}

/// Clean blocks and all bytes that the volume holds for so many.
fn weigh(folder: &std::path::Path, blocks: u64) -> (i64, i64) {
    let size = blocks * 4 * BLOCK as u64;
    let id = OriginId { uuid: uuid::Uuid::nil(), name: "o".into(), volume_bytes: size };
    let cache = cache(folder, blocks, &id);
    let path = folder.join("origin");
    File::create(&path).unwrap().set_len(size).unwrap();
    let origin = Arc::new(FileOrigin::open(&path).unwrap());
    let context = Context { cache: cache.clone(), origin, redo: None, turns: Arc::default() };
    let mut held = None;
    let began = Instant::now();
    let taken = measure(|| held = Some(open(&cache, size)));
    eprintln!("{blocks} blocks: opened in {:?}", began.elapsed());
    let mut volume = held.unwrap();
    let used = volume.status().slots_used;
    let ghosts = measure(|| {
        for _ in 0..3 {
            read_others(&mut volume, &context, 1);
        }
    });
    let status = volume.status();
    assert!(status.core.evictions > 0, "{status:?}");
    assert!(u64::from(used) > blocks / 8 * 6, "{used}");
    (i64::from(used), taken.bytes_current + ghosts.bytes_current)
}

#[test]
fn a_clean_block_costs_what_the_documents_say_with_replacement_and_ghosts() {
    let folder = tempfile::tempdir().unwrap();
    let [(few, few_bytes), (many, many_bytes)] = BLOCKS.map(|blocks| weigh(folder.path(), blocks));
    let each = (many_bytes - few_bytes) as f64 / (many - few) as f64;
    let volume = few_bytes - (each * few as f64) as i64;
    let all = many_bytes as f64 / many as f64;
    eprintln!("{many} blocks: {each:.2} bytes each, and {volume} a volume: {all:.2} in all");
    assert!(each < BLOCK_BYTES_MAX, "{each} bytes a block");
    assert!(each > 12.0, "{each} bytes a block: less than the index takes");
    assert!(volume < VOLUME_BYTES_MAX, "{volume} bytes a volume");
}

/// What a volume holds for so many blocks, each dirty by a write of its own that only the log holds.
fn weigh_dirty(folder: &std::path::Path, writes: u64) -> i64 {
    let size = 1 << 30;
    let id = OriginId { uuid: uuid::Uuid::nil(), name: "o".into(), volume_bytes: size };
    let cache = cache(folder, 40_000 + writes, &id);
    let path = folder.join("origin");
    File::create(&path).unwrap().set_len(size).unwrap();
    let origin = Arc::new(FileOrigin::open(&path).unwrap());
    let context = Context { cache: cache.clone(), origin, redo: None, turns: Arc::default() };
    let log = Options { background: false, ..cache.log_options() };
    let (journal, recovery) = Journal::open(cache.log(), log).unwrap();
    let mut policy = Policy { order: Order::Epoch, when: When::OnPressure, ..Policy::default() };
    (policy.limits.dirty_bytes_max, policy.limits.dirty_bytes_low) = (1 << 30, 1 << 29);
    let options = VolumeOptions { memory_bytes_max: 0, ..VolumeOptions::default() };
    let parts = Parts {
        cache,
        journal,
        recovery,
        size,
        policy,
        options,
        applied: None,
        atomic_bytes_max: None,
    };
    let now = Time::from_secs(1);
    let mut volume = Volume::open(parts, now).unwrap();
    let taken = measure(|| {
        for write in 0..writes {
            // Blocks that no clean copy of the cache stands for.
            let (offset, data) = ((3 * write + 1) * BLOCK as u64, vec![1; BLOCK]);
            volume.submit(now, write, Request::Write { offset, data, fua: true });
            volume.tick(now);
            while let Some(job) = volume.poll_job() {
                let done = job.run(&context);
                volume.finished(now, done);
            }
            while volume.poll_reply().is_some() {}
        }
    });
    let status = volume.status();
    assert_eq!((status.core.dirty_units, status.memory_bytes), (writes, 0), "{status:?}");
    taken.bytes_current
}

#[test]
fn a_dirty_block_costs_what_the_documents_say() {
    let folder = tempfile::tempdir().unwrap();
    // Tables as full as they get.
    let [few, many] = [448, 1_792].map(|writes| weigh_dirty(folder.path(), writes));
    let each = (many - few) as f64 / (1_792.0 - 448.0);
    eprintln!("{each:.0} bytes each");
    assert!((100.0..DIRTY_BLOCK_BYTES_MAX).contains(&each), "{each} bytes a dirty block");
}
