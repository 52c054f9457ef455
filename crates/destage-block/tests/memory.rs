//! What a clean cached block costs in memory, counted at the allocator: requested bytes, so that every run counts the same.
#![allow(clippy::unwrap_used, reason = "a test ends where it fails")]

use allocation_counter::measure;
use destage_block::block::{BLOCK, Lba};
use destage_block::cache::index::chunk_handles;
use destage_block::cache::{CacheDevice, Creation, FileMedia, Index, OriginId, Sizing};
use destage_block::engine::{Context, Parts, Volume, VolumeOptions};
use destage_block::origin::FileOrigin;
use destage_block::request::Request;
use destage_core::{Order, Policy, Time};
use destage_journal::{Journal, Options};
use std::fs::File;
use std::sync::Arc;
use std::time::Instant;

/// With fewer the buffers of the log and of the requests count.
const BLOCKS: u64 = if cfg!(debug_assertions) { 300_000 } else { 5_200_000 };
const LOG_BYTES: u64 = 32 << 20;
/// The bound that the documents give, everything included, and the reserve of slots (an eighth) with it.
const BLOCK_BYTES_MAX: f64 = 33.0;

#[test]
fn a_clean_block_costs_less_than_13_bytes_of_index() {
    let slots = 1_000_000;
    let mut held = None;
    let taken = measure(|| held = Some(filled(slots)));
    let each = taken.bytes_current as f64 / f64::from(slots);
    assert!(each < 13.0, "{each} bytes a block");
    assert!(each > 8.0, "{each} bytes a block: less than block number and checksum take");
    assert_eq!(held.map(|index| index.used()), Some(slots));
}

fn filled(slots: u32) -> Index {
    let mut index = Index::new(slots);
    for block in 0..u64::from(slots) {
        let handle = index.insert(Lba(block * 3)).unwrap();
        index.set_clean(handle, block as u32);
    }
    index
}

/// A cache whose slots but the reserve hold clean blocks; no space of the file is really taken.
fn cache(folder: &std::path::Path, origin: &OriginId) -> Arc<CacheDevice> {
    let path = folder.join("cache");
    let total_bytes = BLOCKS * (BLOCK as u64 + 16) + LOG_BYTES + (8 << 20);
    File::create(&path).unwrap().set_len(total_bytes).unwrap();
    let sizing = Sizing { total_bytes, log_bytes: Some(LOG_BYTES), segment_bytes: None };
    let creation = Creation { sizing, origin: origin.clone(), created_ns: 0, overwrite: true };
    let cache = CacheDevice::create(Box::new(FileMedia::open(&path).unwrap()), &creation).unwrap();
    let slots = cache.slots();
    // As full as it gets: the rest are handles of what is under way.
    let index = filled(slots - (slots / 8).min(1 << 16));
    let mut writer = cache.begin_checkpoint(0);
    while let Some(chunk) = writer.next_chunk() {
        let first = chunk * chunk_handles(slots);
        let handles = chunk_handles(slots).min(slots - first);
        let entry = |handle| match index.lba(handle) {
            Some(lba) => (lba.0 as u32, lba.0 as u32 / 3),
            None => (u32::MAX, 0),
        };
        let entries = (first..first + handles).map(entry);
        let bytes: Vec<u8> = entries
            .flat_map(|(lba, crc)| [lba.to_le_bytes(), crc.to_le_bytes()].concat())
            .collect();
        writer.write(&bytes).unwrap();
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

#[test]
fn a_clean_block_costs_what_the_documents_say_with_replacement_and_ghosts() {
    let folder = tempfile::tempdir().unwrap();
    let size = BLOCKS * 4 * BLOCK as u64;
    let id = OriginId { uuid: uuid::Uuid::nil(), name: "o".into(), volume_bytes: size };
    let cache = cache(folder.path(), &id);
    let path = folder.path().join("origin");
    File::create(&path).unwrap().set_len(size).unwrap();
    let origin = Arc::new(FileOrigin::open(&path).unwrap());
    let context = Context { cache: cache.clone(), origin, redo: None, turns: Arc::default() };
    let mut held = None;
    let began = Instant::now();
    let taken = measure(|| held = Some(open(&cache, size)));
    let took = began.elapsed();
    let mut volume = held.unwrap();
    let used = volume.status().slots_used;
    let ghosts = measure(|| {
        for _ in 0..3 {
            read_others(&mut volume, &context, 1);
        }
    });
    eprintln!("opened in {took:?}");
    let status = volume.status();
    assert!(status.core.evictions > 0, "{status:?}");
    let bytes = taken.bytes_current + ghosts.bytes_current;
    let each = bytes as f64 / f64::from(used);
    eprintln!("{used} clean blocks: {each:.2} bytes each");
    assert!(each < BLOCK_BYTES_MAX, "{each} bytes a block");
    assert!(u64::from(used) > BLOCKS / 8 * 6, "{used}");
}
